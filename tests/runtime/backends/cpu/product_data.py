"""Data for tests of products: memory, strides and numbers."""

from __future__ import annotations

import numpy as np

from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.phases import Operand


class AlignedArray:
    """Bytes that begin at a line."""

    def __init__(self, nbytes: int) -> None:
        self._held = np.zeros(nbytes + 2 * LINE, np.uint8)
        start = -self._held.ctypes.data % LINE
        self.bytes = self._held[start : start + nbytes]
        self.address = self._held.ctypes.data + start


def strided(operand: Operand, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """Memory for an operand, and the view of it."""
    span = 1 + sum((n - 1) * s for n, s in zip(operand.shape, operand.strides, strict=True))
    memory = stored(np.full(span + 40, fill, np.float32), operand.dtype)
    steps = tuple(s * memory.itemsize for s in operand.strides)
    return memory, np.lib.stride_tricks.as_strided(memory, operand.shape, steps)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return f32 values in the stored dtype; bf16 must represent them exactly."""
    return values.copy() if dtype == "f32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def loaded(values: np.ndarray, dtype: str) -> np.ndarray:
    return values.copy() if dtype == "f32" else (values.astype(np.uint32) << 16).view(np.float32)


def normal(seed: int, *shape: int) -> np.ndarray:
    """Return normally distributed numbers that bf16 represents exactly."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
