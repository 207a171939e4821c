"""Generated code for rows of codes and scales (`sscc.ir.kv_rows`), and `QuantizeRows` as a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sscc.ir.kv_rows import INT4, INT8, SMALLEST_SCALE, RowFormat, format_of
from sscc.ir.operations import QuantizeRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.row_codec import Rows, load_f32, store_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I8, I16, I32, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, row_phase
from sscc.runtime.backends.cpu.codegen.row_copies import (
    SIZES,
    Meta,
    address,
    check_rows,
    copy_row,
    pack_rows,
    row_bytes,
)


def encode_row(
    f: Function, source: Value, dtype: str, target: Value, size: int, row_format: RowFormat | None = INT8
) -> None:
    """Encode a row of `size` numbers of f32 or bf16, with the bits of `RowFormat.encode` if the numbers are finite. An
    infinity or NaN gets an infinite or NaN scale."""
    row_format = row_format or INT8
    encode = _pack_row(f, dtype, size) if row_format.bits == 4 else _encode_row(f, dtype, size, row_format.group)
    encode(source, target)


@kernel(source=PTR, target=PTR)
def _encode_row(f: Function, dtype: str, size: int, group: int) -> None:
    row_format = replace(INT8, group=group)
    for number, (first, end) in enumerate(row_format.groups(size)):
        at = f["target"] + row_format.code_bytes(size) + number * row_format.scale_bytes
        _encode_group(f, f["source"] + first * SIZES[dtype], dtype, f["target"] + first, end - first, at, row_format)


def _encode_group(
    f: Function, source: Value, dtype: str, target: Value, size: int, scale_at: Value, row_format: RowFormat
) -> None:
    """Encode `size` numbers that share a scale, one code per byte."""
    whole = size - size % LANES
    last = load_f32(f, source, dtype, whole, size)
    with f.loop(0, whole, LANES, [_magnitude(f, last)]) as loop:
        part = load_f32(f, source + loop.index * SIZES[dtype], dtype, 0, LANES)
        loop.carry(f.max(loop.state[0], _magnitude(f, part)))
    scale = f.reduce("maximumf", loop.results[0]) * row_format.step
    scale = f.select(scale < SMALLEST_SCALE, 0.0, scale)
    inverse = f.select(scale.eq(0.0), 0.0, f.constant(1.0, F32) / scale)
    with f.loop(0, whole, LANES) as loop:
        part = load_f32(f, source + loop.index * SIZES[dtype], dtype, 0, LANES)
        f.store(_codes(f, part * inverse, row_format), target + loop.index)
    if whole < size:
        f.store_masked(_codes(f, last * inverse, row_format), target + whole, f.first_lanes(size - whole))
    f.store(f.bitcast(scale, vector(I8, row_format.scale_bytes)), scale_at)


@kernel(source=PTR, target=PTR)
def _pack_row(f: Function, dtype: str, size: int) -> None:
    row_format = INT4
    for number, (first, end) in enumerate(row_format.groups(size)):
        half = (end - first) // 2
        starts = (f["source"] + start * SIZES[dtype] for start in (first, first + half))
        low, high = (load_f32(f, start, dtype, 0, half) for start in starts)
        largest = f.reduce("maximumf", f.max(_magnitude(f, low), _magnitude(f, high)))
        rounded = f.narrow(largest * row_format.step, BF16)
        scale = f.widen(rounded)
        stored = f.select(scale < SMALLEST_SCALE, f.constant(0, I16), f.bitcast(rounded, I16))
        scale = f.select(scale < SMALLEST_SCALE, 0.0, scale)
        inverse = f.select(scale.eq(0.0), 0.0, f.constant(1.0, F32) / scale)
        codes = [_codes(f, part * inverse, row_format) for part in (low, high)]
        packed = (codes[0] & 15) | (codes[1] << 4)
        place = f["target"] + row_format.code_bytes(first)
        if half == LANES:
            f.store(packed, place)
        else:
            f.store_masked(packed, place, f.first_lanes(half))
        at = f["target"] + row_format.code_bytes(size) + number * row_format.scale_bytes
        f.store(f.bitcast(stored, vector(I8, row_format.scale_bytes)), at)


def _magnitude(f: Function, x: Value) -> Value:
    return f.op("math.absf", [x], x.type)


def _codes(f: Function, x: Value, row_format: RowFormat) -> Value:
    """Convert f32 to the nearest codes, i8. NaN becomes an arbitrary code: converting it to an integer would be
    undefined."""
    rounded = f.op("math.roundeven", [x], x.type)
    low = f.select(rounded > -row_format.largest, rounded, -row_format.largest)
    bounded = f.select(low < row_format.largest, low, row_format.largest)
    return f.cast("arith.trunci", f.cast("arith.fptosi", bounded, I32), I8)


def put_row(
    f: Function, source: Operand, place: Sequence[Value | int], target: Operand, target_place: Sequence[Value | int]
) -> None:
    """Copy a row of an operand [.., rows, numbers] to a row of another one, in the stored form of that operand:
    encoded, or converted to f32 or bf16. Codes are copied unchanged."""
    here, there, size = address(f, source, *place), address(f, target, *target_place), source.shape[-1]
    if source.dtype == "i8":
        copy_bytes(f, here, there, size)
    elif target.dtype == "i8":
        encode_row(f, here, source.dtype, there, size, format_of(size, target.shape[-1]))
    else:
        copy_row(f, here, source.dtype, there, target.dtype, size)


def plain_rows(
    f: Function, operand: Operand, place: Sequence[Value | int], size: int, last: Value, count: Value, target: Value,
    dtype: str,
) -> tuple[Value, int]:  # fmt: skip
    """Return rows 0 .. count - 1, from a place of an operand on, as rows of `size` numbers in f32 or bf16: their
    address, and the bytes between rows. Rows of such numbers are not copied; other rows are decoded, or widened to f32,
    into `target`. Row `last` is read in place of later ones, which may not exist."""
    source, stride = address(f, operand, *place), row_bytes(operand)
    if operand.dtype == dtype:
        return source, stride
    if operand.dtype != "i8":
        pack_rows(f, source, operand.dtype, stride, last, count, target, size)
        return target, size * 4
    width = size * SIZES[dtype]
    with f.loop(0, count) as row:
        here = source + f.min(row.index, last) * stride
        _decode_row(f, dtype, Rows.of(size, operand.shape, operand.dtype))(here, target + row.index * width)
    return target, width


@kernel(source=PTR, target=PTR)
def _decode_row(f: Function, dtype: str, rows: Rows) -> None:
    scale = f.broadcast(rows.scale(f, f["source"]), LANES) if rows.encoded else None
    for chunk in range(rows.chunks):
        vectors = rows.load(f, f["source"], chunk)
        parts = vectors if scale is None else [part * scale for part in vectors]
        start = chunk * rows.elements
        store_row(f, parts, f["target"] + start * SIZES[dtype], dtype, rows.size - start)


def copy_bytes(f: Function, source: Value, target: Value, count: int) -> None:
    """Copy `count` bytes."""
    type, whole = vector(I8, LANES), count - count % LANES
    with f.loop(0, whole, LANES) as loop:
        f.store(f.load(source + loop.index, type), target + loop.index)
    if whole < count:
        mask = f.first_lanes(count - whole)
        f.store_masked(f.load_masked(source + whole, mask, type), target + whole, mask)


@executes(QuantizeRows)
def lower_quantize_rows(step: QuantizeRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `QuantizeRows` to one phase with units of (slot, KV head, block of rows).

    Raises InputError if a row is not contiguous.
    """
    check_rows(step, operands)
    slots, heads, count, _ = operands[step.source][0]

    def encode(context: Context, place: list[Value], row: Value) -> None:
        operands = context.operands
        put_row(context.f, operands[step.source], (*place, row), operands[step.out], (*place, row))

    return Lowered((row_phase((slots, heads), count, encode),))
