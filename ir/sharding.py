"""Tensors that are cut over ranks: which blocks of an axis a rank holds.

A `Cut` says it of one axis: the axis is a row of segments (one, or several where a model has joined matrices, such as
queries, keys and values in one), and each segment is cut in as many equal blocks as it has `parts`. With R ranks, rank r
holds block ``r * parts // R`` of every segment, one after another. A segment of one part is whole on every rank; one of
fewer parts than ranks is on R / parts ranks each, as KV heads are that are fewer than ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from sscc.ir.errors import InputError


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
    """How a tensor is cut over ranks.

    Attributes:
        axis: the axis that is cut.
        segments: what it is made of, in order.
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
        """Whether every rank holds everything."""
        return all(segment.parts == 1 for segment in self.segments)

    def spans(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """The spans [begin, end) of the axis that a rank holds, in order; neighbours are joined."""
        spans: list[tuple[int, int]] = []
        for segment, begin in zip(self.segments, starts(segment.size for segment in self.segments), strict=True):
            first = begin + segment.local * (rank * segment.parts // ranks)
            if spans and spans[-1][1] == first:
                spans[-1] = spans[-1][0], first + segment.local
            else:
                spans.append((first, first + segment.local))
        return spans

    def local_shape(self, shape: Sequence[int]) -> list[int]:
        """The shape that each rank holds of a tensor of `shape`."""
        return [*shape[: self.axis], self.local, *shape[self.axis + 1 :]]

    def __str__(self) -> str:
        return f"{self.axis}:" + ",".join(f"{segment.size}/{segment.parts}" for segment in self.segments)

    @classmethod
    def parse(cls, text: str) -> Cut:
        """Reads what ``__str__`` writes. Raises InputError for anything else."""
        axis, _, rest = text.partition(":")
        pairs = [word.split("/") for word in rest.split(",")]
        if axis.isdecimal() and all(len(pair) == 2 and all(map(str.isdecimal, pair)) for pair in pairs):
            cut = cls(int(axis), tuple(Segment(int(size), int(parts)) for size, parts in pairs))
            if str(cut) == text and all(s.size and s.parts and s.size % s.parts == 0 for s in cut.segments):
                return cut
        raise InputError(f"the cut {text!r} is not known")


def starts(sizes: Sequence[int] | object) -> list[int]:
    """Where each of several pieces begins that lie one after another."""
    return [0, *accumulate(sizes)][:-1]  # type: ignore[call-overload,no-any-return]


def boundaries(segments: Sequence[Segment]) -> list[int]:
    """Where segments begin and end."""
    return [0, *accumulate(segment.size for segment in segments)]


__all__ = ["Cut", "Segment", "boundaries", "pairwise", "starts"]
