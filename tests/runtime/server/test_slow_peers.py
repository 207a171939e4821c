"""Peers that take their time: servers that prefill and send a byte now and then, and readers of slots that read so."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import numpy as np
import pytest

from sscc.runtime.serving.server import prefill_endpoint as slots
from sscc.runtime.serving.server.api_errors import ApiError
from sscc.runtime.serving.server.openai import ApiValueErrors
from sscc.runtime.serving.server.prefill_endpoint import Copies, SlotRequestErrors
from sscc.runtime.session.slot_message import SlotFormat
from tests.errors import raises
from tests.runtime.server.fake import IDENTITY, TOKENIZER, Running, reply, running
from tests.runtime.server.test_remote_prefill import ask_slot, complete, texts

LIMIT = 10.0


class Dripping:
    """A server that answers a byte at a time, for ever.

    Args:
        first: what it sends at once.
        drip: what it repeats, a byte every few milliseconds.
        reads: it reads the request.
    """

    def __init__(self, first: bytes, drip: bytes, *, reads: bool = True) -> None:
        self._first, self._drip, self._reads = first, drip, reads
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            try:
                while self._reads and b"}" not in connection.recv(1 << 16):
                    pass
                connection.sendall(self._first)
                for _ in range(5000):
                    connection.sendall(self._drip)
                    time.sleep(0.01)
            except OSError:
                self.ended.set()


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "the status": (b"", b"H"),
    "headers": (OK, b"x-slow: 1\r\n"),
    "a header": (OK + b"x-slow: ", b"1"),
    "a hundred and more": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the body": (OK + b"content-length: 5000\r\n\r\n", b"x"),
    "an error": (b"HTTP/1.1 500 No\r\ncontent-length: 5000\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}


@pytest.mark.parametrize("place", DRIPS)
def test_a_server_that_drips_has_one_deadline(place: str) -> None:
    """After the deadline the decode server asks the next prefill server, which answers."""
    dripping = Dripping(*DRIPS[place])
    with ExitStack() as stack:
        good = stack.enter_context(running(role="prefill"))
        servers = [dripping.url, good.url]
        server = stack.enter_context(running(role="decode", prefill_from=servers, prefill={"timeout": 0.5}))
        start = time.monotonic()
        assert texts(complete(server, max_tokens=3)) == [reply("hi", 3)]
        assert 0.4 < time.monotonic() - start < LIMIT / 2
        assert dripping.ended.wait(LIMIT)
        first, second = httpx2.get(f"{server.v1}/status").json()["prefill_servers"]
        assert (first["prefilled"], second["prefilled"]) == (0, 1)
        assert first["failures"] == 1
        assert first["last_error"] is not None


def test_a_server_that_reads_nothing() -> None:
    """The request cannot be sent completely: it is larger than the system's buffers."""
    stuck = Dripping(b"", b"x", reads=False)
    prompt = [1] * 60_000
    with running(role="decode", prefill_from=[stuck.url], prefill={"timeout": 0.5}, context=1 << 16) as server:
        start = time.monotonic()
        assert complete(server, prompt=prompt).status_code == 503
        assert time.monotonic() - start < LIMIT / 2


def test_the_time_of_a_request_ends_a_drip_too() -> None:
    from sscc.runtime.support.serving_options import RequestLimits

    dripping = Dripping(*DRIPS["the body"])
    with running(role="decode", prefill_from=[dripping.url], limits=RequestLimits(timeout=0.3)) as server:
        assert complete(server).status_code == 504
        assert dripping.ended.wait(LIMIT)
        assert server.idle()


# ------------------------------------------------------------------------------------------------------------- readers


@contextmanager
def slow_reader(server: Running, prompt: list[int]) -> Iterator[socket.socket]:
    """Connect a client that requests a slot and reads nothing."""
    body = {"prompt": prompt, "program": IDENTITY.program, "weights": IDENTITY.weights}
    data = json.dumps(body).encode()
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = b"POST /v1/slots HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        yield client


@pytest.fixture
def large_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of 8 MiB, which no socket takes at once."""
    pieces = SlotFormat.pieces

    def padded(self: SlotFormat, message: Any) -> list[memoryview]:
        return [*pieces(self, message), memoryview(bytes(8 << 20))]

    monkeypatch.setattr(SlotFormat, "pieces", padded)


def test_a_reader_that_reads_nothing_holds_no_slot(large_messages: None) -> None:
    with running(role="prefill", batch=1) as server, ExitStack() as stack:
        for number in range(3):
            stack.enter_context(slow_reader(server, [number]))
            server.wait_until(lambda: server.engine.metrics().finished["prefilled"] == number + 1)  # noqa: B023
        assert server.idle()
        assert [slot.phase for slot in server.engine.slots()] == ["free"]


def test_a_reader_has_a_deadline(large_messages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(slots, "LEAST_RATE", 1 << 40)
    held: list[int] = []
    hold = Copies.hold

    @contextmanager
    def watched(self: Copies, nbytes: int) -> Iterator[None]:
        with hold(self, nbytes):
            held.append(1)
            try:
                yield
            finally:
                held.append(-1)

    monkeypatch.setattr(Copies, "hold", watched)
    with running(role="prefill", batch=1) as server, slow_reader(server, [1]) as client:
        server.wait_until(lambda: sum(held) == 1)
        server.wait_until(lambda: sum(held) == 0 and bool(held), 5)
        received = 0
        while piece := client.recv(1 << 16):
            received += len(piece)
        assert received < 8 << 20, "the connection is closed, and the message incomplete"


def test_copies_have_a_bound() -> None:
    copies = Copies(1000)
    with copies.hold(5000), raises(SlotRequestErrors.TOO_MANY_COPIES, copies=1), copies.hold(1):
        pass
    with copies.hold(400), copies.hold(600):
        with pytest.raises(ApiError) as caught, copies.hold(1):
            pass
        assert (caught.value.status_code, caught.value.code) == (503, "busy")
    with copies.hold(1000):
        pass


def test_what_has_no_room_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode server takes it as a refusal that passes."""
    with ExitStack() as stack:
        prefills = stack.enter_context(running(role="prefill"))
        server = stack.enter_context(running(role="decode", prefill_from=[prefills.url]))
        hold, refusals = Copies.hold, [1, 1]

        def full(self: Copies, nbytes: int) -> Any:
            if refusals:
                refusals.pop()
                raise SlotRequestErrors.TOO_MANY_COPIES(copies=9)
            return hold(self, nbytes)

        monkeypatch.setattr(Copies, "hold", full)
        assert texts(complete(server, max_tokens=3)) == [reply("hi", 3)]
        assert not refusals


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("timeout", [1e10, 1e300, 604801, 0, -1, 10**400, float("nan"), float("inf")])
def test_a_timeout_that_no_thread_can_wait_for_is_refused(timeout: float) -> None:
    body = {"prompt": [1], "program": IDENTITY.program, "weights": IDENTITY.weights, "timeout": timeout}
    with running(role="prefill") as server:
        headers = {"content-type": "application/json"}
        response = httpx2.post(f"{server.url}{slots.PATH}", content=json.dumps(body), headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["param"] in ("timeout", None)
        assert ask_slot(server, timeout=604800).status_code == 200
        assert server.engine.failure is None


@pytest.mark.parametrize("numbers", [[10**4299], [-(10**4299)], [2**63], [1, 2**31 + 1]])
@pytest.mark.parametrize("param", ["prompt", "positions"])
def test_integers_are_bounded(param: str, numbers: list[int]) -> None:
    with running(role="prefill") as server:
        response = ask_slot(server, **{"prompt": [1] * len(numbers)} | {param: numbers})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert str(2**31) in response.json()["error"]["message"]
    assert ApiValueErrors.HUGE_INTEGERS.http.code == "invalid_value"


BOUNDED = ("max_tokens", "top_k", "n", "seed", "best_of", "logprobs", "repetition_penalty", "min_p", "temperature")


@pytest.mark.parametrize("name", BOUNDED)
def test_every_number_has_a_maximum(name: str, server: Running) -> None:
    for number in (10**4299, 2**64, -(2**64)):
        response = complete(server, **{name: number})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name
        assert response.json()["error"]["code"] in ("invalid_value", "invalid_type")


# ----------------------------------------------------------------------------------------------------------- NaN slots


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["rows", "logits"])
def test_a_slot_of_no_numbers_fails_over(where: str, value: float) -> None:
    """A prefill server with damaged memory sends a message with a correct digest: the prompt goes to another server."""
    with ExitStack() as stack:
        bad, good = (stack.enter_context(running(role="prefill")) for _ in range(2))
        run = bad.interpreter.run

        def damaged(entry: str, *args: Any, **more: Any) -> Any:
            outputs, scalars = run(entry, *args, **more)
            if entry == "prefill" and where == "logits":
                outputs["prefill_logits"][:, 3 if value > 0 or value != value else slice(None)] = value
            elif entry == "prefill":
                bad.interpreter.tensor("v_cache")[1, :, 0, 0, 0] = value
            return outputs, scalars

        bad.interpreter.run = damaged  # type: ignore[method-assign]
        server = stack.enter_context(running(role="decode", prefill_from=[bad.url, good.url]))
        assert texts(complete(server, max_tokens=3)) == [reply("hi", 3)]
        first, second = httpx2.get(f"{server.v1}/status").json()["prefill_servers"]
        assert (first["prefilled"], second["prefilled"]) == (0, 1)
        assert "malformed" in first["last_error"]


def test_minus_infinity_may_rule_a_token_out() -> None:
    with running(role="prefill") as prefills:
        run = prefills.interpreter.run

        def ruled_out(entry: str, *args: Any, **more: Any) -> Any:
            outputs, scalars = run(entry, *args, **more)
            if entry == "prefill":
                outputs["prefill_logits"][:, 3] = -np.inf
            return outputs, scalars

        prefills.interpreter.run = ruled_out  # type: ignore[method-assign]
        content = ask_slot(prefills).content
        message = prefills.engine.slot_format.read(content, "it")
        assert message.logits[3] == -np.inf
        assert TOKENIZER.encode("hi").ids == message.tokens.tokens.tolist()
