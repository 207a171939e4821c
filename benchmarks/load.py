"""A load on a server that speaks OpenAI's protocol: seeded requests, closed-loop or Poisson arrivals, what came of it.

Requests are prompts of token ids with streamed answers, so that any server of the protocol takes the same ones.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

MODEL = "model"
"""What requests call the model."""
FIRST_TOKEN = 10  # below it lie tokens that mean something


@dataclass(frozen=True)
class Job:
    """One request: a prompt, and how many tokens to answer it with."""

    prompt: tuple[int, ...]
    new_tokens: int


@dataclass
class Outcome:
    """What one request got; times in seconds, `sent` and `ended` since the load began.

    Attributes:
        first: until the first event of the answer.
        gaps: between its events.
        tokens: new ones, as the server counts them.
    """

    job: Job
    sent: float = 0.0
    ended: float = 0.0
    first: float = math.nan
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


def jobs(count: int, lengths: tuple[int, int], new_tokens: int, vocabulary: int, seed: int) -> list[Job]:
    """Prompts of seeded tokens; lengths are log-uniform within `lengths`, both included."""
    numbers = random.Random(seed)
    low, high = (math.log(length) for length in lengths)
    made = []
    for _ in range(count):
        length = round(math.exp(numbers.uniform(low, high)))
        made.append(Job(tuple(numbers.randrange(FIRST_TOKEN, vocabulary) for _ in range(length)), new_tokens))
    return made


async def closed(url: str, work: Sequence[Job], clients: int, limit: float) -> list[Outcome]:
    """`clients` clients: each sends its next request when its last one is answered."""
    waiting = list(reversed(work))
    done: list[Outcome] = []

    async def client(ask: Callable[[Job], Awaitable[Outcome]]) -> None:
        while waiting:
            done.append(await ask(waiting.pop()))

    async with _asking(url, limit) as ask:
        await asyncio.gather(*(client(ask) for _ in range(clients)))
    return done


async def poisson(url: str, work: Sequence[Job], rate: float, seed: int, limit: float) -> list[Outcome]:
    """Requests arrive at `rate` per second, independently of each other and of what the server does."""
    numbers = random.Random(seed)
    async with _asking(url, limit) as ask:
        tasks = []
        for job in work:
            tasks.append(asyncio.create_task(ask(job)))
            await asyncio.sleep(numbers.expovariate(rate))
        return list(await asyncio.gather(*tasks))


@asynccontextmanager
async def _asking(url: str, limit: float) -> AsyncIterator[Callable[[Job], Awaitable[Outcome]]]:
    """A function that sends a job and reads its answer to the end; an answer may pause for `limit` seconds."""
    begin = time.perf_counter()
    async with httpx2.AsyncClient(timeout=limit, limits=httpx2.Limits(max_connections=None)) as client:

        async def ask(job: Job) -> Outcome:
            start = time.perf_counter()
            outcome = Outcome(job, start - begin)
            try:
                await _read(client, url, outcome, start)
            except (httpx2.HTTPError, ValueError, KeyError) as error:
                outcome.error = f"{type(error).__name__}: {error}"
            outcome.ended = time.perf_counter() - begin
            return outcome

        yield ask


async def _read(client: httpx2.AsyncClient, url: str, outcome: Outcome, start: float) -> None:
    body = {
        "model": MODEL,
        "prompt": list(outcome.job.prompt),
        "max_tokens": outcome.job.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    last = start
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        if response.status_code != 200:
            outcome.error = f"status {response.status_code}: {(await response.aread())[:200].decode()}"
            return
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event, now = json.loads(line[6:]), time.perf_counter()
            if event.get("choices"):
                if math.isnan(outcome.first):
                    outcome.first = now - start
                else:
                    outcome.gaps.append(now - last)
                last = now
            if event.get("usage"):
                outcome.tokens = event["usage"]["completion_tokens"]


@dataclass(frozen=True)
class Summary:
    """Of a load. Rates are per second of its whole time; percentiles are (50th, 90th, 99th), in seconds; `failure` is
    what the first request that failed got."""

    requests: int
    failed: int
    failure: str
    seconds: float
    new_tokens_per_second: float
    prompt_tokens_per_second: float
    first_token: tuple[float, float, float]
    between_tokens: tuple[float, float, float]
    whole: tuple[float, float, float]


def summary(outcomes: Sequence[Outcome]) -> Summary:
    """Raises ValueError where no request succeeded; the message is the first failure."""
    good = [outcome for outcome in outcomes if not outcome.error]
    if not good:
        raise ValueError(outcomes[0].error if outcomes else "no requests")
    seconds = max(outcome.ended for outcome in outcomes)
    return Summary(
        requests=len(outcomes),
        failed=len(outcomes) - len(good),
        failure=next((outcome.error for outcome in outcomes if outcome.error), ""),
        seconds=seconds,
        new_tokens_per_second=sum(outcome.tokens for outcome in good) / seconds,
        prompt_tokens_per_second=sum(len(outcome.job.prompt) for outcome in good) / seconds,
        first_token=percentiles([outcome.first for outcome in good]),
        between_tokens=percentiles([gap for outcome in good for gap in outcome.gaps]),
        whole=percentiles([outcome.ended - outcome.sent for outcome in good]),
    )


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """50th, 90th and 99th, interpolated; NaN where there are no values."""
    if len(values) < 2:
        value = values[0] if values else math.nan
        return value, value, value
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[89], cuts[98]
