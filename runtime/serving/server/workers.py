"""Threads for what would keep the event loop from other clients: large bodies, tokenising, large answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sscc.runtime.serving.server.freed_memory import give_back

T = TypeVar("T")

SMALL = 1 << 12
"""Work of so many units (bytes, tokens, entries) is not worth a thread: it takes less than some milliseconds."""

LARGE = 1 << 15
"""From so many units on, work waits in a lane of its own, so that it keeps no short work waiting."""

_SHORT_THREADS, _LONG_THREADS = 2, 1


class Workers:
    """A lane for short work and one for long work, each with few threads: what one client sends, however large, leaves
    a thread for the others, and never more than a few large texts are in work at once."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(_SHORT_THREADS, "sscc-server-short")
        self._long = ThreadPoolExecutor(_LONG_THREADS, "sscc-server-long")

    async def run(self, size: int, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """What `work` returns, done in a thread of the lane for this size.

        Who is cancelled meanwhile waits no longer: work that has not begun is never done, and what other work returns
        is given to `undo`.
        """
        future = self._short.submit(work) if size < LARGE else self._long.submit(_then_trim, work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None and not future.cancel():
                future.add_done_callback(partial(_undo, undo))
            raise


def _undo(undo: Callable[[T], object], future: Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        undo(future.result())


def _then_trim(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        give_back()
