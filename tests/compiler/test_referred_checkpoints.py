"""Checkpoints that artifacts refer to: only the user's cache says where they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sscc.compiler.driver import referred_checkpoints
from sscc.compiler.driver.referred_checkpoints import (
    ReferredCheckpointErrors,
    ReferredCheckpointWarnings,
    check_referable,
    recalled,
    remember,
)
from sscc.compiler.options.warning import collecting
from sscc.ir.errors import SsccError
from sscc.runtime.support.user_cache import CacheErrors
from tests.errors import check, raises

DIGEST = "0123456789abcdef" * 4
ARTIFACT = Path("model.rdu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder as the hub's cache has it: its files are links."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    for name in ("config.json", "model.safetensors", "README.md"):
        (tmp_path / f"blob-{name}").write_text(name)
        (made / name).symlink_to(tmp_path / f"blob-{name}")
    return made


def refused(digest: str = DIGEST) -> SsccError:
    with pytest.raises(SsccError) as caught:
        recalled(digest, ARTIFACT)
    assert "--checkpoint" in str(caught.value)
    assert caught.value.exit_code == 5
    return caught.value


def test_nothing_is_remembered_at_first(folder: Path) -> None:
    check(refused(), ReferredCheckpointErrors.NOT_REMEMBERED, artifact="model.rdu")
    remember(DIGEST, folder)
    assert recalled(DIGEST, ARTIFACT) == folder
    check(refused("f" * 64), ReferredCheckpointErrors.NOT_REMEMBERED)


def test_a_single_file_and_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    remember(DIGEST, Path("x.gguf"))
    monkeypatch.chdir("/")
    assert recalled(DIGEST, ARTIFACT) == tmp_path / "x.gguf"


def test_every_part_of_a_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"x-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    for part in parts:
        part.write_bytes(b"x")
    remember(DIGEST, parts[1])
    assert recalled(DIGEST, ARTIFACT) == parts[1]
    parts[2].write_bytes(b"xy")
    check(refused(), ReferredCheckpointErrors.CHANGED, checkpoint=str(parts[1]))


def test_the_last_place_counts(folder: Path, tmp_path: Path) -> None:
    remember(DIGEST, folder)
    moved = folder.rename(tmp_path / "moved")
    check(refused(), ReferredCheckpointErrors.GONE, checkpoint=str(folder))
    remember(DIGEST, moved)
    assert recalled(DIGEST, ARTIFACT) == moved


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("how", ["written", "replaced", "removed", "pipe"])
def test_files_that_have_changed(folder: Path, name: str, how: str) -> None:
    remember(DIGEST, folder)
    target = (folder / name).resolve()
    if how == "written":
        target.write_text(f"{name}!")
    elif how == "replaced":  # by one of the same size and time
        state = target.stat()
        target.rename(target.with_name("old"))
        target.write_text(name)
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
    else:
        target.unlink()
        if how == "pipe":
            os.mkfifo(target)
    gone = how == "removed"
    kind = ReferredCheckpointErrors.GONE if gone else ReferredCheckpointErrors.CHANGED
    check(refused(), kind, checkpoint=str(folder))


def test_files_that_are_no_weights_may_change(folder: Path) -> None:
    remember(DIGEST, folder)
    (folder / "README.md").write_text("other")
    (folder / "notes.txt").touch()
    assert recalled(DIGEST, ARTIFACT) == folder
    (folder / "model-00002.safetensors").touch()
    check(refused(), ReferredCheckpointErrors.CHANGED)


@pytest.mark.parametrize(
    "note", ["", "{", "[]", "[" * 100_000, "{}", '{"path": 3, "files": {}}', '{"path": "a\\u0000b", "files": {}}',
             '{"path": "relative", "files": {}}', '{"path": "/"}']
)  # fmt: skip
def test_a_damaged_note_is_none(cache: Path, folder: Path, note: str) -> None:
    remember(DIGEST, folder)
    (cache / "checkpoints" / DIGEST).write_text(note)
    refused()


def test_a_note_that_somebody_else_may_have_written(cache: Path, folder: Path) -> None:
    remember(DIGEST, folder)
    note = cache / "checkpoints" / DIGEST
    assert (note.stat().st_mode & 0o777, note.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert json.loads(note.read_text())["path"] == str(folder)
    note.chmod(0o666)
    with raises(CacheErrors.FOREIGN_WRITERS, path=note):
        recalled(DIGEST, ARTIFACT)


def test_a_cache_that_cannot_be_written_is_told_of(cache: Path, folder: Path) -> None:
    cache.mkdir()
    (cache / "checkpoints").write_text("in the way")
    with collecting() as warnings:
        remember(DIGEST, folder)
    (warning,) = warnings
    check(warning, ReferredCheckpointWarnings.CANNOT_REMEMBER, checkpoint=str(folder))
    refused()


def test_exported_programs_are_not_referred_to() -> None:
    for name in ("x.pt2", "X.PT2"):
        with raises(ReferredCheckpointErrors.EXPORTED_PROGRAM, path=name):
            check_referable(Path(name))
    for name in ("x.pt", "x.gguf", "folder", "pt2"):
        check_referable(Path(name))
    assert ReferredCheckpointErrors.EXPORTED_PROGRAM.error.exit_code == 2
    assert referred_checkpoints.EXPORTED == ".pt2"
