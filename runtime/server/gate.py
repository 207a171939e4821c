"""Checks of a request before it is read: its host and origin, the key, the size of its body, and the time that its body
takes."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sscc.runtime.server.errors import ApiError, ApiKind, Http
from sscc.runtime.server.hosts import Hosts
from sscc.runtime.server.memory import IdleTrim

BODY_SECONDS = 60.0
REST_SECONDS = 20.0
REST_BYTES = 64 << 20
"""Bytes of a body that are still read, and dropped, after its refusal: a client that sends all of it before it reads
would otherwise find a connection that was reset, and no answer."""

_DIGITS = 18  # of a content-length; more cannot be
GUARDED = "/v1/"


class GateErrors(ApiKind):
    WRONG_KEY = (
        "the API key is missing or wrong: send it as `Authorization: Bearer KEY`",
        Http(401, code="invalid_api_key", headers={"www-authenticate": "Bearer"}),
    )
    BODY_TIMEOUT = (
        "the body did not arrive within {seconds:g} s",
        Http(408, code="body_timeout", headers={"connection": "close"}),
    )
    BODY_TOO_LARGE = (
        "the body is larger than {most} bytes, which is the most that this server takes",
        Http(413, code="body_too_large", headers={"connection": "close"}),
    )


class Gate:
    """Refuses requests of foreign pages, requests with a wrong key, and bodies that are too large or too slow, before
    they are in memory.

    Args:
        app: serves the others.
        api_key: the key that /v1/ asks for, as "Authorization: Bearer KEY"; None: no key.
        max_body: bytes.
        hosts: the names of the server.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, max_body: int, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts
        self._key = None if api_key is None else api_key.encode()
        self._max_body = max_body
        self._idle = IdleTrim()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._idle.busy():
            await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive, self._max_body)
        answer = _answer_first(body, send)
        error = self._refusal(scope)
        if error is not None:
            await error.response()(scope, receive, answer)
            return
        await self._app(scope, body, answer)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        foreign = self._hosts.refusal(headers.getlist("host"), headers.getlist("origin"), scope.get("server"))
        if foreign is not None:
            return foreign
        if self._key is not None and scope["path"].startswith(GUARDED):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self._key):
                return GateErrors.WRONG_KEY()
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > _DIGITS or int(length) > self._max_body):
            return GateErrors.BODY_TOO_LARGE(most=self._max_body)
        return None


class _Body:
    """A `receive` that counts bytes and seconds until the body is complete, and then raises ApiError.

    Attributes:
        complete: whether nothing of it is still to come.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._left = self._most = most
        self.complete = False
        self._deadline: float | None = None

    async def __call__(self) -> Message:
        if self.complete:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise GateErrors.BODY_TIMEOUT(seconds=BODY_SECONDS) from None
        self._left -= len(message.get("body", b""))
        self.complete = not message.get("more_body", False)
        if self._left < 0:
            raise GateErrors.BODY_TOO_LARGE(most=self._most)
        return message

    async def drop_rest(self) -> None:
        """Reads what is still to come, for some time and so many bytes, and keeps nothing of it."""
        left = REST_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                while not self.complete and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.complete = not message.get("more_body", False)


def _answer_first(body: _Body, send: Send) -> Send:
    """A `send` that ends an answer only when the request's body has been read, or dropped."""

    async def answer(message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not last or body.complete:
            await send(message)
            return
        await send({**message, "more_body": True})
        await body.drop_rest()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer
