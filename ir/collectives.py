"""Grids of ranks and collectives, in MLIR's `shard` dialect.

A sharded module has one grid. Tensors may be cut in fewer parts than there are ranks (KV heads, for example): with P
parts on R ranks each part is on R / P ranks. The grid then has several axes: ranks that differ along the first axes (P
ranks in all) hold different parts, ranks that differ only along the others hold the same part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch_mlir import ir
from torch_mlir.dialects import shard

EXCHANGES = frozenset({"shard.all_reduce", "shard.reduce_scatter", "shard.all_gather", "shard.all_to_all"})
"""Name of the grid."""
COLLECTIVES = EXCHANGES | {"shard.all_slice"}
GRID = "ranks"


def grid_of(module: ir.Module) -> tuple[int, ...]:
    """Return the number of ranks along each axis of a module's grid; () for a single rank."""
    grids = [op.operation for op in module.body.operations if op.operation.name == "shard.grid"]
    return tuple(size for grid in grids for size in ir.DenseI64ArrayAttr(grid.attributes["shape"]))


def grid_axes(op: ir.Operation) -> tuple[int, ...]:
    """Return the grid axes of a collective."""
    return tuple(ir.DenseI16ArrayAttr(op.attributes["grid_axes"]))


def shape_of_grid(ranks: int, parts: Iterable[int]) -> list[int] | None:
    """Return a grid of `ranks` ranks with axes for tensors that are cut in these numbers of parts; None if one of the
    numbers does not divide the next."""
    sizes = sorted({1, ranks, *parts})
    if any(larger % smaller for smaller, larger in pairwise(sizes)):
        return None
    return [larger // smaller for smaller, larger in pairwise(sizes)]


def make_grid(module: ir.Module, shape: list[int]) -> None:
    """Declare the ranks of a module."""
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown(module.context):
        shard.GridOp(GRID, shape)


@dataclass(frozen=True)
class Peers:
    """Ranks that communicate: those that differ only along `axes` of the grid. The methods build collectives.

    Attributes:
        count: number of ranks.
    """

    axes: tuple[int, ...]
    count: int

    @classmethod
    def with_each_part(cls, module: ir.Module, parts: int) -> Peers:
        """Return the peers that hold different parts of a tensor cut in `parts`: one rank for each part."""
        grid = grid_of(module)
        return cls(tuple(range(_axes_of(grid, parts))), parts)

    @classmethod
    def with_same_part(cls, module: ir.Module, parts: int) -> Peers:
        """Return the peers that hold the same part of a tensor cut in `parts`."""
        grid = grid_of(module)
        return cls(tuple(range(_axes_of(grid, parts), len(grid))), prod(grid) // parts)

    def summed(self, value: ir.Value) -> ir.Value:
        return shard.all_reduce(value.type, GRID, value, grid_axes=self._axes)

    def scattered_sum(self, value: ir.Value, axis: int) -> ir.Value:
        """Return this rank's part of the sum of `value` over peers, cut along `axis` in one equal part per peer."""
        return shard.reduce_scatter(self._resized(value.type, split=axis), GRID, value, axis, grid_axes=self._axes)

    def gathered(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the peers' values, concatenated along `axis`."""
        return shard.all_gather(self._resized(value.type, joined=axis), GRID, value, axis, grid_axes=self._axes)

    def sliced(self, value: ir.Value, axis: int) -> ir.Value:
        """Return this rank's part of `value`, cut along `axis` in one equal part per peer."""
        return shard.all_slice(self._resized(value.type, split=axis), GRID, value, axis, grid_axes=self._axes)

    def exchanged(self, value: ir.Value, split: int, join: int) -> ir.Value:
        """Return this rank's part (along `split`) of every peer's value, concatenated along `join`."""
        type_ = self._resized(value.type, split=split, joined=join)
        return shard.all_to_all(type_, GRID, value, split, join, grid_axes=self._axes)

    def _resized(self, type_: ir.RankedTensorType, split: int | None = None, joined: int | None = None) -> ir.Type:
        """Return the type of one part along `split`, or of the peers' values concatenated along `joined`."""
        shape = list(type_.shape)
        if split is not None:
            shape[split] //= self.count
        if joined is not None:
            shape[joined] *= self.count
        return ir.RankedTensorType.get(shape, type_.element_type)

    @property
    def _axes(self) -> ir.Attribute:
        return ir.Attribute.parse(f"array<i16: {', '.join(map(str, self.axes))}>")


def rank_of_this_one() -> ir.Value:
    """Return the number of the rank that runs the module."""
    return shard.process_linear_index(GRID)


def _axes_of(grid: tuple[int, ...], parts: int) -> int:
    """Return the number of leading axes that span `parts` ranks."""
    return next(count for count in range(len(grid) + 1) if prod(grid[:count]) == parts)
