"""Where the time of a command goes: seconds by stage, which add up to all that passed.

A stage may hold others; their time is theirs alone. What no stage has is the rest. Whoever does the work names its
stages (`stage`) and need not know whether anybody records them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

REST = "the rest"


class Stages:
    """Seconds by stage, in the order in which they were first entered.

    Args:
        since: `time.perf_counter()` of when the work began.
        entered: told the name of the stage that goes on, whenever that changes.
    """

    def __init__(self, since: float | None = None, entered: Callable[[str], None] = lambda name: None) -> None:
        self._began = self._marked = time.perf_counter() if since is None else since
        self._entered = entered
        self._open = [REST]
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
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
        """Until now; the rest comes last. Their sum is the time that passed."""
        self._mark()
        rest = self._seconds.get(REST, 0.0)
        return {**{name: value for name, value in self._seconds.items() if name != REST}, REST: rest}

    def lines(self) -> list[str]:
        """A line per stage, and one for all of them."""
        seconds = self.seconds()
        named = [*seconds.items(), ("in all", self._marked - self._began)]
        return [f"{value:9.4f} s  {name}" for name, value in named]

    def _mark(self) -> None:
        now = time.perf_counter()
        name = self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._marked
        self._marked = now


_CURRENT: ContextVar[Stages | None] = ContextVar("stages", default=None)


@contextmanager
def recorded(stages: Stages) -> Iterator[Stages]:
    """Stages that are entered meanwhile are recorded in `stages`, unless somebody further out records them already, who
    is given instead."""
    current = _CURRENT.get()
    if current is not None:
        yield current
        return
    token = _CURRENT.set(stages)
    try:
        yield stages
    finally:
        _CURRENT.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """What is done meanwhile is the stage of that name, where anybody records stages."""
    current = _CURRENT.get()
    if current is None:
        yield
        return
    with current.stage(name):
        yield
