"""A fleet in one process: the server's application as replicas, which die when a test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sscc.runtime.serving.fleet.forwarded_requests import Call, Part, Start, answered
from sscc.runtime.serving.fleet.gateway import SEED_BYTES, FleetErrors, Gateway, ReplicaLost, prepared
from sscc.runtime.serving.fleet.resumed_stream import events_of
from sscc.runtime.support.serving_options import RequestLimits
from tests.runtime.server.fake import NAME, Running, open_app, reply

KEY = "key"
AUTHORIZED = ((b"content-type", b"application/json"), (b"authorization", b"Bearer key"))
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMITS = RequestLimits(max_body=2000)


@dataclass
class FakePool:
    """Replicas that answer in turn.

    Attributes:
        lives: of each call in turn, how many parts its replica sends before it dies, of a stream with one event each
            however many are there at a time; after these nothing dies.
        refuses: raised by the next call.
    """

    replicas: list[Running]
    lives: list[int] = field(default_factory=list)
    refuses: Exception | None = None
    calls: list[Call] = field(default_factory=list)

    async def call(self, call: Call) -> AsyncGenerator[Part, None]:
        if self.refuses is not None:
            raise self.refuses
        app = self.replicas[len(self.calls) % len(self.replicas)].app
        self.calls.append(call)
        left = self.lives.pop(0) if self.lives else -1
        if left == 0:
            raise ReplicaLost
        async for part in answered(app, call):
            streams = isinstance(part, bytes) and part.startswith(b"data: ")
            for piece in events_of(part) if streams else (part,):
                yield piece
                left -= 1
                if left == 0:
                    raise ReplicaLost

    async def states(self) -> Mapping[str, Mapping[str, Any]]:
        states = {}
        for number, replica in enumerate(self.replicas):
            if replica.engine.failure is None:
                told = {path: await whole(replica.app, call_of("GET", path)) for path in ("/metrics", "/v1/status")}
                states[f"r{number}"] = {
                    "metrics": told["/metrics"][1].decode(),
                    "status": json.loads(told["/v1/status"][1]),
                }
        return states


def call_of(method: str, path: str, body: Any = None) -> Call:
    return Call(method, path, b"", AUTHORIZED, b"" if body is None else json.dumps(body).encode())


async def whole(app: Any, call: Call) -> tuple[Start, bytes]:
    parts = [part async for part in answered(app, call)]
    assert isinstance(parts[0], Start)
    return parts[0], b"".join(part for part in parts if isinstance(part, bytes))


@pytest.fixture
def pool() -> Iterator[FakePool]:
    with ExitStack() as stack:
        limits = replace(LIMITS, max_body=LIMITS.max_body + SEED_BYTES)
        yield FakePool([stack.enter_context(open_app(limits=limits, api_key=KEY)) for _ in range(2)])


def gateway_of(pool: FakePool, attempts: int = 3) -> Gateway:
    limit = LIMITS.max_body
    return Gateway(pool, by_prompt=True, attempts=attempts, max_body=limit, api_keys=(KEY,), name="g")


def ask(gateway: Any, path: str = COMPLETIONS, method: str = "POST", **body: Any) -> tuple[int, Any]:
    """The status, and the body of an answer, or the events of a stream."""
    words = {"model": NAME, **body} if method == "POST" else None
    start, data = asyncio.run(whole(gateway, call_of(method, path, words)))
    if dict(start.headers)[b"content-type"].startswith(b"text/event-stream"):
        assert data.endswith(b"data: [DONE]\n\n")
        lines = data.decode().removesuffix("data: [DONE]\n\n").strip().split("\n\n")
        return start.status, [json.loads(line.removeprefix("data: ")) for line in lines]
    return start.status, json.loads(data)


def said(events: list[dict[str, Any]], index: int = 0) -> tuple[str, list[Any], list[str]]:
    """Return the text, the logprobs and the finish reason of an answer."""
    text, logprobs, finish = "", [], []
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        if choice["logprobs"]:
            columns = choice["logprobs"]
            logprobs += columns["content"] if "content" in columns else list(zip(*columns.values(), strict=True))
        finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, logprobs, finish


@pytest.mark.parametrize("lives", [[0], [1], [0, 1]])
def test_a_whole_answer_is_asked_for_again(lives: list[int], pool: FakePool) -> None:
    gateway, times = gateway_of(pool), len(lives)
    pool.lives = lives
    status, body = ask(gateway, prompt="one", max_tokens=5, temperature=0)
    assert (status, body["choices"][0]["text"]) == (200, reply("one", 5))
    assert (gateway.counts.retried, gateway.counts.resumed, gateway.counts.lost) == (times, 0, 0)
    assert len({call.body for call in pool.calls}) == 1


QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {"prompt": "one"}),
    "logprobs": (COMPLETIONS, {"prompt": "one", "logprobs": 2, "n": 2}),
    "sampled": (COMPLETIONS, {"prompt": ["one", "two"], "temperature": 2.0, "n": 2}),
    "stop": (COMPLETIONS, {"prompt": "one", "stop": [reply("one")[4:6]], "temperature": 0}),
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": True}}),
    "chat logprobs": (
        CHAT,
        {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1, "temperature": 1.5},
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_stream_goes_on_where_it_broke_off(name: str, pool: FakePool) -> None:
    path, question = QUESTIONS[name]
    question = {"max_tokens": 9, "seed": 5, **question}
    _, expected = ask(gateway_of(pool), path, stream=True, **question)
    usage = [event["usage"] for event in expected if not event["choices"]]
    resumed = 0
    for life in (1, 2, 4, 7):
        gateway = gateway_of(pool)
        pool.lives = [life, life + 1]
        status, events = ask(gateway, path, stream=True, **question)
        assert status == 200
        assert len({(event["id"], event["created"]) for event in events}) == 1
        for index in range(4):
            assert said(events, index) == said(expected, index)
        assert [event["usage"] for event in events if not event["choices"]] == usage
        choices = [choice for event in events for choice in event["choices"]]
        opened = [choice["index"] for choice in choices if "role" in choice.get("delta", {})]
        assert len(opened) == len({*opened})
        assert gateway.counts.lost == 0
        resumed += gateway.counts.resumed
    # A first event can be taken away from every stream. How many more there are is the machine's business: tokens that
    # are ready together are one event.
    assert resumed >= 2


def test_a_stream_that_another_replica_does_not_continue_says_so(pool: FakePool) -> None:
    def other(call: Call) -> Call:
        return replace(call, body=call.body.replace(b"one", b"two"))

    class Changed(FakePool):
        async def call(self, call: Call) -> AsyncGenerator[Part, None]:
            async for part in super().call(other(call) if self.calls else call):
                yield part

    gateway = gateway_of(Changed(pool.replicas, lives=[2]))
    pool.replicas[0].interpreter.go.clear()  # the one token that its prefill gives, and no second one
    status, events = ask(gateway, prompt="one", stream=True, temperature=0, max_tokens=9)
    assert status == 200
    assert events[-1]["error"]["code"] == "replica_lost"
    assert "the answer is incomplete" in events[-1]["error"]["message"]
    assert said(events[:-1])[0] == reply("one", 1)
    assert gateway.counts.lost == 1


def test_a_request_that_ends_replicas_is_given_up(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    pool.lives = [1] * 9
    status, body = ask(gateway, prompt="one")
    assert (status, body["error"]["code"]) == (503, "replica_lost")
    assert len(pool.calls) == 3
    pool.lives = [2] * 9
    _, events = ask(gateway, prompt="one", stream=True)
    assert events[-1]["error"]["code"] == "replica_lost"
    assert len(pool.calls) == 6


def test_a_replica_that_closes_passes_its_requests_on(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    pool.replicas[0].engine.close()
    status, body = ask(gateway, prompt="one", max_tokens=5, temperature=0)
    assert (status, body["choices"][0]["text"]) == (200, reply("one", 5))
    pool.replicas[1].engine.close()
    assert ask(gateway, prompt="one")[1]["error"]["code"] == "replica_lost"


def test_a_replica_that_closes_in_the_middle_of_a_stream(pool: FakePool) -> None:
    gateway, first = gateway_of(pool), pool.replicas[0]
    first.interpreter.seconds = 0.2  # it has not finished when it is told to close

    async def run() -> bytes:
        call = call_of("POST", COMPLETIONS, {"model": NAME, "prompt": "one", "stream": True, "temperature": 0})
        data = b""
        async for part in answered(gateway, call):
            data += b"" if isinstance(part, Start) else part
            if data.count(b"data:") >= 2 and not first.engine._executor.done.is_set():
                await asyncio.to_thread(first.engine.close, drain=False)
        return data

    data = asyncio.run(run())
    assert b"error" not in data
    events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line[6:7] == "{"]
    assert said(events)[0] == reply("one", 16)
    assert gateway.counts.resumed == 1


def test_answers_and_errors_are_the_replicas(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    status, body = ask(gateway, CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=3)
    assert (status, body["object"], body["usage"]["completion_tokens"]) == (200, "chat.completion", 3)
    assert ask(gateway, prompt="one", model="other")[1]["error"]["code"] == "model_not_found"
    assert ask(gateway, prompt="one", top_p=7)[1]["error"]["param"] == "top_p"
    assert ask(gateway, "/nothing")[0] == 404
    assert ask(gateway, "/v1/models", "GET")[1]["data"][0]["id"] == NAME
    start, data = asyncio.run(whole(gateway, replace(call_of("POST", COMPLETIONS), body=b"[no json")))
    assert (start.status, b"not JSON" in data) == (400, True)
    start, data = asyncio.run(whole(gateway, call_of("GET", "/")))
    assert (start.status, b"<html" in data) == (200, True)


def test_the_gate_is_the_servers(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    start, _ = asyncio.run(whole(gateway, replace(call_of("POST", COMPLETIONS, {}), headers=AUTHORIZED[:1])))
    assert start.status == 401
    room = LIMITS.max_body - len(json.dumps({"model": NAME, "prompt": "", "max_tokens": 3}))
    assert ask(gateway, prompt="x" * (room + 1), max_tokens=3)[0] == 413
    assert pool.calls == []
    status, body = ask(gateway, prompt="x" * room, max_tokens=3)  # with its seed it is longer than that
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


def test_what_no_replica_takes(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    pool.refuses = FleetErrors.QUEUE_FULL(requests=9)
    start, data = asyncio.run(whole(gateway, call_of("POST", COMPLETIONS, {"model": NAME, "prompt": "one"})))
    assert (start.status, dict(start.headers)[b"retry-after"]) == (429, b"1")
    assert json.loads(data)["error"]["message"].startswith("9 requests are waiting")
    pool.refuses = RuntimeError("nobody expected this")
    assert ask(gateway, prompt="one")[1]["error"]["code"] == "internal_error"


def test_a_client_that_leaves_takes_its_request_along(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    pool.replicas[0].interpreter.go.clear()

    async def leave() -> None:
        call = call_of("POST", COMPLETIONS, {"model": NAME, "prompt": "one", "stream": True})
        parts = answered(gateway, call)
        assert isinstance(await anext(parts), Start)
        await anext(parts)
        await parts.aclose()

    asyncio.run(leave())
    pool.replicas[0].interpreter.go.set()
    assert pool.replicas[0].idle()
    assert pool.replicas[0].engine.metrics().finished["cancelled"] == 1


def test_what_replicas_say_of_themselves_is_one(pool: FakePool) -> None:
    gateway = gateway_of(pool)
    for prompt in ("one", "two"):
        ask(gateway, prompt=prompt, max_tokens=3, temperature=0)
    start, data = asyncio.run(whole(gateway, call_of("GET", "/metrics")))
    text = data.decode()
    assert start.status == 200
    for number in range(2):
        assert f'sscc_new_tokens_total{{replica="r{number}"}} 3.0' in text
    assert text.count("# TYPE sscc_new_tokens_total counter") == 1
    assert 'sscc_fleet_lost_total{gateway="g"} 0.0' in text
    status = ask(gateway, "/v1/status", "GET")[1]
    assert status["totals"]["new_tokens"] == status["finished"]["length"] * 3 == 6
    assert [(slot["slot"], slot["replica"]) for slot in status["slots"]] == [*enumerate(["r0"] * 3 + ["r1"] * 3)]
    assert ask(gateway, "/health", "GET") == (200, {"status": "ok", "replicas": 2})
    pool.replicas.clear()
    assert ask(gateway, "/health", "GET") == (503, {"status": "failed", "replicas": 0})
    assert ask(gateway, "/v1/status", "GET")[0] == 503


@pytest.mark.parametrize("body", ['{"prompt": "x"}', '{"prompt": "x", "seed": null} \n', "{}"])
def test_a_seed_is_settled(body: str) -> None:
    call = replace(call_of("POST", COMPLETIONS), body=body.encode(), headers=((b"content-length", b"9"),))
    seeded = prepared(call, by_prompt=False)
    words = json.loads(seeded.body)
    assert words == json.loads(body) | {"seed": words["seed"]}
    assert 0 <= words["seed"] < 1 << 62
    assert seeded.headers == ((b"content-length", str(len(seeded.body)).encode()),)
    assert len(seeded.body) <= len(body) + SEED_BYTES


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"prompt": "x", "seed": 7}'])
def test_other_bodies_stay_as_they_are(body: bytes) -> None:
    call = replace(call_of("POST", COMPLETIONS), body=body)
    assert prepared(call, by_prompt=False) == call


def test_parts_of_a_stream_that_are_there_go_together() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(4):
            await send({"type": "http.response.body", "body": b"%d," % number, "more_body": True})
            if number == 1:
                await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"end"})

    async def parts() -> list[Part]:
        return [part async for part in answered(app, call_of("GET", "/"))]

    assert asyncio.run(parts()) == [Start(200, ()), b"0,1,", b"2,3,end"]


def test_tokens_that_are_made_within_an_interval_are_one_event() -> None:
    with open_app(stream_interval=3600.0) as server:
        _, events = ask(server.app, prompt="one", stream=True, temperature=0)
    assert len(events) <= 2  # the first one waits for nothing, nor does the end
    assert said(events)[0] == reply("one", 16)


def test_an_application_that_fails_before_it_answers() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no answer")

    async def run() -> None:
        async for _ in answered(app, call_of("GET", "/")):
            pass

    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(run())
