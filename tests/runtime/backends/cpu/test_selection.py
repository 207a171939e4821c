"""Scores, pooling and top-K as native code, against the reference interpreter."""

from __future__ import annotations

import random

import pytest
import torch

from sscc.ir.operations import ObservationScores, Pool, Select
from sscc.ir.schedule import Access, Local, Vector
from sscc.runtime.backends.cpu.attention.observation_scores import lower_observation_scores, lower_pool, lower_select
from sscc.runtime.backends.cpu.codegen.features import GENERIC, Features
from sscc.runtime.backends.cpu.codegen.figures import GRAIN
from sscc.runtime.backends.reference import selection
from sscc.runtime.backends.reference.arrays import to_array
from tests.runtime.backends.cpu.cpus import CPUS
from tests.runtime.backends.cpu.harness_bodies import NativeBody, body_of, in_thirds, reference
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, run_step

Tensors = dict[str, torch.Tensor]

NAN, INF = float("nan"), float("inf")


# ------------------------------------------------------------------------------------------------------ scores


def scores_reference(
    tensors: Tensors, length: int, recent: int, known: bool, softcap: float | None = None
) -> torch.Tensor:
    """Return the scores [Hkv, length] in double precision."""
    observed, key = tensors["observed"].double(), tensors["key"].double()
    numbers = selection.PromptScores(
        observed, key, length=length, scale=0.5, recent=recent, wide=torch.float64, softcap=softcap
    )
    scores = tensors["scores"].double()
    selection.observation_scores(numbers, scores, tensors["sums"] if known else None)
    return scores[:, :length]


def observed_sums(tensors: Tensors, length: int, softcap: float | None = None) -> torch.Tensor:
    observed, key = tensors["observed"].double(), tensors["key"].double()
    numbers = selection.PromptScores(
        observed, key, length=length, scale=0.5, recent=1, wide=torch.float64, softcap=softcap
    )
    sums = torch.full(observed.shape[:3], NAN)
    sums[:, :, : numbers.window] = numbers.log_sum_exp().reshape(1, observed.shape[1], -1).float()
    return sums


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("group", "obs", "recent", "depth", "dtype", "softcap"),
    [(3, 32, 40, 8, torch.bfloat16, None), (1, 9, 2, 11, torch.float32, None), (1, 9, 2, 11, torch.float32, 0.7)],
)
def test_observation_scores(
    group: int, obs: int, recent: int, depth: int, softcap: float | None, known: bool, dtype: torch.dtype,
    features: Features,
) -> None:  # fmt: skip
    rows = 2 * GRAIN + 90
    tensors = {
        "observed": torch.randn(1, 2 * group, obs, depth).to(dtype),
        "key": torch.randn(1, 2, rows, depth).to(dtype),
        "sums": torch.zeros(1, 2 * group, obs),
        "scores": torch.full((2, rows), 9.0),
    }
    step = ObservationScores("observed", "key", "scores", "n", 0.5, recent, "sums" if known else "", softcap)
    compiled = CompiledStages(step, lower_observation_scores, tensors, ["n"], features)
    for length in (1, 5, obs, obs + 1, GRAIN, GRAIN + recent + 3, rows):
        case = {name: tensor.clone() for name, tensor in tensors.items()}
        case["key"][:, :, length:] = NAN
        case["observed"][:, :, length:] = NAN
        case["sums"] = observed_sums(case, length, softcap)
        got = check_pieces(compiled, case, {"n": length}, ["scores"])["scores"]
        torch.testing.assert_close(
            got[:, :length].double(), scores_reference(case, length, recent, known, softcap), rtol=2e-5, atol=1e-7
        )
        zero = length - min(obs, recent, length)
        assert (got[:, zero:length] == 0).all()
        assert (got[:, length:] == 9).all(), "scores behind the prompt are not written"


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_observation_scores_of_a_log_sum_exp_that_is_not_finite(value: float) -> None:
    tensors = {
        "observed": torch.randn(1, 2, 3, 8),
        "key": torch.randn(1, 1, 40, 8),
        "sums": torch.tensor([[[3.0, 4.0, 3.5], [3.0, value, 2.0]]]),
        "scores": torch.zeros(1, 40),
    }
    step = ObservationScores("observed", "key", "scores", "n", 0.5, 2, "sums")
    got = run_step(step, lower_observation_scores, tensors, {"n": 40}, GENERIC, ["scores"])["scores"]
    want = scores_reference(tensors, 40, 2, True).float()
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-7, equal_nan=True)


# ----------------------------------------------------------------------------------------------------- pooling


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("width", [1, 7, 61])
def test_pool(width: int, mode: str, features: Features) -> None:
    rows = GRAIN + 77
    tensors = {"scores": torch.randn(3, rows), "pooled": torch.full((3, rows), 9.0)}
    tensors["scores"][1, 20], tensors["scores"][1, 50], tensors["scores"][1, 80] = NAN, INF, -INF
    compiled = CompiledStages(Pool("scores", "pooled", "n", width, mode), lower_pool, tensors, ["n"], features)
    for length in (1, 2, 15, 16, 33, GRAIN + 1, rows):
        got = check_pieces(compiled, tensors, {"n": length}, ["pooled"])["pooled"]
        want = tensors["pooled"].clone()
        selection.pool(tensors["scores"], want, length=length, width=width, mode=mode)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)


# --------------------------------------------------------------------------------------------------- selection


def check_select(
    compiled: CompiledStages, scores: torch.Tensor, length: int, step: Select, room: int, topk: int
) -> None:
    given = {"scores": scores, "selected": torch.full((scores.shape[0], room), 99)}
    got = check_pieces(compiled, given, {"n": length, "top": topk}, ["selected"])["selected"]
    want = given["selected"].clone()
    selection.select(scores, want, length=length, topk=topk, sink=step.sink, recent=step.recent)
    assert torch.equal(got, want), (length, topk)
    assert int((got >= 0).sum()) == (got.shape[0] * topk if length > step.sink + topk + step.recent else 0)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(
    ("sink", "recent", "room", "topk"),
    [(3, 6, 1, 1), (0, 0, 40, 40), (4, 1, 7, 7), (2, 5, 400, 400), (3, 6, 1, 0), (0, 0, 40, 17), (4, 1, 7, 6)],
)
def test_select(sink: int, recent: int, room: int, topk: int, features: Features) -> None:
    rows = 333
    step = Select("scores", "selected", "n", "top", sink, recent)
    example = {"scores": torch.zeros(3, rows), "selected": torch.zeros(3, room, dtype=torch.int64)}
    compiled = CompiledStages(step, lower_select, example, ["n", "top"], features)
    few = torch.randint(0, 4, (3, rows)).float()
    kinds = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, INF, -INF, NAN, -NAN, 3e38])
    special = kinds[torch.randint(0, len(kinds), (3, rows))]
    budget = sink + topk + recent
    for length in (1, sink + 1, sink + recent, sink + recent + 1, 17, budget, budget + 1, 250, rows):
        if 1 <= length <= rows:
            for scores in (torch.randn(3, rows), few, special, torch.zeros(3, rows), torch.full((3, rows), NAN)):
                check_select(compiled, scores, length, step, room, topk)


@pytest.mark.parametrize("seed", range(3))
def test_select_of_random_scores_and_strides(seed: int) -> None:
    choose = random.Random(seed)
    rows, room = choose.randint(20, 3000), choose.randint(1, 500)
    step = Select("scores", "selected", "n", "top", choose.randint(0, 9), choose.randint(0, 9))
    scores = torch.randn(2, rows + 5).exp()[:, :rows]
    example = {"scores": scores, "selected": torch.zeros(2, room, dtype=torch.int64)}
    compiled = CompiledStages(step, lower_select, example, ["n", "top"], Features.of_host())
    for length in (rows, choose.randint(1, rows)):
        for topk in (room, choose.randint(0, room)):
            check_select(compiled, scores, length, step, room, topk)


def test_select_where_high_scores_stand_together() -> None:
    """They bound nothing then, so that more survive the bound than are chosen, up to all."""
    rows, room = 3000, 40
    step = Select("scores", "selected", "n", "top", 2, 3)
    ascending = torch.arange(rows).float().expand(2, -1).contiguous()
    together = torch.randn(2, rows)
    together[:, 1000:1100] += 100
    example = {"scores": ascending, "selected": torch.zeros(2, room, dtype=torch.int64)}
    compiled = CompiledStages(step, lower_select, example, ["n", "top"], Features.of_host())
    for scores in (ascending, -ascending, together, (ascending // 700).contiguous()):
        check_select(compiled, scores, rows, step, room, room)


@pytest.mark.parametrize("length", [0, -5, 41])
def test_a_length_that_the_scores_do_not_hold_writes_nothing(length: int) -> None:
    given = {"scores": torch.randn(2, 40), "selected": torch.full((2, 3), 99)}
    step = Select("scores", "selected", "n", "top", 1, 2)
    got = run_step(step, lower_select, given, {"n": length, "top": 3}, GENERIC, ["selected"])
    assert torch.equal(got["selected"], given["selected"])


# ----------------------------------------------------------------------------------------- all of it, in one body


@pytest.mark.parametrize("read_too", [False, True], ids=["selected only", "read too"])
@pytest.mark.parametrize("length", [1, 6, 9, 10, 11, 40])
def test_scores_are_made_where_something_depends_on_them(length: int, read_too: bool) -> None:
    """Sinks, ring and four selected rows are ten: of longer prompts rows are chosen, of shorter ones none. What else
    reads the scores finds them in any case."""
    rows, sink, recent, topk = 40, 2, 4, 4
    inputs = {"observed": torch.randn(1, 4, 3, 8), "key": torch.randn(1, 2, rows, 8)}
    writes = {"selected": torch.zeros(2, topk, dtype=torch.int64), "copy": torch.zeros(2, 1)}
    first = ((1, 0, 0), (0, 1, 0))
    more = (Vector((2, 1), (Access("pooled", first),), Access("copy", first), (), "in0"),) if read_too else ()
    steps = (
        ObservationScores("observed", "key", "scores", "n", 0.5, recent),
        Pool("scores", "pooled", "n", 3, "avg"),
        Select("pooled", "selected", "n", "top", sink, recent),
        *more,
    )
    locals_ = tuple(Local(name, (2, rows), "f32") for name in ("scores", "pooled"))
    body = body_of(steps, inputs, writes, ("n", "top"), locals_)
    want = reference(body, inputs, writes, {"n": length, "top": topk})
    memory = {name: to_array(tensor.clone()) for name, tensor in {**inputs, **writes}.items()}
    NativeBody(body).run(memory, (length, topk), in_thirds)
    assert (memory["selected"] == want["selected"].numpy()).all()
    torch.testing.assert_close(torch.from_numpy(memory["copy"]), want["copy"])
    assert (want["selected"] >= 0).sum() == (2 * topk if length > sink + topk + recent else 0)
