"""Checkpoints whose names are of another age than the model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    Glm4vMoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    PreTrainedConfig,
    SmolVLMConfig,
    T5Config,
)
from transformers.core_model_loading import Split, WeightConverter

from sscc.compiler.frontend import naming
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.construction import build_skeleton
from sscc.compiler.frontend.naming import RenamedSource, names_in, stored_names
from sscc.compiler.frontend.sources import DictSource
from tests.compiler.frontend.test_capture import write_config
from tests.families import FAMILIES, SHAPE, random_model


def test_names_of_today_stay() -> None:
    names = list(random_model("llama").state_dict())
    assert stored_names(FAMILIES["llama"], names).renamed == {name: name for name in names}


@pytest.mark.parametrize(
    ("config", "stored", "known"),
    [
        (FAMILIES["gpt-neox"], "embed_out.weight", "lm_head.weight"),
        (FAMILIES["gpt2"], "h.1.mlp.c_fc.bias", "transformer.h.1.mlp.c_fc.bias"),
        (FAMILIES["llama"], "layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_renamed_and_unprefixed_names(config: PreTrainedConfig, stored: str, known: str) -> None:
    assert stored_names(config, [stored]).renamed == {known: stored}


def test_what_the_model_does_not_know_keeps_its_name() -> None:
    assert stored_names(GPT2Config(n_layer=1), ["h.0.attn.masked_bias_of_old"]).renamed == {
        "h.0.attn.masked_bias_of_old": "h.0.attn.masked_bias_of_old"
    }
    assert stored_names(T5Config(), ["shared.weight"]).renamed == {"shared.weight": "shared.weight"}


def test_a_number_of_thousands_of_digits_is_a_name() -> None:
    name = f"model.layers.{'9' * 5_000}.weight"
    assert stored_names(FAMILIES["llama"], [name]).renamed == {name: name}


def test_a_tensor_is_split_into_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of queries, keys and values in one stored tensor, as Sarvam's checkpoints have them."""
    targets = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    rule = WeightConverter("attention.query_key_value", targets, operations=[Split(dim=0)])
    monkeypatch.setattr(naming, "get_model_conversion_mapping", lambda model: [rule])
    weights = random_model("llama").state_dict()
    stored = dict(weights)
    for layer in ("model.layers.0.", "model.layers.1."):
        parts = [stored.pop(f"{layer}{target}.weight") for target in targets]
        stored[f"{layer}attention.query_key_value.weight"] = torch.cat(parts)
    source = RenamedSource(DictSource(stored), FAMILIES["llama"])
    assert source.names() == {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}
    assert all(torch.equal(source.tensor(name), tensor) for name, tensor in weights.items())


def test_a_name_of_today_wins_over_one_of_old() -> None:
    """A checkpoint that holds both: nothing is lost, the model's own name is its own tensor."""
    both = ["embed_out.weight", "lm_head.weight"]
    assert stored_names(GPTNeoXConfig(num_hidden_layers=1), both).renamed == {name: name for name in both}


def test_a_text_decoder_that_its_whole_calls_otherwise() -> None:
    """SmolVLM's is `text_model`, and names of the decoder alone say nothing of it."""
    text = {**SHAPE, "model_type": "llama", "num_hidden_layers": 1}
    whole = SmolVLMConfig(text_config=text, vision_config={"num_hidden_layers": 1})
    known = build_skeleton(whole.text_config).state_dict()
    stored = [f"model.text_model.{name.removeprefix('model.')}" for name in known if name != "lm_head.weight"]
    found = names_in(whole, whole.text_config, [*stored, "lm_head.weight", "model.vision_model.post_layernorm.bias"])
    assert found.renamed.keys() == known.keys()
    assert found.renamed["model.norm.weight"] == "model.text_model.norm.weight"


def test_parts_that_only_the_rules_of_the_whole_join() -> None:
    """GLM-4.5V's matrices of experts."""
    experts = {"n_routed_experts": 2, "first_k_dense_replace": 0, "num_hidden_layers": 1, "moe_intermediate_size": 8}
    whole = Glm4vMoeConfig(text_config={**SHAPE, **experts}, vision_config={"depth": 1})
    known = build_skeleton(whole.text_config).state_dict()
    prefix, experts_of = "model.language_model.", "layers.0.mlp.experts."
    stored = [prefix + name.removeprefix("model.") for name in known if experts_of not in name and name[0] == "m"]
    parts = [f"{prefix}{experts_of}{n}.{part}_proj.weight" for n in range(2) for part in ("gate", "up", "down")]
    found = names_in(whole, whole.text_config, [*stored, *parts, "lm_head.weight"])
    assert found.renamed.keys() | found.joined.keys() == known.keys()
    joined = found.joined[f"model.{experts_of}gate_up_proj"]
    width, hidden = 8, SHAPE["hidden_size"]
    assert joined.join(lambda part: torch.zeros(width, hidden)).shape == (2, 2 * width, hidden)


def test_an_old_folder_reads_under_the_names_of_today(tmp_path: Path) -> None:
    model = random_model("gpt2")
    write_config(model.config, tmp_path)
    old = {name.removeprefix("transformer."): value.clone() for name, value in model.transformer.state_dict().items()}
    save_file(old, str(tmp_path / "model.safetensors"))
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.names()) == {f"transformer.{name}" for name in old}
    assert torch.equal(checkpoint.tensor("transformer.wte.weight"), old["wte.weight"])
