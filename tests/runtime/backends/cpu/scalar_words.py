"""The scalars that generated functions are called with, and the word before them in which they report indices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from sscc.runtime.backends.cpu.codegen.indices import REPORT_BYTES


class ScalarWords:
    """i64 scalars, as the core lays them out for a thread."""

    def __init__(self, values: Sequence[int] = ()) -> None:
        self._words = (ctypes.c_int64 * (1 + len(values)))(0, *values)

    @property
    def address(self) -> int:
        """The address of the first scalar."""
        return ctypes.addressof(self._words) + REPORT_BYTES

    @property
    def reported(self) -> bool:
        """Return True if a function has found an index out of range."""
        return self._words[0] != 0
