"""Encoded cache rows: a row of D numbers as D codes of 8 bits and one f32 scale, in D + 4 bytes of one i8 tensor.

Number j stands for code[j] * scale, computed in f32. The scale is a 127th of the row's largest magnitude, so that
every number is within scale / 2 of what it was. A row of zeros, or of numbers below 1e-36, is zero bytes. A row is a
token's key or value in one KV head, so nothing that is written later changes it: an update stays one row, and a slot's
rows do not depend on other slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE_BYTES = 4
"""The scale stands behind the codes, as an f32 in little endian."""
LARGEST_CODE = 127
STEP = float(np.float32(1) / np.float32(LARGEST_CODE))
"""The scale of a row whose largest magnitude is 1, as an f32."""
SMALLEST_SCALE = 2.0**-126
"""A row whose scale is below this one is stored as zeros. It is the smallest normal f32, and its inverse is finite."""


def encoded_width(dim: int) -> int:
    """Bytes of an encoded row of `dim` numbers."""
    return dim + SCALE_BYTES


def decoded_width(nbytes: int) -> int:
    """Numbers of an encoded row of `nbytes` bytes."""
    return nbytes - SCALE_BYTES


def encode(rows: NDArray[Any]) -> NDArray[np.int8]:
    """Rows [.., D] of floats as [.., D + 4] i8: codes, rounded half to even, then the scale's bytes."""
    x = rows.astype(np.float32)
    scale = np.abs(x).max(-1, keepdims=True, initial=0) * np.float32(STEP)
    scale[scale < SMALLEST_SCALE] = 0
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.rint(x * inverse).clip(-LARGEST_CODE, LARGEST_CODE).astype(np.int8)
    return np.concatenate([codes, scale.astype("<f4").view(np.int8)], -1)


def decode(rows: NDArray[np.int8]) -> NDArray[np.float32]:
    """The numbers [.., D] f32 that encoded rows [.., D + 4] stand for."""
    codes, scale = np.split(rows, [rows.shape[-1] - SCALE_BYTES], axis=-1)
    numbers: NDArray[np.float32] = codes.astype(np.float32) * np.ascontiguousarray(scale).view("<f4")
    return numbers
