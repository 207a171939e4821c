"""The argument of commands that take a model or an artifact. A model is first compiled into the user's cache."""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.compile_options import DEFAULT_DRAFTED, CompileOptions
from sscc.compiler.tools.commands.parser import Parser
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import option, records_of

if TYPE_CHECKING:
    from sscc.runtime.session.artifact import Artifact

logger = logging.getLogger("sscc")


class ModelOptionErrors(ErrorKind):
    OF_ARTIFACT = UsageError, (
        "{options} are compile options, but the artifact {path} is already compiled: give the model, or leave them out"
    )
    RANKS = UsageError, "torchrun needs an artifact, but {path} is a model: compile it first with `sscc compile`"


COMPILATION = "compilation (of models only)"
"""Heading of these options in `--help`."""


@dataclass(frozen=True)
class ModelArgument:
    """The model or artifact that a command executes."""

    artifact: Path = option(
        MISSING, "Hugging Face folder, .gguf, .pt, .pth or .pt2 file, compiled once into the user's cache; or an .rdu "
        "artifact that `sscc compile` wrote", "MODEL", positional=True,
    )  # fmt: skip


def add_compilation_options(parser: Parser, *, batch: int | None = None) -> None:
    """Add the compile options of models.

    Args:
        parser: parser of the command.
        batch: default number of decode slots, also an argument of `resolve_model`; None omits the option.
    """
    records = records_of(CompileOptions)
    names = [name for name, record in records.items() if record.of_models and (name != "batch" or batch is not None)]
    slots = {} if batch is None else {"batch": f"{records['batch'].help} (default: {batch})"}
    parser.add_options(CompileOptions, names, heading=COMPILATION, of_models=True, **slots)


def name_of(args: argparse.Namespace) -> str:
    """Return the name of the model or artifact on the command line, without its folder and the suffix .rdu."""
    given: Path = getattr(args, "given_model", args.artifact)
    return Path(os.path.realpath(given)).name.removesuffix(".rdu")


def resolve_model(args: argparse.Namespace, batch: int = 1) -> None:
    """Replace the model in `args.artifact` by its compiled artifact, which the cache may have already. The path on the
    command line stays in `args.given_model`.

    Args:
        args: parsed options, changed in place.
        batch: decode slots without `--batch`.

    Raises:
        UsageError: compile options for an artifact.
        SsccError: errors of `sscc.compiler.driver.model_cache.artifact_of`.
    """
    from sscc.compiler.driver.model_cache import OF_MODELS, ModelOptions, artifact_of, is_model
    from sscc.runtime.serving.ranks.joining import launched

    path: Path = args.artifact
    args.given_model = path
    values = {name: getattr(args, name, None) for name in OF_MODELS}
    if getattr(args, "speculate", None) is not None and values["verify"] is None and is_model(path):
        values["verify"] = DEFAULT_DRAFTED
    if not isinstance(values["batch"], int):
        values["batch"] = None  # --batch of `sscc bench` is a list
    options = ModelOptions(**values)
    if not is_model(path):
        if options.given():
            raise ModelOptionErrors.OF_ARTIFACT(options=options.given(), path=path)
        return
    if launched() is not None:
        raise ModelOptionErrors.RANKS(path=path)
    args.artifact = artifact_of(path, options if options.batch else ModelOptions(**{**values, "batch": batch}))


def announce(args: argparse.Namespace, artifact: Artifact) -> None:
    """Log the context and cache of a model that `resolve_model` compiled. Log nothing for an artifact."""
    if getattr(args, "given_model", args.artifact) == args.artifact:
        return
    signature = artifact.signature
    geometry = signature.geometry
    logger.info(
        "%s: context %d tokens (--max-context), %d rows of KV (--kv-budget), %s; batch %d, %s",
        name_of(args), geometry.max_context, geometry.budget, signature.kv_in_words(), signature.batch, signature.dtype,
    )  # fmt: skip
