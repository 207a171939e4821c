"""The backends there are, by name. Only the one that is asked for is imported."""

from __future__ import annotations

from sscc.ir.errors import UsageError
from sscc.runtime.backends.backend import Backend

NATIVE, REFERENCE = BACKENDS = ("native", "reference")
DEFAULT_BACKEND = NATIVE


def backend(name: str) -> Backend:
    """The backend of that name. Raises UsageError where there is none."""
    if name == NATIVE:
        from sscc.runtime.backends.cpu.backend import Cpu

        return Cpu()
    if name == REFERENCE:
        from sscc.runtime.backends.reference.backend import Reference  # imports torch, which takes seconds

        return Reference()
    raise UsageError(f"there is no interpreter {name!r}, this version has {' and '.join(BACKENDS)}")
