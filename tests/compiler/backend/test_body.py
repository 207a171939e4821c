"""Loop bodies as vector programs: which instructions come out, under which names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sscc.compiler.emit.body import BodyTranslator, LoopBodyErrors
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import Instr
from tests.errors import raises


@contextmanager
def body(arguments: str, work: str, names: dict[str, str] | None = None) -> Iterator[BodyTranslator]:
    """The body of a function with these arguments, bound as in0, in1, ..; `names` are kernel parameters by argument."""
    with mlir():
        result = work.rpartition(" : ")[2]
        module = parse_module(f"func.func @f({arguments}) -> {result} {{\n{work}\n}}", "the test")
        block = module.body.operations[0].entry_block
        declared = [item.split(":")[0].strip(" %") for item in arguments.split(", ") if item]
        outside = {block.arguments[declared.index(name)]: parameter for name, parameter in (names or {}).items()}
        body = BodyTranslator(block, outside, {})
        inputs = [argument for argument in block.arguments if argument not in outside]
        for index, argument in enumerate(inputs):
            body.bind(argument, f"in{index}")
        yield body


def program(arguments: str, work: str, names: dict[str, str] | None = None) -> tuple[tuple[Instr, ...], str]:
    with body(arguments, work, names) as lowered:
        return lowered.program_for(lowered.terminator.operands[0])


def test_instructions_are_named_as_in_mlir() -> None:
    work = "%0 = arith.addf %a, %b : f32\n%1 = math.exp %0 : f32\n%2 = arith.truncf %1 : f32 to bf16\nreturn %2 : bf16"
    assert program("%a: f32, %b: f32", work) == (
        (
            Instr("v0", "addf", ("in0", "in1"), "f32"),
            Instr("v1", "exp", ("v0",), "f32"),
            Instr("v2", "truncf", ("v1",), "bf16"),
        ),
        "v2",
    )


@pytest.mark.parametrize("predicate", ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "une", "uno"])
def test_float_comparisons(predicate: str) -> None:
    work = f"%0 = arith.cmpf {predicate}, %a, %b : f32\nreturn %0 : i1"
    assert program("%a: f32, %b: f32", work)[0] == (Instr("v0", f"cmpf_{predicate}", ("in0", "in1"), "i1"),)


@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"])
def test_integer_comparisons(predicate: str) -> None:
    work = f"%0 = arith.cmpi {predicate}, %a, %b : i64\nreturn %0 : i1"
    assert program("%a: i64, %b: i64", work)[0] == (Instr("v0", f"cmpi_{predicate}", ("in0", "in1"), "i1"),)


def test_constants_are_written_into_instructions() -> None:
    work = "%c = arith.constant 2.5 : f32\n%t = arith.constant true\n%0 = arith.mulf %a, %c : f32\n"
    work += "%1 = arith.select %t, %0, %a : f32\nreturn %1 : f32"
    instructions, _ = program("%a: f32", work)
    assert [i.args for i in instructions] == [("in0", 2.5), (1, "v0", "in0")]
    assert type(instructions[1].args[0]) is int


def test_an_input_may_be_the_result() -> None:
    assert program("%a: f32, %b: f32", "return %b : f32") == ((), "in1")


def test_a_literal_result() -> None:
    expected = ((Instr("literal", "const", (2.5,), "f32"),), "literal")
    assert program("%a: f32", "%c = arith.constant 2.5 : f32\nreturn %c : f32") == expected


def test_only_what_the_result_needs() -> None:
    work = "%0 = math.exp %a : f32\n%1 = math.tanh %a : f32\n%2 = arith.addf %1, %1 : f32\nreturn %2 : f32"
    instructions, result = program("%a: f32", work)
    assert [i.op for i in instructions] == ["tanh", "addf"]
    assert result == instructions[-1].name


def test_loads_and_indices() -> None:
    work = "%i = arith.index_cast %a : i64 to index\n%0 = tensor.extract %t[%i, %n] : tensor<7x4xf32>\nreturn %0 : f32"
    instructions, _ = program("%a: i64, %t: tensor<7x4xf32>, %n: index", work, {"t": "x1", "n": "x2"})
    assert instructions == (
        Instr("v0", "index_cast", ("in0",), "i64"),
        Instr("v1", "load", ("x1", "v0", "x2"), "f32"),
    )


@pytest.mark.parametrize(
    ("work", "factors"),
    [
        ("%0 = arith.mulf %a, %b : f32\nreturn %0 : f32", ("in0", "in1")),
        ("%0 = arith.mulf %b, %a : f32\nreturn %0 : f32", ("in1", "in0")),
        ("%0 = arith.addf %a, %b : f32\nreturn %0 : f32", None),
        ("%c = arith.constant 2.0 : f32\n%0 = arith.mulf %a, %c : f32\nreturn %0 : f32", None),
        ("%e = math.exp %a : f32\n%0 = arith.mulf %e, %b : f32\nreturn %0 : f32", None),
        ("return %a : f32", None),
    ],
)
def test_products(work: str, factors: tuple[str, str] | None) -> None:
    with body("%a: f32, %b: f32", work) as lowered:
        assert lowered.product_of(lowered.terminator.operands[0]) == factors


def test_a_product_of_widened_factors() -> None:
    work = "%x = arith.extf %a : bf16 to f32\n%0 = arith.mulf %x, %b : f32\nreturn %0 : f32"
    with body("%a: bf16, %b: f32", work) as lowered:
        assert lowered.product_of(lowered.terminator.operands[0]) == ("in0", "in1")


@pytest.mark.parametrize(
    ("arguments", "work", "kind", "fields"),
    [
        (
            "%a: vector<4xf32>",
            "%0 = vector.extract %a[0] : f32 from vector<4xf32>\nreturn %0 : f32",
            LoopBodyErrors.OPERATION, {"op": "vector.extract"},
        ),
        (
            "%a: f32", "%0 = arith.truncf %a : f32 to f8E5M2\nreturn %0 : f8E5M2", LoopBodyErrors.TYPE,
            {"type": "f8E5M2"},
        ),
        ("%a: i64", "%0 = arith.trunci %a : i64 to i7\nreturn %0 : i7", LoopBodyErrors.TYPE, {"type": "i7"}),
    ],
)
def test_refusals(arguments: str, work: str, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        program(arguments, work)


def test_a_value_from_outside_is_refused() -> None:
    with mlir():
        module = parse_module(
            "func.func @f(%a: f32) {\n%o = math.exp %a : f32\n%e = tensor.empty() : tensor<2xf32>\n"
            "%0 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = [\"parallel\"]} "
            "outs(%e : tensor<2xf32>) {\n^bb0(%x: f32):\n%1 = math.exp %o : f32\nlinalg.yield %1 : f32\n"
            "} -> tensor<2xf32>\nreturn\n}",
            "the test",
        )
        generic = module.body.operations[0].entry_block.operations[2]
        lowered = BodyTranslator(generic.operation.regions[0].blocks[0], {}, {})
        with raises(LoopBodyErrors.READ_FROM_OUTSIDE, type="f32"):
            lowered.program_for(lowered.terminator.operands[0])
