"""Registry of the backends that can execute a program, by name. A backend is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import COMPILE, require
from sscc.runtime.backends.backend import Backend

if TYPE_CHECKING:  # the command line needs only names
    from sscc.ir.schedule import Program


class BackendErrors(ErrorKind):
    UNKNOWN = UsageError, "there is no interpreter {name!r}; there are {known}"


NATIVE, NATIVE_INT8, REFERENCE = "native", "native-int8", "reference"
DEFAULT_BACKEND = NATIVE
_CLASSES = {
    NATIVE: "sscc.runtime.backends.cpu.backend:Cpu",
    NATIVE_INT8: "sscc.runtime.backends.cpu.backend:Int8Cpu",
    REFERENCE: "sscc.runtime.backends.reference.backend:Reference",
}
"""Module and class of each backend. They are imported by name, because backends are in a higher layer, and
because torch, which the reference interpreter needs, takes seconds to import."""


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends."""
    return tuple(_CLASSES)


def register_backend(name: str, place: str) -> None:
    """Add a backend to those of this process.

    Args:
        name: name in `interpreter`, `pack_for` and manifests.
        place: "MODULE:CLASS" of a class with the members of `Backend`; it is called with a `Program`.
    """
    _CLASSES[name] = place


def backend_class(name: str) -> type[Backend]:
    """Return the class of the backend of that name. Raises UsageError if there is none."""
    if name not in _CLASSES:
        raise BackendErrors.UNKNOWN(name=name, known=backend_names())
    if name == REFERENCE:
        require(COMPILE, "the reference interpreter")
    module, _, cls = _CLASSES[name].partition(":")
    found: type[Backend] = getattr(importlib.import_module(module), cls)
    return found


def backend(name: str, program: Program) -> Backend:
    """Return the backend of that name for a program. Raises UsageError if there is none."""
    make: Callable[[Program], Backend] = backend_class(name)
    return make(program)
