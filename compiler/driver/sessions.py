"""Sessions on artifacts, with one rank in this process, or with several ranks in processes that are started here or by
torchrun."""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path

from sscc.compiler.driver.loading import identity_of, open_interpreter
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.backends.registry import DEFAULT_BACKEND
from sscc.runtime.serving.ranks.crew import Crew, LeadingInterpreter
from sscc.runtime.serving.ranks.joining import follow_joined, join, launched, share_of_threads
from sscc.runtime.serving.ranks.starting import Opening, start
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.draft_model import DraftModel
from sscc.runtime.session.drafting import PromptLookup
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.session.speculation import Speculation

RANK_PROGRAM = "sscc.compiler.driver.rank_program"
"""Module that a started rank runs."""


class SessionOpeningErrors(ErrorKind):
    OTHER_RANKS = UsageError, "torchrun has started {ranks} ranks, but {path} is compiled for {expected}"


def open_session(
    artifact: Artifact,
    checkpoint: Path | None = None,
    *,
    interpreter: str = DEFAULT_BACKEND,
    threads: int | None = None,
    transport: str | None = None,
) -> Session:
    """Return a session on `artifact`. With several ranks this process is rank 0, and the others are started here, or
    were started by torchrun; they end with the session (`Session.close`), or with this process.

    Args:
        checkpoint, interpreter: see `sscc.compiler.driver.loading.open_interpreter`.
        threads: number of threads for all ranks of this machine together; None for the interpreter's default, or with
            several ranks one thread per CPU that this process may use.
        transport: transport between ranks: "memory" or "sockets"; None for memory if all ranks share it.

    Raises:
        UsageError: there is no such interpreter, or torchrun has started a different number of ranks.
        InputError: the weights are missing, damaged, of other shapes, or not the weights that the artifact refers to;
            or ranks cannot be started.
        RankError: another rank has failed, or ranks cannot connect.
    """
    ranks = artifact.program.ranks
    identity = partial(identity_of, artifact, checkpoint)
    if ranks == 1:
        opened = open_interpreter(artifact, checkpoint, interpreter=interpreter, threads=threads)
        return Session(artifact.signature, opened, artifact.tokenizer_file, identity)
    if _launched(artifact) is not None:
        joined = join(transport, threads)
        crew, share = Crew(joined.commands, joined.group, lambda _: None, joined.beats), joined.threads
    else:
        share, _ = share_of_threads(threads, ranks)
        path = None if checkpoint is None else str(checkpoint.resolve())
        opening = Opening(str(artifact.path.resolve()), path, interpreter, share, artifact.verify)
        crew = start(RANK_PROGRAM, opening, ranks, transport)
    try:
        own = open_interpreter(artifact, checkpoint, interpreter=interpreter, threads=share, group=crew.group)
        return Session(artifact.signature, LeadingInterpreter(own, crew), artifact.tokenizer_file, identity)
    except BaseException as error:
        try:
            crew.failed(error)
        finally:
            crew.close()  # the caller gets the error after all ranks have ended


LOOKUP = "lookup"
"""Name of prompt lookup among the drafts of `open_speculation`."""


def open_speculation(
    draft: str | PathLike[str],
    signature: Signature,
    *,
    interpreter: str = DEFAULT_BACKEND,
    threads: int | None = None,
    verify: bool = True,
) -> Speculation:
    """Return speculative decoding for a program, to be closed after use.

    Args:
        draft: "lookup" for prompt lookup, or the artifact of a smaller model with the same tokens.
        signature: signature of the program.
        interpreter, threads: as in `open_session`, for the draft.
        verify: check the digests of the draft's weights.

    Raises:
        UsageError: the program has no steps of several tokens (`--verify`), or the draft has other tokens, fewer slots
            or too few spare rows.
        SsccError: errors of `Artifact.load` and `open_session`.
    """
    if not signature.drafted:
        raise SessionErrors.NO_VERIFY()
    if draft == LOOKUP:
        return Speculation(signature, PromptLookup.of(signature))
    session = open_session(Artifact.load(draft, verify=verify), interpreter=interpreter, threads=threads)
    try:
        return Speculation(signature, DraftModel(session, signature))
    except BaseException:
        session.close()
        raise


def follow_session(
    artifact: Artifact, checkpoint: Path | None, interpreter: str, threads: int | None, transport: str | None
) -> bool:
    """Follow rank 0 to its end, if torchrun has started this process as another rank. Return False if it has not.

    Arguments and errors are those of `open_session`.
    """
    if not _launched(artifact):
        return False
    follow_joined(
        transport,
        threads,
        lambda group, share: open_interpreter(
            artifact, checkpoint, interpreter=interpreter, threads=share, group=group
        ),
    )
    return True


def _launched(artifact: Artifact) -> int | None:
    """Return the rank of this process under torchrun; None if torchrun has not started it.

    Raises:
        UsageError: the number of ranks under torchrun is not that of the program.
    """
    known, ranks = launched(), artifact.program.ranks
    if known is None:
        return None
    if known[1] != ranks:
        raise SessionOpeningErrors.OTHER_RANKS(ranks=known[1], path=artifact.path, expected=ranks)
    return known[0]
