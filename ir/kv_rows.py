"""Encoded cache rows: a row of D numbers as 8-bit or 4-bit codes and their scales, in one i8 tensor.

A code stands for code * scale, computed in f32. A row is a token's key or value in one KV head and is encoded by
itself: later writes do not change it, an update writes one row, and a slot's rows do not depend on other slots.

    int8    D codes, then for each group of 128 numbers (the last may have fewer) an f32 scale, a 127th of the group's
            largest magnitude. So a row of at most 128 numbers has one scale
    int4    for each group of 32 numbers half that many bytes of codes, then for each group a bf16 scale, a 7th of the
            group's largest magnitude. Byte i of a group of n numbers holds number i in its low four bits and number
            n / 2 + i in its high ones, in two's complement. D is even

The error of a number is at most half a scale; int4 adds the rounding of the scale, up to a 256th of it. A group whose
scale would be below 2^-126 is stored as zero bytes.

Groups also separate parts of a row that differ in magnitude: in a latent row the numbers that a projection makes (a
multiple of 128 in published models) and the rotated ones behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sscc.ir.choices import ROW_CODES

SMALLEST_SCALE = 2.0**-126
"""Smallest normal f32, whose inverse is finite. Numbers whose scale would be smaller are stored as zeros."""
GROUPS = {8: 128, 4: 32}
"""Numbers of a row that share a scale, by the bits of a code."""


@dataclass(frozen=True)
class RowFormat:
    """Encoding of rows.

    Attributes:
        name: name in options.
        bits: bits of a code, 8 or 4.
        group: numbers that share a scale; the last group of a row may have fewer.
    """

    name: str
    bits: int
    group: int

    @property
    def largest(self) -> int:
        """The largest code; the smallest one is its negative."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """Scale of numbers whose largest magnitude is 1, in f32, before it is rounded to the dtype of scales."""
        return float(np.float32(1) / np.float32(self.largest))

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale, an f32 or bf16 in little endian."""
        return 4 if self.bits == 8 else 2

    def groups(self, dim: int) -> list[tuple[int, int]]:
        """Return (first, end) of each group of numbers that share a scale."""
        return [(first, min(first + self.group, dim)) for first in range(0, dim, self.group)]

    def code_bytes(self, dim: int) -> int:
        """Return the bytes of the codes of a row of `dim` numbers; the scales follow them."""
        return dim * self.bits // 8

    def width(self, dim: int) -> int:
        """Return the bytes of an encoded row of `dim` numbers."""
        return self.code_bytes(dim) + -(-dim // self.group) * self.scale_bytes

    def numbers(self, nbytes: int) -> int:
        """Return the number of values in an encoded row of `nbytes` bytes; not positive if no row has that size."""
        whole, left = divmod(nbytes, self.width(self.group))
        if 0 < left <= self.scale_bytes:
            return 0
        return whole * self.group + (left - self.scale_bytes) * 8 // self.bits if left else whole * self.group

    def encode(self, rows: NDArray[Any]) -> NDArray[np.int8]:
        """Return rows [.., D] of floats as [.., width(D)] i8. Codes are rounded half to even."""
        x = rows.astype(np.float32)
        codes, scales = zip(*(self._encode(x[..., first:end]) for first, end in self.groups(x.shape[-1])), strict=True)
        return np.concatenate([*codes, *scales], -1)

    def _encode(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """Return the bytes of the codes and of the scale of one group of numbers [.., n]."""
        scale = np.abs(x).max(-1, keepdims=True, initial=0) * np.float32(self.step)
        stored = scale.astype("<f4") if self.bits == 8 else scale.astype(ml_dtypes.bfloat16)
        scale = stored.astype(np.float32)
        stored[scale < SMALLEST_SCALE] = scale[scale < SMALLEST_SCALE] = 0
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
        codes = np.rint(x * inverse).clip(-self.largest, self.largest).astype(np.int8)
        if self.bits == 4:
            low, high = np.split(codes, 2, axis=-1)
            codes = (low & 15) | (high << 4)
        return codes, stored.view(np.int8)

    def decode(self, rows: NDArray[np.int8]) -> NDArray[np.float32]:
        """Return the numbers [.., D] f32 of encoded rows [.., width(D)]."""
        dim = self.numbers(rows.shape[-1])
        codes, scales = np.split(rows, [self.code_bytes(dim)], axis=-1)
        kind: Any = "<f4" if self.bits == 8 else ml_dtypes.bfloat16
        factors = np.ascontiguousarray(scales).view(kind).astype(np.float32)
        decoded_groups = []
        for number, (first, end) in enumerate(self.groups(dim)):
            part = codes[..., first * self.bits // 8 : end * self.bits // 8]
            if self.bits == 4:
                part = np.concatenate([part << 4 >> 4, part >> 4], -1)
            decoded_groups.append(part.astype(np.float32) * factors[..., number : number + 1])
        return np.concatenate(decoded_groups, -1)


FORMATS = {name: RowFormat(name, bits, GROUPS[bits]) for name, bits in ROW_CODES.items()}
INT8, INT4 = FORMATS["int8"], FORMATS["int4"]


def with_one_scale(dim: int) -> RowFormat:
    """Return a format like `INT8` with one scale for all `dim` numbers of a row."""
    return replace(INT8, group=dim)


def format_of(dim: int, nbytes: int) -> RowFormat | None:
    """Return the format in which a row of `dim` numbers has `nbytes` bytes, or None. No two formats have the same size.
    """
    return next((f for f in FORMATS.values() if nbytes == f.width(dim) and not dim * f.bits % 8), None)


def numbers_in(nbytes: int, dim: int | None) -> int:
    """Return the number of values in an encoded row of `nbytes` bytes: `dim` if it is known and possible, else the
    number for the format `INT8`."""
    return dim if dim is not None and format_of(dim, nbytes) else INT8.numbers(nbytes)


encode, decode = INT8.encode, INT8.decode
