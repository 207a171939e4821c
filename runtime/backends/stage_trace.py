"""Recorded activity of an interpreter's threads."""

from __future__ import annotations

from dataclasses import dataclass

BARRIER, MEETING = -1, -2
"""Labels of waits, numbered as in the core: for other threads, and for other ranks."""


@dataclass(frozen=True)
class StageTrace:
    """Recorded activity of an interpreter's threads.

    Attributes:
        labels: names of stages.
        threads: number of threads.
        events: (label, thread, start, end), in ns of `time.monotonic_ns`; a label is an index into `labels`, or one of
            `BARRIER` and `MEETING`.
        counts: number of all events per thread, including those that were not kept.
    """

    labels: list[str]
    threads: int
    events: list[tuple[int, int, int, int]]
    counts: list[int]
