"""`sscc compile` and `sscc pack` from the command line: what they say, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sscc.compiler import cli

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
    ("words", "code", "message"),
    [
        (["compile", "/nowhere/model"], 5, "/nowhere/model does not exist"),
        (["compile", "{model}", "--max-context", "129"], 2, "--max-context 129 exceeds the 128 positions"),
        (["compile", "{model}", "--kv-budget", "16"], 2, "a KV budget of 16 rows cannot hold sink 4 + recent 39"),
        (["compile", "{model}", "-o", "/proc/nowhere/x.rdu", "--kv-budget", "48"], 6, "/proc/nowhere"),
        (["pack", "/nowhere/model"], 5, "/nowhere/model does not exist"),
        (["pack", "{model}", "-o", "/proc/nowhere/model.pt"], 6, "/proc/nowhere/model.pt cannot be written"),
        (["pack", "{model}", "-o", "model.bin"], 2, "the packed file must be named .pt or .pth"),
    ],
)
def test_refusals_are_one_line(words: list[str], code: int, message: str, checkpoint: Path, capsys: Capture) -> None:
    assert cli.main([word.format(model=checkpoint) for word in words] + ["-q"]) == code
    err = capsys.readouterr().err
    assert err.startswith("sscc: error: ")
    assert err.count("\n") == 1
    assert message in err
