"""Scores by landmarks: exact dot products of codes, 16 rows at a time for all query heads of a group.

Sixteen rows are brought to columns of 4 bytes, a row a lane, so that no sum crosses lanes. With AVX512_VNNI a plane of
a column becomes bytes by a table of 16 entries (two nibbles of a byte, a few planes each), and one instruction a head
adds its 64 products. Two such blocks are scored together where registers allow: numbers of the query are loaded once
for both. Levels are taken above the lowest one there, as unsigned bytes; sums begin with what that misses. Elsewhere
the same sums are of f32, which holds these integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sscc.runtime.backends.cpu.attention.landmarks import COLUMN_BYTES, LandmarkRows
from sscc.runtime.backends.cpu.attention.row_codec import load_f32
from sscc.runtime.backends.cpu.codegen.encoded_rows import copy_bytes
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LANDMARK_AHEAD_BYTES, LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, I8, I16, I32, I64, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES
from sscc.runtime.backends.cpu.products.quantised_rows import BYTES, sum_quads

HEADS = 8
"""Query heads that are scored together, at most: each has a register of sums."""
PAIRED = 12
"""Heads and columns with which two blocks are scored together: both have sums and columns in registers."""
_NIBBLES = 0x0F0F0F0F
Sums = list[list[Value]]
"""Of each block, those of each head."""


@dataclass(frozen=True)
class LandmarkSource:
    """Where rows of landmarks are: the first one's codes and scale, and bytes from row to row."""

    codes: Value
    codes_stride: int
    scales: Value
    scales_stride: int

    def from_row(self, row: Value) -> LandmarkSource:
        codes, scales = self.codes + row * self.codes_stride, self.scales + row * self.scales_stride
        return LandmarkSource(codes, self.codes_stride, scales, self.scales_stride)


@dataclass(frozen=True)
class Ahead:
    """What is asked for while rows are scored, `lines` cache lines with each two blocks of 16 rows."""

    pointer: Value
    lines: int


def staging_bytes(rows: LandmarkRows) -> int:
    """Private scratch of `score_rows`."""
    return rows.columns * LINE + LINE


def score_rows(
    f: Function, rows: LandmarkRows, source: LandmarkSource, count: Value, queries: Value, heads: int, staging: Value,
    out: Value, out_bytes: int, ahead: Ahead | None = None,
) -> None:  # fmt: skip
    """Logits of `count` rows, for each of `heads` queries: [heads][out_bytes] f32, up to whole vectors of 16, where
    what is beyond `count` may be anything."""
    dense = source.codes_stride == rows.columns * COLUMN_BYTES == rows.nbytes
    whole = count // LANES if dense and source.scales_stride == SIZES["bf16"] else f.constant(0)
    tiles = [(first, min(heads - first, HEADS)) for first in range(0, heads, HEADS)]
    asked, lines = (source.codes, 0) if ahead is None else (ahead.pointer, ahead.lines)

    def score(codes: Value, scales: Value, blocks: Value | int, target: Value) -> None:
        for first, size in tiles:
            scored = _score(f, rows, size, out_bytes, lines if first == 0 else 0)
            scored(codes, scales, queries + first * rows.query_bytes, blocks, target + first * out_bytes, asked)

    score(source.codes, source.scales, whole, out)
    staged_scales = staging + rows.columns * LINE
    with f.loop(whole * LANES, count, LANES) as block:
        with f.loop(0, f.min(count - block.index, LANES)) as row:
            there = source.from_row(block.index + row.index)
            copy_bytes(f, there.codes, staging + row.index * (rows.columns * COLUMN_BYTES), rows.nbytes)
            f.store(f.load(there.scales, I16), staged_scales + row.index * SIZES["bf16"])
        score(staging, staged_scales, 1, out + block.index * 4)


@kernel(codes=PTR, scales=PTR, queries=PTR, blocks=I64, out=PTR, asked=PTR)
def _score(f: Function, rows: LandmarkRows, heads: int, out_bytes: int, lines: int) -> None:
    """Logits of blocks of 16 rows that lie one after another, each a whole number of columns; asks for `lines` lines
    with each two blocks that are scored together."""
    pairs = f.constant(0)
    if rows.dot and heads + rows.columns <= PAIRED:
        pairs = f["blocks"] // 2 * 2
        with f.loop(0, pairs, 2) as pair:
            for line in range(lines):
                f.prefetch(f["asked"] + pair.index * (lines * LINE // 2) + line * LINE, 2)
            _score_blocks(f, rows, heads, out_bytes, pair.index, 2)
    with f.loop(pairs, f["blocks"]) as block:
        _score_blocks(f, rows, heads, out_bytes, block.index, 1)


def _score_blocks(f: Function, rows: LandmarkRows, heads: int, out_bytes: int, first: Value, count: int) -> None:
    """Logits of `count` blocks from number `first` on, which share what is loaded of the queries."""
    queries = [f["queries"] + head * rows.query_bytes for head in range(heads)]
    codes = f["codes"] + first * (rows.columns * LINE)
    scales = f["scales"] + first * (LANES * SIZES["bf16"])
    # Into the second-level cache: asked for in the first one, they would hold up what stands in the second one already.
    for i in range(count * rows.columns):
        f.prefetch(codes + (LANDMARK_AHEAD_BYTES + i * LINE), 2)
    f.prefetch(scales + LANDMARK_AHEAD_BYTES // 8, 2)
    blocks = []
    for block in range(count):
        at = codes + block * (rows.columns * LINE)
        blocks.append(_columns(f, [f.load(at + i * LINE, vector(I32, LANES)) for i in range(rows.columns)]))
    begin = [f.broadcast(f.load(query, I32 if rows.dot else F32), LANES) for query in queries]
    sums = [begin] * count
    for number, columns in enumerate(zip(*blocks, strict=True)):
        add = _add_bytes if rows.dot else _add_numbers
        sums = add(f, rows, columns, [query + LINE for query in queries], number, sums)
    of_heads = [f.broadcast(f.load(query + 4, F32), LANES) for query in queries]
    for block, totals in enumerate(sums):
        scale = load_f32(f, scales + block * (LANES * SIZES["bf16"]), "bf16", 0, LANES)
        for head, total in enumerate(totals):
            dot = f.cast("arith.sitofp", total, F32) if rows.dot else total
            f.store(dot * scale * of_heads[head], f["out"] + (first + block) * LINE + head * out_bytes)


def _columns(f: Function, lines: Sequence[Value]) -> list[Value]:
    """Rows of m words, one after another in m vectors of 16, as their m columns, lane r of row r."""
    count = len(lines)
    if count == 1:
        return list(lines)
    if count == 4:
        return _four_columns(f, lines)
    if count % 2 == 0:
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        halves = [_columns(f, [f.shuffle(*pair, range(odd, 2 * LANES, 2)) for pair in pairs]) for odd in range(2)]
        return [column for pair in zip(*halves, strict=True) for column in pair]
    columns = []
    for column in range(count):
        places = [divmod(row * count + column, LANES) for row in range(LANES)]
        lanes = [line * LANES + lane if line < 2 else 0 for line, lane in places]
        value = f.shuffle(lines[0], lines[1], lanes)
        for number in range(2, count):
            lanes = [LANES + lane if line == number else row for row, (line, lane) in enumerate(places)]
            value = f.shuffle(value, lines[number], lanes)
        columns.append(value)
    return columns


def _four_columns(f: Function, lines: Sequence[Value]) -> list[Value]:
    """`_columns` of rows of four words, each a quarter of a vector: shuffles within quarters, which more of a CPU's
    units can do than others, then one that brings rows 0, 4, 8, 12, 1, 5, .. into order."""

    def pick(a: Value, b: Value, odd: int) -> Value:
        return f.shuffle(a, b, [q + odd + i for q in range(0, LANES, 4) for i in (0, 2, LANES, LANES + 2)])

    halves = [(pick(lines[0], lines[1], odd), pick(lines[2], lines[3], odd)) for odd in range(2)]
    columns = [pick(*halves[word % 2], word // 2) for word in range(4)]
    return [f.shuffle(value, value, [lane % 4 * 4 + lane // 4 for lane in range(LANES)]) for value in columns]


def _add_bytes(
    f: Function, rows: LandmarkRows, columns: Sequence[Value], queries: Sequence[Value], number: int, sums: Sums
) -> Sums:
    """The sums of each block and head with the products of a column of each block, by AVX512_VNNI."""
    each, levels = 4 // rows.bits, rows.unsigned_levels
    nibbles = [[column & _NIBBLES, (column >> 4) & _NIBBLES] for column in columns]
    new_sums = [list(totals) for totals in sums]
    for plane in range(rows.planes):
        shift = plane % each * rows.bits
        table = f.values([levels[i >> shift & (len(levels) - 1)] for i in range(16)] * 4, I8)
        place = (number * rows.planes + plane) * COLUMN_BYTES
        quads = [f.broadcast(f.load(query + place, I32), LANES) for query in queries]
        for block, totals in enumerate(new_sums):
            chosen = [table, f.bitcast(nibbles[block][plane // each], BYTES)]
            taken = f.bitcast(f.intrinsic("llvm.x86.avx512.pshuf.b.512", chosen, BYTES), quads[0].type)
            new_sums[block] = [sum_quads(f, total, taken, quad) for total, quad in zip(totals, quads, strict=True)]
    return new_sums


def _add_numbers(
    f: Function, rows: LandmarkRows, columns: Sequence[Value], queries: Sequence[Value], number: int, sums: Sums
) -> Sums:
    """The same in f32, of one block."""
    (column,), (totals,) = columns, sums
    for plane in range(rows.planes):
        for byte in range(COLUMN_BYTES):
            code = (column >> (8 * byte + rows.bits * plane)) & (2**rows.bits - 1)
            level = f.cast("arith.sitofp", _unsigned_level(rows.bits, code), F32)
            place = ((number * rows.planes + plane) * COLUMN_BYTES + byte) * 4
            factors = [f.broadcast(f.load(query + place, F32), LANES) for query in queries]
            totals = [f.fma(level, factor, total) for total, factor in zip(totals, factors, strict=True)]
    return [list(totals)]


def _unsigned_level(bits: int, code: Value) -> Value:
    """How much the level of a code is above the lowest one: twice the code, but 0, 7, 13, 20 of two bits."""
    return code * 7 - (code >> 1) if bits == 2 else code + code
