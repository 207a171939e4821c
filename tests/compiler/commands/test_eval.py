"""`sscc eval`: a whole run by the command line, its files, and refusals in one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sscc.compiler import cli
from sscc.compiler.quality import plot
from sscc.ir.errors import UsageError
from tests.compiler.commands.chatting import TEMPLATE

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

    assert cli.main([*words(checkpoint, questions, output), "--seed", "5"]) == 2
    assert "records.jsonl was made with seed 0, not 5:" in capsys.readouterr().err


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
    capsys.readouterr()
    assert cli.main([*words(model, questions, output), "--no-plot"]) == 2
    assert "records.jsonl was made with chat true, not null" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("added", "named"),
    [
        (["--tasks", "chess"], ["--tasks", "'chess'", "passkey, niah_single"]),
        (["--methods", "h2o"], ["--methods", "'h2o'", "snapstream"]),
        (["--budgets", "4000"], ["--kv-topk", "--max-context"]),
        (["--dtype", "f16"], ["--dtype", "'f16'", "f32", "bf16"]),
        (["--weights", "int3"], ["int3"]),
        (["--kv-dtype", "int2"], ["--kv-dtype", "'int2'", "model", "int8"]),
        (["--tasks", "ruler:vt"], ["pip install 'sscc[ruler]'"]),
        (["--text", "no.txt"], ["perplexity", "--text"]),
        (["--tasks", "perplexity"], ["perplexity", "--text"]),
        (["--chat"], ["tiny-0.1b", "--chat"]),
        (["--chat", "--tasks", "perplexity", "--text", "t"], ["perplexity", "--chat"]),
    ],
)
def test_refusals(
    added: list[str],
    named: list[str],
    checkpoint: Path,
    questions: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "long_context_eval", None)
    output = tmp_path / "results"
    assert cli.main([*words(checkpoint, questions, output), *added]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in named)
    assert error.count("\n") == 1
    assert not (output / "records.jsonl").exists()


def test_without_matplotlib(
    checkpoint: Path, questions: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise UsageError("the plot needs matplotlib: ..")

    monkeypatch.setattr(plot, "require_plotting", missing)
    assert cli.main(words(checkpoint, questions, tmp_path / "results")) == 2
    assert "the plot needs matplotlib" in capsys.readouterr().err
