"""Wakes whoever waits for an engine: threads, and tasks of asyncio's event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from threading import Condition, Lock


class Wakeups:
    """Two kinds of news: progress (tokens, or a change) and a change (a request began to decode, or ended).

    Everything here is called with the lock held.
    """

    def __init__(self, lock: Lock) -> None:
        self._progress = Condition(lock)
        self._change = Condition(lock)
        self._tasks: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], bool]]] = {}

    def wait(self, *, change: bool, timeout: float | None = None) -> None:
        """Gives up the lock until there is news, or for `timeout` seconds. It may return without either."""
        (self._change if change else self._progress).wait(timeout)

    def future(self, *, change: bool) -> asyncio.Future[None]:
        """A future of the running event loop, to be awaited without the lock, that ends when there is news."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._tasks.setdefault(loop, []).append((future, change))
        return future

    def wake(self, *, change: bool) -> None:
        """Tells news to those who wait for it: every thread, and every event loop by one call."""
        self._progress.notify_all()
        if change:
            self._change.notify_all()
        for loop, waiting in list(self._tasks.items()):
            woken = [future for future, changes_only in waiting if change or not changes_only]
            # Of those that wait for a change, some have given up.
            left = [] if change else [pair for pair in waiting if pair[1] and not pair[0].done()]
            if left:
                self._tasks[loop] = left
            else:
                del self._tasks[loop]
            if not woken:
                continue
            try:
                loop.call_soon_threadsafe(_resolve, woken)
            except RuntimeError:  # the loop was closed, and nobody waits in it any more
                self._tasks.pop(loop, None)


def _resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
