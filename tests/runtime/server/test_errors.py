"""Refusals: OpenAI's fields, the right status, and no request left in the engine."""

from __future__ import annotations

import json
import re
import socket
import threading
from typing import Any

import httpx2
import openai
import pytest

from sscc.ir.errors import RankError
from sscc.runtime.serving.server import gate
from sscc.runtime.support.serving_options import RequestLimits
from tests.runtime.server.fake import CONTEXT, NAME, Running, listening, reply, running

GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0}
JSON = {"content-type": "application/json"}


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error in an answer, which has OpenAI's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


MALFORMED: dict[str, tuple[bytes, str]] = {
    "half": (b'{"model": "alphabet", "prompt": ', "the body is not JSON"),
    "nothing": (b"", "the body must be a JSON object"),
    "a list": (b"[]", "the body must be a JSON object"),
    "text": (b'"hello"', "the body must be a JSON object"),
    "null": (b"null", "the body must be a JSON object"),
    "not UTF-8": (b'{"model": "\xff\xfe"}', "cannot be parsed"),
    "deep": (b"[" * 60_000, "cannot be parsed"),
    "a long number": (b'{"seed": ' + b"1" * 5000 + b"}", "cannot be parsed"),
    "half a parameter": (b'{"model": "alphabet", "\\ud800": 1}', "the body must be"),
}


@pytest.mark.parametrize(("body", "message"), MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_malformed_bodies(path: str, body: bytes, message: str, server: Running) -> None:
    error = error_of(httpx2.post(f"{server.v1}/{path}", content=body, headers=JSON), 400)
    assert error["type"] == "invalid_request_error"
    assert message in error["message"] or "is missing" in error["message"]


REFUSED: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "no prompt": ({"prompt": None}, "prompt", "is missing"),
    "an object": ({"prompt": {}}, "prompt", "it must be a string, a list of tokens, or a list of either"),
    "no prompts": ({"prompt": []}, "prompt", "no prompt"),
    "an empty prompt": ({"prompt": ""}, "prompt", "the prompt has 0 tokens"),
    "an empty prompt among others": ({"prompt": [[1], []]}, "prompt", "the prompt has 0 tokens"),
    "half a character": ({"prompt": "\ud83d"}, "prompt", "half of a surrogate pair"),
    "half a character among others": ({"prompt": ["a", "\ud83d"]}, "prompt", "half of a surrogate pair"),
    "half of a stop": ({"stop": "\ud83d"}, "stop.0", "half of a surrogate pair"),
    "a mixture": ({"prompt": ["a", [1]]}, "prompt", "it must be a string"),
    "no token": ({"prompt": [1, True]}, "prompt", "it must be a string"),
    "a negative token": ({"prompt": [-1]}, "prompt", "token -1 is out of range"),
    "a large token": ({"prompt": [257]}, "prompt", "token 257 is out of range: the vocabulary is 0 .. 256"),
    "a huge token": ({"prompt": [10**400]}, "prompt", "is out of range"),
    "a long prompt": ({"prompt": "x" * 128}, "prompt", "the prompt has 128 tokens, which leaves no room"),
    "a long answer": ({"max_tokens": 124}, "prompt", "5 tokens and max_tokens is 124, but the context has only 128"),
    "no tokens": ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, which is only allowed with echo"),
    "fewer tokens": ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    "words for numbers": ({"max_tokens": "5"}, "max_tokens", "a valid integer"),
    "a fraction": ({"max_tokens": 1.5}, "max_tokens", "a valid integer"),
    "temperature": ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    "not a number": ({"temperature": float("nan")}, "temperature", "finite"),
    "top_p": ({"top_p": -0.1}, "top_p", "greater than or equal to 0"),
    "top_k": ({"top_k": -2}, "top_k", "greater than or equal to -1"),
    "min_p": ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
    "n": ({"n": 129}, "n", "less than or equal to 128"),
    "many answers": ({"n": 100, "prompt": ["a", "b"]}, "prompt", "more than the 128 answers"),
    "best_of": ({"best_of": 2}, "best_of", "must equal n"),
    "suffix": ({"suffix": "x"}, "suffix", "does not support parameter 'suffix'"),
    "logprobs": ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
    "words": ({"bad_words": ["x"]}, "bad_words", "does not support parameter 'bad_words' (only [] is accepted)"),
    "least tokens": ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
    "beams": ({"use_beam_search": True}, "use_beam_search", "'use_beam_search' (only false is accepted)"),
    "stop strings": ({"stop": ["a"] * 17}, "stop", "at most 16"),
    "stop": ({"stop": 5}, "stop", "a string or a list of strings"),
    "a bias of what": ({"logit_bias": {"a": 1}}, "logit_bias", "is not a token"),
    "a large bias": ({"logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
    "a bias of a token": ({"logit_bias": {"257": 1}}, "logit_bias", "the vocabulary is 0 .. 256"),
    "stream options": ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream = true"),
    "unknown": ({"top_a": 1}, "top_a", "unknown parameter 'top_a'"),
    "an unknown option": ({"stream": True, "stream_options": {"a": 1}}, "stream_options.a", "unknown parameter"),
}


@pytest.mark.parametrize(("changes", "param", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_refusals(stream: bool, changes: dict[str, Any], param: str | None, message: str, server: Running) -> None:
    """Streams are refused by status, too: nothing is sent before the whole request has been checked."""
    body: dict[str, Any] = {"model": NAME, "prompt": "hello", "stream": stream} | changes
    if "stream_options" in changes and "stream" not in changes:
        body["stream"] = False
    error = error_of(httpx2.post(f"{server.v1}/completions", content=json.dumps(body), headers=JSON), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert message in error["message"]


def test_lengths_have_a_code_of_their_own(server: Running) -> None:
    with openai.OpenAI(base_url=server.v1, api_key="any") as client:
        for options in ({"prompt": "x" * CONTEXT}, {"prompt": "hello", "max_tokens": CONTEXT}):
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(model=NAME, **options)
            assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405), ("GET", "/redoc", 404)],
)
def test_other_paths(method: str, path: str, status: int, server: Running) -> None:
    error = error_of(httpx2.request(method, server.url + path), status)
    assert error["code"] == ("server.no-such-path" if status == 404 else "server.wrong-method")
    assert method in error["message"]
    assert path in error["message"]


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", f"/v1/models/{NAME}", "/static/page.css"])
def test_head_is_get_without_a_body(path: str, server: Running) -> None:
    head, get = (httpx2.request(method, server.url + path) for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


class TestModels:
    def test_the_one_there_is(self, server: Running) -> None:
        with openai.OpenAI(base_url=server.v1, api_key="any") as client:
            (card,) = client.models.list().data
            assert client.models.retrieve(NAME) == card
            assert (card.id, card.object, card.owned_by) == (NAME, "model", "sscc")

    def test_others_are_404(self, server: Running) -> None:
        with openai.OpenAI(base_url=server.v1, api_key="any") as client:
            with pytest.raises(openai.NotFoundError) as caught:
                client.models.retrieve("gpt-9")
            assert caught.value.code == "model_not_found"
            with pytest.raises(openai.NotFoundError) as caught:
                client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
            assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
            assert "'alphabet'" in caught.value.message

    def test_names_with_slashes(self) -> None:
        with running(name="a/b") as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            assert client.models.retrieve("a/b").id == "a/b"


class TestKey:
    def test_it_is_asked_for(self) -> None:
        with running(api_key="secret") as server:
            for key in ("wrong", "secre", "secret2"):
                with openai.OpenAI(base_url=server.v1, api_key=key) as client:
                    with pytest.raises(openai.AuthenticationError) as caught:
                        client.models.list()
                    assert caught.value.code == "invalid_api_key"
            for headers in ({}, {"authorization": "secret"}, {"authorization": "Basic secret"}):
                assert error_of(httpx2.get(f"{server.v1}/models", headers=headers), 401)
            with openai.OpenAI(base_url=server.v1, api_key="secret") as client:
                assert client.completions.create(prompt="a", max_tokens=2, **GREEDY).choices[0].text == reply("a", 2)
            assert httpx2.get(f"{server.url}/health").status_code == 200
            assert httpx2.get(f"{server.url}/metrics").status_code == 200

    def test_it_comes_before_everything_else(self) -> None:
        """A body without a key is not read: the answer is there before the body is."""
        with running(api_key="secret") as server, socket.create_connection(_address(server.url), 10) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


class TestLimits:
    def test_a_large_body_by_its_header(self) -> None:
        with running(limits=RequestLimits(max_body=1000)) as server:
            response = httpx2.post(f"{server.v1}/completions", content=b" " * 1001, headers=JSON)
            error = error_of(response, 413)
            assert error["code"] == "body_too_large"
            assert "1000 bytes" in error["message"]
            body = {"prompt": "a", "max_tokens": 2} | GREEDY
            padded = json.dumps(body).ljust(1000).encode()
            assert httpx2.post(f"{server.v1}/completions", content=padded, headers=JSON).status_code == 200

    def test_a_large_body_while_it_comes(self) -> None:
        """A body in chunks of unknown total size is refused before its end, which never comes."""
        with running(limits=RequestLimits(max_body=1000)) as server:
            with socket.create_connection(_address(server.url), 10) as connection:
                connection.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                    b"transfer-encoding: chunked\r\n\r\n" + (b"200\r\n" + b" " * 512 + b"\r\n") * 2
                )
                assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
            assert httpx2.get(f"{server.url}/health").status_code == 200

    def test_a_slow_body(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gate, "BODY_SECONDS", 0.1)
        with running() as server, socket.create_connection(_address(server.url), 10) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")

    def test_prompts_and_answers(self) -> None:
        limits = RequestLimits(max_prompt=10, max_new_tokens=5)
        with running(limits=limits) as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(prompt="x" * 11, **GREEDY)
            assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
            assert re.findall(r"\d+", caught.value.message) == ["400", "11", "10"]
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(prompt="x" * 10, max_tokens=6, **GREEDY)
            assert (caught.value.param, caught.value.code) == ("max_tokens", "served-request.too-many-new-tokens")
            assert re.findall(r"\d+", caught.value.message) == ["400", "6", "5"]
            assert client.completions.create(prompt="x" * 10, **GREEDY).choices[0].text == reply("x" * 10, 5)
            chat = client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], **GREEDY)
            assert chat.choices[0].message.content == reply("u:hi;a:", 5)

    def test_time(self) -> None:
        with running(limits=RequestLimits(timeout=0.2)) as server:
            server.interpreter.seconds = 0.02
            with openai.OpenAI(base_url=server.v1, api_key="any") as client:
                # The client does not try again by itself: 2 more times would show in the metrics.
                with pytest.raises(openai.APIStatusError) as caught:
                    client.completions.create(prompt="a", max_tokens=26, **GREEDY)
                assert (caught.value.status_code, caught.value.code) == (504, "timeout")
                assert re.search(r"0\.2 s.* \d+ tokens", caught.value.message)
                assert server.engine.metrics().submitted == 1
                texts: list[str] = []
                stream = client.completions.create(prompt="a", max_tokens=26, stream=True, **GREEDY)
                with pytest.raises(openai.APIError) as in_stream:
                    texts.extend(chunk.choices[0].text for chunk in stream)
                assert in_stream.value.code == "timeout"
                assert "0.2 s" in in_stream.value.message
                assert texts
                assert reply("a").startswith("".join(texts))


class TestQueue:
    def test_when_it_is_full(self) -> None:
        """One slot, one waits, the third is refused; it succeeds once there is room."""
        with running(batch=1, max_queue=1) as server:
            server.interpreter.go.clear()
            texts: list[str] = []

            def ask() -> None:
                with openai.OpenAI(base_url=server.v1, api_key="any") as client:
                    texts.append(client.completions.create(prompt="hello", max_tokens=6, **GREEDY).choices[0].text)

            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            server.wait_for(queued=1, running=1)
            body = {"prompt": "hello", "max_tokens": 6} | GREEDY
            response = httpx2.post(f"{server.v1}/completions", json=body)
            assert error_of(response, 429)["code"] == "queue_full"
            assert response.headers["retry-after"] == "1"
            server.interpreter.go.set()
            for thread in threads:
                thread.join()
            assert httpx2.post(f"{server.v1}/completions", json=body).status_code == 200
            assert texts == [reply("hello", 6)] * 2
            assert server.engine.metrics().rejected == 1

    def test_a_request_of_several_gets_all_or_none(self) -> None:
        with running(batch=1, max_queue=3) as server:
            server.interpreter.go.clear()
            body = {"prompt": ["a"] * 5, "max_tokens": 6} | GREEDY
            assert error_of(httpx2.post(f"{server.v1}/completions", json=body), 429)
            server.interpreter.go.set()
            assert server.idle()
            assert server.engine.metrics().finished["cancelled"] == 4


class TestFailure:
    def test_the_engine_fails(self) -> None:
        with running() as server, openai.OpenAI(base_url=server.v1, api_key="any", max_retries=0) as client:
            server.interpreter.error = RuntimeError("a secret of the machine")
            with pytest.raises(openai.InternalServerError) as caught:
                client.completions.create(prompt="a", **GREEDY)
            assert "secret" not in str(caught.value)
            assert caught.value.type == "server_error"
            assert httpx2.get(f"{server.url}/health").status_code == 503
            assert error_of(httpx2.post(f"{server.v1}/completions", json={"prompt": "a"} | GREEDY), 503)
            assert httpx2.get(f"{server.url}/metrics").status_code == 200

    def test_a_rank_of_the_program_is_gone(self) -> None:
        """Told from a failure of the engine itself: 503 from the first request on, and why."""
        with running() as server:
            server.interpreter.error = RankError("rank 1 at 10.0.0.7 has ended")
            for _ in range(2):
                answer = httpx2.post(f"{server.v1}/completions", json={"prompt": "a"} | GREEDY)
                error = error_of(answer, 503)
                assert error["code"] == "unavailable"
                assert "10.0.0.7" not in answer.text
            health = httpx2.get(f"{server.url}/health")
            assert (health.status_code, health.json()["status"]) == (503, "failed")
            assert "a rank of the program is gone" in health.json()["reason"]

    def test_it_fails_in_a_stream(self) -> None:
        with running() as server, openai.OpenAI(base_url=server.v1, api_key="any", max_retries=0) as client:
            server.interpreter.go.clear()
            stream = client.completions.create(prompt="hello", max_tokens=6, stream=True, **GREEDY)
            assert next(stream).choices[0].text == reply("hello", 1)
            server.interpreter.error = RuntimeError("broken")
            server.interpreter.go.set()
            with pytest.raises(openai.APIError):
                list(stream)

    def test_the_server_closes(self) -> None:
        with running() as server, openai.OpenAI(base_url=server.v1, api_key="any", max_retries=0) as client:
            server.interpreter.go.clear()
            stream = client.completions.create(prompt="hello", max_tokens=6, stream=True, **GREEDY)
            assert next(stream).choices[0].text == reply("hello", 1)
            closing = threading.Thread(target=server.engine.close, kwargs={"drain": False})
            closing.start()
            server.app.state.closing = True
            server.interpreter.go.set()
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            assert caught.value.code == "unavailable"
            closing.join()
            assert httpx2.get(f"{server.url}/health").json() == {"status": "closing"}
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(prompt="a", **GREEDY)
            assert (refused.value.status_code, refused.value.code) == (503, "unavailable")

    def test_what_nobody_expected_is_logged_and_not_told(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running() as server:
            monkeypatch.setattr(server.engine, "submit", lambda request: 1 / 0)
            response = httpx2.post(f"{server.v1}/completions", json={"prompt": "a"} | GREEDY)
            assert error_of(response, 500)["code"] == "internal_error"
            assert "division" not in response.text
            assert "division by zero" in caplog.text


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def test_the_schema_is_there(server: Running) -> None:
    """Programs that read OpenAPI find both bodies."""
    schema = httpx2.get(f"{server.url}/openapi.json").json()
    assert {"CompletionBody", "ChatBody"} <= set(schema["components"]["schemas"])
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics"} <= set(schema["paths"])


def test_two_servers_are_two(server: Running) -> None:
    with listening(server.app) as url:
        assert httpx2.get(f"{url}/v1/models").json() == httpx2.get(f"{server.v1}/models").json()
