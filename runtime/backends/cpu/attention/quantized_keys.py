"""Quantized keys in generated code (bit-identical to `sscc.ir.quantized_keys`): codes of keys and of queries, and
scores from codes.

A row is rotated in registers, 16 numbers per vector. Butterflies of numbers up to 8 apart work within a vector, others
between vectors. Scoring reads codes 4 bytes at a time, a *column*, and takes one code of each byte at a time, a
*plane*. The query is therefore ordered by columns, within a column by planes, and within a plane by bytes:

    column                  0                        1
    plane            0            1      ..      0          ..
    number       0 P 2P 3P  1 P+1 2P+1 ..  ..  4P 5P 6P ..  ..      P codes a byte

Scores are exact dot products of codes, 16 rows at a time for all query heads of a group. Sixteen rows are transposed to
columns, one row per lane, so that no sum crosses lanes. With AVX512_VNNI, a plane of a column becomes bytes by a table
of 16 entries (two nibbles of a byte, a few planes each), and one instruction per head adds its 64 products. If
registers suffice, two such blocks are scored together, so that numbers of the query are loaded once for both. Levels
are unsigned bytes relative to the lowest level; sums start with the correction for that. Without AVX512_VNNI the same
sums are computed in f32, which represents these integers exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir import quantized_keys
from sscc.ir.kv_rows import with_one_scale
from sscc.ir.operations import QuantizeKeys
from sscc.ir.opspec import executes
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.attention.row_codec import load_f32
from sscc.runtime.backends.cpu.codegen.encoded_rows import copy_bytes, encode_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import KEY_AHEAD_BYTES, LINE
from sscc.runtime.backends.cpu.codegen.mlir import (
    BF16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Function,
    Value,
    kernel,
    vector,
)
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, row_phase
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, address, check_rows, row_bytes
from sscc.runtime.backends.cpu.products.quantized_rows import BYTES, sum_quads

COLUMN_BYTES = 4
HEADS = 8
"""Maximum number of query heads that are scored together: each needs a register for its sum."""
PAIRED = 12
"""Numbers of heads and columns for which two blocks are scored together, with the sums and columns of both in
registers."""
_NIBBLES = 0x0F0F0F0F
Sums = list[list[Value]]
"""Layout of the sums: by block, then by head."""


class QuantizedKeyRows:
    """Sizes of quantized keys of `dim` numbers.

    Attributes:
        dot: True if scores are sums of products of bytes (AVX512_VNNI); otherwise they are sums in f32 of the same
            integers.
        nbytes, planes: bytes of a row's codes, and codes per byte.
        columns, column_numbers: columns of a row, the last of which may be incomplete, and numbers per column.
        unsigned_levels: level of each code relative to the lowest level.
        query_bytes: size of a query encoded by `encode_query`: the start value of its sums (`lowest` times the sum of
            the codes), the factor of its logits in f32, then from byte 64 on its codes, as bytes or as f32.
        rotated_bytes, query_scratch_bytes: size of a rotated query, and of the private scratch of `encode_query`.
        staging_bytes: size of the private scratch of `score_rows`.
    """

    def __init__(self, dim: int, bits: int, dot: bool) -> None:
        self.dim, self.bits, self.dot = dim, bits, dot
        self.nbytes, self.planes = quantized_keys.code_bytes(dim, bits), 8 // bits
        self.columns, self.column_numbers = -(-self.nbytes // COLUMN_BYTES), COLUMN_BYTES * self.planes
        levels = [int(level) for level in quantized_keys.levels(bits)]
        self.lowest, self.unsigned_levels = levels[0], [level - levels[0] for level in levels]
        self.query_bytes = LINE + align(self.columns * self.column_numbers * (1 if dot else 4))
        self.rotated_bytes = -(-dim // LANES) * LINE
        self.query_scratch_bytes = self.rotated_bytes + align(with_one_scale(dim).width(dim))
        self.staging_bytes = self.columns * LINE + LINE
        self.tag = f"{dim}_{bits}{'_dot' if dot else ''}"


@executes(QuantizeKeys)
def lower_quantize_keys(step: QuantizeKeys, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `QuantizeKeys` to one phase in units of (slot, KV head, block of rows)."""
    check_rows(step, operands)
    (slots, heads, count, dim), _, dtype = operands[step.key]

    def encode(context: Context, place: list[Value], row: Value) -> None:
        names = (step.key, step.codes, step.scales)
        key, codes, scale = (address(context.f, context.operands[name], *place, row) for name in names)
        encode_key(context.f, dtype, dim, step.bits)(key, codes, scale)

    return Lowered((row_phase((slots, heads), count, encode),))


@kernel(key=PTR, codes=PTR, scale=PTR)
def encode_key(f: Function, dtype: str, dim: int, bits: int) -> None:
    """Quantize a key in f32 or bf16: `dim * bits / 8` bytes of codes, and the bf16 scale."""
    rotated = _rotated(f, f["key"], dtype, dim)
    narrow = f.narrow(_root_mean_square(f, rotated, dim), BF16)
    f.store(f.bitcast(narrow, I16), f["scale"])
    scale = f.widen(narrow)
    per_byte = 8 // bits
    for i, row in enumerate(rotated):
        count = min(dim - i * LANES, LANES)
        packed = _packed(f, _codes(f, row, scale, bits), bits, count // per_byte)
        f.store(packed, f["codes"] + i * LANES // per_byte)


def _rotated(f: Function, row: Value, dtype: str, dim: int) -> list[Value]:
    """Return the rotated row (`sscc.ir.quantized_keys.rotate`) as vectors, with zeros after the row."""
    rows = [load_f32(f, row, dtype, start, dim) for start in range(0, dim, LANES)]
    block, distance = quantized_keys.block_width(dim), 1
    while distance < block:
        rows = _butterflies(f, rows, distance)
        distance *= 2
    return [row * block**-0.5 for row in rows]


def _butterflies(f: Function, rows: Sequence[Value], distance: int) -> list[Value]:
    """Return the sums and differences of numbers that are `distance` apart: sums in place of the first, differences in
    place of the second."""
    if distance >= LANES:
        step = distance // LANES
        return [rows[i ^ step] - row if i & step else row + rows[i ^ step] for i, row in enumerate(rows)]
    signs = f.values([-(1 << 31) if lane & distance else 0 for lane in range(LANES)], I32)
    partners = [lane ^ distance for lane in range(LANES)]
    bits = vector(I32, LANES)
    return [f.shuffle(row, row, partners) + f.bitcast(f.bitcast(row, bits) ^ signs, row.type) for row in rows]


def _root_mean_square(f: Function, rows: Sequence[Value], dim: int) -> Value:
    """Return the root mean square in f32, before it is rounded to bf16; 0 below the smallest scale."""
    wide = [f.cast("arith.extf", row, F64) for row in rows]
    total = wide[0] * wide[0]
    for row in wide[1:]:
        total = total + row * row
    mean = f.reduce("add", total) / float(dim)
    root = f.cast("arith.truncf", f.op("math.sqrt", [mean], F64), F32)
    return f.select(root < quantized_keys.SMALLEST_SCALE, 0.0, root)


def _codes(f: Function, row: Value, scale: Value, bits: int) -> Value:
    """[16] i32."""
    magnitude, half = f.op("math.absf", [row], row.type), len(quantized_keys.MAGNITUDES[bits])
    above = f.splat(0, LANES, I32)
    for edge in quantized_keys.EDGES[bits]:
        limit = f.broadcast(f.constant(edge, F32) * scale, LANES)
        above = above + f.cast("arith.extui", magnitude > limit, I32)
    codes = f.select(row >= 0.0, above + half, half - 1 - above)
    return f.select(scale.eq(0.0), f.splat(half, LANES, I32), codes)


def _packed(f: Function, codes: Value, bits: int, count: int) -> Value:
    """Return the first `count` bytes of 16 packed codes."""
    per_byte = 8 // bits
    codes = codes << f.values([lane % per_byte * bits for lane in range(LANES)], I32)
    distance = 1
    while distance < per_byte:
        codes = codes | f.shuffle(codes, codes, [lane ^ distance for lane in range(LANES)])
        distance *= 2
    packed = f.cast("arith.trunci", f.shuffle(codes, codes, range(0, count * per_byte, per_byte)), I8)
    return packed if count > 1 else f.extract(packed, 0)


@kernel(query=PTR, scale=F32, scratch=PTR, target=PTR)
def encode_query(f: Function, rows: QuantizedKeyRows, dtype: str) -> None:
    """Encode a query head in f32 or bf16 (`QuantizedKeyRows.query_bytes`); `scale` is the scale of attention."""
    rotated, encoded = f["scratch"], f["scratch"] + rows.rotated_bytes
    for i, row in enumerate(_rotated(f, f["query"], dtype, rows.dim)):
        f.store(row, rotated + i * LINE)
    encode_row(f, rotated, "f32", encoded, rows.dim, with_one_scale(rows.dim))
    total = f.splat(0, rows.column_numbers, I32)
    for column in range(rows.columns):
        codes = _query_column(f, rows, encoded, column)
        total = total + f.cast("arith.extsi", codes, I32)
        stored = codes if rows.dot else f.cast("arith.sitofp", f.cast("arith.extsi", codes, I32), F32)
        f.store(stored, f["target"] + LINE + column * rows.column_numbers * (1 if rows.dot else 4))
    begin = f.reduce("add", total) * rows.lowest
    f.store(begin if rows.dot else f.cast("arith.sitofp", begin, F32), f["target"])
    of_query = f.bitcast(f.load(encoded + rows.dim, vector(I8, 4)), F32)
    f.store(of_query * quantized_keys.STEPS[rows.bits] * f["scale"], f["target"] + 4)


def _query_column(f: Function, rows: QuantizedKeyRows, encoded: Value, column: int) -> Value:
    """Return the query's codes for a column, by planes, with zeros after the row."""
    type, first = vector(I8, rows.column_numbers), column * rows.column_numbers
    if first + rows.column_numbers <= rows.dim:
        codes = f.load(encoded + first, type)
    else:
        codes = f.load_masked(encoded + first, f.first_lanes(rows.dim - first, rows.column_numbers), type)
    order = [rows.planes * byte + plane for plane in range(rows.planes) for byte in range(COLUMN_BYTES)]
    return f.shuffle(codes, codes, order)


# ----------------------------------------------------------------------------------------------------------- scores


def score_rows(
    f: Function, rows: QuantizedKeyRows, codes: Operand, scales: Operand, place: Sequence[Value], count: Value,
    queries: Value, heads: int, staging: Value, out: Value, out_bytes: int, ahead: tuple[Value, int] | None = None,
) -> None:  # fmt: skip
    """Write the logits of `count` rows, from a place on, for each of `heads` queries: [heads][out_bytes] f32, in whole
    vectors of 16; lanes beyond `count` are unspecified.

    Args:
        ahead: data to prefetch meanwhile, and the number of its cache lines for every two blocks of 16 rows.
    """
    *pair, first = place
    dense = row_bytes(codes) == rows.columns * COLUMN_BYTES == rows.nbytes
    whole = count // LANES if dense and row_bytes(scales) == SIZES["bf16"] else f.constant(0)
    asked, lines = ahead or (address(f, codes, *place), 0)

    def score(codes: Value, scales: Value, blocks: Value | int, target: Value) -> None:
        for head in range(0, heads, HEADS):
            score_tile = _score(f, rows, min(heads - head, HEADS), out_bytes, lines if head == 0 else 0)
            score_tile(codes, scales, queries + head * rows.query_bytes, blocks, target + head * out_bytes, asked)

    score(address(f, codes, *place), address(f, scales, *place), whole, out)
    staged_scales = staging + rows.columns * LINE
    with f.loop(whole * LANES, count, LANES) as block:
        with f.loop(0, f.min(count - block.index, LANES)) as row:
            here = (*pair, first + (block.index + row.index))
            staged = staging + row.index * (rows.columns * COLUMN_BYTES)
            copy_bytes(f, address(f, codes, *here), staged, rows.nbytes)
            f.store(f.load(address(f, scales, *here), I16), staged_scales + row.index * SIZES["bf16"])
        score(staging, staged_scales, 1, out + block.index * 4)


@kernel(codes=PTR, scales=PTR, queries=PTR, blocks=I64, out=PTR, asked=PTR)
def _score(f: Function, rows: QuantizedKeyRows, heads: int, out_bytes: int, lines: int) -> None:
    """Write the logits of contiguous blocks of 16 rows, each a whole number of columns. Prefetch `lines` cache lines
    for every two blocks that are scored together."""
    pairs = f.constant(0)
    if rows.dot and heads + rows.columns <= PAIRED:
        pairs = f["blocks"] // 2 * 2
        with f.loop(0, pairs, 2) as pair:
            for line in range(lines):
                f.prefetch(f["asked"] + pair.index * (lines * LINE // 2) + line * LINE, 2)
            _score_blocks(f, rows, heads, out_bytes, pair.index, 2)
    with f.loop(pairs, f["blocks"]) as block:
        _score_blocks(f, rows, heads, out_bytes, block.index, 1)


def _score_blocks(f: Function, rows: QuantizedKeyRows, heads: int, out_bytes: int, first: Value, count: int) -> None:
    """Write the logits of `count` blocks from number `first` on, which share the loads of the queries."""
    queries = [f["queries"] + head * rows.query_bytes for head in range(heads)]
    codes = f["codes"] + first * (rows.columns * LINE)
    scales = f["scales"] + first * (LANES * SIZES["bf16"])
    # Prefetched into the second-level cache: prefetches into the first would delay loads of data that are in the
    # second.
    for i in range(count * rows.columns):
        f.prefetch(codes + (KEY_AHEAD_BYTES + i * LINE), 2)
    f.prefetch(scales + KEY_AHEAD_BYTES // 8, 2)
    blocks = []
    for block in range(count):
        at = codes + block * (rows.columns * LINE)
        blocks.append(_columns(f, [f.load(at + i * LINE, vector(I32, LANES)) for i in range(rows.columns)]))
    sums = [[f.broadcast(f.load(query, I32 if rows.dot else F32), LANES) for query in queries]] * count
    add = _add_bytes if rows.dot else _add_numbers
    for number, columns in enumerate(zip(*blocks, strict=True)):
        sums = add(f, rows, columns, [query + LINE for query in queries], number, sums)
    of_heads = [f.broadcast(f.load(query + 4, F32), LANES) for query in queries]
    for block, totals in enumerate(sums):
        scale = load_f32(f, scales + block * (LANES * SIZES["bf16"]), "bf16", 0, LANES)
        for head, total in enumerate(totals):
            dot = f.cast("arith.sitofp", total, F32) if rows.dot else total
            f.store(dot * scale * of_heads[head], f["out"] + (first + block) * LINE + head * out_bytes)


def _columns(f: Function, lines: Sequence[Value]) -> list[Value]:
    """Return rows of m words, contiguous in m vectors of 16, as their m columns; lane r belongs to row r."""
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
    """Return `_columns` of rows of four words, each a quarter of a vector. Shuffles within quarters, which more
    execution units support than other shuffles, precede one that puts rows 0, 4, 8, 12, 1, 5, .. in order."""

    def pick(a: Value, b: Value, odd: int) -> Value:
        return f.shuffle(a, b, [q + odd + i for q in range(0, LANES, 4) for i in (0, 2, LANES, LANES + 2)])

    halves = [(pick(lines[0], lines[1], odd), pick(lines[2], lines[3], odd)) for odd in range(2)]
    columns = [pick(*halves[word % 2], word // 2) for word in range(4)]
    return [f.shuffle(value, value, [lane % 4 * 4 + lane // 4 for lane in range(LANES)]) for value in columns]


def _add_bytes(
    f: Function, rows: QuantizedKeyRows, columns: Sequence[Value], queries: Sequence[Value], number: int, sums: Sums
) -> Sums:
    """Return the sums of each block and head plus the products of a column of each block, by AVX512_VNNI."""
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
    f: Function, rows: QuantizedKeyRows, columns: Sequence[Value], queries: Sequence[Value], number: int, sums: Sums
) -> Sums:
    """Return the sums of one block and each head plus the products of a column, in f32."""
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
    """Return the level of a code relative to the lowest level: twice the code, but 0, 7, 13, 20 for two bits."""
    return code * 7 - (code >> 1) if bits == 2 else code + code
