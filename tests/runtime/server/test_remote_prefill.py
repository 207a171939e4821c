"""Prompts that another server prefills: the same answers, and one clear end where none can."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from sscc.compiler.tools.commands.cli import main
from sscc.ir.errors import UsageError
from sscc.runtime.serving.server import prefill_endpoint as slots
from sscc.runtime.serving.server.prefill_servers import PrefillServerErrors, PrefillServers
from tests.errors import raises
from tests.runtime.server.fake import IDENTITY, NAME, TOKENIZER, Running, reply, running

KEY = "between-us"


@contextmanager
def both() -> Iterator[tuple[Running, Running]]:
    """A decode server and its prefill server, with a key between them."""
    with (
        running(role="prefill", api_key=KEY) as first,
        running(role="decode", prefill_from=[first.url], prefill={"key": KEY}) as second,
    ):
        yield second, first


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Running, Running]]:
    with both() as servers:
        yield servers


def complete(server: Running, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{server.v1}/completions", json={"model": NAME, "prompt": "hi", "temperature": 0} | body)


def texts(response: httpx2.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def error_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"prompt": ["a", "b c", "d"], "max_tokens": 5},
    {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 9},
    {"logprobs": 3, "presence_penalty": 1.0, "logit_bias": {"99": 5}, "max_tokens": 4},
    {"stop": ["k"], "max_tokens": 26},
    {"prompt": "x" * 90, "repetition_penalty": 1.3, "max_tokens": 7},
)


@pytest.mark.parametrize("body", BODIES)
def test_answers_are_those_of_one_server(pair: tuple[Running, Running], server: Running, body: dict[str, Any]) -> None:
    ours, theirs = complete(pair[0], **body).json(), complete(server, **body).json()
    assert (ours["choices"], ours["usage"]) == (theirs["choices"], theirs["usage"])
    streamed = complete(pair[0], **body, stream=True).text
    assert streamed.endswith("data: [DONE]\n\n")
    assert "error" not in streamed


def test_what_moved_is_counted_on_both_sides(pair: tuple[Running, Running]) -> None:
    before = [each.engine.metrics() for each in pair]
    assert texts(complete(pair[0], prompt="abcd", n=2, max_tokens=3)) == [reply("abcd", 3)] * 2
    assert pair[1].idle()
    after = [each.engine.metrics() for each in pair]
    for one, other in zip(before, after, strict=True):
        assert other.slot_messages - one.slot_messages == 1, "two answers to one prompt take one slot message"
        moved = other.slot_message_bytes - one.slot_message_bytes
        assert moved == pair[0].engine.slot_format.nbytes(4)
        full = other.slot_message_full_kv_bytes - one.slot_message_full_kv_bytes
        assert full == pair[0].engine.signature.full_kv_bytes(4)
    assert after[0].prefill_steps == before[0].prefill_steps == 0
    assert after[1].finished["prefilled"] == before[1].finished["prefilled"] + 1
    status = httpx2.get(f"{pair[0].v1}/status").json()
    assert status["role"] == "decode"
    (state,) = status["prefill_servers"]
    assert (state["url"], state["in_flight"], state["failures"]) == (pair[1].url, 0, 0)
    assert status["slot_message_bytes"] == pair[0].engine.slot_format.nbytes(127)
    assert b"sscc_slot_message_bytes_total" in httpx2.get(f"{pair[1].url}/metrics").content


def ask_slot(server: Running, **changes: Any) -> httpx2.Response:
    body = {"prompt": TOKENIZER.encode("hi").ids, "program": IDENTITY.program, "weights": IDENTITY.weights} | changes
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx2.post(f"{server.url}{slots.PATH}", json=body, headers=headers)


POSITIONS = {
    (1,): "there are 1 positions for 2 tokens",
    (3, 3): "positions must be ascending and not negative",
    (-1, 3): "positions must be ascending and not negative",
    (3, 127): "the prompt has 128 tokens, but the context has only 128",
}


def test_a_prefill_server_answers_with_a_slot_or_says_why_not(pair: tuple[Running, Running]) -> None:
    prefills = pair[1]
    response = ask_slot(prefills)
    message = prefills.engine.slot_format.read(response.content, "it")
    assert message.tokens.tokens.tolist() == TOKENIZER.encode("hi").ids
    assert httpx2.post(f"{prefills.url}{slots.PATH}", json={}).status_code == 401
    assert error_of(ask_slot(prefills, weights="c"))[0] == 409
    assert error_of(ask_slot(prefills, prompt=[]))[0] == 400
    assert error_of(ask_slot(prefills, prompt=[True])) == (400, "prompt is a list of 1: it must be a list of integers")
    assert error_of(ask_slot(prefills, prompt=[10**6]))[0] == 400
    assert error_of(ask_slot(prefills, prompt=[1] * 128)) == (400, POSITIONS[3, 127])
    for positions, reason in POSITIONS.items():
        assert error_of(ask_slot(prefills, positions=list(positions))) == (400, reason)
    assert error_of(ask_slot(prefills, timeout=0))[0] == 400
    assert complete(prefills).status_code == 401
    assert httpx2.get(f"{pair[0].v1}/slots").status_code == 404
    assert prefills.idle()


def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_where_a_server_is_gone_another_one_is_asked() -> None:
    with running(role="prefill") as alive:
        gone = dead_url()
        with running(role="decode", prefill_from=[gone, alive.url]) as server:
            for prompt in ("a", "b", "c", "d"):
                assert texts(complete(server, prompt=prompt, max_tokens=3)) == [reply(prompt, 3)]
            states = httpx2.get(f"{server.v1}/status").json()["prefill_servers"]
            assert [state["prefilled"] for state in states] == [0, 4]
            assert states[0]["failures"] == 1, "one that has failed is asked last for a while"
            assert states[0]["last_error"] == "Connection refused"


def unserved(server: Running, caplog: pytest.LogCaptureFixture) -> str:
    """The reason that the log gives for a prompt that no server could prefill. The client's error names no server."""
    caplog.clear()
    status, message = error_of(complete(server))
    assert status == 503
    assert "127.0.0.1" not in message
    assert len(message) < 200
    (record,) = [record for record in caplog.records if "no prefill server" in record.message]
    assert record.message.isprintable()
    return record.message


def test_where_none_is_left_the_answer_says_so_unless_it_is_to_be_prefilled_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = dead_url()
    with running(role="decode", prefill_from=[gone]) as server:
        assert f"({gone}: Connection refused)" in unserved(server, caplog)
        assert complete(server).json()["error"]["code"] == "unavailable"
        assert server.idle()
    with running(role="decode", prefill_from=[gone], prefill={"locally": True}) as server:
        assert texts(complete(server, max_tokens=4)) == [reply("hi", 4)]
        assert server.engine.metrics().prefill_steps > 0


def test_a_wrong_key_and_another_program_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with running(role="prefill", api_key=KEY) as prefills:
        with running(role="decode", prefill_from=[prefills.url]) as server:
            assert "401, the API key is missing or wrong" in unserved(server, caplog)
        with running(role="decode", prefill_from=[prefills.url], prefill={"key": KEY}, batch=2) as server:
            assert "rows of another program: batch 3 there, 2 here" in unserved(server, caplog)


class Impostor:
    """Accept a connection, read its bytes, and send a prepared answer."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(self._answer)
                if self._answer:
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            self.ended.set()


OK = b"HTTP/1.1 200 OK\r\n"
JSON_ERROR = json.dumps({"error": {"message": "no\nway" * 200, "code": None}}).encode()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: http://example.com/\r\n\r\n", "302, it is not a prefill server"),
        (b"HTTP/1.1 400 No\r\n\r\n" + JSON_ERROR, "400, no way"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH-2.0"),
        (OK + b"\r\n", "the answer has None bytes"),
        (OK + b"content-length: 99999999999999\r\n\r\n", "but a slot after"),
        (OK + b"content-length: 100\r\n\r\nabc", "ended 97 bytes before its end at 100"),
        (OK + b"content-length: 3\r\n\r\nabc", "no rows saved by sscc"),
    ],
)
def test_what_is_no_slot_is_refused(answer: bytes, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with running(role="decode", prefill_from=[Impostor(answer).url]) as server:
        assert words in unserved(server, caplog)


def test_who_leaves_cancels_the_prefill_and_nobody_waits_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    silent = Impostor(b"")
    with running(role="decode", prefill_from=[silent.url], prefill={"timeout": 0.3}) as server:
        assert unserved(server, caplog).endswith("no answer in time)")
        assert silent.ended.wait(5)
    silent = Impostor(b"")
    with running(role="decode", prefill_from=[silent.url]) as server:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{server.v1}/completions", json={"model": NAME, "prompt": "hi"}, timeout=0.2)
        assert silent.ended.wait(5)
        assert server.idle()
        assert server.engine.metrics().finished["cancelled"] == 1


def test_prompts_wait_while_a_server_has_no_room() -> None:
    """The prefill server has one slot and no queue: it refuses most prompts, which are sent again. At most two are in
    flight."""
    with ExitStack() as stack:
        prefills = stack.enter_context(running(role="prefill", batch=2, max_queue=0))
        server = stack.enter_context(running(role="decode", batch=2, prefill_from=[prefills.url]))
        prompts = ["a", "b", "c", "d", "e"]
        assert texts(complete(server, prompt=prompts, max_tokens=3)) == [reply(prompt, 3) for prompt in prompts]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a:99999", "http://u@a/"])
def test_an_address_that_is_none(pair: tuple[Running, Running], url: str) -> None:
    with raises(PrefillServerErrors.NOT_AN_ADDRESS):
        PrefillServers([url], pair[0].engine.slot_format)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--role decode", "--role decode needs --prefill-from URL"),
        ("--prefill-from http://a:1", "--prefill-from needs --role decode, but the role is both"),
        ("--role prefill --prefill-locally", "--prefill-locally needs --role decode, but the role is prefill"),
        ("--role decode --prefill-from http://a:1 --prefill-timeout 0", "--prefill-timeout must be"),
        ("--role decode --prefill-from http://a:1 --prefill-ahead 0", "--prefill-ahead must be at least"),
    ],
)
def test_options_that_make_no_sense(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nothing.rdu", *words.split()]) == UsageError.exit_code
    assert message in capsys.readouterr().err
