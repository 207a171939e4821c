"""Rows of caches as vectors: taken apart into chunks, widened, rounded, loaded and stored up to their last element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sscc.ir.kv_rows import INT4, INT8, format_of
from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I8, I16, I32, Function, Value, vector


@dataclass(frozen=True)
class Rows:
    """How the first `size` numbers of rows are taken apart into chunks of one vector load. The dtype is f32, bf16, or
    of encoded rows (`sscc.ir.kv_rows`) i8 or i4. Those of i8 that have one scale stand here as their codes; who uses
    them multiplies by `scale`.

    Attributes:
        dot: chunks of bf16 stay as they are, for products of pairs; otherwise they are widened.
        whole: numbers of the row, `size` where 0.
    """

    size: int
    dtype: str
    dot: bool = False
    whole: int = 0

    @classmethod
    def of(cls, size: int, shape: Sequence[int], dtype: str, dot: bool = False, whole: int = 0) -> Rows:
        """The rows of an operand of this shape and dtype."""
        packed = dtype == "i8" and format_of(whole or size, shape[-1]) is INT4
        return cls(size, "i4" if packed else dtype, dot, 0 if whole == size else whole)

    @property
    def numbers(self) -> int:
        """Of the row in memory."""
        return self.whole or self.size

    @property
    def elements(self) -> int:
        """Of a chunk."""
        return LANES if self.dtype in ("f32", "i8") else 2 * LANES

    @property
    def vectors(self) -> int:
        """Vectors that a chunk becomes."""
        return self.elements // LANES if not self.dot else 1

    @property
    def chunks(self) -> int:
        return -(-self.size // self.elements)

    @property
    def nbytes(self) -> int:
        """Of the row in memory."""
        if self.dtype in ("i8", "i4"):
            return (INT4 if self.dtype == "i4" else INT8).width(self.numbers)
        return self.numbers * DTYPE_BYTES[self.dtype]

    @property
    def encoded(self) -> bool:
        """Whether a row stands for its codes, and who uses it multiplies by its scale."""
        return self.dtype == "i8" and self.numbers <= INT8.group

    @property
    def padded_bytes(self) -> int:
        """Of the row as its chunks' vectors."""
        return self.chunks * self.vectors * LINE

    @property
    def tag(self) -> str:
        return f"{'pairs' if self.dot else self.dtype}_{self.size}" + (f"of{self.whole}" if self.whole else "")

    def load(self, f: Function, row: Value, chunk: int | Value) -> list[Value]:
        """The vectors of one chunk; elements beyond the row are zeros, and are not touched. Those beyond `size` in a
        row that has more may be any of its numbers. A chunk whose number is a `Value` is not the last one."""
        if self.dtype == "i4":
            return self._load_packed(f, row, chunk)
        at = row + chunk * (self.elements * DTYPE_BYTES[self.dtype])
        left = self.size - chunk * self.elements if isinstance(chunk, int) else self.elements
        if self.dtype == "f32":
            return [_load(f, at, vector(F32, LANES), left)]
        if self.dtype == "i8":
            codes = f.cast("arith.extsi", _load(f, at, vector(I8, LANES), left), I32)
            numbers = f.cast("arith.sitofp", codes, F32)
            return [numbers if self.encoded else numbers * f.broadcast(self._scale_of(f, row, chunk), LANES)]
        if left >= 2 * LANES or left % 2 == 0:
            bits = _load(f, at, vector(I32, LANES), left // 2)
        else:
            bits = f.bitcast(_load(f, at, vector(I16, 2 * LANES), left), vector(I32, LANES))
        if self.dot:
            return [f.bitcast(bits, vector(BF16, 2 * LANES))]
        return [f.bitcast(bits << 16, vector(F32, LANES)), f.bitcast(bits & -65536, vector(F32, LANES))]

    def scale(self, f: Function, row: Value) -> Value:
        """What the codes of an encoded row count in, f32. It may lie at any byte."""
        return self._scale_of(f, row, 0)

    def _scale_of(self, f: Function, row: Value, chunk: int | Value) -> Value:
        """What the codes of a chunk of 8 bits count in, f32."""
        group = chunk // (INT8.group // LANES)
        return f.bitcast(f.load(row + self.numbers + group * INT8.scale_bytes, vector(I8, INT8.scale_bytes)), F32)

    def _load_packed(self, f: Function, row: Value, chunk: int | Value) -> list[Value]:
        """A group of numbers that share a scale, in order."""
        count = min(self.numbers - chunk * self.elements, self.elements) if isinstance(chunk, int) else self.elements
        half = count // 2
        codes = f.cast("arith.extsi", _load(f, row + chunk * LANES, vector(I8, LANES), half), I32)
        bits = f.load(row + INT4.code_bytes(self.numbers) + chunk * INT4.scale_bytes, vector(I8, INT4.scale_bytes))
        wide = f.cast("arith.extui", f.bitcast(bits, I16), I32)
        scale = f.broadcast(f.bitcast(wide << 16, F32), LANES)
        places = vector(I32, LANES)
        signed = [f.op("arith.shrsi", [part, f.like(28, part)], places) for part in (codes << 28, codes << 24)]
        low, high = (f.cast("arith.sitofp", part, F32) * scale for part in signed)
        if half == LANES:
            return [low, high]
        missing = [half] * (2 * LANES - count)  # the first lane that no code was loaded to, which is zero
        order = [*range(half), *range(LANES, LANES + half), *missing]
        return [f.shuffle(low, high, order[:LANES]), f.shuffle(low, high, order[LANES:])]


def load_f32(f: Function, row: Value, dtype: str, start: int, size: int) -> Value:
    """Elements start .. start + 15 of a row of `size`, widened to f32; zeros beyond the row."""
    if start >= size:
        return f.splat(0.0)
    at = row + start * (4 if dtype == "f32" else 2)
    if dtype == "f32":
        return _load(f, at, vector(F32, LANES), size - start)
    bits = f.cast("arith.extui", _load(f, at, vector(I16, LANES), size - start), I32)
    return f.bitcast(bits << 16, vector(F32, LANES))


def store_row(f: Function, values: Sequence[Value], row: Value, dtype: str, size: int) -> None:
    """Stores vectors of f32, in order, as a row of `size` elements of a dtype."""
    for i, value in enumerate(values):
        narrow = value if dtype == "f32" else _bf16_bits(f, value)
        at, left = row + i * LANES * (4 if dtype == "f32" else 2), size - i * LANES
        if left >= LANES:
            f.store(narrow, at)
        elif left > 0:
            f.store_masked(narrow, at, f.first_lanes(left))


def _bf16_bits(f: Function, value: Value) -> Value:
    """f32 rounded to bf16, as i16."""
    return f.bitcast(f.narrow(value, BF16), vector(I16, LANES))


def in_order(f: Function, rows: Rows, chunk: Sequence[Value]) -> list[Value]:
    """A chunk's vectors of f32 with the elements in the order of memory."""
    if rows.vectors == 1 or rows.dtype == "i4":
        return list(chunk)
    low = [lane // 2 + (lane % 2) * LANES for lane in range(2 * LANES)]
    return [f.shuffle(chunk[0], chunk[1], low[:LANES]), f.shuffle(chunk[0], chunk[1], low[LANES:])]


def _load(f: Function, pointer: Value, type: str, left: int) -> Value:
    """A vector of which the first `left` lanes exist."""
    lanes = LANES if type != vector(I16, 2 * LANES) else 2 * LANES
    if left >= lanes:
        return f.load(pointer, type)
    return f.load_masked(pointer, f.first_lanes(left, lanes), type)
