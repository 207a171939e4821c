"""What `check_config` accepts and refuses, each refusal by the words of its message."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from sscc.compiler.frontend.admission import check_config, check_modules, model_context, suspicions
from sscc.compiler.frontend.construction import build_skeleton
from sscc.ir.errors import InputError, UnsupportedError, UsageError

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
    ("gemma2", {"sliding_window": 256}, "soft-capped attention .attn_logit_softcapping = 50"),
    ("t5", {}, "encoder-decoder"),
    ("falcon", {"alibi": True}, "ALiBi"),
    ("bert", {}, "bidirectional"),
    ("gpt2", {"add_cross_attention": True}, "cross-attention"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic rope"),
    (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
        "longrope .* = 64 .* from 128 to at most 64",
    ),
    ("deepseek_v3", {}, "MLA.* in layer 0 .kv_lora_rank = 512"),
    ("minicpm3", {}, "MLA"),
    ("llama4_text", {"attention_chunk_size": 64}, "layer 0 is chunked attention .attention_chunk_size = 64"),
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
    with pytest.raises(UnsupportedError, match=r"dynamic rope.*; soft-capped attention.*; .*\(MLA\)"):
        check_config(
            tiny(
                "llama",
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                attn_logit_softcapping=20.0,
                kv_lora_rank=8,
            ),
            128,
        )


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("mixtral", {}, r"mixture of experts .num_local_experts = 8.: model\.layers\.0\.\S*experts"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mixture of experts .num_local_experts = 128.: model\.layers\.1\.mlp"),
        ("granitemoehybrid", {"layer_types": ["full_attention"] * 2, "mamba_n_heads": 8}, "mixture of exp"),
    ],
)
def test_experts_are_looked_for_in_the_model(model_type: str, changes: dict[str, Any], message: str) -> None:
    config = tiny(model_type, **changes)
    check_config(config, 128)
    with pytest.raises(UnsupportedError, match=message):
        check_modules(config, build_skeleton(config))


def test_a_convolution_over_tokens_is_refused() -> None:
    config = untouched("falcon_h1", **(TINY | {"pad_token_id": 0, "mamba_d_ssm": 64, "mamba_n_heads": 8}))
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.mamba\.conv1d is a convolution over tokens"):
        check_modules(config, build_skeleton(config))


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("granitemoehybrid", {"layer_types": ["full_attention"] * 2, "num_local_experts": 0, "mamba_n_heads": 8}),
        ("qwen3_moe", {"mlp_only_layers": [0, 1]}),
        ("nanochat", {}),
        ("stablelm", {}),
        ("gemma4_text", {"head_dim": 8, "global_head_dim": 8, "hidden_size_per_layer_input": 0, "sliding_window": 128}),
    ],
)
def test_dense_configs_of_classes_for_more_are_admitted(model_type: str, changes: dict[str, Any]) -> None:
    config = tiny(model_type, **changes)
    check_config(config, 128)
    check_modules(config, build_skeleton(config))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("bloom", "ALiBi"),
        ("mpt", "ALiBi"),
        ("gpt_oss", "learned attention sinks"),
        ("mamba", "state-space"),
        ("codegen", "does not go through transformers' attention interface"),
        ("falcon", "does not go through transformers' attention interface"),
    ],
)
def test_what_classes_say_of_themselves_explains_refusals(model_type: str, reason: str) -> None:
    assert any(reason in suspicion for suspicion in suspicions(CONFIG_MAPPING[model_type]()))


def test_nothing_is_suspected_of_a_plain_decoder() -> None:
    assert list(suspicions(tiny("llama"))) == []


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("gemma3", "composed of several models .text_config, vision_config"),
        ("llava", "transformers has no causal|composed of several models"),
        ("mpt", "ALiBi"),
        ("bloom", "ALiBi"),
        ("mamba", "state-space"),
        ("xlnet", "attention interface"),
    ],
)
def test_models_without_a_context_are_refused_for_their_true_reason(model_type: str, reason: str) -> None:
    config = untouched(model_type)
    with pytest.raises(UnsupportedError, match=reason):
        check_config(config, model_context(config))


def test_a_plain_model_that_does_not_say_its_context_asks_for_it() -> None:
    config = tiny("llama")
    config.max_position_embeddings = -1
    assert model_context(config) is None
    with pytest.raises(UsageError, match="does not say how long a context it takes: give --max-context"):
        check_config(config, None)
    check_config(config, 10_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1e4}}, r"rope_type is \['yarn'\], it must be"),
        ({"rope_parameters": [1, 2]}, r"rope_parameters is \[1, 2\], it must be an object"),
        ({"layer_types": "full"}, "layer_types is 'full', it must be a list of words"),
        ({"layer_types": [["full_attention"], 3]}, "layer_types is .*, it must be a list of words"),
    ],
)
def test_fields_of_another_type(changes: dict[str, Any], message: str) -> None:
    config = tiny("llama")
    for name, value in changes.items():
        vars(config)[name] = value
    with pytest.raises(InputError, match=message):
        check_config(config, 128)


def test_the_boundaries_of_windows() -> None:
    """A window of exactly the context is inert, one token less is not; with and without a list of layers."""
    fields = {"mistral": "sliding_window", "gpt_neo": "window_size", "gemma3_text": "sliding_window"}
    for model_type, field in fields.items():
        layers = {"attention_types": [[["global"], 2]]} if model_type == "gpt_neo" else {}
        check_config(tiny(model_type, **layers, **{field: 128}), 128)
        check_config(tiny(model_type, **layers, **{field: 129}), 128)
        with pytest.raises(UnsupportedError, match=f"{field} = 127, less than max-context 128"):
            check_config(tiny(model_type, **layers, **{field: 127}), 128)
    check_config(tiny("mistral", sliding_window=None), 256)
    with pytest.raises(UnsupportedError, match="sliding_window = 0"):
        check_config(tiny("mistral", sliding_window=0), 128)


def test_the_boundaries_of_longrope() -> None:
    config = tiny("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=64)
    check_config(config, 64)
    with pytest.raises(UnsupportedError, match=r"longrope beyond .* = 64 .* from 65 to at most 64"):
        check_config(config, 65)
    config = tiny("llama")
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 1e4}
    with pytest.raises(UnsupportedError, match="longrope beyond original_max_position_embeddings = None"):
        check_config(config, 8)


def test_an_unknown_rope_type_is_refused() -> None:
    config = tiny("llama")
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(UnsupportedError, match=r"rope_type spiral is not one of default, linear, .*yarn, longrope"):
        check_config(config, 128)


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
    assert not {"llama4_text", "deepseek_v3", "mamba", "bert", "gemma3"} & set(accepted)
