"""Encoded rows of a cache: codes and scales, as bytes of i8. `sscc.ir.kv_rows` defines the formats.

Encoding and decoding use f32, whatever dtype the interpreter accumulates in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.kv_rows import INT4, INT8, SMALLEST_SCALE, RowFormat, format_of
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.softmax import tiles


class ReferenceRowErrors(ErrorKind):
    UNKNOWN_FORMAT = InputError, "no row format encodes {numbers} numbers in {nbytes} bytes"

_SCALES = {INT8: torch.float32, INT4: torch.bfloat16}


@executes(operations.QuantizeRows)
def quantize_rows(source: Tensor, out: Tensor) -> None:
    """Execute the step `QuantizeRows` (see it for shapes)."""
    for begin, end in tiles(source.shape[2]):
        out[:, :, begin:end] = as_stored(source[:, :, begin:end], out)


def encode(rows: Tensor, row_format: RowFormat = INT8) -> Tensor:
    """Return rows [.., D] of floats as bytes [.., width(D)] i8: codes, rounded half to even, then scales."""
    x = rows.to(torch.float32)
    groups = [_encode(x[..., first:end], row_format) for first, end in row_format.groups(x.shape[-1])]
    return torch.cat([*(codes for codes, _ in groups), *(scale.view(torch.int8) for _, scale in groups)], -1)


def _encode(x: Tensor, row_format: RowFormat) -> tuple[Tensor, Tensor]:
    """Return the bytes of the codes of numbers [.., n] that share a scale, and the stored scale [.., 1]."""
    scale = (x.abs().amax(-1, keepdim=True) * row_format.step).to(_SCALES[row_format])
    scale = torch.where(scale < SMALLEST_SCALE, torch.zeros((), dtype=scale.dtype), scale)
    inverse = torch.where(scale == 0, 0.0, 1 / scale.to(torch.float32))
    codes = torch.round(x * inverse).clamp(-row_format.largest, row_format.largest).nan_to_num().to(torch.int8)
    if row_format.bits == 4:
        low, high = codes.chunk(2, -1)
        codes = (low & 15) | (high << 4)
    return codes, scale


def decode(rows: Tensor, row_format: RowFormat = INT8) -> Tensor:
    """Return the numbers [.., D] f32 of encoded rows [.., width(D)]."""
    dim = row_format.numbers(rows.shape[-1])
    # A copy, because reinterpreting bytes as numbers requires aligned bytes.
    tail = rows[..., row_format.code_bytes(dim) :].clone(memory_format=torch.contiguous_format)
    scales = tail.view(_SCALES[row_format]).to(torch.float32)
    decoded_groups = []
    for number, (first, end) in enumerate(row_format.groups(dim)):
        codes = rows[..., row_format.code_bytes(first) : row_format.code_bytes(end)]
        if row_format.bits == 4:
            codes = torch.cat([(codes << 4) >> 4, codes >> 4], -1)
        decoded_groups.append(codes.to(torch.float32) * scales[..., number : number + 1])
    return torch.cat(decoded_groups, -1)


def numbers(rows: Tensor, dim: int) -> Tensor:
    """Return rows of a cache, with `dim` numbers each, as floats: encoded ones are decoded."""
    return decode(rows, _format(dim, rows)) if rows.dtype is torch.int8 else rows


def _format(dim: int, rows: Tensor) -> RowFormat:
    row_format = format_of(dim, rows.shape[-1])
    if row_format is None:
        raise ReferenceRowErrors.UNKNOWN_FORMAT(numbers=dim, nbytes=rows.shape[-1])
    return row_format


def as_stored(rows: Tensor, cache: Tensor) -> Tensor:
    """Return rows [.., D] in the form that `cache` stores: encoded (if they are not yet), or rounded to its dtype."""
    if cache.dtype is not torch.int8 or rows.dtype is torch.int8:
        return rows.to(cache.dtype)
    return encode(rows, _format(rows.shape[-1], cache))
