"""SnapKV's scores of a prompt's positions: softmax weights of the observed queries, summed over them.

Work is bounded by the prompt's length, not by the rows of its scratch: each KV head has a fixed number of units
(`SLICES` at most) that share its positions evenly; those that get none do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.operations import ObservationScores
from sscc.runtime.backends.cpu.attention.attention_tiles import (
    LOWEST_PEAK,
    AttentionTiling,
    QueryRows,
    bounds_kernel,
    mask_kernel,
    scores_kernel,
    softmax_kernel,
    tiling,
)
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, exp2, log
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import GRAIN, SLICES
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces, address, pack_rows, row_stride

LANES = vector(F32, 16)
KEYS = vector(I32, 16)


def slices_of(rows: int) -> int:
    """Units per KV head over the positions of a prompt of up to `rows`."""
    return min(SLICES, -(-rows // GRAIN))


def slice_range(f: Function, part: Value, slices: int, length: Value) -> tuple[Value, Value]:
    """First position and end of a slice of [0, length), whole grains."""
    grains = f.ceildiv(length, GRAIN)
    first, end = (grains * part // slices) * GRAIN, (grains * (part + 1) // slices) * GRAIN
    return first, f.min(end, length)


def holds(length: Value, rows: int) -> Value:
    """Whether a prompt's length is one that `rows` rows hold, 1 .. rows (i1)."""
    return (length >= 1) & (length <= rows)


@dataclass(frozen=True)
class Scorer:
    """Scores of positions from the observed queries of a KV head's group, rows ordered (head of the group, query).

    Attributes:
        window: observed queries per head, `obs`.
        rows: how queries are packed.
    """

    step: ObservationScores
    operands: dict[str, Meta]
    tiles: AttentionTiling
    kv_heads: int
    group: int
    window: int
    limit: int
    depth: int
    rows: QueryRows

    @classmethod
    def of(cls, step: ObservationScores, operands: dict[str, Meta], features: Features) -> Scorer:
        (_, heads, window, depth), _, query_type = operands[step.observed]
        (_, kv_heads, limit, _), _, key_type = operands[step.key]
        tiles = tiling(features, (query_type, key_type), depth)
        group = heads // kv_heads
        rows = QueryRows(tiles, depth, -(-group * window // tiles.panel))
        return cls(step, operands, tiles, kv_heads, group, window, limit, depth, rows)

    @property
    def scoring(self) -> Scoring:
        return Scoring.of(self.step)

    @property
    def slices(self) -> int:
        return slices_of(self.limit)

    @property
    def units(self) -> int:
        return self.kv_heads * self.slices

    @property
    def scratch(self) -> ScratchPieces:
        """Private scratch: all panels of a KV head's queries, one block of keys. See `attention_tiles`."""
        tiles = self.tiles
        return ScratchPieces(
            query=self.rows.panels * self.rows.panel_bytes,
            staging=self.rows.staging_bytes,
            positions=self.row_bytes,
            sums=self.row_bytes,
            shrink=self.row_bytes,
            scores=tiles.block * tiles.row_bytes,
            key=0 if self.key_as_it_lies else tiles.block * self.depth * 4,
            votes=tiles.block * 64,
        )

    @property
    def partial_bytes(self) -> int:
        """Of the peaks and totals of all slices."""
        return self.units * 2 * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Of one f32 for every packed row."""
        return self.rows.panels * self.tiles.row_bytes

    @property
    def key_as_it_lies(self) -> bool:
        return self.tiles.pairs or self.operands[self.step.key][2] == "f32"

    def scored(self, f: Function, length: Value) -> Value:
        """Positions from here on score zero by rule."""
        return length - f.min(length, min(self.window, self.step.recent))

    def emit_scores(self, context: Context) -> None:
        """Writes scores [0, length) of the units' slices."""
        f, length = context.f, context.scalars[self.step.length]
        end = self.scored(f, length)
        with f.when(holds(length, self.limit)), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // self.slices, unit.index % self.slices
            scores = address(f, context.operands[self.step.scores], head)
            with f.when(part.eq(0)), f.loop(end, length) as place:
                f.store(f.constant(0.0, F32), scores + place.index * 4)
            first, last = slice_range(f, part, self.slices, end)
            with f.when(first < last):
                piece = _Slice(self, context, head, last)
                piece.pack_queries()
                piece.prepare_sums()
                with f.loop(first, last, self.tiles.block) as block:
                    piece.score(block.index, scores)

    def emit_partial_sums(self, context: Context) -> None:
        """Writes the peak and the total of every packed row over the units' slices of keys, to shared scratch."""
        f, length = context.f, context.scalars[self.step.length]
        with f.when(holds(length, self.limit)), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // self.slices, unit.index % self.slices
            first, last = slice_range(f, part, self.slices, length)
            peaks = context.shared + unit.index * (2 * self.row_bytes)
            totals = peaks + self.row_bytes
            with f.loop(0, self.row_bytes, 64) as place:
                f.store(f.splat(LOWEST_PEAK), peaks + place.index)
                f.store(f.splat(0.0), totals + place.index)
            with f.when(first < last):
                piece = _Slice(self, context, head, last)
                piece.pack_queries()
                with f.loop(first, last, self.tiles.block) as block:
                    piece.accumulate(block.index, peaks, totals)


class _Slice:
    """Emits what a unit does with the keys of one KV head up to `last`."""

    def __init__(self, scorer: Scorer, context: Context, head: Value, last: Value) -> None:
        self.s, self.tiles = scorer, scorer.tiles
        self.context, self.f, self.module = context, context.f, context.f.module
        self.at = scorer.scratch.at(context.private)
        self.head, self.last = head, last

    def pack_queries(self) -> None:
        """Packed queries and positions of all rows, -1 for rows that are none; and the log-sum-exp, where given."""
        f, s, observed = self.f, self.s, self.context.operands[self.s.step.observed]
        length = self.context.scalars[s.step.length]
        filled = f.min(length, s.window)
        with f.loop(0, s.rows.panels * self.tiles.vectors) as group:
            with f.loop(0, 16) as lane:
                row = group.index * 16 + lane.index
                known = f.min(row, s.group * s.window - 1)
                query_head, i = self.head * s.group + known // s.window, known % s.window
                s.rows.stage(f, address(f, observed, 0, query_head, i), observed.dtype, lane.index, self.at["staging"])
                exists = (row < s.group * s.window) & (i < filled)
                position = f.select(exists, length - filled + i, -1)
                f.store(f.cast("arith.trunci", position, I32), self.at["positions"] + row * 4)
                if s.step.log_sum_exp:
                    source = address(f, self.context.operands[s.step.log_sum_exp], 0, query_head, i)
                    f.store(f.load(source, F32), self.at["sums"] + row * 4)
            s.rows.pack(f, self.at["staging"], group.index, self.at["query"])

    def prepare_sums(self) -> None:
        """Turns log-sum-exps, given or of the slices together, to what is added to an exponent of 2."""
        f = self.f
        with f.loop(0, self.s.row_bytes, 64) as place:
            target = self.at["sums"] + place.index
            log_sum_exp = f.load(target, LANES) if self.s.step.log_sum_exp else self._combined(place.index)
            f.store(log_sum_exp * -LOG2E, target)

    def _combined(self, place: Value) -> Value:
        """The log-sum-exp of 16 rows from the peaks and totals of the slices."""
        f, s = self.f, self.s
        step = 2 * s.row_bytes
        peaks = self.context.shared + self.head * (s.slices * step) + place
        with f.loop(0, s.slices, 1, [f.splat(LOWEST_PEAK)]) as part:
            peak = f.load(peaks + part.index * step, LANES)
            part.carry(f.select(part.state[0] > peak, part.state[0], peak))
        highest = part.results[0]
        with f.loop(0, s.slices, 1, [f.splat(0.0)]) as part:
            peak = f.load(peaks + part.index * step, LANES)
            total = f.load(peaks + part.index * step + s.row_bytes, LANES)
            part.carry(f.fma(total, exp2(f, (peak - highest) * (s.scoring.left * LOG2E)), part.state[0]))
        return f.fma(highest, s.scoring.left, log(f, part.results[0]))

    def score(self, first: Value, scores: Value) -> None:
        """Writes the scores of a block of positions."""
        f = self.f
        key, stride, count = self._keys(first)
        with f.loop(0, count) as row:
            f.store(f.splat(0.0), self.at["votes"] + row.index * 64)
        with f.loop(0, self.s.rows.panels) as panel:
            self._products(panel.index, key, stride, count)
            self._vote(first, count, panel.index * self.tiles.row_bytes)
        with f.loop(0, count) as row:
            total = f.reduce("add", f.load(self.at["votes"] + row.index * 64, LANES))
            f.store(total / float(self.s.group), scores + (first + row.index) * 4)

    def accumulate(self, first: Value, peaks: Value, totals: Value) -> None:
        """Takes a block of keys into the running peaks and totals."""
        f, tiles, scores = self.f, self.tiles, self.at["scores"]
        key, stride, count = self._keys(first)
        keys = f.ceildiv(count, tiles.keys) * tiles.keys
        with f.loop(0, self.s.rows.panels) as panel:
            place = panel.index * tiles.row_bytes
            self._products(panel.index, key, stride, count)
            # Keys behind the slice's last one repeat it, in the places of the next slice's.
            with f.loop(count * tiles.row_bytes, keys * tiles.row_bytes, 64) as extra:
                f.store(f.splat(float("-inf")), scores + extra.index)
            f.call(mask_kernel(self.module, tiles), scores, first, keys, self.at["positions"] + place)
            softmax = softmax_kernel(self.module, tiles, self.s.scoring.left)
            f.call(softmax, scores, keys, peaks + place, totals + place, self.at["shrink"] + place)

    def _keys(self, first: Value) -> tuple[Value, int, Value]:
        """A block of keys as the kernel takes them: where they are, their stride in bytes, how many."""
        f, s, key = self.f, self.s, self.context.operands[self.s.step.key]
        source, stride = address(f, key, 0, self.head, first), row_stride(s.operands[s.step.key])
        count = f.min(self.last - first, self.tiles.block)
        if s.key_as_it_lies:
            return source, stride, count
        pack_rows(f, source, key.dtype, stride, count - 1, count, self.at["key"], s.depth)
        return self.at["key"], s.depth * 4, count

    def _products(self, panel: Value, key: Value, stride: int, count: Value) -> None:
        """Bounded products, for one panel of queries; those behind the last key are the last key's."""
        f, tiles = self.f, self.tiles
        query = self.at["query"] + panel * self.s.rows.panel_bytes
        kernel = scores_kernel(self.module, tiles, tiles.words(self.s.depth))
        last, key_tiles = count - 1, f.ceildiv(count, tiles.keys)
        f.call(kernel, query, key, stride, last, key_tiles, self.at["scores"])
        if self.s.scoring.softcap is not None:
            f.call(bounds_kernel(self.module, tiles, self.s.scoring), self.at["scores"], key_tiles * tiles.keys)

    def _vote(self, first: Value, count: Value, place: Value) -> None:
        """Adds a panel's softmax weights to the votes of `count` keys."""
        f, tiles, factor = self.f, self.tiles, self.f.splat(self.s.scoring.left * LOG2E)
        sums = [f.load(self.at["sums"] + place + v * 64, LANES) for v in range(tiles.vectors)]
        positions = [f.load(self.at["positions"] + place + v * 64, KEYS) for v in range(tiles.vectors)]
        with f.loop(0, count) as key:
            here = f.broadcast(f.cast("arith.trunci", first + key.index, I32), 16)
            row = self.at["scores"] + key.index * tiles.row_bytes
            total = f.load(self.at["votes"] + key.index * 64, LANES)
            for v in range(tiles.vectors):
                weight = exp2(f, f.fma(f.load(row + v * 64, LANES), factor, sums[v]))
                total = total + f.select(here > positions[v], 0.0, weight)
            f.store(total, self.at["votes"] + key.index * 64)
