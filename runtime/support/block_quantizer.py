"""Quantization into any weight format by its descriptor: scales from the range of each group, and the nearest codes.

Without minimums, a group's scale maps its element of largest magnitude to the code of largest magnitude; with minimums,
its scale maps its range, 0 included, to all codes. Scales of two levels share a coarse one per block, the largest scale
over the largest fine scale. Floats without a scale are rounded. llama.cpp searches for scales with a smaller error; the
formula here is the plain one, for weights that change after they were quantized (another checkpoint, an adapter).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.weight_formats.fields import Field
from sscc.ir.weight_formats.weight_format import WeightFormat

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
}
LARGEST = {kind: float(ml_dtypes.finfo(dtype).max) for kind, dtype in FLOATS.items()}
"""Largest finite number of each kind."""
_DIGIT_WEIGHTS = (81, 27, 9, 3, 1)


class BlockQuantizerErrors(ErrorKind):
    TOO_LARGE = InputError, "a weight is too large for {format}"


def fit(weight: Array, weight_format: WeightFormat) -> dict[str, Array]:
    """Quantize W [N, K] f32, K a multiple of the block, into the parts of a format, i8 [N, bytes] each.

    Raises:
        InputError: a scale is beyond the floats of the format.
    """
    f, rows = weight_format, len(weight)
    grouped = weight.reshape(rows, -1, f.block // f.group, f.group)
    raw = {part.name: np.zeros((rows, grouped.shape[1], part.bytes), np.uint8) for part in f.parts}
    if f.codes.is_float:
        _write_floats(raw, f, f.codes, grouped.reshape(rows, -1, f.block))
        return {name: part.reshape(rows, -1).view(np.int8) for name, part in raw.items()}
    low, high = _range(f.codes)
    offsets = np.zeros((), np.float32)
    if f.minimums:
        least = np.minimum(grouped.min(-1), 0)
        minimums = _write_factors(raw, f, f.minimums, -least if f.subtracts else least)
        offsets = (-minimums if f.subtracts else minimums)[..., None]
        wanted = (grouped.max(-1) - offsets[..., 0]) / np.float32(high)
    else:
        largest, smallest = grouped.max(-1), grouped.min(-1)
        extreme = np.where(largest > -smallest, largest, smallest)
        signed = -low >= high and f.scales[-1].kind not in ("exponent", "e4m3")
        wanted = extreme / np.float32(low) if signed else np.abs(extreme) / np.float32(min(high, -low))
    scales = _write_factors(raw, f, f.scales, wanted)[..., None]
    numbers = (grouped - offsets) / np.where(scales == 0, np.float32(1), scales)
    codes = _nearest(f.codes, np.where(scales == 0, np.float32(0), numbers), low, high)
    write_integers(f.codes, raw[f.codes.part], codes.reshape(rows, -1, f.block))
    return {name: part.reshape(rows, -1).view(np.int8) for name, part in raw.items()}


def _range(codes: Field) -> tuple[int, int]:
    """Return the least and the largest number of a code."""
    if codes.table:
        return min(codes.table), max(codes.table)
    if codes.kind == "signed":
        return -(1 << (codes.bits - 1)), (1 << (codes.bits - 1)) - 1
    return -codes.bias, codes.largest - codes.bias


def _nearest(codes: Field, numbers: Array, low: int, high: int) -> Array:
    """Return the bits of the codes nearest to numbers, u8."""
    if codes.table:
        order = np.argsort(codes.table, kind="stable")
        values = np.asarray(codes.table, np.float32)[order]
        middles = (values[1:] + values[:-1]) / 2
        return order[np.searchsorted(middles, numbers)].astype(np.uint8)
    nearest = np.clip(np.rint(numbers), low, high).astype(np.int32)
    return (nearest if codes.kind == "signed" else nearest + codes.bias).astype(np.uint8)


def _write_factors(raw: dict[str, Array], f: WeightFormat, fields: Sequence[Field], wanted: Array) -> Array:
    """Write scales or minimums [rows, blocks, groups] close to `wanted`. Return the stored ones, f32."""
    coarse, *finer = fields
    if not finer and coarse.is_float:
        return _write_floats(raw, f, coarse, wanted)
    if not finer:  # exponents of 2, not below the requested scales
        exponents = np.ceil(np.log2(np.maximum(wanted, np.float32(2.0**-120)))).astype(np.int32)
        bits = np.clip(exponents + coarse.bias, 0, 254)
        write_integers(coarse, raw[coarse.part], bits.astype(np.uint8))
        return np.ldexp(np.float32(1), bits - coarse.bias)
    (fine,) = finer
    if fine.is_float:
        largest = np.abs(wanted).max(-1, keepdims=True) / np.float32(LARGEST[fine.kind])
        whole = _write_floats(raw, f, coarse, largest)
        return whole * _write_floats(raw, f, fine, wanted / np.where(whole == 0, np.float32(1), whole))
    least = -fine.bias if fine.kind != "signed" else -(1 << (fine.bits - 1))
    most = (1 << fine.bits) - 1 + least
    largest = np.abs(wanted).max(-1, keepdims=True)
    whole = _write_floats(raw, f, coarse, largest / np.float32(most))
    steps = np.where(whole == 0, np.float32(1), whole)
    integers = np.clip(np.rint(wanted / steps), least, most).astype(np.int32)
    stored = integers & ((1 << fine.bits) - 1) if fine.kind == "signed" else integers + fine.bias
    write_integers(fine, raw[fine.part], stored.astype(np.uint8))
    return np.asarray(whole * integers.astype(np.float32), np.float32)


def _write_floats(raw: dict[str, Array], f: WeightFormat, field: Field, wanted: Array) -> Array:
    """Write floats [rows, blocks, count], rounded. Return them in f32."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(wanted.astype(FLOATS[field.kind]))
    if not np.isfinite(rounded.astype(np.float32)).all():
        raise BlockQuantizerErrors.TOO_LARGE(format=f)
    first = field.runs[0][0].at
    stored = rounded.view(np.uint8).reshape(*wanted.shape[:-1], -1)
    raw[field.part][..., first : first + stored.shape[-1]] = stored
    return rounded.astype(np.float32)


def write_integers(field: Field, stored: Array, bits: Array) -> None:
    """Write the bits of a field's numbers, u8 [rows, blocks, count], into zeroed parts u8 [rows, blocks, bytes]."""
    first = 0
    for group in field.runs:
        for run in group:
            numbers = (bits[..., first : first + run.count] >> np.uint8(run.shift)) & np.uint8((1 << run.bits) - 1)
            places = [run.place(number) for number in range(run.count)]
            for number, (byte, level) in enumerate(places):
                if run.base == 3:
                    stored[..., byte] += numbers[..., number] * np.uint8(_DIGIT_WEIGHTS[level])
                else:
                    stored[..., byte] |= numbers[..., number] << np.uint8(level)
            if run.base == 3:  # five digits are a number below 243, kept as the byte whose digits they are
                used = sorted({byte for byte, _ in places})
                stored[..., used] = ((stored[..., used].astype(np.uint32) * 256 + 242) // 243).astype(np.uint8)
        first += group[0].count
