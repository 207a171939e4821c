"""Sizes in bytes: aligned for machines, in words for people; and where the elements of a tensor lie."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of the hosts that interpret a schedule."""

TILE_ROWS = ALIGNMENT // 4
"""Of a matrix: as many outputs of a product in f32 as such a vector holds. Tiles are multiples where they can be."""


def align(size: int) -> int:
    """`size` rounded up to a multiple of `ALIGNMENT`, in bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def format_bytes(nbytes: int) -> str:
    """Four digits and a binary unit: "1.5 KiB", "32 MiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} bytes"


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)
