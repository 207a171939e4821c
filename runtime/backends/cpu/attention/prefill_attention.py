"""Attention of a prefill chunk: causal, in panels, with an online softmax; and observation of the prompt's last
queries.

A unit is a KV head and two blocks of queries of its whole group, block i and block n - 1 - i, so that units cost about
the same although later queries see more keys. Keys are processed in blocks up to the last one that the queries see.
Rows are ordered (query, head of the group), so that a panel's diagonal is short. For each block of keys and each panel:

    row_source     keys and values are contiguous in a prompt's scratch, to which those of the chunk are appended first
    row_codec      rows of another dtype than that of products are decoded or widened, once for all panels
    scoring        products of the panel with the keys
    visibility     scores are masked at the diagonal and at the border of a window; the first block is the first one
                   with a key that the first query sees
    combination    weights by an online softmax, and weighted sums of the values

With bf16 queries, keys and values and `Features.bf16_dot`, products are of bf16 pairs, summed in f32. The softmax's
weights are then rounded to bf16 before their product with the values (relative error of a weight up to 2**-9), but not
before their sum. Encoded keys and values are then also rounded to bf16. Otherwise everything is f32. The order of sums
depends only on the shapes and on `start`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.geometry import Span
from sscc.ir.operations import CausalAttention, ChunkAttention, LatentChunkAttention, Observe
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.combination import LOWEST_PEAK, panel_softmax, panel_sums
from sscc.runtime.backends.cpu.attention.matrix_attention import REGISTERS, UNIT
from sscc.runtime.backends.cpu.attention.panels import FLOATS, QueryRows, Tiling
from sscc.runtime.backends.cpu.attention.row_codec import load_f32
from sscc.runtime.backends.cpu.attention.scoring import Scoring, score_panel
from sscc.runtime.backends.cpu.attention.visibility import EVERY_POSITION, last_unseen, panel_mask
from sscc.runtime.backends.cpu.codegen import figures
from sscc.runtime.backends.cpu.codegen.approximations import log
from sscc.runtime.backends.cpu.codegen.encoded_rows import plain_rows, put_row
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LARGEST_QUERY_BLOCK, LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, I64, Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, row_phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import (
    Meta,
    ScratchPieces,
    address,
    check_rows,
    copy_row,
    pack_pairs,
    transpose,
)

Rows = tuple[Value, int]
"""Address of the first row of a block, and bytes between rows."""


@executes(ChunkAttention)
def lower_chunk_attention(step: ChunkAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower to two phases: append, then attention. See `ChunkAttention` for shapes and meaning.

    Padding, the positions from `length` on, is skipped: its rows of the scratches are not written. Does nothing if
    start < 0 or start + C exceeds T (the reference interpreter refuses these).
    """
    attention = Causal.of(step, operands, features, step.k_scratch, step.v_scratch)
    appended = ((step.new_key, step.k_scratch), (step.new_value, step.v_scratch))
    return Lowered((attention.append_phase(appended), attention.phase))


@executes(CausalAttention)
def lower_causal_attention(step: CausalAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `CausalAttention` to one phase. Padding is skipped: its rows of `out` and `log_sum_exp` are not written.

    Does nothing if start < 0 or start + C exceeds T.
    """
    return Lowered((Causal.of(step, operands, features, step.key, step.value).phase,))


@executes(Observe)
def lower_observe(step: Observe, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `Observe` to one phase, in units of (head, 32 queries)."""
    check_rows(step, operands)
    (_, heads, chunk, _), (_, _, window, _) = operands[step.query][0], operands[step.observed][0]

    def observe(context: Context, place: list[Value], row: Value) -> None:
        f, (head,), length = context.f, place, context.scalars[step.length]
        target = context.scalars[step.start] + row - f.max(length - window, 0)
        with f.when((target >= 0) & (target < f.min(length, window))):
            source, observed = context.operands[step.query], context.operands[step.observed]
            put_row(f, source, (0, head, row), observed, (0, head, target))

    return Lowered((row_phase((heads,), chunk, observe),))


class Causal:
    """Causal attention of a chunk: its sizes and phases.

    Args:
        names: operands for query, key, value and out.
        queries: maximum number of queries of a block.
        window: positions that a query sees.
        sinks: operand with the logits of learned sinks.
    """

    def __init__(
        self, step: ChunkAttention | CausalAttention | LatentChunkAttention, operands: dict[str, Meta],
        names: tuple[str, str, str, str], kv_heads: int, tiles: Tiling, scoring: Scoring,
        queries: int = LARGEST_QUERY_BLOCK, window: Span = EVERY_POSITION, sinks: str | None = None,
    ) -> None:  # fmt: skip
        check_rows(step, operands)
        self.step, self.operands, self.names, self.tiles = step, operands, names, tiles
        self.kv_heads, self.scoring, self.window, self.sinks = kv_heads, scoring, window, sinks
        (_, heads, self.chunk, self.depth), self.limit = operands[step.query][0], operands[names[1]][0][2]
        self.columns, self.group = operands[step.out][0][3], heads // kv_heads
        self.encoded = operands[names[1]][2] == "i8"
        self.queries = block_of_queries(self.group, self.chunk, tiles.panel, queries)
        self.rows = QueryRows(tiles, self.depth, self.queries * self.group)
        self.blocks = -(-self.chunk // self.queries)
        self.pairs = -(-self.blocks // 2)  # pairs of blocks; if their number is odd, the middle one is alone
        self.padded_columns = -(-self.columns // 16) * 16
        self.panel_sums = self.padded_columns * tiles.row_bytes
        self.turned_stride = tiles.block // 2 * 4  # bytes of a column of transposed values

    @classmethod
    def of(
        cls, step: ChunkAttention | CausalAttention, operands: dict[str, Meta], features: Features, key: str, value: str
    ) -> Causal:
        (_, kv_heads, _, _), _, key_type = operands[key]
        query_type, value_type = operands[step.query][2], operands[value][2]
        numbers = (query_type, query_type) if key_type == "i8" else (key_type, value_type)  # decoded to the query dtype
        tiles = Tiling(features, (query_type, *numbers), operands[step.query][0][3], matrix=True)
        return cls(
            step, operands, (step.query, key, value, step.out), kv_heads, tiles, Scoring(step.scale, step.softcap),
            window=Span(step.window, step.window_stride or 1), sinks=step.sink_logits,
        )  # fmt: skip

    def pieces(self) -> dict[str, int]:
        """Return the sizes in bytes of private scratch by name: all panels of a block of queries, and one block of
        keys. See `panels`."""
        tiles, rows = self.tiles, self.rows
        key_type, value_type = (self.operands[name][2] for name in self.names[1:3])
        state = dict.fromkeys(("positions", "peak", "total", "shrink", "log_sum_exp"), rows.row_bytes)
        return {
            "query": rows.nbytes,
            "staging": max(rows.staging_bytes, 16 * self.padded_columns * 4),
            **state,
            "sums": rows.panels * self.panel_sums,
            "scores": tiles.block * tiles.row_bytes,
            "key": 0 if key_type == tiles.numbers else tiles.block * self.depth * 4,
            "value": 0 if value_type == tiles.numbers == "f32" else tiles.block * self.padded_columns * 4,
            "decoded": tiles.block * self.columns * 2 if self.encoded and tiles.pairs else 0,
            "turned": self.padded_columns * self.turned_stride if tiles.matrix else 0,
            "registers": LINE if tiles.matrix else 0,
        }

    def fits(self, context: Context) -> Value:
        """Return True if the chunk lies in the scratch (i1)."""
        start = context.scalars[self.step.start]
        return (start >= 0) & (start + self.chunk <= self.limit)

    def live(self, context: Context) -> Value:
        """Return the number of the chunk's positions that are not padding; may be negative."""
        return context.f.min(context.scalars[self.step.length] - context.scalars[self.step.start], self.chunk)

    def append_phase(self, sides: Sequence[tuple[str, str]]) -> Phase:
        """Return the phase that copies a chunk's rows to scratches at `start`, in units of (head of the rows, 32 of
        them). `sides`: names of new rows and of their scratch."""
        blocks, heads = -(-self.chunk // figures.ROW_BLOCK), self.operands[sides[0][0]][0][1]

        def append(context: Context) -> None:
            f, start, operands = context.f, context.scalars[self.step.start], context.operands
            with f.when(self.fits(context)), units(context, heads, blocks) as (head, block):
                first = block * figures.ROW_BLOCK
                with f.loop(first, f.min(first + figures.ROW_BLOCK, self.live(context))) as row:
                    for new, scratch in sides:
                        target = (0, head, start + row.index)
                        put_row(f, operands[new], (0, head, row.index), operands[scratch], target)

        return Phase(heads * blocks, append)

    def block_at(self, context: Context, head: Value, first: Value, live: Value) -> QueryBlock:
        """Return the block of queries from `first` on."""
        return QueryBlock(self, context, head, first, live)

    @property
    def phase(self) -> Phase:
        scratch = ScratchPieces(**self.pieces())

        def attend(context: Context) -> None:
            f, live = context.f, self.live(context)
            if self.tiles.matrix:
                f.configure_tiles(REGISTERS, scratch.at(context.private)["registers"])
            fits = f.when(self.fits(context))
            with fits, units(context, self.kv_heads, self.pairs) as (head, pair), f.loop(0, 2) as side:
                first = side.index.eq(0)
                block = f.select(first, pair, self.blocks - 1 - pair)
                begin = block * self.queries
                with f.when((first | block.ne(pair)) & (begin < live)):
                    self.block_at(context, head, begin, live).emit()
            if self.tiles.matrix:
                f.release_tiles()

        return Phase(self.kv_heads * self.pairs, attend, private_bytes=scratch.nbytes)


def block_of_queries(group: int, chunk: int, panel: int, most: int = LARGEST_QUERY_BLOCK) -> int:
    """Return the number of queries of a block, at most `most`, that minimizes padding rows in panels, the number of
    blocks, and the difference between paired blocks."""

    def rows(queries: int) -> int:
        return -(-queries * group // panel) * panel + figures.KEY_WALK_ROWS if queries else 0

    def cost(queries: int) -> int:
        pairs = -(-chunk // (2 * queries))
        whole = 2 * pairs * rows(queries) if chunk > queries else rows(queries)
        return whole + 3 * (chunk // queries * rows(queries) + rows(chunk % queries))

    largest = min(chunk, most, max(1, max(most, figures.LARGEST_BLOCK_ROWS) // group))
    return min(range(1, largest + 1), key=lambda queries: (cost(queries), -queries))


class QueryBlock:
    """Emitter of the attention of one block of queries."""

    def __init__(self, attention: Causal, context: Context, head: Value, first: Value, live: Value) -> None:
        self.a, self.context, self.f = attention, context, context.f
        self.head, self.first = head, first
        self.start = context.scalars[attention.step.start]
        self.count = self.f.min(live - first, attention.queries)
        self.panels = self.f.ceildiv(self.count * attention.group, attention.tiles.panel)
        self.at = ScratchPieces(**attention.pieces()).at(context.private)
        self.q, self.k, self.v, self.o = (context.operands[name] for name in attention.names)

    def emit(self) -> None:
        f, a = self.f, self.a
        self.pack_queries()
        self._reset()
        limit = self.start + self.first + self.count
        reached = f.max(last_unseen(self.start + self.first, a.window) + 1, 0) if a.window else f.constant(0)
        with f.loop(reached, limit, a.tiles.block) as block:
            self._keys(block.index, limit)
        self._write()
        if a.step.log_sum_exp:
            self._keep(a.step.log_sum_exp)

    def _row(self, row: Value) -> tuple[Value, Value]:
        """Return the query (in the block) and the head of a row; rows after the last query repeat it."""
        return self.f.min(row // self.a.group, self.count - 1), self.head * self.a.group + row % self.a.group

    def pack_queries(self) -> None:
        f, at = self.f, self.at

        def source(row: Value) -> Value:
            query, head = self._row(row)
            return address(f, self.q, 0, head, self.first + query)

        def put_position(row: Value) -> None:
            position = f.cast("arith.trunci", self.start + self.first + self._row(row)[0], I32)
            f.store(position, at["positions"] + row * 4)

        self.a.rows.pack(f, self.panels, source, self.q.dtype, at["staging"], at["query"], put_position)

    def _reset(self) -> None:
        f, a = self.f, self.a
        with f.loop(0, self.panels * a.tiles.vectors) as group:
            f.store(f.splat(LOWEST_PEAK), self.at["peak"] + group.index * LINE)
            f.store(f.splat(0.0), self.at["total"] + group.index * LINE)
        f.fill(self.at["sums"], self.panels * a.panel_sums)
        if a.sinks is None:
            return
        # Learned sinks have no keys. Peaks are unscaled: scores are `left` times them.
        sinks = self.context.operands[a.sinks]
        with f.loop(0, self.panels * a.tiles.panel) as row:
            _, head = self._row(row.index)
            logit = f.extract(load_f32(f, address(f, sinks, head), sinks.dtype, 0, 1), 0)
            f.store(logit / a.scoring.left, self.at["peak"] + row.index * 4)
            f.store(f.constant(1.0, F32), self.at["total"] + row.index * 4)

    def _keys(self, first: Value, limit: Value) -> None:
        """Process the block of keys from `first` on; no row from `limit` on is read."""
        f, a = self.f, self.a
        last = limit - 1 - first
        used = f.min(last + 1, a.tiles.block)
        key, value = self.rows_at(first, last, used)
        with f.loop(0, self.panels) as panel:
            seen = self._position(panel.index, a.tiles.panel - 1) + 1 - first
            some = seen > 0
            if a.window:
                some = some & (first + used - 1 > last_unseen(self._position(panel.index, 0), a.window))
            with f.when(some):
                self._panel(panel.index, first, last, f.min(seen, used), key, value)

    def rows_at(self, first: Value, last: Value, used: Value) -> tuple[Rows, Rows]:
        """Return the keys and values of a block as operands of products. Row `last` is read in place of later ones."""
        f, a, at = self.f, self.a, self.at
        place, decoded = (0, self.head, first), at["decoded" if a.encoded and a.tiles.pairs else "value"]
        key = plain_rows(f, self.k, place, a.depth, last, used, at["key"], a.tiles.numbers)
        value = plain_rows(f, self.v, place, a.columns, last, used, decoded, a.tiles.numbers)
        return key, self.paired(value, last, used) if a.tiles.pairs else value

    def paired(self, value: Rows, last: Value, used: Value) -> Rows:
        """Return values of bf16 in pairs of rows, transposed for tile registers, with the bytes between pairs or
        columns."""
        f, a, at = self.f, self.a, self.at
        steps, pair_bytes = f.ceildiv(used, a.tiles.keys) * (a.tiles.keys // 2), a.padded_columns * 4
        pack_pairs(f, *value, last, steps, at["value"], a.columns)
        if not a.tiles.matrix:
            return at["value"], pair_bytes
        turn = transpose(f)
        with f.loop(0, steps, UNIT) as step, f.loop(0, a.padded_columns, 16) as column:
            source = at["value"] + (step.index * pair_bytes + column.index * 4)
            turn(source, pair_bytes, at["turned"] + (column.index * a.turned_stride + step.index * 4), a.turned_stride)
        return at["turned"], a.turned_stride

    def _position(self, panel: Value, lane: int) -> Value:
        """Return the position of a row of a panel."""
        place = self.at["positions"] + panel * self.a.tiles.row_bytes + lane * 4
        return self.f.cast("arith.extsi", self.f.load(place, I32), I64)

    def _panel(self, panel: Value, first: Value, last: Value, count: Value, key: Rows, value: Rows) -> None:
        """Process `count` keys of a block for one panel of query rows."""
        f, a, tiles, scores = self.f, self.a, self.a.tiles, self.at["scores"]
        query = self.at["query"] + panel * a.rows.panel_bytes
        keys = score_panel(f, a.rows, a.scoring, query, key, last, count, scores)
        hidden = first + keys - 1 > self._position(panel, 0)
        if a.window:
            hidden = hidden | (first <= last_unseen(self._position(panel, tiles.panel - 1), a.window))
        positions, peak, total, shrink = (
            self.at[name] + panel * tiles.row_bytes for name in ("positions", "peak", "total", "shrink")
        )
        with f.when(hidden):
            panel_mask(f, tiles, a.window)(scores, first, keys, positions)
        panel_softmax(f, tiles, a.scoring.left)(scores, keys, peak, total, shrink)
        sums = self.at["sums"] + panel * a.panel_sums
        panel_sums(f, tiles, a.columns)(scores, *value, keys // 2 if tiles.pairs else count, shrink, sums)

    def _write(self) -> None:
        """Divide the sums by the totals, and transpose them to rows of the output."""
        f, a, turn = self.f, self.a, transpose(self.f)
        turned, vectors, turned_bytes = self.at["staging"], a.tiles.vectors, a.padded_columns * 4
        with f.loop(0, self.panels * vectors) as group:
            total = f.load(self.at["total"] + group.index * LINE, FLOATS)
            factor = f.splat(1.0) / f.select(total.eq(0.0), 1.0, total)
            source = self.at["sums"] + (group.index // vectors) * a.panel_sums + (group.index % vectors) * LINE
            with f.loop(0, a.columns) as column:
                place = source + column.index * a.tiles.row_bytes
                f.store(f.load(place, FLOATS) * factor, place)
            with f.loop(0, a.padded_columns // 16) as part:
                from_ = source + part.index * (16 * a.tiles.row_bytes)
                turn(from_, a.tiles.row_bytes, turned + part.index * LINE, turned_bytes)
            with f.loop(0, 16) as lane:
                row = group.index * 16 + lane.index
                with f.when(row // a.group < self.count):
                    query, head = self._row(row)
                    target = address(f, self.o, 0, head, self.first + query)
                    copy_row(f, turned + lane.index * turned_bytes, "f32", target, self.o.dtype, a.columns)

    def _keep(self, name: str) -> None:
        """Write every query's log-sum-exp."""
        f, a, at, target = self.f, self.a, self.at, self.context.operands[name]
        with f.loop(0, self.panels * a.tiles.vectors) as group:
            peak, total = (f.load(at[state] + group.index * LINE, FLOATS) for state in ("peak", "total"))
            f.store(f.fma(peak, a.scoring.left, log(f, total)), at["log_sum_exp"] + group.index * LINE)
        with f.loop(0, self.count * a.group) as row:
            query, head = self._row(row.index)
            log_sum_exp = f.load(at["log_sum_exp"] + row.index * 4, F32)
            f.store(log_sum_exp, address(f, target, 0, head, self.first + query))
