"""Cost of long prompts for other clients, with one server and with separate servers for prefill and decode.

    python benchmarks/prefill_split.py [--write docs/results/serving.md]

Each server has one thread on its own core. The benchmark measures the time to the first token of a long prompt on idle
servers, and the time between tokens of streaming clients while long prompts arrive one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import httpx2

from benchmarks import load, models, table
from benchmarks.harness import say
from benchmarks.load import MODEL, Answer
from benchmarks.ours import compiled
from benchmarks.serving import Server, running
from sscc.ir.sizes import format_bytes

BLOCK = "benchmarks/prefill_split.py"
SEED = 11


@dataclass(frozen=True)
class Result:
    """Result of an arrangement of servers, with times in seconds.

    Attributes:
        alone: times to the first token of long prompts on an idle server.
        beside: times to the first token of long prompts beside streaming clients.
        gaps: times between tokens of the streaming clients while long prompts arrive.
        calm: times between their tokens before any long prompt.
        reading: mean time of chunk steps of a prompt in `alone`.
        message: bytes of the longest prompt's slot message; 0 with one server.
    """

    alone: Sequence[float]
    beside: Sequence[float]
    gaps: Sequence[float]
    calm: Sequence[float]
    reading: float
    message: int

    @property
    def beyond(self) -> float:
        """Mean time of a long prompt outside chunk steps: waiting, transfer, the first token."""
        return statistics.fmean(self.alone) - self.reading


@contextmanager
def serving(words: argparse.Namespace, artifact: Path, *, split: bool) -> Iterator[tuple[str, str]]:
    """Start the servers, and yield the URLs of the server that answers and of the one that prefills (possibly the
    same)."""

    def server(name: str, core: int, *options: object) -> Server:
        serve = (sys.executable, "-m", "sscc.compiler.tools.commands.cli", "serve", artifact, "--threads", 1, *options)
        pinned = ("taskset", "-c", core, *serve, "--served-model-name", MODEL, "--max-queue", 4096)
        return Server(name, words.slots, words.budget, lambda port: (*pinned, "--port", port))

    with ExitStack() as stack:
        more: tuple[object, ...] = ()
        if split:
            prefill = server("prefill", words.cores[1], "--role", "prefill")
            prefills = stack.enter_context(running(prefill, 1))
            more = ("--role", "decode", "--prefill-from", prefills)
        answers = stack.enter_context(running(server("decode" if split else "both", words.cores[0], *more), 1))
        yield answers, prefills if split else answers


async def measured(url: str, prefills: str, words: argparse.Namespace) -> Result:
    """Measure long prompts one after another, alone and beside streaming clients.

    Args:
        url: URL of the server that answers.
        prefills: URL of the server that prefills.
        words: options of the command.
    """
    vocabulary = models.MODELS[words.model].vocab
    length = (words.prompt, words.prompt)
    first, *alone = load.make_requests(words.repeats + 1, length, 2, vocabulary, SEED)
    streams = load.make_requests(words.streams, (16, 16), words.new_tokens, vocabulary, SEED + 1)
    shorter = load.make_requests(words.streams, (16, 16), words.new_tokens // 4, vocabulary, SEED + 2)
    await load.closed(url, [first], 1, words.limit)  # warm-up: touches the weights
    before = _totals(prefills)["prefill_seconds"]
    undisturbed = await load.closed(url, alone, 1, words.limit)
    reading = (_totals(prefills)["prefill_seconds"] - before) / len(undisturbed)
    calm = await load.closed(url, shorter, len(shorter), words.limit)
    streaming = asyncio.create_task(load.closed(url, streams, len(streams), words.limit))
    beside: list[Answer] = []
    for number in itertools.count(SEED + 3):  # all prompts differ, because servers cache prompts
        beside += await load.closed(url, load.make_requests(1, length, 2, vocabulary, number), 1, words.limit)
        if streaming.done():
            break
    disturbed = await streaming
    message = _message_bytes(url) if _totals(url)["slot_message_bytes"] else 0
    return Result(_firsts(undisturbed), _firsts(beside), _gaps(disturbed), _gaps(calm), reading, message)


def _totals(url: str) -> dict[str, float]:
    totals: dict[str, float] = httpx2.get(f"{url}/v1/status").json()["totals"]
    return totals


def _message_bytes(url: str) -> int:
    """Return the bytes of the slot message of the longest prompt."""
    size: int = httpx2.get(f"{url}/v1/status").json()["slot_message_bytes"]
    return size


def _firsts(answers: Sequence[Answer]) -> list[float]:
    return [answer.first for answer in _good(answers)]


def _gaps(answers: Sequence[Answer]) -> list[float]:
    return [gap for answer in _good(answers) for gap in answer.gaps]


def _good(answers: Sequence[Answer]) -> Sequence[Answer]:
    failed = [answer.error for answer in answers if answer.error]
    if failed:
        raise RuntimeError(failed[0])
    return answers


def render(results: dict[str, Result], words: argparse.Namespace) -> str:
    """Return Markdown with a row for each arrangement."""
    lines = [
        f"{table.machine()}; {words.model} in bf16, one thread and one core for each server; prompts of {words.prompt} "
        f"tokens one after another beside {words.streams} clients that stream {words.new_tokens} tokens each. Times in "
        "ms.",
        "",
        "| servers | first token, idle server | first token, beside streams | between tokens of streams: median / 99th "
        "percentile | ratio | without long prompts | message |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, result in results.items():
        median, _, last = load.percentiles(result.gaps)
        quiet, _, quiet_last = load.percentiles(result.calm)
        moved = format_bytes(result.message) if result.message else ""
        cells = [name, *(f"{1000 * statistics.median(times):.0f}" for times in (result.alone, result.beside))]
        cells += [f"{1000 * median:.3g} / {1000 * last:.3g}", f"{last / median:.2f}"]
        cells += [f"{1000 * quiet:.3g} / {1000 * quiet_last:.3g}", moved]
        lines.append("| " + " | ".join(cells) + " |")
    one, two = results.values()
    beyond = [1000 * result.beyond for result in (one, two)]
    added = (two.beyond - one.beyond) / statistics.fmean(two.alone)
    note = (
        f"On idle servers, {beyond[0]:.0f} and {beyond[1]:.0f} ms of a long prompt are outside chunk steps: prefill in "
        f"another process adds {100 * added:.1f} %."
    )
    return "\n".join([*lines, "", note]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one server, and separate servers for prefill and decode.")
    parser.add_argument("--model", default="m125", choices=models.MODELS, metavar="NAME", help="m125 (default), m1b")
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), help="cores of the two servers")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--streams", type=int, default=2, help="streaming clients (2)")
    parser.add_argument("--budget", type=int, default=1024, help="cache rows of a sequence (1024)")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a long prompt (2048)")
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a prefill step (64)")
    parser.add_argument("--new-tokens", type=int, default=512, help="tokens of a stream (512)")
    parser.add_argument("--repeats", type=int, default=5, help="long prompts on idle servers (5)")
    parser.add_argument("--limit", type=float, default=600.0, help="maximum seconds between events of an answer (600)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = parser.parse_args()
    shape = ("--dtype", "bf16", "--weights", "reference", "--max-context", words.prompt + words.new_tokens)
    more = ("--prefill-chunk", words.chunk, "--batch", words.slots, "--kv-budget", words.budget)
    name = f"split-{words.slots}x{words.prompt + words.new_tokens}-{words.budget}-chunk{words.chunk}"
    artifact = compiled(models.checkpoint(words.model), name, (*shape, *more))
    results: dict[str, Result] = {}
    for title, split in (("one", False), ("prefill and decode", True)):
        say(title)
        with serving(words, artifact, split=split) as (url, prefills):
            results[title] = asyncio.run(measured(url, prefills, words))
    text = render(results, words)
    print(text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
