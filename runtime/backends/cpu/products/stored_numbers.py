"""Numbers of quantized weights, row by row: look-ups in a table, and weights that no product reads packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.operations import Dequantize, LookUp
from sscc.ir.weight_formats.fields import DIGITS, FLOAT_BYTES, Field, Run
from sscc.ir.weight_formats.registry import format_named
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.indices import cut_index
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F16, F32, I8, I16, I32, I64, Function, Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.codegen.programs import FLOAT8_FACTOR, widen_float8
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces, address, check_strides
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.panel_reading import BlockHeads, power_of_two, stored_codes, widened
from sscc.runtime.backends.cpu.products.product_blocks import SIZE, rounded
from sscc.runtime.backends.cpu.products.quantized_packing import QUAD, QuantizedPanels

_WORD = 4


class StoredNumberErrors(ErrorKind):
    NOT_PACKED = InputError, "the table of a look-up is read in a way that native code cannot pack it for"


def lower_stored(
    step: Dequantize | LookUp,
    operands: Mapping[str, Meta],
    features: Features,
    packed: Mapping[str, Panels | QuantizedPanels],
) -> Lowered:
    """Lower one phase, in units of rows of the result. See `Dequantize` and `LookUp`.

    Args:
        packed: packed layouts of operands, by the names that the step uses.

    Raises:
        InputError: a row is not contiguous, or the table of a look-up is not packed.
    """
    if isinstance(step, Dequantize):
        check_strides(step.kind, dict(operands), (step.out, *(part.bytes for part in step.parts)))
        matrices, rows, columns = operands[step.out][0]
        raw = _RawRow(format_named(step.format), columns)
        return Lowered((Phase(matrices * rows, partial(_dequantize, step, raw), raw.scratch_bytes),))
    table = step.tables[0].bytes
    panels = packed.get(table)
    if not isinstance(panels, QuantizedPanels):
        raise StoredNumberErrors.NOT_PACKED()
    check_strides(step.kind, dict(operands), (step.out,))
    (count,) = operands[step.index][0]
    return Lowered((Phase(count, partial(_look_up, step, panels, features), private_bytes=LANES * _WORD),))


# ------------------------------------------------------------------------------------------------------- from panels


def _look_up(step: LookUp, panels: QuantizedPanels, features: Features, context: Context) -> None:
    f = context.f
    table, index, out = (context.operands[name] for name in (step.tables[0].bytes, step.index, step.out))
    with f.loop(context.begin, context.end) as unit:
        row = cut_index(f, f.load(address(f, index, unit.index), I64), panels.n)
        panel = table.pointer + row // LANES * panels.panel_bytes
        lane = context.private + row % LANES * _WORD
        target = address(f, out, unit.index)
        with f.loop(0, panels.blocks) as block:
            start = target + block.index * (panels.format.block * SIZE[out.dtype])
            here = panel + block.index * panels.block_bytes
            _block(f, panels, features, here, context.private, lane, start, out.dtype)


def _block(
    f: Function, panels: QuantizedPanels, features: Features, block: Value, numbers: Value, lane: Value, out: Value,
    dtype: str,
) -> None:  # fmt: skip
    """Write the numbers of one output of a block of a panel. The numbers of all 16 outputs are computed, into
    `numbers`."""
    if panels.floating:
        _float_block(f, panels, block, numbers, lane, out, dtype)
        return
    step, count = lcm(*(plane.quads for plane in panels.layout.planes)), -(-panels.format.block // QUAD)
    reader = _BlockReader(f, panels, features, BlockHeads(f, panels, block), numbers, lane, dtype)
    whole = count // step
    with f.loop(0, whole) as loop:
        reader.write(loop.index * step, 0, step, out + loop.index * (step * QUAD * SIZE[dtype]))
    if count % step:
        reader.write(f.constant(whole * step), 0, count % step, out + whole * step * QUAD * SIZE[dtype])


def _float_block(
    f: Function, panels: QuantizedPanels, block: Value, numbers: Value, lane: Value, out: Value, dtype: str
) -> None:
    """Write the numbers of one output of a block of small floats, like `_block`."""
    kind = panels.format.codes.kind
    scales, factor = BlockHeads(f, panels, block).scales(0, 0), FLOAT8_FACTOR if kind == "e4m3" else 1.0
    lines = block + panels.layout.planes[0].offset
    with f.loop(0, panels.format.block) as k:
        value = widened(f, lines + k.index * (LANES * FLOAT_BYTES[kind]), kind)
        f.store(value if scales is None else value * factor * scales, numbers)
        f.store(rounded(f, f.load(lane, F32), dtype), out + k.index * SIZE[dtype])


@dataclass(frozen=True)
class _BlockReader:
    """Reader of the numbers of a block of a panel, a few quads at a time."""

    f: Function
    panels: QuantizedPanels
    features: Features
    heads: BlockHeads
    numbers: Value
    lane: Value
    dtype: str

    def write(self, begin: Value, static: int, count: int, out: Value) -> None:
        """Write the numbers of `count` quads from quad `begin` + `static` on."""
        f, panels = self.f, self.panels
        first = begin * QUAD // panels.group
        codes = stored_codes(f, panels, self.heads.block, begin, static, count, self.features)
        factors: dict[int, tuple[Value | None, Value | None, Value | float]] = {}
        for quad, code in enumerate(codes):
            number = quad * QUAD // panels.group if count * QUAD > panels.group else 0
            if number not in factors:
                factors[number] = self.heads.scales(first, number), self.heads.minimums(first, number), self._zero(
                    first, number
                )
            for byte in range(min(QUAD, panels.group - quad * QUAD % panels.group)):
                f.store(self._number(code, byte, *factors[number]), self.numbers)
                stored = rounded(f, f.load(self.lane, F32), self.dtype)
                f.store(stored, out + (quad * QUAD + byte) * SIZE[self.dtype])

    def _zero(self, first: Value, number: int) -> Value | float:
        zeros = self.heads.zeros(first, number)
        if zeros is None:
            return float(self.panels.offset)
        return self.f.cast("arith.sitofp", zeros + (self.panels.offset if self.panels.flipped else 0), F32)

    def _number(
        self, codes: Value, byte: int, scales: Value | None, minimums: Value | None, zero: Value | float
    ) -> Value:
        """Return the numbers of one byte of each of 16 quads, f32 [16]."""
        f = self.f
        code = (codes >> (8 * byte) if byte else codes) & 255
        value = f.cast("arith.sitofp", code, F32)
        value = value - zero if isinstance(zero, Value) or zero else value
        value = value if scales is None else value * scales
        if minimums is None:
            return value
        return value - minimums if self.panels.format.subtracts else value + minimums


# ------------------------------------------------------------------------------------------------ from stored parts


def _dequantize(step: Dequantize, raw: _RawRow, context: Context) -> None:
    f = context.f
    out, parts = context.operands[step.out], [context.operands[part.bytes] for part in step.parts]
    _, rows, columns = out.shape
    block, size = raw.format.block, SIZE[out.dtype]
    with f.loop(context.begin, context.end) as unit:
        matrix, row = unit.index // rows, unit.index % rows
        starts = [address(f, part, matrix, row) for part in parts]
        target = address(f, out, matrix, row)
        with f.loop(0, columns // block) as number:
            here = [
                start + number.index * part.bytes for start, part in zip(starts, raw.format.parts, strict=True)
            ]
            raw.write(f, here, context.private, target + number.index * (block * size), out.dtype)


class _RawRow:
    """Numbers of a row, computed from its stored parts one at a time. Rarely used: products read packed weights."""

    def __init__(self, weight_format: WeightFormat, columns: int) -> None:
        self.format, self.columns = weight_format, columns
        self._places = {part.name: number for number, part in enumerate(weight_format.parts)}
        sizes = {f"{number}": field.count * _WORD for number, field in enumerate(weight_format.fields)}
        self._pieces = ScratchPieces(**sizes)

    @property
    def scratch_bytes(self) -> int:
        return self._pieces.nbytes

    def write(self, f: Function, parts: Sequence[Value], scratch: Value, out: Value, dtype: str) -> None:
        """Write the numbers of a block whose parts are at these addresses."""
        fields, pieces = self.format.fields, self._pieces.at(scratch)
        stored = {id(field): pieces[f"{number}"] for number, field in enumerate(fields)}
        for field in fields:
            self._field(f, field, parts[self._places[field.part]], stored[id(field)])

        def at(field: Field, number: Value) -> Value:
            return f.load(stored[id(field)] + number // field.per * _WORD, F32)

        with f.loop(0, self.format.block) as number:
            value = at(self.format.codes, number.index)
            if self.format.zeros is not None:
                value = value - at(self.format.zeros, number.index)
            for fields, join in ((self.format.scales, f.mul), (self.format.minimums, self._join(f))):
                if fields:
                    factor = at(fields[0], number.index)
                    for field in fields[1:]:
                        factor = factor * at(field, number.index)
                    value = join(value, factor)
            f.store(rounded(f, value, dtype), out + number.index * SIZE[dtype])

    def _join(self, f: Function) -> Callable[[Value, Value], Value]:
        return f.sub if self.format.subtracts else f.add

    def _field(self, f: Function, field: Field, part: Value, out: Value) -> None:
        """Write the numbers of a field, f32."""
        if field.is_float:
            size = FLOAT_BYTES[field.kind]
            with f.loop(0, field.count) as number:
                pointer = part + number.index * size + field.runs[0][0].at
                f.store(_float(f, pointer, field.kind), out + number.index * _WORD)
            return
        first = 0
        for group in field.runs:
            for place, run in enumerate(group):
                self._run(f, run, part, out + first * _WORD, joins=place > 0)
            first += group[0].count
        with f.loop(0, field.count) as number:
            pointer = out + number.index * _WORD
            f.store(_interpreted(f, field, f.load(pointer, I32)), pointer)

    def _run(self, f: Function, run: Run, part: Value, out: Value, *, joins: bool) -> None:
        """Write the bits of the numbers of a run, i32, or add them to the bits already written."""
        levels = DIGITS if run.base == 3 else (8 - run.low) // run.bits
        with f.loop(0, -(-run.count // (levels * run.side))) as byte, f.loop(0, run.side) as column:
            stored = f.load(part + byte.index * run.side + column.index + run.at, I8)
            wide = f.cast("arith.extui", stored, I32)
            for level in range(levels):
                number = (byte.index * levels + level) * run.side + column.index
                with f.when(number < run.count):
                    bits = _bits(f, run, wide, level) << run.shift
                    pointer = out + number * _WORD
                    f.store(f.load(pointer, I32) | bits if joins else bits, pointer)


def _bits(f: Function, run: Run, byte: Value, level: int) -> Value:
    if run.base == 3:
        digits: Value = (byte * 3**level & 255) * 3 >> 8
        return digits
    shifted: Value = byte >> (run.low + run.bits * level)
    bits: Value = shifted & ((1 << run.bits) - 1)
    return bits


def _float(f: Function, pointer: Value, kind: str) -> Value:
    if kind == "f32":
        return f.load(pointer, F32)
    if kind == "e4m3":
        return widen_float8(f, f.load(pointer, I8)) * FLOAT8_FACTOR
    return f.widen(f.bitcast(f.load(pointer, I16), {"bf16": BF16, "f16": F16}[kind]))


def _interpreted(f: Function, field: Field, bits: Value) -> Value:
    """Return the value of the bits of an integer field, f32."""
    if field.table:
        value = f.constant(field.table[0], I32)
        for code, entry in enumerate(field.table[1:], 1):
            value = f.select(bits.eq(code), f.constant(entry, I32), value)
        return f.cast("arith.sitofp", value, F32)
    match field.kind:
        case "exponent":
            return power_of_two(f, bits, field.bias)
        case "signed":
            unused = 32 - field.bits
            return f.cast("arith.sitofp", f.binary("arith.shrsi", bits << unused, unused), F32)
        case _:
            return f.cast("arith.sitofp", bits - field.bias if field.bias else bits, F32)
