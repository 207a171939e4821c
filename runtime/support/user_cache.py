"""The user's cache: the folder for files that sscc can recreate, and the only functions that read and write there.

The cache is trusted: sscc executes the code in it. So it reads and writes only folders to which no other user could
have written: each one, from the cache's root down, belongs to the user (or to root), is not writable for others, and is
reached through no symbolic link. Folders created here are accessible to the user alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from sscc.ir.errors import ErrorKind, InputError, SsccError
from sscc.ir.files import FileErrors, clear_leftovers, open_beneath, open_folder_beneath, output_errors, replacing

NATIVE = "native"
WEIGHTS = "weights"
HINT = "set SSCC_CACHE to another folder"


class UnsafeCacheError(InputError):
    """A folder or a file of the cache that another user could have written."""


class CacheErrors(ErrorKind):
    CANNOT_READ = InputError, "{path} cannot be read: {reason}"
    FOREIGN_OWNER = UnsafeCacheError, (
        "{path} belongs to user {owner} and not to you (user {user}), but sscc executes the code in its cache: remove "
        "{path}, or {advice}"
    )
    FOREIGN_WRITERS = UnsafeCacheError, (
        "other users can write {path} (mode {mode:03o}), but sscc executes the code in its cache: if you trust its "
        "contents run `chmod go-w {path}`, else remove it, or {advice}"
    )
    LINK = UnsafeCacheError, (
        "{path} is a symbolic link, which sscc does not follow because it executes the code in its cache: remove "
        "{path}, or {advice}"
    )


def cache_folder() -> Path:
    """Return `$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`; it need not exist."""
    override = os.environ.get("SSCC_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sscc"


def open_cached(name: str) -> BufferedReader | None:
    """Open a file of the cache for reading. Return None if there is none.

    Args:
        name: relative to the cache, "/" between parts.

    Raises:
        UnsafeCacheError: another user could have written it.
        InputError: it cannot be read.
    """
    path = cache_folder() / name
    try:
        return open_beneath(cache_folder(), name, _check_own)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheErrors.CANNOT_READ(path=path, reason=error.strerror) from None
    except InputError as error:
        raise _as_unsafe(error) from None


@contextlib.contextmanager
def replacing_cached(name: str, named: Callable[[], str] | None = None) -> Iterator[BinaryIO]:
    """Open a file of the cache for writing, atomically (see `replacing`). A missing folder is created. `named` returns
    the file's name after writing, if it depends on the contents.

    Raises:
        UnsafeCacheError: another user could write there.
        OutputError: it cannot be written.
    """
    path = cache_folder() / name
    clear_leftovers(make_cache_folder(str(Path(name).parent)))
    if path.is_symlink():
        raise CacheErrors.LINK(path=path, advice=HINT)
    with replacing(path, hint=HINT, mode=0o600, name=named) as file:
        yield file


def check_cache_folder(name: str) -> None:
    """Raise UnsafeCacheError if somebody else could have written the contents of a folder of the cache."""
    try:
        os.close(open_folder_beneath(cache_folder(), (name,), _check_own))
    except OSError:
        return  # missing or unusable; the caller's next access reports it
    except InputError as error:
        raise _as_unsafe(error) from None


def make_cache_folder(name: str) -> Path:
    """Create a folder of the cache, accessible to the user alone, unless it exists. Raise as `replacing_cached` does.
    """
    folder = cache_folder()
    with output_errors(folder, HINT):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make_folder(folder)
    parts = Path(name).parts
    for depth in range(len(parts) + 1):
        with output_errors(folder.joinpath(*parts[:depth]), HINT):
            _make_level(folder, parts[:depth], parts[depth : depth + 1])
    return folder / name


def _make_level(folder: Path, parts: tuple[str, ...], added: tuple[str, ...]) -> None:
    """Check a folder of the cache, and make the one below it that `added` names, if it names one."""
    try:
        descriptor = open_folder_beneath(folder, parts, _check_own)
    except InputError as error:
        raise _as_unsafe(error) from None
    try:
        for name in added:
            _make_folder(Path(name), descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path, folder: int | None = None) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=folder)


def _as_unsafe(error: InputError) -> SsccError:
    """Return the error for a failure to open a file of the cache; for a symbolic link it contains advice."""
    if error.kind is FileErrors.LINK:
        return CacheErrors.LINK(path=error.fields["path"], advice=HINT)
    return error


def _check_own(path: Path, state: os.stat_result) -> None:
    """Raise UnsafeCacheError if somebody other than the user and root owns it, or may write it."""
    user = os.geteuid()
    if state.st_uid not in (user, 0):
        raise CacheErrors.FOREIGN_OWNER(path=path, owner=state.st_uid, user=user, advice=HINT)
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheErrors.FOREIGN_WRITERS(path=path, mode=stat.S_IMODE(state.st_mode), advice=HINT)
