"""Selection by query beside other caches: what it says, holds and reads, on a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.eager import EagerQuerySelection
from sscc.compiler.frontend.untouched_model import load_model
from sscc.compiler.tools.quality import tables as report
from sscc.compiler.tools.quality.cells import Selection
from sscc.compiler.tools.quality.equal_bytes import snapstream_that_holds
from sscc.compiler.tools.quality.eval_options import EvalOptions
from sscc.compiler.tools.quality.runner import Evaluation, evaluate
from sscc.ir.geometry import Geometry
from tests.runtime.signatures import row_bytes, uniform

BUDGET = 16
NEW = 5
GEOMETRY = Geometry(1, 3, 4, 2, 3, "avg", 64, rows="indexed", policy="query", key_bits=2)
SIGNATURE = uniform(GEOMETRY, 1, 16, "f32", layers=2, heads=4, kv_heads=2, head_dim=8, value_dim=8, vocab_size=9)


class TestEqualBytes:
    def test_as_many_rows_as_the_bytes_hold(self) -> None:
        row = row_bytes(SIGNATURE)
        for held in (40 * row, 41 * row - 1):
            cell = snapstream_that_holds(held, SIGNATURE)
            assert cell is not None
            assert (cell.method, cell.budget) == ("snapstream", 40)
            assert cell.geometry == Geometry(1, 3, 36, 2, 3, "avg", 64)

    def test_none_where_the_context_fits_or_no_more_than_a_step_reads(self) -> None:
        row = row_bytes(SIGNATURE)
        assert snapstream_that_holds(SIGNATURE.held_bytes, SIGNATURE) is None, "rows of the model's dtype, and all"
        assert snapstream_that_holds(64 * row, SIGNATURE) is None
        assert snapstream_that_holds(8 * row, SIGNATURE) is None


@pytest.fixture(scope="module")
def options(model: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalOptions:
    """Two prompts through a full cache and ones that choose by query some rows, and all."""
    path = tmp_path_factory.mktemp("given") / "mine.jsonl"
    prompts = ["The quick brown fox jumps over the lazy dog", "0123456789" * 6]
    path.write_text("".join(json.dumps({"prompt": p, "answers": ["a"], "max_new_tokens": NEW}) + "\n" for p in prompts))
    return EvalOptions(
        model,
        tasks=(),
        files=(path,),
        budgets=(BUDGET, 64),
        methods=("full", "query"),
        selection=Selection(obs=4, pool=3, sink=2, recent=4),
        key_bits=(4,),
        examples=None,
        threads=1,
    )


@pytest.fixture(scope="module")
def evaluation(options: EvalOptions, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluate(options, tmp_path_factory.mktemp("results"))


def test_cells_of_equal_bytes_stand_beside_encoded_rows(options: EvalOptions, tmp_path: Path) -> None:
    of_bytes = replace(options, budgets=(BUDGET,), methods=("query",), kv_dtypes=("int8",), equal_bytes=True)
    query, equal = evaluate(of_bytes, tmp_path).cells
    assert (query.cell.name, equal.cell.method) == (f"query {BUDGET} 4-bit int8", "snapstream")
    assert 0.9 * query.kv_bytes < equal.kv_bytes <= query.kv_bytes
    assert equal.cell.budget > BUDGET


def test_every_row_stays(evaluation: Evaluation) -> None:
    assert [cell.cell.name for cell in evaluation.cells] == ["full", f"query {BUDGET} 4-bit", "query 64 4-bit"]
    for cell in evaluation.cells:
        for example in evaluation.examples:
            assert cell.records[example.name].kept_rows == len(example.prompt) + NEW - 1


def test_it_says_what_the_definition_says(model: Path, evaluation: Evaluation) -> None:
    full, few, every = evaluation.cells
    for example in evaluation.examples:
        said = by_definition(model, few.cell.geometry, example.prompt)
        assert few.records[example.name].tokens == said
        assert every.records[example.name].tokens == full.records[example.name].tokens, "every row may be read"
    assert any(few.records[e.name].tokens != full.records[e.name].tokens for e in evaluation.examples)


def test_a_limit_of_what_a_step_fetches_stands_beside_none(model: Path, options: EvalOptions, tmp_path: Path) -> None:
    limited = replace(options, budgets=(BUDGET,), methods=("query",), key_bits=(2,), fetches=(1,))
    found = evaluate(limited, tmp_path)
    free, few = found.cells
    assert (few.cell.name, few.cell.geometry.fetch) == (f"query {BUDGET} 2-bit fetch 1", 1)
    assert few.kv_bytes > free.kv_bytes, "resident rows are held beside the store"
    for example in found.examples:
        assert few.records[example.name].tokens == by_definition(model, few.cell.geometry, example.prompt)
    assert any(few.records[e.name].tokens != free.records[e.name].tokens for e in found.examples)


def by_definition(folder: Path, geometry: Geometry, prompt: Sequence[int]) -> list[int]:
    """The greedy tokens of the definition, from the prompt's last token fed again."""
    checkpoint = open_checkpoint(folder)
    model = load_model(checkpoint, torch.float32)
    run = EagerQuerySelection(model, geometry, geometry.key_bits, geometry.fetch)
    run.prefill(prompt)
    tokens = [int(run.decode(prompt[-1], len(prompt) - 1).argmax())]
    while len(tokens) < NEW:
        tokens.append(int(run.decode(tokens[-1]).argmax()))
    return tokens


def test_the_report_says_what_is_read_and_what_is_held(options: EvalOptions, evaluation: Evaluation) -> None:
    (scores,) = report.tables(evaluation.cells)
    assert scores[0] == ["cache", "rows a step", "read a step", "held", "mine (n=2)"]
    assert scores[2][:2] == [f"query {BUDGET} 4-bit", str(BUDGET)]
    differences = report.paired(evaluation.cells)
    assert differences is not None
    assert [row[0] for row in differences] == ["minus full", *(cell.cell.name for cell in evaluation.cells[1:])]
    assert report.PAIRED in report.page(options, evaluation, None)
    values = report.results(options, evaluation)["cells"][1]
    assert values["read_bytes"] < values["full_kv_bytes"] < values["kv_bytes"], "all rows, and quantized keys"
    assert values["rows_read"] == BUDGET
