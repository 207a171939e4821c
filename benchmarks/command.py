"""Options, measurements over models and workloads, and reports of `decode.py`, `prefill.py` and `files.py`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks import models, table
from benchmarks.harness import (
    PASSIVE,
    PeerResult,
    Runner,
    RunnerError,
    Subject,
    Workload,
    chosen,
    command,
    environment,
    interleave,
    native_bandwidth,
    say,
)
from benchmarks.peers.registry import PEERS, Peer, Precision

LIMIT = 3600.0  # maximum seconds of a measurement; the slowest peer needs most of it to fill 32768 tokens
BUDGETS = {"sscc": 1024, "kvpress SnapKV": 1024}  # rows of a compressed cache


@dataclass(frozen=True)
class Measurements:
    """Results, and a line with the command of installation for every missing peer."""

    results: list[PeerResult]
    skipped: list[str]


def parser(description: str, subjects: Sequence[str] = tuple(models.MODELS)) -> argparse.ArgumentParser:
    """Return the parser with the common options of the commands. The first subject is the default of `--models`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--models", nargs="+", default=[subjects[0]], choices=subjects, metavar="NAME", help=", ".join(subjects)
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="measure only peers whose name and type contain a WORD"
    )
    parser.add_argument(
        "--together", type=int, default=0, metavar="N", help="load at most N peers at a time, to save memory (all)"
    )
    parser.add_argument(
        "--passive", action="store_true", help="disable spinning of waiting threads, for a machine with other load"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    parser.add_argument("--block", metavar="NAME", help="name of the block (default: the command and its models)")
    return parser


def run(
    words: argparse.Namespace,
    workloads: Sequence[Workload],
    *,
    peers: Sequence[Peer] = PEERS,
    bandwidth: Callable[[], float] | None = None,
    block: str = "",
    subject: Callable[[str], Subject] = models.RandomModel,
) -> Measurements:
    """Measure all workloads on all models with every installed peer.

    The repeats of peers that are loaded together interleave.

    Args:
        words: options of `parser`.
        workloads: workloads to measure.
        peers: peers to measure.
        bandwidth: function that measures the read bandwidth in bytes/s; None for native code.
        block: name of the block of the page, which is written after every workload so that an interrupted run loses no
            results; "" to write nothing.
        subject: function from a model's name to the model.
    """
    read = bandwidth or native_bandwidth(words.threads)
    pairs, skipped = [], []
    for peer, precision in chosen(peers, words.only):
        missing = peer.missing()
        if missing:
            skipped.append(missing)
        else:
            pairs.append((peer, precision))
    results: list[PeerResult] = []
    done = Measurements(results, list(dict.fromkeys(skipped)))
    for name in words.models:
        able = [(peer, precision) for peer, precision in pairs if name in (peer.models or words.models)]
        size = words.together or max(len(able), 1)
        for start in range(0, len(able), size):
            for row in _measure_model(subject(name), able[start : start + size], workloads, words, read):
                results += row
                if block and words.write:
                    write_page(done, words, block)
    return done


def _measure_model(
    subject: Subject,
    pairs: Sequence[tuple[Peer, Precision]],
    workloads: Sequence[Workload],
    words: argparse.Namespace,
    read: Callable[[], float],
) -> Iterator[list[PeerResult]]:
    """Yield the results of each workload."""
    path = subject.prepare(any(peer.environment == "llama" for peer, _ in pairs))
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        runners = {pair: _start(stack, pair, path, words, log) for pair in pairs}
        for workload in workloads:
            say(f"{subject.name}: {workload.label}")
            results, row = list[PeerResult](), []
            for (peer, precision), runner in runners.items():
                size = subject.step_bytes(workload, precision, BUDGETS.get(peer.name, 0))
                result = PeerResult(peer.name, precision.dtype, "", subject.name, workload, size)
                results.append(result)
                if isinstance(runner, Runner):
                    result.version = runner.version
                    row.append((result, runner))
                else:
                    result.error = runner
            interleave(row, workload, words.repeats, read, LIMIT)
            for result, _ in row:
                say(f"  {result.peer} {result.dtype}: {result.error or f'{result.rate:.4g} tokens/s'}")
            yield results


def _start(
    stack: ExitStack, pair: tuple[Peer, Precision], path: Path, words: argparse.Namespace, log: IO[str]
) -> Runner | str:
    """Return the runner of a loaded peer, or the reason why it could not be loaded."""
    peer, precision = pair
    say(f"loading {peer.name} {precision.dtype}")
    try:
        started = command(peer, precision, path, words.threads)
        return stack.enter_context(Runner(started, environment(words.threads, words.passive), log))
    except (RunnerError, OSError) as error:
        say(f"  {error}")
        return str(error)


def report(done: Measurements, words: argparse.Namespace, block: str) -> None:
    """Print the table or the JSON, and write the page's block. Raises ValueError for a page without the block."""
    text = _rendered(done, words)
    if words.json:
        document = {
            "machine": table.machine(),
            "threads": words.threads,
            "environment": PASSIVE if words.passive else {},
            "skipped": done.skipped,
            "results": [result.record() for result in done.results],
        }
        print(json.dumps(document))
    else:
        print(text)
    for line in done.skipped:
        print(line, file=sys.stderr)
    if words.write:
        write_page(done, words, block)


def write_page(done: Measurements, words: argparse.Namespace, block: str) -> None:
    """Write the page's block. Raises ValueError for a page without it."""
    named = words.block or " ".join([block, *words.models])
    words.write.write_text(table.replace_block(words.write.read_text(), named, _rendered(done, words)))


def _rendered(done: Measurements, words: argparse.Namespace) -> str:
    waiting = "; waiting threads do not spin" if words.passive else ""
    heading = (
        f"{table.machine()}; {words.threads} threads{waiting}; medians of {words.repeats} interleaved repeats; "
        "in brackets the best repeat and, for decode, the fraction of the measured read bandwidth."
    )
    return table.render(done.results, done.skipped, heading)
