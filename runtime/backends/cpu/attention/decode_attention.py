"""Attention of a decode step: to a cache, fused (`DecodeAttention`) or with masks (`CachedAttention`), and to the rows
that a learned index chooses (`AttendChosen`). All are variants of `row_attention`.

In a fused step, the unit that contains the new row writes it to the caches, encoded if they are; no other unit reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sscc.ir.operations import AttendChosen, CachedAttention, DecodeAttention, SelectedRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention import row_source
from sscc.runtime.backends.cpu.attention.row_attention import NativeAttentionErrors, RowAttention, UnitAttention
from sscc.runtime.backends.cpu.attention.row_source import Address, Part, RowSource, Unit, UnitRows
from sscc.runtime.backends.cpu.attention.visibility import Ring, share_of, visible_rows
from sscc.runtime.backends.cpu.codegen.encoded_rows import put_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, address, check_rows, load_element, row_bytes


@executes(DecodeAttention)
def lower_decode_attention(
    step: DecodeAttention, meta: Mapping[str, Meta], features: Features, behind: Sequence[SelectedRows] = ()
) -> Lowered:
    """Lower the step for operands of static shapes and strides, named as in the step.

    A negative position of an active slot is reported, and so is an index beyond its rows, which names no row.

    Args:
        behind: rows that follow those of the cache, zeros where their index names none; the step then selects no rows.

    Raises InputError if a row is not contiguous, or if rows that are read have another dtype than their cache.
    """
    slots, _, stored, _ = meta[step.key][0]
    several = meta[step.query][0][0] > slots
    # New rows of other tokens are in the caches alone.
    read_key, read_value = (step.k_cache, step.v_cache) if several else (step.key, step.value)
    parts = [Part(read_key, read_value or read_key, "", 0, stored)]
    parts += row_source.parts_of(step.segments, meta, step.sink, in_place=True)
    parts += row_source.parts_of(behind, meta, stored - step.spare)
    attention = RowAttention(step, parts, meta, features)
    sides = [(step.key, step.new_key, step.k_cache), (step.value, step.new_value, step.v_cache)]
    sides = sides if step.v_cache else sides[:1]
    for read, _, cache in sides:
        if meta[read][2] != meta[cache][2]:
            raise NativeAttentionErrors.CACHE_DTYPE(
                step=step.kind, rows=read, rows_dtype=meta[read][2], cache=cache, cache_dtype=meta[cache][2]
            )

    def put_new(unit: Unit, row: Value) -> None:
        operands = unit.context.operands
        for _, source, cache in sides:
            target = operands[cache], (unit.slot, unit.head, row)
            put_row(unit.context.f, operands[source], (unit.query, unit.head), *target)

    def emit(group: UnitAttention) -> None:
        f, operands, unit = group.f, group.operands, group.unit
        ring = Ring.of(unit, step)
        first, count = visible_rows(unit, step, ring.end + sum(p.count for p in parts[1:] if not p.in_place))
        keys, values = zip(*row_source.sources_of(unit, parts), strict=True)

        def address_in(sources: Sequence[RowSource], cache: str) -> Address:
            stride, fresh = row_bytes(operands[cache]), f.address_of(unit.at(cache))

            def at(number: Value) -> Value:
                listed = f.min(number, f.like(first + count - 1, number))
                row = ring.row_of(f, listed)
                place = sources[0].row(row)
                if sources[0].name != cache:
                    place = f.select(row.eq(ring.row), row * stride + fresh, place)
                for source in sources[1:]:
                    own = number - source.part.first  # numbers of rows that exist are valid; others are not used
                    inside = (listed >= source.part.first) & (listed < source.part.first + source.part.count)
                    other = place if source.part.in_place else None
                    if source.part.in_place:  # no row of the ring is replaced
                        inside = inside & row.eq(listed)
                    place = f.select(inside, source.row(own, inside & listed.eq(number), other), place)
                return place

            return at

        rows = UnitRows(
            first, count, address_in(keys, step.k_cache), address_in(values, step.v_cache or step.k_cache),
            ADDRESSES if all(part.dense(meta) for part in parts if part.index) else 1,
            lambda number: [side[-1].nearest(number - parts[-1].first) for side in (keys, values)],
        )  # fmt: skip
        if not several:
            with f.when((ring.number >= first) & (ring.number < first + count)):
                put_new(unit, ring.row)
        group.attend(rows)

    def write(context: Context) -> None:
        f = context.f
        with units(context, attention.pairs) as (pair,):
            unit = attention.unit(context, pair, f.constant(0), context.private)
            ring = Ring.of(unit, step)
            _, count = visible_rows(unit, step, ring.end)
            with f.when(count > 0):
                put_new(unit, ring.row)

    attending = attention.lowered(emit)
    if not several:
        return attending
    return Lowered([Phase(attention.pairs, write), *attending.phases], attending.shared_bytes)


@executes(CachedAttention)
def lower_cached_attention(step: CachedAttention, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """Lower attention to the rows of a mask, like `lower_decode_attention`; a split is a fixed range of rows."""
    parts = row_source.parts_of(step.segments, meta)
    attention = RowAttention(step, parts, meta, features)
    share, size = -(-attention.rows // (attention.splits * LANES)) * LANES, attention.block.rows

    def emit(group: UnitAttention) -> None:
        f = group.f
        group.begin()
        sources = row_source.sources_of(group.unit, parts)
        first = f.min(group.unit.split * share, attention.rows)
        last = f.min(first + share, attention.rows)
        with f.loop(first, last, size) as block:
            count = list_valid(group, sources, block.index, f.min(block.index + size, last))
            with f.when(count > 0):
                group.take(count)

    def list_valid(
        group: UnitAttention, sources: Sequence[tuple[RowSource, RowSource]], first: Value, last: Value
    ) -> Value:
        """List the valid rows of first .. last - 1, at most a block, and return their number."""
        f, lists, count = group.f, (group.at["keys"], group.at["values"]), group.f.constant(0)
        for segment, sides in zip(step.segments, sources, strict=True):
            part = sides[0].part
            begin, end = (f.min(f.max(row - part.first, 0), part.count) for row in (first, last))
            with f.loop(begin, end, 1, [count]) as loop:
                (listed,) = loop.state
                valid = load_element(f, group.operands[segment.valid], group.unit.query, loop.index)
                for side, entries in zip(sides, lists, strict=True):
                    f.store(side.row(loop.index, valid.ne(0)), entries + listed * 8)
                loop.carry(listed + f.cast("arith.extui", valid, I64))
            (count,) = loop.results
        with f.when(count > 0), f.loop(count, size) as padding:
            for entries in lists:
                f.store(f.load(entries + (count - 1) * 8, PTR), entries + padding.index * 8)
        return count

    return attention.lowered(emit)


@executes(AttendChosen)
def lower_attend_chosen(step: AttendChosen, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """Lower attention to chosen rows. The first phase writes the rows of new tokens, since tokens of a chunk attend to
    each other's rows; the next has units of (token, KV head, split of its rows). A chosen position beyond the rows is
    reported."""
    (_, choices, tokens, topk), strides, _ = meta[step.chosen]
    sides = [(step.new_key, step.k_store), *([(step.new_value, step.v_store)] if step.v_store else [])]
    check_rows(step, meta, step.chosen)
    part = Part(step.k_store, step.v_store or step.k_store, step.chosen, 0, topk)
    attention = RowAttention(step, [part], meta, features, tokens)

    def emit(group: UnitAttention) -> None:
        f, unit = group.f, group.unit
        choice = unit.head * choices // attention.kv_heads
        chosen = address(f, group.operands[step.chosen], unit.query, choice, unit.token)
        with f.loop(0, topk, LANES, [f.constant(0)]) as loop:
            exists = f.first_lanes(topk - loop.index)
            positions = f.load_masked(chosen + loop.index * 8, exists, vector(I64, LANES))
            loop.carry(loop.state[0] + f.count((positions >= 0) & exists))
        first, count = share_of(unit, loop.results[0])  # chosen positions precede the first -1

        def address_in(source: RowSource) -> Address:
            return lambda number: source.row(number, number < f.like(first + count, number))

        keys, values = map(address_in, row_source.sources_of(unit, [part], (chosen, strides[3] * SIZES["i64"]))[0])
        group.attend(UnitRows(first, count, keys, values, ADDRESSES))

    attending = attention.lowered(emit)
    return Lowered([row_source.writing_phase(step.position, sides, meta), *attending.phases], attending.shared_bytes)
