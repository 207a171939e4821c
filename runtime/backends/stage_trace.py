"""What threads of an interpreter have done, as its trace gives it."""

from __future__ import annotations

from dataclasses import dataclass

BARRIER, MEETING = -1, -2
"""Labels of waits, as the core numbers them: for the other threads, and for other ranks."""


@dataclass(frozen=True)
class StageTrace:
    """What the threads of an interpreter have done.

    Attributes:
        labels: names of stages.
        threads: how many.
        events: (label, thread, start, end), in ns of `time.monotonic_ns`; a label is an index into `labels`, or one of
            `BARRIER` and `MEETING`.
        counts: per thread, how many there were in all.
    """

    labels: list[str]
    threads: int
    events: list[tuple[int, int, int, int]]
    counts: list[int]
