"""Strided views, checked: of tensors in launches, of parameters and buffer slots in ports, of locals in bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import torch

from sscc.ir.schedule import ParamAccess, View

Refuse = Callable[[str], NoReturn]


def injective(pairs: Iterable[tuple[int, int]]) -> bool:
    """Whether no two points of (stride, size) axes meet. Interleaved axes, which no dense region has, are refused."""
    reach = 0
    for stride, size in sorted(pair for pair in pairs if pair[1] > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def span(shape: Iterable[int], strides: Iterable[int]) -> int:
    """The distance from the first to the last element of a view, in elements."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the bytes between first and last element of one meet those of the other."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    begins = [x.data_ptr() for x in (a, b)]
    ends = [x.data_ptr() + (span(x.shape, x.stride()) + 1) * x.itemsize for x in (a, b)]
    return begins[0] < ends[1] and begins[1] < ends[0]


class StridedView:
    """A `View` of a region of `elements` elements.

    Args:
        view: what to look at. Its terms are the caller's to add to its offset.
        elements: of the region.
        access: a view that is written may not show one element twice.
        refuse: raises InputError for a reason.
    """

    def __init__(self, view: View, elements: int, access: ParamAccess, refuse: Refuse) -> None:
        self._view = view
        self._elements = elements
        self._refuse_because = refuse
        if len(view.strides) != len(view.shape) or min((*view.strides, *view.shape, 0)) < 0:
            self._refuse(f"has shape {list(view.shape)} and strides {list(view.strides)}")
        if access != "read" and not injective(zip(view.strides, view.shape, strict=True)):
            self._refuse("writes one element more than once")
        self._span = span(view.shape, view.strides)
        if not view.terms:
            self.check(view.offset)

    def check(self, offset: int) -> None:
        """Raises InputError where the view, from `offset` on, leaves the region."""
        if offset < 0 or offset + self._span >= self._elements:
            self._refuse(f"reaches elements {offset} .. {offset + self._span} of {self._elements}")

    def at(self, region: torch.Tensor, offset: int) -> torch.Tensor:
        """The torch view from `offset` on, terms included. Raises InputError where it leaves the region."""
        self.check(offset)
        return region.as_strided(self._view.shape, self._view.strides, region.storage_offset() + offset)

    def _refuse(self, reason: str) -> NoReturn:
        self._refuse_because(f"view of {self._view.tensor!r} {reason}")
