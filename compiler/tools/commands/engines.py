"""Artifacts and sessions for the commands that execute a program."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.execution_options import DraftOptions, ExecutionOptions, SpeculationOptions
from sscc.compiler.options.progress import status
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.terminal import send_log_to_stderr

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.artifact.signature import Signature
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.session import Session
    from sscc.runtime.session.shortening import Shortener
    from sscc.runtime.session.speculation import Speculation
    from sscc.runtime.text.chat_template import ChatTemplate


class ExecutionErrors(ErrorKind):
    NO_TOKENIZER = InputError, "{path} has no tokenizer: compile a checkpoint that has one"


@contextmanager
def traced(session: Session, path: Path | None) -> Iterator[None]:
    """Record a trace of the block, and write it when the block ends, also with an exception.

    Args:
        session: session to trace.
        path: file of the trace; None records nothing.

    Raises:
        OutputError: the file cannot be written; before the block if it cannot be opened.
    """
    if path is None:
        yield
        return
    from sscc.runtime.support.trace_file import trace_file

    with trace_file(path) as file:  # opened first, so that a bad path fails before a long run
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


def log_to_stderr(quiet: bool = False) -> None:
    send_log_to_stderr(logging.WARNING, "sscc: %(message)s")
    logging.getLogger("sscc").setLevel(logging.ERROR if quiet else logging.INFO)


def tokenizer_and_template(artifact: Artifact) -> tuple[Tokenizer, ChatTemplate | None]:
    """Return an artifact's tokenizer and chat template (None without one). Raises InputError without a tokenizer."""
    from sscc.runtime.text.chat_template import ChatTemplate
    from sscc.runtime.text.tokenizer import load_tokenizer

    if artifact.tokenizer is None or artifact.tokenizer_file is None:
        raise ExecutionErrors.NO_TOKENIZER(path=artifact.path)
    template = ChatTemplate.load(artifact.tokenizer, names=artifact.tokenizer_files)
    return load_tokenizer(artifact.tokenizer_file), template


def session_of(artifact: Artifact, execution: ExecutionOptions) -> Session:
    """Open a session with the given options. Raises the errors of `open_session`."""
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.support import _native

    threads = execution.threads or _native.usable_threads()
    with status(f"opening {artifact.path.name}"):
        return open_session(
            artifact, execution.checkpoint, interpreter=execution.interpreter, threads=threads,
            transport=execution.transport,
        )  # fmt: skip


@contextmanager
def opened_shortener(
    options: DraftOptions, execution: ExecutionOptions, signature: Signature, tokenizer: Tokenizer | None
) -> Iterator[Shortener | None]:
    """Open the prompt shortener of a program for the duration of the block; yield None without a draft. Raises the
    errors of `open_session` and `Shortener`."""
    if options.draft is None:
        yield None
        return
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.session.shortening import Shortener
    from sscc.runtime.session.speculative_prefill import Draft

    draft = open_artifact(options.draft, verify=execution.digests)
    with status(f"opening {options.draft.name}"):
        session = open_session(draft, interpreter=execution.interpreter, threads=execution.threads)
    with closing(session):
        yield Shortener(Draft(session), signature, tokenizer, options.keep_delimiter)


@contextmanager
def opened_speculation(
    options: SpeculationOptions, execution: ExecutionOptions, signature: Signature
) -> Iterator[Speculation | None]:
    """Open the drafter of a program for the duration of the block; yield None for plain decoding. Raises the errors of
    `open_speculation`."""
    if options.speculate is None:
        yield None
        return
    from sscc.compiler.driver.sessions import open_speculation

    with status(f"opening {options.speculate}"):
        opened = open_speculation(
            options.speculate, signature, interpreter=execution.interpreter, threads=execution.threads,
            verify=execution.digests,
        )  # fmt: skip
    with closing(opened) as speculation:
        yield speculation


def open_artifact(path: Path, *, verify: bool = True) -> Artifact:
    """Load an artifact and verify its program. Raises the errors of `Artifact.load`."""
    from sscc.runtime.session.artifact import Artifact

    with status(f"opening {path.name}"):
        return Artifact.load(path, verify=verify)


def followed(path: Path, execution: ExecutionOptions) -> bool:
    """Execute the requests of rank 0 until it ends, if torchrun started this process as another rank, and return True.
    Return False otherwise."""
    if os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ:
        return False
    from sscc.compiler.driver.sessions import follow_session
    from sscc.runtime.session.artifact import Artifact

    artifact = Artifact.load(path, verify=execution.digests)
    return follow_session(
        artifact, execution.checkpoint, execution.interpreter, execution.threads, execution.transport
    )
