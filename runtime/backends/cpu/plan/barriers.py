"""Memory accesses since the last barrier, which decide whether another barrier is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

Span = tuple[str, int, int]
"""Name of a region, first byte, and end (exclusive)."""


@dataclass
class Pending:
    """Spans that have been read and written since the last barrier."""

    reads: set[Span] = field(default_factory=set)
    writes: set[Span] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.reads or self.writes)

    def conflicts(self, reads: set[Span], writes: set[Span]) -> bool:
        """Return True if these accesses may conflict with pending ones of another thread."""
        return _meet(reads, self.writes) or _meet(writes, self.writes) or _meet(writes, self.reads)

    def add(self, reads: set[Span], writes: set[Span]) -> None:
        self.reads |= reads
        self.writes |= writes

    def joined(self, other: Pending) -> Pending:
        """Return the union of the accesses with and without a branch, since either may have happened."""
        return Pending(self.reads | other.reads, self.writes | other.writes)


def _meet(a: set[Span], b: set[Span]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)
