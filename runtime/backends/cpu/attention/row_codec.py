"""Codec of cached rows: loads of their numbers as vectors, for every stored form.

A row is divided into chunks of one vector load. Chunks of bf16 are widened in pairs: a vector of 32 becomes its even
and its odd elements, and queries and sums use the same order. Rows of 8-bit codes with a single scale are loaded as
their codes, and the caller multiplies by the scale: a key's dot product, or a value's weight. All other codes are
multiplied by their scales when they are loaded. `codegen.encoded_rows` writes rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.kv_rows import INT4, INT8, format_of
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I8, I16, I32, Function, Value, lanes_of, vector
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES


class Rows:
    """The first `size` numbers of rows, in chunks.

    Args:
        dtype: f32 or bf16; for encoded rows (`sscc.ir.kv_rows`) i8 or i4.
        dot: True to keep chunks of bf16 as pairs, for products of pairs.
        whole: numbers of a row in memory, if it has more than `size`.

    Attributes:
        elements, vectors: numbers of a chunk, and vectors that it is loaded to.
        nbytes, padded_bytes: bytes of a row in memory, and of its chunks' vectors.
        encoded: True if rows are loaded as codes without their scale.
    """

    def __init__(self, size: int, dtype: str, dot: bool = False, whole: int = 0) -> None:
        self.size, self.dtype, self.dot, self.numbers = size, dtype, dot, whole or size
        self.elements = LANES if dtype in ("f32", "i8") else 2 * LANES
        self.vectors = 1 if dot else self.elements // LANES
        self.chunks = -(-size // self.elements)
        codes = {"i8": INT8, "i4": INT4}.get(dtype)
        self.nbytes = codes.width(self.numbers) if codes else self.numbers * SIZES[dtype]
        self.padded_bytes = self.chunks * self.vectors * LINE
        self.encoded = dtype == "i8" and self.numbers <= INT8.group
        self.tag = f"{'pairs' if dot else dtype}_{size}" + (f"of{whole}" if whole else "")

    @classmethod
    def of(cls, size: int, shape: Sequence[int], dtype: str, dot: bool = False, whole: int = 0) -> Rows:
        """Return the rows of an operand of this shape and dtype."""
        packed = dtype == "i8" and format_of(whole or size, shape[-1]) is INT4
        return cls(size, "i4" if packed else dtype, dot, 0 if whole == size else whole)

    def load(self, f: Function, row: Value, chunk: int | Value) -> list[Value]:
        """Load the vectors of one chunk. Elements beyond the row are zeros, and are not accessed. If a row has more
        numbers than `size`, elements beyond `size` are unspecified. A chunk whose number is a `Value` is not the last
        one."""
        if self.dtype == "i4":
            return self._load_packed(f, row, chunk)
        left = self.size - chunk * self.elements if isinstance(chunk, int) else self.elements
        at = row + chunk * (self.elements * SIZES[self.dtype])
        if self.dtype == "f32":
            return [_load(f, at, vector(F32, LANES), left)]
        if self.dtype == "i8":
            codes = f.cast("arith.extsi", _load(f, at, vector(I8, LANES), left), I32)
            numbers = f.cast("arith.sitofp", codes, F32)
            return [numbers if self.encoded else numbers * f.broadcast(self.scale(f, row, chunk), LANES)]
        if left >= 2 * LANES or left % 2 == 0:
            bits = _load(f, at, vector(I32, LANES), left // 2)
        else:
            bits = f.bitcast(_load(f, at, vector(I16, 2 * LANES), left), vector(I32, LANES))
        if self.dot:
            return [f.bitcast(bits, vector(BF16, 2 * LANES))]
        return [f.bitcast(bits << 16, vector(F32, LANES)), f.bitcast(bits & -65536, vector(F32, LANES))]

    def scale(self, f: Function, row: Value, chunk: int | Value = 0) -> Value:
        """Return the scale of a chunk of 8-bit codes, f32. It need not be aligned."""
        group = chunk // (INT8.group // LANES)
        return f.bitcast(f.load(row + self.numbers + group * INT8.scale_bytes, vector(I8, INT8.scale_bytes)), F32)

    def _load_packed(self, f: Function, row: Value, chunk: int | Value) -> list[Value]:
        """Load a group of 4-bit numbers that share a scale, in order."""
        count = min(self.numbers - chunk * self.elements, self.elements) if isinstance(chunk, int) else self.elements
        half = count // 2
        codes = f.cast("arith.extsi", _load(f, row + chunk * LANES, vector(I8, LANES), half), I32)
        bits = f.load(row + INT4.code_bytes(self.numbers) + chunk * INT4.scale_bytes, vector(I8, INT4.scale_bytes))
        wide = f.cast("arith.extui", f.bitcast(bits, I16), I32)
        scale = f.broadcast(f.bitcast(wide << 16, F32), LANES)
        signed = [f.op("arith.shrsi", [part, f.like(28, part)], codes.type) for part in (codes << 28, codes << 24)]
        low, high = (f.cast("arith.sitofp", part, F32) * scale for part in signed)
        if half == LANES:
            return [low, high]
        missing = [half] * (2 * LANES - count)  # first lane without a code, which is zero
        order = [*range(half), *range(LANES, LANES + half), *missing]
        return [f.shuffle(low, high, order[:LANES]), f.shuffle(low, high, order[LANES:])]

    def query_chunk(self, f: Function, row: Value, dtype: str, chunk: int) -> list[Value]:
        """Load a chunk of a query in f32 or bf16, in the order of the rows' chunks."""
        if dtype == self.dtype:
            return self.load(f, row, chunk)
        parts = [load_f32(f, row, dtype, chunk * self.elements + i * LANES, self.size) for i in range(self.vectors)]
        if self.dtype != "bf16":
            return parts
        return [f.shuffle(parts[0], parts[1], range(i, 2 * LANES, 2)) for i in range(2)]

    def in_order(self, f: Function, chunk: Sequence[Value]) -> list[Value]:
        """Return a chunk's vectors of f32 with the elements in the order of memory."""
        if self.vectors == 1 or self.dtype == "i4":
            return list(chunk)
        low = [lane // 2 + (lane % 2) * LANES for lane in range(2 * LANES)]
        return [f.shuffle(chunk[0], chunk[1], low[:LANES]), f.shuffle(chunk[0], chunk[1], low[LANES:])]


def load_f32(f: Function, row: Value, dtype: str, start: int, size: int) -> Value:
    """Load elements start .. start + 15 of a row of `size`, widened to f32, with zeros beyond the row."""
    if start >= size:
        return f.splat(0.0)
    at = row + start * SIZES[dtype]
    if dtype == "f32":
        return _load(f, at, vector(F32, LANES), size - start)
    bits = f.cast("arith.extui", _load(f, at, vector(I16, LANES), size - start), I32)
    return f.bitcast(bits << 16, vector(F32, LANES))


def store_row(f: Function, values: Sequence[Value], row: Value, dtype: str, size: int) -> None:
    """Store vectors of f32, in order, as a row of `size` elements of f32 or bf16."""
    for i, value in enumerate(values):
        narrow = value if dtype == "f32" else f.bitcast(f.narrow(value, BF16), vector(I16, LANES))
        at, left = row + i * LANES * SIZES[dtype], size - i * LANES
        if left >= LANES:
            f.store(narrow, at)
        elif left > 0:
            f.store_masked(narrow, at, f.first_lanes(left))


def _load(f: Function, pointer: Value, type: str, left: int) -> Value:
    """Load a vector of which the first `left` lanes exist."""
    if left >= lanes_of(type):
        return f.load(pointer, type)
    return f.load_masked(pointer, f.first_lanes(left, lanes_of(type)), type)
