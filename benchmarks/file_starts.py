"""Time to the first token, resident memory and disk space of a GGUF file, with sscc and llama.cpp."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RunnerError, say
from benchmarks.models import FOLDER
from benchmarks.peers.llama import TOOLS
from benchmarks.startup import SSCC

CACHE = FOLDER / "file-starts-cache"
PROMPT = "Write a function that reverses a list."
MIB = 2**20


@dataclass(frozen=True)
class Starts:
    """Wall time and memory of processes that generate one token.

    Attributes:
        name: name of the file.
        first: seconds of `sscc run` with an empty cache folder.
        again: seconds of later runs.
        llama: seconds of llama-completion.
        first_resident, again_resident, llama_resident: peak resident set in bytes, including mapped files.
        file: bytes of the file.
        cached: bytes of the artifact and the packed weights in the cache folder.
    """

    name: str
    first: float
    again: list[float]
    llama: list[float]
    first_resident: int
    again_resident: int
    llama_resident: int
    file: int
    cached: int

    def record(self) -> dict[str, Any]:
        return asdict(self)


def measure(file: Path, threads: int, repeats: int) -> Starts:
    """Measure a file. Raises RunnerError if a program fails."""
    say(f"{file.stem}: first token")
    _read(file)
    shutil.rmtree(CACHE, ignore_errors=True)
    sscc = [*SSCC, "run", file, "--prompt", PROMPT, "--max-new-tokens", 1, "--threads", threads]
    peer = [TOOLS / "llama-completion", "-m", file, "-p", PROMPT, "-n", 1, "-t", threads, "-no-cnv", "--no-warmup"]
    try:
        first, first_resident = _timed(sscc)
        again, theirs = [], []
        for _ in range(repeats):
            again.append(_timed(sscc))
            theirs.append(_timed(peer))
        cached = sum(path.stat().st_size for path in CACHE.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(CACHE, ignore_errors=True)
    return Starts(
        file.stem, first, [each[0] for each in again], [each[0] for each in theirs], first_resident,
        max(each[1] for each in again), max(each[1] for each in theirs), file.stat().st_size, cached,
    )  # fmt: skip


def render(starts: list[Starts]) -> str:
    lines = [
        "| file | MiB | artifact and packed weights | `sscc run`, first time | again | llama.cpp | resident, first "
        "time | again | llama.cpp |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in starts:
        seconds = [each.first, statistics.median(each.again), statistics.median(each.llama)]
        resident = [each.first_resident, each.again_resident, each.llama_resident]
        cells = [f"{each.file / MIB:.0f}", f"{each.cached / MIB:.0f} ({each.cached / each.file:.2f} of the file)"]
        cells += [f"{number:.2f} s" for number in seconds] + [f"{number / MIB:.0f} MiB" for number in resident]
        lines.append("| " + " | ".join([each.name, *cells]) + " |")
    return "\n".join(lines)


def _timed(command: list[object]) -> tuple[float, int]:
    """Return the wall seconds of a process and its peak resident set in bytes."""
    words = [str(word) for word in command]
    start = time.perf_counter()
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=os.environ | {"SSCC_CACHE": str(CACHE)}, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RunnerError(f"{words[0]} ended with {process.returncode}: {(errors.strip().splitlines() or [''])[-1]}")
    return seconds, usage.ru_maxrss * 1024


def _read(file: Path) -> None:
    """Read a file to put it into the page cache."""
    with file.open("rb") as stream:
        while stream.read(16 * MIB):
            pass
