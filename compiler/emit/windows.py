"""Strided windows: reshapes, slices and transposes of a tensor as views, without moving a byte."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.schedule import ScalarOperand, View
from sscc.ir.sizes import dense_strides
from sscc.ir.views import reshaped_strides


def whole(tensor: str, shape: Sequence[int]) -> View:
    """Return the window that covers a tensor."""
    return View(tensor, tuple(shape), dense_strides(shape))


Offset = ScalarOperand | tuple[str, int]
"""A number, the name of a scalar, or the name of a scalar with the factor by which it is multiplied."""


def sliced(view: View, offsets: Sequence[Offset], sizes: Sequence[int], steps: Sequence[int]) -> View:
    """Return the box of `sizes` at `offsets` inside `view`."""
    offset, terms = view.offset, dict(view.terms)
    for where, stride in zip(offsets, view.strides, strict=True):
        if isinstance(where, int):
            offset += where * stride
        else:
            name, factor = (where, 1) if isinstance(where, str) else where
            terms[name] = terms.get(name, 0) + factor * stride
    strides = tuple(stride * step for stride, step in zip(view.strides, steps, strict=True))
    return View(view.tensor, tuple(sizes), strides, offset, tuple(sorted(terms.items())))


def is_whole(view: View, shape: Sequence[int]) -> bool:
    """Return True if `view` shows exactly a region of `shape`, dense and row-major."""
    return view == whole(view.tensor, shape)


def is_dense(view: View) -> bool:
    """Return True if `view` shows its elements row after row, whatever the strides of dimensions of one element."""
    pairs = zip(view.strides, dense_strides(view.shape), view.shape, strict=True)
    return all(stride == dense or size == 1 for stride, dense, size in pairs)


def dropped(view: View, shape: Sequence[int]) -> View:
    """Return `view` without the unit dimensions that `shape` lacks."""
    kept: list[int] = []
    axis = 0
    for size in shape:
        while view.shape[axis] != size:
            axis += 1
        kept.append(axis)
        axis += 1
    return _with_axes(view, kept)


def transposed(view: View, permutation: Sequence[int]) -> View:
    return _with_axes(view, permutation)


def _with_axes(view: View, axes: Sequence[int]) -> View:
    shape, strides = (tuple(values[axis] for axis in axes) for values in (view.shape, view.strides))
    return View(view.tensor, shape, strides, view.offset, view.terms)


def reshaped(view: View, shape: Sequence[int]) -> View | None:
    """Return the same elements in row-major order as `shape`; None if no strides can express it."""
    strides = reshaped_strides(view.shape, view.strides, shape)
    return None if strides is None else View(view.tensor, tuple(shape), strides, view.offset, view.terms)
