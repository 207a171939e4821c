"""Throughput of fleets of one and two replicas on this machine, and their answers when a replica is killed.

    python benchmarks/fleet.py [--model NAME] [--requests N] [--rounds N] [--json]

Needs the extra `fleet`. Replicas have one thread each. A fleet of one replica and one of two get the same load in
several rounds. Then one of two replicas is killed (SIGKILL) after a third of the load, and every answer is compared
with the answer of the first fleet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import httpx2

from benchmarks import models
from benchmarks.harness import say
from benchmarks.load import MODEL, Answer, LoadRequest, closed, make_requests
from benchmarks.ours import compiled
from benchmarks.serving import Server, running
from sscc.ir.extras import FLEET, require

SEED = 11
CHUNK = 64
START_SECONDS = 120.0
REPLICA = re.compile(rb"^ray::ServeReplica:sscc:Replica")
KINDS = {
    "replicas": REPLICA,
    "gateways": re.compile(rb"^ray::(ServeReplica:sscc:Front|ProxyActor)"),
    "rest of Ray": re.compile(rb"^ray::|\bray[./]"),
}
"""Kinds of processes by patterns of their command lines; the first match applies."""


PROGRAM = """
import json, sys, ray
from ray import serve
from sscc.compiler.tools.fleet import app
ray.init(include_dashboard=False, logging_level="WARNING")
serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False, "log_level": "WARNING"})
serve.run(app(json.loads(sys.argv[1])), name="sscc", blocking=True)
"""
"""Program of a fleet, with Ray without its dashboard and Serve without its proxies."""


@contextmanager
def fleet(artifact: Path, replicas: int, slots: int) -> Iterator[str]:
    """Start a fleet and yield its URL once all replicas are ready."""

    def command(port: int) -> Sequence[object]:
        options = {"artifact": str(artifact), "replicas": replicas, "threads": 1, "max-queue": 4096}
        return (sys.executable, "-c", PROGRAM, json.dumps(options | {"port": port, "served-model-name": MODEL}))

    with running(Server(f"{replicas} replicas", slots, 0, command), 1) as url:
        wait(url, lambda: len(replica_processes()) == replicas == metric(url, "replicas"))
        yield url


def metric(url: str, name: str) -> float:
    """Return the current value of a metric of the fleet."""
    text = httpx2.get(f"{url}/metrics", timeout=30).text
    return sum(map(float, re.findall(rf"^sscc_fleet_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


def wait(url: str, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises RuntimeError after a time limit."""
    end = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"the fleet at {url} does not come up")
        time.sleep(0.2)


def replica_processes() -> list[int]:
    """Return the process ids of replicas on this machine, which runs one fleet at a time."""
    return sorted(number for number, command in _commands() if REPLICA.match(command))


def _commands() -> Iterator[tuple[int, bytes]]:
    """Yield the ids and command lines of all processes."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # the process has ended meanwhile
                yield int(folder.name), (folder / "cmdline").read_bytes()


def processor_seconds() -> Counter[str]:
    """Return the processor seconds of processes up to now, by kind: replicas, gateways and Serve's proxies, the rest of
    Ray, and this process with the clients."""
    seconds = Counter[str]()
    for number, command in _commands():
        kind = "clients" if number == os.getpid() else next((k for k, how in KINDS.items() if how.search(command)), "")
        with suppress(OSError):
            if kind:
                fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                seconds[kind] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


@dataclass(frozen=True)
class Load:
    """Measurement of a fleet under load.

    Attributes:
        rate: new tokens per second.
        seconds: wall time of the load.
        processors: processor seconds by kind of process (`processor_seconds`).
    """

    rate: float
    seconds: float
    processors: dict[str, float]

    def __str__(self) -> str:
        taken = ", ".join(f"{kind} {share / self.seconds:.2f}" for kind, share in self.processors.items())
        return f"{self.rate:.0f} new tokens per second, on processors: {taken}"


def measured(run: Callable[[], float]) -> Load:
    """Measure a load.

    Args:
        run: function that runs the load and returns its number of new tokens.
    """
    before, start = processor_seconds(), time.perf_counter()
    tokens = run()
    seconds = time.perf_counter() - start
    return Load(tokens / seconds, seconds, dict((processor_seconds() - before).most_common()))


def loaded(url: str, work: Sequence[LoadRequest], words: argparse.Namespace) -> list[Answer]:
    return asyncio.run(closed(url, work, words.clients, words.limit))


def new_tokens(answers: Sequence[Answer]) -> int:
    """Return the number of new tokens. Raises ValueError if a request failed."""
    if failed := [answer.error for answer in answers if answer.error]:
        raise ValueError(failed[0])
    return sum(answer.tokens for answer in answers)


async def texts(url: str, work: Sequence[LoadRequest], words: argparse.Namespace, *, streamed: int = 2) -> list[str]:
    """Return the text of the answers, or of their errors.

    Args:
        url: URL of the server.
        work: the requests.
        words: options of the command.
        streamed: every n-th request is streamed; 0 for none.
    """
    gate = asyncio.Semaphore(words.clients)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=words.limit, limits=limits) as client:

        async def one(number: int, request: LoadRequest) -> str:
            body = {
                "model": MODEL,
                "prompt": list(request.prompt),
                "max_tokens": request.new_tokens,
                "seed": number,
                "temperature": 1.0,
                "ignore_eos": True,
                "stream": streamed > 0 and number % streamed == 0,
            }
            async with gate:
                text = (await client.post(f"{url}/v1/completions", json=body)).text
            lines = re.findall(r"^(?:data: )?(\{.*\})$", text, re.MULTILINE)
            chunks = [json.loads(line) for line in lines]
            return "".join(chunk["choices"][0]["text"] if "choices" in chunk else str(chunk) for chunk in chunks)

        return list(await asyncio.gather(*(one(*pair) for pair in enumerate(work))))


def answered(url: str, work: Sequence[LoadRequest], words: argparse.Namespace) -> int:
    """Run a load without streaming, and return its number of new tokens."""
    asyncio.run(texts(url, work, words, streamed=0))
    return sum(request.new_tokens for request in work)


def killed(
    url: str, work: Sequence[LoadRequest], expected: Sequence[str], seconds: float, words: argparse.Namespace
) -> dict[str, float]:
    """Kill a replica under load, after a third of `seconds`. Return the number of differing answers and metrics of the
    fleet."""
    victim = threading.Timer(seconds / 3, lambda: os.kill(replica_processes()[0], signal.SIGKILL))
    victim.start()
    start = time.perf_counter()
    answers = asyncio.run(texts(url, work, words))
    taken = time.perf_counter() - start
    victim.join()
    other = sum(one != another for one, another in zip(answers, expected, strict=True))
    counts = {name: metric(url, f"{name}_total") for name in ("retried", "resumed", "lost")}
    return {"requests": len(work), "other answers": other, "seconds": taken, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure fleets of one and two replicas, and kill a replica.")
    parser.add_argument("--model", default="m125", choices=models.MODELS, metavar="NAME", help="m125 (default), m1b")
    parser.add_argument("--slots", type=int, default=8, help="slots of each replica (8)")
    parser.add_argument("--clients", type=int, default=32, help="concurrent clients (32)")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--lengths", type=int, nargs=2, default=(64, 512), help="range of prompt lengths (64 512)")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of an answer (128)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both fleets (3)")
    parser.add_argument("--limit", type=float, default=300.0, help="maximum seconds between events of an answer (300)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")
    words = parser.parse_args()
    require(FLEET, "benchmarks/fleet.py")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # By default, Serve polls replicas ten times per second.
    os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "1")
    os.environ.setdefault("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", str(128 << 20))
    shape = ("--dtype", "bf16", "--weights", "reference", "--max-context", 1024, "--prefill-chunk", CHUNK)
    name = f"fleet-{words.slots}x1024-chunk{CHUNK}"
    artifact = compiled(models.checkpoint(words.model), name, (*shape, "--batch", words.slots, "--kv-budget", 256))
    vocabulary = models.MODELS[words.model].vocab
    work = make_requests(words.requests, tuple(words.lengths), words.new_tokens, vocabulary, SEED)
    loads: dict[str, dict[int, list[Load]]] = {kind: {1: [], 2: []} for kind in ("streamed", "not streamed")}
    expected: list[str] = []
    for number in range(words.rounds):
        for replicas in (1, 2):
            say(f"round {number + 1}, {replicas} of one thread")
            with fleet(artifact, replicas, words.slots) as url:
                loaded(url, work[: 2 * replicas], words)  # which also touches the weights
                loads["streamed"][replicas].append(measured(lambda: new_tokens(loaded(url, work, words))))
                loads["not streamed"][replicas].append(measured(lambda: answered(url, work, words)))
                for kind, by in loads.items():
                    say(f"{kind}: {by[replicas][-1]}")
                if number + 1 < words.rounds:
                    continue
                start = time.perf_counter()
                answers = asyncio.run(texts(url, work, words))
                taken = time.perf_counter() - start
                if replicas == 1:
                    expected = answers
                else:
                    say("killing one of them")
                    outcome = killed(url, work, expected, taken, words)
    # The two fleets of a round are compared, because the machine's speed drifts.
    gains = {kind: [two.rate / one.rate for one, two in zip(by[1], by[2], strict=True)] for kind, by in loads.items()}
    if words.json:
        document = {kind: {n: [asdict(load) for load in some] for n, some in by.items()} for kind, by in loads.items()}
        print(json.dumps({"loads": document, "gains": gains, "killed": outcome}))
        return
    for kind, by in loads.items():
        for replicas, some in by.items():
            middle = sorted(some, key=lambda load: load.rate)[len(some) // 2]
            print(f"{kind}, {replicas} replicas of one thread, median round: {middle}")
        each = ", ".join(f"{gain:.2f}" for gain in gains[kind])
        print(f"{kind}: two replicas have {statistics.median(gains[kind]):.2f} times the throughput of one ({each})")
    print("one of two replicas killed: " + ", ".join(f"{value:g} {name}" for name, value in outcome.items()))


if __name__ == "__main__":
    main()
