"""The validator on bodies: one wrong body per check, and the ranges of integers that decide where loads go."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import product
from math import prod
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.operations import (
    CausalAttention,
    ChunkAttention,
    DecodeAttention,
    GatherRows,
    ObservationScores,
    Pool,
    Select,
    SelectedRows,
    UpdateRows,
)
from sscc.ir.schedule import Access, Body, Instr, Local, Param, Product, Reduction, Vector, View, Window
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import BodyFacts, BodyProofErrors, prove_body
from sscc.runtime.validator.failure import NumberProofErrors
from sscc.runtime.validator.programs import Integer, VectorProofErrors, _compare, _integer
from sscc.runtime.validator.steps import StepProofErrors
from tests.errors import raises
from tests.runtime.broken.build import product_step
from tests.runtime.schedules import read, update, whole_access, write

LINE = (read("x", (6,)), read("n", (6,), "i64"), read("b", (6,), "i1"), read("c", (6,), "i8"))
INPUTS = tuple(whole_access(param.name, 1) for param in LINE)  # in0 .. in3: f32, i64, i1, i8


def facts(*params: Param, steps: tuple[Any, ...], scalars: tuple[str, ...] = (), **rest: Any) -> BodyFacts:
    body = Body("body", params, scalars, rest.get("locals", ()), rest.get("windows", ()), steps)
    return prove_body(body, Limits(), rest.get("ranges"))


def vector(*program: Instr, dtype: Any = "f32", **rest: Any) -> BodyFacts:
    """Proves a vector program over six points of f32, i64, i1 and i8 inputs."""
    step = Vector((6,), INPUTS, whole_access("y", 1), program, program[-1].name)
    return facts(*LINE, write("y", (6,), dtype=dtype), steps=(step,), **rest)


def op(name: str, *args: Any, type: str = "f32", result: str = "r") -> Instr:
    return Instr(result, name, args, type)


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        ((op("addf", "in0", 1),), "f32"),
        ((op("fma", "in0", "in0", 2.0),), "f32"),
        ((op("fpowi", "in0", 2),), "f32"),
        ((op("truncf", "in0", type="bf16"),), "bf16"),
        ((op("sitofp", "in3"),), "f32"),
        ((op("fptosi", "in0", type="i64"),), "i64"),
        ((op("extsi", "in3", type="i64"),), "i64"),
        ((op("trunci", "in1", type="i8"),), "i8"),
        ((op("cmpf_olt", "in0", 0.5, type="i1"),), "i1"),
        ((op("cmpi_slt", "in1", 3, type="i1"),), "i1"),
        ((op("andi", "in2", "in2", type="i1"),), "i1"),
        ((op("absi", "in3", type="i8"),), "i8"),
        ((op("remsi", "in1", 5, type="i64"),), "i64"),
        ((op("floordivsi", "in1", -2, type="i64"),), "i64"),
        ((op("shli", "in1", 63, type="i64"),), "i64"),
        ((op("cmpi_sgt", "in1", 0, type="i1", result="c"), op("select", "c", "in0", 0.0)), "f32"),
        ((op("muli", "in1", "s", type="i64"),), "i64"),
    ],
)
def test_programs_of_the_right_types_are_accepted(program: tuple[Instr, ...], dtype: str) -> None:
    vector(*program, dtype=dtype, scalars=("s",))


@pytest.mark.parametrize(
    ("program", "kind", "fields"),
    [
        (
            (op("addf", "in0", "in1"),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "addf", "type": "f32", "argument": "in1", "actual": "i64"},
        ),
        (
            (op("addf", "in1", "in1", type="i64"),), VectorProofErrors.RESULT_TYPE,
            {"op": "addf", "type": "i64", "argument": "i64"},
        ),
        (
            (op("addi", "in1", "in3", type="i64"),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "addi", "type": "i64", "argument": "in3", "actual": "i8"},
        ),
        (
            (op("addi", "in2", "in2", type="i1"),), VectorProofErrors.RESULT_TYPE,
            {"op": "addi", "type": "i1", "argument": "i1"},
        ),
        ((op("andi", "in0", "in0"),), VectorProofErrors.RESULT_TYPE, {"op": "andi", "type": "f32", "argument": "f32"}),
        (
            (op("cmpf_olt", "in1", 3, type="i1"),), VectorProofErrors.RESULT_TYPE,
            {"op": "cmpf_olt", "type": "i1", "argument": "i64"},
        ),
        (
            (op("cmpf_olt", "in0", 3.0),), VectorProofErrors.RESULT_TYPE,
            {"op": "cmpf_olt", "type": "f32", "argument": "f32"},
        ),
        (
            (op("cmpi_slt", "in0", 3, type="i1"),), VectorProofErrors.RESULT_TYPE,
            {"op": "cmpi_slt", "type": "i1", "argument": "f32"},
        ),
        (
            (op("cmpi_slt", "in1", 3, type="i64"),), VectorProofErrors.RESULT_TYPE,
            {"op": "cmpi_slt", "type": "i64", "argument": "i64"},
        ),
        (
            (op("select", "in1", "in0", 0.0),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "select", "type": "i1", "argument": "in1", "actual": "i64"},
        ),
        (
            (op("select", "in2", "in0", "in1"),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "select", "type": "f32", "argument": "in1", "actual": "i64"},
        ),
        (
            (op("fpowi", "in0", "in0"),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "fpowi", "type": "i64", "argument": "in0", "actual": "f32"},
        ),
        (
            (op("fpowi", "in1", 2, type="i64"),), VectorProofErrors.RESULT_TYPE,
            {"op": "fpowi", "type": "i64", "argument": "i64"},
        ),
        ((op("truncf", "in1"),), VectorProofErrors.RESULT_TYPE, {"op": "truncf", "type": "f32", "argument": "i64"}),
        ((op("sitofp", "in0"),), VectorProofErrors.RESULT_TYPE, {"op": "sitofp", "type": "f32", "argument": "f32"}),
        (
            (op("fptosi", "in1", type="i64"),), VectorProofErrors.RESULT_TYPE,
            {"op": "fptosi", "type": "i64", "argument": "i64"},
        ),
        (
            (op("fptosi", "in0", type="i1"),), VectorProofErrors.RESULT_TYPE,
            {"op": "fptosi", "type": "i1", "argument": "f32"},
        ),
        (
            (op("extsi", "in0", type="i64"),), VectorProofErrors.RESULT_TYPE,
            {"op": "extsi", "type": "i64", "argument": "f32"},
        ),
        ((op("absi", "in0"),), VectorProofErrors.RESULT_TYPE, {"op": "absi", "type": "f32", "argument": "f32"}),
        ((op("addf", "in0"),), VectorProofErrors.ARGUMENT_COUNT, {"op": "addf", "count": 1}),
        ((op("frob", "in0"),), VectorProofErrors.ARGUMENT_COUNT, {"op": "frob", "count": 1}),
        ((op("addf", "in0", 1.0, type="f64"),), VectorProofErrors.UNKNOWN_TYPE, {"type": "f64"}),
        ((op("addf", "in0", 1.0), op("addf", "in0", 1.0)), VectorProofErrors.DEFINED_TWICE, {"name": "r"}),
        ((op("addf", "in0", 1.0, result="in0"),), VectorProofErrors.DEFINED_TWICE, {"name": "in0"}),
        ((op("addf", "in0", "lost"),), BodyProofErrors.UNKNOWN_SCALAR, {"scalar": "lost"}),
        ((op("addi", "in1", 0.5, type="i64"),), VectorProofErrors.LITERAL_TYPE, {"literal": 0.5, "type": "i64"}),
        ((op("addi", "in3", 128, type="i8"),), VectorProofErrors.LITERAL_TYPE, {"literal": 128, "type": "i8"}),
        ((op("andi", "in2", 2, type="i1"),), VectorProofErrors.LITERAL_TYPE, {"literal": 2, "type": "i1"}),
        ((op("const", "in0"),), VectorProofErrors.CONST_ARGUMENTS, {}),
        ((op("const", 1.0, 2.0),), VectorProofErrors.CONST_ARGUMENTS, {}),
        ((op("const", 0.5, type="i64"),), VectorProofErrors.LITERAL_TYPE, {"literal": 0.5, "type": "i64"}),
        ((op("index", 1, type="i64"),), VectorProofErrors.INDEX_DIMENSION, {"dims": [6], "dim": 1}),
        ((op("index", -1, type="i64"),), VectorProofErrors.INDEX_DIMENSION, {"dims": [6], "dim": -1}),
        ((op("index", 0, 0, type="i64"),), VectorProofErrors.INDEX_DIMENSION, {"dims": [6]}),
        ((op("index", 0),), VectorProofErrors.INDEX_TYPE, {"type": "f32"}),
        ((op("load"),), VectorProofErrors.LOAD_ARGUMENTS, {}),
        ((op("load", 3, 0),), VectorProofErrors.LOAD_ARGUMENTS, {}),
        ((op("load", "lost", 0),), BodyProofErrors.UNKNOWN_NAME, {"name": "lost"}),
        ((op("load", "x", 0, 0),), BodyProofErrors.LOAD_FORM, {"type": "f32", "indices": 2, "dtype": "f32"}),
        ((op("load", "n", 0),), BodyProofErrors.LOAD_FORM, {"type": "f32", "indices": 1, "name": "n", "dtype": "i64"}),
        (
            (op("load", "x", "in0"),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "load", "type": "i64", "argument": "in0", "actual": "f32"},
        ),
        (
            (op("load", "x", "in3"),), VectorProofErrors.ARGUMENT_TYPE,
            {"op": "load", "type": "i64", "argument": "in3", "actual": "i8"},
        ),
        ((op("load", "y", 0),), BodyProofErrors.READ_BEFORE_WRITTEN, {"name": "y"}),
        (
            (op("load", "x", 6),), BodyProofErrors.LOAD_OUT_OF_RANGE,
            {"low": 6, "high": 6, "axis": 0, "name": "x", "size": 6},
        ),
        ((op("load", "x", -1),), BodyProofErrors.LOAD_OUT_OF_RANGE, {"low": -1, "high": -1, "axis": 0}),
        ((op("shli", "in1", 64, type="i64"),), VectorProofErrors.SHIFT_TOO_FAR, {"type": "i64", "bits": "64"}),
        ((op("shrsi", "in1", -1, type="i64"),), VectorProofErrors.SHIFT_TOO_FAR, {"type": "i64", "bits": "-1"}),
        ((op("shli", "in3", 8, type="i8"),), VectorProofErrors.SHIFT_TOO_FAR, {"type": "i8", "bits": "8"}),
        (
            (op("shli", "in1", "in1", type="i64"),), VectorProofErrors.SHIFT_TOO_FAR,
            {"type": "i64", "bits": "-9223372036854775808 .. 9223372036854775807"},
        ),
    ],
)
def test_programs_of_wrong_types_or_without_a_meaning_are_refused(
    program: tuple[Instr, ...], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        vector(*program)


@pytest.mark.parametrize("name", ["divsi", "remsi", "floordivsi", "ceildivsi"])
@pytest.mark.parametrize("by", [0, -1, "in1"])
def test_a_program_that_may_divide_by_zero_is_refused(name: str, by: int | str) -> None:
    with raises(VectorProofErrors.MAY_DIVIDE_BY_ZERO, op=name):
        vector(op(name, "in1", by, type="i64"))


def test_a_program_without_its_result_or_of_another_dtype_is_refused() -> None:
    with raises(VectorProofErrors.RESULT_UNDEFINED, result="lost"):
        facts(*LINE, write("y", (6,)), steps=(Vector((6,), INPUTS, whole_access("y", 1), (), "lost"),))
    with raises(BodyProofErrors.OUTPUT_DTYPE, dtype="f32", name="y", actual="i64"):
        vector(op("addf", "in0", 1.0), dtype="i64")


# ----------------------------------------------------------------------------------------------- where loads go


@pytest.mark.parametrize(
    ("program", "inside"),
    [
        ((op("index", 0, type="i64", result="i"), op("load", "x", "i")), True),
        ((op("index", 0, type="index", result="i"), op("addi", "i", 1, type="i64", result="j"),
          op("load", "x", "j")), False),
        ((op("index", 0, type="i64", result="i"), op("subi", 5, "i", type="i64", result="j"),
          op("load", "x", "j")), True),
        ((op("index", 0, type="i64", result="i"), op("subi", 4, "i", type="i64", result="j"),
          op("load", "x", "j")), False),
        ((op("index", 0, type="i64", result="i"), op("muli", "i", -1, type="i64", result="m"),
          op("addi", "m", 5, type="i64", result="j"), op("load", "x", "j")), True),
        ((op("index", 0, type="i64", result="i"), op("muli", "i", 2, type="i64", result="j"),
          op("load", "x", "j")), False),
    ],
)  # fmt: skip
def test_loads_by_indices_are_inside_or_refused(program: tuple[Instr, ...], inside: bool) -> None:
    if inside:
        assert vector(*program).data == ()
        return
    with raises(BodyProofErrors.LOAD_OUT_OF_RANGE, axis=0, name="x", size=6):
        vector(*program)


@pytest.mark.parametrize(
    ("program", "listed"),
    [
        ((op("load", "x", "in1"),), True),
        ((op("maxsi", "in1", 0, type="i64", result="a"), op("minsi", "a", 5, type="i64", result="j"),
          op("load", "x", "j")), False),
        ((op("maxsi", "in1", 0, type="i64", result="a"), op("minsi", "a", 6, type="i64", result="j"),
          op("load", "x", "j")), True),
        ((op("minsi", "in1", 5, type="i64", result="j"), op("load", "x", "j")), True),
        ((op("index_cast", "in2", type="i64", result="j"), op("load", "x", "j")), True),  # 0 or -1
        ((op("select", "in2", 0, 5, type="i64", result="j"), op("load", "x", "j")), False),
        ((op("select", "in2", 0, 6, type="i64", result="j"), op("load", "x", "j")), True),
        ((op("index", 0, type="i64", result="i"), op("cmpi_slt", "i", 6, type="i1", result="c"),
          op("select", "c", "i", 99, type="i64", result="j"), op("load", "x", "j")), False),
        ((op("index", 0, type="i64", result="i"), op("cmpi_sge", "i", 6, type="i1", result="c"),
          op("select", "c", 99, "i", type="i64", result="j"), op("load", "x", "j")), False),
        ((op("load", "x", "s"),), True),
        # An overflow wraps around, so the result may have any value.
        ((op("index", 0, type="i64", result="i"), op("addi", "i", 2**63 - 1, type="i64", result="a"),
          op("minsi", "a", 5, type="i64", result="j"), op("load", "x", "j")), True),
    ],
)  # fmt: skip
def test_loads_that_data_decide_are_listed(program: tuple[Instr, ...], listed: bool) -> None:
    assert bool(vector(*program, scalars=("s",)).data) == listed


def test_the_range_of_a_scalar_bounds_a_load() -> None:
    program = op("load", "x", "s")
    assert vector(program, scalars=("s",), ranges={"s": (0, 5)}).data == ()
    assert vector(program, scalars=("s",), ranges={"s": (0, 6)}).data != ()


def test_ranges_of_integers_hold_every_value() -> None:
    choose = random.Random(5)
    python = {
        "addi": lambda a, b: a + b,
        "subi": lambda a, b: a - b,
        "muli": lambda a, b: a * b,
        "minsi": min,
        "maxsi": max,
    }
    compare = {
        "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    }  # fmt: skip
    for _ in range(600):
        a, b = (Integer(*sorted((choose.randint(-4, 4), choose.randint(-4, 4))), True) for _ in range(2))
        pairs = [(x, y) for x in range(int(a.low), int(a.high) + 1) for y in range(int(b.low), int(b.high) + 1)]
        for name, function in python.items():
            bounds, values = _integer(name, [a, b]), {function(x, y) for x, y in pairs}
            assert bounds is not None
            assert (bounds.low, bounds.high) == (min(values), max(values)), (name, a, b)
        for name, holds in compare.items():
            values = {int(holds(x, y)) for x, y in pairs}
            bounds = _compare(name, a, b)
            assert bounds.low <= min(values) <= max(values) <= bounds.high
            if name in ("lt", "le", "gt", "ge"):
                assert (bounds.low, bounds.high) == (min(values), max(values)), (name, a, b)


# ------------------------------------------------------------------------------------------------- form of a body

COPY = Vector((6,), (whole_access("x", 1),), whole_access("y", 1), (), "in0")
PAIR = (read("x", (6,)), write("y", (6,)))


@pytest.mark.parametrize(
    ("step", "kind", "fields"),
    [
        (dataclasses.replace(COPY, dims=(0,)), BodyProofErrors.EMPTY_DIMENSIONS, {"dims": [0]}),
        (
            dataclasses.replace(COPY, inputs=(Access("x", ((1,),)),)), BodyProofErrors.MAP_FORM,
            {"rows": 1, "columns": 2},
        ),
        (
            dataclasses.replace(COPY, inputs=(Access("x", ((1, 0), (0, 0))),)), BodyProofErrors.MAP_FORM,
            {"rows": 1, "columns": 2},
        ),
        (
            dataclasses.replace(COPY, inputs=(Access("x", ((-1, 4),)),)), BodyProofErrors.MAP_OUT_OF_RANGE,
            {"low": -1, "high": 4, "axis": 0, "name": "x"},
        ),
        (
            dataclasses.replace(COPY, inputs=(Access("x", ((1, 1 << 48),)),)), NumberProofErrors.TOO_LARGE,
            {"number": 281474976710656},
        ),
        (dataclasses.replace(COPY, output=Access("y", ((0, 0),))), BodyProofErrors.WRITTEN_TWICE, {"name": "y"}),
        (dataclasses.replace(COPY, output=Access("x", ((1, 0),))), BodyProofErrors.WRITES_READ_ONLY, {"name": "x"}),
        (
            Vector((6, 9), (Access("x", ((1, 0, 0),)),), Access("y", ((1, 0, 0),)), (), "in0"),
            BodyProofErrors.IDLE_DIMENSION, {"size": 9, "dim": 1},
        ),
        (
            Reduction((6,), (0, 0), (whole_access("x", 1),), Access("y", ((0, 0),)), (), "in0", "addf", 0.0),
            BodyProofErrors.REDUCED_DIMENSIONS, {"reduce": [0, 0]},
        ),
        (
            Reduction((6,), (1,), (whole_access("x", 1),), Access("y", ((0, 0),)), (), "in0", "addf", 0.0),
            BodyProofErrors.REDUCED_DIMENSIONS, {"reduce": [1]},
        ),
        (
            Reduction((6,), (0,), (whole_access("x", 1),), whole_access("y", 1), (), "in0", "addf", 0.0),
            BodyProofErrors.OUTPUT_REDUCED, {"name": "y"},
        ),
        (
            Reduction((1,), (0,), (whole_access("x", 1),), whole_access("y", 1), (), "in0", "addf", 0.0),
            BodyProofErrors.OUTPUT_REDUCED, {"name": "y"},
        ),
        (
            Reduction((6,), (0,), (whole_access("x", 1),), Access("y", ((0, 0),)), (), "in0", "xor", 0.0),
            BodyProofErrors.COMBINATION, {"dtype": "f32", "combine": "xor"},
        ),
    ],
)
def test_a_malformed_step_is_refused(step: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        facts(*PAIR, steps=(step,))


def test_integers_are_neither_reduced_nor_multiplied() -> None:
    params = (read("a", (2, 3), "i64"), read("b", (4, 3)), write("y", (2, 4)))
    with raises(BodyProofErrors.PRODUCT_DTYPE, name="a"):
        facts(*params, steps=(product_step("a", "b", "y", 2, 4, 3),))
    total = Reduction((6,), (0,), (whole_access("n", 1),), Access("y", ((0, 0),)), (), "in0", "addf", 0.0)
    with raises(BodyProofErrors.COMBINATION, dtype="i64", combine="addf"):
        facts(read("n", (6,), "i64"), write("y", (1,)), steps=(total,))


def test_a_product_sums_over_what_its_output_does_not_know() -> None:
    base = product_step("a", "b", "y", 1, 1, 3)
    wrong = Product((1, 1, 1), (2,), base.a, base.b, Access("y", ((0, 0, 1, 0), (0, 1, 0, 0))))
    with raises(BodyProofErrors.OUTPUT_REDUCED, name="y", reduce=[2]):
        facts(read("a", (1, 1)), read("b", (1, 1)), write("y", (1, 1)), steps=(wrong,))


def test_a_step_may_read_the_elements_that_it_writes_and_no_others() -> None:
    own = Vector((6,), (whole_access("y", 1),), whole_access("y", 1), (op("addf", "in0", 1.0),), "r")
    facts(update("y", (6,)), steps=(own,))
    backwards = dataclasses.replace(own, inputs=(Access("y", ((-1, 5),)),))
    with raises(BodyProofErrors.READS_WHAT_IT_WRITES, name="y"):
        facts(update("y", (6,)), steps=(backwards,))


@pytest.mark.parametrize(
    ("window", "kind", "fields"),
    [
        (Window("w", View("lost", (2,), (1,))), BodyProofErrors.WINDOW_OF_NOTHING, {"tensor": "lost"}),
        (Window("w", View("x", (2,), (1, 1))), BodyProofErrors.WINDOW_FORM, {}),
        (Window("w", View("x", (0,), (1,))), BodyProofErrors.WINDOW_FORM, {}),
        (Window("w", View("x", (2,), (-1,), 3)), BodyProofErrors.WINDOW_FORM, {}),
        (Window("w", View("x", (2,), (1,), 0, (("s", 1),))), BodyProofErrors.WINDOW_FORM, {}),
        (
            Window("w", View("x", (2,), (1,), -1)), BodyProofErrors.WINDOW_OUT_OF_RANGE,
            {"low": -1, "high": 0, "tensor": "x", "elements": 6},
        ),
        (
            Window("w", View("x", (2,), (1,), 5)), BodyProofErrors.WINDOW_OUT_OF_RANGE,
            {"low": 5, "high": 6, "tensor": "x", "elements": 6},
        ),
        (Window("w", View("x", (1,), (1 << 50,))), NumberProofErrors.TOO_LARGE, {}),
        (Window("x", View("x", (2,), (1,))), BodyProofErrors.NAME_TWICE, {"name": "x"}),
    ],
)
def test_a_malformed_window_is_refused(window: Window, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        facts(*PAIR, steps=(COPY,), scalars=("s",), windows=(window,))


def test_a_parameter_or_local_without_elements_or_beyond_all_memory_is_refused() -> None:
    for local in (Local("t", (0,), "f32"), Local("t", (1 << 24, 1 << 24), "f32")):
        kind = NumberProofErrors.TOO_LARGE if all(local.shape) else BodyProofErrors.EMPTY_SHAPE
        with raises(kind, where="body 'body'"):
            facts(*PAIR, steps=(COPY,), locals=(local,))


# ------------------------------------------------------------------------------------------ steps of the algorithm

_ATTEND = ("q", "nk", "nv", "kc", "vc", "kc", "vc", "p", "b", "a", "top", "out")
DECODE = DecodeAttention(*_ATTEND, 0.5, 1, 3)
SLOT = (read("p", (2,), "i64"), read("b", (2,), "i64"), read("a", (2,), "i1"))


def attend(step: DecodeAttention, heads: int = 4, kv: int = 2) -> BodyFacts:
    new = (read("nk", (2, kv, 1, 8)), read("nv", (2, kv, 1, 8)))
    caches = (update("kc", (2, kv, 6, 8)), update("vc", (2, kv, 6, 8)))
    params = (read("q", (2, heads, 1, 8)), *new, *caches, *SLOT, write("out", (2, heads, 1, 8)))
    return facts(*params, steps=(step,), scalars=("top",))


@pytest.mark.parametrize(
    ("fields", "kind", "error_fields"),
    [
        ({"scale": 0.0}, StepProofErrors.SCALE, {"scale": 0.0}),
        ({"scale": -1.0}, StepProofErrors.SCALE, {"scale": -1.0}),
        ({"scale": float("inf")}, StepProofErrors.SCALE, {"scale": "inf"}),
        ({"scale": float("nan")}, StepProofErrors.SCALE, {"scale": "nan"}),
        ({"sink": -1}, StepProofErrors.RING, {"sink": -1, "recent": 3}),
        ({"recent": 0}, StepProofErrors.RING, {"sink": 1, "recent": 0}),
        ({"position": "lost"}, BodyProofErrors.UNKNOWN_NAME, {"name": "lost"}),
        ({"base": "lost"}, BodyProofErrors.UNKNOWN_NAME, {"name": "lost"}),
        ({"topk": "lost"}, BodyProofErrors.UNKNOWN_SCALAR, {"scalar": "lost"}),
    ],
)
def test_attention_with_impossible_settings_is_refused(
    fields: dict[str, Any], kind: ErrorKind, error_fields: dict[str, Any]
) -> None:
    attend(DECODE)
    with raises(kind, **error_fields):
        attend(dataclasses.replace(DECODE, **fields))


@pytest.mark.parametrize(
    ("fields", "kind", "error_fields"),
    [
        (
            {"k_cache": "vc", "key": "vc"}, BodyProofErrors.OPERANDS_OVERLAP,
            {"operand": "k_cache", "other": "value", "name": "vc"},
        ),
        (
            {"key": "vc", "value": "kc"}, BodyProofErrors.OPERANDS_OVERLAP,
            {"operand": "k_cache", "other": "value", "name": "kc"},
        ),
        (
            {"v_cache": "kc", "value": "kc"}, BodyProofErrors.OPERANDS_OVERLAP,
            {"operand": "k_cache", "other": "value", "name": "kc"},
        ),
        ({"out": "q"}, BodyProofErrors.OPERANDS_OVERLAP, {"operand": "out", "other": "query", "name": "q"}),
        (
            {"key": "other_heads"}, BodyProofErrors.OPERANDS_OVERLAP,
            {"operand": "k_cache", "other": "key", "name": "kc"},
        ),
    ],
)
def test_a_written_operand_is_no_other_one(
    fields: dict[str, Any], kind: ErrorKind, error_fields: dict[str, Any]
) -> None:
    """But for the caches, which are read as they were written: the same heads in another order are others."""
    new = (read("nk", (2, 2, 1, 8)), read("nv", (2, 2, 1, 8)))
    caches = (update("kc", (2, 2, 6, 8)), update("vc", (2, 2, 6, 8)))
    params = (update("q", (2, 4, 1, 8)), *new, *caches, *SLOT, write("out", (2, 4, 1, 8)))
    swapped = Window("other_heads", View("kc", (2, 2, 6, 8), (48, 96, 8, 1)))
    with raises(kind, **error_fields):
        facts(*params, steps=(dataclasses.replace(DECODE, **fields),), windows=(swapped,), scalars=("top",))
    halves = (
        Window("first", View("c", (2, 2, 6, 8), (192, 96, 8, 1))),
        Window("second", View("c", (2, 2, 6, 8), (192, 96, 8, 1), 48)),
    )
    apart = dataclasses.replace(DECODE, key="first", k_cache="first", value="second", v_cache="second")
    facts(params[0], *new, update("c", (384,)), *SLOT, params[-1], steps=(apart,), windows=halves, scalars=("top",))


def test_heads_that_do_not_divide_are_refused() -> None:
    with raises(StepProofErrors.HEADS, heads=3, kv_heads=2):
        attend(DECODE, heads=3)


def test_values_are_apart_or_the_first_numbers_of_keys() -> None:
    latent = dataclasses.replace(DECODE, new_value="", value="", v_cache="")

    def attend_over(step: DecodeAttention, width: int = 5, dtype: str = "f32") -> BodyFacts:
        rows = (read("nk", (2, 1, 1, 8)), update("kc", (2, 1, 6, 12 if dtype == "i8" else 8), dtype=dtype))
        others = (read("nv", (2, 1, 1, 5)), read("kp", (2, 1, 9, 8)), read("vp", (2, 1, 9, 5)), *SLOT)
        params = (read("q", (2, 4, 1, 8)), *rows, *others, read("s", (2, 1, 2), "i64"), write("out", (2, 4, 1, width)))
        return facts(*params, steps=(step,), scalars=("top",))

    attend_over(latent)
    attend_over(latent, 4, "i8")
    with raises(StepProofErrors.VALUES_MISSING, missing=["value", "v_cache"]):
        attend_over(dataclasses.replace(latent, new_value="nv"))
    with raises(StepProofErrors.VALUES_TOO_WIDE, values=9, key=8):
        attend_over(latent, 9)
    with raises(StepProofErrors.VALUES_MISSING, missing=["new_value", "value", "v_cache"]):
        attend_over(dataclasses.replace(latent, segments=(SelectedRows("kp", "vp", "s"),)))
    attend_over(dataclasses.replace(latent, segments=(SelectedRows("kp", "", "s"),)))


def test_selected_rows_stand_between_sinks_and_ring() -> None:
    step = DecodeAttention(*_ATTEND, 0.5, 1, 2, (SelectedRows("kp", "vp", "s"),))
    new = (read("nk", (2, 2, 1, 8)), read("nv", (2, 2, 1, 8)), update("kc", (2, 2, 6, 8)), update("vc", (2, 2, 6, 8)))
    prompts = (read("kp", (2, 2, 9, 8)), read("vp", (2, 2, 9, 8)), read("s", (2, 2, 3), "i64"))
    params = (read("q", (2, 4, 1, 8)), *new, *prompts, *SLOT, write("out", (2, 4, 1, 8)))
    with raises(StepProofErrors.SELECTED_ROWS, segments=1, selected=3, rows=6, ring=4):
        facts(*params, steps=(dataclasses.replace(step, recent=3),), scalars=("top",))
    with raises(StepProofErrors.RING_TOO_LARGE, last=6, sink=1, recent=6, rows=6):
        facts(*params, steps=(dataclasses.replace(step, recent=6, segments=()),), scalars=("top",))
    found = facts(*params, steps=(step,), scalars=("top",))
    assert [line.rsplit(" ", 1)[1] for line in found.data] == ["'kp'", "'vp'"]
    assert [need[:3] for need in found.needs] == [("top", 0, 3)]


def test_gathered_rows_are_listed() -> None:
    params = (read("x", (1, 2, 6, 4)), read("i", (2, 3), "i64"), write("y", (1, 2, 3, 4)))
    (line,) = facts(*params, steps=(GatherRows("x", "i", "y"),)).data
    assert line.endswith("rows of 'x'")


@pytest.mark.parametrize(("width", "mode"), [(0, "avg"), (2, "avg"), (-1, "max"), (3, "sum"), ((1 << 20) + 1, "avg")])
def test_pooling_that_does_not_exist_is_refused(width: int, mode: str) -> None:
    params = (read("s", (2, 9)), write("p", (2, 9)))
    with raises(StepProofErrors.POOL, mode=mode, width=width):
        facts(*params, steps=(Pool("s", "p", "n", width, mode),), scalars=("n",))


@pytest.mark.parametrize(("sink", "recent"), [(-1, 0), (0, -1)])
def test_a_selection_of_negative_counts_is_refused(sink: int, recent: int) -> None:
    params = (read("s", (2, 9)), write("p", (2, 3), "i64"))
    with raises(StepProofErrors.NEGATIVE_SELECTION, sink=sink, recent=recent):
        facts(*params, steps=(Select("s", "p", "n", "top", sink, recent),), scalars=("n", "top"))


def test_scores_behind_a_ring_of_less_than_nothing_are_refused() -> None:
    params = (read("o", (1, 4, 3, 8)), read("k", (1, 2, 16, 8)), write("s", (2, 16)))
    step = ObservationScores("o", "k", "s", "n", 0.5, 0)
    facts(*params, steps=(step,), scalars=("n",))
    with raises(StepProofErrors.NEGATIVE_RECENT, recent=-1):
        facts(*params, steps=(dataclasses.replace(step, recent=-1),), scalars=("n",))


def test_the_scalars_that_decide_rows_are_needed_in_range() -> None:
    query = (read("q", (1, 4, 4, 8)), read("nk", (1, 2, 4, 8)), read("nv", (1, 2, 4, 8)))
    scratch = (update("ks", (1, 2, 16, 8)), update("vs", (1, 2, 16, 8)))
    step = ChunkAttention("q", "nk", "nv", "ks", "vs", "out", "start", "n", 0.5)
    needs = facts(*query, *scratch, write("out", (1, 4, 4, 8)), steps=(step,), scalars=("start", "n")).needs
    assert [(name, low, high) for name, low, high, _ in needs] == [("start", 0, 12), ("n", 1, 16)]
    with raises(BodyProofErrors.UNKNOWN_SCALAR, scalar="n"):
        facts(*query, *scratch, write("out", (1, 4, 4, 8)), steps=(step,), scalars=("start",))


def test_a_written_operand_shows_each_element_once() -> None:
    rows = Window("rows", View("y", (1, 2, 3, 4), (0, 0, 4, 1)))
    params = (read("x", (1, 2, 6, 4)), read("i", (2, 3), "i64"), write("y", (12,)))
    with raises(BodyProofErrors.WRITTEN_TWICE, name="y"):
        facts(*params, steps=(GatherRows("x", "i", "rows"),), windows=(rows,))


@pytest.mark.parametrize(
    ("shape", "kind", "fields"),
    [
        ((1, 4, 4), None, {}), ((1, 4, 3), BodyProofErrors.OPERAND, {"operand": "log_sum_exp", "dtype": "f32"}),
        ((4,), BodyProofErrors.OPERAND, {}),
    ],
)
def test_the_log_sum_exp_is_one_per_query(
    shape: tuple[int, ...], kind: ErrorKind | None, fields: dict[str, Any]
) -> None:
    params = (read("q", (1, 4, 4, 8)), read("k", (1, 2, 16, 8)), read("v", (1, 2, 16, 8)), write("out", (1, 4, 4, 8)))
    for name in ("lse", ""):
        step = CausalAttention("q", "k", "v", "out", "start", "n", 0.5, name)
        more = (write("lse", shape),) if name else ()
        if kind and name:
            with raises(kind, **fields):
                facts(*params, *more, steps=(step,), scalars=("start", "n"))
        else:
            facts(*params, *more, steps=(step,), scalars=("start", "n"))


# ------------------------------------------------------------------------------------- what is read, written and left


@pytest.mark.parametrize(("low", "high"), [(low, high) for low in range(-3, 9) for high in range(low, 9)])
def test_a_load_by_a_scalar_is_refused_where_no_value_is_inside(low: int, high: int) -> None:
    """If some values are inside, the data decide; if all are, no check is needed."""
    program = (op("load", "x", "s"),)
    if high < 0 or low > 5:
        with raises(BodyProofErrors.LOAD_OUT_OF_RANGE, load="r", axis=0, name="x", size=6, low=low, high=high):
            vector(*program, scalars=("s",), ranges={"s": (low, high)})
        return
    data = vector(*program, scalars=("s",), ranges={"s": (low, high)}).data
    assert data == (() if low >= 0 and high < 6 else ("body 'body', step 0 (vector): load 'r', axis 0 of 'x'",))


@pytest.mark.parametrize("move", range(-7, 8))
def test_a_load_by_an_index_is_inside_or_refused(move: int) -> None:
    program = (op("index", 0, type="i64", result="i"), op("addi", "i", move, type="i64", result="j"),
               op("load", "x", "j"))  # fmt: skip
    if move:
        with raises(BodyProofErrors.LOAD_OUT_OF_RANGE, load="r", axis=0, low=move, high=move + 5):
            vector(*program)
        return
    assert vector(*program).data == ()


def test_each_axis_of_a_load_is_checked() -> None:
    params = (read("x", (2, 3)), write("y", (2, 3)))

    def load(first: str, second: str, **rest: Any) -> BodyFacts:
        program = (op("index", 0, type="i64", result="i"), op("index", 1, type="i64", result="j"),
                   op("load", "x", first, second))  # fmt: skip
        step = Vector((2, 3), (), whole_access("y", 2), program, "r")
        return facts(*params, steps=(step,), scalars=("s",), **rest)

    assert load("i", "j").data == ()
    assert load("i", "i").data == ()
    with raises(BodyProofErrors.LOAD_OUT_OF_RANGE, low=0, high=2, axis=0, name="x", size=2):
        load("j", "j")
    assert [line.rpartition(", ")[2] for line in load("s", "s").data] == ["axis 0 of 'x'", "axis 1 of 'x'"]
    assert load("i", "s").data == ("body 'body', step 0 (vector): load 'r', axis 1 of 'x'",)


def _reached(access: Access, dims: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[int, ...] | None]:
    """The element at every point, None where it is outside."""
    elements: list[tuple[int, ...] | None] = []
    for at in product(*map(range, dims)):
        element = tuple(sum(f * k for f, k in zip(row, (*at, 1), strict=True)) for row in access.map)
        elements.append(element if all(0 <= k < size for k, size in zip(element, shape, strict=True)) else None)
    return elements


def _random_access(choose: random.Random, name: str, rank: int, shape: tuple[int, ...]) -> Access:
    """Inside more often than not."""
    factors = [[choose.choice((-1, 0, 0, 1, 1, 2)) for _ in range(rank)] for _ in shape]
    return Access(name, tuple((*row, choose.choice((-1, 0, 0, 0, 1, 2, 3))) for row in factors))


def _verdict(*params: Param, step: Any, **rest: Any) -> BodyFacts | InputError:
    try:
        return facts(*params, steps=(step,), **rest)
    except InputError as error:
        return error


def _kind(verdict: BodyFacts | InputError) -> ErrorKind | None:
    return verdict.kind if isinstance(verdict, InputError) else None


def test_outputs_are_inside_and_written_once_or_refused() -> None:
    """Random maps, some of which do not reduce what the step reduces; against every point."""
    choose, counts = random.Random(17), Counter[ErrorKind | None]()
    for _ in range(1500):
        dims = tuple(choose.randint(1, 3) for _ in range(choose.randint(1, 2)))
        shape = tuple(choose.randint(1, 5) for _ in range(choose.randint(1, 2)))
        reduce = tuple(dim for dim in range(len(dims)) if choose.random() < 0.3)
        output, source = _random_access(choose, "y", len(dims), shape), whole_access("x", len(dims))
        step: Any = Vector(dims, (source,), output, (), "in0")
        if reduce:
            step = Reduction(dims, reduce, (source,), output, (), "in0", "addf", 0.0)
        points = _reached(output, dims, shape)
        kept = prod(size for dim, size in enumerate(dims) if dim not in reduce)
        verdict = _verdict(read("x", dims), write("y", shape), step=step)
        if None in points:
            expected = BodyProofErrors.MAP_OUT_OF_RANGE
        elif any(row[dim] for dim in reduce for row in output.map):
            expected = BodyProofErrors.OUTPUT_REDUCED
        elif len(set(points)) < kept:
            expected = BodyProofErrors.WRITTEN_TWICE
        else:
            expected = None
            assert isinstance(verdict, BodyFacts), verdict
            use = verdict.uses["y"]
            assert (use.stored, use.complete, use.bounded) == (True, len(set(points)) == prod(shape), False), step
        assert _kind(verdict) is expected, (step, verdict)
        counts[expected] += 1
    assert len(counts) == 4
    assert min(counts.values()) > 50


def test_inputs_are_inside_or_refused() -> None:
    choose, counts = random.Random(18), Counter[bool]()
    for _ in range(600):
        dims = tuple(choose.randint(2, 3) for _ in range(choose.randint(1, 2)))
        shape = tuple(choose.randint(1, 5) for _ in range(choose.randint(1, 2)))
        access = _random_access(choose, "x", len(dims), shape)
        step = Vector(dims, (access,), whole_access("y", len(dims)), (), "in0")
        verdict, points = _verdict(read("x", shape), write("y", dims), step=step), _reached(access, dims, shape)
        inside = None not in points
        if not inside:
            assert _kind(verdict) is BodyProofErrors.MAP_OUT_OF_RANGE, (step, verdict)
        else:
            assert isinstance(verdict, BodyFacts), verdict
        counts[inside] += 1
    assert min(counts.values()) > 100


@pytest.mark.parametrize("reducing", [False, True])
def test_what_is_written_is_read_at_the_same_points_only(reducing: bool) -> None:
    """The same elements in another order, or some of them, are others; what a reduction writes it does not read."""
    choose, counts, shape = random.Random(19), Counter[bool](), (5, 6)
    for _ in range(600):
        dims = (choose.randint(2, 3), choose.randint(2, 3))

        def access(turned: bool, dims: tuple[int, ...] = dims) -> Access:
            """A box of the dimensions, perhaps turned over, some of them backwards or by steps of two."""
            rows = []
            for axis, dim in enumerate((1, 0) if turned else (0, 1)):
                reach = dims[dim] - 1
                factor = choose.choice((1, 1, -1, 2)) if not reducing or dim == 0 else 0
                low, high = min(factor * reach, 0), max(factor * reach, 0)
                at = choose.randint(0, shape[axis] - 1 - high + low) - low
                rows.append((*(factor if d == dim else 0 for d in range(2)), at))
            return Access("y", tuple(rows))

        source, output = access(choose.random() < 0.3), access(turned=False)
        step: Any = Vector(dims, (source,), output, (), "in0")
        if reducing:
            step = Reduction(dims, (1,), (source, whole_access("x", 2)), output, (), "in0", "addf", 0.0)
        there, here = _reached(source, dims, shape), _reached(output, dims, shape)
        verdict = _verdict(update("y", shape), read("x", dims), step=step)
        meets = bool(set(there) & set(here)) and (reducing or there != here)
        assert _kind(verdict) is (BodyProofErrors.READS_WHAT_IT_WRITES if meets else None), (step, verdict)
        counts[meets] += 1
    assert min(counts.values()) > 50


def _copies(*halves: tuple[str, int, str, int], size: int = 3) -> tuple[Vector, ...]:
    """Steps that copy `size` elements: (from, its first, to, its first)."""
    return tuple(
        Vector((size,), (Access(a, ((1, i),)),), Access(b, ((1, j),)), (), "in0") for a, i, b, j in halves
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "kind", "name"),
    [
        ((("x", 0, "t", 0), ("x", 3, "t", 3), ("t", 1, "y", 0)), None, ""),
        ((("x", 0, "t", 0), ("t", 0, "y", 0)), None, ""),
        ((("x", 0, "t", 0), ("t", 1, "y", 0)), BodyProofErrors.READ_BEFORE_WRITTEN, "t"),
        ((("x", 0, "t", 1), ("t", 0, "y", 0)), BodyProofErrors.READ_BEFORE_WRITTEN, "t"),
        ((("t", 0, "y", 0), ("x", 0, "t", 0)), BodyProofErrors.READ_BEFORE_WRITTEN, "t"),
        ((("x", 0, "y", 0), ("y", 0, "t", 0)), None, ""),
        ((("x", 0, "y", 0), ("y", 1, "t", 0)), BodyProofErrors.READ_BEFORE_WRITTEN, "y"),
        ((("x", 0, "x", 3),), BodyProofErrors.WRITES_READ_ONLY, "x"),
    ],
)
def test_what_is_read_has_been_written_by_the_steps_before(steps: Any, kind: ErrorKind | None, name: str) -> None:
    def proved() -> BodyFacts:
        return facts(*PAIR, locals=(Local("t", (6,), "f32"),), steps=_copies(*steps))

    if kind:
        with raises(kind, name=name):
            proved()
        return
    assert not proved().uses["y"].complete


def test_rows_are_updated_where_all_are_there_before() -> None:
    slots = (read("row", (2,), "i64"), read("active", (2,), "i1"), read("new", (2, 1, 1, 4)))
    step, shape = UpdateRows("rows", "new", "row", "active"), (2, 1, 3, 4)
    fill = Vector(shape, (whole_access("given", 4),), whole_access("rows", 4), (), "in0")
    source = read("given", shape)
    updated = facts(update("rows", shape), *slots, steps=(step,))
    assert (updated.uses["rows"].stored, updated.uses["rows"].complete) == (True, False)
    with raises(BodyProofErrors.UPDATES_UNDEFINED, name="rows", access="write"):
        facts(write("rows", shape), *slots, steps=(step,))
    assert facts(write("rows", shape), source, *slots, steps=(fill, step)).uses["rows"].complete
    local = Local("rows", shape, "f32")
    with raises(BodyProofErrors.UPDATES_UNWRITTEN_LOCAL, name="rows"):
        facts(*slots, locals=(local,), steps=(step,))
    facts(source, *slots, locals=(local,), steps=(fill, step))
    with raises(BodyProofErrors.WRITES_READ_ONLY, name="rows"):
        facts(read("rows", shape), *slots, steps=(step,))


def test_what_is_written_in_part_may_be_read_as_far_as_it_goes() -> None:
    """The pooled scores beyond the length are left undefined, and the selection does not look at them."""
    pool, select = Pool("s", "p", "n", 3, "avg"), Select("p", "i", "n", "top", 1, 1)
    params, local = (read("s", (2, 9)), write("i", (2, 3), "i64")), Local("p", (2, 9), "f32")
    facts(*params, locals=(local,), steps=(pool, select), scalars=("n", "top"))
    for steps in ((select,), (select, pool)):
        with raises(BodyProofErrors.READ_BEFORE_WRITTEN, name="p"):
            facts(*params, locals=(local,), steps=steps, scalars=("n", "top"))


# ------------------------------------------------------------------------------------------------- names and windows


def test_names_stand_for_one_thing() -> None:
    local, window = Local("t", (6,), "f32"), Window("w", View("x", (6,), (1,)))
    facts(*PAIR, steps=(COPY,), scalars=("s",), locals=(local,), windows=(window,))
    for name in ("x", "s"):
        with raises(BodyProofErrors.NAME_TWICE, where="body 'body'", name=name):
            facts(*PAIR, steps=(COPY,), scalars=("s",), locals=(dataclasses.replace(local, name=name),))
        with raises(BodyProofErrors.NAME_TWICE, name=name):
            facts(*PAIR, steps=(COPY,), scalars=("s",), windows=(dataclasses.replace(window, name=name),))
        with raises(BodyProofErrors.NAME_TWICE, name=name):
            facts(*PAIR, read(name, (1,)), steps=(COPY,), scalars=("s",))
    step = dataclasses.replace(COPY, output=whole_access("w", 1))
    with raises(BodyProofErrors.UNKNOWN_NAME, name="w"):
        prove_body(Body("body", PAIR, (), (), (), (step,), "model.py:3"), Limits())


def test_a_window_is_of_a_parameter_or_a_local_and_asks_for_a_dense_parameter() -> None:
    part, whole = Window("p", View("x", (3,), (1,), 3)), Window("w", View("t", (2, 3), (3, 1)))
    local, still = Local("t", (6,), "f32"), Window("z", View("x", (2, 4), (0, 1), 2))
    body_facts = facts(*PAIR, steps=(COPY,), locals=(local,), windows=(part, whole, still))
    assert body_facts.dense == {"x"}
    assert facts(*PAIR, steps=(COPY,), locals=(local,), windows=(whole,)).dense == frozenset()
    with raises(BodyProofErrors.WINDOW_OF_NOTHING, window="of", tensor="p"):
        facts(*PAIR, steps=(COPY,), windows=(part, Window("of", View("p", (1,), (1,)))))
    for view, kind, fields in (
        (View("x", (2, 3), (1, 2)), None, {}), (
            View("x", (2, 3), (2, 2)), BodyProofErrors.WINDOW_OUT_OF_RANGE,
            {"low": 0, "high": 6, "tensor": "x", "elements": 6},
        ),
        (View("x", (1,), (9,), 5), None, {}), (
            View("x", (1,), (9,), 6), BodyProofErrors.WINDOW_OUT_OF_RANGE,
            {"low": 6, "high": 6, "tensor": "x", "elements": 6},
        ),
        (View("x", (1,), (1,), 1 << 48), NumberProofErrors.TOO_LARGE, {"subject": "window 'p'"}),
    ):  # fmt: skip
        if kind:
            with raises(kind, **fields):
                facts(*PAIR, steps=(COPY,), windows=(Window("p", view),))
        else:
            facts(*PAIR, steps=(COPY,), windows=(Window("p", view),))


def test_a_window_shows_its_elements_of_the_parameter() -> None:
    """Columns of a matrix, written one after the other through windows."""
    columns = tuple(Window(f"c{n}", View("y", (2,), (3,), n)) for n in range(3))
    steps = tuple(
        Vector((2,), (whole_access("x", 1),), whole_access(column.name, 1), (), "in0") for column in columns
    )  # fmt: skip
    params = (read("x", (2,)), write("y", (6,)))
    assert facts(*params, windows=columns, steps=steps).uses["y"].complete
    assert not facts(*params, windows=columns, steps=steps[:2]).uses["y"].complete
    moved = Access("c1", ((-1, 1),))
    turned = (steps[0], dataclasses.replace(steps[1], output=moved), steps[2])
    assert facts(*params, windows=columns, steps=turned).uses["y"].complete
    swapped = Vector((2,), (whole_access("c0", 1),), moved, (), "in0")
    facts(params[0], update("y", (6,)), windows=columns, steps=(swapped,))
    with raises(BodyProofErrors.READS_WHAT_IT_WRITES, name="y"):
        facts(params[0], update("y", (6,)), windows=columns,
              steps=(dataclasses.replace(swapped, inputs=(whole_access("c1", 1),)),))  # fmt: skip


@pytest.mark.parametrize(
    ("step", "kind", "fields"),
    [
        (Vector((1,), (Access("x", ((0, 5),)),), Access("y", ((0, 0),)), (), "in0"), None, {}),
        (Vector((6, 1), (Access("x", ((1, 0, 0),)),), Access("y", ((1, 0, 0),)), (), "in0"), None, {}),
        (Vector((), (Access("x", ((0,),)),), Access("y", ((0,),)), (), "in0"), None, {}),
        (
            Vector((6, 2), (Access("x", ((1, 0, 0),)),), Access("y", ((1, 0, 0),)), (), "in0"),
            BodyProofErrors.IDLE_DIMENSION, {"size": 2},
        ),
        (Reduction((6,), (-1,), (whole_access("x", 1),), Access("y", ((0, 0),)), (), "in0", "addf", 0.0),
         BodyProofErrors.REDUCED_DIMENSIONS, {"reduce": [-1], "dims": [6]}),
        (Reduction((6,), (0,), (whole_access("x", 1),), Access("y", ((0, 0),)), (), "in0", "mulf", 0.0), None, {}),
        (Reduction((6,), (), (whole_access("x", 1),), whole_access("y", 1), (), "in0", "maximumf", 0.0), None, {}),
        (Reduction((6,), (0,), (whole_access("x", 1),), Access("z", ((0, 0),)), (), "in0", "addf", 0.0), None, {}),
        (Reduction((6,), (0,), (whole_access("x", 1),), Access("i", ((0, 0),)), (), "in0", "addf", 0.0),
         BodyProofErrors.OUTPUT_DTYPE, {"dtype": "float", "name": "i", "actual": "i64"}),
        (
            Vector((6,), (whole_access("x", 1),), whole_access("z", 1), (), "in0"), BodyProofErrors.OUTPUT_DTYPE,
            {"dtype": "f32", "name": "z", "actual": "bf16"},
        ),
        (
            Vector((6,), (whole_access("x", 1),), whole_access("z", 1), (op("truncf", "in0", type="bf16"),), "r"),
            None, {},
        ),
    ],
)  # fmt: skip
def test_what_an_affine_step_may_be(step: Any, kind: ErrorKind | None, fields: dict[str, Any]) -> None:
    params = (*PAIR, write("z", (6,), "bf16"), write("i", (6,), "i64"))
    if not kind:
        facts(*params, steps=(step,))
        return
    with raises(kind, **fields):
        facts(*params, steps=(step,))


def test_a_product_is_of_floats_into_floats() -> None:
    step = product_step("a", "b", "y", 2, 4, 3)
    uses = facts(read("a", (2, 3), "bf16"), read("b", (4, 3)), write("y", (2, 4), "bf16"), steps=(step,)).uses
    assert [(uses[name].stored, uses[name].complete) for name in "aby"] == [(False, False)] * 2 + [(True, True)]
    with raises(BodyProofErrors.OUTPUT_DTYPE, dtype="float", name="y", actual="i64"):
        facts(read("a", (2, 3)), read("b", (4, 3)), write("y", (2, 4), "i64"), steps=(step,))
    with raises(BodyProofErrors.PRODUCT_DTYPE, name="b"):
        facts(read("a", (2, 3)), read("b", (4, 3), "i8"), write("y", (2, 4)), steps=(step,))
