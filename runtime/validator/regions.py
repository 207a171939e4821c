"""Sets of elements as strided regions, and exact tests on them: disjoint, covered, written once.

A region is ``offset + sum(k_d * stride_d)`` for all ``0 <= k_d < size_d``. Every loop that moves a view adds a
dimension, so that "all tiles of all iterations" is one region.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

Dims = tuple[tuple[int, int], ...]
FAR = 1 << 40
"""Number of iterations that stands for an unbounded range."""
_POINTS = 65_536  # maximum number of elements to list if no formula applies


@dataclass(frozen=True)
class Region:
    """A strided region, never empty. Dimensions are (stride > 0, size > 1) in ascending order of stride, with adjacent
    dimensions merged."""

    offset: int
    dims: Dims

    @classmethod
    def of(cls, offset: int, pairs: Sequence[tuple[int, int]]) -> Region:
        """Return a region from (stride, size) pairs of any sign and order; a stride of 0 or a size of 1 adds nothing.
        """
        offset += sum(min(stride, 0) * (size - 1) for stride, size in pairs)
        ordered = sorted((abs(stride), size) for stride, size in pairs if size > 1 and stride)
        merged: list[tuple[int, int]] = []
        for stride, size in ordered:
            if merged and stride == merged[-1][0] * merged[-1][1]:
                merged[-1] = (merged[-1][0], merged[-1][1] * size)
            else:
                merged.append((stride, size))
        return cls(offset, tuple(merged))

    @property
    def span(self) -> int:
        return sum(stride * (size - 1) for stride, size in self.dims)

    @property
    def points(self) -> int:
        return prod(size for _, size in self.dims)

    def fills(self, total: int) -> bool:
        """Return True if the region is exactly ``0 .. total - 1``, each element once.

        Its (stride, size) pairs form an interval without repetition only if they are the digits of a mixed radix.
        """
        return self.offset == 0 and (self.dims == ((1, total),) if total > 1 else not self.dims)


def injective(pairs: Sequence[tuple[int, int]]) -> bool:
    """Return True if different indices reach different elements; sizes of 1 do not count. False if it cannot be
    determined."""
    pairs = sorted((abs(stride), size) for stride, size in pairs if size > 1)
    reach = 0
    for stride, size in pairs:
        if stride <= reach:
            return _listed_injective(pairs)
        reach += stride * (size - 1)
    return True


def _listed_injective(pairs: Sequence[tuple[int, int]]) -> bool:
    count = prod(size for _, size in pairs)
    if count > _POINTS or any(stride == 0 for stride, _ in pairs):
        return False
    return len(set(_elements(tuple(pairs)))) == count


def _elements(dims: Dims) -> Iterator[int]:
    return map(sum, product(*(range(0, stride * size, stride) for stride, size in dims)))


def overlap(a: Dims, b: Dims, shift: int) -> bool | None:
    """Return True if region ``a`` at 0 and region ``b`` at `shift` have a common element; None if it cannot be
    determined."""
    reach_a, reach_b = (sum(stride * (size - 1) for stride, size in dims) for dims in (a, b))
    if shift > reach_a or shift + reach_b < 0:
        return False
    common = gcd(*(stride for stride, _ in (*a, *b)))
    if common == 0:
        return shift == 0
    if shift % common:
        return False
    a, b, shift = _divided(a, common), _divided(b, common), shift // common
    if all(stride == 1 for stride, _ in (*a, *b)):
        return True
    for cut in {stride for stride, _ in (*a, *b)} - {1}:
        verdict = _cut(a, b, shift, cut)
        if verdict is not None:
            return verdict
    return _listed(a, b, shift)


def _divided(dims: Dims, by: int) -> Dims:
    return tuple((stride // by, size) for stride, size in dims)


def _cut(a: Dims, b: Dims, shift: int, cut: int) -> bool | None:
    """Return `overlap` digit by digit: the part that moves by multiples of `cut`, and the part that stays below it, if
    neither carries."""
    high_a, low_a = _split(a, cut)
    high_b, low_b = _split(b, cut)
    if any(stride % cut for stride, _ in (*high_a, *high_b)):
        return None
    reach_a, reach_b = (sum(stride * (size - 1) for stride, size in dims) for dims in (low_a, low_b))
    forward, backward = shift % cut, -shift % cut
    if reach_a < cut and forward + reach_b < cut:
        low = forward
    elif backward + reach_a < cut and reach_b < cut:
        low = -backward
    else:
        return None
    lower = overlap(low_a, low_b, low)
    if lower is False:
        return False
    upper = overlap(_divided(high_a, cut), _divided(high_b, cut), (shift - low) // cut)
    return upper if lower or not upper else None


def _split(dims: Dims, cut: int) -> tuple[Dims, Dims]:
    return tuple(d for d in dims if d[0] >= cut), tuple(d for d in dims if d[0] < cut)


def _listed(a: Dims, b: Dims, shift: int) -> bool | None:
    if prod(size for _, size in a) > _POINTS or prod(size for _, size in b) > _POINTS:
        return None
    there = set(_elements(a))
    return any(element + shift in there for element in _elements(b))


def covered(written: Sequence[Region], target: Region, limit: int) -> bool | None:
    """Return True if every element of `target` is in one of `written`; None if determining it takes more than `limit`.
    """
    written = [region for region in written if region.offset >= 0]
    low, high = target.offset, target.offset + target.span
    if low < 0:
        return False
    if any(_holds(region, low, high) for region in written) or target in written:
        return True
    unit = _unit([*written, target])
    end = max(region.offset + region.span for region in (*written, target)) // unit + 1
    if end > limit or sum(_strokes(region, unit) for region in (*written, target)) > limit:
        return None if written else False
    canvas, target_bits = bytearray(end), bytearray(end)
    for region in written:
        _paint(canvas, region, unit)
    _paint(target_bits, target, unit)
    return int.from_bytes(target_bits, "little") & ~int.from_bytes(canvas, "little") == 0


def _holds(region: Region, low: int, high: int) -> bool:
    """Return True if a contiguous region of several elements contains ``low .. high``."""
    unbroken = len(region.dims) == 1 and region.dims[0][0] == 1
    return unbroken and region.offset <= low and high <= region.offset + region.span


def _unit(regions: Sequence[Region]) -> int:
    """Return the greatest length such that every region consists of aligned blocks of it."""
    unit = 0
    for region in regions:
        run = region.dims[0][1] if region.dims and region.dims[0][0] == 1 else 1
        strides = (stride for stride, _ in region.dims if stride > 1)
        unit = gcd(unit, region.offset, run, *strides)
    return unit


def _blocks(region: Region, unit: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the region in blocks of `unit` elements: its first block, and one dimension or more, the longest one last.
    """
    dims = [(1, size // unit) if stride == 1 else (stride // unit, size) for stride, size in region.dims]
    return region.offset // unit, sorted(dims or [(unit, 1)], key=lambda d: d[1])


def _strokes(region: Region, unit: int) -> int:
    return prod(size for _, size in _blocks(region, unit)[1][:-1])


def _paint(canvas: bytearray, region: Region, unit: int) -> None:
    first, (*dims, (stride, size)) = _blocks(region, unit)
    stroke = b"\x01" * size
    for begin in _elements(tuple(dims)):
        canvas[first + begin : first + begin + stride * (size - 1) + 1 : stride] = stroke
