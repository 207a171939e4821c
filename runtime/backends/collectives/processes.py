"""Ranks that are processes: values travel over links, and exchanges of native code go through shared memory or over a
socket between every two ranks."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sscc.ir.errors import ErrorKind, InputError, RankError, UsageError, quoted
from sscc.runtime.backends.collectives.group import GroupErrors
from sscc.runtime.backends.collectives.links import MEETING_PATIENCE, Link, swap
from sscc.runtime.backends.collectives.rank_messages import aligned_bytes
from sscc.runtime.backends.collectives.shared_windows import SharedWindows, Windows

if TYPE_CHECKING:
    from sscc.runtime.support._native import Meeting


class TransportErrors(ErrorKind):
    UNKNOWN = UsageError, "--transport must be one of {known}, got {name!r}"
    NO_GLOO = UsageError, (
        "--transport {name!r} was removed, because gloo accepts any connection as a rank; use one of: {known}"
    )
    NO_SHARED_MEMORY = InputError, "this machine cannot share memory between ranks: {cause}"
    TOO_LARGE = InputError, "ranks need {nbytes} bytes of shared memory, which cannot be allocated: {cause}"
    OUT_OF_STEP = (
        RankError,
        "rank {peer} sends {theirs}, but rank {rank} expects {ours}: the ranks run different programs",
    )
    NOT_VALUES = RankError, "rank 0 sent rank {rank} a message that is not a list of {ranks} values, one for each rank"


Value = TypeVar("Value")

MEMORY, SOCKETS = TRANSPORTS = ("memory", "sockets")
SPIN_US = 100.0
"""Microseconds for which a rank spins, if all threads of all ranks have a CPU each."""


class Channel(IntEnum):
    """The links between two ranks. Every rank has the first three to rank 0; ranks without shared memory have the last
    one to each other."""

    COMMANDS = 0
    VALUES = 1
    BEATS = 2
    DATA = 3


def check_transport(name: str | None) -> None:
    """Raise UsageError if no transport has this name."""
    if name is not None and name not in TRANSPORTS:
        kind = TransportErrors.NO_GLOO if name == "gloo" else TransportErrors.UNKNOWN
        raise kind(name=name, known=TRANSPORTS)


class SharedMemory:
    """Memory of an unnamed file, visible to every process that has it open, and freed when the last one closes it.

    Args:
        descriptor: descriptor of the file. Windows lie in it one after another, so all ranks must create them in the
            same order.
        spin_us: microseconds for which a rank spins before it sleeps.
    """

    def __init__(self, descriptor: int, rank: int, ranks: int, spin_us: float = 0.0) -> None:
        self._descriptor = descriptor
        self._rank, self._ranks, self._spin_us = rank, ranks, spin_us
        self._used = 0
        self._meetings: list[Meeting] = []

    @staticmethod
    def create() -> int:
        """Return the descriptor of a new file. Raises InputError if the system has no unnamed files in memory."""
        try:
            return os.memfd_create("sscc-ranks")
        except (AttributeError, OSError) as error:
            raise TransportErrors.NO_SHARED_MEMORY(cause=quoted(error)) from None

    def windows(self, nbytes: int) -> Windows:
        page = mmap.ALLOCATIONGRANULARITY
        size = -(-SharedWindows.nbytes_of(self._ranks, nbytes) // page) * page
        offset = self._used
        self._used += size
        try:
            if os.fstat(self._descriptor).st_size < self._used:
                os.ftruncate(self._descriptor, self._used)
            memory = mmap.mmap(self._descriptor, size, offset=offset)
        except OSError as error:
            raise TransportErrors.TOO_LARGE(nbytes=size, cause=quoted(error.strerror)) from None
        shared = SharedWindows(memory, self._ranks, nbytes, MEETING_PATIENCE, self._spin_us)
        windows, meeting = shared.of(self._rank)
        self._meetings.append(meeting)
        return windows

    def end(self, rank: int) -> None:
        for meeting in self._meetings:
            meeting.fail(rank)


class Sockets:
    """Windows that ranks send to each other, over a connection between every two of them.

    Args:
        links: links to every other rank, by rank; owned by this object from now on.
    """

    # number of the meeting and bytes of a part: equal on all ranks, because they run the same program
    _HEAD = struct.Struct("<QQ")

    def __init__(self, rank: int, links: Mapping[int, Link]) -> None:
        self._rank, self._links = rank, dict(links)
        self._meetings = 0

    def windows(self, nbytes: int) -> Windows:
        ranks, rank = len(self._links) + 1, self._rank
        memory = aligned_bytes(2 * ranks * nbytes)
        memory[:] = 0
        of_turn = memory.reshape(2, ranks, nbytes)
        heads = {peer: bytearray(self._HEAD.size) for peer in self._links}

        def meet(count: int, turn: int) -> None:
            head = self._HEAD.pack(self._meetings, count)
            self._meetings += 1
            parts = {
                link: [memoryview(heads[peer]), of_turn[turn, peer, :count].data]
                for peer, link in self._links.items()
            }
            try:
                swap([head, of_turn[turn, rank, :count].data], parts, MEETING_PATIENCE)
            except RankError as error:
                raise GroupErrors.UNREACHED(rank=rank, cause=error) from None
            for peer, theirs in heads.items():
                if theirs != head:
                    peer_words, ours = (_words(*self._HEAD.unpack(each)) for each in (theirs, head))
                    raise TransportErrors.OUT_OF_STEP(peer=peer, theirs=peer_words, rank=rank, ours=ours)

        return Windows(memory.ctypes.data, meet, memory)

    def end(self, rank: int) -> None:
        for link in self._links.values():
            link.shut()


def _words(number: int, count: int) -> str:
    return f"{count} bytes in exchange {number}"


class ProcessGroup:
    """A rank that is a process.

    Args:
        links: for rank 0, the links to all others, by rank; for another rank, the link to rank 0.
        transport: transport for the exchanges of native code.
    """

    def __init__(self, rank: int, ranks: int, links: Sequence[Link], transport: SharedMemory | Sockets) -> None:
        self.rank, self.ranks = rank, ranks
        self._links = list(links)
        self._transport = transport

    def exchange(self, value: Value) -> Sequence[Value]:
        if self.rank:
            self._links[0].send(value)
            values: list[Value] = self._links[0].receive()
            if not isinstance(values, list) or len(values) != self.ranks:
                raise TransportErrors.NOT_VALUES(rank=self.rank, ranks=self.ranks)
            return values
        values = [value, *(link.receive() for link in self._links)]
        for link in self._links:
            link.send(values)
        return values

    def windows(self, nbytes: int) -> Windows:
        return self._transport.windows(nbytes)

    def end(self, rank: int) -> None:
        self._transport.end(rank)
        for link in self._links:
            link.shut()


def place_of_memory() -> tuple[str, str, int]:
    """Return the machine and process namespace of this process, and its process number there. Processes in the same
    namespace can open each other's files."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return boot.read_text().strip(), os.readlink("/proc/self/ns/pid"), os.getpid()
    except OSError:
        return f"unknown {os.getpid()}", "", os.getpid()


def shared_by_all(exchange: Callable[[Any], Sequence[Any]], rank: int) -> int | None:
    """Return the descriptor of a file that all ranks have open; None if they cannot open a common file. All ranks call
    it at once."""
    descriptor = SharedMemory.create() if rank == 0 else -1
    places = exchange((place_of_memory(), descriptor))
    (boot, space, process), number = places[0]
    if rank and all(place[:2] == (boot, space) for place, _ in places):
        try:
            descriptor = os.open(f"/proc/{process:d}/fd/{number:d}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            descriptor = -1
    opened = exchange(descriptor)
    if all(other >= 0 for other in opened):
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None
