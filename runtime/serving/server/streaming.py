"""Streaming of answers as server-sent events, and cancellation when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sscc.runtime.serving.engine import Piece, RequestHandle, cancel_all
from sscc.runtime.serving.server.answers import Counts, Format, failure
from sscc.runtime.serving.server.api_errors import as_api_error

T = TypeVar("T")

KEEP_ALIVE_SECONDS = 15.0
"""A comment is sent after this time in seconds without other data, because proxies close idle connections."""

_KEEP_ALIVE = b": waiting\n\n"


class ClientGone(Exception):
    """The client closed the connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancels the work and raises ClientGone."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel(task, gone)


class EventStream(Response):
    """Streams the pieces of several answers as events. Their requests are cancelled when the client disconnects.

    An error is sent as an event, because the status has already been sent.

    Args:
        handles: handles of the answers in order, `per_prompt` for each prompt.
        form: converts pieces to events.
        prompt_tokens: total number of prompt tokens, for the usage.
        per_prompt: number of answers to each prompt.
        timeout: timeout of a request in seconds, for the error message.
        interval: minimum time in seconds between two chunks of an answer (`RequestHandle.apieces`).
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        handles: Sequence[RequestHandle],
        form: Format,
        prompt_tokens: int,
        per_prompt: int,
        timeout: float | None,
        interval: float,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._handles = handles
        self._form = form
        self._prompt_tokens = prompt_tokens
        self._per_prompt = per_prompt
        self._timeout = timeout
        self._interval = interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await unless_gone(receive, self._send_all(send))
        finally:
            cancel_all(self._handles)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events():
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            new_tokens = [0] * len(self._handles)
            async for index, piece in merged(self._handles, self._interval):
                if piece is None:
                    yield _KEEP_ALIVE
                    continue
                new_tokens[index] += len(piece.tokens)
                if (error := failure(piece.finish, new_tokens[index], self._timeout)) is not None:
                    raise error
                handle = self._handles[index]
                drafts = handle.drafted_tokens, handle.accepted_tokens
                counts = Counts(handle.prompt_tokens, new_tokens[index], handle.cached_tokens, *drafts)
                for event in self._form.events(index, piece, counts):
                    yield event
            cached = sum(handle.cached_tokens for handle in self._handles[:: self._per_prompt])
            drafts = (
                sum(handle.drafted_tokens for handle in self._handles),
                sum(handle.accepted_tokens for handle in self._handles),
            )
            for event in self._form.closing(Counts(self._prompt_tokens, sum(new_tokens), cached, *drafts)):
                yield event
        except Exception as error:
            for event in self._form.failing(as_api_error(error)):
                yield event


async def merged(handles: Sequence[RequestHandle], interval: float = 0.0) -> AsyncIterator[tuple[int, Piece | None]]:
    """Yield the pieces of all answers as they come, each with the index of its answer, and (0, None) after a long
    pause.

    Raises the exception of the first answer that fails.
    """
    queue: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue()

    async def follow(index: int, handle: RequestHandle) -> None:
        try:
            async for piece in handle.apieces(interval):
                queue.put_nowait((index, piece))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.ensure_future(follow(index, handle)) for index, handle in enumerate(handles)]
    try:
        open_handles = len(handles)
        while open_handles:
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):  # wait_for may swallow a cancellation in Python 3.11
                    index, piece = await queue.get()
            except TimeoutError:
                yield 0, None
                continue
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                open_handles -= 1
            else:
                yield index, piece
    finally:
        await _cancel(*tasks)


async def _gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended. Their exceptions are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
