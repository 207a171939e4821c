"""Products with weights of small floats (e4m3, f16): out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

out[m, n] = sum over the groups of (sum over k of a[m, k] * code[n, k]) * scale[n, group], all in f32. The even k of a
group form one chain of fused multiply-adds and the odd k another; the two sums are added. The product with the scale is
fused with the addition to the previous groups' sum. A block of floats without a scale is a group whose sum is added
unscaled. The bits of a result are therefore the same for every number of rows, and in every range of n.

Packed rows are those of products with f32 weights: blocks of R rows as f32 [K][R].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sscc.ir.weight_formats.fields import FLOAT_BYTES
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import AHEAD_BYTES, FLOAT8_TILE_ROWS, LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, Function, Value
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.codegen.programs import FLOAT8_FACTOR
from sscc.runtime.backends.cpu.products.panel_reading import BlockHeads, widened
from sscc.runtime.backends.cpu.products.product_blocks import (
    Blocks,
    PackedProduct,
    Tile,
    check_operands,
    row_count,
)
from sscc.runtime.backends.cpu.products.products import pack_block
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels
from sscc.runtime.backends.cpu.products.quantized_products import block_kernel, symbol_of

_CHAINS = 2
_LINES_AT_ONCE = {"e4m3": 1, "f16": 2}


def small_float_product(
    a: Operand, out: Operand, panels: QuantizedPanels, features: Features, rows: int = 0
) -> PackedProduct:
    """Return the product with small float weights; see `products.packed_product`."""
    check_operands(a, panels.n, panels.k, out)
    m = row_count(a)
    tile = next(tile for tile in _tiles(features) if tile.rows <= (rows or m))
    in_place = not rows and m == 1 and a.dtype == "f32"
    blocks = Blocks(m, tile, tile.rows * panels.k * 4, in_place)
    name = f"product_{symbol_of(panels)}"
    make = block_kernel(name, lambda rows: panels.group * rows * 4, panels, partial(_add_group, panels))
    pack = partial(pack_block, a.dtype, "single")
    form = f"{a.dtype} single"
    return PackedProduct(a, out, panels.panel_bytes, panels.blocks, blocks, name, make, pack, form, (panels.k,))


def listed_rows(features: Features) -> list[int]:
    """Return the block sizes for listed rows; see `products.listed_rows`."""
    return [tile.rows for tile in reversed(_tiles(features))]


def _tiles(features: Features) -> list[Tile]:
    """Return the tiles, largest first. A tile reads one panel at a time."""
    most = FLOAT8_TILE_ROWS // (1 if features.wide_registers else 4)
    return [Tile(rows, 1) for rows in (8, 4, 2, 1) if rows <= most]


def _add_group(
    panels: QuantizedPanels, f: Function, tile: Tile, a: Value, weights: Value, state: Sequence[Value]
) -> list[Value]:
    """Return the sums of the rows of a tile after a block, which is one group."""
    sums = _group_sums(f, panels, tile, a, weights + panels.layout.planes[0].offset)
    scales = BlockHeads(f, panels, weights).scales(0, 0)
    if scales is None:
        return [value + before for value, before in zip(sums, state, strict=True)]
    scales = scales * FLOAT8_FACTOR if panels.format.codes.kind == "e4m3" else scales
    return [f.fma(value, scales, before) for value, before in zip(sums, state, strict=True)]


def _group_sums(f: Function, panels: QuantizedPanels, tile: Tile, a: Value, lines: Value) -> list[Value]:
    """Return the sums of a group, not yet scaled, one per row."""
    rows, kind = tile.rows, panels.format.codes.kind
    per_line = LINE // (LANES * FLOAT_BYTES[kind])
    at_once = per_line * _LINES_AT_ONCE[kind]
    whole, rest = divmod(panels.group, at_once)
    with f.loop(0, whole, 1, [f.splat(0.0)] * (rows * _CHAINS)) as loop:
        line = lines + loop.index * (LINE * _LINES_AT_ONCE[kind])
        for number in range(_LINES_AT_ONCE[kind]):
            f.prefetch(line + (AHEAD_BYTES + number * LINE))
        part = a + loop.index * (at_once * rows * 4)
        loop.carry(*_add_numbers(f, kind, rows, at_once, part, line, list(loop.state)))
    sums = loop.results
    if rest:
        part, line = a + whole * at_once * rows * 4, lines + whole * LINE * _LINES_AT_ONCE[kind]
        sums = _add_numbers(f, kind, rows, rest, part, line, list(sums))
    return [sums[row] + sums[rows + row] for row in range(rows)]


def _add_numbers(
    f: Function, kind: str, rows: int, count: int, a: Value, weights: Value, sums: list[Value]
) -> list[Value]:
    """Return the sums after `count` k, whose weights begin at `weights`."""
    for k in range(count):
        numbers = widened(f, weights + k * (LANES * FLOAT_BYTES[kind]), kind)
        for row in range(rows):
            at = k % _CHAINS * rows + row
            left = f.broadcast(f.load(a + 4 * (k * rows + row), F32), LANES)
            sums[at] = f.fma(numbers, left, sums[at])
    return sums
