"""Checkpoints whose weights are published in 8 or 4 bits: the tensors of a weight, and its numbers.

`quantized_weights` finds them by the names and shapes of the stored tensors, in the layout of the method that
`quantization_config` names; `QuantizedSource` returns each as one tensor of f32 numbers under the name of the
parameter, computed on demand. Weights that a program can hold as stored are also returned as codes.

The layouts are the published ones, of weights [N, K] with groups of g along K:

    fp8                 X.weight e4m3 [N, K]; X.weight_scale_inv [ceil(N / a), ceil(K / b)], blocks of a x b, or one
    mxfp4               X_blocks u8 [E, N, K / 32, 16], the even k in the low half of a byte, e2m1; X_scales u8
                        [E, N, K / 32], exponents of 2 plus 127; the parameter X is [E, K, N]
    gptq                X.qweight i32 [K bits / 32, N], low bits first; X.qzeros i32 [K / g, N bits / 32], one less than
                        the zero point (gptq_v2: the zero point); X.scales [K / g, N]; X.g_idx i32 [K], the groups
    awq                 X.qweight i32 [K, N / 8], columns 0 2 4 6 1 3 5 7 from the low bits on; X.qzeros i32
                        [K / g, N / 8] likewise; X.scales [K / g, N]
    compressed-tensors  X.weight_packed i32 [N, K bits / 32], low bits first, codes plus 2^(bits - 1), X.weight_shape,
                        optionally X.weight_zero_point i32, packed likewise along N, and X.weight_g_idx; or X.weight i8
                        or e4m3 [N, K]; X.weight_scale [N, K / g], [N, 1], one number, or one per block; or NVFP4:
                        X.weight_packed u8 [N, K / 2], the even k in the low half of a byte, e2m1, X.weight_scale e4m3
                        [N, K / 16], X.weight_global_scale, one number that scales are divided by
    modelopt            X.weight e4m3 [N, K], X.weight_scale one number; or NVFP4: X.weight u8, X.weight_scale as above,
                        X.weight_scale_2, one number that scales are multiplied by

A weight is (code - zero point) * scale, in f32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np
import torch

from sscc.compiler.frontend.quantization_config import AWQ, COMPRESSED, FP8, GPTQ, MODELOPT, MXFP4
from sscc.compiler.frontend.sources import StoredForm, TensorInfo, TensorSource
from sscc.ir.errors import ErrorKind, InputError, SsccError
from sscc.ir.weight_formats.fields import Kind
from sscc.ir.weight_formats.groups import SCALES, VALUES, ZEROS, GroupFormat
from sscc.ir.weight_formats.microscaling import BLOCKS, MXFP4_FORMAT, NVFP4_GROUP, WHOLE, nvfp4_of
from sscc.ir.weight_formats.registry import ORDER
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.backends.reference.arrays import to_array
from sscc.runtime.support.quantization import Parts, as_bytes

Read = Callable[[str], torch.Tensor]
Held = Mapping[str, TensorInfo]

WORD_BITS = 32
LARGEST_GROUP = 128
"""Longer groups are cut, with their scale repeated: a product rounds its other operand by the largest number of a
group."""

_FP8 = torch.float8_e4m3fn
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # place of each column among the 8 of a word
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
_MXFP4_BYTES = 16  # bytes of a group of 32
_SCALE_DTYPES: Mapping[torch.dtype, Kind] = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}


class QuantizedShapeKind(ErrorKind):
    """Kinds of errors for a stored tensor with a wrong shape."""

    def __init__(self, message: str) -> None:
        super().__init__(InputError, "{path}: tensor {tensor!r} has shape {shape}, " + message)


class QuantizedShapeErrors(QuantizedShapeKind):
    EMPTY = "expected no dimension to be 0"
    RANK = "expected {rank} dimensions, none of them 0"
    OTHER = "expected {expected} by {of}"
    NO_BLOCK_SIZE = "but quantization_config has no weight_block_size"
    GROUP_BYTES = "expected groups of {bytes} bytes"
    GROUPS = "but {columns} columns cannot be divided into {groups} groups"
    BITS = "but {shape_tensor!r} states {stored}, which is neither 4 nor 8 bits per weight"
    SCALES = "expected [{rows}, groups] or one number by {of!r} of shape {weight_shape}"
    FP8_SCALES = "expected one number, one per row or one per block by {of!r} of shape {weight_shape}"


class QuantizedErrors(ErrorKind):
    NONE_STORED = InputError, "{path}: quantization_config states {method}, but no weight is stored in this form"
    PART_MISSING = InputError, "{path} lacks tensor {tensor!r}, a part of a quantized weight"
    DTYPE = InputError, "{path}: tensor {tensor!r} is {dtype}, expected one of {expected}"
    BLOCK_SIZE = InputError, "quantization_config: weight_block_size is {value}, expected two positive numbers"
    BITS = InputError, "quantization_config: bits is {bits!r}, expected 4 or 8"
    NUMBER_NOT_FINITE = InputError, "tensor {tensor!r} holds a number that is not finite"
    SCALE_NOT_FINITE = InputError, "tensor {tensor!r} holds a scale that is not finite"
    EXPONENT = InputError, "tensor {tensor!r} holds 255, the exponent that marks NaN"
    GROUP = InputError, "tensor {tensor!r} names a group beyond its {groups} groups"


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight that is stored as several tensors.

    Attributes:
        shape: shape of the weight.
        parts: names of the stored tensors.
        numbers: computes the weight, f32 of the shape.
        stored: reads the parts of `form.format`; None if the form has no format.

    Both raise InputError naming a stored tensor with invalid contents.
    """

    shape: tuple[int, ...]
    parts: tuple[str, ...]
    form: StoredForm
    numbers: Callable[[Read], torch.Tensor]
    stored: Callable[[Read], Parts] | None = None


class QuantizedSource(TensorSource):
    """A source in which weights are stored in parts: each of them appears as one tensor, all others are unchanged."""

    def __init__(self, source: TensorSource, weights: Mapping[str, QuantizedWeight]) -> None:
        self._source = source
        self._weights = weights
        parts = {part for weight in weights.values() for part in weight.parts}
        self._names = {name: info for name, info in source.names().items() if name not in parts}
        self._names |= {name: (weight.shape, torch.float32) for name, weight in weights.items()}

    def names(self) -> dict[str, TensorInfo]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        weight = self._weights.get(name)
        return self._source.tensor(name) if weight is None else weight.numbers(self._source.tensor)

    def stored_form(self, name: str) -> StoredForm | None:
        weight = self._weights.get(name)
        return self._source.stored_form(name) if weight is None else weight.form

    def parts(self, name: str) -> Parts:
        weight = self._weights.get(name)
        if weight is None:
            return self._source.parts(name)
        if weight.stored is None:
            return super().parts(name)
        return weight.stored(self._source.tensor)

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feed the stored tensors, to avoid computing numbers."""
        self._source.update_digest(digest)


def quantized_weights(source: TensorSource, fields: Mapping[str, Any], origin: str) -> dict[str, QuantizedWeight]:
    """Return the weights of a source that are stored in parts, by the names of their parameters.

    Args:
        fields: a `quantization_config` that `check_quantization` has accepted.

    Raises:
        InputError: a part is missing, or its shape or dtype does not fit the others; or no weight is stored in this
            form.
        UnsupportedError: an unsupported layout of the method.
    """
    held = source.names()
    finder = _FINDERS[fields["quant_method"]]
    weights = dict(finder(_Parts(held, origin), fields, source.tensor))
    if not weights:
        raise QuantizedErrors.NONE_STORED(path=origin, method=fields["quant_method"])
    return weights


class _Parts:
    """Access to stored tensors that must have a given shape and dtype."""

    def __init__(self, held: Held, origin: str) -> None:
        self.held = held
        self._origin = origin

    def ending(self, suffix: str) -> list[str]:
        """Return the names of the tensors with this ending, without it."""
        return sorted(name.removesuffix(suffix) for name in self.held if name.endswith(suffix))

    def shape(self, name: str, dtypes: tuple[torch.dtype, ...], rank: int | None = None) -> tuple[int, ...]:
        """Return the shape of a required stored tensor. Raises InputError."""
        if name not in self.held:
            raise QuantizedErrors.PART_MISSING(path=self._origin, tensor=name)
        shape, dtype = self.held[name]
        if dtype not in dtypes:
            raise QuantizedErrors.DTYPE(
                path=self._origin, tensor=name, dtype=_word(dtype), expected=[_word(dtype) for dtype in dtypes]
            )
        if rank is not None and (len(shape) != rank or 0 in shape):
            raise self.wrong(QuantizedShapeErrors.RANK, name, rank=rank)
        if 0 in shape:
            raise self.wrong(QuantizedShapeErrors.EMPTY, name)
        return shape

    def expect(self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], of: str) -> None:
        """Check a stored tensor against the weight that it is a part of. Raises InputError."""
        if self.shape(name, dtypes) != shape:
            raise self.wrong(QuantizedShapeErrors.OTHER, name, of=of, expected=str(list(shape)))

    def wrong(self, kind: QuantizedShapeKind, name: str, **fields: Any) -> SsccError:
        return kind(path=self._origin, tensor=name, shape=str(list(self.held[name][0])), **fields)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Found = Iterator[tuple[str, QuantizedWeight]]


# ------------------------------------------------------------------------------------------------------- small floats


def _find_fp8(parts: _Parts, fields: Mapping[str, Any], read: Read) -> Found:
    block = fields.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(type(side) is int and 0 < side < 1 << 31 for side in block)
    ):
        raise QuantizedErrors.BLOCK_SIZE(value=f"{block!r:.80}")
    for stem in parts.ending(".weight_scale_inv"):
        weight, scale = f"{stem}.weight", f"{stem}.weight_scale_inv"
        shape = parts.shape(weight, (_FP8,), 2)
        grid = parts.shape(scale, (*_SCALE_DTYPES, torch.float8_e8m0fnu))
        sides = (shape[0], shape[1]) if np.prod(grid) == 1 and block is None else block
        if sides is None:
            raise parts.wrong(QuantizedShapeErrors.NO_BLOCK_SIZE, scale)
        if np.prod(grid) != 1 or block is not None:
            blocks = tuple(-(-size // side) for size, side in zip(shape, sides, strict=True))
            parts.expect(scale, blocks, (*_SCALE_DTYPES, torch.float8_e8m0fnu), f"{list(shape)} in blocks of {sides}")
        yield weight, _scaled_floats(weight, scale, parts.held[scale][1], shape, (sides[0], sides[1]))


def _scaled_floats(
    weight: str, scale: str, scale_dtype: torch.dtype, shape: tuple[int, ...], block: tuple[int, int]
) -> QuantizedWeight:
    words = f"fp8 with a scale for every {block[0]} x {block[1]}"
    matrix = (shape[0], shape[1])
    numbers = partial(_scaled_numbers, weight, scale, matrix, block)
    # A group may not extend beyond the end of a block.
    length = matrix[1] if block[1] >= matrix[1] else gcd(matrix[1], block[1])
    group = next((size for size in (LARGEST_GROUP, 64, 32, 16, 8) if length % size == 0), None)
    if group is None:
        return QuantizedWeight(shape, (weight, scale), StoredForm(words), numbers)
    held = GroupFormat(8, group, scales=_SCALE_DTYPES.get(scale_dtype, "f32"), floating=True)
    stored = partial(_kept_floats, weight, scale, matrix, block, held)
    return QuantizedWeight(shape, (weight, scale), StoredForm(words, held.descriptor), numbers, stored)


def _kept_floats(
    weight: str, scale: str, shape: tuple[int, int], block: tuple[int, int], held: GroupFormat, read: Read
) -> Parts:
    """Return floats as they are stored, and for each group of a row the scale of its block."""
    values = read(weight)
    if bool((values.view(torch.uint8) & 0x7F == 0x7F).any()):
        raise QuantizedErrors.NUMBER_NOT_FINITE(tensor=weight)
    scales = _finite(scale, read).reshape(-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    if scales.dtype not in _SCALE_DTYPES:
        scales = scales.to(torch.float32)
    rows, groups = torch.arange(shape[0]) // block[0], torch.arange(0, shape[1], held.group) // block[1]
    return {VALUES: as_bytes(_array(values)), SCALES: as_bytes(_array(scales[rows][:, groups]))}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the bits of a tensor, in a dtype that numpy knows."""
    dense = tensor.contiguous()
    return to_array(dense.view(torch.int8) if dense.dtype == _FP8 else dense)


def _scaled_numbers(
    weight: str, scale: str, shape: tuple[int, int], block: tuple[int, int], read: Read
) -> torch.Tensor:
    values = read(weight).to(torch.float32)
    scales = _finite(scale, read).to(torch.float32).reshape(-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    for number, first in enumerate(range(0, shape[1], block[1])):  # avoids a copy of the scales as large as the weight
        band = scales[:, number].repeat_interleave(block[0])[: shape[0]]
        values[:, first : first + block[1]] *= band[:, None]
    return values


def _find_mxfp4(parts: _Parts, fields: Mapping[str, Any], read: Read) -> Found:
    for stem in parts.ending("_blocks"):
        blocks, scales = f"{stem}_blocks", f"{stem}_scales"
        experts, rows, groups, size = parts.shape(blocks, (torch.uint8,), 4)
        if size != _MXFP4_BYTES:
            raise parts.wrong(QuantizedShapeErrors.GROUP_BYTES, blocks, bytes=_MXFP4_BYTES)
        parts.expect(scales, (experts, rows, groups), (torch.uint8,), f"{blocks!r}")
        shape = (experts, groups * size * 2, rows)
        form = StoredForm("mxfp4", MXFP4_FORMAT, transposed=True)
        numbers, stored = partial(_mxfp4_numbers, blocks, scales, shape), partial(_mxfp4_parts, blocks, scales, shape)
        yield stem, QuantizedWeight(shape, (blocks, scales), form, numbers, stored)


def _mxfp4_parts(blocks: str, scales: str, shape: tuple[int, int, int], read: Read) -> Parts:
    experts, columns, rows = shape
    return {
        BLOCKS: _array(read(blocks).view(torch.int8)).reshape(experts, rows, columns // 2),
        SCALES: _array(_exponents(scales, read).view(torch.int8)),
    }


def _exponents(scales: str, read: Read) -> torch.Tensor:
    """Return exponents. Raises InputError if one is NaN (255)."""
    exponents = read(scales)
    if bool((exponents == 255).any()):
        raise QuantizedErrors.EXPONENT(tensor=scales)
    return exponents


def _mxfp4_numbers(blocks: str, scales: str, shape: tuple[int, int, int], read: Read) -> torch.Tensor:
    experts, columns, rows = shape
    stored, exponents = read(blocks), _exponents(scales, read)
    out = torch.empty(shape)
    for expert in range(experts):
        numbers = _E2M1[_nibbles(stored[expert]).to(torch.int32)]
        scaled = torch.ldexp(numbers, exponents[expert].to(torch.int32)[..., None] - 127)
        out[expert] = scaled.reshape(rows, columns).T
    return out


# ------------------------------------------------------------------------------------------------------------ integers


@dataclass(frozen=True)
class _Codes:
    """Integers from 0 to 2^bits - 1, with scales and zero points.

    Attributes:
        values: u8 [N, K].
        scales: [N, groups] of a floating dtype.
        zeros: integers [N, groups], the code of zero; None for 2^(bits - 1).
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None


def _integer_weight(
    parts: tuple[str, ...],
    shape: tuple[int, int],
    groups: int,
    bits: int,
    scale_dtype: torch.dtype,
    *,
    method: str,
    zero_point: bool,
    index: _Index | None,
    unpack: Callable[[Read], _Codes],
) -> QuantizedWeight:
    """Return a weight of codes.

    Args:
        groups: number of groups along K.
        index: group of each column; None if groups are contiguous.
        unpack: reads the codes, which are from 0 to 2^bits - 1.
    """
    group = shape[1] // groups
    cut = group
    if group > LARGEST_GROUP:
        cut = next((size for size in (128, 64, 32, 16, 8) if group % size == 0), group)
    words = f"{method}, {bits} bits, groups of {group}{', with zero points' if zero_point else ''}"
    fits = cut % 2 == 0
    held = GroupFormat(bits, cut, zero_point, scales=_SCALE_DTYPES[scale_dtype]) if fits else None
    words += "" if index is None else ", columns out of order"
    numbers = partial(_integer_numbers, shape, groups, bits, index, unpack)
    if held is None or not (index is None or index.is_even):
        return QuantizedWeight(shape, parts, StoredForm(words), numbers)
    stored = partial(_kept_codes, held, group // cut, unpack, index)
    form = StoredForm(words, held.descriptor, ordered=index is not None)
    return QuantizedWeight(shape, parts, form, numbers, stored)


@dataclass(frozen=True)
class _Index:
    """A stored tensor with the group of each column, if the columns of a group are not adjacent.

    Attributes:
        is_even: True if every group has the same number of columns.
    """

    tensor: str
    is_even: bool


def _index(parts: _Parts, tensor: str, k: int, groups: int, read: Read) -> _Index | None:
    """Return the index of that name; None where it is not there or the columns lie side by side."""
    if tensor not in parts.held:
        return None
    parts.expect(tensor, (k,), (torch.int32, torch.int64), f"a weight of {k} columns")
    of_column = read(tensor).to(torch.int64)
    group_of_column = torch.arange(k) // (k // groups)
    if torch.equal(of_column, group_of_column) or bool((of_column == -1).all()):
        return None
    return _Index(tensor, torch.equal(of_column.sort().values, group_of_column))


def _integer_numbers(
    shape: tuple[int, int], groups: int, bits: int, index: _Index | None, unpack: Callable[[Read], _Codes], read: Read
) -> torch.Tensor:
    """Return (code - zero point) * scale, in f32."""
    codes = unpack(read)
    numbers = codes.values.to(torch.float32)
    scales = codes.scales.to(torch.float32)
    zeros = torch.full_like(scales, 1 << (bits - 1)) if codes.zeros is None else codes.zeros.to(torch.float32)
    if index is None:
        grouped = numbers.reshape(shape[0], groups, -1)
        grouped -= zeros[..., None]
        grouped *= scales[..., None]
        return numbers
    of_column = read(index.tensor).to(torch.int64)
    if bool(((of_column < 0) | (of_column >= groups)).any()):
        raise QuantizedErrors.GROUP(tensor=index.tensor, groups=groups)
    for group in range(groups):  # gathering for all columns at once would take as much memory as the weight
        columns = of_column == group
        numbers[:, columns] = (numbers[:, columns] - zeros[:, group, None]) * scales[:, group, None]
    return numbers


def _kept_codes(
    held: GroupFormat, times: int, unpack: Callable[[Read], _Codes], index: _Index | None, read: Read
) -> Parts:
    """Return codes in a program's form: from -h on with 8 bits, two in a byte with 4 bits; with an index, groups are
    made contiguous."""
    codes = unpack(read)
    order = None if index is None else read(index.tensor).argsort(stable=True)
    values = (codes.values if order is None else codes.values[:, order]).numpy().view(np.uint8)
    low = held.half if held.bits == 8 else 0
    stored = values ^ np.uint8(128) if held.bits == 8 else values[:, 0::2] | (values[:, 1::2] << 4)
    parts = {VALUES: stored.view(np.int8), SCALES: as_bytes(np.repeat(to_array(codes.scales), times, axis=1))}
    if codes.zeros is not None:
        zeros = np.repeat((codes.zeros.numpy().astype(np.int16) - low).astype(np.int8), times, axis=1)
        parts[ZEROS] = as_bytes(zeros)
    return parts if order is None else parts | {ORDER: order.numpy()}


def _find_gptq(parts: _Parts, fields: Mapping[str, Any], read: Read) -> Found:
    bits = fields.get("bits")
    if type(bits) is not int or bits not in (4, 8):
        raise QuantizedErrors.BITS(bits=bits)
    in_word = WORD_BITS // bits
    one_less = fields.get("checkpoint_format", "gptq") != "gptq_v2"
    for stem in parts.ending(".qweight"):
        names = [f"{stem}.{part}" for part in ("qweight", "qzeros", "scales")]
        words, n = parts.shape(names[0], (torch.int32,), 2)
        k = words * in_word
        groups = _groups(parts, names, k, n, -(-n // in_word))
        index = f"{stem}.g_idx"
        names += [index] if index in parts.held else []
        yield (
            f"{stem}.weight",
            _integer_weight(
                tuple(names),
                (n, k),
                groups,
                bits,
                parts.held[names[2]][1],
                method="GPTQ",
                zero_point=True,
                index=_index(parts, index, k, groups, read),
                unpack=partial(_unpack_gptq, names[0], names[1], names[2], n, bits, one_less),
            ),
        )


def _groups(parts: _Parts, names: Sequence[str], k: int, n: int, zero_words: int) -> int:
    """Return the number of groups of a weight [K, N] that is stored as codes, zero points and scales, named in this
    order.

    Raises InputError if zero points [groups, zero_words] or scales [groups, N] do not fit.
    """
    weight, zeros, scales = names
    groups, _ = parts.shape(scales, tuple(_SCALE_DTYPES), 2)
    parts.expect(scales, (groups, n), tuple(_SCALE_DTYPES), f"{weight!r}")
    parts.expect(zeros, (groups, zero_words), (torch.int32,), f"{scales!r}")
    if k % groups:
        raise parts.wrong(QuantizedShapeErrors.GROUPS, scales, columns=k, groups=groups)
    return groups


def _unpack_gptq(weight: str, zeros: str, scales: str, n: int, bits: int, one_less: bool, read: Read) -> _Codes:
    points = _unpacked(read(zeros), bits)[:, :n].to(torch.int16)
    if one_less:
        points = (points + 1) & ((1 << bits) - 1)
    values = _unpacked(read(weight).T.contiguous(), bits)
    return _Codes(values, _finite(scales, read).T.contiguous(), points.T.contiguous())


def _find_awq(parts: _Parts, fields: Mapping[str, Any], read: Read) -> Found:
    for stem in parts.ending(".qweight"):
        names = [f"{stem}.{part}" for part in ("qweight", "qzeros", "scales")]
        k, words = parts.shape(names[0], (torch.int32,), 2)
        n = words * len(_AWQ_ORDER)
        groups = _groups(parts, names, k, n, words)
        yield (
            f"{stem}.weight",
            _integer_weight(
                tuple(names),
                (n, k),
                groups,
                4,
                parts.held[names[2]][1],
                method="AWQ",
                zero_point=True,
                index=None,
                unpack=partial(_unpack_awq, names[0], names[1], names[2]),
            ),
        )


def _unpack_awq(weight: str, zeros: str, scales: str, read: Read) -> _Codes:
    values, points = (_awq_columns(_unpacked(read(name), 4)).T.contiguous() for name in (weight, zeros))
    return _Codes(values, _finite(scales, read).T.contiguous(), points)


def _awq_columns(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(len(values), -1, len(_AWQ_ORDER))[..., list(_AWQ_ORDER)].reshape(values.shape)


def _find_compressed(parts: _Parts, fields: Mapping[str, Any], read: Read) -> Found:
    for stem in parts.ending(".weight_packed"):
        packed = f"{stem}.weight_packed"
        if parts.held[packed][1] == torch.uint8:
            yield f"{stem}.weight", _nvfp4_weight(parts, stem, packed, f"{stem}.weight_global_scale", divides=True)
        else:
            yield f"{stem}.weight", _packed_weight(parts, stem, read)
    for stem in parts.ending(".weight_scale"):
        weight = f"{stem}.weight"
        if weight not in parts.held:
            parts.shape(f"{stem}.weight_packed", (torch.int32, torch.uint8))
        elif parts.held[weight][1] == _FP8:
            yield weight, _compressed_fp8(parts, weight, fields)
        else:
            yield weight, _plain_codes(parts, stem)


def _find_modelopt(parts: _Parts, fields: Mapping[str, Any], read: Read) -> Found:
    for stem in parts.ending(".weight_scale"):
        weight = f"{stem}.weight"
        if parts.held.get(weight, ((), None))[1] == torch.uint8:
            yield weight, _nvfp4_weight(parts, stem, weight, f"{stem}.weight_scale_2", divides=False)
        else:
            yield weight, _compressed_fp8(parts, weight, fields)


def _nvfp4_weight(parts: _Parts, stem: str, packed: str, whole: str, *, divides: bool) -> QuantizedWeight:
    """Return a weight of NVFP4. `whole` is the scale of the whole weight, or with `divides` its inverse."""
    scale = f"{stem}.weight_scale"
    n, half = parts.shape(packed, (torch.uint8,), 2)
    shape = (n, 2 * half)
    if shape[1] % NVFP4_GROUP:
        raise parts.wrong(QuantizedShapeErrors.GROUPS, packed, columns=shape[1], groups=NVFP4_GROUP)
    parts.expect(scale, (n, shape[1] // NVFP4_GROUP), (_FP8,), f"{packed!r}")
    parts.shape(whole, (torch.float32,))
    if prod(parts.held[whole][0]) != 1:
        raise parts.wrong(QuantizedShapeErrors.OTHER, whole, of=f"{packed!r}", expected="[1]")
    held, scales = nvfp4_of(shape[1]), partial(_nvfp4_scales, scale, whole, divides)
    numbers = partial(_nvfp4_numbers, packed, scales, shape)
    stored = None if held is None else partial(_nvfp4_parts, packed, scales, shape, held)
    return QuantizedWeight(shape, (packed, scale, whole), StoredForm("nvfp4", held), numbers, stored)


def _nvfp4_scales(scale: str, whole: str, divides: bool, read: Read) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales of groups, e4m3 [N, K / 16], and that of the weight, f32 []."""
    factor = _finite(whole, read).reshape(())
    return _finite(scale, read), _finite_number(whole, 1 / factor if divides else factor)


def _nvfp4_numbers(
    packed: str, scales: Callable[[Read], tuple[torch.Tensor, torch.Tensor]], shape: tuple[int, int], read: Read
) -> torch.Tensor:
    stored, (of_groups, whole) = read(packed), scales(read)
    numbers = _E2M1[_nibbles(stored).reshape(*of_groups.shape, -1).to(torch.int32)]
    return (numbers * (of_groups.to(torch.float32) * whole)[..., None]).reshape(shape)


def _nvfp4_parts(
    packed: str,
    scales: Callable[[Read], tuple[torch.Tensor, torch.Tensor]],
    shape: tuple[int, int],
    held: WeightFormat,
    read: Read,
) -> Parts:
    of_groups, whole = scales(read)
    halves = np.full((shape[0], shape[1] // held.block), whole.item() / 2, np.float32)  # codes are doubled
    return {
        BLOCKS: _array(read(packed).view(torch.int8)),
        SCALES: as_bytes(_array(of_groups)),
        WHOLE: as_bytes(halves),
    }


def _packed_weight(parts: _Parts, stem: str, read: Read) -> QuantizedWeight:
    packed, scale, shape_name = (f"{stem}.{part}" for part in ("weight_packed", "weight_scale", "weight_shape"))
    rows, words = parts.shape(packed, (torch.int32,), 2)
    parts.expect(shape_name, (2,), (torch.int64, torch.int32), "a matrix")
    n, k = (int(size) for size in read(shape_name))
    bits = next((bits for bits in (4, 8) if k > 0 and words == -(-k * bits // WORD_BITS) and rows == n), None)
    if bits is None:
        raise parts.wrong(QuantizedShapeErrors.BITS, packed, shape_tensor=shape_name, stored=str([n, k]))
    _, groups = parts.shape(scale, tuple(_SCALE_DTYPES), 2)
    parts.expect(scale, (n, groups), tuple(_SCALE_DTYPES), f"{packed!r}")
    if k % groups:
        raise parts.wrong(QuantizedShapeErrors.GROUPS, scale, columns=k, groups=groups)
    names, zeros, index = [packed, scale, shape_name], f"{stem}.weight_zero_point", f"{stem}.weight_g_idx"
    if zeros in parts.held:
        parts.expect(zeros, (-(-n // (WORD_BITS // bits)), groups), (torch.int32,), f"{scale!r}")
    names += [name for name in (zeros, index) if name in parts.held]
    return _integer_weight(
        tuple(names),
        (n, k),
        groups,
        bits,
        parts.held[scale][1],
        method=COMPRESSED,
        zero_point=zeros in parts.held,
        index=_index(parts, index, k, groups, read),
        unpack=partial(_unpack_compressed, packed, scale, zeros if zeros in parts.held else None, (n, k), bits),
    )


def _unpack_compressed(
    weight: str, scales: str, zeros: str | None, shape: tuple[int, int], bits: int, read: Read
) -> _Codes:
    points = None if zeros is None else _unpacked(read(zeros).T.contiguous(), bits)[:, : shape[0]].T.contiguous()
    return _Codes(_unpacked(read(weight), bits)[:, : shape[1]].contiguous(), _finite(scales, read), points)


def _plain_codes(parts: _Parts, stem: str) -> QuantizedWeight:
    weight, scale, zeros = (f"{stem}.{part}" for part in ("weight", "weight_scale", "weight_zero_point"))
    n, k = parts.shape(weight, (torch.int8, _FP8), 2)
    grid = parts.shape(scale, tuple(_SCALE_DTYPES))
    groups = grid[-1] if len(grid) == 2 else 1
    if grid not in ((n, groups), (1,), (), (1, 1)) or k % groups:
        raise parts.wrong(QuantizedShapeErrors.SCALES, scale, of=weight, weight_shape=str([n, k]), rows=n)
    names = [weight, scale]
    if zeros in parts.held:
        parts.expect(zeros, grid, (torch.int8,), f"{scale!r}")
        names.append(zeros)
    return _integer_weight(
        tuple(names),
        (n, k),
        groups,
        8,
        parts.held[scale][1],
        method=COMPRESSED,
        zero_point=zeros in parts.held,
        index=None,
        unpack=partial(_unpack_plain, weight, scale, zeros if zeros in parts.held else None, n, groups),
    )


def _unpack_plain(weight: str, scales: str, zeros: str | None, n: int, groups: int, read: Read) -> _Codes:
    def spread(part: torch.Tensor) -> torch.Tensor:
        return part.reshape(-1, groups).expand(n, groups).contiguous()

    points = None if zeros is None else spread(read(zeros)).to(torch.int16) + 128
    return _Codes(read(weight).view(torch.uint8) ^ 128, spread(_finite(scales, read)), points)


def _compressed_fp8(parts: _Parts, weight: str, fields: Mapping[str, Any]) -> QuantizedWeight:
    scale = f"{weight}_scale"
    shape = parts.shape(weight, (_FP8,), 2)
    grid = parts.shape(scale, tuple(_SCALE_DTYPES))
    dtype, rows = parts.held[scale][1], (1, shape[1])
    whole = [(shape[0], shape[1])] if prod(grid) == 1 else [rows] if grid in ((shape[0], 1), (shape[0],)) else []
    for side in (*whole, *_block_sides(fields)):
        if whole or grid == tuple(-(-size // by) for size, by in zip(shape, side, strict=True)):
            return _scaled_floats(weight, scale, dtype, shape, side)
    raise parts.wrong(QuantizedShapeErrors.FP8_SCALES, scale, of=weight, weight_shape=str(list(shape)))


def _block_sides(fields: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Return the sides of blocks that the groups of a compressed-tensors config name."""
    groups = fields.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        sides = weights.get("block_structure") if isinstance(weights, Mapping) else None
        if isinstance(sides, list) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
            yield sides[0], sides[1]
        size = weights.get("group_size") if isinstance(weights, Mapping) else None
        if type(size) is int and size > 0:
            yield 1, size


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return words of i32 [rows, columns], low bits first, as u8 [rows, columns * 32 / bits]."""
    raw = words.contiguous().view(torch.uint8)  # bytes of a word are in order from the low bits on
    return raw if bits == 8 else _nibbles(raw)


def _nibbles(raw: torch.Tensor) -> torch.Tensor:
    """Return the halves of bytes [.., n], the low one of each first, as u8 [.., 2 n]."""
    return torch.stack([raw & 15, raw >> 4], -1).flatten(-2)


def _finite(name: str, read: Read) -> torch.Tensor:
    """Return scales. Raises InputError if one is not finite."""
    return _finite_number(name, read(name))


def _finite_number(name: str, scales: torch.Tensor) -> torch.Tensor:
    """Return scales. Raises InputError where one is no finite number."""
    if not bool(torch.isfinite(scales.to(torch.float32)).all()):
        raise QuantizedErrors.SCALE_NOT_FINITE(tensor=name)
    return scales


_FINDERS: Mapping[str, Callable[[_Parts, Mapping[str, Any], Read], Found]] = {
    FP8: _find_fp8,
    MXFP4: _find_mxfp4,
    GPTQ: _find_gptq,
    AWQ: _find_awq,
    COMPRESSED: _find_compressed,
    MODELOPT: _find_modelopt,
}
