"""Reproducer of a failing pass: a folder with everything needed to replay the failure, except weights.

before.mlir     the module before the pass
pipeline.txt    the pass and those that follow it
versions.json   versions of sscc and of its tools
error.txt       the error
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from sscc.compiler.options.versions import own_version, tool_versions
from sscc.ir.errors import ErrorKind, OutputError
from sscc.passes.base import Observer


class ReproducerErrors(ErrorKind):
    NOT_WRITTEN = OutputError, "the reproducer {folder} cannot be written: {reason}"


class LastStep(Observer):
    """Observer that records the running pass and the module before it."""

    def __init__(self) -> None:
        self.name = ""
        self.text = ""

    def before(self, name: str, text: str) -> None:
        self.name, self.text = name, text


def write_reproducer(
    folder: Path, text: str, pipeline: str, error: BaseException, loaded: Sequence[str] = ()
) -> str:
    """Write the folder and return the command that replays the failure.

    Args:
        loaded: sources of loaded passes, as for `--load-pass`.

    Raises:
        OutputError: the folder cannot be written.
    """
    versions = {"sscc": own_version(), **tool_versions()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "before.mlir").write_text(text)
        (folder / "pipeline.txt").write_text(pipeline + "\n")
        (folder / "versions.json").write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")
        (folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n")
    except OSError as problem:
        raise ReproducerErrors.NOT_WRITTEN(folder=folder, reason=problem.strerror or problem) from None
    loading = "".join(f" --load-pass {shlex.quote(source)}" for source in loaded)
    return f"sscc opt {folder / 'before.mlir'}{loading} --pass-pipeline='{pipeline}'"
