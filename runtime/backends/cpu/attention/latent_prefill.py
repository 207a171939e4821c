"""Attention of a prefill chunk over latent rows (`LatentChunkAttention`): `prefill_attention` with keys and values that
each unit computes from a block of rows for its head.

Computing a row's key and value takes 2 P (N + Dv) operations per head, and attention to it 2 (D + Dv) per query. With
the sizes of DeepSeek-V3 (P 512, N and Dv 128, D 192) this equals the attention of 410 queries. A block of queries is
therefore a whole chunk if it fits, and shares the computed keys and values. Attention to the rows themselves, with
absorbed queries, would take 2 (L + P) per query, 3.4 times 2 (D + Dv): more for chunks of 171 tokens or more.

Products of rows with the matrices use the kernels of keys and queries: the rows of a matrix are packed like queries.
"""

from __future__ import annotations

from math import gcd

from sscc.ir.operations import LatentChunkAttention
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.panels import QueryRows, Tiling
from sscc.runtime.backends.cpu.attention.prefill_attention import Causal, QueryBlock, Rows
from sscc.runtime.backends.cpu.attention.scoring import Scoring, score_panel
from sscc.runtime.backends.cpu.codegen.encoded_rows import plain_rows
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LARGEST_LATENT_BLOCK
from sscc.runtime.backends.cpu.codegen.mlir import Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, address, copy_row


@executes(LatentChunkAttention)
def lower_latent_chunk_attention(step: LatentChunkAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower to two phases: append, then attention. See `LatentChunkAttention` for shapes and meaning.

    Padding, the positions from `length` on, is skipped: its rows of the scratch are not written. Does nothing if start
    < 0 or start + C exceeds T (the reference interpreter refuses these).
    """
    attention = _Latent(step, operands, features)
    return Lowered((attention.append_phase(((step.new_latent, step.latent_scratch),)), attention.phase))


class _Latent(Causal):
    """Causal attention of a chunk in which every head has keys and values of its own.

    Attributes:
        width: numbers of a row; keys and values are computed from the first `rank`.
        own: computed columns of keys, from `step.first` on.
        ups: packed layouts of a head's matrices for keys and for values.
    """

    def __init__(self, step: LatentChunkAttention, operands: dict[str, Meta], features: Features) -> None:
        (heads, self.own, self.rank), self.width = operands[step.k_up][0], operands[step.new_latent][0][3]
        (*_, depth), _, query_type = operands[step.query]
        stored = operands[step.latent_scratch][2]
        latent = query_type if stored == "i8" else stored
        types = (query_type, latent, operands[step.k_up][2], operands[step.v_up][2])
        tiles = Tiling(features, types, gcd(depth, self.rank), matrix=True)
        names = (step.query, step.latent_scratch, step.latent_scratch, step.out)
        super().__init__(step, operands, names, heads, tiles, Scoring(step.scale), LARGEST_LATENT_BLOCK)
        self.latent, self.scoring_of_rows = step, Scoring(1.0)
        self.ups = [QueryRows(tiles, self.rank, operands[up][0][1]) for up in (step.k_up, step.v_up)]

    def pieces(self) -> dict[str, int]:
        tiles, row = self.tiles, self.tiles.block * SIZES[self.tiles.numbers]
        return super().pieces() | {
            "key": row * self.depth,
            "value": tiles.block * self.padded_columns * 4,
            "decoded": row * self.columns if tiles.pairs else 0,
            "latent": 0 if self.operands[self.names[1]][2] == tiles.numbers else row * self.width,
            "k_up": self.ups[0].nbytes,
            "v_up": self.ups[1].nbytes,
            "up_staging": self.ups[0].staging_bytes,
        }

    def block_at(self, context: Context, head: Value, first: Value, live: Value) -> QueryBlock:
        return _LatentBlock(self, context, head, first, live)


class _LatentBlock(QueryBlock):
    """Emitter of the attention of one block of queries of one head."""

    a: _Latent

    def pack_queries(self) -> None:
        """Pack the queries and the head's matrices."""
        super().pack_queries()
        f, at, step = self.f, self.at, self.a.latent
        for name, rows, target in zip((step.k_up, step.v_up), self.a.ups, ("k_up", "v_up"), strict=True):
            up = self.context.operands[name]
            last = up.shape[1] - 1  # later rows are not used

            def source(row: Value, up: Operand = up, last: int = last) -> Value:
                return address(f, up, self.head, f.min(row, last))

            rows.pack(f, rows.panels, source, up.dtype, at["up_staging"], at[target])

    def rows_at(self, first: Value, last: Value, used: Value) -> tuple[Rows, Rows]:
        f, a, at, numbers = self.f, self.a, self.at, self.a.tiles.numbers
        size, begin = SIZES[numbers], a.latent.first
        row_bytes, behind = a.depth * size, a.depth - begin - a.own
        latent = plain_rows(f, self.k, (0, 0, first), a.width, last, used, at["latent"], numbers)
        key, value = at["key"], at["decoded" if a.tiles.pairs else "value"]
        self._make(0, at["k_up"], a.own, latent, last, used, (key + begin * size, row_bytes))
        self._make(1, at["v_up"], a.columns, latent, last, used, (value, a.columns * size))
        with f.loop(0, used) as row:
            shared, target = latent[0] + row.index * latent[1] + a.rank * size, key + row.index * row_bytes
            copy_row(f, shared, numbers, target, numbers, begin)
            copy_row(f, shared + begin * size, numbers, target + (begin + a.own) * size, numbers, behind)
        values = (value, a.columns * size)
        return (key, row_bytes), self.paired(values, used - 1, used) if a.tiles.pairs else values

    def _make(
        self, side: int, up: Value, count: int, latent: Rows, last: Value, used: Value, target: Rows
    ) -> None:
        """Compute `count` numbers of every row of a block, by one matrix."""
        f, a, rows, scores, size = self.f, self.a, self.a.ups[side], self.at["scores"], SIZES[self.a.tiles.numbers]
        for panel in range(rows.panels):
            score_panel(f, rows, a.scoring_of_rows, up + panel * rows.panel_bytes, latent, last, used, scores)
            first = panel * a.tiles.panel
            width = min(a.tiles.panel, count - first)
            with f.loop(0, used) as row:
                here, there = scores + row.index * a.tiles.row_bytes, target[0] + row.index * target[1]
                copy_row(f, here, "f32", there + first * size, a.tiles.numbers, width)
