"""Weights in the layouts in which quantized checkpoints are published, written word by word from their descriptions.

Each function takes a generator and a shape and gives the stored tensors, by the ending of their names, and the numbers
that they stand for, [N, K] f32: an oracle that shares no code with what reads them.
"""

from __future__ import annotations

import torch

Stored = dict[str, torch.Tensor]

AWQ_PACKED = (0, 2, 4, 6, 1, 3, 5, 7)
"""Columns, of 8, in the order of their bits in a word, lowest first."""


def _integers(generator: torch.Generator, shape: tuple[int, ...], bits: int) -> torch.Tensor:
    return torch.randint(0, 1 << bits, shape, generator=generator)


def _scales(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(shape, generator=generator) * 0.01 + 0.001).to(dtype)


def _words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, columns] as i32 [rows, ceil(columns * bits / 32)], the first column in the low bits."""
    words = []
    for row in values.tolist():
        packed = []
        for start in range(0, len(row), 32 // bits):
            word = sum(value << (bits * place) for place, value in enumerate(row[start : start + 32 // bits]))
            packed.append(word - (1 << 32) if word >> 31 else word)
        words.append(packed)
    return torch.tensor(words, dtype=torch.int32)


def _numbers(codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Element by element: (code - zero point) * scale of the column's group."""
    return (codes - zeros[:, groups]).float() * scales.float()[:, groups]


def gptq(
    generator: torch.Generator,
    shape: tuple[int, int],
    *,
    bits: int = 4,
    group: int = 32,
    shuffled: bool = False,
    second: bool = False,
    scales: torch.dtype = torch.float16,
) -> tuple[Stored, torch.Tensor]:
    """`shuffled`: with desc_act, so that columns of a group lie apart. `second`: of checkpoint_format gptq_v2."""
    n, k = shape
    codes, zeros = _integers(generator, (n, k), bits), _integers(generator, (n, k // group), bits)
    factors = _scales(generator, (n, k // group), scales)
    groups = torch.arange(k) // group
    if shuffled:
        groups = groups[torch.randperm(k, generator=generator)]
    points = zeros if second else (zeros - 1) % (1 << bits)
    stored = {
        ".qweight": _words(codes, bits).T.contiguous(),
        ".qzeros": _words(points.T, bits),
        ".scales": factors.T.contiguous(),
        ".g_idx": groups.to(torch.int32),
    }
    return stored, _numbers(codes, zeros, factors, groups)


def awq(generator: torch.Generator, shape: tuple[int, int], *, group: int = 32) -> tuple[Stored, torch.Tensor]:
    n, k = shape
    codes, zeros = _integers(generator, (n, k), 4), _integers(generator, (n, k // group), 4)
    factors = _scales(generator, (n, k // group), torch.float16)
    order = [8 * (column // 8) + AWQ_PACKED[column % 8] for column in range(n)]
    stored = {
        ".qweight": _words(codes.T[:, order], 4),
        ".qzeros": _words(zeros.T[:, order], 4),
        ".scales": factors.T.contiguous(),
    }
    return stored, _numbers(codes, zeros, factors, torch.arange(k) // group)


def packed(
    generator: torch.Generator,
    shape: tuple[int, int],
    *,
    bits: int = 4,
    group: int = 32,
    zero_point: bool = False,
    scales: torch.dtype = torch.bfloat16,
) -> tuple[Stored, torch.Tensor]:
    """compressed-tensors, pack-quantized."""
    n, k = shape
    half = 1 << (bits - 1)
    codes, factors = _integers(generator, (n, k), bits) - half, _scales(generator, (n, k // group), scales)
    zeros = _integers(generator, (n, k // group), bits) - half if zero_point else torch.zeros(n, k // group).long()
    stored = {
        ".weight_packed": _words(codes + half, bits),
        ".weight_scale": factors,
        ".weight_shape": torch.tensor([n, k]),
    }
    if zero_point:
        stored[".weight_zero_point"] = _words((zeros + half).T, bits).T.contiguous()
    return stored, _numbers(codes, zeros, factors, torch.arange(k) // group)


def plain(
    generator: torch.Generator, shape: tuple[int, int], *, zero_point: bool = False
) -> tuple[Stored, torch.Tensor]:
    """compressed-tensors, int-quantized, a scale per row."""
    n, k = shape
    codes, factors = _integers(generator, (n, k), 8) - 128, _scales(generator, (n, 1), torch.bfloat16)
    zeros = _integers(generator, (n, 1), 8) - 128 if zero_point else torch.zeros(n, 1).long()
    stored = {".weight": codes.to(torch.int8), ".weight_scale": factors}
    if zero_point:
        stored[".weight_zero_point"] = zeros.to(torch.int8)
    return stored, _numbers(codes, zeros, factors, torch.zeros(k).long())


def fp8(
    generator: torch.Generator, shape: tuple[int, int], *, block: tuple[int, int], suffix: str = ".weight_scale_inv"
) -> tuple[Stored, torch.Tensor]:
    n, k = shape
    values = (torch.randn(n, k, generator=generator) * 50).to(torch.float8_e4m3fn)
    factors = _scales(generator, (-(-n // block[0]), -(-k // block[1])), torch.float32)
    rows, columns = torch.arange(n) // block[0], torch.arange(k) // block[1]
    return {".weight": values, suffix: factors}, values.float() * factors[rows][:, columns]


def nvfp4(generator: torch.Generator, shape: tuple[int, int], *, modelopt: bool = False) -> tuple[Stored, torch.Tensor]:
    """Codes, scales and the scale of the whole weight, which compressed-tensors stores inverted."""
    n, k = shape
    codes = torch.randint(0, 16, (n, k), generator=generator)
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    signed = torch.where(codes < 8, magnitudes[codes % 8], -magnitudes[codes % 8])
    scales = (torch.rand(n, k // 16, generator=generator) * 400 + 1).to(torch.float8_e4m3fn)
    whole = torch.rand(1, generator=generator) * 1e-4 if modelopt else torch.tensor([2.0**-13])
    packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    numbers = signed * (scales.float() * whole).repeat_interleave(16, 1)
    if modelopt:
        stored = {".weight": packed, ".weight_scale_2": whole.reshape(()), ".input_scale": torch.tensor(0.5)}
    else:
        stored = {".weight_packed": packed, ".weight_global_scale": 1 / whole, ".input_global_scale": torch.ones(1)}
    return {**stored, ".weight_scale": scales}, numbers


def mxfp4(generator: torch.Generator, shape: tuple[int, int, int]) -> Stored:
    """Blocks and scales of a parameter [E, K, N]."""
    experts, k, n = shape
    blocks = torch.randint(0, 256, (experts, n, k // 32, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(110, 130, (experts, n, k // 32), generator=generator).to(torch.uint8)
    return {"_blocks": blocks, "_scales": scales}
