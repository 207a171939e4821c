"""Attention of a prefill chunk: causal, tiled, with a running softmax; and what is kept of the prompt's last queries.

A unit is a KV head and two blocks of queries of its whole group, block i and block n - 1 - i, so that units cost about
the same although later queries see more keys. Keys are walked in blocks up to the last one that the queries see. For
each block of keys and each panel of query rows: scores, masked where the diagonal passes; softmax; weighted sums.
Rows are ordered (query, head of the group), so a panel's diagonal is short.

Where a window bounds what a query sees, the walk begins at the first block of which the first query sees a key, and the
mask hides what lies before the window as it hides what lies behind the diagonal.

With bf16 queries, keys and values and `Features.bf16_dot`, products are of bf16 pairs, summed in f32; the softmax's
weights are rounded to bf16 before they meet the values (relative error of a weight up to 2**-9), their sum is not.
Otherwise all is f32. The order of sums depends on the shapes and on `start` only.

Encoded keys and values are decoded block by block, to what products are made of: to f32, or rounded to bf16, as the
weights are, where queries are bf16 and products are of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sscc.ir.geometry import Span
from sscc.ir.operations import CausalAttention, ChunkAttention, Observe
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.attention_tiles import (
    LOWEST_PEAK,
    AttentionTiling,
    QueryRows,
    bounds_kernel,
    last_unseen,
    mask_kernel,
    scores_kernel,
    softmax_kernel,
    sums_kernel,
    tiling,
)
from sscc.runtime.backends.cpu.attention.decode_attention_chunks import Rows, load_f32
from sscc.runtime.backends.cpu.attention.matrix_attention import REGISTERS, UNIT
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.approximations import log
from sscc.runtime.backends.cpu.codegen.encoded_rows import decode_rows, write_row
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import (
    KEY_WALK_ROWS,
    LARGEST_BLOCK_ROWS,
    LARGEST_QUERY_BLOCK,
    LINE,
    ROW_BLOCK,
)
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import (
    SIZES,
    Meta,
    ScratchPieces,
    address,
    check_strides,
    copy_row,
    pack_pairs,
    pack_rows,
    row_stride,
    transpose_kernel,
)


@executes(ChunkAttention)
def lower_chunk_attention(step: ChunkAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Two phases: append; then attention. See `ChunkAttention` for shapes and meaning.

    Padding, the positions from `length` on, is left out: its rows of the scratches keep their bytes, too.
    Does nothing where start < 0 or start + C exceeds T (the reference interpreter refuses that).
    Raises InputError for operands that do not fit.
    """
    check_strides(step.kind, operands, (step.new_key, step.new_value))
    attention = Causal.of(step, operands, features, step.k_scratch, step.v_scratch)
    append = append_phase(attention, ((step.new_key, step.k_scratch), (step.new_value, step.v_scratch)))
    return Lowered((append, attention.phase))


@executes(CausalAttention)
def lower_causal_attention(step: CausalAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase. See `CausalAttention`. Padding is left out: its rows of `out` and `log_sum_exp` keep their bytes.

    Does nothing where start < 0 or start + C exceeds T. Raises InputError for operands that do not fit.
    """
    return Lowered((Causal.of(step, operands, features, step.key, step.value).phase,))


@executes(Observe)
def lower_observe(step: Observe, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase, in units of (head, 32 queries). See `Observe`. Raises InputError for operands that do not fit."""
    check_strides(step.kind, operands, (step.observed, step.query))
    (_, heads, chunk, depth), _, query_type = operands[step.query]
    (_, _, window, _), _, observed_type = operands[step.observed]
    blocks = -(-chunk // ROW_BLOCK)

    def observe(context: Context) -> None:
        f = context.f
        start, length = context.scalars[step.start], context.scalars[step.length]
        with f.loop(context.begin, context.end) as unit:
            head, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            with f.loop(first, f.min(first + ROW_BLOCK, chunk)) as row:
                place = start + row.index - f.max(length - window, 0)
                with f.when((place >= 0) & (place < f.min(length, window))):
                    source = address(f, context.operands[step.query], 0, head, row.index)
                    target = address(f, context.operands[step.observed], 0, head, place)
                    copy_row(f, source, query_type, target, observed_type, depth)

    return Lowered((Phase(heads * blocks, observe),))


@dataclass(frozen=True)
class Causal:
    """Causal attention of a chunk, as a phase.

    Attributes:
        queries: of a block.
        blocks: blocks of queries.
        rows: how queries are packed.
        names: query, key, value, out.
        length: the scalar that says where padding begins.
        log_sum_exp: where that of every query goes; "" where nobody wants it.
        sinks: the logits of learned sinks; None where there are none.
        window: which positions a query sees.
    """

    names: tuple[str, str, str, str]
    start: str
    length: str
    log_sum_exp: str
    sinks: str | None
    scoring: Scoring
    tiles: AttentionTiling
    kv_heads: int
    group: int
    chunk: int
    limit: int
    depth: int
    columns: int
    queries: int
    rows: QueryRows
    operands: dict[str, Meta]
    window: Span

    @classmethod
    def of(
        cls,
        step: ChunkAttention | CausalAttention,
        operands: dict[str, Meta],
        features: Features,
        key: str,
        value: str,
    ) -> Causal:
        sums = [name for name in (step.log_sum_exp, step.sink_logits) if name]
        check_strides(step.kind, operands, (step.query, step.out, key, value, *sums))
        (_, heads, chunk, depth), _, query_type = operands[step.query]
        columns = operands[step.out][0][3]
        (_, kv_heads, limit, _), _, key_type = operands[key]
        value_type = operands[value][2]
        numbers = (query_type, query_type) if key_type == "i8" else (key_type, value_type)  # decoded as queries are
        tiles = tiling(features, (query_type, *numbers), depth, matrix=True)
        group = heads // kv_heads
        queries = block_of_queries(group, chunk, tiles.panel)
        rows = QueryRows(tiles, depth, -(-queries * group // tiles.panel))
        names = (step.query, key, value, step.out)
        places = (step.start, step.length, step.log_sum_exp, step.sink_logits)
        sizes = (kv_heads, group, chunk, limit, depth, columns)
        window = Span(step.window, step.window_stride or 1)
        return cls(names, *places, Scoring.of(step), tiles, *sizes, queries, rows, operands, window)

    @property
    def blocks(self) -> int:
        return -(-self.chunk // self.queries)

    @property
    def pairs(self) -> int:
        """Pairs of blocks, the middle one alone where their number is odd."""
        return -(-self.blocks // 2)

    @property
    def units(self) -> int:
        return self.kv_heads * self.pairs

    @property
    def scratch(self) -> ScratchPieces:
        """Private scratch. See `attention_tiles`."""
        return ScratchPieces(**self.pieces())

    def pieces(self) -> dict[str, int]:
        """Bytes of scratch by name: all panels of a block of queries, one block of keys."""
        tiles, panels = self.tiles, self.rows.panels
        return {
            "query": panels * self.rows.panel_bytes,
            "staging": max(self.rows.staging_bytes, 16 * self.padded_columns * 4),
            "positions": panels * tiles.row_bytes,
            "peak": panels * tiles.row_bytes,
            "total": panels * tiles.row_bytes,
            "shrink": panels * tiles.row_bytes,
            "log_sum_exp": panels * tiles.row_bytes,
            "sums": panels * self.panel_sums,
            "scores": tiles.block * tiles.row_bytes,
            "key": 0 if self.key_as_it_lies else tiles.block * self.depth * 4,
            "value": 0 if self.value_as_it_lies else tiles.block * self.padded_columns * 4,
            "decoded": tiles.block * self.columns * 2 if self.encoded and tiles.pairs else 0,
            "turned": self.padded_columns * self.turned_stride if tiles.matrix else 0,
            "registers": LINE if tiles.matrix else 0,
        }

    @property
    def padded_columns(self) -> int:
        return -(-self.columns // 16) * 16

    @property
    def turned_stride(self) -> int:
        """Bytes of a column of turned values: pairs of the keys of a block."""
        return self.tiles.block // 2 * 4

    @property
    def panel_sums(self) -> int:
        return self.padded_columns * self.tiles.row_bytes

    @property
    def encoded(self) -> bool:
        """Whether keys and values are."""
        return self.operands[self.names[1]][2] == "i8"

    def stored(self, side: int, size: int) -> Rows:
        """The rows of keys (1) or values (2), of `size` numbers each."""
        shape, _, dtype = self.operands[self.names[side]]
        return Rows.of(size, shape, dtype)

    @property
    def key_as_it_lies(self) -> bool:
        if self.encoded:
            return False
        return self.tiles.pairs or self.operands[self.names[1]][2] == "f32"

    @property
    def value_as_it_lies(self) -> bool:
        return not self.tiles.pairs and self.operands[self.names[2]][2] == "f32"

    def fits(self, start: Value) -> Value:
        """Whether the chunk lies in the scratch (i1)."""
        return (start >= 0) & (start + self.chunk <= self.limit)

    def live(self, context: Context) -> Value:
        """How many of the chunk's positions are not padding; may be negative."""
        return context.f.min(context.scalars[self.length] - context.scalars[self.start], self.chunk)

    def block_at(self, context: Context, head: Value, first: Value, live: Value) -> QueryBlock:
        """The block of queries from `first` on."""
        return QueryBlock(self, context, head, first, live)

    @property
    def phase(self) -> Phase:
        return Phase(self.units, self.emit, private_bytes=self.scratch.nbytes)

    def emit(self, context: Context) -> None:
        """Units [begin, end)."""
        f = context.f
        live = self.live(context)
        if self.tiles.matrix:
            f.configure_tiles(REGISTERS, self.scratch.at(context.private)["registers"])
        with f.when(self.fits(context.scalars[self.start])), f.loop(context.begin, context.end) as unit:
            head, pair = unit.index // self.pairs, unit.index % self.pairs
            with f.loop(0, 2) as side:
                first = side.index.eq(0)
                block = f.select(first, pair, self.blocks - 1 - pair)
                begin = block * self.queries
                with f.when((first | block.ne(pair)) & (begin < live)):
                    self.block_at(context, head, begin, live).emit()
        if self.tiles.matrix:
            f.release_tiles()


def append_phase(attention: Causal, parts: Sequence[tuple[str, str]]) -> Phase:
    """A chunk's rows go into scratches at `start`, in units of (head of the rows, 32 of them).

    Args:
        parts: the names of new rows and of their scratch.
    """
    blocks = -(-attention.chunk // ROW_BLOCK)
    heads = attention.operands[parts[0][0]][0][1]

    def append(context: Context) -> None:
        f, start = context.f, context.scalars[attention.start]
        with f.when(attention.fits(start)), f.loop(context.begin, context.end) as unit:
            head, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            with f.loop(first, f.min(first + ROW_BLOCK, attention.live(context))) as row:
                for new, scratch in parts:
                    source = address(f, context.operands[new], 0, head, row.index)
                    target = address(f, context.operands[scratch], 0, head, start + row.index)
                    (shape, _, dtype), (stored, _, stored_dtype) = attention.operands[new], attention.operands[scratch]
                    write_row(f, source, dtype, target, stored_dtype, shape[3], stored[3])

    return Phase(heads * blocks, append)


def block_of_queries(group: int, chunk: int, panel: int, most: int = LARGEST_QUERY_BLOCK) -> int:
    """Queries of a block, at most `most`: few rows that only fill up panels, few blocks, and pairs of blocks that are
    alike."""

    def rows(queries: int) -> int:
        return -(-queries * group // panel) * panel + KEY_WALK_ROWS if queries else 0

    def cost(queries: int) -> int:
        pairs = -(-chunk // (2 * queries))
        whole = 2 * pairs * rows(queries) if chunk > queries else rows(queries)
        return whole + 3 * (chunk // queries * rows(queries) + rows(chunk % queries))

    largest = min(chunk, most, max(1, max(most, LARGEST_BLOCK_ROWS) // group))
    return min(range(1, largest + 1), key=lambda queries: (cost(queries), -queries))


class QueryBlock:
    """Emits the attention of one block of queries."""

    def __init__(self, attention: Causal, context: Context, head: Value, first: Value, live: Value) -> None:
        self.a, self.context, self.f = attention, context, context.f
        self.head, self.first = head, first
        self.start = context.scalars[attention.start]
        self.count = self.f.min(live - first, attention.queries)
        self.panels = self.f.ceildiv(self.count * attention.group, attention.tiles.panel)
        self.at = attention.scratch.at(context.private)
        self.q, self.k, self.v, self.o = (context.operands[name] for name in attention.names)

    def emit(self) -> None:
        f, a = self.f, self.a
        self._pack_queries()
        self._reset()
        limit = self.start + self.first + self.count
        reached = f.max(last_unseen(self.start + self.first, a.window) + 1, 0) if a.window else f.constant(0)
        with f.loop(reached, limit, a.tiles.block) as block:
            self._keys(block.index, limit)
        self._write()
        if a.log_sum_exp:
            self._keep(self.context.operands[a.log_sum_exp])

    def _row(self, row: Value) -> tuple[Value, Value]:
        """Query (in the block) and head of a row; rows behind the last query repeat it."""
        return self.f.min(row // self.a.group, self.count - 1), self.head * self.a.group + row % self.a.group

    def _pack_queries(self) -> None:
        f, a = self.f, self.a
        with f.loop(0, self.panels * a.tiles.vectors) as group:
            with f.loop(0, 16) as lane:
                row = group.index * 16 + lane.index
                query, head = self._row(row)
                source = address(f, self.q, 0, head, self.first + query)
                a.rows.stage(f, source, self.q.dtype, lane.index, self.at["staging"])
                position = f.cast("arith.trunci", self.start + self.first + query, I32)
                f.store(position, self.at["positions"] + row * 4)
            a.rows.pack(f, self.at["staging"], group.index, self.at["query"])

    def _reset(self) -> None:
        f, a = self.f, self.a
        with f.loop(0, self.panels * a.tiles.vectors) as group:
            f.store(f.splat(LOWEST_PEAK), self.at["peak"] + group.index * 64)
            f.store(f.splat(0.0), self.at["total"] + group.index * 64)
        with f.loop(0, self.panels * a.panel_sums, 64) as place:
            f.store(f.splat(0.0), self.at["sums"] + place.index)
        if a.sinks is not None:
            self._take_sinks(self.context.operands[a.sinks])

    def _take_sinks(self, sinks: Operand) -> None:
        """Begins with the learned sinks, which have no keys. Peaks are products that scores are `left` times of."""
        f, a = self.f, self.a
        with f.loop(0, self.panels * a.tiles.panel) as row:
            _, head = self._row(row.index)
            logit = f.extract(load_f32(f, address(f, sinks, head), sinks.dtype, 0, 1), 0)
            f.store(logit / a.scoring.left, self.at["peak"] + row.index * 4)
            f.store(f.constant(1.0, F32), self.at["total"] + row.index * 4)

    def _keys(self, first: Value, limit: Value) -> None:
        """Takes in the block of keys from `first` on; no row from `limit` on is read."""
        f, a = self.f, self.a
        last = limit - 1 - first
        used = f.min(last + 1, a.tiles.block)
        key, value = self._rows(first, last, used)
        with f.loop(0, self.panels) as panel:
            positions = self.at["positions"] + panel.index * a.tiles.row_bytes
            seen = self._position(positions, a.tiles.panel - 1) + 1 - first
            some = seen > 0
            if a.window:
                some = some & (first + used - 1 > last_unseen(self._position(positions, 0), a.window))
            with f.when(some):
                self._panel(panel.index, first, last, f.min(seen, used), key, value)

    def _rows(self, first: Value, last: Value, used: Value) -> tuple[tuple[Value, int], tuple[Value, int]]:
        """Keys and values of a block as products take them: where they are, and bytes from one to the next. Row `last`
        stands in for those behind it."""
        f, a = self.f, self.a
        key, key_stride = address(f, self.k, 0, self.head, first), row_stride(a.operands[a.names[1]])
        value, value_stride = address(f, self.v, 0, self.head, first), row_stride(a.operands[a.names[2]])
        numbers = "bf16" if a.tiles.pairs else "f32"
        if a.encoded:
            decode_rows(f, key, key_stride, last, used, self.at["key"], numbers, a.stored(1, a.depth))
            key, key_stride = self.at["key"], a.depth * SIZES[numbers]
        elif not a.key_as_it_lies:
            pack_rows(f, key, self.k.dtype, key_stride, last, used, self.at["key"], a.depth)
            key, key_stride = self.at["key"], a.depth * 4
        if a.encoded:
            decoded = self.at["decoded" if a.tiles.pairs else "value"]
            decode_rows(f, value, value_stride, last, used, decoded, numbers, a.stored(2, a.columns))
            value, value_stride = decoded, a.columns * SIZES[numbers]
        if a.tiles.pairs:
            value, value_stride = self._pairs(value, value_stride, last, used)
        elif not a.encoded and not a.value_as_it_lies:
            pack_rows(f, value, self.v.dtype, value_stride, last, used, self.at["value"], a.columns)
            value, value_stride = self.at["value"], a.columns * 4
        return (key, key_stride), (value, value_stride)

    def _pairs(self, value: Value, stride: int, last: Value, used: Value) -> tuple[Value, int]:
        """Values of bf16 in pairs of rows, for tile registers turned, and bytes from pair to pair or column to
        column."""
        f, a = self.f, self.a
        steps, pair_bytes = f.ceildiv(used, a.tiles.keys) * (a.tiles.keys // 2), a.padded_columns * 4
        pack_pairs(f, value, stride, last, steps, self.at["value"], a.columns)
        if not a.tiles.matrix:
            return self.at["value"], pair_bytes
        turn = transpose_kernel(f.module)
        with f.loop(0, steps, UNIT) as step, f.loop(0, a.padded_columns, 16) as column:
            source = self.at["value"] + (step.index * pair_bytes + column.index * 4)
            target = self.at["turned"] + (column.index * a.turned_stride + step.index * 4)
            f.call(turn, source, pair_bytes, target, a.turned_stride)
        return self.at["turned"], a.turned_stride

    def _position(self, positions: Value, lane: int) -> Value:
        return self.f.cast("arith.extsi", self.f.load(positions + lane * 4, I32), "i64")

    def _panel(
        self, panel: Value, first: Value, last: Value, count: Value, key: tuple[Value, int], value: tuple[Value, int]
    ) -> None:
        """Takes in `count` keys of a block for one panel of query rows."""
        f, a = self.f, self.a
        tiles, module, scores = a.tiles, f.module, self.at["scores"]
        place = panel * tiles.row_bytes
        key_tiles = f.ceildiv(count, tiles.keys)
        query = self.at["query"] + panel * a.rows.panel_bytes
        f.call(scores_kernel(module, tiles, tiles.words(a.depth)), query, *key, last, key_tiles, scores)
        keys = key_tiles * tiles.keys
        if a.scoring.softcap is not None:
            f.call(bounds_kernel(module, tiles, a.scoring), scores, keys)
        hidden = first + keys - 1 > self._position(self.at["positions"] + place, 0)
        if a.window:
            newest = self._position(self.at["positions"] + place, tiles.panel - 1)
            hidden = hidden | (first <= last_unseen(newest, a.window))
        with f.when(hidden):
            f.call(mask_kernel(module, tiles, a.window), scores, first, keys, self.at["positions"] + place)
        peak, total, shrink = (self.at[name] + place for name in ("peak", "total", "shrink"))
        f.call(softmax_kernel(module, tiles, a.scoring.left), scores, keys, peak, total, shrink)
        steps = keys // 2 if tiles.pairs else count
        sums = self.at["sums"] + panel * a.panel_sums
        f.call(sums_kernel(module, tiles, a.columns), scores, *value, steps, shrink, sums)

    def _write(self) -> None:
        """Divides by the totals, and turns the sums to rows of the output."""
        f, a = self.f, self.a
        turned, vectors = self.at["staging"], a.tiles.vectors
        with f.loop(0, self.panels * vectors) as group:
            panel, part = group.index // vectors, group.index % vectors
            total = f.load(self.at["total"] + group.index * 64, vector(F32, 16))
            factor = f.splat(1.0) / f.select(total.eq(0.0), 1.0, total)
            source = self.at["sums"] + panel * a.panel_sums + part * 64
            with f.loop(0, a.columns) as column:
                place = source + column.index * a.tiles.row_bytes
                f.store(f.load(place, vector(F32, 16)) * factor, place)
            with f.loop(0, a.padded_columns // 16) as part16:
                f.call(
                    transpose_kernel(f.module),
                    source + part16.index * (16 * a.tiles.row_bytes),
                    a.tiles.row_bytes,
                    turned + part16.index * 64,
                    a.padded_columns * 4,
                )
            with f.loop(0, 16) as lane:
                row = group.index * 16 + lane.index
                with f.when(row // a.group < self.count):
                    query, head = self._row(row)
                    target = address(f, self.o, 0, head, self.first + query)
                    copy_row(f, turned + lane.index * (a.padded_columns * 4), "f32", target, self.o.dtype, a.columns)

    def _keep(self, log_sum_exp: Operand) -> None:
        """Writes every query's log-sum-exp."""
        f, a = self.f, self.a
        with f.loop(0, self.panels * a.tiles.vectors) as group:
            peak, total = (f.load(self.at[name] + group.index * 64, vector(F32, 16)) for name in ("peak", "total"))
            f.store(f.fma(peak, a.scoring.left, log(f, total)), self.at["log_sum_exp"] + group.index * 64)
        with f.loop(0, self.count * a.group) as row:
            query, head = self._row(row.index)
            row_log_sum_exp = f.load(self.at["log_sum_exp"] + row.index * 4, F32)
            f.store(row_log_sum_exp, address(f, log_sum_exp, 0, head, self.first + query))
