"""The steps that a decode step's attention consists of where it is not fused: `UpdateRows` and `CachedAttention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sscc.ir.operations import CachedAttention, UpdateRows
from sscc.ir.opspec import executes
from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.backends.cpu.attention.decode_attention import (
    Attention,
    Part,
    RowSource,
    Unit,
    attend_block,
    begin_unit,
    parts_of,
    with_merge,
    write_result,
    zero_row,
)
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.encoded_rows import copy_bytes
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I8, I64, PTR, Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, check_strides, copy_row


@executes(UpdateRows)
def lower_update_rows(step: UpdateRows, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """One unit per slot and KV head. A row that the cache does not have is reported.

    Raises InputError where a row is not contiguous.
    """
    check_strides(step.kind, meta, (step.cache, step.new))
    (slots, kv_heads, rows, size), _, dtype = meta[step.cache]
    new = meta[step.new][2]

    def emit(context: Context) -> None:
        f = context.f
        with f.loop(context.begin, context.end) as loop:
            place = (loop.index // kv_heads, loop.index % kv_heads)
            row = f.load(_element(context, step.row, *place[:1]), I64)
            active = f.load(_element(context, step.active, *place[:1]), I8).ne(0)
            exists = (row >= 0) & (row < rows)
            report_index(f, active & exists.eq(0))
            with f.when(active & exists):
                source, target = _element(context, step.new, *place), _element(context, step.cache, *place, row)
                if dtype == "i8":
                    copy_bytes(f, source, target, size)
                else:
                    copy_row(f, source, new, target, dtype, size)

    return Lowered([Phase(slots * kv_heads, emit)])


@executes(CachedAttention)
def lower_cached_attention(step: CachedAttention, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """As `lower_decode_attention`, of rows that masks name; a split is a fixed range of rows."""
    parts = parts_of(step.segments, meta)
    attention = Attention.of(step, parts, meta, features)
    part, size = -(-attention.rows // (attention.splits * LANES)) * LANES, attention.block.rows

    def emit(context: Context) -> None:
        f = context.f
        with f.loop(context.begin, context.end) as loop:
            unit = Unit.of(attention, context, loop.index)
            begin_unit(unit, step)
            zeros = zero_row(unit) if any(part.index for part in parts) else None
            masked = [(part, segment.valid) for part, segment in zip(parts, step.segments, strict=True)]
            first = f.min(unit.split * part, attention.rows)
            last = f.min(first + part, attention.rows)
            with f.loop(first, last, size) as block:
                count = _list_valid(unit, masked, zeros, block.index, f.min(block.index + size, last))
                with f.when(count > 0):
                    attend_block(unit, count, Scoring.of(step))
            if attention.splits == 1:
                write_result(unit, context.operands[step.out])

    return with_merge(attention, step.out, emit)


def _list_valid(
    unit: Unit, masked: Sequence[tuple[Part, str]], zeros: Value | None, first: Value, last: Value
) -> Value:
    """Lists the valid ones of rows first .. last - 1, at most `Block.rows`, and says how many they are."""
    f, context, scratch = unit.context.f, unit.context, unit.scratch
    count = f.constant(0)
    for part, mask in masked:
        keys, values = (RowSource.of(unit, part, name, zeros) for name in (part.key, part.value))
        begin, end = (f.min(f.max(at - part.first, 0), part.count) for at in (first, last))
        with f.loop(begin, end, 1, [count]) as loop:
            (listed,) = loop.state
            valid = f.load(_element(context, mask, unit.slot, loop.index), I8)
            f.store(keys.row(loop.index, valid.ne(0)), scratch.keys + listed * 8)
            f.store(values.row(loop.index, valid.ne(0)), scratch.values + listed * 8)
            loop.carry(listed + f.cast("arith.extui", valid, I64))
        (count,) = loop.results
    with f.when(count > 0), f.loop(count, unit.attention.block.rows) as padding:
        for entries in (scratch.keys, scratch.values):
            f.store(f.load(entries + (count - 1) * 8, PTR), entries + padding.index * 8)
    return count


def _element(context: Context, operand: str, *index: Value) -> Value:
    """Where the element of this index (zeros behind it) of an operand is."""
    o = context.operands[operand]
    at = o.pointer
    for i, stride in zip(index, o.strides, strict=False):
        at = at + i * (stride * DTYPE_BYTES[o.dtype])
    return at
