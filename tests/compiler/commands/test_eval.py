"""`sscc eval`: a whole run by the command line, its files, and refusals in one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.quality import plot
from sscc.compiler.tools.quality.cells import CellErrors
from sscc.compiler.tools.quality.eval_options import EvaluationOptionErrors
from sscc.compiler.tools.quality.journal import EvaluationJournalErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.extras import ExtraErrors
from sscc.ir.geometry import GeometryErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.ir.weight_formats.groups import GroupFormatErrors
from tests.compiler.commands.chatting import TEMPLATE
from tests.errors import check, one_line

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    line = {"prompt": "The quick brown fox jumps over the lazy dog", "answers": ["a"], "max_new_tokens": 3}
    path.write_text(json.dumps(line) + "\n")
    return path


def words(model: Path, questions: Path, output: Path) -> list[str]:
    """Two cells of a model, by the reference interpreter, which needs no code."""
    cells = [
        "--methods",
        "full",
        "snapstream",
        "--budgets",
        "24",
        "--kv-recent",
        "8",
        "--kv-obs",
        "4",
        "--kv-sink",
        "2",
    ]
    machine = ["--interpreter", "reference", "--prefill-chunk", "16"]
    return ["eval", str(model), "-o", str(output), "--examples-file", str(questions), *cells, *machine]


def test_a_run(checkpoint: Path, questions: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "results"
    assert cli.main(words(checkpoint, questions, output)) == 0
    out, err = capsys.readouterr()
    heading, full, cut = out.splitlines()
    assert heading.split() == ["cache", "KV", "questions", "(n=1)"]
    assert full.startswith("full ")
    assert cut.startswith("snapstream 24 ")
    assert err == f"sscc: wrote {output}\n"  # no bar: this is no terminal
    results = json.loads((output / "results.json").read_text())
    assert [cell["name"] for cell in results["cells"]] == ["full", "snapstream 24"]
    assert results["options"]["prefill_chunk"] == 16
    assert (output / "report.md").read_text().count("\n| ") == 4
    assert ElementTree.parse(output / "plot.svg").getroot().tag.endswith("svg")

    records = (output / "records.jsonl").read_bytes()
    assert cli.main(words(checkpoint, questions, output)) == 0
    assert (output / "records.jsonl").read_bytes() == records
    assert capsys.readouterr().out == out

    error = one_line([*words(checkpoint, questions, output), "--seed", "5"], capsys)
    other = {"path": output / "records.jsonl", "option": "seed", "recorded": "0", "value": "5"}
    check(error, EvaluationJournalErrors.OTHER_OPTIONS, **other)


@pytest.mark.parametrize("error", [ValueError("'yerr' must not contain negative values"), OSError(28, "no space")])
def test_a_plot_that_fails_takes_no_table_along(
    error: Exception,
    checkpoint: Path,
    questions: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> bytes:
        raise error

    monkeypatch.setattr(plot, "plot", fail)
    output = tmp_path / "results"
    assert cli.main(words(checkpoint, questions, output)) in (6, 70)
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["cache", "full", "snapstream"]
    assert len(json.loads((output / "results.json").read_text())["cells"]) == 2
    assert (output / "report.md").read_text().count("\n| ") == 4
    assert "plot.svg" not in (output / "report.md").read_text()
    assert not (output / "plot.svg").exists()
    assert err.count("\n") == 1


def test_chat(checkpoint: Path, questions: Path, tmp_path: Path, capsys: Capture) -> None:
    model, output = tmp_path / "chatty", tmp_path / "results"
    shutil.copytree(checkpoint, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    assert cli.main([*words(model, questions, output), "--chat", "--no-plot"]) == 0
    assert json.loads((output / "results.json").read_text())["options"]["chat"] is True
    (example,) = map(json.loads, (output / "examples.jsonl").read_text().splitlines())
    assert example["prompt"] == "u:The quick brown fox jumps over the lazy dog;a:"
    assert "turns of the model's chat template" in (output / "report.md").read_text()
    error = one_line([*words(model, questions, output), "--no-plot"], capsys)
    other = {"path": output / "records.jsonl", "option": "chat", "recorded": "true", "value": "null"}
    check(error, EvaluationJournalErrors.OTHER_OPTIONS, **other)


@pytest.mark.parametrize(
    ("added", "kind", "fields"),
    [
        (["--tasks", "chess"], EvaluationOptionErrors.UNKNOWN_TASK, {"task": "chess"}),
        (["--methods", "h2o"], CellErrors.UNKNOWN_METHOD, {"method": "h2o"}),
        (
            ["--budgets", "4000"],
            GeometryErrors.TOPK_EXCEEDS_CONTEXT,
            {"topk": 3990, "max_context": 46, "sink": 2, "recent": 8, "most": 36},
        ),
        (["--dtype", "f16"], ChoiceErrors.UNKNOWN, {"option": "--dtype", "value": "f16", "choices": ["f32", "bf16"]}),
        (["--weights", "int3"], GroupFormatErrors.UNKNOWN, {"text": "int3"}),
        (
            ["--kv-dtype", "int2"],
            ChoiceErrors.UNKNOWN,
            {"option": "--kv-dtype", "value": "int2", "choices": ["model", "int8", "int4"]},
        ),
        (["--tasks", "ruler:vt"], ExtraErrors.NOT_INSTALLED, {"extra": "ruler"}),
        (["--text", "no.txt"], EvaluationOptionErrors.TEXT_WITHOUT_PERPLEXITY, {}),
        (["--tasks", "perplexity"], EvaluationOptionErrors.PERPLEXITY_WITHOUT_TEXT, {}),
        (["--chat"], EvaluationOptionErrors.NO_CHAT_TEMPLATE, {}),
        (["--chat", "--tasks", "perplexity", "--text", "t"], EvaluationOptionErrors.PERPLEXITY_OF_CHAT, {}),
    ],
)
def test_refusals(
    added: list[str],
    kind: ErrorKind,
    fields: dict[str, Any],
    checkpoint: Path,
    questions: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "long_context_eval", None)
    output = tmp_path / "results"
    error = one_line([*words(checkpoint, questions, output), *added], capsys)
    check(error, kind, **fields)
    assert error.fields.get("model", str(checkpoint)) == str(checkpoint)
    assert not (output / "records.jsonl").exists()


def test_without_matplotlib(
    checkpoint: Path, questions: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = one_line(words(checkpoint, questions, tmp_path / "results"), capsys)
    check(error, ExtraErrors.NOT_INSTALLED, packages=["matplotlib"])
