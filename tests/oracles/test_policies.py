"""User-defined rules, those of examples/rules, compared with transformers' own attention and keys at every level.

The oracle is the untouched model with a full cache, in which masks hide the positions that a rule drops. Its scores are
written here as kvpress publishes them: KnormPress has minus the norm of a key, ObservedAttentionPress the mean of all
queries' attention weights (H2O, and the example, have the sum), and PyramidKV changes the budgets of layers linearly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.frontend.operator import IMPLEMENTATION
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.policy import Rule, policy_of
from sscc.ir.schedule import DTYPE_BYTES
from tests.compiler.small_stacks import BATCH, CHUNK, CONTEXT, GEMMA3, SHAPE, fed, loaded, opened, random_model
from tests.families import random_tokens
from tests.oracles.independent import IndependentSnapStream

RULES = Path(__file__).parents[2] / "examples" / "rules"
LAYERS, SINK, RECENT, TOPK = 3, 2, 6, 7
CONFIG = LlamaConfig(**SHAPE, num_hidden_layers=LAYERS)
TIE = 1e-4
"""Of scores of order 1 that come from two runs of a model, as `MODEL_TIE` of the kvpress tests."""
TOLERANCE = 1e-4
"""Normwise, of f32 logits: sums in another order (docs/testing.md)."""

WEIGHTED = """
import sscc


class Weighted(sscc.Policy):
    obs = 5

    def scores(self, prompt):
        paid = prompt.mean_over_group(prompt.attention().amax(dim=1))
        return paid * prompt.values.norm(dim=-1)
"""
"""A rule that no operation of the algorithm is: attention is a matrix, of which each position has the largest weight,
times the norm of its value. Nothing of it is known to the compiler."""


SPREAD = """
import sscc
import torch


class Spread(sscc.Policy):
    obs = 6

    def scores(self, prompt):
        weights = prompt.mean_over_group(prompt.attention())
        out = torch.bmm(weights, prompt.values)
        near = torch.bmm(out, prompt.values.transpose(1, 2)) * prompt.scale
        near = torch.where(prompt.visible, near, float("-inf")).softmax(dim=-1).nan_to_num(0.0)
        return (weights * near).sum(dim=1) / prompt.attention().amax() + prompt.values.norm(dim=-1)
"""
"""Sums and maxima over positions, of which others depend: of attention times values, of a softmax, of everything."""


class KeyNormOracle(IndependentSnapStream):
    def scores_of(self, weights: Tensor, keys: Tensor) -> list[float]:
        return [-float(key.double().norm()) for key in keys]


class MassOracle(IndependentSnapStream):
    def scores_of(self, weights: Tensor, keys: Tensor) -> list[float]:
        return [float(mass) for mass in weights.sum(1).mean(0)]


class PyramidOracle(IndependentSnapStream):
    def topk_in(self, layer: int) -> int:
        return [10, 7, 4][layer]  # 7, and half as much more and less


ORACLES: dict[str, type[IndependentSnapStream]] = {
    "key_norm": KeyNormOracle,
    "accumulated_mass": MassOracle,
    "pyramid": PyramidOracle,
}
OPTIONS: dict[str, Any] = {"kv_sink": SINK, "kv_recent": RECENT, "kv_topk": TOPK, "max_context": CONTEXT}
OPTIONS |= {"batch": BATCH, "prefill_chunk": CHUNK, "native_code": False}
OBSERVED = {"pyramid": {"kv_obs": 4, "kv_pool": 3}}

Compiled = Callable[..., Path]


@cache
def model_of(family: str, attention: str) -> PreTrainedModel:
    return random_model(GEMMA3 if family == "gemma3" else CONFIG, attention)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "weighted.py").write_text(WEIGHTED)
    for family in ("llama", "gemma3"):
        model_of(family, IMPLEMENTATION).save_pretrained(folder / family)
    return folder


@pytest.fixture(scope="module")
def compiled(folder: Path) -> Compiled:
    """`compiled(rule, opt_level, family, **options)`: captured once for a rule and its options."""

    def graph(rule: Path, family: str, options: dict[str, Any], file: Path) -> Path:
        if not file.exists():
            asked = {**OPTIONS, **OBSERVED.get(rule.stem, {}), **options, "kv_policy": rule}
            compile_model(CompileOptions(folder / family, file, compile_to="graph", **asked))
        return file

    @cache
    def compile_at(rule: Path, opt_level: int, family: str = "llama", **options: Any) -> Path:
        name = f"{rule.stem}.{family}.{'.'.join(map(str, options.values()))}"
        start, out = graph(rule, family, options, folder / f"{name}.mlir"), folder / f"{name}.{opt_level}.rdu"
        going_on = {"compile_from": "graph", "checkpoint": folder / family, "native_code": False}
        compile_model(CompileOptions(start, out, opt_level=opt_level, **going_on))
        return out

    return compile_at


def rule_of(path: Path) -> Rule:
    rule = policy_of(path)
    assert isinstance(rule, Rule)
    return rule


def geometry_of(path: Path, layers: int, **options: Any) -> Any:
    asked = {**OPTIONS, **OBSERVED.get(path.stem, {}), **options, "kv_policy": path}
    return CompileOptions(Path("model"), **asked).resolve(CONTEXT).geometry_of(layers)


def agree(ours: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Max abs, max rel and correlation together."""
    difference = np.abs(ours - expected)
    assert np.linalg.norm(ours - expected) <= tolerance * np.linalg.norm(expected)
    assert difference.max() <= 10 * tolerance * np.abs(expected).max()
    assert np.corrcoef(ours.ravel(), expected.ravel())[0, 1] > 1 - tolerance


@pytest.mark.parametrize("name", [*ORACLES, "weighted"])
def test_levels_and_interpreters_agree_with_eager_pytorch_and_with_the_oracle(
    name: str, folder: Path, compiled: Compiled
) -> None:
    """Prompts in chunks of 7 that fill all rows, some of the selected ones, and less than the observation window."""
    path = folder / "weighted.py" if name == "weighted" else RULES / f"{name}.py"
    levels = [(0, "reference"), (2, "native"), *([(1, "native")] if name == "weighted" else [])]
    sessions = {(level, how): opened(compiled(path, level), how) for level, how in levels}
    geometry, tokens, excused = geometry_of(path, LAYERS), random_tokens(5, seed=1), 0
    for length in (40, 11, 3):
        prompt = random_tokens(length)
        logits = {key: fed(session, prompt, tokens, slot=1) for key, session in sessions.items()}
        looped = logits[2, "native"]
        assert np.array_equal(logits.get((1, "native"), looped), looped)
        eager = EagerSnapStream(model_of("llama", IMPLEMENTATION), geometry, rule=rule_of(path))
        expected = torch.stack([eager.prefill(prompt), *(eager.decode(token) for token in tokens)]).numpy()
        for ours in logits.values():
            agree(ours, expected)
        if name not in ORACLES:
            continue
        g = geometry
        sizes = {"sink": SINK, "recent": RECENT, "topk": TOPK, "obs": g.obs, "pool": g.pool, "pool_mode": "avg"}
        oracle = ORACLES[name](model_of("llama", "eager"), **sizes)
        first = oracle.prefill(prompt)
        excused += oracle.count_near_ties(eager.selected, TIE)
        oracle.adopt(eager.selected)
        agree(looped, torch.stack([first, *(oracle.decode(token) for token in tokens)]).numpy())
    assert excused <= 2


def test_a_rule_changes_what_is_kept(folder: Path) -> None:
    """Else all of this would pass with any rule in the place of another."""
    prompt, kept = random_tokens(40), []
    for path in (*(RULES / f"{name}.py" for name in ORACLES), folder / "weighted.py"):
        eager = EagerSnapStream(model_of("llama", IMPLEMENTATION), geometry_of(path, LAYERS), rule=rule_of(path))
        eager.prefill(prompt)
        kept.append(str([rows.tolist() for rows in eager.selected]))
    assert len(set(kept)) == 4


def test_rules_beside_windows_and_encoded_rows(folder: Path, compiled: Compiled) -> None:
    """Layers 1 and 3 of 5 select, the others keep their window."""
    path, prompt, tokens = folder / "weighted.py", random_tokens(40), random_tokens(5, seed=1)
    logits = fed(opened(compiled(path, 2, "gemma3", kv_dtype="int8")), prompt, tokens)
    geometry = geometry_of(path, 2, kv_dtype="int8")
    eager = EagerSnapStream(model_of("gemma3", IMPLEMENTATION), geometry, rule=rule_of(path))
    expected = torch.stack([eager.prefill(prompt), *(eager.decode(token) for token in tokens)]).numpy()
    agree(logits, expected, 1e-2)
    assert [bool((rows >= 0).any()) for rows in eager.selected] == [False, True, False, True, False]


def test_what_is_too_large_for_the_chip_is_computed_in_tiles(
    folder: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of 1000 bytes or more are treated as too large; matrices of the rule have 4 * 6 * 70 elements."""
    path = folder / "spread.py"
    path.write_text(SPREAD)
    monkeypatch.setattr("sscc.passes.large_values.PARTS", 520 * 2**20 // 1000)
    prompt, tokens = random_tokens(40), random_tokens(5, seed=1)
    eager = EagerSnapStream(model_of("llama", IMPLEMENTATION), geometry_of(path, LAYERS), rule=rule_of(path))
    expected = torch.stack([eager.prefill(prompt), *(eager.decode(token) for token in tokens)]).numpy()
    for how in ("reference", "native"):
        agree(fed(opened(compiled(path, 2), how), prompt, tokens), expected)
    scoring = [body for body in loaded(compiled(path, 2)).program.bodies if "spread.py" in body.location]
    held = [sum(prod(local.shape) * DTYPE_BYTES[local.dtype] for local in body.locals) for body in scoring]
    assert 0 < max(held) <= 1000
