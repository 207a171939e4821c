"""Times of a command's phases: seconds of each phase, which add up to the time that passed.

A phase may hold others. The time of an inner phase counts for that phase alone. Time outside any phase is reported as
`REST`. The code that does the work names its phases (`timed`) whether or not they are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

REST = "the rest"


class Stopwatch:
    """Seconds of each phase, in the order in which the phases were first entered.

    Args:
        since: value of `time.perf_counter()` when the work began; None for now.
        entered: called with the name of the current phase, whenever that changes.
    """

    def __init__(self, since: float | None = None, entered: Callable[[str], None] = lambda name: None) -> None:
        self._began = self._marked = time.perf_counter() if since is None else since
        self._entered = entered
        self._open = [REST]
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside of this context for the phase `name`."""
        self._mark()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        self._entered(name)
        try:
            yield
        finally:
            self._mark()
            self._open.pop()
            self._entered(self._open[-1])

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase until now, those of `REST` last. Their sum is the time that passed."""
        self._mark()
        rest = self._seconds.get(REST, 0.0)
        return {**{name: value for name, value in self._seconds.items() if name != REST}, REST: rest}

    def lines(self) -> list[str]:
        """Return a line for each phase, and one for the sum."""
        seconds = self.seconds()
        named = [*seconds.items(), ("in all", self._marked - self._began)]
        return [f"{value:9.4f} s  {name}" for name, value in named]

    def _mark(self) -> None:
        now = time.perf_counter()
        name = self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._marked
        self._marked = now


_CURRENT: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def recorded(stopwatch: Stopwatch) -> Iterator[Stopwatch]:
    """Record the phases that are entered inside of this context.

    Yields `stopwatch`, or the one of an outer context, which then records them instead.
    """
    current = _CURRENT.get()
    if current is not None:
        yield current
        return
    token = _CURRENT.set(stopwatch)
    try:
        yield stopwatch
    finally:
        _CURRENT.reset(token)


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Count the time inside of this context for `phase`, if a stopwatch records phases."""
    current = _CURRENT.get()
    if current is None:
        yield
        return
    with current.phase(phase):
        yield
