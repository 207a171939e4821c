"""Encoded rows of a cache: D codes of 8 bits and an f32 scale, D + 4 bytes of i8. sscc.ir.kv_rows has the definition.

Encoding and decoding are in f32, whatever the interpreter accumulates in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir.kv_rows import LARGEST_CODE, SMALLEST_SCALE, STEP, decoded_width
from sscc.runtime.backends.reference.softmax import tiles


def quantize_rows(source: Tensor, out: Tensor) -> None:
    """The step `QuantizeRows` (shapes there)."""
    for begin, end in tiles(source.shape[2]):
        out[:, :, begin:end] = encode(source[:, :, begin:end])


def encode(rows: Tensor) -> Tensor:
    """Rows [.., D] of floats as [.., D + 4] i8: codes, rounded half to even, then the scale's bytes."""
    x = rows.to(torch.float32)
    scale = x.abs().amax(-1, keepdim=True) * STEP
    scale = torch.where(scale < SMALLEST_SCALE, 0.0, scale)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    codes = torch.round(x * inverse).clamp(-LARGEST_CODE, LARGEST_CODE).nan_to_num().to(torch.int8)
    return torch.cat([codes, scale.view(torch.int8)], -1)


def decode(rows: Tensor) -> Tensor:
    """The numbers [.., D] f32 that encoded rows [.., D + 4] stand for."""
    width = decoded_width(rows.shape[-1])
    # A copy, because an f32 may only be seen where its bytes are aligned.
    scale = rows[..., width:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return rows[..., :width].to(torch.float32) * scale


def numbers(rows: Tensor) -> Tensor:
    """Rows of a cache as floats: decoded where they are encoded."""
    return decode(rows) if rows.dtype is torch.int8 else rows


def as_stored(rows: Tensor, cache: Tensor) -> Tensor:
    """Rows [.., D] as `cache` holds them: encoded, unless they are that already, or rounded to its dtype."""
    return encode(rows) if cache.dtype is torch.int8 and rows.dtype is not torch.int8 else rows.to(cache.dtype)
