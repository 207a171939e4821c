"""Register tiles of attention over many queries: scores, softmax and weighted sums with 16 query rows to a vector.

Scores stand transposed, ``scores[key][row]``: a lane is a query row. So keys are read where they lie, one element (or
pair) at a time for all lanes, nothing of the softmax crosses lanes, and only queries are packed, once for all keys.

A *word* is what one multiplication takes of a row: an f32, or a pair of bf16 where products are made in pairs
(`AttentionTiling.pairs`). A *panel* is `AttentionTiling.vectors` * 16 query rows. In scratch:

* packed queries of a panel: [words, panel] words;
* scores of a panel: [keys, panel] f32; weights take their place, [keys, panel] f32 or [keys / 2, panel] pairs;
* sums of a panel: [columns, panel] f32; peak, total and shrink: [panel] f32, positions [panel] i32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sscc.ir.geometry import Span
from sscc.runtime.backends.cpu.attention.matrix_attention import matrix_scores, matrix_sums
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, exp2_not_positive
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I32, I64, PTR, TILE_ROW, Function, Module, Value, vector
from sscc.runtime.backends.cpu.codegen.row_copies import copy_row, transpose_kernel

EVERY_POSITION = Span()
LOWEST_PEAK = -1e30
"""Where the running maximum starts: finite, so that rows without a visible key have weights of zero, not NaN."""
MOST_LEFT = 64.0
"""What rounding may leave of a peak's exponent of 2. Weights of 2**64 do no harm, since totals hold the same factor;
and where more is left, different scores are at least 64 apart, so none but the highest has a weight in f32."""


# ----------------------------------------------------------------------------------------------------- geometry


@dataclass(frozen=True)
class AttentionTiling:
    """Sizes of tiles.

    Attributes:
        pairs: products of pairs of bf16 (queries, keys and values are bf16), else of f32.
        matrix: products by tile registers (`matrix_attention`), which take pairs.
        keys: keys, or columns of values, of a register tile; even.
        vectors: vectors of query rows of a register tile.
        block: keys whose scores are made before they are used; a multiple of `keys`.
    """

    pairs: bool
    keys: int
    vectors: int
    block: int
    matrix: bool = False

    @property
    def panel(self) -> int:
        return 16 * self.vectors

    @property
    def row_bytes(self) -> int:
        """Of one word, score or sum of every row of a panel."""
        return 64 * self.vectors

    def words(self, depth: int) -> int:
        return depth // 2 if self.pairs else depth

    @property
    def name(self) -> str:
        kind = "tiles" if self.matrix else "bf16" if self.pairs else "f32"
        return f"{kind}_{self.keys}x{self.vectors}"


def tiling(features: Features, dtypes: Sequence[str], depth: int, *, matrix: bool = False) -> AttentionTiling:
    """Register tiles for the CPU: bf16 pairs where all of `dtypes` are bf16 and `depth` is even; with `matrix` tile
    registers where the CPU has them and `depth` fills their rows."""
    pairs = features.bf16_dot and set(dtypes) == {"bf16"} and depth % 2 == 0
    if matrix and pairs and features.bf16_tiles and depth % (TILE_ROW // 2) == 0:
        return AttentionTiling(pairs, keys=32, vectors=2, block=64, matrix=True)
    if pairs or features.wide_registers:
        return AttentionTiling(pairs, keys=8, vectors=3, block=64)
    return AttentionTiling(pairs, keys=4, vectors=1, block=64)


# ------------------------------------------------------------------------------------------------ register tiles


def _spread(f: Function, pointer: Value, tiles: AttentionTiling) -> Value:
    """The word at the pointer, in all lanes."""
    if not tiles.pairs:
        return f.broadcast(f.load(pointer, F32), 16)
    word = f.bitcast(f.load(pointer, vector(BF16, 2)), I32)
    return f.bitcast(f.broadcast(word, 16), vector(BF16, 32))


def _word_vector(tiles: AttentionTiling) -> str:
    return vector(BF16, 32) if tiles.pairs else vector(F32, 16)


def _multiply(f: Function, a: Value, b: Value, total: Value, tiles: AttentionTiling) -> Value:
    if tiles.pairs:
        return f.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [total, a, b], vector(F32, 16))
    return f.fma(a, b, total)


def scores_kernel(module: Module, tiles: AttentionTiling, words: int) -> Function:
    """scores[key][row] = sum over words of key[key][word] * query[word][row], for keys 0 .. count * tiles.keys - 1.

    Parameters: query (packed panel), key, stride (bytes from key to key), last (no key behind it is read: the last one
    is taken instead), count (of tiles of keys), scores.
    """
    name = f"attention_scores_{tiles.name}_{words}"
    if module.has(name):
        return module.get(name)
    if tiles.matrix:
        return matrix_scores(module, name, words, tiles.row_bytes)
    f = module.function(
        name, [("query", PTR), ("key", PTR), ("stride", I64), ("last", I64), ("count", I64), ("scores", PTR)]
    )
    with f.loop(0, f["count"]) as tile:
        first = tile.index * tiles.keys
        keys = [f["key"] + f.min(first + i, f["last"]) * f["stride"] for i in range(tiles.keys)]
        with f.loop(0, words, 1, [f.splat(0.0)] * (tiles.keys * tiles.vectors)) as word:
            row = f["query"] + word.index * tiles.row_bytes
            queries = [f.load(row + v * 64, _word_vector(tiles)) for v in range(tiles.vectors)]
            word.carry(*_outer(f, tiles, [key + word.index * 4 for key in keys], queries, word.state))
        target = f["scores"] + first * tiles.row_bytes
        for i, total in enumerate(word.results):
            f.store(total, target + i * 64)
    f.returns()
    return f


def _outer(
    f: Function, tiles: AttentionTiling, pointers: Sequence[Value], rows: Sequence[Value], totals: Sequence[Value]
) -> list[Value]:
    """totals[i][v] + word at pointers[i] * rows[v]."""
    sums = []
    for i, pointer in enumerate(pointers):
        word = _spread(f, pointer, tiles)
        sums += [_multiply(f, word, row, totals[i * len(rows) + v], tiles) for v, row in enumerate(rows)]
    return sums


def last_unseen(position: Value, window: Span) -> Value:
    """The last position before those of a window that the query at `position` sees; negative where there is none."""
    fixed = position - position % window.stride if window.chunked else position
    return fixed + (window.stride - window.size - 1)


def mask_kernel(module: Module, tiles: AttentionTiling, window: Span = EVERY_POSITION) -> Function:
    """scores[key][row] = -inf where the query at positions[row] does not see position first + key: a later one, or with
    a window one before it. Parameters: scores, first, count, positions."""
    name = f"attention_mask_{tiles.name}" + (f"_{window.name}" if window else "")
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("scores", PTR), ("first", I64), ("count", I64), ("positions", PTR)])
    positions = [f.load(f["positions"] + v * 64, vector(I32, 16)) for v in range(tiles.vectors)]
    unseen = [last_unseen(position, window) for position in positions] if window else []
    with f.loop(0, f["count"]) as key:
        place = f.broadcast(f.cast("arith.trunci", f["first"] + key.index, I32), 16)
        row = f["scores"] + key.index * tiles.row_bytes
        for v in range(tiles.vectors):
            scores = f.load(row + v * 64, vector(F32, 16))
            hidden = place > positions[v]
            if window:
                hidden = hidden | (unseen[v] >= place)
            f.store(f.select(hidden, float("-inf"), scores), row + v * 64)
    f.returns()
    return f


def bounds_kernel(module: Module, tiles: AttentionTiling, scoring: Scoring) -> Function:
    """Bounds scores where they are, see `Scoring.bounded`. Parameters: scores, count (of keys)."""
    name = f"attention_bounds_{tiles.name}{scoring.tag}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("scores", PTR), ("count", I64)])
    with f.loop(0, f["count"] * tiles.row_bytes, 64) as place:
        at = f["scores"] + place.index
        f.store(scoring.bounded(f, f.load(at, vector(F32, 16))), at)
    f.returns()
    return f


def softmax_kernel(module: Module, tiles: AttentionTiling, scale: float) -> Function:
    """Weights of `count` keys in the place of their scores, relative to the peak so far.

    Parameters: scores, count (even), peak (of scores without scale), total, shrink (written: what earlier weights
    are to be multiplied by).
    """
    name = f"attention_softmax_{tiles.name}_{scale.hex()}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("scores", PTR), ("count", I64), ("peak", PTR), ("total", PTR), ("shrink", PTR)])
    factor, lanes = f.splat(scale * LOG2E), vector(F32, 16)
    power_of_two = 2.0 ** math.floor(math.log2(scale * LOG2E))
    before = [f.load(f["peak"] + v * 64, lanes) for v in range(tiles.vectors)]
    with f.loop(0, f["count"], 1, before) as key:
        row = f["scores"] + key.index * tiles.row_bytes
        scores = [f.load(row + v * 64, lanes) for v in range(tiles.vectors)]
        key.carry(*(f.select(p > s, p, s) for p, s in zip(key.state, scores, strict=True)))
    factors, bases, totals = [], [], []
    for v, (old, new) in enumerate(zip(before, key.results, strict=True)):
        shrink = exp2_not_positive(f, (old - new) * factor)
        f.store(new, f["peak"] + v * 64)
        f.store(shrink, f["shrink"] + v * 64)
        # The product below is fused, so the peak's own exponent is not 0 but what the rounding of its base left. Where
        # that is much, a factor near the right one does as well (see `MOST_LEFT`), and that of a power of 2 is exact.
        left = f.fma(new, factor, -(new * factor))
        factors.append(f.select((left > MOST_LEFT) | (left < -MOST_LEFT), power_of_two, factor))
        bases.append(-(new * factors[v]))
        totals.append(f.load(f["total"] + v * 64, lanes) * shrink)
    with f.loop(0, f["count"] // 2, 1, totals) as pair:
        rows = [f["scores"] + (pair.index * 2 + i) * tiles.row_bytes for i in range(2)]
        sums = []
        for v in range(tiles.vectors):
            a, b = (exp2_not_positive(f, f.fma(f.load(row + v * 64, lanes), factors[v], bases[v])) for row in rows)
            sums.append(pair.state[v] + (a + b))
            if tiles.pairs:
                f.store(_interleaved(f, a, b), f["scores"] + pair.index * tiles.row_bytes + v * 64)
            else:
                f.store(a, rows[0] + v * 64)
                f.store(b, rows[1] + v * 64)
        pair.carry(*sums)
    for v, total in enumerate(pair.results):
        f.store(total, f["total"] + v * 64)
    f.returns()
    return f


def _interleaved(f: Function, a: Value, b: Value) -> Value:
    """Lanes of a and b, rounded to bf16, in pairs."""
    both = f.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", [b, a], vector(BF16, 32))
    return f.shuffle(both, both, [lane // 2 + 16 * (lane % 2) for lane in range(32)])


def sums_kernel(module: Module, tiles: AttentionTiling, columns: int) -> Function:
    """sums[column][row] = sums * shrink[row] + sum over steps of value[step][column] * weights[step][row].

    A step is a key, or a pair of them. Parameters: weights, value, stride (bytes from step to step; for tile registers
    from column to column), count (of steps), shrink, sums.
    """
    name = f"attention_sums_{tiles.name}_{columns}"
    if module.has(name):
        return module.get(name)
    if tiles.matrix:
        return matrix_sums(module, name, columns, tiles.row_bytes)
    f = module.function(
        name, [("weights", PTR), ("value", PTR), ("stride", I64), ("count", I64), ("shrink", PTR), ("sums", PTR)]
    )
    whole = columns // tiles.keys
    if whole:
        with f.loop(0, whole) as tile:
            first = tile.index * tiles.keys
            _column_tile(f, tiles, tiles.keys, f["value"] + first * 4, f["sums"] + first * tiles.row_bytes)
    if columns % tiles.keys:
        first_left = whole * tiles.keys
        target = f["sums"] + first_left * tiles.row_bytes
        _column_tile(f, tiles, columns % tiles.keys, f["value"] + first_left * 4, target)
    f.returns()
    return f


def _column_tile(f: Function, tiles: AttentionTiling, width: int, value: Value, sums: Value) -> None:
    places = [(i * tiles.vectors + v) * 64 for i in range(width) for v in range(tiles.vectors)]
    shrink = [f.load(f["shrink"] + v * 64, vector(F32, 16)) for v in range(tiles.vectors)]
    start = [f.load(sums + place, vector(F32, 16)) * shrink[i % tiles.vectors] for i, place in enumerate(places)]
    with f.loop(0, f["count"], 1, start) as step:
        row = f["weights"] + step.index * tiles.row_bytes
        weights = [f.load(row + v * 64, _word_vector(tiles)) for v in range(tiles.vectors)]
        values = value + step.index * f["stride"]
        step.carry(*_outer(f, tiles, [values + i * 4 for i in range(width)], weights, step.state))
    for place, total in zip(places, step.results, strict=True):
        f.store(total, sums + place)


# ------------------------------------------------------------------------------------------------------- packing


@dataclass(frozen=True)
class QueryRows:
    """Where the rows of packed queries come from.

    Attributes:
        tiles: the register tiles.
        depth: elements of a row.
        panels: panels to pack.
    """

    tiles: AttentionTiling
    depth: int
    panels: int

    @property
    def panel_bytes(self) -> int:
        """Of a packed panel; words are padded to 16."""
        return self._padded * self.tiles.row_bytes

    @property
    def staging_bytes(self) -> int:
        return 16 * self._padded * 4

    @property
    def _padded(self) -> int:
        return -(-self.tiles.words(self.depth) // 16) * 16

    def stage(self, f: Function, source: Value, dtype: str, lane: Value, staging: Value) -> None:
        """Copies the row of one lane of 16 to the staging area."""
        kept = "bf16" if self.tiles.pairs else "f32"
        copy_row(f, source, dtype, staging + lane * (self._padded * 4), kept, self.depth)

    def pack(self, f: Function, staging: Value, group: Value, target: Value) -> None:
        """Turns 16 staged rows into vector `group` % vectors of panel `group` // vectors."""
        kernel = transpose_kernel(f.module)
        vectors = self.tiles.vectors
        base = target + (group // vectors) * self.panel_bytes + (group % vectors) * 64
        with f.loop(0, self._padded // 16) as part:
            place = base + part.index * (16 * self.tiles.row_bytes)
            f.call(kernel, staging + part.index * 64, self._padded * 4, place, self.tiles.row_bytes)
