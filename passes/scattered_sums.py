"""Sums over ranks that are rounded immediately, computed as reduce-scatter and all-gather (used by the pass shard).

In an all-reduce each rank sends its parts and then its part of the sum, both in the dtype of accumulation. If the model
rounds the sum before any other use, a rank adds up its part of the sum (reduce-scatter), rounds it, and the rounded
parts are gathered (all-gather): for bf16 this takes three quarters of the bytes, and a rank rounds only a part. Results
are bitwise equal, because each number is added up and rounded as before.

Values that are gathered only to be added up, such as the outputs of shared and routed experts, are added up in parts
and gathered once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from sscc.ir.collectives import Peers, grid_axes
from sscc.ir.levels import get_target
from sscc.ir.rewriting import clone_with, producer, resized
from sscc.ir.target import Target
from sscc.ir.views import bytes_of
from sscc.passes.base import count
from sscc.passes.tiling import is_cast


@dataclass(frozen=True)
class ScatteredSums:
    """Cost model of scattered sums, on the machine of one rank. An additional exchange costs a message's latency."""

    machine: Target

    @classmethod
    def on(cls, module: ir.Module, ranks: int) -> ScatteredSums:
        return cls(get_target(module).of_rank(ranks))

    def rounding_of(self, value: ir.Value, peers: Peers) -> ir.Operation | None:
        """Return the rounding of a sum over `peers`, of which each peer has the partial sum `value`, if it is the only
        reader and exchanging rounded parts costs less; otherwise None."""
        users = [use.owner.operation for use in value.uses]
        if len(users) != 1 or not is_cast(users[0]) or axis_of(value, peers) is None:
            return None
        saved = (bytes_of(value) - bytes_of(users[0].results[0])) * (peers.count - 1) / peers.count
        return users[0] if saved / self.machine.link_bandwidth > self.machine.link_latency else None


def axis_of(value: ir.Value, peers: Peers) -> int | None:
    """Return the first axis that can be cut in one equal part per peer."""
    return next((axis for axis, size in enumerate(value.type.shape) if size % peers.count == 0), None)


def gather_sums_once(function: Any) -> None:
    """Combine gathered values piecewise if they are only used element by element together with values gathered in the
    same way; the result is gathered instead. An axis may be expanded by axes of size 1 between gathering and use."""
    for op in [op.operation for op in function.entry_block.operations]:
        if not _is_elementwise(op):
            continue
        gathered = [_Gathered.of(value) for value in list(op.operands)[:-1]]
        ways = {None if one is None else (one.axis, one.peers) for one in gathered}
        if len(gathered) > 1 and len(ways) == 1 and None not in ways:
            _meet_in_pieces(op, [one for one in gathered if one is not None])


@dataclass(frozen=True)
class _Gathered:
    """The result of `gather`, possibly expanded with axes of size 1 (`expand`), which has one reader.

    Attributes:
        axis: axis of the value along which its pieces are concatenated.
    """

    gather: ir.Operation
    expand: ir.Operation | None
    axis: int

    @classmethod
    def of(cls, value: ir.Value) -> _Gathered | None:
        expand, source = None, producer(value)
        if source is not None and source.name == "tensor.expand_shape" and len(list(value.uses)) == 1:
            expand, value = source, source.operands[0]
            source = producer(value)
        if source is None or source.name != "shard.all_gather" or len(list(value.uses)) != 1:
            return None
        axis = source.attributes["gather_axis"].value
        if expand is not None:
            shape = expand.results[0].type.shape
            wide = [a.value for a in expand.attributes["reassociation"][axis] if shape[a.value] > 1]
            if len(wide) != 1:
                return None
            (axis,) = wide
        return cls(source, expand, axis)

    @property
    def peers(self) -> Peers:
        piece, whole = self.gather.operands[0].type.shape, self.gather.results[0].type.shape
        axis = self.gather.attributes["gather_axis"].value
        return Peers(grid_axes(self.gather), whole[axis] // piece[axis])

    def piece(self) -> ir.Value:
        """Return this rank's piece, with the value's axes, built at the insertion point."""
        if self.expand is None:
            return self.gather.operands[0]
        shape = _piece_of(self.expand.results[0], self.axis, self.peers)
        clone = clone_with(self.expand, {self.expand.operands[0]: self.gather.operands[0]})
        clone.attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape)
        clone.results[0].set_type(ir.RankedTensorType.get(shape, self.expand.results[0].type.element_type))
        return clone.results[0]

    def erase(self) -> None:
        if self.expand is not None:
            self.expand.erase()
        self.gather.erase()


def _meet_in_pieces(op: ir.Operation, gathered: list[_Gathered]) -> None:
    axis, peers, made_anew = gathered[0].axis, gathered[0].peers, producer(op.operands[len(gathered)])
    assert made_anew is not None
    shape = _piece_of(op.results[0], axis, peers)
    with ir.InsertionPoint(op), op.location:
        values = {value: one.piece() for value, one in zip(op.operands, gathered, strict=False)}
        values[op.operands[len(gathered)]] = resized(made_anew, shape)
        met = clone_with(op, values).results[0]
        met.set_type(ir.RankedTensorType.get(shape, met.type.element_type))
        whole = peers.gathered(met, axis)
    op.results[0].replace_all_uses_with(whole)
    op.erase()
    for one in gathered:
        one.erase()
    count("sums in parts that are gathered once")


def _piece_of(value: ir.Value, axis: int, peers: Peers) -> list[int]:
    """Return the shape of a piece of a value along `axis`."""
    shape = list(value.type.shape)
    return [*shape[:axis], shape[axis] // peers.count, *shape[axis + 1 :]]


def _is_elementwise(op: ir.Operation) -> bool:
    """Return True if an operation computes each element of a new tensor from the elements at the same place in others.
    """
    if op.name != "linalg.generic" or len(op.results) != 1:
        return False
    identity = ir.AffineMap.get_identity(op.results[0].type.rank)
    made_anew = producer(op.operands[len(op.operands) - 1])
    maps = all(ir.AffineMapAttr(each).value == identity for each in op.attributes["indexing_maps"])
    inside = [inner.operation for inner in op.regions[0].blocks[0].operations]
    is_arithmetic = all(inner.name.startswith(("arith.", "math.")) for inner in inside[:-1])
    return maps and is_arithmetic and made_anew is not None and made_anew.name == "tensor.empty"
