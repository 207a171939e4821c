"""What MLIR's dialect `shard` says of ranks: their grid, and what they do together."""

from __future__ import annotations

from torch_mlir import ir

COLLECTIVES = frozenset({"shard.all_reduce", "shard.all_gather"})


def grid_of(module: ir.Module) -> tuple[int, ...]:
    """How many ranks run a module along each axis of their grid; () where there is one rank."""
    grids = [op.operation for op in module.body.operations if op.operation.name == "shard.grid"]
    return tuple(size for grid in grids for size in ir.DenseI64ArrayAttr(grid.attributes["shape"]))


def grid_axes(op: ir.Operation) -> tuple[int, ...]:
    """The axes of the grid along which a collective goes."""
    return tuple(ir.DenseI16ArrayAttr(op.attributes["grid_axes"]))
