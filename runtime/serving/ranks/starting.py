"""Processes of this machine that run a program of several ranks. Rank 0 is the process of the command, which starts the
others.

A started rank runs a module that calls `run_rank` with a function that opens its part of the program. For ranks that
torchrun has started, see `sscc.runtime.serving.ranks.joining`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sscc.ir.errors import ErrorKind, InputError, RankError, SsccError, quoted
from sscc.runtime.backends.collectives.links import PATIENCE, Link, Waited
from sscc.runtime.backends.collectives.processes import (
    SOCKETS,
    SPIN_US,
    Channel,
    ProcessGroup,
    SharedMemory,
    Sockets,
    check_transport,
)
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.serving.ranks.crew import Crew, follow
from sscc.runtime.support import _native


class RankStartErrors(ErrorKind):
    NOT_STARTED = InputError, "rank {rank} cannot be started: {cause}"


ENDING_SECONDS = 1.0
"""Time in seconds in which a rank must end after a request to end."""
_KILLED_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Opening:
    """Program that a rank opens, and the options for opening it.

    Attributes:
        artifact: path of the artifact.
        checkpoint: path of other weights for it; None for its own, or those that it was compiled from.
        interpreter: name of the interpreter.
        threads: number of threads of this rank.
        verify: True to compare the digests of files.
    """

    artifact: str
    checkpoint: str | None
    interpreter: str
    threads: int
    verify: bool


def start(module: str, opening: Opening, ranks: int, transport: str | None) -> Crew:
    """Start all ranks except this process, which is rank 0. They inherit their ends of unnamed socket pairs.

    Args:
        module: name of the module that a rank runs; its main program calls `run_rank`.
        opening: program and options of every rank.
        ranks: number of ranks.
        transport: MEMORY or SOCKETS; None for memory.

    Raises:
        UsageError: the transport is unknown.
        InputError: the system cannot provide the sockets, memory or processes.
    """
    check_transport(transport)
    spin_us = SPIN_US if opening.threads * ranks <= _native.usable_threads() else 0.0
    processes: list[subprocess.Popen[bytes]] = []
    memory = None if transport == SOCKETS else SharedMemory.create()
    sockets: list[_Ends] = []
    try:
        sockets.extend(_sockets(ranks, memory is None))
        for rank in range(1, ranks):
            ends = [[channel, peer, end.fileno()] for (channel, peer), end in sockets[rank].items()]
            task = {"rank": rank, "ranks": ranks, "links": ends, "memory": memory, "spin_us": spin_us}
            inherited = [end for _, _, end in ends] + ([] if memory is None else [memory])
            processes.append(_started(module, task, opening, inherited))
    except OSError as error:
        _stop(processes, True)
        for end in (end for of in sockets for end in of.values()):
            end.close()
        raise RankStartErrors.NOT_STARTED(rank=len(processes) + 1, cause=quoted(error.strerror)) from None
    for end in (end for of in sockets[1:] for end in of.values()):
        end.close()
    links = {place: Link(end, place[1]) for place, end in sockets[0].items()}
    commands, beats = ([links[of, peer] for peer in range(1, ranks)] for of in (Channel.COMMANDS, Channel.BEATS))
    group = _group(0, ranks, links, memory, spin_us)
    return Crew(commands, group, lambda at_once: _stop(processes, at_once), beats, _Suspensions(processes).long)


_Ends = dict[tuple[int, int], socket.socket]
"""Socket ends of a rank, by channel and peer."""


def _sockets(ranks: int, data: bool) -> list[_Ends]:
    """Return the socket ends of every rank. If `data`, they include sockets for data between all pairs of ranks."""
    ends: list[_Ends] = [{} for _ in range(ranks)]
    for low in range(ranks):
        for high in range(low + 1, ranks):
            channels = ([] if low else [Channel.COMMANDS, Channel.VALUES, Channel.BEATS]) + [Channel.DATA] * data
            for channel in channels:
                ends[low][channel, high], ends[high][channel, low] = socket.socketpair()
    return ends


def _group(
    rank: int, ranks: int, links: Mapping[tuple[int, int], Link], memory: int | None, spin_us: float
) -> ProcessGroup:
    values = [link for (channel, _), link in links.items() if channel == Channel.VALUES]
    if memory is not None:
        return ProcessGroup(rank, ranks, values, SharedMemory(memory, rank, ranks, spin_us))
    data = {peer: link for (channel, peer), link in links.items() if channel == Channel.DATA}
    return ProcessGroup(rank, ranks, values, Sockets(rank, data))


class _Suspensions:
    """Started ranks that are suspended (SIGSTOP, Ctrl-Z), according to /proc."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._waited: dict[int, Waited] = {}

    def long(self) -> list[int]:
        """Return the ranks that were suspended in all calls of this method for at least `PATIENCE`."""
        for rank, process in enumerate(self._processes, 1):
            if _is_suspended(process.pid):
                self._waited.setdefault(rank, Waited())
            else:
                self._waited.pop(rank, None)
        return [rank for rank, waited in self._waited.items() if waited.seconds() > PATIENCE]


def _is_suspended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the process has ended, or the system has no /proc
        return False
    return state == "T"


def _started(
    module: str, task: Mapping[str, Any], opening: Opening, descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    line = json.dumps({**task, "parent": os.getpid(), "opening": asdict(opening)})
    command = [sys.executable, "-m", module, line]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)

    return _starter().submit(start).result()


@cache
def _starter() -> ThreadPoolExecutor:
    """Return the thread that starts ranks. It lives as long as this process, because the system treats the end of the
    thread that has started a rank as the end of its parent (`_end_with`). SIGINT is blocked in it and in the processes
    that it starts: only rank 0 decides what an interrupt ends, even before the other ranks ignore the signal."""
    return ThreadPoolExecutor(1, "sscc-starter", signal.pthread_sigmask, (signal.SIG_BLOCK, {signal.SIGINT}))


def _stop(processes: Sequence[subprocess.Popen[bytes]], at_once: bool) -> None:
    """Kill processes. Unless `at_once`, they were told to end, so wait a moment for them first."""
    for process in processes:
        if not at_once:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS if process is processes[0] else 0.1)
        process.kill()
    for process in processes:
        process.wait()


Opener = Callable[[Opening, ProcessGroup], Interpreter]
"""Function that opens the part of a program that a rank executes."""


def run_rank(line: str, opener: Opener) -> int:
    """Run a rank that another process has started, to its end. That process reports errors.

    Args:
        line: argument with which `start` runs the rank's module.
        opener: function that opens the rank's part of the program.

    Returns:
        exit code.
    """
    task = json.loads(line)
    _end_with(task["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    opening = Opening(**task["opening"])
    try:
        rank, ranks = task["rank"], task["ranks"]
        links = {(channel, peer): Link(socket.socket(fileno=end), peer) for channel, peer, end in task["links"]}
        group = _group(rank, ranks, links, task["memory"], task["spin_us"])
        follow(links[Channel.COMMANDS, 0], group, lambda: opener(opening, group), links[Channel.BEATS, 0])
    except SsccError as error:
        return error.exit_code
    return 0


def _end_with(parent: int) -> None:
    """Have the system kill this process when its parent ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(RankError.exit_code)
