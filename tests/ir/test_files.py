"""Files appear complete or not at all, and every failure of a write is one OutputError."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from sscc.ir.errors import InputError
from sscc.ir.files import (
    FileErrors,
    HashingFile,
    check_name,
    file_digest,
    mapped,
    open_regular,
    output_errors,
    read_text,
    replacing,
    state_of,
)
from tests.errors import raises
from tests.limits import largest_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
        assert len(names(tmp_path)) == 2
    assert path.read_text() == "new"
    assert names(tmp_path) == ["x"]


def test_other_layers_can_be_put_on_top(tmp_path: Path) -> None:
    with replacing(tmp_path / "x.gz") as file, gzip.GzipFile(fileobj=file, mode="wb") as packed:
        packed.write(b"text")
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == b"text"


def test_it_has_ordinary_permissions(tmp_path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    with replacing(tmp_path / "x"):
        pass
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~umask


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    with replacing(tmp_path / "x") as first, replacing(tmp_path / "x") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "x").read_bytes() == b"first"  # its block ended last
    assert names(tmp_path) == ["x"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError, FileNotFoundError, RuntimeError])
def test_errors_of_the_block_pass_through(tmp_path: Path, error: type[BaseException]) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    (tmp_path / "x").write_text("old")
    with pytest.raises(error), replacing(tmp_path / "x") as file:
        fail(file)
    assert (tmp_path / "x").read_text() == "old"
    assert names(tmp_path) == ["x"]


def write_much(file: BinaryIO) -> None:
    file.write(b"x" * 100_000)


def write_little_by_little(file: BinaryIO) -> None:
    for _ in range(1000):
        file.write(b"x" * 100)


def write_at_the_end(file: BinaryIO) -> None:
    file.write(b"x" * 5_000)  # stays in the buffer


def as_libraries_do(file: BinaryIO) -> None:
    try:
        write_much(file)
    except OSError:
        raise RuntimeError("unexpected position") from None


@pytest.mark.parametrize("write", [write_much, write_little_by_little, write_at_the_end, as_libraries_do])
def test_a_full_disk_is_one_error_and_keeps_the_old_file(tmp_path: Path, write: Callable[[BinaryIO], None]) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    expected = raises(FileErrors.CANNOT_WRITE, path=path, reason="File too large", advice_hint=" (buy a disk)")
    with expected, largest_file(4_000), replacing(path, hint="buy a disk") as file:
        write(file)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/x", "No such file or directory"), ("file/x", "Not a directory"), ("folder", "Is a directory")],
)
def test_places_that_cannot_be_written(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    with raises(FileErrors.CANNOT_WRITE, reason=reason), replacing(tmp_path / name):
        pytest.fail("the block runs")
    assert names(tmp_path) == ["file", "folder"]


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with raises(FileErrors.CANNOT_WRITE, reason="it is not a regular file"), replacing(tmp_path / "pipe"):
        pytest.fail("the block runs")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_failing_rename_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "replace", fail)
    with raises(FileErrors.CANNOT_WRITE, reason="broken"), replacing(tmp_path / "x"):
        pass
    assert names(tmp_path) == []


def test_output_errors_name_the_path(tmp_path: Path) -> None:
    fields = {"path": "out", "reason": "No such file or directory", "advice_hint": " (do that)"}
    with raises(FileErrors.CANNOT_WRITE, **fields), output_errors(Path("out"), "do that"):
        (tmp_path / "missing" / "x").write_text("")
    with pytest.raises(ValueError, match="mine"), output_errors(Path("out")):
        raise ValueError("mine")


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "x").write_bytes(data)
    assert file_digest(tmp_path / "x") == hashlib.sha256(data).hexdigest()
    for name, kind in (("missing", FileErrors.CANNOT_READ), (".", FileErrors.NOT_REGULAR)):
        with raises(kind, path=tmp_path / name):
            file_digest(tmp_path / name)


LONG = "x" * 5_000


@pytest.mark.parametrize("name", [LONG, "a/" * 4_000, f"{LONG}/x", "nul\0byte"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for use in (check_name, state_of, open_regular, file_digest, mapped, read_text):
        with raises(FileErrors.NOT_A_FILE_NAME, start=str(path)[:100], letters=len(str(path))):
            use(path)


def test_a_missing_file_is_no_impossible_name(tmp_path: Path) -> None:
    check_name(tmp_path / "missing" / "x")
    (tmp_path / "report.txt").touch()
    with raises(FileErrors.MISSING, path=tmp_path / "reprt.txt", similar_hint="; did you mean 'report.txt'?"):
        state_of(tmp_path / "reprt.txt")
    with raises(FileErrors.MISSING, path=tmp_path / "report.txt" / "x"):
        state_of(tmp_path / "report.txt" / "x")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        for use in (open_regular, file_digest, mapped):
            with raises(FileErrors.NOT_REGULAR, path=path):
                use(path)


def test_links_that_the_user_names_are_followed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    (tmp_path / "link").symlink_to("x")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"data"
    (tmp_path / "loop").symlink_to("loop")
    with raises(FileErrors.CANNOT_READ, path=tmp_path / "loop"):
        state_of(tmp_path / "loop")


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_hashing_file_knows_what_was_written(size: int, tmp_path: Path) -> None:
    """Small and large pieces, in any order."""
    pieces = [bytes([number]) * length for number, length in enumerate((size, 7, size, size + 1))]
    with (tmp_path / "f").open("wb") as raw:
        file = HashingFile(raw)
        assert [file.write(memoryview(piece)) for piece in pieces] == [len(piece) for piece in pieces]
    assert file.size == sum(map(len, pieces))
    assert file.sha256() == file_digest(tmp_path / "f") == hashlib.sha256(b"".join(pieces)).hexdigest()
