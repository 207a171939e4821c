"""Attention of a prefill chunk over latent rows (`LatentChunkAttention`): as `prefill_attention`, of keys and values
that a unit makes of a block of rows for its head, where it uses them.

Making a row's key and value takes 2 P (N + Dv) operations a head, and attention to it 2 (D + Dv) for each query: with
the sizes of DeepSeek-V3 (P 512, N and Dv 128, D 192) as much as 410 queries. So a block of queries is a whole chunk
where that fits, and what is made serves all of them. Attention to the rows themselves, by absorbed queries, would take
2 (L + P) for each query, 3.4 times 2 (D + Dv): more from a chunk of 171 on.

Products of rows with the matrices are those of keys with queries: a matrix's rows are packed as queries are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from sscc.ir.geometry import Span
from sscc.ir.operations import LatentChunkAttention
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.attention_tiles import QueryRows, scores_kernel, tiling
from sscc.runtime.backends.cpu.attention.prefill_attention import Causal, QueryBlock, append_phase, block_of_queries
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.encoded_rows import decode_rows
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LARGEST_LATENT_BLOCK
from sscc.runtime.backends.cpu.codegen.mlir import Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand
from sscc.runtime.backends.cpu.codegen.row_copies import (
    SIZES,
    Meta,
    address,
    check_strides,
    copy_row,
    pack_rows,
    row_stride,
)


@executes(LatentChunkAttention)
def lower_latent_chunk_attention(step: LatentChunkAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Two phases: append; then attention. See `LatentChunkAttention` for shapes and meaning.

    Padding, the positions from `length` on, is left out: its rows of the scratch keep their bytes, too.
    Does nothing where start < 0 or start + C exceeds T (the reference interpreter refuses that).
    Raises InputError for operands that do not fit.
    """
    attention = _Latent.of_step(step, operands, features)
    append = append_phase(attention, ((step.new_latent, step.latent_scratch),))
    return Lowered((append, attention.phase))


@dataclass(frozen=True)
class _Latent(Causal):
    """Causal attention of a chunk, every head to keys and values of its own.

    Attributes:
        width: numbers of a row.
        first: the column of keys where those that are made begin.
        ups: what makes keys and values.
        up_rows: how the matrix of a head is packed: of keys, of values.
    """

    width: int
    first: int
    ups: tuple[str, str]
    up_rows: tuple[QueryRows, QueryRows]

    @classmethod
    def of_step(cls, step: LatentChunkAttention, operands: dict[str, Meta], features: Features) -> _Latent:
        ups, sums = (step.k_up, step.v_up), [step.log_sum_exp] if step.log_sum_exp else []
        names = (step.query, step.latent_scratch, step.latent_scratch, step.out)
        check_strides(step.kind, operands, (*names, step.new_latent, *ups, *sums))
        (_, heads, chunk, depth), _, query_type = operands[step.query]
        (_, _, limit, _), _, stored = operands[step.latent_scratch]
        columns, width, rank = operands[step.out][0][3], operands[step.new_latent][0][3], operands[step.k_up][0][2]
        latent = query_type if stored == "i8" else stored
        types = (query_type, latent, *(operands[up][2] for up in ups))
        tiles = tiling(features, types, gcd(depth, rank), matrix=True)
        queries = block_of_queries(1, chunk, tiles.panel, LARGEST_LATENT_BLOCK)
        rows = QueryRows(tiles, depth, -(-queries // tiles.panel))
        up_rows = tuple(QueryRows(tiles, rank, -(-operands[up][0][1] // tiles.panel)) for up in ups)
        return cls(
            names, step.start, step.length, step.log_sum_exp, None, Scoring(step.scale, None), tiles, heads, 1, chunk,
            limit, depth, columns, queries, rows, operands, Span(), width, step.first, ups,
            (up_rows[0], up_rows[1]),
        )  # fmt: skip

    @property
    def numbers(self) -> str:
        """What products are made of."""
        return "bf16" if self.tiles.pairs else "f32"

    @property
    def latent_as_it_lies(self) -> bool:
        return self.operands[self.names[1]][2] == self.numbers

    def pieces(self) -> dict[str, int]:
        tiles, row = self.tiles, self.tiles.block * SIZES[self.numbers]
        k_up, v_up = self.up_rows
        pieces = {
            "key": row * self.depth,
            "value": tiles.block * self.padded_columns * 4,
            "decoded": row * self.columns if tiles.pairs else 0,
            "latent": 0 if self.latent_as_it_lies else row * self.width,
            "k_up": k_up.panels * k_up.panel_bytes,
            "v_up": v_up.panels * v_up.panel_bytes,
            "up_staging": k_up.staging_bytes,
        }
        return super().pieces() | pieces

    def block_at(self, context: Context, head: Value, first: Value, live: Value) -> QueryBlock:
        return _LatentBlock(self, context, head, first, live)


class _LatentBlock(QueryBlock):
    """Emits the attention of one block of queries of one head."""

    def __init__(self, attention: _Latent, context: Context, head: Value, first: Value, live: Value) -> None:
        super().__init__(attention, context, head, first, live)
        self.latent = attention

    def _pack_queries(self) -> None:
        """And the head's matrices."""
        super()._pack_queries()
        for name, rows, target in zip(self.latent.ups, self.latent.up_rows, ("k_up", "v_up"), strict=True):
            self._pack_up(self.context.operands[name], rows, self.at[target])

    def _pack_up(self, up: Operand, rows: QueryRows, target: Value) -> None:
        f, count = self.f, up.shape[1]
        with f.loop(0, rows.panels * rows.tiles.vectors) as group:
            with f.loop(0, 16) as lane:
                row = f.min(group.index * 16 + lane.index, count - 1)  # those behind the last one are not looked at
                source = address(f, up, self.head, row)
                rows.stage(f, source, up.dtype, lane.index, self.at["up_staging"])
            rows.pack(f, self.at["up_staging"], group.index, target)

    def _rows(self, first: Value, last: Value, used: Value) -> tuple[tuple[Value, int], tuple[Value, int]]:
        f, a = self.f, self.latent
        size = SIZES[a.numbers]
        source, stride = address(f, self.k, 0, 0, first), row_stride(a.operands[a.names[1]])
        if a.encoded:
            decode_rows(f, source, stride, last, used, self.at["latent"], a.numbers, a.stored(1, a.width))
        elif not a.latent_as_it_lies:
            pack_rows(f, source, self.k.dtype, stride, last, used, self.at["latent"], a.width)
        if not a.latent_as_it_lies:
            source, stride = self.at["latent"], a.width * size
        own, rank = (a.operands[a.ups[0]][0][axis] for axis in (1, 2))
        key, value = self.at["key"], self.at["decoded" if a.tiles.pairs else "value"]
        self._make(a.up_rows[0], self.at["k_up"], own, source, stride, last, used, key + a.first * size, a.depth * size)
        self._make(a.up_rows[1], self.at["v_up"], a.columns, source, stride, last, used, value, a.columns * size)
        with f.loop(0, used) as row:
            shared, target = source + row.index * stride + rank * size, key + row.index * (a.depth * size)
            copy_row(f, shared, a.numbers, target, a.numbers, a.first)
            behind = a.depth - a.first - own
            after = target + (a.first + own) * size
            copy_row(f, shared + a.first * size, a.numbers, after, a.numbers, behind)
        value_stride = a.columns * size
        if a.tiles.pairs:
            value, value_stride = self._pairs(value, value_stride, used - 1, used)
        return (key, a.depth * size), (value, value_stride)

    def _make(
        self, rows: QueryRows, up: Value, count: int, source: Value, stride: int, last: Value, used: Value,
        target: Value, target_stride: int,
    ) -> None:  # fmt: skip
        """`count` numbers of every row of a block, by one matrix."""
        f, a = self.f, self.latent
        tiles, kernel = a.tiles, scores_kernel(f.module, a.tiles, a.tiles.words(rows.depth))
        for panel in range(rows.panels):
            f.call(kernel, up + panel * rows.panel_bytes, source, stride, last, f.ceildiv(used, tiles.keys),
                   self.at["scores"])  # fmt: skip
            first = panel * tiles.panel
            with f.loop(0, used) as row:
                here, there = self.at["scores"] + row.index * tiles.row_bytes, target + row.index * target_stride
                width = min(tiles.panel, count - first)
                copy_row(f, here, "f32", there + first * SIZES[a.numbers], a.numbers, width)
