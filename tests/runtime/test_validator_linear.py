"""The validator's arithmetic on scalars: exact ranges of every operation, and what branches tell."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from itertools import product
from math import inf
from typing import Any

import pytest

from sscc.ir.schedule import Scalar
from sscc.runtime.validator.linear import ANY, Linear, ScalarProofErrors, Scope, evaluate, value_of
from tests.errors import raises

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
RANGES = {"a": (2, 5), "b": (-3, 4), "c": (0, 1), "d": (4, 9), "n": (-3, -2), "p": (2, 3), "u": (-inf, inf)}


def scope(**ranges: tuple[float, float]) -> Scope:
    scope = Scope("test")
    for name, bounds in (ranges or RANGES).items():
        scope.variable(name, bounds)
    return scope


def form(where: Scope, op: str, *args: Any) -> Linear:
    """Return the linear form of one operation."""
    where.define(Scalar("r", op, args))
    return where.values["r"]


# ------------------------------------------------------------------------------------------------- concrete values


@pytest.mark.parametrize(
    ("op", "args", "value"),
    [
        ("add", (7, -2), 5), ("sub", (7, -2), 9), ("mul", (7, -2), -14), ("min", (7, -2), -2), ("max", (7, -2), 7),
        ("floordiv", (7, 2), 3), ("floordiv", (-7, 2), -4), ("ceildiv", (7, 2), 4), ("ceildiv", (-7, 2), -3),
        ("ceildiv", (8, 2), 4), ("mod", (7, 4), 3), ("mod", (-7, 4), 1), ("mod", (7, -4), -1),
        ("and", (6, 3), 2), ("or", (6, 3), 7), ("select", (1, 5, 6), 5), ("select", (-1, 5, 6), 5),
        ("select", (0, 5, 6), 6), ("lookup", (0, 5), 5), ("lookup", (2, 5, 6, -7), -7),
    ],
)  # fmt: skip
def test_an_operation_on_numbers(op: str, args: tuple[int, ...], value: int) -> None:
    assert evaluate(Scalar("r", op, args), {}, "test") == value
    assert form(scope(), op, *args) == Linear(value)


@pytest.mark.parametrize("op", COMPARE)
def test_a_comparison_of_numbers(op: str) -> None:
    for x, y in product(range(-1, 2), repeat=2):
        assert evaluate(Scalar("r", op, ("x", y)), {"x": x}, "test") == int(COMPARE[op](x, y))
        assert form(scope(), op, x, y) == Linear(int(COMPARE[op](x, y)))


@pytest.mark.parametrize("op", ["floordiv", "ceildiv", "mod"])
def test_no_operation_divides_by_zero(op: str) -> None:
    with raises(ScalarProofErrors.DIVIDES_BY_ZERO, where="test", scalar="r", op=op):
        evaluate(Scalar("r", op, (1, "z")), {"z": 0}, "test")
    with raises(ScalarProofErrors.MAY_DIVIDE_BY_ZERO, divisor="0"):
        form(scope(), op, "a", 0)


@pytest.mark.parametrize("index", [-1, 3, 1 << 62])
def test_no_number_is_looked_up_beyond_its_table(index: int) -> None:
    with raises(ScalarProofErrors.OUTSIDE_TABLE, where="test", scalar="r", size=3, index=index):
        evaluate(Scalar("r", "lookup", ("x", 5, 6, 7)), {"x": index}, "test")
    with raises(ScalarProofErrors.MAY_LEAVE_TABLE, where="test", scalar="r", size=3, index=str(index)):
        form(scope(), "lookup", index, 5, 6, 7)


@pytest.mark.parametrize(
    ("bounds", "fits"),
    [((0, 2), True), ((1, 1), True), ((-1, 2), False), ((0, 3), False), (ANY, False), ((0, inf), False)],
)
def test_an_index_is_within_its_table_whatever_it_may_be(bounds: tuple[float, float], fits: bool) -> None:
    where = scope(v=bounds)
    if fits:
        form(where, "lookup", "v", 5, 6, 7)
        return
    with raises(ScalarProofErrors.MAY_LEAVE_TABLE, scalar="r", index="1*v", size=3):
        form(where, "lookup", "v", 5, 6, 7)


def test_a_branch_tells_what_is_looked_up() -> None:
    where = scope(v=(-4, 9))
    where.define(Scalar("low", "ge", ("v", 1)))
    where.define(Scalar("high", "lt", ("v", 3)))
    where.define(Scalar("both", "and", ("low", "high")))
    where.assume(where.values["both"])
    assert where.range_of(form(where, "lookup", "v", 99, 4, 5, 99)) == (4, 5)


def test_a_table_is_constant() -> None:
    where = scope(v=(0, 1), a=(2, 2), b=(2, 3))
    where.define(Scalar("c", "sub", (9, 1)))
    form(where, "lookup", "v", "c", 7)
    with raises(ScalarProofErrors.TABLE_NOT_CONSTANT, scalar="x"):
        where.define(Scalar("x", "lookup", ("v", 7, "b")))


@pytest.mark.parametrize("args", [(), ("v",)])
def test_a_table_has_a_number(args: tuple[str, ...]) -> None:
    with raises(ScalarProofErrors.ARGUMENT_COUNT, scalar="r", op="lookup", count=len(args)):
        form(scope(v=(0, 0)), "lookup", *args)


def test_a_value_is_a_number_or_a_name() -> None:
    assert (value_of(7, {}), value_of("x", {"x": 8})) == (7, 8)


# ---------------------------------------------------------------------------------------------------- linear forms


def test_a_linear_form_keeps_no_factor_of_zero_and_sorts_its_terms() -> None:
    x, y = Linear(3, (("x", 2),)), Linear(-1, (("a", 5), ("x", 2)))
    assert x.plus(y) == Linear(2, (("a", 5), ("x", 4)))
    assert x.plus(y, -1) == Linear(4, (("a", -5),))
    assert x.times(-3) == Linear(-9, (("x", -6),))
    assert x.times(0) == Linear(0)


def test_a_linear_form_divides_exactly_or_not_at_all() -> None:
    assert Linear(6, (("x", -4),)).divided(2) == Linear(3, (("x", -2),))
    assert Linear(5, (("x", 4),)).divided(2) is None
    assert Linear(4, (("x", 4), ("y", 3))).divided(2) is None


def test_a_linear_form_says_what_it_is() -> None:
    assert str(Linear(0)) == "0"
    assert str(Linear(0, (("x", 2),))) == "2*x"
    assert str(Linear(-1, (("x", 2), ("y", 1)))) == "2*x + 1*y + -1"


# ---------------------------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize(
    ("op", "args", "bounds"),
    [
        ("add", ("a", "b"), (-1, 9)), ("sub", ("a", "b"), (-2, 8)), ("sub", ("a", "a"), (0, 0)),
        ("mul", ("b", 3), (-9, 12)), ("mul", (-3, "b"), (-12, 9)), ("mul", ("a", "b"), (-15, 20)),
        ("mul", ("n", "n"), (4, 9)), ("mul", ("c", "u"), (-inf, inf)), ("mul", ("u", 0), (0, 0)),
        ("mul", ("u", "c"), (-inf, inf)),
        ("floordiv", ("b", 2), (-2, 2)), ("ceildiv", ("b", 2), (-1, 2)), ("ceildiv", ("a", 2), (1, 3)),
        ("floordiv", ("a", 2), (1, 2)), ("floordiv", ("u", 2), (-inf, inf)), ("floordiv", ("a", 1), (2, 5)),
        ("mod", ("d", 4), (0, 3)), ("mod", ("b", 9), (0, 8)), ("mod", ("a", 6), (2, 5)), ("mod", ("a", 5), (0, 4)),
        ("mod", ("c", 2), (0, 1)),
        # A divisor that is not a positive constant: the quotient is not further from 0 than the dividend.
        ("floordiv", ("d", "p"), (0, 9)), ("ceildiv", ("b", "p"), (-3, 4)), ("floordiv", ("d", "n"), (-9, 0)),
        ("floordiv", ("b", "n"), (-4, 3)), ("floordiv", ("d", -2), (-9, 0)), ("floordiv", ("n", "p"), (-3, 0)),
        ("mod", ("d", "p"), (0, 2)), ("mod", ("d", "n"), (-2, 0)), ("mod", ("b", -3), (-2, 0)),
        ("floordiv", ("d", "u"), ANY), ("mod", ("d", "u"), ANY),
        ("min", ("a", "b"), (-3, 4)), ("max", ("a", "b"), (2, 5)), ("min", ("a", "d"), (2, 5)),
        ("max", ("a", "d"), (4, 9)), ("min", ("u", 3), (-inf, 3)), ("max", ("u", 3), (3, inf)),
        ("and", ("a", "p"), (0, 3)), ("and", ("p", "a"), (0, 3)), ("and", ("b", "p"), ANY), ("and", ("p", "b"), ANY),
        ("or", ("a", "p"), (0, 7)), ("or", ("c", "c"), (0, 1)), ("or", ("d", "c"), (0, 15)), ("or", ("b", "c"), ANY),
        ("and", ("c", "d"), (0, 1)),
        # The range of a look-up covers only the entries that the index can reach.
        ("lookup", ("c", 7, 3), (3, 7)), ("lookup", ("c", 7, 3, 99), (3, 7)),
        ("lookup", ("a", 99, -99, 4, 6, 5, 5), (4, 6)), ("lookup", ("p", 0, 0, -1, 8, 9), (-1, 8)),
        ("lookup", (1, 7, 3), (3, 3)),
        ("select", ("c", "a", "b"), (-3, 5)), ("select", ("c", "n", "d"), (-3, 9)), ("select", ("c", "d", 2), (2, 9)),
    ],
)  # fmt: skip
def test_the_range_of_an_operation(op: str, args: tuple[Any, ...], bounds: tuple[float, float]) -> None:
    where = scope()
    assert where.range_of(form(where, op, *args)) == bounds


@pytest.mark.parametrize("op", ["floordiv", "ceildiv", "mod", "mul", "and", "or", "min", "max"])
def test_ranges_of_two_that_vary_hold_every_value(op: str) -> None:
    """Divisors do not range over 0. Ranges are as narrow as can be, except for operations on bits."""
    intervals = [(low, low + more) for low in range(-4, 5) for more in (0, 1, 3)]
    for x, y in product(intervals, repeat=2):
        if op in ("floordiv", "ceildiv", "mod") and y[0] <= 0 <= y[1]:
            continue
        where = scope(x=x, y=y)
        low, high = where.range_of(form(where, op, "x", "y"))
        known = [{"x": a, "y": b} for a, b in product(*(range(end[0], end[1] + 1) for end in (x, y)))]
        values = [evaluate(Scalar("r", op, ("x", "y")), values, "test") for values in known]
        assert low <= min(values) <= max(values) <= high, (x, y)
        if op in ("mul", "min", "max"):
            assert (low, high) == (min(values), max(values)), (x, y)


def test_ranges_of_scalars_hold_every_value() -> None:
    """Random straight-line scalar programs: the concrete value is always within the range of the linear form."""
    choose = random.Random(3)
    operations = "add sub mul floordiv ceildiv mod min max eq ne lt le gt ge and or select lookup".split()
    for _ in range(400):
        bounds = {name: sorted((choose.randint(-6, 9), choose.randint(-6, 9))) for name in "ab"}
        scope = Scope("test")
        for name, (low, high) in bounds.items():
            scope.variable(name, (low, high))
        names: list[str] = ["a", "b"]
        program = []
        for number in range(6):
            op = choose.choice(operations)
            args: list[Any] = [
                choose.choice((*names, choose.randint(-3, 5))) for _ in range(3 if op == "select" else 2)
            ]
            if op in ("floordiv", "ceildiv", "mod"):
                args[1] = choose.randint(1, 4)
            if op == "lookup":
                program.append(Scalar(f"i{number}", "mod", (args[0], 3)))
                scope.define(program[-1])
                args = [f"i{number}", *(choose.randint(-9, 9) for _ in range(3))]
            scalar = Scalar(f"s{number}", op, tuple(args))
            scope.define(scalar)
            program.append(scalar)
            names.append(scalar.name)
        for a in range(bounds["a"][0], bounds["a"][1] + 1):
            for b in range(bounds["b"][0], bounds["b"][1] + 1):
                known = {"a": a, "b": b}
                for scalar in program:
                    known[scalar.name] = evaluate(scalar, known, "test")
                    low, high = scope.range_of(scope.values[scalar.name])
                    assert low <= known[scalar.name] <= high, (program, known)


@pytest.mark.parametrize(
    ("op", "args", "kept"),
    [
        ("min", ("p", "d"), Linear(0, (("p", 1),))), ("min", ("d", "p"), Linear(0, (("p", 1),))),
        ("max", ("p", "d"), Linear(0, (("d", 1),))), ("max", ("d", "p"), Linear(0, (("d", 1),))),
        # Ranges that touch are decided too, as is an operand that is never more than itself and something.
        ("min", ("p", 3), Linear(0, (("p", 1),))), ("max", ("p", 2), Linear(0, (("p", 1),))),
        ("min", (2, "p"), Linear(2)), ("max", (3, "p"), Linear(3)),
        ("mod", ("a", 6), Linear(0, (("a", 1),))), ("floordiv", ("u", 1), Linear(0, (("u", 1),))),
        ("mod", ("u", 1), Linear(0)),
        ("select", ("p", "a", "b"), Linear(0, (("a", 1),))), ("select", ("n", "a", "b"), Linear(0, (("a", 1),))),
    ],
)  # fmt: skip
def test_what_is_decided_stays_the_operand(op: str, args: tuple[Any, ...], kept: Linear) -> None:
    assert form(scope(), op, *args) == kept


def test_a_choice_by_a_range_of_one_value_is_decided() -> None:
    where = scope(z=(0, 0), o=(1, 1), m=(-1, -1), y=(0, 5), k=(-1, 0))
    where.define(Scalar("x", "add", ("y", 7)))
    for condition, taken in (("z", Linear(0, (("y", 1),))), ("o", where.values["x"]), ("m", where.values["x"])):
        inner = where.child()
        assert form(inner, "select", condition, "x", "y") == taken
    for condition in ("y", "k"):
        inner = where.child()
        assert inner.range_of(form(inner, "select", condition, 8, 9)) == (8, 9)


def test_exact_quotients_stay_linear() -> None:
    where = scope()
    where.define(Scalar("x", "mul", ("u", 6)))
    where.define(Scalar("y", "add", ("x", 3)))
    for op in ("floordiv", "ceildiv"):
        assert form(where.child(), op, "y", 3) == Linear(1, (("u", 2),))
    assert form(where.child(), "mod", "y", 3) == Linear(0)
    inner = where.child()
    assert inner.range_of(form(inner, "mod", "y", 4)) == (0, 3)


@pytest.mark.parametrize("op", COMPARE)
def test_a_comparison_is_decided_exactly_where_all_values_agree(op: str) -> None:
    for low, high, other in ((x, y, z) for x, y, z in product(range(-2, 3), repeat=3) if x <= y):
        where = scope(v=(low, high))
        results = {COMPARE[op](value, other) for value in range(low, high + 1)}
        comparison = form(where, op, "v", other)
        assert where.range_of(comparison) == (min(results), max(results)), (low, high, other)


def test_equal_operations_of_equal_arguments_cancel() -> None:
    where = scope()
    where.define(Scalar("x", "mul", ("a", "b")))
    where.define(Scalar("y", "mul", ("a", "b")))
    where.define(Scalar("z", "mul", ("b", "d")))
    assert form(where.child(), "sub", "x", "y") == Linear(0)
    assert form(where.child(), "sub", "x", "z") != Linear(0)


@pytest.mark.parametrize(
    ("value", "fits"), [(2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)]
)
def test_a_scalar_has_64_bits(value: int, fits: bool) -> None:
    where = scope(a=(value, value))
    if fits:
        form(where, "add", "a", 0)
        return
    with raises(ScalarProofErrors.BEYOND_64_BITS, scalar="r", op="add"):
        form(where, "add", "a", 0)


@pytest.mark.parametrize("bounds", [(0, 3), (-3, 0), (-1, 1), (0, 0), (-inf, 0), (0, inf), (-1, inf)])
def test_a_divisor_that_may_be_zero_is_refused(bounds: tuple[float, float]) -> None:
    for op in ("floordiv", "ceildiv", "mod"):
        with raises(ScalarProofErrors.MAY_DIVIDE_BY_ZERO, scalar="r", divisor="1*v", op=op):
            form(scope(v=bounds), op, 5, "v")
    form(scope(v=bounds), "mul", 5, "v")


@pytest.mark.parametrize("bounds", [(1, 3), (-3, -1), (1, inf), (-inf, -1), ANY])
def test_a_divisor_that_is_not_zero_or_of_which_nothing_is_known_is_not(bounds: tuple[float, float]) -> None:
    form(scope(v=bounds), "floordiv", 5, "v")


# -------------------------------------------------------------------------------------------------- what is defined


def test_a_scalar_is_defined_once_and_before_it_is_used() -> None:
    where = scope()
    with raises(ScalarProofErrors.DEFINED_TWICE, where="test", scalar="a"):
        where.define(Scalar("a", "add", (1, 2)))
    with raises(ScalarProofErrors.UNDEFINED, where="test", user="scalar 'r'", scalar="lost"):
        form(where, "add", "a", "lost")
    for args in ((1,), (1, 2, 3)):
        with raises(ScalarProofErrors.ARGUMENT_COUNT, scalar="r", op="add", count=len(args)):
            form(where, "add", *args)
    with raises(ScalarProofErrors.ARGUMENT_COUNT, scalar="r", op="frob", count=2):
        form(where, "frob", 1, 2)


def test_a_child_knows_what_is_around_it_and_tells_nothing_back() -> None:
    outer = scope()
    outer.certain, outer.exact, outer.loops, outer.shared = False, {"a"}, ("a",), frozenset({"b"})
    outer.define(Scalar("few", "lt", ("b", 2)))
    inner = outer.child("inside")
    assert (inner.where, outer.child().where) == ("inside", "test")
    assert (inner.certain, inner.exact, inner.loops, inner.shared) == (False, {"a"}, ("a",), frozenset({"b"}))
    inner.variable("x", (0, 1))
    inner.exact.add("x")
    inner.assume(inner.values["few"])
    assert inner.bounds["b"] == (-3, 1)
    assert outer.bounds["b"] == (-3, 4)
    assert "x" not in outer.values
    assert "x" not in outer.bounds
    assert outer.exact == {"a"}


# --------------------------------------------------------------------------------------------- what a branch tells


@pytest.mark.parametrize("op", COMPARE)
@pytest.mark.parametrize("factor", [1, 2, 3, -1, -2, -3])
def test_a_branch_narrows_one_variable_to_the_values_that_enter_it(op: str, factor: int) -> None:
    """The variable may be the left or the right operand: all values that enter are in the range, and both ends
    enter."""
    for limit, left in product(range(-7, 8), (True, False)):
        where = scope(v=(-2, 2))
        where.define(Scalar("x", "mul", ("v", factor)))
        args = ("x", limit) if left else (limit, "x")
        where.define(Scalar("holds", op, args))
        entering = [v for v in range(-2, 3) if COMPARE[op](*((factor * v, limit) if left else (limit, factor * v)))]
        if not entering or len(entering) == 5:
            continue
        where.assume(where.values["holds"])
        expected = (-2, 2) if op == "ne" else (min(entering), max(entering))
        assert where.bounds["v"] == expected, (limit, left)


@pytest.mark.parametrize(
    ("op", "limit", "a", "b"),
    [
        ("le", 5, (0, 5), (0, 5)), ("lt", 5, (0, 4), (0, 4)), ("ge", 13, (4, 9), (4, 9)), ("gt", 13, (5, 9), (5, 9)),
        ("eq", 3, (0, 3), (0, 3)), ("eq", 17, (8, 9), (8, 9)), ("ne", 3, (0, 9), (0, 9)), ("le", 12, (0, 9), (0, 9)),
    ],
)  # fmt: skip
def test_a_branch_narrows_several_variables(op: str, limit: int, a: Any, b: Any) -> None:
    where = scope(a=(0, 9), b=(0, 9))
    where.define(Scalar("sum", "add", ("a", "b")))
    where.define(Scalar("holds", op, ("sum", limit)))
    where.assume(where.values["holds"])
    assert (where.bounds["a"], where.bounds["b"]) == (a, b)


def test_a_branch_on_one_variable_below_another() -> None:
    where = scope(a=(0, 9), b=(2, 6))
    where.define(Scalar("less", "lt", ("a", "b")))
    where.assume(where.values["less"])
    assert (where.bounds["a"], where.bounds["b"]) == ((0, 5), (2, 6))
    where = scope(a=(4, 9), b=(2, 6))
    where.define(Scalar("less", "le", ("a", "b")))
    where.assume(where.values["less"])
    assert (where.bounds["a"], where.bounds["b"]) == ((4, 6), (4, 6))


def test_what_is_unbounded_tells_nothing_and_is_told() -> None:
    where = scope(a=(0, 9), u=(-inf, inf), w=(0, inf))
    where.define(Scalar("sum", "add", ("a", "u")))
    where.define(Scalar("low", "le", ("sum", 5)))
    where.assume(where.values["low"])
    assert (where.bounds["a"], where.bounds["u"]) == ((0, 9), (-inf, 5))
    where.define(Scalar("more", "add", ("a", "w")))
    where.define(Scalar("few", "lt", ("more", 5)))
    where.assume(where.values["few"])
    assert (where.bounds["a"], where.bounds["w"]) == ((0, 4), (0, 4))


def test_both_of_two_conditions_are_told_and_neither_of_an_alternative() -> None:
    def bounds(op: str, *conditions: tuple[str, int]) -> tuple[float, float]:
        where = scope(v=(0, 9))
        for number, (compare, limit) in enumerate(conditions):
            where.define(Scalar(f"c{number}", compare, ("v", limit)))
        where.define(Scalar("r", op, ("c0", "c1")))
        where.assume(where.values["r"])
        return where.bounds["v"]

    assert bounds("and", ("ge", 3), ("le", 7)) == (3, 7)
    assert bounds("or", ("ge", 3), ("le", 7)) == (0, 9)


def test_a_condition_that_is_no_comparison_tells_nothing() -> None:
    where = scope(v=(0, 9), w=(0, 9))
    where.define(Scalar("less", "lt", ("v", 5)))
    where.define(Scalar("small", "lt", ("w", 5)))
    for op, args in (("add", ("less", "small")), ("sub", ("less", 1)), ("add", ("v", "w")), ("mul", ("v", "w"))):
        inner = where.child()
        inner.assume(form(inner, op, *args))
        assert (inner.bounds["v"], inner.bounds["w"]) == ((0, 9), (0, 9)), op
    where.assume(Linear(1))
    where.assume(where.values["v"])
    assert where.bounds["v"] == (0, 9)
