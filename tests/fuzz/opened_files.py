"""Files that a case opens: by Python's audit events, and by the kernel for a folder that is watched."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_IN_OPEN, _NONBLOCK = 0x20, os.O_NONBLOCK
_EVENT = struct.Struct("iIII")
_CODE = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "marshal.loads")
"""Audit events of code that a file brings. Imports load modules by marshal, so they happen before a case."""


@dataclass
class Opened:
    """Events of a block.

    Attributes:
        paths: of files, as they were given; relative to a folder's descriptor where one was given.
        code: audit events that run code.
        watched: names in the watched folders that were opened, by any means, native code included.
    """

    paths: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)


_recording: Opened | None = None
_installed = False


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _recording is None:
        return
    if event == "open":
        _recording.paths.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")
    elif event in _CODE:
        _recording.code.append(f"{event} {arguments[:2]}")


@contextmanager
def opened_files(*folders: Path) -> Iterator[Opened]:
    """Record what is opened inside the block, which folders' files among it. There is no way to remove the hook again,
    so it stays, and does nothing outside of such a block."""
    global _recording, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(_NONBLOCK)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    opened = Opened()
    try:
        for folder in folders:
            if libc.inotify_add_watch(watch, os.fsencode(folder), _IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
        _recording = opened
        try:
            yield opened
        finally:
            _recording = None
            opened.watched = list(_events(watch))
    finally:
        os.close(watch)


def _events(watch: int) -> Iterator[str]:
    try:
        data = os.read(watch, 1 << 16)
    except BlockingIOError:
        return
    at = 0
    while at < len(data):
        *_, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield data[at : at + length].rstrip(b"\0").decode(errors="replace") or "the folder itself"
        at += length
