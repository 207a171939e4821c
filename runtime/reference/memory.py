"""Where the bytes are: one arena for inputs, outputs, states and temporaries; weights and constants beside it.

A tensor is the typed view of the arena at its address, so tensors at overlapping addresses really overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sscc.ir.errors import InputError
from sscc.runtime.reference.numerics import FLOATS, Numerics
from sscc.runtime.schedule import Program, Tensor

ALIGNMENT = 64
_POISON = 0xFF
"""As bytes of f32 and bf16 this is NaN."""


class Memory:
    """The storage of a program's tensors.

    Args:
        program: whose tensors to lay out.
        weights: torch tensors by `source`, of the declared shape and dtype; not copied when contiguous.
        numerics: the dtypes to hold them in.
        poison: fill the arena with NaN before states are zeroed.

    Raises:
        InputError: an address out of the arena or not a multiple of 64, a missing weight, a shape or dtype
            that differs.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, torch.Tensor], numerics: Numerics, *, poison: bool = False
    ) -> None:
        self._numerics = numerics
        self._limit = program.arena_bytes
        self._arena = _allocate(program.arena_bytes * numerics.address_scale)
        if poison:
            self._arena.fill_(_POISON)
        self.declared: dict[str, Tensor] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for tensor in program.tensors:
            if tensor.name in self.declared:
                raise InputError(f"the schedule is malformed: two tensors are called {tensor.name!r}")
            external = tensor.role in ("weight", "constant")
            self.declared[tensor.name] = tensor
            self.tensors[tensor.name] = self._given(tensor, weights) if external else self._placed(tensor)
        self.reset()

    def reset(self) -> None:
        """Zeroes every state."""
        for name, tensor in self.declared.items():
            if tensor.role == "state":
                self.tensors[name].zero_()

    def _placed(self, tensor: Tensor) -> torch.Tensor:
        misplaced = tensor.address < 0 or tensor.address % ALIGNMENT or tensor.address + tensor.nbytes > self._limit
        if misplaced or min((*tensor.shape, 0)) < 0:
            raise InputError(
                f"the schedule is malformed: tensor {tensor.name!r} takes {tensor.nbytes} bytes at address "
                f"{tensor.address}; it must be a multiple of {ALIGNMENT} within an arena of {self._limit} bytes"
            )
        dtype = self._numerics.require(tensor.dtype)
        begin = tensor.address * self._numerics.address_scale
        end = begin + tensor.elements * dtype.itemsize
        return self._arena[begin:end].view(dtype).view(tensor.shape)

    def _given(self, tensor: Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if tensor.source not in weights:
            raise InputError(f"no {tensor.role} {tensor.source!r} was given for tensor {tensor.name!r}")
        value = weights[tensor.source].detach()
        wanted = Numerics().require(tensor.dtype)
        if tuple(value.shape) != tensor.shape or value.dtype is not wanted:
            raise InputError(
                f"{tensor.role} {tensor.source!r} is {value.dtype} {list(value.shape)}, "
                f"the program was compiled for {wanted} {list(tensor.shape)}"
            )
        value = value.contiguous()
        return value.to(self._numerics.require(tensor.dtype)) if tensor.dtype in FLOATS else value


def _allocate(size: int) -> torch.Tensor:
    try:
        return torch.zeros(size, dtype=torch.uint8)
    except (RuntimeError, MemoryError):
        raise InputError(f"the schedule needs an arena of {size} bytes, which this machine does not give") from None


class Written:
    """Which tensors hold defined bytes: refuses reads of what nothing has written, or what was overwritten.

    Tracked per tensor, not per element: a write to any part defines the whole, and a write to a tensor at
    overlapping addresses undefines it.
    """

    def __init__(self, program: Program) -> None:
        placed = [tensor for tensor in program.tensors if tensor.role not in ("weight", "constant")]
        self._roles = {tensor.name: tensor.role for tensor in program.tensors}
        self._overlaps = {tensor.name: _overlapping(tensor, placed) for tensor in placed}
        self._defined = {name for name, role in self._roles.items() if role in ("weight", "constant", "state")}

    def begin(self, inputs: tuple[str, ...]) -> None:
        """A call starts: temporaries and outputs are undefined, the entry's inputs are not."""
        self._defined = {name for name in self._defined if self._roles[name] not in ("temporary", "output", "input")}
        for name in inputs:
            self.write(name)

    def write(self, name: str) -> None:
        self._defined.difference_update(self._overlaps[name])
        self._defined.add(name)

    def reset(self) -> None:
        """Every state was zeroed."""
        for name, role in self._roles.items():
            if role == "state":
                self.write(name)

    def check(self, name: str, kernel: str) -> None:
        if name not in self._defined:
            raise InputError(
                f"kernel {kernel!r} reads {self._roles[name]} {name!r}, which no launch of this call has written "
                f"(or whose bytes another tensor took over)"
            )


def _overlapping(tensor: Tensor, others: list[Tensor]) -> list[str]:
    end = tensor.address + tensor.nbytes
    return [
        other.name
        for other in others
        if other is not tensor and other.address < end and tensor.address < other.address + other.nbytes
    ]
