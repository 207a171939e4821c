"""SnapKV's selection at the end of a prompt, with one step each for scores, pooling and top-K."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.softmax import RunningSoftmax, Scoring, tiles


class ReferenceSelectionErrors(ErrorKind):
    LENGTH_OUT_OF_RANGE = InputError, "a prompt of {length} tokens is scored, but the scratch takes 1 to {rows} tokens"
    TOO_MANY = InputError, "{topk} positions are selected, but there is room for 0 to {most}"

# ------------------------------------------------------------------------------------------------------ scores


class PromptScores:
    """SnapKV's scores of a prompt's positions, tile by tile.

    Args:
        observed: [1, H, obs, D], whose rows 0 .. min(obs, n) - 1 are the last queries of the prompt.
        key: [1, Hkv, T, D].
        length: n, number of tokens of the prompt; InputError unless it is in 1 .. T.
        scale: factor on the dot products.
        recent: rows of the ring; positions t >= n - min(obs, recent) score zero.
        wide: dtype of the computation.
        softcap: cap on scores; None without one.
    """

    def __init__(
        self, observed: Tensor, key: Tensor, *, length: int, scale: float, recent: int, wide: torch.dtype,
        softcap: float | None = None,
    ) -> None:  # fmt: skip
        self._key, self._scoring, self.wide = key, Scoring(scale, softcap), wide
        self.heads, rows = key.shape[1:3]
        if not 1 <= length <= rows:
            raise ReferenceSelectionErrors.LENGTH_OUT_OF_RANGE(length=length, rows=rows)
        self.length = length
        self.window = min(observed.shape[2], length)
        self.scored = length - min(observed.shape[2], recent, length)
        self._queries = observed[0, :, : self.window].to(wide).reshape(self.heads, -1, observed.shape[3])
        self._group = observed.shape[1] // self.heads
        self._positions = torch.arange(length - self.window, length).repeat(self._group)[:, None]

    def log_sum_exp(self) -> Tensor:
        """Return the log-sum-exp of each query's scaled scores over the keys that it sees, [Hkv, G * window, 1]; reads
        all keys."""
        softmax = RunningSoftmax(tuple(self._queries.shape[:-1]), 0, self.wide)
        for begin, end in tiles(self.length):
            softmax.add(self._products(begin, end))
        return softmax.log_sum_exp()

    def kept(self, log_sum_exp: Tensor) -> Tensor:
        """Return the log-sum-exp that attention has kept, [1, H, obs], in the shape of `log_sum_exp`."""
        return log_sum_exp[0, :, : self.window].to(self.wide).reshape(self.heads, -1, 1)

    def tiles(self, log_sum_exp: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (first position, scores [Hkv, n]) of the positions whose score is not zero by rule, in order."""
        for begin, end in tiles(self.scored):
            weights = torch.exp(self._products(begin, end) - log_sum_exp)
            yield begin, weights.view(self.heads, self._group, self.window, end - begin).sum(2).mean(1)

    def _products(self, begin: int, end: int) -> Tensor:
        keys = self._key[0, :, begin:end].to(self.wide)
        products = self._scoring.scores(self._queries @ keys.transpose(-1, -2))
        return products.masked_fill_(torch.arange(begin, end) > self._positions, -torch.inf)


@executes(operations.ObservationScores)
def score_positions(
    observed: Tensor,
    key: Tensor,
    scores: Tensor,
    *,
    log_sum_exp: Tensor | None,
    length: int,
    scale: float,
    recent: int,
    softcap: float | None = None,
    wide: torch.dtype,
) -> None:
    """Execute the step `ObservationScores` (see it for shapes)."""
    prompt = PromptScores(observed, key, length=length, scale=scale, recent=recent, wide=wide, softcap=softcap)
    observation_scores(prompt, scores, log_sum_exp)


def observation_scores(prompt: PromptScores, scores: Tensor, log_sum_exp: Tensor | None) -> None:
    """Write scores[:, :length], given the log-sum-exp that attention found for the observed queries; None to compute
    it."""
    sums = prompt.log_sum_exp() if log_sum_exp is None else prompt.kept(log_sum_exp)
    for begin, tile in prompt.tiles(sums):
        scores[:, begin : begin + tile.shape[1]] = tile
    scores[:, prompt.scored : prompt.length] = 0


# ----------------------------------------------------------------------------------------------------- pooling

POOLS: dict[str, Callable[..., Tensor]] = {"avg": avg_pool1d, "max": max_pool1d}


@executes(operations.Pool)
def pool(scores: Tensor, pooled: Tensor, *, length: int, width: int, mode: str) -> None:
    """Execute the step `Pool` (see it for shapes): pooled[:, :length]; "avg" divides by `width` at the edges too."""
    _check_length(length, scores)
    pooled[:, :length] = POOLS[mode](scores[:, :length], width, stride=1, padding=width // 2)


# --------------------------------------------------------------------------------------------------- selection


@executes(operations.Select)
def select(scores: Tensor, selected: Tensor, *, length: int, topk: int, sink: int, recent: int) -> None:
    """Execute the step `Select` (see it for shapes). A stable sort keeps equal scores in order of position."""
    _check_length(length, scores)
    check_topk(topk, selected)
    selected[:] = -1
    if length > sink + topk + recent:
        candidates = scores[:, sink : length - recent]
        order = torch.sort(candidates, dim=1, descending=True, stable=True).indices[:, :topk]
        selected[:, :topk] = torch.sort(order, dim=1).values + sink


def check_topk(topk: int, selected: Tensor) -> None:
    """Raise InputError if there is no room for `topk` positions."""
    if not 0 <= topk <= selected.shape[1]:
        raise ReferenceSelectionErrors.TOO_MANY(topk=topk, most=selected.shape[1])


def _check_length(length: int, scores: Tensor) -> None:
    if not 1 <= length <= scores.shape[1]:
        raise ReferenceSelectionErrors.LENGTH_OUT_OF_RANGE(length=length, rows=scores.shape[1])
