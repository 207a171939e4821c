"""File systems that fail, and processes that are killed, at one step of what writes to them.

Every step of a write goes through a function of `os`, through `sscc.ir.files.exchange` or through
`sscc.ir.files.RecordingFile.write`. Here these count their calls, and one of them does what the test says instead.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from sscc.ir import files
from sscc.runtime.artifact import writer as artifact_writer

STEPS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "ftruncate")
CODES = (errno.ENOSPC, errno.EIO)


@dataclass
class Steps:
    """Names of the steps that were taken, in order."""

    names: list[str] = field(default_factory=list)


Fault = Callable[[str, Callable[[], object]], None]
"""A replacement of a step: it gets the step's name and, where possible, a function that runs a part of the step."""


@contextmanager
def faults(at: int | None = None, fault: Fault | None = None) -> Iterator[Steps]:
    """Counts the steps of the block; `fault` happens in place of step number `at`."""
    steps = Steps()

    def reached(name: str, part: Callable[[], object] = lambda: None) -> None:
        steps.names.append(name)
        if fault is not None and (at is None or len(steps.names) - 1 == at):
            fault(name, part)

    def step(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any, **options: Any) -> Any:
            reached(name)
            return original(*args, **options)

        return taken

    def opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            reached("open")
        return _OPEN(path, flags, *args, **options)

    def written(file: files.RecordingFile, data: Any) -> int:
        def fail(error: OSError) -> None:
            file.error = error
            raise error

        try:
            reached("write", lambda: _WRITE(file, bytes(data)[: len(bytes(data)) // 2]))
        except OSError as error:
            fail(error)
        return _WRITE(file, data)

    with mock.patch.object(files.RecordingFile, "write", written), mock.patch.object(os, "open", opened):
        patches = [mock.patch.object(os, name, step(name, getattr(os, name))) for name in STEPS]
        swap = step("exchange", files.exchange)
        patches += [mock.patch.object(module, "exchange", swap) for module in (files, artifact_writer)]
        for patch in patches:
            patch.start()
        try:
            yield steps
        finally:
            for patch in patches:
                patch.stop()


_OPEN, _WRITE = os.open, files.RecordingFile.write


def fails(code: int) -> Fault:
    """The step fails; of a write half is done."""

    def fault(name: str, part: Callable[[], object]) -> None:
        part()
        raise OSError(code, os.strerror(code))

    return fault


def kills(name: str, part: Callable[[], object]) -> None:
    """The process is killed before the step; in the middle of a write."""
    part()
    os.kill(os.getpid(), signal.SIGKILL)


def slows(name: str, part: Callable[[], object]) -> None:
    """The step takes its time."""
    time.sleep(0.01)


def killed_at(at: int, work: Callable[[], object]) -> bool:
    """Does the work in a process of its own, which is killed at step `at`. Returns whether it got that far."""
    child = os.fork()
    if child == 0:
        try:
            with faults(at, kills):
                work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, "the work failed before it was killed"
    return False
