"""`--weights reference`: every route opens the checkpoint that the user's cache remembers, or refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sscc
from sscc.compiler.driver.referred_checkpoints import ReferredCheckpointErrors
from sscc.compiler.driver.sessions import open_session
from sscc.compiler.tools.commands import cli
from sscc.runtime.session.artifact import Artifact
from tests.errors import check, one_line, raises

Capture = pytest.CaptureFixture[str]
CACHE = ["--kv-budget", "16", "--kv-recent", "8", "--kv-obs", "4", "--kv-pool", "3", "--prefill-chunk", "16"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user") / "cache"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSCC_CACHE", str(cache))


@pytest.fixture(scope="module")
def referring(checkpoint: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifacts by the words of --weights."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSCC_CACHE", str(cache))
        for weights in ("reference", "reference,int4"):
            made[weights] = tmp_path_factory.mktemp("referring") / "x.rdu"
            words = ["compile", str(checkpoint), "-o", str(made[weights]), "--weights", weights, *CACHE, "-q"]
            assert cli.main(words) == 0
    return made


def from_elsewhere(artifact: Path, folder: Path, source: Path) -> Path:
    """The artifact of another user, or of an earlier version, which names a checkpoint."""
    copy = Path(shutil.copytree(artifact, folder / "foreign.rdu"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["weights"]["source"] = str(source)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize("weights", ["reference", "reference,int4"])
def test_this_user_needs_no_option_here(weights: str, referring: dict[str, Path], checkpoint: Path) -> None:
    artifact = Artifact.load(referring[weights])
    text = (artifact.path / "manifest.json").read_text()
    assert str(checkpoint) not in text
    assert "source" not in json.loads(text)["weights"]
    assert cli.main(["run", str(artifact.path), "--prompt", "a", "--max-new-tokens", "2", "-q"]) == 0


ROUTES: dict[str, Callable[[Path], object]] = {
    "session": lambda path: open_session(Artifact.load(path)),
    "load": sscc.load,
    "LLM": sscc.LLM,
}
COMMANDS = {
    "run": ["run", "ARTIFACT", "--prompt", "a"],
    "reference": ["run", "ARTIFACT", "--prompt", "a", "--interpreter", "reference"],
    "bench": ["bench", "ARTIFACT"],
    "serve": ["serve", "ARTIFACT", "--port", "0"],
    "diff": ["diff", "ARTIFACT", "ARTIFACT", "--prompt", "a"],
    "needed": ["run", "ARTIFACT", "--prompt", "a", "--show-needed"],
}


@pytest.mark.parametrize("route", [*ROUTES, *COMMANDS])
def test_anywhere_else_the_user_names_it(
    route: str, referring: dict[str, Path], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "other-user"))
    foreign = from_elsewhere(referring["reference"], tmp_path, checkpoint)
    if route in ROUTES:
        with raises(ReferredCheckpointErrors.NOT_REMEMBERED, artifact=foreign):
            ROUTES[route](foreign)
        return
    error = one_line([word.replace("ARTIFACT", str(foreign)) for word in COMMANDS[route]], capsys)
    check(error, ReferredCheckpointErrors.NOT_REMEMBERED, artifact=foreign)
    assert "--checkpoint" in str(error)


def test_a_draft_is_an_artifact_too(
    referring: dict[str, Path], artifact: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "other-user"))
    foreign = from_elsewhere(referring["reference"], tmp_path, checkpoint)
    words = ["run", str(artifact), "--prompt", "a" * 60, "--draft", str(foreign), "--keep", "0.5"]
    check(one_line(words, capsys), ReferredCheckpointErrors.NOT_REMEMBERED, artifact=foreign)


def test_the_checkpoint_that_the_user_names(
    referring: dict[str, Path], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "other-user"))
    foreign = from_elsewhere(referring["reference"], tmp_path, tmp_path / "missing")
    words = ["run", str(foreign), "--prompt", "a", "--max-new-tokens", "2", "--checkpoint", str(checkpoint), "-q"]
    assert cli.main(words) == 0
    named = capsys.readouterr().out
    assert cli.main(["run", str(referring["reference"]), "--prompt", "a", "--max-new-tokens", "2", "-q",
                     "--checkpoint", str(checkpoint)]) == 0  # fmt: skip
    assert capsys.readouterr().out == named


@pytest.mark.parametrize("weights", ["reference", "reference,int8"])
def test_an_exported_program_is_embedded(weights: str, tmp_path: Path, capsys: Capture) -> None:
    """It is refused before it is opened."""
    (tmp_path / "x.pt2").write_bytes(b"not opened")
    words = ["compile", str(tmp_path / "x.pt2"), "-o", str(tmp_path / "x.rdu"), "--weights", weights]
    check(one_line(words, capsys), ReferredCheckpointErrors.EXPORTED_PROGRAM, path=tmp_path / "x.pt2")
    assert not (tmp_path / "x.rdu").exists()
