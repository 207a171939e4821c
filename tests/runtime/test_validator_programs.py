"""Vector programs by themselves: what each operation takes and gives, and ranges of integers that hold every value."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement, product
from math import inf
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Instr, Vector
from sscc.runtime.validator.bodies import BodyProofErrors
from sscc.runtime.validator.linear import Range
from sscc.runtime.validator.programs import Integer, VectorProgram, VectorProofErrors, _compare
from tests.errors import raises
from tests.runtime.schedules import whole_access

DTYPES = ("f32", "bf16", "i64", "i32", "i8", "i1")
"""Dtypes of the inputs in0, in1, .."""
NAMES = {dtype: f"in{number}" for number, dtype in enumerate(DTYPES)}
BITS = {"i64": 64, "i32": 32, "i8": 8}
DIMS = (4, 3)


class Listener:
    """In place of a body's proof: keeps the indices of every load."""

    where = "here"

    def __init__(self, **scalars: Range) -> None:
        self.scalars, self.loads = scalars, dict[str, Integer | None]()

    def load(self, instr: Instr, indices: Sequence[Integer | None]) -> None:
        self.loads |= {str(name): index for name, index in zip(instr.args[1:], indices, strict=True)}

    def scalar(self, name: str) -> Range:
        if name not in self.scalars:
            raise BodyProofErrors.UNKNOWN_SCALAR(where=self.where, scalar=name, scalars=list(self.scalars))
        return self.scalars[name]


def op(name: str, *args: Any, type: str = "i64", result: str = "r") -> Instr:
    return Instr(result, name, args, type)


FIRST, SECOND = op("index", 0, result="i"), op("index", 1, result="j")


def prove(*program: Instr, **scalars: Range) -> Listener:
    """Proves a program and a load by its last result, where that is i64."""
    owner = Listener(**scalars)
    load = [op("load", "x", program[-1].name, type="f32", result="loaded")] if program[-1].type == "i64" else []
    VectorProgram(Vector(DIMS, (), whole_access("y", 2), (*program, *load), program[-1].name), DTYPES, owner).result()
    return owner


def bounds(*program: Instr, **scalars: Range) -> Integer | None:
    """The range of the last result of a program."""
    return prove(*program, **scalars).loads[program[-1].name]


def accepted(*program: Instr, **scalars: Range) -> bool:
    try:
        prove(*program, **scalars)
    except InputError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- types

_FLOATS = {"f32", "bf16"}
_INTEGERS = {"i64", "i32", "i8"}
_SAME = {(dtype, dtype) for dtype in DTYPES}


def _kinds(takes: set[str], gives: set[str]) -> set[tuple[str, str]]:
    return set(product(takes, gives))


_FORMS: list[tuple[str, str, set[tuple[str, str]]]] = [
    ("sqrt tanh erf floor round negf", "x", {pair for pair in _SAME if pair[0] in _FLOATS}),
    ("addf divf maximumf powf", "xx", {pair for pair in _SAME if pair[0] in _FLOATS}),
    ("fma", "xxx", {pair for pair in _SAME if pair[0] in _FLOATS}),
    ("fpowi", "xn", {pair for pair in _SAME if pair[0] in _FLOATS}),
    ("absi", "x", {pair for pair in _SAME if pair[0] in _INTEGERS}),
    ("addi muli minsi", "xx", {pair for pair in _SAME if pair[0] in _INTEGERS}),
    ("andi ori xori", "xx", {pair for pair in _SAME if pair[0] not in _FLOATS}),
    ("cmpf_olt cmpf_une cmpf_true", "xx", _kinds(_FLOATS, {"i1"})),
    ("cmpi_eq cmpi_slt cmpi_ult", "xx", _kinds({*_INTEGERS, "i1"}, {"i1"})),
    ("select", "cxx", _SAME),
    ("truncf extf", "x", _kinds(_FLOATS, _FLOATS)),
    ("sitofp uitofp", "x", _kinds({*_INTEGERS, "i1"}, _FLOATS)),
    ("fptosi fptoui", "x", _kinds(_FLOATS, _INTEGERS)),
    ("extsi extui trunci index_cast", "x", _kinds({*_INTEGERS, "i1"}, {*_INTEGERS, "i1"})),
]
"""Operations, their arguments (x: of one dtype, n: i64, c: i1), and the right pairs of that dtype and the result's."""


@pytest.mark.parametrize(("names", "form", "right"), _FORMS, ids=[form[0] for form in _FORMS])
def test_an_operation_takes_and_gives_these_dtypes_and_no_others(
    names: str, form: str, right: set[tuple[str, str]]
) -> None:
    for name, (dtype, result) in product(names.split(), product(DTYPES, repeat=2)):
        args = [{"x": NAMES[dtype], "n": NAMES["i64"], "c": NAMES["i1"]}[letter] for letter in form]
        assert accepted(op(name, *args, type=result)) is ((dtype, result) in right), (name, dtype, result)
        if (dtype, result) in right:
            assert not accepted(op(name, *args, args[-1], type=result)), name
            assert not accepted(op(name, *args[:-1], type=result)), name
            others = [NAMES[other] for other in DTYPES if other != dtype]
            if form.endswith("xx"):
                assert not any(accepted(op(name, *args[:-1], other, type=result)) for other in others), name


def test_literals_take_the_dtype_of_what_they_meet() -> None:
    assert accepted(op("cmpi_slt", NAMES["i8"], 127, type="i1"))
    assert accepted(op("cmpi_slt", -128, NAMES["i8"], type="i1"))
    assert not accepted(op("cmpi_slt", 128, NAMES["i8"], type="i1"))
    assert accepted(op("cmpi_slt", 1, 1 << 40, type="i1"))  # without a name, they are i64
    assert not accepted(op("cmpf_olt", 1.0, 2.0, type="i1"))
    assert accepted(op("addi", 1, 127, type="i8"))
    assert not accepted(op("addi", 1, 128, type="i8"))
    assert accepted(op("addf", 1, 0.5, type="bf16"))
    assert accepted(op("cmpi_slt", "s", 1 << 40, type="i1"), s=(0, 1))  # scalars of the body are
    assert not accepted(op("addi", "s", 1, type="i32"), s=(0, 1))


@pytest.mark.parametrize("dtype", [*BITS, "i1"])
def test_a_literal_is_a_value_of_its_dtype(dtype: str) -> None:
    low, high = (0, 1) if dtype == "i1" else (-(2 ** (BITS[dtype] - 1)), 2 ** (BITS[dtype] - 1) - 1)
    assert [accepted(op("const", value, type=dtype)) for value in (low - 1, low, high, high + 1)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not accepted(op("const", 0.0, type=dtype))


def test_what_is_of_no_type_or_defined_twice_is_refused() -> None:
    assert not accepted(op("const", 1, type="f64"))
    assert accepted(op("const", 1, type="index"))
    assert not accepted(op("const", 1), op("const", 1))
    assert not accepted(op("const", 1, result="in0"))
    assert not accepted(op("const", "in2"))
    assert not accepted(op("const"))
    assert not accepted(op("const", 1, 2))
    assert not accepted(op("addi", "lost", 1))
    assert not accepted(op("addi", "later", 1), op("const", 1, result="later"))
    assert not accepted(op("frob", 1))


# --------------------------------------------------------------------------------------------------- what is defined


@pytest.mark.parametrize("name", ["divsi", "remsi", "floordivsi", "ceildivsi"])
def test_no_division_by_zero_or_minus_one(name: str) -> None:
    for low, high in combinations_with_replacement(range(-4, 5), 2):
        fits = not {0, -1} & set(range(low, high + 1))
        assert accepted(op(name, "in2", "s"), s=(low, high)) is fits, (low, high)
        if low == high:
            assert accepted(op(name, "in2", low)) is fits
    assert accepted(op("muli", "in2", "s"), s=(-1, 0))


@pytest.mark.parametrize("name", ["shli", "shrsi"])
def test_no_shift_by_more_bits_than_there_are(name: str) -> None:
    for dtype, bits in BITS.items():
        shifts = [accepted(op(name, NAMES[dtype], by, type=dtype)) for by in (-1, 0, bits - 1, bits)]
        assert shifts == [False, True, True, False], dtype
    for (low, high), fits in {(0, 63): True, (-1, 5): False, (5, 64): False}.items():
        assert accepted(op(name, "in2", "s"), s=(low, high)) is fits


@pytest.mark.parametrize(
    ("program", "kind", "fields"),
    [
        (op("divsi", "in2", 0), VectorProofErrors.MAY_DIVIDE_BY_ZERO, {"op": "divsi", "divisor": "0"}),
        (op("divsi", "in2", "s"), VectorProofErrors.MAY_DIVIDE_BY_ZERO, {"op": "divsi", "divisor": "-1 .. 2"}),
        (op("shli", "in2", 64), VectorProofErrors.SHIFT_TOO_FAR, {"op": "shli", "type": "i64", "bits": "64"}),
        (
            op("shli", "in2", "u"), VectorProofErrors.SHIFT_TOO_FAR,
            {"type": "i64", "bits": "-9223372036854775808 .. 9223372036854775807"},
        ),
        (op("addi", "in2", 1 << 63), VectorProofErrors.LITERAL_TYPE, {"literal": 9223372036854775808, "type": "i64"}),
    ],
)  # fmt: skip
def test_a_refusal_says_the_range(program: Instr, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, name="r", **fields):
        prove(program, s=(-1, 2), u=(-inf, inf))


# ------------------------------------------------------------------------------------------------------------ ranges


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


_PYTHON: dict[str, Callable[..., int]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul, "minsi": min, "maxsi": max,
    "select": lambda c, a, b: a if c else b, "index_cast": lambda a: a, "absi": abs,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_PYTHON |= {f"cmpi_{name if name in ('eq', 'ne') else 's' + name}": compare for name, compare in _COMPARE.items()}


def test_ranges_hold_every_value_and_exact_ones_end_at_values() -> None:
    """Random programs of two indices, a scalar of a range and an input of any value, run at every point."""
    choose, exact = random.Random(9), 0
    for _ in range(250):
        low = choose.randint(-3, 3)
        scalar = (low, low + choose.randint(0, 2))
        names, program = ["i", "j", "s", "in2"], [FIRST, SECOND]
        flags: list[str] = []
        for number in range(6):
            name = choose.choice([name for name in _PYTHON if name != "select" or flags])
            arity = {"select": 3, "index_cast": 1, "absi": 1}.get(name, 2)
            args = [choose.choice((*names, choose.randint(-3, 4), 2**62)) for _ in range(arity)]
            if name == "select":
                args[0] = choose.choice(flags)
            compares = name.startswith("cmpi")
            program.append(op(name, *args, type="i1" if compares else "i64", result=f"r{number}"))
            (flags if compares else names).append(f"r{number}")
        loads = [op("load", "x", name, type="f32", result=f"x_{name}") for name in names]
        owner = Listener(s=scalar)
        VectorProgram(Vector(DIMS, (), whole_access("y", 2), (*program, *loads), "in2"), DTYPES, owner).result()
        taken: dict[str, list[set[int]]] = {name: [] for name in names}
        for s, input2 in product(range(scalar[0], scalar[1] + 1), (-(2**63), -1, 0, 2, 2**63 - 1)):
            runs = [_run(program, {"i": i, "j": j, "s": s, "in2": input2}) for i, j in product(*map(range, DIMS))]
            for name in names:
                taken[name].append({run[name] for run in runs})
        for name, sets in taken.items():
            bounds_ = owner.loads[name]
            assert bounds_ is not None
            for values in sets:
                assert bounds_.low <= min(values) <= max(values) <= bounds_.high, (program, name)
                assert not bounds_.exact or {bounds_.low, bounds_.high} <= values, (program, name)
            exact += bounds_.exact
    assert exact > 400


def _run(program: Sequence[Instr], known: dict[str, int]) -> dict[str, int]:
    for instr in program:
        if instr.op != "index":
            args = [known[arg] if isinstance(arg, str) else int(arg) for arg in instr.args]
            known[instr.name] = _wrapped(int(_PYTHON[instr.op](*args)))
    return known


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((FIRST,), Integer(0, 3, True)),
        ((SECOND,), Integer(0, 2, True)),
        ((op("const", 7),), Integer(7, 7, True)),
        ((op("index_cast", "s"),), Integer(3, 5)),
        ((op("index_cast", "one"),), Integer(6, 6)),
        ((FIRST, op("addi", "i", 2)), Integer(2, 5, True)),
        ((FIRST, op("addi", 2, "i")), Integer(2, 5, True)),
        ((FIRST, op("subi", 2, "i")), Integer(-1, 2, True)),
        ((FIRST, op("muli", "i", -2)), Integer(-6, 0, True)),
        ((FIRST, op("muli", 0, "i")), Integer(0, 0, True)),
        ((FIRST, op("minsi", "i", 2)), Integer(0, 2, True)),
        ((FIRST, op("maxsi", 1, "i")), Integer(1, 3, True)),
        # Two that vary need not take their ends together; what is not exact makes nothing exact.
        ((FIRST, SECOND, op("addi", "i", "j")), Integer(0, 5)),
        ((FIRST, SECOND, op("muli", "i", "j")), Integer(0, 6)),
        ((FIRST, op("addi", "i", "s")), Integer(3, 8)),
        ((FIRST, op("addi", "i", "one")), Integer(6, 9)),
        ((FIRST, op("addi", "one", "i")), Integer(6, 9)),
        ((op("addi", "s", 1),), Integer(4, 6)),
        ((op("subi", 1, "s"),), Integer(-4, -2)),
        # A decided select has the value of its choice; an undecided one is not exact.
        ((FIRST, op("cmpi_slt", "i", 4, type="i1", result="c"), op("select", "c", "i", 9)), Integer(0, 3, True)),
        ((FIRST, op("cmpi_sge", "i", 4, type="i1", result="c"), op("select", "c", 9, "i")), Integer(0, 3, True)),
        ((FIRST, op("cmpi_slt", "i", 3, type="i1", result="c"), op("select", "c", "i", 9)), Integer(0, 9)),
        ((FIRST, op("cmpi_slt", "i", 3, type="i1", result="c"), op("select", "c", -1, "i")), Integer(-1, 3)),
        ((FIRST, op("select", "in5", "i", "s")), Integer(0, 5)),
        ((op("const", 1, type="i1", result="c"), op("select", "c", 5, 6)), Integer(5, 5, True)),
        ((op("const", 0, type="i1", result="c"), op("select", "c", 5, 6)), Integer(6, 6, True)),
        # As a signed number a truth value is 0 or -1, so comparisons with it and casts of it may have any result.
        ((op("cmpi_slt", "in5", 0, type="i1", result="c"), op("select", "c", 5, 6)), Integer(5, 6)),
        ((op("index_cast", "in4"),), Integer(-128, 127)),
        ((op("index_cast", "in3"),), Integer(-(2**31), 2**31 - 1)),
        # A value that may wrap around can have any value.
        ((op("addi", 100, 27, type="i8", result="a"), op("index_cast", "a")), Integer(127, 127, True)),
        ((op("addi", 100, 28, type="i8", result="a"), op("index_cast", "a")), Integer(-128, 127)),
        ((op("subi", -100, 28, type="i8", result="a"), op("index_cast", "a")), Integer(-128, -128, True)),
        ((op("subi", -100, 29, type="i8", result="a"), op("index_cast", "a")), Integer(-128, 127)),
        ((op("index_cast", "s", type="i8", result="a"), op("index_cast", "a")), Integer(3, 5)),
        ((op("const", 128, result="a"), op("index_cast", "a", type="i8", result="b"), op("index_cast", "b")),
         Integer(-128, 127)),
    ],
)  # fmt: skip
def test_the_range_of_an_integer(program: tuple[Instr, ...], expected: Integer) -> None:
    assert bounds(*program, s=(3, 5), one=(6, 6)) == expected


@pytest.mark.parametrize(
    "program",
    [
        (op("index_cast", "in2"),), (op("index_cast", "u"),), (op("index_cast", "in5"),), (op("extui", "in4"),),
        (op("absi", "s"),), (op("andi", "s", 1),), (op("shli", "s", 1),), (op("remsi", "s", 2),),
        (op("fptosi", "in0"),), (op("addi", "in2", 0),), (op("addi", "s", 2**63 - 4),), (op("subi", -(2**63), "s"),),
        (op("load", "x", "s"),), (op("maxsi", "in2", "in2"),),
    ],
)  # fmt: skip
def test_of_what_is_not_known_every_value_is_possible(program: tuple[Instr, ...]) -> None:
    assert bounds(*program, s=(3, 5), u=(-inf, inf)) == Integer(-(2**63), 2**63 - 1)


def test_a_float_is_no_index() -> None:
    assert accepted(op("load", "x", "s", type="f32"), s=(0, 1))
    assert not accepted(op("load", "x", "in0", type="f32"))
    assert not accepted(op("load", type="f32"))
    assert not accepted(op("load", 0, "s", type="f32"), s=(0, 1))


def test_an_index_is_of_a_dimension() -> None:
    assert [accepted(op("index", dim)) for dim in (-1, 0, 1, 2)] == [False, True, True, False]
    assert not accepted(op("index", 0, 1))
    assert not accepted(op("index"))
    assert not accepted(op("index", "s"), s=(0, 0))
    assert not accepted(op("index", 0, type="i32"))
    assert accepted(op("index", 0, type="index"))


@pytest.mark.parametrize("name", _COMPARE)
def test_a_comparison_is_decided_where_all_values_agree(name: str) -> None:
    intervals = list(combinations_with_replacement(range(-2, 3), 2))
    for (a, b), (c, d) in product(intervals, repeat=2):
        values = {int(_COMPARE[name](x, y)) for x, y in product(range(a, b + 1), range(c, d + 1))}
        assert _compare(name, Integer(a, b), Integer(c, d)) == Integer(min(values), max(values)), (a, b, c, d)
