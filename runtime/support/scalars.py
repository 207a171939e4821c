"""Scalar arithmetic of a schedule's control flow: 64-bit integers, without torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import For, If, Item, Launch, Pipeline, Scalar, ScalarOperand


class ScalarArithmeticErrors(ErrorKind):
    DIVISION_BY_ZERO = InputError, "the schedule divides by a scalar that is 0"
    SCALAR_OVERFLOW = InputError, "a scalar of the schedule does not fit in 64 bits"
    LOOKUP_OUT_OF_RANGE = InputError, "the schedule looks up entry {index} of a table with {entries} entries"
    OPERATION = InputError, "the schedule is malformed: no scalar operation {op!r} takes {arguments} arguments"
    NOT_SET = InputError, "the schedule is malformed: scalar {scalar!r} is used before it is set"


def _divisor(value: int) -> int:
    if value == 0:
        raise ScalarArithmeticErrors.DIVISION_BY_ZERO()
    return value


def _lookup(index: int, *table: int) -> int:
    if not 0 <= index < len(table):
        raise ScalarArithmeticErrors.LOOKUP_OUT_OF_RANGE(index=index, entries=len(table))
    return table[index]


SCALAR_OPS: dict[str, tuple[int, Callable[..., int]]] = {
    "add": (2, operator.add),
    "sub": (2, operator.sub),
    "mul": (2, operator.mul),
    "floordiv": (2, lambda a, b: a // _divisor(b)),
    "ceildiv": (2, lambda a, b: -(-a // _divisor(b))),
    "mod": (2, lambda a, b: a % _divisor(b)),
    "min": (2, min),
    "max": (2, max),
    "eq": (2, operator.eq),
    "ne": (2, operator.ne),
    "lt": (2, operator.lt),
    "le": (2, operator.le),
    "gt": (2, operator.gt),
    "ge": (2, operator.ge),
    "and": (2, operator.and_),
    "or": (2, operator.or_),
    "select": (3, lambda condition, yes, no: yes if condition else no),
    "lookup": (-2, _lookup),
}
"""Number of arguments (-n: n or more) and function of each operation. Comparisons return bool, stored as 0 or 1."""


def scalar_function(op: str, arguments: int) -> Callable[..., int]:
    """Return the function of an operation with `arguments` arguments. Raises InputError if there is none."""
    arity, function = SCALAR_OPS.get(op, (0, int))
    if arity == 0 or (arguments < -arity if arity < 0 else arguments != arity):
        raise ScalarArithmeticErrors.OPERATION(op=op, arguments=arguments)
    return function


def value_of(operand: ScalarOperand, environment: Mapping[str, int]) -> int:
    """Return an operand's value. Raises InputError for a scalar that is not set."""
    if isinstance(operand, int):
        return operand
    if operand not in environment:
        raise ScalarArithmeticErrors.NOT_SET(scalar=operand)
    return environment[operand]


def evaluate(scalar: Scalar, environment: Mapping[str, int]) -> int:
    """Return the value of ``op(args)``. Raises InputError for an unknown operation, a wrong arity or a division by 0.
    """
    function = scalar_function(scalar.op, len(scalar.args))
    return int(function(*[value_of(arg, environment) for arg in scalar.args]))


def executed(items: Sequence[Item], environment: dict[str, int]) -> Iterator[Launch | Pipeline]:
    """Yield the items that control flow executes, in order. At each one, `environment` has the scalars that are set."""
    for item in items:
        if isinstance(item, Scalar):
            environment[item.name] = evaluate(item, environment)
        elif isinstance(item, For):
            for index in range(value_of(item.lower, environment), value_of(item.upper, environment)):
                environment[item.index] = index
                yield from executed(item.body, environment)
        elif isinstance(item, If):
            if value_of(item.condition, environment):
                yield from executed(item.body, environment)
        else:
            yield item
