"""Scalar arithmetic of a schedule's control: 64-bit integers, no torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from sscc.ir.errors import InputError
from sscc.ir.schedule import Operand, Scalar


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


def value_of(operand: Operand, environment: Mapping[str, int]) -> int:
    """An operand's value. Raises InputError for a scalar that is not set."""
    if isinstance(operand, int):
        return operand
    if operand not in environment:
        raise InputError(f"the schedule is malformed: scalar {operand!r} is used before it is set")
    return environment[operand]


def evaluate(scalar: Scalar, environment: Mapping[str, int]) -> int:
    """The value of ``op(args)``. Raises InputError for an unknown operation, a wrong arity or a division by 0."""
    arity, function = SCALAR_OPS.get(scalar.op, (-1, int))
    if len(scalar.args) != arity:
        raise InputError(f"the schedule is malformed: {scalar.op!r} of {len(scalar.args)} arguments")
    return int(function(*[value_of(arg, environment) for arg in scalar.args]))
