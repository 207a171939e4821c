"""Weights of 8 or 4 bits: how their codes, scales and zero points are made from a checkpoint's tensor, and back.

A weight W [N, K] is cut along K, the axis that a product sums over, into groups of `group` elements. A group has one
scale s and a code c of `bits` bits per element, from -h to h - 1 with h = 2^(bits - 1):

    symmetric        m = the largest element by magnitude   s = bf16(-m / h)             c = round(w / s)
    with zero point  lo = min(w, 0), hi = max(w, 0)         s = bf16((hi - lo) / (2h - 1))
                     z = round(-h - lo / s)                 c = round(w / s) + z
    with minimum     lo = min(w, 0), hi = max(w)            s = bf16((hi - m) / (2h - 1))
                     m = bf16(lo)                           c = round((w - m) / s) - h

    e4m3             m = the largest element by magnitude   s = bf16(|m| / 448)            c = e4m3(w / s), nearest

c and z are clamped to the range of codes, halves round to even, bf16 rounds away from zero (so that no element lies
more than h steps from zero), and codes are found with the rounded scale. In the place of bf16 stands the
format's dtype of scales, f16 or f32. So an element is at most one step, |s|, from
what it becomes; half a step, unless its code was clamped. The element of largest magnitude has the code -h: that
uses all 2^bits codes, and the scale has the sign that this needs. Of two
elements of that magnitude, m is the negative one. Zero stays zero, with a
minimum within half a step.

What is stored, and what it stands for in f32 (scales are widened first; each operation rounds):

    8 bits   values i8 [N, K]: c               (values - zeros) * scales
    4 bits   values i8 [N, K / 2]: c + h, the even k in the low half of a byte, the odd one in the high half
    both     scales bf16 [N, K / group]; zeros i8 [N, K / group]: z, and z + h with 4 bits, so in units of the values
    e4m3     values f8E4M3FN [N, K]: c                                          values * scales
    minimum  minimums of the scales' dtype [N, K / group]: m                    values * scales + minimums

A weight of rank 3, a matrix [N, K] per expert, is its matrices one below the other: [X, N, K], and so are its parts.

Without zero points, zeros stands for 0, and for h = 8 with 4 bits. bf16 has the range of f32, so no scale is lost; what
it lacks in precision costs steps that are up to 2^-7 wider, not an error of that size. f16 lacks the range: a weight
whose scale is beyond it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.weight_format import Encoding, WeightFormat

Array = np.ndarray[Any, np.dtype[Any]]

_LARGEST_E4M3 = 448
_BLOCK_ELEMENTS = 1 << 22
"""Elements that are in work at once: bounds memory, and changes no result, because rows do not depend on each other."""


class QuantizationErrors(ErrorKind):
    GROUPS = InputError, "rows of {columns} weights cannot be cut into groups of {group}"
    NOT_FINITE = InputError, "a weight that is not finite cannot be quantised"
    TOO_LARGE = InputError, "a weight is too large for scales of f16"


@dataclass(frozen=True)
class Quantized:
    """A weight [N, K] as it is stored; None for a part that its format lacks. The module's docstring has the shapes."""

    values: Array
    scales: Array
    zeros: Array | None = None
    minimums: Array | None = None


@dataclass(frozen=True)
class Error:
    """How far weights are from what they become, squared and summed in f64, so that errors of several can be added."""

    difference: float = 0.0
    norm: float = 0.0

    def __add__(self, other: Error) -> Error:
        return Error(self.difference + other.difference, self.norm + other.norm)

    @property
    def normwise(self) -> float:
        """||W' - W|| / ||W||, Frobenius; 0 for a weight of zeros."""
        return float(np.sqrt(self.difference / self.norm)) if self.norm else 0.0


def encode(source: Array, encoding: Encoding) -> Array:
    """The stored tensor that `encoding` makes of a source of any floating dtype.

    Raises:
        InputError: the source holds a number that is not finite, or K is not a multiple of the group.
    """
    weight = _as_summed(source, encoding)
    blocks = _blocks(weight.reshape(-1, weight.shape[-1]), encoding.format)
    part = np.concatenate([getattr(block, encoding.part) for _, block in blocks])
    return part.reshape(*weight.shape[:-1], part.shape[-1])


def quantize(weight: Array, weight_format: WeightFormat) -> Quantized:
    """Quantises W [N, K] of a floating dtype. Raises InputError as `encode` does."""
    blocks = [quantised for _, quantised in _blocks(weight, weight_format)]
    columns = {part: np.concatenate([getattr(block, part) for block in blocks]) for part in weight_format.parts}
    return Quantized(**columns)


def dequantize(quantized: Quantized, weight_format: WeightFormat) -> Array:
    """What the stored tensors stand for: f32 [N, K]."""
    rows = len(quantized.values)
    codes = quantized.values
    if weight_format.floating:
        codes = codes.astype(np.float32)
    if weight_format.bits == 4:
        codes = np.stack([codes & 15, (codes >> 4) & 15], axis=-1)
    grouped = codes.reshape(rows, -1, weight_format.group).astype(np.float32)
    zeros, minimums = quantized.zeros, quantized.minimums
    if minimums is None:
        grouped -= np.float32(weight_format.offset) if zeros is None else zeros.astype(np.float32)[..., None]
    grouped *= quantized.scales.astype(np.float32)[..., None]
    if minimums is not None:
        grouped += minimums.astype(np.float32)[..., None]
    return grouped.reshape(rows, -1)


def round_trip(source: Array, encoding: Encoding) -> Array:
    """What a source is after it has been quantised: f32 of its shape. Raises InputError as `encode` does."""
    weight = _as_summed(source, encoding)
    rows = quantize(weight.reshape(-1, weight.shape[-1]), encoding.format)
    return _as_summed(dequantize(rows, encoding.format).reshape(weight.shape), encoding)


def measure_error(weight: Array, weight_format: WeightFormat) -> Error:
    """How far W [.., N, K] is from what it becomes. Raises InputError as `encode` does."""
    total = Error()
    for block, quantised in _blocks(weight.reshape(-1, weight.shape[-1]), weight_format):
        exact = block.astype(np.float64)
        difference = dequantize(quantised, weight_format) - exact
        total += Error(float(np.vdot(difference, difference)), float(np.vdot(exact, exact)))
    return total


def _as_summed(source: Array, encoding: Encoding) -> Array:
    """[.., N, K] of a source, and the source of that."""
    return source.swapaxes(-1, -2) if encoding.transposed else source


# ------------------------------------------------------------------------------------------------------- the formula


def _blocks(weight: Array, weight_format: WeightFormat) -> Iterator[tuple[Array, Quantized]]:
    """W [N, K] in f32 and what it becomes, some rows at a time."""
    rows, columns = weight.shape
    if columns % weight_format.group:
        raise QuantizationErrors.GROUPS(columns=columns, group=weight_format.group)
    step = max(1, _BLOCK_ELEMENTS // max(1, columns))
    for start in range(0, max(1, rows), step):
        block = np.ascontiguousarray(weight[start : start + step], dtype=np.float32)
        if not np.isfinite(block).all():
            raise QuantizationErrors.NOT_FINITE()
        yield block, _quantize_block(block, weight_format)


def _quantize_block(block: Array, f: WeightFormat) -> Quantized:
    grouped = block.reshape(len(block), -1, f.group)
    zeros = minimums = None
    if f.floating:
        scales = _round_away(np.abs(grouped).max(axis=-1) / np.float32(_LARGEST_E4M3), f)
        steps = scales.astype(np.float32)[..., None]
        small = (grouped / np.where(steps == 0, np.float32(1), steps)).astype(ml_dtypes.float8_e4m3fn)
        return Quantized(small.reshape(block.shape), scales)
    if f.zero_point:
        scales, zeros = _with_zero_point(grouped, f)
    elif f.minimum:
        scales, minimums = _with_minimum(grouped, f)
        grouped = grouped - minimums.astype(np.float32)[..., None]
    else:
        scales = _symmetric(grouped, f)
    steps = scales.astype(np.float32)[..., None]
    codes = np.rint(grouped / np.where(steps == 0, np.float32(1), steps))
    if zeros is not None:
        codes += zeros[..., None]
    if minimums is not None:
        codes -= np.float32(f.half)
    np.clip(codes, -f.half, f.half - 1, out=codes)
    stored = (codes + f.offset).astype(np.int8).reshape(block.shape)
    if f.bits == 4:
        stored = stored[:, 0::2] | (stored[:, 1::2] << 4)
    return Quantized(stored, scales, None if zeros is None else (zeros + f.offset).astype(np.int8), minimums)


def _symmetric(grouped: Array, f: WeightFormat) -> Array:
    """Scales [N, groups]."""
    low, high = grouped.min(axis=-1), grouped.max(axis=-1)
    extreme = np.where(high > -low, high, low)
    return _round_away(extreme / np.float32(-f.half), f)


def _with_zero_point(grouped: Array, f: WeightFormat) -> tuple[Array, Array]:
    """Scales and codes of zero, both [N, groups]."""
    low = np.minimum(grouped.min(axis=-1), np.float32(0))
    high = np.maximum(grouped.max(axis=-1), np.float32(0))
    last = np.float32(2 * f.half - 1)
    scales = _round_away(high / last - low / last, f)  # high - low may be beyond f32
    steps = scales.astype(np.float32)
    zeros = np.rint(-f.half - low / np.where(steps == 0, np.float32(1), steps))
    return scales, np.clip(zeros, -f.half, f.half - 1)


def _with_minimum(grouped: Array, f: WeightFormat) -> tuple[Array, Array]:
    """Scales and minimums, both [N, groups]."""
    last = np.float32(2 * f.half - 1)
    minimums = _round_away(np.minimum(grouped.min(axis=-1), np.float32(0)), f)  # downwards, being negative
    return _round_away(grouped.max(axis=-1) / last - minimums.astype(np.float32) / last, f), minimums


def _round_away(numbers: Array, f: WeightFormat) -> Array:
    """f32 in the dtype of scales, away from zero. Raises InputError for one that is beyond it."""
    exact = np.ascontiguousarray(numbers + np.float32(0))  # -0 becomes 0
    if f.scales == "f32":
        return exact
    if f.scales == "bf16":  # the upper half of the bits, and one more where the lower half says something
        bits = exact.view(np.uint32)
        return ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float16)
    away = np.nextafter(rounded, np.copysign(np.float16(np.inf), rounded))
    rounded = np.where(np.abs(rounded.astype(np.float32)) < np.abs(exact), away, rounded)
    if not np.isfinite(rounded).all():
        raise QuantizationErrors.TOO_LARGE()
    return rounded
