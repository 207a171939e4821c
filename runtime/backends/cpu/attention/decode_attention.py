"""Attention of a decode step: `DecodeAttention` as phases, over any number of segments.

A unit is (slot, KV head, split): all query heads of the group over one part of the rows that the slot sees, so that a
cached row is read once. How many splits there are depends on shapes alone; where they begin, on the slot's number of
valid rows, so that the work is even at every context length. With more than one split, a second phase merges them in
order. The unit that has the new row writes it to the caches, encoded where they are, and nobody else reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.operations import AttendChosen, CachedAttention, DecodeAttention, Segment, SelectedRows
from sscc.ir.opspec import executes
from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.backends.cpu.attention import decode_attention_block as block_kernels
from sscc.runtime.backends.cpu.attention.decode_attention_block import NEGATIVE_INFINITY, Block, Result, Scratch
from sscc.runtime.backends.cpu.attention.decode_attention_chunks import Rows, in_order, store_row
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.approximations import decay
from sscc.runtime.backends.cpu.codegen.encoded_rows import write_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES, AHEAD_ROWS, ATTENTION_UNITS, LINE, SPLIT_ROWS
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import F32, I8, I64, Function, Value, lanes_of, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_strides


class NativeAttentionErrors(ErrorKind):
    SEGMENT_DTYPES = (
        InputError,
        "the segments of {step} must have one dtype, but {first!r} is {first_dtype} and {other!r} is {other_dtype}",
    )
    CACHE_DTYPE = (
        InputError,
        "{step} reads rows in the dtype of their cache, but {rows!r} is {rows_dtype} and {cache!r} is {cache_dtype}",
    )


@dataclass(frozen=True)
class Part:
    """A segment: rows first .. first + count - 1 of those that attention is over.

    Attributes:
        value: `key` where V are the first numbers of K's rows.
        index: which rows of `key` and `value` they are; "" where these one after another.
        in_place: True if rows stand in the place of some of the first part's, where the index is not negative.
    """

    key: str
    value: str
    index: str
    first: int
    count: int
    in_place: bool = False


def parts_of(segments: Sequence[Segment], meta: Mapping[str, Meta]) -> list[Part]:
    """Return the segments, numbered through."""
    parts, first = [], 0
    for segment in segments:
        count = meta[segment.index or segment.key][0][2]
        parts.append(Part(segment.key, segment.value or segment.key, segment.index, first, count))
        first += count
    return parts


def _cache_and_more(
    step: DecodeAttention, behind: Sequence[SelectedRows], meta: Mapping[str, Meta]
) -> list[Part]:
    """Return the cache, the selected rows in it, and rows behind it."""
    rows = meta[step.key][0][2]
    parts = [Part(step.key, step.value or step.key, "", 0, rows)]
    for segments, first in ((step.segments, step.sink), (behind, rows)):
        for segment in segments:
            count = meta[segment.index][0][2]
            value = segment.value or segment.key
            parts.append(Part(segment.key, value, segment.index, first, count, segments is step.segments))
    return parts


@dataclass(frozen=True)
class Attention:
    """The sizes of a decode step's attention.

    Attributes:
        slots, kv_heads: B and Hkv.
        rows: of all segments.
        block: what a unit does with a block of rows.
        splits: parts of a slot's rows.
    """

    slots: int
    kv_heads: int
    rows: int
    block: Block

    @property
    def splits(self) -> int:
        units_per_head = -(-ATTENTION_UNITS // (self.slots * self.kv_heads))
        return max(1, min(units_per_head, self.rows // SPLIT_ROWS))

    @property
    def units(self) -> int:
        return self.slots * self.kv_heads * self.splits

    @classmethod
    def of(
        cls,
        step: AttendChosen | CachedAttention | DecodeAttention,
        parts: Sequence[Part],
        meta: Mapping[str, Meta],
        features: Features,
    ) -> Self:
        """Raises InputError where a row of an operand is not contiguous, or where segments are of several dtypes."""
        sides = [part.key for part in parts], [part.value for part in parts]
        sinks = [step.sink_logits] if step.sink_logits else []
        check_strides(step.kind, meta, (step.query, step.out, *sides[0], *sides[1], *sinks))
        for first, *others in sides:
            for name in others:
                if meta[name][2] != meta[first][2]:
                    raise NativeAttentionErrors.SEGMENT_DTYPES(
                        step=step.kind, first=first, first_dtype=meta[first][2], other=name, other_dtype=meta[name][2]
                    )
        (slots, heads, _, depth), _, query = meta[step.query]
        width = meta[step.out][0][3]
        (_, kv_heads, _, _), _, cache = meta[parts[0].key]
        values = meta[parts[0].value][2]
        dot = features.bf16_dot and query == cache == "bf16"
        scattered = any(part.index for part in parts)
        keys = Rows.of(depth, meta[parts[0].key][0], cache, dot)
        ahead = isinstance(step, DecodeAttention) and _is_dense(parts[-1], meta)
        whole = depth if parts[0].value == parts[0].key else width  # values may be the first numbers of keys
        value_rows = Rows.of(width, meta[parts[0].value][0], values, whole=whole)
        block = Block(keys, value_rows, heads // kv_heads, features, scattered, ahead)
        return cls(slots, kv_heads, sum(part.count for part in parts if not part.in_place), block)


def _is_dense(part: Part, meta: Mapping[str, Meta]) -> bool:
    """Whether a segment has an index of which `ADDRESSES` can be loaded at once."""
    return bool(part.index) and meta[part.index][1][2] == 1 and part.count >= ADDRESSES


# ---------------------------------------------------------------------------------------------------- lowering


@executes(DecodeAttention)
def lower_decode_attention(
    step: DecodeAttention, meta: Mapping[str, Meta], features: Features, behind: Sequence[SelectedRows] = ()
) -> Lowered:
    """Lower the step on operands of static shapes and strides, named as in the step.

    A negative position of an active slot is reported, and an index beyond its rows, which names no row.

    Args:
        behind: rows behind those of the cache, zeros where their index names none; the step selects none then.

    Raises InputError where a row is not contiguous, or where what is read of a cache is of another dtype than the
    cache.
    """
    parts = _cache_and_more(step, behind, meta)
    attention = Attention.of(step, parts, meta, features)
    check_strides(step.kind, meta, [name for _, new, cache in _sides(step) for name in (new, cache)])
    for read, _, cache in _sides(step):
        if meta[read][2] != meta[cache][2]:
            raise NativeAttentionErrors.CACHE_DTYPE(
                step=step.kind, rows=read, rows_dtype=meta[read][2], cache=cache, cache_dtype=meta[cache][2]
            )

    def emit(context: Context) -> None:
        with context.f.loop(context.begin, context.end) as loop:
            unit = Unit.of(attention, context, loop.index)
            rows = _rows(unit, step, parts)
            _write_new_row(unit, step, rows)
            attend(unit, step, rows)
            if attention.splits == 1:
                write_result(unit, context.operands[step.out])

    return with_merge(attention, step.out, emit)


def _sides(step: DecodeAttention) -> list[tuple[str, str, str]]:
    """What is read of a cache, its new row, and the cache: of K, and of V where it has a cache of its own."""
    sides = [(step.key, step.new_key, step.k_cache), (step.value, step.new_value, step.v_cache)]
    return sides if step.v_cache else sides[:1]


def with_merge(attention: Attention, out: str, emit: Callable[[Context], None]) -> Lowered:
    """The phase `emit` of `attention.units` units, and where there are splits, the one that merges them."""
    block = attention.block
    extra_bytes = max(block.keys.nbytes, block.values.nbytes) + LINE  # a row of zeros
    if attention.splits == 1:
        return Lowered([Phase(attention.units, emit, block.scratch_bytes + block.result_bytes + extra_bytes)])
    merge = Phase(attention.slots * attention.kv_heads, lambda context: _merge(context, attention, out),
                  (attention.splits + 1) * LINE + block.values.padded_bytes)  # fmt: skip
    first = Phase(attention.units, emit, block.scratch_bytes + extra_bytes)
    return Lowered([first, merge], attention.units * block.result_bytes)


# ------------------------------------------------------------------------------------------------------- units


@dataclass(frozen=True)
class Unit:
    """One unit under construction: where it is, and its memory."""

    attention: Attention
    context: Context
    slot: Value
    head: Value
    split: Value
    scratch: Scratch
    result: Result
    extra: Value

    @classmethod
    def of(cls, attention: Attention, context: Context, number: Value) -> Self:
        block, splits = attention.block, attention.splits
        pair = number // splits
        extra = context.private + block.scratch_bytes
        result = extra if splits == 1 else context.shared + number * block.result_bytes
        return cls(
            attention,
            context,
            pair // attention.kv_heads,
            pair % attention.kv_heads,
            number % splits,
            Scratch(block, context.private),
            Result(block, result),
            extra + block.result_bytes if splits == 1 else extra,
        )

    def at(self, operand: str | Operand, head: Value | None = None) -> Value:
        """The first row of the unit's slot and KV head (or another head)."""
        o = self.context.operands[operand] if isinstance(operand, str) else operand
        index = self.slot * o.strides[0] + (self.head if head is None else head) * o.strides[1]
        return o.pointer + index * DTYPE_BYTES[o.dtype]

    def row_bytes(self, operand: str) -> int:
        """From one row of an operand to the next."""
        o = self.context.operands[operand]
        return o.strides[2] * DTYPE_BYTES[o.dtype]

    def of_slot(self, operand: str) -> Value:
        """The slot's integer, as i64."""
        o, f = self.context.operands[operand], self.context.f
        at = o.pointer + self.slot * (o.strides[0] * DTYPE_BYTES[o.dtype])
        return f.load(at, I64) if o.dtype == "i64" else f.cast("arith.extui", f.load(at, I8), I64)


@dataclass(frozen=True)
class UnitRows:
    """The rows of a unit: numbers first .. first + count - 1 of the rows that its slot sees.

    `keys` and `values` give the address, as i64, of the row of a number; with `lanes` > 1 of that many at once. Where
    `Block.ahead`, `later` gives addresses of keys and of values that an index names, of `ADDRESSES` from a number on or
    nearest to it: they may be asked for, and not read. Row number `new` is the new row, and `has_new` whether it is
    among the unit's.
    """

    first: Value
    count: Value
    keys: Callable[[Value], Value]
    values: Callable[[Value], Value]
    later: Callable[[Value], list[Value]]
    lanes: int
    new: Value
    has_new: Value


def _visible(unit: Unit, step: DecodeAttention, end: Value) -> tuple[Value, Value]:
    """Return the unit's first row and number of rows, of those before `end` that its slot sees."""
    f = unit.context.f
    position = unit.of_slot(step.position)
    report_index(f, unit.of_slot(step.active).ne(0) & (position < 0))
    seen = f.select(unit.of_slot(step.active).ne(0), f.max(position + 1, 0), 0)
    total = f.min(seen, end)
    if step.window_stride is not None:  # of the ring a query sees its chunk
        total = f.min(total, f.max(position, 0) % step.window_stride + 1)
    part = f.ceildiv(f.ceildiv(total, unit.attention.splits), LANES) * LANES
    first = f.min(unit.split * part, total)
    return first, f.min(part, total - first)


def _new_row(unit: Unit, step: DecodeAttention) -> tuple[Value, Value]:
    """Return the row of the cache that the step writes, and where those end that it reads: behind the ring."""
    f, position = unit.context.f, unit.of_slot(step.position)
    topk = unit.context.scalars[step.topk] if step.topk else f.constant(0)
    most = topk + step.sink
    base = f.min(f.max(unit.of_slot(step.base), step.sink), most) if step.base else most
    end = most + step.recent
    return f.select(position < base, position, f.max(position - base, 0) % (end - base) + base), end


def _rows(unit: Unit, step: DecodeAttention, parts: Sequence[Part]) -> UnitRows:
    f = unit.context.f
    row, end = _new_row(unit, step)
    first, count = _visible(unit, step, end + sum(part.count for part in parts[1:] if not part.in_place))
    zeros = zero_row(unit) if any(part.index for part in parts) else None

    def source(part: Part, side: str) -> RowSource:
        return RowSource.of(unit, part, getattr(part, side), zeros)

    def rows_of(side: str, cache: str) -> Callable[[Value], Value]:
        sources = [source(part, side) for part in parts]
        fresh = f.address_of(unit.at(cache))

        def at(number: Value) -> Value:
            r = f.min(number, f.like(first + count - 1, number))
            row_address = sources[0].row(r)
            if sources[0].name != cache:
                row_address = f.select(r.eq(row), r * unit.row_bytes(cache) + fresh, row_address)
            for source in sources[1:]:
                inside = (r >= source.part.first) & (r < source.part.first + source.part.count)
                place = number - source.part.first  # of those inside, but for rows that are none
                other = row_address if source.part.in_place else None
                row_address = f.select(inside, source.row(place, inside & r.eq(number), other), row_address)
            return row_address

        return at

    def later(number: Value) -> list[Value]:
        return [source(parts[-1], side).nearest(number - parts[-1].first) for side in ("key", "value")]

    dense = all(unit.row_bytes(part.index) == DTYPE_BYTES["i64"] for part in parts if part.index)
    lanes = ADDRESSES if dense else 1
    keys, values = rows_of("key", step.k_cache), rows_of("value", step.v_cache or step.k_cache)
    return UnitRows(first, count, keys, values, later, lanes, row, _between(first, row, count))


@dataclass(frozen=True)
class RowSource:
    """K or V of a segment, of the unit's slot and KV head.

    Attributes:
        name: the operand.
        base, index, zeros: addresses as i64 of its first row and of a row of zeros, and a pointer to the first index;
            the latter two where there is one.
    """

    unit: Unit
    part: Part
    name: str
    base: Value
    index: Value | None
    zeros: Value | None

    @classmethod
    def of(cls, unit: Unit, part: Part, name: str, zeros: Value | None) -> RowSource:
        index = unit.at(part.index) if part.index else None
        return cls(unit, part, name, unit.context.f.address_of(unit.at(name)), index, zeros)

    def row(self, number: Value, mask: Value | None = None, other: Value | None = None) -> Value:
        """Return the address, as i64, of a row of the segment, or of several whose numbers follow one another. Where
        there is an index, one beyond the rows is reported where `mask` is set; elsewhere the number may be any. A row
        that an index does not name is at address `other`, or where there is none a row of zeros."""
        unit, f = self.unit, self.unit.context.f
        if self.index is None or self.zeros is None or mask is None:
            return number * unit.row_bytes(self.name) + self.base
        length = unit.context.operands[self.name].shape[2]
        if lanes_of(number.type):
            start = self.index + f.extract(number, 0) * unit.row_bytes(self.part.index)
            index = f.load_masked(start, mask, number.type)
            report_index(f, f.any(mask & (index >= length)))
        else:
            number = f.min(f.max(number, 0), self.part.count - 1)
            index = f.load(self.index + number * unit.row_bytes(self.part.index), I64)
            report_index(f, mask & (index >= length))
        exists = mask & (index >= 0) & (index < length)
        other = f.like(self.zeros, index) if other is None else other
        return f.select(exists, index * unit.row_bytes(self.name) + self.base, other)

    def nearest(self, number: Value) -> Value:
        """Addresses, as i64, of the `ADDRESSES` rows that the index names from a number on, or nearest to it. Some may
        not exist."""
        unit, f = self.unit, self.unit.context.f
        start = f.max(f.min(number, self.part.count - ADDRESSES), 0)
        index = f.load(unit.at(self.part.index) + start * DTYPE_BYTES["i64"], vector(I64, ADDRESSES))
        return index * unit.row_bytes(self.name) + self.base


def _between(first: Value, row: Value, count: Value) -> Value:
    return (row >= first) & (row < first + count)


def zero_row(unit: Unit) -> Value:
    """The address, as i64, of a row of zeros."""
    f, block = unit.context.f, unit.attention.block
    with f.loop(0, max(block.keys.nbytes, block.values.nbytes), LINE) as loop:
        f.store(f.splat(0.0), unit.extra + loop.index)
    return f.address_of(unit.extra)


# --------------------------------------------------------------------------------------------------- attention


def begin_unit(unit: Unit, step: AttendChosen | CachedAttention | DecodeAttention) -> None:
    """Fetches the group's queries and clears the result; that of the first split begins with learned sinks."""
    query = unit.context.operands[step.query]
    f, block = unit.context.f, unit.attention.block
    first, stride = unit.at(query, unit.head * block.group), query.strides[1] * DTYPE_BYTES[query.dtype]
    block_kernels.put_queries(f, block, first, stride, query.dtype, unit.scratch)
    unit.result.clear(f)
    if step.sink_logits is not None:
        sinks = unit.context.operands[step.sink_logits]
        at = address(f, sinks, unit.head * block.group)
        with f.when(unit.split.eq(0)):
            block_kernels.take_sinks(f, block, unit.result, at, sinks.dtype)


def attend_block(unit: Unit, count: Value, scoring: Scoring, then: Callable[[], None] | None = None) -> None:
    """Adds the first `count` rows (1 .. `Block.rows`) of the lists; `then` emits what to do once all keys are read."""
    f, block, scratch = unit.context.f, unit.attention.block, unit.scratch
    for tile in range(len(block.tiles)):
        block_kernels.scores(f, block, tile, count, scratch)
        block_kernels.weights(f, block, tile, count, scoring, scratch, unit.result)
        if then is not None and tile == len(block.tiles) - 1:
            then()
        block_kernels.values(f, block, tile, count, scratch, unit.result)


def attend(unit: Unit, step: AttendChosen | DecodeAttention, rows: UnitRows) -> None:
    """Attention of the unit's group over its rows, into `unit.result`. The next block's keys are listed, and asked
    for, while the values of this one are summed."""
    f, scratch, size, scoring = unit.context.f, unit.scratch, unit.attention.block.rows, Scoring.of(step)
    begin_unit(unit, step)
    with f.when(rows.count > 0):
        _list_rows(f, rows, rows.keys, scratch.keys, rows.first, size)
    with f.loop(0, rows.count, size) as loop:
        start = rows.first + loop.index
        _list_rows(f, rows, rows.values, scratch.values, start, size)
        if unit.attention.block.ahead:
            _list_later(f, rows, scratch, start + AHEAD_ROWS, size)
        count = f.min(rows.count - loop.index, size)
        attend_block(unit, count, scoring, lambda: _list_rows(f, rows, rows.keys, scratch.keys, start + size, size))


def _list_rows(
    f: Function, rows: UnitRows, address_of: Callable[[Value], Value], entries: Value, start: Value, size: int
) -> None:
    """Lists the addresses of `size` rows from number `start` on. Where the unit has no more: its last one again, or a
    row of zeros behind the rows of an index."""
    with f.loop(0, size, rows.lanes) as loop:
        number = start + loop.index
        if rows.lanes > 1:
            number = f.broadcast(number, rows.lanes) + f.lanes(rows.lanes, I64)
        f.store(address_of(number), entries + loop.index * 8)


def _list_later(f: Function, rows: UnitRows, scratch: Scratch, start: Value, size: int) -> None:
    """Lists `size` rows that are asked for while a block is attended to."""
    with f.loop(0, size, ADDRESSES) as loop:
        lists = (scratch.later_keys, scratch.later_values)
        for entries, addresses in zip(lists, rows.later(start + loop.index), strict=True):
            f.store(addresses, entries + loop.index * 8)


def _write_new_row(unit: Unit, step: DecodeAttention, rows: UnitRows) -> None:
    f = unit.context.f
    with f.when(rows.has_new):
        for _, new, cache in _sides(step):
            source, held = unit.context.operands[new], unit.context.operands[cache]
            target = unit.at(cache) + rows.new * unit.row_bytes(cache)
            write_row(f, unit.at(new), source.dtype, target, held.dtype, source.shape[3], held.shape[3])


# ----------------------------------------------------------------------------------------------------- results


def write_result(unit: Unit, out: Operand) -> None:
    """Divides the weighted values by the sums and writes the group's rows; zeros where nothing was seen."""
    f, block, result = unit.context.f, unit.attention.block, unit.result
    with f.loop(0, block.group) as head:
        target = unit.at(out, unit.head * block.group + head.index)
        divisor = _divisor(f, f.load(result.of_head(head.index) + LINE, F32))
        _write_head(f, block.values, result.head(head.index), divisor, target, out)


def _divisor(f: Function, total: Value) -> Value:
    """A head's sum of weights in all lanes, 1 where nothing was seen."""
    return f.broadcast(f.select(total.eq(0.0), 1.0, total), LANES)


def _write_head(f: Function, rows: Rows, source: Value, divisor: Value, target: Value, out: Operand) -> None:
    for chunk in range(rows.chunks):
        at = source + chunk * rows.vectors * LINE
        parts = [f.load(at + i * LINE, vector(F32, LANES)) / divisor for i in range(rows.vectors)]
        start = chunk * rows.elements
        store_row(
            f,
            in_order(f, rows, parts),
            target + start * DTYPE_BYTES[out.dtype],
            out.dtype,
            rows.size - start,
        )


def _merge(context: Context, attention: Attention, out: str) -> None:
    """For each slot and KV head: the splits' results, weighted by exp of their maxima, in order."""
    f, block, splits = context.f, attention.block, attention.splits
    operand, lanes = context.operands[out], vector(F32, LANES)
    factors, totals = context.private, context.private + splits * LINE
    total = totals + LINE
    with f.loop(context.begin, context.end) as loop:
        slot, kv_head = loop.index // attention.kv_heads, loop.index % attention.kv_heads
        parts = context.shared + loop.index * (splits * block.result_bytes)
        for tile, (first, count) in enumerate(block.tiles):
            state = Result(block, parts).state(tile)
            with f.loop(0, splits, 1, [f.splat(NEGATIVE_INFINITY)]) as peaks:
                peaks.carry(
                    block_kernels.larger(f, f.load(state + peaks.index * block.result_bytes, lanes), peaks.state[0])
                )
            floor = f.select(peaks.results[0].eq(NEGATIVE_INFINITY), 0.0, peaks.results[0])
            with f.loop(0, splits, 1, [f.splat(0.0)]) as sums:
                at = state + sums.index * block.result_bytes
                factor = decay(f, f.load(at, lanes) - floor)
                f.store(factor, factors + sums.index * LINE)
                sums.carry(f.fma(f.load(at + LINE, lanes), factor, sums.state[0]))
            f.store(sums.results[0], totals)
            with f.loop(first, first + count) as number:
                head, lane = number.index, number.index - first
                _merge_head(f, block, splits, Result(block, parts).head(head), factors + lane * 4, total)
                index = slot * operand.strides[0] + (kv_head * block.group + head) * operand.strides[1]
                target = operand.pointer + index * DTYPE_BYTES[operand.dtype]
                divisor = _divisor(f, f.load(totals + lane * 4, F32))
                _write_head(f, block.values, total, divisor, target, operand)


def _merge_head(f: Function, block: Block, splits: int, parts: Value, factors: Value, total: Value) -> None:
    """total = sum over splits of factor * part, of one head."""
    with f.loop(0, block.values.padded_bytes, LINE) as column:
        with f.loop(0, splits, 1, [f.splat(0.0)]) as split:
            part = f.load(parts + split.index * block.result_bytes + column.index, vector(F32, LANES))
            factor = f.broadcast(f.load(factors + split.index * LINE, F32), LANES)
            split.carry(f.fma(part, factor, split.state[0]))
        f.store(split.results[0], total + column.index)
