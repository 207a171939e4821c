"""Protocol of devices that execute programs, for sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sscc.ir.sizes import format_bytes

if TYPE_CHECKING:  # numpy is slow to import, and the command line needs only names
    import numpy as np

    from sscc.ir.layer_state.protocol import DeviceTensor
    from sscc.ir.schedule import Program
    from sscc.runtime.artifact.tensor_files import Array
    from sscc.runtime.backends.stage_trace import StageTrace
    from sscc.runtime.support._native import Team


@dataclass(frozen=True)
class MemoryUse:
    """Memory of an interpreter in bytes.

    Attributes:
        weights: weights and constants. If they are mapped from a file, only touched pages are resident.
        states: state between calls: caches, and the data of a prefill in progress.
        working: all other memory: inputs, outputs, temporaries, buffers, scratch of threads.
    """

    weights: int
    states: int
    working: int

    @classmethod
    def of_tensors(cls, program: Program) -> MemoryUse:
        """Return the sizes of a program's tensors, without on-chip buffers."""
        roles = Counter[str]()
        for tensor in program.tensors:
            roles[tensor.role] += tensor.nbytes
        return cls(roles["weight"] + roles["constant"], roles["state"], program.arena_bytes - roles["state"])

    def in_words(self) -> str:
        parts = {"weights": self.weights, "states": self.states, "working memory": self.working}
        return ", ".join(f"{format_bytes(nbytes)} of {what}" for what, nbytes in parts.items())


StageName = tuple[str, str, str]
"""Names of a kernel, a pipeline in it, and a stage of the pipeline."""


@dataclass(frozen=True)
class StageRun:
    """All firings of a stage in one iteration.

    Attributes:
        name: name of the stage.
        launch: number of the kernel's launch in this call of an entry, from 0.
        loops: indices of the loops around the stage, outermost first: those of the kernel, and that of the pipeline if
            it iterates and the stage fires in every iteration.
        buffers: copies of the data that the stage has written to buffers in this iteration: a slot of a buffer, or
            [slots, ..] if it has filled several.
    """

    name: StageName
    launch: int
    loops: tuple[int, ...]
    buffers: Mapping[str, Array]


Watcher = Callable[[StageRun], object]


@dataclass(frozen=True, eq=False)
class HostTensor:
    """A `DeviceTensor` in this process's own memory.

    Args:
        array: view of the memory.
    """

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """See `DeviceTensor`."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `DeviceTensor`."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """See `DeviceTensor`."""
        return self.array.nbytes

    def __getitem__(self, index: Any) -> HostTensor:
        return HostTensor(self.array[index])

    def read(self, out: Array | None = None) -> Array:
        """See `DeviceTensor`."""
        if out is None:
            return self.array.copy()
        out[...] = self.array
        return out

    def write(self, values: Array) -> None:
        """See `DeviceTensor`."""
        self.array[...] = values


class Interpreter(Protocol):
    """A device with a program and its weights. It may be in another process, or on another machine.

    Tensors are numpy arrays; those of bf16 have the dtype `ml_dtypes.bfloat16`. Every access to the device's memory is
    a call: `run` with inputs and outputs, `device_tensor` for states.

    Attributes:
        program: schedule that it executes; None if it executes something else, or only a part of a program.
        ranks: number of ranks that execute the program together.
        failure: the reason why no call can succeed any more; None while calls can.
        host_threads: threads of this process that are idle between two calls, for other work on the host; None if it
            has none to lend.
        stages: names of the stages that can be watched. Stages that only prefetch need not be among them.
    """

    @property
    def program(self) -> Program | None: ...

    @property
    def ranks(self) -> int: ...

    @property
    def failure(self) -> BaseException | None: ...

    @property
    def host_threads(self) -> Team | None: ...

    @property
    def stages(self) -> frozenset[StageName]: ...

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Call an entry with its inputs and scalar inputs by name.

        Returns:
            Its outputs by name, and its scalar outputs. Without `copy` outputs may be views that the next call
            overwrites and that must not be written.
        """

    def device_tensor(self, name: str) -> DeviceTensor:
        """Return a tensor of the program by its name. Raises UsageError if there is none."""

    def reset(self) -> None:
        """Set every state to zeros."""

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """Call `watcher` each time one of these stages has fired in an iteration, before its results are overwritten.

        None ends it. The watcher must not call the interpreter; an exception that it raises ends the call of the entry.

        Raises:
            UsageError: a stage cannot be watched.
        """

    def start_trace(self, capacity: int) -> None:
        """Record the activity of every thread of the device, the latest `capacity` events of each, until `end_trace`.
        Devices that cannot trace record nothing."""

    def end_trace(self) -> StageTrace | None:
        """Return the recording since `start_trace`, and end it. None if the device cannot trace."""

    def memory(self) -> MemoryUse | None:
        """Return the size of its memory; None if it is not known."""

    def close(self) -> None:
        """Release the device. No call is allowed afterwards."""


class InProcess:
    """Base of interpreters that run in this process only, with their common members of `Interpreter`."""

    ranks = 1
    failure: BaseException | None = None

    @property
    def host_threads(self) -> Team | None:
        """See `Interpreter`."""
        return None

    def start_trace(self, capacity: int) -> None:
        """See `Interpreter`."""

    def end_trace(self) -> StageTrace | None:
        """See `Interpreter`."""
        return None

    def close(self) -> None:
        """See `Interpreter`."""
