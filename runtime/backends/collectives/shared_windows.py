"""Memory through which the native interpreters of several ranks exchange data, and their meetings there."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sscc.ir.sizes import ALIGNMENT, align
from sscc.runtime.support import _native

Meet = Callable[[int, int], object]
"""A meeting as a function of bytes and turn, see `sscc.runtime.support._native.Core`."""


@dataclass(frozen=True)
class Windows:
    """The windows of all ranks as one rank sees them: for two turns, one after another, a window of every rank.

    Attributes:
        address: address of the first window.
        meeting: meeting of the ranks.
        owner: object that owns the memory; the windows are valid as long as it lives.
    """

    address: int
    meeting: _native.Meeting | Meet
    owner: object


class SharedWindows:
    """Windows in memory that all ranks see, preceded by the words for their meetings.

    Args:
        memory: `nbytes_of` bytes, initially zero.
        nbytes: size of a window.
        timeout: seconds for which a rank waits for another one.
        spin_us: microseconds for which a rank spins before it sleeps.
    """

    def __init__(self, memory: mmap.mmap | bytearray, ranks: int, nbytes: int, timeout: float, spin_us: float) -> None:
        array = np.frombuffer(memory, np.uint8)
        start = -array.ctypes.data % ALIGNMENT
        self._memory = array
        self._words = array.ctypes.data + start
        self._windows = self._words + align(_native.Meeting.nbytes(ranks))
        self._ranks, self._timeout, self._spin_us = ranks, timeout, spin_us

    @staticmethod
    def nbytes_of(ranks: int, nbytes: int) -> int:
        """Return the bytes of memory for windows of `nbytes` bytes."""
        return align(_native.Meeting.nbytes(ranks)) + 2 * ranks * nbytes + ALIGNMENT

    def of(self, rank: int) -> tuple[Windows, _native.Meeting]:
        """Return the windows as one rank sees them, with its meeting, through which others can end it."""
        meeting = _native.Meeting(self._words, rank, self._ranks, timeout=self._timeout, spin_us=self._spin_us)
        return Windows(self._windows, meeting, self._memory), meeting
