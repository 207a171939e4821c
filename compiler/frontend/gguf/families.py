"""The families of models in GGUF files, as data: fields of a config, names of parameters, orders of rows.

To add a family, add an entry to `FAMILIES` under the architecture's name in GGUF files. The facts are those of
llama.cpp's converter (`conversion/`), which writes the files, and of its loaders (`src/models/`), which define the
defaults of missing entries.
"""

from __future__ import annotations

from collections.abc import Mapping

from sscc.compiler.frontend.gguf.family import Family, Layout, Names, Window

# ----------------------------------------------------------------------------------------------- what families share

SIZES: Names = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
HEAD: Names = {"attention.key_length": "head_dim"}
RMS: Names = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
PLAIN: Names = SIZES | HEAD | RMS
EXPERTS: Names = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
EXPERT_SIZE: Names = {"expert_feed_forward_length": "moe_intermediate_size"}

OWN_KV_HEADS: Names = {key: name for key, name in SIZES.items() if key != "attention.head_count_kv"}
"""Keys of families in which every query head has its own KV head."""

_L = "model.layers.*"
ENDS: Names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION: Names = {
    f"blk.*.attn_{gguf}": f"{_L}.self_attn.{name}"
    for gguf, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj"))
}
QK_NORMS: Names = {f"blk.*.attn_{side}_norm": f"{_L}.self_attn.{side}_norm" for side in "qk"}
NORMS: Names = {"blk.*.attn_norm": f"{_L}.input_layernorm", "blk.*.ffn_norm": f"{_L}.post_attention_layernorm"}
FOUR_NORMS: Names = {
    "blk.*.attn_norm": f"{_L}.input_layernorm",
    "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm",
    "blk.*.ffn_norm": f"{_L}.pre_feedforward_layernorm",
    "blk.*.post_ffw_norm": f"{_L}.post_feedforward_layernorm",
}
POST_NORMS: Names = {
    "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm",
    "blk.*.post_ffw_norm": f"{_L}.post_feedforward_layernorm",
}
MLP: Names = {f"blk.*.ffn_{side}": f"{_L}.mlp.{side}_proj" for side in ("gate", "up", "down")}
LLAMA: Names = ENDS | ATTENTION | NORMS | MLP
PAIRS = {"blk.*.attn_q": Layout.ROTARY_Q, "blk.*.attn_k": Layout.ROTARY_K}


def shared(name: str) -> Names:
    """Return the parameters of the experts that every token takes."""
    return {f"blk.*.ffn_{side}_shexp": f"{_L}.mlp.{name}.{side}_proj" for side in ("gate", "up", "down")}


def experts(module: str, up: str = "gate_up_proj", down: str = "down_proj") -> dict[str, tuple[str, ...]]:
    """Return the parameters of the matrices of a layer's experts: gate and up are one."""
    return {
        f"{_L}.{module}.{up}": ("blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"),
        f"{_L}.{module}.{down}": ("blk.*.ffn_down_exps.weight",),
    }


def less_one(*tensors: str) -> dict[str, Layout]:
    return dict.fromkeys(tensors, Layout.LESS_ONE)


ROUTER: Names = {"blk.*.ffn_gate_inp": f"{_L}.mlp.gate"}
MOE = experts("mlp.experts")
SHARED_EXPERT_FIELDS: Names = EXPERTS | EXPERT_SIZE | {
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}  # fmt: skip
SHARED_EXPERT: Names = ROUTER | shared("shared_expert") | {"blk.*.ffn_gate_inp_shexp": f"{_L}.mlp.shared_expert_gate"}
FEED_FORWARD: Names = {f"blk.*.ffn_{side}": f"{_L}.feed_forward.{side}_proj" for side in ("gate", "up", "down")}
CONVOLUTION, VECTOR = (-1, 1, 0), (-1,)
"""Shapes of parameters that are stored in other shapes: [C, 1, K] and [N]."""
SHARED_GATE = {"blk.*.ffn_gate_inp_shexp.weight": (1, 0)}
"""A row, which llama-quantize stores as a vector."""
SIGMOID = {"expert_gating_func": 2}
"""The function of a router's logits; 1 is softmax."""

# ------------------------------------------------------------------------------------------------------- the families

_LLAMA = Family(
    "llama", PLAIN, LLAMA, layouts=PAIRS,
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
)  # fmt: skip
_MIXTRAL = Family(
    "mixtral", PLAIN | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ENDS | ATTENTION | NORMS | ROUTER, when="expert_count", layouts=PAIRS, joined=MOE,
    constants={"sliding_window": None},
)  # fmt: skip
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": None}
_VISION = ("rope.dimension_sections", "n_deepstack_layers")
_GEMMA_NORMS = less_one(*NORMS, *FOUR_NORMS, *QK_NORMS, "output_norm")
_DEEPSEEK_FIELDS = {
    **SIZES, **RMS, **EXPERT_SIZE, "expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok",
    "expert_group_count": "n_group", "expert_group_used_count": "topk_group", "expert_weights_scale":
    "routed_scaling_factor", "expert_weights_norm": "norm_topk_prob", "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace", "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank", "attention.value_length_mla": "v_head_dim",
}  # fmt: skip
_MLA: Names = {
    "blk.*.attn_q": f"{_L}.self_attn.q_proj",
    "blk.*.attn_q_a": f"{_L}.self_attn.q_a_proj",
    "blk.*.attn_q_a_norm": f"{_L}.self_attn.q_a_layernorm",
    "blk.*.attn_q_b": f"{_L}.self_attn.q_b_proj",
    "blk.*.attn_kv_a_mqa": f"{_L}.self_attn.kv_a_proj_with_mqa",
    "blk.*.attn_kv_a_norm": f"{_L}.self_attn.kv_a_layernorm",
    "blk.*.attn_kv_b": f"{_L}.self_attn.kv_b_proj",
    "blk.*.attn_output": f"{_L}.self_attn.o_proj",
}
_KV_B = {f"{_L}.self_attn.kv_b_proj.weight": ("blk.*.attn_k_b.weight", "blk.*.attn_v_b.weight")}
_SCORE_BIAS: Names = {"blk.*.exp_probs_b.bias": f"{_L}.mlp.gate.e_score_correction_bias"}
_DEEPSEEK = ENDS | _MLA | NORMS | MLP | ROUTER | shared("shared_experts") | _SCORE_BIAS
_GPT: Names = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.*.attn_qkv": "transformer.h.*.self_attention.query_key_value",
    "blk.*.attn_output": "transformer.h.*.self_attention.dense",
    "blk.*.ffn_up": "transformer.h.*.mlp.dense_h_to_4h",
    "blk.*.ffn_down": "transformer.h.*.mlp.dense_4h_to_h",
}
_GPT2_FIELDS: Names = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "feed_forward_length": "n_inner",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_GPT2: Names = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.*.attn_norm": "transformer.h.*.ln_1",
    "blk.*.ffn_norm": "transformer.h.*.ln_2",
    "blk.*.attn_qkv": "transformer.h.*.attn.c_attn",
    "blk.*.attn_output": "transformer.h.*.attn.c_proj",
    "blk.*.ffn_up": "transformer.h.*.mlp.c_fc",
    "blk.*.ffn_down": "transformer.h.*.mlp.c_proj",
}
_FALCON_FIELDS = SIZES | {
    "attention.head_count_kv": "num_kv_heads", "feed_forward_length": "ffn_hidden_size",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}  # fmt: skip
_FALCON = {"parallel_attn": True, "multi_query": True, "alibi": False, "bias": False}
_COHERE2_MOE: Names = SIZES | HEAD | EXPERTS | {
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "logit_scale": "logit_scale",
    "expert_feed_forward_length": "intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "feed_forward_length": "prefix_dense_intermediate_size",
}
_LFM2_FIELDS: Names = SIZES | {
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "shortconv.l_cache": "conv_L_cache",
}
_LFM2: Names = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
    "blk.*.attn_norm": f"{_L}.operator_norm",
    "blk.*.ffn_norm": f"{_L}.ffn_norm",
    "blk.*.ffn_gate": f"{_L}.feed_forward.w1",
    "blk.*.ffn_down": f"{_L}.feed_forward.w2",
    "blk.*.ffn_up": f"{_L}.feed_forward.w3",
    "blk.*.shortconv.conv": f"{_L}.conv.conv",
    "blk.*.shortconv.in_proj": f"{_L}.conv.in_proj",
    "blk.*.shortconv.out_proj": f"{_L}.conv.out_proj",
    "blk.*.attn_q": f"{_L}.self_attn.q_proj",
    "blk.*.attn_k": f"{_L}.self_attn.k_proj",
    "blk.*.attn_v": f"{_L}.self_attn.v_proj",
    "blk.*.attn_output": f"{_L}.self_attn.out_proj",
    "blk.*.attn_q_norm": f"{_L}.self_attn.q_layernorm",
    "blk.*.attn_k_norm": f"{_L}.self_attn.k_layernorm",
}
_GRANITE_SCALES: Names = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}

_DELTA_FIELDS: Names = {
    **PLAIN, "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim", "ssm.group_count":
    "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
}  # fmt: skip
_DELTA_QUOTIENTS = {"linear_value_head_dim": ("ssm.inner_size", "ssm.time_step_rank")}
_D = f"{_L}.linear_attn"
_DELTA: Names = ENDS | ATTENTION | QK_NORMS | {
    "blk.*.attn_norm": f"{_L}.input_layernorm", "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm",
    "blk.*.ssm_a": f"{_D}.A_log", "blk.*.ssm_dt.bias": f"{_D}.dt_bias", "blk.*.ssm_conv1d": f"{_D}.conv1d",
    "blk.*.ssm_norm": f"{_D}.norm", "blk.*.ssm_out": f"{_D}.out_proj",
}  # fmt: skip
_DELTA_LAYOUTS = {
    "blk.*.ssm_a": Layout.LOG,
    **less_one("output_norm", "blk.*.attn_norm", "blk.*.post_attention_norm", "blk.*.attn_q_norm", "blk.*.attn_k_norm"),
}
_DELTA_SHAPES = SHARED_GATE | {"blk.*.ssm_conv1d.weight": CONVOLUTION}
_QWEN35: Names = _DELTA | {
    "blk.*.attn_qkv": f"{_D}.in_proj_qkv", "blk.*.attn_gate": f"{_D}.in_proj_z", "blk.*.ssm_beta": f"{_D}.in_proj_b",
    "blk.*.ssm_alpha": f"{_D}.in_proj_a",
}  # fmt: skip
_QWEN35_TILES = {
    **dict.fromkeys(("blk.*.ssm_a", "blk.*.ssm_dt.bias", "blk.*.ssm_conv1d", "blk.*.attn_qkv", "blk.*.attn_gate",
                     "blk.*.ssm_beta", "blk.*.ssm_alpha"), 0),
    "blk.*.ssm_out": 1,
}  # fmt: skip
_SSM: Names = {"ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state"}
_SSM_2: Names = _SSM | {"ssm.group_count": "mamba_n_groups", "ssm.time_step_rank": "mamba_n_heads"}
_SSM_2_SIZES = {
    "mamba_d_head": ("ssm.inner_size", "ssm.time_step_rank"), "mamba_expand": ("ssm.inner_size", "embedding_length"),
}  # fmt: skip
_SSM_BIASES: Names = {"mamba_conv_bias": "blk.*.ssm_conv1d.bias", "mamba_proj_bias": "blk.*.ssm_in.bias"}


def mamba(module: str) -> Names:
    """Return the parameters of the mixer of Mamba."""
    return {
        "blk.*.ssm_a": f"{module}.A_log",
        "blk.*.ssm_d": f"{module}.D",
        **{f"blk.*.ssm_{gguf}": f"{module}.{name}"
           for gguf, name in (("in", "in_proj"), ("conv1d", "conv1d"), ("x", "x_proj"), ("dt", "dt_proj"),
                              ("out", "out_proj"))},
    }  # fmt: skip


def mamba_2(module: str) -> Names:
    """Return the parameters of the mixer of Mamba-2."""
    tensors = {tensor: name for tensor, name in mamba(module).items() if tensor not in ("blk.*.ssm_x", "blk.*.ssm_dt")}
    return tensors | {"blk.*.ssm_dt.bias": f"{module}.dt_bias", "blk.*.ssm_norm": f"{module}.norm"}


_LOGS = {"blk.*.ssm_a": Layout.LOG}
_MAMBA_SHAPES = {"blk.*.ssm_conv1d.weight": CONVOLUTION}
_MAMBA_2_SHAPES = _MAMBA_SHAPES | dict.fromkeys(("blk.*.ssm_a", "blk.*.ssm_d", "blk.*.ssm_norm.weight"), VECTOR)
_MAMBA_FIELDS: Names = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
}
_BACKBONE: Names = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.*.attn_norm": "backbone.layers.*.norm",
}
_BACKBONE_BIASES: Names = {"use_conv_bias": "blk.*.ssm_conv1d.bias", "use_bias": "blk.*.ssm_in.bias"}
_MAMBA_1_FIELDS: Names = _MAMBA_FIELDS | {"ssm.time_step_rank": "time_step_rank"}
_MAMBA_1_SIZES = {"expand": ("ssm.inner_size", "embedding_length")}
_MAMBA_1: Names = _BACKBONE | mamba("backbone.layers.*.mixer")
_KV_HEADS = "attention.head_count_kv"
_JAMBA_NORMS: Names = {
    "token_embd": "model.embed_tokens", "output_norm": "model.final_layernorm", "output": "lm_head",
    "blk.*.attn_norm": f"{_L}.input_layernorm", "blk.*.ffn_norm": f"{_L}.pre_ff_layernorm",
}  # fmt: skip
_GRANITE_HYBRID_FIELDS: Names = (
    PLAIN | _GRANITE_SCALES | _SSM_2 | {"expert_shared_feed_forward_length": "shared_intermediate_size"}
)
_GRANITE_HYBRID: Names = ENDS | ATTENTION | NORMS | mamba_2(f"{_L}.mamba")
_NEMOTRON_FIELDS: Names = SIZES | HEAD | {
    "attention.layer_norm_epsilon": "layer_norm_epsilon", "ssm.conv_kernel": "conv_kernel",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",  # where both are there, it is the norms'
    "ssm.state_size": "ssm_state_size", "ssm.group_count": "n_groups", "ssm.time_step_rank": "mamba_num_heads",
}  # fmt: skip
_M = f"{_L}.mixer"
_NEMOTRON: Names = {
    "token_embd": "model.embeddings", "output_norm": "model.norm_f", "output": "lm_head",
    "blk.*.attn_norm": f"{_L}.norm",
    **{f"blk.*.attn_{gguf}": f"{_M}.{name}"
       for gguf, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj"))},
    **{f"blk.*.ffn_{side}": f"{_M}.{side}_proj" for side in ("up", "down")},
    **mamba_2(_M),
}  # fmt: skip
_NEMOTRON_BIASES: Names = {
    "use_conv_bias": "blk.*.ssm_conv1d.bias", "use_bias": "blk.*.ssm_in.bias", "attention_bias": "blk.*.attn_q.bias",
    "mlp_bias": "blk.*.ffn_up.bias",
}  # fmt: skip
_NEMOTRON_SIZES = {"mamba_head_dim": ("ssm.inner_size", "ssm.time_step_rank")}
_NO_ROTATION = ("rope.dimension_count", "rope.freq_base")
"""Keys of a rotary embedding in files of models that have none."""
_K = f"{_L}.self_attn"
_F = f"{_K}.forget_gate"

FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "llama": (_MIXTRAL, _LLAMA),
    "llama4": (
        Family(
            "llama4_text",
            PLAIN | {"feed_forward_length": "intermediate_size_mlp", "expert_count": "num_local_experts",
                     "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "intermediate_size",
                     "interleave_moe_layer_step": "interleave_moe_layer_step"},
            ENDS | ATTENTION | NORMS
            | FEED_FORWARD
            | {f"blk.*.ffn_{side}_shexp": f"{_L}.feed_forward.shared_expert.{side}_proj"
               for side in ("gate", "up", "down")}
            | {"blk.*.ffn_gate_inp": f"{_L}.feed_forward.router"},
            layouts=dict.fromkeys(("blk.*.ffn_gate_exps", "blk.*.ffn_down_exps"), Layout.TRANSPOSED),
            joined=experts("feed_forward.experts"),
            constants={"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
                       "no_rope_layer_interval": 4, "use_qk_norm": True},
            window=Window(4, "attention_chunk_size", 8192, chunked=True),
        ),
    ),
    "mistral3": (
        Family("ministral3", PLAIN, LLAMA, layouts=PAIRS, constants={"sliding_window": None}),
    ),
    "qwen2": (Family("qwen2", PLAIN, LLAMA, constants=_QWEN_WINDOW),),
    # Of text alone every section of the rotary embedding counts the same positions.
    "qwen2vl": (Family("qwen2", PLAIN, LLAMA, constants=_QWEN_WINDOW, ignored=("rope.dimension_sections",)),),
    "qwen3vl": (
        Family("qwen3", PLAIN, LLAMA | QK_NORMS, constants=_QWEN_WINDOW, ignored=_VISION),
    ),
    "qwen3vlmoe": (
        Family("qwen3_moe", PLAIN | EXPERTS | EXPERT_SIZE, LLAMA | QK_NORMS | ROUTER, joined=MOE,
               constants=_QWEN_WINDOW | {"norm_topk_prob": True}, ignored=_VISION),
    ),
    "qwen2moe": (
        Family(
            "qwen2_moe",
            PLAIN | SHARED_EXPERT_FIELDS, LLAMA | SHARED_EXPERT,
            joined=MOE, shapes=SHARED_GATE, constants=_QWEN_WINDOW | {"norm_topk_prob": False},
            present={"qkv_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "qwen3": (
        Family("qwen3", PLAIN, LLAMA | QK_NORMS, constants=_QWEN_WINDOW,
               present={"attention_bias": "blk.0.attn_q.bias"}),
    ),
    "qwen3moe": (
        Family("qwen3_moe", PLAIN | EXPERTS | EXPERT_SIZE, LLAMA | QK_NORMS | ROUTER, joined=MOE,
               constants=_QWEN_WINDOW | {"norm_topk_prob": True}),
    ),
    "gemma": (Family("gemma", PLAIN, LLAMA, layouts=_GEMMA_NORMS),),
    "gemma2": (
        Family(
            "gemma2",
            PLAIN | {"attn_logit_softcapping": "attn_logit_softcapping",
                     "final_logit_softcapping": "final_logit_softcapping"},
            ENDS | ATTENTION | FOUR_NORMS | MLP, layouts=_GEMMA_NORMS, window=Window(2, size=4096),
            extra={"layers of wide queries": 46},
        ),
    ),
    "gemma3": (
        Family(
            "gemma3_text", PLAIN | {"final_logit_softcapping": "final_logit_softcapping"},
            ENDS | ATTENTION | QK_NORMS | FOUR_NORMS | MLP, layouts=_GEMMA_NORMS, window=Window(6), two_ropes=True,
            near_base=10000.0,
            extra={"layers of wide queries": 62},
        ),
    ),
    "phi2": (
        Family(
            "phi", SIZES | {"attention.layer_norm_epsilon": "layer_norm_eps"},
            {"token_embd": "model.embed_tokens", "output_norm": "model.final_layernorm", "output": "lm_head",
             "blk.*.attn_norm": f"{_L}.input_layernorm", "blk.*.ffn_up": f"{_L}.mlp.fc1",
             "blk.*.ffn_down": f"{_L}.mlp.fc2", "blk.*.attn_q": f"{_L}.self_attn.q_proj",
             "blk.*.attn_k": f"{_L}.self_attn.k_proj", "blk.*.attn_v": f"{_L}.self_attn.v_proj",
             "blk.*.attn_output": f"{_L}.self_attn.dense"},
            partial=True,
        ),
    ),
    "phi3": (
        Family(
            "phi3", SIZES | RMS,
            ENDS | NORMS | {"blk.*.attn_qkv": f"{_L}.self_attn.qkv_proj", "blk.*.ffn_up": f"{_L}.mlp.gate_up_proj",
                            "blk.*.ffn_down": f"{_L}.mlp.down_proj", "blk.*.attn_output": f"{_L}.self_attn.o_proj"},
            window=Window(), partial=True, extra={"original length": True},
        ),
    ),
    "gpt-oss": (
        Family(
            "gpt_oss",
            PLAIN | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
                     "expert_feed_forward_length": "intermediate_size"},
            ENDS | ATTENTION
            | {"blk.*.attn_norm": f"{_L}.input_layernorm",
               "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm",
               "blk.*.ffn_gate_inp": f"{_L}.mlp.router", "blk.*.attn_sinks.weight": f"{_L}.self_attn.sinks"},
            layouts={"blk.*.ffn_gate_exps": Layout.INTERLEAVED, "blk.*.ffn_down_exps.weight": Layout.TRANSPOSED},
            joined=experts("mlp.experts") | {
                f"{_L}.mlp.experts.gate_up_proj_bias": ("blk.*.ffn_gate_exps.bias", "blk.*.ffn_up_exps.bias"),
                f"{_L}.mlp.experts.down_proj_bias": ("blk.*.ffn_down_exps.bias",),
            },
            present={"attention_bias": "blk.0.attn_q.bias"}, window=Window(2), extra={"rope": {"truncate": False}},
        ),
    ),
    "deepseek2": (
        Family("deepseek_v3", _DEEPSEEK_FIELDS, _DEEPSEEK, when=("expert_gating_func", 2), having=".exp_probs_b.bias",
               joined=MOE | _KV_B,
               layouts={"blk.*.attn_k_b": Layout.LATENT}, constants={"rope_interleave": True},
               present={"attention_bias": "blk.0.attn_q_a.bias"}, extra={"log multiplied": True}),
        Family("deepseek_v2", _DEEPSEEK_FIELDS, _DEEPSEEK, joined=MOE | _KV_B,
               layouts={"blk.*.attn_k_b": Layout.LATENT}, constants={"norm_topk_prob": False},
               present={"attention_bias": "blk.0.attn_q_a.bias"},
               extra={"log multiplied": True, "groups of experts": True}),
    ),
    "granite": (
        Family("granite", PLAIN | _GRANITE_SCALES, LLAMA, layouts=PAIRS,
               present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}),
    ),
    "granitemoe": (
        Family(
            "granitemoe",
            PLAIN | _GRANITE_SCALES | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
            ENDS | ATTENTION | NORMS | {"blk.*.ffn_gate_inp": f"{_L}.block_sparse_moe.router"}, layouts=PAIRS,
            joined=experts("block_sparse_moe.experts"),
            present={"attention_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "olmo": (
        Family("olmo", SIZES | HEAD, {k: v for k, v in LLAMA.items() if "norm" not in k}, layouts=PAIRS,
               ignored=("attention.layer_norm_epsilon",)),
    ),
    "olmo2": (
        Family("olmo3", PLAIN, ENDS | ATTENTION | QK_NORMS | POST_NORMS | MLP, when="attention.sliding_window",
               window=Window(4), two_ropes=True),
        Family("olmo2", PLAIN, ENDS | ATTENTION | QK_NORMS | POST_NORMS | MLP),
    ),
    "olmoe": (
        Family("olmoe", PLAIN | EXPERTS, LLAMA | QK_NORMS | ROUTER, joined=MOE, constants={"norm_topk_prob": False}),
    ),
    "stablelm": (
        Family(
            "stablelm",
            SIZES | {"attention.layer_norm_epsilon": "layer_norm_eps",
                     "use_parallel_residual": "use_parallel_residual"},
            LLAMA, partial=True, present={"use_qkv_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "starcoder2": (
        Family(
            "starcoder2", SIZES | {"attention.layer_norm_epsilon": "norm_epsilon"},
            ENDS | ATTENTION | NORMS | {"blk.*.ffn_up": f"{_L}.mlp.c_fc", "blk.*.ffn_down": f"{_L}.mlp.c_proj"},
            constants={"sliding_window": None}, present={"use_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "falcon": (
        Family(
            "falcon", _FALCON_FIELDS, _GPT | {"blk.*.attn_norm": "transformer.h.*.input_layernorm"},
            when=("attention.head_count_kv", 1), constants=_FALCON | {"new_decoder_architecture": False},
            ignored=("tensor_data_layout",),
        ),
        Family(
            "falcon", _FALCON_FIELDS,
            _GPT | {"blk.*.attn_norm_2": "transformer.h.*.ln_attn", "blk.*.attn_norm": "transformer.h.*.ln_mlp"},
            layouts={"blk.*.attn_qkv": Layout.GROUP_QKV}, constants=_FALCON | {"new_decoder_architecture": True},
            ignored=("tensor_data_layout",),
        ),
    ),
    "starcoder": (
        Family(
            "gpt_bigcode", _GPT2_FIELDS, _GPT2, constants={"multi_query": True, "n_inner": None},
            fixed={"attention.head_count_kv": 1},
        ),
    ),
    "bloom": (
        Family(
            "bloom", {"context_length": "seq_length", "embedding_length": "hidden_size", "block_count": "n_layer",
                      "attention.head_count": "n_head", "attention.layer_norm_epsilon": "layer_norm_epsilon"},
            _GPT | {"token_embd_norm": "transformer.word_embeddings_layernorm",
                    "blk.*.attn_norm": "transformer.h.*.input_layernorm",
                    "blk.*.ffn_norm": "transformer.h.*.post_attention_layernorm"},
            layouts={"blk.*.attn_qkv": Layout.HEAD_QKV},
            ignored=("feed_forward_length",),
        ),
    ),
    "mpt": (
        Family(
            "mpt", {"context_length": "max_seq_len", "embedding_length": "d_model", "block_count": "n_layers",
                    "attention.head_count": "n_heads", "attention.layer_norm_epsilon": "layer_norm_epsilon",
                    "attention.max_alibi_bias": "attn_config.alibi_bias_max",
                    "attention.clamp_kqv": "attn_config.clip_qkv"},
            {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head",
             "blk.*.attn_norm": "transformer.blocks.*.norm_1", "blk.*.ffn_norm": "transformer.blocks.*.norm_2",
             "blk.*.attn_qkv": "transformer.blocks.*.attn.Wqkv",
             "blk.*.attn_output": "transformer.blocks.*.attn.out_proj",
             "blk.*.ffn_up": "transformer.blocks.*.ffn.up_proj",
             "blk.*.ffn_down": "transformer.blocks.*.ffn.down_proj"},
            needed=("attention.max_alibi_bias",), ignored=("feed_forward_length",),
            extra={"whole": ("attn_config.alibi_bias_max",)},
        ),
    ),
    # The first BitNet b1.58. The later ones (2B-4T) have another activation, and other files.
    "bitnet": (
        Family(
            "bitnet", PLAIN,
            LLAMA | {"blk.*.attn_sub_norm": f"{_L}.self_attn.attn_sub_norm",
                     "blk.*.ffn_sub_norm": f"{_L}.mlp.ffn_sub_norm"},
            constants={"hidden_act": "silu"},
        ),
    ),
    "gptneox": (
        Family(
            "gpt_neox", OWN_KV_HEADS | {"attention.layer_norm_epsilon": "layer_norm_eps",
                                 "use_parallel_residual": "use_parallel_residual"},
            {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "lm_head",
             "blk.*.attn_norm": "gpt_neox.layers.*.input_layernorm",
             "blk.*.ffn_norm": "gpt_neox.layers.*.post_attention_layernorm",
             "blk.*.attn_qkv": "gpt_neox.layers.*.attention.query_key_value",
             "blk.*.attn_output": "gpt_neox.layers.*.attention.dense",
             "blk.*.ffn_up": "gpt_neox.layers.*.mlp.dense_h_to_4h",
             "blk.*.ffn_down": "gpt_neox.layers.*.mlp.dense_4h_to_h"},
            layouts={"blk.*.attn_qkv": Layout.HEAD_QKV}, partial=True,
        ),
    ),
    "gpt2": (
        Family(
            "gpt2", _GPT2_FIELDS, _GPT2,
            layouts=dict.fromkeys(
                ("blk.*.attn_qkv", "blk.*.attn_output", "blk.*.ffn_up", "blk.*.ffn_down"), Layout.TRANSPOSED),
        ),
    ),
    "command-r": (
        Family("cohere", SIZES | {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
               LLAMA | QK_NORMS, present={"use_qk_norm": "blk.0.attn_q_norm.weight"}),
    ),
    "cohere2": (
        Family("cohere2",
               SIZES | HEAD | {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
               LLAMA, window=Window(4)),
    ),
    "exaone4": (
        Family("exaone4", PLAIN, ENDS | ATTENTION | QK_NORMS | POST_NORMS | MLP, window=Window(4)),
    ),
    # EXAONE 3 is a Llama whose parameters have other names in its own folder.
    "exaone": (Family("llama", PLAIN, LLAMA),),
    "exaone-moe": (
        Family(
            "exaone_moe",
            PLAIN | EXPERTS | EXPERT_SIZE
            | {"expert_group_count": "n_group", "expert_group_used_count": "topk_group",
               "expert_weights_scale": "routed_scaling_factor", "expert_weights_norm": "norm_topk_prob",
               "expert_shared_count": "num_shared_experts", "leading_dense_block_count": "first_k_dense_replace"},
            LLAMA | QK_NORMS | ROUTER | shared("shared_experts") | _SCORE_BIAS, joined=MOE, window=Window(4),
            fixed=SIGMOID, ignored=("expert_shared_feed_forward_length",),
            extra={"kinds of layers": "mlp_layer_types"},
        ),
    ),
    "hy_v3": (
        Family(
            "hy_v3",
            PLAIN | EXPERTS | EXPERT_SIZE | {"expert_weights_scale": "router_scaling_factor"},
            LLAMA | QK_NORMS | ROUTER | shared("shared_experts") | {
                "blk.*.exp_probs_b": f"{_L}.mlp.e_score_correction_bias",
                "blk.*.exp_probs_b.bias": f"{_L}.mlp.e_score_correction_bias"},
            joined=MOE, fixed=SIGMOID | {"expert_weights_norm": True}, ignored=("expert_shared_feed_forward_length",),
            extra={"kinds of layers": "mlp_layer_types"},
        ),
    ),
    "jais2": (
        Family("jais2", SIZES | HEAD | {"attention.layer_norm_epsilon": "layer_norm_eps"}, LLAMA,
               present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}),
    ),
    "mellum": (
        Family(
            "mellum", PLAIN | EXPERT_SIZE | {"expert_count": "num_local_experts",
                                             "expert_used_count": "num_experts_per_tok"},
            LLAMA | QK_NORMS | ROUTER, joined=MOE, constants={"norm_topk_prob": True}, window=Window(), two_ropes=True,
            extra={"kinds of layers": "mlp_layer_types"},
        ),
    ),
    "afmoe": (
        Family(
            "afmoe",
            PLAIN | EXPERTS | EXPERT_SIZE | {"expert_shared_count": "num_shared_experts",
                                             "expert_weights_scale": "route_scale",
                                             "leading_dense_block_count": "num_dense_layers"},
            ENDS | ATTENTION | QK_NORMS | MLP | shared("shared_experts")
            | {"blk.*.attn_norm": f"{_L}.input_layernorm", "blk.*.attn_gate": f"{_L}.self_attn.gate_proj",
               "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm",
               "blk.*.ffn_norm": f"{_L}.pre_mlp_layernorm", "blk.*.post_ffw_norm": f"{_L}.post_mlp_layernorm",
               "blk.*.ffn_gate_inp": f"{_L}.mlp.router.gate", "blk.*.exp_probs_b.bias": f"{_L}.mlp.expert_bias"},
            joined=MOE, constants={"mup_enabled": True}, window=Window(4),
            fixed=SIGMOID | {"expert_weights_norm": True},
        ),
    ),
    "cohere2moe": (
        Family(
            "cohere2_moe", _COHERE2_MOE, LLAMA | ROUTER, when=("expert_gating_func", 1), joined=MOE, window=Window(4),
            constants={"expert_selection_fn": "softmax"}, ignored=("leading_dense_block_count",),
            extra={"kinds of layers": "mlp_layer_types"},
        ),
        Family(
            "cohere2_moe", _COHERE2_MOE, LLAMA | ROUTER, joined=MOE, window=Window(4),
            constants={"expert_selection_fn": "sigmoid"}, ignored=("leading_dense_block_count",), fixed=SIGMOID,
            extra={"kinds of layers": "mlp_layer_types"},
        ),
    ),
    "smollm3": (
        Family("smollm3", PLAIN, LLAMA, layouts=PAIRS,
               constants=_QWEN_WINDOW | {"no_rope_layer_interval": 4},
               present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}),
    ),
    "ernie4_5": (
        Family("ernie4_5", PLAIN, LLAMA, present={"use_bias": "blk.0.attn_q.bias"}),
    ),
    "ernie4_5-moe": (
        Family(
            "ernie4_5_moe",
            PLAIN | {"expert_count": "moe_num_experts", "expert_used_count": "moe_k",
                     "expert_feed_forward_length": "moe_intermediate_size",
                     "expert_shared_count": "moe_num_shared_experts",
                     "interleave_moe_layer_step": "moe_layer_interval",
                     "leading_dense_block_count": "moe_layer_start_index"},
            LLAMA | ROUTER | shared("shared_experts")
            | {"blk.*.exp_probs_b.bias": f"{_L}.mlp.gate.moe_statics.e_score_correction_bias"},
            joined=MOE, present={"use_bias": "blk.0.attn_q.bias"},
            ignored=("expert_shared_feed_forward_length",),
        ),
    ),
    "hunyuan-dense": (
        Family(
            "hunyuan_v1_dense", PLAIN,
            LLAMA | {"blk.*.attn_q_norm": f"{_L}.self_attn.query_layernorm",
                     "blk.*.attn_k_norm": f"{_L}.self_attn.key_layernorm"},
            present={"attention_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "hunyuan-moe": (
        Family(
            "hunyuan_v1_moe",
            PLAIN | {"expert_count": "num_experts", "expert_used_count": "moe_topk"},
            LLAMA | {"blk.*.attn_q_norm": f"{_L}.self_attn.query_layernorm",
                     "blk.*.attn_k_norm": f"{_L}.self_attn.key_layernorm",
                     "blk.*.ffn_gate_inp": f"{_L}.mlp.gate.wg"} | shared("shared_mlp"),
            joined=MOE, present={"attention_bias": "blk.0.attn_q.bias"},
            ignored=("expert_shared_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"),
        ),
    ),
    "chatglm": (
        Family(
            "glm", PLAIN,
            ENDS | ATTENTION | NORMS
            | {"blk.*.ffn_up": f"{_L}.mlp.gate_up_proj", "blk.*.ffn_down": f"{_L}.mlp.down_proj"},
            partial=True, present={"attention_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "glm4": (
        Family(
            "glm4", PLAIN,
            ENDS | ATTENTION
            | {"blk.*.attn_norm": f"{_L}.input_layernorm", "blk.*.ffn_norm": f"{_L}.post_attention_layernorm",
               "blk.*.post_attention_norm": f"{_L}.post_self_attn_layernorm",
               "blk.*.post_ffw_norm": f"{_L}.post_mlp_layernorm", "blk.*.ffn_up": f"{_L}.mlp.gate_up_proj",
               "blk.*.ffn_down": f"{_L}.mlp.down_proj"},
            partial=True, present={"attention_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "glm4moe": (
        Family(
            "glm4_moe",
            {key: name for key, name in _DEEPSEEK_FIELDS.items() if "lora" not in key and "mla" not in key} | HEAD,
            ENDS | ATTENTION | QK_NORMS | MLP | ROUTER | shared("shared_experts")
            | {"blk.*.attn_norm": f"{_L}.input_layernorm",
               "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm",
               "blk.*.exp_probs_b.bias": f"{_L}.mlp.gate.e_score_correction_bias"},
            joined=MOE, partial=True, fixed=SIGMOID,
            present={"attention_bias": "blk.0.attn_q.bias", "use_qk_norm": "blk.0.attn_q_norm.weight"},
        ),
    ),
    "phimoe": (
        Family(
            "phimoe", SIZES | RMS | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
            ENDS | ATTENTION | NORMS | {"blk.*.ffn_gate_inp": f"{_L}.mlp.router"}, joined=MOE, window=Window(),
            present={"attention_bias": "blk.0.attn_q.bias", "lm_head_bias": "output.bias"},
            extra={"original length": True},
        ),
    ),
    "gemma3n": (
        Family(
            "gemma3n_text",
            PLAIN | {"final_logit_softcapping": "final_logit_softcapping", "altup.active_idx": "altup_active_idx",
                     "altup.num_inputs": "altup_num_inputs",
                     "embedding_length_per_layer_input": "hidden_size_per_layer_input",
                     "attention.shared_kv_layers": "num_kv_shared_layers"},
            ENDS | ATTENTION | QK_NORMS | FOUR_NORMS | MLP
            | {"per_layer_token_embd": "model.embed_tokens_per_layer",
               "per_layer_model_proj": "model.per_layer_model_projection",
               "per_layer_proj_norm": "model.per_layer_projection_norm",
               "altup_proj": "model.altup_projections.*", "altup_unembd_proj": "model.altup_unembed_projections.*",
               "blk.*.altup_correct_scale.weight": f"{_L}.altup.correct_output_scale",
               "blk.*.altup_correct_coef": f"{_L}.altup.correction_coefs",
               "blk.*.altup_predict_coef": f"{_L}.altup.prediction_coefs",
               "blk.*.altup_router": f"{_L}.altup.modality_router",
               "blk.*.altup_router_norm": f"{_L}.altup.router_norm",
               "blk.*.laurel_l": f"{_L}.laurel.linear_left", "blk.*.laurel_r": f"{_L}.laurel.linear_right",
               "blk.*.laurel_post_norm": f"{_L}.laurel.post_laurel_norm",
               "blk.*.inp_gate": f"{_L}.per_layer_input_gate", "blk.*.proj": f"{_L}.per_layer_projection",
               "blk.*.post_norm": f"{_L}.post_per_layer_input_norm"},
            layouts=dict.fromkeys(("altup_proj", "altup_unembd_proj"), Layout.STACKED),
            window=Window(5), two_ropes=True, near_base=10000.0,
            rows={"laurel_rank": "blk.0.laurel_l.weight", "vocab_size_per_layer_input": "per_layer_token_embd.weight"},
            extra={"sparsity": "activation_sparsity_scale"},
        ),
    ),
    "gemma4": (
        Family(
            "gemma4_text",
            SIZES | RMS
            | {"attention.key_length": "global_head_dim", "attention.head_count_kv": "num_global_key_value_heads",
               "attention.key_length_swa": "head_dim", "expert_count": "num_experts",
               "final_logit_softcapping": "final_logit_softcapping", "expert_used_count": "top_k_experts",
               "embedding_length_per_layer_input": "hidden_size_per_layer_input",
               "attention.shared_kv_layers": "num_kv_shared_layers"} | EXPERT_SIZE,
            ENDS | ATTENTION | QK_NORMS | FOUR_NORMS | MLP
            | {"per_layer_token_embd": "model.embed_tokens_per_layer",
               "per_layer_model_proj": "model.per_layer_model_projection",
               "per_layer_proj_norm": "model.per_layer_projection_norm",
               "blk.*.inp_gate": f"{_L}.per_layer_input_gate", "blk.*.proj": f"{_L}.per_layer_projection",
               "blk.*.post_norm": f"{_L}.post_per_layer_input_norm",
               "blk.*.layer_output_scale.weight": f"{_L}.layer_scalar",
               "blk.*.ffn_gate_inp.weight": f"{_L}.router.proj.weight",
               "blk.*.ffn_gate_inp.scale": f"{_L}.router.scale",
               "blk.*.ffn_down_exps.scale": f"{_L}.router.per_expert_scale",
               "blk.*.pre_ffw_norm_2": f"{_L}.pre_feedforward_layernorm_2",
               "blk.*.post_ffw_norm_1": f"{_L}.post_feedforward_layernorm_1",
               "blk.*.post_ffw_norm_2": f"{_L}.post_feedforward_layernorm_2"},
            joined=experts("experts"), present={"enable_moe_block": "blk.0.ffn_gate_inp.weight"},
            rows={"vocab_size_per_layer_input": "per_layer_token_embd.weight"},
            window=Window(), two_ropes=True, near_base=10000.0,
            near={"attention.head_count_kv": "num_key_value_heads"},
            extra={"double width": "use_double_wide_mlp", "value is key": "attention_k_eq_v", "rotated in part": True},
        ),
    ),
    "minicpm3": (
        Family(
            "minicpm3",
            SIZES | RMS | {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"},
            ENDS | _MLA | NORMS | MLP,
            constants={"scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4},
        ),
    ),
    "nemotron": (
        Family("nemotron", SIZES | HEAD | {"attention.layer_norm_epsilon": "norm_eps"}, LLAMA,
               layouts=less_one("blk.*.attn_norm.weight", "blk.*.ffn_norm.weight", "output_norm.weight"),
               partial=True, ignored=("attention.layer_norm_rms_epsilon",)),
    ),
    "seed_oss": (
        Family(
            "seed_oss", PLAIN,
            ENDS | ATTENTION | MLP | {"blk.*.attn_norm": f"{_L}.input_layernorm",
                                      "blk.*.post_attention_norm": f"{_L}.post_attention_layernorm"},
            present={"attention_bias": "blk.0.attn_q.bias", "attention_out_bias": "blk.0.attn_output.bias"},
        ),
    ),
    "apertus": (
        Family(
            "apertus", PLAIN,
            ENDS | ATTENTION | QK_NORMS | {"blk.*.attn_norm": f"{_L}.attention_layernorm",
                                           "blk.*.ffn_norm": f"{_L}.feedforward_layernorm",
                                           "blk.*.ffn_up": f"{_L}.mlp.up_proj",
                                           "blk.*.ffn_down": f"{_L}.mlp.down_proj"},
            numbers={f"xielu.{key}": (f"{_L}.mlp.act_fn.{key}", shape)
                     for key, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ()))},
            present={"attention_bias": "blk.0.attn_q.bias"},
        ),
    ),
    "arcee": (
        Family("arcee", PLAIN, LLAMA, layouts=PAIRS, present={"attention_bias": "blk.0.attn_q.bias"}),
    ),
    "minimax-m2": (
        Family(
            "minimax_m2", PLAIN | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
                                   "expert_feed_forward_length": "intermediate_size"},
            ENDS | ATTENTION | QK_NORMS | NORMS | ROUTER | {"blk.*.exp_probs_b.bias":
                                                            f"{_L}.mlp.e_score_correction_bias"},
            joined=MOE, partial=True,
        ),
    ),
    "dots1": (
        Family(
            "dots1",
            {key: name for key, name in _DEEPSEEK_FIELDS.items() if "lora" not in key and "mla" not in key} | HEAD,
            LLAMA | QK_NORMS | ROUTER | shared("shared_experts")
            | _SCORE_BIAS, joined=MOE, constants={"sliding_window": None}, fixed=SIGMOID,
        ),
    ),
    "qwen3next": (
        Family(
            "qwen3_next", _DELTA_FIELDS | SHARED_EXPERT_FIELDS,
            _DELTA | SHARED_EXPERT | {"blk.*.ssm_ba": f"{_D}.in_proj_ba"},
            layouts=_DELTA_LAYOUTS | {"blk.*.attn_qkv": Layout.GROUP_QKVZ}, shapes=_DELTA_SHAPES,
            joined=MOE | {f"{_D}.in_proj_qkvz.weight": ("blk.*.attn_qkv.weight", "blk.*.attn_gate.weight")},
            quotients=_DELTA_QUOTIENTS, kinds="interval", partial=True, extra={"gated queries": True},
            constants={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
            present={"attention_bias": "blk.*.attn_q.bias"},
        ),
    ),
    # Of text alone every section of the rotary embedding counts the same positions.
    "qwen35": (
        Family(
            "qwen3_5_text", _DELTA_FIELDS, _QWEN35 | MLP, layouts=_DELTA_LAYOUTS, shapes=_DELTA_SHAPES,
            tiled=_QWEN35_TILES, quotients=_DELTA_QUOTIENTS, kinds="interval", partial=True,
            extra={"gated queries": True},
            present={"attention_bias": "blk.*.attn_q.bias"}, ignored=("rope.dimension_sections",),
        ),
    ),
    "qwen35moe": (
        Family(
            "qwen3_5_moe_text",
            {key: name for key, name in (_DELTA_FIELDS | SHARED_EXPERT_FIELDS).items() if key != "feed_forward_length"},
            _QWEN35 | SHARED_EXPERT, layouts=_DELTA_LAYOUTS, shapes=_DELTA_SHAPES, tiled=_QWEN35_TILES, joined=MOE,
            quotients=_DELTA_QUOTIENTS, kinds="interval", partial=True, extra={"gated queries": True},
            present={"attention_bias": "blk.*.attn_q.bias"}, ignored=("rope.dimension_sections",),
        ),
    ),
    "mamba": (
        Family(
            "falcon_mamba", _MAMBA_1_FIELDS, _MAMBA_1, when="ssm.dt_b_c_rms", layouts=_LOGS, shapes=_MAMBA_SHAPES,
            quotients=_MAMBA_1_SIZES, present=_BACKBONE_BIASES, ignored=("context_length",),
            constants={"mixer_rms_eps": 1e-6},
        ),
        Family(
            "mamba", _MAMBA_1_FIELDS, _MAMBA_1, layouts=_LOGS, shapes=_MAMBA_SHAPES, quotients=_MAMBA_1_SIZES,
            present=_BACKBONE_BIASES, ignored=("context_length",),
        ),
    ),
    "mamba2": (
        Family(
            "mamba2", _MAMBA_FIELDS | {"ssm.group_count": "n_groups", "ssm.time_step_rank": "num_heads"},
            _BACKBONE | mamba_2("backbone.layers.*.mixer"), layouts=_LOGS, shapes=_MAMBA_2_SHAPES,
            quotients=_MAMBA_1_SIZES | {"head_dim": ("ssm.inner_size", "ssm.time_step_rank")},
            present=_BACKBONE_BIASES, ignored=("context_length",),
        ),
    ),
    "jamba": (
        Family(
            "jamba", SIZES | RMS | EXPERTS | _SSM | {"ssm.time_step_rank": "mamba_dt_rank"},
            _JAMBA_NORMS | ATTENTION | FEED_FORWARD | mamba(f"{_L}.mamba")
            | {f"blk.*.ssm_{side}_norm": f"{_L}.mamba.{side}_layernorm" for side in ("dt", "b", "c")}
            | {"blk.*.ffn_gate_inp": f"{_L}.feed_forward.router"},
            layouts=_LOGS, shapes=_MAMBA_SHAPES, joined=experts("feed_forward.experts"),
            quotients={"mamba_expand": _SSM_2_SIZES["mamba_expand"]}, present=_SSM_BIASES, kinds="periods",
            rotary=False, attending=(_KV_HEADS,),
        ),
    ),
    # A dense Granite says that it has no rotary embedding, and a Bamba that it has one. llama.cpp rotates other numbers
    # of a Bamba's heads than the model does, which rotates a half of each head: its converter puts the rows of whole
    # heads in pairs.
    "granitehybrid": (
        Family(
            "granitemoehybrid",
            _GRANITE_HYBRID_FIELDS | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
            _GRANITE_HYBRID | {
                "blk.*.ffn_gate_inp": f"{_L}.block_sparse_moe.router",
                "blk.*.ffn_down_shexp": f"{_L}.shared_mlp.output_linear"},
            when="expert_count", layouts=PAIRS | _LOGS, shapes=_MAMBA_2_SHAPES,
            joined=experts("block_sparse_moe.experts") | {
                f"{_L}.shared_mlp.input_linear.weight": ("blk.*.ffn_gate_shexp.weight", "blk.*.ffn_up_shexp.weight")},
            quotients=_SSM_2_SIZES, present=_SSM_BIASES | {"attention_bias": "blk.*.attn_q.bias"},
            kinds="recurrences", attending=(_KV_HEADS,), extra={"rotated": "position_embedding_type"},
        ),
        Family(
            "granitemoehybrid", _GRANITE_HYBRID_FIELDS,
            _GRANITE_HYBRID | {"blk.*.ffn_down": f"{_L}.shared_mlp.output_linear"},
            when=("rope.scaling.finetuned", False), layouts=PAIRS | _LOGS, shapes=_MAMBA_2_SHAPES,
            joined={f"{_L}.shared_mlp.input_linear.weight": ("blk.*.ffn_gate.weight", "blk.*.ffn_up.weight")},
            constants={"num_local_experts": 0}, quotients=_SSM_2_SIZES,
            present=_SSM_BIASES | {"attention_bias": "blk.*.attn_q.bias"}, kinds="recurrences",
            attending=(_KV_HEADS,), ignored=("expert_used_count",),
        ),
        Family(
            "bamba", PLAIN | _SSM_2, _JAMBA_NORMS | ATTENTION | FEED_FORWARD | mamba_2(f"{_L}.mamba"),
            layouts=PAIRS | _LOGS, shapes=_MAMBA_2_SHAPES, quotients=_SSM_2_SIZES,
            present=_SSM_BIASES | {"attention_bias": "blk.*.attn_q.bias", "mlp_bias": "blk.*.ffn_up.bias"},
            kinds="indices", attending=(_KV_HEADS,), partial=True,
        ),
    ),
    # The converter multiplies the weights by the multipliers of the config.
    "falcon-h1": (
        Family(
            "falcon_h1", PLAIN | _SSM_2 | {"ssm.inner_size": "mamba_d_ssm"},
            _JAMBA_NORMS | ATTENTION | FEED_FORWARD | mamba_2(f"{_L}.mamba")
            | dict.fromkeys(("blk.*.ffn_norm", "blk.*.ffn_norm.weight"), f"{_L}.pre_ff_layernorm.weight"),
            layouts=_LOGS, shapes=_MAMBA_2_SHAPES, quotients={"mamba_d_head": _SSM_2_SIZES["mamba_d_head"]},
            present=_SSM_BIASES | {"attention_bias": "blk.*.attn_q.bias", "mlp_bias": "blk.*.ffn_up.bias",
                                   "mamba_rms_norm": "blk.*.ssm_norm.weight"},
            constants={"mamba_norm_before_gate": False},
        ),
    ),
    "nemotron_h": (
        Family(
            "nemotron_h", _NEMOTRON_FIELDS, _NEMOTRON, layouts=PAIRS | _LOGS, shapes=_MAMBA_2_SHAPES,
            quotients=_NEMOTRON_SIZES, present=_NEMOTRON_BIASES, kinds="blocks", rotary=False,
            attending=(_KV_HEADS, "feed_forward_length"), ignored=_NO_ROTATION,
        ),
    ),
    "nemotron_h_moe": (
        Family(
            "nemotron_h",
            _NEMOTRON_FIELDS | EXPERT_SIZE
            | {"expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok",
               "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
               "expert_shared_count": "n_shared_experts", "expert_weights_norm": "norm_topk_prob",
               "expert_weights_scale": "routed_scaling_factor", "expert_group_count": "n_group",
               "expert_group_used_count": "topk_group", "moe_latent_size": "moe_latent_size"},
            _NEMOTRON
            | {"blk.*.ffn_gate_inp": f"{_M}.gate", "blk.*.exp_probs_b.bias": f"{_M}.gate.e_score_correction_bias",
               "blk.*.ffn_latent_down": f"{_M}.fc1_latent_proj", "blk.*.ffn_latent_up": f"{_M}.fc2_latent_proj"}
            | {f"blk.*.ffn_{side}_shexp": f"{_M}.shared_experts.{side}_proj" for side in ("up", "down")},
            layouts=PAIRS | _LOGS, shapes=_MAMBA_2_SHAPES,
            joined={f"{_M}.experts.{side}_proj": (f"blk.*.ffn_{side}_exps.weight",) for side in ("up", "down")},
            quotients=_NEMOTRON_SIZES, present=_NEMOTRON_BIASES, kinds="blocks", rotary=False,
            attending=(_KV_HEADS, "feed_forward_length"), fixed=SIGMOID, ignored=_NO_ROTATION,
        ),
    ),
    "kimi-linear": (
        Family(
            "kimi_linear",
            {**SIZES, **RMS, **EXPERT_SIZE, "context_length": "model_max_length", "expert_count": "num_experts",
             "expert_used_count": "num_experts_per_token", "expert_group_count": "num_expert_group",
             "expert_group_used_count": "topk_group", "expert_weights_scale": "routed_scaling_factor",
             "expert_shared_count": "num_shared_experts", "attention.q_lora_rank": "q_lora_rank",
             "attention.kv_lora_rank": "kv_lora_rank", "attention.value_length_mla": "v_head_dim",
             "ssm.conv_kernel": "linear_conv_kernel_dim", "kda.head_dim": "linear_head_dim"},
            ENDS | ATTENTION | _MLA | NORMS | MLP | ROUTER | shared("shared_experts") | _SCORE_BIAS
            | {"blk.*.ssm_a": f"{_F}.A_log", "blk.*.ssm_dt.bias": f"{_F}.dt_bias",
               "blk.*.ssm_f_a": f"{_F}.f_a_proj", "blk.*.ssm_f_b": f"{_F}.f_b_proj", "blk.*.ssm_beta": f"{_K}.b_proj",
               "blk.*.ssm_g_a": f"{_K}.g_a_proj", "blk.*.ssm_g_b": f"{_K}.g_b_proj", "blk.*.ssm_norm": f"{_K}.o_norm"},
            layouts=_LOGS | {"blk.*.attn_k_b": Layout.LATENT},
            shapes={"blk.*.ssm_a": (1, 1, -1, 1), "blk.*.ssm_conv1d_q.weight": CONVOLUTION},
            joined=MOE | _KV_B | {
                f"{_K}.conv1d.weight": tuple(f"blk.*.ssm_conv1d_{side}.weight" for side in "qkv")},
            constants={"moe_renormalize": True}, rows={"linear_num_heads": "blk.*.ssm_beta.weight"},
            kinds="recurrences", rotary=False, attending=(_KV_HEADS,), fixed=SIGMOID | {"expert_weights_norm": True},
            ignored=("leading_dense_block_count", "rope.freq_base", "expert_shared_feed_forward_length"),
            extra={"kinds of layers": "mlp_layer_types"},
        ),
    ),
    "lfm2moe": (
        Family(
            "lfm2_moe",
            _LFM2_FIELDS | EXPERTS | EXPERT_SIZE | {"leading_dense_block_count": "num_dense_layers",
                                                    "expert_weights_scale": "routed_scaling_factor"},
            _LFM2 | {"blk.*.ffn_gate_inp": f"{_L}.feed_forward.gate",
                     "blk.*.exp_probs_b.bias": f"{_L}.feed_forward.expert_bias"},
            shapes={"blk.*.shortconv.conv.weight": CONVOLUTION}, kinds="convolutions",
            joined=experts("feed_forward.experts"), fixed=SIGMOID,
            constants={"norm_topk_prob": True}, present={"conv_bias": "blk.0.shortconv.conv.bias"},
            attending=("attention.head_count_kv",),
        ),
    ),
    "lfm2": (
        Family(
            "lfm2", _LFM2_FIELDS, _LFM2,
            shapes={"blk.*.shortconv.conv.weight": CONVOLUTION}, kinds="convolutions",
            constants={"block_auto_adjust_ff_dim": False},
            present={"conv_bias": "blk.0.shortconv.conv.bias"}, attending=("attention.head_count_kv",),
        ),
    ),
}  # fmt: skip
"""Families by the name of the architecture. A file is of the first family whose `when` holds."""
