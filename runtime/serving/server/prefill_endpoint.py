"""`POST /v1/slots` of a prefill server: the body is a prompt, the answer its slot in `SlotFormat`.

The answer is a copy of the slot, so the engine's slot is free before the first byte is sent and is never held by a slow
reader. The copies being sent have a common limit in bytes (`Copies`), and each has a deadline (`deadline_of`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from pydantic import Field, PlainValidator, TypeAdapter, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.serving.engine import Engine, Request
from sscc.runtime.serving.server.api_errors import BUSY, ApiError, ApiKind, Http, ServerErrors, timed_out
from sscc.runtime.serving.server.engine_requests import Model, checked_excerpt
from sscc.runtime.serving.server.openai import ApiValueErrors
from sscc.runtime.serving.server.request_fields import Parameters, refused
from sscc.runtime.serving.server.request_log import record_of
from sscc.runtime.serving.server.streaming import ClientGone, unless_gone
from sscc.runtime.session.slot_message import SlotFormat, SlotMessage
from sscc.runtime.support.serving_options import MOST_SECONDS, MOST_TOKENS, RequestLimits

PATH = "/v1/slots"
CACHED_TOKENS = "x-sscc-cached-tokens"
"""Header with the number of prompt tokens that did not have to be prefilled."""

PIECE_BYTES = 1 << 18
SEND_SECONDS = 10.0
LEAST_RATE = 1 << 20
"""A client must receive a message within `SEND_SECONDS`, plus a second for each `LEAST_RATE` bytes."""

_log = logging.getLogger("sscc.server")


class SlotRequestErrors(ApiKind):
    OTHER_PROGRAM = (
        "the request is for {param} {asked!r}, but this server has {held!r}: both must serve the same artifact",
        Http(409, code="other_program"),
    )
    TOO_MANY_COPIES = "{copies} slots are still being sent to slow readers: try again later", BUSY


def _integers(value: Any) -> Any:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise refused(ApiValueErrors.NOT_INTEGERS)
    if value and not -MOST_TOKENS <= min(value) <= max(value) <= MOST_TOKENS:
        raise refused(ApiValueErrors.HUGE_INTEGERS, most=MOST_TOKENS)
    return value


Integers = Annotated[list[int], PlainValidator(_integers), WithJsonSchema(TypeAdapter(list[int]).json_schema())]
"""A list of integers, as long as a prompt. It is checked in one pass, because pydantic would check every number by
itself."""


class SlotBody(Parameters):
    """Body of POST /v1/slots.

    Attributes:
        prompt: tokens of the prompt.
        positions: position of each token in the text; None if the prompt is the whole text.
        program, weights: digests of the requesting server's program (`ProgramIdentity`), which must be those of this
            server.
        timeout: seconds after which nobody waits any more; at most a week.
    """

    prompt: Integers
    positions: Integers | None = None
    program: str
    weights: str
    timeout: float | None = Field(None, gt=0, le=MOST_SECONDS)


class Copies:
    """Memory of the messages being sent.

    Args:
        most: maximum bytes of all messages together. A single message may be larger.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = self._count = 0

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Count a message while the block runs. Raises ApiError if there is no room for it."""
        if self._count and self._bytes + nbytes > self._most:
            raise SlotRequestErrors.TOO_MANY_COPIES(copies=self._count)
        self._bytes, self._count = self._bytes + nbytes, self._count + 1
        try:
            yield
        finally:
            self._bytes, self._count = self._bytes - nbytes, self._count - 1


async def prefilled(
    body: SlotBody, engine: Engine, model: Model, limits: RequestLimits, copies: Copies, request: HttpRequest
) -> Response:
    """Return the response with the slot of a prompt. Raises ApiError, and ClientGone, which cancels the prefill."""
    receive = request.receive
    _check_identity(ProgramIdentity(body.program, body.weights), engine.slot_format.identity)
    prompt = checked_excerpt(body.prompt, body.positions, model, limits)
    waits = [each for each in (body.timeout, limits.timeout) if each is not None]
    timeout = min(waits, default=None)
    handle = engine.submit(Request(prompt, 1, timeout=timeout, keep_slot=True))
    record_of(request).handles = [handle]
    try:
        message = await unless_gone(receive, handle.aslot())
        if message is None:
            raise ServerErrors.CLOSING() if timeout is None else timed_out(timeout, 0)
    except BaseException:
        handle.cancel()
        raise
    # The message is a copy, so the slot can be given to another request.
    handle.taken()
    return SlotResponse(engine.slot_format, message, handle.cached_tokens, copies)


def _check_identity(theirs: ProgramIdentity, ours: ProgramIdentity) -> None:
    for name in ("weights", "program"):
        wanted, held = getattr(theirs, name), getattr(ours, name)
        if wanted != held:
            raise SlotRequestErrors.OTHER_PROGRAM(param=name, asked=wanted, held=held)


def deadline_of(nbytes: int) -> float:
    """Return the time in seconds in which a client must receive a message."""
    return SEND_SECONDS + nbytes / LEAST_RATE


class SlotResponse(Response):
    """Response that sends a message as fast as the client receives it, until its deadline.

    Args:
        slots: format of the message.
        message: copy of a slot.
        cached_tokens: prompt tokens that did not have to be prefilled.
        copies: memory of the messages being sent.
    """

    media_type = "application/octet-stream"

    def __init__(self, slots: SlotFormat, message: SlotMessage, cached_tokens: int, copies: Copies) -> None:
        self._slots, self._message, self._copies = slots, message, copies
        self._nbytes = slots.nbytes(len(message.tokens))
        super().__init__(headers={CACHED_TOKENS: str(cached_tokens)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._copies.hold(self._nbytes), suppress(ClientGone):
                await unless_gone(receive, self._send_all(send))
        except ApiError as error:
            await error.response()(scope, receive, send)

    async def _send_all(self, send: Send) -> None:
        pieces = await asyncio.to_thread(self._slots.pieces, self._message)
        size = sum(piece.nbytes for piece in pieces)
        self.headers["content-length"] = str(size)
        try:
            async with asyncio.timeout(deadline_of(size)):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                for piece in pieces:
                    for begin in range(0, piece.nbytes, PIECE_BYTES):
                        body = piece[begin : begin + PIECE_BYTES]
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            # The answer stays incomplete, so uvicorn closes the connection.
            _log.warning("a client did not receive a slot of %d bytes within %.0f s", size, deadline_of(size))
