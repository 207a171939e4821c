"""Scoring: from products of queries and keys to scores.

A score is a product times the step's scale, or where a model caps scores a hyperbolic tangent of it. Two kinds of
kernels make products: of the few queries of a group with rows that lie anywhere (`row_*`), and of panels of many
queries with rows that lie one after another (`panel_*`, see `panels`). Scores by landmarks are in `landmark_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sscc.runtime.backends.cpu.attention.matrix_attention import matrix_scores
from sscc.runtime.backends.cpu.attention.panels import FLOATS, QueryRows, Tiling
from sscc.runtime.backends.cpu.attention.row_codec import Rows
from sscc.runtime.backends.cpu.attention.row_source import addresses, prefetch
from sscc.runtime.backends.cpu.codegen.approximations import tanh
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import FOLDED_ROWS, LINE, UNROLLED_ROWS
from sscc.runtime.backends.cpu.codegen.mlir import F32, I64, PTR, Function, Value, kernel
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces


class Scoring:
    """A score is `left` times the bounded product of a query and a key.

    Args:
        softcap: what caps scores; None where nothing does, and bounding leaves a product alone.

    Attributes:
        inner: the factor of a product before it is bounded.
        tag: in the names of kernels that bound products.
    """

    def __init__(self, scale: float, softcap: float | None = None) -> None:
        self.softcap = softcap
        self.inner, self.left = (scale, scale) if softcap is None else (scale / softcap, softcap)
        self.tag = "" if softcap is None else f"capped_{self.inner.hex()}"

    def bounded(self, f: Function, products: Value) -> Value:
        """Lanes of products, bounded."""
        return products if self.softcap is None else tanh(f, products * self.inner)


# ---------------------------------------------------------------------------------- a group's queries, rows anywhere


class Block:
    """The sizes of a group of query heads and the few rows that it takes at a time. Rows are a list of addresses, and
    are scored for a *tile* of query heads at a time, as many as registers hold.

    Args:
        keys, values: the cached rows; without values a block is only scored.
        group: query heads that share a KV head.
        scattered: rows lie anywhere, so that the CPU cannot foresee which one is next: values are asked for while keys
            are read, and the other way round.
        ahead: of scattered rows, those of a later block are asked for instead.

    Attributes:
        rows: of a block at most, a multiple of 16. Few, so that a CPU sees keys and values as two steady streams; where
            caches hold both, more would cost less.
        tiles: (first, count) of the tiles of query heads, all of `tile_heads` but perhaps the last one.
        scratch: lists of the addresses of keys and values, and of those that are asked for; packed queries; partial
            sums of a tile's products; its weights [heads][rows] f32; factors that its sums shrink by.
        state_bytes, result_bytes: of the maxima and sums of a running softmax, and with the weighted values.
    """

    def __init__(
        self, keys: Rows, group: int, features: Features, values: Rows | None = None, scattered: bool = False,
        ahead: bool = False,
    ) -> None:  # fmt: skip
        self.keys, self.values, self.group, self.scattered, self.ahead = keys, values or keys, group, scattered, ahead
        self.wide = features.wide_registers
        self.rows = 16 if keys.dtype == "f32" else 32
        self.tile_heads = -(-group // -(-group // (4 if self.wide else 2)))
        self.tiles = [(first, min(self.tile_heads, group - first)) for first in range(0, group, self.tile_heads)]
        lists = ("keys", "values", "later_keys", "later_values")[: 4 if ahead else 2]
        self.scratch = ScratchPieces(
            **dict.fromkeys(lists, self.rows * 8),
            queries=group * keys.padded_bytes,
            partial=self.tile_heads * _partial_bytes(self.rows),
            weights=self.tile_heads * self.rows * 4,
            shrink=LINE,
        )
        self.state_bytes = len(self.tiles) * 2 * LINE
        self.result_bytes = self.state_bytes + group * self.values.padded_bytes

    @classmethod
    def of(cls, meta: Mapping[str, Meta], key: str, query: str, group: int, features: Features) -> Block:
        """Blocks of an operand's rows that are only scored."""
        (*_, depth), _, dtype = meta[query]
        shape, _, stored = meta[key]
        return cls(Rows.of(depth, shape, stored, features.bf16_dot and dtype == stored == "bf16"), group, features)


class GroupQueries:
    """Emits products of a group's queries with blocks of rows; memory is that of `Block.scratch`."""

    def __init__(self, f: Function, block: Block, scratch: Value) -> None:
        self.f, self.block, self.at = f, block, block.scratch.at(scratch)
        self.later_keys = self.at.get("later_keys", self.at["keys"])
        self.later_values = self.at.get("later_values", self.at["values"])

    def put(self, first: Value, stride: int, dtype: str) -> None:
        """Brings the group's queries, `stride` bytes apart from `first` on, into the order of the keys' chunks."""
        f, keys = self.f, self.block.keys
        with f.loop(0, self.block.group) as head:
            at = self.at["queries"] + head.index * keys.padded_bytes
            for chunk in range(keys.chunks):
                for i, part in enumerate(keys.query_chunk(f, first + head.index * stride, dtype, chunk)):
                    f.store(part, at + (chunk * keys.vectors + i) * LINE)

    def list_keys(self, row: Callable[[Value], Value]) -> None:
        """Lists a block of keys: `row` gives the address of an entry's row."""
        with self.f.loop(0, self.block.rows) as entry:
            self.f.store(row(entry.index), self.at["keys"] + entry.index * 8)

    def multiply(self, tile: int, count: Value) -> None:
        """Products of a tile of queries with the first `count` listed keys; asks for values meanwhile."""
        f, block, (first, heads) = self.f, self.block, self.block.tiles[tile]
        ahead = block.values.nbytes if block.scattered and tile == 0 else 0
        products = _row_products(f, block.keys, heads, min(heads, 4 if block.wide else 1), block.rows, ahead)
        queries = self.at["queries"] + first * block.keys.padded_bytes
        products(self.at["keys"], self.later_values, queries, count, self.at["partial"])

    def score(self, keys: Value, stride: int, count: Value, scale: float, out: Value, out_bytes: int) -> None:
        """Writes scaled products of the queries with `count` keys, `stride` bytes apart: [group][out_bytes] f32, up to
        whole vectors of 16, where what is beyond `count` may be anything."""
        f, at, block, start = self.f, self.at, self.block, self.f.address_of(keys)
        with f.loop(0, count, block.rows) as loop:
            self.list_keys(lambda entry: f.min(loop.index + entry, count - 1) * stride + start)
            number = f.min(count - loop.index, block.rows)
            for tile, (first, heads) in enumerate(block.tiles):
                self.multiply(tile, number)
                put = _row_logits(f, heads, block.rows, out_bytes)
                put(at["partial"], number, scale, out + loop.index * 4 + first * out_bytes)


def _partial_bytes(block: int) -> int:
    """Bytes of the partial sums of a head's products with a block of rows."""
    return block // FOLDED_ROWS * LINE


@kernel(keys=PTR, later=PTR, queries=PTR, count=I64, partial=PTR)
def _row_products(f: Function, keys: Rows, heads: int, together: int, block: int, ahead: int) -> None:
    """Partial sums of the products of `heads` queries with the first `count` of a list of keys: [heads][block / 4][16]
    f32. Four rows at a time, for `together` queries; the lanes of a product are folded to four sums. Asks for `ahead`
    bytes of each row of the list `later`."""
    with f.loop(0, f["count"], FOLDED_ROWS) as loop:
        rows = addresses(f, f["keys"], loop.index, FOLDED_ROWS)
        if ahead:
            prefetch(f, addresses(f, f["later"], loop.index, FOLDED_ROWS), ahead)
        scales = _scales(f, keys, rows) if keys.encoded else None
        for low in range(0, heads, together):
            some = range(low, min(low + together, heads))
            sums = _products(f, keys, rows, [f["queries"] + head * keys.padded_bytes for head in some])
            for i, head in enumerate(some):
                folded = _fold_rows(f, sums[i * FOLDED_ROWS : (i + 1) * FOLDED_ROWS])
                folded = folded if scales is None else folded * scales
                f.store(folded, f["partial"] + loop.index * (LINE // FOLDED_ROWS) + head * _partial_bytes(block))


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
            totals = [f.dot(factor, part[i], total) for part, total in zip(parts, totals, strict=True)]
        result += totals
    return result


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


def row_sums(f: Function, head: int, first: Value, block: int) -> Value:
    """The products of a head with 16 rows from `first` on, of the `partial` sums that `row_products` left."""
    partial = f["partial"] + first * (LINE // FOLDED_ROWS) + head * _partial_bytes(block)
    rows = [f.load(partial + i * LINE, FLOATS) for i in range(4)]
    low = [*range(8), *range(LANES, LANES + 8)]
    pairs = [f.shuffle(a, b, low) + f.shuffle(a, b, [i + 8 for i in low]) for a, b in (rows[:2], rows[2:])]
    even = [q + i for q in (0, 8, LANES, LANES + 8) for i in range(4)]
    return f.shuffle(pairs[0], pairs[1], even) + f.shuffle(pairs[0], pairs[1], [i + 4 for i in even])


@kernel(partial=PTR, count=I64, scale=F32, out=PTR)
def _row_logits(f: Function, heads: int, block: int, out_bytes: int) -> None:
    """Scaled products, [heads][out_bytes] f32; of a last vector all 16 are written."""
    scale = f.broadcast(f["scale"], LANES)
    for head in range(heads):
        with f.loop(0, f["count"], LANES) as loop:
            f.store(row_sums(f, head, loop.index, block) * scale, f["out"] + loop.index * 4 + head * out_bytes)


# -------------------------------------------------------------------------------- panels of queries, rows in a block


def score_panel(
    f: Function, rows: QueryRows, scoring: Scoring, query: Value, key: tuple[Value, int], last: Value, count: Value,
    scores: Value,
) -> Value:  # fmt: skip
    """Bounded products of a packed panel with `count` keys, whole register tiles of them; gives how many keys that is.
    `key` is where keys are, and bytes from one to the next; none behind `last` is read."""
    tiles = rows.tiles
    key_tiles = f.ceildiv(count, tiles.keys)
    panel_products(f, tiles, tiles.words(rows.depth))(query, *key, last, key_tiles, scores)
    keys = key_tiles * tiles.keys
    if scoring.softcap is not None:
        panel_bounds(f, tiles, scoring)(scores, keys)
    return keys


@kernel(query=PTR, key=PTR, stride=I64, last=I64, count=I64, scores=PTR)
def panel_products(f: Function, tiles: Tiling, words: int) -> None:
    """scores[key][row] = sum over words of key[key][word] * query[word][row], for keys 0 .. count * tiles.keys - 1.

    Keys are `stride` bytes apart. No key behind `last` is read: the last one is taken instead.
    """
    if tiles.matrix:
        matrix_scores(f, words, tiles.row_bytes)
        return
    with f.loop(0, f["count"]) as tile:
        first = tile.index * tiles.keys
        keys = [f["key"] + f.min(first + i, f["last"]) * f["stride"] for i in range(tiles.keys)]
        with f.loop(0, words, 1, [f.splat(0.0)] * (tiles.keys * tiles.vectors)) as word:
            queries = tiles.load_words(f, f["query"] + word.index * tiles.row_bytes)
            word.carry(*tiles.add_products(f, [key + word.index * 4 for key in keys], queries, word.state))
        target = f["scores"] + first * tiles.row_bytes
        for i, total in enumerate(word.results):
            f.store(total, target + i * LINE)


@kernel(scores=PTR, count=I64)
def panel_bounds(f: Function, tiles: Tiling, scoring: Scoring) -> None:
    """Bounds the products of `count` keys where they are."""
    with f.loop(0, f["count"] * tiles.row_bytes, LINE) as place:
        at = f["scores"] + place.index
        f.store(scoring.bounded(f, f.load(at, FLOATS)), at)
