"""Many clients at once, well and badly behaved, against few slots and a short queue: nothing is lost or left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx2

from sscc.runtime.support.serving_options import RequestLimits
from tests.runtime.server.fake import CONTEXT, NAME, Running, reply, running

CLIENTS = 24
ROUNDS = 8
MALFORMED = (
    b"{",
    b"[1, 2]",
    b'{"model": "alphabet", "prompt": 7}',
    b'{"model": "alphabet", "prompt": "x", "n": 0}',
    b'{"model": "alphabet", "prompt": "x", "tools": [1]}',
    json.dumps({"model": NAME, "prompt": "x" * CONTEXT}).encode(),
    b" " * 300_000,
)


class Client:
    """Does one thing after the other, by a seed, and counts what came of it."""

    def __init__(self, server: Running, http: httpx2.AsyncClient, seed: int) -> None:
        self._url = f"{server.v1}/completions"
        self._http = http
        self._random = random.Random(seed)
        self.seen: Counter[str] = Counter()

    async def run(self) -> None:
        for _ in range(ROUNDS):
            await self._random.choice(
                [
                    self.whole,
                    self.whole,
                    self.streamed,
                    self.streamed,
                    self.leaves,
                    self.leaves_a_stream,
                    self.malformed,
                ]
            )()

    def _body(self) -> tuple[dict[str, Any], str]:
        """A request and its right answer."""
        prompt = "".join(self._random.choices("abcdefgh ", k=self._random.choice([1, 7, 40, 90])))
        count = self._random.choice([1, 4, 26, 30])
        return {"model": NAME, "prompt": prompt, "max_tokens": count, "temperature": 0}, reply(prompt, count)

    async def whole(self) -> None:
        body, text = self._body()
        while True:
            response = await self._http.post(self._url, json=body)
            if response.status_code != 429:
                break
            self.seen["429"] += 1
            assert response.headers["retry-after"]
            await asyncio.sleep(0.02 * self._random.random())
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["text"] == text
        self.seen["answers"] += 1

    async def streamed(self) -> None:
        body, text = self._body()
        while True:
            async with self._http.stream("POST", self._url, json=body | {"stream": True}) as response:
                if response.status_code == 200:
                    lines = [line async for line in response.aiter_lines() if line]
                    break
            assert response.status_code == 429
            self.seen["429"] += 1
            await asyncio.sleep(0.02 * self._random.random())
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        self.seen["streams"] += 1

    async def leaves(self) -> None:
        body, _ = self._body()
        # The request asks for more tokens than fit into the time, so that it has not ended when the client leaves.
        post = self._http.post(self._url, json=body | {"max_tokens": 30, "ignore_eos": True, "n": 2})
        with suppress(TimeoutError):
            await asyncio.wait_for(post, 0.001 + 0.01 * self._random.random())
        self.seen["left"] += 1

    async def leaves_a_stream(self) -> None:
        body, _ = self._body()
        async with self._http.stream("POST", self._url, json=body | {"stream": True, "n": 2}) as response:
            async for line in response.aiter_lines():
                if line and self._random.random() < 0.3:
                    break
        self.seen["left"] += 1

    async def malformed(self) -> None:
        content = self._random.choice(MALFORMED)
        response = await self._http.post(self._url, content=content, headers={"content-type": "application/json"})
        assert response.status_code in (400, 413), response.text
        assert response.json()["error"]["type"] == "invalid_request_error"
        self.seen["malformed"] += 1


def test_nothing_is_lost_and_nothing_is_left() -> None:
    async def load(server: Running) -> Counter[str]:
        limits = httpx2.Limits(max_connections=CLIENTS)
        async with httpx2.AsyncClient(limits=limits, timeout=60) as http:
            clients = [Client(server, http, seed) for seed in range(CLIENTS)]
            await asyncio.gather(*(client.run() for client in clients))
            return sum((client.seen for client in clients), Counter())

    with running(max_queue=6, limits=RequestLimits(max_body=200_000)) as server:
        server.interpreter.seconds = 0.0005
        seen = asyncio.run(load(server))
        assert all(seen[kind] >= CLIENTS // 2 for kind in ("answers", "streams", "left", "malformed")), seen
        assert seen["429"] > 0, "the queue was never full: the test is too mild"
        assert server.idle()
        metrics = server.engine.metrics()
        assert sum(metrics.finished.values()) == metrics.submitted
        assert metrics.finished["error"] == metrics.finished["timeout"] == 0
        assert metrics.finished["cancelled"] > 0
        asyncio.run(_fill(server))
        server.interpreter.seconds = 0.0005
        open_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        asyncio.run(load(server))
        assert server.idle()
        gc.collect()
        if open_files:
            server.wait_until(lambda: len(os.listdir("/proc/self/fd")) <= open_files)


async def _fill(server: Running) -> None:
    """As many requests as there are slots run at once."""
    server.interpreter.seconds = 0.01
    prompts = ["one", "two", "three"]
    async with httpx2.AsyncClient(timeout=60) as http:
        bodies = [{"model": NAME, "prompt": prompt, "max_tokens": 26, "temperature": 0} for prompt in prompts]
        asked = [asyncio.create_task(http.post(f"{server.v1}/completions", json=body)) for body in bodies]
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, server.engine.metrics().running)
            await asyncio.sleep(0.001)
        answers = [task.result().json()["choices"][0]["text"] for task in asked]
    assert answers == [reply(prompt) for prompt in prompts]
    assert most == server.engine.metrics().slots
