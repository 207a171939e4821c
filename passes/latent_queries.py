"""Queries in the space of latent rows: `absorb-latent` computes them for a step, and `thread-cache` for the last
queries of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from sscc.ir.builders import elementwise, extract_slice, tensor_type
from sscc.ir.rewriting import producer


def absorbed(query: ir.Value, up: ir.Value, first: int) -> ir.Value:
    """Return the queries [B, H, S, r + p] that score latent rows, from queries [B, H, S, D].

    Args:
        up: weights that compute columns first .. first + n - 1 of each head's key from a latent row, [H, n, r]. The
            other p columns of keys are those of the row behind the first r.
        first: first of these columns.
    """
    _, width, depth = up.type.shape
    last = first + width
    own = product(_columns(query, first, width), up, depth)
    others = ((0, first), (last, query.type.shape[3] - last))
    return joined([own, *(_columns(query, *part) for part in others if part[1])])


def _columns(value: ir.Value, first: int, width: int) -> ir.Value:
    """Return columns first .. first + width - 1 of a value [B, H, S, D]. If they are an operand of a concatenation,
    return that."""
    op = producer(value)
    if op is not None and op.name == "tensor.concat" and ir.IntegerAttr(op.attributes["dim"]).value == 3:
        start = 0
        for part in op.operands:
            if (start, part.type.shape[3]) == (first, width):
                return part
            start += part.type.shape[3]
    sizes = [*list(value.type.shape)[:3], width]
    return value if width == value.type.shape[3] else extract_slice(value, [0, 0, 0, first], sizes)


def joined(parts: Sequence[ir.Value]) -> ir.Value:
    """Return values of rank 4, concatenated along the last axis."""
    if len(parts) == 1:
        return parts[0]
    width = sum(part.type.shape[3] for part in parts)
    type_ = tensor_type([*list(parts[0].type.shape)[:3], width], parts[0].type.element_type)
    value: ir.Value = tensor.ConcatOp(type_, 3, list(parts)).result
    return value


def product(x: ir.Value, weight: ir.Value, width: int, *, transposed: bool = False) -> ir.Value:
    """Return x[b, h, s, :] times weight[h], [B, H, S, width]. `weight` is [H, k, width], or [H, width, k] if
    transposed. Sums are in f32, rounded once."""
    element, f32 = x.type.element_type, ir.F32Type.get()
    b, h, s, n, k = (ir.AffineDimExpr.get(dim) for dim in range(5))
    matrix = [h, n, k] if transposed else [h, k, n]
    maps = [ir.AffineMap.get(5, 0, dims) for dims in ([b, h, s, k], matrix, [b, h, s, n])]
    shape = [*list(x.type.shape)[:3], width]
    empty = tensor.EmptyOp(shape, f32).result
    zeros = linalg.fill(arith.ConstantOp(f32, 0.0).result, outs=[empty])
    attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(item) for item in maps])
    total: ir.Value = linalg.contract(x, weight, outs=(zeros,), indexing_maps=attributes)
    if element == f32:
        return total
    return elementwise([total], tensor_type(shape, element), lambda number: arith.TruncFOp(element, number).result)
