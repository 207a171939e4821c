"""The tiny trained model answers through a compressed cache, and cannot without the rows that top-K keeps.

These gates run the definition (EagerSnapStream). The same queries gate the compiled program elsewhere.
Measured: full 0.992, 32 rows 0.961, 64 rows 0.992, without top-K (32 rows) 0.023; with obs 32 instead of 8, 0.719.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from sscc.compiler.frontend import algorithm
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.frontend.operator import observing
from sscc.ir.geometry import Geometry, Span
from tests.models.tiny.task import FOLDERS, LENGTH, MARKER, TRIPLES, VALUES, VOCABULARY, Query, fixed_queries

FOLDER = FOLDERS["dense"]
ROWS_32 = Geometry(sink=4, recent=8, topk=20, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)
ROWS_64 = Geometry(sink=4, recent=8, topk=52, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)
STREAMING = Geometry(sink=4, recent=28, topk=0, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)


@cache
def model() -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sscc")
    return loaded.eval()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: tensors are so small that more are slower, by a factor of ten while other tests run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def answers(query: Query) -> list[int]:
    """The answer of full attention, then of the replayed last token through each compressed cache."""
    layers: list[tuple[Tensor, Tensor, Tensor, float]] = []

    def record(
        q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: algorithm.Softmax
    ) -> Tensor:
        assert not window
        assert softmax == algorithm.PLAIN
        layers.append((q[0], k[0], v[0], scale))
        return algorithm.causal_attention(q[0], k[0], v[0], scale)[None]

    with torch.no_grad(), observing(record):
        logits = model()(torch.tensor([query.prompt]), use_cache=False, logits_to_keep=1).logits[0, -1]
    answers = [int(logits.argmax())]
    for g in (ROWS_32, ROWS_64, STREAMING):
        run = EagerSnapStream(model(), g)
        for q, k, v, scale in layers:
            keys, values, _ = algorithm.compress(q, k, v, scale, g)
            run.geometries.append(g)
            run.k_cache.append(keys)
            run.v_cache.append(values)
        run.prompt_len = LENGTH
        answers.append(int(run.decode(query.prompt[-1], position=LENGTH - 1).argmax()))
    return answers


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_accuracy_through_the_cache() -> None:
    queries = fixed_queries()
    assert len(queries) >= 100
    right = [[answer == query.answer for answer in answers(query)] for query in queries]
    full, rows_32, rows_64, streaming = (sum(column) / len(right) for column in zip(*right, strict=True))
    assert full >= 0.97
    assert rows_32 >= 0.93
    assert rows_64 >= 0.96
    assert streaming <= 0.1


@pytest.mark.parametrize("kind", FOLDERS)
def test_weights_are_small_enough_to_commit(kind: str) -> None:
    assert 0 < sum(path.stat().st_size for path in FOLDERS[kind].glob("*.safetensors")) < 2_000_000


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
        positions = [t for t in range(LENGTH - 2) if query.prompt[t : t + 2] == asked]
        assert [query.prompt[t + 2] for t in positions] == [query.answer]
        assert query.prompt.count(MARKER) == TRIPLES + 1
