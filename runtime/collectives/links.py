"""A connection between two ranks, over which one tells the other what to do, or both what they have.

Messages are pickled: a link is between processes that one command has started, or whose connection began with a secret
that they share.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from contextlib import suppress
from typing import Any

from sscc.ir.errors import RankError

PATIENCE = 4.0
"""Seconds that a rank waits for another one's answer. Twice that is below the ten seconds in which all ranks have to
know that one is gone, with room for a machine that has other things to do: an exchange that begins just before a rank
is found not to answer may wait for it again."""
MEETING_PATIENCE = 2 * PATIENCE
"""Seconds that a rank waits in a meeting for another one that answers, and so is late or has got stuck."""

_SLICE = 0.25  # seconds between two looks at the clock
_COUNTED = 4 * _SLICE  # the most that counts as waiting between two looks: a process may have been suspended meanwhile
_LENGTH = struct.Struct("<Q")


class Waited:
    """How long somebody has waited, without the time in which this process was suspended (Ctrl-Z)."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Until now; to be asked every quarter of a second or so."""
        now = time.monotonic()
        self._seconds += min(now - self._last, _COUNTED)
        self._last = now
        return self._seconds


class Link:
    """One end of a connection.

    Args:
        connection: a stream socket, the link's own from now on.
        peer: the rank at the other end.
    """

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.peer = peer

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, patience: float = PATIENCE) -> None:
        """Raises RankError where the other end is gone, or takes nothing for so many seconds."""
        body = pickle.dumps(message, protocol=5)
        rest = memoryview(_LENGTH.pack(len(body)) + body)
        while rest:
            self._await(select.POLLOUT, patience)
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._ended() from None

    def receive(self, patience: float | None = PATIENCE) -> Any:
        """The next message. Raises RankError where the other end is gone, or sends nothing for so many seconds."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, patience))
        return pickle.loads(self._read(length, PATIENCE))

    def silent(self) -> bool:
        """Whether nothing comes for a quarter of a second."""
        return not self._ready(select.POLLIN)

    def _read(self, count: int, patience: float | None) -> bytearray:
        data = bytearray(count)
        rest = memoryview(data)
        while rest:
            self._await(select.POLLIN, patience)
            try:
                got = self._socket.recv_into(rest)
            except BlockingIOError:
                continue
            except OSError:
                got = 0
            if not got:
                raise self._ended()
            rest = rest[got:]
        return data

    def _await(self, event: int, patience: float | None) -> None:
        waited = Waited()
        while not self._ready(event):
            if patience is not None and waited.seconds() >= patience:
                raise self.unanswered()

    def _ready(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(_SLICE * 1000))

    def unanswered(self) -> RankError:
        return RankError(f"rank {self.peer} does not answer")

    def _ended(self) -> RankError:
        return RankError(f"rank {self.peer} has ended")

    def shut(self) -> None:
        """Both ends find that the other one has ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
