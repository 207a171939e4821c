"""Scores, pooling and top-K as steps of one body, as the end of a prompt has them, against the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sscc.compiler.frontend import algorithm
from sscc.ir.geometry import Geometry
from sscc.ir.operations import ObservationScores, Pool, Select
from sscc.ir.schedule import Local
from sscc.runtime.backends.reference.selection import ReferenceSelectionErrors
from sscc.runtime.backends.reference.softmax import KEY_TILE
from tests.errors import raises
from tests.runtime.programs import run_steps

Tensors = dict[str, torch.Tensor]


def selection(sink: int, recent: int, pool: int, mode: str, log_sum_exp: str = "log_sum_exp") -> tuple[Any, ...]:
    """Return steps for scores, pooling and top-K. The scores read a log-sum-exp, or compute it if its name is ""."""
    return (
        ObservationScores("observed", "key", "scores", "n", 0.5, recent, log_sum_exp),
        Pool("scores", "pooled", "n", pool, mode),
        Select("pooled", "selected", "n", "top", sink, recent),
    )


def selected_of(
    inputs: Tensors, length: int, sink: int, recent: int, room: int, pool: int, mode: str, topk: int
) -> torch.Tensor:
    """[2, room]. Between the steps are locals, of which they write and read the prompt's part."""
    locals_ = tuple(Local(name, (2, inputs["key"].shape[2]), "f32") for name in ("scores", "pooled"))
    steps = selection(sink, recent, pool, mode, "log_sum_exp" if "log_sum_exp" in inputs else "")
    writes = {"selected": torch.full((2, room), 99)}
    results = run_steps(steps, inputs, writes, {"n": length, "top": topk}, "write", locals_=locals_)
    return results["selected"]


def prompt(length: int, rows: int, obs: int) -> tuple[Tensors, torch.Tensor]:
    """A prompt's keys (NaN behind its end) and observed queries; and the log-sum-exp of these, in f64."""
    key, observed = torch.randn(1, 2, rows, 8), torch.randn(1, 4, obs, 8)
    key[:, :, length:] = torch.nan
    window = min(obs, length)
    observed[:, :, window:] = torch.nan
    kept = torch.full((1, 4, obs), torch.nan, dtype=torch.float64)
    for h in range(4):
        for i in range(window):
            seen = key[0, h // 2, : length - window + i + 1].double()
            kept[0, h, i] = torch.logsumexp(seen @ observed[0, h, i].double() * 0.5, 0)
    return {"key": key, "observed": observed}, kept


def check_selection(
    length: int, obs: int, sink: int, recent: int, room: int, pool: int, mode: str, rows: int | None = None,
    topk: int | None = None,
) -> None:  # fmt: skip
    """Compare a selection with the definition. `rows`: rows of the prompt's scratch, by default a few more than the
    prompt has. `topk`: by default `room`."""
    topk = room if topk is None else topk
    given, kept = prompt(length, rows or max(length, sink) + 3, obs)
    computed = selected_of(given, length, sink, recent, room, pool, mode, topk)
    given["log_sum_exp"] = kept.float()
    got = selected_of(given, length, sink, recent, room, pool, mode, topk)
    own = selected_of(given, length, sink, recent, topk, pool, mode, topk) if topk else got[:, :0]
    assert torch.equal(got, torch.nn.functional.pad(own, (0, room - topk), value=-1))
    assert torch.equal(computed, got), "with a log-sum-exp computed anew"
    g = Geometry(sink, recent, topk, obs, pool, mode, max(length, sink + recent) + topk)
    queries = given["observed"][0, :, : min(obs, length)]
    scores = algorithm.observation_scores(queries, given["key"][0, :, :length], 0.5, g)
    want = algorithm.select(algorithm.pool_scores(scores, g), length, g)
    assert torch.equal(got[:, :topk], want)


SR = 3 + 6


@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, SR, *range(SR + 1, SR + 9), 3 * SR, SR + 50, SR + 51, 100])
@pytest.mark.parametrize(("room", "topk"), [(1, 1), (4, 4), (4, 1), (4, 0), (50, 50), (50, 7)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_selection_around_the_seams_of_the_cache(length: int, room: int, topk: int, mode: str) -> None:
    check_selection(length, obs=4, sink=3, recent=6, room=room, pool=5, mode=mode, rows=103, topk=topk)


@pytest.mark.parametrize(
    "length", [KEY_TILE - 1, KEY_TILE, KEY_TILE + 1, KEY_TILE + 6, KEY_TILE + 10, 2 * KEY_TILE + 3, 3 * KEY_TILE]
)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("topk", [40, 13])
def test_selection_around_the_seams_of_tiles(length: int, mode: str, topk: int) -> None:
    check_selection(length, obs=8, sink=4, recent=6, room=40, pool=7, mode=mode, topk=topk)


@pytest.mark.parametrize(
    ("length", "obs", "sink", "recent", "pool"),
    [
        (20, 50, 2, 4, 3),  # more observation rows than tokens
        (20, 3, 0, 1, 1),  # no sinks, a ring of one, no pooling
        (300, 3, 0, 40, 5),  # scores between the candidates and the window reach candidates
        (300, 40, 0, 1, 9),  # the window is wider than the ring
        (30, 4, 2, 4, 61),  # a pool wider than the prompt
        (600, 4, 2, 4, 2 * KEY_TILE + 41),  # a pool wider than two tiles
    ],
)
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_selection_of_other_geometries(length: int, obs: int, sink: int, recent: int, pool: int, mode: str) -> None:
    check_selection(length, obs, sink, recent, 7, pool, mode)


@pytest.mark.parametrize("topk", [5, 2])
def test_selection_gives_ties_to_the_earlier_position(topk: int) -> None:
    """All keys equal: all scores are, and the first positions win."""
    length = 2 * KEY_TILE + 50
    inputs = {
        "key": torch.zeros(1, 2, length, 8),
        "observed": torch.randn(1, 4, 4, 8),
    }
    kept = torch.log(torch.arange(length - 3, length + 1).float()).expand(1, 4, 4).clone()
    inputs["log_sum_exp"] = kept
    got = selected_of(inputs, length, 3, 6, 5, 1, "avg", topk)
    assert got.tolist() == [[3, 4, 5, 6, 7][:topk] + [-1] * (5 - topk)] * 2


def test_selection_depends_on_the_log_sum_exp_that_was_kept() -> None:
    """Raising one query's log-sum-exp takes its vote away."""
    prompt_inputs, kept = prompt(60, 60, 2)

    def best(log_sum_exp: torch.Tensor) -> list[list[int]]:
        inputs = {**prompt_inputs, "log_sum_exp": log_sum_exp.float()}
        selected: list[list[int]] = selected_of(inputs, 60, 2, 4, 3, 1, "avg", 3).tolist()
        return selected

    muted = kept.clone()
    muted[:, 1:] = torch.inf
    lone = {**prompt_inputs, "observed": prompt_inputs["observed"].clone()}
    products = lone["key"][0, 0].double() @ lone["observed"][0, 0].double().T * 0.5
    votes = torch.exp(products - muted[0, 0])[2:56].sum(1)
    assert best(muted)[0] == sorted((votes.argsort(descending=True)[:3] + 2).tolist())
    assert best(muted) != best(kept)


@pytest.mark.parametrize("length", [0, 13])
def test_scores_of_a_prompt_that_the_scratch_does_not_hold_are_refused(length: int) -> None:
    inputs, kept = prompt(12, 12, 2)
    with raises(ReferenceSelectionErrors.LENGTH_OUT_OF_RANGE, rows=12, length=length):
        selected_of({**inputs, "log_sum_exp": kept.float()}, length, 3, 6, 2, 1, "avg", 2)


@pytest.mark.parametrize("topk", [4, -1])
def test_selecting_more_than_there_is_room_for_is_refused(topk: int) -> None:
    given, kept = prompt(20, 20, 2)
    with raises(ReferenceSelectionErrors.TOO_MANY, most=3, topk=topk):
        selected_of({**given, "log_sum_exp": kept.float()}, 20, 3, 6, 3, 1, "avg", topk)
