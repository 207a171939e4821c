"""Sessions on artifacts: of one rank in this process, of several in as many, which it starts or is started with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sscc.compiler.loading import identity_of, open_interpreter
from sscc.compiler.ranks import Opening, follow_joined, join, launched, leave, share_of_threads, start
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.reading import Artifact
from sscc.runtime.backends.registry import DEFAULT_BACKEND
from sscc.runtime.collectives.crew import Crew, LeadingInterpreter
from sscc.runtime.session import Session


class LaunchedRankErrors(ErrorKind):
    OTHER_RANKS = UsageError, "torchrun has started {started} ranks, but {artifact} is compiled for {ranks}"


def open_session(
    artifact: Artifact,
    checkpoint: Path | None = None,
    *,
    interpreter: str = DEFAULT_BACKEND,
    threads: int | None = None,
    transport: str | None = None,
) -> Session:
    """A session on `artifact`. Of several ranks this process is rank 0, and the others are started here, or were by
    torchrun; they end with the session (`Session.close`), or with this process.

    Args:
        checkpoint, interpreter: see `sscc.compiler.loading.open_interpreter`.
        threads: how many may be used, by all ranks of this machine together; None leaves it to the interpreter, and of
            several ranks is all that this process may use.
        transport: between ranks: "memory", or a backend of torch.distributed; None: memory where they share it.

    Raises:
        UsageError: there is no such interpreter, or there are other ranks than the artifact is for.
        InputError: the weights are missing, damaged, of other shapes, or not the ones referred to; or ranks cannot be
            started, or do not find each other.
        RankError: another rank has failed meanwhile.
    """
    ranks = artifact.program.ranks
    identity = partial(identity_of, artifact, checkpoint)
    if ranks == 1:
        opened = open_interpreter(artifact, checkpoint, interpreter=interpreter, threads=threads)
        return Session(artifact.signature, opened, artifact.tokenizer_file, identity)
    if _launched(artifact) is not None:
        joined = join(transport, threads)
        crew, share = Crew(joined.commands, joined.group, leave, joined.beats), joined.threads
    else:
        share, _ = share_of_threads(threads, ranks)
        path = None if checkpoint is None else str(checkpoint.resolve())
        crew = start(Opening(str(artifact.path.resolve()), path, interpreter, share, artifact.verify), ranks, transport)
    try:
        own = open_interpreter(artifact, checkpoint, interpreter=interpreter, threads=share, group=crew.group)
        return Session(artifact.signature, LeadingInterpreter(own, crew), artifact.tokenizer_file, identity)
    except BaseException as error:
        crew.failed(error)


def follow_session(
    artifact: Artifact, checkpoint: Path | None, interpreter: str, threads: int | None, transport: str | None
) -> bool:
    """Where torchrun has started this process as another rank than 0, follows that one to its end, and is True.

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
    """Which rank torchrun has started this process as; None where it did not, or the program needs none. Raises
    UsageError where it has started others than the program is for."""
    known, ranks = launched(), artifact.program.ranks
    if known is None:
        return None
    if known[1] != ranks:
        raise LaunchedRankErrors.OTHER_RANKS(started=known[1], artifact=artifact.path, ranks=ranks)
    return known[0]
