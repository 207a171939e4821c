"""Strided views, checked: of tensors in launches, of parameters and buffer slots in ports, of locals in bodies."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import ParamAccess, View


class MalformedKind(ErrorKind):
    """Base of the kinds of malformed places in a schedule."""

    def __init__(self, message: str) -> None:
        super().__init__(InputError, "the schedule is malformed: {where}: " + message)


class ReferenceViewErrors(MalformedKind):
    BAD_STRIDES = "the view of {tensor!r} has shape [{shape}] and strides [{strides}]; they must not be negative"
    WRITES_TWICE = "the view of {tensor!r} writes some element more than once"
    OUT_OF_BOUNDS = "the view of {tensor!r} reaches elements {first} .. {last}, but there are {elements}"


def injective(pairs: Iterable[tuple[int, int]]) -> bool:
    """Return True if any two points of (stride, size) axes have different addresses. Interleaved axes, which no dense
    region has, count as not injective."""
    reach = 0
    for stride, size in sorted(pair for pair in pairs if pair[1] > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def span(shape: Iterable[int], strides: Iterable[int]) -> int:
    """Return the distance from the first to the last element of a view, in elements."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if the bytes from the first to the last element of two views overlap."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    begins = [x.data_ptr() for x in (a, b)]
    ends = [x.data_ptr() + (span(x.shape, x.stride()) + 1) * x.itemsize for x in (a, b)]
    return begins[0] < ends[1] and begins[1] < ends[0]


class StridedView:
    """A `View` of a region of `elements` elements.

    Args:
        view: view to check. The caller adds its terms to its offset.
        elements: number of elements of the region.
        access: access to the view; a written view may not contain an element twice.
        where: location in the schedule, for messages.
    """

    def __init__(self, view: View, elements: int, access: ParamAccess, where: str) -> None:
        self._view = view
        self._elements = elements
        self._where = where
        if len(view.strides) != len(view.shape) or min((*view.strides, *view.shape, 0)) < 0:
            raise ReferenceViewErrors.BAD_STRIDES(
                where=where, tensor=view.tensor, shape=list(view.shape), strides=list(view.strides)
            )
        if access != "read" and not injective(zip(view.strides, view.shape, strict=True)):
            raise ReferenceViewErrors.WRITES_TWICE(where=where, tensor=view.tensor)
        self._span = span(view.shape, view.strides)
        if not view.terms:
            self.check(view.offset)

    def check(self, offset: int) -> None:
        """Raise InputError if the view leaves the region when it begins at `offset`."""
        if offset < 0 or offset + self._span >= self._elements:
            raise ReferenceViewErrors.OUT_OF_BOUNDS(
                where=self._where,
                tensor=self._view.tensor,
                first=offset,
                last=offset + self._span,
                elements=self._elements,
            )

    def at(self, region: torch.Tensor, offset: int) -> torch.Tensor:
        """Return the torch view that begins at `offset`, which includes terms. Raises InputError if it leaves the
        region."""
        self.check(offset)
        return region.as_strided(self._view.shape, self._view.strides, region.storage_offset() + offset)
