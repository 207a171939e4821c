"""Layers that are left out of a capture are still counted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sscc.compiler.frontend.distinct import find_kinds, only_captured


class Layer(nn.Module):
    def __init__(self, index: int, kind: str) -> None:
        super().__init__()
        self.layer_idx, self.kind = index, kind
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: Tensor, count: int) -> tuple[Tensor, None]:
        self.seen.append((self.layer_idx, count))
        return x + self.weight, None


class Counting(nn.Module):
    """A model that looks up by the number of a layer what it hands to it, as Gemma 3 does with its rotary tables."""

    def __init__(self, kinds: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(index, kind) for index, kind in enumerate(kinds))

    def forward(self, x: Tensor) -> Tensor:
        kinds = [layer.kind for layer in self.layers]
        for count, layer in enumerate(self.layers[: len(kinds)]):
            x, _ = layer(x, count)
        return x


def test_a_model_that_counts_its_layers_counts_right() -> None:
    model = Counting("aabaab")
    kinds = find_kinds(model, 6)
    assert kinds is not None
    assert kinds.captured == (0, 2, 4, 5)
    layers = list(model.layers)
    with only_captured(model, kinds):
        assert model(torch.zeros(1)) == 4
        assert [name for name, _ in model.named_parameters()] == [f"layers.{layer}.weight" for layer in kinds.captured]
    assert list(model.layers) == layers
    assert [layer.seen for layer in layers] == [[(0, 0)], [], [(2, 2)], [], [(4, 4)], [(5, 5)]]
    assert not any(layer._forward_hooks for layer in layers)
    assert model(torch.zeros(1)) == 6
