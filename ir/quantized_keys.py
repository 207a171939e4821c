"""Quantized keys: copies of keys in a few bits. A step's query selects rows by its dot products with them.

A key `k` of D numbers becomes D codes of 1, 2 or 4 bits and one scale, in two steps, all in f32 unless stated
otherwise:

* `x = k R`, with R the normalised Hadamard matrix in Sylvester's order, on blocks of the largest power of two that
  divides D. It spreads outlier dimensions over their block, so that every number of x is approximately Gaussian.
* `s`, the root mean square of x, rounded to bf16. Each number of x becomes the integer level whose multiple of
  `STEPS[bits] * s` is nearest. Levels and steps are the Lloyd-Max quantizer of a Gaussian (Max 1960, "Quantizing for
  minimum distortion") with integer levels; with 2 bits its error is within half a percent of the optimum.

The query is rotated in the same way (R is orthogonal, so products are preserved) and becomes 8-bit codes and one scale,
as `sscc.ir.kv_rows` encodes a group of numbers. Dot products of codes are integers, below 2 ** 24 for D up to 8,000, so
that f32 holds them exactly and they do not depend on the order of summation. arXiv 2604.08426 finds that selection by
two-bit keys comes close to an oracle.

The computation is specified so that every implementation gives the same bytes: butterflies go from neighbours to the
widest distance; squares are summed in f64, in which the order of summation does not change the bf16 result; a number is
compared with the edges between levels, `EDGES[bits] * s`, in f32.

Quantized keys of 16 bits are the keys themselves, as the cache has them: without codes, rotation and scale. The query
is not rotated or rounded either, and their products are sums in f32.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sscc.ir import kv_rows
from sscc.ir.choices import KEY_BITS, PLAIN_BITS
from sscc.ir.errors import ErrorKind, UsageError


class QuantizedKeyErrors(ErrorKind):
    """Invalid quantized keys."""

    BITS = UsageError, "bits of quantized keys must be one of {choices}, got {bits}"
    PARTIAL_BYTE = UsageError, "{bits} bits per number do not fill whole bytes for keys of {dim} numbers: use more bits"


MAGNITUDES = {1: (1,), 2: (3, 10), 4: (1, 3, 5, 7, 9, 11, 13, 15)}
"""Levels above 0, in ascending order; those below 0 mirror them. Code c is the c-th of all levels in ascending order.
"""
STEPS = {1: 0.7979, 2: 0.151, 4: 0.1676}
"""Value of level 1, in units of the scale."""
EDGES = {1: (), 2: (6.5 * STEPS[2],), 4: tuple(2 * m * STEPS[4] for m in range(1, 8))}
"""Midpoints between neighbouring magnitudes, in units of the scale. A number on a midpoint gets the smaller magnitude.
"""
SCALE_BYTES = 2
"""Bytes of a scale, a bf16."""
SMALLEST_SCALE = 2.0**-126
"""A row whose scale would be smaller has scale 0 and the codes of zeros, as in `sscc.ir.kv_rows`."""


def check_bits(bits: int, dim: int) -> None:
    """Raise UsageError if keys of `dim` numbers cannot be quantized to `bits` bits."""
    if bits not in KEY_BITS:
        raise QuantizedKeyErrors.BITS(bits=bits, choices=KEY_BITS)
    if dim * bits % 8:
        raise QuantizedKeyErrors.PARTIAL_BYTE(bits=bits, dim=dim)


def code_bytes(dim: int, bits: int) -> int:
    """Return the bytes of the codes of one key of `dim` numbers, without the scale, for 1, 2 or 4 bits."""
    return dim * bits // 8


def quantized_key_width(dim: int, bits: int) -> int:
    """Return the elements of one quantized key of `dim` numbers, without the scale: bytes of codes, or numbers
    for 16 bits."""
    return dim if bits == PLAIN_BITS else code_bytes(dim, bits)


def block_width(dim: int) -> int:
    """Return the largest power of two that divides `dim`: the numbers that are rotated together."""
    return dim & -dim


def levels(bits: int) -> NDArray[np.int8]:
    """Return the level of each code, [2 ** bits] i8."""
    above = np.array(MAGNITUDES[bits], np.int8)
    return np.concatenate([-above[::-1], above])


def rotate(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows [.., D] times the blocks of R, [.., D] f32."""
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
    """Return the root mean squares of rotated rows [.., D], [..] f32 rounded to bf16."""
    squares = np.square(rotated.astype(np.float64)).sum(-1)
    exact = np.sqrt(squares / rotated.shape[-1]).astype(np.float32)
    kept = np.where(exact < SMALLEST_SCALE, np.float32(0), exact)
    rounded: NDArray[np.float32] = kept.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def nearest(rotated: NDArray[np.float32], scale: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    """Return the code [.., D] u8 of each number of rotated keys [.., D] with scales [..].

    A code is at least half of 2 ** bits if the number is not negative, -0 included.
    """
    x = np.where(scale[..., None] == 0, np.float32(0), rotated)
    above = np.zeros(x.shape, np.uint8)
    for edge in EDGES[bits]:
        above += np.abs(x) > np.float32(edge) * scale[..., None]
    half = np.uint8(len(MAGNITUDES[bits]))
    return np.where(x >= 0, half + above, half - np.uint8(1) - above)


def encode(keys: NDArray[Any], bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return keys [.., D] as codes [.., D * bits / 8] u8 and scales [..] f32 rounded to bf16, for 1, 2 or 4 bits.

    The code of the first number has the lowest bits of the first byte.
    """
    rotated = rotate(keys)
    scale = scales(rotated)
    codes = nearest(rotated, scale, bits)
    in_bytes = codes.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 8, 8 // bits)
    return np.bitwise_or.reduce(in_bytes << np.arange(0, 8, bits, dtype=np.uint8), axis=-1), scale


def decode(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int8]:
    """Return packed codes [.., D * bits / 8] u8 as levels [.., D] i8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (codes[..., None] >> shifts) & np.uint8(2**bits - 1)
    decoded: NDArray[np.int8] = levels(bits)[fields.reshape(*codes.shape[:-1], -1)]
    return decoded


def encode_query(queries: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return queries [.., D] as codes [.., D] i8, rounded half to even, and scales [..] f32: the largest magnitude /
    127."""
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
    """Return the approximate products of a query with keys, times the attention's `factor`.

    The value is `(dot * s) * ((query scale * step) * factor)`, each product rounded to f32; `dot` is the exact integer.

    Args:
        query: codes of the query heads that read these keys, [.., H, D] i8.
        query_scale: their scales, [.., H].
        keys: levels of the quantized keys, [.., T, D] i8.
        scale: their scales, [.., T].

    Returns:
        [.., H, T] f32.
    """
    dot = np.matmul(query.astype(np.float32), np.swapaxes(keys.astype(np.float32), -1, -2))
    of_head = query_scale * np.float32(STEPS[bits]) * np.float32(factor)
    product: NDArray[np.float32] = dot * scale[..., None, :] * of_head[..., None]
    return product
