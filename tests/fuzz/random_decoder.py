"""Random tiny decoders: norms, activations, head ratios, biases, rotary embeddings and wirings as families mix them."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

import sscc.compiler.frontend.operator  # noqa: F401 - registers torch.ops.sscc.attention

VOCABULARY = 19
CONTEXT = 32


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a random decoder.

    Attributes:
        kv_heads: of the layers in turn. group: query heads per KV head where these are most; all layers have as many.
        value: width of a head's V, 0 for that of K. windows: of the layers in turn, 0 for none.
        width: of an MLP, no multiple of anything.
        rotary: "halves", "pairs" (side by side), or "none" with learned positions; part: how much of a head it turns.
        query_norm: of each head of q and k. cap: logits are softly capped.
    """

    layers: int
    kv_heads: tuple[int, ...]
    group: int
    head: int
    value: int
    windows: tuple[int, ...]
    hidden: int
    width: int
    norm: str
    activation: str
    gated: bool
    bias: bool
    rotary: str
    part: float
    tied: bool
    parallel: bool
    fused: bool
    query_norm: bool
    cap: bool

    @classmethod
    def drawn(cls, draw: random.Random) -> DecoderShape:
        """Any of them, all independent of each other."""
        choices = {
            "layers": (1, 2, 2, 4), "kv_heads": ((1,), (2,), (3,), (1, 2), (3, 1)), "group": (1, 2, 3),
            "head": (4, 6, 8, 12), "value": (0, 0, 6, 10), "windows": ((0,), (0,), (7,), (0, 3), (12, 0), (3, 12)),
            "hidden": (10, 12, 16, 21), "width": (7, 16, 22, 33), "norm": ("rms", "layer", "plain"),
            "activation": ("silu", "gelu", "tanh-gelu", "relu2"), "rotary": ("halves", "pairs", "none"),
            "part": (1.0, 1.0, 0.5),
        }  # fmt: skip
        return cls(**{f.name: draw.choice(choices.get(f.name, (False, True))) for f in fields(cls)})


def in_turn(values: tuple[int, ...], layer: int) -> int:
    return values[layer % len(values)]


class Norm(nn.Module):
    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(1 + 0.1 * torch.randn(size))
        self.bias = nn.Parameter(0.1 * torch.randn(size)) if kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rms":
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight
        if self.kind == "layer":
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight


class RandomAttention(nn.Module):
    def __init__(self, index: int, s: DecoderShape) -> None:
        super().__init__()
        self.index, self.s, self.heads = index, s, max(s.kv_heads) * s.group
        self.window, kv_heads = in_turn(s.windows, index), in_turn(s.kv_heads, index)
        self.value = s.value or s.head
        sizes = self.sizes = [self.heads * s.head, kv_heads * s.head, kv_heads * self.value]
        widths = [sum(sizes)] if s.fused else sizes
        self.inputs = nn.ModuleList(nn.Linear(s.hidden, width, bias=s.bias) for width in widths)
        self.out = nn.Linear(self.heads * self.value, s.hidden, bias=s.bias)
        self.q_norm, self.k_norm = (Norm("rms", s.head) if s.query_norm else nn.Identity() for _ in "qk")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        (b, length, _), s = x.shape, self.s
        made = [project(x) for project in self.inputs]
        parts = list(made[0].split(self.sizes, dim=-1)) if s.fused else made
        heads = zip(parts, (s.head, s.head, self.value), strict=True)
        q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part, width in heads)
        q, k = (turned(norm(x), cos, sin, s) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        mixed = torch.ops.sscc.attention(q, k, v, self.index, s.head**-0.5, self.window)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(b, length, -1))
        return out


def turned(x: Tensor, cos: Tensor, sin: Tensor, s: DecoderShape) -> Tensor:
    """Rotary embedding of x [b, heads, n, D] by tables [b, 1, n, part / 2]."""
    if s.rotary == "none":
        return x
    size = 2 * cos.shape[-1]
    turning, rest = x[..., :size], x[..., size:]
    pairs = s.rotary == "pairs"
    first, second = (turning[..., 0::2], turning[..., 1::2]) if pairs else turning.chunk(2, dim=-1)
    both = first * cos - second * sin, second * cos + first * sin
    joined = torch.stack(both, dim=-1).flatten(-2) if pairs else torch.cat(both, dim=-1)
    return torch.cat((joined, rest), dim=-1)


ACTIVATIONS = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "tanh-gelu": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu2": lambda x: nn.functional.relu(x).square(),
}


class RandomLayer(nn.Module):
    def __init__(self, index: int, s: DecoderShape) -> None:
        super().__init__()
        self.s, self.attention = s, RandomAttention(index, s)
        self.norm1, self.norm2 = Norm(s.norm, s.hidden), Norm(s.norm, s.hidden)
        self.up = nn.Linear(s.hidden, s.width, bias=s.bias)
        self.gate = nn.Linear(s.hidden, s.width, bias=s.bias) if s.gated else None
        self.down = nn.Linear(s.width, s.hidden, bias=s.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        mixed = self.attention(self.norm1(x), cos, sin)
        if self.s.parallel:
            return x + mixed + self.mlp(self.norm2(x))
        x = x + mixed
        return x + self.mlp(self.norm2(x))

    def mlp(self, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.s.activation]
        inner = act(self.up(x)) if self.gate is None else act(self.gate(x)) * self.up(x)
        out: Tensor = self.down(inner)
        return out


class RandomDecoder(nn.Module):
    """A random decoder, called with ids and positions [b, n]. It returns logits [b, n, V]."""

    frequencies: Tensor

    def __init__(self, s: DecoderShape) -> None:
        super().__init__()
        self.s, turning = s, int(s.head * s.part) // 2
        self.embed = nn.Embedding(VOCABULARY, s.hidden)
        self.places = nn.Embedding(CONTEXT, s.hidden) if s.rotary == "none" else None
        self.layers = nn.ModuleList(RandomLayer(index, s) for index in range(s.layers))
        self.norm, self.head = Norm(s.norm, s.hidden), nn.Linear(s.hidden, VOCABULARY, bias=False)
        if s.tied:
            self.head.weight = self.embed.weight
        self.register_buffer("frequencies", 100.0 ** (-torch.arange(turning) / turning), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        angles = (positions[:, :, None].float() * self.frequencies)[:, None]
        x = self.embed(ids)
        if self.places is not None:
            x = x + self.places(positions)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits: Tensor = self.head(self.norm(x))
        return 5 * torch.tanh(logits / 5) if self.s.cap else logits


def exported(model: nn.Module) -> torch.export.ExportedProgram:
    """Over ids and positions, both dimensions dynamic."""
    ids = torch.zeros(2, 6, dtype=torch.int64)
    dynamic = {0: torch.export.Dim("b", min=1), 1: torch.export.Dim("s", min=1)}
    return torch.export.export(model.eval(), (ids, torch.arange(6).repeat(2, 1)), dynamic_shapes=(dynamic, dynamic))
