"""Config and weights of GGUF files: metadata that are read or refused, and the values of every type."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.gguf.config import GgufConfigErrors
from sscc.compiler.frontend.gguf.families import FAMILIES
from sscc.compiler.frontend.gguf.model_metadata import GgufMetadataErrors
from sscc.compiler.frontend.gguf.unfused import GgufFusedErrors
from sscc.compiler.frontend.gguf.weights import GgufWeightErrors, GgufWeightWarnings
from sscc.compiler.options.warning import collecting
from sscc.ir.errors import ErrorKind
from sscc.runtime.support.quantization import dequantize
from tests.compiler.frontend.test_checkpoint import gguf_tensors, tiny_llama, write_gguf
from tests.errors import check, raises

NORM, UP = "blk.0.attn_norm.weight", "blk.0.ffn_up.weight"
ROWS, COLUMNS = 4, 256
TYPES = [
    *("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("MXFP4", "TQ1_0", "TQ2_0"),
]


@pytest.fixture(scope="module")
def model() -> transformers.LlamaForCausalLM:
    return tiny_llama()


def write(path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """A file with these metadata, behind the architecture's name unless they have a dot in front.

    Args:
        tensors: arrays, or pairs of the bytes of rows and their type.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in metadata.items():
        name = key[1:] if key.startswith(".") else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_uint32(name, value)
    for name, tensor in (tensors or {}).items():
        data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


UNSAID_FIELDS = {"head_dim", "seq_length", "global_head_dim", "num_global_key_value_heads", "num_hidden_layers"}
"""Fields that transformers reads and does not write."""
SIZES: dict[str, Any] = {
    "context_length": 64, "embedding_length": 32, "block_count": 6, "feed_forward_length": 48,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
EMBEDDING = {"token_embd.weight": np.zeros((16, 32), np.float32)}


def config(path: Path, architecture: str, **metadata: Any) -> Any:
    """Return the config of a file with `SIZES` and these metadata; two underscores in a name mean a dot."""
    more = {key.replace("__", "."): value for key, value in metadata.items()}
    tensors = EMBEDDING | more.pop("tensors", {})
    return open_checkpoint(write(path / "m.gguf", architecture, SIZES | more, tensors), weights=False).config


def test_fields_are_those_of_the_file(tmp_path: Path) -> None:
    ours = config(tmp_path, "qwen3", attention__key_length=12, attention__value_length=12, rope__freq_base=5e5)
    assert ours.model_type == "qwen3"
    assert (ours.hidden_size, ours.num_hidden_layers, ours.intermediate_size, ours.vocab_size) == (32, 6, 48, 16)
    assert (ours.num_attention_heads, ours.num_key_value_heads, ours.head_dim) == (4, 2, 12)
    assert (ours.max_position_embeddings, ours.rms_norm_eps) == (64, 1e-5)  # and not the f32 that is nearest
    assert ours.rope_parameters["rope_theta"] == 5e5
    assert ours.tie_word_embeddings


@pytest.mark.parametrize(("architecture", "type_"), [("exaone", "llama"), ("qwen2vl", "qwen2"), ("qwen3vl", "qwen3")])
def test_architectures_whose_models_are_those_of_another_type(architecture: str, type_: str, tmp_path: Path) -> None:
    sections = {} if architecture == "exaone" else {"rope__dimension_sections": [16, 24, 24, 0]}
    assert config(tmp_path, architecture, **sections).model_type == type_


@pytest.mark.parametrize(
    ("architecture", "whole"),
    [("gemma2", [1, 3, 5]), ("gemma3", [5]), ("cohere2", [3]), ("exaone4", [3]), ("gpt-oss", [1, 3, 5])],
)
def test_layers_with_a_window_take_turns(architecture: str, whole: list[int], tmp_path: Path) -> None:
    more: dict[str, Any] = {"expert_count": 4, "expert_used_count": 2} if architecture == "gpt-oss" else {}
    if architecture == "cohere2":
        more = {"attention__layer_norm_rms_epsilon": 0, "attention__layer_norm_epsilon": 1e-5}
    ours = config(tmp_path, architecture, attention__sliding_window=8, **more)
    assert [layer for layer, kind in enumerate(ours.layer_types) if kind == "full_attention"] == whole
    assert ours.sliding_window == 8
    told = [True, False, False, True, True, False]
    ours = config(tmp_path, architecture, attention__sliding_window=8, attention__sliding_window_pattern=told, **more)
    assert [kind == "sliding_attention" for kind in ours.layer_types] == told


def test_gemma_3_has_another_base_within_windows(tmp_path: Path) -> None:
    """Published files leave it out: 10000."""
    for more, base in (({}, 1e4), ({"rope__freq_base_swa": 3e4}, 3e4)):
        ours = config(tmp_path, "gemma3", attention__sliding_window=8, rope__freq_base=1e6, **more)
        bases = {kind: rope["rope_theta"] for kind, rope in ours.rope_parameters.items()}
        assert bases == {"full_attention": 1e6, "sliding_attention": base}


def test_queries_of_the_largest_gemma_are_scaled_by_another_width(tmp_path: Path) -> None:
    widths = {"attention__key_length": 16, "attention__value_length": 16}
    for layers, scalar in ((6, 16), (46, 8)):
        assert config(tmp_path, "gemma2", block_count=layers, **widths).query_pre_attn_scalar == scalar


def test_rotary_embeddings_are_scaled(tmp_path: Path) -> None:
    linear = config(tmp_path, "llama", rope__scaling__type="linear", rope__scaling__factor=2.0)
    assert linear.rope_parameters == {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    yarn = config(
        tmp_path, "llama", rope__scaling__type="yarn", rope__scaling__factor=4.0,
        rope__scaling__original_context_length=16, rope__scaling__yarn_beta_fast=20.0,
    )  # fmt: skip
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 20.0}
    assert yarn.rope_parameters == expected | {"rope_theta": 1e4}
    factors = np.array([1.0, 1.5, 2.0, 8.0], np.float32)
    ours = config(tmp_path, "llama", tensors={"rope_freqs.weight": factors}).rope_parameters
    assert (ours["rope_type"], ours["attention_factor"]) == ("longrope", 1.0)
    assert ours["long_factor"] == ours["short_factor"] == factors.tolist()
    ones = config(tmp_path, "llama", tensors={"rope_freqs.weight": np.ones(4, np.float32)})
    assert ones.rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize("factor", [0.0, -1.0, np.inf, np.nan])
def test_damaged_factors(factor: float, tmp_path: Path) -> None:
    with raises(GgufMetadataErrors.VALUE, key="rope_freqs.weight"):
        config(tmp_path, "llama", tensors={"rope_freqs.weight": np.array([1.0, factor], np.float32)})


SSM: dict[str, Any] = {
    "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.time_step_rank": 8, "ssm.inner_size": 64,
}  # fmt: skip
NO_KV_HEADS_BUT_4 = [0, 0, 0, 0, 2, 0]


def recurrent(path: Path, architecture: str, **metadata: Any) -> Any:
    """The config of a file of a model with a recurrent state."""
    return config(path, architecture, **SSM, **metadata)


@pytest.mark.parametrize(
    ("more", "attending"),
    [
        ({}, [3]),
        ({"full_attention_interval": 2}, [1, 3, 5]),
        ({"attention__recurrent_layers": [True, False, True, True, True, False]}, [1, 5]),
        ({"attention__recurrent_layers": [True] * 5 + [False], "nextn_predict_layers": 1}, []),
    ],
)
def test_a_list_or_an_interval_says_which_layers_attend(
    more: dict[str, Any], attending: list[int], tmp_path: Path
) -> None:
    ours = recurrent(tmp_path, "qwen35", **more)
    assert [layer for layer, kind in enumerate(ours.layer_types) if kind == "full_attention"] == attending
    assert (ours.linear_num_key_heads, ours.linear_num_value_heads) == (2, 8)
    assert (ours.linear_key_head_dim, ours.linear_value_head_dim) == (8, 8)


def test_layers_without_kv_heads_keep_a_state(tmp_path: Path) -> None:
    kv = {"attention__head_count_kv": NO_KV_HEADS_BUT_4}
    ours = recurrent(tmp_path, "granitehybrid", rope__scaling__finetuned=False, **kv)
    assert ours.layer_types == ["linear_attention"] * 4 + ["full_attention", "linear_attention"]
    assert (ours.num_key_value_heads, ours.mamba_expand, ours.mamba_d_head) == (2, 2, 8)
    bamba = recurrent(tmp_path, "granitehybrid", rope__scaling__finetuned=True, rope__dimension_count=4, **kv)
    assert (bamba.model_type, bamba.attn_layer_indices) == ("bamba", [4])
    assert bamba.rope_parameters["partial_rotary_factor"] == 0.5
    for said, kind in ((True, "rope"), (False, None)):
        experts = {"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 16}
        ours = recurrent(tmp_path, "granitehybrid", rope__scaling__finetuned=said, **kv, **experts)
        assert (ours.model_type, ours.position_embedding_type) == ("granitemoehybrid", kind)
    widths = {"feed_forward_length": [0, 48, 0, 48, 0, 48], "attention__layer_norm_epsilon": 1e-5}
    ours = recurrent(tmp_path, "nemotron_h", **kv, **widths)
    assert ours.layers_block_type == ["linear_attention", "mlp"] * 2 + ["full_attention", "mlp"]
    jamba = recurrent(tmp_path, "jamba", ssm__group_count=0, **kv)
    assert (jamba.attn_layer_period, jamba.attn_layer_offset, jamba.num_experts) == (6, 4, 1)
    with raises(GgufMetadataErrors.NOT_HONOURED, key="jamba.attention.head_count_kv"):
        recurrent(tmp_path, "jamba", ssm__group_count=0, attention__head_count_kv=[2, 0, 2, 0, 0, 2])


@pytest.mark.parametrize(
    ("architecture", "metadata", "kind", "key"),
    [
        ("mamba2", {"ssm__inner_size": 65}, GgufMetadataErrors.VALUE, "mamba2.ssm.inner_size"),
        ("jamba", {}, GgufMetadataErrors.NOT_HONOURED, "jamba.ssm.group_count"),
        ("qwen35", {"full_attention_interval": 0}, GgufMetadataErrors.VALUE, "qwen35.full_attention_interval"),
        ("qwen35", {"attention__recurrent_layers": [True] * 5}, GgufMetadataErrors.VALUE,
         "qwen35.attention.recurrent_layers"),
        ("granitehybrid", {"attention__scale": 0.5}, GgufMetadataErrors.NOT_HONOURED, "granitehybrid.attention.scale"),
        ("falcon-h1", {"ssm__dt_b_c_rms": True}, GgufMetadataErrors.NOT_HONOURED, "falcon-h1.ssm.dt_b_c_rms"),
    ],
)  # fmt: skip
def test_metadata_of_a_state_that_are_refused(
    architecture: str, metadata: dict[str, Any], kind: ErrorKind, key: str, tmp_path: Path
) -> None:
    with raises(kind, key=key):
        recurrent(tmp_path, architecture, **metadata)


def test_a_decay_is_the_logarithm_of_a_negative_number(tmp_path: Path) -> None:
    metadata = {"embedding_length": 32, "block_count": 1, "attention.layer_norm_rms_epsilon": 1e-5} | SSM
    for stored in (np.full((8, 1), -2.0, np.float32), np.zeros((8, 1), np.float32)):
        path = write(tmp_path / "m.gguf", "mamba2", metadata, EMBEDDING | {"blk.0.ssm_a": stored})
        checkpoint, name = open_checkpoint(path), "backbone.layers.0.mixer.A_log"
        if stored.any():
            assert checkpoint.tensor(name).tolist() == pytest.approx([math.log(2)] * 8)
        else:
            with raises(GgufWeightErrors.LOG, tensor="blk.0.ssm_a", parameter=name):
                checkpoint.tensor(name)


def test_metadata_that_change_nothing(tmp_path: Path) -> None:
    """Neutral values, and groups of keys that no loader reads."""
    neutral = {"novelty": 0, "other": False, "text": "", "rope__scaling__type": "none", "attention__causal": True}
    groups = {".quantizer.novelty": 3, ".general.novelty": "x", ".quantize.imatrix.file": "x"}
    assert config(tmp_path, "llama", **neutral, **groups).model_type == "llama"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("llama.novelty", 3), ("llama.attention.causal", False), ("llama.attention.value_length", 16)),
        *(("llama.rope.dimension_count", 4), ("llama.rope.scaling.type", "novel"), ("llama.logit_scale", 2.0)),
        *(("xielu.beta", 0.5), ("llama.attention.sliding_window", 8), ("llama.expert_weights_scale", 2.0)),
    ],
)
def test_metadata_that_would_be_dropped(key: str, value: Any, tmp_path: Path) -> None:
    with raises(GgufMetadataErrors.NOT_HONOURED, key=key, architecture="llama"):
        config(tmp_path, "llama", **{f".{key}": value})


@pytest.mark.parametrize(
    ("metadata", "kind", "fields"),
    [
        ({"block_count": [6, 6, 5]}, GgufMetadataErrors.LAYERS_DIFFER, {"key": "llama.block_count"}),
        ({"attention.head_count": 0}, GgufMetadataErrors.MISSING, {"key": "llama.attention.head_count"}),
        ({"block_count": "many"}, GgufMetadataErrors.VALUE, {"key": "llama.block_count", "value": "many"}),
        ({"block_count": 2**31}, GgufMetadataErrors.VALUE, {"key": "llama.block_count"}),
        ({"rope.freq_base": float("nan")}, GgufMetadataErrors.VALUE, {"key": "llama.rope.freq_base"}),
        ({"attention.key_length": 0}, GgufMetadataErrors.VALUE, {"key": "llama.attention.key_length"}),
        ({"block_count": 1025}, GgufMetadataErrors.VALUE, {"key": "llama.block_count"}),
        ({"vocab_size": 17}, GgufMetadataErrors.VALUE, {"key": "llama.vocab_size", "value": 17}),
        ({"nextn_predict_layers": 6}, GgufMetadataErrors.VALUE, {"key": "llama.nextn_predict_layers"}),
    ],
)
def test_metadata_that_cannot_be(metadata: Any, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    with raises(kind, **fields):
        config(tmp_path, "llama", **metadata)


@pytest.mark.parametrize(
    ("architecture", "metadata", "kind"),
    [
        ("nosuch", {}, GgufConfigErrors.ARCHITECTURE),
        ("clip", {}, GgufConfigErrors.NOT_A_DECODER),
        ("nomic-bert", {}, GgufConfigErrors.NOT_A_DECODER),
        ("llama", {".general.type": "adapter"}, GgufConfigErrors.NOT_A_DECODER),
        ("llama", {".general.type": "mmproj"}, GgufConfigErrors.NOT_A_DECODER),
    ],
)
def test_files_that_are_no_decoders(architecture: str, metadata: Any, kind: ErrorKind, tmp_path: Path) -> None:
    with raises(kind):
        config(tmp_path, architecture, **metadata)


def test_every_family_names_a_type_of_transformers() -> None:
    for families in FAMILIES.values():
        assert not families[-1].when  # one is left for every file
        for family in families:
            defaults = transformers.CONFIG_MAPPING[family.model_type]()
            names = (*family.fields.values(), *family.present, *family.rows, *family.near.values())
            known = {*defaults.to_dict(), *defaults.attribute_map, *UNSAID_FIELDS}
            assert {name.partition(".")[0] for name in names} <= known, family.model_type


# ---------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("name", TYPES)
def test_numbers_are_those_of_the_package(name: str, model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    """Of random blocks, whose bytes any file might hold."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(1).integers(0, 120, (ROWS, COLUMNS // block * size), np.uint8)
    metadata = {**SIZES, "embedding_length": COLUMNS, "block_count": 1, "attention.head_count": 2}
    tensors: dict[str, Any] = {"token_embd.weight": np.zeros((16, COLUMNS), np.float32), UP: (stored, kind)}
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", "qwen2", metadata, tensors))
    ours = checkpoint.tensor("model.layers.0.mlp.up_proj.weight")
    expected = gguf.quants.dequantize(stored, kind).reshape(ROWS, COLUMNS)
    assert ours.dtype == (torch.bfloat16 if name == "BF16" else torch.float32)
    assert np.array_equal(ours.float().numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("scale", [None, 0.37])
@pytest.mark.parametrize("columns", [192, 512])
def test_a_tensor_of_nvfp4_is_scaled_as_a_whole(scale: float | None, columns: int, tmp_path: Path) -> None:
    """By the tensor `.scale` of llama.cpp's converter; `.input_scale` is of activations, which are not rounded."""
    kind, draw = gguf.GGMLQuantizationType.NVFP4, np.random.default_rng(1)
    stored = draw.integers(0, 256, (ROWS, columns // 64 * 36), np.uint8)
    stored[stored == 255] = 127
    metadata = {**SIZES, "embedding_length": columns, "block_count": 1, "attention.head_count": 2}
    tensors: dict[str, Any] = {"token_embd.weight": np.zeros((16, columns), np.float32), UP: (stored, kind)}
    if scale is not None:
        tensors[UP.replace("weight", "scale")] = np.array([scale], np.float32)
        tensors[UP.replace("weight", "input_scale")] = np.array([2], np.float32)
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", "qwen2", metadata, tensors))
    name = "model.layers.0.mlp.up_proj.weight"
    assert set(checkpoint.names()) == {"model.embed_tokens.weight", name}
    expected = gguf.quants.dequantize(stored, kind).reshape(ROWS, columns) * np.float32(scale or 1)
    np.testing.assert_allclose(checkpoint.tensor(name).numpy(), expected, rtol=1e-6)
    form = checkpoint.stored_form(name)
    assert form is not None
    assert str(form.format) == ("NVFP4" if columns == 512 else "NVFP4:64")
    assert checkpoint.source is not None
    parts = checkpoint.source.parts(name)
    assert np.array_equal(dequantize(parts, form.format), checkpoint.tensor(name).numpy())


def test_a_scale_of_another_shape_is_refused(tmp_path: Path) -> None:
    stored = np.zeros((ROWS, COLUMNS // 64 * 36), np.uint8)
    metadata = {**SIZES, "embedding_length": COLUMNS, "block_count": 1, "attention.head_count": 2}
    tensors: dict[str, Any] = {
        "token_embd.weight": np.zeros((16, COLUMNS), np.float32),
        UP: (stored, gguf.GGMLQuantizationType.NVFP4),
        UP.replace("weight", "scale"): np.ones(2, np.float32),
    }
    path = write(tmp_path / "m.gguf", "qwen2", metadata, tensors)
    with raises(GgufWeightErrors.SCALES, shape="[2]", count=1):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["Q8_1", "I8", "I32"])
def test_types_that_are_not_read(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    stored = np.zeros((ROWS, 256 // block * size), np.uint8)
    path = write(tmp_path / "m.gguf", "qwen2", SIZES, EMBEDDING | {UP: (stored, kind)})
    with raises(GgufWeightErrors.TYPE, tensor=UP, type=name):
        open_checkpoint(path)


def test_weights_are_those_of_the_model(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    """Also the rows of queries and keys, whose order llama.cpp changes."""
    write_gguf(tmp_path / "m.gguf", model)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for name, tensor in model.state_dict().items():
        ours = checkpoint.tensor(name)
        assert ours.is_contiguous()
        assert name == "lm_head.weight" or ours.equal(tensor)
        ours.add_(1)  # of its own, though the file is mapped


def test_a_digest_covers_names_types_and_bytes(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    norm = gguf_tensors(model)[NORM]
    variants = {
        "same": {NORM: norm},
        "value": {NORM: norm + np.float32(1)},
        "other": {NORM.replace("0", "1"): norm + np.float32(1)},
        "type": {NORM: norm.astype(np.float16)},
    }
    digests = {}
    for kind, tensors in variants.items():
        write_gguf(tmp_path / f"{kind}.gguf", model, tensors)
        digests[kind] = open_checkpoint(tmp_path / f"{kind}.gguf").digest
    write_gguf(tmp_path / "again.gguf", model)
    assert open_checkpoint(tmp_path / "again.gguf").digest == digests["same"]
    assert len(set(digests.values())) == len(variants), digests


def test_tensors_that_do_not_fit(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    path, keys = tmp_path / "m.gguf", gguf_tensors(model)["blk.0.attn_k.weight"]
    for tensors, kind, fields in (
        ({"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, GgufWeightErrors.NO_PLACE, {"count": 1}),
        ({"blk.9.attn_k.weight": keys}, GgufWeightErrors.NO_PLACE, {"count": 1}),
        ({"blk.0.attn_k.weight": np.concatenate([keys, keys[:1]])}, GgufWeightErrors.SHAPE, {"heads": 2}),
    ):
        write_gguf(path, model, tensors)
        with raises(kind, **fields):
            open_checkpoint(path)
    assert not open_checkpoint(path, weights=False).has_weights


def test_a_tensor_that_is_stored_in_another_shape(tmp_path: Path) -> None:
    """llama-quantize makes a vector of a row."""
    more = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16, "block_count": 1}
    gate = "blk.0.ffn_gate_inp_shexp.weight"
    for shape in ((32,), (1, 32), (2, 32)):
        path = write(tmp_path / "m.gguf", "qwen2moe", SIZES | more, EMBEDDING | {gate: np.ones(shape, np.float32)})
        if shape == (2, 32):
            with raises(GgufWeightErrors.RESHAPED, tensor=gate, shape="[2, 32]", other_shape="[1, 32]"):
                open_checkpoint(path)
        else:
            assert open_checkpoint(path).names()["model.layers.0.mlp.shared_expert_gate.weight"][0] == (1, 32)


def test_joined_tensors_that_do_not_come_apart(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    path, name = tmp_path / "m.gguf", "blk.0.attn_qkv.weight"
    rows = np.zeros((63, 32), np.float32)
    metadata = SIZES | {"block_count": 1}
    with raises(GgufFusedErrors.ROWS, tensor=name, parts=[4, 2, 2]):
        open_checkpoint(write(path, "qwen2", metadata, EMBEDDING | {name: rows}))
    both = EMBEDDING | {name: rows[:56], "blk.0.attn_v.weight": rows[:14]}
    with raises(GgufFusedErrors.TWICE, tensor=name, part="blk.0.attn_v.weight"):
        open_checkpoint(write(path, "qwen2", metadata, both))


def test_an_embedding_is_a_matrix(tmp_path: Path) -> None:
    with raises(GgufMetadataErrors.NO_MATRIX, tensor="token_embd.weight"):
        config(tmp_path, "qwen2", tensors={"token_embd.weight": np.zeros(16, np.float32)})


def test_layers_that_predict_several_tokens_are_left_out(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    tensors = EMBEDDING | {f"blk.{layer}.attn_norm.weight": np.ones(32, np.float32) for layer in range(6)}
    path = write(tmp_path / "m.gguf", "qwen2", SIZES | {"nextn_predict_layers": 2}, tensors)
    with collecting() as warnings:
        checkpoint = open_checkpoint(path)
    check(warnings[0], GgufWeightWarnings.PREDICTING, layers=2)
    assert checkpoint.config is not None
    assert checkpoint.config.num_hidden_layers == 4
    assert sum("input_layernorm" in name for name in checkpoint.names()) == 4


def test_a_quantized_file_computes_in_bf16(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    stored = np.zeros((16, 34), np.uint8)
    for embedding, dtype in (((stored, kind), torch.bfloat16), (np.zeros((16, 32), np.float32), torch.float32)):
        path = write(tmp_path / "m.gguf", "qwen2", SIZES, {"token_embd.weight": embedding})
        assert open_checkpoint(path).default_dtype == dtype
