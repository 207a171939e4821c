"""Panels: query rows of a prompt in the layout of attention over many queries, 16 per vector.

Scores are transposed, ``scores[key][row]``: a lane is a query row. Keys are therefore read in place, one element (or
pair) at a time for all lanes; the softmax does not cross lanes; and only queries are packed, once for all keys.

A *word* is the part of a row that one multiplication uses: an f32, or a pair of bf16 if products are of pairs
(`Tiling.pairs`). A *panel* is `Tiling.vectors` * 16 query rows. Scratch contains:

* packed queries of a panel: [words, panel] words;
* scores of a panel: [keys, panel] f32; weights overwrite them, [keys, panel] f32 or [keys / 2, panel] pairs;
* sums of a panel: [columns, panel] f32; peak, total and shrink: [panel] f32, positions [panel] i32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I32, TILE_ROW, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.row_copies import copy_row, transpose

FLOATS, PLACES = vector(F32, 16), vector(I32, 16)


class Tiling:
    """Sizes of register tiles for the CPU.

    Args:
        dtypes: dtypes of queries, keys and values.
        matrix: True to use tile registers if possible.

    Attributes:
        pairs: True for products of pairs of bf16, if all `dtypes` are bf16 and `depth` is even; False for f32.
        matrix: True for products in tile registers (`matrix_attention`), if `depth` fills their rows.
        numbers: dtype of the factors.
        keys, vectors: keys (or columns of values) and vectors of query rows of a register tile; `keys` is even.
        panel, row_bytes: query rows of a panel, and the bytes of one word, score or sum of all of them.
        block: keys that are scored before their scores are used; a multiple of `keys`.
    """

    def __init__(self, features: Features, dtypes: Sequence[str], depth: int, *, matrix: bool = False) -> None:
        self.pairs = features.bf16_dot and set(dtypes) == {"bf16"} and depth % 2 == 0
        self.matrix = matrix and self.pairs and features.bf16_tiles and depth % (TILE_ROW // 2) == 0
        wide = self.pairs or features.wide_registers
        self.keys, self.vectors = (32, 2) if self.matrix else (8, 3) if wide else (4, 1)
        self.panel, self.row_bytes, self.block = 16 * self.vectors, LINE * self.vectors, 64
        self.numbers = "bf16" if self.pairs else "f32"
        self.tag = f"{'tiles' if self.matrix else self.numbers}_{self.keys}x{self.vectors}"

    def words(self, depth: int) -> int:
        return depth // 2 if self.pairs else depth

    def load_words(self, f: Function, row: Value) -> list[Value]:
        """Return the word at `row` of every query row of a panel."""
        words = vector(BF16, 32) if self.pairs else FLOATS
        return [f.load(row + v * LINE, words) for v in range(self.vectors)]

    def add_products(
        self, f: Function, pointers: Sequence[Value], rows: Sequence[Value], totals: Sequence[Value]
    ) -> list[Value]:
        """Return totals[i][v] + word at pointers[i] * rows[v]."""
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
    """Layout of packed queries: `panels` panels of rows of `depth` elements; words are padded to 16."""

    def __init__(self, tiles: Tiling, depth: int, rows: int) -> None:
        self.tiles, self.depth, self.panels = tiles, depth, -(-rows // tiles.panel)
        self._padded = -(-tiles.words(depth) // 16) * 16
        self.panel_bytes, self.staging_bytes = self._padded * tiles.row_bytes, 16 * self._padded * 4
        self.nbytes, self.row_bytes = self.panels * self.panel_bytes, self.panels * tiles.row_bytes

    def pack(
        self, f: Function, panels: Value | int, source: Callable[[Value], Value], dtype: str, staging: Value,
        target: Value, then: Callable[[Value], None] = lambda row: None,
    ) -> None:  # fmt: skip
        """Pack the rows of some panels; `source` returns the address of a row by its number, and `then` emits further
        code for a row. 16 rows are staged, then transposed to vectors."""
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
