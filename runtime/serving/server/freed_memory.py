"""Return of freed memory to the operating system. The C library keeps freed memory by default; only glibc has the calls
that change this, and with another library the functions do nothing."""

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
"""Idle time in seconds after which memory is given back."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # from glibc's malloc.h
_MMAP_BYTES = 1 << 18
"""Blocks of at least this size are mapped one by one, and unmapped when they are freed."""
_ARENAS = 2
_WORDS = 1024
"""Words in a tokenizer's cache."""


def keep_little() -> None:
    """Limit the memory that glibc keeps: few arenas, and large blocks mapped directly. Must be called before threads
    start.

    By default every thread gets an arena of its own, which never shrinks below the size of its largest request, and the
    threshold for mapping blocks directly grows with the blocks that are freed.
    """
    library = _library()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def give_back() -> None:
    """Return freed memory to the kernel, without holding the GIL."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def keep_few_words(tokenizer: Tokenizer) -> None:
    """Limit a tokenizer's cache of split words. The default of 10,000 words allows kilobytes for each if a client makes
    the words up. Frequent words are still cached."""
    resize = getattr(tokenizer.model, "_resize_cache", None)  # BPE and Unigram have one
    if resize is not None:
        resize(_WORDS)


class IdleTrim:
    """Gives memory back after the server has been idle for `IDLE_SECONDS`. `trim` runs in a thread of its own."""

    def __init__(self, trim: Callable[[], None] | None = None) -> None:
        self._trim_memory = trim or _collect_and_give_back
        self._busy = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark the server as busy while a request is being answered. Must be used in an event loop."""
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
    gc.collect()  # cyclic garbage of requests keeps whole blocks of Python's allocator in use
    give_back()


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.malloc_trim, library.mallopt  # noqa: B018  (AttributeError without glibc)
    except (OSError, AttributeError):
        return None
    return library
