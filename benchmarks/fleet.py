"""What a second replica brings, and what a replica that is killed costs, over HTTP on this machine.

    python benchmarks/fleet.py [--model NAME] [--requests N] [--json]

Needs the extra fleet. Replicas have one thread each. First the same load goes to a fleet of one replica and to one of
two; then to two of which one is killed (SIGKILL) when a third of the load is done, and every answer is compared with
what the first fleet gave.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import httpx2

from benchmarks import models
from benchmarks.harness import say
from benchmarks.load import MODEL, Answer, LoadRequest, closed, make_requests, summary
from benchmarks.ours import compiled
from benchmarks.serving import Server, running
from sscc.ir.extras import FLEET, require

SEED = 11
CHUNK = 64
START_SECONDS = 120.0
REPLICA = re.compile(rb"^ray::ServeReplica:sscc:Replica")


@contextmanager
def fleet(artifact: Path, replicas: int, slots: int, folder: Path) -> Iterator[str]:
    """The address of a fleet that has all of its replicas."""
    file = folder / f"fleet-{replicas}.yaml"

    def command(port: int) -> Sequence[object]:
        options = {"artifact": str(artifact), "replicas": replicas, "threads": 1, "max-queue": 4096}
        application = {
            "name": "sscc",
            "route_prefix": "/",
            "import_path": "sscc.compiler.fleet:app",
            "args": options | {"served-model-name": MODEL},
        }
        words = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": port},
            "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
            "applications": [application],
        }
        file.write_text(json.dumps(words))  # which is YAML too
        return (sys.executable, "-m", "ray.serve.scripts", "run", file)

    with running(Server(f"{replicas} replicas", slots, 0, command), 1) as url:
        wait(url, lambda: len(replica_processes()) == replicas == told(url, "replicas"))
        yield url


def told(url: str, name: str) -> float:
    """A figure of the fleet, now."""
    text = httpx2.get(f"{url}/metrics", timeout=30).text
    return sum(map(float, re.findall(rf"^sscc_fleet_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


def wait(url: str, holds: Callable[[], bool]) -> None:
    """Raises RuntimeError where it does not come."""
    end = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"the fleet at {url} does not come up")
        time.sleep(0.2)


def replica_processes() -> list[int]:
    """The processes of replicas on this machine, one fleet at a time."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:  # it has ended meanwhile
                continue
            if REPLICA.match(command):
                found.append(int(folder.name))
    return sorted(found)


def loaded(url: str, work: Sequence[LoadRequest], words: argparse.Namespace) -> list[Answer]:
    return asyncio.run(closed(url, work, words.clients, words.limit))


def throughput(answers: Sequence[Answer]) -> float:
    """New tokens a second."""
    return summary(answers).new_tokens_per_second


async def texts(url: str, work: Sequence[LoadRequest], words: argparse.Namespace, *, streamed: int = 2) -> list[str]:
    """The answers themselves, one of so many streamed, none for 0; an error is text too."""
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


def killed(
    url: str, work: Sequence[LoadRequest], expected: Sequence[str], seconds: float, words: argparse.Namespace
) -> dict[str, float]:
    """What a fleet says and answers of which a replica is killed under load, a third into `seconds`."""
    victim = threading.Timer(seconds / 3, lambda: os.kill(replica_processes()[0], signal.SIGKILL))
    victim.start()
    start = time.perf_counter()
    answers = asyncio.run(texts(url, work, words))
    taken = time.perf_counter() - start
    victim.join()
    other = sum(one != another for one, another in zip(answers, expected, strict=True))
    counts = {name: told(url, f"{name}_total") for name in ("retried", "resumed", "lost")}
    return {"requests": len(work), "other answers": other, "seconds": taken, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description="Loads fleets of one and of two replicas, and kills one.")
    parser.add_argument("--model", default="m125", choices=models.MODELS, metavar="NAME", help="m125 (default), m1b")
    parser.add_argument("--slots", type=int, default=8, help="of each replica (8)")
    parser.add_argument("--clients", type=int, default=32, help="that ask at a time (32)")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--lengths", type=int, nargs=2, default=(64, 512), help="of prompts (64 512)")
    parser.add_argument("--new-tokens", type=int, default=128, help="of every answer (128)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that an answer may pause (300)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")
    words = parser.parse_args()
    require(FLEET, "benchmarks/fleet.py")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", str(128 << 20))
    shape = ("--dtype", "bf16", "--weights", "reference", "--max-context", 1024, "--prefill-chunk", CHUNK)
    name = f"fleet-{words.slots}x1024-chunk{CHUNK}"
    artifact = compiled(models.checkpoint(words.model), name, (*shape, "--batch", words.slots, "--kv-budget", 256))
    vocabulary = models.MODELS[words.model].vocab
    work = make_requests(words.requests, tuple(words.lengths), words.new_tokens, vocabulary, SEED)
    rates, whole = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for replicas in (1, 2):
            say(f"{replicas} of one thread")
            with fleet(artifact, replicas, words.slots, Path(folder)) as url:
                loaded(url, work[: 2 * replicas], words)  # which also touches the weights
                rates[replicas] = throughput(loaded(url, work, words))
                start = time.perf_counter()
                asyncio.run(texts(url, work, words, streamed=0))
                whole[replicas] = len(work) * words.new_tokens / (time.perf_counter() - start)
                if replicas == 1:
                    expected = asyncio.run(texts(url, work, words))
                    continue
                say("and one of them is killed")
                start = time.perf_counter()
                asyncio.run(texts(url, work, words))
                outcome = killed(url, work, expected, time.perf_counter() - start, words)
    ratios = [each[2] / each[1] for each in (rates, whole)]
    if words.json:
        print(json.dumps({"new_tokens_per_second": rates, "whole": whole, "ratios": ratios, "killed": outcome}))
        return
    for kind, rate, ratio in zip(("streamed", "not streamed"), (rates, whole), ratios, strict=True):
        both = f"{rate[1]:.0f} with one replica, {rate[2]:.0f} with two"
        print(f"new tokens a second, {kind}: {both}: {ratio:.2f} times as many")
    print("one of two killed: " + ", ".join(f"{value:g} {name}" for name, value in outcome.items()))


if __name__ == "__main__":
    main()
