"""``python -m tests.soak --requests 50000``: a server under good and hostile clients at once, for a number of requests.

The server, `sscc serve` with a tiny model, is a separate process on the loopback interface. During the run these are
checked:

* Good requests, whole and streamed, get the same answers as alone, including every bit of their logprobs.
* Hostile requests get an answer or a refusal (2xx, 4xx, or 503 for too many large bodies at once), never 500.
* Another process asks for /health every few milliseconds, and gets its answer within the bound.

At the end no request is left, the server has as many file descriptors and, within the bound, as much memory as after
its first requests of every kind, and a signal ends it with exit code 0.

With ``--speculate`` the server verifies drafts, and the answers must be those of a server without drafts.

The exit code is 1 if a check fails. The figures are printed as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from sscc.compiler.tools.commands import cli
from sscc.runtime.serving.server.freed_memory import IDLE_SECONDS
from tests.fuzz.http_bodies import PATHS, hostile_body
from tests.models.tiny_llama import END, byte_tokenizer, save_tiny_llama
from tests.runtime.server.fake import NAME, TEMPLATE

CONTEXT = 1024
BATCH = 4
REFERENCES = 24
WARM = 300
"""Requests of every kind after which memory and descriptors are what they may be in the end."""

PROBE_SECONDS = 0.01
SETTLE_SECONDS = 60.0
"""In which memory and descriptors have to be back."""

JSON = {"content-type": "application/json"}
HALF = "ð"
"""The letter of a byte that begins a character and never completes one."""


@dataclass
class SoakReport:
    """Measurements; seconds and MiB. `problems`: violated requirements."""

    requests: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    good_answers: int = 0
    health_probes: int = 0
    health_median: float = 0.0
    health_p99: float = 0.0
    health_p999: float = 0.0
    health_slowest: float = 0.0
    memory_ready: float = 0.0
    memory_warm: float = 0.0
    memory_peak: float = 0.0
    memory_idle: float = 0.0
    files_warm: int = 0
    files_idle: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(text)


# ------------------------------------------------------------------------------------------------------- the server


GRAMMARS: tuple[dict[str, Any], ...] = (
    {"guided_regex": "[a-z]{1,8}(,[0-9]{1,3})*"},
    {"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"guided_json": {"type": "object", "additionalProperties": {"enum": ["x", "y", None]}}},
)
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
}


DRAFTED = 3
LOOKUP, MODEL = "lookup", "model"


def tiny_artifact(folder: Path, drafted: int = DRAFTED) -> Path:
    """Compile a random Llama with a token per byte, whose steps take a number of drafted tokens."""
    checkpoint, output = folder / "checkpoint", folder / "soak.rdu"
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["=" * 200])  # so that texts may be long before they are refused by their bytes
    save_tiny_llama(checkpoint, tokenizer=tokenizer, vocab_size=END + 2, max_position_embeddings=CONTEXT)
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    cache = ["--kv-sink", "4", "--kv-recent", "32", "--kv-topk", "28", "--kv-obs", "8", "--kv-pool", "3"]
    words = [
        "compile",
        str(checkpoint),
        "-o",
        str(output),
        *cache,
        "--prefill-chunk",
        "64",
        "--batch",
        str(BATCH),
        "--verify",
        str(drafted),
        "-q",
    ]
    if cli.main(words) != 0:
        raise SystemExit("the tiny model was not compiled")
    return output


@contextmanager
def served(artifact: Path, speculate: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process, and its address.

    Args:
        speculate: "" without drafts, `LOOKUP`, or `MODEL`, which drafts by the artifact itself.
    """
    words = ["serve", str(artifact), "--port", "0", "--threads", "1", "--served-model-name", NAME, "--max-queue", "64"]
    words += ["--prompt-cache", str(1 << 20), "--timeout", "60", "--tool-parser", "hermes"]
    if speculate:
        words += ["--speculate", speculate if speculate == LOOKUP else str(artifact)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sscc.compiler.tools.commands.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise SystemExit("the server did not start")
        yield process, ready.split(" at ")[1].split(" ")[0]
    finally:
        process.kill()
        process.wait()


def memory(pid: int, what: str = "VmRSS") -> float:
    """MiB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what + ":"))


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# ------------------------------------------------------------------------------------------------------------ health


def probe(url: str, pipe: Connection) -> None:
    """Asks for /health until something comes through the pipe, and then sends what every answer took."""
    host, _, port = url.removeprefix("http://").partition(":")
    seconds: list[float] = []
    pipe.send("ready")
    while not pipe.poll():
        with socket.create_connection((host, int(port)), 60) as connection:
            for _ in range(100):
                start = time.perf_counter()
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}") and (piece := connection.recv(4096)):
                    answer += piece
                healthy = answer.startswith(b"HTTP/1.1 200 ")
                seconds.append(time.perf_counter() - start if healthy else float("inf"))
                if not healthy:
                    break
                if pipe.poll(PROBE_SECONDS):
                    break
    pipe.send(seconds)


# ----------------------------------------------------------------------------------------------------------- clients


def good_bodies() -> list[tuple[str, dict[str, Any]]]:
    """Return paths and bodies of good requests: greedy and drawn, short and long, a third constrained, some calls."""
    choose = random.Random(1)
    bodies: list[tuple[str, dict[str, Any]]] = []
    for number in range(REFERENCES):
        text = "".join(choose.choices("abcdefgh é🎉", k=choose.choice([3, 40, 300])))
        body: dict[str, Any] = {"model": NAME, "max_tokens": choose.choice([1, 8, 40]), "seed": number}
        body["temperature"] = choose.choice([0, 1.0])
        if number % 3 == 1:
            body |= GRAMMARS[number // 3 % len(GRAMMARS)]
        if number % 6 == 0:
            body |= {"tools": [TOOL], "tool_choice": "required"}
        if number % 3 == 0:
            body |= {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 3}
            bodies.append(("/v1/chat/completions", body))
        else:
            bodies.append(("/v1/completions", body | {"prompt": text, "logprobs": number % 4}))
    return bodies


def fits(body: dict[str, Any], choice: dict[str, Any]) -> bool:
    """Return True if an answer matches the grammar of its request, or was cut."""
    if choice["finish_reason"] == "length":
        return True
    if "tools" in body:
        calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        return all(isinstance(json.loads(arguments), dict) for arguments in calls)
    if "guided_regex" in body:
        return re.fullmatch(body["guided_regex"], choice["text"]) is not None
    return "guided_json" not in body or isinstance(json.loads(choice["text"]), dict)


class Clients:
    """Several connections that do one thing after the other, by a seed."""

    def __init__(self, url: str, report: SoakReport, seed: int, expected: Sequence[Any] = ()) -> None:
        self._url = url
        self._report = report
        self._random = random.Random(seed)
        self._http = httpx2.AsyncClient(base_url=url, timeout=120, limits=httpx2.Limits(max_connections=64))
        self._good = good_bodies()
        self._texts = list(expected)
        self._left = 0
        self._until = 0.0
        self._kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.good, 45),
            (self.good_stream, 15),
            (self.fuzzed, 22),
            (self.leaves, 8),
            (self.half_characters, 3),
            (self.heavy, 3),
            (self.raw, 4),
        ]

    async def references(self) -> list[Any]:
        """Return the answers that good requests get alone, twice the same, and those that are expected."""
        for _ in range(2):
            answers = [self._told(await self._http.post(path, json=body)) for path, body in self._good]
            if answers != (self._texts or answers):
                self._report.problem("a good request alone has two answers")
            self._texts = answers
        return answers

    async def run(self, requests: int, connections: int, seconds: float) -> None:
        self._left = requests
        self._until = time.monotonic() + seconds
        await asyncio.gather(*(self._client() for _ in range(connections)))

    async def close(self) -> None:
        await self._http.aclose()

    async def _client(self) -> None:
        works, weights = zip(*self._kinds, strict=True)
        while self._left > 0 and time.monotonic() < self._until:
            self._left -= 1
            work = self._random.choices(works, weights)[0]
            self._report.requests += 1
            self._report.kinds[work.__name__] += 1
            try:
                await work()
            except (httpx2.HTTPError, OSError) as error:
                self._report.problem(f"{work.__name__}: {type(error).__name__}: {error}")

    @staticmethod
    def _told(response: httpx2.Response) -> Any:
        """Return the content of an answer, without its id and time, and without the ids of calls."""
        body = response.json()
        for choice in body.get("choices", ()):
            for call in choice.get("message", {}).get("tool_calls", ()):
                del call["id"]
        return (response.status_code, body.get("choices"), body.get("error"))

    async def good(self) -> None:
        number = self._random.randrange(len(self._good))
        path, body = self._good[number]
        while (response := await self._http.post(path, json=body)).status_code == 429:
            self._report.statuses["429"] += 1
            await asyncio.sleep(0.05)
        self._report.statuses[str(response.status_code)] += 1
        self._report.good_answers += 1
        if not fits(body, response.json()["choices"][0]):
            self._report.problem(f"good request {number} has an answer that its grammar forbids: {response.text[:300]}")
        if self._told(response) != self._texts[number]:
            self._report.problem(f"good request {number} has another answer: {response.text[:300]}")

    async def good_stream(self) -> None:
        number = self._random.randrange(len(self._good))
        path, body = self._good[number]
        text = ""
        while True:
            async with self._http.stream("POST", path, json=body | {"stream": True}) as response:
                self._report.statuses[str(response.status_code)] += 1
                if response.status_code == 200:
                    lines = [line async for line in response.aiter_lines() if line]
                    break
            if response.status_code != 429:
                self._report.problem(f"a good stream got {response.status_code}")
                return
            await asyncio.sleep(0.05)
        for line in lines[:-1]:
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        whole = self._texts[number][1][0]
        self._report.good_answers += 1
        if lines[-1] != "data: [DONE]" or text != (whole.get("text", whole.get("message", {}).get("content")) or ""):
            self._report.problem(f"good request {number}, streamed, has another answer: {text[:300]!a}")

    async def fuzzed(self) -> None:
        path = self._random.choice(sorted(PATHS))
        await self._refused_or_answered(path, hostile_body(self._random, path))

    async def half_characters(self) -> None:
        body = {"model": NAME, "prompt": "a", "ignore_eos": True, "max_tokens": CONTEXT - 10, "n": 2}
        body |= {"logit_bias": {str(byte_tokenizer().token_to_id(HALF)): 100}, "stream": self._random.random() < 0.5}
        await self._refused_or_answered("/v1/completions", json.dumps(body).encode())

    async def heavy(self) -> None:
        word = json.dumps({"model": NAME, "prompt": "x" * self._random.choice([30_000, 150_000, 4_000_000])})
        listed = json.dumps({"model": NAME, "prompt": [1] * 60_000})
        told = {"model": NAME, "prompt": "a", "max_tokens": 600, "logprobs": 20, "n": 3, "ignore_eos": True}
        messages = json.dumps({"model": NAME, "messages": [{}] * self._random.choice([20_000, 1_000_000])})
        nested = "[" * 2_000_000
        kinds = [word, listed, json.dumps(told), messages, nested, " " * (6 << 20)]
        path = "/v1/chat/completions" if (chosen := self._random.choice(kinds)) is messages else "/v1/completions"
        await self._refused_or_answered(path, chosen.encode())

    async def _refused_or_answered(self, path: str, data: bytes) -> None:
        response = await self._http.post(path, content=data, headers=JSON)
        self._report.statuses[str(response.status_code)] += 1
        if response.status_code >= 500 and response.status_code != 503:
            self._report.problem(f"{response.status_code} for {data[:200]!r}: {response.text[:200]}")

    async def leaves(self) -> None:
        """At any moment: while it waits, is prefilled, decodes or streams."""
        path, body = self._random.choice(self._good)
        more = {"max_tokens": 300, "ignore_eos": True, "stream": self._random.random() < 0.5}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.random() ** 3 * 0.5):
                await self._http.post(path, json=body | more)

    async def raw(self) -> None:
        """Send bytes that are not a request: garbage, halves of heads and bodies, bodies in tiny pieces, wrong
        lengths."""
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        sent = self._random.choice(
            [
                b"",
                b"GET /health HT",
                b"\x16\x03\x01" + self._random.randbytes(300),
                head + b"content-length: 100\r\n\r\n{",
                head + b"content-length: 5\r\n\r\n{}" + b" " * 100,
                head + b"content-length: 99999999999999999999999\r\n\r\n{}",
                head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 3000,
                head + b"x: " + b"y" * 40_000,
                b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50,
            ]
        )
        host, _, port = self._url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(ConnectionError, TimeoutError):
            writer.write(sent)
            async with asyncio.timeout(self._random.random() * 0.3):
                await writer.drain()
                await reader.read(1 << 16)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


# ----------------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class Options:
    """Size, duration and bounds of a run; see `main`."""

    requests: int = 50_000
    connections: int = 12
    seed: int = 0
    minutes: float = 60.0
    health_ms: float = 100.0
    growth: float = 0.2
    speculate: str = ""


def soak(artifact: Path, options: Options) -> SoakReport:
    """Serve an artifact under `requests` requests; the report's `problems` has the violated requirements."""
    report, expected = SoakReport(), list[Any]()
    if options.speculate:
        with served(artifact) as (_, url):
            expected = asyncio.run(_answers(url, report))
    with served(artifact, options.speculate) as (process, url):
        report.memory_ready = memory(process.pid)
        warm = SoakReport()
        asyncio.run(_warm(url, warm, options, expected))
        report.problems += warm.problems
        time.sleep(3 * IDLE_SECONDS)
        report.memory_warm, report.files_warm = memory(process.pid), open_files(process.pid)
        start = time.monotonic()
        with probing(url, report):
            asyncio.run(_load(url, report, options, expected))
        report.seconds = time.monotonic() - start
        report.memory_peak = memory(process.pid, "VmHWM")
        _settle(process.pid, url, report, options.growth)
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            report.problem(f"the server ended with exit code {process.returncode}")
    if report.health_slowest * 1000 > options.health_ms:
        report.problem(f"/health took {report.health_slowest * 1000:.0f} ms")
    return report


@contextmanager
def probing(url: str, report: SoakReport) -> Iterator[None]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=probe, args=(url, theirs))
    process.start()
    try:
        ours.recv()
        yield
        ours.send("stop")
        seconds = sorted(ours.recv())
    finally:
        process.kill()
        process.join()
    report.health_probes = len(seconds)
    report.health_median = seconds[len(seconds) // 2]
    report.health_p99, report.health_p999 = (seconds[int(len(seconds) * part)] for part in (0.99, 0.999))
    report.health_slowest = seconds[-1]


async def _answers(url: str, report: SoakReport) -> list[Any]:
    """Return the answers of a server to good requests, each alone."""
    clients = Clients(url, report, 0)
    answers = await clients.references()
    await clients.close()
    return answers


async def _warm(url: str, report: SoakReport, options: Options, expected: Sequence[Any]) -> None:
    """Send requests of all kinds, after which a server has what it keeps: threads, arenas, pages of slots, modules."""
    clients = Clients(url, report, 0, expected)
    await clients.references()
    await clients.run(min(WARM, options.requests), options.connections, 60)
    await clients.close()


async def _load(url: str, report: SoakReport, options: Options, expected: Sequence[Any]) -> None:
    clients = Clients(url, report, options.seed, expected)
    await clients.references()
    await clients.run(options.requests, options.connections, 60 * options.minutes)
    await clients.close()


def _settle(pid: int, url: str, report: SoakReport, growth: float) -> None:
    """Waits until everything is back, and notes what is not."""
    until = time.monotonic() + SETTLE_SECONDS
    left = [""]
    while left and time.monotonic() < until:
        time.sleep(3 * IDLE_SECONDS)
        report.memory_idle, report.files_idle = memory(pid), open_files(pid)
        gauges = [f"sscc_requests_{name} 0.0" for name in ("queued", "running", "prefilling")]
        metrics = httpx2.get(f"{url}/metrics", headers={"connection": "close"}).text
        left = [f"not {gauge}" for gauge in gauges if gauge not in metrics]
        if report.files_idle > report.files_warm:
            left.append(f"{report.files_idle} descriptors are open, {report.files_warm} were")
        if report.memory_idle > report.memory_warm * (1 + growth):
            left.append(f"{report.memory_idle:.0f} MiB are in use, {report.memory_warm:.0f} MiB were")
    for each in left:
        report.problem(each)


def main() -> int:
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=usual.requests)
    parser.add_argument("--connections", type=int, default=usual.connections)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--minutes", type=float, default=usual.minutes, help="after which it stops by itself")
    parser.add_argument("--health-ms", type=float, default=usual.health_ms, help="what /health may take")
    parser.add_argument("--growth", type=float, default=usual.growth, help="of the memory when idle again")
    parser.add_argument("--speculate", choices=(LOOKUP, MODEL), default=usual.speculate, help="verify drafts")
    parser.add_argument("--artifact", type=Path, help="with a token per byte (default: a tiny one, compiled first)")
    arguments = vars(parser.parse_args())
    artifact: Path | None = arguments.pop("artifact")
    with tempfile.TemporaryDirectory(prefix="sscc-soak-") as folder:
        report = soak(artifact or tiny_artifact(Path(folder)), Options(**arguments))
    sys.stdout.write(json.dumps(vars(report), indent=1) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
