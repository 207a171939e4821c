"""Row blocks: a group of query heads and the few rows that it takes at a time, in attention of few queries.

A block is a list of rows' addresses, so that rows may come from anywhere. Rows of a block are scored for a *tile* of
query heads at a time, as many as registers hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from sscc.runtime.backends.cpu.attention.row_codec import Rows
from sscc.runtime.backends.cpu.attention.scoring import partial_bytes
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces


class Block:
    """The sizes of a block.

    Args:
        keys, values: the cached rows; without values a block is only scored.
        group: query heads that share a KV head.
        scattered: rows lie anywhere, so that the CPU cannot foresee which one is next: values are asked for while keys
            are read, and the other way round.
        ahead: of scattered rows, those of a later block are asked for instead.

    Attributes:
        rows: of a block at most, a multiple of 16. Few, so that a CPU sees keys and values as two steady streams; where
            caches hold both, more would cost less.
        tiles: (first, count) of the tiles of query heads, of about the same size: `tile_heads` but perhaps the last.
        scratch: lists of the addresses of keys and values, and of those that are asked for; packed queries; partial
            sums of the scores of a tile, and its weights [heads][rows] f32; factors that a tile's sums shrink by.
        result_bytes: of a running softmax in memory (`combination.RowSoftmax`).
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
        later = {"later_keys": self.rows * 8, "later_values": self.rows * 8} if ahead else {}
        self.scratch = ScratchPieces(
            keys=self.rows * 8,
            values=self.rows * 8,
            **later,
            queries=group * keys.padded_bytes,
            partial=self.tile_heads * partial_bytes(self.rows),
            weights=self.tile_heads * self.rows * 4,
            shrink=LINE,
        )
        self.states_bytes = len(self.tiles) * 2 * LINE
        self.result_bytes = self.states_bytes + group * self.values.padded_bytes

    @classmethod
    def of(cls, meta: Mapping[str, Meta], key: str, query: str, group: int, features: Features) -> Block:
        """Blocks of an operand's rows that are only scored."""
        (*_, depth), _, dtype = meta[query]
        shape, _, stored = meta[key]
        return cls(Rows.of(depth, shape, stored, features.bf16_dot and dtype == stored == "bf16"), group, features)
