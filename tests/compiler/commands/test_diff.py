"""`sscc diff`: what differs between two artifacts, or two dumps, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.diff import DiffErrors
from tests.errors import check, one_line

WORDS = ["--kv-sink", "2", "--kv-recent", "8", "--kv-obs", "4", "--kv-pool", "3", "--prefill-chunk", "16", "-q"]


@pytest.fixture(scope="module")
def smaller(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An artifact of 14 rows in place of 16, and the dumps that it went through."""
    folder = tmp_path_factory.mktemp("smaller")
    words = ["compile", str(checkpoint), "-o", str(folder / "small.rdu"), "--dump-ir-dir", str(folder / "ir")]
    assert main([*words, *WORDS, "--kv-topk", "4", "--batch", "2"]) == 0
    return folder / "small.rdu", folder / "ir"


def facts(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["diff", *words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_artifacts(artifact: Path, smaller: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    answer = facts([str(artifact), str(smaller[0])], capsys)
    a, b = answer["a"], answer["b"]
    assert (a["signature.geometry.topk"], b["signature.geometry.topk"]) == (6, 4)
    assert 14 * a["kv_bytes"] == 16 * b["kv_bytes"]
    assert a["weights"] == b["weights"]
    assert {"schedule", "signature.geometry.topk", "kv_bytes", "decode.seconds"} <= set(answer["differing"])
    assert not {"weights", "launches_per_token", "signature.geometry.sink"} & set(answer["differing"])
    assert main(["diff", str(artifact), str(smaller[0])]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["signature.geometry.topk"].split()[1:] == ["6", "4", "0.667x"]
    assert lines["kv_bytes"].endswith("0.875x")
    assert "weights" not in lines


def test_an_artifact_and_its_copy(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.rdu"
    shutil.copytree(artifact, copy)
    assert main(["diff", str(artifact), str(copy), "--prompt", "abc", "--max-new-tokens", "3"]) == 0
    out = capsys.readouterr().out
    assert "all 3 new tokens are the same" in out
    assert "\n0 of " in out


def test_tokens(artifact: Path, smaller: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The selected rows differ, and so do the tokens from some place on, which is named."""
    words = ["--token-ids", ",".join(str(17 * at % 200) for at in range(60)), "--max-new-tokens", "40"]
    answer = facts([str(artifact), str(smaller[0]), *words], capsys)
    a, b = answer["a"]["tokens"], answer["b"]["tokens"]
    assert a != b
    first = next(at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])
    assert main(["diff", str(artifact), str(smaller[0]), *words]) == 0
    assert f"the first {first} new tokens are the same, then {a[first]} and {b[first]}" in capsys.readouterr().out


def test_dumps(smaller: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (next(smaller[1].glob(f"*-{name}.mlir")) for name in ("merge-equal-kernels", "kernel-looping"))
    answer = facts([str(before), str(after)], capsys)
    assert (answer["a"]["level"], answer["b"]["level"]) == ("kernels", "looped")
    assert answer["b"]["passes"] == [*answer["a"]["passes"], "kernel-looping"]
    assert answer["a"]["operations.func.call"] > answer["b"]["operations.func.call"]
    assert "geometry.topk" not in answer["differing"]
    assert main(["diff", str(before), str(after)]) == 0
    assert "\n  only B: kernel-looping\n" in capsys.readouterr().out


def test_two_of_a_kind(artifact: Path, smaller: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    dump = str(next(smaller[1].glob("*.mlir")))
    check(one_line(["diff", str(artifact), dump], capsys), DiffErrors.OTHER_KIND, a=artifact, b=dump)
    check(one_line(["diff", dump, dump, "--prompt", "abc"], capsys), DiffErrors.DUMPS_DO_NOT_RUN)
