"""What the C library keeps of memory that was freed, and how it is given back. Only glibc has these calls; elsewhere
nothing happens."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from tokenizers import Tokenizer

IDLE_SECONDS = 1.0
"""After this time without a request, memory is given back."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's malloc.h
_MMAP_BYTES = 1 << 18
_ARENAS = 2
_WORDS = 1024


def keep_little() -> None:
    """To be called before threads start: few arenas, and large blocks straight from the kernel and back to it.

    By default every thread gets an arena of its own, which keeps what its largest request took, and the size from which
    blocks go back at once grows with the blocks that were freed.
    """
    library = _library()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def give_back() -> None:
    """Returns freed memory to the kernel, without holding Python's lock."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def keep_few_words(tokenizer: Tokenizer) -> None:
    """Bounds what a tokenizer remembers of words that it has split: 10,000 by default, of kilobytes each where a client
    makes them up. Words that come often are remembered as before."""
    resize = getattr(tokenizer.model, "_resize_cache", None)  # BPE and Unigram have one
    if resize is not None:
        resize(_WORDS)


class IdleTrim:
    """Gives memory back once the server has been idle for a moment: `trim` runs in a thread of its own."""

    def __init__(self, trim: Callable[[], None] | None = None) -> None:
        self._trim_memory = trim or _collect_and_give_back
        self._busy = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a request is answered; within an event loop."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        self._timer = None
        if not self._busy:
            threading.Thread(target=self._trim_memory, daemon=True).start()


def _collect_and_give_back() -> None:
    gc.collect()  # what requests have left in cycles keeps whole blocks of Python's own allocator
    give_back()


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.malloc_trim, library.mallopt  # noqa: B018  (whether it has them)
    except (OSError, AttributeError):
        return None
    return library
