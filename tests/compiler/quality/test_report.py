"""Tables, JSON and plot of results at the ends of what scores can be."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from sscc.compiler.tools.quality.cells import Cell
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.journal import Record
from sscc.compiler.tools.quality.means import CellSummary, summarise
from sscc.compiler.tools.quality.plot import plot
from sscc.compiler.tools.quality.scoring import NATS
from sscc.compiler.tools.quality.tables import tables, text, to_json
from sscc.ir.geometry import Geometry
from tests.runtime.signatures import uniform

GEOMETRY = Geometry(sink=1, recent=3, topk=4, obs=2, pool=3, pool_mode="avg", max_context=64)
SIGNATURE = uniform(GEOMETRY, 1, 16, "f32", layers=2, heads=4, kv_heads=2, head_dim=8, value_dim=8, vocab_size=9)


def cells(scores: Sequence[float], metric: str = "string_match_all") -> list[CellSummary]:
    """A full cache and a compressed one with the same scores."""
    examples = [Example("task", 40, i, (1, 2), ("x",), metric, 4) for i in range(len(scores))]
    summaries: list[CellSummary] = []
    for method in ("full", "snapstream"):
        records = [
            Record(method, e.name, "task", 40, e.index, None, 2, e.prompt_sha256, score, "", [], 5, 0.5)
            for e, score in zip(examples, scores, strict=True)
        ]
        first = summaries[0] if summaries else None
        summaries.append(summarise(Cell(method, GEOMETRY), SIGNATURE, examples, records, first))
    return summaries


@pytest.mark.parametrize("score", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 6, 11, 48])  # rounding moved a bound of 6 of 6 and of 0 of 11, and both of 48
def test_scores_at_an_end_are_drawn(score: float, n: int) -> None:
    assert ElementTree.fromstring(plot(cells([score] * n), "title")).tag.endswith("svg")


def test_a_full_cache_alone_is_drawn() -> None:
    plot(cells([1.0, 0.0])[:1], "title")


def test_the_table_has_the_bounds() -> None:
    (table,) = tables(cells([1.0] * 10))
    assert table[1][-1] == "100 (72 to 100)"


@pytest.mark.parametrize("nats", [1e4, math.inf, math.nan])
def test_nats_that_no_perplexity_fits_stay_in_table_and_json(nats: float) -> None:
    summaries = cells([nats, nats], NATS)
    assert text(tables(summaries)[0]).count("\n") == 2
    mean = json.loads(to_json(summaries[0].to_dict()))["scores"][0]["mean"]
    assert mean == (nats if math.isfinite(nats) else None)
