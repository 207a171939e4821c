"""Selection by query in plain torch: the readable definition of the second cache policy.

Every position's K and V stay, in slow memory. Fast memory holds a copy of each key in a few bits, its *quantized key*,
and sinks and ring as in SnapStream. In every step each KV head selects the `topk` rows with the highest weights for its
query, estimated by quantized keys, and attends to sinks, ring and these::

    positions:   0 .. sink-1 | sink ............. n-recent-1 | n-recent .. n-1
                 sinks       | candidates, by quantized keys | ring

Quantized keys of every token, in about two bits, are from arXiv 2604.08426; rotating them first is from QuIP# (arXiv
2402.04396); their levels are the Lloyd-Max quantizer's for a Gaussian. Including sinks and ring in the softmax over
candidates is ours: without them a head that attends to a sink would have as much influence as one that searches.

The code is written for readability, vectorised over sequences, heads and rows. `sscc.ir.quantized_keys` has the same
arithmetic for interpreters; no code is shared, and tests compare them. Notation: B sequences, H query heads, Hkv KV
heads, D head width (Dv for values), T rows of a store, of which the first n of each sequence are live, the current
position included. Query head h belongs to KV head h // (H // Hkv). Keys carry their rotary embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sscc.compiler.frontend import algorithm
from sscc.compiler.frontend.algorithm import PLAIN, Softmax
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.geometry import COMPACT, SNAPSTREAM, Geometry

# ----------------------------------------------------------------------------------------------------- quantized keys

LEVELS = {
    1: torch.tensor([-1, 1]),
    2: torch.tensor([-10, -3, 3, 10]),
    4: torch.arange(-15, 16, 2),
}
"""Integer levels of the numbers of a rotated key. Their indices in this order are their codes."""
STEPS = {1: 0.7979, 2: 0.151, 4: 0.1676}
"""Value of level 1, in units of the key's scale."""


def rotate(x: Tensor) -> Tensor:
    """Return [.., D] times the normalised Hadamard matrix, on blocks of the largest power of two that divides D: [..,
    D] f32.

    The matrix is Sylvester's. It is applied as butterflies, from neighbours to the widest distance, and divided by the
    square root of the block last, all in f32; the order is part of the definition, since codes depend on the rounding.
    """
    dim = x.shape[-1]
    block = dim & -dim
    x = x.to(torch.float32)
    for distance in (1 << level for level in range(block.bit_length() - 1)):
        first, second = x.unflatten(-1, (-1, 2, distance)).unbind(-2)
        x = torch.stack([first + second, first - second], dim=-2).flatten(-3)
    return x * torch.tensor(block**-0.5, dtype=torch.float32)


@dataclass(frozen=True)
class QuantizedKeys:
    """Quantized keys, by which rows are selected.

    Attributes:
        levels: [.., D] i8, the integers; for 16 bits the keys themselves, as stored.
        scale: [..] f32, rounded to bf16; for 16 bits 1.
        bits: 1, 2, 4 or 16.
    """

    levels: Tensor
    scale: Tensor
    bits: int


def quantize_keys(keys: Tensor, bits: int) -> QuantizedKeys:
    """Quantize keys [.., D] of the model, before a store rounds them; with 16 bits they stay as they are.

    The scale is the root mean square of the rotated key (summed in f64), rounded to f32 and to bf16; below the smallest
    normal f32 it is 0. A number gets the nearest level: its magnitude is compared, in f32, with the midpoint between
    two levels, and on the midpoint it gets the smaller magnitude. Numbers that are 0, and all numbers if the scale is
    0, get the smallest level above 0.
    """
    if bits == PLAIN_BITS:
        return QuantizedKeys(keys, torch.ones(keys.shape[:-1]), bits)
    x = rotate(keys)
    mean_square = x.to(torch.float64).square().sum(-1) / x.shape[-1]
    exact = mean_square.sqrt().to(torch.float32)
    scale = torch.where(exact < torch.finfo(torch.float32).tiny, 0.0, exact).to(torch.bfloat16).to(torch.float32)
    x = torch.where(scale[..., None] == 0, 0.0, x)
    magnitudes = LEVELS[bits][LEVELS[bits] > 0]
    middles = (magnitudes[1:] + magnitudes[:-1]).to(torch.float64) / 2 * STEPS[bits]
    edges = middles.to(torch.float32) * scale[..., None]
    nearest = magnitudes[(x.abs()[..., None] > edges[..., None, :]).sum(-1)]
    return QuantizedKeys(torch.where(x >= 0, nearest, -nearest).to(torch.int8), scale, bits)


def pack(levels: Tensor, bits: int) -> Tensor:
    """Return levels [.., D] as bytes [.., D * bits / 8] u8; the first number's code has the lowest bits of the first
    byte."""
    codes = torch.searchsorted(LEVELS[bits], levels.to(torch.int64)).reshape(*levels.shape[:-1], -1, 8 // bits)
    return (codes << torch.arange(0, 8, bits)).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return bytes [.., D * bits / 8] u8 as levels [.., D] i8."""
    codes = (packed.to(torch.int64)[..., None] >> torch.arange(0, 8, bits)) % 2**bits
    return LEVELS[bits][codes.flatten(-2)].to(torch.int8)


def int8_query(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Return rotated queries as codes and scales: ([.., D] f32 integers of -127 .. 127, [..] f32).

    The scale is the largest magnitude / 127; codes are rounded half to even, as `algorithm.stored` encodes a row.
    """
    x = rotate(queries)
    scale = x.abs().amax(-1) * torch.tensor(1 / 127, dtype=torch.float32)
    scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    return (x * inverse[..., None]).round().clamp(-127, 127), scale


# ------------------------------------------------------------------------------------------------------------ choice


def quantized_key_logits(q: Tensor, quantized_keys: QuantizedKeys, scale: float, softmax: Softmax = PLAIN) -> Tensor:
    """Return the approximate logits of each query head, by quantized keys: [B, H, D] and rows [B, Hkv, T] to [B, Hkv,
    G, T] f32.

    The dot product of the int8 query and the levels is an exact integer (below 2 ** 24, so f32 products have no
    rounding in any order). The logit is `(dot * s) * ((query scale * step) * scale)`, each product rounded to f32,
    and capped if the model caps its scores: this keeps the order of rows in a head, but matters because heads are
    averaged.
    """
    if quantized_keys.bits == PLAIN_BITS:
        return exact_logits(q, quantized_keys.levels, scale, softmax)
    codes, query_scale = int8_query(_grouped(q, quantized_keys.scale.shape[1]))
    dot = codes @ quantized_keys.levels.to(torch.float32).transpose(-1, -2)
    step, factor = (torch.tensor(number, dtype=torch.float32) for number in (STEPS[quantized_keys.bits], scale))
    return softmax.scores(dot * quantized_keys.scale[:, :, None] * (query_scale * step * factor)[..., None])


def exact_logits(q: Tensor, keys: Tensor, scale: float, softmax: Softmax = PLAIN) -> Tensor:
    """Return the logits of attention: [B, H, D] and keys [B, Hkv, T, D] to [B, Hkv, G, T] f32."""
    products = _grouped(q, keys.shape[1]).to(torch.float32) @ keys.to(torch.float32).transpose(-1, -2) * scale
    return softmax.scores(products)


def masses(
    q: Tensor,
    keys: Tensor,
    quantized_keys: QuantizedKeys,
    live: Tensor,
    scale: float,
    g: Geometry,
    softmax: Softmax = PLAIN,
) -> Tensor:
    """Return the weight of each candidate for each KV head: the mean over its query heads of one softmax per head.

    The softmax is over the logits of all live positions: by quantized keys for candidates, exact for sinks and ring,
    which attention computes anyway. Learned sinks take part in it.

    Args:
        q: [B, H, D], of the current position.
        keys: [B, Hkv, T, D], as stored; only those of sinks and ring are read.
        quantized_keys: quantized keys of T keys.
        live: [B] i64, n of each sequence.
        scale: factor on the dot products.
        g: cache geometry.
        softmax: conversion of the products to weights.

    Returns:
        [B, Hkv, T] f32; -1 for a position that is not a candidate. Candidates are `sink <= t < n - recent`.
    """
    position, n = torch.arange(keys.shape[2]), live[:, None]
    candidate = (position >= g.sink) & (position < n - g.recent)
    approximate, exact = quantized_key_logits(q, quantized_keys, scale, softmax), exact_logits(q, keys, scale, softmax)
    logits = torch.where(candidate[:, None, None], approximate, exact)
    logits = logits.masked_fill((position >= n)[:, None, None], float("-inf"))
    heads = torch.arange(q.shape[1]).reshape(keys.shape[1], -1)
    weights = softmax.weights(logits[..., None, :], heads)[..., 0, :]
    return torch.where(candidate[:, None], weights.mean(dim=2), -1.0)


def choose(weights: Tensor, g: Geometry) -> Tensor:
    """Return the candidates that a step attends to: the `topk` with the largest weights, ties to the lower position.

    Args:
        weights: [B, Hkv, T] from `masses`.
        g: cache geometry.

    Returns:
        [B, Hkv, topk] i64: positions in ascending order, then -1 as padding if there are fewer candidates.
    """
    return _largest(weights, g.topk)


def fetch_rows(resident: Tensor, weights: Tensor, limit: int, g: Geometry) -> Tensor:
    """Return the rows that a step attends to if it may fetch a limited number of rows from slow memory: the resident
    set after the step.

    Of the rows that it would select and that are not resident, it fetches the `limit` rows with the largest weights.
    They take free places, then those of resident rows that it would not select, smallest weight first, ties to the
    higher position.

    Args:
        resident: [B, Hkv, topk] i64, positions in ascending order, -1 for a free place: the result of the previous
            step, initially the selection of the prompt's last query.
        weights: [B, Hkv, T] from `masses`.
        limit: maximum number of rows to fetch per KV head, at least 1; with topk this is `choose`.
        g: cache geometry.

    Returns:
        [B, Hkv, topk] i64, as `resident`.
    """
    held, chosen = (_among(positions, weights.shape[2]) for positions in (resident, choose(weights, g)))
    fetched = _among(_largest(torch.where(chosen & ~held, weights, -1.0), limit), weights.shape[2])
    # No weight is above 1, so selected rows precede rows that merely are resident.
    stays = torch.where(chosen & held | fetched, weights + 2, torch.where(held, weights, -1.0))
    return _largest(stays, g.topk)


def _largest(weights: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest of [B, Hkv, T], ties to the first: [B, Hkv, count] i64, ascending, with
    -1 in place of negative ones."""
    end = weights.shape[2]
    order = weights.sort(dim=2, descending=True, stable=True).indices[:, :, :count]
    positions = torch.where(weights.gather(2, order) < 0, end, order).sort(dim=2).values
    padded = torch.nn.functional.pad(positions, (0, count - positions.shape[2]), value=end)
    return torch.where(padded == end, -1, padded)


def _among(positions: Tensor, count: int) -> Tensor:
    """Return positions [B, Hkv, k], -1 for none, as a mask [B, Hkv, count]."""
    mask = torch.zeros(*positions.shape[:2], count + 1, dtype=torch.bool)
    return mask.scatter(2, torch.where(positions < 0, count, positions), True)[:, :, :count]


# ---------------------------------------------------------------------------------------------------------- attention


def query_attention(
    q: Tensor, keys: Tensor, values: Tensor, chosen: Tensor, live: Tensor, scale: float, g: Geometry,
    softmax: Softmax = PLAIN,
) -> Tensor:  # fmt: skip
    """Attention of one position over sinks, ring and the selected rows, in this order.

    With `n <= sink + recent` it equals SnapStream bit for bit, and with `n <= budget` full attention up to rounding.

    Args:
        q: [B, H, D].
        keys: [B, Hkv, T, D], as stored.
        values: [B, Hkv, T, Dv], as stored.
        chosen: [B, Hkv, topk] i64 from `choose`.
        live: [B] i64, n of each sequence, at least 1.
        scale: factor on the dot products.
        g: cache geometry.
        softmax: conversion of the products to weights.

    Returns:
        [B, H, Dv] of q's dtype.
    """
    out = []
    for sequence, n in enumerate(live.tolist()):
        positions = torch.cat([near_positions(n, keys.shape[1], g), chosen[sequence]], dim=1)
        k, v = (algorithm.assemble(x[sequence, :, :n], positions) for x in (keys, values))
        valid = torch.arange(g.budget) < n
        out.append(algorithm.cached_attention(q[sequence], k, v, valid, scale, softmax))
    return torch.stack(out)


def near_positions(n: int, kv_heads: int, g: Geometry) -> Tensor:
    """Return the positions in sinks and ring after `n` positions: [Hkv, SR] i64, -1 for an empty row."""
    ring = replace(g, topk=0, rows=COMPACT, policy=SNAPSTREAM, key_bits=0, fetch=None)
    return algorithm.row_positions(torch.empty(kv_heads, 0, dtype=torch.int64), n, ring)


def _grouped(q: Tensor, kv_heads: int) -> Tensor:
    """Return [B, H, D] as [B, Hkv, G, D]."""
    return q.reshape(q.shape[0], kv_heads, -1, q.shape[-1])
