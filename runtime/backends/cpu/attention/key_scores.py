"""Exact scores of candidates by keys that are their own landmarks (16 bits): the products of attention, by its kernels.

A key's sum has one order, wherever the key stands in a block and whatever is scored with it. Queries are what they
are: widened where keys are, not rotated and not rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from sscc.runtime.backends.cpu.attention import decode_attention_block as block_kernels
from sscc.runtime.backends.cpu.attention.decode_attention_block import Block, Scratch
from sscc.runtime.backends.cpu.attention.decode_attention_chunks import Rows
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import Function, Value
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, check_strides


@dataclass(frozen=True)
class KeyRows:
    """Keys by which a group of query heads is scored.

    Attributes:
        block: how they are; `values` in it mean nothing.
    """

    block: Block

    @classmethod
    def of(cls, kind: str, name: str, operands: dict[str, Meta], query: str, group: int, features: Features) -> KeyRows:
        """Raises InputError where a row is not contiguous."""
        check_strides(kind, operands, (name,))
        (*_, dim), _, queries = operands[query]
        dtype = operands[name][2]
        side = Rows(dim, dtype, features.bf16_dot and queries == dtype == "bf16")
        return cls(Block(side, side, group, features))

    @property
    def scratch_bytes(self) -> int:
        """Private scratch of `put_queries` and `score_keys`."""
        return self.block.scratch_bytes


def put_queries(f: Function, rows: KeyRows, first: Value, stride: int, dtype: str, scratch: Value) -> None:
    """Brings the group's queries, `stride` bytes apart from `first` on, to where `score_keys` takes them."""
    block_kernels.put_queries(f, rows.block, first, stride, dtype, Scratch(rows.block, scratch))


def score_keys(
    f: Function, rows: KeyRows, keys: Value, stride: int, count: Value, scale: float, scratch: Value, out: Value,
    out_bytes: int,
) -> None:  # fmt: skip
    """Scaled products of the group's queries with `count` keys, `stride` bytes apart: [group][out_bytes] f32, up to
    whole vectors of 16, where what is beyond `count` may be anything."""
    block, at, start = rows.block, Scratch(rows.block, scratch), f.address_of(keys)
    with f.loop(0, count, block.rows) as loop:
        with f.loop(0, block.rows) as entry:
            row = f.min(loop.index + entry.index, count - 1)
            f.store(row * stride + start, at.keys + entry.index * 8)
        number = f.min(count - loop.index, block.rows)
        for tile, (first, _) in enumerate(block.tiles):
            block_kernels.scores(f, block, tile, number, at)
            block_kernels.logits(f, block, tile, number, scale, at, out + loop.index * 4 + first * out_bytes, out_bytes)
