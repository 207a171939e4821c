"""Encoded cache rows: a row of D numbers as codes of 8 or of 4 bits and their scales, in one i8 tensor.

A number stands for code * scale, computed in f32. A row is a token's key or value in one KV head, so nothing that is
written later changes it: an update stays one row, and a slot's rows do not depend on other slots.

    int8    D codes, then for each group of 128 numbers (the last may have fewer) an f32 scale, a 127th of the group's
            largest magnitude. So a row of at most 128 numbers has one scale
    int4    for each group of 32 numbers half as many bytes of codes, then for each a bf16 scale, a 7th of the group's
            largest magnitude. Byte i of a group that has n numbers holds number i in its low four bits and number
            n / 2 + i in its high ones, in two's complement. D is even

Every number is within half a scale of what it was; for int4 that is but for the rounding of the scale, which is up to a
256th of it. What would have a scale below 2^-126 is zero bytes.

Groups also keep apart what a row is made of where its parts differ in magnitude: of a latent row those that a
projection makes, a multiple of 128 in published models, and the rotated ones behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sscc.ir.choices import ROW_CODES

SMALLEST_SCALE = 2.0**-126
"""Numbers whose scale is below this one are stored as zeros. It is the smallest normal f32, and its inverse is
finite."""
GROUPS = {8: 128, 4: 32}
"""Numbers of a row that share a scale, by the bits of a code."""


@dataclass(frozen=True)
class RowFormat:
    """How rows are encoded.

    Attributes:
        name: what users call it.
        bits: of a code, 8 or 4.
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
        """The scale of numbers whose largest magnitude is 1, as an f32, before it is rounded to what scales are."""
        return float(np.float32(1) / np.float32(self.largest))

    @property
    def scale_bytes(self) -> int:
        """Of a scale, an f32 or a bf16 in little endian."""
        return 4 if self.bits == 8 else 2

    def groups(self, dim: int) -> list[tuple[int, int]]:
        """(first, end) of the numbers of a row that share a scale."""
        return [(first, min(first + self.group, dim)) for first in range(0, dim, self.group)]

    def code_bytes(self, dim: int) -> int:
        """Bytes of the codes of a row of `dim` numbers, which stand in front of the scales."""
        return dim * self.bits // 8

    def width(self, dim: int) -> int:
        """Bytes of an encoded row of `dim` numbers."""
        return self.code_bytes(dim) + -(-dim // self.group) * self.scale_bytes

    def numbers(self, nbytes: int) -> int:
        """Numbers of an encoded row of `nbytes` bytes; not positive where no row has so many."""
        whole, left = divmod(nbytes, self.width(self.group))
        if 0 < left <= self.scale_bytes:
            return 0
        return whole * self.group + (left - self.scale_bytes) * 8 // self.bits if left else whole * self.group

    def encode(self, rows: NDArray[Any]) -> NDArray[np.int8]:
        """Rows [.., D] of floats as [.., width(D)] i8; codes are rounded half to even."""
        x = rows.astype(np.float32)
        codes, scales = zip(*(self._encode(x[..., first:end]) for first, end in self.groups(x.shape[-1])), strict=True)
        return np.concatenate([*codes, *scales], -1)

    def _encode(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """The bytes of the codes and of the scale of numbers [.., n] that share one."""
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
        """The numbers [.., D] f32 that encoded rows [.., width(D)] stand for."""
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
    """As `INT8` is, but with one scale for all `dim` numbers of a row."""
    return replace(INT8, group=dim)


def format_of(dim: int, nbytes: int) -> RowFormat | None:
    """The format in which a row of `dim` numbers has `nbytes` bytes; None where there is none. No two have equally
    many."""
    return next((f for f in FORMATS.values() if nbytes == f.width(dim) and not dim * f.bits % 8), None)


def numbers_in(nbytes: int, dim: int | None) -> int:
    """How many numbers there are in an encoded row of `nbytes` bytes: `dim`, where that is known and such a row may
    have so many; else as many as in one of the first format."""
    return dim if dim is not None and format_of(dim, nbytes) else INT8.numbers(nbytes)


encode, decode = INT8.encode, INT8.decode
