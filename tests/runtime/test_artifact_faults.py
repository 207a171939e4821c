"""Writing an artifact while the disk fails or the process is killed, at every single step: there is the old one or the
new one, whole, and what was left behind goes away with the next write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sscc.ir import files
from sscc.ir.errors import OutputError
from sscc.runtime.artifact import writer as artifact_writer
from sscc.runtime.session.artifact import Artifact
from tests.faults import CODES, fails, faults, killed_at, slows
from tests.runtime.test_artifact import contents, write

MODES = ("embedded", "reference")
"""Modes of the artifact that is there and of the one that is written, so that their contents differ."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "m.rdu"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Return the contents of an artifact of each mode."""
    folder = tmp_path_factory.mktemp("whole")
    for mode in MODES:
        write(folder / f"{mode}.rdu", mode)
        assert Artifact.load(folder / f"{mode}.rdu").manifest.weights.mode == mode
    Artifact.load(folder / "embedded.rdu").weights()
    return {mode: contents(folder / f"{mode}.rdu") for mode in MODES}


@pytest.fixture(params=["exchanged", "renamed"])
def exchanging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if the test's file system can swap two names atomically; False if it is made to rename instead."""
    if request.param == "renamed":
        for module in (files, artifact_writer):
            monkeypatch.setattr(module, "exchange", lambda first, second: False)
    return bool(request.param == "exchanged")


def held(out: Path, whole: dict[str, dict[str, bytes]]) -> str | None:
    """The mode of the artifact that is there, whose files must be those of a whole one; None where there is none."""
    if not out.exists():
        return None
    assert not any(path.is_symlink() for path in (out, *out.rglob("*")))
    present = contents(out)
    modes = [mode for mode in MODES if whole[mode] == present]
    assert modes, sorted(present)
    return modes[0]


@pytest.mark.parametrize(("replaced", "code"), [(True, CODES[0]), (False, CODES[1])])
def test_a_step_that_fails_is_one_error_and_leaves_the_old_one(
    out: Path, whole: dict[str, dict[str, bytes]], exchanging: bool, replaced: bool, code: int
) -> None:
    if replaced:
        write(out)
    before, steps = held(out, whole), 0
    while True:
        with faults(steps, fails(code)) as taken:
            try:
                write(out, MODES[1])
            except OutputError as error:
                refused = str(error)
            else:
                refused = ""
        if len(taken.names) <= steps:
            break
        name, now = taken.names[steps], held(out, whole)
        assert now in (before, MODES[1]), name
        assert now == MODES[1] or refused == f"{out} cannot be written: {os.strerror(code)}", name
        if name not in ("unlink", "rmdir"):  # where nothing can be removed, something is left until the next write
            assert os.listdir(out.parent) == ([] if now is None else [out.name]), name
        if now == MODES[1] and before != now:
            write(out, before or MODES[1])
        steps += 1
    assert steps > 20
    assert os.listdir(out.parent) == [out.name]
    assert held(out, whole) == Artifact.load(out).manifest.weights.mode == MODES[1]


def test_a_process_that_is_killed_leaves_the_old_or_the_new_one(
    out: Path, whole: dict[str, dict[str, bytes]], exchanging: bool
) -> None:
    assert killed_at(0, lambda: write(out, MODES[1]))
    assert held(out, whole) is None
    write(out)
    before, step, seen = held(out, whole), 0, set()
    while killed_at(step, lambda: write(out, MODES[1])):
        now = held(out, whole)
        assert now in (before, MODES[1]) or not exchanging, f"step {step}"
        seen.add(now)
        if step % 5 == 0 or now != before:  # otherwise leftovers accumulate; all of them must be removed
            write(out, MODES[0])
            assert os.listdir(out.parent) == [out.name], f"step {step}"
            assert held(out, whole) == Artifact.load(out).manifest.weights.mode == MODES[0]
            before = MODES[0]
        step += 1
    assert step > 20
    assert seen >= {MODES[0], MODES[1]}
    assert os.listdir(out.parent) == [out.name]


def test_what_a_living_writer_makes_is_left_alone(out: Path) -> None:
    with artifact_writer.ArtifactWriter(out) as writer:
        writer.write_text("schedule.json", "{}")
        during = set(os.listdir(out.parent))
        write(out)
        assert set(os.listdir(out.parent)) == during | {out.name}
        writer.finish(Artifact.load(out).manifest)
    assert os.listdir(out.parent) == [out.name]


def test_readers_of_a_slow_disk_see_the_old_or_the_new_one(out: Path, whole: dict[str, dict[str, bytes]]) -> None:
    write(out)
    stop, seen, errors = threading.Event(), set(), []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add(Artifact.load(out).manifest.weights.mode)
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for mode in (*MODES, *MODES):
            with faults(None, slows):
                write(out, mode)
    finally:
        stop.set()
        reader.join()
    assert errors == []
    assert seen == {*MODES}


def test_everything_is_flushed_to_the_disk_before_it_appears(out: Path, whole: dict[str, dict[str, bytes]]) -> None:
    write(out)
    synced: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", recording)
        patch.setattr(artifact_writer, "exchange", lambda *names: synced.append("exchange") or files.exchange(*names))
        write(out, MODES[1])
    before, after = synced[: synced.index("exchange")], synced[synced.index("exchange") + 1 :]
    assert {Path(name).name for name in whole[MODES[1]]} | {"weights", "tokenizer", "golden"} <= {*before}
    assert any(name.startswith(".m.rdu.") for name in before)
    assert after == [out.parent.name]
