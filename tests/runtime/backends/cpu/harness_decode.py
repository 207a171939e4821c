"""A harness that compiles single lowered steps and runs them on tensors, with a division of units chosen by the
test."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Module
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand
from tests.runtime.backends.cpu.cpus import optimisation
from tests.runtime.backends.cpu.scalar_words import ScalarWords

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "i1", torch.int8: "i8"}
_FUNCTION = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)  # fmt: skip
_POISON = 0x7FC0_0001


def meta_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], str]]:
    """Shape, strides and dtype of every tensor, as lowerings take them."""
    return {name: (tuple(t.shape), t.stride(), DTYPES[t.dtype]) for name, t in tensors.items()}


class CompiledStep:
    """The phases of a step as functions ``phase0 ..`` of one module.

    Args:
        lowered: the step.
        meta: its operands, in the order in which `__call__` gets them.
        features: what to compile for.
        scalars: operands of one element that the phases get as numbers.
    """

    def __init__(
        self, lowered: Lowered, meta: Mapping[str, Any], features: Features, scalars: Sequence[str] = ()
    ) -> None:
        self.lowered = lowered
        self.names = list(meta)
        self.scalars = list(scalars)
        module = Module()
        for i, phase in enumerate(lowered.phases):
            f = module.function(
                f"phase{i}",
                [("args", PTR), ("scalars", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)],
                exported=True,
            )
            pointers = [f.load(f["args"] + 8 * n, PTR) for n in range(len(meta) + 1)]
            operands = {
                name: Operand(pointer, *about) for (name, about), pointer in zip(meta.items(), pointers, strict=False)
            }
            numbers = {name: f.load(f["scalars"] + 8 * n, I64) for n, name in enumerate(self.scalars)}
            phase.emit(Context(f, operands, numbers, f["begin"], f["end"], f["scratch"], pointers[-1]))
            f.returns()
        self.jit = Jit(module, features.cpu, optimisation(features))
        self._functions = [_FUNCTION(self.jit.addresses[f"phase{i}"]) for i in range(len(lowered.phases))]
        self._shared = _scratch(lowered.shared_bytes)
        self._words = ScalarWords([0] * len(self.scalars))
        self._private = [_scratch(phase.private_bytes) for phase in lowered.phases]

    @property
    def reported(self) -> bool:
        """True if the latest call found an index outside its tensor."""
        return self._words.reported

    def __call__(self, tensors: Mapping[str, Tensor], parts: int = 1, *, backwards: bool = False) -> None:
        """Runs every phase as `parts` ranges of units, in order or backwards."""
        self._shared[0].fill_(_POISON)
        self._words = self._words_of(tensors)
        pointers = [tensors[name].data_ptr() for name in self.names] + [self._shared[1]]
        args = (ctypes.c_void_p * len(pointers))(*pointers)
        for phase, function, (memory, private) in zip(self.lowered.phases, self._functions, self._private, strict=True):
            for part in reversed(range(parts)) if backwards else range(parts):
                memory.fill_(_POISON)
                begin, end = phase.units * part // parts, phase.units * (part + 1) // parts
                function(ctypes.addressof(args), self._words.address, begin, end, private)
            assert bool((memory[-16:] == _POISON).all()), "a phase writes beyond its private scratch"
        assert bool((self._shared[0][-16:] == _POISON).all()), "a phase writes beyond the shared scratch"

    def _words_of(self, tensors: Mapping[str, Tensor]) -> ScalarWords:
        return ScalarWords([int(tensors[name]) for name in self.scalars])

    def timed(self, tensors: Mapping[str, Tensor]) -> None:
        """Runs every phase at once, without checks."""
        self._words = self._words_of(tensors)
        pointers = [tensors[name].data_ptr() for name in self.names] + [self._shared[1]]
        args = (ctypes.c_void_p * len(pointers))(*pointers)
        for phase, function, (_, private) in zip(self.lowered.phases, self._functions, self._private, strict=True):
            function(ctypes.addressof(args), self._words.address, 0, phase.units, private)


def _scratch(nbytes: int) -> tuple[Tensor, int]:
    """Memory of at least this size up to its last 16 words, and the address, a multiple of 64, where it begins."""
    memory = torch.empty(64 // 4 + -(-nbytes // 4) + 16, dtype=torch.int32)
    return _aligned(memory, nbytes)


def _aligned(memory: Tensor, nbytes: int) -> tuple[Tensor, int]:
    first = -memory.data_ptr() % 64 // 4
    used = memory[first : first + -(-nbytes // 4) + 16]
    return used, used.data_ptr()
