"""Attention that a model writes out becomes the operator, and what is not quite attention does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sscc.compiler.frontend.algorithm import PLAIN, Softmax
from sscc.compiler.frontend.naming import text_names
from sscc.compiler.frontend.operator import observing
from sscc.compiler.frontend.recognition import WRITTEN_OUT, recognise_attention
from sscc.ir.geometry import Span

HEADS, WIDTH, LENGTH = 2, 4, 5
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(torch.nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x + 1, x - 1)


class Decoder(torch.nn.Module):
    """Two layers of [b, H, s, D]; its ids are never looked at."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(attention) for _ in range(2)])
        self.config = SimpleNamespace(_attn_implementation=WRITTEN_OUT)

    def forward(self, input_ids: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def calls_of(attention: Attention, implementation: str = WRITTEN_OUT) -> list[tuple[int, float]]:
    """The layers and scales of the operators that two layers call."""
    model = Decoder(attention)
    model.config._attn_implementation = implementation
    recognise_attention(model)
    seen: list[tuple[int, float]] = []

    def observer(
        q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> Tensor:
        assert q.shape == k.shape == v.shape == (3, HEADS, LENGTH, WIDTH)
        assert (window, softmax) == (Span(), PLAIN)
        seen.append((layer, scale))
        return v.clone()

    with observing(observer):
        model(torch.zeros(3, LENGTH, dtype=torch.int64), torch.randn(3, HEADS, LENGTH, WIDTH))
    return seen


def scored(change: Callable[[Tensor], Tensor] = lambda scores: scores, **softmax: Any) -> Attention:
    """Attention with something done to its scores."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(change(q @ k.transpose(-1, -2)), **({"dim": -1} | softmax)) @ v

    return attend


def three_dimensional(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(-1, LENGTH, WIDTH) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(q.shape[0], LENGTH, LENGTH), q, k.transpose(1, 2), alpha=0.5)
    weights = F.dropout(F.softmax(scores, dim=-1), p=0.5, training=False)
    return torch.bmm(weights, v).view(3, HEADS, LENGTH, WIDTH)


def divided_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q.float(), k.float().transpose(2, 3))
    scores /= math.sqrt(WIDTH)
    return torch.matmul(F.softmax(scores + torch.zeros(1, 1, LENGTH, LENGTH)[:, :, :, :LENGTH], dim=-1).to(v.dtype), v)


def written_over(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    scores[..., 0] = 0
    return scores.softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(LENGTH, LENGTH)
    mask[0, 0] = 1
    return (q @ k.transpose(-1, -2) + mask).softmax(-1) @ v


@pytest.mark.parametrize(
    ("attention", "scale"),
    [
        (scored(), 1.0),
        (scored(lambda scores: scores * 0.25 / 2), 0.125),
        (three_dimensional, 0.5),
        (divided_in_place, 0.5),
    ],
)
def test_what_is_attention(attention: Attention, scale: float) -> None:
    assert calls_of(attention) == [(0, scale), (1, scale)]
    assert calls_of(attention, "eager") == []


@pytest.mark.parametrize(
    "attention",
    [
        scored(lambda scores: scores + torch.ones(LENGTH)),
        scored(lambda scores: scores + 1),
        scored(lambda scores: 20 * torch.tanh(scores / 20)),
        scored(lambda scores: scores.tril()),
        scored(lambda scores: scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -1e9)),
        scored(dim=-2),
        scored(lambda scores: scores.softmax(-1)),
        written_over,
        masked,
        lambda q, k, v: (q @ k.transpose(-1, -2)) @ v,
        lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) * 0.5 @ v,
        lambda q, k, v: F.dropout((q @ k.transpose(-1, -2)).softmax(-1), training=True) @ v,
    ],
)
def test_what_is_not(attention: Attention) -> None:
    assert calls_of(attention) == []


def test_the_names_of_a_text_decoder_in_a_composite_checkpoint() -> None:
    stored = ["language_model.model.norm.weight", "language_model.lm_head.weight", "vision_tower.norm.weight"]
    assert text_names(stored) == {"model.norm.weight": stored[0], "lm_head.weight": stored[1]}
    stored = ["model.language_model.norm.weight", "lm_head.weight", "model.visual.norm.weight"]
    assert text_names(stored) == {"model.norm.weight": stored[0], "lm_head.weight": stored[1]}
    assert text_names(["model.norm.weight"]) == {"model.norm.weight": "model.norm.weight"}
