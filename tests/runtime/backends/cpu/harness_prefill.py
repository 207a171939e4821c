"""Runs lowered steps of prefill by themselves: a function per phase, called on torch tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.backends.cpu.codegen.checks import CheckedModule, Violations
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Module
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta
from tests.runtime.backends.cpu.cpus import optimisation
from tests.runtime.backends.cpu.emulated_tiles import EmulatedModule
from tests.runtime.backends.cpu.scalar_words import ScalarWords

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "i1", torch.int8: "i8"}
_PARAMETERS = [("args", PTR), ("scalars", PTR), ("begin", I64), ("end", I64), ("private", PTR)]
_GUARD = 256
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64

Lower = Callable[[Any, dict[str, Meta], Features], Lowered]


def meta_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Meta]:
    """Shapes, strides and dtypes as lowerings take them."""
    return {name: (tuple(t.shape), tuple(t.stride()), DTYPES[t.dtype]) for name, t in tensors.items()}


class CompiledStages:
    """A step, lowered and compiled; every phase is `fn(args**, scalars*, begin, end, private*)`, with the shared
    scratch behind the operands in args. Where code is checked, a run raises what leaves an operand or scratch."""

    def __init__(
        self,
        step: object,
        lower: Lower,
        tensors: Mapping[str, torch.Tensor],
        scalars: Sequence[str],
        features: Features,
        *,
        checked: bool = False,
    ) -> None:
        self.operands = meta_of(tensors)
        self.scalars = list(scalars)
        self.lowered = lower(step, self.operands, features)
        self._violations = Violations()
        emulated = features.bf16_tiles and not Features.of_host().bf16_tiles
        self._module = EmulatedModule() if emulated else CheckedModule(self._violations) if checked else Module()
        names = [f"phase{i}" for i in range(len(self.lowered.phases))]
        for name, phase in zip(names, self.lowered.phases, strict=True):
            self._function(name, phase)
        self._jit = Jit(self._module, features.cpu, 0 if checked else optimisation(features))
        signature = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _INTEGER, _INTEGER, _POINTER)
        self._calls = [signature(self._jit.addresses[name]) for name in names]
        self._shared = aligned(self.lowered.shared_bytes)
        self._private = aligned(max(phase.private_bytes for phase in self.lowered.phases))

    def _function(self, name: str, phase: Phase) -> None:
        f = self._module.function(name, _PARAMETERS, exported=True)
        *pointers, shared = (f.load(f["args"] + 8 * i, PTR) for i in range(len(self.operands) + 1))
        pointers = [f.limit(p, _extent(meta)) for p, meta in zip(pointers, self.operands.values(), strict=True)]
        shared, private = f.limit(shared, self.lowered.shared_bytes), f.limit(f["private"], phase.private_bytes)
        f.operands(name, [*pointers, shared, private])
        operands = {
            name: Operand(pointer, *meta) for (name, meta), pointer in zip(self.operands.items(), pointers, strict=True)
        }
        scalars = {name: f.load(f["scalars"] + 8 * i, I64) for i, name in enumerate(self.scalars)}
        phase.emit(Context(f, operands, scalars, f["begin"], f["end"], private, shared))
        f.returns()

    def run(self, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int], pieces: int = 1) -> None:
        """Executes all phases, each in `pieces` calls, last piece first, each call with scratch of its own contents."""
        assert meta_of({name: tensors[name] for name in self.operands}) == self.operands
        pointers = [tensors[name].data_ptr() for name in self.operands]
        args = (_POINTER * (len(pointers) + 1))(*pointers, self._shared.ctypes.data)
        words = ScalarWords([scalars[name] for name in self.scalars])
        self._shared[:-_GUARD].fill(0xFF)
        for phase, call in zip(self.lowered.phases, self._calls, strict=True):
            for piece in reversed(range(pieces)):
                begin, end = phase.units * piece // pieces, phase.units * (piece + 1) // pieces
                self._private[:-_GUARD].fill(0xFF if pieces == 1 else 0x7E)
                call(args, words.address, begin, end, self._private.ctypes.data)
        self.reported = words.reported
        self._violations.raise_first()
        for scratch in (self._shared, self._private):
            assert (scratch[-_GUARD:] == 0).all(), "a phase writes behind its scratch"


def _extent(meta: Meta) -> int:
    """Bytes from an operand's first element to its last."""
    shape, strides, dtype = meta
    return (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))) * DTYPE_BYTES[dtype]


def check_pieces(
    compiled: CompiledStages, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int], writes: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Return the contents of `writes` after the step. Checks that bits do not depend on the split of units."""
    results: list[dict[str, torch.Tensor]] = []
    for pieces in (1, 3):
        memory = {name: (like(tensor) if name in writes else tensor) for name, tensor in tensors.items()}
        compiled.run(memory, scalars, pieces)
        results.append({name: memory[name] for name in writes})
    for name in writes:
        one, other = (bits(result[name]) for result in results)
        assert torch.equal(one, other), f"{name} depends on how units are shared out"
    return results[0]


def run_step(
    step: object,
    lower: Lower,
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int],
    features: Features,
    writes: Sequence[str],
) -> dict[str, torch.Tensor]:
    """Compile a step, and check and run it like `check_pieces`."""
    return check_pieces(CompiledStages(step, lower, tensors, list(scalars), features), tensors, scalars, writes)


def aligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes at a 64-byte boundary, and a guard of zeros behind them."""
    memory = np.zeros(nbytes + _GUARD + 64, dtype=np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + nbytes + _GUARD]


def strided(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return the same tensor with this order of axes in memory, the last one innermost."""
    inverse = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(order).contiguous().permute(inverse)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy as integers, so that NaNs compare."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
