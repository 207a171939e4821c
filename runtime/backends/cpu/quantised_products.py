"""Products with weights of 8 and 4 bits: out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

The row a[m, :] becomes integers of 16 bits, per group x[k] = round(a[k] / s), s = max |a[k]| / 32639, and each of them
256 * high + low with both parts in -128 .. 127. Sums of codes times parts are exact; a group adds

    (256 * sum((code - zero) * high) + sum((code - zero) * low)) * (s * scale)

to a chain of f32 in ascending order of the groups, each operation rounded (the last addition fused with its product).
With minimums, zero is 0, and a group then adds (256 * sum(high) + sum(low)) * s * minimum, in the same way.
So a product differs from one with the dequantised weights by the rounding of x, a few 1e-5 of the result's norm, and
its bits are the same on every CPU, for every number of rows, and in every range of n.

Where sums of codes times whole integers fit i32 for sure, as they do in groups of up to 256, the parts may be summed as
one integer: both sums are exact in f32 then, so that 256 times one plus the other is the same number rounded once.

Packed rows, in blocks of R = 1, 2, 4 or 8 rows, per group: s as f32 [R]; minus the sums of each part as i32 [R] (times
the fixed zero where there are no zero points or minimums); then the parts, as `RowForm` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sscc.runtime.backends.cpu.features import LANES, Features
from sscc.runtime.backends.cpu.figures import AHEAD_BYTES, LINE, QUANTISED_TILE_ROWS
from sscc.runtime.backends.cpu.mlir import BF16, F16, F32, I8, I16, I32, I64, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.phases import Operand
from sscc.runtime.backends.cpu.product_blocks import (
    Blocks,
    PackedProduct,
    Tile,
    check_operands,
    rounded,
    row_count,
)
from sscc.runtime.backends.cpu.quantised_packing import QUAD, QuantisedPanels
from sscc.runtime.backends.cpu.quantised_rows import WORDS, RowForm, pack_block, sum_pairs

_EXACT_K = 512  # 255 * 128 * 512 < 2**24: so many products of a code and a part have an exact sum in f32
_LANES32 = vector(I32, LANES)
_SIGNS = -0x7F7F7F80  # 0x80808080: what makes bytes that are 128 too large signed ones
AddGroup = Callable[[Function, Tile, Value, Value, Sequence[Value]], list[Value]]


def quantised_product(
    a: Operand, out: Operand, panels: QuantisedPanels, features: Features, rows: int = 0
) -> PackedProduct:
    """As `products.packed_product`."""
    check_operands(a, panels.n, panels.k, out)
    form = RowForm.of(panels, features)
    base = "z" if panels.zero_point else "m" if panels.minimum else ""
    name = f"product_int{panels.bits}g{panels.group}{base}_{panels.scale_dtype}_{form.name}"
    add = partial(_add_group, panels, form)
    make = group_kernel(name, lambda rows: form.group_bytes(rows, panels.quads), panels, add)
    pack = partial(pack_block, a.dtype, form, panels.group % (2 * LANES) == 0)
    depths = (panels.groups, panels.group, panels.quads, 1 if base else panels.offset)
    blocks = _blocks(a, panels, features, rows)
    return PackedProduct(a, out, panels.panel_bytes, panels.groups, blocks, name, make, pack, depths)


def listed_rows(panels: QuantisedPanels, features: Features) -> list[int]:
    """As `products.listed_rows`."""
    return [tile.rows for tile in reversed(_tiles(RowForm.of(panels, features), features))]


def _blocks(a: Operand, panels: QuantisedPanels, features: Features, block: int) -> Blocks:
    m, form = row_count(a), RowForm.of(panels, features)
    tile = next(tile for tile in _tiles(form, features) if tile.rows <= (block or m))
    return Blocks(m, tile, panels.groups * form.group_bytes(tile.rows, panels.quads))


def _tiles(form: RowForm, features: Features) -> list[Tile]:
    """From the largest on: a panel at a time, because memory is fastest as one stream; where there is more arithmetic
    per byte, as there is by pairs even with one row, weights are asked for ahead of time."""
    most = QUANTISED_TILE_ROWS[form.kind] // (1 if features.wide_registers else 4 if form.signed else 2)
    if form.kind == "pairs":
        most //= form.parts
    return [Tile(rows, 1, prefetch=rows >= 4 or form.kind == "pairs") for rows in (8, 4, 2, 1) if rows <= most]


def group_kernel(
    name: str, block_group_bytes: Callable[[int], int], panels: QuantisedPanels, add: AddGroup
) -> Callable[[Module, Tile, str], Function]:
    """The kernel of a tile of one panel, out[rows, 16], which goes over the groups of the summed dimension
    (`PackedProduct.make`).

    Args:
        name: without tile and dtype.
        block_group_bytes: of a group in a packed block of so many rows.
        add: the sums, f32 [16] for each row, after a group; its arguments are the function, the tile, pointers to the
            group's packed rows and to its weights, and the sums before it.
    """

    def make(module: Module, tile: Tile, dtype: str) -> Function:
        full_name = f"{name}_{tile.rows}x1_{dtype}"
        if module.has(full_name):
            return module.get(full_name)
        params = [("a", PTR), ("weights", PTR), ("panel_bytes", I64), ("units", I64), ("out", PTR), ("row_bytes", I64)]
        f = module.function(full_name, params)
        with f.loop(0, f["units"], 1, [f.splat(0.0)] * tile.rows) as group:
            a = f["a"] + group.index * block_group_bytes(tile.rows)
            weights = f["weights"] + group.index * panels.group_bytes
            group.carry(*add(f, tile, a, weights, group.state))
        for row, value in enumerate(group.results):
            f.store(rounded(f, value, dtype), f["out"] + f["row_bytes"] * row)
        f.returns()
        return f

    return make


def _add_group(
    panels: QuantisedPanels, form: RowForm, f: Function, tile: Tile, a: Value, weights: Value, state: Sequence[Value]
) -> list[Value]:
    """The sums of the rows of a tile after a group."""
    sums = _corrections(f, panels, form, tile.rows, a, weights)
    lines = weights + panels.head_bytes
    numbers = a + form.head_bytes * tile.rows
    match form.kind:
        case "dot":
            sums = _dot_lines(f, panels, form, tile, numbers, lines, sums)
        case "pairs":
            sums = _pair_lines(f, panels, form, tile, numbers, lines, sums)
        case "plain":
            sums = _plain_lines(f, panels, tile, numbers, lines, sums)
    scales = load_scales(f, panels, weights)
    added = []
    for row, before in enumerate(state):
        step = f.broadcast(f.load(a + 4 * row, F32), LANES) * scales
        added.append(f.fma(_joined(f, sums[form.parts * row : form.parts * (row + 1)]), step, before))
    return _with_minimums(f, panels, form, a, weights, added) if panels.minimum else added


def _joined(f: Function, parts: Sequence[Value]) -> Value:
    """The sum that a high part and a low one stand for, or that of whole integers, as f32."""
    high, *low = (f.cast("arith.sitofp", part, F32) for part in parts)
    return f.fma(high, f.like(256.0, high), low[0]) if low else high


# The sums of a tile are in the order of its rows, and each row has one for each part.


def _corrections(
    f: Function, panels: QuantisedPanels, form: RowForm, rows: int, a: Value, weights: Value
) -> list[Value]:
    """What zero points add to the sums of a group."""
    from_zero = form.signed and panels.bits == 8  # codes are the values themselves, not 128 more
    if panels.minimum or (from_zero and not panels.zero_point):
        return [f.splat(0, LANES, I32)] * (form.parts * rows)
    loads = [f.load(a + 4 * (rows * (1 + part) + row), I32) for row in range(rows) for part in range(form.parts)]
    spread = [f.broadcast(value, LANES) for value in loads]
    if not panels.zero_point:
        return spread
    zeros = f.cast("arith.extsi", f.load(weights + panels.scale_bytes * LANES, vector(I8, LANES)), I32)
    if panels.bits == 8 and not from_zero:
        zeros = zeros + panels.offset
    return [value * zeros for value in spread]


def load_scales(f: Function, panels: QuantisedPanels, pointer: Value) -> Value:
    """16 scales or minimums, widened."""
    stored = {"bf16": BF16, "f16": F16, "f32": F32}[panels.scale_dtype]
    raw = f.load(pointer, vector(I16 if panels.scale_bytes == 2 else F32, LANES))
    return f.widen(f.bitcast(raw, vector(stored, LANES)) if panels.scale_bytes == 2 else raw)


def _with_minimums(
    f: Function, panels: QuantisedPanels, form: RowForm, a: Value, weights: Value, sums: Sequence[Value]
) -> list[Value]:
    """The sums of rows with what the minimums of a group add to them."""
    minimums, rows = load_scales(f, panels, weights + panels.scale_bytes * LANES), len(sums)
    added = []
    for row, state in enumerate(sums):
        loads = [f.load(a + 4 * (rows * (1 + part) + row), I32) for part in range(form.parts)]
        below = _joined(f, loads) * f.load(a + 4 * row, F32)  # minus the sum of the group
        added.append(f.fma(f.broadcast(0.0 - below, LANES), minimums, state))
    return added


def _halves(f: Function, panels: QuantisedPanels, line: Value) -> list[Value]:
    """The quads of a line: unsigned bytes [16][4] as i32 [16]."""
    codes = f.load(line, _LANES32)
    return [codes] if panels.bits == 8 else [codes & 0x0F0F0F0F, (codes >> 4) & 0x0F0F0F0F]


def _dot_lines(
    f: Function, panels: QuantisedPanels, form: RowForm, tile: Tile, a: Value, lines: Value, sums: Sequence[Value]
) -> list[Value]:
    """The sums after all lines of a group, by products of quads of bytes."""
    rows = tile.rows
    # Partial sums of each sum: with few rows, each would wait for its last addition. Arm has a quarter of a vector in a
    # register, and so four times as many sums.
    chains = 2 if rows <= (1 if form.signed else 2) else 1
    halves = panels.line_k // QUAD
    unroll = 2 if panels.lines % 2 == 0 else 1
    state = [*sums, *[f.splat(0, LANES, I32)] * (len(sums) * (chains - 1))]
    with f.loop(0, panels.lines, unroll, state) as loop:
        current = list(loop.state)
        for u in range(unroll):
            line = lines + (loop.index + u) * LINE
            if tile.prefetch:
                f.prefetch(line + AHEAD_BYTES)
            for half, unsigned in enumerate(_halves(f, panels, line)):
                codes = unsigned ^ _SIGNS if form.signed and panels.bits == 8 else unsigned
                number = u * halves + half
                quad = a + (loop.index * halves + number) * (8 * rows)
                for unit in range(2 * rows):
                    row, part = divmod(unit, 2)
                    parts = f.broadcast(f.load(quad + 4 * (part * rows + row), I32), LANES)
                    at = number % chains * len(sums) + unit
                    current[at] = form.sum_quads(f, current[at], codes, parts)
        loop.carry(*current)
    totals = loop.results
    return [sum(totals[i + len(sums) :: len(sums)], totals[i]) for i in range(len(sums))]


def _pair_lines(
    f: Function, panels: QuantisedPanels, form: RowForm, tile: Tile, a: Value, lines: Value, sums: Sequence[Value]
) -> list[Value]:
    """The sums after all lines of a group, by products of pairs of words. Codes are words once every other byte is
    masked: of four neighbours, numbers 0 and 2, then 1 and 3."""
    rows, unroll = tile.rows, 2 if panels.lines % 2 == 0 else 1
    shifts = [4 * half for half in range(panels.line_k // QUAD)]
    with f.loop(0, panels.lines, unroll, sums) as loop:
        current = list(loop.state)
        for u in range(unroll):
            line = lines + (loop.index + u) * LINE
            if tile.prefetch:
                f.prefetch(line + AHEAD_BYTES)
            words = f.load(line, WORDS)
            for half, shift in enumerate(shifts):
                quad = a + ((loop.index + u) * len(shifts) + half) * (form.quad_bytes * rows)
                codes = [(words >> (shift + 8 * odd)) & (2**panels.bits - 1) for odd in range(2)]
                for unit in range(form.parts * rows):
                    row, part = divmod(unit, form.parts)
                    products = []
                    for odd, code in enumerate(codes):
                        at = quad + 4 * ((odd * form.parts + part) * rows + row)
                        pair = f.bitcast(f.broadcast(f.load(at, I32), LANES), WORDS)
                        products.append(sum_pairs(f, form.bits, code, pair))
                    current[unit] = current[unit] + (products[0] + products[1])
        loop.carry(*current)
    return loop.results


def _plain_lines(
    f: Function, panels: QuantisedPanels, tile: Tile, a: Value, lines: Value, sums: Sequence[Value]
) -> list[Value]:
    """The sums after all lines of a group, in f32 as long as that is exact."""
    rows = tile.rows
    most = min(panels.lines, _EXACT_K // panels.line_k)
    span = next(n for n in range(most, 0, -1) if panels.lines % n == 0)
    halves = panels.line_k // QUAD
    with f.loop(0, panels.lines, span, sums) as outer:
        with f.loop(outer.index, outer.index + span, 1, [f.splat(0.0)] * len(sums)) as loop:
            current = list(loop.state)
            for half, codes in enumerate(_halves(f, panels, lines + loop.index * LINE)):
                for byte in range(QUAD):
                    code = f.cast("arith.sitofp", (codes >> (8 * byte)) & 255, F32)
                    at = a + ((loop.index * halves + half) * QUAD + byte) * (8 * rows)
                    for unit in range(2 * rows):
                        row, part = divmod(unit, 2)
                        value = f.broadcast(f.load(at + 4 * (part * rows + row), F32), LANES)
                        current[unit] = f.fma(code, value, current[unit])
            loop.carry(*current)
        exact = [f.cast("arith.fptosi", value, I32) for value in loop.results]
        outer.carry(*(total + more for total, more in zip(outer.state, exact, strict=True)))
    return outer.results
