"""Selection by query beside compiled caches: what it says, holds and reads, on a tiny random model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from sscc.compiler.quality import report
from sscc.compiler.quality.cache_bytes import cache_bytes, cells_of_equal_bytes
from sscc.compiler.quality.cells import Cell, Selection
from sscc.compiler.quality.eager_session import open_eager
from sscc.compiler.quality.example import Example
from sscc.compiler.quality.plan import EvalOptions
from sscc.compiler.quality.runner import Evaluation, evaluate
from sscc.compiler.quality.scoring import run_example
from sscc.ir.errors import UsageError
from sscc.ir.geometry import Geometry
from tests.runtime.signatures import uniform

BUDGET = 16
GEOMETRY = Geometry(sink=1, recent=3, topk=4, obs=2, pool=3, pool_mode="avg", max_context=64)
SIGNATURE = uniform(GEOMETRY, 1, 16, "f32", layers=2, heads=4, kv_heads=2, head_dim=8, value_dim=8, vocab_size=9)


class TestBytes:
    def test_every_row_is_held_and_few_are_read(self) -> None:
        size = cache_bytes(Cell("query", GEOMETRY, landmark_bits=2), SIGNATURE)
        row, landmark = 2 * 2 * 2 * 8 * 4, 2 * 2 * (8 * 2 // 8 + 2)  # of all layers, heads, and of K and V
        assert size.held == 64 * (row + landmark) + (1 + 3) * row
        assert size.read == 64 * landmark + (1 + 3 + 4) * row

    def test_a_resident_set_is_held_besides(self) -> None:
        free = Cell("query", GEOMETRY, landmark_bits=2)
        few = replace(free, fetch=1)
        assert cache_bytes(few, SIGNATURE).held - cache_bytes(free, SIGNATURE).held == 4 * 2 * 2 * 2 * 8 * 4
        assert cache_bytes(few, SIGNATURE).read == cache_bytes(free, SIGNATURE).read

    def test_landmarks_of_16_bits_are_keys_as_they_are_stored(self) -> None:
        plain, encoded = (
            cache_bytes(Cell("query", replace(GEOMETRY, dtype=dtype), landmark_bits=16), SIGNATURE)
            for dtype in ("model", "int8")
        )
        assert plain.read == 2 * 2 * (64 * 8 * 4 + 8 * 2 * 8 * 4)
        assert encoded.read == 2 * 2 * (64 * (8 + 4) + 8 * 2 * (8 + 4))

    def test_other_methods_have_what_their_program_has(self) -> None:
        size = cache_bytes(Cell("snapstream", GEOMETRY), SIGNATURE)
        assert (size.held, size.read) == (SIGNATURE.held_bytes, SIGNATURE.read_bytes)

    def test_snapstream_of_equal_bytes(self) -> None:
        encoded = Cell("query", replace(GEOMETRY, dtype="int8"), landmark_bits=2)
        assert not cells_of_equal_bytes([Cell("query", GEOMETRY, landmark_bits=2)], SIGNATURE), "it holds all anyway"
        (cell,) = cells_of_equal_bytes([Cell("full", GEOMETRY), encoded], SIGNATURE)
        assert (cell.method, cell.geometry.dtype) == ("snapstream", "model")
        assert cell.geometry == replace(GEOMETRY, topk=cell.geometry.topk)
        row, held = 2 * 2 * 2 * 8 * 4, cache_bytes(encoded, SIGNATURE).held
        assert cell.budget * row <= held < (cell.budget + 1) * row


@pytest.fixture(scope="module")
def options(model: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalOptions:
    """Two prompts through a full cache and one that chooses by query, in encoded rows."""
    path = tmp_path_factory.mktemp("given") / "mine.jsonl"
    prompts = ["The quick brown fox jumps over the lazy dog", "0123456789" * 6]
    path.write_text("".join(json.dumps({"prompt": p, "answers": ["a"], "max_new_tokens": 5}) + "\n" for p in prompts))
    return EvalOptions(
        model,
        tasks=(),
        files=(path,),
        budgets=(BUDGET,),
        methods=("full", "query"),
        kv_dtypes=("int8",),
        selection=Selection(obs=4, pool=3, sink=2, recent=4),
        landmark_bits=(4,),
        equal_bytes=True,
        examples=None,
        threads=1,
    )


@pytest.fixture(scope="module")
def evaluation(options: EvalOptions, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluate(options, tmp_path_factory.mktemp("results"))


def test_cells_of_equal_bytes_stand_beside_encoded_rows(evaluation: Evaluation) -> None:
    full, query, equal = evaluation.cells
    assert [full.cell.name, query.cell.name, equal.cell.method] == ["full int8", "query 16 4-bit int8", "snapstream"]
    assert 0.9 * query.kv_bytes < equal.kv_bytes <= query.kv_bytes
    for example in evaluation.examples:
        assert query.records[example.name].kept_rows == len(example.prompt) + 4


def test_the_report_says_what_is_read_and_what_is_held(options: EvalOptions, evaluation: Evaluation) -> None:
    (scores,) = report.tables(evaluation.cells)
    assert scores[0] == ["cache", "rows a step", "read a step", "held", "mine (n=2)"]
    assert scores[2][:2] == ["query 16 4-bit int8", "16"]
    differences = report.paired(evaluation.cells)
    assert differences is not None
    assert [row[0] for row in differences] == ["minus full", *(cell.cell.name for cell in evaluation.cells[1:])]
    assert report.PAIRED in report.page(options, evaluation, None)
    values = report.results(options, evaluation)["cells"][1]
    assert values["read_bytes"] < values["kv_bytes"] < values["full_kv_bytes"], "of rows that are not encoded"
    assert values["rows_read"] == BUDGET


def test_where_a_step_may_read_every_row_it_says_what_the_model_says(model: Path) -> None:
    g = Geometry(sink=2, recent=4, topk=58, obs=2, pool=3, pool_mode="avg", max_context=64)
    session = open_eager(model, Cell("query", g, landmark_bits=1), SIGNATURE, None)
    prompt = tuple(range(100, 150))
    outcome = run_example(session, Example("t", 0, 0, prompt, (), "tokens", 8, answer_tokens=(1,)), None)
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([prompt])
    said = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    assert list(outcome.tokens) == said[0, len(prompt) :].tolist()
    assert outcome.kept_rows == len(prompt) + 7


def test_a_session_replays_before_it_decodes(model: Path) -> None:
    session = open_eager(model, Cell("query", replace(GEOMETRY, recent=60, topk=0), landmark_bits=2), SIGNATURE, None)
    with pytest.raises(UsageError, match="there is no prompt to replay"):
        session.replay(0)
    logits = session.prefill(0, [5, 6, 7])
    np.testing.assert_allclose(session.replay(0), logits, atol=1e-4)
    assert session.decode({0: 4}).shape == (1, len(logits))
    assert session.kept(0).kept == 4
    with pytest.raises(UsageError, match="there is no prompt to replay, or a token was fed"):
        session.replay(0)
