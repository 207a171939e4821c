"""shard: collectives, on what the ranks of a group exchange."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Handler, single
from sscc.compiler.interpret.types import Types
from sscc.ir.grids import is_average, shape_of_grid
from sscc.ir.sharding import peers
from sscc.runtime.collectives.group import Group


def summed(values: Sequence[Tensor], types: Types, *, average: bool = False) -> Tensor:
    """The sum over ranks, in their order, or their average, accumulated as every sum is and rounded once."""
    dtype = types.sums(values[0].dtype)
    total = functools.reduce(torch.add, [value.to(dtype) for value in values])
    return (total / len(values) if average else total).to(values[0].dtype)


def handlers(group: Group) -> dict[str, Handler]:
    """How collectives are evaluated on a rank of a group."""

    def exchange(op: ir.Operation) -> Callable[[Tensor], Sequence[Tensor]]:
        others = peers(shape_of_grid(op), list(op.attributes["grid_axes"]), group.rank)

        def values(own: Tensor) -> Sequence[Tensor]:
            by_rank = group.exchange(own)
            return [by_rank[rank] for rank in others]

        return values

    def all_reduce(op: ir.Operation, b: Builder) -> Compute:
        types, average, values = b.types, is_average(op), exchange(op)
        return lambda part: summed(values(part), types, average=average)

    def all_gather(op: ir.Operation, b: Builder) -> Compute:
        axis, values = op.attributes["gather_axis"].value, exchange(op)
        return lambda part: torch.cat(list(values(part)), axis)

    return {"shard.all_reduce": single(all_reduce), "shard.all_gather": single(all_gather)}
