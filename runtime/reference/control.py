"""Entry control: scalar arithmetic, and views whose offset depends on scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from sscc.ir.errors import InputError
from sscc.runtime.schedule import Operand, ParamAccess, View

Environment = dict[str, int]
Getter = Callable[[Environment], int]


def _floor_divide(a: int, b: int) -> int:
    return a // _divisor(b)


def _ceil_divide(a: int, b: int) -> int:
    return -(-a // _divisor(b))


def _modulo(a: int, b: int) -> int:
    return a % _divisor(b)


def _divisor(value: int) -> int:
    if value == 0:
        raise InputError("the schedule divides by a scalar that is 0")
    return value


def _select(condition: int, yes: int, no: int) -> int:
    return yes if condition else no


SCALAR_OPS: dict[str, tuple[int, Callable[..., int]]] = {
    "add": (2, operator.add),
    "sub": (2, operator.sub),
    "mul": (2, operator.mul),
    "floordiv": (2, _floor_divide),
    "ceildiv": (2, _ceil_divide),
    "mod": (2, _modulo),
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
    "select": (3, _select),
}
"""Operation -> number of arguments, function. Comparisons give bool, stored as 0 or 1."""


def getter(operand: Operand, known: set[str], where: str) -> Getter:
    """A function of the environment that gives an operand's value. Raises InputError for an unknown name."""
    if isinstance(operand, int):
        return lambda _: operand
    if operand not in known:
        raise InputError(f"the schedule is malformed: {where} uses scalar {operand!r} before it is defined")
    return operator.itemgetter(operand)


class Window:
    """A `View` of a tensor, checked: shape and strides fit, every reachable element is inside.

    Args:
        view: what to look at.
        tensor: the whole tensor, dense.
        access: how the kernel uses it; a window that is written may not show one element twice.
        known: names of scalars that are defined here.
        where: for messages.
    """

    def __init__(self, view: View, tensor: torch.Tensor, access: ParamAccess, known: set[str], where: str) -> None:
        self._view = view
        self._tensor = tensor
        self._where = where
        if len(view.strides) != len(view.shape) or min((*view.strides, *view.shape, 0)) < 0:
            self._refuse(f"has shape {list(view.shape)} and strides {list(view.strides)}")
        if access != "read" and any(n > 1 and s == 0 for n, s in zip(view.shape, view.strides, strict=True)):
            self._refuse("writes one element more than once")
        self._span = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
        self._terms = [(getter(name, known, where), factor) for name, factor in view.terms]
        self._origin = tensor.storage_offset()

    @property
    def static(self) -> bool:
        return not self._terms

    def at(self, environment: Environment) -> torch.Tensor:
        """The torch view. Raises InputError where it leaves the tensor."""
        offset = self._view.offset
        for get, factor in self._terms:
            offset += get(environment) * factor
        if offset < 0 or offset + self._span >= self._tensor.numel():
            self._refuse(f"reaches elements {offset} .. {offset + self._span} of {self._tensor.numel()}")
        return self._tensor.as_strided(self._view.shape, self._view.strides, self._origin + offset)

    def _refuse(self, reason: str) -> None:
        raise InputError(f"the schedule is malformed: {self._where}: view of {self._view.tensor!r} {reason}")
