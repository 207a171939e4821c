"""A request to a replica's application, and its answer, as values that can be sent between processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope

STREAM = b"text/event-stream"

Headers = tuple[tuple[bytes, bytes], ...]


class Start(NamedTuple):
    """Status and headers, with which an answer begins."""

    status: int
    headers: Headers

    @property
    def streams(self) -> bool:
        """True if the body is a stream of events."""
        return self.status == 200 and dict(self.headers).get(b"content-type", b"").startswith(STREAM)


Part = Start | bytes
"""A part of an answer: its start, or bytes of its body. In a stream every part consists of whole events."""


@dataclass(frozen=True)
class Call:
    """A complete HTTP request.

    Attributes:
        method: HTTP method.
        path: path, decoded, as in ASGI.
        query: query string, in bytes as in ASGI.
        headers: headers as in ASGI.
        body: the whole body.
        keys: digests of increasing prefixes of the prompt, for routing; empty for any replica.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes = b""
    keys: tuple[bytes, ...] = ()

    def scope(self) -> Scope:
        """Return the ASGI scope of the request."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "client": None,
            "server": None,
        }


async def answered(app: ASGIApp, call: Call) -> AsyncGenerator[Part, None]:
    """Yield an application's answer to a request; bytes that are available together are one part. Closing the iterator
    early acts as a disconnected client.

    Raises the application's exception if the answer has not begun. Later errors are part of the answer.
    """
    parts: asyncio.Queue[Part | None] = asyncio.Queue()
    read, left = False, asyncio.Event()

    async def receive() -> Message:
        nonlocal read
        if not read:
            read = True
            return {"type": "http.request", "body": call.body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            parts.put_nowait(Start(message["status"], tuple((name, value) for name, value in message["headers"])))
        elif message.get("body"):
            parts.put_nowait(message["body"])

    async def run() -> None:
        try:
            await app(call.scope(), receive, send)
        finally:
            parts.put_nowait(None)

    task, begun = asyncio.ensure_future(run()), False
    try:
        while (part := await parts.get()) is not None:
            if isinstance(part, Start):
                begun = True
                yield part
                continue
            pieces = [part]
            while not parts.empty():
                more = parts.get_nowait()
                if not isinstance(more, bytes):
                    parts.put_nowait(more)  # the end marker, which is always last
                    break
                pieces.append(more)
            yield b"".join(pieces)
        if not begun:
            await task
    finally:
        left.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
