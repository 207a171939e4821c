"""What executes a program, as a session sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sscc.ir.sizes import format_bytes

if TYPE_CHECKING:  # numpy is slow to import, and the command line asks for names alone
    from sscc.ir.schedule import Program
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

    @classmethod
    def of_tensors(cls, program: Program) -> MemoryUse:
        """What a program's tensors take, buffers on the chip aside."""
        roles = Counter[str]()
        for tensor in program.tensors:
            roles[tensor.role] += tensor.nbytes
        return cls(roles["weight"] + roles["constant"], roles["state"], program.arena_bytes - roles["state"])

    def in_words(self) -> str:
        parts = {"weights": self.weights, "states": self.states, "working memory": self.working}
        return ", ".join(f"{format_bytes(nbytes)} of {what}" for what, nbytes in parts.items())


StageName = tuple[str, str, str]
"""Of a kernel, a pipeline in it, and a stage in that."""


@dataclass(frozen=True)
class StageRun:
    """A stage that has fired all of its firings of one iteration.

    Attributes:
        name: of the stage.
        launch: which launch of its kernel in this call of an entry it is, from 0.
        loops: the indices of the loops around it, the outermost first: those of the kernel, and the pipeline's where
            it iterates and the stage fires in every iteration.
        buffers: copies of what the stage has written to buffers in this iteration: a buffer's slot, or [slots, ..]
            where it has filled several.
    """

    name: StageName
    launch: int
    loops: tuple[int, ...]
    buffers: Mapping[str, Array]


Watcher = Callable[[StageRun], object]


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

    @property
    def stages(self) -> frozenset[StageName]:
        """The stages that can be watched. What only brings memory nearer need not be among them."""

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """Has `watcher` called whenever one of these stages has fired in an iteration, before anything overwrites what
        it wrote; None takes it away. It must not call the interpreter, and what it raises ends the call of the entry.

        Raises UsageError for a stage that it cannot watch.
        """

    def memory(self) -> MemoryUse | None:
        """The memory that it works on; None where it does not know."""
