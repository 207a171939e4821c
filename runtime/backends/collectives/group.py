"""The exchange of values between ranks, which is the primitive that collectives need, and ranks that are threads of one
process.

All collectives of a program are built on `Group.exchange`, which returns the values of all ranks to every rank, in the
order of ranks. Every rank therefore adds in the same order and gets the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sscc.ir.errors import ErrorKind, InternalError, RankError, UsageError
from sscc.ir.sharding import peers

if TYPE_CHECKING:  # numpy is slow to import, and the command line needs only names
    from sscc.runtime.backends.collectives.shared_windows import Windows
    from sscc.runtime.support._native import Meeting

Value = TypeVar("Value")


class GroupErrors(ErrorKind):
    UNREACHED = RankError, "rank {rank} does not reach the others: {cause}"
    OTHER_RANKS = UsageError, "the program is compiled for {expected} ranks, and cannot run on {ranks}"
    ALONE = InternalError, "a program for one rank has nothing to exchange"
    FAILED = RankError, "rank {rank} has failed"
    SILENT = RankError, "another rank does not answer"


class Group(Protocol):
    """A rank among several that run the same program.

    Attributes:
        rank: number of this rank, from 0.
        ranks: number of ranks.
    """

    rank: int
    ranks: int

    def exchange(self, value: Value) -> Sequence[Value]:
        """Return the values of all ranks, in order. Raises RankError if another rank has ended."""

    def windows(self, nbytes: int) -> Windows:
        """Return windows of `nbytes` bytes for native code; all ranks call it together. Raises RankError if one has
        ended."""

    def end(self, rank: int) -> None:
        """End all present and future waits of every rank, because `rank` cannot continue."""


class Alone:
    """The group of a program that is not split over ranks."""

    rank, ranks = 0, 1

    def exchange(self, value: Value) -> Sequence[Value]:
        return [value]

    def windows(self, nbytes: int) -> Windows:
        raise GroupErrors.ALONE()

    def end(self, rank: int) -> None:
        """Do nothing: no other rank waits."""


ALONE = Alone()


class Ranks:
    """The position of this rank in the grid of ranks that a program is compiled for.

    Args:
        grid: number of ranks along each axis; () for a program of one rank.

    Raises:
        UsageError: the sizes of group and grid differ.
    """

    def __init__(self, group: Group, grid: Sequence[int]) -> None:
        if group.ranks != prod(grid):
            raise GroupErrors.OTHER_RANKS(expected=prod(grid), ranks=group.ranks)
        self.group, self.grid = group, tuple(grid)

    def exchange(self, value: Value, axes: Sequence[int]) -> list[Value]:
        """Return the values of the ranks that differ from this one only along `axes`, in order. All ranks call it
        together."""
        values = self.group.exchange(value)
        return [values[rank] for rank in peers(self.grid, axes, self.group.rank)]

    def place(self, axes: Sequence[int]) -> tuple[int, int]:
        """Return the number of this rank among those that differ only along `axes`, and the number of these ranks."""
        group = peers(self.grid, axes, self.group.rank)
        return group.index(self.group.rank), len(group)


class _Meeting:
    """Rendezvous at which the threads of a group exchange values."""

    def __init__(self, ranks: int, timeout: float) -> None:
        self.values: list[Any] = [None] * ranks
        self.timeout = timeout
        self.barrier = threading.Barrier(ranks, timeout=timeout)
        self.native: list[Meeting] = []
        self.failed: int | None = None


class ThreadGroup:
    """A rank that is a thread of this process; `run_ranks` creates them."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.ranks = rank, len(meeting.values)
        self._meeting = meeting

    def exchange(self, value: Value) -> Sequence[Value]:
        try:
            self._meeting.values[self.rank] = value
            self._meeting.barrier.wait()
            values = list(self._meeting.values)
            self._meeting.barrier.wait()  # nobody stores the next value before every rank has read this one
        except threading.BrokenBarrierError:
            failed = self._meeting.failed
            raise (GroupErrors.SILENT() if failed is None else GroupErrors.FAILED(rank=failed)) from None
        return values

    def windows(self, nbytes: int) -> Windows:
        from sscc.runtime.backends.collectives.shared_windows import SharedWindows

        memory = bytearray(SharedWindows.nbytes_of(self.ranks, nbytes)) if self.rank == 0 else None
        shared = next(value for value in self.exchange(memory) if value is not None)
        windows, meeting = SharedWindows(shared, self.ranks, nbytes, self._meeting.timeout, 0.0).of(self.rank)
        self._meeting.native.append(meeting)
        return windows

    def end(self, rank: int) -> None:
        if self._meeting.failed is None and not self._meeting.barrier.broken:
            self._meeting.failed = rank
        self._meeting.barrier.abort()
        for meeting in list(self._meeting.native):
            meeting.fail(rank)


def thread_groups(ranks: int, timeout: float = 60.0) -> list[ThreadGroup]:
    """Return a group of ranks that are threads.

    Args:
        timeout: seconds for which a rank waits for the others.
    """
    meeting = _Meeting(ranks, timeout)
    return [ThreadGroup(rank, meeting) for rank in range(ranks)]


def run_ranks(groups: Sequence[ThreadGroup], work: Callable[[ThreadGroup], Value]) -> list[Value]:
    """Run `work` for every rank, each in a thread of its own, and return the results by rank.

    Raises:
        Exception: the first exception of a rank that is not merely about the end of another rank.
    """

    def one(group: ThreadGroup) -> Value:
        try:
            return work(group)
        except BaseException:
            group.end(group.rank)
            raise

    with ThreadPoolExecutor(len(groups)) as pool:
        futures = [pool.submit(one, group) for group in groups]
        errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, RankError)):
        raise error
    return [future.result() for future in futures]
