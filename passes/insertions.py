"""Insertions of the model (assignments to slices) as computations of new values.

After `lower-torch`, `tensor.insert_slice` is an update in place: of the threaded cache, or of a loop's accumulator. In
a model it is a value: the destination may be read afterwards, itself or through another view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from sscc.ir.builders import elementwise, index_constant
from sscc.ir.levels import walk
from sscc.ir.rewriting import producer


def compute_insertions(module: ir.Module) -> int:
    """Replace every insertion at constant offsets by an element-wise choice between the two tensors.

    Returns the number of insertions.
    """
    insertions = [op for op in walk(module) if op.name == "tensor.insert_slice" and len(op.operands) == 2]
    for op in insertions:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_choice(op))
        op.erase()
    return len(insertions)


def _choice(op: ir.Operation) -> ir.Value:
    """Return the tensor that `op` computes: an element of the source inside the box, of the destination elsewhere."""
    source, into = op.operands
    type_ = into.type

    def element(*before: ir.Value) -> ir.Value:
        axes = list(_axes(op))
        inside = _conjunction([condition for _, conditions, _ in axes for condition in conditions])
        inserted = tensor.ExtractOp(source, [index for index, _, kept in axes if kept]).result
        outside = before[0] if before else _zero(type_.element_type)
        return inserted if inside is None else arith.SelectOp(inside, inserted, outside).result

    return elementwise([] if _is_undefined(into) else [into], type_, element)


def _is_undefined(value: ir.Value) -> bool:
    source = producer(value)
    return source is not None and source.name == "tensor.empty"


def _axes(op: ir.Operation) -> Iterator[tuple[ir.Value, list[ir.Value], bool]]:
    """Return, for each axis of the destination, the index into the source, the conditions under which it is inside, and
    whether the source has this axis (unit axes may be omitted)."""
    sizes, kept = list(op.attributes["static_sizes"]), list(op.operands[0].type.shape)
    boxes = zip(op.attributes["static_offsets"], sizes, op.attributes["static_strides"], strict=True)
    for axis, (offset, size, step) in enumerate(boxes):
        has_axis = bool(kept) and kept[0] == size
        if has_axis:
            kept.pop(0)
        if size == op.results[0].type.shape[axis]:
            yield linalg.IndexOp(axis).result, [], has_axis
        else:
            yield (*_position(linalg.IndexOp(axis).result, offset, size, step), has_axis)


def _position(index: ir.Value, offset: int, size: int, step: int) -> tuple[ir.Value, list[ir.Value]]:
    """Return the position of `index` among `size` elements that are `step` apart from `offset` on, clamped to their
    range, and whether it is one of them."""
    past = arith.SubIOp(index, index_constant(offset)).result
    number = past if step == 1 else arith.FloorDivSIOp(past, index_constant(step)).result
    first, last = index_constant(0), index_constant(size - 1)
    conditions = [
        arith.CmpIOp(arith.CmpIPredicate.sge, number, first).result,
        arith.CmpIOp(arith.CmpIPredicate.sle, number, last).result,
    ]
    if step != 1:
        rest = arith.RemSIOp(past, index_constant(step)).result
        conditions.append(arith.CmpIOp(arith.CmpIPredicate.eq, rest, first).result)
    return arith.MinSIOp(arith.MaxSIOp(number, first).result, last).result, conditions


def _conjunction(conditions: list[ir.Value]) -> ir.Value | None:
    """Return the conjunction of `conditions`; None if there are none."""
    if not conditions:
        return None
    met, *others = conditions
    for other in others:
        met = arith.AndIOp(met, other).result
    return met


def _zero(element: Any) -> ir.Value:
    zero = ir.IntegerAttr.get(element, 0) if isinstance(element, ir.IntegerType) else ir.FloatAttr.get(element, 0.0)
    value: ir.Value = arith.ConstantOp(element, zero).result
    return value
