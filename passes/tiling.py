"""Propagation of tiles from a result back through operations: the axis along which each value is cut, if any.

MLIR's `transform.structured.fuse`, which tiles an operation and fuses its producers into the loop, was tried instead of
the bodies that tile-stages clones. Of 45 tiled bodies (a tiny Llama, also with int4 weights, and GPT-2) it tiled 22, at
12 ms each including parsing the body's text, against 9 ms. In 19 bodies operations stayed outside the loop: behind
reshapes and concatenations, and sums that write at a constant index (norms). One body ends in a reshape, and three are
attention, for which a dialect declared from Python cannot define tiles. The choice of the axis, the loads and the
functions for tiles would still have been needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import linalg

from sscc.ir.collectives import COLLECTIVES
from sscc.ir.dialects import kv
from sscc.ir.levels import walk
from sscc.ir.rewriting import is_rematerialised, producer
from sscc.ir.views import is_view, permutation_of

WHOLE = -1


class NotTileable(Exception):
    """A tile of the result needs more than one tile of a value, but not all of it, or a value cannot be cut."""


@dataclass
class Tiling:
    """The cut axis of each value; `WHOLE` if every tile needs all of it."""

    axes: dict[ir.Value, int] = field(default_factory=dict)

    def require(self, value: ir.Value, axis: int) -> None:
        if not isinstance(value.type, ir.RankedTensorType):
            return
        if self.axes.setdefault(value, axis) != axis:
            raise NotTileable(f"{value} is needed along two axes")

    def lengths(self) -> list[int]:
        """The lengths of all cut axes."""
        return [value.type.shape[axis] for value, axis in self.axes.items() if axis != WHOLE]


def tile_back(ops: Sequence[ir.Operation], results: Iterable[tuple[ir.Value, int]], repeated: int = 0) -> Tiling:
    """Propagate the cut of `results` (value, axis) back through `ops`, which are in program order.

    Args:
        repeated: maximum number of elements of a value that may be recomputed for every tile.

    Raises:
        NotTileable: an operation mixes tiles, or would be repeated for every tile.
    """
    tiling = Tiling()
    for value, axis in results:
        tiling.require(value, axis)
    for op in reversed(ops):
        axes = {tiling.axes[result] for result in op.results if result in tiling.axes}
        if not axes or is_rematerialised(op):
            continue
        if axes == {WHOLE} and is_view(op):
            tiling.require(op.operands[0], WHOLE)
            continue
        if axes == {WHOLE} and op.name == "linalg.generic" and prod(op.results[0].type.shape) <= repeated:
            for operand in op.operands:
                tiling.require(operand, WHOLE)
            continue
        if axes == {WHOLE}:
            raise NotTileable(f"'{op.name}' would be repeated for every tile")
        _back(op, tiling)
    return tiling


def _back(op: ir.Operation, tiling: Tiling) -> None:
    if op.name in kv.DECODING:
        _back_through_attention(op, tiling)
        return
    if op.results[0] not in tiling.axes:
        raise NotTileable(f"'{op.name}' has tiles of its first result only")
    axis = tiling.axes[op.results[0]]
    permutation = permutation_of(op)
    if op.name in COLLECTIVES:
        _back_through_collective(op, axis, tiling)
    elif op.name == "kv.expert_product":
        _back_through_expert_product(op, axis, tiling)
    elif is_dequantization(op):
        _back_through_dequantization(op, axis, tiling)
    elif permutation is not None:
        tiling.require(op.operands[0], permutation[axis])
    elif op.name == "linalg.generic":
        _back_through_generic(op, axis, tiling)
    elif op.name == "tensor.expand_shape":
        tiling.require(op.operands[0], _collapsed_axis(op, op.results[0], axis))
    elif op.name == "tensor.collapse_shape":
        tiling.require(op.operands[0], _outermost(op, op.operands[0], axis))
    elif op.name == "tensor.extract_slice" and len(op.operands) == 1:
        tiling.require(op.operands[0], _sliced_axis(op, axis))
    elif op.name == "tensor.concat" and op.attributes["dim"].value != axis:
        for operand in op.operands:
            tiling.require(operand, axis)
    else:
        raise NotTileable(f"'{op.name}' has no tiles")


def _back_through_generic(op: ir.Operation, axis: int, tiling: Tiling) -> None:
    maps = [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]
    dim = _position(list(maps[-1].results)[axis])
    for inner in walk(op):
        if inner.name == "linalg.index" and inner.attributes["dim"].value == dim:
            raise NotTileable("the body reads the index along the cut axis")
    for operand, affine in zip(op.operands, maps, strict=True):
        source = producer(operand)
        if source is not None and is_rematerialised(source):
            continue  # created for the tile
        expressions = list(affine.results)
        if any(mentions(expression, dim) and not _is_dim(expression) for expression in expressions):
            raise NotTileable("the cut axis is read at an offset")
        cut = [index for index, expression in enumerate(expressions) if _is_dim(expression, dim)]
        if len(cut) > 1:
            raise NotTileable("the cut axis is read along a diagonal")
        tiling.require(operand, cut[0] if cut else WHOLE)


def mentions(expression: Any, dim: int) -> bool:
    """Return True if an index of an operand depends on a dimension."""
    if isinstance(expression, ir.AffineBinaryExpr):
        return mentions(expression.lhs, dim) or mentions(expression.rhs, dim)
    return _is_dim(expression, dim)


def _is_dim(expression: ir.AffineExpr, dim: int | None = None) -> bool:
    is_dim = isinstance(expression, ir.AffineDimExpr)
    return is_dim and (dim is None or ir.AffineDimExpr(expression).position == dim)


def _position(expression: Any) -> int:
    if not isinstance(expression, ir.AffineDimExpr):
        raise NotTileable("the result is written at an offset")
    return int(expression.position)


def axis_groups(op: ir.Operation) -> list[list[int]]:
    """Return, for each axis of a reshape's shorter shape, the axes of the longer one that it expands to."""
    return [[int(axis.value) for axis in group] for group in op.attributes["reassociation"]]


def _outermost(op: ir.Operation, longer: ir.Value, axis: int) -> int:
    """Return the axis of `longer` that is cut by a tile along `axis` of the shorter shape."""
    group = axis_groups(op)[axis]
    shape = longer.type.shape
    return next((a for a in group if shape[a] != 1), group[0])


def _collapsed_axis(op: ir.Operation, longer: ir.Value, axis: int) -> int:
    index = next(i for i, group in enumerate(axis_groups(op)) if axis in group)
    if _outermost(op, longer, index) != axis:
        raise NotTileable("the cut axis is an inner one of a collapsed axis")
    return index


def _sliced_axis(op: ir.Operation, axis: int) -> int:
    """Return the source axis of a slice axis that has all of its elements."""
    sizes, source = list(op.attributes["static_sizes"]), list(op.operands[0].type.shape)
    kept, result = [], list(op.results[0].type.shape)
    position = 0
    for index, size in enumerate(sizes):
        if position < len(result) and size == result[position]:
            kept.append(index)
            position += 1
    if position != len(result) or sizes[kept[axis]] != source[kept[axis]]:
        raise NotTileable("the cut axis is sliced")
    return kept[axis]


def _back_through_attention(op: ir.Operation, tiling: Tiling) -> None:
    """Cut attention along slots (axis 0) or KV heads (axis 1), which are independent of each other."""
    axes = {tiling.axes.get(result, WHOLE) for result in op.results}
    if axes not in ({0}, {1}):
        raise NotTileable("attention has tiles of slots or of KV heads")
    along_slots = axes.pop() == 0
    if along_slots and len({int(value.type.shape[0]) for value in op.results}) > 1:
        raise NotTileable("slots with several tokens are cut along KV heads alone")
    _require_along(op, ("B", "Q") if along_slots else ("H", "Hkv"), tiling)


def _require_along(op: ir.Operation, letters: Sequence[str], tiling: Tiling) -> None:
    """Cut the operands of a `kv` operation along the dimensions of these letters."""
    spec = kv.spec_of_op(op)
    for name, value in kv.operands_of(op).items():
        if name in spec.numbers:
            continue
        cut = [number for number, letter in enumerate(spec.operands[name].dims) if letter in letters]
        tiling.require(value, cut[0] if cut else WHOLE)


def _back_through_collective(op: ir.Operation, axis: int, tiling: Tiling) -> None:
    """Cut a collective along an axis other than that of its parts: the collective works on each slice independently."""
    if axis in [op.attributes[name].value for name in _EXCHANGED_AXES if name in op.attributes]:
        raise NotTileable("the cut axis is the one along which ranks have parts")
    tiling.require(op.operands[0], axis)


_EXCHANGED_AXES = ("scatter_dim", "gather_axis", "slice_axis", "split_axis", "concat_axis")


def _back_through_expert_product(op: ir.Operation, axis: int, tiling: Tiling) -> None:
    """Cut the rows of all experts' matrices."""
    if axis != op.results[0].type.rank - 1:
        raise NotTileable("products with experts have tiles of their matrices' rows")
    _require_along(op, ("O",), tiling)


def _back_through_dequantization(op: ir.Operation, axis: int, tiling: Tiling) -> None:
    """Cut matrices or their rows, which are independent of each other."""
    if axis == op.results[0].type.rank - 1:
        raise NotTileable("the cut axis is the one along which weights share scales")
    _require_along(op, (("X", "O")[axis],), tiling)


def dims_of(attribute: ir.Attribute) -> list[int]:
    """Return the dimensions that an indexing map without expressions reads, in the order of the operand's axes."""
    return [ir.AffineDimExpr(e).position for e in ir.AffineMapAttr(attribute).value.results]


def is_contraction(op: ir.Operation) -> bool:
    """Return True if `op` is a sum of products of two tensors."""
    return op.name.startswith("linalg.") and op.name != "linalg.fill" and bool(linalg.isa_contraction_op(op))


def is_cast(op: ir.Operation) -> bool:
    """Return True if `op` only changes the element type of one tensor."""
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    body = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    return body in (["arith.extf", "linalg.yield"], ["arith.truncf", "linalg.yield"])


def is_dequantization(op: ir.Operation) -> bool:
    """Return True if `op` computes the numbers of a quantized weight."""
    return bool(op.name == "kv.dequantize")


def is_reduction(op: ir.Operation) -> bool:
    """Return True if `op` is a linalg.generic that combines values along an axis."""
    return op.name == "linalg.generic" and any("reduction" in str(kind) for kind in op.attributes["iterator_types"])
