"""Memory that this process may use."""

from __future__ import annotations

from sscc.runtime.support import _native


def usable_memory() -> int:
    """Return the memory in bytes: the limit of the process's cgroups, or the physical memory if they set no lower
    limit."""
    return _native.memory_limit() or _native.total_memory()
