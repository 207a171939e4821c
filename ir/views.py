"""Views: operations that move no data. Their readers read the underlying tensor with other strides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch_mlir import ir

from sscc.ir.rewriting import is_rematerialised, producer

RESHAPES = frozenset({"tensor.expand_shape", "tensor.collapse_shape"})
MOVED = "df.moved"
"""Attribute of a transposition whose result is a rearranged copy, not a view."""
SLICES = frozenset({"tensor.extract_slice", "tensor.insert_slice"})


def is_view(op: ir.Operation) -> bool:
    """Return True if `op` is a reshape, a slice, an insertion (a view of its destination), or a transposition."""
    name = op.name
    return name in RESHAPES or name in SLICES or permutation_of(op) is not None


def root_of(value: ir.Value) -> ir.Value:
    """Return the tensor of which `value` is a view."""
    source = producer(value)
    while source is not None and is_view(source) and source.name != "tensor.insert_slice":
        value = source.operands[0]
        source = producer(value)
    return value


def begins(value: ir.Value, rows: ir.Value) -> bool:
    """Return True if the rows of `value` are the first numbers of the rows of `rows`."""
    op = producer(value)
    if op is None or op.name != "tensor.extract_slice" or list(op.operands) != [rows]:
        return False
    offsets, sizes, strides = (list(op.attributes[f"static_{name}"]) for name in ("offsets", "sizes", "strides"))
    whole = list(rows.type.shape)
    same_shape = sizes[:-1] == whole[:-1] and list(value.type.shape) == sizes
    return same_shape and not any(offsets) and set(strides) == {1}


def computes(op: ir.Operation) -> bool:
    """Return True if `op` is work on tensors: not a view, not a constant, not an operation that gives a number (a table
    entry, a rank), and not part of another operation's body."""
    if is_view(op) or is_rematerialised(op) or not op.results or isinstance(op.results[0].type, ir.IndexType):
        return False
    inside = op.parent.operation.name in ("func.func", "scf.for", "scf.if")
    return inside and op.name.partition(".")[0] in ("linalg", "kv", "tensor", "shard")


def permutation_of(op: ir.Operation) -> list[int] | None:
    """Return the permutation p of a transposition (linalg.transpose, or its general form): result axis i is operand
    axis p[i].

    None for other operations, and for the transposition of a constant, which has no memory that a view could show.
    """
    name = op.name
    if name not in ("linalg.transpose", "linalg.generic") or len(op.operands) != 2 or MOVED in op.attributes:
        return None
    source = producer(op.operands[0])
    if source is not None and is_rematerialised(source):
        return None
    if name == "linalg.transpose":
        return list(op.attributes["permutation"])
    if len(op.results) != 1:
        return None
    block = op.regions[0].blocks[0]
    first: Any = block.operations[0].operation
    if first.name != "linalg.yield" or first.operands[0] != block.arguments[0]:
        return None
    if not isinstance(op.operands[0].type, ir.RankedTensorType):
        return None
    read, written = (ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"])
    axes = [ir.AffineDimExpr(e).position if isinstance(e, ir.AffineDimExpr) else -1 for e in read.results]
    rank = written.n_dims
    if written != ir.AffineMap.get_identity(rank) or sorted(axes) != list(range(rank)):
        return None
    return [axes.index(axis) for axis in range(rank)]


def bytes_of(value: ir.Value) -> int:
    """Return the bytes of a tensor; an i1 element takes one byte."""
    elements: int = prod(value.type.shape)
    return elements * max(1, int(getattr(value.type.element_type, "width", 64)) // 8)


def reshaped_strides(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides with which a tensor of `shape` and `strides` can be viewed as `new_shape` in the same
    row-major order; None if there are none, as in torch.Tensor.view."""
    blocks = iter(_dense_blocks(shape, strides))
    new_strides: list[int] = []
    left, step = 1, 0
    for size in new_shape:
        if size != 1 and left == 1:
            left, step = next(blocks)
        if left % size:
            return None
        left //= size
        new_strides.append(step * left)
    return _unit_strides(new_shape, new_strides)


def _dense_blocks(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (elements, stride) of the longest runs of dimensions that have a single stride in row-major order."""
    blocks: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    return blocks


def _unit_strides(shape: Sequence[int], strides: list[int]) -> tuple[int, ...]:
    """Give unit dimensions the stride that they have in a row-major tensor, for readability."""
    result = list(strides)
    for index in range(len(shape) - 1, -1, -1):
        if shape[index] == 1:
            after = index + 1
            result[index] = result[after] * shape[after] if after < len(shape) else 1
    return tuple(result)
