"""The memory that this process may use."""

from __future__ import annotations

from sscc.runtime.support import _native


def usable_memory() -> int:
    """Return bytes: the limit of the process's cgroups, or the physical memory where they set none below it."""
    return _native.memory_limit() or _native.total_memory()
