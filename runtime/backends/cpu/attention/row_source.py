"""Sources of rows: addresses of the rows that attention of few queries reads, and of new rows.

A slot's rows are parts of tensors: contiguous rows, or rows that an index names. Rows of a part may replace rows of the
first part. Addresses of rows are i64, one or several at once; a unit lists those of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sscc.ir.operations import Segment, SelectedRows, UpdateRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.codegen.encoded_rows import put_row
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES, LINE
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Function, Value, lanes_of, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, address, check_rows, load_element, row_bytes

Address = Callable[[Value], Value]
"""Returns the address of a row by its number; with lanes, of several consecutive rows."""


@dataclass(frozen=True)
class Unit:
    """Coordinates of a unit: (slot, KV head, split); with tokens (slot, token, KV head).

    Attributes:
        query: index of the unit's query along the first axis of queries; the slot unless a step has several tokens of
            each slot there.
        zeros: private scratch for a row of zeros, `zeros_bytes`.
    """

    context: Context
    query: Value
    slot: Value
    token: Value
    head: Value
    split: Value
    splits: int
    zeros: Value
    zeros_bytes: int

    def at(self, name: str) -> Value:
        """Return the address of the first row of the slot and KV head."""
        return address(self.context.f, self.context.operands[name], self.slot, self.head)


@dataclass(frozen=True)
class Part:
    """Rows first .. first + count - 1 of those that attention reads.

    Attributes:
        value: operand of the values; `key` if values are the first numbers of keys.
        index: operand that names rows of `key` and `value`; "" for contiguous rows.
        in_place: True if rows replace rows of the first part where the index is not negative.
    """

    key: str
    value: str
    index: str
    first: int
    count: int
    in_place: bool = False

    def dense(self, meta: Mapping[str, Meta]) -> bool:
        """Return True if there is an index from which several places can be loaded at once."""
        return bool(self.index) and meta[self.index][1][2] == 1


def parts_of(
    segments: Sequence[Segment | SelectedRows], meta: Mapping[str, Meta], first: int = 0, in_place: bool = False
) -> list[Part]:
    """Return the segments, numbered consecutively from `first` on."""
    parts = []
    for s in segments:
        count = meta[s.index or s.key][0][2]
        parts.append(Part(s.key, s.value or s.key, s.index, first, count, in_place))
        first += count
    return parts


class RowSource:
    """Keys or values of a part, for a unit's slot and KV head. `index` is the address of the part's index and the bytes
    between its places; `zeros` is the address of a row of zeros."""

    def __init__(self, unit: Unit, part: Part, name: str, index: tuple[Value, int] | None, zeros: Value | None) -> None:
        operand = unit.context.operands[name]
        self.f, self.part, self.name, self.index, self.zeros = unit.context.f, part, name, index, zeros
        self.base, self.stride, self.length = self.f.address_of(unit.at(name)), row_bytes(operand), operand.shape[2]

    def row(self, number: Value, mask: Value | None = None, other: Value | None = None) -> Value:
        """Return the address of a row of the part, or of several consecutive rows. With an index, a place beyond the
        rows is reported where `mask` is set; where it is not set, any number is allowed. A row that the index does not
        name has address `other` or, without it, that of a row of zeros."""
        f = self.f
        if self.index is None or self.zeros is None or mask is None:
            return number * self.stride + self.base
        start, stride = self.index
        if lanes_of(number.type):
            place = f.load_masked(start + f.extract(number, 0) * stride, mask, number.type)
            report_index(f, f.any(mask & (place >= self.length)))
        else:
            number = f.min(f.max(number, 0), self.part.count - 1)
            place = f.load(start + number * stride, I64)
            report_index(f, mask & (place >= self.length))
        exists = mask & (place >= 0) & (place < self.length)
        return f.select(exists, place * self.stride + self.base, f.like(self.zeros, place) if other is None else other)

    def nearest(self, number: Value) -> Value:
        """Return the addresses of the `ADDRESSES` rows that the index names at a number or closest to it. Some may not
        exist."""
        f = self.f
        assert self.index is not None
        start = f.max(f.min(number, self.part.count - ADDRESSES), 0)
        return f.load(self.index[0] + start * SIZES["i64"], vector(I64, ADDRESSES)) * self.stride + self.base


def sources_of(
    unit: Unit, parts: Sequence[Part], index: tuple[Value, int] | None = None
) -> list[tuple[RowSource, RowSource]]:
    """Return the keys and values of each part. A row of zeros is written if a part has an index.

    Args:
        index: address of the only part's index and bytes between its places, if it is not an operand with a KV head
            axis.
    """
    f, zeros = unit.context.f, None
    if any(part.index for part in parts):
        f.fill(unit.zeros, unit.zeros_bytes)
        zeros = f.address_of(unit.zeros)

    def source(part: Part, name: str) -> RowSource:
        own = index
        if part.index and not index:
            places = unit.context.operands[part.index]
            of_slots = places.shape[0] == unit.context.operands[part.key].shape[0]
            start = address(f, places, unit.slot if of_slots else unit.query, unit.head)
            own = start, row_bytes(places)
        return RowSource(unit, part, name, own, zeros)

    return [(source(part, part.key), source(part, part.value)) for part in parts]


@dataclass(frozen=True)
class UnitRows:
    """Rows of a unit: numbers first .. first + count - 1 of the rows that its slot sees.

    Attributes:
        keys, values: addresses; with `lanes` > 1 they take that many numbers at once.
        later: returns addresses of keys and of values that an index names, of `ADDRESSES` at a number or closest to it.
            They may be prefetched, but not read.
    """

    first: Value
    count: Value
    keys: Address
    values: Address
    lanes: int
    later: Callable[[Value], list[Value]] = lambda number: []

    def put(self, f: Function, of: Address, entries: Value, start: Value, size: int) -> None:
        """List the addresses of `size` rows from number `start` on. Beyond the unit's rows, the last one is repeated,
        or a row of zeros after the rows of an index."""
        with f.loop(0, size, self.lanes) as loop:
            number = start + loop.index
            if self.lanes > 1:
                number = f.broadcast(number, self.lanes) + f.lanes(self.lanes, I64)
            f.store(of(number), entries + loop.index * 8)

    def put_later(self, f: Function, lists: Sequence[Value], start: Value, size: int) -> None:
        """List `size` keys and values to prefetch during the attention to a block."""
        with f.loop(0, size, ADDRESSES) as loop:
            for entries, row_addresses in zip(lists, self.later(start + loop.index), strict=True):
                f.store(row_addresses, entries + loop.index * 8)


def addresses(f: Function, rows: Value, index: Value, count: int) -> list[Value]:
    """Return entries index .. index + count - 1 of a list of rows, as pointers."""
    return [f.load(rows + index * 8 + i * 8, PTR) for i in range(count)]


def prefetch(f: Function, rows: Sequence[Value], nbytes: int) -> None:
    for row in rows:
        for line in range(0, nbytes, LINE):
            f.prefetch(row + line, 2)


# --------------------------------------------------------------------------------------------------------- new rows


@executes(UpdateRows)
def lower_update_rows(step: UpdateRows, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """Lower `UpdateRows` to one unit per slot and KV head. A row beyond the cache is reported."""
    check_rows(step, meta)
    return Lowered([writing_phase(step.row, [(step.new, step.cache)], meta, step.active)])


def writing_phase(place: str, sides: Sequence[tuple[str, str]], meta: Mapping[str, Meta], active: str = "") -> Phase:
    """Return the phase that writes new rows of tokens to rows of stores, in units of (slot, token, KV head).

    Args:
        place: operand of the rows [slots, tokens]. A row beyond those of a store is reported.
        sides: operands of new rows, and their stores.
        active: operand of the slots that write rows; "" for all whose place is not negative. A negative place of an
            active slot is an error.
    """
    (queries, heads, tokens, _), (slots, _, rows, _) = meta[sides[0][0]][0], meta[sides[0][1]][0]

    def emit(context: Context) -> None:
        f, operands = context.f, context.operands
        with units(context, queries, tokens, heads) as (query, token, head):
            row = load_element(f, operands[place], query, token)
            exists, outside = (row >= 0) & (row < rows), row >= rows
            if active:
                live = load_element(f, operands[active], query).ne(0)
                exists, outside = live & exists, live & exists.eq(0)
            report_index(f, outside)
            with f.when(exists):
                for new, store in sides:
                    put_row(f, operands[new], (query, head, token), operands[store], (slot_of(query), head, row))

    def slot_of(query: Value) -> Value:
        return query if queries == slots else query // (queries // slots)

    return Phase(queries * tokens * heads, emit)
