"""Configs that `check_config` accepts and refuses, with the reason of each refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from sscc.compiler.frontend.admission import (
    AdmissionErrors,
    attention_softcaps,
    check_config,
    check_modules,
    layer_window,
    shared_layers,
    suspicions,
)
from sscc.compiler.frontend.construction import ConstructionErrors, build_skeleton
from sscc.compiler.frontend.frequencies import stretched
from sscc.compiler.frontend.model_config import ModelConfigErrors, model_context
from sscc.ir.errors import ErrorKind, SsccError, UnsupportedError, UsageError
from sscc.ir.geometry import Span
from tests.errors import Like, like, raises
from tests.tiny_configs import tiny_config

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


WINDOWED: list[tuple[str, dict[str, Any], list[int]]] = [
    ("mistral", {"sliding_window": 127}, [127, 127]),
    ("starcoder2", {"sliding_window": 16}, [16, 16]),
    ("phi3", {"sliding_window": 1}, [1, 1]),
    ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, [0, 16]),
    ("gemma3_text", {"sliding_window": 16, "head_dim": 8, "sliding_window_pattern": 2}, [16, 0]),
    ("mistral", {"sliding_window": 128}, [0, 0]),
    ("mistral", {"sliding_window": None}, [0, 0]),
    ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, [0, 0]),
    ("qwen2", {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 1}, [0, 0]),
    ("gemma3_text", {"sliding_window": 128, "head_dim": 8}, [0, 0]),
]


@pytest.mark.parametrize(("model_type", "changes", "windows"), WINDOWED, ids=str)
def test_windows_are_accepted(model_type: str, changes: dict[str, Any], windows: list[int]) -> None:
    """Each layer has its own; one that covers the context of 128 tokens is none."""
    config = tiny(model_type, **changes)
    check_config(config, 128)
    assert [layer_window(config, layer, 128) for layer in range(2)] == [Span(window) for window in windows]


def test_chunks_are_accepted_unless_one_covers_the_context() -> None:
    config = tiny("llama4_text", attention_chunk_size=64, layer_types=["chunked_attention", "full_attention"])
    check_config(config, 128)
    assert [layer_window(config, layer, 65) for layer in range(2)] == [Span(64, 64), Span()]
    assert layer_window(config, 0, 64) == Span()


def test_longrope_within_its_original_length() -> None:
    check_config(tiny("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=64), 64)


SPIRAL_ROPE = like(AdmissionErrors.UNKNOWN_ROPE_TYPE, type="spiral")
REFUSED: list[tuple[str, dict[str, Any], list[Like]]] = [
    ("mistral", {"sliding_window": 0}, [like(AdmissionErrors.NO_WINDOW, layer=0, field="sliding_window", window=0)]),
    (
        "qwen2",
        {"sliding_window": -1, "use_sliding_window": True, "max_window_layers": 1},
        [like(AdmissionErrors.NO_WINDOW, layer=1, field="sliding_window", window=-1)],
    ),
    ("gemma3_text", {"sliding_window": None}, [like(AdmissionErrors.NO_WINDOW, layer=0, window=None)]),
    ("t5", {}, [like(AdmissionErrors.ENCODER_DECODER)]),
    ("bert", {}, [like(AdmissionErrors.NOT_CAUSAL, field="is_decoder", value=False)]),
    ("gpt2", {"add_cross_attention": True}, [like(AdmissionErrors.CROSS_ATTENTION, field="add_cross_attention")]),
    (
        "deepseek_v4",
        {},
        [
            like(AdmissionErrors.INDEXED_LAYER, layer=0, type="heavily_compressed_attention"),
            like(AdmissionErrors.INDEXED_LAYER, layer=3, type="compressed_sparse_attention"),
        ],
    ),
    ("llama4_text", {"attention_chunk_size": 0}, [like(AdmissionErrors.NO_CHUNK, layer=0, size=0)]),
    ("rwkv", {}, [like(AdmissionErrors.STATEFUL, model="rwkv")]),
    (
        "lfm2",
        {"layer_types": ["full_attention", "hybrid_sliding"]},
        [like(AdmissionErrors.STATE_LAYER, layer=1, field="layer_types", type="hybrid_sliding")],
    ),
    ("gemma3", {}, [like(AdmissionErrors.SEVERAL_STACKS, parts=["text_config", "vision_config"])]),
    (
        "reformer",
        {},
        [
            like(AdmissionErrors.OTHER_LAYER, layer=layer, field="attn_layers", type=type_)
            for layer, type_ in enumerate(("local", "lsh"))
        ],
    ),
    ("cpmant", {}, [like(AdmissionErrors.LEARNED_BIASES, field="position_bias_num_buckets", value=512)]),
    ("xlnet", {}, [like(AdmissionErrors.NOT_CAUSAL, field="attn_type", value="bi")]),
]


@pytest.mark.parametrize(("model_type", "changes", "reasons"), REFUSED, ids=lambda value: str(value)[:30])
def test_refusals_name_the_feature(model_type: str, changes: dict[str, Any], reasons: list[Like]) -> None:
    make = tiny if model_type in SIZED else untouched
    config = make(model_type, **changes)
    with raises(AdmissionErrors.REFUSED, model=model_type, reasons=reasons):
        check_config(config, 128)


def test_every_reason_is_reported() -> None:
    with raises(AdmissionErrors.REFUSED, reasons=[SPIRAL_ROPE, like(AdmissionErrors.CHUNKED, size=64)]):
        check_config(
            tiny(
                "llama",
                rope_parameters={"rope_type": "spiral", "rope_theta": 1e4},
                attention_chunk_size=64,
            ),
            128,
        )


@pytest.mark.parametrize(
    ("model_type", "changes", "module", "type_", "field"),
    [
        ("jetmoe", {}, "model.layers.0.self_attention.experts", "JetMoeMoA", "num_local_experts = 8"),
        (
            "dbrx",
            {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}},
            "transformer.blocks.0.ffn.experts.mlp",
            "DbrxExpertGLU",
            "ffn_config.moe_num_experts = 4",
        ),
    ],
)
def test_experts_are_looked_for_in_the_model(
    model_type: str, changes: dict[str, Any], module: str, type_: str, field: str
) -> None:
    config = tiny(model_type, **changes)
    check_config(config, 128)
    reason = like(AdmissionErrors.EXPERTS_OF_FIELDS, module=module, type=type_, fields=[field])
    with raises(AdmissionErrors.REFUSED, reasons=[reason]):
        check_modules(config, build_skeleton(config))


def test_a_convolution_over_tokens_is_refused() -> None:
    config = tiny_config("zaya")
    module = "model.layers.0.self_attn.qkv_proj.conv_qk_depthwise"
    reason = like(AdmissionErrors.CONVOLUTION, module=module)
    with raises(AdmissionErrors.REFUSED, reasons=[reason]):
        check_modules(config, build_skeleton(config))


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("granitemoehybrid", {"layer_types": ["full_attention"] * 2, "num_local_experts": 0, "mamba_n_heads": 8}),
        ("qwen3_moe", {"mlp_only_layers": [0, 1]}),
        ("qwen3_moe", {"mlp_only_layers": [0]}),
        ("mixtral", {}),
        ("glm4_moe", {"first_k_dense_replace": 1}),
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
        ("mpt", AdmissionErrors.ALIBI),
        ("rwkv", AdmissionErrors.STATEFUL),
        ("falcon", AdmissionErrors.NO_ATTENTION_INTERFACE),
    ],
)
def test_what_classes_say_of_themselves_explains_refusals(model_type: str, reason: AdmissionErrors) -> None:
    assert reason in [suspicion.kind for suspicion in suspicions(CONFIG_MAPPING[model_type]())]


def test_nothing_is_suspected_of_a_plain_decoder() -> None:
    assert list(suspicions(tiny("llama"))) == []


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("gemma3", like(AdmissionErrors.SEVERAL_STACKS, parts=["text_config", "vision_config"])),
        ("llava", like(AdmissionErrors.NO_TEXT_DECODER, parts=["vision_config", "text_config"])),
        ("rwkv", like(AdmissionErrors.STATEFUL, model="rwkv")),
        ("xlnet", like(AdmissionErrors.NOT_CAUSAL, field="attn_type", value="bi")),
    ],
)
def test_models_without_a_context_are_refused_for_their_true_reason(model_type: str, reason: Like) -> None:
    config = untouched(model_type)
    with raises(AdmissionErrors.REFUSED, reasons=[reason]):
        check_config(config, model_context(config))


def test_a_plain_model_that_does_not_say_its_context_asks_for_it() -> None:
    config = tiny("llama")
    config.max_position_embeddings = -1
    assert model_context(config) is None
    with raises(AdmissionErrors.NO_CONTEXT):
        check_config(config, None)
    check_config(config, 10_000)


@pytest.mark.parametrize(
    ("changes", "kind", "fields"),
    [
        (
            {"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1e4}}, AdmissionErrors.BAD_ROPE_TYPE,
            {"value": "['yarn']"},
        ),
        ({"rope_parameters": [1, 2]}, AdmissionErrors.BAD_ROPE_PARAMETERS, {"value": "[1, 2]"}),
        ({"layer_types": "full"}, ModelConfigErrors.BAD_LAYER_TYPES, {"field": "layer_types", "value": "full"}),
        ({"layer_types": [["full_attention"], 3]}, ModelConfigErrors.BAD_LAYER_TYPES, {"field": "layer_types"}),
    ],
)
def test_fields_of_another_type(changes: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    config = tiny("llama")
    for name, value in changes.items():
        vars(config)[name] = value
    with raises(kind, **fields):
        check_config(config, 128)


def test_the_boundaries_of_windows() -> None:
    """A window of exactly the context is none, of one token less it is one; other families' windows are refused."""
    for model_type in ("mistral", "gemma3_text"):
        for window, kept_window in ((127, 127), (128, 0), (129, 0)):
            config = tiny(model_type, sliding_window=window)
            check_config(config, 128)
            assert layer_window(config, 0, 128) == Span(kept_window)
    for kind, window in (("global", 0), ("local", 64)):
        config = tiny("gpt_neo", window_size=64, attention_types=[[[kind], 2]])
        check_config(config, 128)
        assert layer_window(config, 0, 128) == Span(window)
    reason = like(AdmissionErrors.UNKNOWN_WINDOW, field="local_window", window=127, context=128)
    with raises(AdmissionErrors.REFUSED, reasons=[reason]):
        check_config(with_fields(local_window=127), 128)
    check_config(tiny("gemma2", sliding_window=64, sliding_window_size=64), 128)  # as Gemma 2 is published
    reason = like(AdmissionErrors.UNKNOWN_WINDOW, field="sliding_window_size", window=64, context=128)
    for changes in ({"sliding_window": 63}, {"layer_types": ["full_attention"] * 2}):
        with raises(AdmissionErrors.REFUSED, reasons=[reason]):
            check_config(tiny("gemma2", **{"sliding_window": 64, "sliding_window_size": 64} | changes), 128)


def test_the_boundaries_of_longrope() -> None:
    config = tiny("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=64)
    check_config(config, 65)
    assert (stretched(config, 64), stretched(config, 65)) == ({}, {"longrope": 64})
    config = tiny("llama")
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 1e4}
    field = "original_max_position_embeddings"
    reason = like(AdmissionErrors.LONGROPE_WITHOUT_LENGTH, field=field, value=None)
    with raises(AdmissionErrors.REFUSED, reasons=[reason]):
        check_config(config, 8)


def test_dynamic_frequencies_stretch_the_context_by_their_factor() -> None:
    config = tiny("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.5, "rope_theta": 1e4})
    longest = int(config.max_position_embeddings * 2.5)
    check_config(config, longest)
    with raises(AdmissionErrors.CONTEXT_TOO_LONG, context=longest + 1, limit=longest):
        check_config(config, longest + 1)


def test_an_unknown_rope_type_is_refused() -> None:
    config = tiny("llama")
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with raises(AdmissionErrors.REFUSED, reasons=[SPIRAL_ROPE]):
        check_config(config, 128)


def test_layers_of_different_heads_are_admitted_where_the_class_makes_them() -> None:
    dense = {"hidden_size_per_layer_input": 0, "sliding_window": 128}
    for differs in ({"head_dim": 16}, {"num_key_value_heads": 1}):
        config = tiny("gemma4_text", per_layer_config={1: differs}, head_dim=8, **dense)
        check_config(config, 128)
        check_modules(config, build_skeleton(config))
    config = tiny("llama", per_layer_config={1: {"num_key_value_heads": 1}})
    check_config(config, 128)
    with raises(ConstructionErrors.NOT_BUILT, model="llama"):
        build_skeleton(config)


def test_layers_that_differ_in_more_than_heads_are_refused() -> None:
    config = tiny("llama", per_layer_config={1: {"intermediate_size": 16, "num_key_value_heads": 1}})
    reason = like(AdmissionErrors.LAYERS_DIFFER, fields=["intermediate_size"])
    with raises(AdmissionErrors.REFUSED, reasons=[reason]):
        check_config(config, 128)


def test_context_beyond_the_positions() -> None:
    check_config(tiny("llama"), 256)
    with raises(AdmissionErrors.CONTEXT_TOO_LONG, context=257, limit=256):
        check_config(tiny("llama"), 257)


def with_fields(**fields: Any) -> PreTrainedConfig:
    """A plain decoder whose config has fields more, as they were given."""
    config = tiny("llama")
    vars(config).update(fields)
    return config


@pytest.mark.parametrize(
    "fields",
    [
        {"local_window": 0},
        {"local_window": -1},
        {"local_window": 128},
        {"local_window": None},
        {"local_window": "wide", "attn_soft_cap": "tanh"},
        {"use_window": True},
        {"window_layers": 16},
        {"sliding_window": 16, "layer_types": ["full_attention", "attention"]},
        {"sliding_window": 16, "use_sliding_window": False},
        {"sliding_window": 1},
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
        {"attn_logit_softcapping": 0.0},
        {"final_logit_softcapping": 30.0},
        {"attention_chunk_size": 0},
        {"kv_lora_rank": 8},
        {"rope_parameters": None},
        {"rope_parameters": {"full_attention": {"rope_type": "linear"}, "sliding_attention": {}}},
        {"layer_types": [], "block_types": ("full_attention", "attention")},
        {"max_position_embeddings": None},
        {"is_decoder": False, "num_kv_shared_layers": 0},
        {"num_kv_shared_layers": 1},
    ],
    ids=str,
)
def test_fields_that_change_nothing(fields: dict[str, Any]) -> None:
    check_config(with_fields(**fields), 128)


@pytest.mark.parametrize("shared", [-1, 2, "1", 0.5, True])
def test_a_number_of_sharing_layers_that_leaves_none_before_them(shared: Any) -> None:
    assert shared_layers(with_fields(num_kv_shared_layers=1)) == 1
    assert shared_layers(with_fields(num_kv_shared_layers=None)) == shared_layers(tiny("llama")) == 0
    with raises(AdmissionErrors.BAD_SHARED_LAYERS, layers=2):
        shared_layers(with_fields(num_kv_shared_layers=shared))


def test_caps_on_scores_are_told_from_those_on_logits() -> None:
    caps = {"attn_logit_softcapping": 20.0, "decoder_attn_softcap": 0.5, "attention_soft_cap": None}
    fields = {**caps, "final_logit_softcapping": 30.0, "attn_soft_cap": 0.0}
    assert attention_softcaps(with_fields(**fields)) == {"attn_logit_softcapping": 20.0, "decoder_attn_softcap": 0.5}
    assert attention_softcaps(tiny("llama")) == {}


def _reason(kind: AdmissionErrors, **fields: Any) -> SsccError:
    return kind(**fields)


STATE = {"layer": 1, "field": "layers_block_type", "type": "hybrid_sliding"}
SPIRAL = {"layer": 2, "field": "layers_block_type", "type": "spiral"}
ROPE_TYPES = ["default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn"]


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"local_window": 1}, [AdmissionErrors.UNKNOWN_WINDOW(field="local_window", window=1, context=128)]),
        (
            {"attn_config": {"window_size": 127}},
            [AdmissionErrors.UNKNOWN_WINDOW(field="attn_config.window_size", window=127, context=128)],
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": True},
            [AdmissionErrors.NO_WINDOW(layer=1, field="sliding_window", window=True)],
        ),
        (
            {"layer_types": ["sliding_attention"]},
            [AdmissionErrors.NO_WINDOW(layer=0, field="sliding_window", window=None)],
        ),
        ({"sliding_window": 9.0}, [AdmissionErrors.NO_WINDOW(layer=0, field="sliding_window", window=9.0)]),
        (
            {"layer_types": None, "layers_block_type": ["attention", "hybrid_sliding", "spiral"]},
            [_reason(AdmissionErrors.STATE_LAYER, **STATE), _reason(AdmissionErrors.OTHER_LAYER, **SPIRAL)],
        ),
        (
            {"layer_types": ["full_attention", "chunked_attention"], "attention_chunk_size": 64.0},
            [AdmissionErrors.NO_CHUNK(layer=1, size=64.0)],
        ),
        ({"attention_chunk_size": 64}, [AdmissionErrors.CHUNKED(size=64)]),
        ({"attn_type": "bi"}, [AdmissionErrors.NOT_CAUSAL(field="attn_type", value="bi")]),
        ({"prefix_lm": True}, [AdmissionErrors.NOT_CAUSAL(field="prefix_lm", value=True)]),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "spiral"}}},
            [AdmissionErrors.UNKNOWN_ROPE_TYPE(type="spiral", known=ROPE_TYPES)],
        ),
    ],
)
def test_a_field_is_refused_for_these_reasons_alone(fields: dict[str, Any], reasons: list[SsccError]) -> None:
    with raises(AdmissionErrors.REFUSED, model="llama", reasons=[reason.as_json() for reason in reasons]):
        check_config(with_fields(**fields), 128)


@pytest.mark.parametrize("place", ["rope_parameters", "config"])
def test_where_longrope_says_its_original_length(place: str) -> None:
    fields = {"original_max_position_embeddings": 64}
    rope: dict[str, Any] = {"rope_type": "longrope"}
    config = with_fields(rope_parameters=rope, **fields)
    if place == "rope_parameters":
        config = with_fields(rope_parameters=rope | fields)
    check_config(config, 65)
    assert (stretched(config, 64), stretched(config, 65)) == ({}, {"longrope": 64})
    with raises(AdmissionErrors.NO_CONTEXT):
        check_config(config, None)


def test_what_cannot_be_judged_without_a_context_waits_for_one() -> None:
    with raises(AdmissionErrors.NO_CONTEXT):
        check_config(with_fields(sliding_window=16, local_window=16, layer_types=["sliding_attention"]), None)
    config = untouched("falcon", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    config.rope_parameters["rope_type"] = "spiral"
    with raises(AdmissionErrors.REFUSED, reasons=[SPIRAL_ROPE]):  # and suspicions add nothing
        check_config(config, None)


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({}, None),
        ({"max_position_embeddings": 1}, 1),
        ({"max_position_embeddings": 0}, None),
        ({"max_position_embeddings": "64"}, None),
        ({"max_position_embeddings": True, "max_seq_len": 32}, 32),
        ({"max_target_positions": 16, "model_max_length": 8}, 16),
        ({"max_position_embeddings": 64.0, "model_max_length": 8}, 8),
    ],
)
def test_the_context_that_a_config_says(fields: dict[str, Any], context: int | None) -> None:
    assert model_context(PreTrainedConfig(**fields)) == context


def test_layers_with_configs_of_their_own_that_say_the_same() -> None:
    check_config(tiny("llama", per_layer_config={1: {"intermediate_size": TINY["intermediate_size"]}}), 128)


def test_modules_that_mix_tokens_or_choose_among_experts() -> None:
    """Only what a model is built of counts, whatever its class is called."""

    def built(**modules: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.ModuleDict(modules)

    config = with_fields(num_experts=2, n_shared_experts=1, moe={"experts": 4}, experts_width=9)
    check_modules(config, built(linear=torch.nn.Linear(2, 2), pointwise=torch.nn.Conv1d(2, 2, 1)))
    reason = like(AdmissionErrors.CONVOLUTION, module="mix.0")
    for size in (2, 3):
        with raises(AdmissionErrors.REFUSED, model="llama", reasons=[reason]):
            check_modules(config, built(mix=torch.nn.Sequential(torch.nn.Conv1d(2, 2, size))))
    sparse = built(mlp=torch.nn.ModuleDict({"router": torch.nn.Linear(2, 2)}))
    counts = ["num_experts = 2", "moe.experts = 4"]
    reason = like(AdmissionErrors.EXPERTS_OF_FIELDS, module="mlp.router", type="Linear", fields=counts)
    with raises(AdmissionErrors.REFUSED, model="llama", reasons=[reason]):
        check_modules(config, sparse)
    check_modules(tiny("llama"), sparse)  # what it routes to is not said to be experts
    experts = built(mlp=torch.nn.ModuleDict({"experts": torch.nn.Linear(2, 2)}))
    reason = like(AdmissionErrors.EXPERTS, module="mlp.experts", type="Linear")
    with raises(AdmissionErrors.REFUSED, model="llama", reasons=[reason]):
        check_modules(tiny("llama"), experts)


def test_nothing_is_suspected_of_what_transformers_does_not_have() -> None:
    assert list(suspicions(untouched("t5"))) == []


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
    assert {"llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gpt_neox", "deepseek_v3"} <= set(accepted)
    assert not {"deepseek_v4", "rwkv", "bert", "gemma3"} & set(accepted)
