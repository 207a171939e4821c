"""A connection between two ranks, over which one tells the other what to do, or both what they have.

Messages are pickled: a link is between processes that one command has started, or whose connection began with a secret
that they share.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from contextlib import suppress
from typing import Any

from sscc.ir.errors import RankError

PATIENCE = 5.0
"""Seconds that a rank waits for another one."""

_SLICE = 0.25  # seconds; of a process that was suspended meanwhile, no more than this counts as waiting
_LENGTH = struct.Struct("<Q")


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
        poll = select.poll()
        poll.register(self._socket, event)
        waited = 0.0
        while not poll.poll(_SLICE * 1000):
            waited += _SLICE
            if patience is not None and waited >= patience:
                raise RankError(f"rank {self.peer} does not answer")

    def _ended(self) -> RankError:
        return RankError(f"rank {self.peer} has ended")

    def shut(self) -> None:
        """Both ends find that the other one has ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
