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
from sscc.runtime.serving.engine.executor import Close, Executor
from sscc.runtime.serving.engine.metrics import Metrics, SlotState
from sscc.runtime.serving.engine.prompt_files import FileCount, load_prompts, save_prompts
from sscc.runtime.serving.engine.remote_prefill import RemotePrefill
from sscc.runtime.serving.engine.request import Completion, Piece, Request
from sscc.runtime.serving.engine.request_handle import RequestHandle, cancel_all
from sscc.runtime.session.prompt_scores import check_scores
from sscc.runtime.session.session import Session
from sscc.runtime.session.shortening import Shortener
from sscc.runtime.session.slot_message import SlotFormat
from sscc.runtime.session.speculation import Speculation
from sscc.runtime.support.serving_options import MOST_SECONDS, EngineOptions

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SubmissionErrors(ErrorKind):
    NO_DRAFT = UsageError, "keep is {keep:g}, but the engine has no draft to shorten prompts"
    SCORES_ELSEWHERE = UsageError, "logprobs of a prompt are not available when another process prefills it"
    SCORES_OF_A_PART = UsageError, "logprobs of a prompt need the whole prompt, but keep is {keep:g}: leave keep out"
    NO_TOKENIZER = UsageError, "stop strings need a tokenizer, but the engine has none"
    NO_SUCH_TOKEN = UsageError, "token {token} of logit_bias is out of range 0 .. {last}"
    NO_SUCH_ALLOWED_TOKEN = UsageError, "allowed token {token} is out of range 0 .. {last}"
    TOO_MANY_LOGPROBS = UsageError, "logprobs is {logprobs}, but the vocabulary has only {vocabulary} tokens"


class Engine:
    """Serves requests in a thread of its own, with one request in each slot of the program.

    A request's tokens depend only on its prompt and sampling parameters, not on concurrent requests. Use the engine as
    a context manager: leaving it finishes the submitted requests, or cancels them if an exception is raised.

    Args:
        session: session to decode with; the engine takes it over and discards the contents of its slots.
        tokenizer: tokenizer of the generated text; None for tokens only.
        options: options of the engine; None for the defaults.
        remote_prefill: other processes that prefill prompts; None to prefill here. It is closed with the engine.
        shortener: shortens the prompts of requests with `Request.keep`; the engine takes over its draft.
        speculation: drafts the tokens of answers, which have the same tokens without it; None for plain decoding.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer | None = None,
        options: EngineOptions | None = None,
        remote_prefill: RemotePrefill | None = None,
        shortener: Shortener | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._session = session
        self._remote_prefill, self._shortener = remote_prefill, shortener
        vocabulary, ends = session.signature.vocab_size, session.signature.eos_token_ids
        self._grammars = None if tokenizer is None else GrammarCompiler(tokenizer, vocabulary, ends)
        self._executor = Executor(session, options or EngineOptions(), remote_prefill, shortener, speculation)
        thread = threading.Thread(target=self._executor.run, name="sscc-engine", daemon=True)
        # The thread refers to the executor and not to this object, so that dropping the engine ends the thread. The
        # finalizer also runs when the process exits, because no daemon thread may be in native code by then.
        weakref.finalize(self, _abort, self._executor, thread)
        self._thread = thread
        thread.start()

    @property
    def signature(self) -> Signature:
        """Sizes and geometry of the program."""
        return self._session.signature

    @property
    def grammars(self) -> GrammarCompiler | None:
        """Compiler of the requests' grammars; None without a tokenizer."""
        return self._grammars

    @property
    def slot_format(self) -> SlotFormat:
        """Format of the messages that carry slots between processes. Raises UsageError as `Session.slot_format`
        does."""
        return self._session.slot_format

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the engine, which then accepts no more requests; None if none did."""
        return self._executor.failure

    def submit(self, request: Request) -> RequestHandle:
        """Queue a request.

        Raises:
            QueueFull: too many requests wait already.
            EngineClosed: the engine was closed, or has failed.
            UsageError: the request can never be served: it is too long, a token is out of range, it has stop strings or
                a grammar but the engine has no tokenizer, or its grammar is wrong or too complex.
        """
        prompt = self._session.check_request(request.prompt, request.max_new_tokens)
        if request.keep_slot:
            _ = self._session.slot_format  # raises UsageError if the session cannot export slots
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
        state = self._executor.submit(request, prompt, np.array(ends, np.int64), constraint)
        return RequestHandle(self, self._executor, state)

    def _check_scores(self, request: Request) -> None:
        """Check that the tokens of a prompt can be scored. Raises UsageError if not."""
        check_scores(self._session)
        if self._remote_prefill is not None:
            raise SubmissionErrors.SCORES_ELSEWHERE()
        if request.keep is not None:
            raise SubmissionErrors.SCORES_OF_A_PART(keep=request.keep)

    def _constraint(self, request: Request, ends: Sequence[int]) -> Constraint | None:
        """Return the constraint on a request's tokens; None for any tokens. Raises UsageError."""
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

    def submit_all(self, requests: Sequence[Request]) -> list[RequestHandle]:
        """Submit all requests or none of them. Raises as `submit` does."""
        handles: list[RequestHandle] = []
        try:
            for request in requests:
                handles.append(self.submit(request))
        except BaseException:
            cancel_all(handles)
            raise
        return handles

    def generate(self, request: Request) -> Completion:
        """Submit a request and wait for its end. An exception while waiting (Ctrl-C) cancels the request."""
        handle = self.submit(request)
        try:
            return handle.result()
        except BaseException:
            handle.cancel()
            raise

    def stream(self, request: Request) -> Iterator[Piece]:
        """Submit a request and return an iterator over its pieces (`RequestHandle.pieces`)."""
        return self.submit(request).pieces()

    async def agenerate(self, request: Request) -> Completion:
        """`generate` for asyncio. Cancelling the task cancels the request."""
        handle = self.submit(request)
        try:
            return await handle.aresult()
        except BaseException:
            handle.cancel()
            raise

    def astream(self, request: Request) -> AsyncIterator[Piece]:
        """`stream` for asyncio. The request is submitted immediately, not at the first iteration."""
        return self.submit(request).apieces()

    def metrics(self) -> Metrics:
        """Return a consistent snapshot of the metrics."""
        return self._executor.metrics()

    def slots(self) -> list[SlotState]:
        """Return the state of every slot, in order."""
        return self._executor.slots()

    def save_prompts(self, folder: str | PathLike[str]) -> FileCount:
        """Write the engine's cached prompts to a folder, for `load_prompts` of any process with this program. No other
        work is done at the same time.

        Returns:
            The files that were written. Files that the folder already has are not written again; the least recently
            used files in excess of `EngineOptions.prompt_cache_bytes` are removed.

        Raises:
            UsageError: the session does not belong to an artifact with its own weights.
            OutputError: the folder or a file cannot be written.
            EngineClosed: the engine was closed, or has failed.
        """
        count: FileCount = self._executor.do(lambda session, prompts: save_prompts(prompts, session, Path(folder)))
        return count

    def load_prompts(self, folder: str | PathLike[str]) -> FileCount:
        """Read the prompts that `save_prompts` wrote for this program and these weights, most recently used first, up
        to `EngineOptions.prompt_cache_bytes`. A folder that does not exist counts as empty; a damaged file is skipped
        and named in the log.

        Returns:
            The files that were read.

        Raises:
            UsageError, EngineClosed: as `save_prompts` does.
        """
        count: FileCount = self._executor.do(lambda session, prompts: load_prompts(prompts, session, Path(folder)))
        return count

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Accept no more requests, end the submitted ones, and end the thread. Does nothing if the engine is closed
        already.

        Args:
            drain: True to finish the requests, False to cancel them.
            timeout: seconds after which unfinished requests are cancelled; None for no limit.
        """
        try:
            self._executor.close(Close.DRAIN if drain else Close.CANCEL)
            self._executor.done.wait(None if timeout is None else min(timeout, MOST_SECONDS))
        finally:
            self._executor.abort()
            self._thread.join()
            if self._remote_prefill is not None:
                self._remote_prefill.close()

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
