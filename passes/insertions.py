"""Insertions that a model makes (an assignment to a slice) as computations of a new value.

After `lower-torch`, `tensor.insert_slice` is an update in place: the threaded cache, and what loops accumulate. A model
means a value by it: the tensor that is inserted into may be read afterwards, itself or through another view.
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
    """Replaces every insertion at constant offsets by an element-wise choice between the two tensors.

    Returns the number of insertions.
    """
    insertions = [op for op in walk(module) if op.name == "tensor.insert_slice" and len(op.operands) == 2]
    for op in insertions:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_choice(op))
        op.erase()
    return len(insertions)


def _choice(op: ir.Operation) -> ir.Value:
    """The tensor that `op` makes: an element of the source where the box has one, else of the destination."""
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
    """Per axis of the destination: the index into the source, the conditions under which it has one, and whether the
    source has this axis at all (unit axes may be left out)."""
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
    """Which of `size` elements, `step` apart from `offset` on, is at `index`: one that exists, and whether it is."""
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
    """Whether all of `conditions` hold; None where there are none."""
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
