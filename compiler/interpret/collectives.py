"""shard: collectives, on what the ranks of a group exchange."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Handler, single
from sscc.compiler.interpret.types import Types
from sscc.runtime.collectives.group import Group


def summed(values: Sequence[Tensor], types: Types) -> Tensor:
    """The sum over ranks, in their order, accumulated as every sum is and rounded once."""
    dtype = types.sums(values[0].dtype)
    return functools.reduce(torch.add, [value.to(dtype) for value in values]).to(values[0].dtype)


def handlers(group: Group) -> dict[str, Handler]:
    """How collectives are evaluated on a rank of a group."""

    def all_reduce(op: ir.Operation, b: Builder) -> Compute:
        types = b.types
        return lambda part: summed(group.exchange(part), types)

    def all_gather(op: ir.Operation, b: Builder) -> Compute:
        axis = op.attributes["gather_axis"].value
        return lambda part: torch.cat(list(group.exchange(part)), axis)

    return {"shard.all_reduce": single(all_reduce), "shard.all_gather": single(all_gather)}
