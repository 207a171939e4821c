"""Whole evaluations in turns of a chat template, on the tiny random model: what is prefilled, said and refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sscc.compiler.tools.quality import runner
from sscc.compiler.tools.quality import tables as report
from sscc.compiler.tools.quality.eval_options import EvalOptions, EvaluationOptionErrors
from sscc.compiler.tools.quality.journal import EvaluationJournalErrors
from sscc.compiler.tools.quality.runner import JOURNAL, Evaluation, evaluate
from tests.compiler.commands.chatting import TEMPLATE
from tests.compiler.quality.test_runner import BUDGET, SMALL, copied, values_of
from tests.errors import raises


@pytest.fixture(scope="module")
def chat(model: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalOptions:
    """Two pass keys, asked for in turns of a template; a full cache and a cut one."""
    checkpoint = tmp_path_factory.mktemp("chat") / "tiny"
    shutil.copytree(model, checkpoint)
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    return EvalOptions(
        checkpoint,
        tasks=("passkey",),
        lengths=(250,),
        budgets=(BUDGET,),
        methods=("full", "snapstream"),
        selection=SMALL,
        examples=2,
        chat=True,
        threads=1,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def evaluation(chat: EvalOptions, results: Path) -> Evaluation:
    return evaluate(chat, results)


def test_turns_are_what_is_prefilled(results: Path, evaluation: Evaluation) -> None:
    lines = [json.loads(line) for line in (results / runner.EXAMPLES).read_text().splitlines()]
    for line, example in zip(lines, evaluation.examples, strict=True):
        assert line["prompt"] == example.text
        assert example.text.startswith("u:There is an important fact")
        assert example.text.endswith("What is the pass key?;a: The pass key is")
        assert 238 <= len(example.prompt) <= 250
        records = [cell.records[example.name] for cell in evaluation.cells]
        assert [record.prompt_tokens for record in records] == [len(example.prompt)] * 2
        assert records[0].kept_rows == len(example.prompt) + example.max_new_tokens - 1
        assert records[1].kept_rows == BUDGET


def test_reports_say_so(chat: EvalOptions, evaluation: Evaluation) -> None:
    assert report.results(chat, evaluation)["options"]["chat"] is True
    assert report.CHAT in report.page(chat, evaluation, None)
    plain = replace(chat, chat=False)
    assert report.CHAT not in report.page(plain, evaluation, None)


def test_a_run_goes_on_with_the_same_prompts_only(
    chat: EvalOptions, results: Path, evaluation: Evaluation, tmp_path: Path
) -> None:
    copied(results, tmp_path / "again")
    assert values_of(evaluate(chat, tmp_path / "again")) == values_of(evaluation)
    with raises(EvaluationJournalErrors.OTHER_OPTIONS, option="chat", recorded="true", value="null"):
        evaluate(replace(chat, chat=False), tmp_path / "again")
    (tmp_path / "plain").mkdir()
    header = json.loads((results / JOURNAL).read_text().splitlines()[0])
    del header["options"]["chat"]  # as before there was such an option
    (tmp_path / "plain" / JOURNAL).write_text(json.dumps(header) + "\n")
    with raises(EvaluationJournalErrors.OTHER_OPTIONS, option="chat", recorded="null", value="true"):
        evaluate(chat, tmp_path / "plain")


def test_a_checkpoint_without_a_template_is_refused(model: Path, chat: EvalOptions, tmp_path: Path) -> None:
    with raises(EvaluationOptionErrors.NO_CHAT_TEMPLATE, model=model):
        evaluate(replace(chat, model=model), tmp_path / "results")
