"""Checks of a request before its body is parsed: host and origin, API key, and size and duration of the body."""

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
"""Maximum bytes of a body that are read and dropped after the request was refused. A client that sends its whole body
before it reads would otherwise get a connection reset in place of the answer."""

_DIGITS = 18  # maximum number of digits in content-length, so that `int` is cheap
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
        "the body is larger than {most} bytes, which is the limit of this server",
        Http(413, code="body_too_large", headers={"connection": "close"}),
    )


class Gate:
    """Middleware that refuses requests of foreign pages, requests without a valid key, and bodies that are too large or
    too slow, before they are in memory.

    Args:
        app: application for the other requests.
        api_keys: keys for guarded paths, sent as "Authorization: Bearer KEY" or "X-Api-Key: KEY"; empty for no key.
        max_body: maximum size of a body in bytes.
        hosts: allowed host names and origins.
        root_path: prefix to remove from paths that begin with it.
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
    """Return the answer to an OPTIONS request, which may be a CORS preflight."""
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
    """Return a `send` that allows pages of an origin to read the answer."""

    async def share(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return share


class _Body:
    """A `receive` that counts bytes and time until the body is complete. Raises ApiError if either exceeds its limit.

    Attributes:
        complete: True if the whole body has been received.
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
        """Receive and drop the rest of the body, up to `REST_BYTES` and `REST_SECONDS`."""
        left = REST_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                while not self.complete and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.complete = not message.get("more_body", False)


def _answer_first(body: _Body, send: Send) -> Send:
    """Return a `send` that ends the answer only after the request's body has been received or dropped."""

    async def answer(message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not last or body.complete:
            await send(message)
            return
        await send({**message, "more_body": True})
        await body.drop_rest()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer
