"""The backends there are, by name. Only the one that is asked for is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import COMPILE, require
from sscc.runtime.backends.backend import Backend

if TYPE_CHECKING:  # the command line asks for names alone
    from sscc.ir.schedule import Program


class BackendErrors(ErrorKind):
    UNKNOWN = UsageError, "there is no interpreter {name!r}, it must be one of: {known}"

NATIVE, REFERENCE = BACKENDS = ("native", "reference")
DEFAULT_BACKEND = NATIVE


def backend(name: str, program: Program) -> Backend:
    """The backend of that name for a program. Raises UsageError where there is none of that name."""
    if name == NATIVE:
        from sscc.runtime.backends.cpu.backend import Cpu

        return Cpu(program)
    if name == REFERENCE:
        require(COMPILE, "the reference interpreter")
        from sscc.runtime.backends.reference.backend import Reference  # imports torch, which takes seconds

        return Reference(program)
    raise BackendErrors.UNKNOWN(name=name, known=BACKENDS)
