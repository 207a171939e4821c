"""SnapKV's scores of a prompt's positions: softmax weights of the observed queries, summed over them.

Work is bounded by the prompt's length, not by the rows of its scratch: each KV head has a fixed number of units
(`SLICES` at most) that share its positions evenly; those that get none do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sscc.ir.errors import InputError
from sscc.runtime.codegen.attention_tiles import (
    LOG2E,
    LOWEST_PEAK,
    QueryRows,
    Tiling,
    exp2,
    log,
    mask_kernel,
    scores_kernel,
    softmax_kernel,
    tiling,
)
from sscc.runtime.codegen.features import Features
from sscc.runtime.codegen.mlir import F32, I32, Function, Value, vector
from sscc.runtime.codegen.phases import Context
from sscc.runtime.codegen.row_copies import Meta, Scratch, address, pack_rows, row_stride
from sscc.runtime.schedule import Compress, ObservationScores

SLICES = 16
GRAIN = 256
"""Positions that units divide a prompt into; a multiple of the block of keys, and of 16."""
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


def holds(f: Function, length: Value, rows: int) -> Value:
    """Whether a prompt's length is one that `rows` rows hold, 1 .. rows (i1)."""
    return (length >= 1) & (length <= rows)


@dataclass(frozen=True)
class _Places:
    """Offsets in private scratch."""

    query: int
    staging: int
    positions: int
    sums: int
    total: int
    shrink: int
    scores: int
    key: int
    votes: int
    nbytes: int


@dataclass(frozen=True)
class Scorer:
    """Scores of positions from the observed queries of a KV head's group, rows ordered (head of the group, query).

    Attributes:
        window: observed queries per head, `obs`.
        rows: how queries are packed.
    """

    step: ObservationScores | Compress
    operands: dict[str, Meta]
    tiles: Tiling
    kv_heads: int
    group: int
    window: int
    limit: int
    depth: int
    rows: QueryRows

    @classmethod
    def of(cls, step: ObservationScores | Compress, operands: dict[str, Meta], features: Features) -> Scorer:
        (_, heads, window, depth), _, query_type = operands[step.observed]
        (_, kv_heads, limit, _), _, key_type = operands[step.key]
        if heads % kv_heads:
            raise InputError(f"{step.kind}: {heads} query heads do not divide into groups of {kv_heads} KV heads")
        if step.scale <= 0:
            raise InputError(f"{step.kind} takes a positive scale, not {step.scale}")
        tiles = tiling(features, (query_type, key_type), depth)
        group = heads // kv_heads
        rows = QueryRows(tiles, depth, -(-group * window // tiles.panel))
        return cls(step, operands, tiles, kv_heads, group, window, limit, depth, rows)

    @property
    def slices(self) -> int:
        return slices_of(self.limit)

    @property
    def units(self) -> int:
        return self.kv_heads * self.slices

    @property
    def places(self) -> _Places:
        scratch, tiles, panels = Scratch(), self.tiles, self.rows.panels
        offsets = [
            panels * self.rows.panel_bytes,
            self.rows.staging_bytes,
            *[panels * tiles.row_bytes] * 4,
            tiles.block * tiles.row_bytes,
            0 if self.key_as_it_lies else tiles.block * self.depth * 4,
            tiles.block * 64,
        ]
        return _Places(*(scratch.take(nbytes) for nbytes in offsets), scratch.nbytes)

    @property
    def private_bytes(self) -> int:
        return self.places.nbytes

    @property
    def partial_bytes(self) -> int:
        """Of the peaks and totals of all slices."""
        return self.units * 2 * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        """Of one f32 for every packed row."""
        return self.rows.panels * self.tiles.row_bytes

    @property
    def key_as_it_lies(self) -> bool:
        return self.tiles.pairs or self.operands[self.step.key][2] == "f32"

    def scored(self, f: Function, length: Value) -> Value:
        """Positions from here on score zero by rule."""
        return length - f.min(length, min(self.window, self.step.recent))

    def emit_scores(self, context: Context, target: Callable[[Value], Value], wanted: Value | None = None) -> None:
        """Writes scores [0, length) of the units' slices, unless they are not wanted (i1); `target(head)` is where
        those of a KV head go."""
        f, at = context.f, self._at(context)
        length = context.scalars[self.step.length]
        held = holds(f, length, self.limit)
        with f.when(held if wanted is None else held & wanted), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // self.slices, unit.index % self.slices
            scores = target(head)
            end = self.scored(f, length)
            with f.when(part.eq(0)), f.loop(end, length) as place:
                f.store(f.constant(0.0, F32), scores + place.index * 4)
            first, last = slice_range(f, part, self.slices, end)
            with f.when(first < last):
                self._pack(context, at, head, length)
                with f.loop(first, last, self.tiles.block) as block:
                    self._score(context, at, head, block.index, last, scores)

    def emit_partial_sums(self, context: Context) -> None:
        """Writes the peak and the total of every packed row over the units' slices of keys, to shared scratch."""
        f, at = context.f, self._at(context)
        length = context.scalars[self.step.length]
        with f.when(holds(f, length, self.limit)), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // self.slices, unit.index % self.slices
            first, last = slice_range(f, part, self.slices, length)
            peaks = context.shared + unit.index * (2 * self._row_bytes)
            totals = peaks + self._row_bytes
            with f.loop(0, self._row_bytes, 64) as place:
                f.store(f.splat(LOWEST_PEAK), peaks + place.index)
                f.store(f.splat(0.0), totals + place.index)
            with f.when(first < last):
                self._pack_queries(context, at, head, length)
                with f.loop(first, last, self.tiles.block) as block, f.loop(0, self.rows.panels) as panel:
                    self._accumulate(context, at, head, block.index, last, panel.index, (peaks, totals))

    # -- packed queries

    def _at(self, context: Context) -> dict[str, Value]:
        places = self.places
        return {name: context.private + getattr(places, name) for name in places.__annotations__}

    def _pack(self, context: Context, at: dict[str, Value], head: Value, length: Value) -> None:
        self._pack_queries(context, at, head, length)
        if not self.step.log_sum_exp:
            self._combine(context, at, head)
        with context.f.loop(0, self._row_bytes, 64) as place:
            f = context.f
            f.store(f.load(at["sums"] + place.index, LANES) * -LOG2E, at["sums"] + place.index)

    def _pack_queries(self, context: Context, at: dict[str, Value], head: Value, length: Value) -> None:
        """Packed queries and positions of all rows, -1 for rows that are none; and the log-sum-exp, where given."""
        f, observed = context.f, context.operands[self.step.observed]
        filled = f.min(length, self.window)
        with f.loop(0, self.rows.panels * self.tiles.vectors) as group:
            with f.loop(0, 16) as lane:
                row = group.index * 16 + lane.index
                known = f.min(row, self.group * self.window - 1)
                query_head, i = head * self.group + known // self.window, known % self.window
                self.rows.stage(f, address(f, observed, 0, query_head, i), observed.dtype, lane.index, at["staging"])
                exists = (row < self.group * self.window) & (i < filled)
                position = f.select(exists, length - filled + i, -1)
                f.store(f.cast("arith.trunci", position, I32), at["positions"] + row * 4)
                if self.step.log_sum_exp:
                    source = address(f, context.operands[self.step.log_sum_exp], 0, query_head, i)
                    f.store(f.load(source, F32), at["sums"] + row * 4)
            self.rows.pack(f, at["staging"], group.index, at["query"])

    def _combine(self, context: Context, at: dict[str, Value], head: Value) -> None:
        """The log-sum-exp of all rows from the peaks and totals of the slices."""
        f = context.f
        parts = context.shared + head * (self.slices * 2 * self._row_bytes)
        with f.loop(0, self._row_bytes, 64) as place:
            first = parts + place.index
            step = 2 * self._row_bytes
            with f.loop(0, self.slices, 1, [f.splat(LOWEST_PEAK)]) as part:
                peak = f.load(first + part.index * step, LANES)
                part.carry(f.select(part.state[0] > peak, part.state[0], peak))
            highest = part.results[0]
            with f.loop(0, self.slices, 1, [f.splat(0.0)]) as part:
                peak = f.load(first + part.index * step, LANES)
                total = f.load(first + part.index * step + self._row_bytes, LANES)
                weight = exp2(f, (peak - highest) * (self.step.scale * LOG2E))
                part.carry(f.fma(total, weight, part.state[0]))
            f.store(f.fma(highest, self.step.scale, log(f, part.results[0])), at["sums"] + place.index)

    # -- keys

    def _products(
        self, context: Context, at: dict[str, Value], head: Value, first: Value, last: Value, panel: Value
    ) -> Value:
        """Scores without scale of a block of keys from `first` on for one panel; gives the number of keys."""
        f, key = context.f, context.operands[self.step.key]
        source, stride = address(f, key, 0, head, first), row_stride(self.operands[self.step.key], 2)
        count = f.min(last - first, self.tiles.block)
        if not self.key_as_it_lies:
            source, stride = at["key"], self.depth * 4
        query = at["query"] + panel * self.rows.panel_bytes
        kernel = scores_kernel(f.module, self.tiles, self.tiles.words(self.depth))
        f.call(kernel, query, source, stride, count - 1, f.ceildiv(count, self.tiles.keys), at["scores"])
        return count

    def _widen_keys(self, context: Context, at: dict[str, Value], head: Value, first: Value, last: Value) -> None:
        if not self.key_as_it_lies:
            f, key = context.f, context.operands[self.step.key]
            count, stride = f.min(last - first, self.tiles.block), row_stride(self.operands[self.step.key], 2)
            source = address(f, key, 0, head, first)
            pack_rows(f, source, key.dtype, stride, count - 1, count, at["key"], self.depth)

    def _accumulate(
        self,
        context: Context,
        at: dict[str, Value],
        head: Value,
        first: Value,
        last: Value,
        panel: Value,
        running: tuple[Value, Value],
    ) -> None:
        """Takes a block of keys into the running peaks and totals of a panel."""
        f, tiles = context.f, self.tiles
        self._widen_keys(context, at, head, first, last)
        count = self._products(context, at, head, first, last, panel)
        place = panel * tiles.row_bytes
        keys = f.ceildiv(count, tiles.keys) * tiles.keys
        # Keys behind the last one of the slice repeat it, at positions that would be the next slice's.
        with f.loop(count, keys) as extra, f.loop(0, tiles.row_bytes, 64) as part:
            f.store(f.splat(float("-inf")), at["scores"] + extra.index * tiles.row_bytes + part.index)
        f.call(mask_kernel(f.module, tiles), at["scores"], first, keys, at["positions"] + place)
        peak, total = (where + place for where in running)
        softmax = softmax_kernel(f.module, tiles, self.step.scale)
        f.call(softmax, at["scores"], keys, peak, total, at["shrink"] + place)

    def _score(
        self, context: Context, at: dict[str, Value], head: Value, first: Value, last: Value, scores: Value
    ) -> None:
        """Writes the scores of a block of positions."""
        f, tiles = context.f, self.tiles
        self._widen_keys(context, at, head, first, last)
        count = f.min(last - first, tiles.block)
        with f.loop(0, count) as key:
            f.store(f.splat(0.0), at["votes"] + key.index * 64)
        with f.loop(0, self.rows.panels) as panel:
            self._products(context, at, head, first, last, panel.index)
            self._vote(f, at, first, count, panel.index * tiles.row_bytes)
        with f.loop(0, count) as key:
            total = f.reduce("add", f.load(at["votes"] + key.index * 64, LANES))
            f.store(total / float(self.group), scores + (first + key.index) * 4)

    def _vote(self, f: Function, at: dict[str, Value], first: Value, count: Value, place: Value) -> None:
        """Adds a panel's softmax weights to the votes of `count` keys."""
        tiles, factor = self.tiles, f.splat(self.step.scale * LOG2E)
        sums = [f.load(at["sums"] + place + v * 64, LANES) for v in range(tiles.vectors)]
        positions = [f.load(at["positions"] + place + v * 64, KEYS) for v in range(tiles.vectors)]
        with f.loop(0, count) as key:
            here = f.broadcast(f.cast("arith.trunci", first + key.index, I32), 16)
            row = at["scores"] + key.index * tiles.row_bytes
            total = f.load(at["votes"] + key.index * 64, LANES)
            for v in range(tiles.vectors):
                weight = exp2(f, f.fma(f.load(row + v * 64, LANES), factor, sums[v]))
                total = total + f.select(here > positions[v], 0.0, weight)
            f.store(total, at["votes"] + key.index * 64)
