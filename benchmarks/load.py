"""Load generator for servers with OpenAI's protocol: seeded requests, closed-loop or Poisson, and their summary.

Prompts are token ids, so that every server with the protocol can answer the same requests. Answers are streamed.
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
"""Name of the model in requests."""
FIRST_TOKEN = 10  # the ids below it are special tokens in some vocabularies


@dataclass(frozen=True)
class LoadRequest:
    """A request.

    Attributes:
        prompt: token ids.
        new_tokens: number of tokens of the answer.
        answer: token that constrains every token of the answer, so that the client knows them without a tokenizer;
            None for a free answer.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    answer: int | None = None


@dataclass
class Answer:
    """Answer to a request, with times in seconds.

    Attributes:
        request: the request.
        sent, ended: start and end, since the beginning of the load.
        first: time to the first event of the answer.
        gaps: times between its events.
        tokens: number of new tokens that the server reports.
        cached: number of cached prompt tokens that the server reports.
        error: error of the request; "" if it succeeded.
    """

    request: LoadRequest
    sent: float = 0.0
    ended: float = 0.0
    first: float = math.nan
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    error: str = ""


def make_requests(
    count: int, lengths: tuple[int, int], new_tokens: int, vocabulary: int, seed: int
) -> list[LoadRequest]:
    """Return requests with random prompts, whose lengths are log-uniform from `lengths[0]` to `lengths[1]`."""
    numbers = random.Random(seed)
    low, high = (math.log(length) for length in lengths)
    requests = []
    for _ in range(count):
        length = round(math.exp(numbers.uniform(low, high)))
        prompt = tuple(numbers.randrange(FIRST_TOKEN, vocabulary) for _ in range(length))
        requests.append(LoadRequest(prompt, new_tokens))
    return requests


def make_conversations(
    clients: int, turns: int, system: int, message: int, new_tokens: int, vocabulary: int, seed: int
) -> list[list[LoadRequest]]:
    """Return the requests of each client. The prompts begin with `system` tokens that all clients have in common. Every
    turn has all earlier messages and answers, and `message` new tokens."""
    numbers = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(numbers.randrange(FIRST_TOKEN, vocabulary) for _ in range(count))

    shared = tokens(system)
    conversations = []
    for _ in range(clients):
        history, requests = shared, []
        for _ in range(turns):
            (answer,) = tokens(1)
            requests.append(LoadRequest(history + tokens(message), new_tokens, answer))
            history = (*requests[-1].prompt, *[answer] * new_tokens)
        conversations.append(requests)
    return conversations


async def converse(url: str, conversations: Sequence[Sequence[LoadRequest]], limit: float) -> list[list[Answer]]:
    """Run a client for each conversation, which sends a request when the one before is answered. Return the answers in
    the order of the requests."""
    async with _asking(url, limit) as ask:

        async def client(requests: Sequence[LoadRequest]) -> list[Answer]:
            return [await ask(request) for request in requests]

        return list(await asyncio.gather(*map(client, conversations)))


async def closed(url: str, work: Sequence[LoadRequest], clients: int, limit: float) -> list[Answer]:
    """Run clients that each send a request when the one before is answered. Return the answers."""
    waiting = list(reversed(work))
    done: list[Answer] = []

    async def client(ask: Callable[[LoadRequest], Awaitable[Answer]]) -> None:
        while waiting:
            done.append(await ask(waiting.pop()))

    async with _asking(url, limit) as ask:
        await asyncio.gather(*(client(ask) for _ in range(clients)))
    return done


async def poisson(url: str, work: Sequence[LoadRequest], rate: float, seed: int, limit: float) -> list[Answer]:
    """Send requests as a Poisson process with `rate` per second. Return the answers."""
    numbers = random.Random(seed)
    async with _asking(url, limit) as ask:
        tasks = []
        for request in work:
            tasks.append(asyncio.create_task(ask(request)))
            await asyncio.sleep(numbers.expovariate(rate))
        return list(await asyncio.gather(*tasks))


@asynccontextmanager
async def _asking(url: str, limit: float) -> AsyncIterator[Callable[[LoadRequest], Awaitable[Answer]]]:
    """Yield a function that sends a request and reads its answer, with at most `limit` seconds between events."""
    begin = time.perf_counter()
    # A connection for each request: some servers close idle connections, possibly just when one is reused.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=limit, limits=limits) as client:

        async def ask(request: LoadRequest) -> Answer:
            start = time.perf_counter()
            answer = Answer(request, start - begin)
            try:
                await _read(client, url, answer, start)
            except (httpx2.HTTPError, ValueError, KeyError) as error:
                answer.error = f"{type(error).__name__}: {error}"
            answer.ended = time.perf_counter() - begin
            return answer

        yield ask


async def _read(client: httpx2.AsyncClient, url: str, answer: Answer, start: float) -> None:
    body: dict[str, object] = {
        "model": MODEL,
        "prompt": list(answer.request.prompt),
        "max_tokens": answer.request.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if answer.request.answer is not None:
        body["logit_bias"] = {str(answer.request.answer): 100}
    last = start
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        if response.status_code != 200:
            answer.error = f"status {response.status_code}: {(await response.aread())[:200].decode()}"
            return
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event, now = json.loads(line[6:]), time.perf_counter()
            if event.get("choices"):
                if math.isnan(answer.first):
                    answer.first = now - start
                else:
                    answer.gaps.append(now - last)
                last = now
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]
                answer.cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


@dataclass(frozen=True)
class Summary:
    """Summary of a load. Rates are per second of its wall time. Times are 50th, 90th and 99th percentiles in seconds.
    `failure` is the error of the first request that failed."""

    requests: int
    failed: int
    failure: str
    seconds: float
    new_tokens_per_second: float
    prompt_tokens_per_second: float
    first_token: tuple[float, float, float]
    between_tokens: tuple[float, float, float]
    whole: tuple[float, float, float]


def summary(answers: Sequence[Answer]) -> Summary:
    """Summarise the answers of a load. Raises ValueError with the first error if no request succeeded."""
    good = [answer for answer in answers if not answer.error]
    if not good:
        raise ValueError(answers[0].error if answers else "no requests")
    seconds = max(answer.ended for answer in answers)
    return Summary(
        requests=len(answers),
        failed=len(answers) - len(good),
        failure=next((answer.error for answer in answers if answer.error), ""),
        seconds=seconds,
        new_tokens_per_second=sum(answer.tokens for answer in good) / seconds,
        prompt_tokens_per_second=sum(len(answer.request.prompt) for answer in good) / seconds,
        first_token=percentiles([answer.first for answer in good]),
        between_tokens=percentiles([gap for answer in good for gap in answer.gaps]),
        whole=percentiles([answer.ended - answer.sent for answer in good]),
    )


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 50th, 90th and 99th percentiles, interpolated; NaN without values."""
    if len(values) < 2:
        value = values[0] if values else math.nan
        return value, value, value
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[89], cuts[98]
