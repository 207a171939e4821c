"""Processes of one machine or several that run a program of several ranks: started here, or by torchrun.

Rank 0 is the process of the command. It starts the others itself (`start`), with this module as their program; or every
rank was started by torchrun with the same command (`join`), in which all but rank 0 follow.
"""

from __future__ import annotations

import ctypes
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sscc.compiler.loading import open_interpreter
from sscc.ir.errors import InputError, RankError, SsccError, UsageError, quoted
from sscc.ir.extras import COMPILE, require
from sscc.runtime import _native
from sscc.runtime.artifact.reading import Artifact
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.collectives.crew import OPENING_PATIENCE, Crew, follow
from sscc.runtime.collectives.links import PATIENCE, Link, Waited
from sscc.runtime.collectives.processes import SPIN_US, Distributed, ProcessGroup, SharedMemory, shared_by_all

MEMORY = "memory"
"""The transport of ranks of one machine; others are what torch.distributed calls its backends."""
DEFAULT_BACKEND = "gloo"
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ENDING_SECONDS = 1.0
"""That a rank has to end in when it is told to."""
_FORMING_SECONDS = 300.0
_SECRET_BYTES = 32
_KINDS_OF_LINKS = 3  # for commands, for values, and for beats
_KILLED_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Opening:
    """How a rank opens the program.

    Attributes:
        threads: of this rank.
        checkpoint: as `open_interpreter` takes it.
    """

    artifact: str
    checkpoint: str | None
    interpreter: str
    threads: int
    verify: bool


def launched() -> tuple[int, int] | None:
    """Which rank torchrun has started this process as, and of how many; None where it did not."""
    if not all(name in os.environ for name in _VARIABLES):
        return None
    rank, ranks = (os.environ[name] for name in _VARIABLES[:2])
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        raise UsageError(f"RANK is {rank!r} and WORLD_SIZE {ranks!r}: these are no ranks")
    return int(rank), int(ranks)


def ranks_of_this_machine(ranks: int) -> int:
    """How many of so many ranks are processes of this machine: torchrun says how many it has started here."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if launched() else ranks


def share_of_threads(threads: int | None, ranks: int) -> tuple[int, bool]:
    """Threads of a rank, of those that all ranks of this machine may use together; whether each has a CPU."""
    usable = _native.usable_threads()
    share = max(1, (threads or usable) // ranks)
    return share, share * ranks <= usable


# ------------------------------------------------------------------------------------------------ started by rank 0


def start(opening: Opening, ranks: int, transport: str | None) -> Crew:
    """Starts all ranks but this one, which is rank 0.

    Args:
        transport: as of `join`.

    Raises InputError where the system does not give what they need.
    """
    if transport not in (None, MEMORY):
        return _start_distributed(opening, ranks, transport)
    memory = SharedMemory.create()
    processes: list[subprocess.Popen[bytes]] = []
    commands, values, beats = [], [], []
    spin_us = SPIN_US if opening.threads * ranks <= _native.usable_threads() else 0.0

    try:
        for rank in range(1, ranks):
            here, there = zip(*(socket.socketpair() for _ in range(_KINDS_OF_LINKS)), strict=True)
            descriptors = [memory, *(end.fileno() for end in there)]
            task = {"rank": rank, "ranks": ranks, "descriptors": descriptors, "spin_us": spin_us}
            processes.append(_started(task, opening, descriptors))
            for end in there:
                end.close()
            commands.append(Link(here[0], rank))
            values.append(Link(here[1], rank))
            beats.append(Link(here[2], rank))
    except OSError as error:
        _stop(processes, True)
        raise InputError(f"rank {len(processes) + 1} cannot be started: {error.strerror}") from None
    group = ProcessGroup(0, ranks, values, SharedMemory(memory, 0, ranks, spin_us))
    return Crew(commands, group, lambda at_once: _stop(processes, at_once), beats, _Suspensions(processes).long)


def _start_distributed(opening: Opening, ranks: int, transport: str) -> Crew:
    """Starts the others as torchrun would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port)}  # fmt: skip
    task = {"transport": transport}
    processes = [_started(task, opening, (), {**common, "RANK": str(rank)}) for rank in range(1, ranks)]
    os.environ.update(common, RANK="0")
    try:
        joined = _join_unless_one_ends(processes, lambda: join(transport, opening.threads * ranks, OPENING_PATIENCE))
    except BaseException:
        _stop(processes, True)
        raise
    finally:
        for name in ("RANK", *common):
            del os.environ[name]

    def stop(at_once: bool) -> None:
        _stop(processes, at_once)
        leave(at_once)

    return Crew(joined.commands, joined.group, stop, joined.beats, _Suspensions(processes).long)


def _join_unless_one_ends(processes: Sequence[subprocess.Popen[bytes]], join_them: Callable[[], Joined]) -> Joined:
    """Joins the others in a thread, because torch waits for all of them, also for one that has ended or is suspended.
    Raises RankError for such a one, and what `join` raises."""
    outcome: list[Joined | BaseException] = []

    def work() -> None:
        try:
            outcome.append(join_them())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="sscc-joining", daemon=True)
    thread.start()
    suspensions = _Suspensions(processes)
    while thread.is_alive():
        if suspended := suspensions.long():
            raise RankError(f"rank {suspended[0]} does not answer")
        ended = [rank for rank, process in enumerate(processes, 1) if process.poll() is not None]
        # One that has found out by itself why it cannot join ends, too; then this one is about to find out.
        thread.join(1.0 if ended else 0.05)
        if ended and thread.is_alive():
            raise RankError(f"rank {ended[0]} has ended")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class _Suspensions:
    """Which of the ranks that were started here are suspended (SIGSTOP, Ctrl-Z), as the system says."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._waited: dict[int, Waited] = {}

    def long(self) -> list[int]:
        """Those that have been for `PATIENCE` whenever this was asked."""
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
    task: Mapping[str, Any], opening: Opening, descriptors: Sequence[int], variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    line = json.dumps({**task, "parent": os.getpid(), "opening": asdict(opening)})
    command = [sys.executable, "-m", "sscc.compiler.ranks", line]
    environment = {**os.environ, **(variables or {})}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=environment)

    return _starter().submit(start).result()


@cache
def _starter() -> ThreadPoolExecutor:
    """A thread that lasts, because the system takes the end of the thread that has started a rank for its parent's end
    (`_end_with`). What it starts is born with SIGINT blocked: rank 0 alone decides what an interruption ends, also
    while the others have not come as far as to say so."""
    return ThreadPoolExecutor(1, "sscc-starter", signal.pthread_sigmask, (signal.SIG_BLOCK, {signal.SIGINT}))


def _stop(processes: Sequence[subprocess.Popen[bytes]], at_once: bool) -> None:
    """Waits for processes that were told to end, unless it is to be at once, and ends those that do not."""
    for process in processes:
        if not at_once:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS if process is processes[0] else 0.1)
        process.kill()
    for process in processes:
        process.wait()


def main(argv: Sequence[str]) -> int:
    """The program of a rank that another process has started; that one reports what goes wrong."""
    task = json.loads(argv[1])
    _end_with(task["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    opening = Opening(**task["opening"])
    try:
        if "transport" in task:
            follow_joined(task["transport"], None, lambda group, _: _interpreter(opening, group))
        else:
            rank, ranks = task["rank"], task["ranks"]
            memory, *ends = task["descriptors"]
            commands, values, beats = (Link(socket.socket(fileno=end), 0) for end in ends)
            group = ProcessGroup(rank, ranks, [values], SharedMemory(memory, rank, ranks, task["spin_us"]))
            follow(commands, group, lambda: _interpreter(opening, group), beats)
    except SsccError as error:
        return error.exit_code
    return 0


def _end_with(parent: int) -> None:
    """Has the system kill this process when the one that has started it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(RankError.exit_code)


def _interpreter(opening: Opening, group: ProcessGroup) -> Interpreter:
    artifact = Artifact.load(Path(opening.artifact), verify=opening.verify)
    checkpoint = None if opening.checkpoint is None else Path(opening.checkpoint)
    return open_interpreter(
        artifact, checkpoint, interpreter=opening.interpreter, threads=opening.threads, group=group
    )


# ------------------------------------------------------------------------------------------------ started by torchrun


@dataclass(frozen=True)
class Joined:
    """A rank's place among those that torchrun has started.

    Attributes:
        commands: links for what rank 0 says, of rank 0 to all others.
        beats: links on which rank 0 asks whether the others are there.
        threads: of this rank.
    """

    group: ProcessGroup
    commands: list[Link]
    beats: list[Link]
    threads: int


def join(transport: str | None, threads: int | None, patience: float = _FORMING_SECONDS) -> Joined:
    """Joins the ranks that torchrun has started.

    Args:
        transport: MEMORY, or a backend of torch.distributed; None: memory where all ranks share it, else gloo.
        patience: seconds in which all others must have come. Machines are started one after another; ranks that a
            process has started itself need not have as long.

    Raises:
        InputError: the ranks do not find each other, or have nothing through which to exchange.
    """
    require(COMPILE, "joining ranks by torch.distributed")
    import torch.distributed as distributed

    try:
        distributed.init_process_group(DEFAULT_BACKEND, timeout=timedelta(seconds=patience))
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the ranks do not find each other: {quoted(error)}") from None
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    commands, values, beats = _connect(rank, ranks)
    share, each = share_of_threads(threads, ranks_of_this_machine(ranks))

    def exchange(value: Any) -> list[Any]:
        everyone: list[Any] = [None] * ranks
        distributed.all_gather_object(everyone, value)
        return everyone

    memory = shared_by_all(exchange, rank) if transport in (None, MEMORY) else None
    if memory is None and transport == MEMORY:
        raise InputError("the ranks do not share memory: give another --transport")
    chosen: SharedMemory | Distributed
    if memory is None:
        chosen = Distributed(transport or DEFAULT_BACKEND)
    else:
        chosen = SharedMemory(memory, rank, ranks, SPIN_US if each else 0.0)
    return Joined(ProcessGroup(rank, ranks, values, chosen), commands, beats, share)


def follow_joined(
    transport: str | None, threads: int | None, open_interpreter: Callable[[ProcessGroup, int], Interpreter]
) -> None:
    """Joins the ranks as another one than rank 0, follows that one to its end, and leaves them: a process that ends
    with torch's threads at work is now and then killed by them.

    Args:
        open_interpreter: from the ranks and this one's threads. transport, threads: and errors: see `join`.
    """
    joined = join(transport, threads)
    (commands,), (beats,) = joined.commands, joined.beats
    follow(commands, joined.group, lambda: open_interpreter(joined.group, joined.threads), beats)
    leave()


def leave(at_once: bool = False) -> None:
    """Takes this process out of the ranks that it has joined; at once, it waits for none of them, and the process is
    good for no others."""
    import torch.distributed as distributed

    if distributed.is_initialized() and not at_once:
        distributed.destroy_process_group()


def _connect(rank: int, ranks: int) -> list[list[Link]]:
    """Links for commands, for values and for beats, between rank 0 and each other one, of those that know a secret."""
    import torch.distributed as distributed

    told: list[Any] = [None]
    server = None
    if rank == 0:
        address = os.environ["MASTER_ADDR"]
        try:
            family = socket.getaddrinfo(address, None)[0][0]
            server = socket.create_server((address, 0), family=family)
        except OSError as error:
            raise InputError(f"rank 0 cannot listen at {address}: {error.strerror}") from None
        server.settimeout(_FORMING_SECONDS)
        told = [(server.getsockname()[:2], secrets.token_bytes(_SECRET_BYTES))]
    distributed.broadcast_object_list(told, src=0)
    where, secret = told[0]
    if server is None:
        links = []
        for number in range(_KINDS_OF_LINKS):
            try:
                connection = socket.create_connection(where, PATIENCE)
                connection.sendall(secret + bytes([number]) + rank.to_bytes(2, "little"))
            except OSError as error:
                raise RankError(f"rank 0 does not answer at {where[0]}: {error}") from None
            links.append(Link(connection, 0))
        return [[link] for link in links]
    found: list[dict[int, Link]] = [{} for _ in range(_KINDS_OF_LINKS)]
    with server:
        while min(map(len, found)) < ranks - 1:
            connection, _ = server.accept()
            connection.settimeout(PATIENCE)
            hello = connection.recv(_SECRET_BYTES + 3, socket.MSG_WAITALL)
            if len(hello) == _SECRET_BYTES + 3 and hmac.compare_digest(hello[:_SECRET_BYTES], secret):
                peer = int.from_bytes(hello[-2:], "little")
                found[hello[_SECRET_BYTES]][peer] = Link(connection, peer)
            else:
                connection.close()
    return [[of[peer] for peer in sorted(of)] for of in found]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
