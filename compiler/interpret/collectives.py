"""shard: collectives, on what the ranks of a group exchange."""

from __future__ import annotations

import torch
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Handler, single
from sscc.ir.collectives import grid_axes
from sscc.runtime.backends.reference.collectives import summed
from sscc.runtime.collectives.group import Ranks


def handlers(ranks: Ranks) -> dict[str, Handler]:
    """How collectives are evaluated on a rank of a grid."""

    def all_reduce(op: ir.Operation, b: Builder) -> Compute:
        types, axes = b.types, grid_axes(op)
        return lambda part: summed(ranks.exchange(part, axes), types.sums(part.dtype))

    def all_gather(op: ir.Operation, b: Builder) -> Compute:
        axis, axes = op.attributes["gather_axis"].value, grid_axes(op)
        return lambda part: torch.cat(ranks.exchange(part, axes), axis)

    return {"shard.all_reduce": single(all_reduce), "shard.all_gather": single(all_gather)}
