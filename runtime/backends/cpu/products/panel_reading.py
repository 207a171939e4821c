"""Codes, scales and minimums of quantized panels (`quantized_packing`) in registers."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.weight_formats.fields import Field
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F16, F32, I8, I16, I32, Function, Value, vector, with_element
from sscc.runtime.backends.cpu.codegen.programs import FLOAT8_FACTOR, widen_float8
from sscc.runtime.backends.cpu.products.quantized_packing import TERNARY, Plane, QuantizedPanels

_LANES32, _BYTES = vector(I32, LANES), vector(I8, LINE)
_EACH_BYTE = 0x01010101
_SIGNS = -0x7F7F7F80  # 0x80808080


class BlockHeads:
    """Scales, minimums and zero points of a block of a panel. Those that the whole block shares are loaded once."""

    def __init__(self, f: Function, panels: QuantizedPanels, block: Value) -> None:
        self.f, self.panels, self.block = f, panels, block
        factors = (*panels.format.scales, *panels.format.minimums)
        self._of_block = {id(field): self._load(field, 0, 0) for field in factors if field.count == 1}

    def scales(self, first: Value | int, number: int) -> Value | None:
        """Return the scales of group `first` + `number`, f32 [16]; None if the format has no scales."""
        return self._product(self.panels.format.scales, first, number)

    def minimums(self, first: Value | int, number: int) -> Value | None:
        """Return the minimums of a group, f32 [16]; None if the format has no minimums."""
        return self._product(self.panels.format.minimums, first, number)

    def below(self, first: Value | int, number: int) -> Value | None:
        """Return the factors by which a group's minimums multiply minus the sum of its numbers; None if the format has
        no minimums."""
        minimums = self.minimums(first, number)
        return minimums if minimums is None or self.panels.format.subtracts else 0.0 - minimums

    def zeros(self, first: Value | int, number: int) -> Value | None:
        """Return the zero points of a group, i32 [16]; None if the format has no zero points."""
        field = self.panels.format.zeros
        if field is None:
            return None
        return self.f.cast("arith.extsi", self.f.load(self._at(field, first, number), vector(I8, LANES)), I32)

    def _product(self, fields: Sequence[Field], first: Value | int, number: int) -> Value | None:
        product: Value | None = None
        for field in fields:
            value = self._of_block.get(id(field))
            value = self._load(field, first, number) if value is None else value
            product = value if product is None else product * value
        return product

    def _at(self, field: Field, first: Value | int, number: int) -> Value:
        head = self.panels.layout.head(field)
        if isinstance(first, int):
            return self.block + (head.offset + (first + number) * head.step)
        return self.block + first * head.step + (head.offset + number * head.step)

    def _load(self, field: Field, first: Value | int, number: int) -> Value:
        """Return 16 numbers of a field, f32."""
        f, pointer, head = self.f, self._at(field, first, number), self.panels.layout.head(field)
        if field.is_float:
            if field.kind == "f32":
                return f.load(pointer, vector(F32, LANES))
            wide = widened(f, pointer, field.kind)
            return wide * FLOAT8_FACTOR if field.kind == "e4m3" else wide
        stored = f.load(pointer, vector(I8, LANES))
        signed = field.kind == "signed"
        wide = f.cast("arith.extsi" if signed else "arith.extui", stored, I32)
        if head.low:
            wide = wide >> head.low
        if head.bits < 8:
            wide = wide & ((1 << head.bits) - 1)
        if field.kind == "exponent":
            return power_of_two(f, wide, field.bias)
        return f.cast("arith.sitofp", wide - field.bias if field.bias else wide, F32)


def widened(f: Function, pointer: Value, kind: str) -> Value:
    """Return 16 floats of 1 or 2 bytes, f32; those of e4m3 divided by FLOAT8_FACTOR."""
    if kind == "e4m3":
        return widen_float8(f, f.load(pointer, vector(I8, LANES)))
    return f.widen(f.bitcast(f.load(pointer, vector(I16, LANES)), vector({"bf16": BF16, "f16": F16}[kind], LANES)))


def power_of_two(f: Function, exponent: Value, bias: int) -> Value:
    """Return 2^(exponent - bias) of i32 0 <= exponent <= 255, one or 16, for a bias of 127 or 128, f32, subnormal
    numbers included."""
    normal = (exponent + (127 - bias)) << 23
    smallest = f.like(1 << (23 - (bias - 126)), exponent) << f.min(exponent, bias - 127)
    return f.bitcast(f.select(exponent > bias - 127, normal, smallest), with_element(exponent.type, F32))


def stored_codes(
    f: Function,
    panels: QuantizedPanels,
    block: Value,
    begin: Value,
    static: int,
    count: int,
    features: Features,
    *,
    signed: bool = False,
    ahead: int = 0,
) -> list[Value]:
    """Return the codes of `count` quads of a block from quad `begin` + `static` on, bytes [16][4] as i32 [16] each.

    Args:
        begin: a multiple of the quads of a line of every plane.
        signed: True to return signed numbers: codes less their zero, if that is fixed.
        ahead: distance of the prefetch from the loads in bytes; 0 for no prefetch.
    """
    codes: list[Value] | None = None
    for plane in panels.layout.planes:
        pieces = _of_plane(f, plane, block, begin, static, count, ahead)
        if plane.shift:
            pieces = [piece << plane.shift for piece in pieces]
        codes = pieces if codes is None else [code | piece for code, piece in zip(codes, pieces, strict=True)]
    assert codes is not None
    table = panels.format.codes.table
    if table:
        entries = [entry if signed else entry + panels.offset for entry in table]
        return [look_up(f, entries, code, features) for code in codes]
    return [code ^ _SIGNS for code in codes] if signed and panels.flipped else codes


def _of_plane(
    f: Function, plane: Plane, block: Value, begin: Value, static: int, count: int, ahead: int
) -> list[Value]:
    """Return the bits of a plane, the lowest in the lowest bit of each byte."""
    first, pieces = block + begin // plane.quads * LINE, []
    lines: dict[int, list[Value]] = {}
    for quad in range(static, static + count):
        line, level = divmod(quad, plane.quads)
        if line not in lines:
            pointer = first + (plane.offset + line * LINE)
            if ahead:
                f.prefetch(pointer + ahead)
            lines[line] = _levels(f, f.load(pointer, _LANES32), plane)
        pieces.append(lines[line][level])
    return pieces


def _levels(f: Function, line: Value, plane: Plane) -> list[Value]:
    """Return the bits of each quad of a line."""
    if plane.width == TERNARY:
        digits, number = [], f.bitcast(line, _BYTES)
        for _ in range(plane.quads):
            ordered = number ^ -128  # signed numbers in the order of the unsigned ones
            steps = [f.cast("arith.extui", f.compare("gt", ordered, limit - 128), I8) for limit in (85, 170)]
            digits.append(f.bitcast(steps[0] + steps[1], _LANES32))
            number = number + number + number
        return digits
    if plane.width == 8:
        return [line]
    mask = ((1 << plane.width) - 1) * _EACH_BYTE
    return [(line >> (plane.width * level) if level else line) & mask for level in range(plane.quads)]


def signed_words(f: Function, codes: Value) -> tuple[Value, Value]:
    """Return bytes [16][4] as words [16][2]: elements 0 and 2 of each group of four, then 1 and 3."""
    words = f.bitcast(codes, vector(I16, 2 * LANES))
    return words & 255, words >> 8


def look_up(f: Function, table: Sequence[int], codes: Value, features: Features) -> Value:
    """Return for each byte 0 .. 15 of i32 [16] the entry of a table, as a byte."""
    values = f.bitcast(codes, _BYTES)
    entries = [entry if entry < 128 else entry - 256 for entry in table]
    if "avx512bw" in features.extensions:
        found = f.intrinsic("llvm.x86.avx512.pshuf.b.512", [f.values(entries * 4, I8), values], _BYTES)
    elif "avx2" in features.extensions:
        halves = [f.shuffle(values, values, range(at, at + 32)) for at in (0, 32)]
        parts = [
            f.intrinsic("llvm.x86.avx2.pshuf.b", [f.values(entries * 2, I8), half], vector(I8, 32)) for half in halves
        ]
        found = f.shuffle(parts[0], parts[1], range(LINE))
    elif features.signed_dot:
        quarters = [f.shuffle(values, values, range(at, at + 16)) for at in range(0, LINE, 16)]
        parts = [
            f.intrinsic("llvm.aarch64.neon.tbl1.v16i8", [f.values(entries, I8), quarter], vector(I8, 16))
            for quarter in quarters
        ]
        pairs = [f.shuffle(parts[at], parts[at + 1], range(32)) for at in (0, 2)]
        found = f.shuffle(pairs[0], pairs[1], range(LINE))
    else:
        found = f.like(entries[0], values)
        for number, entry in enumerate(entries[1:], 1):
            found = f.select(f.compare("eq", values, number), f.like(entry, values), found)
    return f.bitcast(found, _LANES32)
