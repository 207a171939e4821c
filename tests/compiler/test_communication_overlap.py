"""Stages around exchanges that work on tiles: where it pays, what it saves, and that it changes no bit, in both
interpreters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from transformers import DeepseekV3Config, MixtralConfig, PreTrainedConfig, Qwen2Config

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.driver.loading import open_interpreter
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.inspection.inspection import time_decode
from sscc.ir.schedule import pipelines
from sscc.ir.target import Target, load_target
from sscc.ir.weight_formats.registry import format_named
from sscc.passes import tile_stages
from sscc.runtime.backends.collectives.group import thread_groups
from sscc.runtime.serving.ranks.crew import simulated
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests import tiny_configs
from tests.families import LATENT, SHAPE
from tests.targets import changed

PROMPT = [*range(3, 25)]
RANKS, CONTEXT = 2, 64
WIDE = SHAPE | {"num_hidden_layers": 1, "hidden_size": 128, "initializer_range": 0.05, "num_key_value_heads": 2}
_LATENT = LATENT["latent-among-experts"].to_diff_dict()
MODELS: dict[str, PreTrainedConfig] = {
    "dense": Qwen2Config(**WIDE),
    "experts": MixtralConfig(**WIDE, num_experts_per_tok=2, num_local_experts=5),
    "latent": DeepseekV3Config(
        **_LATENT | {"num_hidden_layers": 2, "hidden_size": 128, "moe_intermediate_size": 32, "initializer_range": 0.05}
    ),
}
SLOW_UNITS = {"f32_flops": 1e9, "bf16_flops": 1e9, "socket.bandwidth": 1e6}
"""A machine on which a rank computes for about as long as it communicates."""


def machine(latency: float) -> Target:
    return changed(SLOW_UNITS | {"socket.latency": latency}, load_target("rdu:sn40l-16"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folders = {}
    for name, config in MODELS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        tiny_configs.random_model(config).save_pretrained(folders[name])
    return folders


def compiled(checkpoint: Path, folder: Path, latency: float = 1e-15, **options: object) -> Artifact:
    (folder / "target.json").write_text(machine(latency).to_json())
    shape: dict[str, object] = {"kv_budget": 16, "kv_sink": 2, "kv_recent": 6, "kv_obs": 4, "max_context": CONTEXT,
                                "batch": 2, "prefill_chunk": 8, "tp": RANKS,
                                "target": f"rdu:{folder / 'target.json'}"}  # fmt: skip
    result = compile_model(CompileOptions(checkpoint, folder / "m.rdu", **shape | options))  # type: ignore[arg-type]
    return Artifact.load(result.path)


def tiles(artifact: Artifact) -> dict[str, int]:
    """The stages that exchange values, or multiply with experts' matrices, in tiles, of all kernels: how many."""
    kinds = {"all_reduce", "reduce_scatter", "all_gather"}
    bodies = {body.name: body for body in artifact.program.bodies}
    found = {}
    for kernel in artifact.program.kernels:
        for pipeline in pipelines(kernel.body):
            for stage in pipeline.stages:
                steps = bodies[stage.body].steps
                indirect = any(getattr(getattr(step, "b", None), "indirect", None) for step in steps)
                if stage.grid and (indirect or kinds & {step.kind for step in steps}):
                    found[f"{kernel.name}.{stage.name}"] = stage.trips
    return found


def logits(artifact: Artifact, interpreter: str) -> np.ndarray:
    """Return the logits of a prompt longer than the budget and of steps after it."""
    leading = simulated(
        thread_groups(RANKS), lambda group: open_interpreter(artifact, interpreter=interpreter, threads=1, group=group)
    )
    session = Session(artifact.signature, leading, identity=lambda: artifact.identity)
    rows = [session.prefill(0, PROMPT[:3])[None].copy(), session.prefill(1, PROMPT)[None].copy()]
    rows += [session.decode({1: token, 0: token + 1}).copy() for token in (7, 8)]
    session.close()
    return np.vstack(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "dtype", "weights", "level"),
    [
        ("dense", "f32", "", 2),
        ("experts", "bf16", "int4:16", 2),
        ("latent", "bf16", "int8", 1),
    ],
)
def test_tiles_are_the_whole_bit_for_bit(
    model: str, dtype: str, weights: str, level: int, checkpoints: Mapping[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    parsed = format_named(weights) if weights else None
    options = {"dtype": dtype, "weight_format": parsed, "opt_level": level}
    (tmp_path / "tiled").mkdir()
    tiled = compiled(checkpoints[model], tmp_path / "tiled", **options)
    monkeypatch.setattr(tile_stages, "find", lambda *_: [])
    (tmp_path / "whole").mkdir()
    whole = compiled(checkpoints[model], tmp_path / "whole", **options)
    added = tiles(tiled).keys() - tiles(whole).keys()
    assert any("o_proj" in name for name in added)
    assert any("expert_product" in name for name in added) == (model != "dense")
    for interpreter in ("native", "reference"):
        expected, found = (logits(each, interpreter) for each in (whole, tiled))
        assert np.isfinite(expected).all()
        assert np.array_equal(found, expected)


def test_what_tiles_save_and_where_they_do_not_pay(checkpoints: Mapping[str, Path], tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A step takes less by the model of time, though its latency is paid for every tile; where that is long none is
    sent so."""
    quick, slow = compiled(checkpoints["experts"], tmp_path), 1e-3
    seconds = time_decode(quick, machine(1e-15), CONTEXT).seconds
    assert tiles(quick)
    assert not tiles(compiled(checkpoints["experts"], tmp_path, latency=slow))
    monkeypatch.setattr(tile_stages, "find", lambda *_: [])
    whole = compiled(checkpoints["experts"], tmp_path)
    assert not tiles(whole)
    assert seconds < 0.9 * time_decode(whole, machine(1e-15), CONTEXT).seconds
    assert time_decode(quick, machine(slow), CONTEXT).seconds > time_decode(whole, machine(slow), CONTEXT).seconds
