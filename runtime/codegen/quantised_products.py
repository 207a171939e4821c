"""Products with weights of 8 and 4 bits: out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

The row a[m, :] becomes integers of 16 bits, per group x[k] = round(a[k] / s), s = max |a[k]| / 32639, and each of them
256 * high + low with both parts in -128 .. 127. Sums of codes times parts are exact; a group adds

    (256 * sum((code - zero) * high) + sum((code - zero) * low)) * (s * scale)

to a chain of f32 in ascending order of the groups, each operation rounded (the last addition fused with its product).
So a product differs from one with the dequantised weights by the rounding of x, a few 1e-5 of the result's norm, and
its bits are the same on every CPU, for every number of rows, and in every range of n.

Packed rows, in blocks of R rows, per group: s as f32 [R]; minus the sums of the high parts, then of the low ones, as
i32 [R] each (times the fixed zero where there are no zero points); then the parts, the high ones first, with
AVX512_VNNI as bytes [K / 4][2][R][4], without as f32 [K / 4][4][2][R].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sscc.runtime.codegen.features import LANES, Features
from sscc.runtime.codegen.mlir import F32, I8, I16, I32, I64, PTR, Function, Module, Value, vector
from sscc.runtime.codegen.packing import LINE
from sscc.runtime.codegen.phases import Operand
from sscc.runtime.codegen.product_blocks import (
    SIZE,
    STORED,
    Blocks,
    Kernels,
    Tile,
    Weights,
    check_operands,
    emit_blocks,
    even_rows,
    rounded,
    row_address,
    row_count,
)
from sscc.runtime.codegen.product_kernels import wide_registers
from sscc.runtime.codegen.quantised_packing import QUAD, QuantisedPanels
from sscc.runtime.codegen.transposition import store_columns

_LARGEST = 127 * 256 + 127
_SMALLEST_SCALED = 1e-30  # rows whose largest magnitude is less count as zeros
_EXACT_K = 512  # 255 * 128 * 512 < 2**24: so many products of a code and a part have an exact sum in f32
_LANES32, _LANESF, _BYTES = vector(I32, LANES), vector(F32, LANES), vector(I8, LINE)


def quantised_scratch_bytes(a: Operand, panels: QuantisedPanels, out: Operand, features: Features) -> int:
    """Bytes of scratch that `emit_quantised_product` wants; the operands' pointers are not looked at."""
    return _blocks(a, panels, features).scratch_bytes(out.dtype)


def emit_quantised_product(
    f: Function,
    a: Operand,
    weights: Value,
    panels: QuantisedPanels,
    out: Operand,
    begin: Value | int,
    end: Value | int,
    scratch: Value,
    features: Features,
) -> None:
    """As `products.emit_product`, with scratch of `quantised_scratch_bytes`.

    Raises:
        InternalError: for operands of other shapes, dtypes or strides.
    """
    check_operands(a, panels.n, panels.k, out)
    dot = features.int8_dot
    name = f"product_int{panels.bits}g{panels.group}{'z' if panels.zero_point else ''}_{'dot' if dot else 'plain'}"
    pack = partial(_pack_block, a.dtype, dot, panels.group % (2 * LANES) == 0)
    depths = (panels.groups, panels.group, panels.quads, 1 if panels.zero_point else panels.offset)
    kernels = Kernels(name, partial(_kernel, name, panels, dot), pack, depths)
    packed = Weights(weights, panels.panel_bytes, panels.groups)
    emit_blocks(f, a, packed, out, (begin, end), scratch, _blocks(a, panels, features), kernels)


def _blocks(a: Operand, panels: QuantisedPanels, features: Features) -> Blocks:
    m = row_count(a)
    most = 8 if features.int8_dot else 4 if wide_registers(features) else 2
    rows = even_rows(m, most)
    return Blocks(m, Tile(rows, 1), panels.groups * _group_bytes(rows, panels.quads, features.int8_dot))


def _group_bytes(rows: int, quads: int, dot: bool) -> int:
    """Bytes of a group of a packed block."""
    return rows * (12 + quads * (8 if dot else 32))


# ---------------------------------------------------------------------------------------------- packing of rows


def _pack_block(dtype: str, dot: bool, whole: bool, module: Module, rows: int) -> Function:
    """Rows first .. first + rows - 1 as kernels read them, as a private function; `whole`: groups are multiples of
    32."""
    name = f"product_quantise_{dtype}_{'dot' if dot else 'plain'}{'_whole' if whole else ''}_{rows}"
    if module.has(name):
        return module.get(name)
    integers = ("count", "inner", "outer", "first", "groups", "group", "quads", "zero")
    f = module.function(name, [("a", PTR), *((n, I64) for n in integers), ("out", PTR)])
    sources = [row_address(f["a"], f["first"] + r, f["count"], f["inner"], f["outer"]) for r in range(rows)]
    group_bytes = (f["quads"] * (8 if dot else 32) + 12) * rows
    zero = f.cast("arith.trunci", f["zero"], I32)
    with f.loop(0, f["groups"]) as group:
        head = f["out"] + group.index * group_bytes
        starts = [source + group.index * (f["group"] * SIZE[dtype]) for source in sources]
        largest = [_largest(f, start, dtype, whole) for start in starts]
        inverses = [f.select(value > _SMALLEST_SCALED, f.constant(_LARGEST, F32) / value, 0.0) for value in largest]
        # What the last lanes write beyond a group is written again by the group that follows.
        sums = _split_rows(f, starts, dtype, whole, inverses, head + 12 * rows, dot)
        for row in range(rows):
            f.store(largest[row] * (1.0 / _LARGEST), head + 4 * row)
            for part in range(2):
                total = f.reduce("add", sums[2 * row + part]) * zero
                f.store(0 - total, head + 4 * (rows * (part + 1) + row))
    f.returns()
    return f


def _load(f: Function, start: Value, dtype: str, first: Value, whole: bool) -> Value:
    """16 elements of a group from the first on, widened, zeros beyond the group."""
    type, pointer = vector(STORED[dtype], LANES), start + first * SIZE[dtype]
    if whole:
        return f.widen(f.load(pointer, type))
    return f.widen(f.load_masked(pointer, f.first_lanes(f.min(f["group"] - first, LANES)), type))


def _largest(f: Function, start: Value, dtype: str, whole: bool) -> Value:
    """The largest magnitude of a group."""
    with f.loop(0, f["group"], LANES, [f.splat(0.0)]) as loop:
        magnitude = f.op("math.absf", [_load(f, start, dtype, loop.index, whole)], _LANESF)
        loop.carry(f.max(loop.state[0], magnitude))
    return f.reduce("maximumf", loop.results[0])


def _split_rows(
    f: Function, starts: Sequence[Value], dtype: str, whole: bool, inverses: Sequence[Value], out: Value, dot: bool
) -> list[Value]:
    """Writes the parts of a group of all rows; returns the sums of high and low ones of each row, per lane."""
    rows = len(starts)
    with f.loop(0, f["group"], 2 * LANES, [f.splat(0, LANES, I32)] * (2 * rows)) as loop:
        sums, columns = list(loop.state), []
        for row in range(rows):
            halves = []
            for half in range(2):
                scaled = _load(f, starts[row], dtype, loop.index + half * LANES, whole) * inverses[row]
                integer = f.cast("arith.fptosi", f.op("math.roundeven", [scaled], _LANESF), I32)
                low = f.binary("arith.shrsi", integer << 24, 24)
                high = f.binary("arith.shrsi", integer - low, 8)
                halves.append((high, low))
                sums[2 * row] = sums[2 * row] + high
                sums[2 * row + 1] = sums[2 * row + 1] + low
            columns.append((_as_quads if dot else _as_floats)(f, halves))
        at = out + loop.index * (rows * (2 if dot else 8))
        for number, column in enumerate(zip(*columns, strict=True)):
            store_columns(f, column, at + number * (LANES * 4 * rows))
        loop.carry(*sums)
    return loop.results


def _as_quads(f: Function, halves: Sequence[tuple[Value, Value]]) -> list[Value]:
    """The parts of 32 elements as bytes: quads as i32, each quad of high parts before that of low ones."""
    bytes = [f.cast("arith.trunci", part, I8) for high_low in halves for part in high_low]
    quads = [f.bitcast(part, vector(I32, LANES // QUAD)) for part in bytes]
    alternate = [quad + LANES // QUAD * part for quad in range(LANES // QUAD) for part in range(2)]
    pairs = [f.shuffle(quads[half], quads[half + 1], alternate) for half in (0, 2)]
    return [f.shuffle(pairs[0], pairs[1], range(LANES))]


def _as_floats(f: Function, halves: Sequence[tuple[Value, Value]]) -> list[Value]:
    """The parts of 32 elements as f32, each high one before the low one: 4 vectors."""
    found = []
    for high, low in halves:
        parts = [f.bitcast(f.cast("arith.sitofp", part, F32), _LANES32) for part in (high, low)]
        both = [lane // 2 + LANES * (lane % 2) for lane in range(2 * LANES)]
        found += [f.shuffle(*parts, both[:LANES]), f.shuffle(*parts, both[LANES:])]
    return found


# --------------------------------------------------------------------------------------------------- the kernels


def _kernel(name: str, panels: QuantisedPanels, dot: bool, module: Module, tile: Tile, dtype: str) -> Function:
    """out[rows, 16], as a private function of the module."""
    name = f"{name}_{tile.rows}x{tile.panels}_{dtype}"
    if module.has(name):
        return module.get(name)
    params = [("a", PTR), ("weights", PTR), ("panel_bytes", I64), ("units", I64), ("out", PTR), ("row_bytes", I64)]
    f = module.function(name, params)
    rows = tile.rows
    with f.loop(0, f["units"], 1, [f.splat(0.0)] * rows) as group:
        a = f["a"] + group.index * _group_bytes(rows, panels.quads, dot)
        weights = f["weights"] + group.index * panels.group_bytes
        sums = _corrections(f, panels, rows, a, weights)
        sums = (_dot_lines if dot else _plain_lines)(f, panels, rows, a + 12 * rows, weights + panels.head_bytes, sums)
        scales = f.widen(f.load(weights, vector(I16, LANES)))
        added = []
        for row in range(rows):
            high, low = (f.cast("arith.sitofp", s, F32) for s in sums[2 * row : 2 * row + 2])
            total = f.fma(high, 256.0, low)
            step = f.broadcast(f.load(a + 4 * row, F32), LANES) * scales
            added.append(f.fma(total, step, group.state[row]))
        group.carry(*added)
    for row, value in enumerate(group.results):
        f.store(rounded(f, value, dtype), f["out"] + f["row_bytes"] * row)
    f.returns()
    return f


def _corrections(f: Function, panels: QuantisedPanels, rows: int, a: Value, weights: Value) -> list[Value]:
    """What zero points add to the sums of a group: per row, to the high and to the low one."""
    loads = [f.load(a + 4 * (rows * (1 + part) + row), I32) for row in range(rows) for part in range(2)]
    spread = [f.broadcast(value, LANES) for value in loads]
    if not panels.zero_point:
        return spread
    zeros = f.cast("arith.extsi", f.load(weights + 2 * LANES, vector(I8, LANES)), I32)
    if panels.bits == 8:
        zeros = zeros + panels.offset
    return [value * zeros for value in spread]


def _halves(f: Function, panels: QuantisedPanels, line: Value) -> list[Value]:
    """The quads of a line: unsigned bytes [16][4] as i32 [16]."""
    codes = f.load(line, _LANES32)
    return [codes] if panels.bits == 8 else [codes & 0x0F0F0F0F, (codes >> 4) & 0x0F0F0F0F]


def _dot_lines(
    f: Function, panels: QuantisedPanels, rows: int, a: Value, lines: Value, sums: Sequence[Value]
) -> list[Value]:
    """The sums after all lines of a group, by AVX512_VNNI."""
    chains = 2 if rows <= 2 else 1  # of each sum, so that few rows need not wait for one
    halves = panels.line_k // QUAD
    unroll = 2 if panels.lines % 2 == 0 else 1
    state = [*sums, *[f.splat(0, LANES, I32)] * (len(sums) * (chains - 1))]
    with f.loop(0, panels.lines, unroll, state) as loop:
        current = list(loop.state)
        for u in range(unroll):
            line = lines + (loop.index + u) * LINE
            for half, codes in enumerate(_halves(f, panels, line)):
                number = u * halves + half
                quad = a + (loop.index * halves + number) * (8 * rows)
                for row in range(rows):
                    for part in range(2):
                        parts = f.broadcast(f.load(quad + 4 * (part * rows + row), I32), LANES)
                        at = number % chains * len(sums) + 2 * row + part
                        operands = [current[at], f.bitcast(codes, _BYTES), f.bitcast(parts, _BYTES)]
                        current[at] = f.intrinsic("llvm.x86.avx512.vpdpbusd.512", operands, _LANES32)
        loop.carry(*current)
    found = loop.results
    return [sum(found[i + len(sums) :: len(sums)], found[i]) for i in range(len(sums))]


def _plain_lines(
    f: Function, panels: QuantisedPanels, rows: int, a: Value, lines: Value, sums: Sequence[Value]
) -> list[Value]:
    """The sums after all lines of a group, in f32 as long as that is exact."""
    most = min(panels.lines, _EXACT_K // panels.line_k)
    span = next(n for n in range(most, 0, -1) if panels.lines % n == 0)
    halves = panels.line_k // QUAD
    with f.loop(0, panels.lines, span, sums) as outer:
        with f.loop(outer.index, outer.index + span, 1, [f.splat(0.0)] * len(sums)) as loop:
            current = list(loop.state)
            for half, codes in enumerate(_halves(f, panels, lines + loop.index * LINE)):
                for k in range(QUAD):
                    code = f.cast("arith.sitofp", (codes >> (8 * k)) & 255, F32)
                    at = a + ((loop.index * halves + half) * QUAD + k) * (8 * rows)
                    for row in range(rows):
                        for part in range(2):
                            value = f.broadcast(f.load(at + 4 * (part * rows + row), F32), LANES)
                            current[2 * row + part] = f.fma(code, value, current[2 * row + part])
            loop.carry(*current)
        exact = [f.cast("arith.fptosi", value, I32) for value in loop.results]
        outer.carry(*(total + more for total, more in zip(outer.state, exact, strict=True)))
    return outer.results
