"""Outputs of commands: text files, stdout, and refusals of outputs that cannot go to stdout."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import STANDARD, replacing


class StdoutErrors(ErrorKind):
    ARTIFACT = UsageError, "an artifact is a folder and cannot go to stdout: give a name with -o"
    EVALUATION = UsageError, "the results of an evaluation are a folder and cannot go to stdout: give a name with -o"
    PACKED_CHECKPOINT = UsageError, "a packed checkpoint is binary and cannot go to stdout: give a name with -o"


def refuse_stdout(path: Path | None, kind: StdoutErrors) -> None:
    """Raise an error of `kind` if `path` is "-", for outputs that are not a single text."""
    if path == STANDARD:
        raise kind()


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically, or to stdout if `path` is "-". Raise the errors of `replacing`."""
    if path == STANDARD:
        sys.stdout.write(text)
        return
    with replacing(path) as file:
        file.write(text.encode())


def printing_beside(path: Path | None) -> AbstractContextManager[object]:
    """Send print to stderr inside the block if an output goes to stdout, because `path` is "-"."""
    return redirect_stdout(sys.stderr) if path == STANDARD else nullcontext()
