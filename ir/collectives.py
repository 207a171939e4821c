"""What MLIR's dialect `shard` says of ranks: their grid, and what they do together.

A module that is cut has one grid. Where neighbours have something in common (things of P parts on R ranks, each part on
R / P of them, as KV heads are that are fewer than ranks) it has several axes: along the first ones, of P ranks in all,
parts differ; along the others they are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch_mlir import ir
from torch_mlir.dialects import shard

EXCHANGES = frozenset({"shard.all_reduce", "shard.reduce_scatter", "shard.all_gather", "shard.all_to_all"})
"""In which ranks wait for each other."""
COLLECTIVES = EXCHANGES | {"shard.all_slice"}
GRID = "ranks"


def grid_of(module: ir.Module) -> tuple[int, ...]:
    """How many ranks run a module along each axis of their grid; () where there is one rank."""
    grids = [op.operation for op in module.body.operations if op.operation.name == "shard.grid"]
    return tuple(size for grid in grids for size in ir.DenseI64ArrayAttr(grid.attributes["shape"]))


def grid_axes(op: ir.Operation) -> tuple[int, ...]:
    """The axes of the grid along which a collective goes."""
    return tuple(ir.DenseI16ArrayAttr(op.attributes["grid_axes"]))


def shape_of_grid(ranks: int, parts: Iterable[int]) -> list[int] | None:
    """The grid of so many ranks that has axes for things in each of these numbers of parts; None where there is none,
    as one of them does not divide the next."""
    sizes = sorted({1, ranks, *parts})
    if any(larger % smaller for smaller, larger in pairwise(sizes)):
        return None
    return [larger // smaller for smaller, larger in pairwise(sizes)]


def make_grid(module: ir.Module, shape: list[int]) -> None:
    """Declares the ranks of a module."""
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown(module.context):
        shard.GridOp(GRID, shape)


@dataclass(frozen=True)
class Peers:
    """Ranks among which values go: those that differ along `axes` of the grid alone. Its methods build collectives.

    Attributes:
        count: how many they are.
    """

    axes: tuple[int, ...]
    count: int

    @classmethod
    def with_each_part(cls, module: ir.Module, parts: int) -> Peers:
        """One rank for each part of something."""
        grid = grid_of(module)
        return cls(tuple(range(_axes_of(grid, parts))), parts)

    @classmethod
    def with_same_part(cls, module: ir.Module, parts: int) -> Peers:
        """The neighbours that have the same part of something."""
        grid = grid_of(module)
        return cls(tuple(range(_axes_of(grid, parts), len(grid))), prod(grid) // parts)

    def summed(self, value: ir.Value) -> ir.Value:
        return shard.all_reduce(value.type, GRID, value, grid_axes=self._axes)

    def scattered_sum(self, value: ir.Value, axis: int) -> ir.Value:
        """This one's of as many equal parts of the sum along `axis` as there are peers."""
        return shard.reduce_scatter(self._resized(value.type, split=axis), GRID, value, axis, grid_axes=self._axes)

    def gathered(self, value: ir.Value, axis: int) -> ir.Value:
        """The values of all peers, one behind the other along `axis`."""
        return shard.all_gather(self._resized(value.type, joined=axis), GRID, value, axis, grid_axes=self._axes)

    def sliced(self, value: ir.Value, axis: int) -> ir.Value:
        """This one's of as many equal parts of `value` along `axis` as there are peers."""
        return shard.all_slice(self._resized(value.type, split=axis), GRID, value, axis, grid_axes=self._axes)

    def exchanged(self, value: ir.Value, split: int, join: int) -> ir.Value:
        """Of the values of all peers the parts along `split` that are this one's, one behind the other along `join`."""
        type_ = self._resized(value.type, split=split, joined=join)
        return shard.all_to_all(type_, GRID, value, split, join, grid_axes=self._axes)

    def _resized(self, type_: ir.RankedTensorType, split: int | None = None, joined: int | None = None) -> ir.Type:
        """The type of a part along `split`, and of the values of all peers joined along `joined`."""
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
    """The number of the rank that runs the module."""
    return shard.process_linear_index(GRID)


def _axes_of(grid: tuple[int, ...], parts: int) -> int:
    """How many of the first axes have so many ranks together."""
    return next(count for count in range(len(grid) + 1) if prod(grid[:count]) == parts)
