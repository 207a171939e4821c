"""Execution of peers: each is loaded in a separate process, repeats interleave, and one process runs at a time.

Waiting peers are stopped (SIGSTOP), so that their spinning threads take no processor from the measured one. The read
bandwidth of memory is measured with every repeat, because it limits decode steps and drifts on shared machines.
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
LOAD_LIMIT = 1800.0  # seconds; exporting and compiling a large model takes long
PASSIVE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


@dataclass(frozen=True)
class Workload:
    """A workload: decode steps of `batch` sequences of `context` tokens, or a prompt of `context` tokens."""

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
        """Return the cache rows that a decode step reads per sequence. A budget of 0 keeps all rows."""
        return min(self.context, budget) if budget else self.context


class Subject(ABC):
    """A model to measure."""

    name: str

    @abstractmethod
    def prepare(self, llama: bool) -> Path:
        """Return the file or folder that runners load, created if missing.

        Args:
            llama: True if a runner is llama.cpp, which needs a GGUF file beside a folder.
        """

    @abstractmethod
    def step_bytes(self, workload: Workload, precision: Precision, budget: int = 0) -> float:
        """Return the bytes that a decode step must read: every matrix once, the mean number of experts of random
        tokens, and the cache rows (at most `budget` per sequence unless that is 0)."""


@dataclass
class PeerResult:
    """A cell of the table: seconds and read bandwidth (bytes/s) of every repeat, or an error."""

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
        """Tokens per second of the median repeat."""
        return self.workload.tokens / statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return self.workload.tokens / min(self.seconds)

    @property
    def calibration(self) -> float:
        """Median read bandwidth of the repeats, in bytes/s."""
        return statistics.median(self.bandwidth)

    @property
    def share(self) -> float | None:
        """Fraction of the read bandwidth that a decode step uses; None for prefill, which is bound by arithmetic."""
        if self.workload.kind == "prefill":
            return None
        steps = (self.step_bytes * self.workload.steps / taken for taken in self.seconds)
        return statistics.median(step / read for step, read in zip(steps, self.bandwidth, strict=True))

    def record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        measured = {"tokens_per_second": self.rate, "best": self.best, "share": self.share} if self.seconds else {}
        names = ("peer", "dtype", "version", "model", "step_bytes", "seconds", "bandwidth", "error")
        return asdict(self.workload) | {name: getattr(self, name) for name in names} | measured


class RunnerError(Exception):
    """A runner that could not start, ended early, or reported an error."""


class Runner:
    """A peer's process, stopped (SIGSTOP) except within `ask`. Use it as a context manager.

    Raises RunnerError with the peer's message if it cannot load the model.
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
            process_group=0,  # a group of this session, which the kernel ends if this process dies while it is stopped
        )
        try:
            self.version = str(self._answer(LOAD_LIMIT)["version"])
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, request: dict[str, object], limit: float) -> float:
        """Send a request and return the seconds that the peer measured. Raises RunnerError for an error, and after
        `limit` seconds without an answer."""
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
    """Return the command line of a peer's runner."""
    words = ("--model", model, "--dtype", precision.dtype, "--threads", threads)
    return [str(word) for word in (peer.python, "-m", peer.module, *words)]


def environment(threads: int, passive: bool) -> dict[str, str]:
    """Return the environment of runners.

    Args:
        threads: size of their thread pools.
        passive: True to disable spinning of waiting threads.
    """
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return os.environ | pools | offline | (PASSIVE if passive else {})


def native_bandwidth(threads: int) -> Callable[[], float]:
    """Return a function that measures the read bandwidth with a number of threads, in bytes/s."""
    from sscc.runtime.support._native import read_bandwidth

    return lambda: read_bandwidth(threads, CALIBRATION_BYTES) * 1e9


def interleave(
    runners: Sequence[tuple[PeerResult, Runner]],
    workload: Workload,
    repeats: int,
    bandwidth: Callable[[], float],
    limit: float,
) -> None:
    """Measure a workload with every runner in turn, `repeats` times, and fill the results. A runner that fails is
    skipped from then on."""
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
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def chosen(peers: Iterable[Peer], only: Sequence[str]) -> list[tuple[Peer, Precision]]:
    """Return the pairs of peers and precisions whose `NAME TYPE` contains a word of `only`, ignoring case; all pairs if
    it is empty."""
    pairs = [(peer, precision) for peer in peers for precision in peer.precisions]
    if not only:
        return pairs
    return [pair for pair in pairs if any(word.lower() in f"{pair[0].name} {pair[1].dtype}".lower() for word in only)]
