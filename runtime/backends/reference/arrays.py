"""The reference interpreter as sessions see it: torch inside, numpy outside, on the same memory."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
import torch

from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.schedule import Program
from sscc.runtime.artifact.tensor_files import BFLOAT16, Array
from sscc.runtime.backends.interpreter import HostTensor, InProcess, MemoryUse, StageName, Watcher


class TorchArrayErrors(ErrorKind):
    NO_STAGES = UsageError, "there are no stages to watch, because the interpreter runs IR and not a schedule"
    NO_NUMPY_DTYPE = InputError, "a tensor of {dtype} cannot be read as an array: {cause}"

TORCH_DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i8": torch.int8,
    "i1": torch.bool,
}
"""The torch dtype of each dtype of schedules."""


class TorchInterpreter(Protocol):
    """An interpreter whose inputs and outputs are torch tensors."""

    def run(
        self, entry: str, inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]: ...

    def tensor(self, name: str) -> torch.Tensor: ...

    def reset(self) -> None: ...

class ArrayInterpreter(InProcess):
    """An `Interpreter` of arrays on top of an interpreter of torch tensors, on the same memory.

    Args:
        program: the schedule that it runs, if there is one.
    """

    def __init__(self, interpreter: TorchInterpreter, program: Program | None = None) -> None:
        self._interpreter = interpreter
        self.program = program

    def __repr__(self) -> str:
        return f"ArrayInterpreter({self._interpreter!r})"

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Call an entry. The inner interpreters return new outputs at every call, so `copy` has no effect.

        Raises the errors of the inner interpreter.
        """
        outputs, results = self._interpreter.run(entry, to_tensors(inputs), scalars)
        return {name: to_array(tensor) for name, tensor in outputs.items()}, results

    def device_tensor(self, name: str) -> HostTensor:
        """See `Interpreter`."""
        return HostTensor(self.tensor(name))

    def tensor(self, name: str) -> Array:
        """Return a view of a tensor. Raises as the interpreter inside does."""
        return to_array(self._interpreter.tensor(name))

    def reset(self) -> None:
        """Set every state to zero."""
        self._interpreter.reset()

    @property
    def stages(self) -> frozenset[StageName]:
        """Return the stages that can be watched; none without a schedule."""
        stages: frozenset[StageName] = getattr(self._interpreter, "stages", frozenset())
        return stages

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """See `sscc.runtime.backends.interpreter.Interpreter.watch`. Raises UsageError if no schedule is run."""
        watch = getattr(self._interpreter, "watch", None)
        if watch is None:
            raise TorchArrayErrors.NO_STAGES()
        watch(stages, watcher)

    def memory(self) -> MemoryUse | None:
        """Return the memory of the program's tensors, without buffers on chip; None without a schedule."""
        return None if self.program is None else MemoryUse.of_tensors(self.program)


def to_tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Return arrays as torch tensors on the same memory. Tensors of read-only arrays must not be written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return {name: _to_tensor(array) for name, array in arrays.items()}


def _to_tensor(array: Array) -> torch.Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: torch.Tensor) -> Array:
    """Return a torch tensor as an array on the same memory. Raises InputError for a dtype that numpy lacks."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(BFLOAT16)
    try:
        array: Array = tensor.numpy()
    except TypeError as error:
        raise TorchArrayErrors.NO_NUMPY_DTYPE(dtype=str(tensor.dtype), cause=quoted(error)) from None
    return array
