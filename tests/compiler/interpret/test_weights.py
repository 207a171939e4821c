"""Random weights: reproducible, of every layout, of a size that keeps activations."""

from __future__ import annotations

import torch

from sscc.compiler.interpret.random_weights import random_tensors
from sscc.runtime.artifact.tensor_files import Stack, TensorSpec

LAYOUT = {
    "stack": Stack(TensorSpec((2, 64, 256), "bf16"), ("layers.0.w", "layers.1.w")),
    "norm.weight": Stack(TensorSpec((512,), "f32"), ("norm.weight",)),
    "norm.bias": Stack(TensorSpec((512,), "f32"), ("norm.bias",)),
}


def test_every_source_has_a_tensor_that_its_name_and_the_seed_decide() -> None:
    tensors = random_tensors(LAYOUT)
    assert tensors.keys() == {"layers.0.w", "layers.1.w", "norm.weight", "norm.bias"}
    assert tensors["layers.0.w"].shape == (64, 256)
    assert tensors["layers.0.w"].dtype is torch.bfloat16
    assert not torch.equal(tensors["layers.0.w"], tensors["layers.1.w"])
    alone = random_tensors({"other": Stack(TensorSpec((64, 256), "bf16"), ("layers.1.w",))})
    assert torch.equal(alone["layers.1.w"], tensors["layers.1.w"])
    assert not torch.equal(random_tensors(LAYOUT, seed=1)["norm.bias"], tensors["norm.bias"])


def test_products_keep_the_size_of_what_they_are_given() -> None:
    tensors = random_tensors(LAYOUT)
    x = torch.randn(10, 256, generator=torch.Generator().manual_seed(5))
    assert 0.8 < float((x @ tensors["layers.0.w"].float().T).std()) < 1.2
    assert abs(float(tensors["norm.weight"].mean()) - 1) < 0.05
    assert abs(float(tensors["norm.bias"].mean())) < 0.05
