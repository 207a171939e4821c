"""Generated code for rows of codes and scales (`sscc.ir.kv_rows`), and `QuantizeRows` as a phase."""

from __future__ import annotations

from sscc.ir.kv_rows import INT8, SMALLEST_SCALE, RowFormat, format_of
from sscc.ir.operations import QuantizeRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.decode_attention_chunks import Rows, load_f32, store_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ROW_BLOCK
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I8, I16, I32, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, address, check_strides, copy_row


def encode_row(
    f: Function, source: Value, dtype: str, target: Value, size: int, row_format: RowFormat | None = INT8
) -> None:
    """Encode a row of `size` numbers of f32 or bf16, with the bits of `RowFormat.encode` if the numbers are finite. An
    infinity or NaN gets an infinite or NaN scale."""
    row_format = row_format or INT8
    kernel = _pack_kernel if row_format.bits == 4 else _encode_kernel
    f.call(kernel(f.module, dtype, size, row_format), source, target)


def _encode_kernel(module: Module, dtype: str, size: int, row_format: RowFormat) -> Function:
    name = f"encode_row_{dtype}_{size}_{row_format.group}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("source", PTR), ("target", PTR)])
    for number, (first, end) in enumerate(row_format.groups(size)):
        at = f["target"] + row_format.code_bytes(size) + number * row_format.scale_bytes
        _encode_group(f, f["source"] + first * SIZES[dtype], dtype, f["target"] + first, end - first, at, row_format)
    f.returns()
    return f


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


def _pack_kernel(module: Module, dtype: str, size: int, row_format: RowFormat) -> Function:
    name = f"pack_row_{dtype}_{size}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("source", PTR), ("target", PTR)])
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
    f.returns()
    return f


def _magnitude(f: Function, x: Value) -> Value:
    return f.op("math.absf", [x], x.type)


def _codes(f: Function, x: Value, row_format: RowFormat) -> Value:
    """Convert f32 to the nearest codes, i8. NaN becomes an arbitrary code: converting it to an integer would be
    undefined."""
    rounded = f.op("math.roundeven", [x], x.type)
    low = f.select(rounded > -row_format.largest, rounded, -row_format.largest)
    bounded = f.select(low < row_format.largest, low, row_format.largest)
    return f.cast("arith.trunci", f.cast("arith.fptosi", bounded, I32), I8)


def write_row(
    f: Function, source: Value, source_type: str, target: Value, target_type: str, size: int, width: int
) -> None:
    """Write a row of `size` numbers of f32 or bf16 in the stored form of rows: encoded in `width` bytes of i8, or
    converted to f32 or bf16."""
    if target_type == "i8":
        encode_row(f, source, source_type, target, size, format_of(size, width))
    else:
        copy_row(f, source, source_type, target, target_type, size)


def decode_rows(
    f: Function, source: Value, stride: int, last: Value, count: Value, target: Value, dtype: str, rows: Rows
) -> None:
    """Decode rows 0 .. count - 1, `stride` bytes apart, to contiguous rows of f32 or bf16. Row `last` is read in place
    of later rows, which may not exist."""
    width = SIZES[dtype]
    with f.loop(0, count) as row:
        here = source + f.min(row.index, last) * stride
        f.call(_decode_kernel(f.module, dtype, rows), here, target + row.index * (rows.size * width))


def _decode_kernel(module: Module, dtype: str, rows: Rows) -> Function:
    name = f"decode_row_{dtype}_{rows.tag}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("source", PTR), ("target", PTR)])
    scale = f.broadcast(rows.scale(f, f["source"]), LANES) if rows.encoded else None
    for chunk in range(rows.chunks):
        vectors = rows.load(f, f["source"], chunk)
        parts = vectors if scale is None else [part * scale for part in vectors]
        start = chunk * rows.elements
        store_row(f, parts, f["target"] + start * SIZES[dtype], dtype, rows.size - start)
    f.returns()
    return f


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
    check_strides(step.kind, operands, (step.source, step.out))
    (slots, heads, count, size), _, dtype = operands[step.source]
    blocks = -(-count // ROW_BLOCK)

    def encode(context: Context) -> None:
        f, source, out = context.f, context.operands[step.source], context.operands[step.out]
        with f.loop(context.begin, context.end) as unit:
            pair, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            place = (pair // heads, pair % heads)
            with f.loop(first, f.min(first + ROW_BLOCK, count)) as row:
                here, there = address(f, source, *place, row.index), address(f, out, *place, row.index)
                encode_row(f, here, dtype, there, size, format_of(size, out.shape[3]))

    return Lowered((Phase(slots * heads * blocks, encode),))
