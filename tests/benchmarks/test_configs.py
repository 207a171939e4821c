"""The published configs have the sizes that their models are known for, and are admitted; the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import configs
from benchmarks.configs import Compiled, published_bytes, render
from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.admission import check_config, check_modules, model_context
from sscc.compiler.frontend.capture import layer_count
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.construction import build_model, build_skeleton
from sscc.compiler.frontend.distinct import find_kinds
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.schedule import Tensor

PARAMETERS = {
    "deepseek-r1": 671.0,
    "deepseek-v3": 671.0,
    "deepseek-v3.2": 671.9,
    "falcon-h1-7b": 7.59,
    "falcon-mamba-7b": 7.01,
    "gemma-2-27b": 27.2,
    "gemma-2-9b": 9.24,
    "gemma-3-27b": 27.0,
    "gemma-3-4b": 3.88,
    "glm-4.5": 353.0,
    "glm-5": 743.9,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "granite-4-h-small": 32.6,
    "granite-4-h-tiny": 6.94,
    "jamba-1.5-mini": 51.6,
    "kimi-k2": 1026.0,
    "kimi-linear-48b": 49.1,
    "lfm2-1.2b": 1.17,
    "lfm2-8b-a1b": 8.34,
    "llama-3.1-405b": 405.9,
    "llama-3.1-70b": 70.6,
    "llama-3.1-8b": 8.03,
    "llama-4-maverick": 400.7,
    "llama-4-scout": 107.8,
    "mamba2-370m": 0.368,
    "minimax-m2": 228.7,
    "mixtral-8x22b": 140.6,
    "mixtral-8x7b": 46.7,
    "nemotron-3-nano": 31.6,
    "nemotron-h-8b": 8.10,
    "phi-4-mini": 3.84,
    "qwen3-235b-a22b": 235.1,
    "qwen3-32b": 32.8,
    "qwen3-next-80b": 79.7,
    "qwen3.5-0.8b": 0.752,
    "qwen3.5-27b": 26.9,
    "qwen3.5-35b-a3b": 34.7,
    "recurrentgemma-2b": 2.01,
}
"""Billions of weights of the compiled text decoder, without layers that predict further tokens. Model cards round
them."""
KINDS = {
    "gemma-3-27b": (0, 5, 59, 61),
    "gpt-oss-120b": (0, 1, 34, 35),
    "kimi-k2": (0, 1, 60),
    "llama-3.1-70b": (0, 79),
    "llama-4-maverick": (0, 1, 3, 45, 46, 47),
}
"""Layers that are captured, for any number of layers. Maverick's class fills the matrices of its experts."""


@pytest.mark.parametrize("name", sorted(path.stem for path in configs.FOLDER.glob("*.json")))
def test_every_published_config_is_admitted(name: str) -> None:
    config = open_checkpoint(configs.FOLDER / f"{name}.json", weights=False).config
    assert config is not None
    skeleton = build_skeleton(config)
    parameters = sum(parameter.numel() for parameter in skeleton.parameters())
    assert parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.002)
    check_config(config, model_context(config) or 131_072)  # recurrent models name no context
    check_modules(config, skeleton)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_captured_does_not_grow_with_the_layers(name: str) -> None:
    config = open_checkpoint(configs.FOLDER / f"{name}.json", weights=False).config
    assert config is not None
    kinds = find_kinds(build_model(config, torch.bfloat16), layer_count(config))
    assert kinds is not None
    assert kinds.captured == KINDS[name]


def test_a_published_config_becomes_a_graph(tmp_path: Path) -> None:
    """At its own sizes and its full context."""
    dump = tmp_path / "graph.mlir"
    model = configs.FOLDER / "gpt-oss-20b.json"
    compile_model(CompileOptions(model, dump, weights="none", kv_budget=8192, dtype="bf16", compile_to="graph"))
    text = dump.read_text()
    assert "12x1x8x8192x64xbf16" in text  # keys of the layers that attend to everything
    assert "12x1x8x128x64xbf16" in text  # and of those with a window
    assert "32x2880x5760xbf16" in text  # the experts of one


def weight(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, "bf16", "weight", "hbm", 0, sources=(name,))


def test_bytes_as_published() -> None:
    embedding, router = weight("embed.weight", 100, 256), weight("layers.0.mlp.gate.weight", 8, 256)
    dense = weight("layers.0.self_attn.q_proj.weight", 256, 256)
    experts = weight("layers.0.mlp.experts.gate_up_proj", 8, 256, 256)
    bias = weight("layers.0.mlp.experts.gate_up_proj_bias", 8, 256)
    weights = [embedding, router, dense, experts, bias]
    plain = 2 * (100 * 256 + 8 * 256 + 8 * 256)
    assert published_bytes(weights, {}) == plain + 2 * 9 * 256 * 256
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate"]}
    assert published_bytes(weights, fp8) == plain + 9 * (256 * 256 + 4 * 4)
    mxfp4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["layers.*.self_attn"]}
    assert published_bytes(weights, mxfp4) == plain + 2 * 256 * 256 + 8 * 256 * 256 * 17 // 32
    with pytest.raises(KeyError):
        published_bytes(weights, {"quant_method": "hqq"})


def test_the_table_has_what_compiles_and_why_others_do_not() -> None:
    done = Compiled(
        "a", context=4096, rows=1024, layers={"window 128": 2, "full": 3}, loops=(1, 4), experts="8 of 64", launches=4,
        parameters=1 << 30, published_bytes=1 << 30, step_bytes=1 << 28, cache_bytes=1 << 20,
        full_cache_bytes=1 << 24, seconds=21.4, processor_seconds=20.6, peak_bytes=1 << 29,
    )  # fmt: skip
    refused = Compiled("b", "type cannot be compiled: its layers do what no layer does")
    text = render([done, refused])
    row = "| a | 2 window 128, 3 full (1 + 4) | 8 of 64 | 4096 | 4 | 1.1 | 2.00 | 1.00 | 0.25 | 0.02 | 0.00 (16.0x) |"
    assert f"{row} 21 | 21 | 0.50 |" in text
    assert "| b | its layers do what no layer does |" in text
    assert text.count("\n| ") == 4
