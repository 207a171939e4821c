"""The tiny trained model answers through a compressed cache, and cannot without the rows that top-K keeps.

These gates run the definition (EagerSnapStream). The same queries gate the compiled program elsewhere.
Measured: full 0.992, 32 rows 0.961, 64 rows 0.992, without top-K (32 rows) 0.023; with obs 32 instead of 8, 0.719.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.ir.geometry import Geometry
from tests.models.tiny.task import LENGTH, MARKER, TRIPLES, VALUES, VOCABULARY, Query, fixed_queries

FOLDER = Path(__file__).parent
ROWS_32 = Geometry(sink=4, recent=8, topk=20, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)
ROWS_64 = Geometry(sink=4, recent=8, topk=52, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)
STREAMING = Geometry(sink=4, recent=28, topk=0, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)


@cache
def model() -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sscc")
    return loaded.eval()


def answers_right(g: Geometry, query: Query) -> tuple[bool, bool]:
    """Whether full attention answers, and whether the replayed last token answers through the compressed cache."""
    run = EagerSnapStream(model(), g)
    full = run.prefill(query.prompt)
    replayed = run.decode(query.prompt[-1], position=len(query.prompt) - 1)
    return int(full.argmax()) == query.answer, int(replayed.argmax()) == query.answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("geometry", "low", "high"), [(ROWS_32, 0.93, 1.0), (ROWS_64, 0.96, 1.0), (STREAMING, 0.0, 0.1)]
)
def test_accuracy_through_the_cache(geometry: Geometry, low: float, high: float) -> None:
    results = [answers_right(geometry, query) for query in fixed_queries()]
    full, compressed = (sum(column) / len(results) for column in zip(*results, strict=True))
    assert len(results) >= 100
    assert full >= 0.97
    assert low <= compressed <= high, f"{geometry.budget} rows answer {compressed:.3f} of the queries"


def test_weights_are_small_enough_to_commit() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.safetensors")) < 2_000_000


def test_queries_are_fixed_and_answerable() -> None:
    queries = fixed_queries()
    assert queries == fixed_queries()
    assert len(set(queries)) == len(queries) >= 100
    for query in queries:
        assert len(query.prompt) == LENGTH
        assert max(query.prompt) < VOCABULARY
        asked = query.prompt[-2:]
        assert asked[0] == MARKER
        assert query.answer in VALUES
        found = [t for t in range(LENGTH - 2) if query.prompt[t : t + 2] == asked]
        assert [query.prompt[t + 2] for t in found] == [query.answer]
        assert query.prompt.count(MARKER) == TRIPLES + 1
