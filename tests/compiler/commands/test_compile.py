"""`sscc compile` and `sscc pack` from the command line: output, files and refusals."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.driver.preflight import PreflightErrors
from sscc.compiler.frontend.admission import AdmissionErrors
from sscc.compiler.frontend.checkpoint import CheckpointErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors
from sscc.ir.geometry import GeometryErrors
from tests.errors import check, one_line

Capture = pytest.CaptureFixture[str]
SMALL = ["--kv-budget", "48", "--max-context", "64", "--prefill-chunk", "32"]


def test_the_artifact_goes_into_the_current_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compile", str(checkpoint), "--target", "rdu", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("sscc: wrote tiny-0.1b.rdu\n")
    assert "sink 4 + recent 39 + topk 5" in err
    assert json.loads((tmp_path / "tiny-0.1b.rdu" / "manifest.json").read_text())["geometry"]["max_context"] == 64


def test_quiet_prints_nothing(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "graph.mlir"
    assert cli.main(["compile", str(checkpoint), "-q", "-o", str(output), "--compile-to", "graph", *SMALL]) == 0
    assert output.is_file()
    assert capsys.readouterr() == ("", "")


def test_a_packed_checkpoint_gives_the_same_artifact(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    packed = tmp_path / "model.pt"
    assert cli.main(["pack", str(checkpoint), "-o", str(packed)]) == 0
    assert "with a tokenizer" in capsys.readouterr().err
    for model, name in ((checkpoint, "folder.rdu"), (packed, "packed.rdu")):
        assert cli.main(["compile", str(model), "-q", "-o", str(tmp_path / name), *SMALL]) == 0
    schedules = [(tmp_path / name / "schedule.json").read_bytes() for name in ("folder.rdu", "packed.rdu")]
    tokenizers = [(tmp_path / name / "tokenizer/tokenizer.json").read_bytes() for name in ("folder.rdu", "packed.rdu")]
    assert schedules[0] == schedules[1]
    assert tokenizers[0] == tokenizers[1]


def test_a_packed_file_is_named_after_the_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pack", str(checkpoint), "-q"]) == 0
    assert (tmp_path / "tiny-0.1b.pt").is_file()


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (["compile", "/nowhere/model"], CheckpointErrors.MISSING, {"path": "/nowhere/model"}),
        (
            ["compile", "{model}", "--max-context", "129"],
            AdmissionErrors.CONTEXT_TOO_LONG,
            {"context": 129, "limit": 128},
        ),
        (
            ["compile", "{model}", "--kv-budget", "16"],
            GeometryErrors.BUDGET,
            {"budget": 16, "sink": 4, "recent": 39, "rows": 43},
        ),
        (
            ["compile", "{model}", "-o", "/proc/nowhere/x.rdu", "--kv-budget", "48"],
            PreflightErrors.NO_FOLDER,
            {"path": "/proc/nowhere/x.rdu", "folder": "/proc/nowhere"},
        ),
        (["pack", "/nowhere/model"], CheckpointErrors.MISSING, {"path": "/nowhere/model"}),
        (
            ["pack", "{model}", "-o", "/proc/nowhere/model.pt"],
            FileErrors.CANNOT_WRITE,
            {"path": "/proc/nowhere/model.pt", "reason": os.strerror(errno.ENOENT)},
        ),
        (["pack", "{model}", "-o", "model.bin"], CheckpointErrors.PACKED_NAME, {"path": "model.bin"}),
    ],
)
def test_refusals_are_one_line(
    words: list[str], kind: ErrorKind, fields: dict[str, Any], checkpoint: Path, capsys: Capture
) -> None:
    check(one_line([word.format(model=checkpoint) for word in words] + ["-q"], capsys), kind, **fields)
