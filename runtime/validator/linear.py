"""Scalars: linear forms over unknowns, with a range for each; and their concrete values.

Loop indices, scalar inputs of entries and results of nonlinear operations are variables. Equal operations of equal
arguments are the same variable, so that differences cancel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from sscc.ir.schedule import Scalar, ScalarOperand
from sscc.runtime.validator.failure import ProofKind


class ScalarProofErrors(ProofKind):
    """Scalars that are undefined, or whose value cannot be computed."""

    DEFINED_TWICE = "scalar {scalar!r} is defined twice"
    UNDEFINED = "{user} uses scalar {scalar!r} before it is defined"
    ARGUMENT_COUNT = "scalar {scalar!r} is {op!r} of {count} arguments, but there is no such operation"
    DIVIDES_BY_ZERO = "scalar {scalar!r} = {op} divides by 0"
    MAY_DIVIDE_BY_ZERO = "scalar {scalar!r} = {op} divides by {divisor}, which may be 0"
    OUTSIDE_TABLE = "scalar {scalar!r} = lookup reads entry {index} of a table with {size} entries"
    MAY_LEAVE_TABLE = "scalar {scalar!r} = lookup reads entry {index}, which may be outside the table of {size} entries"
    TABLE_NOT_CONSTANT = "scalar {scalar!r} = lookup has a table whose numbers are not constant"
    BEYOND_64_BITS = "scalar {scalar!r} = {op} may be {value:.0f}, which does not fit in 64 bits"


Range = tuple[float, float]
"""Lowest and highest value, inclusive; infinite if unknown."""
ANY: Range = (-inf, inf)
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _looked_up(index: int, *table: int) -> int:
    if index < 0:
        raise IndexError
    return table[index]


_DIVISIONS = ("floordiv", "ceildiv", "mod")
_CONCRETE: dict[str, tuple[int, Callable[..., int]]] = {
    "add": (2, operator.add),
    "sub": (2, operator.sub),
    "mul": (2, operator.mul),
    "floordiv": (2, operator.floordiv),
    "ceildiv": (2, lambda a, b: -(-a // b)),
    "mod": (2, operator.mod),
    "min": (2, min),
    "max": (2, max),
    "and": (2, operator.and_),
    "or": (2, operator.or_),
    "select": (3, lambda c, a, b: a if c else b),
    "lookup": (-2, _looked_up),
    **{name: (2, compare) for name, compare in _COMPARISONS.items()},
}
"""Number of arguments (-n: n or more) and function of each operation."""


def _takes(op: str, arguments: int) -> bool:
    arity = _CONCRETE[op][0] if op in _CONCRETE else arguments + 1
    return arguments >= -arity if arity < 0 else arguments == arity


def evaluate(scalar: Scalar, known: Mapping[str, int], where: str) -> int:
    """Return the value of a scalar whose arguments are known."""
    values = [value_of(arg, known) for arg in scalar.args]
    try:
        return int(_CONCRETE[scalar.op][1](*values))
    except ZeroDivisionError:
        raise ScalarProofErrors.DIVIDES_BY_ZERO(where=where, scalar=scalar.name, op=scalar.op) from None
    except IndexError:
        size = len(values) - 1
        raise ScalarProofErrors.OUTSIDE_TABLE(where=where, scalar=scalar.name, index=values[0], size=size) from None


def value_of(operand: ScalarOperand, known: Mapping[str, int]) -> int:
    return operand if isinstance(operand, int) else known[operand]


@dataclass(frozen=True)
class Linear:
    """``const + sum(factor * variable)``; terms sorted by variable, no factor 0."""

    const: int
    terms: tuple[tuple[str, int], ...] = ()

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        merged = dict(self.terms)
        for name, coefficient in other.terms:
            merged[name] = merged.get(name, 0) + factor * coefficient
        kept = tuple(sorted((name, c) for name, c in merged.items() if c))
        return Linear(self.const + factor * other.const, kept)

    def times(self, factor: int) -> Linear:
        return Linear(0).plus(self, factor)

    def divided(self, by: int) -> Linear | None:
        """Return the exact quotient, if every number is a multiple of `by`."""
        if self.const % by or any(c % by for _, c in self.terms):
            return None
        return Linear(self.const // by, tuple((name, c // by) for name, c in self.terms))

    def __str__(self) -> str:
        parts = [f"{c}*{name}" for name, c in self.terms]
        return " + ".join([*parts, str(self.const)] if self.const or not parts else parts)


class Scope:
    """The scalars that are defined at one place of an entry, a kernel or a pipeline.

    Attributes:
        where: the place, for messages.
        values: linear form of each name.
        bounds: range of every variable.
        certain: True if control flow always reaches this place.
        exact: variables that take both ends of their range, independently of each other. If control flow is certain, a
            bound over them that does not hold is violated rather than not proved.
        loops: indices of the loops around it.
        shared: variables that are equal in all their iterations.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.values: dict[str, Linear] = {}
        self.bounds: dict[str, Range] = {}
        self.certain = True
        self.exact: set[str] = set()
        self.loops: tuple[str, ...] = ()
        self.shared: frozenset[str] = frozenset()
        self._meaning: dict[str, tuple[str, tuple[Linear, ...]]] = {}

    def child(self, where: str | None = None) -> Scope:
        inner = Scope(self.where if where is None else where)
        inner.values, inner.bounds = dict(self.values), dict(self.bounds)
        inner.certain, inner.exact, inner._meaning = self.certain, set(self.exact), dict(self._meaning)
        inner.loops, inner.shared = self.loops, self.shared
        return inner

    def variable(self, name: str, bounds: Range) -> None:
        """Define a scalar of which only a range is known."""
        self.bounds[name] = bounds
        self.bind(name, Linear(0, ((name, 1),)))

    def bind(self, name: str, value: Linear) -> None:
        if name in self.values:
            raise ScalarProofErrors.DEFINED_TWICE(where=self.where, scalar=name)
        self.values[name] = value

    def define(self, scalar: Scalar) -> None:
        if not _takes(scalar.op, len(scalar.args)):
            raise ScalarProofErrors.ARGUMENT_COUNT(
                where=self.where, scalar=scalar.name, op=scalar.op, count=len(scalar.args)
            )
        args = tuple(self.get(arg, f"scalar {scalar.name!r}") for arg in scalar.args)
        if scalar.op in _DIVISIONS:
            self._check_divisor(scalar, args[1])
        if scalar.op == "lookup":
            self._check_table(scalar, args[0], args[1:])
        value = self._apply(scalar.op, args)
        for end in self.range_of(value):
            if abs(end) != inf and not -(1 << 63) <= end < 1 << 63:
                raise ScalarProofErrors.BEYOND_64_BITS(where=self.where, scalar=scalar.name, op=scalar.op, value=end)
        self.bind(scalar.name, value)

    def _check_divisor(self, scalar: Scalar, divisor: Linear) -> None:
        low, high = self.range_of(divisor)
        if low <= 0 <= high and (low, high) != ANY:
            raise ScalarProofErrors.MAY_DIVIDE_BY_ZERO(
                where=self.where, scalar=scalar.name, op=scalar.op, divisor=divisor
            )

    def _check_table(self, scalar: Scalar, index: Linear, table: tuple[Linear, ...]) -> None:
        low, high = self.range_of(index)
        if low < 0 or high >= len(table):
            raise ScalarProofErrors.MAY_LEAVE_TABLE(
                where=self.where, scalar=scalar.name, index=index, size=len(table)
            )
        if any(number.terms for number in table):
            raise ScalarProofErrors.TABLE_NOT_CONSTANT(where=self.where, scalar=scalar.name)

    def get(self, operand: ScalarOperand, user: str) -> Linear:
        if isinstance(operand, int):
            return Linear(operand)
        if operand not in self.values:
            raise ScalarProofErrors.UNDEFINED(where=self.where, user=user, scalar=operand)
        return self.values[operand]

    def range_of(self, value: Linear) -> Range:
        low: float = value.const
        high: float = value.const
        for name, factor in value.terms:
            ends = [factor * end for end in self.bounds[name]]
            low, high = low + min(ends), high + max(ends)
        return low, high

    # -- operations

    def _apply(self, op: str, args: tuple[Linear, ...]) -> Linear:
        x, y = args[0], args[1]
        if all(not arg.terms for arg in args):
            return Linear(int(_CONCRETE[op][1](*[arg.const for arg in args])))
        if op in ("add", "sub"):
            return x.plus(y, 1 if op == "add" else -1)
        if op == "mul" and not (x.terms and y.terms):
            return y.times(x.const) if not x.terms else x.times(y.const)
        if op in _COMPARISONS:
            return self._compare(op, x, y)
        if op in _DIVISIONS and not y.terms and y.const > 0:
            return self._divide(op, x, y.const)
        if op in ("min", "max"):
            return self._extreme(op, x, y)
        if op == "select":
            return self._select(x, y, args[2])
        if op == "lookup":
            return self._lookup(x, [number.const for number in args[1:]])
        bounds = {"mul": self._product, "and": self._bits, "or": self._bits}.get(op, self._quotients)
        return self._opaque(op, args, bounds(op, x, y))

    def _opaque(self, op: str, args: tuple[Linear, ...], bounds: Range) -> Linear:
        name = f"{op}({', '.join(map(str, args))})"
        self.bounds[name] = bounds
        self._meaning[name] = (op, args)
        return Linear(0, ((name, 1),))

    def _compare(self, op: str, x: Linear, y: Linear) -> Linear:
        low, high = self.range_of(x.plus(y, -1))
        if low == high:
            return Linear(int(_COMPARISONS[op](int(low), 0)))
        always = {"lt": high < 0, "le": high <= 0, "gt": low > 0, "ge": low >= 0, "ne": low > 0 or high < 0}
        never = {"lt": low >= 0, "le": low > 0, "gt": high <= 0, "ge": high < 0, "eq": low > 0 or high < 0}
        if always.get(op, False):
            return Linear(1)
        return Linear(0) if never.get(op, False) else self._opaque(op, (x, y), (0, 1))

    def _divide(self, op: str, x: Linear, by: int) -> Linear:
        low, high = self.range_of(x)
        exact = x.divided(by)
        if op == "mod":
            if exact is not None:
                return Linear(0)
            return x if low >= 0 and high < by else self._opaque(op, (x, Linear(by)), (0, by - 1))
        if exact is not None:
            return exact
        bounds = (_quotient(low, by, op), _quotient(high, by, op))
        return self._opaque(op, (x, Linear(by)), bounds)

    def _extreme(self, op: str, x: Linear, y: Linear) -> Linear:
        low, high = self.range_of(x.plus(y, -1))
        if high <= 0 or low >= 0:
            return x if (high <= 0) == (op == "min") else y
        pick = min if op == "min" else max
        (low_x, high_x), (low_y, high_y) = self.range_of(x), self.range_of(y)
        return self._opaque(op, (x, y), (pick(low_x, low_y), pick(high_x, high_y)))

    def _select(self, condition: Linear, yes: Linear, no: Linear) -> Linear:
        low, high = self.range_of(condition)
        if low > 0 or high < 0:
            return yes
        if low == high == 0:
            return no
        (low_y, high_y), (low_n, high_n) = self.range_of(yes), self.range_of(no)
        return self._opaque("select", (condition, yes, no), (min(low_y, low_n), max(high_y, high_n)))

    def _lookup(self, index: Linear, table: Sequence[int]) -> Linear:
        """Return the range of the table entries that the index can reach."""
        low, high = self.range_of(index)
        reached = table[int(low) : int(high) + 1]
        return self._opaque("lookup", (index, *map(Linear, table)), (min(reached), max(reached)))

    def _product(self, op: str, x: Linear, y: Linear) -> Range:
        ends = [a * b if a and b else 0 for a in self.range_of(x) for b in self.range_of(y)]
        return min(ends), max(ends)

    def _quotients(self, op: str, x: Linear, y: Linear) -> Range:
        """Return the range of a division by a divisor that is not constant, or negative; any value if the divisor may
        be 0."""
        low, high = self.range_of(y)
        if low <= 0 <= high:
            return ANY
        if op == "mod":
            return (0, high - 1) if low > 0 else (low + 1, 0)
        low_x, high_x = self.range_of(x if low > 0 else x.times(-1))
        return min(low_x, 0), max(high_x, 0)  # a quotient is no further from 0 than the dividend

    def _bits(self, op: str, x: Linear, y: Linear) -> Range:
        (low_x, high_x), (low_y, high_y) = self.range_of(x), self.range_of(y)
        if low_x < 0 or low_y < 0:
            return ANY
        if op == "and":
            return 0, min(high_x, high_y)
        highest = max(high_x, high_y)
        return 0, highest if highest == inf else (1 << int(highest).bit_length()) - 1

    # -- conditions of branches

    def assume(self, condition: Linear) -> None:
        """Narrow the ranges of variables by a condition that is not 0."""
        if len(condition.terms) != 1 or condition.const or condition.terms[0][0] not in self._meaning:
            return
        op, args = self._meaning[condition.terms[0][0]]
        if op == "and":
            self.assume(args[0])
            self.assume(args[1])
        elif op in _COMPARISONS:
            difference = args[0].plus(args[1], -1)
            at_most = {"lt": -1, "le": 0, "eq": 0}.get(op)
            at_least = {"gt": 1, "ge": 0, "eq": 0}.get(op)
            if at_most is not None:
                self.narrow(difference, at_most)
            if at_least is not None:
                self.narrow(difference.times(-1), -at_least)

    def narrow(self, value: Linear, highest: int) -> None:
        """Narrow the ranges of variables by ``value <= highest``."""
        for name, factor in value.terms:
            rest = self.range_of(value.plus(Linear(0, ((name, factor),)), -1))[0]
            low, high = self.bounds[name]
            if rest == -inf:
                continue
            if factor > 0:
                self.bounds[name] = (low, min(high, (highest - rest) // factor))
            else:
                self.bounds[name] = (max(low, -((highest - rest) // -factor)), high)


def _quotient(value: float, by: int, op: str) -> float:
    if abs(value) == inf:
        return value
    return int(value) // by if op == "floordiv" else -(-int(value) // by)
