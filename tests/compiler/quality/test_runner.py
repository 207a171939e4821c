"""Whole evaluations of a tiny random model: scored tokens come from the cache, and an interrupted run can continue."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.quality import runner
from sscc.compiler.tools.quality import tables as report
from sscc.compiler.tools.quality.cells import Selection
from sscc.compiler.tools.quality.eval_options import EvalOptions, EvaluationOptionErrors
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.journal import EvaluationJournalErrors, Record
from sscc.compiler.tools.quality.plot import plot
from sscc.compiler.tools.quality.runner import JOURNAL, WORK, Evaluation, EvaluationErrors, evaluate
from sscc.compiler.tools.quality.scoring import ExampleResult, run_example
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors
from sscc.ir.geometry import Geometry
from sscc.ir.option import OptionRangeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.excerpt import Excerpt
from tests.errors import raises

SMALL = Selection(obs=4, pool=3, sink=2, recent=8)
BUDGET = 32


@pytest.fixture(scope="module")
def options(model: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalOptions:
    """Return options with two examples of a file, two pass keys, two windows of a text, and four cells."""
    folder = tmp_path_factory.mktemp("given")
    prompts = ["The quick brown fox jumps over the lazy dog", "0123456789" * 6]
    lines = [{"prompt": p, "answers": ["a"], "max_new_tokens": 5} for p in prompts]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "text").write_text("One evening, long after the shops had shut, somebody knocked. " * 9)
    return EvalOptions(
        model=model,
        tasks=("passkey", "perplexity"),
        files=(folder / "mine.jsonl",),
        lengths=(250,),
        budgets=(BUDGET,),
        selection=SMALL,
        examples=2,
        text=folder / "text",
        score_tokens=12,
        threads=1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def evaluation(options: EvalOptions, folder: Path) -> Evaluation:
    return evaluate(options, folder)


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]


def without_time(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


class TestScoring:
    def test_the_full_cache_says_what_the_model_says(self, model: Path, evaluation: Evaluation) -> None:
        torch_model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        full = evaluation.cells[0]
        for example in evaluation.examples:
            if example.max_new_tokens:
                prompt = torch.tensor([example.prompt])
                said = torch_model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=example.max_new_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )
                assert full.records[example.name].tokens == said[0, len(example.prompt) :].tolist()

    def test_nats_of_the_full_cache_are_the_models(self, model: Path, evaluation: Evaluation) -> None:
        torch_model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        for example in evaluation.examples:
            if example.continuation:
                tokens = torch.tensor([[*example.prompt, *example.continuation]])
                with torch.no_grad():
                    logits = torch_model(tokens).logits[0, len(example.prompt) - 1 : -1]
                nats = torch.nn.functional.cross_entropy(logits, torch.tensor(example.continuation))
                assert evaluation.cells[0].records[example.name].score == pytest.approx(float(nats), abs=2e-4)

    def test_a_compressed_cache_predicts_otherwise(self, evaluation: Evaluation) -> None:
        full, *cut = evaluation.cells
        names = [example.name for example in evaluation.examples if example.continuation]
        for cell in cut:
            assert all(abs(cell.records[name].score - full.records[name].score) > 1e-3 for name in names)

    def test_all_methods_keep_the_same_rows(self, evaluation: Evaluation) -> None:
        full, *cut = evaluation.cells
        assert [cell.cell.name for cell in evaluation.cells] == [
            "full",
            f"streamingllm {BUDGET}",
            f"snapkv {BUDGET}",
            f"snapstream {BUDGET}",
        ]
        for example in evaluation.examples:
            length = len(example.prompt) + max(example.max_new_tokens, len(example.continuation)) - 1
            assert full.records[example.name].kept_rows == length
            if len(example.prompt) > BUDGET:
                assert {cell.records[example.name].kept_rows for cell in cut} == {BUDGET}
        assert len({cell.kv_bytes for cell in cut}) == 1


class FakeSession:
    """Prefill says 1, the replayed token 2, and each step one more than it was fed."""

    def __init__(self, ends: tuple[int, ...] = ()) -> None:
        self.signature = SimpleNamespace(eos_token_ids=ends, reads_twice=True)
        self.calls: list[object] = []

    def prefill(self, slot: int, tokens: Excerpt) -> Array:
        self.calls.append(("prefill", slot, tuple(tokens.tokens.tolist())))
        return says(1)

    def replay(self, slot: int) -> Array:
        self.calls.append(("replay", slot))
        return says(2)

    def decode(self, tokens: dict[int, int]) -> Array:
        self.calls.append(tokens)
        return says(tokens[0] + 1)[None]

    def kept(self, slot: int) -> SimpleNamespace:
        return SimpleNamespace(kept=7)


def says(token: int) -> Array:
    """Logits [9] of which one is 3 and the others are 0."""
    return np.float32(3.0) * (np.arange(9) == token)


class TestOneExample:
    def test_every_token_comes_out_of_the_cache(self) -> None:
        session: Any = FakeSession()
        example = Example("t", 0, 0, (4, 5), (), "tokens", 3, answer_tokens=(2, 3, 4))
        outcome = run_example(session, example, None)
        assert session.calls == [("prefill", 0, (4, 5)), ("replay", 0), {0: 2}, {0: 3}]
        assert (outcome.tokens, outcome.score, outcome.kept_rows) == ((2, 3, 4), 1.0, 7)

    def test_an_answer_that_is_under_way_is_fed_by_steps(self) -> None:
        session: Any = FakeSession()
        example = Example("t", 0, 0, (4, 5), (), "tokens", 2, answer_tokens=(7, 8), spoken=(3, 6))
        outcome = run_example(session, example, None)
        assert session.calls[1:] == [("replay", 0), {0: 3}, {0: 6}, {0: 7}]
        assert (outcome.tokens, outcome.score) == ((7, 8), 1.0)

    def test_a_token_that_ends_the_text_ends_it(self) -> None:
        session: Any = FakeSession(ends=(3,))
        outcome = run_example(session, Example("t", 0, 0, (4,), (), "tokens", 6, answer_tokens=(2, 4)), None)
        assert (outcome.tokens, outcome.score) == ((2, 3), 0.0)

    def test_nats(self) -> None:
        session: Any = FakeSession()
        outcome = run_example(session, Example("t", 0, 0, (4,), (), "nats", 0, continuation=(2, 3, 8)), None)
        total = math.log(math.exp(3) + 8)  # of the exponentials of 9 logits
        assert outcome.score == pytest.approx(((total - 3) + (total - 3) + total) / 3)
        assert session.calls[2:] == [{0: 2}, {0: 3}]  # the last one need not be fed
        assert outcome.tokens == ()


class TestResuming:
    @pytest.fixture
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Count the examples that are run."""
        names: list[str] = []

        def run(session: Any, example: Any, tokenizer: Any) -> ExampleResult:
            names.append(example.name)
            return run_example(session, example, tokenizer)

        monkeypatch.setattr(runner, "run_example", run)
        return names

    def test_nothing_is_done_twice(
        self, options: EvalOptions, folder: Path, evaluation: Evaluation, counted: list[str]
    ) -> None:
        compiled = sorted((folder / WORK).glob("*.rdu"))
        again = evaluate(options, folder)
        assert not counted
        assert [cell.to_dict() for cell in again.cells] == [cell.to_dict() for cell in evaluation.cells]
        assert sorted((folder / WORK).glob("*.rdu")) == compiled
        assert len(compiled) == 4

    def test_more_examples_are_added(
        self, options: EvalOptions, folder: Path, evaluation: Evaluation, counted: list[str], tmp_path: Path
    ) -> None:
        copied(folder, tmp_path)
        evaluate(replace(options, examples=3), tmp_path)
        assert counted == ["passkey@250#2", "perplexity@250#2"] * 4

    @pytest.mark.parametrize("done", [0, 3, 13])
    def test_a_run_that_was_killed_goes_on(
        self,
        done: int,
        options: EvalOptions,
        folder: Path,
        evaluation: Evaluation,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        left = iter(range(done))

        def killed(session: Any, example: Any, tokenizer: Any) -> ExampleResult:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return run_example(session, example, tokenizer)

        copied(folder, tmp_path, journal=False)
        monkeypatch.setattr(runner, "run_example", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(options, tmp_path)
        assert len(journal(tmp_path)) == 1 + done
        with (tmp_path / JOURNAL).open("a") as file:
            file.write('{"cell": "full", "exam')  # the line that it died in
        monkeypatch.setattr(runner, "run_example", run_example)
        resumed = evaluate(options, tmp_path)
        assert without_time(journal(tmp_path)) == without_time(journal(folder))
        assert values_of(resumed) == values_of(evaluation)

    @pytest.mark.parametrize(
        ("change", "fields"),
        [
            (lambda o: replace(o, seed=1), {"option": "seed", "recorded": "0", "value": "1"}),
            (lambda o: replace(o, budgets=(40,)), {"option": "budgets", "recorded": "[32]", "value": "[40]"}),
            (lambda o: replace(o, selection=replace(SMALL, obs=5)), {"option": "selection"}),
        ],
    )
    def test_other_options_are_refused(
        self, change: Callable[[EvalOptions], EvalOptions], fields: dict[str, str], options: EvalOptions, folder: Path
    ) -> None:
        with raises(EvaluationJournalErrors.OTHER_OPTIONS, **fields):
            evaluate(change(options), folder)

    def test_another_model_is_refused(
        self, options: EvalOptions, folder: Path, evaluation: Evaluation, tmp_path: Path
    ) -> None:
        copied(folder, tmp_path / "results", journal=True)
        other = tmp_path / "tiny"
        other.mkdir()
        for file in options.model.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
        (other / "generation_config.json").write_text("{}")
        with raises(EvaluationJournalErrors.OTHER_OPTIONS, option="model", recorded=f'"{evaluation.digest}"'):
            evaluate(replace(options, model=other), tmp_path / "results")


def copied(folder: Path, to: Path, *, journal: bool = True) -> None:
    """Results from which a run can continue: the journal, and links to the programs."""
    to.mkdir(exist_ok=True)
    (to / WORK).symlink_to(folder / WORK)
    if journal:
        (to / JOURNAL).write_bytes((folder / JOURNAL).read_bytes())


def values_of(evaluation: Evaluation) -> list[dict[str, Any]]:
    cells = [cell.to_dict() for cell in evaluation.cells]
    for cell in cells:
        for score in cell["scores"]:
            del score["seconds"]
    return cells


class TestReport:
    def test_tables(self, evaluation: Evaluation) -> None:
        scores, nats = report.tables(evaluation.cells)
        assert scores[0] == ["cache", "KV", "passkey@250 (n=2)", "mine (n=2)", "mean"]
        assert nats[0] == ["cache", "KV", "perplexity@250 (n=2)"]
        assert [row[0] for row in scores[1:]] == [cell.cell.name for cell in evaluation.cells]
        assert all(len(row) == len(scores[0]) for row in scores)
        assert re.fullmatch(r"\d+ \(\d+ to \d+\)", scores[1][2])
        assert re.fullmatch(r"\d\.\d{3} \+- \d\.\d{3} \(ppl \d+\.\d\d; [+-]\d\.\d{3} \+- \d\.\d{3}\)", nats[-1][2])
        assert report.markdown([["a", "b"], ["c", "1"]]) == "| a | b |\n| --- | ---: |\n| c | 1 |"
        assert report.text([["a", "bb"], ["ccc", "1"]]) == "a    bb\nccc   1"

    def test_json_has_everything(self, options: EvalOptions, evaluation: Evaluation) -> None:
        values = json.loads(report.to_json(report.results(options, evaluation)))
        assert values["model"] == {"name": "tiny", "sha256": evaluation.digest}
        assert values["options"]["seed"] == 0
        assert values["versions"].keys() >= {"sscc", "torch"}
        assert [cell["budget"] for cell in values["cells"]] == [None, BUDGET, BUDGET, BUDGET]
        for cell, summary in zip(values["cells"], evaluation.cells, strict=True):
            assert Geometry.from_dict(cell["geometry"]) == summary.cell.geometry
            assert [score["group"] for score in cell["scores"]] == ["passkey@250", "perplexity@250", "mine"]
            assert all(score["low"] <= score["mean"] <= score["high"] for score in cell["scores"])
        assert values["cells"][1]["kv_bytes"] == BUDGET * 2 * 2 * 2 * 8 * 4

    def test_records_and_examples_are_read_again(self, folder: Path, evaluation: Evaluation) -> None:
        records = [Record(**line) for line in journal(folder)[1:]]
        assert records == [record for cell in evaluation.cells for record in cell.records.values()]
        lines = [json.loads(line) for line in (folder / runner.EXAMPLES).read_text().splitlines()]
        assert [tuple(line["prompt_tokens"]) for line in lines] == [e.prompt for e in evaluation.examples]

    def test_the_plot_is_svg_and_always_the_same(self, evaluation: Evaluation) -> None:
        drawn = plot(evaluation.cells, "tiny")
        text = "".join(ElementTree.fromstring(drawn).itertext())
        assert drawn == plot(evaluation.cells, "tiny")
        words = ("snapstream", "full", "KV cache per sequence (MiB)", "nats per token", "passkey@250")
        assert all(word in text for word in words)


class TestOptions:
    def test_defaults_are_valid(self) -> None:
        assert asdict(EvalOptions(Path("model")))["seed"] == 0

    @pytest.mark.parametrize(
        ("values", "kind", "fields"),
        [
            ({"tasks": ("chess",)}, EvaluationOptionErrors.UNKNOWN_TASK, {"task": "chess"}),
            ({"tasks": ()}, EvaluationOptionErrors.NOTHING_TO_EVALUATE, {}),
            ({"tasks": ("perplexity",)}, EvaluationOptionErrors.PERPLEXITY_WITHOUT_TEXT, {}),
            ({"text": Path("text")}, EvaluationOptionErrors.TEXT_WITHOUT_PERPLEXITY, {}),
            ({"lengths": ()}, EvaluationOptionErrors.NO_LENGTH, {}),
            (
                {"tasks": ("passkey", "perplexity"), "text": Path("t"), "chat": True},
                EvaluationOptionErrors.PERPLEXITY_OF_CHAT,
                {},
            ),
            ({"lengths": (100, 0)}, OptionRangeErrors.TOO_SMALL, {"option": "--lengths", "value": 0, "least": 1}),
            ({"budgets": (8, 8)}, EvaluationOptionErrors.REPEATED_VALUE, {"option": "--budgets"}),
            ({"examples": None}, EvaluationOptionErrors.NO_EXAMPLES, {}),
            ({"examples": 0}, OptionRangeErrors.TOO_SMALL, {"option": "--examples", "value": 0, "least": 1}),
            ({"interpreter": "other"}, ChoiceErrors.UNKNOWN, {"option": "--interpreter", "value": "other"}),
            (
                {"methods": ("query",), "key_bits": (3,)},
                EvaluationOptionErrors.UNKNOWN_KEY_BITS,
                {"bits": 3, "choices": [1, 2, 4, 16]},
            ),
            (
                {"methods": ("query",), "key_bits": (2, 2)},
                EvaluationOptionErrors.REPEATED_VALUE,
                {"option": "--kv-key-bits"},
            ),
            ({"methods": ("query",), "key_bits": ()}, EvaluationOptionErrors.NO_KEY_BITS, {"method": "query"}),
            (
                {"methods": ("full",), "pools": (7, 15)},
                EvaluationOptionErrors.POOLS_WITHOUT_POOLING,
                {"methods": ["snapkv", "snapstream"]},
            ),
            ({"fetches": (4,)}, EvaluationOptionErrors.FETCH_WITHOUT_QUERY, {"method": "query"}),
            (
                {"methods": ("query",), "fetches": (4, 4)},
                EvaluationOptionErrors.REPEATED_VALUE,
                {"option": "--kv-fetch"},
            ),
            ({"equal_bytes": True}, EvaluationOptionErrors.EQUAL_BYTES_WITHOUT_QUERY, {"method": "query"}),
        ],
    )
    def test_refusals(self, values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
        with raises(kind, **fields):
            EvalOptions(Path("model"), **values)

    def test_a_model_that_is_not_there(self, tmp_path: Path) -> None:
        with raises(FileErrors.MISSING, path=tmp_path / "none"):
            evaluate(EvalOptions(tmp_path / "none"), tmp_path / "results")

    def test_tasks_of_one_name_are_refused(self, options: EvalOptions, tmp_path: Path) -> None:
        twin = tmp_path / "mine.jsonl"
        twin.write_bytes(options.files[0].read_bytes())
        with raises(EvaluationErrors.REPEATED_EXAMPLE, example="mine#0", times=2):
            evaluate(replace(options, files=(options.files[0], twin)), tmp_path / "results")

    def test_a_model_without_a_tokenizer_takes_tokens(self, model: Path, tmp_path: Path) -> None:
        bare = tmp_path / "bare"
        bare.mkdir()
        for name in ("config.json", "model.safetensors"):
            (bare / name).write_bytes((model / name).read_bytes())
        with raises(EvaluationOptionErrors.NO_TOKENIZER, model=bare, task="passkey"):
            evaluate(EvalOptions(bare, tasks=("passkey",)), tmp_path / "none")
        (tmp_path / "t.jsonl").write_text('{"tokens": [5, 6, 7, 8], "answer_tokens": [1, 2]}\n')
        only = EvalOptions(
            bare, tasks=(), files=(tmp_path / "t.jsonl",), methods=("full",), examples=None, interpreter="reference"
        )
        (cell,) = evaluate(only, tmp_path / "results").cells
        record = cell.records["t#0"]
        assert len(record.tokens) == 2
        assert record.score == float(record.tokens == [1, 2])


def test_cells_that_read_a_part_of_their_prompts(options: EvalOptions, model: Path, tmp_path: Path) -> None:
    """Each prompt is scored once, the full cache is compared too, and a run continues only with the same draft."""
    draft = tmp_path / "draft.rdu"
    compile_model(CompileOptions(model, draft, max_context=512, kv_budget=64))
    given = replace(options, tasks=("passkey",), text=None, methods=("full", "snapstream"), examples=1)
    given = replace(given, draft=draft, keeps=(0.5, 1.0))
    found = evaluate(given, tmp_path / "results")
    names = [cell.cell.name for cell in found.cells]
    rows = f"snapstream {BUDGET}"
    assert names == ["full", "full keep 0.5", "full keep 1", rows, f"{rows} keep 0.5", f"{rows} keep 1"]
    records = {cell.cell.name: cell.records for cell in found.cells}
    for example in found.examples:
        said = {name: each[example.name].tokens for name, each in records.items()}
        assert said["full"] == said["full keep 1"]
        assert said[rows] == said[f"{rows} keep 1"]
        halves = records["full keep 0.5"][example.name]
        chunks = math.ceil(len(example.prompt) / 32)
        most = 32 * math.ceil(chunks / 2) + len(halves.tokens)
        assert halves.kept_rows <= most < len(example.prompt) + len(halves.tokens) or chunks < 2
        assert halves.prompt_tokens == len(example.prompt)
    assert report.paired(found.cells) is not None
    assert evaluate(given, tmp_path / "results").cells[1].records == records["full keep 0.5"]
    with raises(EvaluationJournalErrors.OTHER_OPTIONS, option="keeps", recorded="[0.5, 1.0]", value="[0.5]"):
        evaluate(replace(given, keeps=(0.5,)), tmp_path / "results")
