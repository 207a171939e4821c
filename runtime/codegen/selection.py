"""Selection at the end of a prompt: scores of positions, pooling and top-K.

All work is bounded by the prompt's length, not by the rows of its scratch: each KV head has a fixed number of units
(`SLICES` at most) that share its positions evenly; those that get none do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sscc.ir.errors import InputError
from sscc.runtime.codegen.attention_tiles import (
    LOG2E,
    LOWEST_PEAK,
    SIZES,
    Meta,
    QueryRows,
    Scratch,
    Tiling,
    address,
    check_operands,
    exp2,
    log,
    mask_kernel,
    pack_rows,
    row_stride,
    scores_kernel,
    softmax_kernel,
    tiling,
)
from sscc.runtime.codegen.features import Features
from sscc.runtime.codegen.mlir import F32, I16, I32, I64, Function, Value, vector
from sscc.runtime.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.schedule import Compress, ObservationScores, Pool, Select

SLICES = 16
GRAIN = 256
"""Positions that units divide a prompt into; a multiple of the block of keys, and of 16."""
LANES = vector(F32, 16)
KEYS = vector(I32, 16)
_LOWEST_KEY = -(1 << 31)
"""Of no score."""


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


# ------------------------------------------------------------------------------------------------------ scores


def lower_observation_scores(step: ObservationScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, slice of positions); one more before it where the log-sum-exp is not given.

    See `ObservationScores`. Shared scratch: peaks and totals of the slices, where the log-sum-exp is computed. Does
    nothing where the length is not 1 .. T. Raises InputError for operands that do not fit.
    """
    names = (step.observed, step.key, step.scores, *([step.log_sum_exp] if step.log_sum_exp else []))
    check_operands(step.kind, operands, names)
    scorer = Scorer.of(step, operands, features)
    phases = [Phase(scorer.units, lambda c: _write_scores(scorer, step, c), private_bytes=scorer.private_bytes)]
    if not step.log_sum_exp:
        phases.insert(0, Phase(scorer.units, lambda c: scorer.emit_partial_sums(c), private_bytes=scorer.private_bytes))
    return Lowered(tuple(phases), 0 if step.log_sum_exp else scorer.partial_bytes)


def _write_scores(scorer: Scorer, step: ObservationScores, context: Context) -> None:
    target = context.operands[step.scores]
    scorer.emit_scores(context, lambda head: address(context.f, target, head))


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
            0 if self._key_as_it_lies else tiles.block * self.depth * 4,
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
    def _key_as_it_lies(self) -> bool:
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
        if not self._key_as_it_lies:
            source, stride = at["key"], self.depth * 4
        query = at["query"] + panel * self.rows.panel_bytes
        kernel = scores_kernel(f.module, self.tiles, self.tiles.words(self.depth))
        f.call(kernel, query, source, stride, count - 1, f.ceildiv(count, self.tiles.keys), at["scores"])
        return count

    def _widen_keys(self, context: Context, at: dict[str, Value], head: Value, first: Value, last: Value) -> None:
        if not self._key_as_it_lies:
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


# ----------------------------------------------------------------------------------------------------- pooling


def check_pool(kind: str, width: int, mode: str) -> None:
    """Raises InputError for a mode that does not exist and for a width that is not odd."""
    if mode not in ("avg", "max") or width < 1 or width % 2 == 0:
        raise InputError(f"{kind} pools with mode {mode!r} and width {width}; modes are avg and max, widths odd")


def lower_pool(step: Pool, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, slice of positions). See `Pool`; writes pooled[:, :length] only.

    Does nothing where the length is not 1 .. T. Raises InputError for operands that do not fit.
    """
    check_operands(step.kind, operands, (step.scores, step.pooled))
    check_pool(step.kind, step.width, step.mode)
    kv_heads, limit = operands[step.scores][0]
    slices = slices_of(limit)

    def pool(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(f, length, limit)), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // slices, unit.index % slices
            first, last = slice_range(f, part, slices, length)
            scores, pooled = (address(f, context.operands[name], head) for name in (step.scores, step.pooled))
            with f.loop(first, last, 16) as place:
                found = pooled_scores(f, scores, place.index, length, step.width, step.mode)
                f.store_masked(found, pooled + place.index * 4, f.first_lanes(last - place.index))

    return Lowered((Phase(kv_heads * slices, pool),))


def pooled_scores(f: Function, scores: Value, place: Value, length: Value, width: int, mode: str) -> Value:
    """Pooled scores of positions place .. place + 15, from f32 scores [length]; any value from `length` on."""
    first = f.broadcast(f.cast("arith.trunci", place - width // 2, I32), 16) + f.lanes()
    end = f.broadcast(f.cast("arith.trunci", length, I32), 16)
    with f.loop(0, width, 1, [f.splat(0.0 if mode == "avg" else float("-inf"))]) as tap:
        position = first + f.broadcast(f.cast("arith.trunci", tap.index, I32), 16)
        inside = (position >= 0) & (position < end)
        value = f.load_masked(scores + (place + tap.index - width // 2) * 4, inside, LANES)
        if mode == "avg":
            tap.carry(tap.state[0] + value)
        else:
            tap.carry(f.max(tap.state[0], f.select(inside, value, float("-inf"))))
    return tap.results[0] / float(width) if mode == "avg" else tap.results[0]


# --------------------------------------------------------------------------------------------------- selection


def lower_select(step: Select, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of KV heads. See `Select`; NaN ranks above all scores, as in the reference interpreter.

    Shared scratch: an i32 per score. Does nothing where the length is not 1 .. T. Raises InputError for operands
    that do not fit.
    """
    check_operands(step.kind, operands, (step.scores, step.selected))
    if step.sink < 0 or step.recent < 0:
        raise InputError(f"{step.kind} takes a sink and a recent that are not negative, not {step.sink}, {step.recent}")
    (kv_heads, limit), (_, topk) = operands[step.scores][0], operands[step.selected][0]
    row = key_bytes(limit)

    def select(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(f, length, limit)), f.loop(context.begin, context.end) as head:
            scores = address(f, context.operands[step.scores], head.index)
            keys = context.shared + head.index * row
            end = f.max(length - step.recent, step.sink)
            with f.loop(step.sink, end, 16) as place:
                mask = f.first_lanes(end - place.index)
                found = f.load_masked(scores + place.index * 4, mask, LANES)
                store_keys(f, found, mask, keys + (place.index - step.sink) * 4)
            choose(f, keys, step.sink, end - step.sink, topk, row_of(f, context.operands[step.selected], head.index))

    return Lowered((Phase(kv_heads, select),), kv_heads * row)


def row_of(f: Function, selected: Operand, head: Value) -> Value:
    """Where a KV head's selected positions stand."""
    return address(f, selected, head)


def key_bytes(rows: int) -> int:
    """Scratch for the keys of `rows` scores, whole vectors."""
    return -(-rows // 16) * 64


def store_keys(f: Function, scores: Value, mask: Value, target: Value) -> None:
    """16 scores as i32 in the same order, NaN above all and -0 equal to 0; lanes off the mask get the lowest key."""
    bits = f.bitcast(scores + 0.0, KEYS)
    sign = f.op("arith.shrsi", [bits, f.constant(31, KEYS)], KEYS)
    keys = bits ^ (sign & 0x7FFFFFFF)
    keys = f.select(f.compare("ne", scores, scores), 0x7FFFFFFF, keys)
    f.store(f.select(mask, keys, _LOWEST_KEY), target)


def choose(f: Function, keys: Value, first: int, candidates: Value, topk: int, target: Value) -> None:
    """The positions of the `topk` highest keys, the earlier one of equals, ascending; then -1. [topk] i64.

    `keys` are of positions first .. first + candidates - 1, up to a whole vector the lowest. The lowest key that is
    chosen is found bit by bit, counting keys that are not below a guess: a pass over the keys for each bit.
    """
    count = f.min(candidates, topk)
    with f.loop(0, 32, 1, [f.constant(_LOWEST_KEY)]) as bit:
        guess = bit.state[0] + (f.constant(1 << 31) >> bit.index)
        enough = _count_from(f, keys, candidates, guess) >= count
        bit.carry(f.select(enough, guess, bit.state[0]))
    threshold = bit.results[0]
    ties = count - _count_from(f, keys, candidates, threshold + 1)
    limit = f.broadcast(f.cast("arith.trunci", threshold, I32), 16)
    with f.loop(0, f.select(count > 0, candidates, 0), 16, [f.constant(0), ties]) as group:
        some = f.bitcast(f.load(keys + group.index * 4, KEYS) >= limit, I16).ne(0)
        with f.loop(0, f.select(some, 16, f.constant(0)), 1, group.state) as lane:
            written, left = lane.state
            place = group.index + lane.index
            key = f.cast("arith.extsi", f.load(keys + place * 4, I32), I64)
            tie = key.eq(threshold) & (left > 0)
            taken = (key > threshold) | tie
            with f.when(taken):
                f.store(place + first, target + written * 8)
            lane.carry(written + f.cast("arith.extui", taken, I64), left - f.cast("arith.extui", tie, I64))
        group.carry(*lane.results)
    with f.loop(count, topk) as rest:
        f.store(f.constant(-1), target + rest.index * 8)


def _count_from(f: Function, keys: Value, candidates: Value, lowest: Value) -> Value:
    """How many keys are not below `lowest`, an i64 above the lowest i32."""
    # One above the highest i32 stands for none; compared as "above lowest - 1", which fits.
    limit = f.broadcast(f.cast("arith.trunci", lowest - 1, I32), 16)
    with f.loop(0, candidates, 16, [f.constant(0, KEYS)]) as place:
        above = f.load(keys + place.index * 4, KEYS) > limit
        place.carry(place.state[0] + f.cast("arith.extui", above, I32))
    return f.cast("arith.extui", f.reduce("add", place.results[0]), I64)


