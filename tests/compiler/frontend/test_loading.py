"""Eager runs of models with all weights loaded, and with one layer loaded at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from sscc.compiler.frontend import untouched_model as loading
from sscc.compiler.frontend.checkpoint import Checkpoint, open_checkpoint
from sscc.compiler.frontend.operator import context_limit
from sscc.compiler.frontend.untouched_model import LoadingErrors, load_model
from sscc.runtime.artifact.tensor_files import Stack, TensorSpec
from tests.errors import raises
from tests.families import SHAPE, random_tokens
from tests.tiny_configs import random_model

LAYERS = 3
CODES = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"
"""Quantized: a weight of a layer, and a head that is tied to the embedding, whose rows are looked up as they are."""
LAYOUT = {
    **{f"{name}.values": Stack(TensorSpec((1, 1), "i8"), (name,), "int8:16/values") for name in CODES},
    "embedding": Stack(TensorSpec((96, 32), "f32"), (CODES[1],)),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config = LlamaConfig(**(SHAPE | {"num_hidden_layers": LAYERS}), num_key_value_heads=2, tie_word_embeddings=True)
    folder: Path = tmp_path_factory.mktemp("loading")
    random_model(config).save_pretrained(folder)
    return open_checkpoint(folder)


def test_a_layer_has_its_weights_while_it_runs(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer computes the same as with all weights loaded."""
    ids = torch.tensor([random_tokens(20)])
    whole = load_model(checkpoint, torch.float32, layout=LAYOUT)
    monkeypatch.setattr(loading, "RESIDENT_BYTES", 0)
    streamed = load_model(checkpoint, torch.float32, layout=LAYOUT)
    held: list[list[int]] = []

    def layers_with_weights() -> list[int]:
        layers = streamed.model.layers
        return [layer for layer in range(LAYERS) if any(p.device.type != "meta" for p in layers[layer].parameters())]

    for layer in streamed.model.layers:
        layer.mlp.register_forward_hook(lambda *_: held.append(layers_with_weights()))
    with torch.no_grad(), context_limit(192):
        ours, theirs = (model(input_ids=ids, use_cache=False).logits for model in (streamed, whole))
    assert torch.equal(ours, theirs)
    assert held == [[0], [1], [2]]
    assert layers_with_weights() == []


def test_what_is_quantized_is_what_its_codes_stand_for(checkpoint: Checkpoint) -> None:
    model = load_model(checkpoint, torch.float32, layout=LAYOUT)
    assert torch.equal(model.model.embed_tokens.weight, checkpoint.tensor(CODES[1]))
    for name, weight in ((CODES[0], model.model.layers[1].mlp.up_proj.weight), (CODES[1], model.lm_head.weight)):
        distance = (weight - checkpoint.tensor(name)).norm() / weight.norm()
        assert 1e-4 < distance < 1e-2


def test_other_shapes_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((checkpoint.path / "model.safetensors").read_bytes())
    config = (checkpoint.path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"intermediate_size": 48', '"intermediate_size": 40'))
    with raises(LoadingErrors.SHAPE, tensor="model.layers.0.mlp.gate_proj.weight", stored="[48, 32]"):
        load_model(open_checkpoint(tmp_path), torch.float32)
