"""Landmarks in generated code (`sscc.ir.landmarks`, to the bit): of keys, and queries in the order that scores take.

A row is rotated in registers, 16 numbers a vector: butterflies of neighbours up to 8 apart within a vector, of those
further apart between vectors. Scores (`landmark_scores.py`) take codes 4 bytes at a time, a *column*, and from each
byte one code after another, a *plane*. So the query lies by columns, in a column by planes, and in a plane by bytes:

    column                  0                        1
    plane            0            1      ..      0          ..
    number       0 P 2P 3P  1 P+1 2P+1 ..  ..  4P 5P 6P ..  ..      P codes a byte
"""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir import landmarks
from sscc.ir.kv_rows import with_one_scale
from sscc.ir.operations import Landmarks
from sscc.ir.opspec import executes
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.attention.row_codec import load_f32
from sscc.runtime.backends.cpu.codegen.encoded_rows import encode_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, F64, I8, I16, I32, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, row_phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_rows

COLUMN_BYTES = 4


class LandmarkRows:
    """The sizes of landmarks of keys of `dim` numbers.

    Attributes:
        dot: scores are sums of products of bytes (AVX512_VNNI); else of f32, which holds the same integers.
        nbytes, planes: bytes of a row's codes, and codes of a byte.
        columns, column_numbers: columns of a row, the last one of which may be incomplete, and numbers of a column.
        unsigned_levels: of each code, how much its level is above the lowest one.
        query_bytes: of a query as `encode_query` leaves it: what a sum begins with (`lowest` times the sum of the
            codes), the factor of the query's logits in f32, then from byte 64 on its codes, as bytes or as f32.
        rotated_bytes, query_scratch_bytes: of a rotated query, and private scratch of `encode_query`.
    """

    def __init__(self, dim: int, bits: int, dot: bool) -> None:
        self.dim, self.bits, self.dot = dim, bits, dot
        self.nbytes, self.planes = landmarks.code_bytes(dim, bits), 8 // bits
        self.columns, self.column_numbers = -(-self.nbytes // COLUMN_BYTES), COLUMN_BYTES * self.planes
        levels = [int(level) for level in landmarks.levels(bits)]
        self.lowest, self.unsigned_levels = levels[0], [level - levels[0] for level in levels]
        self.query_bytes = LINE + align(self.columns * self.column_numbers * (1 if dot else 4))
        self.rotated_bytes = -(-dim // LANES) * LINE
        self.query_scratch_bytes = self.rotated_bytes + align(with_one_scale(dim).width(dim))
        self.tag = f"{dim}_{bits}{'_dot' if dot else ''}"


@executes(Landmarks)
def lower_landmarks(step: Landmarks, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (slot, KV head, block of rows). See `Landmarks`."""
    check_rows(step, operands)
    (slots, heads, count, dim), _, dtype = operands[step.key]

    def encode(context: Context, place: list[Value], row: Value) -> None:
        names = (step.key, step.codes, step.scales)
        key, codes, scale = (address(context.f, context.operands[name], *place, row) for name in names)
        encode_landmark(context.f, key, dtype, codes, scale, dim, step.bits)

    return Lowered((row_phase((slots, heads), count, encode),))


# ------------------------------------------------------------------------------------------------------- keys


def encode_landmark(f: Function, key: Value, dtype: str, codes: Value, scale: Value, dim: int, bits: int) -> None:
    """The landmark of a key of f32 or bf16: `dim * bits / 8` bytes of codes and the bf16 scale."""
    _landmark(f, dtype, dim, bits)(key, codes, scale)


@kernel(key=PTR, codes=PTR, scale=PTR)
def _landmark(f: Function, dtype: str, dim: int, bits: int) -> None:
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
    """The vectors of `sscc.ir.landmarks.rotate`, with zeros behind the row."""
    rows = [load_f32(f, row, dtype, start, dim) for start in range(0, dim, LANES)]
    block, distance = landmarks.block_width(dim), 1
    while distance < block:
        rows = _butterflies(f, rows, distance)
        distance *= 2
    return [row * block**-0.5 for row in rows]


def _butterflies(f: Function, rows: Sequence[Value], distance: int) -> list[Value]:
    """Sums in place of the first of two numbers so far apart, differences in place of the second."""
    if distance >= LANES:
        apart = distance // LANES
        return [rows[i ^ apart] - row if i & apart else row + rows[i ^ apart] for i, row in enumerate(rows)]
    signs = f.values([-(1 << 31) if lane & distance else 0 for lane in range(LANES)], I32)
    partners = [lane ^ distance for lane in range(LANES)]
    bits = vector(I32, LANES)
    return [f.shuffle(row, row, partners) + f.bitcast(f.bitcast(row, bits) ^ signs, row.type) for row in rows]


def _root_mean_square(f: Function, rows: Sequence[Value], dim: int) -> Value:
    """In f32, before it is rounded to bf16; 0 below the smallest scale."""
    wide = [f.cast("arith.extf", row, F64) for row in rows]
    total = wide[0] * wide[0]
    for row in wide[1:]:
        total = total + row * row
    mean = f.reduce("add", total) / float(dim)
    root = f.cast("arith.truncf", f.op("math.sqrt", [mean], F64), F32)
    return f.select(root < landmarks.SMALLEST_SCALE, 0.0, root)


def _codes(f: Function, row: Value, scale: Value, bits: int) -> Value:
    """[16] i32."""
    magnitude, half = f.op("math.absf", [row], row.type), len(landmarks.MAGNITUDES[bits])
    above, zero = f.splat(0, LANES, I32), scale.eq(0.0)
    for edge in landmarks.EDGES[bits]:
        limit = f.broadcast(f.constant(edge, F32) * scale, LANES)
        above = above + f.cast("arith.extui", magnitude > limit, I32)
    codes = f.select(row >= 0.0, above + half, half - 1 - above)
    return f.select(zero, f.splat(half, LANES, I32), codes)


def _packed(f: Function, codes: Value, bits: int, count: int) -> Value:
    """The first `count` bytes of 16 codes."""
    per_byte = 8 // bits
    codes = codes << f.values([lane % per_byte * bits for lane in range(LANES)], I32)
    distance = 1
    while distance < per_byte:
        codes = codes | f.shuffle(codes, codes, [lane ^ distance for lane in range(LANES)])
        distance *= 2
    packed = f.cast("arith.trunci", f.shuffle(codes, codes, range(0, count * per_byte, per_byte)), I8)
    return packed if count > 1 else f.extract(packed, 0)


# ---------------------------------------------------------------------------------------------------- queries


def encode_query(
    f: Function, rows: LandmarkRows, query: Value, dtype: str, scale: float, scratch: Value, target: Value
) -> None:
    """A query head of f32 or bf16 in codes, `LandmarkRows.query_bytes`; `scale` is the attention's."""
    _query(f, rows, dtype)(query, f.constant(scale, F32), scratch, target)


@kernel(query=PTR, scale=F32, scratch=PTR, target=PTR)
def _query(f: Function, rows: LandmarkRows, dtype: str) -> None:
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
    f.store(of_query * landmarks.STEPS[rows.bits] * f["scale"], f["target"] + 4)


def _query_column(f: Function, rows: LandmarkRows, encoded: Value, column: int) -> Value:
    """The query's codes for a column, by planes; zeros behind the row."""
    type, first = vector(I8, rows.column_numbers), column * rows.column_numbers
    if first + rows.column_numbers <= rows.dim:
        codes = f.load(encoded + first, type)
    else:
        codes = f.load_masked(encoded + first, f.first_lanes(rows.dim - first, rows.column_numbers), type)
    order = [rows.planes * byte + plane for plane in range(rows.planes) for byte in range(COLUMN_BYTES)]
    return f.shuffle(codes, codes, order)
