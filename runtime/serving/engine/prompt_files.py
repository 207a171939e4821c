"""A prompt cache in a folder: a file for each chunk and each slot, for later processes with the same program.

File names contain digests of the contents and of the program, so that processes and programs can share a folder:
existing files are not written again, and files of other programs are left alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import InputError
from sscc.ir.files import mapped, output_errors, replacing
from sscc.ir.sizes import format_bytes
from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.serving.engine.prompt_store import KeptChunk, PromptStore
from sscc.runtime.session.chunk_message import ChunkMessage, chunk_key
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.row_messages import RowMessageErrors
from sscc.runtime.session.session import Session
from sscc.runtime.support.logs import logged

CHUNK, SLOT = ".chunk.safetensors", ".slot.safetensors"
"""Suffixes of the file names."""
NAME_LETTERS = 16
"""Hexadecimal digits of the program's digest in a file name."""

_log = logging.getLogger("sscc.engine")


@dataclass
class FileCount:
    """Number of files written or read, and their bytes."""

    files: int = 0
    nbytes: int = 0

    def __str__(self) -> str:
        return f"{self.files} files, {format_bytes(self.nbytes)}"


def save_prompts(store: PromptStore, session: Session, folder: Path) -> FileCount:
    """Write the entries of a store that the folder lacks. The least recently used files in excess of the store's limit
    are removed.

    Raises:
        UsageError: the program and the weights of the session have no digests.
        OutputError: the folder or a file cannot be written.
    """
    identity, written = session.slot_format.identity, FileCount()
    with output_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in store.entries():
        path = folder / _name(entry, identity)
        with suppress(OSError):
            os.utime(path)  # fails if there is no such file; otherwise marks it as just used
            continue
        with replacing(path, mode=0o600) as file:
            for piece in _pieces(entry, session):
                file.write(piece)
                written.nbytes += piece.nbytes
        written.files += 1
    _remove_oldest(folder, store.limit)
    return written


def load_prompts(store: PromptStore, session: Session, folder: Path) -> FileCount:
    """Read the files of this program in a folder, most recently used first, as far as the store's limit allows.

    Files that are damaged are skipped and named in the log; so are files that another process removes meanwhile.

    Raises:
        UsageError: as for `save_prompts`.
    """
    identity, read, others = session.slot_format.identity, FileCount(), 0
    chosen: list[Path] = []
    left = store.limit
    for path, size in _files(folder):
        if not path.name.startswith(_program_name(identity)):
            others += 1
        elif size <= left:
            chosen.append(path)
            left -= size
    for path in reversed(chosen):
        try:
            size = _load(store, session, path)
        except InputError as error:
            others += error.kind is RowMessageErrors.OTHER_PROGRAM
            _log.warning("skipping a file of cached prompts: %s", logged(error))
            continue
        read.files, read.nbytes = read.files + 1, read.nbytes + size
    if others:
        _log.info("%d files of cached prompts in %s belong to other programs", others, folder)
    return read


def _load(store: PromptStore, session: Session, path: Path) -> int:
    """Read a file into a store. Return its size in bytes."""
    data = mapped(path)
    if path.name.endswith(CHUNK):
        store.add_chunk(session.chunk_format.read(data, str(path)))  # copies the rows
    else:
        store.add(session.adopt(session.slot_format.read(bytes(data), str(path))))
    return len(data)


def _pieces(entry: KeptChunk | Snapshot, session: Session) -> list[memoryview]:
    if isinstance(entry, Snapshot):
        return session.slot_format.pieces(session.message(entry))
    message = ChunkMessage(entry.before, entry.tokens, session.rows.parts(entry.rows.number), entry.rows.checkpoint)
    return session.chunk_format.pieces(message)


def _name(entry: KeptChunk | Snapshot, identity: ProgramIdentity) -> str:
    if isinstance(entry, Snapshot):
        key, end = hashlib.sha256(entry.prompt.tokens.key).hexdigest(), SLOT
    else:
        key, end = chunk_key(entry.before, entry.tokens).hex(), CHUNK
    return f"{_program_name(identity)}-{key}{end}"


def _program_name(identity: ProgramIdentity) -> str:
    return hashlib.sha256(f"{identity.program} {identity.weights}".encode()).hexdigest()[:NAME_LETTERS]


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of cached prompts in a folder and their sizes in bytes, most recently used first."""
    found: list[tuple[float, Path, int]] = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith((CHUNK, SLOT)) and entry.is_file(follow_symlinks=False):
                state = entry.stat(follow_symlinks=False)
                found.append((state.st_mtime, folder / entry.name, state.st_size))
    for _, path, size in sorted(found, reverse=True):
        yield path, size


def _remove_oldest(folder: Path, most: int) -> None:
    """Remove the least recently used files in excess of `most` bytes in total."""
    total = 0
    for path, size in _files(folder):
        total += size
        if total > most:
            with suppress(OSError):
                path.unlink()
