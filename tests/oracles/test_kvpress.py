"""kvpress's published SnapKV (recorded by kvpress_goldens.py) scores and keeps what we do, where definitions coincide.

They coincide for average pooling, f32, full rotary embedding, scale head_dim^-0.5 and a prompt longer than the window:
its score times the window's size is our pooled score on [sink, n - recent) for recent >= obs; with sink 0 and
recent = obs = window both keep the same positions.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import sscc
from sscc.compiler.frontend import algorithm
from sscc.ir.geometry import Geometry
from sscc.ir.operations import ObservationScores, Pool, Select
from tests.runtime.programs import run_steps
from tests.torch_session import TorchSession

FOLDER = Path(__file__).parent
INDEX = json.loads((FOLDER / "kvpress_goldens.json").read_text())
CASES: dict[str, Any] = INDEX["cases"]
LAYERS = [(name, layer) for name, case in CASES.items() for layer in range(case["layers"])]
MODELS = [name for name, case in CASES.items() if case["model"]]
SINK_AND_MORE_RECENT = [(0, 0), (4, 0), (3, 5), (0, 10)]
"""sink, and by how much `recent` exceeds the window."""

SCORE_TOLERANCE = 2e-6
"""Tolerance of scores relative to the largest: f32 sums of up to 16 attention weights, in two orders."""
TIE = 4e-6
"""Scores nearer than this, relative to the largest, are ties: twice the above."""
MODEL_TIE = 1e-4
"""The same where queries and keys come from two runs of the model, whose roundings grow through the layers."""


@cache
def goldens() -> dict[str, Tensor]:
    return load_file(FOLDER / "kvpress_goldens.safetensors")


def golden(name: str, what: str, layer: int) -> Tensor:
    return goldens()[f"{name}.{what}"][layer]


def geometry(case: dict[str, Any], sink: int = 0, more_recent: int = 0) -> Geometry:
    recent, topk = case["window"] + more_recent, min(case["topk"], case["length"] - sink - case["window"] - more_recent)
    return Geometry(sink, recent, topk, case["window"], case["kernel"], "avg", case["length"])


def by_definition(name: str, layer: int, g: Geometry) -> tuple[Tensor, Tensor]:
    """Pooled scores [Hkv, n] and selected positions [Hkv, topk] of the readable definition."""
    queries, keys = golden(name, "queries", layer), golden(name, "keys", layer)
    scores = algorithm.observation_scores(queries, keys, keys.shape[-1] ** -0.5, g)
    pooled = algorithm.pool_scores(scores, g)
    return pooled, algorithm.select(pooled, keys.shape[1], g)


def by_interpreter(name: str, layer: int, g: Geometry) -> tuple[Tensor, Tensor]:
    """Return the same by the reference interpreter's three steps, over a scratch longer than the prompt."""
    queries, keys = golden(name, "queries", layer), golden(name, "keys", layer)
    kv_heads, n, depth = keys.shape
    scratch = torch.full((1, kv_heads, n + 13, depth), torch.nan)
    scratch[0, :, :n] = keys
    steps = (
        ObservationScores("observed", "key", "scores", "length", depth**-0.5, g.recent),
        Pool("scores", "pooled", "length", g.pool, g.pool_mode),
        Select("pooled", "selected", "length", "top", g.sink, g.recent),
    )
    writes = {name: torch.zeros(kv_heads, n + 13) for name in ("scores", "pooled")}
    selected = torch.zeros(kv_heads, g.topk, dtype=torch.int64)
    inputs = {"observed": queries[None], "key": scratch}
    result = run_steps(steps, inputs, {**writes, "selected": selected}, {"length": n, "top": g.topk})
    return result["pooled"][:, :n], result["selected"]


IMPLEMENTATIONS = {"definition": by_definition, "interpreter": by_interpreter}


def count_near_ties(scores: Tensor, kept: Tensor, selected: Tensor, tolerance: float) -> int:
    """Return the number of positions of `kept` [Hkv, topk] that are missing in `selected`. Each must have about the
    lowest score of `kept`.

    `scores` [Hkv, t] are kvpress's; `tolerance` is relative to the largest of a head.
    """
    excused = 0
    for head, row in enumerate(selected.tolist()):
        assert row == sorted(set(row)), f"head {head}: {row} is not ascending"
        reference = set(kept[head].tolist())
        assert len(row) == len(reference)
        edge = min(float(scores[head, t]) for t in reference)
        for t in reference ^ set(row):
            gap = abs(float(scores[head, t]) - edge) / float(scores[head].max())
            assert gap <= tolerance, f"head {head}: position {t} lies {gap:.1e} from the edge"
        excused += len(reference - set(row))
    return excused


@pytest.mark.parametrize(("sink", "more_recent"), SINK_AND_MORE_RECENT)
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_scores_times_the_window_are_our_pooled_scores(
    name: str, layer: int, how: str, sink: int, more_recent: int
) -> None:
    g = geometry(CASES[name], sink, more_recent)
    pooled, _ = IMPLEMENTATIONS[how](name, layer, g)
    end = CASES[name]["length"] - g.recent
    expected = golden(name, "scores", layer)[:, g.sink : end] * g.obs
    torch.testing.assert_close(
        pooled[:, g.sink : end], expected, rtol=0, atol=SCORE_TOLERANCE * float(expected.max()), check_stride=False
    )


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_index_sets_are_equal_without_sinks(how: str) -> None:
    picks = excused = 0
    for name, layer in LAYERS:
        _, selected = IMPLEMENTATIONS[how](name, layer, geometry(CASES[name]))
        kept = golden(name, "kept", layer)
        picks += kept.numel()
        excused += count_near_ties(golden(name, "scores", layer), kept, selected, TIE)
    assert picks > 800
    assert excused <= picks // 100


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_selects_what_kvpress_keeps(name: str, tmp_path: Path) -> None:
    """From tokens to selected rows: the same weights, ours compiled and interpreted, theirs run by transformers."""
    case = CASES[name]
    prefix = f"{name}.weight."
    weights = {key.removeprefix(prefix): value for key, value in goldens().items() if key.startswith(prefix)}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(case["config"]))
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    g = geometry(case)
    sscc.compile(
        tmp_path / "model",
        output=tmp_path / "model.rdu",
        kv_sink=0,
        kv_recent=g.recent,
        kv_topk=g.topk,
        kv_obs=g.obs,
        kv_pool=g.pool,
        max_context=128,
        prefill_chunk=32,
    )
    session = TorchSession(sscc.load(tmp_path / "model.rdu", interpreter="reference"))
    session.prefill(0, goldens()[f"{name}.ids"].tolist())
    selected = session.interpreter.tensor("selected")
    kept = goldens()[f"{name}.kept"]
    excused = sum(
        count_near_ties(golden(name, "scores", layer), kept[layer], selected[layer], MODEL_TIE)
        for layer in range(case["layers"])
    )
    assert excused <= kept.numel() // 50


def test_goldens_are_small_and_say_where_they_come_from() -> None:
    assert sum((FOLDER / f"kvpress_goldens.{kind}").stat().st_size for kind in ("json", "safetensors")) < 500_000
    assert INDEX["versions"]["kvpress"] == "0.5.5"
    assert all(case["length"] > case["window"] for case in CASES.values())
