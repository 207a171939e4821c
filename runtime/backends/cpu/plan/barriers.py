"""What threads have read and written since the last barrier, and whether something now has to wait."""

from __future__ import annotations

from dataclasses import dataclass, field

Span = tuple[str, int, int]
"""The name of a region, the first byte, and the byte behind the last."""


@dataclass
class Pending:
    """What has been read and written since the last barrier."""

    reads: set[Span] = field(default_factory=set)
    writes: set[Span] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.reads or self.writes)

    def conflicts(self, reads: set[Span], writes: set[Span]) -> bool:
        """Whether these accesses could meet with one of another thread."""
        return _meet(reads, self.writes) or _meet(writes, self.writes) or _meet(writes, self.reads)

    def add(self, reads: set[Span], writes: set[Span]) -> None:
        self.reads |= reads
        self.writes |= writes

    def joined(self, other: Pending) -> Pending:
        """The accesses of a branch that was taken or not: this or the other, so both are taken into account."""
        return Pending(self.reads | other.reads, self.writes | other.writes)


def _meet(a: set[Span], b: set[Span]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)
