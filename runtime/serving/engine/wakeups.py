"""Notification of the threads and asyncio tasks that wait for an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from threading import Condition, Lock


class Wakeups:
    """Two kinds of events. Progress: a request has new tokens, or a change; change: a request started to decode, or
    ended.

    All methods must be called with the lock held.
    """

    def __init__(self, lock: Lock) -> None:
        self._progress = Condition(lock)
        self._change = Condition(lock)
        self._tasks: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], bool]]] = {}

    def wait(self, *, change: bool, timeout: float | None = None) -> None:
        """Release the lock and wait for an event, for at most `timeout` seconds. Spurious returns are possible."""
        (self._change if change else self._progress).wait(timeout)

    def future(self, *, change: bool) -> asyncio.Future[None]:
        """Return a future of the running event loop that is resolved by the next event. Await it without the lock."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._tasks.setdefault(loop, []).append((future, change))
        return future

    def wake(self, *, change: bool) -> None:
        """Notify the waiters of an event: every thread, and every event loop by a single call."""
        self._progress.notify_all()
        if change:
            self._change.notify_all()
        for loop, waiting in list(self._tasks.items()):
            woken = [future for future, changes_only in waiting if change or not changes_only]
            # Waiters for a change may have been cancelled meanwhile; they are dropped so that the list cannot grow.
            left = [] if change else [pair for pair in waiting if pair[1] and not pair[0].done()]
            if left:
                self._tasks[loop] = left
            else:
                del self._tasks[loop]
            if not woken:
                continue
            try:
                loop.call_soon_threadsafe(_resolve, woken)
            except RuntimeError:  # the loop was closed, so that none of its tasks is waiting any more
                self._tasks.pop(loop, None)


def _resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
