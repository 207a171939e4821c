"""Rows of operands in generated code: their addresses, copies with conversion, and packing.

A *word* is an f32 or a pair of bf16, 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import Op, spec_of_step
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I8, I16, I64, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.phases import Operand

Meta = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides in elements, and the schedule's dtype."""

SIZES = {"f32": 4, "bf16": 2, "i64": 8, "i8": 1, "i1": 1}


class NativeRowErrors(ErrorKind):
    STRIDE = InputError, "{step} needs stride 1 along the last axis of operand {operand!r}, but it is {stride}"


class ScratchPieces:
    """A scratch buffer in named pieces, each 64-byte aligned.

    Attributes:
        nbytes: size of all pieces.
    """

    def __init__(self, **sizes: int) -> None:
        self.nbytes = 0
        self._offsets: dict[str, int] = {}
        for name, nbytes in sizes.items():
            self._offsets[name] = self.nbytes
            self.nbytes += align(nbytes)

    def at(self, base: Value) -> dict[str, Value]:
        """Return the addresses of the pieces in a buffer at `base`."""
        return {name: base + offset for name, offset in self._offsets.items()}


def check_strides(kind: str, operands: Mapping[str, Meta], names: Iterable[str]) -> None:
    """Raise InputError for an operand whose stride along its last axis is not 1. The validator has already proved that
    names, shapes, dtypes and settings of the step match."""
    for name in names:
        shape, strides, _ = operands[name]
        if shape[-1] > 1 and strides[-1] != 1:
            raise NativeRowErrors.STRIDE(step=kind, operand=name, stride=strides[-1])


def check_rows(step: Op, operands: Mapping[str, Meta], *integers: str) -> None:
    """Raise InputError if rows of numbers or codes that the step reads or writes, or rows of the operands of
    `integers`, are not contiguous."""
    regions = dict.fromkeys(spec_of_step(step).regions(step).values())
    rows = [name for name in regions if name and operands[name][2] not in ("i64", "i1")]
    check_strides(step.kind, operands, [*rows, *integers])


def address(f: Function, operand: Operand, *indices: Value | int) -> Value:
    """Return the address of an element; axes without an index have index 0."""
    size, pointer = SIZES[operand.dtype], operand.pointer
    for index, stride in zip(indices, operand.strides, strict=False):
        step = f.integer(index) * (stride * size) if isinstance(index, Value) else index * stride * size
        pointer = pointer + step
    return pointer


def load_element(f: Function, operand: Operand, *indices: Value | int) -> Value:
    """Return an element of an i64 operand, or a flag (i1) as an i8."""
    return f.load(address(f, operand, *indices), I64 if operand.dtype == "i64" else I8)


def row_bytes(operand: Operand, axis: int = 2) -> int:
    """Return the bytes between consecutive rows of [.., heads, rows, numbers], or between consecutive indices of
    another axis."""
    return operand.strides[axis] * SIZES[operand.dtype]


def in_memory(dtype: str) -> str:
    """Return the type in which rows are moved: bf16 as bits, which every CPU can move."""
    return {"bf16": I16, "i8": I8}.get(dtype, F32)


def copy_row(f: Function, source: Value, source_type: str, target: Value, target_type: str, count: int) -> None:
    """Copy `count` elements with conversion (to bf16: rounded to nearest even); types are f32 or bf16."""
    sizes = SIZES[source_type], SIZES[target_type]
    loaded, stored = vector(in_memory(source_type), 16), vector(in_memory(target_type), 16)

    def convert(value: Value) -> Value:
        if source_type == target_type:
            return value
        if target_type == "bf16":
            return f.bitcast(f.narrow(value, BF16), stored)
        return f.widen(f.bitcast(value, vector(BF16, 16)))

    whole = count // 16
    if whole > 8:
        with f.loop(0, whole) as step:
            value = f.load(source + step.index * (16 * sizes[0]), loaded)
            f.store(convert(value), target + step.index * (16 * sizes[1]))
    else:
        for i in range(whole):
            f.store(convert(f.load(source + i * 16 * sizes[0], loaded)), target + i * 16 * sizes[1])
    if count % 16:
        mask = f.first_lanes(count % 16)
        value = f.load_masked(source + whole * 16 * sizes[0], mask, loaded)
        f.store_masked(convert(value), target + whole * 16 * sizes[1], mask)


def zero_row(f: Function, target: Value, dtype: str, count: int) -> None:
    """Write `count` zeros of type f32, bf16 or i8."""
    zero, size = f.constant(0, vector(in_memory(dtype), 16)), SIZES[dtype]
    with f.loop(0, count // 16) as step:
        f.store(zero, target + step.index * (16 * size))
    if count % 16:
        f.store_masked(zero, target + count // 16 * 16 * size, f.first_lanes(count % 16))


@kernel(source=PTR, source_stride=I64, target=PTR, target_stride=I64)
def transpose(f: Function) -> None:
    """Write the transpose target[i][j] = source[j][i] of 16 x 16 words; strides are in bytes."""
    rows = [f.load(f["source"] + f["source_stride"] * i, vector(F32, 16)) for i in range(16)]
    for width in (8, 4, 2, 1):
        low = [lane if not lane & width else 16 + lane - width for lane in range(16)]
        high = [lane + width if not lane & width else 16 + lane for lane in range(16)]
        for i in range(16):
            if not i & width:
                a, b = rows[i], rows[i + width]
                rows[i], rows[i + width] = f.shuffle(a, b, low), f.shuffle(a, b, high)
    for i, row in enumerate(rows):
        f.store(row, f["target"] + f["target_stride"] * i)


def pack_rows(
    f: Function, source: Value, source_type: str, stride: int, last: Value, count: Value, target: Value, columns: int
) -> None:
    """Copy rows 0 .. count - 1 as f32 to [count, columns]. Row `last` is read in place of later rows, which may not
    exist. `stride` is in bytes."""
    with f.loop(0, count) as row:
        pointer = source + f.min(row.index, last) * stride
        copy_row(f, pointer, source_type, target + row.index * (columns * 4), "f32", columns)


def pack_pairs(f: Function, source: Value, stride: int, last: Value, count: Value, target: Value, columns: int) -> None:
    """Interleave rows 2i and 2i + 1 of bf16, i < count: [count, columns rounded up to 16] pairs; `last` as in
    `pack_rows`."""
    width = -(-columns // 16) * 16
    order = [lane // 2 + 16 * (lane % 2) for lane in range(32)]
    with f.loop(0, count) as pair:
        rows = [source + f.min(pair.index * 2 + i, last) * stride for i in range(2)]
        row = target + pair.index * (width * 4)
        for column in range(0, columns, 16):
            if column + 16 <= columns:
                a, b = (f.load(r + column * 2, vector(I16, 16)) for r in rows)
            else:
                mask = f.first_lanes(columns - column)
                a, b = (f.load_masked(r + column * 2, mask, vector(I16, 16)) for r in rows)
            f.store(f.shuffle(a, b, order), row + column * 4)
