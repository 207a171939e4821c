"""Clients that take more than their share: the others are answered meanwhile, and nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from sscc.runtime.serving.server import connections
from sscc.runtime.serving.server import request_bodies as bodies
from sscc.runtime.serving.server.openai import ChatBody, CompletionBody
from sscc.runtime.serving.server.request_bodies import BodyErrors, BodyMemory
from sscc.runtime.serving.server.workers import LARGE, Workers
from sscc.runtime.support.serving_options import RequestLimits
from tests.errors import raises
from tests.runtime.server.fake import CONTEXT, NAME, TOKENIZER, Running, reply, running

LIMIT = 10.0
"""Seconds that an answer may take on any machine; what was found took longer than that."""

JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def post(server: Running, path: str = "completions", **body: Any) -> httpx2.Response:
    return httpx2.post(f"{server.v1}/{path}", json={"model": NAME} | body, timeout=60)


def error_of(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@contextmanager
def in_threads(count: int, work: Any) -> Iterator[None]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def address(server: Running) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)


@contextmanager
def connection(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(address(server), LIMIT) as connection:
        yield connection


def everything(client: socket.socket) -> bytes:
    """Return all bytes until the other side closes."""
    received = b""
    while piece := client.recv(1 << 16):
        received += piece
    return received


# -------------------------------------------------------------------------------------------------------- generation


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tokens_that_complete_no_character(stream: bool) -> None:
    """Their text is built in linear time: rebuilding it with every token would take a minute here."""
    half = TOKENIZER.token_to_id("ð")
    with running(context=1 << 13) as server:

        def ask() -> None:
            answers.append(
                post(server, prompt="a", logit_bias={str(half): 100}, max_tokens=8000, ignore_eos=True, stream=stream)
            )

        answers: list[httpx2.Response] = []
        with in_threads(3, ask):
            slowest = 0.0
            while len(answers) < 3:
                start = time.monotonic()
                assert httpx2.get(f"{server.url}/health", timeout=60).status_code == 200
                slowest = max(slowest, time.monotonic() - start)
                time.sleep(0.01)
        assert slowest < LIMIT / 2
        for answer in answers:
            assert answer.text.count("\N{REPLACEMENT CHARACTER}") == 8000


def test_logprobs_have_a_bound(server: Running) -> None:
    with running(context=1 << 14) as large:
        error = error_of(post(large, prompt="a", max_tokens=16000, logprobs=20))
        assert error["param"] == "logprobs"
        assert "reduce logprobs" in error["message"]
    assert post(server, prompt="a", max_tokens=9, logprobs=20, n=3).status_code == 200


# ----------------------------------------------------------------------------------------------------------- prompts


class Watched:
    """A tokenizer, each of whose texts is noted, and long ones of which wait until they may be encoded."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.begun = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool = True) -> Any:
        self.sizes += map(len, texts)
        if len(texts[0]) >= LARGE:
            self.begun.set()
            assert self.go.wait(60)
        return TOKENIZER.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def test_a_long_text_is_refused_before_it_is_tokenised() -> None:
    watched = Watched()
    with running(tokenizer=watched) as server:
        most = CONTEXT * len("<|end|>")
        for path, body in (
            ("completions", {"prompt": "x" * (most + 1)}),
            ("completions", {"prompt": ["a", "é" * (most // 2 + 1)]}),
            ("chat/completions", {"messages": [{"role": "user", "content": "x" * most}]}),
        ):
            error = error_of(post(server, path, **body))
            assert error["code"] == "context_length_exceeded"
            assert f"at most {most} bytes" in error["message"]
        assert max(watched.sizes, default=0) <= 1
        error = error_of(post(server, prompt="x" * most))
        assert f"the prompt has {most} tokens" in error["message"]


def test_a_limit_of_prompts_counts_too() -> None:
    with running(tokenizer=Watched(), limits=RequestLimits(max_prompt=10)) as server:
        error = error_of(post(server, prompt="x" * (10 * len("<|end|>") + 1)))
        assert "which cannot be 10 tokens or less" in error["message"]


def test_others_are_served_while_a_long_text_is_tokenised() -> None:
    """Texts too, short ones: only long ones wait for long ones. One whose client has left is never submitted."""
    watched = Watched()
    with running(tokenizer=watched, context=2 * LARGE, batch=1) as server:
        data = json.dumps({"model": NAME, "prompt": "x" * LARGE, "max_tokens": 2}).encode()
        head = HEAD + b"content-length: %d\r\n\r\n"
        with connection(server) as first, connection(server) as second:
            first.sendall(head % len(data) + data)
            assert watched.begun.wait(LIMIT)
            second.sendall(head % len(data) + data)
            assert httpx2.get(f"{server.url}/health", timeout=LIMIT).status_code == 200
            answer = httpx2.post(
                f"{server.v1}/completions", json={"model": NAME, "prompt": "a", "temperature": 0}, timeout=LIMIT
            )
            assert answer.json()["choices"][0]["text"] == reply("a", 16)
            first.close()
            second.close()
            assert httpx2.get(f"{server.url}/health", timeout=LIMIT).status_code == 200
        watched.go.set()
        server.wait_until(lambda: server.engine.metrics().submitted + watched.sizes.count(LARGE) >= 2)
        assert server.idle()
        assert post(server, prompt="x" * LARGE, max_tokens=2).status_code == 200
        assert server.engine.metrics().finished["length"] == 2  # the short one and this


def test_what_nobody_waits_for_is_undone() -> None:
    async def abandon() -> list[str]:
        undone: list[str] = []
        begun, go = threading.Event(), threading.Event()

        def work() -> str:
            begun.set()
            go.wait(LIMIT)
            return "a handle"

        task = asyncio.create_task(Workers().run(1, work, undone.append))
        await asyncio.to_thread(begun.wait, LIMIT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        go.set()
        until = time.monotonic() + LIMIT
        while not undone and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return undone

    assert asyncio.run(abandon()) == ["a handle"]


# ------------------------------------------------------------------------------------------------------------ bodies


HUGE: dict[str, tuple[dict[str, Any], str]] = {
    "a bias of thousands of digits": ({"logit_bias": {"1" * 5000: 1}}, "has 5000 digits"),
    "a bias of digits that fit": ({"logit_bias": {"9" * 19: 1}}, "has 19 digits"),
    "many biases": ({"logit_bias": {str(i): 1 for i in range(1025)}}, "at most 1024"),
    "a long stop string": ({"stop": ["a" * 1025]}, "at most 1024 characters"),
    "many unknown parameters": ({f"x{i}": 1 for i in range(20_000)}, "unknown parameter 'x0'"),
    "many prompts": ({"prompt": ["a"] * 20_000}, "20000 prompts x n = 1 is more than"),
    "a value that is deep": ({"temperature": json.loads("[" * 900 + "]" * 900)}, "temperature is a list of 1"),
    "a large top_k": ({"top_k": 10**300}, "less than or equal to 2147483647"),
}


@pytest.mark.parametrize(("changes", "message"), HUGE.values(), ids=HUGE)
def test_huge_values(changes: dict[str, Any], message: str, server: Running) -> None:
    assert message in error_of(post(server, **{"prompt": "a"} | changes))["message"]


def test_bounds_that_are_met(server: Running) -> None:
    biases = {str(i): 0 for i in range(100)} | {"0" * 15 + "101": 0}
    assert post(server, prompt="a", logit_bias=biases, stop=["z" * 1024], max_tokens=1).status_code == 200


class TestValues:
    """The number of values in a body is known before any value is created."""

    @pytest.mark.parametrize("text", ["[1,2,3]", '{"a":[1,{}]}', '[",,[[","\\",{,",3]', '["\\\\",[],"'])
    def test_they_are_counted_outside_of_strings(self, text: str) -> None:
        assert not bodies.more_values_than(4, text.encode())
        assert bodies.more_values_than(2, text.encode())

    def test_strings_without_an_end_take_no_time(self) -> None:
        start = time.monotonic()
        assert not bodies.more_values_than(10, b'"' + b'\\"' * 500_000 + b",,,,,,,,,,,,")
        assert not bodies.more_values_than(10, b'"' + b"\\" * 500_001)
        assert time.monotonic() - start < LIMIT

    def test_too_many(self, server: Running) -> None:
        for body in (b"[" + b"{}," * 70_000 + b"1]", b'{"prompt":[' + b"1," * 70_000 + b"1]}"):
            response = httpx2.post(f"{server.v1}/completions", content=body, headers=JSON)
            assert "more than 65536 values" in error_of(response)["message"]

    def test_text_may_have_any_letters(self) -> None:
        data = json.dumps({"model": NAME, "prompt": ",[{" * 70_000}).encode()
        assert bodies.parse(data, CompletionBody, 1 << 16).prompt == [",[{" * 70_000]

    def test_only_the_first_of_many_errors_is_made(self) -> None:
        messages = json.dumps({"model": NAME, "messages": [{} for _ in range(30_000)]}).encode()
        with raises(BodyErrors.MISSING_PARAMETER, param="messages.0.role") as caught:
            bodies.parse(messages, ChatBody, 1 << 16)
        cause = caught.value.__context__
        assert len(cause.errors()) <= 2  # type: ignore[union-attr]  # its role and its content
        message = {"role": "user", "content": "a"} | {f"x{i}": 1 for i in range(1000)}
        with raises(BodyErrors.UNKNOWN_PARAMETER, param="messages.0.x0") as caught:
            bodies.parse(json.dumps({"model": NAME, "messages": [message]}).encode(), ChatBody, 1 << 16)
        assert len(caught.value.__context__.errors()) == 1  # type: ignore[union-attr]


def test_large_bodies_share_a_bound() -> None:
    memory = BodyMemory(1000)
    with memory.hold() as first, memory.hold() as second:
        first(bodies.FREE_BYTES + 600)
        second(bodies.FREE_BYTES)  # what every body may have
        with raises(BodyErrors.TOO_MANY_AT_ONCE) as caught:
            second(bodies.FREE_BYTES + 401)
        assert caught.value.status_code == 503
    with memory.hold() as third:
        third(bodies.FREE_BYTES + 1000)


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_client_that_sends_everything_before_it_reads(chunked: bool) -> None:
    """It finds the refusal, and not a connection that was reset."""
    size = 12 << 20
    with running(limits=RequestLimits(max_body=100_000)) as server, connection(server) as client:
        kind = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % size
        head = HEAD + kind + b"\r\n\r\n"
        client.sendall(head)
        for _ in range(size >> 16):
            client.sendall((b"10000\r\n" + b" " * 65536 + b"\r\n") if chunked else b" " * 65536)
        client.sendall(b"0\r\n\r\n" if chunked else b"")
        time.sleep(0.1)
        received = everything(client)
        assert received.startswith(b"HTTP/1.1 413 ")
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"
        assert httpx2.get(f"{server.url}/health").status_code == 200


# ------------------------------------------------------------------------------------------------------- connections


def test_a_body_in_tiny_pieces_is_cut_off(server: Running) -> None:
    with connection(server) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 2000
        )
        assert everything(client).startswith(b"HTTP/1.1 400 ")
    data = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 2}).encode()
    with connection(server) as client:
        client.sendall(
            HEAD + b"connection: close\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
        )
        assert everything(client).startswith(b"HTTP/1.1 200 ")


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    with running() as server:
        for first in (b"", b"GET /health HTTP/1.1\r\nx-slow: "):
            with connection(server) as client:
                client.sendall(first)
                assert everything(client) == b""
        server.interpreter.seconds = 0.05  # a request that has arrived takes as long as it takes
        assert post(server, prompt="a", max_tokens=10).status_code == 200


def test_waiting_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 8)
    with running() as server:
        idle = [socket.create_connection(address(server), LIMIT) for _ in range(20)]
        with connection(server) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert everything(client).startswith(b"HTTP/1.1 200 ")
        assert everything(idle[0]) == b""
        for each in idle:
            each.close()


def test_large_heads_are_refused(server: Running) -> None:
    with connection(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * (connections.HEAD_BYTES + 5000))
        assert everything(client).startswith(b"HTTP/1.1 400 ")
