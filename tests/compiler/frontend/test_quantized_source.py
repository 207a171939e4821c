"""Published quantized checkpoints: the values of their weights, and those that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import gcd
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, LlamaConfig, PreTrainedConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from sscc.compiler.frontend.checkpoint import CheckpointErrors, open_checkpoint
from sscc.compiler.frontend.construction import build_skeleton
from sscc.compiler.frontend.model_config import ModelConfigErrors
from sscc.compiler.frontend.quantization_config import QuantizationConfigErrors
from sscc.compiler.frontend.quantized_source import QuantizedErrors, QuantizedShapeErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.weight_formats.registry import ORDER
from sscc.runtime.support.quantization import dequantize
from tests.compiler.frontend import published
from tests.errors import raises

Stored = dict[str, torch.Tensor]
Make = Callable[[torch.Generator, tuple[int, int]], tuple[Stored, torch.Tensor]]

LLAMA = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=32,
    max_position_embeddings=64,
)
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {},
    "ignore": ["lm_head"],
}
CASES: dict[str, tuple[dict[str, Any], Make, str]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False},
        published.gptq,
        "int4:32:zero-point:f16",
    ),
    "gptq8": (
        {"quant_method": "gptq", "bits": 8, "group_size": 16, "checkpoint_format": "gptq_v2"},
        lambda g, s: published.gptq(g, s, bits=8, group=16, second=True),
        "int8:16:zero-point:f16",
    ),
    "desc_act": (
        {"quant_method": "gptq", "bits": 4, "desc_act": True},
        lambda g, s: published.gptq(g, s, shuffled=True, scales=torch.bfloat16),
        "int4:32:zero-point",
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True, "group_size": 16},
        lambda g, s: published.awq(g, s, group=16),
        "int4:16:zero-point:f16",
    ),
    "packed4": (COMPRESSED, published.packed, "int4:32"),
    "packed8": (COMPRESSED, lambda g, s: published.packed(g, s, bits=8, scales=torch.float16), "int8:32:f16"),
    "packed4z": (COMPRESSED, lambda g, s: published.packed(g, s, group=16, zero_point=True), "int4:16:zero-point"),
    "int8": (COMPRESSED | {"format": "int-quantized"}, published.plain, "int8:K"),
    "int8z": (
        COMPRESSED | {"format": "int-quantized"},
        lambda g, s: published.plain(g, s, zero_point=True),
        "int8:K:zero-point",
    ),
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [24, 10], "activation_scheme": "dynamic", "fmt": "e4m3"},
        lambda g, s: published.fp8(g, s, block=(24, 10)),
        "",
    ),
    "blocks": (
        {"quant_method": "fp8", "weight_block_size": [24, 48]},
        lambda g, s: published.fp8(g, s, block=(24, 48)),
        "e4m3:16:f32",
    ),
    "float": (
        COMPRESSED | {"format": "float-quantized"},
        lambda g, s: published.fp8(g, s, block=(1, s[1]), suffix=".weight_scale"),
        "e4m3:G:f32",
    ),
    "nvfp4": (COMPRESSED | {"format": "nvfp4-pack-quantized"}, published.nvfp4, "nvfp4:64"),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"}, "ignore": ["lm_head"]},
        lambda g, s: published.nvfp4(g, s, modelopt=True),
        "nvfp4:64",
    ),
    "modelopt8": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        lambda g, s: published.fp8(g, s, block=s, suffix=".weight_scale"),
        "e4m3:G:f32",
    ),
}


def is_quantized(name: str) -> bool:
    return name.endswith("_proj.weight")


def write(
    folder: Path, make: Make, quantization: dict[str, Any], config: LlamaConfig = LLAMA
) -> dict[str, torch.Tensor]:
    """A folder whose projections are quantized; returns the numbers of all parameters."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(3)
    stored: Stored = {}
    numbers: dict[str, torch.Tensor] = {}
    for name, value in build_skeleton(config).state_dict().items():
        if not is_quantized(name):
            stored[name] = numbers[name] = torch.randn(value.shape, generator=generator)
            continue
        parts, numbers[name] = make(generator, tuple(value.shape))
        stored |= {name.removesuffix(".weight") + ending: part for ending, part in parts.items()}
    save_file(stored, folder / "model.safetensors")
    write_config(folder, config, quantization)
    return numbers


def write_config(folder: Path, config: PreTrainedConfig, quantization: object) -> None:
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"quantization_config": quantization}))


def change(folder: Path, **parts: torch.Tensor | None) -> None:
    """Replace stored tensors; None removes one. `__` in a name means a dot."""

    stored = load_file(folder / "model.safetensors")
    for ending, value in parts.items():
        name = "model.layers.0.self_attn.q_proj." + ending
        stored.pop(name)
        if value is not None:
            stored[name] = value
    save_file(stored, folder / "model.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_what_its_parts_stand_for(case: str, tmp_path: Path) -> None:
    quantization, make, _ = CASES[case]
    numbers = write(tmp_path, make, quantization)
    checkpoint = open_checkpoint(tmp_path)
    of_activations = ("input_scale", "input_global_scale")
    assert {name for name in checkpoint.names() if not name.endswith(of_activations)} == set(numbers)
    for name, expected in numbers.items():
        found = checkpoint.tensor(name)
        assert (tuple(found.shape), found.dtype) == checkpoint.names()[name]
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("case", CASES)
def test_codes_are_kept_where_a_format_holds_them(case: str, tmp_path: Path) -> None:
    quantization, make, text = CASES[case]
    numbers = write(tmp_path, make, quantization)
    checkpoint = open_checkpoint(tmp_path)
    for name, expected in numbers.items():
        form = checkpoint.stored_form(name)
        if not is_quantized(name):
            assert form is None
            continue
        assert form is not None
        k = expected.shape[1]
        if not text or (text == "nvfp4:64" and k % 64):
            assert form.format is None
            continue
        assert str(form.format) == text.replace("K", str(k)).replace("G", str(gcd(k, 128)))
        assert checkpoint.source is not None
        parts = checkpoint.source.parts(name)
        first = form.format.parts[0].name
        assert parts[first].shape == form.format.stored(first, *expected.shape)
        if form.ordered:
            expected = expected[:, parts[ORDER]]
        assert torch.equal(torch.from_numpy(dequantize(parts, form.format)), expected)


def test_long_groups_are_cut(tmp_path: Path) -> None:
    """A scale of a whole row is written down for every 128 weights of it."""
    from sscc.compiler.frontend.quantized_source import quantized_weights
    from sscc.compiler.frontend.sources import DictSource

    stored, numbers = published.plain(torch.Generator().manual_seed(1), (8, 384))
    source = DictSource({f"x{ending}": part for ending, part in stored.items()})
    weight = quantized_weights(source, COMPRESSED, "here")["x.weight"]
    assert str(weight.form.format) == "int8:128"
    assert weight.stored is not None
    assert weight.form.format is not None
    parts = weight.stored(source.tensor)
    assert parts["scales"].shape == (8, 3 * 2)
    assert torch.equal(torch.from_numpy(dequantize(parts, weight.form.format)), numbers)


def test_fp8_as_transformers_dequantizes_it(tmp_path: Path) -> None:
    write(
        tmp_path, lambda g, s: published.fp8(g, s, block=(8, 8)), {"quant_method": "fp8", "weight_block_size": [8, 8]}
    )
    checkpoint = open_checkpoint(tmp_path)

    stored = load_file(tmp_path / "model.safetensors")
    theirs = Fp8Dequantize(None)
    for name in filter(is_quantized, checkpoint.names()):
        expected = theirs._dequantize_one(stored[name], stored[f"{name}_scale_inv"], torch.float32)
        assert torch.equal(checkpoint.tensor(name), expected)


def test_mxfp4_as_transformers_dequantizes_it(tmp_path: Path) -> None:
    config = GptOssConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_local_experts=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=32,
    )
    generator, stored = torch.Generator().manual_seed(2), {}
    for name, meta in build_skeleton(config).state_dict().items():
        if name.endswith("_proj") and meta.dim() == 3:
            parts = published.mxfp4(generator, tuple(meta.shape))
            stored |= {name + ending: part for ending, part in parts.items()}
        else:
            stored[name] = torch.randn(meta.shape, generator=generator).to(torch.bfloat16)
    save_file(stored, tmp_path / "model.safetensors")
    write_config(tmp_path, config, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    checkpoint = open_checkpoint(tmp_path)
    found = [name for name in checkpoint.names() if name + "_blocks" in stored]
    assert len(found) == 2
    for name in found:
        expected = convert_moe_packed_tensors(stored[name + "_blocks"], stored[name + "_scales"], dtype=torch.float32)
        assert torch.equal(checkpoint.tensor(name), expected)
        assert checkpoint.stored_form(name).text == "mxfp4"
    # As published, the config states no dtype; the weights that are not quantized have one.
    assert checkpoint.config.dtype is None
    assert checkpoint.default_dtype == torch.bfloat16


def test_the_dtype_is_the_configs(tmp_path: Path) -> None:
    quantization, make, _ = CASES["gptq"]
    write(tmp_path, make, quantization)
    assert open_checkpoint(tmp_path).default_dtype == torch.float32
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"dtype": "bfloat16"}))
    assert open_checkpoint(tmp_path).default_dtype == torch.bfloat16


def test_a_digest_is_of_what_is_stored(tmp_path: Path) -> None:
    quantization, make, _ = CASES["gptq"]
    write(tmp_path, make, quantization)
    before = open_checkpoint(tmp_path).digest
    assert open_checkpoint(tmp_path).digest == before
    write_config(tmp_path, LLAMA, quantization | {"damp_percent": 0.1})
    assert open_checkpoint(tmp_path).digest == before
    change(tmp_path, scales=torch.ones(2, 64, dtype=torch.float16))
    assert open_checkpoint(tmp_path).digest != before


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("quantization", "kind", "fields"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True}, QuantizationConfigErrors.UNKNOWN_METHOD,
            {"method": "bitsandbytes"},
        ),
        ({"load_in_8bit": True}, QuantizationConfigErrors.UNKNOWN_METHOD, {"method": "bitsandbytes"}),
        (
            {"quant_method": "hqq"}, QuantizationConfigErrors.UNKNOWN_METHOD,
            {"method": "hqq", "known": ["fp8", "mxfp4", "gptq", "awq", "compressed-tensors", "modelopt"]},
        ),
        (
            {"quant_method": "gptq", "bits": 3}, QuantizationConfigErrors.OTHER_VALUE,
            {"method": "gptq", "field": "bits", "value": "3", "known": [4, 8]},
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*": {}}}, QuantizationConfigErrors.UNKNOWN_FIELD,
            {"method": "gptq", "field": "dynamic"},
        ),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
            QuantizationConfigErrors.OTHER_VALUE, {"field": "checkpoint_format", "value": "'marlin'"},
        ),
        (
            {"quant_method": "awq", "bits": 4, "version": "gemv"}, QuantizationConfigErrors.OTHER_VALUE,
            {"field": "version", "value": "'gemv'"},
        ),
        (
            {"quant_method": "awq", "bits": 4, "zero_point": False}, QuantizationConfigErrors.OTHER_VALUE,
            {"field": "zero_point", "value": "False"},
        ),
        (
            COMPRESSED | {"format": "marlin-24"}, QuantizationConfigErrors.OTHER_VALUE,
            {"field": "format", "value": "'marlin-24'"},
        ),
        (
            COMPRESSED | {"transform_config": {"config_groups": {"a": 1}}}, QuantizationConfigErrors.UNKNOWN_FIELD,
            {"field": "transform_config"},
        ),
        (
            COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, QuantizationConfigErrors.UNKNOWN_FIELD,
            {"field": "sparsity_config"},
        ),
    ],
)
def test_methods_and_fields_that_are_refused(
    quantization: dict[str, Any], kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, CASES["gptq"][1], quantization)
    with raises(kind, **fields):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("quantization", "kind", "fields"),
    [
        ({"bits": 4}, QuantizationConfigErrors.NO_METHOD, {}),
        ({"quant_method": 4}, QuantizationConfigErrors.NO_METHOD, {}),
        ("gptq", ModelConfigErrors.NOT_VALID, {"model": "llama"}),
        ({"quant_method": "gptq"}, QuantizedErrors.BITS, {}),
        ({"quant_method": "gptq", "bits": 4.0}, QuantizedErrors.BITS, {"bits": 4.0}),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, QuantizedErrors.BLOCK_SIZE, {"value": "[0, 128]"}),
        ({"quant_method": "fp8", "weight_block_size": 128}, QuantizedErrors.BLOCK_SIZE, {"value": "128"}),
        ({"quant_method": "fp8"}, QuantizedErrors.NONE_STORED, {"method": "fp8"}),
    ],
)
def test_configs_that_cannot_be(quantization: Any, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, CASES["gptq"][1], quantization)
    with raises(kind, **fields):
        open_checkpoint(tmp_path)


FULL = (64, 64)
ONE_BELOW = torch.tensor([1] * 32 + [0] * 31 + [-1], dtype=torch.int32)
"""Groups of columns, one of which is missing. (If all are -1, groups are contiguous.)"""


@pytest.mark.parametrize(
    ("case", "ending", "value", "kind", "fields"),
    [
        ("gptq", "qzeros", None, QuantizedErrors.PART_MISSING, {}),
        ("nvfp4", "weight_global_scale", None, QuantizedErrors.PART_MISSING, {}),
        ("nvfp4", "weight_global_scale", torch.ones(2), QuantizedShapeErrors.OTHER, {"expected": "[1]"}),
        (
            "nvfp4", "weight_scale", torch.zeros(64, 3).to(torch.float8_e4m3fn), QuantizedShapeErrors.OTHER,
            {"expected": "[64, 4]"},
        ),
        (
            "gptq", "qzeros", torch.zeros(2, 7, dtype=torch.int32), QuantizedShapeErrors.OTHER,
            {"shape": "[2, 7]", "expected": "[2, 8]"},
        ),
        ("gptq", "scales", torch.zeros(2, 65, dtype=torch.float16), QuantizedShapeErrors.OTHER, {"shape": "[2, 65]"}),
        ("gptq", "scales", torch.zeros(3, 64, dtype=torch.float16), QuantizedShapeErrors.OTHER, {"shape": "[2, 8]"}),
        ("gptq", "scales", torch.zeros(2, 64, dtype=torch.float64), QuantizedErrors.DTYPE, {"dtype": "float64"}),
        (
            "gptq", "qweight", torch.zeros(8, 64, dtype=torch.int64), QuantizedErrors.DTYPE,
            {"dtype": "int64", "expected": ["int32"]},
        ),
        ("gptq", "qweight", torch.zeros(8, dtype=torch.int32), QuantizedShapeErrors.RANK, {"shape": "[8]", "rank": 2}),
        ("gptq", "scales", torch.zeros(0, 64, dtype=torch.float16), QuantizedShapeErrors.RANK, {"rank": 2}),
        ("gptq", "g_idx", torch.zeros(63, dtype=torch.int32), QuantizedShapeErrors.OTHER, {"shape": "[63]"}),
        ("awq", "qzeros", torch.zeros(1, 8, dtype=torch.int32), QuantizedShapeErrors.OTHER, {"shape": "[1, 8]"}),
        ("packed4", "weight_shape", torch.tensor([64, 1 << 40]), QuantizedShapeErrors.BITS, {}),
        ("packed4", "weight_shape", torch.tensor([64, -64]), QuantizedShapeErrors.BITS, {}),
        ("packed4", "weight_packed", None, QuantizedErrors.PART_MISSING, {}),
        (
            "packed4", "weight_scale", torch.zeros(64, 3, dtype=torch.bfloat16), QuantizedShapeErrors.GROUPS,
            {"columns": 64},
        ),
        (
            "int8", "weight_scale", torch.zeros(63, 1, dtype=torch.bfloat16), QuantizedShapeErrors.SCALES,
            {"shape": "[63, 1]"},
        ),
        (
            "fp8", "weight_scale_inv", torch.zeros(3, 6), QuantizedShapeErrors.OTHER,
            {"shape": "[3, 6]", "expected": "[3, 7]"},
        ),
        (
            "fp8", "weight", torch.zeros(FULL), QuantizedErrors.DTYPE,
            {"dtype": "float32", "expected": ["float8_e4m3fn"]},
        ),
        ("float", "weight_scale", torch.zeros(2, 2), QuantizedShapeErrors.FP8_SCALES, {"shape": "[2, 2]"}),
    ],
)
def test_parts_that_do_not_fit(
    case: str, ending: str, value: torch.Tensor | None, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    quantization, make, _ = CASES[case]
    write(tmp_path, make, quantization)
    change(tmp_path, **{ending: value})
    with raises(kind, **fields):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("case", "ending", "value", "kind", "fields"),
    [
        ("gptq", "scales", torch.full((2, 64), torch.inf, dtype=torch.float16), QuantizedErrors.SCALE_NOT_FINITE, {}),
        ("desc_act", "g_idx", torch.full((64,), 2, dtype=torch.int32), QuantizedErrors.GROUP, {"groups": 2}),
        ("desc_act", "g_idx", ONE_BELOW, QuantizedErrors.GROUP, {"groups": 2}),
        ("gptq", "scales", torch.full((2, 64), torch.nan, dtype=torch.float16), QuantizedErrors.SCALE_NOT_FINITE, {}),
        ("fp8", "weight_scale_inv", torch.full((3, 7), torch.nan), QuantizedErrors.SCALE_NOT_FINITE, {}),
        ("nvfp4", "weight_global_scale", torch.zeros(1), QuantizedErrors.SCALE_NOT_FINITE, {}),
        ("modelopt", "weight_scale_2", torch.tensor(torch.inf), QuantizedErrors.SCALE_NOT_FINITE, {}),
    ],
)
def test_contents_that_cannot_be(
    case: str, ending: str, value: torch.Tensor, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    quantization, make, _ = CASES[case]
    write(tmp_path, make, quantization)
    change(tmp_path, **{ending: value})
    with raises(kind, tensor=f"model.layers.0.self_attn.q_proj.{ending}", **fields):
        open_checkpoint(tmp_path).tensor("model.layers.0.self_attn.q_proj.weight")


NAN_BYTES = torch.tensor([0x7F, 0xFF], dtype=torch.uint8).view(torch.float8_e4m3fn)
ODD_GROUPS = torch.arange(64, dtype=torch.int32).remainder(2).sort().values.clone()
ODD_GROUPS[40:] = 0  # 56 columns of group 0 and 8 of group 1


@pytest.mark.parametrize(
    ("case", "ending", "value", "kind"),
    [
        ("blocks", "weight_scale_inv", torch.full((3, 2), -torch.inf), QuantizedErrors.SCALE_NOT_FINITE),
        ("modelopt8", "weight", NAN_BYTES[0].repeat(64, 64), QuantizedErrors.NUMBER_NOT_FINITE),
        ("blocks", "weight", NAN_BYTES[1].repeat(64, 64), QuantizedErrors.NUMBER_NOT_FINITE),
    ],
)
def test_parts_that_cannot_be_kept(
    case: str, ending: str, value: torch.Tensor, kind: ErrorKind, tmp_path: Path
) -> None:
    """Codes that are kept must represent finite numbers."""
    quantization, make, _ = CASES[case]
    write(tmp_path, make, quantization)
    change(tmp_path, **{ending: value})
    source = open_checkpoint(tmp_path).source
    assert source is not None
    with raises(kind, tensor=f"model.layers.0.self_attn.q_proj.{ending}"):
        source.parts("model.layers.0.self_attn.q_proj.weight")


def test_one_bad_byte_among_many(tmp_path: Path) -> None:
    """Both signs of it, wherever it stands; the largest numbers are numbers."""
    quantization, make, _ = CASES["blocks"]
    name = "model.layers.0.self_attn.q_proj.weight"
    for number, (byte, refused) in enumerate([(0x7F, True), (0xFF, True), (0x7E, False), (0xFE, False)]):
        folder = tmp_path / str(number)
        write(folder, make, quantization)
        values = load_file(folder / "model.safetensors")[name].view(torch.uint8)
        values[63, 63] = byte
        change(folder, weight=values.view(torch.float8_e4m3fn))
        source = open_checkpoint(folder).source
        assert source is not None
        if refused:
            with raises(QuantizedErrors.NUMBER_NOT_FINITE, tensor=name):
                source.parts(name)
        else:
            source.parts(name)


def test_an_index_of_nothing_but_minus_one_is_none(tmp_path: Path) -> None:
    quantization, make, _ = CASES["desc_act"]
    write(tmp_path, make, quantization)
    name = "model.layers.0.self_attn.q_proj.weight"
    numbers = []
    for index in (torch.arange(64) // 32, torch.full((64,), -1)):
        change(tmp_path, g_idx=index.to(torch.int32))
        numbers.append(open_checkpoint(tmp_path).tensor(name))
    assert torch.equal(*numbers)


def test_groups_of_unequal_sizes(tmp_path: Path) -> None:
    """`desc_act` may give a group any number of columns: numbers are right, and codes are not kept as equal groups."""
    quantization, make, _ = CASES["desc_act"]
    write(tmp_path, make, quantization)
    name = "model.layers.0.self_attn.q_proj"
    before = open_checkpoint(tmp_path).tensor(f"{name}.weight")
    plain = load_file(tmp_path / "model.safetensors")[f"{name}.g_idx"]
    change(tmp_path, g_idx=ODD_GROUPS)
    after = open_checkpoint(tmp_path).tensor(f"{name}.weight")
    same = plain == ODD_GROUPS
    assert torch.equal(after[:, same], before[:, same])
    assert not torch.equal(after, before)


def test_a_float8_weight_without_its_scale(tmp_path: Path) -> None:
    quantization, make, _ = CASES["fp8"]
    write(tmp_path, make, quantization)
    change(tmp_path, weight_scale_inv=None)
    with raises(CheckpointErrors.DTYPE, dtype="float8_e4m3fn"):
        open_checkpoint(tmp_path)
