"""Commands that execute an artifact: their common options, and how they open it."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.progress import status
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.terminal import send_log_to_stderr
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend_names

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.session import Session
    from sscc.runtime.text.chat_template import ChatTemplate


class ExecutionErrors(ErrorKind):
    BELOW_LEAST = UsageError, "{option} is {value:g}, it must be at least {least}"
    NO_TOKENIZER = InputError, "{path} has no tokenizer: compile a checkpoint that has one"
    OTHER_RANKS = UsageError, "--tp is {asked}, but {path} is compiled for another number of ranks, {ranks}"


def add_execution_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="run these weights, of the same shapes (default: the artifact's own, or of the checkpoint that it was "
        "compiled from on this machine with --weights reference)",
    )
    group.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not compare the weights with their digests, which is done once until their files change",
    )
    add_interpreter_arguments(group)
    group.add_argument("--tp", type=int, metavar="N", help="ranks (default: what the artifact was compiled for)")
    group.add_argument(
        "--transport",
        metavar="NAME",
        help="between ranks: memory or sockets (default: memory if they share it, else sockets)",
    )


def add_trace_argument(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write what threads, stages and requests did when, for Perfetto (ui.perfetto.dev), at the end; - for "
        "stdout, and then what else is printed goes to stderr",
    )


@contextmanager
def traced(session: Session, path: Path | None) -> Iterator[None]:
    """Record a trace of the block, and write it when the block ends, however it ends; without a path do nothing.

    Raises OutputError where the file cannot be written, before the block where that is known.
    """
    if path is None:
        yield
        return
    from sscc.runtime.support.trace_file import trace_file

    with trace_file(path) as file:  # opened first: a long run would be in vain
        tracer = session.start_trace()
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised  # the trace up to here may show why
        tracer.write_to(file)
        session.tracer = None
    if error is not None:
        raise error


def add_interpreter_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--interpreter",
        default=DEFAULT_BACKEND,
        choices=backend_names(),
        metavar="NAME",
        help=f"one of: {', '.join(backend_names())}",
    )
    group.add_argument("--threads", type=int, metavar="N", help="(default: all that this process may use)")


def check_execution_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError."""
    check_at_least(1, "--threads", args.threads)


def check_at_least(least: int, option: str, value: float | None) -> None:
    """Raise UsageError where a value is given and below the least one."""
    if value is not None and value < least:
        raise ExecutionErrors.BELOW_LEAST(option=option, value=value, least=least)


def log_to_stderr(quiet: bool = False) -> None:
    send_log_to_stderr(logging.WARNING, "sscc: %(message)s")
    logging.getLogger("sscc").setLevel(logging.ERROR if quiet else logging.INFO)


def tokenizer_and_template(artifact: Artifact) -> tuple[Tokenizer, ChatTemplate | None]:
    """Return the artifact's tokenizer, and the chat template that came with it. Raise InputError where it has none."""
    from sscc.runtime.text.chat_template import ChatTemplate
    from sscc.runtime.text.tokenizer import load_tokenizer

    if artifact.tokenizer is None or artifact.tokenizer_file is None:
        raise ExecutionErrors.NO_TOKENIZER(path=artifact.path)
    template = ChatTemplate.load(artifact.tokenizer, names=artifact.tokenizer_files)
    return load_tokenizer(artifact.tokenizer_file), template


def session_of(artifact: Artifact, args: argparse.Namespace) -> Session:
    """Open a session as the options say. Raise as `open_session`, and UsageError where --tp differs from the
    artifact's number of ranks."""
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.support import _native

    _check_ranks(artifact, args)
    threads = args.threads or _native.usable_threads()
    with status(f"opening {artifact.path.name}"):
        return open_session(
            artifact, args.checkpoint, interpreter=args.interpreter, threads=threads, transport=args.transport
        )


def open_artifact(path: Path, *, verify: bool = True) -> Artifact:
    """Load an artifact, which proves it. Raise as `Artifact.load`."""
    from sscc.runtime.session.artifact import Artifact

    with status(f"opening {path.name}"):
        return Artifact.load(path, verify=verify)


def followed(args: argparse.Namespace) -> bool:
    """Follow rank 0 to its end, if torchrun has started this process as another rank. Return True if it has."""
    if os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ:
        return False
    from sscc.compiler.driver.sessions import follow_session
    from sscc.runtime.session.artifact import Artifact

    artifact = Artifact.load(args.artifact, verify=args.verify)
    _check_ranks(artifact, args)
    return follow_session(artifact, args.checkpoint, args.interpreter, args.threads, args.transport)


def _check_ranks(artifact: Artifact, args: argparse.Namespace) -> None:
    ranks = artifact.program.ranks
    if args.tp is not None and args.tp != ranks:
        raise ExecutionErrors.OTHER_RANKS(asked=args.tp, path=artifact.path, ranks=ranks)
