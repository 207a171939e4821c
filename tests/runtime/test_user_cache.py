"""The user's cache: whose folders it takes, what it makes, what it refuses."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sscc.ir.files import FileErrors
from sscc.runtime.support import user_cache
from sscc.runtime.support.user_cache import (
    CacheErrors,
    cache_folder,
    check_cache_folder,
    make_cache_folder,
    open_cached,
    replacing_cached,
)
from tests.errors import raises


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "made" / "cache"))
    return tmp_path / "made" / "cache"


def keep(name: str, data: bytes = b"kept") -> None:
    with replacing_cached(name) as file:
        file.write(data)


def read(name: str) -> bytes | None:
    file = open_cached(name)
    if file is None:
        return None
    with file:
        return file.read()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSCC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sscc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sscc"


def test_what_is_written_is_read_and_is_the_users_alone(folder: Path) -> None:
    umask = os.umask(0)
    try:
        assert read("a/x") is None
        keep("a/x")
        keep("y")
        assert (read("a/x"), read("y"), read("a/y"), read("b/x")) == (b"kept", b"kept", None, None)
        assert [mode(path) for path in (folder, folder / "a", folder / "a" / "x")] == [0o700, 0o700, 0o600]
        keep("a/x", b"again")
    finally:
        os.umask(umask)
    assert read("a/x") == b"again"
    assert os.listdir(folder / "a") == ["x"]


@pytest.mark.parametrize("place", [".", "a", "a/x"])
@pytest.mark.parametrize("bits", [stat.S_IWGRP, stat.S_IWOTH])
def test_what_others_can_write_is_refused(folder: Path, place: str, bits: int) -> None:
    keep("a/x")
    path = folder / place
    path.chmod(mode(path) | bits)
    fields = {"path": path, "mode": mode(path)}
    with raises(CacheErrors.FOREIGN_WRITERS, **fields):
        read("a/x")
    if place != "a/x":
        with raises(CacheErrors.FOREIGN_WRITERS, **fields):
            keep("a/x")
        with raises(CacheErrors.FOREIGN_WRITERS, **fields):
            check_cache_folder("a")
    path.chmod(mode(path) & ~bits)
    assert read("a/x") == b"kept"


@pytest.mark.parametrize("place", [".", "a", "a/x"])
def test_what_somebody_else_owns_is_refused(folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's user owns the files, so the check gets the id of another user, and of root."""
    keep("a/x")
    path, state = folder / place, (folder / place).stat()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    fields = list(state)
    fields[stat.ST_UID] = me + 2
    with raises(CacheErrors.FOREIGN_OWNER, owner=me + 2, user=me + 1, path=path):
        user_cache._check_own(path, os.stat_result(fields))
    fields[stat.ST_UID] = 0
    user_cache._check_own(path, os.stat_result(fields))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", [".", "a", "a/x"])
def test_folders_and_files_of_another_user_are_refused(folder: Path, place: str) -> None:
    keep("a/x")
    os.chown(folder / place, 12345, -1)
    with raises(CacheErrors.FOREIGN_OWNER, owner=12345):
        read("a/x")


@pytest.mark.parametrize("place", ["a", "a/x"])
def test_links_below_the_cache_are_refused(folder: Path, place: str) -> None:
    keep("a/x")
    moved = (folder / place).rename(folder / "elsewhere")
    (folder / place).symlink_to(moved)
    with raises(CacheErrors.LINK, path=folder / place):
        read("a/x")
    with raises(CacheErrors.LINK, path=folder / place):
        keep("a/x")


def test_a_link_to_the_cache_itself_is_the_users_choice(folder: Path) -> None:
    keep("x")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")
    assert read("x") == b"kept"
    keep("x", b"again")
    assert (folder.with_name("moved") / "x").read_bytes() == b"again"


def test_a_pipe_is_refused_at_once(folder: Path) -> None:
    make_cache_folder("a")
    os.mkfifo(folder / "a" / "x", 0o600)
    with raises(FileErrors.NOT_REGULAR):
        read("a/x")


def test_a_place_that_cannot_be_a_folder_is_an_output_error(folder: Path) -> None:
    keep("a")
    with raises(FileErrors.CANNOT_WRITE, reason="Not a directory"):
        keep("a/x")
    check_cache_folder("a")
    with raises(CacheErrors.CANNOT_READ, reason="Not a directory"):
        read("a/x")
