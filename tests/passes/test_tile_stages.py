"""Numbers of tiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sscc.ir.context import mlir, parse_module
from sscc.ir.dialects import df
from sscc.ir.levels import TILE_ROWS, LevelErrors, get_tile_rows, set_level, set_target, set_tile_rows, walk
from sscc.passes.base import run_passes
from sscc.passes.pass_pipeline import parse_pipeline
from sscc.runtime.backends.cpu.backend import Cpu
from sscc.runtime.backends.cpu.codegen.features import LANES
from tests.errors import raises
from tests.targets import changed

KERNEL = """
func.func private @k(%h: tensor<2x64xf32> {{sscc.input = "h"}}, %w: tensor<{rows}x64xf32> {{sscc.weight = "w"}})
    -> (tensor<2x{rows}xf32> {{sscc.output = "y"}}) attributes {{sscc.kernel}} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x{rows}xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x{rows}xf32>) -> tensor<2x{rows}xf32>
  %y = linalg.generic {{indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>,
      affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%h, %w : tensor<2x64xf32>, tensor<{rows}x64xf32>) outs(%z : tensor<2x{rows}xf32>) {{
    ^bb0(%a: f32, %b: f32, %c: f32):
      %p = arith.mulf %a, %b : f32
      %s = arith.addf %c, %p : f32
      linalg.yield %s : f32
  }} -> tensor<2x{rows}xf32>
  return %y : tensor<2x{rows}xf32>
}}
"""


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


def tiles(rows: int, wanted: int, together: int = LANES) -> int:
    """Tiles of a weight of `rows` rows, on a target on which `wanted` of them would expose the least.

    Args:
        together: rows that the backend packs together.
    """
    module = parse_module(KERNEL.format(rows=rows), "the test")
    set_level(module, "kernels")
    if together > 1:
        set_tile_rows(module, together)
    set_target(module, changed({"hbm.bandwidth": rows * 64 * 4 / wanted**2, "firing_seconds": 1}))
    run_passes(module, parse_pipeline("form-stages,tile-stages"))
    loops = [op for op in walk(module) if df.TILES in op.attributes]
    return int(loops[0].operands[1].owner.operation.attributes["value"].value) if loops else 1


@pytest.mark.parametrize(
    ("rows", "wanted", "found"),
    [
        (256, 4, 4),
        (256, 32, 16),  # 16 rows are the least
        (96, 4, 3),  # 24 rows would be half a vector beyond the first
        (96, 1, 1),
        (16 * 7, 4, 7),
        (16 * 2, 16, 16),  # two tiles would expose half of the load
        (16 * 101, 8, 8),  # 101 tiles would cost more than they save
        (16, 4, 4),  # no cut leaves whole vectors
        (40, 4, 4),  # nor here
    ],
)
def test_tiles_of_matrices_are_whole_vectors_of_rows_where_they_can_be(rows: int, wanted: int, found: int) -> None:
    assert tiles(rows, wanted) == found


def test_the_backend_says_what_tiles_are_multiples_of() -> None:
    assert [tiles(96, 4, together) for together in (1, 3, 16, 40)] == [4, 4, 3, 4]
    assert Cpu.tile_rows == LANES


@pytest.mark.parametrize("text", ["0 : i64", "-3 : i64", '"16"'])
def test_damaged_tile_rows(text: str) -> None:
    module = parse_module(f"module attributes {{{TILE_ROWS} = {text}}} {{}}", "the test")
    with raises(LevelErrors.DAMAGED, attribute=TILE_ROWS):
        get_tile_rows(module)
