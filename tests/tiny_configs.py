"""Every causal language model that transformers knows, as a config of some thousand parameters.

A tiny config is the default one of its type, in which every field that `SIZES` names has the size that stands there.
Where layers differ, it keeps one of each kind. What a type needs besides stands in `CHANGES`, as data. Tests and
`benchmarks/coverage.py` use the same configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 96
CONTEXT = 192
LAYERS = 2
WINDOW = 10
"""Positions that a query of a layer with a window or chunks sees: more than a chunk of prefill, fewer than a prompt."""

CAUSAL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _sizes(size: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


SIZES: dict[str, int] = {
    **_sizes(
        VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size decoder_vocab_size audio_vocab_size"
    ),
    **_sizes(
        CONTEXT,
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions "
        "model_max_length context_length",
    ),
    **_sizes(
        32,
        "hidden_size d_model n_embd emb_dim embedding_dim embedding_size input_embedding_size output_embedding_size "
        "word_embed_proj_dim attention_hidden_size lru_width backbone_hidden_size dim adapter_in_dim adapter_out_dim "
        "adapter_input_size",
    ),
    **_sizes(
        48,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dff dim_ff d_inner feed_forward_size "
        "intermediate_size_mlp dense_intermediate_size prefix_dense_intermediate_size ffn_hidden_size "
        "block_ffn_dim",
    ),
    **_sizes(
        16,
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
        "moe_shared_expert_intermediate_size shared_experts_intermediate_size kv_lora_rank o_lora_rank "
        "hidden_size_per_layer_input router_hidden_size moe_latent_size",
    ),
    **_sizes(12, "q_lora_rank qk_head_dim"),
    # Mechanisms that start at some position, or choose blocks of positions, should start before the prompt ends.
    **_sizes(16, "original_max_position_embeddings log_scaling_n_floor floor_scale"),
    # Of many heads of an index some score every position above 0: equal scores have no order.
    **_sizes(64, "index_n_heads"),
    **_sizes(4, "index_block_size"),
    **_sizes(
        8,
        "head_dim d_head dim_head attention_head_dim attention_head_size kv_channels qk_nope_head_dim swa_head_dim "
        "global_head_dim swa_v_head_dim index_head_dim indexer_head_dim index_topk indexer_budget linear_head_dim "
        "linear_key_head_dim linear_value_head_dim mamba_d_state mamba_d_head mamba_headdim mamba_head_dim state_size "
        "ssm_state_size",
    ),
    **_sizes(6, "v_head_dim"),
    **_sizes(
        6,
        "num_experts n_routed_experts num_local_experts moe_num_experts",
    ),
    **_sizes(
        4,
        "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads attention_heads num_heads "
        "qk_rope_head_dim rotary_dim num_decoder_attention_heads num_encoder_attention_heads linear_num_heads "
        "linear_num_value_heads swa_num_attention_heads mamba_dt_rank time_step_rank",
    ),
    **_sizes(
        LAYERS,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
        "num_encoder_layers index_topk_blocks indexer_n_heads linear_num_key_heads depth layers",
    ),
    **_sizes(
        WINDOW,
        "sliding_window sliding_window_size window_size attention_window_size attention_chunk_size local_attention "
        "local_attention_window_len",
    ),
}
"""Field -> what it becomes, unless the default config leaves it out (None)."""

AT_MOST: dict[str, int] = {
    **_sizes(
        2,
        "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts n_group num_expert_group "
        "num_key_value_heads num_kv_heads swa_num_key_value_heads num_global_key_value_heads indexer_kv_heads",
    ),
    **_sizes(
        1,
        "topk_group first_k_dense_replace num_dense_layers num_kv_shared_layers n_shared_experts num_shared_experts "
        "moe_num_shared_experts",
    ),
}
"""Largest value of a field. If a config has as many KV heads as query heads, it still has afterwards."""

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id")
"""Fields that a token of the vocabulary must stand in."""
CAUSAL: dict[str, Any] = {"is_decoder": True, "is_encoder_decoder": False, "causal": True}
"""Fields that make a model of several kinds a decoder."""
REQUIRED: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
        }
    }
}
"""Type -> what its config cannot be made without."""
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads")
SPREAD = ("initializer_range", "init_std", "embed_init_std")
"""With a wide initialisation a random model prefers some tokens to others clearly."""

ZAMBA: dict[str, Any] = {
    "attention_hidden_size": 64,
    "attention_head_dim": 16,
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
}
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "num_hidden_layers": 2, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "mrope_section": [2, 1, 1]}
            for kind, theta in (("sliding_attention", 1e4), ("full_attention", 1e5))
        },
    },
    "dory": {
        "num_hidden_layers": LAYERS,
        "layer_types": ["sliding_attention", "full_attention"],
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 0,
    },
    "deepseek_v2": {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": 6, "moe_top_k": 2},
    },
    "dots3_note_text": {"head_dim": 12},
    "dots1": {"n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1], "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2},
    "ministral": {"head_dim": 8},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "phi4_multimodal": {"eos_token_id": VOCABULARY - 1},  # of 0 the class makes its default, which is out of range
    "recurrent_gemma": {"num_hidden_layers": 3},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False, "concat_input": False},
    "zamba": ZAMBA,
    "zamba2": {**ZAMBA, "hybrid_layer_ids": [1, 3]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}
"""Type -> fields of this model type, and of its parts. transformers cannot build a model from a default of None."""


MOST_USED = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi",
    "phi3", "phimoe", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm", "glm4", "glm4_moe", "olmo2", "olmo3", "olmoe",
    "granite", "granitemoe", "cohere", "cohere2", "stablelm", "starcoder2", "gpt_neox", "gptj", "gpt2", "opt", "falcon",
    "smollm3", "minimax_m2", "ernie4_5_moe", "hunyuan_v1_dense", "exaone4", "nemotron", "seed_oss",
)  # fmt: skip
"""Types whose configs are varied, field by field."""
_ON = (
    "tie_word_embeddings attention_bias attention_out_bias mlp_bias bias use_qkv_bias use_bias lm_head_bias "
    "use_qk_norm qk_layernorm norm_topk_prob use_parallel_residual new_decoder_architecture "
    "scale_attn_by_inverse_layer_idx alibi"
)
_OFF = (
    "tie_word_embeddings attention_bias qkv_bias use_bias norm_topk_prob parallel_attn use_parallel_residual "
    "multi_query do_layer_norm_before scale_attn_weights rope_interleave use_cache"
)
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "head_dim": (12,),
    "num_key_value_heads": (1, 4),
    "rotary_dim": (8,),
    "n_shared_experts": (2,),
    "num_experts_per_tok": (1,),
    "first_k_dense_replace": (0, 2),
    "decoder_sparse_step": (2,),
    "mlp_only_layers": ([0],),
    "no_rope_layers": ([1, 1],),
    "routed_scaling_factor": (2.5,),
    "logit_scale": (0.25,),
    "logits_scaling": (3.0,),
    "attention_multiplier": (0.3,),
    "residual_multiplier": (0.7,),
    "embedding_multiplier": (2.0,),
    "query_pre_attn_scalar": (5,),
    "final_logit_softcapping": (5.0,),
    "attn_logit_softcapping": (7.0,),
    "clip_qkv": (1.5,),
    "q_lora_rank": (None,),
    "word_embed_proj_dim": (16,),
    "hidden_act": ("gelu_pytorch_tanh", "relu2"),
    "activation_function": ("relu",),
    "topk_method": ("group_limited_greedy",),
    "sliding_window": (None,),
}
VARIATIONS: dict[str, dict[str, Any]] = {
    **{f"{name} = {on}": {name: on} for on, names in ((True, _ON), (False, _OFF)) for name in names.split()},
    **{f"{name} = {value}": {name: value} for name, values in _NUMBERS.items() for value in values},
    **{
        f"rope_type = {kind}": {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0} | more}
        for kind, more in {
            "linear": {},
            "dynamic": {},
            "yarn": {"original_max_position_embeddings": 16},
            "llama3": {"original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        }.items()
    },
    "groups of experts": {"n_group": 2, "topk_group": 1},
    "a window": {"sliding_window": WINDOW},
    "a window that is used": {"sliding_window": WINDOW, "use_sliding_window": True},
    "a window in some layers": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "a window that some layers use": {
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "every layer attends": {"layer_types": ["full_attention"] * LAYERS},
}
"""Values of config fields other than the defaults."""


def tiny_config(model_type: str, variation: str = "") -> PreTrainedConfig:
    """The tiny config of a type of `CAUSAL_TYPES`; with a variation those fields are as it says."""
    cls = CONFIG_MAPPING[model_type]
    fields = _shrunk(cls(**REQUIRED.get(model_type, {})).to_dict())
    if variation:
        changes = VARIATIONS[variation]
        kept = {"partial_rotary_factor"} & fields.get("rope_parameters", {}).keys()
        if "rope_parameters" in changes:
            rope = {name: fields["rope_parameters"][name] for name in kept}
            changes = {"rope_parameters": changes["rope_parameters"] | rope}
        # Fields that a class derives from the changed ones are derived again.
        derived = {name for field in changes for name in DERIVED.get(field, ())}
        fields = {name: value for name, value in fields.items() if name not in derived}
        fields |= changes
    return cls.from_dict(fields)


def variations(model_type: str) -> list[str]:
    """The variations of which a type's tiny config has all fields, and not these values."""
    fields = tiny_config(model_type).to_dict()
    rope = fields.get("rope_parameters") or {}
    plain_rope = bool(rope) and not any(isinstance(value, Mapping) for value in rope.values())
    return [
        name
        for name, changes in VARIATIONS.items()
        if changes.keys() <= fields.keys()
        and any(fields[field] != value for field, value in changes.items())
        and (plain_rope or "rope_parameters" not in changes)
    ]


DERIVED = {"sliding_window": ("layer_types",), "first_k_dense_replace": ("mlp_layer_types",)}
"""Field -> those that a class makes of it where they are left out."""


def _shrunk(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config's dictionary with tiny sizes, and one layer of each kind."""
    counts = [name for name in LAYER_COUNTS if isinstance(values.get(name), int)]
    layers = values[counts[0]] if counts else 0
    own: dict[int, Any] = {int(layer): fields for layer, fields in (values.get("per_layer_config") or {}).items()}
    lists = {name: value for name, value in values.items() if isinstance(value, list) and len(value) == layers > 1}
    rows = [(own.get(layer), *(value[layer] for value in lists.values())) for layer in range(layers)]
    kept = [rows.index(row) for number, row in enumerate(rows) if rows.index(row) == number]
    kept = kept if len(kept) >= LAYERS else kept * LAYERS
    tiny: dict[str, Any] = {}
    for name, value in values.items():
        if name == "per_layer_config":
            tiny[name] = {place: _shrunk(own[layer]) for place, layer in enumerate(kept) if layer in own}
        elif isinstance(value, Mapping):
            tiny[name] = _shrunk(value)
        elif name in lists:
            tiny[name] = [_size(name, value[layer], values) for layer in kept]
        else:
            tiny[name] = CAUSAL[name] if name in CAUSAL else _size(name, value, values)
    tiny |= {name: len(kept) for name in counts}
    return tiny | CHANGES.get(str(values.get("model_type")), {})


def _size(name: str, value: Any, config: Mapping[str, Any]) -> Any:
    """Return the value of a config field in the tiny model."""
    if name in TOKENS:
        return value if value is None or value in range(VOCABULARY) else 0
    if name in SPREAD:
        return 0.3
    if type(value) is not int or not value:
        return value
    if name in KV_HEADS and value == config.get("num_attention_heads", config.get("n_head")):
        return SIZES["num_attention_heads"]
    if name == "head_dim" and value == config.get("qk_rope_head_dim"):
        return SIZES["qk_rope_head_dim"]
    if name == "num_kv_shared_layers" and value == config.get("num_hidden_layers"):
        return LAYERS
    return min(value, AT_MOST[name]) if name in AT_MOST else SIZES.get(name, value)


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """transformers' own model of a config in f32, with its own eager attention; no parameter is left at its neutral
    value."""
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        deepcopy(config), attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        kept = model.state_dict()
        for name, buffer in model.named_buffers():  # of routers; other buffers follow from the config
            if name in kept and name.endswith("bias"):
                buffer.add_(torch.randn_like(buffer) * 0.1)
    return model.requires_grad_(False).eval()
