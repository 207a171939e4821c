"""Transpositions are moved behind element-wise operations, where they meet others and cancel out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from sscc.ir.builders import elementwise, extract_slice, tensor_type
from sscc.ir.rewriting import producer


def sink_transposes(function: Any) -> None:
    """Move the transpositions of a function behind slices, and behind element-wise operations whose tensors are all
    transposed in the same way; remove pairs that cancel out, and erase operations that are unused afterwards."""
    for op in [op.operation for op in function.entry_block.operations]:
        moved = None
        with ir.InsertionPoint(op), op.location:
            if op.name == "tensor.extract_slice":
                moved = _behind_slice(op)
            elif op.name == "linalg.generic":
                moved = _behind_elements(op)
            elif op.name == "linalg.transpose":
                moved = _cancelled(op)
        if moved is not None:
            op.results[0].replace_all_uses_with(moved)
    for op in reversed([op.operation for op in function.entry_block.operations]):
        unread = op.results and not any(True for result in op.results for _ in result.uses)
        if unread and op.name in ("linalg.transpose", "linalg.generic", "tensor.extract_slice", "tensor.empty"):
            op.erase()


def _source(value: ir.Value) -> tuple[ir.Value, list[int]] | None:
    """Return the value of which another one is a transposition, and its permutation."""
    op = producer(value)
    return None if op is None or op.name != "linalg.transpose" else (op.operands[0], list(op.attributes["permutation"]))


def transposed(value: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Return a value whose axis i is axis permutation[i] of another one."""
    shape = [value.type.shape[axis] for axis in permutation]
    empty = tensor.EmptyOp(shape, value.type.element_type).result
    moved: ir.Value = linalg.transpose(value, outs=[empty], permutation=list(permutation)).results[0]
    return moved


def _behind_slice(op: ir.Operation) -> ir.Value | None:
    found = _source(op.operands[0])
    names = ("static_offsets", "static_sizes", "static_strides")
    offsets, sizes, strides = (list(op.attributes[name]) for name in names)
    if found is None or len(op.operands) > 1 or set(strides) != {1} or list(op.results[0].type.shape) != sizes:
        return None
    source, permutation = found
    back = [permutation.index(axis) for axis in range(len(permutation))]
    part = extract_slice(source, [offsets[axis] for axis in back], [sizes[axis] for axis in back])
    return transposed(part, permutation)


def _behind_elements(op: ir.Operation) -> ir.Value | None:
    *inputs, _ = op.operands
    found = [_source(value) for value in inputs]
    maps = [ir.AffineMapAttr(attribute).value for attribute in linalg.get_indexing_maps(op)]
    rank = op.results[0].type.rank
    plain = all(each == ir.AffineMap.get_identity(rank) for each in maps) and len(op.results) == 1
    first = found[0] if found else None
    if first is None or not plain or any(each is None or each[1] != first[1] for each in found):
        return None
    block = op.regions[0].blocks[0]
    if any(inner.operation.name == "linalg.index" for inner in block.operations):
        return None
    sources = [each[0] for each in found if each is not None]
    type_ = tensor_type(sources[0].type.shape, op.results[0].type.element_type)

    def element(*numbers: ir.Value) -> ir.Value:
        values: dict[ir.Value, ir.Value] = dict(zip(block.arguments, numbers, strict=False))
        *body, last = [inner.operation for inner in block.operations]
        for inner in body:
            clone = inner.clone().operation
            for index, operand in enumerate(clone.operands):
                clone.operands[index] = values.get(operand, operand)
            values.update(zip(inner.results, clone.results, strict=True))
        return values.get(last.operands[0], last.operands[0])

    return transposed(elementwise(sources, type_, element), first[1])


def _cancelled(op: ir.Operation) -> ir.Value | None:
    found, permutation = _source(op.operands[0]), list(op.attributes["permutation"])
    if found is None or [found[1][axis] for axis in permutation] != list(range(len(permutation))):
        return None
    return found[0]
