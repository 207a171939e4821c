"""The folder of the user's in which sscc keeps what it can make again, and the one way to read and write there.

What lies in the cache is trusted: code in it is executed. So nothing is read from, and nothing is written to, a folder
that somebody else could have written to: each one, from the cache's own down, belongs to the user (or to root), lets
nobody else write, and is reached through no symbolic link. Folders that are made here are open to the user alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from sscc.ir.errors import InputError
from sscc.ir.files import LinkError, clear_leftovers, open_beneath, open_folder_beneath, output_errors, replacing

NATIVE = "native"
WEIGHTS = "weights"
HINT = "set SSCC_CACHE to another folder"


class UnsafeCacheError(InputError):
    """A folder or a file of the cache that somebody else could have written."""


def cache_folder() -> Path:
    """`$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`; it need not exist."""
    override = os.environ.get("SSCC_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sscc"


def open_cached(name: str) -> BufferedReader | None:
    """A file of the cache, opened for reading; None where there is none.

    Args:
        name: relative to the cache, "/" between parts.

    Raises:
        UnsafeCacheError: somebody else could have written it.
        InputError: it cannot be read.
    """
    path = cache_folder() / name
    try:
        return open_beneath(cache_folder(), name, _check_own)
    except FileNotFoundError:
        return None
    except LinkError as error:
        raise _unsafe_link(error) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def replacing_cached(name: str) -> Iterator[BinaryIO]:
    """A file of the cache to write, complete or not at all, see `replacing`; its folder is made if need be.

    Raises:
        UnsafeCacheError: somebody else could write there.
        OutputError: it cannot be written.
    """
    path = cache_folder() / name
    clear_leftovers(make_cache_folder(str(Path(name).parent)))
    if path.is_symlink():
        raise _unsafe_link(LinkError(f"{path} is a symbolic link, which is not followed"))
    with replacing(path, hint=HINT, mode=0o600) as file:
        yield file


def check_cache_folder(name: str) -> None:
    """Raises UnsafeCacheError where somebody else could have written what is in a folder of the cache."""
    try:
        os.close(open_folder_beneath(cache_folder(), (name,), _check_own))
    except LinkError as error:
        raise _unsafe_link(error) from None
    except OSError:
        return  # it is missing or unusable, which whoever uses it will report


def make_cache_folder(name: str) -> Path:
    """A folder of the cache, made if need be, open to the user alone. Raises as `replacing_cached` does."""
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
    """Checks a folder of the cache, and makes the one below it that `added` names, if it names one."""
    try:
        descriptor = open_folder_beneath(folder, parts, _check_own)
    except LinkError as error:
        raise _unsafe_link(error) from None
    try:
        for name in added:
            _make_folder(Path(name), descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path, folder: int | None = None) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=folder)


def _unsafe_link(error: LinkError) -> UnsafeCacheError:
    return UnsafeCacheError(f"{error}, and what lies in the cache is executed: remove it, or {HINT}")


def _check_own(path: Path, state: os.stat_result) -> None:
    """Raises UnsafeCacheError where somebody other than the user and root owns it, or may write it."""
    user = os.geteuid()
    if state.st_uid not in (user, 0):
        raise UnsafeCacheError(
            f"{path} belongs to user {state.st_uid}, not to you (user {user}), and what lies in the cache is executed: "
            f"remove it, or {HINT}"
        )
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeCacheError(
            f"{path} can be written by others (mode {stat.S_IMODE(state.st_mode):03o}), and what lies in the cache is "
            f"executed: if you trust what is in it, `chmod go-w {path}`, else remove it, or {HINT}"
        )
