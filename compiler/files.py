"""Writing text files."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path

from sscc.ir.errors import UsageError
from sscc.ir.files import STANDARD, replacing


def refuse_stdout(path: Path | None, what: str) -> None:
    """For outputs that are no single text: raises UsageError where `path` is "-"."""
    if path == STANDARD:
        raise UsageError(f"{what} and cannot go to stdout: give a name with -o")


def write_text(path: Path, text: str) -> None:
    """Writes a file in UTF-8, complete or not at all; or to stdout where `path` is "-". Raises OutputError, see
    `replacing`."""
    if path == STANDARD:
        sys.stdout.write(text)
        return
    with replacing(path) as file:
        file.write(text.encode())


def printing_beside(path: Path | None) -> AbstractContextManager[object]:
    """Where an output goes to stdout, because `path` is "-", what is printed meanwhile goes to stderr."""
    return redirect_stdout(sys.stderr) if path == STANDARD else nullcontext()
