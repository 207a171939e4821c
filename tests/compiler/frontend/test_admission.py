"""What `check_config` accepts and refuses, each refusal by the words of its message."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from sscc.compiler.frontend.admission import check_config
from sscc.ir.errors import UnsupportedError, UsageError

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
SIZED = {"mistral", "qwen2", "starcoder2", "llama", "phi3", "lfm2", "llama4_text"}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}


def tiny(model_type: str, **changes: Any) -> PreTrainedConfig:
    """A tiny config of an architecture, with some fields changed."""
    config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict(TINY | {"pad_token_id": 0} | changes)
    return config


def untouched(model_type: str, **changes: Any) -> PreTrainedConfig:
    """The default config of an architecture that does not know the tiny sizes, with some fields changed."""
    config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict(dict(changes))
    return config


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gpt_neox", "gpt2", "smollm3", "granite"]
)
def test_families_that_compile(model_type: str) -> None:
    check_config(tiny(model_type), 128)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 1e4,
        },
    ],
)
def test_static_rope(rope: dict[str, Any]) -> None:
    check_config(tiny("llama", rope_parameters=rope), 128)


def test_inert_windows_are_accepted() -> None:
    check_config(tiny("mistral", sliding_window=128), 128)
    check_config(tiny("qwen2", sliding_window=16, use_sliding_window=False), 128)
    check_config(tiny("qwen2", sliding_window=128, use_sliding_window=True, max_window_layers=1), 128)
    check_config(tiny("gemma3_text", sliding_window=128, head_dim=8), 128)


def test_longrope_within_its_original_length() -> None:
    check_config(tiny("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=64), 64)


REFUSED = [
    ("mistral", {"sliding_window": 127}, "layer 0 is sliding-window attention .*= 127, less than max-context 128"),
    ("starcoder2", {"sliding_window": 16}, "layer 0 is sliding-window attention"),
    (
        "qwen2",
        {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1},
        "layer 1 is sliding-window attention",
    ),
    ("gemma3_text", {"sliding_window": 16}, "layer 0 is sliding-window attention"),
    ("gemma2", {"sliding_window": 256}, "soft-capping .attn_logit_softcapping = 50"),
    ("nanochat", {}, "soft-capping .final_logit_softcapping"),
    ("t5", {}, "encoder-decoder"),
    ("bloom", {}, "ALiBi"),
    ("mpt", {}, "ALiBi"),
    ("falcon", {"alibi": True}, "ALiBi"),
    ("falcon", {"alibi": False}, "does not go through transformers' attention interface"),
    ("codegen", {}, "does not go through transformers' attention interface"),
    ("xglm", {}, "does not go through transformers' attention interface"),
    ("bert", {}, "bidirectional"),
    ("gpt2", {"add_cross_attention": True}, "cross-attention"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic rope"),
    (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
        "longrope .* = 64 .* from 128 to at most 64",
    ),
    ("mixtral", {}, "mixture of experts .num_local_experts = 8"),
    ("qwen3_moe", {}, "mixture of experts"),
    ("dbrx", {}, "mixture of experts .ffn_config.moe_num_experts = 4"),
    ("deepseek_v3", {}, "MLA.* in layer 0 .kv_lora_rank = 512"),
    ("minicpm3", {}, "MLA"),
    ("llama4_text", {"attention_chunk_size": 64}, "layer 0 is chunked attention .attention_chunk_size = 64"),
    ("gpt_oss", {}, "learned attention sinks"),
    ("mamba", {}, "state-space"),
    ("jamba", {}, "state-space"),
    ("lfm2", {"layer_types": ["full_attention", "conv"]}, "layer 1 is a state-space or hybrid layer .conv"),
    ("gemma3n_text", {"num_kv_shared_layers": 1}, "share the K and V"),
    ("gemma3", {}, "composed of several models .text_config, vision_config"),
    ("gpt_neo", {"window_size": 64}, "attention within a window .window_size = 64"),
]


@pytest.mark.parametrize(("model_type", "changes", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_refusals_name_the_feature(model_type: str, changes: dict[str, Any], message: str) -> None:
    make = tiny if model_type in SIZED else untouched
    config = make(model_type, **changes)
    with pytest.raises(UnsupportedError, match=message):
        check_config(config, 128)


def test_every_reason_is_reported() -> None:
    with pytest.raises(UnsupportedError, match=r"sinks; .*sliding-window.*; mixture of experts"):
        check_config(CONFIG_MAPPING["gpt_oss"](), 4096)


def test_layers_of_different_shapes() -> None:
    config = tiny("llama", per_layer_config={1: {"intermediate_size": 16}})
    with pytest.raises(UnsupportedError, match=r"different shapes .per_layer_config: intermediate_size"):
        check_config(config, 128)


def test_context_beyond_the_positions() -> None:
    check_config(tiny("llama"), 256)
    with pytest.raises(UsageError, match=r"max-context 257 exceeds the 256 positions"):
        check_config(tiny("llama"), 257)


def test_every_default_config_is_accepted_or_refused_without_a_traceback() -> None:
    transformers.logging.set_verbosity_error()
    accepted = []
    for model_type in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = CONFIG_MAPPING[model_type]()
        except Exception:  # not every config has defaults that transformers itself accepts
            continue
        try:
            check_config(config, 128)
        except (UnsupportedError, UsageError):
            continue
        accepted.append(model_type)
    assert {"llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gpt_neox"} <= set(accepted)
    assert not {"bloom", "codegen", "xglm", "llama4_text", "gpt_oss", "deepseek_v3", "mixtral"} & set(accepted)
