"""Connections between ranks that did not start each other: both ends prove that they know the ranks' secret.

    listener                      the other rank
        challenge (32 bytes)  ->
                              <-  challenge (32), channel, rank, ranks, proof (32)
        proof (32)            ->

A proof is the HMAC-SHA256 of both challenges, both identities and the direction, so it is valid for this connection
only. Nothing else is read from a connection until its proof has been checked. Connections are not encrypted.

A listener accepts any number of strangers in the meantime: one that is silent, slow or wrong is closed after a few
seconds and delays nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from sscc.ir.errors import ErrorKind, RankError, UsageError, quoted
from sscc.runtime.backends.collectives.links import Waited


class HandshakeErrors(ErrorKind):
    NO_SECRET = UsageError, (
        "ranks on several machines need a secret in ${variable}: the same for every rank, at least {least} bytes "
        "long, such as the output of `openssl rand -hex 32`"
    )
    SHORT_SECRET = UsageError, "${variable} must have at least {least} bytes, as a secret for ranks, got {length}"
    NOT_ALL_CAME = RankError, (
        "ranks {missing} did not join within {seconds:g} s; {refused} connections were refused because they did not "
        "prove that they know the ranks' secret"
    )
    NOT_FOUND = RankError, "rank {peer} does not answer at {address} within {seconds:g} s: {cause}"
    REFUSED = RankError, (
        "rank {peer} at {address} refused rank {rank}: the secret (${variable}) or the number of ranks differs"
    )
    IMPOSTOR = RankError, "{address} does not know the ranks' secret (${variable}), so it is not rank {peer}"


SECRET_VARIABLE: Final = "SSCC_RANKS_SECRET"
SHORTEST_SECRET: Final = 16
"""Length in bytes."""
HELLO_SECONDS = 4.0
"""Seconds within which a connection must prove that it belongs to a rank."""
MOST_STRANGERS = 128
"""Limit on the open connections without a proof. When it is exceeded, the oldest one is closed."""

_CHALLENGE = 32
_HELLO = struct.Struct("<32sBHH32s")
_PROOF = 32
_TRIES = 3
_PAUSE = 0.1

Address = str | tuple[str, int]
"""Path of a socket in the file system, or host and port."""
Seat = tuple[int, int]
"""Channel of a connection and the rank at its other end."""


def secret_of_environment() -> bytes | None:
    """Return the ranks' secret from the environment; None if there is none.

    Raises:
        UsageError: the secret is too short.
    """
    secret = os.environb.get(SECRET_VARIABLE.encode())
    if secret is None:
        return None
    if len(secret) < SHORTEST_SECRET:
        raise HandshakeErrors.SHORT_SECRET(variable=SECRET_VARIABLE, length=len(secret), least=SHORTEST_SECRET)
    return secret


def required_secret() -> bytes:
    """Return the ranks' secret from the environment. Raises UsageError if there is none."""
    secret = secret_of_environment()
    if secret is None:
        raise HandshakeErrors.NO_SECRET(variable=SECRET_VARIABLE, least=SHORTEST_SECRET)
    return secret


@dataclass(frozen=True)
class Identity:
    """A rank that shakes hands.

    Attributes:
        secret: secret of the ranks. It may be empty if the kernel identifies the user at the other end (`same_user`).
    """

    rank: int
    ranks: int
    secret: bytes = field(repr=False)

    def proof(self, direction: bytes, challenges: tuple[bytes, bytes], channel: int, rank: int, to: int) -> bytes:
        """Return the proof for a connection of `rank` to the listener `to`."""
        words = struct.pack("<BHHH", channel, rank, to, self.ranks)
        return hmac.digest(self.secret, b"sscc ranks 1 " + direction + b"".join(challenges) + words, hashlib.sha256)


_CALLING, _ANSWERING = b"calling ", b"answering "


@dataclass
class _Stranger:
    """A connection that has not yet sent its proof."""

    connection: socket.socket
    challenge: bytes
    since: Waited = field(default_factory=Waited)
    received: bytearray = field(default_factory=bytearray)


def accept(
    listener: socket.socket,
    identity: Identity,
    seats: Collection[Seat],
    seconds: float,
    trusted: Callable[[socket.socket], bool] = lambda _: True,
) -> dict[Seat, socket.socket]:
    """Accept connections until each of `seats` has one that has proved itself. A newer connection replaces an older
    one.

    Args:
        seconds: time limit until all have joined.
        trusted: further condition on a connection.

    Raises:
        RankError: some ranks have not joined.
    """
    strangers: dict[int, _Stranger] = {}
    seated: dict[Seat, socket.socket] = {}
    listener.setblocking(False)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    waited, refused = Waited(), 0

    def close(number: int) -> None:
        poll.unregister(number)
        strangers.pop(number).connection.close()

    try:
        while len(seated) < len(seats):
            for number, _ in poll.poll(250):
                if number == listener.fileno():
                    stranger = _greeted(listener, trusted)
                    if stranger is None:
                        refused += 1
                        continue
                    if len(strangers) >= MOST_STRANGERS:
                        close(next(iter(strangers)))
                        refused += 1
                    strangers[stranger.connection.fileno()] = stranger
                    poll.register(stranger.connection, select.POLLIN)
                elif (stranger := strangers.get(number)) is not None:  # None: it has just been closed to make room
                    seat = _admitted(stranger, identity, seats)
                    if seat is False:
                        close(number)
                        refused += 1
                    elif seat is not None:
                        poll.unregister(number)
                        del strangers[number]
                        if (older := seated.pop(seat, None)) is not None:
                            older.close()
                        seated[seat] = stranger.connection
            late = [number for number, stranger in strangers.items() if stranger.since.seconds() > HELLO_SECONDS]
            for number in late:
                close(number)
                refused += 1
            if waited.seconds() > seconds:
                missing = sorted({rank for channel, rank in seats if (channel, rank) not in seated})
                raise HandshakeErrors.NOT_ALL_CAME(missing=missing, seconds=seconds, refused=refused)
    except BaseException:
        for connection in seated.values():
            connection.close()
        raise
    finally:
        for stranger in strangers.values():
            stranger.connection.close()
    return seated


def _greeted(listener: socket.socket, trusted: Callable[[socket.socket], bool]) -> _Stranger | None:
    """Accept a connection and send our challenge. Return None if it has ended already or is not trusted."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    challenge = secrets.token_bytes(_CHALLENGE)
    try:
        connection.setblocking(False)
        if trusted(connection) and connection.send(challenge) == len(challenge):
            return _Stranger(connection, challenge)
    except OSError:
        pass
    connection.close()
    return None


def _admitted(stranger: _Stranger, identity: Identity, seats: Collection[Seat]) -> Seat | Literal[False] | None:
    """Read the reply of a stranger. Return its seat after a valid proof, False to close it, None to wait for more."""
    try:
        data = stranger.connection.recv(_HELLO.size - len(stranger.received))
    except BlockingIOError:
        return None
    except OSError:
        return False
    stranger.received += data
    if not data:
        return False
    if len(stranger.received) < _HELLO.size:
        return None
    theirs, channel, rank, ranks, proof = _HELLO.unpack(stranger.received)
    place = (theirs, stranger.challenge), channel, rank, identity.rank
    if not hmac.compare_digest(proof, identity.proof(_CALLING, *place)):
        return False
    if ranks != identity.ranks or (channel, rank) not in seats:
        return False
    try:
        sent = stranger.connection.send(identity.proof(_ANSWERING, *place))
    except OSError:
        return False
    return (channel, rank) if sent == _PROOF else False


def connect(address: Address, identity: Identity, channel: int, peer: int, seconds: float) -> socket.socket:
    """Return a connection to the listener of rank `peer`, after both ends have proved themselves.

    Args:
        seconds: time limit for the listener to start and to answer.

    Raises:
        RankError: the listener does not answer, refuses this rank, or cannot prove that it is a rank.
    """
    waited, tries, cause = Waited(), 0, "nothing listens there"
    while (left := seconds - waited.seconds()) > 0:
        try:
            connection = _connected(address, left)
        except OSError as error:
            cause = error.strerror or str(error)
            time.sleep(_PAUSE)
            continue
        try:
            if _proved(connection, identity, channel, peer, left):
                return connection
        except TimeoutError:
            cause = "it says nothing"
        except OSError as error:
            cause = error.strerror or str(error)
        except BaseException:
            connection.close()
            raise
        else:
            tries += 1  # the listener may have closed this connection to make room for others
            cause = ""
        connection.close()
        if tries == _TRIES:
            _refused(address, identity, peer)
        time.sleep(_PAUSE)
    raise HandshakeErrors.NOT_FOUND(peer=peer, address=shown(address), seconds=seconds, cause=cause)


def _refused(address: Address, identity: Identity, peer: int) -> NoReturn:
    raise HandshakeErrors.REFUSED(
        peer=peer, address=shown(address), rank=identity.rank, variable=SECRET_VARIABLE
    )


def _connected(address: Address, seconds: float) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, seconds)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _proved(connection: socket.socket, identity: Identity, channel: int, peer: int, seconds: float) -> bool:
    """Shake hands as the end that has connected. Return False if the listener closes the connection.

    Raises:
        OSError: the connection breaks, or the listener sends nothing.
        RankError: the listener does not know the secret.
    """
    waited = Waited()
    challenge = _exactly(connection, _CHALLENGE, seconds, waited)
    if challenge is None:
        return False
    ours = secrets.token_bytes(_CHALLENGE)
    place = (ours, challenge), channel, identity.rank, peer
    proof = identity.proof(_CALLING, *place)
    connection.sendall(_HELLO.pack(ours, channel, identity.rank, identity.ranks, proof))
    answer = _exactly(connection, _PROOF, seconds, waited)
    if answer is None:
        return False
    if not hmac.compare_digest(answer, identity.proof(_ANSWERING, *place)):
        where = shown(connection.getpeername())
        raise HandshakeErrors.IMPOSTOR(address=where, variable=SECRET_VARIABLE, peer=peer)
    return True


def _exactly(connection: socket.socket, count: int, seconds: float, waited: Waited) -> bytes | None:
    """Return the next `count` bytes; None if the connection ends before. Raises OSError."""
    data = b""
    while len(data) < count:
        left = seconds - waited.seconds()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        more = connection.recv(count - len(data))
        if not more:
            return None
        data += more
    return data


def same_user(connection: socket.socket) -> bool:
    """Return True if the process at the other end of a socket of this machine runs as this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


def shown(address: Address | object) -> str:
    """Return an address as messages have it."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        return f"{host}:{address[1]}"
    return quoted(address)
