"""Connections that share the event loop fairly: uvicorn's protocol with limits for each connection."""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sscc.runtime.serving.server.api_errors import ApiKind
from sscc.runtime.serving.server.gate import REST_SECONDS

HEAD_SECONDS = 20.0
"""Timeout in seconds for the first line and the headers of a request, and for idle connections."""

HEAD_BYTES = 1 << 14
"""Maximum size in bytes of the first line and the headers of a request."""

READ_BYTES = 1 << 11
"""Bytes read from a connection before the others have their turn. Bytes that arrive as chunks of one byte take
milliseconds to parse."""

BODY_READ_BYTES = 1 << 16
"""Bytes per read of a body with a content-length, which is parsed as one piece."""

_TOLERATED_CHUNKS = 1024
_BYTES_PER_CHUNK = 16
"""Minimum average size of a chunk in a body with more than `_TOLERATED_CHUNKS` chunks. Smaller ones are an attack."""

_OTHER_FILES = 64
"""File descriptors reserved for the rest of the process."""


class HttpConnectionErrors(ApiKind):
    NOT_HTTP = "the request is not valid HTTP"


class Connection(H11Protocol):
    """A connection that reads little at a time, times out while it is idle, and closes idle connections when the
    process runs out of file descriptors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = self._parser = _HttpParser(h11.SERVER, HEAD_BYTES)
        self._head_timer: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._refused = False
        self._most_connections = most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._most_connections:
            self._make_room()
        super().connection_made(transport)
        self._set_read_bytes(READ_BYTES)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # drop the rest, because closing now would reset the connection and lose the answer
        super().data_received(data)
        sized = self.conn.their_state is h11.SEND_BODY and self._parser.sized
        self._set_read_bytes(BODY_READ_BYTES if sized else READ_BYTES)
        self._time_head()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP. Input is then dropped for a while, as the client may send everything
        before it reads."""
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        answer = HttpConnectionErrors.NOT_HTTP().response()
        headers = [*answer.raw_headers, (b"connection", b"close")]
        try:
            self.transport.write(self.conn.send(h11.Response(status_code=answer.status_code, headers=headers)) or b"")
            self.transport.write(self.conn.send(h11.Data(data=bytes(answer.body))) or b"")
            self.transport.write_eof()
        except h11.LocalProtocolError:  # another answer is being sent
            self.transport.abort()
            return
        self._stop_timer()
        self._head_timer = self.loop.call_later(REST_SECONDS, self.transport.close)

    @property
    def waits(self) -> bool:
        """True if no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def _set_read_bytes(self, count: int) -> None:
        if hasattr(self.transport, "max_size"):  # asyncio's socket transports; the read size of uvloop is fixed
            cast(Any, self.transport).max_size = count

    def _time_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._waits_since = self.loop.time()
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _make_room(self) -> None:
        """Close the connection that has been idle longest, so that active ones can be served."""
        idle = [other for other in self.connections if isinstance(other, Connection) and other.waits]
        if idle:
            min(idle, key=lambda other: other._waits_since).transport.abort()


class _HttpParser(h11.Connection):
    """Parser that refuses bodies of many tiny pieces, each of which takes as long as a large one.

    Attributes:
        sized: True if the newest request has a content-length.
    """

    def __init__(self, role: Any, max_incomplete_event_size: int) -> None:
        super().__init__(role, max_incomplete_event_size)
        self._pieces = self._bytes = 0
        self.sized = False

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            self.sized = any(name == b"content-length" for name, _ in event.headers)
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _TOLERATED_CHUNKS and self._bytes < self._pieces * _BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the body consists of pieces that are too small")
        return event


def most_connections() -> int:
    """Return the maximum number of open connections, which leaves descriptors for files and other sockets."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - _OTHER_FILES, _OTHER_FILES)
