"""Grids of ranks, and collectives among the ranks along one of their axes: MLIR's `shard` dialect.

A module that is cut has a grid of one axis, `@ranks`. Where neighbours have something in common (`parts` of a thing on
R ranks, each on R / parts of them, as KV heads are that are fewer than ranks) it has one of two axes besides: along the
first one parts differ, along the second one they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import shard

RANKS = "ranks"


def declare_ranks(module: ir.Module, ranks: int) -> None:
    """Makes the grid of all ranks."""
    _declare(module, RANKS, [ranks])


def ranks_of(module: ir.Module) -> int:
    """How many ranks a module is for."""
    return _grids(module).get(RANKS, [1])[0]


def shape_of_grid(op: ir.Operation) -> list[int]:
    """The shape of the grid that a collective names."""
    current = op
    while current.parent is not None:
        current = current.parent.operation
    name = op.attributes["grid"].value
    return next(_shape(item) for item in current.regions[0].blocks[0].operations if _is_grid(item, name))


def is_average(op: ir.Operation) -> bool:
    """Whether an all_reduce averages; otherwise it sums."""
    return "reduction" in op.attributes and op.attributes["reduction"] == _average()


def _average() -> ir.Attribute:
    return ir.Attribute.parse("#shard<partial average>")


@dataclass(frozen=True)
class Peers:
    """The ranks along an axis of a grid, among which values go. Its methods build collectives."""

    grid: str
    axis: int

    @classmethod
    def all(cls) -> Peers:
        return cls(RANKS, 0)

    @classmethod
    def with_each_part(cls, module: ir.Module, parts: int) -> Peers:
        """One rank for each of `parts`."""
        return cls.all() if parts == ranks_of(module) else cls(_by_parts(module, parts), 0)

    @classmethod
    def with_same_part(cls, module: ir.Module, parts: int) -> Peers:
        """The neighbours that have the same of `parts`."""
        return cls.all() if parts == 1 else cls(_by_parts(module, parts), 1)

    def summed(self, value: ir.Value) -> ir.Value:
        return shard.all_reduce(value.type, self.grid, value, grid_axes=self._axes)

    def averaged(self, value: ir.Value) -> ir.Value:
        return shard.all_reduce(value.type, self.grid, value, grid_axes=self._axes, reduction=_average())

    def gathered(self, value: ir.Value, axis: int, count: int) -> ir.Value:
        """The values of all peers, of which there are `count`, one behind the other along `axis`."""
        shape = list(value.type.shape)
        shape[axis] *= count
        type_ = ir.RankedTensorType.get(shape, value.type.element_type)
        return shard.all_gather(type_, self.grid, value, axis, grid_axes=self._axes)

    @property
    def _axes(self) -> ir.Attribute:
        return ir.Attribute.parse(f"array<i16: {self.axis}>")


def _by_parts(module: ir.Module, parts: int) -> str:
    """The grid of two axes of so many parts; it is made where there is none yet."""
    shape = [parts, ranks_of(module) // parts]
    name = f"{RANKS}_{shape[0]}x{shape[1]}"
    if name not in _grids(module):
        _declare(module, name, shape)
    return name


def _declare(module: ir.Module, name: str, shape: list[int]) -> None:
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown(module.context):
        shard.GridOp(name, shape)


def _grids(module: ir.Module) -> dict[str, list[int]]:
    operations = [op for op in module.body.operations if op.operation.name == "shard.grid"]
    return {op.operation.attributes["sym_name"].value: _shape(op) for op in operations}


def _is_grid(op: Any, name: str) -> bool:
    return op.operation.name == "shard.grid" and op.operation.attributes["sym_name"].value == name


def _shape(grid: Any) -> list[int]:
    return list(grid.operation.attributes["shape"])
