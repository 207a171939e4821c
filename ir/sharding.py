"""Sharding of tensors: the blocks of an axis that each rank holds.

A `Cut` describes it for one axis. The axis is a sequence of segments (one, or several if a model has joined matrices,
such as queries, keys and values in one), and each segment is cut in `parts` equal blocks. With R ranks, rank r holds
block ``r * parts // R`` of every segment, concatenated. A segment of one part is replicated on every rank; a segment
with fewer parts than ranks is on R / parts ranks each (KV heads, if they are fewer than ranks). While the sharding of
an axis is being determined, a segment whose sharding is unknown has `OPEN` parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from math import prod

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.sizes import dense_strides


class CutErrors(ErrorKind):
    """Invalid cuts of tensors over ranks."""

    UNKNOWN = InputError, "the cut {cut!r} is invalid"


OPEN = 0

MOST_RANKS = 1024
"""Maximum number of ranks of a program."""


@dataclass(frozen=True)
class Segment:
    """`size` elements of an axis in `parts` equal blocks."""

    size: int
    parts: int

    @property
    def local(self) -> int:
        """Elements of a block."""
        return self.size // self.parts


@dataclass(frozen=True)
class Cut:
    """Sharding of a tensor over ranks.

    Attributes:
        axis: the axis that is cut.
        segments: segments of the axis, in order.
    """

    axis: int
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Elements of the axis."""
        return sum(segment.size for segment in self.segments)

    @property
    def local(self) -> int:
        """Elements of the axis on each rank."""
        return sum(segment.local for segment in self.segments)

    @property
    def whole(self) -> bool:
        """True if every rank holds the whole axis."""
        return all(segment.parts == 1 for segment in self.segments)

    def spans(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """Return the spans [begin, end) of the axis that a rank holds, in order; adjacent spans are joined."""
        spans: list[tuple[int, int]] = []
        for segment, begin in zip(self.segments, boundaries(self.segments)[:-1], strict=True):
            first = begin + segment.local * (rank * segment.parts // ranks)
            if spans and spans[-1][1] == first:
                spans[-1] = spans[-1][0], first + segment.local
            else:
                spans.append((first, first + segment.local))
        return spans

    def local_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of a rank's part of a tensor of `shape`."""
        return [*shape[: self.axis], self.local, *shape[self.axis + 1 :]]

    def whole_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the whole tensor, if each rank holds a part of `shape`."""
        return [*shape[: self.axis], self.size, *shape[self.axis + 1 :]]

    def of_stack(self) -> Cut:
        """Return the cut of a stack of tensors that each have this cut."""
        return Cut(self.axis + 1, self.segments)

    def __str__(self) -> str:
        return f"{self.axis}:" + ",".join(f"{segment.size}/{segment.parts}" for segment in self.segments)

    @classmethod
    def parse(cls, text: str) -> Cut:
        """Return the cut that ``__str__`` wrote. Raises InputError for other text."""
        axis, _, rest = text.partition(":")
        pairs = [word.split("/") for word in rest.split(",")]
        if axis.isdecimal() and all(len(pair) == 2 and all(map(str.isdecimal, pair)) for pair in pairs):
            cut = cls(int(axis), tuple(Segment(int(size), int(parts)) for size, parts in pairs))
            if str(cut) == text and all(s.size and s.parts and s.size % s.parts == 0 for s in cut.segments):
                return cut
        raise CutErrors.UNKNOWN(cut=text)


def boundaries(segments: Iterable[Segment]) -> list[int]:
    """Return the first element of each segment, and the end of the last one."""
    return [0, *accumulate(segment.size for segment in segments)]


def merged(one: Sequence[Segment], other: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the combination of two cuts of one axis. Raises ValueError if they disagree."""
    segments = []
    for begin, end in pairwise(sorted({*boundaries(one), *boundaries(other)})):
        parts = {_parts_at(one, begin), _parts_at(other, begin)} - {OPEN}
        if len(parts) > 1:
            raise ValueError(f"elements {begin} to {end} in {' and in '.join(map(str, sorted(parts)))} parts")
        segments.append(Segment(end - begin, parts.pop() if parts else OPEN))
    return tuple(segments)


def _parts_at(segments: Sequence[Segment], position: int) -> int:
    return next(s.parts for s, end in zip(segments, boundaries(segments)[1:], strict=True) if position < end)


def placed(segments: Sequence[Segment], offset: int, size: int) -> list[Segment]:
    """Return the segments of an axis of `size` elements that has the given segments from `offset` on."""
    behind = size - offset - sum(segment.size for segment in segments)
    return [Segment(offset, OPEN)] * bool(offset) + [*segments] + [Segment(behind, OPEN)] * bool(behind)


def within(segments: Sequence[Segment], offset: int, size: int) -> list[Segment]:
    """Return the segments of a part of an axis."""
    spans = zip(segments, pairwise(boundaries(segments)), strict=True)
    parts = [(max(begin, offset), min(end, offset + size), segment.parts) for segment, (begin, end) in spans]
    return [Segment(end - begin, number) for begin, end, number in parts if begin < end]


def one_of_equal(segments: Sequence[Segment], number: int) -> tuple[Segment, ...] | None:
    """Return the segments of one of `number` equal runs of an axis; None if the runs are not equal."""
    edges = boundaries(segments)
    size = edges[-1] // number
    if any(size * run not in edges for run in range(number)):
        return None
    run: tuple[Segment, ...] = (Segment(size, OPEN),)
    try:
        for index in range(number):
            run = merged(run, within(segments, size * index, size))
    except ValueError:
        return None
    return run


def ranks_along(grid: Sequence[int], axes: Sequence[int]) -> int | None:
    """Return the number of ranks of a grid that differ only along `axes`; None if these are not ascending axes of the
    grid."""
    known = [axis for axis in range(len(grid)) if axis in axes]
    return prod(grid[axis] for axis in axes) if axes and list(axes) == known else None


def peers(grid: Sequence[int], axes: Sequence[int], rank: int) -> list[int]:
    """Return the ranks of a grid, in order, that differ from `rank` only in their coordinates along `axes`. Ranks are
    numbered in row-major order."""
    strides = dense_strides(grid)
    fixed = sum(rank // stride % size * stride
                for axis, (stride, size) in enumerate(zip(strides, grid, strict=True)) if axis not in axes)  # fmt: skip
    return [fixed + sum(place * strides[axis] for axis, place in zip(axes, places, strict=True))
            for places in product(*(range(grid[axis]) for axis in axes))]  # fmt: skip
