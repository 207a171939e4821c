"""The user's caches when the disk fails or the process is killed, at every step: the command continues or gives the
reason, existing files stay, and an incomplete file is never used."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sscc.compiler.driver.weight_cache import packed_weights
from sscc.ir.errors import OutputError
from sscc.ir.files import replacing
from sscc.runtime.backends.cpu.plan import library
from sscc.runtime.backends.cpu.plan.library import NativeCode, cached_code, can_link
from sscc.runtime.support import verification
from sscc.runtime.support.verification import Claim, verify_files
from tests.compiler import test_weight_cache as weights
from tests.faults import CODES, fails, faults, killed_at
from tests.runtime.backends.cpu.test_library import add_program, works


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "0")
    monkeypatch.setattr(verification, "_SETTLED_NS", -(10**18))  # the test's files are new
    return tmp_path / "cache"


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def every_failure(code: int, prepare: Callable[[], object], work: Callable[[], None], folder: Path) -> int:
    """Prepares and does the work again and again, another step failing each time. Returns how many steps there are."""
    step = 0
    while True:
        prepare()
        with faults(step, fails(code)) as taken:
            work()
        if len(taken.names) <= step:
            return step
        assert taken.names[step] == "unlink" or temporaries(folder) == [], taken.names[step]
        step += 1


@pytest.mark.parametrize("code", CODES)
def test_a_file_is_the_old_or_the_new_one(tmp_path: Path, code: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "x"

    def write() -> None:
        try:
            with replacing(path) as file:
                file.write(b"new")
        except OutputError as error:
            assert str(error) == f"{path} cannot be written: {os.strerror(code)}"  # noqa: PT017
            assert path.read_bytes() in (b"old", b"new")
        else:
            assert path.read_bytes() == b"new"

    assert every_failure(code, lambda: path.write_bytes(b"old"), write, folder) >= 5
    assert os.listdir(folder) == ["x"]


def test_a_killed_writer_of_a_file_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path, step, seen = folder / "x", 0, set()

    def write() -> None:
        with replacing(path) as file:
            file.write(b"new")

    path.write_bytes(b"old")
    while killed_at(step, write):
        seen.add(path.read_bytes())
        step += 1
    assert seen == {b"old", b"new"}
    assert os.listdir(folder) == ["x"]


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> NativeCode:
    """The program's code, made once: what is tested is where it goes."""
    if not can_link():
        pytest.skip("there is no linker here")
    data, made = library._file(add_program()), library.make_code(add_program())
    monkeypatch.setattr(library, "_file", lambda *_: data)
    monkeypatch.setattr(library, "make_code", lambda *_, **__: made)
    return made


@pytest.mark.parametrize("error", CODES)
def test_code_that_cannot_be_kept_runs(
    cache: Path, code: NativeCode, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> None:
        caplog.clear()
        with caplog.at_level(logging.INFO, "sscc"):
            assert works(cached_code(add_program()))
        kept = list(cache.rglob("*.code"))
        assert kept or f"not kept and will be made again in every run: {cache}" in caplog.text

    assert every_failure(error, lambda: shutil.rmtree(cache, ignore_errors=True), run, cache) >= 6


def test_code_whose_writer_was_killed_is_made_again(cache: Path, code: NativeCode) -> None:
    step = 0
    while killed_at(step, lambda: cached_code(add_program())):
        assert works(cached_code(add_program()))
        assert temporaries(cache) == []
        (path,) = cache.rglob("*.code")
        path.unlink()
        step += 1
    assert step >= 6


def pack() -> None:
    packed = packed_weights(weights.RECORD, weights.LAYOUT, weights.READ, weights.no_progress)
    assert all(np.array_equal(packed[name], array) for name, array in weights.WEIGHTS.items())


@pytest.mark.parametrize("code", CODES)
def test_weights_that_cannot_be_packed_are_one_error(cache: Path, code: int) -> None:
    def run() -> None:
        try:
            pack()
        except OutputError as error:
            assert f"cannot be written: {os.strerror(code)} (set SSCC_CACHE to another folder)" in str(error)  # noqa: PT017
        pack()

    assert every_failure(code, lambda: shutil.rmtree(cache, ignore_errors=True), run, cache) >= 12


def test_weights_whose_packing_was_killed_are_packed_again(cache: Path) -> None:
    step = 0
    while killed_at(step, pack):
        pack()
        assert temporaries(cache) == []
        for path in (cache / "weights").iterdir():
            path.unlink()
        step += 1
    assert step >= 12


def verify(path: Path) -> None:
    with path.open("rb") as file:
        verify_files([Claim(path, file, hashlib.sha256(b"weights").hexdigest())])


@pytest.mark.parametrize("code", CODES)
def test_what_cannot_be_remembered_is_verified_again(
    cache: Path, tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x"

    def run() -> None:
        caplog.clear()
        with caplog.at_level(logging.INFO, "sscc"):
            verify(path)
        table = cache / verification.TABLE.file
        with path.open("rb") as file:
            remembered = table.exists() and verification._identity(file) in table.read_text()
        assert remembered or "because the cache cannot be written" in caplog.text

    assert every_failure(code, lambda: path.write_bytes(b"weights"), run, cache) >= 5


def test_a_table_whose_writer_was_killed_is_whole(cache: Path, tmp_path: Path) -> None:
    path, step = tmp_path / "x", 0
    path.write_bytes(b"weights")
    verify(path)
    before = (cache / verification.TABLE.file).read_bytes()
    path.touch()
    while killed_at(step, lambda: verify(path)):
        now = (cache / verification.TABLE.file).read_bytes()
        assert now == before or len(verification.TABLE.read()) == 2
        (cache / verification.TABLE.file).write_bytes(before)
        step += 1
    assert step >= 5
    assert temporaries(cache) == []
