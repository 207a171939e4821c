"""Clients that leave before they have their answer: their requests end, and the slots are free for others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sscc.runtime.serving.engine import Piece, RequestHandle
from sscc.runtime.serving.server.streaming import merged
from tests.runtime.server.fake import NAME, Running, running

BODY: dict[str, Any] = {"model": NAME, "prompt": "hello", "max_tokens": 100, "ignore_eos": True}


def send(server: Running, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), 10)
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
    return connection


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("n", [1, 3])
def test_while_it_decodes(n: int, stream: bool) -> None:
    with running() as server:
        server.interpreter.seconds = 0.05
        connection = send(server, BODY | {"stream": stream, "n": n})
        server.wait_for(running=n)
        connection.close()
        assert server.idle()
        assert server.engine.metrics().finished["cancelled"] == n
        assert server.engine.metrics().new_tokens < 100 * n


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_while_it_waits(stream: bool) -> None:
    """A request that is still queued leaves the queue; the running one continues."""
    with running(batch=1) as server:
        server.interpreter.seconds = 0.03
        first = send(server, BODY)
        server.wait_for(running=1)
        second = send(server, BODY | {"stream": stream})
        server.wait_for(queued=1)
        second.close()
        server.wait_until(lambda: server.engine.metrics().finished["cancelled"] == 1)
        assert server.engine.metrics().running == 1
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.idle()
        finished = server.engine.metrics().finished
        assert (finished["cancelled"], finished["length"]) == (1, 1)
        first.close()


def test_while_it_reads_the_stream() -> None:
    with running() as server:
        server.interpreter.seconds = 0.01
        connection = send(server, BODY | {"stream": True})
        received = b""
        while received.count(b"data:") < 3:
            received += connection.recv(1000)
        connection.close()
        assert server.idle()
        assert server.engine.metrics().finished["cancelled"] == 1


@pytest.mark.parametrize("turns", range(6))
def test_at_the_moment_of_a_piece(turns: int) -> None:
    """A stream ends if its client leaves `turns` turns of the event loop after a piece was generated."""

    class OnePiece:
        """A handle that makes one piece and then no other."""

        def __init__(self) -> None:
            self.go = asyncio.Event()

        async def apieces(self, interval: float) -> AsyncIterator[Piece]:
            await self.go.wait()
            yield Piece((1,), "a")
            await asyncio.Event().wait()

    async def leave() -> None:
        handle = OnePiece()

        async def follow() -> None:
            async for _ in merged([cast(RequestHandle, handle)]):
                pass

        task = asyncio.ensure_future(follow())
        await asyncio.sleep(0.01)
        handle.go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()

    asyncio.run(leave())


def test_a_client_that_never_reads_holds_no_slot() -> None:
    """Its request runs to the end; the unread part of the answer waits in the server."""
    with running() as server:
        connection = send(server, BODY | {"stream": True})
        server.wait_until(lambda: server.engine.metrics().submitted == 1)
        assert server.idle()
        assert server.engine.metrics().finished["length"] == 1
        connection.close()


def test_half_a_body() -> None:
    """A client that leaves while it sends takes nothing."""
    with running() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
        with send(server, BODY | {"max_tokens": 2}) as other:
            assert other.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.engine.metrics().submitted == 1
