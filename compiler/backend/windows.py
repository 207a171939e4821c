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
    return View(
        view.tensor,
        tuple(view.shape[axis] for axis in kept),
        tuple(view.strides[axis] for axis in kept),
        view.offset,
        view.terms,
    )


def transposed(view: View, permutation: Sequence[int]) -> View:
    return View(
        view.tensor,
        tuple(view.shape[axis] for axis in permutation),
        tuple(view.strides[axis] for axis in permutation),
        view.offset,
        view.terms,
    )


def reshaped(view: View, shape: Sequence[int]) -> View | None:
    """The same elements in row-major order as `shape`; None when no strides can say that."""
    old = [(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size != 1]
    strides: list[int] = []
    position, left, step = 0, 1, 0
    for size in shape:
        if size == 1:
            strides.append(0)
            continue
        if left == 1:
            merged = _merge(old, position, shape_size=size)
            if merged is None:
                return None
            left, step, position = merged
        if left % size:
            return None
        left //= size
        strides.append(step * left)
    strides = _unit_strides(shape, strides)
    return View(view.tensor, tuple(shape), tuple(strides), view.offset, view.terms)


def _merge(old: list[tuple[int, int]], position: int, shape_size: int) -> tuple[int, int, int] | None:
    """Joins old dimensions from `position` on until they hold a multiple of `shape_size` elements."""
    if position >= len(old):
        return None
    total, step = old[position]
    position += 1
    while total % shape_size:
        if position >= len(old) or old[position - 1][1] != old[position][0] * old[position][1]:
            return None
        total, step = total * old[position][0], old[position][1]
        position += 1
    return total, step, position


def _unit_strides(shape: Sequence[int], strides: list[int]) -> list[int]:
    """Gives unit dimensions the stride they would have in a row-major tensor, for readability."""
    result = list(strides)
    for index in range(len(shape) - 1, -1, -1):
        if shape[index] == 1:
            after = index + 1
            result[index] = result[after] * shape[after] if after < len(shape) else 1
    return result
