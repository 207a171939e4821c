"""Lines of the server's log: what a request was, how fast, and how it ended; what runs; and no text that a client chose
unescaped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from sscc.runtime.serving.server import request_log
from sscc.runtime.serving.server.request_log import throughput
from sscc.runtime.support.logs import LONGEST_WORD, log_exception, logged
from tests.runtime.server.fake import NAME, Running, reply, running
from tests.runtime.server.test_remote_prefill import ask_slot


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "sscc"):
        yield


def ask(server: Running, path: str = "completions", **body: Any) -> httpx2.Response:
    return httpx2.post(f"{server.v1}/{path}", json={"model": NAME, "temperature": 0} | body)


def lines(server: Running, caplog: pytest.LogCaptureFixture, count: int = 1) -> list[str]:
    """The lines about requests so far; one stands there after its answer has gone."""
    server.wait_until(lambda: len(caplog.records) >= count)
    found = [record.message for record in caplog.records]
    caplog.clear()
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    with running() as server:
        server.interpreter.seconds = 0.01
        ask(server, prompt="hello", max_tokens=5, stream=stream)
        (line,) = lines(server, caplog)
        assert line.startswith("POST /v1/completions 200, 5 prompt tokens (0 cached), 5 new tokens, first token after ")
        assert line.endswith(" tokens/s, finish length")
        speed = float(line.split(", ")[-2].removesuffix(" tokens/s"))
        assert 5 < speed < 150
        ask(server, prompt=["a", "bc"], n=2, max_tokens=30, stream=stream)
        (line,) = lines(server, caplog)
        assert " 3 prompt tokens (0 cached), 108 new tokens," in line
        assert line.endswith("finish eos")
        ask(server, prompt="hello", max_tokens=20, stop=[reply("hello")[4:6]], stream=stream)
        assert lines(server, caplog)[0].endswith("finish stop")
        ask(server, prompt="a", max_tokens=1, stream=stream)
        assert "tokens/s" not in lines(server, caplog)[0]


def test_refusals_and_looks(caplog: pytest.LogCaptureFixture) -> None:
    with running(api_key="key") as server:
        ask(server, prompt="a")
        httpx2.get(f"{server.url}/nowhere")
        httpx2.get(f"{server.url}/health")
        httpx2.get(f"{server.url}/", headers={"host": "evil.example"})
        assert lines(server, caplog, 3) == ["POST /v1/completions 401", "GET /nowhere 404", "GET / 421"]


def test_a_client_that_leaves(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server:
        server.interpreter.seconds = 0.02
        body = {"model": NAME, "prompt": "a", "stream": True}
        with httpx2.stream("POST", f"{server.v1}/completions", json=body) as answer:
            next(answer.iter_bytes())
        (line,) = lines(server, caplog)
        assert line.startswith("POST /v1/completions 200, 1 prompt tokens")
        assert line.endswith("finish cancelled, client disconnected")
        assert server.idle()


def test_a_slot_for_another_server(caplog: pytest.LogCaptureFixture) -> None:
    with running(role="prefill") as server:
        ask_slot(server)
        (line,) = lines(server, caplog)
        assert line == "POST /v1/slots 200, 2 prompt tokens (0 cached), 0 new tokens, finish prefilled"


def test_hostile_text_is_escaped(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server:
        httpx2.get(f"{server.url}/%1b[31m%0asscc:%20forged%e2%80%ae{'x' * 5000}")
        (line,) = lines(server, caplog)
        assert line.isprintable()
        assert line.startswith("GET /\\x1b[31m sscc: forged\\u202ex")
        assert len(line) < 2 * LONGEST_WORD
    assert logged("a\nb\x9b") == "a b\\x9b"
    log = logging.getLogger("sscc.test")
    try:
        raise ValueError("\x1b]0;title\x07\u202e")
    except ValueError as error:
        log_exception(log, "it\x1b failed", error)
    (record,) = caplog.records
    assert all(line.isprintable() for line in record.message.split("\n"))
    assert "raise ValueError" in record.message


def test_what_runs_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(request_log, "REPORT_SECONDS", 0.05)
    with running(batch=1) as server:
        server.interpreter.seconds = 0.02
        threads = [threading.Thread(target=ask, args=(server,), kwargs={"prompt": "abc", "max_tokens": 20})] * 1
        threads += [threading.Thread(target=ask, args=(server,), kwargs={"prompt": "x", "max_tokens": 20})]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = lines(server, caplog, 4)
        told = [line for line in found if "running" in line]
        assert len(told) >= 2
        assert any(line.startswith("1 running, 1 waiting, ") for line in told)
        assert all(line.endswith(" new tokens/s") for line in told)
        server.wait_until(lambda: server.app.state.traffic.open == 0)
        server.wait_until(lambda: server.app.state.traffic._timer is None)
        caplog.clear()
        assert not caplog.records, "nothing is told while nothing runs"


def test_throughput(server: Running) -> None:
    before = server.engine.metrics()
    more = {"prompt_tokens": before.prompt_tokens + 90, "cached_prompt_tokens": before.cached_prompt_tokens + 30}
    now = replace(before, **more, new_tokens=before.new_tokens + 45, running=2, prefilling=1, queued=7)
    assert throughput(before, now, 3.0) == "3 running, 7 waiting, 20.0 prompt tokens/s, 15.0 new tokens/s"
