"""Runs peers side by side: every one loaded in a process of its own, repeats interleaved, one awake at a time.

A peer that waits is stopped (SIGSTOP), so that no thread pool that spins takes a processor from the one being
measured. Next to every measurement the bandwidth of reading memory is taken, because it drifts on shared machines, and
a decode step cannot be faster than its bytes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.registry import ROOT, Peer, Precision

CALIBRATION_BYTES = 256 * 2**20
LOAD_LIMIT = 1800.0  # seconds: exporting a large model and compiling it
PASSIVE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


@dataclass(frozen=True)
class Workload:
    """What is measured: decode steps of `batch` sequences of `context` tokens, or a prompt of `context` tokens."""

    kind: str
    batch: int
    context: int
    steps: int

    @property
    def tokens(self) -> int:
        """Tokens that one measurement processes."""
        return self.context if self.kind == "prefill" else self.batch * self.steps

    @property
    def label(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.context}"
        return f"decode, batch {self.batch}, context {self.context}"

    def request(self) -> dict[str, object]:
        if self.kind == "prefill":
            return {"measure": "prefill", "tokens": self.context}
        return {"measure": "decode", "batch": self.batch, "context": self.context, "steps": self.steps}

    def rows(self, budget: int) -> int:
        """Return the cached rows that a decode step reads in a sequence; a budget of 0 keeps all."""
        return min(self.context, budget) if budget else self.context


class Subject(ABC):
    """A model to measure."""

    name: str

    @abstractmethod
    def prepare(self, llama: bool) -> Path:
        """Return the file or folder that runners load, made if it is not there.

        Args:
            llama: one of the runners is llama.cpp, which needs a GGUF file beside a folder.
        """

    @abstractmethod
    def step_bytes(self, workload: Workload, precision: Precision, budget: int = 0) -> float:
        """Return the bytes that a decode step must read: every matrix once, the experts that random tokens choose on
        average, and the cached rows (at most `budget` of each sequence if that is not 0)."""


@dataclass
class PeerResult:
    """One cell: seconds and read bandwidth (bytes/s) of every repeat, or why there are none."""

    peer: str
    dtype: str
    version: str
    model: str
    workload: Workload
    step_bytes: float
    seconds: list[float] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def rate(self) -> float:
        """Tokens per second, of the median repeat."""
        return self.workload.tokens / statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return self.workload.tokens / min(self.seconds)

    @property
    def calibration(self) -> float:
        """Read bandwidth in bytes/s, the median of what was taken beside the repeats."""
        return statistics.median(self.bandwidth)

    @property
    def share(self) -> float | None:
        """Share of the read bandwidth that the bytes of a step come to; None in prefill, which computes."""
        if self.workload.kind == "prefill":
            return None
        steps = (self.step_bytes * self.workload.steps / taken for taken in self.seconds)
        return statistics.median(step / read for step, read in zip(steps, self.bandwidth, strict=True))

    def record(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        measured = {"tokens_per_second": self.rate, "best": self.best, "share": self.share} if self.seconds else {}
        names = ("peer", "dtype", "version", "model", "step_bytes", "seconds", "bandwidth", "error")
        return asdict(self.workload) | {name: getattr(self, name) for name in names} | measured


class RunnerError(Exception):
    """A runner that could not be started, that ended, or that says it cannot do what was asked."""


class Runner:
    """A peer's process. It sleeps (SIGSTOP) except within `ask`. Use it as a context manager.

    Raises RunnerError where the peer cannot load the model; the message is its own.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: IO[str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,  # in our session: should we die while it is stopped, the kernel ends it
        )
        try:
            self.version = str(self._answer(LOAD_LIMIT)["version"])
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, request: dict[str, object], limit: float) -> float:
        """Seconds that the peer measured. Raises RunnerError, also where no answer comes within `limit` seconds."""
        self._signal(signal.SIGCONT)
        try:
            if self.process.stdin is None or self.process.poll() is not None:
                raise RunnerError(f"it has ended with {self.process.returncode}")
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return float(self._answer(limit)["seconds"])
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self, limit: float) -> dict[str, Any]:
        output = self.process.stdout
        if output is None or not select.select([output], [], [], limit)[0]:
            self._signal(signal.SIGKILL)
            raise RunnerError(f"no answer within {limit:.0f} s")
        line = output.readline()
        if not line:
            raise RunnerError(f"it ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunnerError(answer["error"])
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def command(peer: Peer, precision: Precision, model: Path, threads: int) -> list[str]:
    """How a peer's runner is started."""
    words = ("--model", model, "--dtype", precision.dtype, "--threads", threads)
    return [str(word) for word in (peer.python, "-m", peer.module, *words)]


def environment(threads: int, passive: bool) -> dict[str, str]:
    """The runners' environment: their thread pools have `threads` threads; passive ones never spin."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return os.environ | pools | offline | (PASSIVE if passive else {})


def native_bandwidth(threads: int) -> Callable[[], float]:
    """Reads memory with as many threads and gives bytes/s."""
    from sscc.runtime.support._native import read_bandwidth

    return lambda: read_bandwidth(threads, CALIBRATION_BYTES) * 1e9


def interleave(
    runners: Sequence[tuple[PeerResult, Runner]],
    workload: Workload,
    repeats: int,
    bandwidth: Callable[[], float],
    limit: float,
) -> None:
    """Fills the results: `repeats` times every runner in turn. One that fails is left out from then on."""
    for _ in range(repeats):
        for result, runner in runners:
            if result.error:
                continue
            before = bandwidth()
            try:
                result.seconds.append(runner.ask(workload.request(), limit))
            except RunnerError as error:
                result.error = str(error)
                result.seconds.clear()
                result.bandwidth.clear()
                continue
            result.bandwidth.append((before + bandwidth()) / 2)


def say(text: str) -> None:
    """Prints progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def chosen(peers: Iterable[Peer], only: Sequence[str]) -> list[tuple[Peer, Precision]]:
    """Peers and their types whose `NAME TYPE` contains one of `only` (any, if there are none), ignoring case."""
    pairs = [(peer, precision) for peer in peers for precision in peer.precisions]
    if not only:
        return pairs
    return [pair for pair in pairs if any(word.lower() in f"{pair[0].name} {pair[1].dtype}".lower() for word in only)]
