"""What executes a program, as a session sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # numpy is slow to import, and the command line asks for names alone
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
