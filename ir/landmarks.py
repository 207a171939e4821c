"""Landmarks: copies of keys in a few bits, by whose dot products with the query of a step rows are chosen.

A key `k` of D numbers becomes D codes of 1, 2 or 4 bits and one scale, in two steps, all in f32 unless said otherwise:

* `x = k R`, with R the normalised Hadamard matrix in Sylvester's order, on blocks of the largest power of two that
  divides D. It spreads what single dimensions hold over their block, so that every number of x is about Gaussian.
* `s`, the root mean square of x, rounded to bf16; each number of x becomes the integer level whose multiple of
  `STEPS[bits] * s` is nearest. Levels and steps are those that Lloyd and Max found best for a Gaussian (Max 1960,
  "Quantizing for minimum distortion"), as integers: 2 bits are within half a percent of theirs.

The query is rotated likewise (R is orthogonal, so products stay) and becomes codes of 8 bits and one scale, as
`sscc.ir.kv_rows` encodes a group of numbers. Dot products of codes are integers, below 2 ** 24 for D up to 8,000: f32
holds them, and they are the same in any order of summation. arXiv 2604.08426 finds landmarks of two bits near an
oracle.

What a result depends on is spelled out, so that every implementation gives the same bytes: butterflies go from
neighbours to the widest distance; squares are summed in f64, where no order of summation shows in bf16; a number is
compared with the edges between levels, `EDGES[bits] * s` in f32.

Landmarks of 16 bits are the keys themselves, as the cache has them: without codes, rotation and scale. Their products
with the query, which is not rotated or rounded either, are sums of f32.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sscc.ir import kv_rows
from sscc.ir.choices import LANDMARK_BITS, PLAIN_BITS
from sscc.ir.errors import ErrorKind, UsageError


class LandmarkErrors(ErrorKind):
    """Landmarks that keys cannot have."""

    BITS = UsageError, "landmarks have {bits} bits, they must have one of {choices}"
    PARTIAL_BYTE = UsageError, "{bits} bits a number do not fill whole bytes for keys of {dim} numbers: take more bits"


MAGNITUDES = {1: (1,), 2: (3, 10), 4: (1, 3, 5, 7, 9, 11, 13, 15)}
"""The levels above 0, in ascending order; those below 0 mirror them. Code c is level c of all, in ascending order."""
STEPS = {1: 0.7979, 2: 0.151, 4: 0.1676}
"""What level 1 stands for, in units of the scale."""
EDGES = {1: (), 2: (6.5 * STEPS[2],), 4: tuple(2 * m * STEPS[4] for m in range(1, 8))}
"""Halfway between neighbouring magnitudes, in units of the scale: what lies above takes the greater magnitude, what
lies on it the smaller one."""
SCALE_BYTES = 2
"""The scale is a bf16."""
SMALLEST_SCALE = 2.0**-126
"""A row whose scale is below this one has the scale 0 and the codes of zeros, as kv_rows has it."""


def check_bits(bits: int, dim: int) -> None:
    """Raises UsageError where keys of `dim` numbers have no landmarks of so many bits."""
    if bits not in LANDMARK_BITS:
        raise LandmarkErrors.BITS(bits=bits, choices=LANDMARK_BITS)
    if dim * bits % 8:
        raise LandmarkErrors.PARTIAL_BYTE(bits=bits, dim=dim)


def code_bytes(dim: int, bits: int) -> int:
    """Bytes of the codes of one key of `dim` numbers, without the scale; 1, 2 or 4 bits."""
    return dim * bits // 8


def landmark_width(dim: int, bits: int) -> int:
    """Elements of the landmark of one key of `dim` numbers, without the scale: bytes of codes, or of 16 bits numbers.
    """
    return dim if bits == PLAIN_BITS else code_bytes(dim, bits)


def block_width(dim: int) -> int:
    """The largest power of two that divides `dim`: the numbers that are rotated together."""
    return dim & -dim


def levels(bits: int) -> NDArray[np.int8]:
    """[2 ** bits] i8: the level of each code."""
    above = np.array(MAGNITUDES[bits], np.int8)
    return np.concatenate([-above[::-1], above])


def rotate(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows [.., D] times the blocks of R: [.., D] f32."""
    dim = rows.shape[-1]
    block = block_width(dim)
    x = rows.astype(np.float32)
    distance = 1
    while distance < block:
        pairs = x.reshape(*rows.shape[:-1], dim // (2 * distance), 2, distance)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([first + second, first - second], axis=-2).reshape(rows.shape)
        distance *= 2
    return x * np.float32(block**-0.5)


def scales(rotated: NDArray[np.float32]) -> NDArray[np.float32]:
    """Root mean squares of rotated rows [.., D]: [..] f32, each a number of bf16."""
    squares = np.square(rotated.astype(np.float64)).sum(-1)
    exact = np.sqrt(squares / rotated.shape[-1]).astype(np.float32)
    kept = np.where(exact < SMALLEST_SCALE, np.float32(0), exact)
    rounded: NDArray[np.float32] = kept.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def nearest(rotated: NDArray[np.float32], scale: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    """The code [.., D] u8 of each number of rotated keys [.., D] whose scales are [..].

    A code is at least half of 2 ** bits where the number is not negative, -0 included.
    """
    x = np.where(scale[..., None] == 0, np.float32(0), rotated)
    above = np.zeros(x.shape, np.uint8)
    for edge in EDGES[bits]:
        above += np.abs(x) > np.float32(edge) * scale[..., None]
    half = np.uint8(len(MAGNITUDES[bits]))
    return np.where(x >= 0, half + above, half - np.uint8(1) - above)


def encode(keys: NDArray[Any], bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Keys [.., D] as codes [.., D * bits / 8] u8 and scales [..] f32, each a number of bf16; 1, 2 or 4 bits.

    The code of the first number has the lowest bits of the first byte.
    """
    rotated = rotate(keys)
    scale = scales(rotated)
    codes = nearest(rotated, scale, bits)
    in_bytes = codes.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 8, 8 // bits)
    return np.bitwise_or.reduce(in_bytes << np.arange(0, 8, bits, dtype=np.uint8), axis=-1), scale


def decode(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int8]:
    """Packed codes [.., D * bits / 8] u8 as levels [.., D] i8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (codes[..., None] >> shifts) & np.uint8(2**bits - 1)
    decoded: NDArray[np.int8] = levels(bits)[apart.reshape(*codes.shape[:-1], -1)]
    return decoded


def encode_query(queries: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Queries [.., D] as codes [.., D] i8, rounded half to even, and scales [..] f32: largest magnitude / 127."""
    dim = queries.shape[-1]
    encoded = kv_rows.with_one_scale(dim).encode(rotate(queries))
    codes, scale = encoded[..., :dim], encoded[..., dim:]
    return codes, np.ascontiguousarray(scale).view("<f4")[..., 0]


def logits(
    query: NDArray[np.int8],
    query_scale: NDArray[np.float32],
    keys: NDArray[np.int8],
    scale: NDArray[np.float32],
    bits: int,
    factor: float,
) -> NDArray[np.float32]:
    """What a query's products with keys are about, times the attention's `factor`.

    `(dot * s) * ((query scale * step) * factor)`, each product rounded to f32; `dot` is the exact integer.

    Args:
        query: [.., H, D] i8, query_scale [.., H]: of the query heads that read these keys.
        keys: [.., T, D] i8, the levels of their landmarks; scale [.., T].

    Returns:
        [.., H, T] f32.
    """
    dot = np.matmul(query.astype(np.float32), np.swapaxes(keys.astype(np.float32), -1, -2))
    of_head = query_scale * np.float32(STEPS[bits]) * np.float32(factor)
    product: NDArray[np.float32] = dot * scale[..., None, :] * of_head[..., None]
    return product
