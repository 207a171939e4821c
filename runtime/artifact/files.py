"""The files of an artifact: their names, how large they may be, and the one way to open and check them.

The files are somebody else's. Names come from the manifest; no link is followed, nothing that is no regular file is
opened, and nothing is read before its size is known to be right.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from sscc.ir.errors import InputError
from sscc.ir.files import open_beneath
from sscc.ir.suggestions import similar_file
from sscc.runtime.artifact.manifest import FileRecord

MANIFEST = "manifest.json"
SCHEDULE = "schedule.json"
LISTING = "schedule.txt"
MACHINE = "machine.json"
CONSTANTS = "weights/constants.safetensors"
FOREIGN_CODE = "native/"
"""Where artifacts of earlier versions hold machine code. It is somebody else's, and nothing reads it."""

MANIFEST_BYTES = 16 * 2**20
SCHEDULE_BYTES = 64 * 2**20
_LARGEST = {MACHINE: 2**20, SCHEDULE: SCHEDULE_BYTES}
_LARGEST_OTHER = 256 * 2**20
"""Bytes of files that are read whole; beyond that they are refused unread."""


def is_shard(name: str) -> bool:
    """Whether a file holds weights."""
    return name.startswith("weights/") and name != CONSTANTS


def identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode of a folder, which tell it from another one put in its place; None where there is none."""
    try:
        state = folder.stat()
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino


def read_manifest(folder: Path) -> bytes:
    """manifest.json, unchecked. Raises InputError where the folder is no artifact or the file is too large."""
    if not folder.exists():
        raise InputError(f"{folder} does not exist{similar_file(folder)}")
    if not folder.is_dir():
        raise InputError(f"{folder} is not an .rdu artifact, which is a folder")
    try:
        with open_beneath(folder, MANIFEST) as file:
            data = file.read(MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{folder} is not an .rdu artifact: it has no {MANIFEST}") from None
    except OSError as error:
        raise InputError(f"{folder / MANIFEST} cannot be read: {error.strerror}") from None
    if len(data) > MANIFEST_BYTES:
        raise InputError(f"{folder / MANIFEST} has more than {MANIFEST_BYTES} bytes, which no manifest has")
    return data


def open_file(folder: Path, name: str) -> BufferedReader:
    """Opens a regular file that no link below `folder` leads to. Raises InputError."""
    with _read_errors(folder / name):
        return open_beneath(folder, name)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} is missing or cannot be read: {error.strerror}") from None


def _open_checked(folder: Path, name: str, record: FileRecord) -> BufferedReader:
    """Opens a file whose size is right."""
    path, largest = folder / name, _largest(name)
    file = open_file(folder, name)
    size = os.fstat(file.fileno()).st_size
    if size == record.bytes and (largest is None or size <= largest):
        return file
    file.close()
    if size != record.bytes:
        raise InputError(f"{path} is damaged: it has {size} bytes, the manifest says {record.bytes}")
    raise InputError(f"{path} has {size} bytes, the largest that is read has {largest}")


def _largest(name: str) -> int | None:
    """How large a file may be; None where it is mapped and not read, so that its size does not matter."""
    return None if name.endswith(".safetensors") else _LARGEST.get(name, _LARGEST_OTHER)


def check_file(folder: Path, name: str, record: FileRecord) -> None:
    """Raises InputError where a file is not the one in the manifest; of weight shards the size alone counts."""
    with _open_checked(folder, name, record) as file, _read_errors(folder / name):
        if not is_shard(name):
            _check_digest(folder / name, hashlib.file_digest(file, "sha256").hexdigest(), record)


def read_checked(folder: Path, name: str, record: FileRecord) -> bytes:
    """What a file holds, which is what the manifest says. Raises InputError."""
    with _open_checked(folder, name, record) as file, _read_errors(folder / name):
        data = file.read(record.bytes)
    _check_digest(folder / name, hashlib.sha256(data).hexdigest(), record)
    return data


def _check_digest(path: Path, sha256: str, record: FileRecord) -> None:
    if sha256 != record.sha256:
        raise InputError(f"{path} is damaged: its sha256 is not the one in the manifest")


def decoded(data: bytes, path: Path) -> str:
    """The text of a file. Raises InputError where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
