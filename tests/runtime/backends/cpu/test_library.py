"""Native code in the user's cache: kept, found again, made where there is none or none that is whole, and never taken
from a place that others can write."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sscc.ir.schedule import Entry, Launch, Program
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan import library
from sscc.runtime.backends.cpu.plan.library import (
    NativeCode,
    NativeCodeErrors,
    cached_code,
    can_link,
    code_key,
    keep_code,
    make_code,
)
from sscc.runtime.support.user_cache import CacheErrors
from tests.errors import raises
from tests.runtime.schedules import add_body, lay_out, one_stage, whole

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


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "0")
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))


def cached_files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())


def no_making(*_: object) -> None:
    pytest.fail("it is made again")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of the program's code in the cache."""
    keep_code(add_program())
    (path,) = cached_files(tmp_path)
    return path


# -------------------------------------------------------------------------------------------------------- cache


def test_code_is_made_in_memory() -> None:
    assert works(make_code(add_program(), optimise=0))


@needs_linker
def test_the_cache_keeps_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert works(cached_code(add_program()))
    (path,) = cached_files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
    with monkeypatch.context() as patch:
        patch.setattr(library, "_generate", no_making)
        assert works(cached_code(add_program()))
        keep_code(add_program())
    assert works(cached_code(add_program(2.0)), 2.0)
    assert len(cached_files(tmp_path)) == 2


@needs_linker
def test_equal_programs_are_equal_files(kept: Path) -> None:
    before = kept.read_bytes()
    kept.unlink()
    keep_code(add_program())
    assert kept.read_bytes() == before


@needs_linker
def test_several_libraries_are_loaded_beside_each_other_and_go_away() -> None:
    """The loader knows a library by the name it was opened under, which is that of a descriptor."""
    gc.collect()  # what other tests have left
    descriptors = len(os.listdir("/proc/self/fd"))
    codes = [cached_code(add_program(amount)) for amount in (1.0, 2.0, 3.0)]
    assert all(works(code, amount) for code, amount in zip(codes, (1.0, 2.0, 3.0), strict=True))
    codes[0] = cached_code(add_program(4.0))
    assert works(codes[0], 4.0)
    assert works(codes[1], 2.0)
    codes.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert "memfd:sscc" not in Path("/proc/self/maps").read_text()


@needs_linker
def test_where_no_file_lies_in_memory_code_is_loaded_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refused)
    assert works(cached_code(add_program()))


@needs_linker
@pytest.mark.parametrize("damage", ["empty", "half", "digest", "changed", "text", "functions"])
def test_damaged_code_is_said_and_made_again(kept: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also a library that is cut short, which would stop the process when it is loaded."""
    data = kept.read_bytes()
    middle = len(data) // 2
    _, line, binary = data.split(b"\n", 2)
    other = json.dumps({**json.loads(line), "functions": ["no_such_function"]}).encode() + b"\n" + binary
    damaged = {
        "empty": b"",
        "half": data[:middle],
        "digest": b"0" + data[1:] if data[0] != ord("0") else b"1" + data[1:],
        "changed": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "text": library._digest(b"hello").encode() + b"\nhello",
        "functions": library._digest(other).encode() + b"\n" + other,
    }
    kept.write_bytes(damaged[damage])
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "the native code in the cache" in caplog.text
    assert kept.read_bytes() == data


# --------------------------------------------------------------------------------------------------------- keys


def test_the_key_names_everything_that_code_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [code_key("1"), code_key("2")]
    with monkeypatch.context() as patch:
        patch.setattr(library._native, "cpu_features", lambda: ["another"])
        keys.append(code_key("1"))
    with monkeypatch.context() as patch:
        patch.setattr(library._native, "architecture", lambda: "another")
        keys.append(code_key("1"))
    with monkeypatch.context() as patch:
        patch.setattr(library.importlib.metadata, "version", lambda package: f"another {package}")
        keys.append(code_key("1"))
    with monkeypatch.context() as patch:
        patch.setenv("SSCC_NATIVE_OPTIMISE", "1")
        keys.append(code_key("1"))
    assert len({*keys}) == len(keys)
    assert code_key("1") == keys[0]


def test_a_changed_source_or_native_module_changes_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = library.generator_files()
    names = {path.name for path in files}
    assert {"planner.py", "schedule.py", "operations.py", "weight_format.py", "ggml.py"} <= names
    assert files[-1].suffix == ".so"
    copies = [Path(shutil.copy(path, tmp_path / str(number))) for number, path in enumerate(files)]
    monkeypatch.setattr(library, "generator_files", lambda: copies)
    digests = {library.generator_digest.__wrapped__()}
    for path in copies:
        data = path.read_bytes()
        path.write_bytes(data + b"\n")
        digests.add(library.generator_digest.__wrapped__())
        path.write_bytes(data)
    assert len(digests) == 1 + len(copies)


def test_every_module_that_making_code_imports_is_in_the_key() -> None:
    """Nothing that decides what the code is can change without the key."""
    script = (
        "import sys; from tests.runtime.backends.cpu.test_library import add_program\n"
        "from sscc.runtime.backends.cpu.plan.library import generator_files, make_code\n"
        "before = {*sys.modules}\n"
        "make_code(add_program(), optimise=0)\n"
        "code = [m for n, m in sys.modules.items() if n not in before or n.startswith('sscc.runtime.backends.cpu')]\n"
        "files = {m.__file__ for m in code if m.__name__.startswith('sscc.')}\n"
        "print(len(files)); print(*files - {str(path) for path in generator_files()})\n"
    )
    command = [sys.executable, "-c", script]
    count, missing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert int(count) > 30
    assert missing == ""


def test_finding_code_needs_neither_torch_nor_llvm(tmp_path: Path) -> None:
    keep_code(add_program())
    script = (
        "import sys; from sscc.runtime.backends.cpu.plan.library import cached_code\n"
        "from sscc.ir.schedule import Program\n"
        "cached_code(Program.from_json(sys.stdin.read()))\n"
        "print([name for name in ('torch', 'torch_mlir') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=add_program().to_json(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert len(cached_files(tmp_path)) == 1


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("level", ["4", "-1", "fast", "00"])
def test_a_level_of_optimization_that_llvm_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", level)
    with raises(NativeCodeErrors.OPTIMISATION, variable="SSCC_NATIVE_OPTIMISE", value=level):
        cached_code(add_program())


def test_without_a_linker_code_is_made_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "can_link", lambda: False)
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert str(NativeCodeErrors.NO_LINKER(linker=library.LINKER)) in caplog.text
    assert cached_files(tmp_path) == []
    with raises(NativeCodeErrors.NO_LINKER):
        keep_code(add_program())


def test_a_linker_that_fails_is_said_and_code_is_made_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "LINKER", "false")
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "native code cannot be linked" in caplog.text
    assert cached_files(tmp_path) == []


@needs_linker
def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where its folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO, "sscc"):
        assert works(cached_code(add_program()))
    assert "is not kept and will be made again in every run" in caplog.text
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)


@needs_linker
@pytest.mark.parametrize("place", ["file", "folder", "cache"])
def test_code_that_others_could_have_written_is_refused(kept: Path, place: str) -> None:
    path = {"file": kept, "folder": kept.parent, "cache": kept.parent.parent}[place]
    path.chmod(path.stat().st_mode | stat.S_IWGRP)
    with raises(CacheErrors.FOREIGN_WRITERS, path=path, mode=stat.S_IMODE(path.stat().st_mode)):
        cached_code(add_program())
    path.chmod(path.stat().st_mode & ~stat.S_IWGRP)
    assert works(cached_code(add_program()))


@needs_linker
@pytest.mark.parametrize("place", ["file", "folder"])
def test_links_in_the_cache_are_not_followed(kept: Path, place: str) -> None:
    path = kept if place == "file" else kept.parent
    moved = path.rename(kept.parent.parent / "elsewhere")
    path.symlink_to(moved)
    with raises(CacheErrors.LINK, path=path):
        cached_code(add_program())
