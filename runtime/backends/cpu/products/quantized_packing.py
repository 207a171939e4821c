"""Quantized weights in panels of 16 outputs: codes in planes of bits, scales and minimums beside them.

The layout of a panel derives from the format's descriptor (`sscc.ir.weight_formats`), which maps bits of a stored block
to bits of a panel. Native code copies the bits (`_native.pack_panels`), using tables that this module computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from sscc.ir.errors import ErrorKind, InputError, InternalError
from sscc.ir.weight_formats.fields import DIGITS, FLOAT_BYTES, Field
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LINE, PACKED_AT_ONCE
from sscc.runtime.support import _native

Table = npt.NDArray[np.int32]

QUAD = 4
"""The number of neighboring k whose products one instruction sums."""
TERNARY = 0
"""The width of a plane whose bytes hold five ternary digits."""
_WIDTHS = {8: (8,), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}
"""Widths of the planes of a code, low bits first, by the bits of the code."""
_NIBBLE = 4


class QuantizedPanelErrors(ErrorKind):
    FORMAT = InternalError, "weights cannot be packed as {panels}"
    BLOCKS = InternalError, "sums of {k} numbers cannot be packed in blocks of {block}"
    PARTS_DIFFER = (
        InputError,
        "{parts} are not the parts of {panels}",
    )


@dataclass(frozen=True)
class Plane:
    """Some bits of all codes of a block, in lines of 64 bytes.

    A line holds `quads` units of 4 k of 16 outputs: byte [j][c] has the bits of output j and k = c of the first unit in
    its lowest bits, those of the second unit above, and so on. The last line of a block may be partly used.

    Attributes:
        width: bits of a code, or TERNARY.
        shift: the lowest of these bits in the code.
        offset: bytes from the start of the block to the first line.
    """

    width: int
    shift: int
    offset: int

    @property
    def quads(self) -> int:
        return DIGITS if self.width == TERNARY else 8 // self.width


@dataclass(frozen=True)
class Head:
    """A scale, minimum or zero point in a panel: an element for each of 16 outputs, one after another.

    Attributes:
        offset: bytes from the start of the block to the first element.
        size: bytes of an element.
        step: bytes from the elements of a group to those of the next.
        low: lowest bit of an integer in its byte.
        bits: number of bits of an integer.
    """

    field: Field
    offset: int
    size: int
    step: int
    low: int = 0
    bits: int = 8

    @property
    def per_block(self) -> bool:
        """True for one element per block and output."""
        return self.field.count == 1


@dataclass(frozen=True)
class BlockLayout:
    """Layout of a block of a panel for all weights of a format: heads of the block, heads of each group, planes of
    codes."""

    heads: tuple[Head, ...]
    planes: tuple[Plane, ...]
    nbytes: int

    def head(self, field: Field) -> Head:
        return next(head for head in self.heads if head.field is field)


@cache
def layout_of(weight_format: WeightFormat) -> BlockLayout:
    """Return the block of a panel of a format."""
    groups = weight_format.block // weight_format.group
    fields = weight_format.fields[1:]
    offset, heads = 0, []
    for field in (field for field in fields if field.count == 1):
        size = FLOAT_BYTES[field.kind] if field.is_float else 1
        heads.append(Head(field, offset, size, 0))
        offset += LANES * size
    several = [field for field in fields if field.count > 1]
    step = 0
    nibbles: list[Head] = []
    for field in several:
        size = FLOAT_BYTES[field.kind] if field.is_float else 1
        if field.bits == _NIBBLE and nibbles:  # two of 4 bits share a byte
            heads.append(Head(field, nibbles.pop().offset, 1, 0, low=_NIBBLE, bits=_NIBBLE))
            continue
        heads.append(Head(field, offset + step, size, 0, bits=_NIBBLE if field.bits == _NIBBLE else 8))
        nibbles += [heads[-1]] if field.bits == _NIBBLE else []
        step += LANES * size
    heads = [head if head.per_block else Head(head.field, head.offset, head.size, step, head.low, head.bits)
             for head in heads]  # fmt: skip
    offset += groups * step
    codes, planes, shift = weight_format.codes, [], 0
    if codes.is_float:
        nbytes = weight_format.block * FLOAT_BYTES[codes.kind]
        return BlockLayout(tuple(heads), (Plane(8, 0, offset),), offset + -(-nbytes // QUAD) * LINE)
    for width in (TERNARY,) if codes.is_ternary else _WIDTHS[codes.bits]:
        plane = Plane(width, shift, offset)
        planes.append(plane)
        offset += -(-weight_format.block // (QUAD * plane.quads)) * LINE
        shift += width
    return BlockLayout(tuple(heads), tuple(planes), offset)


@dataclass(frozen=True)
class QuantizedPanels:
    """The layout of a quantized weight for out[m, n] = sum over k of a[m, k] * b[n, k].

    Bytes [ceil(N / 16)][K / block][block_bytes], with blocks as in `BlockLayout`. Codes are unsigned: 128 is added to
    signed codes of 8 bits. Floats are stored in lines [4][16] of 4 k (e4m3) or [2][16] of 2 k (f16), where float [c][j]
    belongs to output j and k = c. Bytes with n >= N are zeros.

    Attributes:
        n, k: number of outputs, and length of the sums.
        format: format of the weight. Its group size is a multiple of 8, or the whole of k.
    """

    n: int
    k: int
    format: WeightFormat

    def __post_init__(self) -> None:
        if min(self.n, self.k) < 1:
            raise QuantizedPanelErrors.FORMAT(panels=self)
        if self.k % self.format.block or not (self.fits(self.format) or self.group == self.k):
            raise QuantizedPanelErrors.BLOCKS(k=self.k, block=self.format.block)

    @staticmethod
    def fits(weight_format: WeightFormat) -> bool:
        """Return True if weights of any length can be packed: groups are whole pairs of quads."""
        return weight_format.group % (2 * QUAD) == 0

    def __str__(self) -> str:
        return f"panels of {self.format} [{self.n}, {self.k}]"

    @property
    def layout(self) -> BlockLayout:
        return layout_of(self.format)

    @property
    def count(self) -> int:
        """Panels."""
        return -(-self.n // LANES)

    @property
    def group(self) -> int:
        """Number of k that share a scale."""
        return self.format.group

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return self.k // self.group

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.k // self.format.block

    @property
    def block_groups(self) -> int:
        """Groups of a block."""
        return self.format.block // self.group

    @property
    def quads(self) -> int:
        """Units of 4 k of a group."""
        return -(-self.group // QUAD)

    @property
    def block_bytes(self) -> int:
        return self.layout.nbytes

    @property
    def panel_bytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def packed_bytes(self) -> int:
        return self.count * self.panel_bytes

    @property
    def floating(self) -> bool:
        """True for codes that are small floats."""
        return self.format.codes.is_float

    @property
    def flipped(self) -> bool:
        """True for signed codes of 8 bits, to which 128 is added."""
        return self.format.codes.kind == "signed"

    @property
    def offset(self) -> int:
        """The code that represents 0 if there is no zero point; for a table, the number added to its entries."""
        codes = self.format.codes
        if codes.table:
            return -min(codes.table)
        return 128 if self.flipped else codes.bias

    @property
    def largest_code(self) -> int:
        """The largest unsigned code, an entry of a table with the offset added."""
        codes = self.format.codes
        return max(codes.table) + self.offset if codes.table else codes.largest

    @property
    def largest_difference(self) -> int:
        """The largest magnitude of a code less its zero, for any bytes in an artifact."""
        if self.format.zeros is not None:
            return 255 if self.flipped else self.largest_code + 128
        return max(self.offset, self.largest_code - self.offset)

    def pack(self, *parts: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Pack the weight into panels.

        Args:
            parts: i8 or u8 [.., N, bytes], in the order of the format's parts.

        Returns:
            Panels [.., count, blocks, block_bytes].

        Raises:
            InputError: shapes or dtypes do not match the format.
        """
        stacked = self._check(parts)
        pieces = [np.empty((0, self.blocks, self.block_bytes), np.uint8), *self.pieces(*parts)]
        return np.concatenate(pieces).reshape(*stacked, self.count, self.blocks, self.block_bytes)

    def pieces(self, *parts: npt.NDArray[np.generic]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the result of `pack` in pieces, panels [some, blocks, block_bytes], each small enough for a processor's
        cache."""
        slices = int(np.prod(self._check(parts)))
        stored = [np.ascontiguousarray(part).view(np.uint8).reshape(slices, self.n, -1) for part in parts]
        step = max(1, PACKED_AT_ONCE // self.panel_bytes)
        for number in range(slices):
            for first in range(0, self.count, step):
                rows = slice(first * LANES, min((first + step) * LANES, self.n))
                piece = np.empty((min(step, self.count - first), self.blocks, self.block_bytes), np.uint8)
                some = [part[number, rows] for part in stored]
                _native.pack_panels(some, piece, rows.stop - rows.start, *self._tables)
                yield piece

    def unpack(self, packed: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.int8]]:
        """Return the parts that were packed, i8 [.., N, bytes]."""
        stacked = packed.shape[:-3]
        slices = int(np.prod(stacked))
        panels = np.ascontiguousarray(packed).reshape(slices, self.count, self.blocks, self.block_bytes)
        parts = [np.zeros((slices, self.n, self.blocks * part.bytes), np.uint8) for part in self.format.parts]
        for number in range(slices):
            _native.unpack_panels(panels[number], [part[number] for part in parts], self.n, *self._tables)
        return [part.reshape(*stacked, self.n, -1).view(np.int8) for part in parts]

    def _check(self, parts: tuple[npt.NDArray[np.generic], ...]) -> tuple[int, ...]:
        """Return the shape of the stack of weights in `parts`. Raises InputError if the parts do not match the
        format."""
        wanted = [self.format.stored(part.name, self.n, self.k) for part in self.format.parts]
        stacks = {part.shape[:-2] for part in parts}
        fits = [part.shape[-2:] for part in parts] == wanted and len(stacks) == 1
        if not fits or any(part.dtype not in (np.int8, np.uint8) for part in parts):
            shown = [f"{part.dtype} {list(part.shape)}" for part in parts]
            raise QuantizedPanelErrors.PARTS_DIFFER(parts=shown, panels=str(self))
        return stacks.pop()

    @cached_property
    def _tables(self) -> tuple[Table, Table, Table, Table, int]:
        return _tables_of(self.format)


@cache
def _tables_of(weight_format: WeightFormat) -> tuple[Table, Table, Table, Table, int]:
    """Return the tables with which native code packs the blocks of a format.

    Returns:
        Bytes of a block in each part and then in the panel; runs of codes, rows (part, the fields of `Run` except its
        base, base, number of the first code); bits of heads, rows (part, byte, level, bits, shift, first byte in the
        block of a panel, bytes to the next output, lowest bit); planes, rows (first byte, width, shift, quads of a
        line); and 4 times the bytes of codes of a block, plus 1 if 128 is added to them, 2 if lines are floats of 1
        byte, 3 if they are floats of 2 bytes.
    """
    layout, codes = layout_of(weight_format), weight_format.codes
    place = {part.name: number for number, part in enumerate(weight_format.parts)}
    runs, first, size = [], 0, FLOAT_BYTES.get(codes.kind, 1)
    if codes.is_float:
        runs.append([place[codes.part], codes.runs[0][0].at, codes.count * size, 8, 1, 0, 0, 2, 0])
    for group in codes.runs if not codes.is_float else ():
        for run in group:
            where = (run.at, run.count, run.bits, run.side, run.low, run.shift, run.base)
            runs.append([place[codes.part], *where, first])
        first += group[0].count
    heads: list[list[int]] = []
    for head in layout.heads:
        part = place[head.field.part]
        if head.field.is_float:
            at = head.field.runs[0][0].at
            heads += [[part, at + number * head.size + byte, 0, 8, 0, head.offset + number * head.step + byte,
                       head.size, 0] for number in range(head.field.count) for byte in range(head.size)]  # fmt: skip
            continue
        for number, pieces in enumerate(head.field.pieces()):
            to = head.offset + number * head.step
            heads += [[part, byte, level, bits, shift, to, head.size, head.low + shift]
                      for byte, level, bits, shift, _ in pieces]  # fmt: skip
    planes = [[plane.offset, plane.width, plane.shift, plane.quads] for plane in layout.planes]
    sizes = [*(part.bytes for part in weight_format.parts), layout.nbytes]
    tables = [np.array(table, np.int32) for table in (sizes, runs, heads, planes)]
    flags = 1 + size if codes.is_float else 1 if codes.kind == "signed" else 0
    return tables[0], tables[1], tables[2].reshape(-1, 8), tables[3], weight_format.block * size * 4 + flags
