"""Affine maps of linalg operations as the schedule's access maps."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from sscc.ir.errors import ErrorKind, UnsupportedError


class LoopAccessErrors(ErrorKind):
    NOT_AFFINE = UnsupportedError, "{origin}the access {expression} is not affine in the loop indices"
    UNKNOWN_BOUNDS = UnsupportedError, "{origin}the loop bounds of {access} do not follow from the operands' shapes"


def access_map(affine: ir.AffineMap, dims: int, origin: str = "") -> tuple[tuple[int, ...], ...]:
    """Return one row per result of `affine`: a coefficient per iteration dimension, then the constant.

    Args:
        origin: source line with which an error's message begins (`origin_of`).

    Raises:
        UnsupportedError: the map has divisions or symbols.
    """
    return tuple(tuple(_coefficients(expression, dims, origin)) for expression in affine.results)


def identity_map(rank: int) -> tuple[tuple[int, ...], ...]:
    """Return the access map of a parameter that is accessed at the point itself."""
    return tuple(tuple(int(row == column) for column in range(rank)) + (0,) for row in range(rank))


def _coefficients(expression: ir.AffineExpr, dims: int, origin: str) -> list[int]:
    row = [0] * (dims + 1)
    if isinstance(expression, ir.AffineConstantExpr):
        row[-1] = expression.value
        return row
    if isinstance(expression, ir.AffineDimExpr):
        row[expression.position] = 1
        return row
    if isinstance(expression, ir.AffineAddExpr):
        left, right = (_coefficients(side, dims, origin) for side in (expression.lhs, expression.rhs))
        return [a + b for a, b in zip(left, right, strict=True)]
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        return [expression.rhs.value * value for value in _coefficients(expression.lhs, dims, origin)]
    raise LoopAccessErrors.NOT_AFFINE(origin=origin, expression=expression)


def loop_sizes(maps: Sequence[ir.AffineMap], types: Sequence[ir.Type], origin: str = "") -> tuple[int, ...]:
    """Return the iteration space of a linalg operation, from its operands' shapes.

    Args:
        origin: source line with which an error's message begins (`origin_of`).

    Raises:
        UnsupportedError: no operand's shape has one of the dimensions.
    """
    sizes: dict[int, int] = {}
    for affine, type_ in zip(maps, types, strict=True):
        if not isinstance(type_, ir.RankedTensorType):
            continue
        for expression, size in zip(affine.results, type_.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    count = maps[0].n_dims
    if len(sizes) != count:
        raise LoopAccessErrors.UNKNOWN_BOUNDS(origin=origin, access=maps[0])
    return tuple(sizes[dim] for dim in range(count))
