"""The models to measure: made alike every time, and the same weights in both forms."""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks import models
from sscc.compiler.frontend.checkpoint import open_checkpoint

SHAPE = models.LlamaShape(hidden=16, layers=2, heads=4, kv_heads=2, ffn=32, vocab=64, context=128)

EXPERTS = models.ExpertShape(
    hidden=16, layers=2, heads=4, kv_heads=2, ffn=32, vocab=64, context=128, experts=4, chosen=2
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(models.MODELS, "small", SHAPE)
    monkeypatch.setitem(models.MODELS, "experts", EXPERTS)
    return tmp_path


def test_a_checkpoint_is_made_once_and_alike(folder: Path) -> None:
    path = models.checkpoint("small", folder / "a")
    written = (path / "model.safetensors").stat().st_mtime_ns
    assert models.checkpoint("small", folder / "a") == path
    assert (path / "model.safetensors").stat().st_mtime_ns == written
    other = models.checkpoint("small", folder / "b")
    digests = {hashlib.sha256((each / "model.safetensors").read_bytes()).hexdigest() for each in (path, other)}
    assert len(digests) == 1
    assert json.loads((path / "config.json").read_text())["num_key_value_heads"] == 2


def test_transformers_loads_the_checkpoint(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = models.checkpoint("small", folder)
    model, report = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(report.values())
    matrices = sum(weight.numel() for name, weight in model.named_parameters() if weight.ndim == 2)
    assert matrices == SHAPE.weights_per_step(1) + SHAPE.vocab * SHAPE.hidden


def test_the_gguf_file_has_the_same_weights(folder: Path) -> None:
    import gguf

    weights = load_file(models.checkpoint("small", folder) / "model.safetensors")
    reader = gguf.GGUFReader(models.gguf_file("small", folder))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert len(stored) == len(weights)

    def bits(name: str) -> np.ndarray:
        return weights[name].view(torch.uint16).numpy()

    def stored_bits(name: str) -> np.ndarray:
        return np.ascontiguousarray(stored[name].data).view(np.uint16)

    assert np.array_equal(stored_bits("output.weight"), bits("lm_head.weight"))
    assert np.array_equal(stored_bits("blk.1.ffn_down.weight"), bits("model.layers.1.mlp.down_proj.weight"))
    query, turned = bits("model.layers.0.self_attn.q_proj.weight"), stored_bits("blk.0.attn_q.weight")
    assert np.array_equal(turned[:4], query[[0, 2, 1, 3]])  # heads of 4: rotary pairs (0, 2), (1, 3) become neighbours
    assert np.array_equal(turned[4:8], query[[4, 6, 5, 7]])
    assert stored["blk.0.attn_norm.weight"].data.dtype == np.float32


def test_both_forms_have_the_same_experts(folder: Path) -> None:
    ours, other = (open_checkpoint(make("experts", folder)) for make in (models.checkpoint, models.gguf_file))
    assert ours.names().keys() == other.names().keys()
    assert ours.names()["model.layers.1.mlp.experts.down_proj"][0] == (4, 16, 32)
    for name in ours.names():
        assert torch.equal(ours.tensor(name).float(), other.tensor(name)), name
    for field in ("model_type", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "head_dim"):
        assert getattr(ours.config, field) == getattr(other.config, field), field
    matrices = sum(prod(shape) for shape, _ in ours.names().values() if len(shape) > 1)
    assert matrices == EXPERTS.weights_per_step(1000) + EXPERTS.vocab * EXPERTS.hidden
