"""Panels: the query rows of a prompt as attention over many queries takes them, 16 to a vector.

Scores stand transposed, ``scores[key][row]``: a lane is a query row. So keys are read where they lie, one element (or
pair) at a time for all lanes, nothing of the softmax crosses lanes, and only queries are packed, once for all keys.

A *word* is what one multiplication takes of a row: an f32, or a pair of bf16 where products are made in pairs
(`Tiling.pairs`). A *panel* is `Tiling.vectors` * 16 query rows. In scratch:

* packed queries of a panel: [words, panel] words;
* scores of a panel: [keys, panel] f32; weights take their place, [keys, panel] f32 or [keys / 2, panel] pairs;
* sums of a panel: [columns, panel] f32; peak, total and shrink: [panel] f32, positions [panel] i32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I32, TILE_ROW, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.row_copies import copy_row, transpose

FLOATS, PLACES = vector(F32, 16), vector(I32, 16)


@dataclass(frozen=True)
class Tiling:
    """Sizes of register tiles.

    Attributes:
        pairs: products of pairs of bf16 (queries, keys and values are bf16), else of f32.
        keys: keys, or columns of values, of a register tile; even.
        vectors: vectors of query rows of a register tile.
        matrix: products by tile registers (`matrix_attention`), which take pairs.
        block: keys whose scores are made before they are used; a multiple of `keys`.
    """

    pairs: bool
    keys: int
    vectors: int
    matrix: bool = False
    block: int = 64

    @classmethod
    def of(cls, features: Features, dtypes: Sequence[str], depth: int, *, matrix: bool = False) -> Tiling:
        """Return the tiles for the CPU: bf16 pairs where all of `dtypes` are bf16 and `depth` is even; with `matrix`
        tile registers where the CPU has them and `depth` fills their rows."""
        pairs = features.bf16_dot and set(dtypes) == {"bf16"} and depth % 2 == 0
        if matrix and pairs and features.bf16_tiles and depth % (TILE_ROW // 2) == 0:
            return cls(pairs, keys=32, vectors=2, matrix=True)
        return cls(pairs, keys=8, vectors=3) if pairs or features.wide_registers else cls(pairs, keys=4, vectors=1)

    @property
    def panel(self) -> int:
        return 16 * self.vectors

    @property
    def row_bytes(self) -> int:
        """Bytes of one word, score or sum of every row of a panel."""
        return LINE * self.vectors

    @property
    def numbers(self) -> str:
        """The dtype of what products are made of."""
        return "bf16" if self.pairs else "f32"

    @property
    def tag(self) -> str:
        return f"{'tiles' if self.matrix else self.numbers}_{self.keys}x{self.vectors}"

    def words(self, depth: int) -> int:
        return depth // 2 if self.pairs else depth

    def load_words(self, f: Function, row: Value) -> list[Value]:
        """The word at `row` of every query row of a panel."""
        words = vector(BF16, 32) if self.pairs else FLOATS
        return [f.load(row + v * LINE, words) for v in range(self.vectors)]

    def add_products(
        self, f: Function, pointers: Sequence[Value], rows: Sequence[Value], totals: Sequence[Value]
    ) -> list[Value]:
        """totals[i][v] + word at pointers[i] * rows[v]."""
        sums: list[Value] = []
        for i, pointer in enumerate(pointers):
            if self.pairs:
                pair = f.bitcast(f.load(pointer, vector(BF16, 2)), I32)
                word = f.bitcast(f.broadcast(pair, 16), vector(BF16, 32))
            else:
                word = f.broadcast(f.load(pointer, F32), 16)
            sums += [f.dot(word, row, totals[i * len(rows) + v]) for v, row in enumerate(rows)]
        return sums


class QueryRows:
    """Packed queries: `panels` panels of rows of `depth` elements; words are padded to 16."""

    def __init__(self, tiles: Tiling, depth: int, rows: int) -> None:
        self.tiles, self.depth, self.panels = tiles, depth, -(-rows // tiles.panel)
        self._padded = -(-tiles.words(depth) // 16) * 16
        self.panel_bytes, self.staging_bytes = self._padded * tiles.row_bytes, 16 * self._padded * 4
        self.nbytes, self.row_bytes = self.panels * self.panel_bytes, self.panels * tiles.row_bytes

    def pack(
        self, f: Function, panels: Value | int, source: Callable[[Value], Value], dtype: str, staging: Value,
        target: Value, then: Callable[[Value], None] = lambda row: None,
    ) -> None:  # fmt: skip
        """Packs the rows of some panels, each at the address that `source` gives of its number; `then` emits what else
        to do for a row. 16 rows are staged, then turned to a vector."""
        turn, vectors = transpose(f), self.tiles.vectors
        with f.loop(0, panels * vectors) as group:
            with f.loop(0, 16) as lane:
                row = group.index * 16 + lane.index
                staged = staging + lane.index * (self._padded * 4)
                copy_row(f, source(row), dtype, staged, self.tiles.numbers, self.depth)
                then(row)
            base = target + (group.index // vectors) * self.panel_bytes + (group.index % vectors) * LINE
            with f.loop(0, self._padded // 16) as part:
                place = base + part.index * (16 * self.tiles.row_bytes)
                turn(staging + part.index * LINE, self._padded * 4, place, self.tiles.row_bytes)
