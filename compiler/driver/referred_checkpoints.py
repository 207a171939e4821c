"""Records in the user's cache of the checkpoints to which artifacts without weights refer (`--weights reference`).

An artifact contains the digest of its weights but no path, so that an artifact cannot choose a file to open. Compiling
records the path of the checkpoint, and the identity of its files (inode, size, time of change), under that digest. A
run opens that path only if the files have not changed; otherwise the user names the checkpoint with --checkpoint.

The device number is not part of the identity, because a network file system gets another one at each mount.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from sscc.compiler.options.split_files import named_parts
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError, OutputError, UsageError, quoted
from sscc.runtime.support.user_cache import UnsafeCacheError, open_cached, replacing_cached

CHECKPOINTS = "checkpoints"
EXPORTED = ".pt2"
_NOTE_BYTES = 2**20
_SUFFIXES = (".safetensors", ".bin", ".index.json")
_CONFIGS = ("config.json", "adapter_config.json")

Identity = dict[str, list[int]]
"""Inode, size and time of the last change (ns) of each file, by its name in the folder; "" for a single file. A model
in several files has an entry for each of them."""


class ReferredCheckpointWarnings(ErrorKind):
    CANNOT_REMEMBER = SsccWarning, (
        "the path of {checkpoint} cannot be stored in the cache, so runs of the artifact need --checkpoint: {cause}"
    )


class ReferredCheckpointErrors(ErrorKind):
    CHANGED = InputError, (
        "{artifact} was compiled from the checkpoint {checkpoint}, whose files have changed since: name a checkpoint "
        "with --checkpoint, or compile again"
    )
    EXPORTED_PROGRAM = UsageError, (
        "--weights reference cannot refer to an exported program such as {path}: embed its weights"
    )
    GONE = InputError, (
        "{artifact} was compiled from the checkpoint {checkpoint}, which no longer exists or lacks files: name a "
        "checkpoint with --checkpoint"
    )
    NOT_REMEMBERED = InputError, (
        "{artifact} does not contain its weights, and your cache does not record the checkpoint it was compiled from: "
        "name the checkpoint with --checkpoint, or compile here, or with --weights embed"
    )


def check_referable(path: Path) -> None:
    """Raise UsageError if an artifact cannot refer to a model: opening an exported program takes much longer than
    opening weights, and reads far more of the file."""
    if path.suffix.lower() == EXPORTED:
        raise ReferredCheckpointErrors.EXPORTED_PROGRAM(path=path)


def remember(digest: str, checkpoint: Path) -> None:
    """Record the path of a checkpoint under the digest of its weights.

    Args:
        digest: digest of the weights in the program's form (`WeightsRecord.digest`).

    If the cache cannot be written, a warning says that runs will need --checkpoint.

    Raises UnsafeCacheError if another user could write there.
    """
    path = checkpoint.resolve()
    note = json.dumps({"path": str(path), "files": files_of(path)}, sort_keys=True) + "\n"
    try:
        with replacing_cached(_name(digest)) as file:
            file.write(note.encode())
    except OutputError as error:
        warn(ReferredCheckpointWarnings.CANNOT_REMEMBER(checkpoint=path, cause=quoted(error)))


def is_remembered(digest: str, checkpoint: Path) -> bool:
    """Return True if the cache records the checkpoint under the digest, and its files have not changed."""
    path = checkpoint.resolve()
    return _note(digest) == (path, files_of(path))


def recalled(digest: str, artifact: Path) -> Path:
    """Return the checkpoint recorded under the digest of its weights.

    Args:
        artifact: the artifact, for messages.

    Raises:
        InputError: nothing is recorded, or the checkpoint no longer exists or has changed.
        UnsafeCacheError: another user could have written to the cache.
    """
    note = _note(digest)
    if note is None:
        raise ReferredCheckpointErrors.NOT_REMEMBERED(artifact=artifact)
    path, files = note
    identity = files_of(path)
    if not identity:
        raise ReferredCheckpointErrors.GONE(artifact=artifact, checkpoint=path)
    if identity != files:
        raise ReferredCheckpointErrors.CHANGED(artifact=artifact, checkpoint=path)
    return path


def _name(digest: str) -> str:
    return f"{CHECKPOINTS}/{digest}"


def _note(digest: str) -> tuple[Path, Any] | None:
    """Return the path and files of a note; None if it is missing or unreadable."""
    try:
        file = open_cached(_name(digest))
        if file is None:
            return None
        with file:
            note = json.loads(file.read(_NOTE_BYTES))
        path = Path(note["path"])
        return (path, note["files"]) if path.is_absolute() else None
    except UnsafeCacheError:
        raise
    except (InputError, OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def files_of(path: Path) -> Identity:
    """Return the identity of a checkpoint's files, following links; {} without files."""
    try:
        if not path.is_dir():
            parts = named_parts(path)
            return _files({part.name: part for part in parts} if len(parts) > 1 else {"": path})
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.name in _CONFIGS or entry.name.endswith(_SUFFIXES)]
        return _files({name: path / name for name in sorted(names)})
    except (OSError, ValueError):
        return {}


def _files(paths: dict[str, Path]) -> Identity:
    states = {name: path.stat() for name, path in paths.items()}
    regular = {name: state for name, state in states.items() if stat.S_ISREG(state.st_mode)}
    return {name: [state.st_ino, state.st_size, state.st_mtime_ns] for name, state in regular.items()}
