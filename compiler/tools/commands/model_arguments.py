"""Commands that take a model as well as an artifact: a model is compiled into the user's cache first."""

from __future__ import annotations

import argparse
import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.ir.choices import DTYPES
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.geometry import KV_DTYPES, KV_POLICIES

if TYPE_CHECKING:
    from sscc.runtime.session.artifact import Artifact

logger = logging.getLogger("sscc")


class ModelOptionErrors(ErrorKind):
    OF_ARTIFACT = UsageError, (
        "{options} are options of a compilation, and {path} is an artifact, which is compiled already: give the model, "
        "or leave them out"
    )
    RANKS = UsageError, "torchrun starts ranks of an artifact, and {path} is a model: compile it with `sscc compile`"


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact",
        type=Path,
        metavar="MODEL",
        help="Hugging Face folder, .gguf, .pt, .pth or .pt2 file, compiled once into the user's cache; or an .rdu "
        "artifact that `sscc compile` wrote",
    )


def add_compilation_arguments(group: argparse._ArgumentGroup, *, batch: int | None = None) -> None:
    """Add the options with which a model is compiled.

    Args:
        batch: the number of slots that `resolve_model` will take by default; None leaves the option out.
    """
    group.add_argument(
        "--kv-budget", type=int, metavar="ROWS", help="total cache rows per layer and KV head (default: by the context)"
    )
    group.add_argument(
        "--max-context",
        type=int,
        metavar="TOKENS",
        help="longest prompt plus answer (default: the model's own, if its states fit the memory)",
    )
    if batch is not None:
        group.add_argument(
            "--batch", type=int, metavar="SLOTS", help=f"sequences that decode together (default: {batch})"
        )
    group.add_argument("--kv-dtype", choices=KV_DTYPES, metavar="TYPE", help=f"one of: {', '.join(KV_DTYPES)}")
    group.add_argument("--kv-policy", choices=KV_POLICIES, metavar="NAME", help=f"one of: {', '.join(KV_POLICIES)}")
    group.add_argument(
        "--dtype", choices=DTYPES, metavar="TYPE", help="of activations (default: bf16 for a quantized model)"
    )
    group.add_argument(
        "--weights",
        metavar="FORMAT",
        help="keep, dense, or int8 or int4, then :GROUP, then :zero-point (default: keep for a quantized model)",
    )
    group.add_argument("--lora", type=Path, metavar="FOLDER", help="LoRA adapter to merge into the weights")


def name_of(args: argparse.Namespace) -> str:
    """Return the name of a model or an artifact by which it was given."""
    given: Path = getattr(args, "given_model", args.artifact)
    return given.resolve().name.removesuffix(".rdu")


def resolve_model(args: argparse.Namespace, batch: int = 1) -> None:
    """Let `args.artifact` be the artifact of the model that was given, compiled if need be, and `args.given_model` the
    path by which it was given.

    Args:
        batch: slots, where no option says how many.

    Raises:
        UsageError: options of a compilation for an artifact.
        SsccError: as `sscc.compiler.driver.model_cache.artifact_of`.
    """
    from sscc.compiler.driver.model_cache import ModelOptions, artifact_of, is_model
    from sscc.runtime.serving.ranks.joining import launched

    path: Path = args.artifact
    args.given_model = path
    values = {field.name: getattr(args, field.name, None) for field in fields(ModelOptions)}
    if not isinstance(values["batch"], int):
        values["batch"] = None  # `sscc bench` takes several
    options = ModelOptions(**values)
    if not is_model(path):
        if options.given():
            raise ModelOptionErrors.OF_ARTIFACT(options=options.given(), path=path)
        return
    if launched() is not None:
        raise ModelOptionErrors.RANKS(path=path)
    args.artifact = artifact_of(path, options if options.batch else replace(options, batch=batch))


def announce(args: argparse.Namespace, artifact: Artifact) -> None:
    """Log the context and the cache with which a model was compiled; nothing for an artifact that was given."""
    if getattr(args, "given_model", args.artifact) == args.artifact:
        return
    signature = artifact.signature
    geometry = signature.geometry
    logger.info(
        "%s: context %d tokens (--max-context), %d rows of KV (--kv-budget), %s; batch %d, %s",
        name_of(args), geometry.max_context, geometry.budget, signature.kv_in_words(), signature.batch, signature.dtype,
    )  # fmt: skip
