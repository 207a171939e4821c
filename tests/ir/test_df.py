"""Attributes of the df dialect, and the permitted places of its operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_mlir import ir

from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.dialects import df
from sscc.ir.dialects.df import BufferPlace, buffers_of, is_stage, set_buffers, stage_name
from sscc.ir.errors import InputError
from sscc.ir.levels import LEGAL_DIALECTS, LevelErrors, check_legal, walk
from tests.errors import raises

TEXT = """func.func private @body.exp(%x: tensor<2xf32>) -> tensor<2xf32> attributes {df.body} {
  %y = math.exp %x : tensor<2xf32>
  return %y : tensor<2xf32>
}
func.func private @other(%x: tensor<2xf32>) -> tensor<2xf32>
func.func @k(%x: tensor<2xf32>) -> tensor<2xf32> {
  %s = "df.load"(%x) {df.stage = "x"} : (tensor<2xf32>) -> tensor<2xf32>
  %y = func.call @body.exp(%s) {df.stage = "exp"} : (tensor<2xf32>) -> tensor<2xf32>
  %z = func.call @other(%y) : (tensor<2xf32>) -> tensor<2xf32>
  return %z : tensor<2xf32>
}
"""


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with mlir():
        yield parse_module(TEXT, "the test")


def op_of(module: ir.Module, name: str, number: int = 0) -> ir.Operation:
    return [op for op in walk(module) if op.name == name][number]


def test_stages_are_marked_calls(module: ir.Module) -> None:
    stage, plain, load = op_of(module, "func.call"), op_of(module, "func.call", 1), op_of(module, "df.load")
    assert [is_stage(op) for op in (stage, plain, load)] == [True, False, False]
    assert (stage_name(stage), stage_name(load)) == ("exp", "x")


def test_buffers_survive_printing(module: ir.Module) -> None:
    places = [BufferPlace(2, 4096), BufferPlace(0)]
    set_buffers(op_of(module, "df.load"), places)
    again = parse_module(print_module(module), "printed")
    assert buffers_of(op_of(again, "df.load")) == places
    assert BufferPlace(0).address == -1


@pytest.mark.parametrize(
    "text",
    [
        "[{address = 0 : i64}]",
        "[{address = 0 : i64, depth = 1 : i64, slots = 1 : i64}]",
        '[{address = "0", depth = 1 : i64}]',
        "[7 : i64]",
    ],
)
def test_damaged_buffers_are_refused(module: ir.Module, text: str) -> None:
    load = op_of(module, "df.load")
    load.attributes[df.BUFFERS] = ir.Attribute.parse(text)
    with pytest.raises(InputError):
        buffers_of(load)


@pytest.mark.parametrize("level", LEGAL_DIALECTS)
def test_loads_are_legal_from_the_fused_level_on(module: ir.Module, level: str) -> None:
    if level in ("fused", "placed"):
        check_legal(module, level)
        return
    first = "math.exp" if level == "import" else "df.load"
    with raises(LevelErrors.ILLEGAL_OPERATION, op=first, level=level):
        check_legal(module, level)
