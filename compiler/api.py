"""The functions behind `sscc.compile` and `sscc.load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.driver import compile_model
from sscc.compiler.loading import open_session
from sscc.compiler.options import CompileOptions
from sscc.compiler.result import CompileResult
from sscc.runtime.artifact import Artifact
from sscc.runtime.session import Session

if TYPE_CHECKING:
    from os import PathLike


def compile(model: str | PathLike[str], **options: Any) -> CompileResult:
    """Compiles `model` into an artifact.

    Args:
        model: a Hugging Face folder, a .gguf, .pt, .pth or .pt2 file, or with `compile_from` a dumped .mlir file.
        options: fields of `CompileOptions`, paths as `pathlib.Path`.

    Raises:
        SsccError: the subclass says what kind, the message what to change.
    """
    return compile_model(CompileOptions(model=Path(model), **options))


def load(path: str | PathLike[str], checkpoint: str | PathLike[str] | None = None) -> Session:
    """Opens the artifact in `path` and gives a session on the reference interpreter, ready to generate.

    Args:
        checkpoint: run these weights, of the same names and shapes, instead of the artifact's.

    Raises:
        InputError: missing, truncated, damaged, or of a newer format.
    """
    return open_session(Artifact.load(path), None if checkpoint is None else Path(checkpoint))
