"""Affine maps of linalg operations as the schedule's access maps."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from sscc.ir.errors import UnsupportedError


def access_map(affine: ir.AffineMap, dims: int) -> tuple[tuple[int, ...], ...]:
    """One row per result of `affine`: a coefficient per iteration dimension, then the constant.

    Raises:
        UnsupportedError: for a map with divisions or symbols.
    """
    return tuple(tuple(_coefficients(expression, dims)) for expression in affine.results)


def identity_map(rank: int) -> tuple[tuple[int, ...], ...]:
    """The access map of a parameter that is touched at the point itself."""
    return tuple(tuple(int(row == column) for column in range(rank)) + (0,) for row in range(rank))


def _coefficients(expression: ir.AffineExpr, dims: int) -> list[int]:
    row = [0] * (dims + 1)
    if isinstance(expression, ir.AffineConstantExpr):
        row[-1] = expression.value
        return row
    if isinstance(expression, ir.AffineDimExpr):
        row[expression.position] = 1
        return row
    if isinstance(expression, ir.AffineAddExpr):
        left, right = (_coefficients(side, dims) for side in (expression.lhs, expression.rhs))
        return [a + b for a, b in zip(left, right, strict=True)]
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        return [expression.rhs.value * value for value in _coefficients(expression.lhs, dims)]
    raise UnsupportedError(f"the access {expression} is not affine in the loop indices")


def loop_sizes(maps: Sequence[ir.AffineMap], types: Sequence[ir.Type]) -> tuple[int, ...]:
    """The iteration space of a linalg operation, from its operands' shapes."""
    sizes: dict[int, int] = {}
    for affine, type_ in zip(maps, types, strict=True):
        if not isinstance(type_, ir.RankedTensorType):
            continue
        for expression, size in zip(affine.results, type_.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    count = maps[0].n_dims
    if len(sizes) != count:
        raise UnsupportedError(f"the loop bounds of {maps[0]} cannot be read off its operands")
    return tuple(sizes[dim] for dim in range(count))
