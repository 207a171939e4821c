"""Text decoders that transformers has without a head: Qwen2.5-VL's, compared with the whole model on text."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    VoxtralRealtimeTextConfig,
)

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.headless import around, headed_class
from sscc.compiler.frontend.probe import ProbeErrors
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.ir.geometry import Geometry
from tests.agreement import eager_generate
from tests.compiler.small_stacks import CONTEXT, SHAPE, fed, opened
from tests.errors import raises
from tests.families import random_tokens

CONFIG = Qwen2_5_VLConfig(
    text_config=SHAPE
    | {
        "num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    },
    vision_config={"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32},
)
EVERYTHING = Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
OPTIONS: dict[str, Any] = cache_options(EVERYTHING) | {"batch": 2, "prefill_chunk": 7, "dtype": "f32"}


@cache
def whole() -> PreTrainedModel:
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(
        copy.deepcopy(CONFIG), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.requires_grad_(False).eval()


def test_the_decoder_of_a_composite_model_generates_what_the_whole_does(tmp_path: Path) -> None:
    whole().save_pretrained(tmp_path / "checkpoint")
    compile_model(CompileOptions(tmp_path / "checkpoint", tmp_path / "m.rdu", native_code=False, **OPTIONS))
    prompt = random_tokens(20)
    tokens, theirs = eager_generate(whole(), prompt, 10)
    ours = fed(opened(tmp_path / "m.rdu"), prompt, tokens[:-1], slot=1)
    assert ours.argmax(1).tolist() == tokens
    assert abs(ours - theirs.numpy()).max() <= 1e-4


def test_the_probe_runs_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the whole does to a text besides its decoder and its head, a program of these two would lack."""
    forward = Qwen2_5_VLForConditionalGeneration.forward

    def scaled(self: Any, **keywords: Any) -> Any:
        result = forward(self, **keywords)
        result.logits = result.logits * 0.5
        return result

    whole().save_pretrained(tmp_path / "checkpoint")
    monkeypatch.setattr(Qwen2_5_VLForConditionalGeneration, "forward", scaled)
    with raises(ProbeErrors.CAPTURED_DIFFERS):
        compile_model(CompileOptions(tmp_path / "checkpoint", tmp_path / "m.mlir", compile_to="import", **OPTIONS))


def test_the_whole_has_the_sizes_of_its_config() -> None:
    """Classes may check that those of a part go with the text's."""
    decoder = headed_class(CONFIG.text_config)
    assert decoder is not None
    with torch.device("meta"):
        model = decoder(copy.deepcopy(CONFIG.text_config))
    assert around(model, CONFIG).config.vision_config.depth == 1
    assert around(model, None).config.vision_config.depth > 1


def test_only_decoders_of_composite_models_get_a_head() -> None:
    assert headed_class(Qwen2Config()) is None
    assert headed_class(VoxtralRealtimeTextConfig()) is None  # transformers lists a class that it does not have
    made = headed_class(CONFIG.text_config)
    assert made is not None
    assert made.__module__ == "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"
