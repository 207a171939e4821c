"""Files are compared with their digests once as long as they do not change, and always where that is not certain."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import pytest

from sscc.runtime.support import remembered, verification
from sscc.runtime.support.user_cache import CacheErrors
from sscc.runtime.support.verification import TABLE, Claim, VerificationErrors, verify_files
from tests.errors import raises


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verification, "_SETTLED_NS", -(10**18))  # the test's files are new
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x"
    path.write_bytes(b"weights")
    return path


SHA256 = hashlib.sha256(b"weights").hexdigest()


def check(*paths: Path, sha256: str = SHA256) -> None:
    files = [path.open("rb") for path in paths]
    try:
        verify_files([Claim(path, file, sha256) for path, file in zip(paths, files, strict=True)])
    finally:
        for file in files:
            file.close()


def is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if verification reads the file, which must be correct."""
    read, digest = [], hashlib.file_digest
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *args: (read.append(args), digest(*args))[1])
        check(path)
    return bool(read)


def test_a_file_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_read(path, monkeypatch)
    assert not is_read(path, monkeypatch)


def test_every_damaged_file_is_found(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(b"weights")
    check(*paths)
    paths[3].write_bytes(b"heights")
    with raises(VerificationErrors.DIGEST_DIFFERS, path=paths[3]):
        check(*paths)


def test_a_change_that_restores_size_and_time_is_found(path: Path) -> None:
    check(path)
    state = path.stat()
    path.write_bytes(b"heights")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with raises(VerificationErrors.DIGEST_DIFFERS):
        check(path)


def test_another_file_in_its_place_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(path)
    other = path.with_name("other")
    other.write_bytes(b"weights")
    other.rename(path)
    assert is_read(path, monkeypatch)


def test_another_digest_is_compared(path: Path) -> None:
    check(path)
    with raises(VerificationErrors.DIGEST_DIFFERS):
        check(path, sha256=hashlib.sha256(b"heights").hexdigest())
    check(path)


def test_a_file_that_changed_just_now_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change within the resolution of the file system's timestamps cannot be noticed."""
    monkeypatch.setattr(verification, "_SETTLED_NS", 10**18)
    assert is_read(path, monkeypatch)
    assert is_read(path, monkeypatch)


def test_a_file_that_changes_while_it_is_read_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.file_digest

    def changing(*args: object) -> object:
        value = digest(*args)  # type: ignore[arg-type]
        path.write_bytes(b"other weights")
        return value

    monkeypatch.setattr(hashlib, "file_digest", changing)
    with raises(VerificationErrors.CHANGED):
        check(path)


@pytest.mark.parametrize(
    "table",
    [b"", b"{", b"[]", b'{"a": 1}', b"\xff", b'{"a": "b"}' + b" " * 2**21, b"[" * 10**5],
    ids=["empty", "cut", "list", "number", "bytes", "huge", "deep"],
)
def test_a_damaged_table_is_made_anew(cache: Path, path: Path, table: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    check(path)
    (cache / TABLE.file).write_bytes(table)
    assert is_read(path, monkeypatch)
    assert not is_read(path, monkeypatch)


def test_the_table_is_bounded(cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(path)
    (cache / TABLE.file).write_text(json.dumps({f"{number}": "0" * 64 for number in range(TABLE.most)}))
    check(path)
    entries = json.loads((cache / TABLE.file).read_text())
    assert len(entries) == TABLE.most
    assert "0" not in entries
    assert not is_read(path, monkeypatch)
    largest = {f"{2**64}:{2**64}:{2**64}:{2**63}:{2**63}{number:05}": "0" * 64 for number in range(TABLE.most)}
    assert len(json.dumps(largest, indent=0)) < remembered.MOST_BYTES


def test_where_nothing_can_be_remembered_that_is_said(
    cache: Path, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, "sscc"):
        assert is_read(path, monkeypatch)
    assert "weights are verified whenever they are opened, because the cache cannot be written" in caplog.text
    assert is_read(path, monkeypatch)


def test_what_others_could_have_written_is_not_believed(cache: Path, path: Path) -> None:
    check(path)
    (cache / TABLE.file).chmod(0o666)
    with raises(CacheErrors.FOREIGN_WRITERS):
        check(path)
