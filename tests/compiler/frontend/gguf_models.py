"""Tiny models of every family, as llama.cpp's converter writes them.

    python -m tests.compiler.frontend.gguf_models FOLDER LLAMA_QUANTIZE

builds each case of `CASES` with transformers, converts it with the converter in FOLDER, llama.cpp's source, and writes
gguf_models.tar.xz beside this file: NAME.json, the config, and NAME.gguf. Some of them are quantized with llama.cpp's
program LLAMA_QUANTIZE, as `QUANTIZED` says. The numbers of a parameter follow from the last part of its name and its
shape, and have two values, so the archive is small. The vocabulary is left out: gguf_vocabularies.py has published
ones.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.tiny_configs import VOCABULARY, tiny_config

FILE = Path(__file__).with_suffix(".tar.xz")
MODEL, WIDE_CASE = "model.gguf", "qwen2-wide"
TURNS = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
THREE_OF_FOUR = {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
BASE = {"rope_theta": 1e4, "original_max_position_embeddings": 16}
ONE_WIDE_HEAD = {"head_dim": 16, "num_key_value_heads": 1}
GEMMA_4_EXPERTS = TURNS | {
    "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 24, "per_layer_config": {1: ONE_WIDE_HEAD, 3: ONE_WIDE_HEAD},
}  # fmt: skip
MIXES = ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "IQ4_XS", "TQ2_0")
"""Names of llama-quantize. Each is a mix of types: rows that are no multiple of 256 have others."""
QUANTIZED: Mapping[str, tuple[str, ...]] = {
    WIDE_CASE: MIXES,
    "qwen3_5-wide": ("Q4_K_M",),
    "qwen3_next-wide": ("Q4_K_M",),
}
"""Case -> mixes to which it is quantized."""
OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "bitnet": {"mlp.ffn_sub_norm": "mlp.ffn_layernorm", "self_attn.attn_sub_norm": "self_attn.inner_attn_ln"},
    "kimi_linear": {f"block_sparse_moe.{side}_proj": f"mlp.{side}_proj" for side in ("gate", "up", "down")},
}
"""Type -> parts of names that transformers writes -> those of the published checkpoints, which the converter knows."""
READING_CONFIG = ("bamba", "falcon_h1", "granitemoehybrid")
"""Types whose converters read config.json by themselves."""
MULTIPLIED = {
    "lm_head_multiplier": 0.5, "embedding_multiplier": 4.0, "mlp_multipliers": [0.5, 2.0], "key_multiplier": 0.25,
    "attention_out_multiplier": 2.0, "attention_in_multiplier": 0.5, "ssm_multipliers": [2.0, 0.5, 0.25, 4.0, 0.5],
    "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 0.5,
}  # fmt: skip
SCALED = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.125, "logits_scaling": 8.0,
}  # fmt: skip
KDA = {
    "full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4,
}  # fmt: skip
SAID_4 = {"global_head_dim": 16, "num_global_key_value_heads": 1}


@dataclass(frozen=True)
class Case:
    """A model to convert.

    Attributes:
        type: transformers' name.
        changes: fields of the tiny config that are others.
        said: fields that published configs have and transformers' do not write.
        unsaid: fields that transformers' configs have and published ones do not.
        fused: True if the converter joins queries, keys and values, and the gates of experts.
    """

    type: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()
    fused: bool = False

    def config(self) -> PreTrainedConfig:
        config = tiny_config(self.type)
        return type(config).from_dict(config.to_dict() | dict(self.changes)) if self.changes else config


PLAIN = (
    "apertus arcee bloom cohere cohere2_moe deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone_moe gemma gemma3n_text "
    "glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss granite granitemoe granitemoeshared "
    "hunyuan_v1_dense hy_v3 internlm3 iquestcoder jais2 kimi_linear lfm2 lfm2_moe llama mamba2 mellum minicpm3 "
    "minimax_m2 ministral3 mixtral mpt nemotron olmo olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_next "
    "seed_oss solar_open stablelm starcoder2 youtu"
).split()
SAID: Mapping[str, Mapping[str, Any]] = {
    "cohere2": {"rotary_pct": 1.0},
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "glm4_moe": {"scoring_func": "sigmoid"},
    "gpt2": {"n_ctx": 192},
    "gpt_neox": {"rotary_pct": 0.25},
    "minimax_m2": {"rotary_dim": 8},
    "kimi_linear": {
        "linear_attn_config": KDA,
        "first_k_dense_replace": 1,
        "moe_router_activation_func": "sigmoid",
    },
    "solar_open": {"partial_rotary_factor": 1.0},
    "mpt": {"architectures": ["MPTForCausalLM"]},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": 192},
}
CASES: Mapping[str, Case] = {
    **{name: Case(name, said=SAID.get(name, {})) for name in PLAIN},
    "afmoe": Case("afmoe", THREE_OF_FOUR | {"mup_enabled": True}),
    "bitnet": Case("bitnet", {"hidden_act": "silu", "tie_word_embeddings": True}),
    "cohere2_moe-sigmoid": Case("cohere2_moe", {"expert_selection_fn": "sigmoid", "norm_topk_prob": False}),
    "cohere2": Case("cohere2", THREE_OF_FOUR, SAID["cohere2"]),
    "deepseek_v2": Case("deepseek_v2", {"n_group": 1, "topk_group": 1}),
    "deepseek_v2-queries": Case("deepseek_v2", {"n_group": 1, "topk_group": 1, "q_lora_rank": 12}),
    "exaone4": Case("exaone4", THREE_OF_FOUR),
    "falcon": Case("falcon", {"ffn_hidden_size": 128}, {"num_kv_heads": 1}),
    "falcon-groups": Case("falcon", {"ffn_hidden_size": 128, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "gemma2": Case("gemma2", {"query_pre_attn_scalar": 8}),
    "gemma3_text": Case(
        "gemma3_text",
        {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
         "query_pre_attn_scalar": 8},
    ),
    "gemma4_text": Case(
        "gemma4_text", {"per_layer_config": {1: {"head_dim": 16}}, "final_logit_softcapping": 30.0},
        {"global_head_dim": 16},
    ),
    "gemma4-experts": Case("gemma4_text", GEMMA_4_EXPERTS, SAID_4),
    "gemma4-experts-fused": Case("gemma4_text", GEMMA_4_EXPERTS, SAID_4, fused=True),
    "gemma4-shared": Case(
        "gemma4_text",
        {"num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
         "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
         "per_layer_config": {layer: {"head_dim": 16} for layer in (1, 3, 5)}},
        {"global_head_dim": 16},
    ),
    "glm": Case("glm", {"rms_norm_eps": 1e-5}, {"seq_length": 192}),
    "hunyuan_v1_moe": Case(
        "hunyuan_v1_moe", said={"moe_intermediate_size": [48, 48], "moe_topk": [1, 1], "num_shared_expert": [1, 1]}
    ),
    "llama4_text": Case(
        "llama4_text",
        {"num_hidden_layers": 4, "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
         "no_rope_layers": [1, 1, 1, 0], "moe_layers": [0, 1, 2, 3], "attention_chunk_size": 8192,
         "floor_scale": 8192},
    ),
    "llama-fused": Case("llama", fused=True),
    "llama-linear": Case("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "llama-llama3": Case(
        "llama",
        {"rope_parameters": BASE
         | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    ),
    "llama-tied": Case("llama", {"tie_word_embeddings": True}),
    "llama-yarn": Case("llama", {"rope_parameters": BASE | {"rope_type": "yarn", "factor": 4.0}}),
    "mistral": Case("mistral", {"sliding_window": None}),
    "phi": Case("phi", {"intermediate_size": 128}),
    "phi3-longrope": Case(
        "phi3",
        {"original_max_position_embeddings": 16,
         "rope_parameters": BASE | {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.6],
                                    "long_factor": [4.0, 5.0, 6.0, 7.0]}},
    ),
    "qwen2-wide": Case(
        "qwen2",
        {"hidden_size": 256, "intermediate_size": 32, "num_hidden_layers": 1, "layer_types": ["full_attention"],
         "head_dim": 8},
    ),
    "qwen2-fused": Case("qwen2", fused=True),
    "qwen2-tied": Case("qwen2", {"tie_word_embeddings": True}),
    "qwen3_moe": Case("qwen3_moe", {"norm_topk_prob": True}),
    "qwen3-yarn": Case("qwen3", {"rope_parameters": BASE | {"rope_type": "yarn", "factor": 4.0}}),
    "bamba": Case("bamba", said={"attn_rotary_emb": 4}),
    "falcon_h1": Case("falcon_h1", MULTIPLIED | {"mamba_d_ssm": 64, "mamba_n_heads": 8}, {"head_dim": 8}),
    "falcon_h1-norm": Case(
        "falcon_h1",
        {"mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_rms_norm": True,
         "mamba_norm_before_gate": False},
        {"head_dim": 8},
    ),
    "falcon_mamba": Case("falcon_mamba", {"intermediate_size": 64}),
    "granitemoehybrid": Case("granitemoehybrid", SCALED, {"layer_types": ["mamba", "attention"]}),
    "granitemoehybrid-dense": Case(
        "granitemoehybrid",
        SCALED | {"num_local_experts": 0, "intermediate_size": 16, "mamba_n_groups": 2, "tie_word_embeddings": True},
        {"layer_types": ["mamba", "attention"]}, unsaid=("num_experts_per_tok",),
    ),
    "jamba": Case("jamba", {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2}),
    "jamba-dense": Case("jamba", {"num_experts": 1, "num_experts_per_tok": 1}),
    "mamba": Case("mamba", {"intermediate_size": 64}),
    "nemotron_h": Case(
        "nemotron_h",
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"], "mamba_num_heads": 8,
         "n_groups": 2},
        {"hybrid_override_pattern": "M-*-", "num_hidden_layers": 4},
        ("layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"),
    ),
    "nemotron_h-experts": Case(
        "nemotron_h",
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "mamba_num_heads": 8,
         "n_groups": 2, "routed_scaling_factor": 2.5, "n_group": 1},
    ),
    "nemotron_h-latent": Case(
        "nemotron_h",
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "mamba_num_heads": 8,
         "n_groups": 2, "moe_latent_size": 24, "tie_word_embeddings": True},
    ),
    "qwen3_5-equal": Case("qwen3_5_text", {"linear_num_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3_5-fused": Case("qwen3_5_moe_text", fused=True),
    "qwen3_5-wide": Case(
        "qwen3_5_text",
        {"hidden_size": 256, "intermediate_size": 32, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    ),
    "qwen3_5_moe_text": Case("qwen3_5_moe_text"),
    "qwen3_5_text": Case("qwen3_5_text", {"linear_num_value_heads": 6}),
    "qwen3_next-fused": Case("qwen3_next", fused=True),
    "qwen3_next-wide": Case(
        "qwen3_next", {"hidden_size": 256, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    ),
    "smollm3": Case(
        "smollm3",
        {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "layer_types": ["full_attention"] * 4},
    ),
}  # fmt: skip


def numbers(name: str, shape: torch.Size) -> torch.Tensor:
    """Return the numbers of a parameter: multiples of a power of two, around 1 for vectors that are no biases, else 0.

    Matrices have two values: BitNet's converter rounds them to the mean of their absolute numbers.
    """
    seed = zlib.crc32(f"{'.'.join(name.split('.')[-4:])}{list(shape)}".encode())
    generator = torch.Generator().manual_seed(seed)
    if len(shape) < 2:
        return (torch.randint(0, 4, shape, generator=generator) - 1) / 8 + (not name.endswith("bias"))
    return (torch.randint(0, 2, shape, generator=generator) * 2 - 1) / 4


def model_of(config: PreTrainedConfig) -> PreTrainedModel:
    """Return transformers' model of a config in f32, with the numbers of `numbers`."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        stored = {*model.state_dict()}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in stored and tensor.is_floating_point():
                tensor.copy_(numbers(name, tensor.shape))
    return model.requires_grad_(False).eval()


@cache
def archive() -> Mapping[str, bytes]:
    """Return the files of the archive by name."""
    with tarfile.open(FILE) as files:
        return {member.name: files.extractfile(member).read() for member in files}  # type: ignore[union-attr]


def config_of_case(name: str) -> PreTrainedConfig:
    """Return the config of a case as the archive has it."""
    fields = json.loads(archive()[f"{name}.json"], object_hook=_number)
    return CONFIG_MAPPING[fields["model_type"]].from_dict(fields)


def _number(fields: dict[str, Any]) -> Any:
    """Return the number that transformers writes as an object, since JSON has no infinity; else the object."""
    return float(fields["__float__"]) if fields.keys() == {"__float__"} else fields


# -------------------------------------------------------------------------------------------------- to make the archive


def convert(source: Path, case: Case, folder: Path) -> bytes:
    """Return the GGUF file that llama.cpp's converter writes of a case's model, which is saved in `folder`."""
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # type: ignore

    model_of(case.config()).save_pretrained(folder)
    vocabulary = {str(token): token for token in range(VOCABULARY)}  # Gemma's converter counts them
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    read = ModelBase.load_hparams

    def fields(*arguments: Any, **named: Any) -> dict[str, Any]:
        hparams = dict(read(*arguments, **named)) | dict(case.said)
        return {name: value for name, value in hparams.items() if name not in case.unsaid}

    import gguf

    file = folder / MODEL
    with (
        mock.patch.object(ModelBase, "load_hparams", staticmethod(fields)),
        mock.patch.object(ModelBase, "no_mtp", case.type.startswith("qwen3_")),  # transformers does not save them
        torch.inference_mode(),
    ):
        cls = get_model_class(get_model_architecture(fields(folder, False), ModelType.TEXT))
        names = OTHER_NAMES.get(case.type, {})
        modify = cls.modify_tensors

        def renamed(self: Any, tensor: Any, name: str, layer: int | None) -> Any:
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
            return modify(self, tensor, name, layer)

        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(cls, "modify_tensors", renamed))
            for each in (cls, *(inner for inner in vars(cls).values() if isinstance(inner, type))):
                patches.enter_context(mock.patch.object(each, "set_vocab"))
            options = {"fuse_qkv": case.fused, "fuse_gate_up_exps": case.fused, "eager": True, "model_name": "tiny"}
            if case.type in READING_CONFIG:
                options["hparams"] = fields(folder, False)
            cls(folder, gguf.LlamaFileType.ALL_F32, file, **options).write()
    return file.read_bytes()


def made(source: Path, quantize: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the archive."""
    for name, case in sorted(CASES.items()):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            yield f"{name}.gguf", convert(source, case, folder)
            yield f"{name}.json", (folder / "config.json").read_bytes()
            for mix in QUANTIZED.get(name, ()):
                subprocess.run(
                    [quantize, "--output-tensor-type", "q6_K", folder / MODEL, folder / mix, mix], check=True
                )
                yield f"{name}-{mix}.gguf", (folder / mix).read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, metavar="FOLDER", help="llama.cpp's source")
    parser.add_argument("quantize", type=Path, metavar="LLAMA_QUANTIZE", help="its program llama-quantize")
    words = parser.parse_args()
    partial = FILE.with_suffix(".partial")
    with tarfile.open(partial, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as files:
        for name, data in made(words.source, words.quantize):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            files.addfile(member, io.BytesIO(data))
    partial.replace(FILE)


if __name__ == "__main__":
    main()
