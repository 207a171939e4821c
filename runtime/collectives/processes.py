"""Ranks that are processes: what they exchange goes through memory that they share, or through torch.distributed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sscc.ir.errors import InputError, quoted
from sscc.runtime.collectives.group import UnreachedError
from sscc.runtime.collectives.links import MEETING_PATIENCE, PATIENCE, Link
from sscc.runtime.collectives.windows import SharedWindows, Windows

if TYPE_CHECKING:
    from sscc.runtime._native import Meeting

Value = TypeVar("Value")

SPIN_US = 100.0
"""How long a rank spins for the others, where every thread of all ranks has a CPU."""


class SharedMemory:
    """Memory of a file without a name, which every process that has it open sees and which is gone with the last one.

    Args:
        descriptor: the file's. Windows follow each other in it: all ranks make them in the same order.
        spin_us: how long a rank spins before it sleeps.
    """

    def __init__(self, descriptor: int, rank: int, ranks: int, spin_us: float = 0.0) -> None:
        self._descriptor = descriptor
        self._rank, self._ranks, self._spin_us = rank, ranks, spin_us
        self._used = 0
        self._meetings: list[Meeting] = []

    @staticmethod
    def create() -> int:
        """A new file's descriptor. Raises InputError where the system has no such files."""
        try:
            return os.memfd_create("sscc-ranks")
        except (AttributeError, OSError) as error:
            raise InputError(f"this machine has no memory for ranks to share: {error}") from None

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
            raise InputError(f"{size} bytes for ranks to share cannot be had: {error.strerror}") from None
        shared = SharedWindows(memory, self._ranks, nbytes, MEETING_PATIENCE, self._spin_us)
        windows, meeting = shared.of(self._rank)
        self._meetings.append(meeting)
        return windows

    def end(self, rank: int) -> None:
        for meeting in self._meetings:
            meeting.fail(rank)


class Distributed:
    """Windows that are sent around by torch.distributed, of which this process is a rank already.

    Args:
        backend: torch.distributed's name of how, such as "gloo".

    Raises:
        InputError: this torch has no such backend, or cannot make a group by it.
    """

    def __init__(self, backend: str) -> None:
        import torch.distributed

        self._distributed: Any = torch.distributed
        if not torch.distributed.is_backend_available(backend):  # of names that it does not know, torch asserts
            raise InputError(f"torch.distributed of this machine has no backend {backend!r}")
        try:
            self._group: Any = torch.distributed.new_group(backend=backend, timeout=timedelta(seconds=PATIENCE))
        except (RuntimeError, ValueError) as error:
            raise InputError(f"torch.distributed cannot make a group by {backend!r}: {quoted(error)}") from None

    def windows(self, nbytes: int) -> Windows:
        import torch

        ranks, rank = self._distributed.get_world_size(), self._distributed.get_rank()
        memory = torch.zeros((2, ranks, nbytes), dtype=torch.uint8)

        def meet(count: int, turn: int) -> None:
            parts = [memory[turn, other, :count] for other in range(ranks)]
            try:
                self._distributed.all_gather(parts, parts[rank].clone(), group=self._group)
            except RuntimeError as error:
                raise UnreachedError(f"rank {rank} does not reach the others: {quoted(error)}") from None

        return Windows(memory.data_ptr(), meet, memory)

    def end(self, rank: int) -> None:
        """Ranks find out by themselves: connections of one that has ended are closed, and others do not answer."""


class ProcessGroup:
    """A rank that is a process.

    Args:
        links: of rank 0 to all others, by rank; of another one, to rank 0.
        transport: of what native code exchanges.
    """

    def __init__(self, rank: int, ranks: int, links: Sequence[Link], transport: SharedMemory | Distributed) -> None:
        self.rank, self.ranks = rank, ranks
        self._links = list(links)
        self._transport = transport

    def exchange(self, value: Value) -> Sequence[Value]:
        if self.rank:
            self._links[0].send(value)
            values: list[Value] = self._links[0].receive()
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
    """Where a process is, such that processes of the first two in common may open each other's files; and its id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return boot.read_text().strip(), os.readlink("/proc/self/ns/pid"), os.getpid()
    except OSError:
        return f"unknown {os.getpid()}", "", os.getpid()


def shared_by_all(exchange: Callable[[Any], Sequence[Any]], rank: int) -> int | None:
    """A file that all ranks have open, whose descriptor is given; None where they cannot. All ranks call it at once."""
    descriptor = SharedMemory.create() if rank == 0 else -1
    places = exchange((place_of_memory(), descriptor))
    (boot, space, process), number = places[0]
    if rank and all(place[:2] == (boot, space) for place, _ in places):
        try:
            descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            descriptor = -1
    return descriptor if all(opened >= 0 for opened in exchange(descriptor)) else None
