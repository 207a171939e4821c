"""Control flow in entries and kernels: scalar arithmetic, loops, branches, and offsets that depend on scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeVar

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import For, If, Item, Launch, Pipeline, Scalar, ScalarOperand, View
from sscc.runtime.support.scalars import scalar_function


class ReferenceControlErrors(ErrorKind):
    UNSET_SCALAR = InputError, "{where} uses the scalar {scalar!r} on a path that never sets it"

Environment = dict[str, int]
Getter = Callable[[Environment], int]
Action = Callable[[Environment], None]
Leaf = Callable[["Launch | Pipeline"], Action]

Key = TypeVar("Key")
Value = TypeVar("Value")


def getter(operand: ScalarOperand) -> Getter:
    """Return a function from the environment to the value of an operand; it raises KeyError if the scalar was never
    set."""
    return operator.itemgetter(operand) if isinstance(operand, str) else lambda _: operand


def compile_scalar(item: Scalar) -> Action:
    """Return the function that computes and sets a scalar."""
    function = scalar_function(item.op, len(item.args))
    getters = [getter(arg) for arg in item.args]

    def action(environment: Environment) -> None:
        environment[item.name] = int(function(*[get(environment) for get in getters]))

    return action


def compile_block(items: Sequence[Item], leaf: Leaf) -> list[Action]:
    """Compile items in order. `leaf` compiles the items that are not control flow."""
    return [_compile_item(item, leaf) for item in items]


def _compile_item(item: Item, leaf: Leaf) -> Action:
    if isinstance(item, Scalar):
        return compile_scalar(item)
    if isinstance(item, For):
        return _for(item, leaf)
    if isinstance(item, If):
        return _if(item, leaf)
    return leaf(item)


def _for(item: For, leaf: Leaf) -> Action:
    lower, upper = getter(item.lower), getter(item.upper)
    body = compile_block(item.body, leaf)

    def action(environment: Environment) -> None:
        for index in range(lower(environment), upper(environment)):
            environment[item.index] = index
            for inner in body:
                inner(environment)

    return action


def _if(item: If, leaf: Leaf) -> Action:
    condition = getter(item.condition)
    body = compile_block(item.body, leaf)

    def action(environment: Environment) -> None:
        if condition(environment):
            for inner in body:
                inner(environment)

    return action


class Offset:
    """The offset of a view, ``offset + sum(terms)``, as a function of scalars."""

    def __init__(self, view: View) -> None:
        self._base = view.offset
        self._terms = [(getter(name), factor) for name, factor in view.terms]

    @property
    def static(self) -> bool:
        return not self._terms

    def at(self, environment: Environment) -> int:
        offset = self._base
        for get, factor in self._terms:
            offset += get(environment) * factor
        return offset


class Memo(dict[Key, Value]):
    """A dictionary of limited size. A full one keeps its entries, because loops look up the same keys in the same
    order. After many misses, which show that the entries are useless, it is emptied."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._missed = 0

    def keep(self, key: Key, value: Value) -> None:
        """Offer a value whose key was looked up and not found."""
        self._missed += 1
        if len(self) >= self._capacity and self._missed > 8 * self._capacity:
            self.clear()
        if len(self) < self._capacity:
            self[key] = value
            self._missed = 0
