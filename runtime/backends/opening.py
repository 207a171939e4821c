"""Opens the program and the weights of an artifact on a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sscc.runtime.backends.backend import Conditions
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
    """The backend called `name`, with an artifact's program and weights. Only what it needs is imported.

    Args:
        resolver: gives the weights instead of the artifact's own (`Artifact.weights`).
        threads, precision, checked: see `Conditions`.

    Raises:
        UsageError: there is no such backend, or it cannot do what is asked.
        InputError: the weights are missing or others than the program wants, or the program is malformed.
    """
    backend = artifact.backend(name)
    # Weights that are packed as the backend wants them are used where they lie.
    weights = artifact.weights(resolver, packed=artifact.packer == backend.name)
    return backend.open(weights, Conditions(artifact.schedule_digest, threads, precision, checked))
