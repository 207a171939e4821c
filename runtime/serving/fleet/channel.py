"""Streams between processes: a replica sends the parts of its answers straight to the gateway that asked.

An answer has an event per token, and what carries whole calls between processes takes a millisecond of a processor or
two for each of them. A frame on a connection takes a tenth of that. A gateway has an `Inbox`, which listens; a replica
has an `Outbox`, with one connection for each gateway that asks it. A frame is the number of its answer, its kind, its
length, and so many bytes.
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
"""Of a frame: a part of a stream has what a moment brings."""
CONNECT_SECONDS = 5.0
AUTHENTICATE_SECONDS = 2.0
"""Seconds in which a new connection must bring the key. A replica sends it with the first bytes."""
MOST_STRANGERS = 512
"""Connections that have not sent the key yet. The oldest one is closed for another one."""
_BACKLOG = 64
"""Connections that are accepted at a time: few, so that a new one is read several times before others push it out."""
_ARRIVE_SECONDS = 10.0
"""What a replica has sent is there by then, or it never comes."""


class ChannelLost(Exception):
    """The other side of a connection is gone."""


@dataclass(frozen=True)
class Address:
    """Where a gateway takes the parts of one answer.

    Attributes:
        host: of the gateway's machine.
        key: which a connection begins with. It is known to those alone whom the gateway has asked something.
        answer: the number of the answer.
    """

    host: str
    port: int
    key: bytes
    answer: int


class Incoming:
    """The parts of one answer, as they come."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()
        self._taken = 0

    def put(self, part: Part) -> None:
        self._parts.put_nowait(part)

    def wake(self) -> None:
        """`next` returns None once: something else is to be looked at."""
        self._parts.put_nowait(None)

    async def next(self) -> Part | None:
        """The next part; None after `wake`."""
        part = await self._parts.get()
        self._taken += part is not None
        return part

    async def rest(self, sent: int) -> list[Part]:
        """What was not taken yet of so many parts that were sent in all. Raises ChannelLost where they do not come."""
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
    """Where a gateway listens for the streams of its replicas.

    Args:
        host: an address of this machine that replicas reach.
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
        """An answer that is to come; of what comes after this nobody knows. The first one lets the inbox listen."""
        number = next(self._numbers)
        self._open[number] = one = Incoming(Address(self._host, await self._port(), self._key, number))
        try:
            yield one
        finally:
            del self._open[number]

    async def _port(self) -> int:
        """That is listened on. Where this machine does not have the address itself, because another one translates it,
        all that it has are listened on."""
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
                    _log.error("a part of %d bytes: the connection is closed", length)
                    return
                data = await reader.readexactly(length)
                if (one := self._open.get(number)) is not None:
                    one.put(_start(data) if kind == _START else data)
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass  # it is gone, and Ray tells of those that wait for it
        finally:
            writer.close()

    async def _authenticated(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return True if the other side sends the key in time. Those that have not sent it yet have a bound together,
        so that they leave descriptors and memory for those that do."""
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
        _log.warning("a connection without the key was closed")
        return False


def most_strangers() -> int:
    """Return the connections without a key that may be open: a quarter of the process's descriptors at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_STRANGERS if soft == resource.RLIM_INFINITY else max(1, min(MOST_STRANGERS, soft // 4))


class Outbox:
    """A replica's connections to gateways, each from its first stream on."""

    def __init__(self) -> None:
        self._writers: dict[bytes, asyncio.StreamWriter] = {}
        self._connects = asyncio.Lock()

    async def send(self, address: Address, part: Part) -> None:
        """Sends a part of an answer. Raises ChannelLost."""
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
