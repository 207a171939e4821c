"""Native code in files and in the user's cache: kept, found again, refused where damaged, made where there is none."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import numpy as np
import pytest

from sscc.ir.errors import InputError
from sscc.runtime.codegen import library
from sscc.runtime.codegen.interpreter import NativeInterpreter
from sscc.runtime.codegen.library import NativeCode, cached_code, can_link, host_key, load_code, make_code, store_code
from sscc.runtime.schedule import Entry, Launch, Program
from tests.runtime.programs import add_body, lay_out, one_stage, whole

KINDS = ("json", "plan", "so")

needs_linker = pytest.mark.skipif(not can_link(), reason="there is no linker here")


def add_program(amount: float = 1.0) -> Program:
    """y = x + amount."""
    body = add_body("add", (3, 20), amount)
    tensors, end = lay_out(("x", (3, 20), "f32", "input"), ("y", (3, 20), "f32", "output"))
    entry = Entry("main", ("x",), ("y",), (), (), (Launch("add", (whole(tensors[0]), whole(tensors[1]))),))
    return Program(tensors, (body,), (one_stage(body),), (entry,), end)


def works(code: NativeCode | None, amount: float = 1.0) -> bool:
    assert code is not None
    x = np.arange(60, dtype=np.float32).reshape(3, 20)
    outputs, _ = NativeInterpreter(add_program(amount), {}, code=code, threads=2).run("main", {"x": x})
    return bool((outputs["y"] == x + amount).all())


def stored(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return store_code(add_program(), lambda name, data: (folder / name).write_bytes(data))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "0")
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))


def cached_files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------------------- files


def test_code_is_made_in_memory() -> None:
    assert works(make_code(add_program(), optimise=0))


@needs_linker
def test_code_is_stored_and_loaded(tmp_path: Path) -> None:
    key = stored(tmp_path)
    assert key == host_key()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{key}.{kind}" for kind in KINDS]
    assert works(load_code(tmp_path))


@needs_linker
def test_equal_programs_are_equal_files(tmp_path: Path) -> None:
    stored(tmp_path / "a")
    stored(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


@needs_linker
def test_code_of_another_cpu_or_version_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(library, "VERSION", library.VERSION + 1)
        assert load_code(tmp_path) is None
    with monkeypatch.context() as patch:
        patch.setattr(library._native, "cpu_features", lambda: ["another"])
        assert load_code(tmp_path) is None
    assert load_code(tmp_path / "nowhere") is None
    assert load_code(tmp_path) is not None


@needs_linker
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_no_code(tmp_path: Path, kind: str) -> None:
    key = stored(tmp_path)
    (tmp_path / f"{key}.{kind}").unlink()
    assert load_code(tmp_path) is None


@needs_linker
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["empty", "half", "changed", "text"])
def test_damaged_files_are_refused(tmp_path: Path, kind: str, damage: str) -> None:
    """Also a library that is cut short, which would stop the process when it is loaded."""
    path = tmp_path / f"{stored(tmp_path)}.{kind}"
    data = path.read_bytes()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
    path.write_bytes({"empty": b"", "half": data[:middle], "changed": changed, "text": b'{"functions": 3}'}[damage])
    with pytest.raises(InputError, match="this native code is damaged") as refused:
        load_code(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert refused.value.exit_code == 5


@needs_linker
def test_functions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{stored(tmp_path)}.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "functions": ["no_such_function"]}))
    with pytest.raises(InputError, match="no_such_function"):
        load_code(tmp_path)


@needs_linker
def test_a_linker_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LINKER", "false")
    with pytest.raises(library.subprocess.CalledProcessError):
        stored(tmp_path)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------- cache


@needs_linker
def test_the_cache_keeps_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert works(cached_code(add_program()))
    files = cached_files(tmp_path)
    assert [path.suffix[1:] for path in files] == list(KINDS)
    with monkeypatch.context() as patch:
        patch.setattr(library, "_generate", lambda *_: pytest.fail("it is made again"))
        assert works(cached_code(add_program()))
    assert works(cached_code(add_program(2.0)), 2.0)
    assert len(cached_files(tmp_path)) == 6
    assert not [path for path in cached_files(tmp_path) if path.name.startswith(".")]


@needs_linker
def test_damaged_code_in_the_cache_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached_code(add_program())
    plan = next(path for path in cached_files(tmp_path) if path.suffix == ".plan")
    data = plan.read_bytes()
    plan.write_bytes(data[:-8])
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "damaged" in caplog.text
    assert plan.read_bytes() == data


def test_without_a_linker_code_is_made_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "can_link", lambda: False)
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "there is no linker" in caplog.text
    assert cached_files(tmp_path) == []


def test_a_linker_that_fails_is_said_and_code_is_made_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "LINKER", "false")
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "it cannot be kept" in caplog.text
    assert cached_files(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where its folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(library, "can_link", lambda: True)
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "it cannot be kept" in caplog.text
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)
