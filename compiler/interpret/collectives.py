"""The shard dialect: collectives, on tensors that the ranks of a group exchange."""

from __future__ import annotations

import torch
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Handler, single
from sscc.ir.collectives import grid_axes
from sscc.runtime.backends.collectives.group import Ranks
from sscc.runtime.backends.reference.collectives import part_of, summed


def handlers(ranks: Ranks) -> dict[str, Handler]:
    """Return the handlers of collectives on a rank of a grid."""

    def all_reduce(op: ir.Operation, b: Builder) -> Compute:
        types, axes = b.types, grid_axes(op)
        return lambda part: summed(ranks.exchange(part, axes), types.sums(part.dtype))

    def reduce_scatter(op: ir.Operation, b: Builder) -> Compute:
        axis, types, axes = op.attributes["scatter_dim"].value, b.types, grid_axes(op)

        def compute(part: torch.Tensor) -> torch.Tensor:
            values = [part_of(value, axis, ranks, axes) for value in ranks.exchange(part, axes)]
            return summed(values, types.sums(part.dtype))

        return compute

    def all_gather(op: ir.Operation, b: Builder) -> Compute:
        axis, axes = op.attributes["gather_axis"].value, grid_axes(op)
        return lambda part: torch.cat(ranks.exchange(part, axes), axis)

    def all_slice(op: ir.Operation, b: Builder) -> Compute:
        axis, axes = op.attributes["slice_axis"].value, grid_axes(op)
        return lambda value: part_of(value, axis, ranks, axes)

    def all_to_all(op: ir.Operation, b: Builder) -> Compute:
        split, join = (op.attributes[f"{name}_axis"].value for name in ("split", "concat"))
        axes = grid_axes(op)
        return lambda value: torch.cat([part_of(v, split, ranks, axes) for v in ranks.exchange(value, axes)], join)

    def process_linear_index(op: ir.Operation, b: Builder) -> Compute:
        return lambda: torch.tensor(ranks.group.rank)

    return {
        "shard.all_reduce": single(all_reduce),
        "shard.reduce_scatter": single(reduce_scatter),
        "shard.all_gather": single(all_gather),
        "shard.all_slice": single(all_slice),
        "shard.all_to_all": single(all_to_all),
        "shard.process_linear_index": single(process_linear_index),
    }
