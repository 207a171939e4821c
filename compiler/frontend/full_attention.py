"""Attention of an answer's tokens over a full cache, and the share of it that goes to positions lost by compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sscc.compiler.frontend.algorithm import Softmax
from sscc.compiler.frontend.eager import Model, forward_of
from sscc.compiler.frontend.operator import context_limit, observing
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.geometry import Span
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.kept_positions import Kept, LayerKept, Reason

BLOCK_BYTES = 64 << 20
"""Maximum bytes of scores in memory at once."""


class FullAttentionErrors(ErrorKind):
    LAYER = UnsupportedError, "the model has attention in layer {layer}, but the program has {layers} layers"
    LAYERS = UnsupportedError, "the model has attention in {seen} layers, but the program has {layers}"


@dataclass(frozen=True)
class Needed:
    """Attention that the queries of an answer would pay, with a full cache, to positions that the compressed cache has
    lost.

    Attributes:
        queries: number of fed tokens of the answer, whose queries are examined.
        share: fraction of their attention that goes to lost positions: the mean over queries, layers and query heads,
            0 .. 1.
        mass: [length] f64, this fraction by position; its sum is `share`.
    """

    queries: int
    share: float
    mass: Array


def needed(model: Model, tokens: Sequence[int], prompt_len: int, kept: Kept, max_context: int) -> Needed:
    """Run a model with full attention over a prompt and the fed tokens of its answer, and compare.

    A position counts as lost for a query if its row was in no memory at that step, by layer and KV head. The model has
    full attention in every layer, so its hidden states are those of a full cache, while the answer's tokens were
    generated with the compressed one.

    Args:
        model: as for `EagerSnapStream`.
        tokens: tokens of the prompt, then the fed ones.
        kept: positions that the slot held in the end.

    Raises UnsupportedError for a model with attention in other layers than those of `kept`.
    """
    length, mass = len(tokens), np.zeros(len(tokens))
    queries, seen = length - prompt_len, 0

    def attend(
        q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> Tensor:
        nonlocal seen, mass
        if layer >= len(kept.layers):
            raise FullAttentionErrors.LAYER(layer=layer, layers=len(kept.layers))
        lost = _lost(kept.layers[layer], prompt_len, length)
        out, paid = _attention(q[0], k[0], v[0], scale, window, softmax, lost)
        mass += paid
        seen += 1
        return out[None]

    positions = torch.arange(length)
    with torch.no_grad(), observing(attend), context_limit(max_context):
        forward_of(model)(torch.tensor([list(tokens)]), positions[None])
    if seen != len(kept.layers):
        raise FullAttentionErrors.LAYERS(seen=seen, layers=len(kept.layers))
    mass /= max(queries, 1) * seen
    return Needed(queries, float(mass.sum()), mass)


def _lost(layer: LayerKept, prompt_len: int, length: int) -> Tensor:
    """Return the positions that are in no memory at the step of each fed token: [Hkv, queries, length] bool."""
    g = layer.geometry
    at, position = torch.arange(prompt_len, length)[:, None], torch.arange(length)[None]
    ring = (position > at - g.recent) | (position < g.sink)
    chosen = torch.from_numpy(np.isin(layer.reasons, (Reason.SELECTED, Reason.STORED)))
    return ~(ring[None] | chosen[:, None]) & (position <= at)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: Span, softmax: Softmax, lost: Tensor
) -> tuple[Tensor, Array]:
    """Return causal attention like `algorithm.causal_attention`, in blocks of queries, and for each position the
    attention that the last queries pay to it where it is lost, summed over queries, averaged over query heads, [length]
    f64."""
    heads, n, _ = q.shape
    fed = lost.shape[1]
    out, paid = q.new_empty(heads, n, v.shape[2]), torch.zeros(n, dtype=torch.float64)
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = max(1, BLOCK_BYTES // (4 * n))
    position = torch.arange(n)
    first = torch.tensor([window.first(int(at)) for at in position])
    for head in range(heads):
        kv_head = head * k.shape[0] // heads
        keys, values = k[kv_head].to(wide), v[kv_head].to(wide)
        of_head = lost[head * len(lost) // heads]
        for begin in range(0, n, rows):
            at = position[begin : begin + rows, None]
            scores = softmax.scores(q[head, begin : begin + rows].to(wide) @ keys.T * scale)
            visible = (position <= at) & (position >= first[begin : begin + rows, None])
            weights = softmax.weights(scores.masked_fill(~visible, float("-inf"))[None], torch.tensor([head]))[0]
            out[head, begin : begin + rows] = (weights @ values).to(q.dtype)
            last = max(n - fed - begin, 0)
            if last < len(weights):
                answer = begin + last - (n - fed)
                paid += (weights[last:] * of_head[answer : answer + len(weights) - last]).sum(0, dtype=torch.float64)
    by_position: Array = (paid / heads).numpy()
    return out, by_position
