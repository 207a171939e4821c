"""`POST /v1/slots` of a server that prefills for others: a prompt comes, and its slot goes, as `SlotFormat` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field, PlainValidator, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.engine import Engine, Request, Ticket
from sscc.runtime.server.errors import ApiError, timed_out, unavailable
from sscc.runtime.server.jobs import Model, RequestLimits, checked_excerpt
from sscc.runtime.server.protocol import Parameters
from sscc.runtime.server.streaming import ClientGone, unless_gone

PATH = "/v1/slots"
CACHED_TOKENS = "x-sscc-cached-tokens"
"""The header that says how many of the prompt's tokens were not prefilled again."""

PIECE_BYTES = 1 << 18
SEND_SECONDS = 30.0
"""In which a client must take a piece: until all is sent the request has its slot."""


def _integers(value: Any) -> Any:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise PydanticCustomError("integers", "it must be a list of integers")
    return value


Integers = Annotated[list[int], PlainValidator(_integers), WithJsonSchema(TypeAdapter(list[int]).json_schema())]
"""Checked in one pass, not one number at a time by pydantic: there are as many as a prompt has tokens."""


class SlotBody(Parameters):
    """Of POST /v1/slots.

    Attributes:
        prompt: tokens.
        positions: where each stands in its text, of which not all are prefilled; None: nothing is left out.
        program, weights: whose slot is wanted (`ProgramIdentity`); that of others would be of no use.
        timeout: seconds after which nobody waits any more.
    """

    prompt: Integers
    positions: Integers | None = None
    program: str
    weights: str
    timeout: float | None = Field(None, gt=0)


async def prefilled(body: SlotBody, engine: Engine, model: Model, limits: RequestLimits, receive: Receive) -> Response:
    """The answer with the slot of a prompt. Raises ApiError, and ClientGone, which cancels the prefill."""
    _check_identity(ProgramIdentity(body.program, body.weights), engine.slot_format.identity)
    prompt = checked_excerpt(body.prompt, body.positions, model, limits)
    waits = [each for each in (body.timeout, limits.timeout) if each is not None]
    timeout = min(waits, default=None)
    ticket = engine.submit(Request(prompt, 1, timeout=timeout, keep_slot=True))
    try:
        message = await unless_gone(receive, ticket.aslot())
        if message is None:
            raise unavailable() if timeout is None else timed_out(timeout, 0)
        pieces = await unless_gone(receive, asyncio.to_thread(engine.slot_format.pieces, message))
        return SlotResponse(pieces, ticket)
    except BaseException:
        ticket.cancel()
        raise


def _check_identity(theirs: ProgramIdentity, ours: ProgramIdentity) -> None:
    for name in ("weights", "program"):
        wanted, held = getattr(theirs, name), getattr(ours, name)
        if wanted != held:
            raise ApiError(
                409,
                f"a slot of {name} {wanted[:64]!r} was asked for, this server has {held!r}: both must serve the same "
                "artifact",
                param=name,
                code="other_program",
            )


class SlotResponse(Response):
    """Sends a slot piece by piece, as fast as the client takes it, and then gives the engine's slot free.

    Args:
        pieces: of the message.
        ticket: of the request that has the slot.
    """

    media_type = "application/octet-stream"

    def __init__(self, pieces: Sequence[memoryview], ticket: Ticket) -> None:
        size = sum(piece.nbytes for piece in pieces)
        super().__init__(headers={"content-length": str(size), CACHED_TOKENS: str(ticket.cached_tokens)})
        self._pieces = pieces
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone, TimeoutError):
                await unless_gone(receive, self._send_all(send))
                self._ticket.taken()
        finally:
            self._ticket.cancel()  # nothing happens if it has ended

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            for begin in range(0, piece.nbytes, PIECE_BYTES):
                async with asyncio.timeout(SEND_SECONDS):
                    body = piece[begin : begin + PIECE_BYTES]
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
