"""File operations: atomic writes, safe opening of untrusted files, and digests."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import io
import mmap
import os
import re
import secrets
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

from sscc.ir.errors import ErrorKind, InputError, OutputError, SsccError, UsageError, quoted
from sscc.ir.suggestions import similar_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_SYNCED_AT_ONCE = 16
_CREATING = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NO_FILES_NAME = (errno.ENAMETOOLONG, errno.EINVAL)
_SHOWN_LETTERS = 100
_HASHED_BESIDE = 1 << 19
"""Size in bytes from which hashing a piece on another thread pays off."""


class FileErrors(ErrorKind):
    CANNOT_READ = InputError, "{path} cannot be read: {reason}{similar_hint}"
    CANNOT_WRITE = OutputError, "{path} cannot be written: {reason}{advice_hint}"
    LINK = InputError, "{path} is a symbolic link, which is not followed"
    MISSING = InputError, "{path} does not exist{similar_hint}"
    NO_STDIN = InputError, "the input is to be read from stdin, but stdin is closed"
    NOT_A_FILE_NAME = UsageError, "{start!r}.. ({letters} characters) cannot be the name of a file: {reason}"
    NOT_REGULAR = InputError, "{path} is not a regular file"
    NOT_UTF8 = InputError, "{path} is not UTF-8 text: byte {position} is {byte:#04x}"


@contextlib.contextmanager
def replacing(
    path: Path, *, hint: str = "", mode: int = 0o666, name: Callable[[], str] | None = None
) -> Iterator[BinaryIO]:
    """Open a file for binary writing that replaces `path` atomically when the block ends.

    The file is written under a temporary name beside `path`, flushed to disk and renamed; the folder is flushed too. If
    the block raises (Ctrl-C included), the temporary file is removed and an existing `path` is untouched. A link at
    `path` is kept and its target replaced.

    Args:
        hint: advice for a failed write, appended to the message.
        mode: permissions of the file, before the umask.
        name: called when the block has ended; the file then replaces the file of the returned name beside `path`.

    Raises:
        UsageError: `path` cannot be the name of a file.
        OutputError: the file cannot be created, written or renamed, or `path` is a folder or a device. It replaces
            the exception that a failed write caused in the block; other exceptions of the block pass through.
    """
    temporary, descriptor = _reserved(path, hint, mode)
    target = _target(path)
    try:
        with _written(descriptor, path, hint) as file:
            yield file
        with output_errors(path, hint):
            os.fsync(descriptor)
            os.replace(temporary, target if name is None else target.with_name(name()))
            sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        os.close(descriptor)


def _target(path: Path) -> Path:
    return path.resolve() if os.path.islink(path) else path


def _reserved(path: Path, hint: str, mode: int) -> tuple[Path, int]:
    """Create the temporary file that will replace `path`. Return its path and its descriptor."""
    check_name(path)
    target = _target(path)
    with output_errors(path, hint):
        if target.exists() and not target.is_file():
            raise _cannot_write(path, "Is a directory" if target.is_dir() else "it is not a regular file", hint)
        clear_leftovers(target.parent, target.name)
        return reserve(target, lambda path: os.open(path, _CREATING, mode))


def check_output(path: Path | None) -> None:
    """Raise if `replacing` could not write a file, before the work of computing its contents.

    None and `STANDARD` are always writable. The file itself is not touched.

    Raises:
        UsageError: `path` cannot be the name of a file.
        OutputError: the file cannot be created, or `path` is a folder or a device.
    """
    if path is None or path == STANDARD:
        return
    temporary, descriptor = _reserved(path, "", 0o600)
    with output_errors(path):
        os.close(descriptor)
        os.unlink(temporary)


@contextlib.contextmanager
def creating(path: Path, name: Path) -> Iterator[BinaryIO]:
    """Open a new file for binary writing. The caller flushes it to disk. If the block raises, the file stays.

    Raises OutputError as `replacing` does, with `name` as the file's name.
    """
    with output_errors(name):
        descriptor = os.open(path, _CREATING, 0o666)
    try:
        with _written(descriptor, name, "") as file:
            yield file
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _written(descriptor: int, name: Path, hint: str) -> Iterator[BinaryIO]:
    """Open a file that writes to a descriptor; its buffer is flushed to the system when the block ends."""
    raw = RecordingFile(descriptor, "wb", closefd=False)
    file = io.BufferedWriter(raw)
    try:
        try:
            yield file
        except Exception:
            if raw.error is not None:  # libraries raise their own error, which hides the reason
                raise _cannot_write(name, _reason(raw.error), hint) from raw.error
            raise
        with output_errors(name, hint):
            file.flush()
    finally:
        with contextlib.suppress(OSError):
            file.close()


# ---------------------------------------------------------------------------------------- temporary files and folders


def reserve(path: Path, create: Callable[[Path], int]) -> tuple[Path, int]:
    """Create a temporary file or folder beside `path`, locked while its descriptor is open.

    Args:
        create: creates the file or folder of a given path and opens it.

    Returns its path and its descriptor. Raises OSError.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = create(temporary)
        with contextlib.suppress(OSError):  # without locks, `clear_leftovers` removes nothing
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(temporary), os.fstat(descriptor)):
                return temporary, descriptor
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files and folders that `reserve` created in a folder for processes that have ended.

    A running process holds the lock of its files, in whatever container it runs, so they are not removed.

    Args:
        name: final name of the files to remove; any name if None.
    """
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{8}}\.tmp", re.DOTALL)
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if pattern.fullmatch(entry):
                _clear(folder / entry)


def _clear(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except OSError:
        return  # its writer is still running, or the system cannot tell
    finally:
        os.close(descriptor)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically. Return False if the system or file system does not support it. Raises OSError."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(first), here, os.fsencode(second), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


# ---------------------------------------------------------------------------------------------------- reading


STANDARD = Path("-")
"""Stands for stdin in place of an input's name, and for stdout in place of an output's."""


def check_name(path: Path) -> None:
    """Raise UsageError where no file can have this name: it is too long for the file system, or has a zero byte."""
    try:
        os.lstat(path)
    except ValueError as error:
        raise _no_name(path, quoted(error)) from None
    except OSError as error:
        if error.errno in _NO_FILES_NAME:
            raise _no_name(path, _reason(error)) from None


def _no_name(path: Path, reason: str) -> SsccError:
    text = str(path)
    return FileErrors.NOT_A_FILE_NAME(start=text[:_SHOWN_LETTERS], letters=len(text), reason=reason)


def state_of(path: Path) -> os.stat_result:
    """Return the state of a file or folder; links are followed.

    `Path.exists` and similar methods raise OSError for names that are too long and for folders without search
    permission.

    Raises:
        UsageError: `path` cannot be the name of a file.
        InputError: the file is missing or cannot be reached.
    """
    check_name(path)
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileErrors.MISSING(path=path, similar_hint=similar_file(path)) from None
    except OSError as error:
        raise FileErrors.CANNOT_READ(path=path, reason=_reason(error), similar_hint="") from None


def is_folder(path: Path) -> bool:
    """Return True if `path` is a folder; False where it is none, is missing or cannot be reached."""
    return os.path.isdir(path)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, or of stdin for `STANDARD`.

    Raises:
        UsageError: `path` cannot be the name of a file.
        InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        if path != STANDARD:
            check_name(path)
            return path.read_text(encoding="utf-8")
        if sys.stdin is None:
            raise FileErrors.NO_STDIN()
        return io.TextIOWrapper(io.BytesIO(sys.stdin.buffer.read()), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise FileErrors.NOT_UTF8(path=shown_name(path), position=error.start, byte=byte) from None
    except FileNotFoundError as error:
        raise FileErrors.CANNOT_READ(path=path, reason=_reason(error), similar_hint=similar_file(path)) from None
    except OSError as error:
        raise FileErrors.CANNOT_READ(path=shown_name(path), reason=_reason(error), similar_hint="") from None


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading. Links are followed, and opening never blocks.

    Raises:
        UsageError: `path` cannot be the name of a file.
        InputError: the file is missing, cannot be read, or is not a regular file (a pipe, a device, a folder).
    """
    check_name(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise opening a pipe blocks until it has a writer
    except OSError as error:
        raise FileErrors.CANNOT_READ(path=path, reason=_reason(error), similar_hint=similar_file(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileErrors.NOT_REGULAR(path=path)
    return os.fdopen(descriptor, "rb")


def mapped(path: Path) -> mmap.mmap:
    """Return a memory-mapped file. Raise InputError if it is missing, empty or not a regular file."""
    with open_regular(path) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise FileErrors.CANNOT_READ(path=path, reason=quoted(error), similar_hint="") from None


def shown_name(path: Path) -> str:
    """Return the name of a file that is read, as messages have it."""
    return "<stdin>" if path == STANDARD else str(path)


FileCheck = Callable[[Path, os.stat_result], None]
"""Called with the path and state of a folder or file; raises an error if it must not be used."""


def open_beneath(folder: Path, name: str, check: FileCheck | None = None) -> io.BufferedReader:
    """Open a regular file in or below `folder` for reading. Links below `folder` are refused, and opening never blocks.

    Args:
        name: path relative to the folder, with "/" between parts, without "." and "..".
        check: called for `folder`, each folder below it and the file, once it is open.

    Raises:
        OSError: the file cannot be opened.
        InputError: `FileErrors.LINK` if the path contains a symbolic link, `FileErrors.NOT_REGULAR` if it does not lead
            to a regular file (but to a pipe, a device or a folder).
    """
    descriptor = open_folder_beneath(folder, PurePosixPath(name).parts[:-1], check)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # otherwise opening a pipe blocks until it has a writer
        file = _opened(folder / name, flags, descriptor)
    finally:
        os.close(descriptor)
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise FileErrors.NOT_REGULAR(path=folder / name)
        if check is not None:
            check(folder / name, state)
    except BaseException:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def open_folder_beneath(folder: Path, parts: tuple[str, ...] = (), check: FileCheck | None = None) -> int:
    """Return a descriptor of a folder in or below `folder`, otherwise like `open_beneath`. The caller closes it."""
    path, descriptor = folder, _opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if check is not None:
            check(path, os.fstat(descriptor))
        for part in parts:
            path, outer = path / part, descriptor
            descriptor = _opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, outer)
            os.close(outer)
            if check is not None:
                check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _opened(path: Path, flags: int, folder: int | None = None) -> int:
    """Return a descriptor of `path`. With `folder` (a descriptor), the last part of `path` is opened in that folder."""
    try:
        return os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except OSError:
        if flags & os.O_NOFOLLOW and path.is_symlink():
            raise FileErrors.LINK(path=path) from None
        raise


@contextlib.contextmanager
def output_errors(path: Path, hint: str = "") -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names `path` and the reason."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(path, _reason(error), hint) from error


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything in it to disk. The files are flushed at once, which takes little longer than one
    file.

    Raises OSError.
    """
    paths = [folder, *folder.rglob("*")]
    with ThreadPoolExecutor(min(len(paths), _SYNCED_AT_ONCE)) as pool:
        list(pool.map(sync, paths))


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """Return the sha256 (hex) of a regular file's bytes. Raises InputError if it is missing or cannot be read."""
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FileErrors.CANNOT_READ(path=path, reason=_reason(error), similar_hint="") from error


def files_digest(files: Iterable[Path]) -> str:
    """Return the sha256 (hex) over the names and the bytes of files, in their order. Raise as `file_digest` does."""
    lines = "".join(f"{path.name} {file_digest(path)}\n" for path in files)
    return hashlib.sha256(lines.encode()).hexdigest()


@functools.cache
def sources_digest(package: ModuleType, skipped: tuple[str, ...] = ()) -> str:
    """Return the sha256 (hex) of the files of a package, less folders of these names directly below it."""
    files: list[Path] = []
    for root in map(Path, package.__path__):
        left_out = [root / name for name in skipped]
        sources = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files += [path for path in sources if not any(path.is_relative_to(folder) for folder in left_out)]
    return files_digest(sorted(files))


class HashingFile:
    """A file that counts and hashes (sha256) all bytes written to it from now on. A large piece is hashed while it is
    written, so it must not change before the call returns."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview, /) -> int:
        if len(data) < _HASHED_BESIDE:
            self._hash.update(data)
            self._file.write(data)
        else:
            hashing = threading.Thread(target=self._hash.update, args=(data,))
            hashing.start()
            try:
                self._file.write(data)
            finally:
                hashing.join()
        self.size += len(data)
        return len(data)

    def sha256(self) -> str:
        return self._hash.hexdigest()


class RecordingFile(io.FileIO):
    """A file that remembers why a write failed."""

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def _cannot_write(path: Path, reason: str, hint: str) -> SsccError:
    return FileErrors.CANNOT_WRITE(path=path, reason=reason, advice_hint=f" ({hint})" if hint else "")


def _reason(error: OSError) -> str:
    return error.strerror or quoted(error)
