"""LoRA adapters as PEFT writes them, merged into checkpoints."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import sscc
from sscc.compiler.frontend.adapters import AdapterErrors, open_adapter, with_adapter
from sscc.compiler.frontend.checkpoint import CheckpointErrors, open_checkpoint
from sscc.compiler.options.compile_options import CompileOptions, OptionErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.weight_formats.registry import CHECKPOINT_FORMATS, Encoding
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.support.quantization import round_trip
from tests.compiler.frontend.gguf_models import WIDE_CASE, archive
from tests.errors import raises
from tests.families import random_tokens
from tests.models.tiny_llama import save_tiny_llama
from tests.torch_session import TorchSession

PREFIX = "base_model.model."
Q, DOWN, EMBEDDING = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.embed_tokens"
CONFIG = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "bias": "none",
    "use_dora": False, "use_rslora": False, "lora_dropout": 0.1, "rank_pattern": {}, "alpha_pattern": {},
    "qalora_group_size": 16, "task_type": "CAUSAL_LM", "init_lora_weights": True, "fan_in_fan_out": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=128)


def factors(module: str, n: int, k: int, rank: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(module))
    shapes = {"A": (rank, k), "B": (n, rank)}
    return {
        f"{PREFIX}{module}.lora_{name}.weight": torch.randn(shape, generator=generator) / 8
        for name, shape in shapes.items()
    }


def save(folder: Path, tensors: dict[str, torch.Tensor], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def shape_of(model: Path, module: str) -> tuple[int, int]:
    n, k = open_checkpoint(model).names()[f"{module}.weight"][0]
    return n, k


def delta(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    return tensors[f"{PREFIX}{module}.lora_B.weight"] @ tensors[f"{PREFIX}{module}.lora_A.weight"]


def test_factors_are_added(model: Path, tmp_path: Path) -> None:
    tensors = factors(Q, *shape_of(model, Q)) | factors(DOWN, *shape_of(model, DOWN), rank=2)
    adapter = save(tmp_path / "a", tensors, rank_pattern={"layers.1.mlp.down_proj": 2}, alpha_pattern={"down_proj": 3})
    plain, merged = open_checkpoint(model), with_adapter(open_checkpoint(model), adapter)
    for module, scale in ((Q, 8 / 4), (DOWN, 3 / 2)):
        expected = plain.tensor(f"{module}.weight") + scale * delta(tensors, module)
        assert torch.allclose(merged.tensor(f"{module}.weight"), expected, atol=1e-7)
    assert torch.equal(merged.tensor("model.norm.weight"), plain.tensor("model.norm.weight"))
    assert merged.digest != plain.digest
    assert (
        merged.digest != with_adapter(plain, save(tmp_path / "b", tensors, lora_alpha=4, rank_pattern={DOWN: 2})).digest
    )


def test_rank_stabilised_scales(model: Path, tmp_path: Path) -> None:
    tensors = factors(Q, *shape_of(model, Q))
    merged = with_adapter(open_checkpoint(model), save(tmp_path / "a", tensors, use_rslora=True))
    expected = open_checkpoint(model).tensor(f"{Q}.weight") + 8 / sqrt(4) * delta(tensors, Q)
    assert torch.allclose(merged.tensor(f"{Q}.weight"), expected, atol=1e-7)


def test_embeddings_and_tensors_that_are_stored_whole(model: Path, tmp_path: Path) -> None:
    vocabulary, width = shape_of(model, EMBEDDING)
    a, b = torch.randn(4, vocabulary), torch.randn(width, 4)
    norm = torch.rand(width)
    tensors = {
        f"{PREFIX}{EMBEDDING}.lora_embedding_A": a,
        f"{PREFIX}{EMBEDDING}.lora_embedding_B": b,
        f"{PREFIX}model.norm.weight": norm,
    }
    merged = with_adapter(open_checkpoint(model), save(tmp_path / "a", tensors))
    expected = open_checkpoint(model).tensor(f"{EMBEDDING}.weight") + 2 * (b @ a).T
    assert torch.allclose(merged.tensor(f"{EMBEDDING}.weight"), expected, atol=1e-5)
    assert torch.equal(merged.tensor("model.norm.weight"), norm)


def test_weights_that_are_stored_the_other_way_round(tmp_path: Path) -> None:
    """A Conv1D of transformers is [K, N], whatever `fan_in_fan_out` says; its square matrices tell nothing."""
    config = GPT2Config(vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    module = "transformer.h.0.attn.c_proj"
    tensors = factors(module, 32, 32)
    plain = open_checkpoint(tmp_path / "model")
    merged = with_adapter(plain, save(tmp_path / "a", tensors))
    expected = plain.tensor(f"{module}.weight") + 2 * delta(tensors, module).T
    assert torch.allclose(merged.tensor(f"{module}.weight"), expected, atol=1e-6)


def test_a_program_computes_with_merged_weights(model: Path, tmp_path: Path) -> None:
    tensors = factors(Q, *shape_of(model, Q)) | factors(DOWN, *shape_of(model, DOWN))
    adapter = save(tmp_path / "a", tensors)
    result = sscc.compile(model, output=tmp_path / "x.rdu", max_context=64, kv_budget=64, lora=str(adapter))
    session = TorchSession(Session.from_artifact(Artifact.load(result.path), threads=1))
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([random_tokens(20, 64)])
    plain = reference(ids).logits[0, -1]
    for module in (Q, DOWN):
        reference.get_submodule(module).weight.data += 2 * delta(tensors, module)
    expected = reference(ids).logits[0, -1]
    found = session.prefill(0, ids[0].tolist())
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert (plain - expected).abs().max() > 1e-2 * expected.abs().max()


def test_a_stored_format_is_quantized_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(archive()[f"{WIDE_CASE}-Q4_K_M.gguf"])
    tensors = factors(Q, *shape_of(path, Q))
    adapter, name = save(tmp_path / "a", tensors), f"{Q}.weight"
    merged = with_adapter(open_checkpoint(path), adapter)
    form = merged.stored_form(name)
    assert form is not None
    assert form.format is CHECKPOINT_FORMATS["Q4_K"]
    encoding = Encoding(form.format, form.format.parts[0].name)
    assert merged.kept(name, encoding) is None
    result = sscc.compile(path, output=tmp_path / "x.rdu", max_context=96, kv_budget=64, lora=str(adapter))
    (line,) = [line for line in result.report if "||W' - W|| / ||W||" in line]
    assert line.startswith("quantized: Q4_K")
    numbers = merged.tensor(name).float().numpy()
    assert 0 < abs(round_trip(numbers, encoding) - numbers).max() < 0.2 * abs(numbers).max()


@pytest.mark.parametrize(
    ("changes", "kind", "fields"),
    [
        ({"peft_type": "IA3"}, AdapterErrors.TYPE, {"type": "IA3"}),
        ({"use_dora": True}, AdapterErrors.FIELD, {"field": "use_dora"}),
        ({"something_new": 1}, AdapterErrors.FIELD, {"field": "something_new"}),
        ({"init_lora_weights": "pissa_niter_4"}, AdapterErrors.FIELD, {"value": "pissa_niter_4"}),
        ({"r": 8}, AdapterErrors.RANK, {"rank": 4, "expected": 8}),
        ({"lora_alpha": "8"}, AdapterErrors.NUMBER, {"field": "lora_alpha"}),
        ({"alpha_pattern": {"(": 1}}, AdapterErrors.NUMBER, {"field": "alpha_pattern"}),
        ({"rank_pattern": [1]}, AdapterErrors.NUMBER, {"field": "rank_pattern"}),
    ],
)
def test_what_is_not_read_is_refused(
    changes: dict[str, Any], kind: ErrorKind, fields: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    adapter = save(tmp_path / "a", factors(Q, *shape_of(model, Q)), **changes)
    with raises(kind, **fields):
        open_adapter(adapter)


def test_bad_tensors_are_refused(model: Path, tmp_path: Path) -> None:
    checkpoint, good = open_checkpoint(model), factors(Q, *shape_of(model, Q))
    a, b = good
    cases: list[tuple[dict[str, torch.Tensor], ErrorKind]] = [
        ({a: good[a]}, AdapterErrors.HALF),
        (good | {f"{PREFIX}{Q}.lora_magnitude_vector": torch.ones(4)}, AdapterErrors.TENSOR),
        (good | {"something.weight": torch.ones(4)}, AdapterErrors.TENSOR),
        (good | {a: good[a][:, :-1].contiguous()}, AdapterErrors.SHAPE),
        (good | {b: good[b][:, :-1].contiguous()}, AdapterErrors.SHAPE),
        (good | {a: good[a][0]}, AdapterErrors.SHAPE),
        (good | {a: good[a].to(torch.int8)}, AdapterErrors.DTYPE),
        (factors("model.layers.9.self_attn.q_proj", 4, 4), AdapterErrors.NOT_IN_MODEL),
    ]
    for number, (tensors, kind) in enumerate(cases):
        with raises(kind):
            with_adapter(checkpoint, save(tmp_path / str(number), tensors))
    broken = with_adapter(checkpoint, save(tmp_path / "inf", good | {a: good[a] / 0}))
    with raises(AdapterErrors.NOT_FINITE):
        broken.tensor(f"{Q}.weight")
    with raises(AdapterErrors.NO_ADAPTER):
        open_adapter(model)


def test_options(model: Path, tmp_path: Path) -> None:
    adapter = save(tmp_path / "a", factors(Q, *shape_of(model, Q)))
    with raises(OptionErrors.LORA_NOT_EMBEDDED):
        CompileOptions(model, lora=adapter, weights="reference")
    with raises(OptionErrors.LORA_WITHOUT_CHECKPOINT):
        CompileOptions(Path("x.mlir"), lora=adapter, compile_from="graph", compile_to="kernels")
    with raises(CheckpointErrors.ADAPTER):
        open_checkpoint(adapter)
