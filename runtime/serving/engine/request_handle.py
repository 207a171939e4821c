"""The caller's side of a request: its output as it is generated, its end, and cancellation."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from sscc.runtime.artifact.signature import Signature
from sscc.runtime.serving.engine.constraints import GrammarCompiler
from sscc.runtime.serving.engine.executor import Executor, News
from sscc.runtime.serving.engine.metrics import Figures
from sscc.runtime.serving.engine.request import Completion, Piece
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.serving.engine.transcript import Transcript
from sscc.runtime.session.slot_message import SlotMessage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

READ_AT_ONCE = 64
"""Maximum number of tokens whose text is decoded in the event loop; more tokens are decoded in a thread."""


class Opened(Protocol):
    """The part of an engine that a handle needs."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def grammars(self) -> GrammarCompiler | None: ...

    @property
    def signature(self) -> Signature: ...


class RequestHandle:
    """Handle of a submitted request. Its methods may be called from any thread and repeatedly: each reader starts at
    the first token.

    The request is cancelled when its handle is garbage-collected, because nobody can read its output any more.

    Attributes:
        id: number of the request; the engine counts from 0.
    """

    def __init__(self, engine: Opened, executor: Executor, state: RequestState) -> None:
        self.id = state.id
        self._engine = engine  # this reference keeps the engine open while somebody waits
        self._executor = executor
        self._state = state
        self._stopped = False
        weakref.finalize(self, executor.end, state, "cancelled")

    def cancel(self) -> None:
        """End the request before the engine's next step; does nothing if it has ended."""
        self._executor.end(self._state, "cancelled")

    def pieces(self) -> Iterator[Piece]:
        """Yield the request's output as it is generated. Closing or dropping the iterator before the last piece cancels
        the request.

        Raises the exception that ended the engine, if it failed.
        """
        transcript, ended = self._transcript(), False
        try:
            while not ended:
                news = self._executor.wait(self._state, transcript.read, whole=False)
                if news is not None:
                    piece = self._read(transcript, news)
                    ended = piece.finish is not None
                    yield piece
        finally:
            if not ended:
                self.cancel()

    async def apieces(self, interval: float = 0.0) -> AsyncIterator[Piece]:
        """`pieces` for asyncio. Cancelling the task that iterates cancels the request.

        Args:
            interval: minimum time in seconds between two pieces, except for the first two and the last two. Output is
                collected until the next multiple of `interval`, so that the pieces of all requests come together. 0
                yields each piece immediately; so do requests with stop strings at any interval, since the reader
                searches for these strings.
        """
        transcript, ended = self._transcript(), False
        waits = interval > 0 and not self._state.request.stop
        try:
            while not ended:
                if waits and transcript.read:
                    await self._moment(interval)
                news = await self._executor.wait_async(self._state, transcript.read, whole=False)
                piece = await self._aread(transcript, news)
                ended = piece.finish is not None
                yield piece
        finally:
            if not ended:
                self.cancel()

    async def _moment(self, interval: float) -> None:
        """Sleep until the next multiple of `interval` seconds, or until the request has ended."""
        now = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout_at((now // interval + 1) * interval):
                await self._executor.wait_async(self._state, 0, whole=True)

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the submitted prompt."""
        return self._state.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that did not have to be prefilled, because they were cached; 0 before the prefill."""
        return self._state.cached

    @property
    def drafted_tokens(self) -> int:
        """Number of tokens that were drafted for the answer so far."""
        return self._state.drafted

    @property
    def accepted_tokens(self) -> int:
        """Number of drafted tokens that were picked so far."""
        return self._state.accepted

    @property
    def figures(self) -> Figures:
        """Figures of the request so far. It counts as ended by a stop string once a reader has found the string."""
        figures = self._executor.figures(self._state)
        return replace(figures, finish="stop") if self._stopped else figures

    async def aslot(self) -> SlotMessage | None:
        """Return the slot of a request with `Request.keep_slot` after its prefill; None if the request was cancelled or
        timed out before. Raises the exception that ended the engine, if it failed."""
        return await self._executor.wait_prefilled(self._state)

    def taken(self) -> None:
        """End a request with `Request.keep_slot`, after its slot has been sent to another process."""
        self._executor.end(self._state, "prefilled")

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end of the request, and return its result.

        Raises TimeoutError after `timeout` seconds, without cancelling the request, and the exception that ended the
        engine, if it failed.
        """
        until = None if timeout is None else perf_counter() + timeout
        transcript, read, whole = self._transcript(), _Read(), not self._state.request.stop
        while not read.add(self._read(transcript, self._news(transcript.read, until, whole=whole))):
            pass
        self._news(transcript.read, until, whole=True)
        return self._completion(read.whole())

    async def aresult(self) -> Completion:
        """`result` for asyncio. Cancelling the task does not cancel the request."""
        transcript, read, whole = self._transcript(), _Read(), not self._state.request.stop
        wait, ended = self._executor.wait_async, False
        while not ended:
            ended = read.add(await self._aread(transcript, await wait(self._state, transcript.read, whole=whole)))
        await wait(self._state, transcript.read, whole=True)
        return self._completion(read.whole())

    def _transcript(self) -> Transcript:
        request, grammars = self._state.request, self._engine.grammars
        matcher = None
        if request.stop and request.grammar is not None and grammars is not None:
            matcher = grammars.text_matcher(request.grammar)
        return Transcript(
            self._engine.tokenizer,
            request.stop,
            matcher,
            keep_stop=request.keep_stop,
            spell_special=request.spell_special,
            spelled=request.spelled,
        )

    def _news(self, start: int, until: float | None, *, whole: bool) -> News:
        news = self._executor.wait(
            self._state, start, whole=whole, timeout=None if until is None else until - perf_counter()
        )
        if news is None:
            raise TimeoutError(f"request {self.id} has not ended in time")
        return news

    def _read(self, transcript: Transcript, news: News) -> Piece:
        """Return the next piece, and end the request at a stop string."""
        if news.error is not None:
            raise news.error.with_traceback(self._state.trace)  # drops the frames that other readers have added
        is_first = transcript.read == 0
        piece = transcript.take(news.tokens, news.logprobs, news.finish)
        if is_first and self._state.prompt_logprobs and (piece.tokens or piece.finish is not None):
            piece = replace(piece, prompt_logprobs=tuple(self._state.prompt_logprobs))
        if piece.finish == "stop":
            self._stopped = True
            self._executor.end(self._state, "stop")
        return piece

    async def _aread(self, transcript: Transcript, news: News) -> Piece:
        """`_read`, in a thread if there is enough text to block the event loop."""
        if len(news.tokens) <= READ_AT_ONCE:
            return self._read(transcript, news)
        return await asyncio.to_thread(self._read, transcript, news)

    def _completion(self, whole: Piece) -> Completion:
        state = self._state
        assert whole.finish is not None  # completions are made of ended requests only
        assert state.ended is not None
        prompt, geometry = len(state.prompt), self._engine.signature.plan.main.geometry
        length = prompt + max(len(whole.tokens) - 1, 0)  # the newest token is not in the cache
        kept = geometry.kept_rows(length) if state.prefilled else 0
        return Completion(
            tokens=whole.tokens,
            text=whole.text,
            logprobs=whole.logprobs,
            finish=whole.finish,
            prompt_tokens=state.prompt_tokens,
            kept_rows=kept,
            evicted_rows=length - kept if state.prefilled else 0,
            cached_tokens=self.cached_tokens,
            queued_seconds=(state.ended if state.admitted is None else state.admitted) - state.submitted,
            first_token_seconds=(state.ended if state.first_token is None else state.first_token) - state.submitted,
            seconds=state.ended - state.submitted,
            left_out_tokens=state.prompt_tokens - prompt,
            drafted_tokens=state.drafted,
            accepted_tokens=state.accepted,
            prompt_logprobs=whole.prompt_logprobs,
        )


def cancel_all(handles: Sequence[RequestHandle]) -> None:
    """Cancel every request that has not ended."""
    for handle in handles:
        handle.cancel()


class _Read:
    """The pieces read so far."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> bool:
        """Add a piece. Return True if it is the last one."""
        self._pieces.append(piece)
        return piece.finish is not None

    def whole(self) -> Piece:
        """Return all pieces joined into one."""
        return Piece(
            tuple(token for piece in self._pieces for token in piece.tokens),
            "".join(piece.text for piece in self._pieces),
            tuple(logprobs for piece in self._pieces for logprobs in piece.logprobs),
            self._pieces[-1].finish,
            next((piece.prompt_logprobs for piece in self._pieces if piece.prompt_logprobs), ()),
        )
