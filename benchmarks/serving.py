"""Serving throughput with a fixed KV budget and with full caches: equal load and equal bytes of KV, over HTTP.

    python benchmarks/serving.py [--rates R ..] [--write docs/results/serving.md] [--json]

Three servers run in turn: sscc with a compressed cache, sscc with a full cache (of which fewer sequences fit the same
bytes), and llama.cpp's llama-server with the same number of sequences as that. docs/results/serving.md explains the
table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import httpx2

from benchmarks import load, models, table
from benchmarks.harness import environment, native_bandwidth, say
from benchmarks.load import MODEL, Answer, LoadRequest, Summary
from benchmarks.ours import compiled
from benchmarks.peers.llama import TOOLS

RunningLoad = Coroutine[Any, Any, list[Answer]]
"""A running load."""

BLOCK = "benchmarks/serving.py"
SEED = 7
CHUNK = 64  # tokens of a prefill step, for which other sequences wait
START_LIMIT = 600.0  # seconds until a server answers; sscc may have to compile


@dataclass(frozen=True)
class Server:
    """A server to measure: its row in the table, and its command for a port."""

    name: str
    slots: int
    rows: int
    command: Callable[[int], Sequence[object]]

    @property
    def kv_rows(self) -> int:
        """Cache rows of all sequences, per layer and KV head."""
        return self.slots * self.rows


def servers(words: argparse.Namespace, folder: Path) -> list[Server]:
    """Return the three servers with equal totals of KV rows: `slots` sequences of `budget` rows, or fewer with full
    caches."""
    context, slots = words.max_context, words.slots
    full = max(1, slots * words.budget // context)
    shape = ("--dtype", "bf16", "--weights", "reference", "--max-context", context, "--prefill-chunk", CHUNK)

    def ours(name: str, batch: int, rows: Sequence[object]) -> Server:
        path = compiled(folder, f"serving-{name}-{batch}x{context}-chunk{CHUNK}", (*shape, "--batch", batch, *rows))
        held = words.budget if name == "compressed" else context
        serve = (sys.executable, "-m", "sscc.compiler.tools.commands.cli", "serve", path, "--threads", words.threads)
        options = ("--served-model-name", MODEL, "--max-queue", 4096)
        return Server(f"sscc, {name} cache", batch, held, lambda port: (*serve, *options, "--port", port))

    servers = [
        ours("compressed", slots, ("--kv-budget", words.budget)),
        ours("full", full, ("--kv-sink", 0, "--kv-recent", context, "--kv-topk", 0)),
    ]
    program = TOOLS / "llama-server"
    if program.exists():
        file = models.gguf_file(words.model)
        peer = (program, "-m", file, "-t", words.threads, "-np", full, "-c", full * context, "-fa", "on", "--no-webui")
        servers.append(Server("llama-server", full, context, lambda port: (*peer, "--port", port)))
    else:
        say("llama.cpp is not installed: python benchmarks/peers/install.py llama")
    return servers


@contextmanager
def running(server: Server, threads: int) -> Iterator[str]:
    """Start a server for the duration of the block, and yield its URL once it answers.

    Raises RuntimeError with the last line of its log if it ends or does not answer.
    """
    with tempfile.TemporaryFile("w+") as log:
        (port,) = free_ports(1)
        words = [str(word) for word in server.command(port)]
        process = subprocess.Popen(words, env=environment(threads, False), stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[int]:
    """Return free ports below the ephemeral range, because a server's own processes may take ephemeral ports before
    these are used."""
    ports: list[int] = []
    for port in range(20000, 30000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def _wait(process: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx2.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    log.seek(0)
    lines = log.read().strip().splitlines()
    raise RuntimeError(f"{process.args}: no answer; last line of its log: {lines[-1] if lines else 'none'}")


def measure(server: Server, words: argparse.Namespace) -> dict[str, Summary]:
    """Return the summaries of a server under every load: closed-loop, then each Poisson rate."""
    results: dict[str, Summary] = {}
    with running(server, words.threads) as url:
        _run(load.closed(url, _work(words, 0)[:1], 1, words.limit))  # warm-up: touches the weights
        for name, running_load in _loads(url, words):
            results[name] = load.summary(_run(running_load))
            shown = results[name]
            say(f"  {name}: {shown.new_tokens_per_second:.4g} new tokens/s, {shown.failed} failed")
    return results


def _loads(url: str, words: argparse.Namespace) -> Iterator[tuple[str, RunningLoad]]:
    yield f"{words.slots} clients", load.closed(url, _work(words, 1), words.slots, words.limit)
    for number, rate in enumerate(words.rates, 2):
        yield f"{rate:g} requests/s", load.poisson(url, _work(words, number), rate, SEED, words.limit)


def _work(words: argparse.Namespace, number: int) -> list[LoadRequest]:
    """Return the requests of a load. All prompts differ, because servers cache prompts."""
    low, high = words.lengths
    vocabulary = models.MODELS[words.model].vocab
    return load.make_requests(words.requests, (low, high), words.new_tokens, vocabulary, SEED + number)


def _run(running_load: RunningLoad) -> list[Answer]:
    return asyncio.run(running_load)


def render(results: dict[Server, dict[str, Summary]], words: argparse.Namespace, bandwidth: float) -> str:
    """Return Markdown with a row per server and load."""
    low, high = words.lengths
    lines = [
        f"{table.machine()}, {bandwidth / 1e9:.0f} GB/s; {words.model} in bf16, {words.threads} threads; "
        f"{words.requests} requests of {low} to {high} prompt tokens (log-uniform) and {words.new_tokens} new ones, "
        "streamed over HTTP. Times in ms: median / 90th / 99th percentile.",
        "",
        "| server | sequences x rows | load | new tokens/s | prompt tokens/s | time to first token | between tokens |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    notes: list[str] = []
    for server, loads in results.items():
        for name, s in loads.items():
            cells = [server.name, f"{server.slots} x {server.rows}", name]
            cells += [f"{s.new_tokens_per_second:.0f}", f"{s.prompt_tokens_per_second:.0f}"]
            cells += [times(s.first_token), times(s.between_tokens)]
            lines.append("| " + " | ".join(cells) + " |")
            if s.failed:
                notes.append(f"{server.name}, {name}: {s.failed} of {s.requests} requests failed ({s.failure}).")
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


def times(values: tuple[float, float, float]) -> str:
    """Return median, 90th and 99th percentile as text, in ms."""
    return " / ".join(f"{1000 * value:.3g}" if value < 1 else f"{1000 * value:.0f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure servers with equal bytes of KV under load.")
    parser.add_argument("--model", default="m125", choices=models.MODELS, metavar="NAME", help="m125 (default), m1b")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8, help="sequences with a compressed cache, and clients (8)")
    parser.add_argument("--budget", type=int, default=1024, help="rows of a compressed cache (1024)")
    parser.add_argument("--max-context", type=int, default=4096, help="context, and rows of a full cache (4096)")
    parser.add_argument("--lengths", type=int, nargs=2, default=(64, 3584), help="range of prompt lengths (64 3584)")
    parser.add_argument("--new-tokens", type=int, default=256, help="tokens of an answer (256)")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rates", type=float, nargs="*", default=(0.5,), help="Poisson arrivals per second (0.5)")
    parser.add_argument("--limit", type=float, default=600.0, help="maximum seconds between events of an answer (600)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="servers whose name contains a WORD")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    parser.add_argument("--block", default=BLOCK, metavar="NAME", help="name of the block")
    words = parser.parse_args()
    bandwidth = native_bandwidth(words.threads)()
    results: dict[Server, dict[str, Summary]] = {}
    for server in servers(words, models.checkpoint(words.model)):
        if not words.only or any(word in server.name for word in words.only):
            say(f"{server.name}: {server.slots} sequences of {server.rows} rows")
            results[server] = measure(server, words)
    text = render(results, words, bandwidth)
    if words.json:
        rows = [(server.name, load_, s) for server, loads in results.items() for load_, s in loads.items()]
        print(json.dumps([{"server": name, "load": load_} | asdict(s) for name, load_, s in rows]))
    else:
        print(text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), words.block, text))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
