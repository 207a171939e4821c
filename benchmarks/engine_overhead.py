"""Overhead of the serving engine: time of its thread per decode step outside the interpreter.

    python benchmarks/engine_overhead.py [--model m125] [--types bf16 int8] [--write docs/results/serving.md] [--json]

All slots decode while clients read the tokens in one of several ways. The engine itself measures the overhead
(`Metrics.overhead_seconds`): sampling, bookkeeping, waking readers. A step is the call of the interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import sscc
from benchmarks import models, table
from benchmarks.ours import FASTEST, OPTIONS, artifact
from benchmarks.peers.protocol import token_ids
from sscc.runtime.serving.engine import Engine, Metrics, Request
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session

BLOCK = "benchmarks/engine_overhead.py"
CONTEXT = 1024
PROMPT = 128
WARM_UP = 8  # steps
POLL = 0.05  # seconds between reads of the metrics; the engine counts the time of a read as overhead
SAMPLINGS = {
    "greedy": Sampling(),
    "temperature 0.8": Sampling(temperature=0.8),
    "temperature 0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "and repetition penalty 1.1": Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1),
}


@dataclass(frozen=True)
class StepTimes:
    """Seconds per decode step in the interpreter and outside, medians over the repeats."""

    dtype: str
    sampling: str
    readers: str
    batch: int
    step: float
    overhead: float

    @property
    def share(self) -> float:
        """The overhead as a fraction of the whole step, which includes it."""
        return self.overhead / (self.step + self.overhead)


def by_nobody(engine: Engine, requests: Sequence[Request], done: threading.Event) -> None:
    """Keep the handles, so that requests continue, but read nothing."""
    handles = [engine.submit(request) for request in requests]
    done.wait()
    for handle in handles:
        handle.cancel()


def by_threads(engine: Engine, requests: Sequence[Request], done: threading.Event) -> None:
    """Read the pieces of each request in a separate thread."""

    def read(request: Request) -> None:
        for _ in engine.stream(request):
            if done.is_set():
                return

    threads = [threading.Thread(target=read, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_tasks(engine: Engine, requests: Sequence[Request], done: threading.Event) -> None:
    """Read the pieces of each request in a separate task of one event loop."""

    async def read(request: Request) -> None:
        async for _ in engine.astream(request):
            if done.is_set():
                return

    async def main() -> None:
        await asyncio.gather(*(read(request) for request in requests))

    asyncio.run(main())


READERS: dict[str, Callable[[Engine, Sequence[Request], threading.Event], None]] = {
    "nobody": by_nobody,
    "threads": by_threads,
    "asyncio": by_tasks,
}


def measure(session: Session, sampling: Sampling, readers: str, steps: int) -> tuple[float, float]:
    """Return the seconds per decode step in the interpreter and outside, over `steps` steps of a full batch."""
    batch = session.signature.batch
    new = CONTEXT - PROMPT
    requests = [
        Request(tuple(token_ids(PROMPT)), new, Sampling(**{**asdict(sampling), "seed": slot}), eos=frozenset())
        for slot in range(batch)
    ]
    done = threading.Event()
    with Engine(session) as engine:
        reading = threading.Thread(target=READERS[readers], args=(engine, requests, done))
        reading.start()
        while engine.metrics().running < batch:
            time.sleep(0.01)
        first = wait_for(engine, engine.metrics().decode_steps + WARM_UP)
        last = wait_for(engine, first.decode_steps + steps)
        done.set()
        reading.join()
    steps_done = last.decode_steps - first.decode_steps
    if last.running != batch or last.prefill_steps != first.prefill_steps:
        raise RuntimeError("a slot finished before the last step: measure fewer steps")
    inside, beside = (getattr(last, name) - getattr(first, name) for name in ("decode_seconds", "overhead_seconds"))
    return inside / steps_done, beside / steps_done


def wait_for(engine: Engine, steps: int) -> Metrics:
    """Wait for a number of decode steps, and return the metrics."""
    while True:
        metrics = engine.metrics()
        if metrics.decode_steps >= steps or engine.failure is not None:
            return metrics
        time.sleep(POLL)


def cells(words: argparse.Namespace) -> list[StepTimes]:
    """Measure every dtype, sampling and way of reading, in interleaved repeats."""
    results = []
    for dtype in words.types:
        path = artifact(models.checkpoint(words.model), dtype, words.batch, CONTEXT)
        session = sscc.load(path, interpreter=FASTEST, threads=words.threads)
        pairs = [(sampling, readers) for sampling in SAMPLINGS for readers in words.readers]
        taken: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in pairs}
        for _ in range(words.repeats):
            for sampling, readers in pairs:
                taken[sampling, readers].append(measure(session, SAMPLINGS[sampling], readers, words.steps))
        for (sampling, readers), each in taken.items():
            step, overhead = (statistics.median(seconds) for seconds in zip(*each, strict=True))
            results.append(StepTimes(dtype, sampling, readers, words.batch, step, overhead))
    return results


def render(results: Sequence[StepTimes], words: argparse.Namespace) -> str:
    """Return Markdown: a row per dtype and sampling, a column per way of reading."""
    lines = [
        f"{table.machine()}; {words.model}, batch {words.batch}, {words.threads} threads; medians of {words.repeats} "
        f"repeats of {words.steps} steps.",
        "",
        "| weights | sampling | step, ms | " + " | ".join(f"read by {each}" for each in words.readers) + " |",
        "|---|---|---:|" + "---:|" * len(words.readers),
    ]
    for dtype, sampling in dict.fromkeys((cell.dtype, cell.sampling) for cell in results):
        row = [cell for cell in results if (cell.dtype, cell.sampling) == (dtype, sampling)]
        step = 1e3 * statistics.median(cell.step for cell in row)
        figures = [f"{1e6 * cell.overhead:.0f} us ({100 * cell.share:.1f}%)" for cell in row]
        lines.append(f"| {dtype} | {sampling} | {step:.2f} | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description="Measure the engine's overhead per decode step.")
    options.add_argument("--model", default="m125", choices=models.MODELS)
    options.add_argument("--types", nargs="+", default=["bf16"], choices=OPTIONS)
    options.add_argument("--readers", nargs="+", default=list(READERS), choices=READERS)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = options.parse_args()
    results = cells(words)
    text = render(results, words)
    document = {"machine": table.machine(), "cells": [asdict(cell) | {"share": cell.share} for cell in results]}
    print(json.dumps(document) if words.json else text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    main()
