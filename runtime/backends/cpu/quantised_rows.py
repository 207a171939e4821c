"""Rows of the left operand as the integers that products with weights of 8 and 4 bits sum (quantised_products.py)."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.runtime.backends.cpu.features import LANES
from sscc.runtime.backends.cpu.figures import LINE
from sscc.runtime.backends.cpu.mlir import F32, I8, I32, I64, PTR, Function, Module, Value, lanes_of, vector
from sscc.runtime.backends.cpu.product_blocks import SIZE, STORED, RowPlaces
from sscc.runtime.backends.cpu.quantised_packing import QUAD
from sscc.runtime.backends.cpu.transposition import interleave

LARGEST = 127 * 256 + 127
"""The largest magnitude of the integers: with it, both of their parts are signed bytes."""
_SMALLEST = 1e-30  # groups whose largest magnitude is less count as zeros
_LANES32, _LANESF, BYTES = vector(I32, LANES), vector(F32, LANES), vector(I8, LINE)


def group_bytes(rows: int, quads: int, dot: bool) -> int:
    """Bytes of a group of a packed block."""
    return rows * (12 + quads * (8 if dot else 32))


def sum_quads(f: Function, sums: Value, unsigned: Value, signed: Value) -> Value:
    """i32 lanes plus products of four unsigned and four signed bytes per lane, by AVX512_VNNI."""
    operands = [sums, f.bitcast(unsigned, BYTES), f.bitcast(signed, BYTES)]
    return f.intrinsic("llvm.x86.avx512.vpdpbusd.512", operands, _LANES32)


def pack_block(dtype: str, dot: bool, whole: bool, module: Module, rows: int, places: RowPlaces) -> Function:
    """Rows first .. first + rows - 1 as kernels read them, as a private function. `rows` is 1, 2, 4 or 8; `whole` says
    that groups are multiples of 32."""
    name = f"product_quantise_{dtype}_{'dot' if dot else 'plain'}{'_whole' if whole else ''}_{rows}{places.name}"
    if module.has(name):
        return module.get(name)
    integers = ("first", "groups", "group", "quads", "zero")
    f = module.function(name, [("a", PTR), *places.params, *((n, I64) for n in integers), ("out", PTR)])
    sources = [places.address(f, f["a"], f["first"] + r) for r in range(rows)]
    step = (f["quads"] * (8 if dot else 32) + 12) * rows
    zero = f.cast("arith.trunci", f["zero"], I32)
    with f.loop(0, f["groups"]) as group:
        head = f["out"] + group.index * step
        starts = [source + group.index * (f["group"] * SIZE[dtype]) for source in sources]
        largest = [_largest(f, start, dtype, whole) for start in starts]
        inverses = [f.select(value > _SMALLEST, f.constant(LARGEST, F32) / value, 0.0) for value in largest]
        # The last lanes may write beyond the group; the group that follows overwrites that.
        sums = _split_rows(f, starts, dtype, whole, inverses, head + 12 * rows, dot)
        for row in range(rows):
            f.store(largest[row] * (1.0 / LARGEST), head + 4 * row)
        f.store(0 - _fold(f, sums, 2 * rows) * zero, head + 4 * rows)
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
) -> Value:
    """Writes the parts of a group of all rows; returns their sums as i32, lane i being of part i // rows % 2 of row
    i % rows."""
    rows = len(starts)
    with f.loop(0, f["group"], 2 * LANES, [f.splat(0, LANES, I32 if dot else F32)]) as loop:
        (sums,) = loop.state
        parts = []
        for row in range(rows):
            halves = [
                _split(f, _load(f, starts[row], dtype, loop.index + half * LANES, whole) * inverses[row])
                for half in range(2)
            ]
            parts.append((_as_quads if dot else _as_floats)(f, halves))
        at = out + loop.index * (rows * (2 if dot else 8))
        dense = [line for column in zip(*parts, strict=True) for line in interleave(f, column)]
        for number, line in enumerate(dense):
            f.store(line, at + LINE * number)
            sums = sum_quads(f, sums, f.splat(0x01010101, LANES, I32), line) if dot else sums + line
        loop.carry(sums)
    (total,) = loop.results
    return total if dot else f.cast("arith.fptosi", total, I32)


def _split(f: Function, scaled: Value) -> tuple[Value, Value]:
    """The high and the low part of 16 numbers rounded to integers."""
    integer = f.cast("arith.fptosi", f.op("math.roundeven", [scaled], _LANESF), I32)
    low = f.binary("arith.shrsi", integer << 24, 24)
    return f.binary("arith.shrsi", integer - low, 8), low


def _as_quads(f: Function, halves: Sequence[tuple[Value, Value]]) -> list[Value]:
    """The parts of 32 elements as bytes, quads in i32 lanes, each quad of high parts before that of low ones."""
    narrow = [f.cast("arith.trunci", part, I8) for high_low in halves for part in high_low]
    quads = [f.bitcast(part, vector(I32, LANES // QUAD)) for part in narrow]
    alternate = [quad + LANES // QUAD * part for quad in range(LANES // QUAD) for part in range(2)]
    pairs = [f.shuffle(quads[half], quads[half + 1], alternate) for half in (0, 2)]
    return [f.shuffle(pairs[0], pairs[1], range(LANES))]


def _as_floats(f: Function, halves: Sequence[tuple[Value, Value]]) -> list[Value]:
    """The parts of 32 elements as f32, each high one before the low one: 4 vectors."""
    return [
        line for high_low in halves for line in interleave(f, [f.cast("arith.sitofp", part, F32) for part in high_low])
    ]


def _fold(f: Function, value: Value, lanes: int) -> Value:
    """Lanes i, i + lanes, i + 2 * lanes, .. added, for i < lanes."""
    while (half := lanes_of(value.type) // 2) >= lanes:
        value = f.shuffle(value, value, range(half)) + f.shuffle(value, value, range(half, 2 * half))
    return value
