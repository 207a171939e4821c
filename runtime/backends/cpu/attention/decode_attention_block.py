"""Attention of one group of query heads over a block of cached rows: the inner kernels of a decode step.

A block is at most `Block.rows` rows, given as two lists of addresses (of keys and of values), so that rows may come
from anywhere. A tile of query heads goes through three kernels, with a running softmax between blocks:

* scores: four rows at a time, the lanes of their products with each query folded to four partial sums per row;
* weights: the rest of the sums, scale, the new maximum, exp, and the factor that earlier blocks shrink by;
* values: acc = acc * shrink + sum over rows of weight * value row.

Rows of bf16 are widened in pairs: a vector of 32 becomes its even and its odd elements, and queries and accumulators
are kept in that order (chunks, see `Rows`). Of rows encoded in 8 bits, the codes are what products are made of; a row's
scale is multiplied to its partial sums as a key, and to its weight as a value. Those of 4 bits have many scales, which
are multiplied to the codes as they are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.backends.cpu.attention.decode_attention_chunks import Rows, load_f32
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.approximations import decay
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import FOLDED_ROWS, LINE, UNROLLED_ROWS
from sscc.runtime.backends.cpu.codegen.mlir import F32, I64, PTR, Function, Module, Value, vector

NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True)
class Block:
    """What the kernels are made for.

    Attributes:
        keys, values: the cached rows.
        group: query heads that share a KV head.
        features: what may be used.
        scattered: rows lie anywhere, so that the CPU cannot foresee which one is next: values are asked for while keys
            are read, and the other way round.
        ahead: of scattered rows, those of a later block are asked for instead.
    """

    keys: Rows
    values: Rows
    group: int
    features: Features
    scattered: bool = False
    ahead: bool = False

    @property
    def rows(self) -> int:
        """Of a block at most, a multiple of 16. The lists of addresses have this many entries, the last one repeated as
        padding. Few, so that a CPU sees keys and values as two steady streams; where caches hold both, more would cost
        less."""
        return 16 if self.keys.dtype == "f32" else 32

    @property
    def partial_bytes(self) -> int:
        """Of the partial sums of a head's scores."""
        return self.rows // FOLDED_ROWS * LINE

    @property
    def wide(self) -> bool:
        """Whether there are 32 registers of 16 lanes (AVX-512); elsewhere tiles are smaller."""
        return self.features.wide_registers

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """(first, count) of the tiles of query heads, all of `tile_heads` but perhaps the last one."""
        size = self.tile_heads
        return [(first, min(size, self.group - first)) for first in range(0, self.group, size)]

    @property
    def tile_heads(self) -> int:
        """Of a tile, of about the same size as the others."""
        count = -(-self.group // (4 if self.wide else 2))
        return -(-self.group // count)

    @property
    def scratch_bytes(self) -> int:
        """Of `Scratch`."""
        lists, tile = (4 if self.ahead else 2) * self.rows * 8, self.tile_heads * (self.partial_bytes + self.rows * 4)
        return lists + self.group * self.keys.padded_bytes + tile + LINE

    @property
    def result_bytes(self) -> int:
        """Of `Result`."""
        return len(self.tiles) * 2 * LINE + self.group * self.values.padded_bytes


class Scratch:
    """Where the parts of a block's private scratch lie (`Block.scratch_bytes` from `pointer` on).

    Attributes:
        keys, values: lists of addresses, `Block.rows` of each.
        later_keys, later_values: lists of those that are asked for; where not `Block.ahead`, the same.
        queries: [group, keys.padded_bytes].
        partial: per head of a tile, the scores' partial sums.
        weights: [heads of a tile, rows of a block] f32.
        shrink: [16] f32, per head of a tile.
    """

    def __init__(self, block: Block, pointer: Value) -> None:
        self.keys = pointer
        self.values = pointer + block.rows * 8
        self.later_keys = self.values + block.rows * 8 if block.ahead else self.keys
        self.later_values = self.later_keys + block.rows * 8
        self.queries = self.later_values + block.rows * 8
        self.partial = self.queries + block.group * block.keys.padded_bytes
        self.weights = self.partial + block.tile_heads * block.partial_bytes
        self.shrink = self.weights + block.tile_heads * block.rows * 4


class Result:
    """A running softmax in memory (`Block.result_bytes` from `pointer` on): for each tile of heads the maxima and the
    sums in 16 lanes, then each head's weighted values in chunks."""

    def __init__(self, block: Block, pointer: Value) -> None:
        self._block = block
        self._pointer = pointer

    def state(self, tile: int) -> Value:
        """[2, 16] f32: maxima, then sums, of the heads of the tile."""
        return self._pointer + tile * 2 * LINE

    def of_head(self, head: Value) -> Value:
        """The maximum of a head among those of its tile; its sum is a line behind it."""
        size = self._block.tile_heads
        return self._pointer + head // size * (2 * LINE) + head % size * 4

    def head(self, head: int | Value) -> Value:
        """[values.padded_bytes / 4] f32: weighted values of a head."""
        return self._pointer + len(self._block.tiles) * 2 * LINE + head * self._block.values.padded_bytes

    def clear(self, f: Function) -> None:
        """No rows yet."""
        for tile in range(len(self._block.tiles)):
            f.store(f.splat(NEGATIVE_INFINITY), self.state(tile))
            f.store(f.splat(0.0), self.state(tile) + LINE)
        with f.loop(0, self._block.group * self._block.values.padded_bytes, LINE) as loop:
            f.store(f.splat(0.0), self.head(0) + loop.index)


def take_sinks(f: Function, block: Block, result: Result, sinks: Value, dtype: str) -> None:
    """Begins a running softmax with the logits of the group's learned sinks, [group] from `sinks` on; they have no
    rows."""
    for tile, (first, count) in enumerate(block.tiles):
        logits = load_f32(f, sinks + first * DTYPE_BYTES[dtype], dtype, 0, count)
        exists = f.first_lanes(count)
        f.store(f.select(exists, logits, NEGATIVE_INFINITY), result.state(tile))
        f.store(f.select(exists, f.splat(1.0), f.splat(0.0)), result.state(tile) + LINE)


def put_queries(f: Function, block: Block, first: Value, stride: int, dtype: str, scratch: Scratch) -> None:
    """Brings a group's queries, `stride` bytes apart from `first` on, into the order of the keys' chunks."""
    with f.loop(0, block.group) as head:
        at = scratch.queries + head.index * block.keys.padded_bytes
        for chunk in range(block.keys.chunks):
            for i, part in enumerate(_query_chunk(f, block.keys, first + head.index * stride, dtype, chunk)):
                f.store(part, at + (chunk * block.keys.vectors + i) * LINE)


def _query_chunk(f: Function, keys: Rows, row: Value, dtype: str, chunk: int) -> list[Value]:
    if dtype == keys.dtype:
        return keys.load(f, row, chunk)
    if keys.dtype != "bf16":
        start = chunk * keys.elements
        return [load_f32(f, row, dtype, start + i * LANES, keys.size) for i in range(keys.vectors)]
    first, second = (load_f32(f, row, dtype, chunk * 2 * LANES + i * LANES, keys.size) for i in range(2))
    return [f.shuffle(first, second, range(i, 2 * LANES, 2)) for i in range(2)]


def scores(f: Function, block: Block, tile: int, count: Value, scratch: Scratch) -> None:
    """Partial sums of the products of one tile of queries with the first `count` keys of the list."""
    first, heads = block.tiles[tile]
    kernel = _scores_kernel(f.module, block, heads, prefetch=block.scattered and tile == 0)
    query = scratch.queries + first * block.keys.padded_bytes
    f.call(kernel, scratch.keys, scratch.later_values, query, count, scratch.partial)


def weights(
    f: Function, block: Block, tile: int, count: Value, scoring: Scoring, scratch: Scratch, result: Result
) -> None:
    """Weights of the rows whose partial sums `scores` left; brings maxima and sums up to date."""
    kernel, scale = _weights_kernel(f.module, block, block.tiles[tile][1], scoring), f.constant(scoring.left, F32)
    f.call(kernel, scratch.partial, count, scale, result.state(tile), scratch.shrink, scratch.weights)


def logits(
    f: Function, block: Block, tile: int, count: Value, scale: float, scratch: Scratch, out: Value, out_bytes: int
) -> None:
    """Scaled sums of what `scores` left, [heads of the tile][out_bytes] f32; of a last vector all 16 are written."""
    kernel = _logits_kernel(f.module, block, block.tiles[tile][1], out_bytes)
    f.call(kernel, scratch.partial, count, f.constant(scale, F32), out)


def values(f: Function, block: Block, tile: int, count: Value, scratch: Scratch, result: Result) -> None:
    """Adds the weighted value rows; asks for scattered rows, keys of the next block or of a later one, meanwhile."""
    first, heads = block.tiles[tile]
    kernel = _values_kernel(f.module, block, heads, prefetch=block.scattered and tile == len(block.tiles) - 1)
    f.call(kernel, scratch.values, scratch.later_keys, scratch.weights, scratch.shrink, result.head(first), count)


# --------------------------------------------------------------------------------------------------- kernels


def _scores_kernel(module: Module, block: Block, heads: int, *, prefetch: bool) -> Function:
    keys, together = block.keys, min(heads, 4 if block.wide else 1)
    name = f"decode_scores_{keys.tag}_{heads}x{together}_{block.rows}" + (
        f"_ahead_{block.values.nbytes}" if prefetch else ""
    )
    if module.has(name):
        return module.get(name)
    params = [("keys", PTR), ("values", PTR), ("queries", PTR), ("count", I64), ("partial", PTR)]
    f = module.function(name, params)
    with f.loop(0, f["count"], FOLDED_ROWS) as loop:
        rows = _addresses(f, f["keys"], loop.index, FOLDED_ROWS)
        if prefetch:
            _prefetch(f, _addresses(f, f["values"], loop.index, FOLDED_ROWS), block.values.nbytes)
        scales = _scales(f, keys, rows) if keys.encoded else None
        for low in range(0, heads, together):
            some = range(low, min(low + together, heads))
            queries = [f["queries"] + head * keys.padded_bytes for head in some]
            sums = _products(f, keys, rows, queries)
            for i, head in enumerate(some):
                folded = _fold_rows(f, sums[i * FOLDED_ROWS : (i + 1) * FOLDED_ROWS])
                folded = folded if scales is None else folded * scales
                f.store(folded, f["partial"] + loop.index * (LINE // FOLDED_ROWS) + head * block.partial_bytes)
    f.returns()
    return f


def _products(f: Function, keys: Rows, rows: Sequence[Value], queries: Sequence[Value]) -> list[Value]:
    """For each query, for each row: 16 partial sums of their products."""
    full = keys.size // keys.elements
    unroll = max(n for n in range(1, UNROLLED_ROWS + 1) if full % n == 0)
    sums = [f.splat(0.0)] * (len(rows) * len(queries))
    if full > 0:
        with f.loop(0, full, unroll, sums) as loop:
            state = loop.state
            for i in range(unroll):
                state = _add_chunk(f, keys, rows, queries, loop.index + i, state)
            loop.carry(*state)
        sums = loop.results
    return sums if full == keys.chunks else _add_chunk(f, keys, rows, queries, full, sums)


def _add_chunk(
    f: Function, keys: Rows, rows: Sequence[Value], queries: Sequence[Value], chunk: int | Value, sums: Sequence[Value]
) -> list[Value]:
    parts = [keys.load(f, row, chunk) for row in rows]
    result = []
    for q, query in enumerate(queries):
        at = query + chunk * (keys.vectors * LINE)
        totals = list(sums[q * len(rows) : (q + 1) * len(rows)])
        for i in range(keys.vectors):
            factor = f.load(at + i * LINE, parts[0][i].type)
            totals = [_multiply_add(f, factor, part[i], total) for part, total in zip(parts, totals, strict=True)]
        result += totals
    return result


def _multiply_add(f: Function, a: Value, b: Value, c: Value) -> Value:
    if a.type == c.type:
        return f.fma(a, b, c)
    return f.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [c, a, b], c.type)


def _fold_rows(f: Function, rows: Sequence[Value]) -> Value:
    """Four vectors to one: in each quarter of the result, a quarter of the sum of each of the vectors."""
    even = [i for q in range(0, LANES, 4) for i in (q, q + LANES, q + 1, q + 1 + LANES)]
    pairs = [f.shuffle(a, b, even) + f.shuffle(a, b, [i + 2 for i in even]) for a, b in (rows[:2], rows[2:])]
    low = [i for q in range(0, LANES, 4) for i in (q, q + 1, q + LANES, q + 1 + LANES)]
    return f.shuffle(pairs[0], pairs[1], low) + f.shuffle(pairs[0], pairs[1], [i + 2 for i in low])


def _scales(f: Function, keys: Rows, rows: Sequence[Value]) -> Value:
    """The scales of four encoded rows, in the order of `_fold_rows`."""
    scales = f.splat(0.0, FOLDED_ROWS)
    for i, row in enumerate(rows):
        scales = f.insert(keys.scale(f, row), scales, i)
    return f.shuffle(scales, scales, [*range(FOLDED_ROWS)] * (LANES // FOLDED_ROWS))


def _fold_quarters(f: Function, rows: Sequence[Value]) -> Value:
    """Four results of `_fold_rows` to the 16 sums, in order."""
    low = [*range(8), *range(LANES, LANES + 8)]
    pairs = [f.shuffle(a, b, low) + f.shuffle(a, b, [i + 8 for i in low]) for a, b in (rows[:2], rows[2:])]
    even = [q + i for q in (0, 8, LANES, LANES + 8) for i in range(4)]
    return f.shuffle(pairs[0], pairs[1], even) + f.shuffle(pairs[0], pairs[1], [i + 4 for i in even])


def _logits_kernel(module: Module, block: Block, heads: int, out_bytes: int) -> Function:
    name = f"decode_logits_{heads}_{block.rows}_{out_bytes}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("partial", PTR), ("count", I64), ("scale", F32), ("out", PTR)])
    scale = f.broadcast(f["scale"], LANES)
    for head in range(heads):
        with f.loop(0, f["count"], LANES) as loop:
            at = f["partial"] + loop.index * (LINE // FOLDED_ROWS) + head * block.partial_bytes
            f.store(_sums(f, at) * scale, f["out"] + loop.index * 4 + head * out_bytes)
    f.returns()
    return f


def _sums(f: Function, partial: Value) -> Value:
    """The sums of 16 rows, of the partial sums that `scores` left."""
    return _fold_quarters(f, [f.load(partial + i * LINE, vector(F32, LANES)) for i in range(4)])


def _weights_kernel(module: Module, block: Block, heads: int, scoring: Scoring) -> Function:
    name = f"decode_weights_{heads}_{block.rows}{scoring.tag}"
    if module.has(name):
        return module.get(name)
    params = [("partial", PTR), ("count", I64), ("scale", F32), ("state", PTR), ("shrink", PTR), ("weights", PTR)]
    f = module.function(name, params)
    lanes = vector(F32, LANES)
    old, peaks = f.load(f["state"], lanes), f.splat(NEGATIVE_INFINITY)
    for head in range(heads):
        peaks = f.insert(_scaled_scores(f, block, head, scoring), peaks, head)
    peaks = larger(f, peaks, old)
    floor = f.select(peaks.eq(NEGATIVE_INFINITY), 0.0, peaks)
    shrink, totals = decay(f, old - floor), f.splat(0.0)
    for head in range(heads):
        peak = f.broadcast(f.extract(floor, head), LANES)
        with f.loop(0, f["count"], LANES, [f.splat(0.0)]) as loop:
            at = f["weights"] + loop.index * 4 + head * block.rows * 4
            weight = decay(f, f.load(at, lanes) - peak)
            f.store(weight, at)
            loop.carry(loop.state[0] + weight)
        totals = f.insert(f.reduce("add", loop.results[0]), totals, head)
    f.store(peaks, f["state"])
    f.store(f.fma(f.load(f["state"] + LINE, lanes), shrink, totals), f["state"] + LINE)
    f.store(shrink, f["shrink"])
    f.returns()
    return f


def _scaled_scores(f: Function, block: Block, head: int, scoring: Scoring) -> Value:
    """Stores the scores of a head in the place of its weights, -inf beyond the rows, and gives the maximum."""
    scale = f.broadcast(f["scale"], LANES)
    with f.loop(0, f["count"], LANES, [f.splat(NEGATIVE_INFINITY)]) as loop:
        at = f["partial"] + loop.index * (LINE // FOLDED_ROWS) + head * block.partial_bytes
        score = scoring.bounded(f, _sums(f, at)) * scale
        score = f.select(f.first_lanes(f["count"] - loop.index), score, NEGATIVE_INFINITY)
        f.store(score, f["weights"] + loop.index * 4 + head * block.rows * 4)
        loop.carry(larger(f, score, loop.state[0]))
    peak = loop.results[0]
    for half in (8, 4, 2, 1):
        peak = larger(f, f.shuffle(peak, peak, range(half)), f.shuffle(peak, peak, range(half, 2 * half)))
    return f.extract(peak, 0)


def larger(f: Function, a: Value, b: Value) -> Value:
    """The maximum in one instruction; b where one is NaN (the sum of the weights becomes NaN in any case)."""
    return f.select(a > b, a, b)


def _values_kernel(module: Module, block: Block, heads: int, *, prefetch: bool) -> Function:
    rows = block.values
    columns = max(1, (16 if block.wide else 4) // (heads * rows.vectors))
    name = f"decode_values_{rows.tag}_{heads}x{columns}_{block.rows}" + (
        f"_ahead_{block.keys.nbytes}" if prefetch else ""
    )
    if module.has(name):
        return module.get(name)
    params = [("values", PTR), ("keys", PTR), ("weights", PTR), ("shrink", PTR), ("sums", PTR), ("count", I64)]
    f = module.function(name, params)
    for first in range(0, rows.chunks, columns):
        ahead = block.keys.nbytes if prefetch and first == 0 else 0
        _weighted_sum(f, block, range(first, min(first + columns, rows.chunks)), heads, ahead)
    f.returns()
    return f


def _weighted_sum(f: Function, block: Block, chunks: range, heads: int, ahead: int) -> None:
    """Adds some chunks of the rows, weighted, to each head's; asks for `ahead` bytes of each row of the keys."""
    rows = block.values
    places = [
        f["sums"] + (head * rows.padded_bytes + (chunk * rows.vectors + i) * LINE)
        for head in range(heads)
        for chunk in chunks
        for i in range(rows.vectors)
    ]
    each = len(places) // heads
    shrink = [f.broadcast(f.load(f["shrink"] + head * 4, F32), LANES) for head in range(heads)]
    sums = [f.load(place, vector(F32, LANES)) * shrink[i // each] for i, place in enumerate(places)]
    with f.loop(0, f["count"], 1, sums) as loop:
        if ahead:
            _prefetch(f, _addresses(f, f["keys"], loop.index, 1), ahead)
        (row,) = _addresses(f, f["values"], loop.index, 1)
        parts = [part for chunk in chunks for part in rows.load(f, row, chunk)]
        at = f["weights"] + loop.index * 4
        scale = rows.scale(f, row) if rows.encoded else None
        weights = (f.load(at + head * block.rows * 4, F32) for head in range(heads))
        factors = [f.broadcast(weight if scale is None else weight * scale, LANES) for weight in weights]
        loop.carry(*(f.fma(parts[i % each], factors[i // each], total) for i, total in enumerate(loop.state)))
    for place, total in zip(places, loop.results, strict=True):
        f.store(total, place)


# --------------------------------------------------------------------------------------------------- memory


def _addresses(f: Function, list_: Value, index: Value, count: int) -> list[Value]:
    return [f.load(list_ + index * 8 + i * 8, PTR) for i in range(count)]


def _prefetch(f: Function, rows: Sequence[Value], nbytes: int) -> None:
    for row in rows:
        for line in range(0, nbytes, LINE):
            f.prefetch(row + line, 2)
