"""Models that llama.cpp's converter wrote, against transformers' models that it read."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import sscc
from sscc.compiler.frontend.checkpoint import Checkpoint, open_checkpoint
from sscc.compiler.frontend.gguf.families import FAMILIES
from sscc.compiler.frontend.gguf.header import read_header
from sscc.ir.weight_formats.registry import ORDER, Encoding, parse_format
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.support.quantization import dequantize
from tests.compiler.frontend.gguf_models import CASES, MIXES, WIDE_CASE, archive, config_of_case, model_of
from tests.families import random_tokens
from tests.torch_session import TorchSession

WITHOUT_A_CASE = {"exaone", "qwen2vl", "qwen3vl", "qwen3vlmoe"}
"""Architectures whose models are those of another one."""
COMPILED = ("llama-llama3", "gpt_oss", "qwen3_5_text")
"""Cases whose files are also compiled: dense layers, experts, and a recurrence beside attention. The logits of all
cases are compared before compilation."""


def gguf_file(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(archive()[path.name])
    return path


def tokens(path: Path, folder: Path) -> list[int]:
    """The tokens that a program gives, of a prompt that outgrows windows and rows."""
    result = sscc.compile(
        path, output=folder / f"{path.name}.rdu", max_context=96, kv_sink=2, kv_recent=9, kv_topk=7, kv_obs=4,
        kv_pool=3, prefill_chunk=16, dtype="f32",
    )  # fmt: skip
    session = TorchSession(Session.from_artifact(Artifact.load(result.path), threads=1))
    found = [int(session.prefill(0, random_tokens(40)).argmax())]
    for _ in range(11):
        found.append(int(session.decode({0: found[-1]})[0].argmax()))
    return found


def model_of_file(checkpoint: Checkpoint) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_config(
        checkpoint.config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )
    state = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert not [name for name in missing.missing_keys if name != "lm_head.weight"]
    return model.requires_grad_(False).eval()


@pytest.mark.parametrize("name", CASES)
def test_config_and_weights_give_the_original_logits(name: str, tmp_path: Path) -> None:
    original = model_of(config_of_case(name))
    ours = model_of_file(open_checkpoint(gguf_file(name, tmp_path)))
    ids = torch.tensor([random_tokens(40)])
    expected, logits = (model(ids, use_cache=False).logits for model in (original, ours))
    assert (logits - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert len(set(expected.argmax(-1).flatten().tolist())) > 3  # the model tells tokens apart


@pytest.mark.parametrize("mix", MIXES)
def test_numbers_of_quantized_files_are_those_of_the_package(mix: str, tmp_path: Path) -> None:
    path = gguf_file(f"{WIDE_CASE}-{mix}", tmp_path)
    checkpoint = open_checkpoint(path)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 1)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(stored) == len(checkpoint.names())
    for name in checkpoint.names():
        stem, suffix = name.rsplit(".", 1)
        tensor = stored[f"{names.get_name(stem)}.{suffix}"]
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(checkpoint.tensor(name).numpy(), expected), name
    assert checkpoint.default_dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["qwen3_5-wide", "qwen3_next-wide"])
def test_blocks_of_reordered_heads_are_those_of_the_numbers(name: str, tmp_path: Path) -> None:
    """Rows are put into the model's order. Columns stay as stored, and their order is part of the weight."""
    checkpoint = open_checkpoint(gguf_file(f"{name}-Q4_K_M", tmp_path))
    ordered = []
    for weight in checkpoint.names():
        form = checkpoint.stored_form(weight)
        if form is None or form.format is None:
            continue
        parts = dict(checkpoint.source.parts(weight)) if checkpoint.source else {}
        order = parts.pop(ORDER, None)
        numbers = dequantize(parts, form.format)
        if order is not None:
            ordered.append(weight)
            numbers = numbers[:, order.argsort()]
        assert np.array_equal(numbers, checkpoint.tensor(weight).numpy()), weight
        assert form.ordered == (order is not None)
    assert ordered == (["model.layers.0.linear_attn.out_proj.weight"] if name == "qwen3_5-wide" else [])


@pytest.mark.parametrize("name", COMPILED)
def test_programs_of_file_and_folder_give_equal_tokens(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    model_of(config_of_case(name)).save_pretrained(folder)
    found = tokens(gguf_file(name, tmp_path), tmp_path)
    assert found == tokens(folder, tmp_path)


@pytest.mark.parametrize(
    "name", [*(f"{WIDE_CASE}-{mix}" for mix in ("Q4_K_M", "Q3_K_M", "IQ4_XS", "TQ2_0")), "qwen3_5-wide-Q4_K_M"]
)
def test_a_quantized_file_runs_as_it_is_stored(name: str, tmp_path: Path) -> None:
    """The numbers are the file's, so a program that has them dense differs by the order of its sums alone, which a
    recurrence amplifies."""
    path = gguf_file(name, tmp_path)
    logits, encodings, nbytes = {}, {}, {}
    for form in (None, "dense"):
        result = sscc.compile(
            path, output=tmp_path / f"{form}.rdu", max_context=96, kv_sink=2, kv_recent=9, kv_topk=7, kv_obs=4,
            kv_pool=3, prefill_chunk=16, dtype="f32", weight_format=None if form is None else parse_format(form),
        )  # fmt: skip
        artifact = Artifact.load(result.path)
        weights = [tensor for tensor in artifact.program.tensors if tensor.role == "weight"]
        encodings[form] = {str(Encoding.parse(tensor.encoding).format) for tensor in weights if tensor.encoding}
        nbytes[form] = sum(tensor.nbytes for tensor in weights)
        session = TorchSession(Session.from_artifact(artifact, threads=1))
        logits[form] = [session.prefill(0, random_tokens(40)), *(session.decode({0: token})[0] for token in (5, 6))]
    types = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert encodings == {None: types - {"F32"}, "dense": set()}
    assert nbytes[None] < nbytes["dense"] / 2
    for kept, dense in zip(logits[None], logits["dense"], strict=True):
        assert (kept - dense).abs().max() <= (1e-4 if WIDE_CASE in name else 5e-4) * dense.abs().max()


def test_every_architecture_has_a_case(tmp_path: Path) -> None:
    found = {read_header(gguf_file(name, tmp_path)).architecture for name in CASES}
    assert set(FAMILIES) - found == WITHOUT_A_CASE


def test_the_documentation_lists_the_architectures() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    section = page.partition("## A GGUF file")[2].partition("[families.py]")[0]
    assert set(re.findall(r"`([^`\s.]+)`", section)) == set(FAMILIES)
