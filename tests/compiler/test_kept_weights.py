"""Programs that hold the codes of a quantized checkpoint as they are: `--weights keep`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

import sscc
from sscc.compiler.driver.preflight import PreflightErrors
from sscc.compiler.frontend.adapters import with_adapter
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.construction import build_skeleton
from sscc.compiler.frontend.gguf.weights import GgufWeightErrors
from sscc.compiler.frontend.untouched_model import load_model
from sscc.compiler.tools.commands import cli
from sscc.ir.geometry import Geometry
from sscc.runtime.artifact.tensor_files import TensorErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests.compiler.frontend import published
from tests.compiler.frontend.test_adapters import factors, save
from tests.compiler.frontend.test_quantized_source import CASES, LLAMA, is_quantized, write, write_config
from tests.errors import raises
from tests.families import random_tokens
from tests.oracles.independent import IndependentSnapStream
from tests.torch_session import TorchSession

CONTEXT = 64
G = Geometry(sink=2, recent=9, topk=7, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
ROWS = {name: getattr(G, name.removeprefix("kv_")) for name in ("kv_sink", "kv_recent", "kv_topk", "kv_obs", "kv_pool")}
SHAPE: dict[str, Any] = {"max_context": CONTEXT, "prefill_chunk": 10, "batch": 2, "dtype": "f32", **ROWS}
TOLERANCE = {"reference": 1e-5, "native": 3e-4}
"""||a - b|| / ||b|| of a step's logits. The reference multiplies by the same numbers; native code rounds the other
operand to 16 bits a group."""

SMALL = transformers.LlamaConfig(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=64, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
)  # fmt: skip


def write_gguf(path: Path, types: Callable[[str], str]) -> dict[str, np.ndarray]:
    """A Llama whose matrices have these types; returns gguf's own numbers of them, by the names of the file."""
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(SMALL)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(64)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    numbers = {}
    for name, tensor in model.state_dict().items():
        stem, suffix = name.rsplit(".", 1)
        gguf_name = f"{names.get_name(stem)}.{suffix}"
        kind = gguf.GGMLQuantizationType[types(gguf_name) if tensor.dim() == 2 else "F32"]
        blocks = gguf.quants.quantize(tensor.numpy() * 4, kind)
        numbers[gguf_name] = gguf.quants.dequantize(blocks, kind)
        writer.add_tensor(gguf_name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


def mixed(name: str) -> str:
    """A type for each matrix, as published files mix them; layers alike."""
    kinds = {"attn_q": "Q4_0", "attn_k": "Q8_0", "attn_v": "Q4_1", "ffn_down": "F16", "ffn_up": "Q4_1"}
    return next((kind for part, kind in kinds.items() if part in name), "Q8_0")


@pytest.fixture(scope="module")
def mixed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "mixed.gguf"
    write_gguf(path, mixed)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPTQ with the codes of every projection."""
    path = tmp_path_factory.mktemp("kept") / "gptq"
    quantization, make, _ = CASES["gptq"]
    write(path, make, quantization)
    return path


def two_layers() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(**LLAMA.to_dict() | {"num_hidden_layers": 2})


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPTQ whose columns of a group lie apart, in an order of each weight's own."""
    path = tmp_path_factory.mktemp("kept") / "desc_act"
    quantization, make, _ = CASES["desc_act"]
    write(path, make, quantization, two_layers())
    return path


@pytest.fixture(scope="module")
def small_floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVFP4."""
    path = tmp_path_factory.mktemp("kept") / "nvfp4"
    quantization, make, _ = CASES["nvfp4"]
    write(path, make, quantization)
    return path


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """e4m3 in blocks."""
    path = tmp_path_factory.mktemp("kept") / "fp8"
    quantization, make, _ = CASES["blocks"]
    write(path, make, quantization)
    return path


def expected_logits(path: Path) -> torch.Tensor:
    """Of the model with dequantized weights, by the definition of the cache that shares no code."""
    model = load_model(open_checkpoint(path), torch.float32)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    oracle = IndependentSnapStream(
        model, sink=G.sink, recent=G.recent, topk=G.topk, obs=G.obs, pool=G.pool, pool_mode=G.pool_mode
    )
    rows = [oracle.prefill(tokens(31))] + [oracle.decode(token) for token in tokens(5, seed=1)]
    return torch.stack(rows)


def tokens(count: int, seed: int = 0) -> list[int]:
    return [token % 32 for token in random_tokens(count, seed=seed)]


def logits(artifact: Artifact, interpreter: str) -> torch.Tensor:
    options = {"checked": True} if interpreter == "reference" else {"threads": 1}
    running = TorchSession(Session.from_artifact(artifact, interpreter=interpreter, **options))
    rows = [running.prefill(1, tokens(31))]
    rows += [running.decode({1: token})[1].clone() for token in tokens(5, seed=1)]
    return torch.stack([row.float() for row in rows])


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())


def encodings(artifact: Artifact) -> set[str]:
    return {t.encoding for t in artifact.program.tensors if t.encoding}


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        *((kind, 2) for kind in ("gguf", "gptq", "desc_act", "fp8", "nvfp4")),
        ("gguf", 0), ("desc_act", 0), ("nvfp4", 0), ("desc_act", 1),
    ],
)  # fmt: skip
def test_every_level_computes_with_the_checkpoints_numbers(
    kind: str,
    level: int,
    mixed_file: Path,
    folder: Path,
    shuffled: Path,
    floats: Path,
    small_floats: Path,
    tmp_path: Path,
) -> None:
    models = {"gguf": mixed_file, "gptq": folder, "desc_act": shuffled, "fp8": floats, "nvfp4": small_floats}
    model = models[kind]
    result = sscc.compile(model, output=tmp_path / "a.rdu", weights="keep", opt_level=level, **SHAPE)
    artifact = Artifact.load(result.path)
    formats = {encoding.partition("/")[0] for encoding in encodings(artifact)}
    if kind == "gptq":
        assert formats == {"int4:32:zero-point:f16"}
    elif kind == "desc_act":
        assert formats == {"int4:32:zero-point"}
        orders = [t for t in artifact.program.tensors if t.name.endswith("_proj.weight.order")]
        assert {t.dtype for t in orders} == {"i64"}
    elif kind == "fp8":
        assert formats == {"e4m3:16:f32"}
    elif kind == "nvfp4":
        assert formats == {"nvfp4:64"}
    else:
        assert formats == {"Q8_0", "Q4_0", "Q4_1", "F16"}
        assert "model.embed_tokens.weight.blocks" in {t.name for t in artifact.program.tensors}
        assert not [line for line in result.report if line.startswith("dequantized: ")]
    assert any(line.startswith("kept: ") for line in result.report)
    expected = expected_logits(model)
    for interpreter, tolerance in TOLERANCE.items():
        assert difference(logits(artifact, interpreter), expected) <= tolerance, interpreter


@pytest.mark.parametrize(
    ("kind", "precision"), [("gguf", "f32"), ("gguf", "f64"), ("fp8", "f64"), ("desc_act", "f64")]
)
def test_passes_agree(
    kind: str, precision: str, mixed_file: Path, floats: Path, shuffled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"--{name.replace('_', '-')}={value}" for name, value in ROWS.items()]
    model = str({"gguf": mixed_file, "fp8": floats, "desc_act": shuffled}[kind])
    arguments = ["bisect", model, "--weights", "keep", "--prefill-chunk", "10", "--max-context", "64", *rows]
    arguments += ["--batch", "2", "--dtype", "f32"]
    assert cli.main([*arguments, "--precision", precision]) == 0
    assert f"all agree within {'1e-09' if precision == 'f64' else '1e-05'}" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["folder", "F16", "BF16"])
def test_a_checkpoint_of_16_bits_stays_one(form: str, tmp_path: Path) -> None:
    """f16 is held as it is, for products and look-ups, and bf16 is the dtype of the program."""
    if form == "folder":
        torch.manual_seed(3)
        transformers.LlamaForCausalLM(SMALL).half().save_pretrained(model := tmp_path / "m")
    else:
        write_gguf(model := tmp_path / "m.gguf", lambda name: form)
    shape = {name: value for name, value in SHAPE.items() if name != "dtype"}
    artifact = Artifact.load(sscc.compile(model, output=tmp_path / "a.rdu", **shape).path)
    weights = [t for t in artifact.program.tensors if t.role == "weight"]
    matrices = {name for name, (shape, _) in open_checkpoint(model).names().items() if len(shape) == 2}
    if form == "BF16":
        assert {t.dtype for t in weights} == {"bf16"}
        return
    assert {source for t in weights if t.encoding == "F16/blocks" for source in t.sources} == matrices
    expected = expected_logits(model)
    for interpreter, tolerance in TOLERANCE.items():
        assert difference(logits(artifact, interpreter), expected) <= tolerance, interpreter
    dense = Artifact.load(sscc.compile(model, output=tmp_path / "d.rdu", weights="dense", **shape).path)
    assert not encodings(dense)


def test_weights_of_f16_are_held_along_either_axis(tmp_path: Path) -> None:
    """GPT-2 has its matrices as [K, N]."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=64, n_positions=CONTEXT, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).half()
    model.save_pretrained(tmp_path / "m")
    path = sscc.compile(tmp_path / "m", output=tmp_path / "a.rdu", max_context=CONTEXT, prefill_chunk=10).path
    assert encodings(Artifact.load(path)) == {"F16/blocks", "F16/blocks/transposed"}
    ids = tokens(20)
    expected = model.float().eval()(torch.tensor([ids])).logits[0, -1].detach().numpy()
    found = np.asarray(sscc.load(path).prefill(0, ids))
    assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


def test_activations_are_rounded_to_8_bits_where_asked_for(mixed_file: Path, tmp_path: Path) -> None:
    """Only the logits of the prompt are compared: rounding may change the selected rows, on which later logits depend.
    """
    artifact = Artifact.load(sscc.compile(mixed_file, output=tmp_path / "a.rdu", weights="keep", **SHAPE).path)
    expected, rounded = expected_logits(mixed_file)[:1], logits(artifact, "native-int8")[:1]
    assert 1e-3 < difference(rounded, expected) < 3e-2
    assert np.corrcoef(rounded.flatten(), expected.flatten())[0, 1] > 0.999
    assert artifact.packer == artifact.backend("native-int8").packer == "native"


def test_codes_are_the_checkpoints(mixed_file: Path, tmp_path: Path) -> None:
    """Rows of Llama's queries are in another order in a .gguf; scales are its own f16."""
    numbers = write_gguf(tmp_path / "again.gguf", mixed)
    artifact = Artifact.load(sscc.compile(mixed_file, output=tmp_path / "a.rdu", weights="keep", **SHAPE).path)
    checkpoint = open_checkpoint(mixed_file)
    weights = artifact.weights()
    blocks = next(t for t in artifact.program.tensors if t.encoding == "Q4_1/blocks")
    for place, source in enumerate(blocks.sources):
        stored = np.ascontiguousarray(weights[blocks.name][place]).view(np.uint8)
        found = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q4_1)
        assert np.array_equal(found, checkpoint.tensor(source).numpy())
    up = checkpoint.tensor("model.layers.1.mlp.up_proj.weight").numpy()
    assert np.array_equal(up, numbers["blk.1.ffn_up.weight"])


def test_a_golden_is_of_the_same_numbers(mixed_file: Path, tmp_path: Path) -> None:
    options = {"save_golden": True, "golden_tokens": 4, "weights": "keep"}
    result = sscc.compile(mixed_file, output=tmp_path / "a.rdu", **options, **SHAPE)
    assert cli.main(["run", str(result.path), "--check"]) == 0


def test_by_reference_and_with_other_weights(mixed_file: Path, folder: Path, tmp_path: Path) -> None:
    """A reference packs the same codes when it is run; another checkpoint's numbers are quantized into the formats."""
    embedded = sscc.compile(mixed_file, output=tmp_path / "a.rdu", weights="keep", **SHAPE).path
    referred = sscc.compile(mixed_file, output=tmp_path / "b.rdu", weights="reference,keep", **SHAPE).path
    first, second = (Artifact.load(path).manifest.weights.digest for path in (embedded, referred))
    assert first == second
    prompt = tokens(20)
    assert sscc.load(embedded).prefill(0, prompt).tolist() == sscc.load(referred).prefill(0, prompt).tolist()
    write_gguf(tmp_path / "plain.gguf", lambda name: "F16")
    other = sscc.load(embedded, checkpoint=tmp_path / "plain.gguf").prefill(0, prompt)
    assert np.isfinite(np.asarray(other)).all()


def test_ordered_columns_that_are_cut_over_ranks_become_numbers(shuffled: Path, tmp_path: Path) -> None:
    """A rank has some columns of every group: each has all columns of the other weights' rows, in their order."""
    path = sscc.compile(shuffled, output=tmp_path / "a.rdu", tp=2, **SHAPE).path
    kept = {source for t in Artifact.load(path).program.tensors if t.encoding for source in t.sources}
    cut = {name for name in open_checkpoint(shuffled).names() if "o_proj" in name or "down_proj" in name}
    assert kept == {name for name in open_checkpoint(shuffled).names() if is_quantized(name)} - cut
    found = np.asarray(sscc.load(path).prefill(0, tokens(31)))
    assert difference(torch.from_numpy(found)[None], expected_logits(shuffled)[:1]) <= TOLERANCE["native"]


def test_an_adapter_gives_ordered_columns_numbers_of_their_own(shuffled: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    adapter = save(tmp_path / "a", factors(name, 64, 64))
    result = sscc.compile(shuffled, output=tmp_path / "a.rdu", lora=str(adapter), **SHAPE)
    program = Artifact.load(result.path).program
    assert f"{name}.weight" in {source for t in program.tensors if not t.encoding for source in t.sources}
    assert any(line.startswith("dequantized: ") for line in result.report)
    merged = with_adapter(open_checkpoint(shuffled), adapter)
    assert merged.order(f"{name}.weight") is None
    assert merged.order(name.replace("0", "1") + ".weight") is not None


def test_numbers_do_not_say_how_columns_are_ordered(shuffled: Path, tmp_path: Path) -> None:
    artifact = sscc.compile(shuffled, output=tmp_path / "a.rdu", **SHAPE).path
    write(tmp_path / "m", CASES["gptq"][1], CASES["gptq"][0], two_layers())
    with raises(TensorErrors.NOT_ENCODED, tensor=re.compile("_proj.weight$")):
        sscc.load(artifact, checkpoint=tmp_path / "m")


def test_a_dump_says_what_is_kept(mixed_file: Path, tmp_path: Path) -> None:
    dump = sscc.compile(mixed_file, output=tmp_path / "a.mlir", compile_to="graph", weights="keep", **SHAPE).path
    assert 'model.layers.0.self_attn.q_proj.weight = "Q4_0/blocks"' in dump.read_text()
    onward = sscc.compile(dump, output=tmp_path / "b.rdu", compile_from="graph", checkpoint=mixed_file)
    whole = sscc.compile(mixed_file, output=tmp_path / "c.rdu", weights="keep", **SHAPE)
    assert (onward.path / "schedule.json").read_bytes() == (whole.path / "schedule.json").read_bytes()


def test_what_is_quantized_again_is_said(mixed_file: Path, tmp_path: Path) -> None:
    result = sscc.compile(mixed_file, output=tmp_path / "a.rdu", weights="Q4_0", **SHAPE)
    lines = [line for line in result.report if line.startswith(("kept", "dequantized", "quantized"))]
    assert [line.partition(":")[0] for line in lines] == ["kept", "dequantized", "quantized"]
    assert "stored as GGUF Q4_1" in lines[1]  # the queries' Q4_0 is what was asked for


def test_checkpoints_without_codes(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(LLAMA).save_pretrained(plain)
    with raises(PreflightErrors.NOTHING_TO_KEEP, path=plain, hint=" (they are not quantized)"):
        sscc.compile(plain, output=tmp_path / "a.rdu", weights="keep", **SHAPE)
    quantization, make, _ = CASES["fp8"]
    write(tmp_path / "fp8", make, quantization)
    with raises(PreflightErrors.NOTHING_TO_KEEP, path=tmp_path / "fp8", hint=re.compile("fp8 .* 24 x 10")):
        sscc.compile(tmp_path / "fp8", output=tmp_path / "a.rdu", weights="keep", **SHAPE)


def test_a_scale_that_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, mixed)
    data = bytearray(path.read_bytes())
    header = gguf.GGUFReader(path)
    at = next(t.data_offset for t in header.tensors if t.name == "blk.0.attn_q.weight")
    data[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(data)
    with raises(GgufWeightErrors.NOT_FINITE, tensor="blk.0.attn_q.weight"):
        open_checkpoint(path).source.parts("model.layers.0.self_attn.q_proj.weight")


# ------------------------------------------------------------------------------------------------------------- experts

MOE = transformers.Qwen3MoeConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=64, max_position_embeddings=CONTEXT, num_experts=4,
    num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=False, rms_norm_eps=1e-6, rope_theta=10000.0,
)  # fmt: skip


def write_moe(path: Path, kind: str, up_kind: str | None = None) -> dict[str, torch.Tensor]:
    """A Qwen3-MoE with the matrices of experts stacked as llama.cpp has them; returns all numbers by transformers'
    names."""
    torch.manual_seed(6)
    model = transformers.Qwen3MoeForCausalLM(MOE)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_expert_feed_forward_length(32)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(64)
    names, numbers = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3MOE, 2), {}

    def add(name: str, values: np.ndarray, type_name: str) -> torch.Tensor:
        type_ = gguf.GGMLQuantizationType[type_name]
        blocks = gguf.quants.quantize(values, type_)
        writer.add_tensor(name, blocks, raw_dtype=type_)
        return torch.from_numpy(gguf.quants.dequantize(blocks, type_).reshape(values.shape))

    for name, tensor in model.state_dict().items():
        values, layer = tensor.numpy() * (4 if tensor.dim() > 1 else 1), "".join(name.split(".")[2:3])
        if name.endswith("experts.gate_up_proj"):
            halves = zip(("gate", "up"), np.split(values, 2, axis=1), (kind, up_kind or kind), strict=True)
            parts = [add(f"blk.{layer}.ffn_{half}_exps.weight", part.copy(), type_) for half, part, type_ in halves]
            numbers[name] = torch.cat(parts, 1)
        elif name.endswith("experts.down_proj"):
            numbers[name] = add(f"blk.{layer}.ffn_down_exps.weight", values, kind)
        else:
            stem, suffix = name.rsplit(".", 1)
            plain = tensor.dim() == 1 or "mlp.gate." in name
            numbers[name] = add(f"{names.get_name(stem)}.{suffix}", values, "F32" if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_stacked_experts_of_a_gguf(kind: str, tmp_path: Path) -> None:
    numbers = write_moe(tmp_path / "m.gguf", kind)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config is not None
    assert checkpoint.config.moe_intermediate_size == 32
    assert checkpoint.names().keys() == numbers.keys()
    for name, expected in numbers.items():
        assert torch.equal(checkpoint.tensor(name), expected), name
    form = checkpoint.stored_form("model.layers.0.mlp.experts.gate_up_proj")
    assert form is not None
    assert str(form.format) == kind


def test_experts_are_kept(tmp_path: Path) -> None:
    numbers = write_moe(tmp_path / "m.gguf", "Q4_0")
    artifact = Artifact.load(sscc.compile(tmp_path / "m.gguf", output=tmp_path / "a.rdu", weights="keep", **SHAPE).path)
    kept = {source for t in artifact.program.tensors if t.encoding for source in t.sources}
    routers = {f"model.layers.{layer}.mlp.gate.weight" for layer in range(2)}
    assert kept == {n for n, value in numbers.items() if value.dim() > 1} - routers
    expected = expected_logits(tmp_path / "m.gguf")
    for interpreter, tolerance in TOLERANCE.items():
        assert difference(logits(artifact, interpreter), expected) <= tolerance, interpreter


def test_gate_and_up_of_two_types_are_dequantized(tmp_path: Path) -> None:
    numbers = write_moe(tmp_path / "m.gguf", "Q4_0", "Q8_0")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    assert torch.equal(checkpoint.tensor(name), numbers[name])
    form = checkpoint.stored_form(name)
    assert form is not None
    assert (form.text, form.format) == ("GGUF Q4_0 and Q8_0", None)


def test_experts_that_are_stored_one_by_one_are_kept(tmp_path: Path) -> None:
    """Codes of compressed-tensors are joined in the way in which transformers joins dense weights."""
    generator, stored = torch.Generator().manual_seed(8), {}
    numbers: dict[str, torch.Tensor] = {}
    torch.manual_seed(9)
    for name, tensor in transformers.Qwen3MoeForCausalLM(MOE).state_dict().items():
        if ".experts." not in name:
            stored[name] = tensor.clone()
            continue
        stem, joined = name.rpartition("experts.")[0] + "experts", []
        for expert in range(4):
            rows = []
            for which in ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",):
                shape = (32, 64) if which != "down_proj" else (64, 32)
                parts, values = published.packed(generator, shape)
                stored |= {f"{stem}.{expert}.{which}{ending}": part for ending, part in parts.items()}
                rows.append(values)
            joined.append(torch.cat(rows))
        numbers[name] = torch.stack(joined)
    save_file(stored, tmp_path / "model.safetensors")
    write_config(tmp_path, MOE, CASES["packed4"][0])
    checkpoint = open_checkpoint(tmp_path)
    for name, expected in numbers.items():
        assert torch.equal(checkpoint.tensor(name), expected)
        form = checkpoint.stored_form(name)
        assert form is not None
        assert str(form.format) == "int4:32"
    artifact = Artifact.load(sscc.compile(tmp_path, output=tmp_path / "a.rdu", weights="keep", **SHAPE).path)
    assert {source for t in artifact.program.tensors if t.encoding for source in t.sources} == numbers.keys()
    expected = expected_logits(tmp_path)
    for interpreter, tolerance in TOLERANCE.items():
        assert difference(logits(artifact, interpreter), expected) <= tolerance, interpreter


# -------------------------------------------------------------------------------------------------------------- memory

LIMITED = """
import resource, sys
from pathlib import Path
import torch
from sscc.compiler.frontend.checkpoint_tensors import checkpoint_reader
from sscc.compiler.frontend import untouched_model as loading
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.ir.weight_formats.registry import Encoding
from sscc.runtime.artifact.tensor_files import Stack, TensorSpec, write_tensors

checkpoint = open_checkpoint(Path(sys.argv[1]))
names = [name for name, (shape, _) in checkpoint.names().items() if len(shape) == 2 and "proj" in name]
layout = {}
for name in names:
    shape, form = checkpoint.names()[name][0], checkpoint.stored_form(name)
    if sys.argv[2] == "keep":
        for part in form.format.parts:
            encoding = Encoding(form.format, part.name)
            spec = TensorSpec(form.format.stored(part.name, *shape), "i8")
            layout[f"{name}.{part.name}"] = Stack(spec, (name,), str(encoding))
    else:
        layout[name] = Stack(TensorSpec(shape, "bf16"), (name,))
held = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (held + int(sys.argv[3]), held + int(sys.argv[3])))
if sys.argv[2] == "run":
    loading.RESIDENT_BYTES, tokens = 64 << 20, torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        loading.load_model(checkpoint, torch.float32)(input_ids=tokens, use_cache=False)
else:
    with open("/dev/null", "wb") as file:
        write_tensors(file, layout, checkpoint_reader(checkpoint, "it"))
print("done", sum(checkpoint.names()[name][0][0] * checkpoint.names()[name][0][1] for name in names))
"""
LARGE = transformers.LlamaConfig(
    hidden_size=1024, intermediate_size=1024, num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=8,
    vocab_size=32, max_position_embeddings=CONTEXT,
)  # fmt: skip


@pytest.mark.parametrize(("kind", "memory"), [("keep", 40), ("numbers", 40), ("run", 90)])
def test_weights_stream_through_less_memory_than_they_take(kind: str, memory: int, tmp_path: Path) -> None:
    """60 MB of codes, 470 MB as f32 (4 MB per tensor, 28 MB per layer), are packed, and run eagerly."""
    stored = {}
    for name, meta in build_skeleton(LARGE).state_dict().items():
        if not name.endswith("_proj.weight"):
            stored[name] = torch.zeros(meta.shape)
            continue
        n, k = meta.shape
        stem = name.removesuffix(".weight")
        stored[f"{stem}.weight_packed"] = torch.zeros(n, k // 8, dtype=torch.int32)
        stored[f"{stem}.weight_scale"] = torch.ones(n, k // 128, dtype=torch.bfloat16)
        stored[f"{stem}.weight_shape"] = torch.tensor([n, k])
    save_file(stored, tmp_path / "model.safetensors")
    write_config(tmp_path, LARGE, CASES["packed4"][0])
    assert (tmp_path / "model.safetensors").stat().st_size > 58e6
    arguments = [sys.executable, "-c", LIMITED, str(tmp_path), kind, str(memory << 20)]
    # Freed memory returns to the system, so that the limit applies to the memory in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[1]) * 4 > 4.6e8
