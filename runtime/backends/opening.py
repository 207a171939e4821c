"""The one place that makes an interpreter by its name, for the program and the weights of an artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sscc.ir.errors import UsageError
from sscc.runtime.backends.interpreter import Interpreter

if TYPE_CHECKING:
    from sscc.runtime.artifact.reading import Artifact, Resolver


def open_interpreter(
    name: str,
    artifact: Artifact,
    resolver: Resolver | None = None,
    *,
    threads: int | None = None,
    precision: str = "f32",
    checked: bool = False,
) -> Interpreter:
    """The interpreter called `name`, with an artifact's program and weights. Only what it needs is imported.

    Args:
        resolver: gives the weights instead of the artifact's own (`Artifact.weights`).
        threads: how many it may use; None leaves it to the interpreter.
        precision, checked: of the reference interpreter, see there.

    Raises:
        UsageError: there is no such interpreter.
        InputError: the weights are missing or others than the program wants, or the program is malformed.
    """
    if name not in _OPENERS:
        raise UsageError(f"there is no interpreter {name!r}, this version has {' and '.join(INTERPRETERS)}")
    return _OPENERS[name](artifact, resolver, threads, precision, checked)


def _reference(
    artifact: Artifact, resolver: Resolver | None, threads: int | None, precision: str, checked: bool
) -> Interpreter:
    from sscc.runtime.backends.reference.arrays import open_reference  # imports torch, which takes seconds

    weights = artifact.weights(resolver)
    return open_reference(artifact.program, weights, threads=threads, precision=precision, checked=checked)


def _native(
    artifact: Artifact, resolver: Resolver | None, threads: int | None, precision: str, checked: bool
) -> Interpreter:
    """The code is the user's own: made from the schedule, once, and kept in the user's cache."""
    from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
    from sscc.runtime.backends.cpu.library import cached_code

    if precision != "f32" or checked:
        raise UsageError("precision and checked are options of the reference interpreter")
    weights = artifact.weights(resolver, packed=True)
    code = cached_code(artifact.program, artifact.schedule_digest)
    return NativeInterpreter(artifact.program, weights, packed=artifact.packings, code=code, threads=threads)


_OPENERS: dict[str, Callable[[Artifact, Resolver | None, int | None, str, bool], Interpreter]] = {
    "native": _native,
    "reference": _reference,
}
INTERPRETERS = tuple(_OPENERS)
DEFAULT_INTERPRETER = "native"
