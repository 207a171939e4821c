"""A connection between two ranks, used for commands from one to the other and for exchanges of values.

Messages are data (`rank_messages`): nothing that is received is executed. Nobody else can have such a connection: it
is either a pair of sockets inherited by a process, or its other end has proved that it knows the secret of the ranks
(`sscc.runtime.backends.collectives.handshake`).
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sscc.ir.errors import ErrorKind, RankError, SsccError
from sscc.runtime.backends.collectives import rank_messages as messages
from sscc.runtime.backends.collectives.rank_messages import Buffer, Header, MessageErrors, Vocabulary


class LinkErrors(ErrorKind):
    ENDED = RankError, "rank {rank} has ended"
    SILENT = RankError, "rank {rank} does not answer"


PATIENCE = 4.0
"""Seconds for which a rank waits for the answer of another one. An exchange that begins just before a rank is found not
to answer may wait for it again, so the limit is doubled; that is below the ten seconds within which all ranks must
know that one has ended, with a margin for a busy machine."""
MEETING_PATIENCE = 2 * PATIENCE
"""Seconds for which a rank waits in a meeting for another one that answers but is late or stuck."""

_SLICE = 0.25  # seconds between two looks at the clock
# limit on the waiting time counted between two looks: the process may have been suspended in between
_COUNTED = 4 * _SLICE
_CHUNK = 1 << 20  # limit on the bytes received at once


class Waited:
    """Waiting time in seconds, without the time for which this process was suspended (Ctrl-Z)."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds until now. To be called every quarter of a second or so."""
        now = time.monotonic()
        self._seconds += min(now - self._last, _COUNTED)
        self._last = now
        return self._seconds


class Link:
    """One end of a connection.

    Args:
        connection: stream socket, owned by the link from now on.
        peer: rank at the other end.

    Attributes:
        vocabulary: dataclasses that messages may contain.
    """

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.peer = peer
        self.vocabulary: Vocabulary = {}

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, patience: float = PATIENCE) -> None:
        """Send a message of values that `rank_messages` can encode.

        Raises:
            RankError: the other end has ended, or accepts nothing for `patience` seconds.
        """
        for part in messages.encode(message, self.vocabulary):
            rest = memoryview(part)
            while rest:
                self._await(select.POLLOUT, patience)
                rest = rest[self.send_some(rest) :]

    def receive(self, patience: float | None = PATIENCE) -> Any:
        """Return the next message.

        Raises:
            RankError: the other end has ended, sends nothing for `patience` seconds, or sends something other than a
                message.
        """
        prefix = self._read(memoryview(bytearray(messages.PREFIX.size)), patience)
        size, payload = messages.lengths(prefix, self.peer)
        # The header is received in chunks, so memory grows with the bytes received and not with the announced length.
        data = bytearray()
        while len(data) < size:
            data += self._read(memoryview(bytearray(min(size - len(data), _CHUNK))), PATIENCE)
        header = Header(data, payload, self.vocabulary, self.peer)
        try:
            memory = messages.aligned_bytes(payload)
        except MemoryError:
            raise MessageErrors.TOO_LARGE(rank=self.peer, header=size, payload=payload) from None
        return header.value(self._read(memory.data, PATIENCE))

    def silent(self) -> bool:
        """Return True if nothing arrives within a quarter of a second."""
        return not self._ready(select.POLLIN)

    def send_some(self, data: memoryview) -> int:
        """Send as much as the connection accepts at once, and return its length. Raises RankError if the other end has
        ended."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            raise self.ended() from None

    def receive_some(self, room: memoryview) -> int:
        """Receive what is available, and return its length. Raises RankError if the other end has ended."""
        try:
            count = self._socket.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        if not count:
            raise self.ended()
        return count

    def _read(self, room: memoryview, patience: float | None) -> memoryview:
        rest = room
        while rest:
            self._await(select.POLLIN, patience)
            rest = rest[self.receive_some(rest) :]
        return room

    def _await(self, event: int, patience: float | None) -> None:
        waited = Waited()
        while not self._ready(event):
            if patience is not None and waited.seconds() >= patience:
                raise self.unanswered()

    def _ready(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(_SLICE * 1000))

    def unanswered(self) -> SsccError:
        return LinkErrors.SILENT(rank=self.peer)

    def ended(self) -> SsccError:
        return LinkErrors.ENDED(rank=self.peer)

    def shut(self) -> None:
        """Close the connection, so that both ends see that the other one has ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def swap(sent: Sequence[Buffer], received: Mapping[Link, Sequence[memoryview]], patience: float) -> None:
    """Send the same bytes over every link while filling the memory that each link has in `received`.

    All ends must call it together. Sending and receiving alternate because two ranks that both sent first would wait
    for each other forever.

    Raises:
        RankError: another end has ended, or transfers nothing for `patience` seconds.
    """
    links = {link.fileno(): link for link in received}
    out = {number: [memoryview(part) for part in sent if len(part)] for number in links}
    into = {number: [part for part in received[link] if len(part)] for number, link in links.items()}
    waits = {number: Waited() for number in links}
    poll = select.poll()
    for number in links:
        poll.register(number, _events(out[number], into[number]))
    while links:
        for number, event in poll.poll(_SLICE * 1000):
            link, moved = links[number], 0
            if event & select.POLLOUT and out[number]:
                moved += _advance(out[number], link.send_some)
            if event & ~select.POLLOUT:
                if not into[number]:
                    raise link.ended()
                moved += _advance(into[number], link.receive_some)
            if moved:
                waits[number] = Waited()
            if not out[number] and not into[number]:
                poll.unregister(number)
                del links[number]
            else:
                poll.modify(number, _events(out[number], into[number]))
        for number, link in links.items():
            if waits[number].seconds() >= patience:
                raise link.unanswered()


def _events(out: Sequence[memoryview], into: Sequence[memoryview]) -> int:
    return (select.POLLOUT if out else 0) | (select.POLLIN if into else 0)


def _advance(parts: list[memoryview], move: Callable[[memoryview], int]) -> int:
    count = move(parts[0])
    parts[0] = parts[0][count:]
    if not parts[0]:
        del parts[0]
    return count
