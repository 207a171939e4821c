"""Checkpoints whose names are of another age than the model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPTNeoXConfig, PreTrainedConfig, T5Config

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.naming import stored_names
from tests.compiler.frontend.test_capture import write_config
from tests.families import FAMILIES, random_model


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


def test_a_name_of_today_wins_over_one_of_old() -> None:
    """A checkpoint that holds both: nothing is lost, the model's own name is its own tensor."""
    both = ["embed_out.weight", "lm_head.weight"]
    assert stored_names(GPTNeoXConfig(num_hidden_layers=1), both).renamed == {name: name for name in both}


def test_an_old_folder_reads_under_the_names_of_today(tmp_path: Path) -> None:
    model = random_model("gpt2")
    write_config(model.config, tmp_path)
    old = {name.removeprefix("transformer."): value.clone() for name, value in model.transformer.state_dict().items()}
    save_file(old, str(tmp_path / "model.safetensors"))
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.names()) == {f"transformer.{name}" for name in old}
    assert torch.equal(checkpoint.tensor("transformer.wte.weight"), old["wte.weight"])
