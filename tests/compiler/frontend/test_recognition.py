"""Attention written out in a model becomes the operator; computations that only resemble attention do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sscc.compiler.frontend.algorithm import PLAIN, Softmax, causal_attention
from sscc.compiler.frontend.naming import text_names
from sscc.compiler.frontend.operator import context_limit, observing
from sscc.compiler.frontend.recognition import (
    WRITTEN_OUT,
    Form,
    RecognitionErrors,
    key_columns,
    lost_scores,
    observe_attention,
    query_columns,
    recognise_attention,
)
from sscc.ir.geometry import Span
from tests.errors import check, raises

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


class Owner(torch.nn.Module):
    """Two layers whose attention has a mask of its own, a bias of its own, or both."""

    def __init__(self, change: Callable[[Tensor, Owner], Tensor], tokens: int = 32) -> None:
        super().__init__()
        self.change = change
        self.embedding = torch.nn.Embedding(7, HEADS * WIDTH)
        ahead = torch.arange(tokens) - torch.arange(tokens)[:, None]
        self.causal = torch.nn.Buffer(ahead <= 0, persistent=False)
        self.near = torch.nn.Buffer((ahead <= 0) & (ahead > -3), persistent=False)
        self.layers = torch.nn.ModuleList([Layer(self.attend) for _ in range(2)])
        self.config = SimpleNamespace(_attn_implementation=WRITTEN_OUT)
        self.dtype = torch.float32

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.change(q @ k.transpose(-1, -2) / 2, self).softmax(-1) @ v

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool = False) -> Tensor:
        x = self.embedding(input_ids).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x


LOWEST = torch.finfo(torch.float32).min


def alibi(scores: Tensor, step: float = 1.0) -> Tensor:
    slopes = torch.tensor([0.5, 0.3], device=scores.device)
    distances = torch.arange(1 - scores.shape[-1], 1, device=scores.device) ** step
    return scores + slopes[:, None, None] * distances


def mask_of(scores: Tensor, mask: Tensor) -> Tensor:
    return mask[: scores.shape[-2], : scores.shape[-1]]


def filled(scores: Tensor, model: Owner) -> Tensor:
    return torch.where(mask_of(scores, model.causal), scores, torch.tensor(LOWEST, device=scores.device))


def near(scores: Tensor, model: Owner) -> Tensor:
    return scores.masked_fill(~mask_of(scores, model.near), LOWEST)


def multiplied(scores: Tensor, model: Owner) -> Tensor:
    mask = mask_of(scores, model.causal).float()
    return scores * mask + -1e4 * (1 - mask)


def biased(scores: Tensor, model: Owner) -> Tensor:
    return filled(alibi(scores), model)


@pytest.mark.parametrize(
    ("change", "form"),
    [(filled, Form(0.5)), (multiplied, Form(0.5)), (near, Form(0.5, 3)), (biased, Form(0.5, 0, (0.5, 0.3)))],
)
def test_masks_and_biases_of_a_model_s_own(change: Callable[[Tensor, Owner], Tensor], form: Form) -> None:
    """In one go, and for a last token alone whose mask and bias are one number."""
    torch.manual_seed(1)
    model = Owner(change).requires_grad_(False)
    recognise_attention(model)
    assert observe_attention(model, 32)
    assert {
        layer: replace(seen, slopes=tuple(round(slope, 6) for slope in seen.slopes))
        for layer, seen in model.attention_recognition.forms.items()
    } == {0: form, 1: form}
    called: list[int] = []

    def observer(
        q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> Tensor:
        called.append(window.size)
        return torch.stack([causal_attention(*one, scale, window, softmax) for one in zip(q, k, v, strict=True)])

    ids, positions = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.arange(6)[None]
    with observing(observer):
        ours = model(input_ids=ids, position_ids=positions)
        model(input_ids=ids[:, :1], position_ids=positions[:, 5:])
    model.config._attn_implementation = "eager"
    theirs = model(input_ids=ids, position_ids=positions)
    assert called == [form.window] * 4
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1] > 0.99999


def test_columns_of_positions_are_exact_in_bf16() -> None:
    slopes = (0.7937005, 0.0039)
    columns = query_columns(Form(0.125, 0, slopes), torch.bfloat16)
    positions = torch.tensor([[0, 255, 256, 1000, 65535]])
    products = (columns.double() * key_columns(positions, columns).double()).sum(-1)[0]
    expected = torch.tensor(slopes).double()[:, None] * positions / 0.125
    assert (products - expected).abs().max() < 1e-4 * expected.max()
    with context_limit(65537), raises(RecognitionErrors.TOO_MANY_POSITIONS, positions=65537):
        key_columns(positions, columns)


@pytest.mark.parametrize(
    "change",
    [
        lambda scores, model: filled(alibi(scores, 2), model),
        lambda scores, model: scores.masked_fill(mask_of(scores, model.near), LOWEST),
        lambda scores, model: scores * mask_of(scores, model.causal),
        lambda scores, model: scores + scores.mean(-1, keepdim=True),
    ],
)
def test_other_masks_and_biases_are_not_known(change: Callable[[Tensor, Owner], Tensor]) -> None:
    model = Owner(change)
    recognise_attention(model)
    assert observe_attention(model, 32)
    with observing(lambda *arguments: pytest.fail("this is not attention")):
        model(input_ids=torch.zeros(1, 6, dtype=torch.int64), position_ids=torch.arange(6)[None])
    (reason,) = lost_scores(model)
    check(reason, RecognitionErrors.LOST_SCORES, layer=0)


def test_the_names_of_a_text_decoder_in_a_composite_checkpoint() -> None:
    stored = ["language_model.model.norm.weight", "language_model.lm_head.weight", "vision_tower.norm.weight"]
    assert text_names(stored) == {"model.norm.weight": stored[0], "lm_head.weight": stored[1]}
    stored = ["model.language_model.norm.weight", "lm_head.weight", "model.visual.norm.weight"]
    assert text_names(stored) == {"model.norm.weight": stored[0], "lm_head.weight": stored[1]}
    assert text_names(["model.norm.weight"]) == {"model.norm.weight": "model.norm.weight"}
