"""Sums over ranks that are rounded at once, each rank's part of them on that rank (of the pass shard).

Of a sum that goes to all ranks, each sends its parts and then the parts of the sum that it has added up, both in the
dtype that sums are accumulated in. Where the model rounds the sum before anything else, a rank adds up its part
(reduce-scatter), rounds it, and the rounded parts are put together (all-gather): of bf16 three quarters of the bytes,
and a part of the rounding. Numbers are the same bits, as each is added up and rounded as before.

Values that are put together only to be added up, as what shared and chosen experts give, are added up in parts, too,
and put together once.
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
    """Which sums it pays for, on a machine: what a rank runs on. An exchange more costs a message's latency."""

    machine: Target

    @classmethod
    def on(cls, module: ir.Module, ranks: int) -> ScatteredSums:
        return cls(get_target(module).of_rank(ranks))

    def rounding_of(self, value: ir.Value, peers: Peers) -> ir.Operation | None:
        """What rounds a sum over `peers` of which each has the part `value`, where that is all that reads it, and where
        exchanging the rounded parts costs less; else None."""
        users = [use.owner.operation for use in value.uses]
        if len(users) != 1 or not is_cast(users[0]) or axis_of(value, peers) is None:
            return None
        saved = (bytes_of(value) - bytes_of(users[0].results[0])) * (peers.count - 1) / peers.count
        return users[0] if saved / self.machine.link_bandwidth > self.machine.link_latency else None


def axis_of(value: ir.Value, peers: Peers) -> int | None:
    """The first axis that has a part of equal size for each peer."""
    return next((axis for axis, size in enumerate(value.type.shape) if size % peers.count == 0), None)


def gather_sums_once(function: Any) -> None:
    """What is put together of pieces and then only meets, element by element, what is put together alike, meets it in
    pieces, and what comes of it is put together. Between the two an axis may be expanded by axes of size 1."""
    for op in [op.operation for op in function.entry_block.operations]:
        if not _is_elementwise(op):
            continue
        gathered = [_Gathered.of(value) for value in list(op.operands)[:-1]]
        ways = {None if one is None else (one.axis, one.peers) for one in gathered}
        if len(gathered) > 1 and len(ways) == 1 and None not in ways:
            _meet_in_pieces(op, [one for one in gathered if one is not None])


@dataclass(frozen=True)
class _Gathered:
    """A value that is `gather`'s, or that with axes of size 1 more (`expand`), and that has one reader.

    Attributes:
        axis: the axis of the value along which its pieces lie.
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
        """This rank's piece, in the axes that the value has. Built at the insertion point."""
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
    count("sums in parts that are put together once")


def _piece_of(value: ir.Value, axis: int, peers: Peers) -> list[int]:
    """The shape of a piece of a value along `axis`."""
    shape = list(value.type.shape)
    return [*shape[:axis], shape[axis] // peers.count, *shape[axis + 1 :]]


def _is_elementwise(op: ir.Operation) -> bool:
    """Whether an operation makes each element of its result, in a tensor made anew, of those at its place in others."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return False
    identity = ir.AffineMap.get_identity(op.results[0].type.rank)
    made_anew = producer(op.operands[len(op.operands) - 1])
    maps = all(ir.AffineMapAttr(each).value == identity for each in op.attributes["indexing_maps"])
    inside = [inner.operation for inner in op.regions[0].blocks[0].operations]
    alone = all(inner.name.startswith(("arith.", "math.")) for inner in inside[:-1])
    return maps and alone and made_anew is not None and made_anew.name == "tensor.empty"
