"""Micro-kernels of products: a block of rows times a few panels of weights, over the whole of k.

Every kernel computes each output as one chain of additions, from zero, over the units of k in ascending order. So an
output's bits depend neither on its block nor on the other outputs of the call.

* `matrix`: bf16 times bf16, AMX_BF16, if k is a multiple of 32. A unit is two k, as in `dot`. The instruction adds the
  sum of 16 units; it sums even and odd k separately.
* `dot`: bf16 times bf16, AVX512_BF16. A unit is two k; the instruction sums a pair in its own order.
* `wide`: f32 times widened bf16; fused multiply-adds of the even k of a unit, then the odd one. Also used for bf16
  times bf16 on CPUs without such an instruction.
* `single`: f32 times f32; fused multiply-adds.

Rows of the left operand are *packed* in blocks of R rows. Each unit holds the k of all R rows side by side: pairs of
bf16 [units][R][2] in `dot`, f32 [units][2][R] in `wide`, f32 [units][R] in `single`, with a zero after an odd k. In
`matrix` the layout is [units / 16][R][16][2], a line for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import (
    ACCUMULATORS,
    AHEAD_UNITS,
    L1_ROWS_BYTES,
    LINE,
    LONG_UNITS,
    NARROW_TILE_ROWS,
    STREAMED_ROWS,
    WIDENING_ACCUMULATORS,
)
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I32, I64, PTR, TILE_ROW, Function, Module, Value, vector
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.product_blocks import SIZE, Tile, rounded

Kind = Literal["matrix", "dot", "wide", "single"]

_LANES32 = vector(I32, LANES)
_LANESF = vector(F32, LANES)
_PAIRS = vector(BF16, 2 * LANES)
_TILE_UNITS = LANES  # units of a tile register
_TILE = LANES * TILE_ROW  # bytes of a tile register
_ODD = -65536  # 0xffff0000


class ProductKernelErrors(ErrorKind):
    DTYPES = InternalError, "no product kernel multiplies {left} by {weights}"


def kind_of(a: str, panels: Panels, features: Features) -> Kind:
    """Return the kind of kernel for a left operand of dtype `a` and these weights."""
    if {a, panels.dtype} - {"bf16", "f32"}:
        raise ProductKernelErrors.DTYPES(left=a, weights=panels.dtype)
    if panels.dtype == "f32":
        return "single"
    if a == "bf16" and features.bf16_tiles and panels.units % _TILE_UNITS == 0:
        return "matrix"
    return "dot" if a == "bf16" and features.bf16_dot else "wide"


def unit_bytes(kind: Kind) -> int:
    """Bytes of a unit of one packed row."""
    return 8 if kind == "wide" else 4


def tile_for(rows: int, kind: Kind, units: int, features: Features) -> Tile:
    """Return the tile for blocks of `rows` rows, 1 .. `block_rows`, and panels of `units` units.

    A product of few rows is bound by memory. It is fastest as one stream, a panel at a time, while the block's rows
    stay in the L1 cache, with software prefetches, because the processor's prefetcher stops at the end of each page. A
    product of more rows is bound by arithmetic, which is fastest if it uses all registers.
    """
    if kind == "matrix":
        return Tile(rows, 2 if rows > LANES else 4)
    if not features.wide_registers:
        return Tile(rows, 2 if rows <= 2 else 1, 2, prefetch=True)
    if kind == "wide" and rows <= 4 and units >= LONG_UNITS:
        return Tile(rows, 4, 2, prefetch=True)  # one chain of two sums per unit is too slow
    if rows <= 3 or (rows <= STREAMED_ROWS and rows * units * unit_bytes(kind) <= L1_ROWS_BYTES):
        return Tile(rows, 1, 4 if rows <= 4 else 2, prefetch=True)
    return Tile(rows, max(2, min(3, _accumulators(kind) // rows)))


def block_rows(kind: Kind, features: Features) -> int:
    """Return the number of rows of the largest tile."""
    if kind == "matrix":
        return 2 * LANES
    if not features.wide_registers:
        return NARROW_TILE_ROWS
    return _accumulators(kind) // 2  # two panels


def _accumulators(kind: Kind) -> int:
    return WIDENING_ACCUMULATORS if kind == "wide" else ACCUMULATORS


def kernel(module: Module, kind: Kind, tile: Tile, dtype: str) -> Function:
    """Return the private function that computes out[rows, panels * 16] of one tile.

    Its parameters are the packed rows; the first panel; bytes of a panel; units; out (of `dtype`, columns dense); bytes
    between rows of out.
    """
    name = f"product_{kind}_{tile.rows}x{tile.panels}x{tile.unroll}_{dtype}"
    if module.has(name):
        return module.get(name)
    params = [("a", PTR), ("weights", PTR), ("panel_bytes", I64), ("units", I64), ("out", PTR), ("row_bytes", I64)]
    f = module.function(name, params)
    if kind == "matrix":
        _matrix(f, tile, dtype)
    else:
        for at, value in enumerate(_accumulate(f, kind, tile)):
            row, panel = divmod(at, tile.panels)
            f.store(rounded(f, value, dtype), f["out"] + f["row_bytes"] * row + panel * LANES * SIZE[dtype])
    f.returns()
    return f


def tile_rows(rows: int) -> tuple[int, ...]:
    """Return the row counts of the tile registers that `matrix` kernels use for blocks of `rows` rows.

    Up to 16 rows form one tile: registers 0 .. 3 hold sums of up to four panels, 4 holds rows, 5 .. 7 hold weights.
    More rows form two tiles: registers 0 and 1 hold the first half's sums for two panels, 2 and 3 those of the second
    half, 4 and 5 hold rows, 6 and 7 weights.
    """
    if rows <= LANES:
        return (*[rows] * 5, *[LANES] * 3)
    first = -(-rows // 2)
    return (first, first, rows - first, rows - first, first, rows - first, LANES, LANES)


def _matrix(f: Function, tile: Tile, dtype: str) -> None:
    """Emit the computation of a tile in tile registers, with rounding and stores."""
    registers = tile_rows(tile.rows)
    halves = [0] if tile.rows <= LANES else [0, registers[0]]  # first row of each half
    panels, left, right = range(tile.panels), 4, 4 + len(halves)
    sums = {(half, panel): half * 2 + panel for half in range(len(halves)) for panel in panels}
    memory = f.stack(left * _TILE)
    for register in sums.values():
        f.zero_tile(register)
    with f.loop(0, f["units"], _TILE_UNITS) as unit:
        for half, first in enumerate(halves):
            packed = f["a"] + (unit.index * (tile.rows * 4) + first * TILE_ROW)
            f.load_tile(left + half, packed, registers[left + half])
        for panel in panels:
            weights = right + panel % (8 - right)
            f.load_tile(weights, f["weights"] + (f["panel_bytes"] * panel + unit.index * LINE), LANES)
            for half in range(len(halves)):
                f.dot_tiles(sums[half, panel], left + half, weights)
    for register in sums.values():
        f.store_tile(register, memory + register * _TILE, registers[register])
    for half, first in enumerate(halves):
        with f.loop(0, registers[left + half]) as row:
            for panel in panels:
                where = memory + (row.index * TILE_ROW + sums[half, panel] * _TILE)
                out = f["out"] + ((row.index + first) * f["row_bytes"] + panel * LANES * SIZE[dtype])
                f.store(rounded(f, f.load(where, _LANESF), dtype), out)


def _accumulate(f: Function, kind: Kind, tile: Tile) -> list[Value]:
    """Return the sums of a tile, row-major over rows and panels."""
    panels = [f["weights"] + f["panel_bytes"] * p for p in range(tile.panels)]
    step = tile.rows * unit_bytes(kind)
    state = [f.splat(0.0)] * (tile.rows * tile.panels)
    main = f["units"] - f["units"] % tile.unroll
    for lower, upper, unroll in ((f.constant(0), main, tile.unroll), (main, f["units"], 1)):
        if unroll == 1 and tile.unroll == 1 and lower is main:
            break
        with f.loop(lower, upper, unroll, state) as loop:
            sums = list(loop.state)
            a = f["a"] + loop.index * step
            lines = [p + loop.index * LINE for p in panels]
            ahead = _ahead(f, loop.index, tile) if tile.prefetch else None
            for u in range(unroll):
                if ahead is not None:
                    for line in lines:
                        f.prefetch(line + ahead + u * LINE)
                sums = _unit(f, kind, tile, a + u * step, [line + u * LINE for line in lines], sums)
            loop.carry(*sums)
        state = loop.results
    return state


def _ahead(f: Function, unit: Value, tile: Tile) -> Value:
    """Return the distance in bytes from a panel's line to the one to prefetch: further on in the panel, or at the start
    of the corresponding panel of the next tile."""
    distance = f.constant(AHEAD_UNITS * LINE)
    return f.select(unit + AHEAD_UNITS < f["units"], distance, f["panel_bytes"] * (tile.panels - 1) + distance)


def _unit(f: Function, kind: Kind, tile: Tile, a: Value, lines: Sequence[Value], sums: list[Value]) -> list[Value]:
    """Return the sums after one more unit."""
    sums = list(sums)
    if kind == "dot":
        pairs = [f.load(line, _PAIRS) for line in lines]
        for row in range(tile.rows):
            left = f.bitcast(f.broadcast(f.load(a + 4 * row, I32), LANES), _PAIRS)
            for p, pair in enumerate(pairs):
                at = row * tile.panels + p
                sums[at] = f.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [sums[at], pair, left], _LANESF)
        return sums
    if kind == "single":
        parts = [[f.load(line, _LANESF) for line in lines]]
    else:
        raw = [f.load(line, _LANES32) for line in lines]
        parts = [[f.bitcast(r << 16, _LANESF) for r in raw], [f.bitcast(r & _ODD, _LANESF) for r in raw]]
    for part, weights in enumerate(parts):
        for row in range(tile.rows):
            left = f.broadcast(f.load(a + 4 * (part * tile.rows + row), F32), LANES)
            for p, w in enumerate(weights):
                at = row * tile.panels + p
                sums[at] = f.fma(w, left, sums[at])
    return sums
