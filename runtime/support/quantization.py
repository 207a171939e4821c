"""Quantized weights: numbers from stored fields, and codes, scales and zero points from numbers.

`dequantize` executes the formula of `sscc.ir.weight_formats.weight_format` for every format. `block_quantizer`
quantizes into the formats of checkpoints, this module into those of groups. A weight W [N, K] is cut along K, the axis
that a product sums over, into groups of `group` elements. A group has one scale s and a code c of `bits` bits per
element, from -h to h - 1 with h = 2^(bits - 1):

    symmetric        m = the largest element by magnitude   s = bf16(-m / h)             c = round(w / s)
    with zero point  lo = min(w, 0), hi = max(w, 0)         s = bf16((hi - lo) / (2h - 1))
                     z = round(-h - lo / s)                 c = round(w / s) + z
    with minimum     lo = min(w, 0), hi = max(w)            s = bf16((hi - m) / (2h - 1))
                     m = bf16(lo)                           c = round((w - m) / s) - h

    e4m3             m = the largest element by magnitude   s = bf16(|m| / 448)            c = e4m3(w / s), nearest

Codes and zero points are clamped to the range of codes, halves round to even, bf16 rounds away from zero (so that no
element lies more than h steps from zero), and codes are computed with the rounded scale. The format's dtype of scales,
f16 or f32, may replace bf16. The error of an element is at most one step, |s|; half a step, unless its code was
clamped. The element of largest magnitude has the code -h: this uses all 2^bits codes, and the scale has the required
sign. If two elements have that magnitude, m is the negative one. Zero stays zero, with a minimum within half a step.

Stored parts, each i8 bytes of [N, ..], and the number in f32 (scales are widened first; each operation rounds):

    8 bits   values [N, K]: c               (values - zeros) * scales
    4 bits   values [N, K / 2]: c + h, the even k in the low half of a byte, the odd one in the high half
    both     scales: a bf16 per group; zeros: z, and z + h with 4 bits, so in units of the values
    e4m3     values [N, K]: c                                          values * scales
    minimum  minimums of the scales' dtype, one per group: m           values * scales + minimums

A weight of rank 3 has a matrix [N, K] per expert: [X, N, K]. Its parts have the same leading axis.

Without zero points, the zero is 0, and h = 8 with 4 bits. bf16 has the range of f32, so no scale is lost; its lower
precision makes steps up to 2^-7 wider. f16 lacks the range: a weight whose scale is beyond it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.weight_formats.fields import DIGITS, FLOAT_BYTES, Field, Run
from sscc.ir.weight_formats.groups import MINIMUMS, SCALES, VALUES, ZEROS, GroupFormat
from sscc.ir.weight_formats.registry import CHECKPOINT_FORMATS, Encoding
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.support import _native
from sscc.runtime.support.block_quantizer import FLOATS, LARGEST, fit

Array = np.ndarray[Any, np.dtype[Any]]

_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)
_NUMBERS_AT_ONCE = 1 << 20
"""Numbers that a thread computes at once."""
_BLOCK_ELEMENTS = 1 << 22
"""Elements processed at once. This bounds memory without changing results, because rows are independent."""


class QuantizationErrors(ErrorKind):
    GROUPS = InputError, "rows of {columns} weights cannot be cut into groups of {group}"
    NOT_FINITE = InputError, "a weight that is not finite cannot be quantized"
    TOO_LARGE = InputError, "a weight is too large for scales of f16"
    ORDERED = InputError, "the order of a stored weight's columns does not follow from its numbers"


Parts = Mapping[str, Array]
"""The stored parts of a weight by name, each i8 [.., N, bytes]."""

@dataclass(frozen=True)
class Error:
    """Quantization errors of weights, squared and summed in f64, so that those of several weights can be added."""

    difference: float = 0.0
    norm: float = 0.0

    def __add__(self, other: Error) -> Error:
        return Error(self.difference + other.difference, self.norm + other.norm)

    @property
    def normwise(self) -> float:
        """||W' - W|| / ||W||, Frobenius; 0 for a weight of zeros."""
        return float(np.sqrt(self.difference / self.norm)) if self.norm else 0.0


def encode(source: Array, encoding: Encoding) -> Array:
    """Return the stored tensor that `encoding` makes of a source of any floating dtype.

    Raises:
        InputError: the source holds a number that is not finite, K is not a multiple of the block, or the columns are
            stored in another order than the source's.
    """
    if encoding.ordered:
        raise QuantizationErrors.ORDERED()
    weight = _as_summed(source, encoding)
    return quantize(weight, encoding.format)[encoding.part]


def quantize(weight: Array, weight_format: WeightFormat) -> dict[str, Array]:
    """Return W [.., N, K] of a floating dtype, quantized. Raises InputError as `encode` does."""
    blocks = [parts for _, parts in _blocks(weight.reshape(-1, weight.shape[-1]), weight_format)]
    joined = {name: np.concatenate([block[name] for block in blocks]) for name in weight_format.bytes_of}
    return {name: part.reshape(*weight.shape[:-1], -1) for name, part in joined.items()}


def dequantize(parts: Parts, weight_format: WeightFormat) -> Array:
    """Return the numbers W' [.., N, K] f32 of a weight's parts."""
    f, first = weight_format, weight_format.parts[0]
    rows = {part.name: parts[part.name].reshape(-1, parts[part.name].shape[-1]) for part in f.parts}
    columns = f.columns(first.name, rows[first.name].shape[1])
    numbers = np.empty((len(rows[first.name]), columns), np.float32)
    step = max(1, _NUMBERS_AT_ONCE // max(1, columns))

    def fill(start: int) -> None:
        some = {name: part[start : start + step] for name, part in rows.items()}
        _dequantize_rows(some, f, numbers[start : start + step])

    starts = range(0, len(numbers), step)
    if len(starts) == 1:  # a small weight costs less than a thread
        fill(0)
        return numbers.reshape(*parts[first.name].shape[:-1], columns)
    with ThreadPoolExecutor(max(1, min(len(starts), _native.usable_threads()))) as pool:
        for _ in pool.map(fill, starts):
            pass
    return numbers.reshape(*parts[first.name].shape[:-1], columns)


@np.errstate(invalid="ignore", over="ignore")  # scales of a damaged file may be infinite
def _dequantize_rows(parts: Parts, f: WeightFormat, out: Array) -> None:
    """Write the numbers of rows, f32 [rows, K], of parts i8 [rows, bytes]."""
    blocks = out.shape[1] // f.block
    raw = {
        part.name: np.ascontiguousarray(parts[part.name]).view(np.uint8).reshape(len(out), blocks, part.bytes)
        for part in f.parts
    }
    numbers = out.reshape(len(out), blocks, f.block // f.group, f.group)
    _read_into(numbers, f.codes, raw)
    if f.zeros is not None:
        numbers -= _per_group(f.zeros, raw, f)
    if f.scales:
        numbers *= _product(f.scales, raw, f)
    if f.minimums:
        minimums = _product(f.minimums, raw, f)
        (np.subtract if f.subtracts else np.add)(numbers, minimums, out=numbers)


def _product(fields: Sequence[Field], raw: Parts, f: WeightFormat) -> Array:
    """Return the products of scales, or of minimums, f32 [rows, blocks, groups, 1]."""
    total = _per_group(fields[0], raw, f)
    for field in fields[1:]:
        total = total * _per_group(field, raw, f)
    return total


def _per_group(field: Field, raw: Parts, f: WeightFormat) -> Array:
    numbers = read_field(field, raw)
    return np.repeat(numbers, field.per // f.group, axis=-1)[..., None]


def read_field(field: Field, raw: Parts) -> Array:
    """Return the numbers of a field, f32 [rows, blocks, count], of parts u8 [rows, blocks, bytes]."""
    numbers = np.empty((*raw[field.part].shape[:-1], field.count), np.float32)
    _read_into(numbers, field, raw)
    return numbers


def _read_into(numbers: Array, field: Field, raw: Parts) -> None:
    """Write the numbers of a field into f32 [rows, blocks, ..]."""
    stored = raw[field.part]
    if field.is_float:
        first = field.runs[0][0].at
        nbytes = FLOAT_BYTES[field.kind] * field.count
        floats = np.ascontiguousarray(stored[..., first : first + nbytes]).view(FLOATS[field.kind])
        numbers[...] = floats.reshape(numbers.shape)
        return
    integers = read_integers(field, stored).reshape(numbers.shape)
    if field.table:
        np.take(np.asarray(field.table, np.float32), integers, out=numbers, mode="clip")
        return
    match field.kind:
        case "exponent":
            np.ldexp(np.float32(1), integers.astype(np.int32) - field.bias, out=numbers)
        case "signed":
            sign = 1 << (field.bits - 1)
            numbers[...] = integers ^ np.uint8(sign)
            numbers -= np.float32(sign)
        case _:
            numbers[...] = integers
            if field.bias:
                numbers -= np.float32(field.bias)


def read_integers(field: Field, stored: Array) -> Array:
    """Return the bits of a field's numbers, u8 [rows, blocks, count], of a part u8 [rows, blocks, bytes]."""
    columns = []
    for group in field.runs:
        numbers = _read_run(group[0], stored)
        for run in group[1:]:
            numbers |= _read_run(run, stored)
        columns.append(numbers)
    return columns[0] if len(columns) == 1 else np.concatenate(columns, -1)


def _read_run(run: Run, stored: Array) -> Array:
    """Return the bits of a run at their place in the numbers, u8 [rows, blocks, count]."""
    levels = DIGITS if run.base == 3 else (8 - run.low) // run.bits
    lines = -(-run.count // (run.side * levels))
    taken = stored[..., run.at : run.at + lines * run.side].reshape(*stored.shape[:-1], lines, 1, run.side)
    bits = np.empty((*stored.shape[:-1], lines, levels, run.side), np.uint8)
    for level in range(levels):
        line, source = bits[..., level, :], taken[..., 0, :]
        if run.base == 3:
            digits = source * _POWERS_OF_3[level]  # modulo 256
            line[...] = digits.astype(np.uint16) * 3 >> 8
        else:
            np.right_shift(source, np.uint8(run.low + level * run.bits), out=line)
    if run.base == 2:
        bits &= np.uint8((1 << run.bits) - 1)
    if run.shift:
        bits <<= np.uint8(run.shift)
    return bits.reshape(*stored.shape[:-1], -1)[..., : run.count]


def round_trip(source: Array, encoding: Encoding) -> Array:
    """Return the numbers of a source after it has been quantized, f32 of its shape. Raises as `encode` does."""
    weight = _as_summed(source, encoding)
    return _as_summed(dequantize(quantize(weight, encoding.format), encoding.format), encoding)


def measure_error(weight: Array, weight_format: WeightFormat) -> Error:
    """Return the error of the quantized numbers of W [.., N, K]. Raises InputError as `encode` does."""
    total = Error()
    for block, parts in _blocks(weight.reshape(-1, weight.shape[-1]), weight_format):
        exact = block.astype(np.float64)
        difference = dequantize(parts, weight_format) - exact
        total += Error(float(np.vdot(difference, difference)), float(np.vdot(exact, exact)))
    return total


def _as_summed(source: Array, encoding: Encoding) -> Array:
    """Return a source with the summed axis last, [.., N, K]; the function is its own inverse."""
    return source.swapaxes(-1, -2) if encoding.transposed else source


# ------------------------------------------------------------------------------------------------------- the formula


def _blocks(weight: Array, weight_format: WeightFormat) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield W [N, K] in f32 with its parts, some rows at a time."""
    rows, columns = weight.shape
    if columns % weight_format.block:
        raise QuantizationErrors.GROUPS(columns=columns, group=weight_format.block)
    group = None if weight_format.name in CHECKPOINT_FORMATS else GroupFormat.parse(weight_format.name)
    step = max(1, _BLOCK_ELEMENTS // max(1, columns))
    for start in range(0, max(1, rows), step):
        block = np.ascontiguousarray(weight[start : start + step], dtype=np.float32)
        if not np.isfinite(block).all():
            raise QuantizationErrors.NOT_FINITE()
        yield block, fit(block, weight_format) if group is None else _quantize_block(block, group)


def _quantize_block(block: Array, f: GroupFormat) -> dict[str, Array]:
    grouped = block.reshape(len(block), -1, f.group)
    if f.floating:
        scales = _round_away(np.abs(grouped).max(axis=-1) / np.float32(LARGEST["e4m3"]), f)
        small = (grouped / _steps(scales)).astype(ml_dtypes.float8_e4m3fn)
        return {VALUES: as_bytes(small.reshape(block.shape)), SCALES: as_bytes(scales)}
    parts = {}
    if f.zero_point:
        scales, zeros = _with_zero_point(grouped, f)
        parts[ZEROS] = as_bytes((zeros + f.offset).astype(np.int8))
        codes = np.rint(grouped / _steps(scales)) + zeros[..., None]
    elif f.minimum:
        scales, minimums = _with_minimum(grouped, f)
        parts[MINIMUMS] = as_bytes(minimums)
        codes = np.rint((grouped - minimums.astype(np.float32)[..., None]) / _steps(scales)) - np.float32(f.half)
    else:
        scales = _symmetric(grouped, f)
        codes = np.rint(grouped / _steps(scales))
    np.clip(codes, -f.half, f.half - 1, out=codes)
    stored = (codes + f.offset).astype(np.int8).reshape(block.shape)
    if f.bits == 4:
        stored = stored[:, 0::2] | (stored[:, 1::2] << 4)
    return {VALUES: stored, SCALES: as_bytes(scales), **parts}


def as_bytes(array: Array) -> Array:
    """Return the bytes of an array [.., n] as i8 [.., n * itemsize]."""
    return np.ascontiguousarray(array).view(np.int8)


def _steps(scales: Array) -> Array:
    """Return scales in f32 as divisors [.., 1]; 1 for those that are 0."""
    steps = scales.astype(np.float32)[..., None]
    return np.where(steps == 0, np.float32(1), steps)


def _symmetric(grouped: Array, f: GroupFormat) -> Array:
    """Return scales [N, groups]."""
    low, high = grouped.min(axis=-1), grouped.max(axis=-1)
    extreme = np.where(high > -low, high, low)
    return _round_away(extreme / np.float32(-f.half), f)


def _with_zero_point(grouped: Array, f: GroupFormat) -> tuple[Array, Array]:
    """Return scales and codes of zero, both [N, groups]."""
    low = np.minimum(grouped.min(axis=-1), np.float32(0))
    high = np.maximum(grouped.max(axis=-1), np.float32(0))
    last = np.float32(2 * f.half - 1)
    scales = _round_away(high / last - low / last, f)  # high - low may exceed the range of f32
    zeros = np.rint(-f.half - low / _steps(scales)[..., 0])
    return scales, np.clip(zeros, -f.half, f.half - 1)


def _with_minimum(grouped: Array, f: GroupFormat) -> tuple[Array, Array]:
    """Return scales and minimums, both [N, groups]."""
    last = np.float32(2 * f.half - 1)
    minimums = _round_away(np.minimum(grouped.min(axis=-1), np.float32(0)), f)  # downwards, being negative
    return _round_away(grouped.max(axis=-1) / last - minimums.astype(np.float32) / last, f), minimums


def _round_away(numbers: Array, f: GroupFormat) -> Array:
    """Return f32 numbers in the dtype of scales, rounded away from zero. Raises InputError for a number beyond its
    range."""
    exact = np.ascontiguousarray(numbers + np.float32(0))  # -0 becomes 0
    if f.scales == "f32":
        return exact
    if f.scales == "bf16":  # the upper half of the bits, plus one if the lower half is not 0
        bits = exact.view(np.uint32)
        return ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float16)
    away = np.nextafter(rounded, np.copysign(np.float16(np.inf), rounded))
    rounded = np.where(np.abs(rounded.astype(np.float32)) < np.abs(exact), away, rounded)
    if not np.isfinite(rounded).all():
        raise QuantizationErrors.TOO_LARGE()
    return rounded
