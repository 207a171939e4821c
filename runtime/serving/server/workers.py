"""Thread pools for work that would block the event loop: parsing of large bodies, tokenization, large answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sscc.runtime.serving.server.freed_memory import give_back

T = TypeVar("T")

SMALL = 1 << 12
"""Work of up to this size (bytes, tokens, entries) runs in the event loop: it takes at most some milliseconds."""

LARGE = 1 << 15
"""Work from this size on runs in the long lane, so that short work does not wait for it."""

_SHORT_THREADS, _LONG_THREADS = 2, 1


class Workers:
    """Two pools with few threads each, one for short and one for long work. A client that sends large texts leaves the
    short lane to the others, and only a few large texts are in memory at once."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(_SHORT_THREADS, "sscc-server-short")
        self._long = ThreadPoolExecutor(_LONG_THREADS, "sscc-server-long")

    async def run(self, size: int, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Return the result of `work`, which runs in a thread of the lane for this size.

        If the caller is cancelled, it stops waiting: work that has not begun is dropped, and the result of other work
        is passed to `undo`.
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
