"""Continuous batching over the slots of one session."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.serving.engine.constraints import (
    Constraint,
    ConstraintErrors,
    GrammarCompiler,
    ThoughtProgress,
    token_bits,
)
from sscc.runtime.serving.engine.elsewhere import Elsewhere
from sscc.runtime.serving.engine.executor import Close, Executor
from sscc.runtime.serving.engine.metrics import Metrics, SlotState
from sscc.runtime.serving.engine.prompt_files import FileCount, load_prompts, save_prompts
from sscc.runtime.serving.engine.request import Completion, Piece, Request
from sscc.runtime.serving.engine.ticket import Ticket, cancel_all
from sscc.runtime.session.prompt_scores import check_scores
from sscc.runtime.session.session import Session
from sscc.runtime.session.shortening import Shortener
from sscc.runtime.session.slot_message import SlotFormat
from sscc.runtime.support.serving_options import MOST_SECONDS, EngineOptions

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SubmissionErrors(ErrorKind):
    NO_DRAFT = UsageError, "keep is {keep:g}, and the engine has no draft to shorten prompts"
    SCORES_ELSEWHERE = UsageError, "logprobs of a prompt are made where it is prefilled, which is another process"
    SCORES_OF_A_PART = UsageError, "logprobs of a prompt need all of it, and keep is {keep:g}: ask without a draft"
    NO_TOKENIZER = UsageError, "stop strings need a tokenizer, and the engine has none"
    NO_SUCH_TOKEN = UsageError, "logit bias of token {token}, which is out of range 0 .. {last}"
    NO_SUCH_ALLOWED_TOKEN = UsageError, "allowed token {token} is out of range 0 .. {last}"
    TOO_MANY_LOGPROBS = UsageError, "logprobs is {logprobs}, and the vocabulary has {vocabulary} tokens"


class Engine:
    """Serves requests, as many at a time as the program has slots, in a thread of its own.

    A request's tokens depend on its prompt and its sampling alone, and not on what is served beside it. Use it as a
    context manager: leaving it finishes what was submitted, or cancels it where an exception leaves.

    Args:
        session: the engine's alone from now on; what its slots hold is given up.
        tokenizer: makes text; None: tokens only.
        options: how the session is shared.
        elsewhere: other processes, in which prompts are prefilled; None: here. It ends with the engine.
        shortener: leaves out what requests need not read (`Request.keep`); its draft is the engine's alone.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer | None = None,
        options: EngineOptions | None = None,
        elsewhere: Elsewhere | None = None,
        shortener: Shortener | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._session = session
        self._elsewhere, self._shortener = elsewhere, shortener
        vocabulary, ends = session.signature.vocab_size, session.signature.eos_token_ids
        self._grammars = None if tokenizer is None else GrammarCompiler(tokenizer, vocabulary, ends)
        self._executor = Executor(session, options or EngineOptions(), elsewhere, shortener)
        thread = threading.Thread(target=self._executor.run, name="sscc-engine", daemon=True)
        # The thread knows the executor and not this object, so that an engine that is dropped ends its thread; and at
        # the end of the process no daemon thread may be in native code.
        weakref.finalize(self, _abort, self._executor, thread)
        self._thread = thread
        thread.start()

    @property
    def signature(self) -> Signature:
        """Sizes and geometry of the program."""
        return self._session.signature

    @property
    def grammars(self) -> GrammarCompiler | None:
        """Compiles the grammars of requests; None without a tokenizer."""
        return self._grammars

    @property
    def slot_format(self) -> SlotFormat:
        """The messages in which slots go to other processes. Raises UsageError as `Session.slot_format` does."""
        return self._session.slot_format

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the engine, if one did: it takes no requests any more."""
        return self._executor.failure

    def submit(self, request: Request) -> Ticket:
        """Queues a request.

        Raises:
            QueueFull: too many wait already.
            EngineClosed: the engine was closed, or has failed.
            UsageError: a request that can never be served: too long, a token out of range, stop strings or a grammar
                without a tokenizer, a grammar that is wrong or too complex.
        """
        prompt = self._session.check_request(request.prompt, request.max_new_tokens)
        if request.keep_slot:
            _ = self._session.slot_format  # which says why there is none
        vocabulary = self.signature.vocab_size
        if request.keep is not None and self._shortener is None:
            raise SubmissionErrors.NO_DRAFT(keep=request.keep)
        if request.stop and self.tokenizer is None:
            raise SubmissionErrors.NO_TOKENIZER()
        for token, _ in request.sampling.logit_bias:
            if token >= vocabulary:
                raise SubmissionErrors.NO_SUCH_TOKEN(token=token, last=vocabulary - 1)
        for asked in (request.logprobs, request.prompt_logprobs):
            if asked is not None and asked > vocabulary:
                raise SubmissionErrors.TOO_MANY_LOGPROBS(logprobs=asked, vocabulary=vocabulary)
        if request.prompt_logprobs is not None:
            self._check_scores(request)
        ends = self.signature.eos_token_ids if request.eos is None else sorted(request.eos)
        constraint = self._constraint(request, ends)
        job = self._executor.submit(request, prompt, np.array(ends, np.int64), constraint)
        return Ticket(self, self._executor, job)

    def _check_scores(self, request: Request) -> None:
        """Check that the tokens of a prompt can be scored. Raises UsageError."""
        check_scores(self._session)
        if self._elsewhere is not None:
            raise SubmissionErrors.SCORES_ELSEWHERE()
        if request.keep is not None:
            raise SubmissionErrors.SCORES_OF_A_PART(keep=request.keep)

    def _constraint(self, request: Request, ends: Sequence[int]) -> Constraint | None:
        """Return what the tokens of a request may be; None: any. Raises UsageError."""
        vocabulary, only = self.signature.vocab_size, request.allowed_tokens
        for token in only or ():
            if not 0 <= token < vocabulary:
                raise SubmissionErrors.NO_SUCH_ALLOWED_TOKEN(token=token, last=vocabulary - 1)
        allowed = None if only is None else token_bits(only, vocabulary)
        inside = tuple(token for token in ends if 0 <= token < vocabulary)
        thought = None if request.thought is None else ThoughtProgress(request.thought)
        if request.grammar is None:
            bound = request.min_tokens > 0 or allowed is not None or thought is not None
            return Constraint(None, inside, request.min_tokens, allowed, thought=thought) if bound else None
        if self._grammars is None:
            raise ConstraintErrors.NO_TOKENIZER()
        constraint = self._grammars.constraint(request.grammar, inside, request.min_tokens, allowed)
        constraint.thought = thought
        return constraint

    def submit_all(self, requests: Sequence[Request]) -> list[Ticket]:
        """Submits all of them or none. Raises as `submit` does."""
        tickets: list[Ticket] = []
        try:
            for request in requests:
                tickets.append(self.submit(request))
        except BaseException:
            cancel_all(tickets)
            raise
        return tickets

    def generate(self, request: Request) -> Completion:
        """Submits a request and waits for its end; an exception meanwhile (Ctrl-C) cancels it."""
        ticket = self.submit(request)
        try:
            return ticket.result()
        except BaseException:
            ticket.cancel()
            raise

    def stream(self, request: Request) -> Iterator[Piece]:
        """Submits a request and gives its pieces as they are made (`Ticket.pieces`)."""
        return self.submit(request).pieces()

    async def agenerate(self, request: Request) -> Completion:
        """`generate` for asyncio; cancelling the task cancels the request."""
        ticket = self.submit(request)
        try:
            return await ticket.aresult()
        except BaseException:
            ticket.cancel()
            raise

    def astream(self, request: Request) -> AsyncIterator[Piece]:
        """`stream` for asyncio. The request is submitted at the call."""
        return self.submit(request).apieces()

    def metrics(self) -> Metrics:
        """A consistent snapshot."""
        return self._executor.metrics()

    def slots(self) -> list[SlotState]:
        """What every slot does now, in order."""
        return self._executor.slots()

    def save_prompts(self, folder: str | PathLike[str]) -> FileCount:
        """Write the prompts that the engine keeps into a folder, for `load_prompts` of any process with this program.
        Nothing else is done meanwhile.

        Returns:
            The files that were written. What the folder has already is not written again; of all its files those that
            were used longest ago go, beyond `EngineOptions.prompt_cache_bytes`.

        Raises:
            UsageError: the session is not of an artifact with its own weights.
            OutputError: the folder or a file cannot be written.
            EngineClosed: the engine was closed, or has failed.
        """
        count: FileCount = self._executor.do(lambda session, prompts: save_prompts(prompts, session, Path(folder)))
        return count

    def load_prompts(self, folder: str | PathLike[str]) -> FileCount:
        """Read the prompts that `save_prompts` has written for this program and these weights, as far as
        `EngineOptions.prompt_cache_bytes` allows: what was used last first. A folder that does not exist has none; a
        file that is damaged is named in the log and not used.

        Returns:
            The files that were read.

        Raises:
            UsageError, EngineClosed: as `save_prompts` does.
        """
        count: FileCount = self._executor.do(lambda session, prompts: load_prompts(prompts, session, Path(folder)))
        return count

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Takes no more requests, ends the others and then the thread; nothing happens if it is closed.

        Args:
            drain: finish the requests; otherwise they are cancelled.
            timeout: seconds after which what is not finished is cancelled; None: no limit.
        """
        try:
            self._executor.close(Close.DRAIN if drain else Close.CANCEL)
            self._executor.done.wait(None if timeout is None else min(timeout, MOST_SECONDS))
        finally:
            self._executor.abort()
            self._thread.join()
            if self._elsewhere is not None:
                self._elsewhere.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


def _abort(executor: Executor, thread: threading.Thread) -> None:
    executor.abort()
    if thread is not threading.current_thread():
        thread.join()
