"""The reference interpreter's memory: one arena for inputs, outputs, states, temporaries and spilled buffers, another
one for buffers on chip; weights and constants lie outside of both.

A tensor is the typed view of an arena at its address, so tensors and buffers at overlapping addresses do overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from sscc.ir.choices import MAIN, ON_CHIP
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import DTYPE_BYTES, Buffer, Program, Tensor, pipelines
from sscc.ir.sizes import ALIGNMENT
from sscc.runtime.backends.reference.numerics import FLOATS, Numerics


class ReferenceMemoryErrors(ErrorKind):
    BUFFER_MISPLACED = InputError, (
        "the schedule is malformed: buffer {buffer!r} of {depth} slots of [{shape}] in {tier!r} takes {nbytes} bytes "
        "at address {address}, which must be a multiple of {unit} within {limit} bytes, in one of: {tiers}"
    )
    TENSOR_MISPLACED = InputError, (
        "the schedule is malformed: tensor {tensor!r} takes {nbytes} bytes at address {address}, which must be a "
        "multiple of {unit} within an arena of {limit} bytes"
    )
    NOT_GIVEN = InputError, "the {role} {tensor!r} is missing"
    OTHER_SHAPE = InputError, (
        "the {role} {tensor!r} is {given_dtype} [{given_shape}], but the program was compiled for {dtype} [{shape}]"
    )
    NO_ROOM = InputError, "the schedule needs an arena of {nbytes} bytes, which this machine cannot allocate"
    NOT_WRITTEN = InputError, (
        "kernel {kernel!r} reads the {role} {tensor!r}, which no launch of this call has written, or whose bytes "
        "another tensor has overwritten"
    )

_POISON = 0xFF
"""Byte that makes f32 and bf16 numbers NaN."""


class Memory:
    """The storage of a program's tensors.

    Args:
        program: program that declares the tensors.
        weights: torch tensors by name, of the declared shape and dtype; contiguous ones are not copied.
        numerics: dtypes of the stored tensors.
        poison: fill the arena with NaN before states are set to zero.

    Raises:
        InputError: an address is outside of the arena or not a multiple of 64, a weight is missing, or a shape or dtype
            differs.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, torch.Tensor], numerics: Numerics, *, poison: bool = False
    ) -> None:
        self._numerics = numerics
        self._limit = program.arena_bytes
        self._arena = _allocate(program.arena_bytes * numerics.address_scale)
        self._chip = _allocate(_on_chip_bytes(program) * numerics.address_scale)
        if poison:
            self._arena.fill_(_POISON)
            self._chip.fill_(_POISON)
        self.declared: dict[str, Tensor] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for tensor in program.tensors:
            external = tensor.role in ("weight", "constant")
            self.declared[tensor.name] = tensor
            self.tensors[tensor.name] = self._external(tensor, weights) if external else self._placed(tensor)
        self.reset()

    def reset(self) -> None:
        """Set every state to zero."""
        for name, tensor in self.declared.items():
            if tensor.role == "state":
                self.tensors[name].zero_()

    def slots(self, buffer: Buffer) -> list[torch.Tensor]:
        """Return the slots of a buffer, as tensors of its shape. Raises InputError if its address is outside of memory.
        """
        arena = self._chip if buffer.on_chip else self._arena
        limit = arena.numel() // self._numerics.address_scale
        unit = DTYPE_BYTES[buffer.dtype]
        fits = buffer.tier in (ON_CHIP, MAIN) and buffer.depth >= 1 and min((*buffer.shape, 1)) >= 1
        if not fits or buffer.address < 0 or buffer.address % unit or buffer.address + buffer.nbytes > limit:
            raise ReferenceMemoryErrors.BUFFER_MISPLACED(
                buffer=buffer.name,
                depth=buffer.depth,
                shape=list(buffer.shape),
                tier=buffer.tier,
                nbytes=buffer.nbytes,
                address=buffer.address,
                unit=unit,
                limit=limit,
                tiers=[ON_CHIP, MAIN],
            )
        addresses = range(buffer.address, buffer.address + buffer.nbytes, buffer.slot_bytes)
        return [self._view(arena, address, buffer.shape, buffer.dtype) for address in addresses]

    def _placed(self, tensor: Tensor) -> torch.Tensor:
        misplaced = tensor.address < 0 or tensor.address % ALIGNMENT or tensor.address + tensor.nbytes > self._limit
        if misplaced or min((*tensor.shape, 0)) < 0:
            raise ReferenceMemoryErrors.TENSOR_MISPLACED(
                tensor=tensor.name, nbytes=tensor.nbytes, address=tensor.address, unit=ALIGNMENT, limit=self._limit
            )
        return self._view(self._arena, tensor.address, tensor.shape, tensor.dtype)

    def _view(self, arena: torch.Tensor, address: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        held = self._numerics.dtype(dtype)
        begin = address * self._numerics.address_scale
        return arena[begin : begin + prod(shape) * held.itemsize].view(held).view(shape)

    def _external(self, tensor: Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if tensor.name not in weights:
            raise ReferenceMemoryErrors.NOT_GIVEN(role=tensor.role, tensor=tensor.name)
        value = weights[tensor.name].detach()
        dtype = Numerics().dtype(tensor.dtype)
        if tuple(value.shape) != tensor.shape or value.dtype is not dtype:
            raise ReferenceMemoryErrors.OTHER_SHAPE(
                role=tensor.role,
                tensor=tensor.name,
                given_dtype=str(value.dtype),
                given_shape=list(value.shape),
                dtype=str(dtype),
                shape=list(tensor.shape),
            )
        value = value.contiguous()
        return value.to(self._numerics.dtype(tensor.dtype)) if tensor.dtype in FLOATS else value


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with values that spoil every result: NaN, or the lowest integer."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(torch.nan)
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _on_chip_bytes(program: Program) -> int:
    on_chip = [b for kernel in program.kernels for p in pipelines(kernel.body) for b in p.buffers if b.on_chip]
    return max((buffer.address + buffer.nbytes for buffer in on_chip), default=0)


def _allocate(size: int) -> torch.Tensor:
    try:
        return torch.zeros(size, dtype=torch.uint8)
    except (RuntimeError, MemoryError):
        raise ReferenceMemoryErrors.NO_ROOM(nbytes=size) from None


class Written:
    """The set of tensors with defined bytes: refuses reads of tensors that were never written or have been overwritten.

    A tensor is tracked as a whole, not by element: a write to any part defines all of it, and a write to a tensor at
    overlapping addresses undefines all of it.
    """

    def __init__(self, program: Program) -> None:
        self._placed = [tensor for tensor in program.tensors if tensor.role not in ("weight", "constant")]
        self._roles = {tensor.name: tensor.role for tensor in program.tensors}
        self._overlaps = {tensor.name: _overlapping(tensor, self._placed) for tensor in self._placed}
        self._defined = {name for name, role in self._roles.items() if role in ("weight", "constant", "state")}

    def begin(self, inputs: tuple[str, ...]) -> None:
        """Begin a call: temporaries and outputs are undefined, inputs of the entry are defined."""
        self._defined = {name for name in self._defined if self._roles[name] not in ("temporary", "output", "input")}
        for name in inputs:
            self.write(name)

    def write(self, name: str) -> None:
        self._defined.difference_update(self._overlaps[name])
        self._defined.add(name)

    def under(self, buffer: Buffer) -> set[str]:
        """Return the tensors whose bytes a spilled buffer overwrites."""
        return set(_overlapping(buffer, self._placed)) if buffer.tier == MAIN else set()

    def undefine(self, names: set[str]) -> None:
        self._defined -= names

    def reset(self) -> None:
        """Record that every state was set to zero."""
        for name, role in self._roles.items():
            if role == "state":
                self.write(name)

    def check(self, name: str, kernel: str) -> None:
        if name not in self._defined:
            raise ReferenceMemoryErrors.NOT_WRITTEN(kernel=kernel, role=self._roles[name], tensor=name)


def _overlapping(region: Tensor | Buffer, others: list[Tensor]) -> list[str]:
    end = region.address + region.nbytes
    return [
        other.name
        for other in others
        if other is not region and other.address < end and region.address < other.address + other.nbytes
    ]
