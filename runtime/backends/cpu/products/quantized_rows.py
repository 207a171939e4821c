"""Rows of the left operand as the integers of products with quantized weights (quantized_products.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import (
    F32,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Function,
    Module,
    Value,
    element_of,
    lanes_of,
    vector,
)
from sscc.runtime.backends.cpu.codegen.transposition import interleave
from sscc.runtime.backends.cpu.products.product_blocks import SIZE, STORED, RowPlaces
from sscc.runtime.backends.cpu.products.quantized_packing import QUAD, QuantizedPanels

LARGEST = {16: 127 * 256 + 127, 8: 127}
"""The largest magnitude of integers of 16 and 8 bits. With this limit, both parts of 16 bits are signed bytes."""
LARGEST_WORD = 2**15 - 1
SMALLEST = 1e-30  # groups whose largest magnitude is less count as zeros
_CHUNK = 2 * LANES
_MAGNITUDE = {I16: 0x7FFF, I32: 0x7FFFFFFF}
Chunk = Callable[[Value, int, Sequence[Value]], list[Value]]
"""A function that adds numbers to a state. Its arguments are the first number, the count (at most 32) and the state."""
_LANES32, _LANESF, BYTES = vector(I32, LANES), vector(F32, LANES), vector(I8, LINE)
WORDS = vector(I16, 2 * LANES)


@dataclass(frozen=True)
class RowForm:
    """Packed form of the integers, and the instructions that sum their products with codes.

    Attributes:
        kind: "dot": bytes that an instruction takes four at a time, [K / 4][parts][R][4], the high parts first;
            "bytes": the same for AVX2 and AVX512BW, which take two at a time; "pairs": words of 16 bits that AVX2 and
            AVX512BW take two at a time, [K / 4][2][parts][R][2], elements 0 and 2 of each four, then 1 and 3; "plain":
            f32 [K / 4][4][parts][R].
        whole: True if sums of products of codes and whole integers fit i32.
        parts: 2 for a high and a low part of 8 bits each; 1 for integers of 8 bits, and for "pairs" if `whole`.
        bits: width of the registers of "pairs" and "bytes".
        quads: for "bytes", the number of quads whose products with codes can be summed in words of 16 bits.
        largest: the largest magnitude of the integers.
        signed: True if the other operand of "dot" consists of signed bytes (Arm), False for unsigned ones
            (AVX512_VNNI).
    """

    kind: Literal["dot", "bytes", "pairs", "plain"]
    whole: bool = False
    parts: int = 2
    bits: int = 0
    signed: bool = False
    quads: int = 0
    largest: int = LARGEST[16]

    @classmethod
    def of(cls, panels: QuantizedPanels, features: Features) -> RowForm:
        """Return the form that suits a CPU."""
        largest = LARGEST[features.activation_bits]
        whole = panels.largest_difference * largest * panels.group < 2**31
        if features.activation_bits == 8:
            return cls._of_bytes(panels, features, largest)
        if features.int8_dot or features.signed_dot:
            return cls("dot", whole, signed=not features.int8_dot)
        if features.int16_dot:
            return cls("pairs", whole, 1 if whole else 2, features.int16_dot)
        return cls("plain")

    @classmethod
    def _of_bytes(cls, panels: QuantizedPanels, features: Features, largest: int) -> RowForm:
        if features.int8_dot or features.signed_dot:
            return cls("dot", True, 1, signed=not features.int8_dot, largest=largest)
        quads = LARGEST_WORD // (2 * panels.largest_code * largest)
        if features.int16_dot and quads:
            return cls("bytes", True, 1, features.int16_dot, quads=quads, largest=largest)
        if features.int16_dot:
            return cls("pairs", True, 1, features.int16_dot, largest=largest)
        return cls("plain", True, 1, largest=largest)

    def reads_signed(self, panels: QuantizedPanels) -> bool:
        """Return True if codes are read as signed numbers: codes of 8 bits, or entries of a table."""
        return self.signed and (panels.flipped or bool(panels.format.codes.table))

    @property
    def name(self) -> str:
        return f"{'s' if self.signed else ''}{self.kind}{self.sums}{'' if self.largest == LARGEST[16] else '_8'}"

    @property
    def sums(self) -> int:
        """Number of sums of a row in a group: one of whole integers, or one per part."""
        return 1 if self.whole else self.parts

    @property
    def quad_bytes(self) -> int:
        """Bytes of four numbers of a row."""
        return {"dot": 4, "bytes": 4, "pairs": 8, "plain": 16}[self.kind] * self.parts

    @property
    def head_bytes(self) -> int:
        """Bytes of a row in a group before its numbers: the step, minus the sums, and minus the sum times the step."""
        return 4 * (2 + self.sums)

    def group_bytes(self, rows: int, quads: int) -> int:
        """Bytes of a group of a packed block."""
        return rows * (self.head_bytes + quads * self.quad_bytes)

    def sum_quads(self, f: Function, sums: Value, codes: Value, parts: Value) -> Value:
        """Return i32 lanes plus the products of four codes and four parts per lane, for "dot"."""
        return (sum_signed_quads if self.signed else sum_quads)(f, sums, codes, parts)


def sum_signed_quads(f: Function, sums: Value, a: Value, b: Value) -> Value:
    """Return i32 lanes plus the products of four signed bytes per lane, by Arm's dot product."""
    bytes_a, bytes_b, quarters = f.bitcast(a, BYTES), f.bitcast(b, BYTES), []
    for at in range(0, LANES, LANES // 4):
        of_bytes = range(QUAD * at, QUAD * at + LANES)
        operands = [f.shuffle(sums, sums, range(at, at + LANES // 4))]
        operands += [f.shuffle(value, value, of_bytes) for value in (bytes_a, bytes_b)]
        quarters.append(f.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", operands, vector(I32, LANES // 4)))
    low, high = (f.shuffle(quarters[at], quarters[at + 1], range(LANES // 2)) for at in (0, 2))
    return f.shuffle(low, high, range(LANES))


def sum_pairs(f: Function, bits: int, a: Value, b: Value) -> Value:
    """Return the sums of products of two signed words of 16 bits per i32 lane, by instructions of 256 or 512 bits."""
    if bits == 512:
        return f.intrinsic("llvm.x86.avx512.pmaddw.d.512", [a, b], _LANES32)
    halves = [[f.shuffle(value, value, range(at, at + LANES)) for value in (a, b)] for at in (0, LANES)]
    low, high = (f.intrinsic("llvm.x86.avx2.pmadd.wd", half, vector(I32, LANES // 2)) for half in halves)
    return f.shuffle(low, high, range(LANES))


def byte_products(f: Function, bits: int, unsigned: Value, signed: Value) -> Value:
    """Return the sums of products of two bytes, unsigned and signed, in words: i16 [32], by instructions of 256 or 512
    bits. The sums must fit the words."""
    a, b = f.bitcast(unsigned, BYTES), f.bitcast(signed, BYTES)
    if bits == 512:
        return f.intrinsic("llvm.x86.avx512.pmaddubs.w.512", [a, b], WORDS)
    halves = [[f.shuffle(value, value, range(at, at + 2 * LANES)) for value in (a, b)] for at in (0, 2 * LANES)]
    low, high = (f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", half, vector(I16, LANES)) for half in halves)
    return f.shuffle(low, high, range(2 * LANES))


def sum_words(f: Function, bits: int, words: Value) -> Value:
    """Return the sums of two neighbouring words, i32 [16]."""
    return sum_pairs(f, bits, words, f.splat(1, 2 * LANES, I16))


def sum_quads(f: Function, sums: Value, unsigned: Value, signed: Value) -> Value:
    """Return i32 lanes plus the products of four unsigned and four signed bytes per lane, by AVX512_VNNI."""
    operands = [sums, f.bitcast(unsigned, BYTES), f.bitcast(signed, BYTES)]
    return f.intrinsic("llvm.x86.avx512.vpdpbusd.512", operands, _LANES32)


def pack_block(
    dtype: str, form: RowForm, panels: QuantizedPanels, module: Module, rows: int, places: RowPlaces
) -> Function:
    """Return the private function that packs rows first .. first + rows - 1 in the form that kernels read; `rows` is 1,
    2, 4 or 8."""
    group, quads = panels.group, panels.quads
    name = f"product_quantize_{dtype}_{form.name}_{group}_{rows}{places.name}"
    if module.has(name):
        return module.get(name)
    params = [("a", PTR), *places.params, ("first", I64), ("groups", I64), ("zero", I64), ("out", PTR)]
    f = module.function(name, params)
    sources = [places.address(f, f["a"], f["first"] + r) for r in range(rows)]
    zero = f.cast("arith.trunci", f["zero"], I32)
    with f.loop(0, f["groups"]) as loop:
        head = f["out"] + loop.index * form.group_bytes(rows, quads)
        starts = [source + loop.index * (group * SIZE[dtype]) for source in sources]
        most = largest(f, starts, dtype, group)
        inverses = f.select(most > SMALLEST, f.like(form.largest, most) / most, 0.0)
        # The last lanes may be written behind the group; the next group overwrites them.
        sums = _split_rows(f, starts, dtype, group, inverses, head + form.head_bytes * rows, form)
        folded = 0 - _fold(f, sums, form.parts * rows)
        each = [f.shuffle(folded, folded, range(part * rows, (part + 1) * rows)) for part in range(form.parts)]
        if form.whole and form.parts == 2:
            each = [(each[0] << 8) + each[1]]
        steps = most * (1.0 / form.largest)
        f.store(steps, head)
        for number, part in enumerate(each):
            f.store(part * zero, head + 4 * rows * (1 + number))
        f.store(joined(f, each) * steps, head + 4 * rows * (1 + form.sums))
    f.returns()
    return f


def _chunks(f: Function, group: int, state: Sequence[Value], add: Chunk) -> list[Value]:
    """Return the state after `add` for each 32 numbers of a group; the last may have fewer."""
    whole, rest = divmod(group, _CHUNK)
    if whole > 1:
        with f.loop(0, whole * _CHUNK, _CHUNK, state) as loop:
            loop.carry(*add(loop.index, _CHUNK, loop.state))
        state = loop.results
    elif whole:
        state = add(f.constant(0), _CHUNK, state)
    return add(f.constant(whole * _CHUNK), rest, state) if rest else list(state)


def load(f: Function, start: Value, dtype: str, first: Value, count: int, lanes: int) -> Value:
    """Return elements of a group from the first on in their stored form, with zeros after `count`."""
    type, pointer = vector(STORED[dtype], lanes), start + first * SIZE[dtype]
    if count >= lanes:
        return f.load(pointer, type)
    return f.load_masked(pointer, f.first_lanes(max(count, 0), lanes), type)


def largest(f: Function, starts: Sequence[Value], dtype: str, group: int) -> Value:
    """Return the largest magnitude in a group for each row, f32 [rows].

    Magnitudes are compared as integers, because the bits of non-negative floats are in numeric order. NaN is the
    largest.
    """
    bits, lanes = (I16, 2 * LANES) if dtype == "bf16" else (I32, LANES)

    def magnitudes(start: Value, first: Value, count: int) -> Value:
        halves = [load(f, start, dtype, first + at, count - at, lanes) for at in range(0, _CHUNK, lanes)]
        positive = [f.bitcast(half, vector(bits, lanes)) & _MAGNITUDE[bits] for half in halves]
        return positive[0] if len(positive) == 1 else f.max(*positive)

    def add(first: Value, count: int, state: Sequence[Value]) -> list[Value]:
        found = [magnitudes(start, first, count) for start in starts]
        return [f.max(a, b) for a, b in zip(state, found, strict=True)] if state else found

    single = group <= _CHUNK
    state = [] if single else [f.splat(0, lanes, bits)] * len(starts)
    combined = _largest_lanes(f, _chunks(f, group, state, add))
    if dtype == "bf16":
        return f.bitcast(f.cast("arith.extui", combined, I32) << 16, vector(F32, len(starts)))
    return f.bitcast(combined, vector(F32, len(starts)))


def _largest_lanes(f: Function, vectors: Sequence[Value]) -> Value:
    """Return the largest lane of each of 1, 2, 4 or 8 vectors of integers, one lane per vector."""
    held, rows, segments = list(vectors), len(vectors), 1
    while (lanes := lanes_of(held[0].type)) > rows or len(held) > 1:
        length, together = lanes // segments, min(len(held), 2)
        segments *= together
        low = [at * length + lane for at in range(segments) for lane in range(length // 2)]
        high = [lane + length // 2 for lane in low]
        pairs = [(held[at], held[at + together - 1]) for at in range(0, len(held), together)]
        held = [f.max(f.shuffle(a, b, low), f.shuffle(a, b, high)) for a, b in pairs]
    return held[0]


def _split_rows(
    f: Function, starts: Sequence[Value], dtype: str, group: int, inverses: Value, out: Value, form: RowForm
) -> Value:
    """Write the numbers of a group of all rows. Return their sums as i32; lane i holds the sum of part i // rows %
    form.parts of row i % rows."""
    rows = len(starts)
    factors = [f.broadcast(f.extract(inverses, row), LANES) for row in range(rows)]

    def add(first: Value, count: int, state: Sequence[Value]) -> list[Value]:
        (sums,), packed = state, []
        for start, factor in zip(starts, factors, strict=True):
            halves = [f.widen(load(f, start, dtype, first + at, count - at, LANES)) for at in (0, LANES)]
            packed.append(_as_form(f, [integers(f, half * factor) for half in halves], form))
        at = out + first * (rows * form.quad_bytes // QUAD)
        # Each row has several vectors, each of which is stored beside the corresponding vectors of the other rows.
        dense = [line for column in zip(*packed, strict=True) for line in _neighbours(f, column)]
        for number, line in enumerate(dense):
            f.store(line, at + 4 * lanes_of(line.type) * number)
            sums = _with_sums(f, sums, line, form)
        return [sums]

    zeros = f.splat(0, LANES, F32 if form.kind == "plain" else I32)
    (total,) = _chunks(f, group, [zeros], add)
    return f.cast("arith.fptosi", total, I32) if form.kind == "plain" else total


def _with_sums(f: Function, sums: Value, line: Value, form: RowForm) -> Value:
    """Return the sums plus the numbers of a vector, lane by lane."""
    if lanes_of(line.type) < LANES:
        line = f.shuffle(line, f.splat(0, lanes_of(line.type), I32), range(LANES))
    if form.kind == "dot":
        return form.sum_quads(f, sums, f.splat(0x01010101, LANES, I32), line)
    if form.kind == "bytes":
        return sums + sum_words(f, form.bits, byte_products(f, form.bits, f.splat(0x01010101, LANES, I32), line))
    if form.kind == "pairs":
        return sums + sum_pairs(f, form.bits, f.bitcast(line, WORDS), f.splat(1, 2 * LANES, I16))
    return sums + line


def _neighbours(f: Function, column: Sequence[Sequence[Value]]) -> list[Value]:
    """Return the vectors of a column, one per row and part, interleaved by lane: part by part, and within a part row by
    row."""
    return interleave(f, [vectors[part] for part in range(len(column[0])) for vectors in column])


def _as_form(f: Function, halves: Sequence[Value], form: RowForm) -> list[tuple[Value, ...]]:
    """Return 32 integers of a row in their stored form: vectors of 16 lanes in stored order. Vectors of several parts
    that are stored side by side are grouped."""
    if form.kind in ("dot", "bytes"):
        return [(_as_bytes(f, halves) if form.parts == 1 else _as_quads(f, halves),)]
    if form.kind == "pairs" and form.parts == 1:
        return [(_as_pairs(f, halves),)]
    if form.parts == 1:
        return [(f.cast("arith.sitofp", half, F32),) for half in halves]
    parts = [split(f, integers) for integers in halves]
    if form.kind == "pairs":
        return [tuple(_as_pairs(f, part) for part in zip(*parts, strict=True))]
    return [(line,) for line in _as_floats(f, parts)]


def integers(f: Function, scaled: Value) -> Value:
    """Return 16 numbers rounded to integers, halves to even."""
    return f.intrinsic("llvm.lrint.v16i32.v16f32", [scaled], _LANES32)


def split(f: Function, integer: Value) -> tuple[Value, Value]:
    """Return the high and the low part of integers of 16 or 32 bits; the high part has 8 bits."""
    spare = {I16: 8, I32: 24}[element_of(integer.type)]
    low = f.binary("arith.shrsi", integer << spare, spare)
    return f.binary("arith.shrsi", integer - low, 8), low


def _words(f: Function, halves: Sequence[Value], lanes: Sequence[int]) -> Value:
    """Return lanes of 32 integers as words of 16 bits."""
    low, high = (f.cast("arith.trunci", integers, I16) for integers in halves)
    return f.shuffle(low, high, lanes)


def _as_pairs(f: Function, halves: Sequence[Value]) -> Value:
    """Return 32 integers as words of 16 bits, two in a lane: elements 0 and 2 of each four, then 1 and 3."""
    lanes = [quad + at for quad in range(0, 2 * LANES, QUAD) for at in (0, 2, 1, 3)]
    return f.bitcast(_words(f, halves, lanes), _LANES32)


def _as_bytes(f: Function, halves: Sequence[Value]) -> Value:
    """Return 32 integers of 8 bits as bytes, with quads in i32 lanes: 8 lanes."""
    words = _words(f, halves, range(2 * LANES))
    return f.bitcast(f.cast("arith.trunci", words, I8), vector(I32, LANES // 2))


def _as_quads(f: Function, halves: Sequence[Value]) -> Value:
    """Return the parts of 32 integers as bytes, with quads in i32 lanes, each quad of high parts before its low
    parts."""
    parts = split(f, _words(f, halves, range(2 * LANES)))
    high, low = (f.bitcast(f.cast("arith.trunci", part, I8), vector(I32, LANES // 2)) for part in parts)
    return f.shuffle(high, low, [quad + LANES // 2 * part for quad in range(LANES // 2) for part in range(2)])


def _as_floats(f: Function, halves: Sequence[tuple[Value, Value]]) -> list[Value]:
    """Return the parts of 32 elements as f32, each high part before its low part: 4 vectors."""
    return [
        line for high_low in halves for line in interleave(f, [f.cast("arith.sitofp", part, F32) for part in high_low])
    ]


def joined(f: Function, parts: Sequence[Value]) -> Value:
    """Return the sum of a high part and a low one, or the sum of whole integers, as f32."""
    high, *low = (f.cast("arith.sitofp", part, F32) for part in parts)
    return f.fma(high, f.like(256.0, high), low[0]) if low else high


def _fold(f: Function, value: Value, lanes: int) -> Value:
    """Return the sums of lanes i, i + lanes, i + 2 * lanes, .., for i < lanes."""
    while (half := lanes_of(value.type) // 2) >= lanes:
        value = f.shuffle(value, value, range(half)) + f.shuffle(value, value, range(half, 2 * half))
    return value
