"""Ranks that torchrun has started: they connect to each other, and then follow rank 0.

Ranks of one machine connect through sockets in a folder of the user's cache that only the user can access; the kernel
reports the user of each connection. Ranks of several machines connect to `MASTER_ADDR` and prove to each other that
they know a secret that the user has given to all of them (`handshake`). torchrun's store only carries a port. Someone
who changes it can keep ranks from joining, but can not become a rank.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from sscc.ir.errors import ErrorKind, InputError, RankError, UsageError, quoted
from sscc.ir.extras import COMPILE, require
from sscc.runtime.backends.collectives.handshake import (
    Address,
    Identity,
    Seat,
    accept,
    connect,
    required_secret,
    same_user,
    secret_of_environment,
    shown,
)
from sscc.runtime.backends.collectives.links import Link
from sscc.runtime.backends.collectives.processes import (
    MEMORY,
    SPIN_US,
    Channel,
    ProcessGroup,
    SharedMemory,
    Sockets,
    check_transport,
    shared_by_all,
)
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.serving.ranks.crew import follow
from sscc.runtime.support import _native
from sscc.runtime.support.user_cache import make_cache_folder


class JoiningErrors(ErrorKind):
    NO_RANK = UsageError, "RANK and WORLD_SIZE must be integers, with RANK below WORLD_SIZE, got {rank!r} and {ranks!r}"
    NO_LISTENING = InputError, "rank {rank} cannot listen at {address}: {cause}"
    NO_STORE = InputError, "torchrun's store at {address} does not answer: {cause}"
    NO_PORT = RankError, "torchrun's store has {port!r} as the port of rank 0, which is not a port"
    NO_SHARED_MEMORY = InputError, "the ranks do not share memory: use --transport sockets"


FORMING_SECONDS = 300.0
"""Time in seconds in which all ranks must have connected. It is long because machines are started one after another."""
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FOLDER = "ranks"


def launched() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks; None if torchrun has not started this process.

    Raises:
        UsageError: the environment variables do not hold a valid rank and number of ranks.
    """
    if not all(name in os.environ for name in _VARIABLES):
        return None
    rank, ranks = (os.environ[name] for name in _VARIABLES[:2])
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        raise JoiningErrors.NO_RANK(rank=rank, ranks=ranks)
    return int(rank), int(ranks)


def ranks_of_this_machine(ranks: int) -> int:
    """Return the number of ranks on this machine, out of `ranks` in total."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if launched() else ranks


def share_of_threads(threads: int | None, ranks: int) -> tuple[int, bool]:
    """Return the number of threads of a rank, and True if each thread of all ranks has a CPU.

    Args:
        threads: total number of threads of the ranks of this machine; None for the number of usable CPUs.
        ranks: number of ranks of this machine.
    """
    usable = _native.usable_threads()
    share = max(1, (threads or usable) // ranks)
    return share, share * ranks <= usable


@dataclass(frozen=True)
class Joined:
    """Connections of a rank that torchrun has started.

    Attributes:
        group: group of this rank.
        commands: links for commands: on rank 0 to all other ranks, on another rank to rank 0.
        beats: links for pings, between the same ranks.
        threads: number of threads of this rank.
    """

    group: ProcessGroup
    commands: list[Link]
    beats: list[Link]
    threads: int


def join(transport: str | None, threads: int | None, seconds: float = FORMING_SECONDS) -> Joined:
    """Join the ranks that torchrun has started.

    Args:
        transport: MEMORY or SOCKETS; None for memory if all ranks share it, otherwise sockets.
        threads: total number of threads of the ranks of this machine; None for the number of usable CPUs.
        seconds: time in which all other ranks must have connected.

    Raises:
        UsageError: ranks of several machines have no secret, or the transport is unknown.
        InputError: this rank cannot listen, or `transport` is MEMORY and the ranks do not share memory.
        RankError: the ranks cannot connect to each other.
    """
    check_transport(transport)
    place = launched()
    assert place is not None, "only a process that torchrun has started joins"
    rank, ranks = place
    meeting = _meeting_of(rank, ranks)
    try:
        return _joined(meeting, transport, threads, seconds)
    finally:
        meeting.close()


def _joined(meeting: _Meeting, transport: str | None, threads: int | None, seconds: float) -> Joined:
    identity = meeting.identity
    rank, ranks = identity.rank, identity.ranks
    links = _with_rank_0(meeting, seconds)
    group_links = [links[Channel.VALUES, peer] for peer in _others(rank, ranks)]
    if rank == 0:
        for link in group_links:
            link.send(None)
    else:
        group_links[0].receive(seconds)  # rank 0 sends this when all ranks have connected
    share, each = share_of_threads(threads, ranks_of_this_machine(ranks))
    data = {peer: links[Channel.DATA, peer] for peer in _others(rank, ranks)}

    # The ranks agree on the transport over links, which exist before any transport.
    group = ProcessGroup(rank, ranks, group_links, Sockets(rank, data))
    memory = shared_by_all(group.exchange, rank) if transport in (None, MEMORY) else None
    if memory is not None:
        for link in data.values():
            link.close()
        group = ProcessGroup(rank, ranks, group_links, SharedMemory(memory, rank, ranks, SPIN_US if each else 0.0))
    elif transport == MEMORY:
        raise JoiningErrors.NO_SHARED_MEMORY()
    elif ranks > 2:
        data |= _with_others(meeting, group, seconds)
        group = ProcessGroup(rank, ranks, group_links, Sockets(rank, data))
    commands, beats = ([links[of, peer] for peer in _others(rank, ranks)] for of in (Channel.COMMANDS, Channel.BEATS))
    return Joined(group, commands, beats, share)


def follow_joined(
    transport: str | None, threads: int | None, open_interpreter: Callable[[ProcessGroup, int], Interpreter]
) -> None:
    """Join the ranks as a rank other than 0, and follow rank 0 to its end. Raises as `join` and `follow`.

    Args:
        transport: see `join`.
        threads: see `join`.
        open_interpreter: function that opens this rank's part of the program, given the group and the number of
            threads of this rank.
    """
    joined = join(transport, threads)
    (commands,), (beats,) = joined.commands, joined.beats
    follow(commands, joined.group, lambda: open_interpreter(joined.group, joined.threads), beats)


def _others(rank: int, ranks: int) -> range:
    """Return the ranks to which this rank has links before a transport is chosen."""
    return range(1, ranks) if rank == 0 else range(1)


def _with_rank_0(meeting: _Meeting, seconds: float) -> dict[Seat, Link]:
    """Connect rank 0 and the other ranks. Return this rank's links for all channels, by channel and peer."""
    identity = meeting.identity
    if identity.rank:
        address = meeting.find(seconds)
        found: dict[Seat, socket.socket] = {}
        for channel in Channel:
            found[channel, 0] = connect(address, identity, channel, 0, seconds)
        meeting.here = found[Channel.COMMANDS, 0].getsockname()
    else:
        with meeting.listen() as listener:
            seats = [(channel, peer) for channel in Channel for peer in range(1, identity.ranks)]
            found = accept(listener, identity, seats, seconds, meeting.trusted)
    return {(channel, peer): Link(connection, peer) for (channel, peer), connection in found.items()}


def _with_others(meeting: _Meeting, group: ProcessGroup, seconds: float) -> dict[int, Link]:
    """Return links for data between ranks other than rank 0. A rank connects to the lower ranks, and then accepts the
    connections of the higher ones."""
    rank, ranks, identity = group.rank, group.ranks, meeting.identity
    listener = meeting.listen() if 0 < rank < ranks - 1 else None
    addresses = group.exchange(None if listener is None else meeting.told(listener))
    found: dict[int, socket.socket] = {}
    for peer in range(1, rank):
        address = meeting.address(addresses[peer], peer)
        found[peer] = connect(address, identity, Channel.DATA, peer, seconds)
    if listener is not None:
        with listener:
            seats = [(Channel.DATA, peer) for peer in range(rank + 1, ranks)]
            accepted = accept(listener, identity, seats, seconds, meeting.trusted)
        found |= {peer: connection for (_, peer), connection in accepted.items()}
    return {peer: Link(connection, peer) for peer, connection in found.items()}


# ------------------------------------------------------------------------------------------------- meeting places


class _Meeting(Protocol):
    """Place where ranks find each other.

    Attributes:
        identity: identity of this rank.
        here: local address of a connection to rank 0; None on rank 0.
    """

    identity: Identity
    here: Any

    def listen(self) -> socket.socket:
        """Return a socket that other ranks can connect to. Raises InputError."""

    def find(self, seconds: float) -> Address:
        """Return the address of rank 0. Raises InputError or RankError."""

    def told(self, listener: socket.socket) -> Any:
        """Return the data with which other ranks find the address of this rank's listener."""

    def address(self, told: Any, peer: int) -> Address:
        """Return the address of another rank's listener."""

    def trusted(self, connection: socket.socket) -> bool:
        """Return False if the system reports that a connection is not from another rank."""

    def close(self) -> None:
        """Release the meeting place. No rank can connect to this one any more."""


def _meeting_of(rank: int, ranks: int) -> _Meeting:
    """Return the meeting place of the ranks that torchrun has started. Raises UsageError if a secret is required and
    missing."""
    if os.environ.get("LOCAL_WORLD_SIZE") == str(ranks) or _is_loopback():
        return _OneMachine(Identity(rank, ranks, secret_of_environment() or b""))
    return _Machines(Identity(rank, ranks, required_secret()))


def _is_loopback() -> bool:
    address = os.environ["MASTER_ADDR"]
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


class _OneMachine:
    """Meeting place of ranks of one machine: a folder of the user's cache with a socket for each rank that listens."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.here: Any = None
        variables = (*_VARIABLES[1:], "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        run = "\0".join(os.environ.get(name, "") for name in variables)
        self._name = hashlib.sha256(run.encode()).hexdigest()[:32]
        self._path = make_cache_folder(_FOLDER)
        self._folder = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        name = self._socket_name(self.identity.rank)
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)  # left by a process that was killed
            listener.bind(self.address(None, self.identity.rank))
            listener.listen(self.identity.ranks * len(Channel))
        except OSError as error:
            listener.close()
            address = str(self._path / name)
            raise JoiningErrors.NO_LISTENING(
                rank=self.identity.rank, address=address, cause=quoted(error.strerror)
            ) from None
        return listener

    def find(self, seconds: float) -> Address:
        return self.address(None, 0)

    def told(self, listener: socket.socket) -> Any:
        return None

    def address(self, told: Any, peer: int) -> Address:
        # The path of a socket has a limit of about 100 bytes, which the path of the cache could exceed.
        return f"/proc/self/fd/{self._folder}/{self._socket_name(peer)}"

    def trusted(self, connection: socket.socket) -> bool:
        return same_user(connection)

    def close(self) -> None:
        with suppress(OSError):
            os.unlink(self._socket_name(self.identity.rank), dir_fd=self._folder)
        os.close(self._folder)

    def _socket_name(self, rank: int) -> str:
        return f"{self._name}-{rank}"


class _Machines:
    """Meeting place of ranks of several machines: `MASTER_ADDR`, where rank 0 listens on a port that it records in
    torchrun's store, or on `MASTER_PORT` if there is no store."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.here: Any = None
        self._host, self._port = os.environ["MASTER_ADDR"], _port_of(os.environ["MASTER_PORT"])
        self._stored = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)

    def listen(self) -> socket.socket:
        rank = self.identity.rank
        host, port = (self._host, 0 if self._stored else self._port) if rank == 0 else (self.here[0], 0)
        try:
            family = socket.getaddrinfo(host, None)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=self.identity.ranks * len(Channel))
        except OSError as error:
            cause = quoted(error.strerror)
            raise JoiningErrors.NO_LISTENING(rank=rank, address=shown((host, port)), cause=cause) from None
        if rank == 0 and self._stored:
            port = listener.getsockname()[1]
            self._asked(FORMING_SECONDS, lambda store: store.set(self._key(), str(port)))
        return listener

    def find(self, seconds: float) -> Address:
        if not self._stored:
            return self._host, self._port
        port = self._asked(seconds, lambda store: store.get(self._key()))
        return self._host, _port_of(bytes(port).decode(errors="replace"))

    def told(self, listener: socket.socket) -> Any:
        return listener.getsockname()[:2]

    def address(self, told: Any, peer: int) -> Address:
        host, port = told
        return str(host), int(port)

    def trusted(self, connection: socket.socket) -> bool:
        return True

    def close(self) -> None:
        """Do nothing, because a port leaves nothing behind in the file system."""

    def _asked(self, seconds: float, ask: Callable[[Any], Any]) -> Any:
        """Return the result of a request to torchrun's store. Raises InputError if the store does not respond."""
        require(COMPILE, "joining ranks of several machines")
        import torch.distributed

        try:
            store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
                self._host, self._port, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False
            )
            return ask(store)
        except (RuntimeError, ValueError) as error:
            address = shown((self._host, self._port))
            raise JoiningErrors.NO_STORE(address=address, cause=quoted(error)) from None

    def _key(self) -> str:
        run = (os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
        return "/".join(("sscc", *run, "port"))


def _port_of(text: str) -> int:
    """Parse a port. Raises RankError if the text is not a port."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise JoiningErrors.NO_PORT(port=text)
    return int(text)
