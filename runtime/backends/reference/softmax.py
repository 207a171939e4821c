"""Softmax over keys that arrive in tiles. No matrix is wider than a tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

KEY_TILE = 256
"""Key rows per tile. The largest intermediate is [query rows, KEY_TILE]."""


@dataclass(frozen=True)
class Scoring:
    """Settings that turn products of queries and keys into scores and weights: a factor, a cap above 0 or None, and the
    logits of learned sinks [H] or None."""

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    def scores(self, products: Tensor) -> Tensor:
        return self.capped(products * self.scale)

    def capped(self, scaled: Tensor) -> Tensor:
        return scaled if self.softcap is None else torch.tanh(scaled / self.softcap) * self.softcap

    def sinks_of(self, kv_heads: int, queries: int = 1) -> Tensor | None:
        """Return the learned sink of each query [Hkv, G * queries], in the order of heads; None without sinks."""
        return None if self.sinks is None else self.sinks.repeat_interleave(queries).reshape(kv_heads, -1)


class RunningSoftmax:
    """softmax(scores) @ values over keys that arrive in tiles; see Milakov and Gimelshein, arXiv 1805.02867.

    `shape` is that of the queries without their last axis; `width` is the last axis of the values; `sinks`, which
    broadcast to the last axes of `shape`, are scores without a value.
    """

    def __init__(self, shape: tuple[int, ...], width: int, dtype: torch.dtype, sinks: Tensor | None = None) -> None:
        self._peak = torch.full((*shape, 1), -torch.inf, dtype=dtype)
        self._total = torch.zeros((*shape, 1), dtype=dtype)
        if sinks is not None:
            self._peak, self._total = sinks.to(dtype).expand(shape)[..., None], self._total + 1
        self._output = torch.zeros((*shape, width), dtype=dtype)

    def add(self, scores: Tensor, values: Tensor | None = None) -> None:
        """Add scores [.., n] (-inf where masked) and values [.., n, width] of the next n keys."""
        peak = torch.maximum(self._peak, scores.amax(-1, keepdim=True))
        floor = torch.where(peak == -torch.inf, 0.0, peak)  # no visible key so far: exp(-inf - 0) = 0
        weights = torch.exp(scores - floor)
        shrink = torch.exp(self._peak - floor)
        self._total = self._total * shrink + weights.sum(-1, keepdim=True)
        self._output = self._output * shrink
        if values is not None:
            self._output = self._output + weights @ values
        self._peak = peak

    def output(self) -> Tensor:
        """Return [.., width]; zeros for a query that saw no key."""
        return self._output / torch.where(self._total == 0, 1.0, self._total)

    def log_sum_exp(self) -> Tensor:
        """Return the log-sum-exp of the scores, [.., 1]."""
        return self._peak + torch.log(self._total)


def tiles(rows: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the tiles of `rows` key rows."""
    for begin in range(0, rows, KEY_TILE):
        yield begin, min(begin + KEY_TILE, rows)
