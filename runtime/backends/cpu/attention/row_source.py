"""Row source: where the rows are that attention reads, and where new rows go.

A slot's rows are parts of tensors: rows one after another, or those that an index names. Those of a part may stand in
the place of rows of the first part. Addresses of rows are i64, one or several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sscc.ir.operations import DecodeAttention, Segment, SelectedRows, UpdateRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.codegen.encoded_rows import put_row
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES, LINE
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Function, Value, lanes_of, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, check_rows, load_element, row_bytes

if TYPE_CHECKING:
    from sscc.runtime.backends.cpu.attention.row_attention import Unit

Address = Callable[[Value], Value]
"""The address of the row of a number."""


@dataclass(frozen=True)
class Part:
    """Rows first .. first + count - 1 of those that attention is over.

    Attributes:
        value: `key` where values are the first numbers of keys.
        index: which rows of `key` and `value` they are; "" where these one after another.
        in_place: True if rows stand in the place of some of the first part's, where the index is not negative.
    """

    key: str
    value: str
    index: str
    first: int
    count: int
    in_place: bool = False

    def dense(self, meta: Mapping[str, Meta]) -> bool:
        """Return True if there is an index of which several places can be loaded at once."""
        return bool(self.index) and meta[self.index][1][2] == 1


def parts_of(segments: Sequence[Segment], meta: Mapping[str, Meta]) -> list[Part]:
    """Return the segments, numbered through."""
    parts, first = [], 0
    for segment in segments:
        count = meta[segment.index or segment.key][0][2]
        parts.append(Part(segment.key, segment.value or segment.key, segment.index, first, count))
        first += count
    return parts


def parts_of_cache(step: DecodeAttention, behind: Sequence[SelectedRows], meta: Mapping[str, Meta]) -> list[Part]:
    """Return the cache, the selected rows in it, and rows behind it."""
    rows = meta[step.key][0][2]
    parts = [Part(step.key, step.value or step.key, "", 0, rows)]
    for segments, first in ((step.segments, step.sink), (behind, rows)):
        for s in segments:
            count = meta[s.index][0][2]
            parts.append(Part(s.key, s.value or s.key, s.index, first, count, segments is step.segments))
    return parts


class RowSource:
    """Keys or values of a part, of a unit's slot and KV head."""

    def __init__(self, unit: Unit, part: Part, name: str, index: tuple[Value, int] | None, zeros: Value | None) -> None:
        operand = unit.context.operands[name]
        self.f, self.part, self.name, self.zeros = unit.f, part, name, zeros
        self.index = index[0] if index else None
        self.index_stride = index[1] if index else 0
        self.base, self.stride, self.length = self.f.address_of(unit.at_row(name)), row_bytes(operand), operand.shape[2]

    def row(self, number: Value, mask: Value | None = None, other: Value | None = None) -> Value:
        """Return the address of a row of the part, or of several whose numbers follow one another. Where there is an
        index, one beyond the rows is reported where `mask` is set; elsewhere the number may be any. A row that an index
        does not name is at address `other`, or where there is none a row of zeros."""
        f = self.f
        if self.index is None or self.zeros is None or mask is None:
            return number * self.stride + self.base
        if lanes_of(number.type):
            place = f.load_masked(self.index + f.extract(number, 0) * self.index_stride, mask, number.type)
            report_index(f, f.any(mask & (place >= self.length)))
        else:
            number = f.min(f.max(number, 0), self.part.count - 1)
            place = f.load(self.index + number * self.index_stride, I64)
            report_index(f, mask & (place >= self.length))
        exists = mask & (place >= 0) & (place < self.length)
        return f.select(exists, place * self.stride + self.base, f.like(self.zeros, place) if other is None else other)

    def nearest(self, number: Value) -> Value:
        """Addresses of the `ADDRESSES` rows that the index names from a number on, or nearest to it. Some may not
        exist."""
        f = self.f
        assert self.index is not None
        start = f.max(f.min(number, self.part.count - ADDRESSES), 0)
        return f.load(self.index + start * SIZES["i64"], vector(I64, ADDRESSES)) * self.stride + self.base


def sources_of(
    unit: Unit, parts: Sequence[Part], index: tuple[Value, int] | None = None
) -> list[tuple[RowSource, RowSource]]:
    """Return the keys and values of each part. A row of zeros is made where a part has an index.

    Args:
        index: where that of the only part is and bytes from place to place, if it is not one of a KV head.
    """
    f, zeros = unit.f, None
    if any(part.index for part in parts):
        with f.loop(0, unit.attention.zeros_bytes, LINE) as loop:
            f.store(f.splat(0.0), unit.zeros + loop.index)
        zeros = f.address_of(unit.zeros)

    def source(part: Part, name: str) -> RowSource:
        own = index
        if part.index and not index:
            own = unit.at_row(part.index), row_bytes(unit.context.operands[part.index])
        return RowSource(unit, part, name, own, zeros)

    return [(source(part, part.key), source(part, part.value)) for part in parts]


# ------------------------------------------------------------------------------------------------- lists of addresses


@dataclass(frozen=True)
class UnitRows:
    """The rows of a unit: numbers first .. first + count - 1 of the rows that its slot sees.

    Attributes:
        keys, values: give the address of the row of a number; with `lanes` > 1 of that many at once.
        later: gives addresses of keys and of values that an index names, of `ADDRESSES` from a number on or nearest to
            it: they may be asked for, and not read.
    """

    first: Value
    count: Value
    keys: Address
    values: Address
    lanes: int
    later: Callable[[Value], list[Value]] = lambda number: []


def list_rows(f: Function, rows: UnitRows, of: Address, entries: Value, start: Value, size: int) -> None:
    """Lists the addresses of `size` rows from number `start` on. Where the unit has no more: its last one again, or a
    row of zeros behind the rows of an index."""
    with f.loop(0, size, rows.lanes) as loop:
        number = start + loop.index
        if rows.lanes > 1:
            number = f.broadcast(number, rows.lanes) + f.lanes(rows.lanes, I64)
        f.store(of(number), entries + loop.index * 8)


def list_later(f: Function, rows: UnitRows, lists: Sequence[Value], start: Value, size: int) -> None:
    """Lists `size` keys and values to prefetch while a block is attended to."""
    with f.loop(0, size, ADDRESSES) as loop:
        for entries, row_addresses in zip(lists, rows.later(start + loop.index), strict=True):
            f.store(row_addresses, entries + loop.index * 8)


def addresses(f: Function, rows: Value, index: Value, count: int) -> list[Value]:
    """Entries index .. index + count - 1 of a list of rows, as pointers."""
    return [f.load(rows + index * 8 + i * 8, PTR) for i in range(count)]


def prefetch(f: Function, rows: Sequence[Value], nbytes: int) -> None:
    for row in rows:
        for line in range(0, nbytes, LINE):
            f.prefetch(row + line, 2)


# --------------------------------------------------------------------------------------------------------- new rows


@executes(UpdateRows)
def lower_update_rows(step: UpdateRows, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """One unit per slot and KV head. A row that the cache does not have is reported."""
    check_rows(step, meta)
    slots, kv_heads, rows, _ = meta[step.cache][0]

    def emit(context: Context) -> None:
        f, operands = context.f, context.operands
        with units(context, slots, kv_heads) as (slot, head):
            row = load_element(f, operands[step.row], slot)
            active = load_element(f, operands[step.active], slot).ne(0)
            exists = (row >= 0) & (row < rows)
            report_index(f, active & exists.eq(0))
            with f.when(active & exists):
                put_row(f, operands[step.new], (slot, head), operands[step.cache], (slot, head, row))

    return Lowered([Phase(slots * kv_heads, emit)])


def writing_phase(position: str, sides: Sequence[tuple[str, str]], meta: Mapping[str, Meta]) -> Phase:
    """Return the phase that writes new rows of tokens to the rows of stores that their positions name, in units of
    (slot, token, KV head). A position beyond the rows is reported.

    Args:
        position: the operand of positions [slots, tokens].
        sides: operands of new rows, and their stores.
    """
    (slots, heads, tokens, _), rows = meta[sides[0][0]][0], meta[sides[0][1]][0][2]

    def emit(context: Context) -> None:
        f, operands = context.f, context.operands
        with units(context, slots, tokens, heads) as (slot, token, head):
            place = load_element(f, operands[position], slot, token)
            report_index(f, place >= rows)
            with f.when((place >= 0) & (place < rows)):
                for new, store in sides:
                    put_row(f, operands[new], (slot, head, token), operands[store], (slot, head, place))

    return Phase(slots * tokens * heads, emit)
