"""Processes of this machine that run a program of several ranks: rank 0 is the process of the command, and starts the
others.

A started rank runs a module that calls `run_rank` with the function that opens its part of the program. Ranks that
torchrun has started are joined by `sscc.runtime.serving.ranks.joining`.
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
"""That a rank has to end in when it is told to."""
_KILLED_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Opening:
    """The program that a rank opens, and the options with which it does.

    Attributes:
        artifact: path of the artifact.
        checkpoint: path of other weights for it; None for its own, or those that it was compiled from.
        threads: of this rank.
        verify: compare digests of files.
    """

    artifact: str
    checkpoint: str | None
    interpreter: str
    threads: int
    verify: bool


def start(module: str, opening: Opening, ranks: int, transport: str | None) -> Crew:
    """Start all ranks but this one, which is rank 0. They inherit their ends of sockets without a name.

    Args:
        module: name of the module that a rank runs; its main program calls `run_rank`.
        transport: MEMORY or SOCKETS; None: memory.

    Raises:
        UsageError: there is no such transport.
        InputError: the system does not give what ranks need.
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
"""A rank's ends of sockets, by channel and peer."""


def _sockets(ranks: int, data: bool) -> list[_Ends]:
    """Return every rank's ends of pairs of sockets, with those for data between each two ranks if `data`."""
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
    """The ranks that were started here and are suspended (SIGSTOP, Ctrl-Z), as the system says."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._waited: dict[int, Waited] = {}

    def long(self) -> list[int]:
        """Return those that have been for `PATIENCE` whenever this was asked."""
        for rank, process in enumerate(self._processes, 1):
            if _is_suspended(process.pid):
                self._waited.setdefault(rank, Waited())
            else:
                self._waited.pop(rank, None)
        return [rank for rank, waited in self._waited.items() if waited.seconds() > PATIENCE]


def _is_suspended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended, or the system has no such file
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
    """A thread that lasts, because the system takes the end of the thread that has started a rank for its parent's end
    (`_end_with`). What it starts is born with SIGINT blocked: rank 0 alone decides what an interruption ends, also
    while the others have not come as far as to say so."""
    return ThreadPoolExecutor(1, "sscc-starter", signal.pthread_sigmask, (signal.SIG_BLOCK, {signal.SIGINT}))


def _stop(processes: Sequence[subprocess.Popen[bytes]], at_once: bool) -> None:
    """Wait for processes that were told to end, unless `at_once`, and kill those that do not."""
    for process in processes:
        if not at_once:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS if process is processes[0] else 0.1)
        process.kill()
    for process in processes:
        process.wait()


Opener = Callable[[Opening, ProcessGroup], Interpreter]
"""Opens the part of a program that a rank executes."""


def run_rank(line: str, opener: Opener) -> int:
    """Execute a rank that another process has started, to its end. That process reports errors.

    Args:
        line: the argument with which `start` runs the rank's module.

    Returns:
        the exit code.
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
    """Let the system kill this process when the one that has started it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(RankError.exit_code)
