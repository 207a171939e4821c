"""Attention stages: over the rows of a compressed cache, over a prompt prefix, and SnapKV's observation scores.

All walk the keys in tiles of `KEY_TILE` rows with a running softmax, in f32 (f64 where asked), so no matrix
wider than a tile exists. Query heads stand as [Hkv, G, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.ir.errors import InputError
from sscc.runtime.reference.interface import Bind, Fire, Interface, Views
from sscc.runtime.schedule import CachedAttention, CausalAttention, ObservationScores

KEY_TILE = 256
"""Key rows per tile. The largest intermediate is [query rows, KEY_TILE]."""


class RunningSoftmax:
    """softmax(scores) @ values over keys that arrive in tiles; see Milakov and Gimelshein, arXiv 1805.02867.

    `shape` is that of the queries without their last axis; `width` the last axis of the values.
    """

    def __init__(self, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
        self._peak = torch.full((*shape, 1), -torch.inf, dtype=dtype)
        self._total = torch.zeros((*shape, 1), dtype=dtype)
        self._output = torch.zeros((*shape, width), dtype=dtype)

    def add(self, scores: Tensor, values: Tensor | None = None) -> None:
        """Takes scores [.., n] (-inf where masked) and values [.., n, width] of the next n keys."""
        peak = torch.maximum(self._peak, scores.amax(-1, keepdim=True))
        floor = torch.where(peak == -torch.inf, 0.0, peak)  # nothing visible so far: exp(-inf - 0) = 0
        weights = torch.exp(scores - floor)
        shrink = torch.exp(self._peak - floor)
        self._total = self._total * shrink + weights.sum(-1, keepdim=True)
        self._output = self._output * shrink
        if values is not None:
            self._output = self._output + weights @ values
        self._peak = peak

    def output(self) -> Tensor:
        """[.., width]; zeros for a query that saw no key."""
        return self._output / torch.where(self._total == 0, 1.0, self._total)

    def log_sum_exp(self) -> Tensor:
        """[.., 1]."""
        return self._peak + torch.log(self._total)


def _tiles(rows: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, rows, KEY_TILE):
        yield begin, min(begin + KEY_TILE, rows)


# ---------------------------------------------------------------------------------------- compressed cache


def compile_cached_attention(stage: CachedAttention, kernel: Interface) -> Bind:
    sizes = kernel.match(
        stage,
        "out",
        query="float B H 1 D",
        key="float B V R D",
        value="float B V R W",
        valid="i1 B R",
        out="float B H 1 W",
    )
    _check_groups(sizes, kernel)
    wide = kernel.numerics.accumulate

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (stage.query, stage.key, stage.value, stage.valid, stage.out)]
        return lambda _: cached_attention(*operands, scale=stage.scale, wide=wide)

    return bind


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, valid: Tensor, out: Tensor, *, scale: float, wide: torch.dtype
) -> None:
    """The stage `CachedAttention` (shapes there). Every tile has KEY_TILE rows, the last one zero-padded.

    Equal tiles make the result independent, bit for bit, of how many invalid rows follow the valid ones.
    """
    slots, kv_heads, rows, depth = key.shape
    queries = query.to(wide).reshape(slots, kv_heads, -1, depth)
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), value.shape[-1], wide)
    for begin, end in _tiles(rows):
        seen = pad(valid[:, begin:end], (0, KEY_TILE - (end - begin)))
        if not bool(seen.any()):
            continue
        keys = pad(key[:, :, begin:end].to(wide), (0, 0, 0, KEY_TILE - (end - begin)))
        values = pad(value[:, :, begin:end].to(wide), (0, 0, 0, KEY_TILE - (end - begin)))
        scores = (queries @ keys.transpose(-1, -2)) * scale
        softmax.add(scores.masked_fill(~seen[:, None, None, :], -torch.inf), values)
    out.copy_(softmax.output().reshape(out.shape))


# ---------------------------------------------------------------------------------------------- prompt prefix


def compile_causal_attention(stage: CausalAttention, kernel: Interface) -> Bind:
    sizes = kernel.match(
        stage, "out", query="float 1 H C D", key="float 1 V T D", value="float 1 V T W", out="float 1 H C W"
    )
    _check_groups(sizes, kernel)
    start, wide = kernel.scalar(stage.start), kernel.numerics.accumulate

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (stage.query, stage.key, stage.value, stage.out)]
        return lambda scalars: causal_attention(*operands, start=scalars[start], scale=stage.scale, wide=wide)

    return bind


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, *, start: int, scale: float, wide: torch.dtype
) -> None:
    """The stage `CausalAttention` (shapes there). Reads key rows 0 .. start + C - 1, no other.

    Raises InputError where start + C exceeds the rows that exist.
    """
    _, heads, chunk, depth = query.shape
    kv_heads, rows = key.shape[1:3]
    if start < 0 or start + chunk > rows:
        raise InputError(f"causal attention from row {start} needs {start + chunk} key rows, there are {rows}")
    queries = query[0].to(wide).reshape(kv_heads, -1, depth)
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), value.shape[-1], wide)
    positions = torch.arange(start, start + chunk).repeat(heads // kv_heads)[:, None]
    for begin, end in _tiles(start + chunk):
        scores = (queries @ key[0, :, begin:end].to(wide).transpose(-1, -2)) * scale
        if end > start + 1:  # some query of the chunk must not see the end of this tile
            scores.masked_fill_(torch.arange(begin, end) > positions, -torch.inf)
        softmax.add(scores, value[0, :, begin:end].to(wide))
    out.copy_(softmax.output().reshape(out.shape))


# ------------------------------------------------------------------------------------------ observation scores


def compile_observation_scores(stage: ObservationScores, kernel: Interface) -> Bind:
    sizes = kernel.match(stage, "scores", observed="float 1 H N D", key="float 1 V T D", scores="f32 V T")
    _check_groups(sizes, kernel)
    length, wide = kernel.scalar(stage.length), kernel.numerics.accumulate

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (stage.observed, stage.key, stage.scores)]
        return lambda scalars: observation_scores(
            *operands, length=scalars[length], scale=stage.scale, recent=stage.recent, wide=wide
        )

    return bind


def observation_scores(
    observed: Tensor, key: Tensor, scores: Tensor, *, length: int, scale: float, recent: int, wide: torch.dtype
) -> None:
    """The stage `ObservationScores` (shapes there), in two passes over the keys: log-sum-exp, then weights.

    Writes scores[:, :length]. Raises InputError where `length` is not 1 .. T.
    """
    kv_heads, rows = key.shape[1:3]
    if not 1 <= length <= rows:
        raise InputError(f"observation scores of a prompt of {length} tokens, the scratch holds 1 .. {rows}")
    window = min(observed.shape[2], length)
    scored = length - min(observed.shape[2], recent, length)
    queries = observed[0, :, :window].to(wide).reshape(kv_heads, -1, observed.shape[3])
    group = observed.shape[1] // kv_heads
    positions = torch.arange(length - window, length).repeat(group)[:, None]

    def tile(begin: int, end: int) -> Tensor:
        products = (queries @ key[0, :, begin:end].to(wide).transpose(-1, -2)) * scale
        return products.masked_fill_(torch.arange(begin, end) > positions, -torch.inf)

    softmax = RunningSoftmax(tuple(queries.shape[:-1]), 0, wide)
    for begin, end in _tiles(length):
        softmax.add(tile(begin, end))
    log_sum_exp = softmax.log_sum_exp()
    for begin, end in _tiles(scored):
        weights = torch.exp(tile(begin, end) - log_sum_exp).view(kv_heads, group, window, end - begin)
        scores[:, begin:end] = weights.sum(2).mean(1)
    scores[:, scored:length] = 0


def _check_groups(sizes: dict[str, int], kernel: Interface) -> None:
    if sizes["H"] % sizes["V"]:
        kernel.refuse(f"{sizes['H']} query heads do not divide into groups of {sizes['V']} KV heads")
