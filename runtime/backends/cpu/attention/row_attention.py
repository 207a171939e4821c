"""Attention of few queries to many rows: the common structure of decode attention and of attention to chosen rows.

A unit is (slot, KV head, split): all query heads of the group over one part of the rows that the slot sees, so that a
cached row is read once. The number of splits depends only on shapes; their boundaries depend on the slot's number of
valid rows, so that the work is even at every context length. With more than one split, a second phase merges them in
order. A unit reorders its queries to match the keys' chunks, then processes its rows block by block:

    row_source     lists the addresses of the block's rows
    row_codec      loads their numbers
    scoring        products of a tile of query heads with the keys
    visibility     determines the rows that exist; entries beyond the last one of a block have zero weight
    combination    weights by an online softmax, and weighted sums of the values
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.operations import AttendChosen, CachedAttention, DecodeAttention
from sscc.runtime.backends.cpu.attention.combination import RowSoftmax
from sscc.runtime.backends.cpu.attention.row_codec import Rows
from sscc.runtime.backends.cpu.attention.row_source import Part, Unit, UnitRows
from sscc.runtime.backends.cpu.attention.scoring import Block, GroupQueries, Scoring
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES, AHEAD_ROWS, ATTENTION_UNITS, LINE, SPLIT_ROWS
from sscc.runtime.backends.cpu.codegen.mlir import Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_rows, row_bytes


class NativeAttentionErrors(ErrorKind):
    SEGMENT_DTYPES = (
        InputError,
        "the segments of {step} must have one dtype, but {first!r} is {first_dtype} and {other!r} is {other_dtype}",
    )
    CACHE_DTYPE = (
        InputError,
        "{step} reads rows in the dtype of their cache, but {rows!r} is {rows_dtype} and {cache!r} is {cache_dtype}",
    )


class RowAttention:
    """Attention of a step over parts of rows: its sizes and phases.

    Args:
        tokens: queries of a slot, each of which sees other rows.

    Raises InputError if a row of an operand is not contiguous, or if parts have different dtypes.
    """

    def __init__(
        self, step: AttendChosen | CachedAttention | DecodeAttention, parts: Sequence[Part], meta: Mapping[str, Meta],
        features: Features, tokens: int = 1,
    ) -> None:  # fmt: skip
        check_rows(step, meta)
        for first, *others in ([part.key for part in parts], [part.value for part in parts]):
            for name in others:
                if meta[name][2] != meta[first][2]:
                    raise NativeAttentionErrors.SEGMENT_DTYPES(
                        step=step.kind, first=first, first_dtype=meta[first][2], other=name, other_dtype=meta[name][2]
                    )
        self.step, self.tokens, self.scoring = step, tokens, Scoring(step.scale, step.softcap)
        (queries, heads, _, depth), _, query = meta[step.query]
        width = meta[step.out][0][3]
        (slots, self.kv_heads, _, _), _, cache = meta[parts[0].key]
        self.per_slot = queries // slots
        whole = depth if parts[0].value == parts[0].key else width  # values may be the first numbers of keys
        self.block = Block(
            Rows.of(depth, meta[parts[0].key][0], cache, features.bf16_dot and query == cache == "bf16"),
            heads // self.kv_heads,
            features,
            Rows.of(width, meta[parts[0].value][0], meta[parts[0].value][2], whole=whole),
            scattered=any(part.index for part in parts),
            ahead=isinstance(step, DecodeAttention) and parts[-1].dense(meta) and parts[-1].count >= ADDRESSES,
        )
        spare = step.spare if isinstance(step, DecodeAttention) else 0
        self.rows = sum(part.count for part in parts if not part.in_place) - spare
        self.pairs = queries * tokens * self.kv_heads
        # The number of splits does not depend on the number of tokens in a step, and so neither do the sums.
        wanted = -(-ATTENTION_UNITS // (slots * self.kv_heads))
        self.splits = max(1, min(wanted, self.rows // SPLIT_ROWS)) if tokens == 1 else 1
        self.zeros_bytes = max(self.block.keys.nbytes, self.block.values.nbytes)

    def lowered(self, emit: Callable[[UnitAttention], None]) -> Lowered:
        """Return the phase of units whose attention `emit` emits and, with several splits, the phase that merges
        them."""
        block, splits, pairs = self.block, self.splits, self.pairs
        own, result = block.scratch.nbytes, block.result_bytes
        private = own + self.zeros_bytes + LINE + (result if splits == 1 else 0)

        def head_of(unit: Unit) -> Callable[[Value], Value]:
            f, out = unit.context.f, unit.context.operands[self.step.out]
            return lambda head: address(f, out, unit.query, unit.head * block.group + head, unit.token)

        def attend(context: Context) -> None:
            f, out = context.f, context.operands[self.step.out]
            with f.loop(context.begin, context.end) as loop:
                extra = context.private + own
                state = extra if splits == 1 else context.shared + loop.index * result
                zeros = extra + result if splits == 1 else extra
                unit = self.unit(context, loop.index // splits, loop.index % splits, zeros)
                attention = UnitAttention(self, unit, RowSoftmax(f, block, state))
                emit(attention)
                if splits == 1:
                    attention.softmax.write(head_of(unit), out.dtype)

        def merge(context: Context) -> None:
            f, out = context.f, context.operands[self.step.out]
            with units(context, pairs) as (pair,):
                unit = self.unit(context, pair, f.constant(0), context.private)
                parts = RowSoftmax(f, block, context.shared + pair * (splits * result))
                parts.merge(splits, context.private, head_of(unit), out.dtype)

        if splits == 1:
            return Lowered([Phase(pairs, attend, private)])
        merging = Phase(pairs, merge, (splits + 1) * LINE + block.values.padded_bytes)
        return Lowered([Phase(pairs * splits, attend, private), merging], pairs * splits * result)

    def unit(self, context: Context, pair: Value, split: Value, zeros: Value) -> Unit:
        """Return the unit of a split of a pair of token and KV head."""
        query, head, token = pair // self.kv_heads, pair % self.kv_heads, context.f.constant(0)
        if self.tokens > 1:
            query, token = query // self.tokens, query % self.tokens
        slot = query if self.per_slot == 1 else query // self.per_slot
        return Unit(context, query, slot, token, head, split, self.splits, zeros, self.zeros_bytes)


class UnitAttention(GroupQueries):
    """Emitter of the attention of one unit."""

    def __init__(self, attention: RowAttention, unit: Unit, softmax: RowSoftmax) -> None:
        super().__init__(unit.context.f, attention.block, unit.context.private)
        self.attention, self.unit, self.softmax, self.operands = attention, unit, softmax, unit.context.operands

    def begin(self) -> None:
        """Load the group's queries and clear the result; the result of the first split starts with learned sinks."""
        f, step, unit, first = self.f, self.attention.step, self.unit, self.unit.head * self.block.group
        query = self.operands[step.query]
        self.put(address(f, query, unit.query, first, unit.token), row_bytes(query, 1), query.dtype)
        self.softmax.clear()
        if step.sink_logits is not None:
            sinks = self.operands[step.sink_logits]
            with f.when(unit.split.eq(0)):
                self.softmax.take_sinks(address(f, sinks, first), sinks.dtype)

    def take(self, count: Value, then: Callable[[], None] = lambda: None) -> None:
        """Process rows, see `RowSoftmax.take`."""
        self.softmax.take(self, count, self.attention.scoring, then)

    def attend(self, rows: UnitRows) -> None:
        """Emit the attention of the group over its rows. The next block's keys are listed, and prefetched, while the
        values of the current block are summed."""
        f, at, size = self.f, self.at, self.block.rows
        self.begin()
        with f.when(rows.count > 0):
            rows.put(f, rows.keys, at["keys"], rows.first, size)
        with f.loop(0, rows.count, size) as loop:
            start = rows.first + loop.index
            rows.put(f, rows.values, at["values"], start, size)
            if self.block.ahead:
                rows.put_later(f, (self.later_keys, self.later_values), start + AHEAD_ROWS, size)
            count = f.min(rows.count - loop.index, size)
            self.take(count, lambda: rows.put(f, rows.keys, at["keys"], start + size, size))
