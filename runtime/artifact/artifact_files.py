"""The files of an artifact: their names, their maximum sizes, and the only functions that open and check them.

The files are untrusted. Names come from the manifest; links are not followed, only regular files are opened, and a file
is read only after its size has been checked.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError, SsccError, quoted
from sscc.ir.files import open_beneath, state_of
from sscc.runtime.artifact.manifest import FileRecord

MANIFEST = "manifest.json"
SCHEDULE = "schedule.json"
LISTING = "schedule.txt"
MACHINE = "machine.json"
GOLDEN = "golden"
CONSTANTS = "weights/constants.safetensors"
FOREIGN_CODE = "native/"
"""Folder of machine code in artifacts of earlier versions. It is untrusted, and never read."""

MANIFEST_BYTES = 16 * 2**20
SCHEDULE_BYTES = 64 * 2**20
_LARGEST = {MACHINE: 2**20, SCHEDULE: SCHEDULE_BYTES}
_LARGEST_OTHER = 256 * 2**20
"""Maximum bytes of files that are read whole; larger ones are refused unread."""
_MODEL_SUFFIXES = (".gguf", ".pt", ".pth", ".pt2")
_MODEL_CONFIG = "config.json"


class ArtifactFileErrors(ErrorKind):
    CANNOT_READ = InputError, "{path} is missing or cannot be read: {reason}"
    DIGEST_DIFFERS = InputError, "{path} is damaged: its sha256 is not the one in the manifest"
    NO_MANIFEST = InputError, "{path} is not an .rdu artifact: it has no {name}"
    NOT_A_FOLDER = InputError, "{path} is not an .rdu artifact, which is a folder"
    NOT_COMPILED = InputError, "{path} has not been compiled yet. Run: sscc compile {model} -o {output}"
    NOT_UTF8 = InputError, "{path} cannot be read: {reason}"
    SIZE_DIFFERS = InputError, "{path} is damaged: it has {nbytes} bytes, but the manifest states {expected}"
    TOO_LARGE = InputError, "{path} has {nbytes} bytes, more than the limit of {most}"


def is_shard(name: str) -> bool:
    """Return True if a file holds weights."""
    return name.startswith("weights/") and name != CONSTANTS


def identity(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder, which change if the folder is replaced; None if there is no folder."""
    try:
        state = folder.stat()
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino


def read_manifest(folder: Path) -> bytes:
    """Return the contents of manifest.json, unchecked.

    Raises:
        UsageError: `folder` cannot be the name of a file.
        InputError: the folder is not an artifact, or the file is too large. For a model the message has the command
            that compiles it.
    """
    if not stat.S_ISDIR(state_of(folder).st_mode):
        if folder.suffix.lower() in _MODEL_SUFFIXES:
            raise _not_compiled(folder)
        raise ArtifactFileErrors.NOT_A_FOLDER(path=folder)
    try:
        with open_beneath(folder, MANIFEST) as file:
            data = file.read(MANIFEST_BYTES + 1)
    except FileNotFoundError:
        if os.path.isfile(folder / _MODEL_CONFIG):
            raise _not_compiled(folder) from None
        raise ArtifactFileErrors.NO_MANIFEST(path=folder, name=MANIFEST) from None
    except OSError as error:
        raise ArtifactFileErrors.CANNOT_READ(path=folder / MANIFEST, reason=error.strerror) from None
    if len(data) > MANIFEST_BYTES:
        raise ArtifactFileErrors.TOO_LARGE(path=folder / MANIFEST, nbytes=len(data), most=MANIFEST_BYTES)
    return data


def _not_compiled(model: Path) -> SsccError:
    output = f"{model.stem if model.suffix.lower() in _MODEL_SUFFIXES else model.absolute().name}.rdu"
    return ArtifactFileErrors.NOT_COMPILED(path=model, model=shlex.quote(str(model)), output=shlex.quote(output))


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open a regular file to which no link below `folder` leads. Raise InputError if there is none."""
    with _read_errors(folder / name):
        return open_beneath(folder, name)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactFileErrors.CANNOT_READ(path=path, reason=error.strerror) from None


def _open_checked(folder: Path, name: str, record: FileRecord) -> BufferedReader:
    """Open a file after checking its size."""
    path, most = folder / name, _largest(name)
    file = open_file(folder, name)
    size = os.fstat(file.fileno()).st_size
    if size == record.bytes and (most is None or size <= most):
        return file
    file.close()
    if size != record.bytes:
        raise ArtifactFileErrors.SIZE_DIFFERS(path=path, nbytes=size, expected=record.bytes)
    raise ArtifactFileErrors.TOO_LARGE(path=path, nbytes=size, most=most)


def _largest(name: str) -> int | None:
    """Return the maximum bytes of a file; None if it is mapped and not read, so that its size does not matter."""
    return None if name.endswith(".safetensors") else _LARGEST.get(name, _LARGEST_OTHER)


def check_file(folder: Path, name: str, record: FileRecord) -> None:
    """Raise InputError if a file is not the one in the manifest; of weight shards the size alone counts."""
    with _open_checked(folder, name, record) as file, _read_errors(folder / name):
        if not is_shard(name):
            _check_digest(folder / name, hashlib.file_digest(file, "sha256").hexdigest(), record)


def read_checked(folder: Path, name: str, record: FileRecord) -> bytes:
    """Return the contents of a file. Raise InputError if they are not those in the manifest."""
    with _open_checked(folder, name, record) as file, _read_errors(folder / name):
        data = file.read(record.bytes)
    _check_digest(folder / name, hashlib.sha256(data).hexdigest(), record)
    return data


def _check_digest(path: Path, sha256: str, record: FileRecord) -> None:
    if sha256 != record.sha256:
        raise ArtifactFileErrors.DIGEST_DIFFERS(path=path)


def decoded(data: bytes, path: Path) -> str:
    """Return the text of a file. Raise InputError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ArtifactFileErrors.NOT_UTF8(path=path, reason=quoted(error)) from None
