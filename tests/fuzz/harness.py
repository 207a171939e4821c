"""Runs the cases of a target in worker processes, under a supervisor that survives whatever a case does.

A worker is forked from a server that has imported the targets, and runs one seed after the other. The supervisor knows
the seed in progress, so a worker that crashes, hangs or runs out of memory is a finding with a seed; another worker
takes its place.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import ClassVar

HANG = 10.0
"""Seconds of processor time that a case may take unless its target says more: on a busy machine a case that only waits
for its turn hangs not."""

STALL = 60.0
"""Seconds by the clock that a case may take, whatever it waits for."""

PREPARATION = 600.0
"""Seconds by the clock until a target has prepared its bases."""

PRELOADED = "tests.fuzz.preloaded"
"""The module that the fork server imports before it forks workers."""

LOG_BYTES = 4000
"""Bytes from the end of a worker's output that a finding repeats."""

_POLL = 0.5


class Finding(Exception):
    """Something is wrong; the message says what."""


class Target(ABC):
    """A generator of cases and the judgement on them.

    Attributes:
        name: as in the table of targets.
        memory: bytes of address space that one case may take, beyond what the process has when it begins.
        seconds: of processor time that one case may take.
    """

    name: ClassVar[str]
    memory: ClassVar[int] = 2 << 30
    seconds: ClassVar[float] = HANG

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Prepares the bases, once, in an empty folder of its own, which a case may write to."""

    @abstractmethod
    def run(self, seed: int) -> str:
        """Makes the case of a seed, the same one every time, and executes it.

        Returns the outcome in a word or two ("refused", "agrees"). Raises Finding where something is wrong; any other
        exception is a finding too.
        """

    def reduced(self, seed: int, tries: int) -> str:
        """Return the case of a seed with a finding as text, reduced by at most `tries` tries."""
        raise NotImplementedError(f"cases of {self.name!r} cannot be reduced")


@dataclass(frozen=True)
class SeedResult:
    """Result of a seed. `finding`: "" if there is none."""

    seed: int
    outcome: str
    finding: str = ""


class TargetFailure(Exception):
    """A target cannot prepare its bases."""


def load_target(spec: str) -> type[Target]:
    """The class that a "module:Class" names."""
    module, _, name = spec.partition(":")
    loaded: type[Target] = getattr(importlib.import_module(module), name)
    return loaded


def run_cases(spec: str, first: int, cases: int, jobs: int = 1) -> Iterator[SeedResult]:
    """Runs seeds first .. first + cases - 1 on `jobs` workers and yields them as they end, in any order.

    Raises TargetFailure where the target does not get as far as its first case.
    """
    seeds = iter(range(first, first + cases))
    workers = [_Worker(spec) for _ in range(min(jobs, cases))]
    try:
        while workers:
            wait([worker.pipe for worker in workers], _POLL)
            for worker in list(workers):
                case = worker.poll()
                if case is not None:
                    yield case
                if worker.dead:
                    workers[workers.index(worker)] = worker = worker.successor()
                if worker.idle and not worker.begin(next(seeds, None)):
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """The supervisor's side of one worker process."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.folder = tempfile.TemporaryDirectory(prefix="sscc-fuzz-", ignore_cleanup_errors=True)
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
        self.process = context.Process(target=_work, args=(spec, self.folder.name, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.seed: int | None = None
        self.idle = self.dead = False
        self.began, self.used = time.monotonic(), 0.0
        self.seconds = HANG

    def begin(self, seed: int | None) -> bool:
        """Gives it a seed, or ends it where there is none left; says which."""
        if seed is None:
            self.stop()
            return False
        self.seed, self.idle = seed, False
        self.began, self.used = time.monotonic(), _processor_seconds(self.process.pid)
        with contextlib.suppress(OSError):  # a worker that died between two cases is seen by `poll`
            self.pipe.send(seed)
        return True

    def poll(self) -> SeedResult | None:
        """The case that ended since, if one did; ends the worker that takes too long."""
        if self.pipe.poll():
            try:
                outcome, finding = self.pipe.recv()
            except (EOFError, OSError):
                return self._died()
            seed, self.seed, self.idle = self.seed, None, True
            if seed is None:  # its first words: that it is ready, and how long a case may take
                self.seconds = float(finding)
            return None if seed is None else SeedResult(seed, outcome, finding)
        if not self.idle and self._late():
            self.process.kill() if self.seed is None else self._abort()
            return self._died("hang", f"no end after {self.seconds:g} s of processor time or {STALL:g} s by the clock")
        return None

    def successor(self) -> _Worker:
        return _Worker(self.spec)

    def stop(self) -> None:
        """Ends it, and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.folder.cleanup()

    def _late(self) -> bool:
        passed = time.monotonic() - self.began
        if self.seed is None:
            return passed > PREPARATION
        if passed < self.seconds:
            return False
        return passed > STALL or _processor_seconds(self.process.pid) - self.used > self.seconds

    def _abort(self) -> None:
        """Ends it so that its log says where it was."""
        os.kill(self.process.pid or 0, signal.SIGABRT)
        self.process.join(2)

    def _died(self, outcome: str = "crash", why: str = "") -> SeedResult:
        if outcome == "crash":
            self.process.join(5)
            code = self.process.exitcode or 0
            why = f"the process ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        log = _tail(Path(self.folder.name) / "log")
        self.dead = True
        self.stop()
        if self.seed is None:
            raise TargetFailure(f"{self.spec} is not ready for cases: {why}\n{log}")
        return SeedResult(self.seed, outcome, f"{why}\n{log}".strip())


def outcome_apart(case: Callable[[], str]) -> str:
    """Run a case in a separate process and return its outcome, "finding: .." with the message, "crash" or "hang"."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            theirs.send(case())
        except BaseException as error:
            theirs.send(f"finding: {type(error).__name__}: {error}")
        os._exit(0)
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(HANG) else "hang"
    except EOFError:
        return "crash"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ours.close()


# ------------------------------------------------------------------------------------------ in the worker process


def _work(spec: str, folder: str, pipe: Connection) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for the supervisor, which ends the whole group
    log = os.open(Path(folder) / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable()
    importlib.import_module(PRELOADED)
    own = Path(folder) / "target"
    own.mkdir()
    os.environ["SSCC_CACHE"] = str(Path(folder) / "cache")
    target = load_target(spec)(own)
    gc.collect()
    gc.freeze()  # a case is not charged for collections that look at all that was imported
    with contextlib.suppress(EOFError, OSError):  # the supervisor is gone
        pipe.send(("ready", str(target.seconds)))
        while True:
            seed = pipe.recv()
            os.ftruncate(log, 0)
            pipe.send(_case(target, seed))


def _case(target: Target, seed: int) -> tuple[str, str]:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + target.memory, hard))
    try:
        return target.run(seed), ""
    except Finding as finding:
        return "finding", str(finding)
    except MemoryError:
        return "memory", f"more than {target.memory >> 20} MiB\n{traceback.format_exc()[-LOG_BYTES:]}"
    except Exception:
        return "exception", traceback.format_exc()[-LOG_BYTES:]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _processor_seconds(pid: int | None) -> float:
    """The CPU time of a process and its threads; 0 for a process that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_bytes()[-LOG_BYTES:].decode(errors="replace")
