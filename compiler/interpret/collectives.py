"""shard: collectives, on what the ranks of a group exchange."""

from __future__ import annotations

import torch
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Handler, single
from sscc.runtime.backends.reference.collectives import summed
from sscc.runtime.collectives.group import Group


def handlers(group: Group) -> dict[str, Handler]:
    """How collectives are evaluated on a rank of a group."""

    def all_reduce(op: ir.Operation, b: Builder) -> Compute:
        types = b.types
        return lambda part: summed(group.exchange(part), types.sums(part.dtype))

    def all_gather(op: ir.Operation, b: Builder) -> Compute:
        axis = op.attributes["gather_axis"].value
        return lambda part: torch.cat(list(group.exchange(part)), axis)

    return {"shard.all_reduce": single(all_reduce), "shard.all_gather": single(all_gather)}
