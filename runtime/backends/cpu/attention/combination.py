"""Combination of values: scores of rows become the weighted sum of their values, by an online softmax over blocks.

Each block raises the running maximum (the *peak*) and scales down the sums of earlier blocks. For row blocks this state
is in memory of the unit; the states of units that share a slot's rows are merged in order. For panels the state is
[panel] f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sscc.runtime.backends.cpu.attention.matrix_attention import matrix_sums
from sscc.runtime.backends.cpu.attention.panels import FLOATS, Tiling
from sscc.runtime.backends.cpu.attention.row_codec import Rows, load_f32, store_row
from sscc.runtime.backends.cpu.attention.row_source import addresses, prefetch
from sscc.runtime.backends.cpu.attention.scoring import Block, GroupQueries, Scoring, row_sums
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, decay, exp2_not_positive
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I64, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES

NEGATIVE_INFINITY = float("-inf")
LOWEST_PEAK = -1e30
"""Initial maximum of a panel: finite, so that rows without a visible key get zero weights, not NaN."""
MOST_LEFT = 64.0
"""Limit on the part of a peak's exponent of 2 that rounding may leave. Weights of 2**64 do no harm, because totals
contain the same factor; beyond the limit, different scores are at least 64 apart, so that only the highest has a weight
in f32."""


def larger(f: Function, a: Value, b: Value) -> Value:
    """Return the maximum, in one instruction; b if one is NaN (the sum of the weights becomes NaN in any case)."""
    return f.select(a > b, a, b)


def largest_lane(f: Function, value: Value) -> Value:
    for half in (8, 4, 2, 1):
        value = larger(f, f.shuffle(value, value, range(half)), f.shuffle(value, value, range(half, 2 * half)))
    return f.extract(value, 0)


# -------------------------------------------------------------------------------------------------------- row blocks


class RowSoftmax:
    """Online softmax of a group's queries. The state is in memory (`Block.result_bytes` from `pointer` on): for each
    tile of heads the maximums and the sums in 16 lanes, then each head's weighted values in chunks."""

    def __init__(self, f: Function, block: Block, pointer: Value) -> None:
        self.f, self.block, self.pointer = f, block, pointer

    def state(self, tile: int) -> Value:
        """Return a pointer to [2, 16] f32: maximums, then sums, of the heads of a tile."""
        return self.pointer + tile * 2 * LINE

    def values(self, head: int | Value) -> Value:
        """Return a pointer to [values.padded_bytes / 4] f32: the weighted values of a head."""
        return self.pointer + self.block.state_bytes + head * self.block.values.padded_bytes

    def clear(self, *, values: bool = True) -> None:
        """Reset the state to that of no rows."""
        f, block = self.f, self.block
        for tile in range(len(block.tiles)):
            f.store(f.splat(NEGATIVE_INFINITY), self.state(tile))
            f.store(f.splat(0.0), self.state(tile) + LINE)
        if values:
            f.fill(self.values(0), block.group * block.values.padded_bytes)

    def take_sinks(self, sinks: Value, dtype: str) -> None:
        """Initialize with the logits of the group's learned sinks, [group] from `sinks` on. They have no rows."""
        f = self.f
        for tile, (first, count) in enumerate(self.block.tiles):
            logits = load_f32(f, sinks + first * SIZES[dtype], dtype, 0, count)
            exists = f.first_lanes(count)
            f.store(f.select(exists, logits, NEGATIVE_INFINITY), self.state(tile))
            f.store(f.select(exists, f.splat(1.0), f.splat(0.0)), self.state(tile) + LINE)

    def weigh(self, queries: GroupQueries, tile: int, count: Value, scoring: Scoring) -> None:
        """Update the maximums and sums of a tile with the first `count` listed keys, and leave their weights."""
        f, at, block = self.f, queries.at, self.block
        queries.multiply(tile, count)
        weights = _row_weights(f, block.tiles[tile][1], block.rows, scoring)
        weights(at["partial"], count, scoring.left, self.state(tile), at["shrink"], at["weights"])

    def take(
        self, queries: GroupQueries, count: Value, scoring: Scoring, then: Callable[[], None] = lambda: None
    ) -> None:
        """Process the first `count` rows (1 .. `Block.rows`) of the lists. Meanwhile prefetch scattered rows, and keys
        of the next block or of a later one. `then` emits code after all keys have been read."""
        f, at, block = self.f, queries.at, self.block
        for tile, (first, heads) in enumerate(block.tiles):
            last = tile == len(block.tiles) - 1
            self.weigh(queries, tile, count, scoring)
            if last:
                then()
            columns = max(1, (16 if block.wide else 4) // (heads * block.values.vectors))
            add = _row_values(
                f, block.values, heads, columns, block.rows, block.keys.nbytes if block.scattered and last else 0
            )
            add(at["values"], queries.later_keys, at["weights"], at["shrink"], self.values(first), count)

    def write(self, target: Callable[[Value], Value], dtype: str) -> None:
        """Write the results of the group's heads, each to the pointer that `target` returns."""
        f, size = self.f, self.block.tile_heads
        with f.loop(0, self.block.group) as loop:
            head, to = loop.index, target(loop.index)
            total = f.load(self.pointer + head // size * (2 * LINE) + head % size * 4 + LINE, F32)
            _write_head(f, self.block.values, self.values(head), total, to, dtype)

    def merge(self, splits: int, scratch: Value, target: Callable[[Value], Value], dtype: str) -> None:
        """Write the merged results of all splits, of which this is the first: weighted by exp of their maximums, in
        order. Scratch holds `splits` + 1 lines and a head's values."""
        f, block, step = self.f, self.block, self.block.result_bytes
        totals = scratch + splits * LINE
        for tile, (first, count) in enumerate(block.tiles):
            state = self.state(tile)
            with f.loop(0, splits, 1, [f.splat(NEGATIVE_INFINITY)]) as peaks:
                peaks.carry(larger(f, f.load(state + peaks.index * step, FLOATS), peaks.state[0]))
            floor = f.select(peaks.results[0].eq(NEGATIVE_INFINITY), 0.0, peaks.results[0])
            with f.loop(0, splits, 1, [f.splat(0.0)]) as sums:
                at = state + sums.index * step
                factor = decay(f, f.load(at, FLOATS) - floor)
                f.store(factor, scratch + sums.index * LINE)
                sums.carry(f.fma(f.load(at + LINE, FLOATS), factor, sums.state[0]))
            f.store(sums.results[0], totals)
            with f.loop(first, first + count) as number:
                head, lane = number.index, number.index - first
                with f.loop(0, block.values.padded_bytes, LINE) as column:
                    with f.loop(0, splits, 1, [f.splat(0.0)]) as split:
                        part = f.load(self.values(head) + split.index * step + column.index, FLOATS)
                        factor = f.broadcast(f.load(scratch + lane * 4 + split.index * LINE, F32), LANES)
                        split.carry(f.fma(part, factor, split.state[0]))
                    f.store(split.results[0], totals + LINE + column.index)
                total = f.load(totals + lane * 4, F32)
                _write_head(f, block.values, totals + LINE, total, target(head), dtype)


@kernel(partial=PTR, count=I64, scale=F32, state=PTR, shrink=PTR, weights=PTR)
def _row_weights(f: Function, heads: int, block: int, scoring: Scoring) -> None:
    """Compute the weights of rows from the partial sums of `scoring.row_products`, and the factor for the sums of
    earlier blocks; update maximums and sums."""
    old, peaks = f.load(f["state"], FLOATS), f.splat(NEGATIVE_INFINITY)
    for head in range(heads):
        peaks = f.insert(_scaled_scores(f, block, head, scoring), peaks, head)
    peaks = larger(f, peaks, old)
    floor = f.select(peaks.eq(NEGATIVE_INFINITY), 0.0, peaks)
    shrink, totals = decay(f, old - floor), f.splat(0.0)
    for head in range(heads):
        peak = f.broadcast(f.extract(floor, head), LANES)
        with f.loop(0, f["count"], LANES, [f.splat(0.0)]) as loop:
            at = f["weights"] + loop.index * 4 + head * block * 4
            weight = decay(f, f.load(at, FLOATS) - peak)
            f.store(weight, at)
            loop.carry(loop.state[0] + weight)
        totals = f.insert(f.reduce("add", loop.results[0]), totals, head)
    f.store(peaks, f["state"])
    f.store(f.fma(f.load(f["state"] + LINE, FLOATS), shrink, totals), f["state"] + LINE)
    f.store(shrink, f["shrink"])


def _scaled_scores(f: Function, block: int, head: int, scoring: Scoring) -> Value:
    """Store the scores of a head in the place of its weights, -inf beyond the rows. Return the maximum."""
    scale = f.broadcast(f["scale"], LANES)
    with f.loop(0, f["count"], LANES, [f.splat(NEGATIVE_INFINITY)]) as loop:
        score = scoring.bounded(f, row_sums(f, head, loop.index, block)) * scale
        score = f.select(f.first_lanes(f["count"] - loop.index), score, NEGATIVE_INFINITY)
        f.store(score, f["weights"] + loop.index * 4 + head * block * 4)
        loop.carry(larger(f, score, loop.state[0]))
    return largest_lane(f, loop.results[0])


@kernel(values=PTR, later=PTR, weights=PTR, shrink=PTR, sums=PTR, count=I64)
def _row_values(f: Function, rows: Rows, heads: int, columns: int, block: int, ahead: int) -> None:
    """Compute sums = sums * shrink + sum over rows of weight * value row, `columns` chunks at a time. Prefetch `ahead`
    bytes of each row of the list `later`."""
    for first in range(0, rows.chunks, columns):
        chunks = range(first, min(first + columns, rows.chunks))
        places = [
            f["sums"] + (head * rows.padded_bytes + (chunk * rows.vectors + i) * LINE)
            for head in range(heads)
            for chunk in chunks
            for i in range(rows.vectors)
        ]
        each = len(places) // heads
        shrink = [f.broadcast(f.load(f["shrink"] + head * 4, F32), LANES) for head in range(heads)]
        sums = [f.load(place, FLOATS) * shrink[i // each] for i, place in enumerate(places)]
        with f.loop(0, f["count"], 1, sums) as loop:
            if ahead and first == 0:
                prefetch(f, addresses(f, f["later"], loop.index, 1), ahead)
            (row,) = addresses(f, f["values"], loop.index, 1)
            parts = [part for chunk in chunks for part in rows.load(f, row, chunk)]
            at = f["weights"] + loop.index * 4
            scale = rows.scale(f, row) if rows.encoded else None
            weights = (f.load(at + head * block * 4, F32) for head in range(heads))
            factors = [f.broadcast(weight if scale is None else weight * scale, LANES) for weight in weights]
            loop.carry(*(f.fma(parts[i % each], factors[i // each], total) for i, total in enumerate(loop.state)))
        for place, total in zip(places, loop.results, strict=True):
            f.store(total, place)


def _write_head(f: Function, rows: Rows, source: Value, total: Value, target: Value, dtype: str) -> None:
    """Write a head's weighted values divided by the sum of its weights; zeros without a visible row."""
    divisor = f.broadcast(f.select(total.eq(0.0), 1.0, total), LANES)
    for chunk in range(rows.chunks):
        at, start = source + chunk * rows.vectors * LINE, chunk * rows.elements
        parts = [f.load(at + i * LINE, FLOATS) / divisor for i in range(rows.vectors)]
        store_row(f, rows.in_order(f, parts), target + start * SIZES[dtype], dtype, rows.size - start)


# ------------------------------------------------------------------------------------------------- panels of queries


@kernel(scores=PTR, count=I64, peak=PTR, total=PTR, shrink=PTR)
def panel_softmax(f: Function, tiles: Tiling, scale: float) -> None:
    """Replace the scores of `count` keys, an even number, by weights relative to the peak so far (the peak of unscaled
    scores). `shrink` receives the factor for earlier sums."""
    factor = f.splat(scale * LOG2E)
    power_of_two = 2.0 ** math.floor(math.log2(scale * LOG2E))
    before = [f.load(f["peak"] + v * LINE, FLOATS) for v in range(tiles.vectors)]
    with f.loop(0, f["count"], 1, before) as key:
        row = f["scores"] + key.index * tiles.row_bytes
        scores = [f.load(row + v * LINE, FLOATS) for v in range(tiles.vectors)]
        key.carry(*(larger(f, p, s) for p, s in zip(key.state, scores, strict=True)))
    factors, bases, totals = [], [], []
    for v, (old, new) in enumerate(zip(before, key.results, strict=True)):
        shrink = exp2_not_positive(f, (old - new) * factor)
        f.store(new, f["peak"] + v * LINE)
        f.store(shrink, f["shrink"] + v * LINE)
        # The product below is fused, so the exponent of the peak itself is not 0 but the rounding error of its base.
        # If that is large, an approximate factor suffices (see `MOST_LEFT`), and a power of 2 is exact.
        left = f.fma(new, factor, -(new * factor))
        factors.append(f.select((left > MOST_LEFT) | (left < -MOST_LEFT), power_of_two, factor))
        bases.append(-(new * factors[v]))
        totals.append(f.load(f["total"] + v * LINE, FLOATS) * shrink)
    with f.loop(0, f["count"] // 2, 1, totals) as pair:
        rows = [f["scores"] + (pair.index * 2 + i) * tiles.row_bytes for i in range(2)]
        sums = []
        for v in range(tiles.vectors):
            a, b = (exp2_not_positive(f, f.fma(f.load(row + v * LINE, FLOATS), factors[v], bases[v])) for row in rows)
            sums.append(pair.state[v] + (a + b))
            if tiles.pairs:
                f.store(_interleaved(f, a, b), f["scores"] + pair.index * tiles.row_bytes + v * LINE)
            else:
                f.store(a, rows[0] + v * LINE)
                f.store(b, rows[1] + v * LINE)
        pair.carry(*sums)
    for v, total in enumerate(pair.results):
        f.store(total, f["total"] + v * LINE)


def _interleaved(f: Function, a: Value, b: Value) -> Value:
    """Return the lanes of a and b, rounded to bf16, in pairs."""
    both = f.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", [b, a], vector(BF16, 32))
    return f.shuffle(both, both, [lane // 2 + 16 * (lane % 2) for lane in range(32)])


@kernel(weights=PTR, value=PTR, stride=I64, count=I64, shrink=PTR, sums=PTR)
def panel_sums(f: Function, tiles: Tiling, columns: int) -> None:
    """Compute sums[column][row] = sums * shrink[row] + sum over `count` steps of value[step][column] *
    weights[step][row].

    A step is a key, or a pair of keys; `stride` is in bytes between steps or, for tile registers, between columns.
    """
    if tiles.matrix:
        matrix_sums(f, columns, tiles.row_bytes)
        return
    whole = columns // tiles.keys
    if whole:
        with f.loop(0, whole) as tile:
            _column_tile(f, tiles, tiles.keys, tile.index * tiles.keys)
    if columns % tiles.keys:
        _column_tile(f, tiles, columns % tiles.keys, f.constant(whole * tiles.keys))


def _column_tile(f: Function, tiles: Tiling, width: int, first: Value) -> None:
    value, sums = f["value"] + first * 4, f["sums"] + first * tiles.row_bytes
    places: Sequence[int] = [(i * tiles.vectors + v) * LINE for i in range(width) for v in range(tiles.vectors)]
    shrink = [f.load(f["shrink"] + v * LINE, FLOATS) for v in range(tiles.vectors)]
    start = [f.load(sums + place, FLOATS) * shrink[i % tiles.vectors] for i, place in enumerate(places)]
    with f.loop(0, f["count"], 1, start) as step:
        weights = tiles.load_words(f, f["weights"] + step.index * tiles.row_bytes)
        values = value + step.index * f["stride"]
        step.carry(*tiles.add_products(f, [values + i * 4 for i in range(width)], weights, step.state))
    for place, total in zip(places, step.results, strict=True):
        f.store(total, sums + place)
