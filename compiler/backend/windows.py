"""Strided windows: how reshapes, slices and transposes of a tensor are seen without moving a byte."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.runtime.schedule import Operand, View


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * shape[index + 1]
    return tuple(strides)


def whole(tensor: str, shape: Sequence[int]) -> View:
    """The window that covers a tensor."""
    return View(tensor, tuple(shape), strides_of(shape))


def sliced(view: View, offsets: Sequence[Operand], sizes: Sequence[int], steps: Sequence[int]) -> View:
    """The box of `sizes` at `offsets` inside `view`; offsets may be scalar names."""
    offset, terms = view.offset, dict(view.terms)
    for where, stride in zip(offsets, view.strides, strict=True):
        if isinstance(where, int):
            offset += where * stride
        else:
            terms[where] = terms.get(where, 0) + stride
    strides = tuple(stride * step for stride, step in zip(view.strides, steps, strict=True))
    return View(view.tensor, tuple(sizes), strides, offset, tuple(sorted(terms.items())))


def dropped(view: View, shape: Sequence[int]) -> View:
    """`view` without the unit dimensions that `shape` lacks."""
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
    """The same elements in row-major order as `shape`; None when no strides can say that (torch.Tensor.view)."""
    blocks = iter(_dense_blocks(view))
    strides: list[int] = []
    left, step = 1, 0
    for size in shape:
        if size != 1 and left == 1:
            left, step = next(blocks)
        if left % size:
            return None
        left //= size
        strides.append(step * left)
    return View(view.tensor, tuple(shape), tuple(_unit_strides(shape, strides)), view.offset, view.terms)


def _dense_blocks(view: View) -> list[tuple[int, int]]:
    """(elements, stride) of the longest runs of dimensions that one stride can walk in row-major order."""
    blocks: list[tuple[int, int]] = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    return blocks


def _unit_strides(shape: Sequence[int], strides: list[int]) -> list[int]:
    """Gives unit dimensions the stride they would have in a row-major tensor, for readability."""
    result = list(strides)
    for index in range(len(shape) - 1, -1, -1):
        if shape[index] == 1:
            after = index + 1
            result[index] = result[after] * shape[after] if after < len(shape) else 1
    return result
