"""Runs lowered steps of prefill by themselves: a function per phase, called on torch tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from sscc.runtime.codegen.compile import Jit
from sscc.runtime.codegen.features import Features
from sscc.runtime.codegen.mlir import I64, PTR, Function, Module
from sscc.runtime.codegen.phases import Context, Lowered, Operand, Phase

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "i1"}

Meta = tuple[tuple[int, ...], tuple[int, ...], str]
Lower = Callable[[object, dict[str, Meta], Features], Lowered]


def meta_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Meta]:
    """Shapes, strides and dtypes as lowerings take them."""
    return {name: (tuple(t.shape), tuple(t.stride()), DTYPES[t.dtype]) for name, t in tensors.items()}


class Compiled:
    """A step, lowered and compiled; every phase is `fn(args**, scalars*, begin, end, private*)`, with the shared
    scratch behind the operands in args."""

    def __init__(
        self, step: object, lower: Lower, tensors: Mapping[str, torch.Tensor], scalars: Sequence[str], features: Features
    ) -> None:
        self.operands = meta_of(tensors)
        self.scalars = list(scalars)
        self.lowered = lower(step, self.operands, features)
        self.module = Module()
        for i, phase in enumerate(self.lowered.phases):
            self._function(f"phase{i}", phase)
        self.jit = Jit(self.module, {"target-cpu": features.cpu, "target-features": ""} if features.cpu else None)
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self.calls = [signature(self.jit.addresses[f"phase{i}"]) for i in range(len(self.lowered.phases))]
        self._shared = aligned(self.lowered.shared_bytes, 0xAB)
        self._private = aligned(max(phase.private_bytes for phase in self.lowered.phases), 0xFF)

    def _function(self, name: str, phase: Phase) -> Function:
        parameters = [("args", PTR), ("scalars", PTR), ("begin", I64), ("end", I64), ("private", PTR)]
        f = self.module.function(name, parameters, exported=True)
        pointers = [f.load(f["args"] + 8 * i, PTR) for i in range(len(self.operands) + 1)]
        operands = {
            name: Operand(pointer, *meta)
            for (name, meta), pointer in zip(self.operands.items(), pointers, strict=False)
        }
        values = {name: f.load(f["scalars"] + 8 * i, I64) for i, name in enumerate(self.scalars)}
        phase.emit(Context(f, operands, values, f["begin"], f["end"], f["private"], pointers[-1]))
        f.returns()
        return f

    def run(self, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int], pieces: int = 1) -> None:
        """Executes all phases, each in `pieces` calls, last piece first."""
        args = [tensors[name].data_ptr() for name in self.operands]
        for name, tensor in tensors.items():
            assert meta_of({name: tensor})[name] == self.operands[name], name
        pointers = (ctypes.c_void_p * (len(args) + 1))(*args, self._shared.ctypes.data)
        values = (ctypes.c_int64 * max(1, len(self.scalars)))(*(scalars[name] for name in self.scalars))
        for phase, call in zip(self.lowered.phases, self.calls, strict=True):
            for piece in reversed(range(pieces)):
                begin, end = phase.units * piece // pieces, phase.units * (piece + 1) // pieces
                call(pointers, values, begin, end, self._private.ctypes.data)


def aligned(nbytes: int, fill: int) -> np.ndarray:
    """Bytes at a 64-byte boundary, all `fill` at first."""
    memory = np.full(nbytes + 64, fill, dtype=np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + max(nbytes, 1)]


def run_step(
    step: object,
    lower: Lower,
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int],
    features: Features,
    writes: Sequence[str],
) -> dict[str, torch.Tensor]:
    """What the step leaves in `writes`, after checking that bits do not depend on how units are shared out."""
    compiled = Compiled(step, lower, tensors, list(scalars), features)
    results: list[dict[str, torch.Tensor]] = []
    for pieces in (1, 3):
        given = {name: (like(t) if name in writes else t) for name, t in tensors.items()}
        compiled.run(given, scalars, pieces)
        results.append({name: given[name] for name in writes})
    for name in writes:
        a, b = (bits(result[name]) for result in results)
        assert torch.equal(a, b), f"{name} depends on how units are shared out"
    return results[0]


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.copy_(tensor)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy as integers, so that NaNs compare."""
    return tensor.contiguous().view({4: torch.int32, 2: torch.int16, 8: torch.int64, 1: torch.int8}[tensor.itemsize])
