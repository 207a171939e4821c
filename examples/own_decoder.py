"""A decoder written from scratch and exported for `sscc compile`: the example of docs/models.md.

    python examples/own_decoder.py own.pt2          # random weights, to be replaced by yours
    sscc compile own.pt2 --target rdu --max-context 1024
    sscc run own.rdu --token-ids 7,3,42 --max-new-tokens 8

A decoder must meet three conditions. Its forward takes token ids and positions, both [b, s], and returns logits
[b, s, V]. Each layer calls `torch.ops.sscc.attention` once, without a cache, which the compiler adds. Layers are in a
ModuleList, so that their module paths differ. Everything else is free: here pre-norm blocks with grouped KV heads,
rotary embeddings and a GELU network.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import sscc.compiler.frontend.operator  # noqa: F401 - registers torch.ops.sscc.attention


class Layer(nn.Module):
    def __init__(self, index: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.index, self.heads, self.kv_heads, self.dim = index, heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, s, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, s, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = torch.ops.sscc.attention(q, k, v, self.index, self.dim**-0.5)  # [b, H, s, D]
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, hidden))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x


class Decoder(nn.Module):
    frequencies: Tensor

    def __init__(self, vocab: int = 64, hidden: int = 64, heads: int = 4, kv_heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        dim = hidden // heads
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(index, hidden, heads, kv_heads) for index in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, :, None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]  # [b, 1, s, D]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits: Tensor = self.head(self.norm(x))
        return logits


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotary embedding of x [b, heads, s, D] at absolute positions. Keys are cached with it."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def export(model: nn.Module) -> torch.export.ExportedProgram:
    """Export a model for ids and positions [b, s] with both dimensions dynamic, from 1 up."""
    ids = torch.zeros(2, 6, dtype=torch.int64)
    dynamic = {0: torch.export.Dim("b", min=1), 1: torch.export.Dim("s", min=1)}
    return torch.export.export(model.eval(), (ids, torch.arange(6).repeat(2, 1)), dynamic_shapes=(dynamic, dynamic))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.export.save(export(Decoder()), sys.argv[1] if len(sys.argv) > 1 else "own.pt2")
