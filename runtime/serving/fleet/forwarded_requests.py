"""A request to a replica's application and what comes back, as values that can be sent between processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope

STREAM = b"text/event-stream"

Headers = tuple[tuple[bytes, bytes], ...]


class Start(NamedTuple):
    """The status of an answer and its headers, with which it begins."""

    status: int
    headers: Headers

    @property
    def streams(self) -> bool:
        """Whether events follow, as they come, rather than a body that is read as a whole."""
        return self.status == 200 and dict(self.headers).get(b"content-type", b"").startswith(STREAM)


Part = Start | bytes
"""Of an answer: first its start, then parts of its body, of which each has whole events where it is a stream."""


@dataclass(frozen=True)
class Call:
    """A whole request.

    Attributes:
        path: as in ASGI.
        query: likewise, in bytes.
        keys: digests by which the prompt is known again, of ever longer beginnings; empty: any replica will do.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes = b""
    keys: tuple[bytes, ...] = ()

    def scope(self) -> Scope:
        """What an ASGI application takes for it."""
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
    """What an application answers to a request, what is there together as one part. Closing the iterator before its
    end is the client's leaving.

    Raises what the application raises before its answer begins; what it raises later it has told of in the answer.
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
                    parts.put_nowait(more)  # the end, after which nothing comes
                    break
                pieces.append(more)
            yield b"".join(pieces)
        if not begun:
            await task
    finally:
        left.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
