"""What executes a program, as a session sees it, and the one place that makes it by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sscc.ir.errors import UsageError

if TYPE_CHECKING:
    from sscc.runtime.artifact.reading import Artifact, Resolver
    from sscc.runtime.artifact.tensor_files import Array


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that an interpreter works on.

    Attributes:
        weights: weights and constants. Where they are mapped from a file, only what was touched is resident.
        states: what is kept between calls: caches, and what prefill keeps of a prompt in progress.
        working: everything else: inputs, outputs, temporaries, buffers, scratch of threads.
    """

    weights: int
    states: int
    working: int


class Interpreter(Protocol):
    """Runs the entries of a program. Tensors are numpy arrays; those of bf16 have the dtype `ml_dtypes.bfloat16`."""

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Calls an entry with its inputs and scalar inputs by name.

        Returns its outputs by name and its scalar outputs. Later calls leave the outputs as they are; without `copy`
        they may be live views, good until the next call and not to be written.
        """

    def tensor(self, name: str) -> Array:
        """A live view of a tensor of the program: what is written into it, the program reads."""

    def reset(self) -> None:
        """Zeroes every state."""

    def memory(self) -> MemoryUse | None:
        """The memory that it works on; None where it does not know."""


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
    from sscc.runtime.backends.cpu.interpreter import open_native

    if precision != "f32" or checked:
        raise UsageError("precision and checked are options of the reference interpreter")
    return open_native(artifact, resolver, threads)


_OPENERS: dict[str, Callable[[Artifact, Resolver | None, int | None, str, bool], Interpreter]] = {
    "native": _native,
    "reference": _reference,
}
INTERPRETERS = tuple(_OPENERS)
DEFAULT_INTERPRETER = "native"
