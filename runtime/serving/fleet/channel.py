"""Streams between processes: a replica sends the parts of its answers directly to the gateway that requested them.

An answer has an event per token, and a remote call for each of them would take a millisecond or two of processor time.
A frame on a socket takes a tenth of that. A gateway has an `Inbox`, which listens; a replica has an `Outbox`, with a
connection to each gateway that sends it requests. A frame consists of the number of its answer, its kind, its length,
and its data.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import itertools
import json
import logging
import resource
import secrets
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from sscc.runtime.serving.fleet.forwarded_requests import Part, Start

_log = logging.getLogger("sscc.fleet")

_FRAME = struct.Struct(">QBI")
_BODY, _START = 0, 1
_KEY_BYTES = 32
MOST_BYTES = 64 << 20
"""Maximum size of a frame. A frame is the part of a stream since the previous one, which is far less."""
CONNECT_SECONDS = 5.0
AUTHENTICATE_SECONDS = 2.0
"""Time in seconds in which a new connection must send the key. A replica sends it with its first bytes."""
MOST_STRANGERS = 512
"""Maximum number of connections that have not sent the key yet. The oldest one is closed for a new one."""
_BACKLOG = 64
"""Backlog of the listening socket. It is small, so that a new connection is read several times before later ones can
displace it."""
_ARRIVE_SECONDS = 10.0
"""Time in seconds in which the last parts of a finished answer must arrive."""


class ChannelLost(Exception):
    """The other side of a connection is gone."""


@dataclass(frozen=True)
class Address:
    """Address for the parts of one answer.

    Attributes:
        host: address of the gateway's machine.
        port: port of its inbox.
        key: secret with which a connection begins. The gateway tells it only to the replicas that it calls.
        answer: number of the answer.
    """

    host: str
    port: int
    key: bytes
    answer: int


class Incoming:
    """The parts of one answer, in the order of arrival."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()
        self._taken = 0

    def put(self, part: Part) -> None:
        self._parts.put_nowait(part)

    def wake(self) -> None:
        """Make `next` return None once, so that its caller can check something else."""
        self._parts.put_nowait(None)

    async def next(self) -> Part | None:
        """Return the next part; None after `wake`."""
        part = await self._parts.get()
        self._taken += part is not None
        return part

    async def rest(self, sent: int) -> list[Part]:
        """Return the remaining parts of the `sent` parts of the answer. Raises ChannelLost if they do not arrive in
        time."""
        parts = []
        with suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVE_SECONDS):
                while self._taken < sent:
                    if (part := await self.next()) is not None:
                        parts.append(part)
        if self._taken < sent:
            raise ChannelLost
        return parts


class Inbox:
    """Listener of a gateway for the streams of its replicas.

    Args:
        host: address of this machine at which replicas can reach it.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._numbers = itertools.count()
        self._open: dict[int, Incoming] = {}
        self._server: asyncio.Server | None = None
        self._begins = asyncio.Lock()
        self._strangers: OrderedDict[asyncio.StreamWriter, None] = OrderedDict()

    @asynccontextmanager
    async def incoming(self) -> AsyncIterator[Incoming]:
        """Yield the parts of a new answer; parts that arrive after the block are dropped. The first call starts to
        listen."""
        number = next(self._numbers)
        self._open[number] = one = Incoming(Address(self._host, await self._port(), self._key, number))
        try:
            yield one
        finally:
            del self._open[number]

    async def _port(self) -> int:
        """Return the port, listening if necessary. If the address is not one of this machine (it is translated by
        another one), listens on all addresses of this machine."""
        async with self._begins:
            if self._server is None:
                try:
                    self._server = await asyncio.start_server(self._connected, self._host, 0, backlog=_BACKLOG)
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise
                    self._server = await asyncio.start_server(self._connected, "0.0.0.0", 0, backlog=_BACKLOG)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not await self._authenticated(reader, writer):
                return
            while True:
                number, kind, length = _FRAME.unpack(await reader.readexactly(_FRAME.size))
                if length > MOST_BYTES:
                    _log.error("received a part of %d bytes, which is too large: closing the connection", length)
                    return
                data = await reader.readexactly(length)
                if (one := self._open.get(number)) is not None:
                    one.put(_start(data) if kind == _START else data)
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass  # the replica is gone, and Ray notifies the requests that wait for it
        finally:
            writer.close()

    async def _authenticated(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return True if the other side sends the key in time. The number of unauthenticated connections is limited, so
        that they leave descriptors and memory for the others."""
        while len(self._strangers) >= most_strangers():
            oldest, _ = self._strangers.popitem(last=False)
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            async with asyncio.timeout(AUTHENTICATE_SECONDS):
                key = await reader.readexactly(_KEY_BYTES)
        finally:
            self._strangers.pop(writer, None)
        if hmac.compare_digest(key, self._key):
            return True
        _log.warning("closed a connection without the key")
        return False


def most_strangers() -> int:
    """Return the maximum number of unauthenticated connections, at most a quarter of the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_STRANGERS if soft == resource.RLIM_INFINITY else max(1, min(MOST_STRANGERS, soft // 4))


class Outbox:
    """A replica's connections to gateways, opened at the first stream."""

    def __init__(self) -> None:
        self._writers: dict[bytes, asyncio.StreamWriter] = {}
        self._connects = asyncio.Lock()

    async def send(self, address: Address, part: Part) -> None:
        """Send a part of an answer. Raises ChannelLost."""
        writer = self._writers.get(address.key)
        try:
            if writer is None or writer.is_closing():
                writer = await self._connect(address)
            data = _json_of(part) if isinstance(part, Start) else part
            kind = _START if isinstance(part, Start) else _BODY
            writer.write(_FRAME.pack(address.answer, kind, len(data)) + data)
            await writer.drain()
        except (OSError, TimeoutError) as error:
            raise ChannelLost(str(error)) from None

    async def _connect(self, address: Address) -> asyncio.StreamWriter:
        async with self._connects:
            writer = self._writers.get(address.key)
            if writer is None or writer.is_closing():
                self._writers = {key: one for key, one in self._writers.items() if not one.is_closing()}
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(address.key)
                self._writers[address.key] = writer
            return writer


def _json_of(start: Start) -> bytes:
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in start.headers]
    return json.dumps([start.status, headers]).encode()


def _start(data: bytes) -> Start:
    status, headers = json.loads(data)
    return Start(status, tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers))
