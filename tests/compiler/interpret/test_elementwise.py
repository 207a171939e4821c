"""arith and math: rounding per operation, comparisons, integer division, conversions."""

from __future__ import annotations

import math

import pytest
import torch

from sscc.compiler.interpret.build import NotEvaluatedErrors
from sscc.compiler.interpret.elementwise import ElementwiseNotEvaluatedErrors, ElementwiseUndefinedErrors
from tests.compiler.interpret.functions import body, evaluate
from tests.errors import raises

NAN = float("nan")


def test_every_operation_rounds_to_its_own_type() -> None:
    text = """func.func @f(%x: tensor<3xbf16>, %y: tensor<3xbf16>, %z: tensor<3xbf16>)
        -> (tensor<3xbf16>, tensor<3xf32>) {
      %p = arith.mulf %x, %y : tensor<3xbf16>
      %s = arith.addf %p, %z : tensor<3xbf16>
      %xw = arith.extf %x : tensor<3xbf16> to tensor<3xf32>
      %yw = arith.extf %y : tensor<3xbf16> to tensor<3xf32>
      %w = arith.mulf %xw, %yw : tensor<3xf32>
      return %s, %w : tensor<3xbf16>, tensor<3xf32>
    }"""
    x, y, z = (torch.tensor(v, dtype=torch.bfloat16) for v in ([1.01, 3.0, -7.7], [1.7, 0.1, 2.2], [1e-3, 5.0, 0.3]))
    rounded, wide = evaluate(text, x, y, z)
    assert rounded.dtype is torch.bfloat16
    assert torch.equal(rounded, (x.float() * y.float()).bfloat16() + z)
    assert torch.equal(wide, x.float() * y.float())
    assert not torch.equal(rounded.float(), wide + z.float())


def test_in_f64_nothing_is_rounded() -> None:
    text = """func.func @f(%x: f32) -> f32 {
      %c = arith.constant 1.0e-12 : f64
      %t = arith.truncf %c : f64 to f32
      %s = arith.addf %x, %t : f32
      return %s : f32
    }"""
    (value,) = evaluate(text, torch.tensor(1.0, dtype=torch.float64), precision="f64")
    assert value.item() == 1.0 + 1e-12


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("eq", [0, 1, 0]),
        ("ne", [1, 0, 1]),
        ("slt", [1, 0, 0]),
        ("sle", [1, 1, 0]),
        ("sgt", [0, 0, 1]),
        ("sge", [0, 1, 1]),
        ("ult", [0, 0, 0]),
        ("ule", [0, 1, 0]),
        ("ugt", [1, 0, 1]),
        ("uge", [1, 1, 1]),
    ],
)
def test_integer_comparisons_signed_and_unsigned(predicate: str, expected: list[int]) -> None:
    text = f"""func.func @f(%x: tensor<3xi64>, %y: tensor<3xi64>) -> tensor<3xi1> {{
      %r = arith.cmpi {predicate}, %x, %y : tensor<3xi64>
      return %r : tensor<3xi1>
    }}"""
    (held,) = evaluate(text, torch.tensor([-1, 2, 5]), torch.tensor([1, 2, 3]))
    assert held.tolist() == [bool(bit) for bit in expected]


FLOAT_PREDICATES = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()


@pytest.mark.parametrize("predicate", FLOAT_PREDICATES)
def test_float_comparisons_with_and_without_nan(predicate: str) -> None:
    pairs = [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0), (NAN, 2.0), (2.0, NAN)]
    relations = {"eq": lambda a, b: a == b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
                 "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "ne": lambda a, b: a < b or a > b}  # fmt: skip

    def holds(a: float, b: float) -> bool:
        nan = math.isnan(a) or math.isnan(b)
        if predicate in ("false", "true"):
            return predicate == "true"
        if predicate in ("ord", "uno"):
            return nan == (predicate == "uno")
        return (predicate[0] == "u") if nan else relations[predicate[1:]](a, b)

    text = f"""func.func @f(%x: tensor<5xf32>, %y: tensor<5xf32>) -> tensor<5xi1> {{
      %r = arith.cmpf {predicate}, %x, %y : tensor<5xf32>
      return %r : tensor<5xi1>
    }}"""
    (result,) = evaluate(text, *(torch.tensor(side) for side in zip(*pairs, strict=True)))
    assert result.tolist() == [holds(a, b) for a, b in pairs]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("divsi", [3, -3, -3, 3]),
        ("floordivsi", [3, -4, -4, 3]),
        ("ceildivsi", [4, -3, -3, 4]),
        ("remsi", [1, -1, 1, -1]),
    ],
)
def test_integer_division_of_every_sign(name: str, expected: list[int]) -> None:
    operands = "tensor<4xi64>, tensor<4xi64>"
    text = body(f'"arith.{name}"()', operands, "tensor<4xi64>")
    (value,) = evaluate(text, torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2]))
    assert value.tolist() == expected


def test_division_by_zero_is_refused_with_its_place() -> None:
    text = body('"arith.divsi"()', "index, index", "index")
    with raises(ElementwiseUndefinedErrors.DIVIDES_BY_ZERO, op="arith.divsi"):
        evaluate(text, 1, 0)


@pytest.mark.parametrize(
    ("operation", "source", "target", "value", "expected"),
    [
        ("arith.extui", "i1", "i64", True, 1),
        ("arith.extsi", "i1", "i64", True, -1),
        ("arith.sitofp", "i1", "f32", True, -1.0),
        ("arith.uitofp", "i1", "f32", True, 1.0),
        ("arith.sitofp", "i64", "f32", -3, -3.0),
        ("arith.fptosi", "f32", "i64", -2.7, -2),
        ("arith.trunci", "i64", "i1", 6, False),
        ("arith.trunci", "i64", "i32", 2**32 + 5, 5),
        ("arith.truncf", "f64", "f32", 0.1, torch.tensor(0.1, dtype=torch.float32).item()),
    ],
)
def test_conversions(operation: str, source: str, target: str, value: float, expected: float) -> None:
    wide = torch.tensor(value, dtype=torch.float64) if source == "f64" else torch.tensor(value)
    (result,) = evaluate(body(f'"{operation}"()', source, target), wide)
    assert result.item() == expected


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("exp", torch.exp),
        ("rsqrt", torch.rsqrt),
        ("tanh", torch.tanh),
        ("erf", torch.erf),
        ("cos", torch.cos),
        ("log1p", torch.log1p),
        ("roundeven", torch.round),
    ],
)
def test_math_functions(name: str, function: object) -> None:
    x = torch.tensor([0.5, 1.5, 2.5])
    (result,) = evaluate(body(f'"math.{name}"()', "tensor<3xf32>", "tensor<3xf32>"), x)
    assert callable(function)
    assert torch.equal(result, function(x))


def test_round_goes_away_from_zero() -> None:
    (result,) = evaluate(body('"math.round"()', "tensor<4xf32>", "tensor<4xf32>"), torch.tensor([0.5, 2.5, -0.5, -2.4]))
    assert result.tolist() == [1.0, 3.0, -1.0, -2.0]


def test_constants_of_every_kind() -> None:
    text = """func.func @f() -> (tensor<2xf32>, tensor<2xi1>, tensor<2x2xbf16>, i1, f32, index) {
      %a = arith.constant dense<[1.0, 2.5]> : tensor<2xf32>
      %b = arith.constant dense<[true, false]> : tensor<2xi1>
      %c = arith.constant dense<3.0> : tensor<2x2xbf16>
      %d = arith.constant true
      %e = arith.constant 1.5 : f32
      %f = arith.constant 7 : index
      return %a, %b, %c, %d, %e, %f : tensor<2xf32>, tensor<2xi1>, tensor<2x2xbf16>, i1, f32, index
    }"""
    a, b, c, d, e, f = evaluate(text)
    assert a.tolist() == [1.0, 2.5]
    assert b.tolist() == [True, False]
    assert c.dtype is torch.bfloat16
    assert c.tolist() == [[3, 3], [3, 3]]
    assert (d.item(), e.item(), f.item()) == (True, 1.5, 7)


def test_literals_of_16_bit_floats_are_refused() -> None:
    text = """func.func @f() -> tensor<2xbf16> {
      %a = arith.constant dense<[1.0, 2.5]> : tensor<2xbf16>
      return %a : tensor<2xbf16>
    }"""
    with raises(ElementwiseNotEvaluatedErrors.LITERAL, op="arith.constant"):
        evaluate(text)


def test_arithmetic_on_single_bits_is_refused() -> None:
    with raises(ElementwiseNotEvaluatedErrors.ON_I1, op="arith.addi"):
        evaluate(body('"arith.addi"()', "i1, i1", "i1"), True, True)


def test_an_unknown_operation_is_refused_with_its_name_and_place() -> None:
    text = """func.func @f(%x: f32) -> f32 {
      %r = math.cbrt %x : f32 loc("model.layers.3")
      return %r : f32
    }"""
    with raises(NotEvaluatedErrors.UNKNOWN_OPERATION, origin="model.layers.3: ", op="math.cbrt"):
        evaluate(text, 1.0)


def test_a_type_without_values_is_refused() -> None:
    with raises(NotEvaluatedErrors.UNKNOWN_OPERATION):
        evaluate("""func.func @f() -> complex<f32> {
          %r = complex.constant [0.0 : f32, 1.0 : f32] : complex<f32>
          return %r : complex<f32>
        }""")
