"""Rows as codes of 8 bits and a scale (`sscc.ir.kv_rows`) in generated code, and `QuantizeRows` as a phase."""

from __future__ import annotations

from sscc.ir.errors import InputError
from sscc.ir.kv_rows import LARGEST_CODE, SCALE_BYTES, SMALLEST_SCALE, STEP, encoded_width
from sscc.ir.schedule import QuantizeRows
from sscc.runtime.backends.cpu.decode_attention_chunks import Rows, load_f32, store_row
from sscc.runtime.backends.cpu.features import LANES, Features
from sscc.runtime.backends.cpu.figures import ROW_BLOCK
from sscc.runtime.backends.cpu.mlir import F32, I8, I32, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.row_copies import SIZES, Meta, address, check_operands, copy_row


def check_encoded(kind: str, name: str, meta: Meta, size: int) -> None:
    """Raises InputError unless an operand is of encoded rows of `size` numbers that lie at stride 1."""
    shape, strides, dtype = meta
    if dtype != "i8" or size < 1 or shape[-1] != encoded_width(size):
        raise InputError(
            f"{kind} takes encoded rows of {size} numbers as {encoded_width(size)} of i8, but {name!r} has "
            f"{shape[-1]} of {dtype}"
        )
    if strides[-1] != 1:
        raise InputError(f"{kind} reads and writes rows at stride 1, but {name!r} has strides {list(strides)}")


def encode_row(f: Function, source: Value, dtype: str, target: Value, size: int) -> None:
    """Encodes a row of `size` numbers of f32 or bf16 to `size + 4` bytes: the bits of `sscc.ir.kv_rows.encode`, where
    the numbers are finite. A row with an infinity or NaN gets a scale that is one."""
    f.call(_encode_kernel(f.module, dtype, size), source, target)


def _encode_kernel(module: Module, dtype: str, size: int) -> Function:
    name = f"encode_row_{dtype}_{size}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("source", PTR), ("target", PTR)])
    source, target, whole = f["source"], f["target"], size - size % LANES
    last = load_f32(f, source, dtype, whole, size)
    with f.loop(0, whole, LANES, [_magnitude(f, last)]) as loop:
        part = load_f32(f, source + loop.index * SIZES[dtype], dtype, 0, LANES)
        loop.carry(f.max(loop.state[0], _magnitude(f, part)))
    scale = f.reduce("maximumf", loop.results[0]) * STEP
    scale = f.select(scale < SMALLEST_SCALE, 0.0, scale)
    inverse = f.select(scale.eq(0.0), 0.0, f.constant(1.0, F32) / scale)
    with f.loop(0, whole, LANES) as loop:
        part = load_f32(f, source + loop.index * SIZES[dtype], dtype, 0, LANES)
        f.store(_codes(f, part * inverse), target + loop.index)
    if whole < size:
        f.store_masked(_codes(f, last * inverse), target + whole, f.first_lanes(size - whole))
    f.store(f.bitcast(scale, vector(I8, SCALE_BYTES)), target + size)
    f.returns()
    return f


def _magnitude(f: Function, x: Value) -> Value:
    return f.op("math.absf", [x], x.type)


def _codes(f: Function, x: Value) -> Value:
    """Converts f32 to the nearest codes, i8. NaN becomes some code: its conversion to an integer would be undefined."""
    rounded = f.op("math.roundeven", [x], x.type)
    low = f.select(rounded > -LARGEST_CODE, rounded, -LARGEST_CODE)
    bounded = f.select(low < LARGEST_CODE, low, LARGEST_CODE)
    return f.cast("arith.trunci", f.cast("arith.fptosi", bounded, I32), I8)


def write_row(f: Function, source: Value, source_type: str, target: Value, target_type: str, size: int) -> None:
    """Writes a row of `size` numbers of f32 or bf16 as rows are stored: encoded (i8), or converted to f32 or bf16."""
    if target_type == "i8":
        encode_row(f, source, source_type, target, size)
    else:
        copy_row(f, source, source_type, target, target_type, size)


def decode_rows(
    f: Function, source: Value, stride: int, last: Value, count: Value, target: Value, dtype: str, size: int
) -> None:
    """Decodes rows 0 .. count - 1, `stride` bytes apart, to [count, size] of f32 or bf16. Row `last` stands in for the
    rows behind it, which may not exist."""
    width = SIZES[dtype]
    with f.loop(0, count) as row:
        here = source + f.min(row.index, last) * stride
        f.call(_decode_kernel(f.module, dtype, size), here, target + row.index * (size * width))


def _decode_kernel(module: Module, dtype: str, size: int) -> Function:
    name = f"decode_row_{dtype}_{size}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("source", PTR), ("target", PTR)])
    rows = Rows(size, "i8")
    scale = f.broadcast(rows.scale(f, f["source"]), LANES)
    for chunk in range(rows.chunks):
        (codes,) = rows.load(f, f["source"], chunk)
        start = chunk * LANES
        store_row(f, [codes * scale], f["target"] + start * SIZES[dtype], dtype, size - start)
    f.returns()
    return f


def copy_bytes(f: Function, source: Value, target: Value, count: int) -> None:
    """Copies `count` bytes."""
    type, whole = vector(I8, LANES), count - count % LANES
    with f.loop(0, whole, LANES) as loop:
        f.store(f.load(source + loop.index, type), target + loop.index)
    if whole < count:
        mask = f.first_lanes(count - whole)
        f.store_masked(f.load_masked(source + whole, mask, type), target + whole, mask)


def lower_quantize_rows(step: QuantizeRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (slot, KV head, block of rows). See `QuantizeRows`.

    Raises InputError for operands that do not fit.
    """
    check_operands(step.kind, operands, (step.source,))
    (slots, heads, count, size), _, dtype = operands[step.source]
    if dtype not in ("f32", "bf16"):
        raise InputError(f"{step.kind} takes rows of f32 or bf16, but {step.source!r} is {dtype}")
    if step.out not in operands:
        raise InputError(f"{step.kind} has no operand {step.out!r}")
    check_encoded(step.kind, step.out, operands[step.out], size)
    blocks = -(-count // ROW_BLOCK)

    def encode(context: Context) -> None:
        f, source, out = context.f, context.operands[step.source], context.operands[step.out]
        with f.loop(context.begin, context.end) as unit:
            pair, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            place = (pair // heads, pair % heads)
            with f.loop(first, f.min(first + ROW_BLOCK, count)) as row:
                here, there = address(f, source, *place, row.index), address(f, out, *place, row.index)
                encode_row(f, here, dtype, there, size)

    return Lowered((Phase(slots * heads * blocks, encode),))
