"""Scores of attention, from products of queries and keys.

A score is a product times the step's scale; if a model caps scores, it is a scaled hyperbolic tangent of that. There
are two kinds of kernels for products: of the few queries of a group with scattered rows (`row_*`), and of panels of
many queries with contiguous rows (`panel_*`, see `panels`). Scores by quantized keys are in `quantized_keys`.
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
    """Parameters of scores: a score is `left` times the bounded product of a query and a key.

    Args:
        softcap: cap of scores; None for no cap, and then bounding does not change a product.

    Attributes:
        inner: factor of a product before it is bounded.
        tag: suffix of the names of kernels that bound products.
    """

    def __init__(self, scale: float, softcap: float | None = None) -> None:
        self.softcap = softcap
        self.inner, self.left = (scale, scale) if softcap is None else (scale / softcap, softcap)
        self.tag = "" if softcap is None else f"capped_{self.inner.hex()}"

    def bounded(self, f: Function, products: Value) -> Value:
        """Return lanes of products, bounded."""
        return products if self.softcap is None else tanh(f, products * self.inner)


# ---------------------------------------------------------------------------------- a group's queries, rows anywhere


class Block:
    """Sizes of a group of query heads and of the few rows that it processes at a time. Rows are a list of addresses,
    and are scored for a *tile* of query heads at a time, which fits the registers.

    Args:
        keys, values: cached rows; without values a block is only scored.
        group: query heads that share a KV head.
        scattered: True if rows are scattered, so that the CPU cannot predict the next one. Values are then prefetched
            while keys are read, and keys while values are read.
        ahead: True to prefetch scattered rows of a later block instead.

    Attributes:
        rows: maximum number of rows of a block, a multiple of 16. It is small so that the CPU sees keys and values as
            two steady streams; if caches hold both, larger blocks would be faster.
        tiles: (first, count) of the tiles of query heads, all of `tile_heads` except perhaps the last one.
        scratch: lists of the addresses of keys and values, and of those to prefetch; packed queries; partial sums of a
            tile's products; its weights [heads][rows] f32; factors for earlier sums.
        state_bytes, result_bytes: bytes of the maximums and sums of an online softmax, and of these with the weighted
            values.
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
        """Return blocks of an operand's rows that are only scored."""
        (*_, depth), _, dtype = meta[query]
        shape, _, stored = meta[key]
        return cls(Rows.of(depth, shape, stored, features.bf16_dot and dtype == stored == "bf16"), group, features)


class GroupQueries:
    """Emitter of products of a group's queries with blocks of rows, in the memory of `Block.scratch`."""

    def __init__(self, f: Function, block: Block, scratch: Value) -> None:
        self.f, self.block, self.at = f, block, block.scratch.at(scratch)
        self.later_keys = self.at.get("later_keys", self.at["keys"])
        self.later_values = self.at.get("later_values", self.at["values"])

    def put(self, first: Value, stride: int, dtype: str) -> None:
        """Copy the group's queries, `stride` bytes apart from `first` on, in the order of the keys' chunks."""
        f, keys = self.f, self.block.keys
        with f.loop(0, self.block.group) as head:
            at = self.at["queries"] + head.index * keys.padded_bytes
            for chunk in range(keys.chunks):
                for i, part in enumerate(keys.query_chunk(f, first + head.index * stride, dtype, chunk)):
                    f.store(part, at + (chunk * keys.vectors + i) * LINE)

    def list_keys(self, row: Callable[[Value], Value]) -> None:
        """List a block of keys; `row` returns the address of an entry's row."""
        with self.f.loop(0, self.block.rows) as entry:
            self.f.store(row(entry.index), self.at["keys"] + entry.index * 8)

    def multiply(self, tile: int, count: Value) -> None:
        """Compute the products of a tile of queries with the first `count` listed keys, and prefetch values
        meanwhile."""
        f, block, (first, heads) = self.f, self.block, self.block.tiles[tile]
        ahead = block.values.nbytes if block.scattered and tile == 0 else 0
        products = _row_products(f, block.keys, heads, min(heads, 4 if block.wide else 1), block.rows, ahead)
        queries = self.at["queries"] + first * block.keys.padded_bytes
        products(self.at["keys"], self.later_values, queries, count, self.at["partial"])

    def score(self, keys: Value, stride: int, count: Value, scale: float, out: Value, out_bytes: int) -> None:
        """Write scaled products of the queries with `count` keys, `stride` bytes apart: [group][out_bytes] f32, in
        whole vectors of 16; lanes beyond `count` are unspecified."""
        f, at, block, start = self.f, self.at, self.block, self.f.address_of(keys)
        with f.loop(0, count, block.rows) as loop:
            self.list_keys(lambda entry: f.min(loop.index + entry, count - 1) * stride + start)
            number = f.min(count - loop.index, block.rows)
            for tile, (first, heads) in enumerate(block.tiles):
                self.multiply(tile, number)
                put = _row_logits(f, heads, block.rows, out_bytes)
                put(at["partial"], number, scale, out + loop.index * 4 + first * out_bytes)


def _partial_bytes(block: int) -> int:
    """Return the bytes of the partial sums of a head's products with a block of rows."""
    return block // FOLDED_ROWS * LINE


@kernel(keys=PTR, later=PTR, queries=PTR, count=I64, partial=PTR)
def _row_products(f: Function, keys: Rows, heads: int, together: int, block: int, ahead: int) -> None:
    """Write partial sums of the products of `heads` queries with the first `count` of a list of keys: [heads][block /
    4][16] f32. It takes four rows at a time for `together` queries, and folds the lanes of a product to four sums.
    Prefetches `ahead` bytes of each row of the list `later`."""
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
    """Return, for each query and each row, 16 partial sums of their products."""
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
    """Fold four vectors to one: each quarter of the result contains a quarter of the sum of each vector."""
    even = [i for q in range(0, LANES, 4) for i in (q, q + LANES, q + 1, q + 1 + LANES)]
    pairs = [f.shuffle(a, b, even) + f.shuffle(a, b, [i + 2 for i in even]) for a, b in (rows[:2], rows[2:])]
    low = [i for q in range(0, LANES, 4) for i in (q, q + 1, q + LANES, q + 1 + LANES)]
    return f.shuffle(pairs[0], pairs[1], low) + f.shuffle(pairs[0], pairs[1], [i + 2 for i in low])


def _scales(f: Function, keys: Rows, rows: Sequence[Value]) -> Value:
    """Return the scales of four encoded rows, in the order of `_fold_rows`."""
    scales = f.splat(0.0, FOLDED_ROWS)
    for i, row in enumerate(rows):
        scales = f.insert(keys.scale(f, row), scales, i)
    return f.shuffle(scales, scales, [*range(FOLDED_ROWS)] * (LANES // FOLDED_ROWS))


def row_sums(f: Function, head: int, first: Value, block: int) -> Value:
    """Return the products of a head with 16 rows from `first` on, from the `partial` sums of `row_products`."""
    partial = f["partial"] + first * (LINE // FOLDED_ROWS) + head * _partial_bytes(block)
    rows = [f.load(partial + i * LINE, FLOATS) for i in range(4)]
    low = [*range(8), *range(LANES, LANES + 8)]
    pairs = [f.shuffle(a, b, low) + f.shuffle(a, b, [i + 8 for i in low]) for a, b in (rows[:2], rows[2:])]
    even = [q + i for q in (0, 8, LANES, LANES + 8) for i in range(4)]
    return f.shuffle(pairs[0], pairs[1], even) + f.shuffle(pairs[0], pairs[1], [i + 4 for i in even])


@kernel(partial=PTR, count=I64, scale=F32, out=PTR)
def _row_logits(f: Function, heads: int, block: int, out_bytes: int) -> None:
    """Write scaled products, [heads][out_bytes] f32; all 16 lanes of the last vector are written."""
    scale = f.broadcast(f["scale"], LANES)
    for head in range(heads):
        with f.loop(0, f["count"], LANES) as loop:
            f.store(row_sums(f, head, loop.index, block) * scale, f["out"] + loop.index * 4 + head * out_bytes)


# -------------------------------------------------------------------------------- panels of queries, rows in a block


def score_panel(
    f: Function, rows: QueryRows, scoring: Scoring, query: Value, key: tuple[Value, int], last: Value, count: Value,
    scores: Value,
) -> Value:  # fmt: skip
    """Compute bounded products of a packed panel with `count` keys, rounded up to whole register tiles. Return the
    number of keys with the padding. `key` is the address of the keys and the bytes between them; no key after `last` is
    read."""
    tiles = rows.tiles
    key_tiles = f.ceildiv(count, tiles.keys)
    panel_products(f, tiles, tiles.words(rows.depth))(query, *key, last, key_tiles, scores)
    keys = key_tiles * tiles.keys
    if scoring.softcap is not None:
        panel_bounds(f, tiles, scoring)(scores, keys)
    return keys


@kernel(query=PTR, key=PTR, stride=I64, last=I64, count=I64, scores=PTR)
def panel_products(f: Function, tiles: Tiling, words: int) -> None:
    """Compute scores[key][row] = sum over words of key[key][word] * query[word][row], for keys 0 .. count * tiles.keys
    - 1.

    Keys are `stride` bytes apart. No key after `last` is read: the last one is used instead.
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
    """Bound the products of `count` keys in place."""
    with f.loop(0, f["count"] * tiles.row_bytes, LINE) as place:
        at = f["scores"] + place.index
        f.store(scoring.bounded(f, f.load(at, FLOATS)), at)
