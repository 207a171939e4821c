"""Means, errors and intervals, compared with values computed by hand or taken from tables."""

from __future__ import annotations

import pytest

from sscc.compiler.tools.quality.cells import Cell
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.journal import Record
from sscc.compiler.tools.quality.means import CellSummary, interval, mean_and_error, summarise, wilson
from sscc.compiler.tools.quality.scoring import NATS
from sscc.ir.geometry import Geometry
from tests.runtime.signatures import uniform

GEOMETRY = Geometry(sink=1, recent=3, topk=4, obs=2, pool=3, pool_mode="avg", max_context=64)
SIGNATURE = uniform(GEOMETRY, 1, 16, "f32", layers=2, heads=4, kv_heads=2, head_dim=8, value_dim=8, vocab_size=9)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (18, 20, 0.6990, 0.9721)],
)
def test_wilson(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right, n) == pytest.approx((low, high), abs=1e-4)


def test_wilsons_interval_contains_the_share_and_lies_within_0_and_1() -> None:
    for n in range(1, 201):
        for right in range(n + 1):
            low, high = wilson(right, n)
            assert 0.0 <= low <= right / n <= high <= 1.0, (right, n)
            assert (low == 0.0) == (right == 0), (right, n)
            assert (high == 1.0) == (right == n), (right, n)


@pytest.mark.parametrize("metric", ["string_match_all", NATS])
def test_an_interval_contains_the_mean(metric: str) -> None:
    for n in range(1, 41):
        for share in (0.0, 1 / 3, 0.1, 1.0):
            for values in ([share] * n, [share, *[1.0] * (n - 1)], [share, *[0.0] * (n - 1)]):
                low, high = interval(values, metric)
                assert low <= mean_and_error(values)[0] <= high
                assert metric == NATS or 0.0 <= low <= high <= 1.0


def test_mean_and_error() -> None:
    assert mean_and_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, (5 / 3 / 4) ** 0.5))
    assert mean_and_error([0.3]) == (0.3, 0.0)


def test_shares_get_a_normal_interval_and_zeros_and_ones_wilsons() -> None:
    assert interval([0.0, 1.0], "f1") == wilson(1, 2)
    assert interval([0.25, 0.75], "f1") == pytest.approx((0.5 - 1.96 * 0.25, 0.5 + 1.96 * 0.25))
    assert interval([0.5, 1.0], "f1") == pytest.approx((0.75 - 1.96 * 0.25, 1.0))
    assert interval([0.0, 1.0], NATS) == pytest.approx((0.5 - 1.96 * 0.5, 0.5 + 1.96 * 0.5))  # a share they are not


def summary(method: str, scores: list[float], first: CellSummary | None = None) -> CellSummary:
    examples = [Example("task", 40, i, (1, 2), ("x",), "string_match_all", 4) for i in range(len(scores))]
    records = [
        Record(method, e.name, "task", 40, e.index, e.index / len(scores), 2, e.prompt_sha256, s, "", [], 5, 0.5)
        for e, s in zip(examples, scores, strict=True)
    ]
    return summarise(Cell(method, GEOMETRY), SIGNATURE, examples, records, first)


def test_cells_are_compared_example_by_example() -> None:
    full = summary("full", [1.0, 1.0, 0.0, 1.0])
    (score,) = full.scores
    assert (score.group, score.n, score.mean, score.difference) == ("task@40", 4, 0.75, None)
    assert (score.seconds, score.kept_rows) == (2.0, 5)
    assert score.by_depth == [(1.0, 1), (1.0, 1), (0.0, 1), (1.0, 1)]
    cut = summary("snapstream", [1.0, 0.0, 0.0, 0.0], full)
    (score,) = cut.scores
    assert score.difference == -0.5  # differences 0, -1, 0, -1
    assert score.difference_error == pytest.approx((1 / 3 / 4) ** 0.5)
    assert cut.mean == 0.25


def test_only_a_full_cache_is_compared_with() -> None:
    assert summary("snapkv", [1.0], summary("streamingllm", [0.0])).scores[0].difference is None


def test_bytes_are_the_signatures() -> None:
    cell = summary("snapstream", [1.0])
    assert cell.kv_bytes == 8 * 2 * 2 * 2 * 8 * 4
    assert cell.full_kv_bytes == 64 * 2 * 2 * 2 * 8 * 4
