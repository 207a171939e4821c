"""Attention of few queries to many rows, the skeleton of decode attention and of attention to chosen rows.

A unit is (slot, KV head, split): all query heads of the group over one part of the rows that the slot sees, so that a
cached row is read once. How many splits there are depends on shapes alone; where they begin, on the slot's number of
valid rows, so that the work is even at every context length. With more than one split, a second phase merges them in
order. A unit puts its queries into the order of the keys' chunks, then goes through its rows block by block:

    row_source     lists the addresses of the block's rows
    row_codec      loads their numbers
    scoring        products of a tile of query heads with the keys
    visibility     says which rows there are; those beyond the last one of a block weigh nothing
    combination    weights by a running softmax, and weighted sums of the values
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.operations import AttendChosen, CachedAttention, DecodeAttention
from sscc.runtime.backends.cpu.attention.combination import (
    RowSoftmax,
    merge_states,
    merge_values,
    row_values,
    row_weights,
    write_head,
)
from sscc.runtime.backends.cpu.attention.row_block import Block
from sscc.runtime.backends.cpu.attention.row_codec import Rows
from sscc.runtime.backends.cpu.attention.row_source import Part, UnitRows, list_later, list_rows
from sscc.runtime.backends.cpu.attention.scoring import Scoring, row_logits, row_products
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES, AHEAD_ROWS, ATTENTION_UNITS, LINE, SPLIT_ROWS
from sscc.runtime.backends.cpu.codegen.mlir import F32, Function, Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, address, check_rows

Step = AttendChosen | CachedAttention | DecodeAttention


class NativeAttentionErrors(ErrorKind):
    SEGMENT_DTYPES = (
        InputError,
        "the segments of {step} must have one dtype, but {first!r} is {first_dtype} and {other!r} is {other_dtype}",
    )
    CACHE_DTYPE = (
        InputError,
        "{step} reads rows in the dtype of their cache, but {rows!r} is {rows_dtype} and {cache!r} is {cache_dtype}",
    )


class GroupQueries:
    """Emits what a group's queries do with blocks of rows: sizes are those of `block`, memory begins at `scratch`."""

    def __init__(self, f: Function, block: Block, scratch: Value) -> None:
        self.f, self.block, self.at = f, block, block.scratch.at(scratch)
        self.later = [self.at.get(f"later_{side}", self.at[side]) for side in ("keys", "values")]

    def put(self, first: Value, stride: int, dtype: str) -> None:
        """Brings the group's queries, `stride` bytes apart from `first` on, into the order of the keys' chunks."""
        f, keys = self.f, self.block.keys
        with f.loop(0, self.block.group) as head:
            at = self.at["queries"] + head.index * keys.padded_bytes
            for chunk in range(keys.chunks):
                for i, part in enumerate(keys.query_chunk(f, first + head.index * stride, dtype, chunk)):
                    f.store(part, at + (chunk * keys.vectors + i) * LINE)

    def list_keys(self, row: Callable[[Value], Value]) -> None:
        """Lists a block of keys: `row` gives the address of the row of an entry."""
        with self.f.loop(0, self.block.rows) as entry:
            self.f.store(row(entry.index), self.at["keys"] + entry.index * 8)

    def multiply(self, tile: int, count: Value) -> None:
        """Products of a tile of queries with the first `count` listed keys; asks for values meanwhile."""
        f, block, (first, heads) = self.f, self.block, self.block.tiles[tile]
        ahead = block.values.nbytes if block.scattered and tile == 0 else 0
        products = row_products(f, block.keys, heads, min(heads, 4 if block.wide else 1), block.rows, ahead)
        queries = self.at["queries"] + first * block.keys.padded_bytes
        products(self.at["keys"], self.later[1], queries, count, self.at["partial"])

    def score(self, keys: Value, stride: int, count: Value, scale: float, out: Value, out_bytes: int) -> None:
        """Writes scaled products of the queries with `count` keys, `stride` bytes apart: [group][out_bytes] f32, up to
        whole vectors of 16, where what is beyond `count` may be anything."""
        f, at, block, start = self.f, self.at, self.block, self.f.address_of(keys)
        with f.loop(0, count, block.rows) as loop:
            self.list_keys(lambda entry: f.min(loop.index + entry, count - 1) * stride + start)
            number = f.min(count - loop.index, block.rows)
            for tile, (first, heads) in enumerate(block.tiles):
                self.multiply(tile, number)
                put = row_logits(f, heads, block.rows, out_bytes)
                put(at["partial"], number, f.constant(scale, F32), out + loop.index * 4 + first * out_bytes)

    def weigh(self, tile: int, count: Value, scoring: Scoring, softmax: RowSoftmax) -> None:
        """Takes the listed keys into the maxima and sums of a tile; leaves their weights."""
        f, at, block = self.f, self.at, self.block
        self.multiply(tile, count)
        weigh, scale = row_weights(f, block.tiles[tile][1], block.rows, scoring), f.constant(scoring.left, F32)
        weigh(at["partial"], count, scale, softmax.state(tile), at["shrink"], at["weights"])

    def take(
        self, count: Value, scoring: Scoring, softmax: RowSoftmax, then: Callable[[], None] = lambda: None
    ) -> None:
        """Takes in the first `count` rows (1 .. `Block.rows`) of the lists; asks for scattered rows, keys of the next
        block or of a later one, meanwhile. `then` emits what to do once all keys are read."""
        f, at, block = self.f, self.at, self.block
        for tile, (first, heads) in enumerate(block.tiles):
            last = tile == len(block.tiles) - 1
            self.weigh(tile, count, scoring, softmax)
            if last:
                then()
            columns = max(1, (16 if block.wide else 4) // (heads * block.values.vectors))
            ahead = block.keys.nbytes if block.scattered and last else 0
            add = row_values(f, block.values, heads, columns, block.rows, ahead)
            add(at["values"], self.later[0], at["weights"], at["shrink"], softmax.values(first), count)


class RowAttention:
    """The sizes of a step's attention over parts of rows, and its phases.

    Args:
        tokens: queries of a slot, which all see rows of their own.
        rows: what attention is over, where it is not all rows of the parts.

    Raises InputError where a row of an operand is not contiguous, or where parts are of several dtypes.
    """

    def __init__(
        self, step: Step, parts: Sequence[Part], meta: Mapping[str, Meta], features: Features, tokens: int = 1
    ) -> None:
        check_rows(step, meta)
        for first, *others in ([part.key for part in parts], [part.value for part in parts]):
            for name in others:
                if meta[name][2] != meta[first][2]:
                    raise NativeAttentionErrors.SEGMENT_DTYPES(
                        step=step.kind, first=first, first_dtype=meta[first][2], other=name, other_dtype=meta[name][2]
                    )
        self.step, self.tokens, self.scoring = step, tokens, Scoring.of(step)
        (self.slots, heads, _, depth), _, query = meta[step.query]
        width = meta[step.out][0][3]
        (_, self.kv_heads, _, _), _, cache = meta[parts[0].key]
        whole = depth if parts[0].value == parts[0].key else width  # values may be the first numbers of keys
        self.block = Block(
            Rows.of(depth, meta[parts[0].key][0], cache, features.bf16_dot and query == cache == "bf16"),
            heads // self.kv_heads,
            features,
            Rows.of(width, meta[parts[0].value][0], meta[parts[0].value][2], whole=whole),
            scattered=any(part.index for part in parts),
            ahead=isinstance(step, DecodeAttention) and parts[-1].dense(meta) and parts[-1].count >= ADDRESSES,
        )
        self.rows = sum(part.count for part in parts if not part.in_place)
        self.pairs = self.slots * tokens * self.kv_heads
        self.splits = max(1, min(-(-ATTENTION_UNITS // self.pairs), self.rows // SPLIT_ROWS)) if tokens == 1 else 1
        self.zeros_bytes = max(self.block.keys.nbytes, self.block.values.nbytes)

    def lowered(self, emit: Callable[[Unit], None]) -> Lowered:
        """The phase of units whose attention `emit` emits, and where there are splits, the one that merges them."""
        block, splits = self.block, self.splits
        private = block.scratch.nbytes + self.zeros_bytes + LINE

        def attend(context: Context) -> None:
            with context.f.loop(context.begin, context.end) as loop:
                unit = Unit(self, context, loop.index)
                emit(unit)
                if splits == 1:
                    unit.write()

        if splits == 1:
            return Lowered([Phase(self.pairs, attend, private + block.result_bytes)])
        merge = Phase(self.pairs, self._merge, (splits + 1) * LINE + block.values.padded_bytes)
        return Lowered([Phase(self.pairs * splits, attend, private), merge], self.pairs * splits * block.result_bytes)

    def _merge(self, context: Context) -> None:
        """For each slot and KV head: the splits' results, weighted by exp of their maxima, in order."""
        f, block, splits, out = context.f, self.block, self.splits, context.operands[self.step.out]
        factors, totals = context.private, context.private + splits * LINE
        with f.loop(context.begin, context.end) as pair:
            slot, kv_head = pair.index // self.kv_heads, pair.index % self.kv_heads
            softmax = RowSoftmax(f, block, context.shared + pair.index * (splits * block.result_bytes))
            for tile, (first, count) in enumerate(block.tiles):
                f.store(merge_states(f, block, softmax.state(tile), splits, factors), totals)
                with f.loop(first, first + count) as number:
                    head, lane = number.index, number.index - first
                    merge_values(f, block, softmax.values(head), splits, factors + lane * 4, totals + LINE)
                    target = address(f, out, slot, kv_head * block.group + head)
                    write_head(f, block.values, totals + LINE, f.load(totals + lane * 4, F32), target, out.dtype)


class Unit(GroupQueries):
    """One unit under construction: where it is, and its memory."""

    def __init__(self, attention: RowAttention, context: Context, number: Value) -> None:
        super().__init__(context.f, attention.block, context.private)
        block, splits = attention.block, attention.splits
        self.attention, self.context = attention, context
        pair, self.split = number // splits, number % splits
        slot, self.head = pair // attention.kv_heads, pair % attention.kv_heads
        self.slot = slot // attention.tokens if attention.tokens > 1 else slot
        self.token: Value | int = slot % attention.tokens if attention.tokens > 1 else 0
        extra = context.private + block.scratch.nbytes
        result = extra if splits == 1 else context.shared + number * block.result_bytes
        self.softmax = RowSoftmax(self.f, block, result)
        self.zeros = extra + block.result_bytes if splits == 1 else extra

    def at_row(self, name: str, row: Value | int = 0) -> Value:
        """A row of the unit's slot and KV head."""
        return address(self.f, self.context.operands[name], self.slot, self.head, row)

    def begin(self) -> None:
        """Fetches the group's queries and clears the result; that of the first split begins with learned sinks."""
        f, step, operands, first = self.f, self.attention.step, self.context.operands, self.head * self.block.group
        query = operands[step.query]
        self.put(address(f, query, self.slot, first, self.token), query.strides[1] * SIZES[query.dtype], query.dtype)
        self.softmax.clear()
        if step.sink_logits is not None:
            sinks = operands[step.sink_logits]
            with f.when(self.split.eq(0)):
                self.softmax.take_sinks(address(f, sinks, first), sinks.dtype)

    def attend(self, rows: UnitRows) -> None:
        """Attention of the group over its rows. The next block's keys are listed, and asked for, while the values of
        this one are summed."""
        f, at, size = self.f, self.at, self.block.rows
        self.begin()
        with f.when(rows.count > 0):
            list_rows(f, rows, rows.keys, at["keys"], rows.first, size)
        with f.loop(0, rows.count, size) as loop:
            start = rows.first + loop.index
            list_rows(f, rows, rows.values, at["values"], start, size)
            if self.block.ahead:
                list_later(f, rows, self.later, start + AHEAD_ROWS, size)
            count = f.min(rows.count - loop.index, size)

            def list_next(start: Value = start) -> None:
                list_rows(f, rows, rows.keys, at["keys"], start + size, size)

            self.take(count, self.attention.scoring, self.softmax, list_next)

    def write(self) -> None:
        """Writes the results of the group's heads."""
        f, block, out = self.f, self.block, self.context.operands[self.attention.step.out]
        with f.loop(0, block.group) as head:
            target = address(f, out, self.slot, self.head * block.group + head.index, self.token)
            total = self.softmax.total(head.index)
            write_head(f, block.values, self.softmax.values(head.index), total, target, out.dtype)
