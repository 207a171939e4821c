"""Files to measure: sscc opens the mixtures with random codes, and the bytes of a step are those of their tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gguf_files
from benchmarks.gguf_files import FILES, Mixture
from benchmarks.harness import Workload
from benchmarks.peers.registry import AS_STORED
from sscc.compiler.frontend.checkpoint import open_checkpoint

SMALL = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 256, "experts": 4, "chosen": 2, "layers": 2}
MATRICES = {
    "qwen3-moe": 256 * 256 * 4 * 144 + 128 * 256 * (3 * 144 + 210),
    "gpt-oss": 2 * (2 * 256 * 256 + 2 * 128 * 256) * 272,
}
"""Bytes of the attention's matrices, in 256ths."""


@pytest.fixture(params=MATRICES)
def mixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mixture:
    monkeypatch.setattr(gguf_files, "FOLDER", tmp_path)
    given = FILES[request.param]
    assert isinstance(given, Mixture)
    return Mixture(request.param, replace(given.shape, **SMALL, vocab=64))


def test_a_mixture_opens_with_all_its_tensors(mixture: Mixture) -> None:
    checkpoint = open_checkpoint(mixture.prepare(llama=True))
    assert checkpoint.config is not None
    assert checkpoint.config.num_experts_per_tok == 2
    assert checkpoint.names()["model.layers.1.mlp.experts.down_proj"][0] == (4, 256, 256)
    numbers = checkpoint.tensor("model.layers.1.mlp.experts.down_proj").float()
    assert 0.005 < numbers.std() < 0.1
    assert numbers.mean().abs() < 0.01


def test_bytes_of_a_step(mixture: Mixture) -> None:
    mixture.prepare(llama=True)
    one, many = (mixture.step_bytes(Workload("decode", batch, 100, 1), AS_STORED, 10) for batch in (1, 10_000))
    head = 64 * 256 * (272 if mixture.shape.is_gpt_oss else 210) / 256
    router = 2 * 4 * 256 * 4
    layer = 3 * 256 * 256 * 136 if mixture.shape.is_gpt_oss else 256 * 256
    experts = 2 * layer if mixture.shape.is_gpt_oss else layer * (2 * 144 + 144 + 2 * 144 + 210)
    fixed = MATRICES[mixture.name] / 256 + head + router
    rows = 2 * 2 * 128 * 2 * 10  # K and V of 128 elements in bf16, 2 layers, 10 rows
    biases = 0 if not mixture.shape.is_gpt_oss else 2 * 4 * 4 * (2 * 256 + 256)
    assert one == pytest.approx(fixed + rows + (experts / 256 * 4 + biases) * 2 / 4)
    assert many == pytest.approx(fixed + 10_000 * rows + experts / 256 * 4 + biases)
