"""Checks of a request before it is read: its host and origin, the key, the size of its body, and the time that its body
takes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sscc.runtime.serving.server.api_errors import ApiError, ApiKind, Http
from sscc.runtime.serving.server.freed_memory import IdleTrim
from sscc.runtime.serving.server.hosts import Hosts

BODY_SECONDS = 60.0
REST_SECONDS = 20.0
REST_BYTES = 64 << 20
"""Bytes of a body that are still read, and dropped, after its refusal: a client that sends all of it before it reads
would otherwise find a connection that was reset, and no answer."""

_DIGITS = 18  # of a content-length; more cannot be
GUARDED = ("/v1/", "/tokenize", "/detokenize")
METHODS = "GET, HEAD, POST, OPTIONS"


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
        api_keys: keys, one of which what is guarded asks for, as "Authorization: Bearer KEY" or "X-Api-Key: KEY";
            empty: no key.
        max_body: bytes.
        hosts: the names of the server, and the pages that may ask it.
        root_path: is taken off the beginning of paths that have it.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], max_body: int, hosts: Hosts, root_path: str = "") -> None:
        self._app = app
        self._hosts = hosts
        self._keys = [key.encode() for key in api_keys]
        self._root_path = root_path
        self._max_body = max_body
        self._idle = IdleTrim()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._idle.busy():
            await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root_path and scope["path"].startswith(f"{self._root_path}/"):
            path = scope["path"].removeprefix(self._root_path)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        headers = Headers(scope=scope)
        shared = self._hosts.shared_with(headers.getlist("origin"))
        body = _Body(receive, self._max_body)
        answer = _answer_first(body, send if shared is None else _sharing(send, shared))
        if scope["method"] == "OPTIONS" and self._hosts.refusal_of(headers, scope.get("server")) is None:
            await _options(headers)(scope, receive, answer)
            return
        error = self._refusal(scope)
        if error is not None:
            await error.response(scope["path"])(scope, receive, answer)
            return
        await self._app(scope, body, answer)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        foreign = self._hosts.refusal_of(headers, scope.get("server"))
        if foreign is not None:
            return foreign
        if self._keys and scope["path"].startswith(GUARDED) and not self._has_key(headers):
            return GateErrors.WRONG_KEY()
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > _DIGITS or int(length) > self._max_body):
            return GateErrors.BODY_TOO_LARGE(most=self._max_body)
        return None

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = (key if scheme.lower() == "bearer" else headers.get("x-api-key", "")).strip().encode()
        return any(hmac.compare_digest(given, key) for key in self._keys)


def _options(headers: Headers) -> Response:
    """Return the answer to a question what a page, or anybody, may do."""
    allowed = {"allow": METHODS, "content-length": "0"}
    if "access-control-request-method" in headers:
        allowed |= {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": "600",
        }
        if headers.get("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=allowed)


def _sharing(send: Send, origin: str) -> Send:
    """Return a `send` that lets the page of an origin read the answer."""

    async def share(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return share


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
