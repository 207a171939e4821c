"""Other doors: /v1/responses and /v1/messages with their own clients, /tokenize, pages of others, keys, TLS."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from sscc.ir.errors import UsageError
from sscc.runtime.serving.server.hosts import Hosts
from sscc.runtime.serving.server.service import Tls, config_of
from tests.runtime.server.fake import NAME, TOKENIZER, Running, reply, running
from tests.runtime.server.test_tools import CALL, WEATHER

TOOL = {"type": "function", **WEATHER["function"]}
ANTHROPIC_TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": WEATHER["function"]["parameters"],
}


@pytest.fixture(scope="module")
def claude(scripted: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=scripted.url, api_key="any", max_retries=0) as client:
        yield client


FULL = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"


class TestResponses:
    def test_an_answer(self, client: openai.OpenAI, says: Any) -> None:
        says("Hello.")
        answer = client.responses.create(model=NAME, input="hi", instructions="Be kind.", temperature=0)
        assert (answer.output_text, answer.status, answer.object) == ("Hello.", "completed", "response")
        assert answer.usage is not None
        assert answer.usage.input_tokens == len("<system>Be kind.<user>hi<assistant>")
        assert (answer.usage.output_tokens, answer.usage.total_tokens) == (7, answer.usage.input_tokens + 7)

    def test_items(self, client: openai.OpenAI, says: Any) -> None:
        says(FULL)
        answer = client.responses.create(model=NAME, input="hi", tools=[TOOL], temperature=0)  # type: ignore[list-item]
        thought, message, call = answer.output
        assert (thought.type, message.type, call.type) == ("reasoning", "message", "function_call")
        assert answer.output_text == "I look."
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome", "days": 2})
        assert answer.usage is not None
        assert answer.usage.output_tokens_details.reasoning_tokens == 3

    def test_streams_add_up_to_the_same(self, client: openai.OpenAI, says: Any) -> None:
        says(FULL)
        with client.responses.stream(model=NAME, input="hi", tools=[TOOL], temperature=0) as stream:  # type: ignore[list-item]
            events = list(stream)
            final = stream.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        assert final.output_text == "I look."
        assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == sorted(
            event.sequence_number for event in events if hasattr(event, "sequence_number")
        )
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert said == "I look."
        whole = client.responses.create(model=NAME, input="hi", tools=[TOOL], temperature=0)  # type: ignore[list-item]
        assert [item.type for item in whole.output] == [item.type for item in final.output]

    def test_what_is_cut_is_incomplete(self, client: openai.OpenAI, says: Any) -> None:
        says("Hello.")
        answer = client.responses.create(model=NAME, input="hi", max_output_tokens=3, temperature=0)
        assert (answer.status, answer.output_text) == ("incomplete", "Hel")
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"

    def test_a_conversation_is_sent_back(self, client: openai.OpenAI, says: Any) -> None:
        says(FULL)
        first = client.responses.create(model=NAME, input="hi", tools=[TOOL], temperature=0)  # type: ignore[list-item]
        call = first.output[2]
        history: list[Any] = [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            *(item.model_dump() for item in first.output),
            {"type": "function_call_output", "call_id": call.call_id, "output": "sun"},
        ]
        says("Sunny.")
        answer = client.responses.create(model=NAME, input=history, temperature=0)
        assert answer.output_text == "Sunny."
        assert answer.usage is not None
        prompt = "<user>hi<assistant><think>Hm.</think>I look.[get_weather|city=Romedays=2]<tool>sun<assistant>"
        assert answer.usage.input_tokens == len(prompt)

    def test_schemas_and_choices(self, client: openai.OpenAI, says: Any) -> None:
        says('{"a": 1}')
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        form: Any = {"format": {"type": "json_schema", "name": "x", "schema": schema | {"additionalProperties": False}}}
        answer = client.responses.create(model=NAME, input="hi", text=form, temperature=0)
        assert json.loads(answer.output_text) == {"a": 1}
        says(CALL)
        chosen: Any = {"type": "function", "name": "get_weather"}
        answer = client.responses.create(model=NAME, input="x", tools=[TOOL], tool_choice=chosen, temperature=0)  # type: ignore[list-item]
        assert [item.type for item in answer.output] == ["function_call"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"previous_response_id": "resp_1"},
            {"store": True},
            {"background": True},
            {"include": ["file_search_call.results"]},
            {"tools": [{"type": "web_search"}]},
            {"input": [{"type": "computer_call"}]},
            {"input": []},
            {"colour": "red"},
            {"truncation": "auto"},
        ],
    )
    def test_refusals(self, changes: dict[str, Any], scripted: Running) -> None:
        answer = httpx2.post(f"{scripted.v1}/responses", json={"input": "x"} | changes)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"]

    def test_an_error_on_the_way_is_an_event(self, scripted: Running, says: Any) -> None:
        with running(scripted=True, context=2048) as server:
            server.interpreter.error = RuntimeError("broken")
            with httpx2.stream("POST", f"{server.v1}/responses", json={"input": "x", "stream": True}) as answer:
                text = "".join(answer.iter_text())
        assert "response.failed" in text


class TestMessages:
    def test_an_answer(self, claude: anthropic.Anthropic, says: Any) -> None:
        says("Hello.")
        answer = claude.messages.create(
            model=NAME, max_tokens=50, system="Be kind.", messages=[{"role": "user", "content": "hi"}]
        )
        (block,) = answer.content
        assert (block.type, answer.role, answer.stop_reason) == ("text", "assistant", "end_turn")
        assert block.type == "text"
        assert block.text == "Hello."
        assert answer.usage.input_tokens == len("<system>Be kind.<user>hi<assistant>")

    def test_blocks_whole_and_streamed(self, claude: anthropic.Anthropic, says: Any) -> None:
        says(FULL)
        asked: Any = {
            "model": NAME,
            "max_tokens": 300,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [ANTHROPIC_TOOL],
            "extra_body": {"temperature": 0},
        }
        whole = claude.messages.create(**asked)
        with claude.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        for answer in (whole, streamed):
            thought, text, call = answer.content
            assert (thought.type, text.type, call.type) == ("thinking", "text", "tool_use")
            assert (thought.thinking, text.text) == ("Hm.", "I look.")
            assert (call.name, call.input) == ("get_weather", {"city": "Rome", "days": 2})
            assert answer.stop_reason == "tool_use"
        assert streamed.usage.output_tokens == whole.usage.output_tokens

    def test_a_conversation_is_sent_back(self, claude: anthropic.Anthropic, says: Any) -> None:
        says("Sunny.")
        answer = claude.messages.create(
            model=NAME,
            max_tokens=50,
            messages=[
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": ""},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"}]},
            ],
        )
        prompt = "<user>hi<assistant><think>Hm.</think>I look.[get_weather|city=Rome]<tool>sun<assistant>"
        assert answer.usage.input_tokens == len(prompt)

    def test_stops_and_lengths(self, claude: anthropic.Anthropic, says: Any) -> None:
        says("Hello.")
        hi: Any = [{"role": "user", "content": "hi"}]
        answer = claude.messages.create(model=NAME, max_tokens=50, messages=hi, stop_sequences=["lo"])
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "lo")
        assert claude.messages.create(model=NAME, max_tokens=2, messages=hi).stop_reason == "max_tokens"

    def test_counting(self, claude: anthropic.Anthropic) -> None:
        hi: Any = [{"role": "user", "content": "hi"}]
        assert claude.messages.count_tokens(model=NAME, messages=hi).input_tokens == len("<user>hi<assistant>")

    def test_choices(self, claude: anthropic.Anthropic, says: Any) -> None:
        says(CALL)
        hi: Any = [{"role": "user", "content": "hi"}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
            asked: Any = {"tools": [ANTHROPIC_TOOL], "tool_choice": choice, "extra_body": {"temperature": 0}}
            answer = claude.messages.create(model=NAME, max_tokens=300, messages=hi, **asked)
            assert [block.type for block in answer.content] == ["tool_use"]

    def test_refusals_are_in_their_form(self, claude: anthropic.Anthropic, scripted: Running) -> None:
        image: Any = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
        with pytest.raises(anthropic.BadRequestError) as caught:
            claude.messages.create(model=NAME, max_tokens=9, messages=image)
        assert caught.value.body == {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": caught.value.body["error"]["message"]},  # type: ignore[index,call-overload]
        }
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.create(model="other", max_tokens=9, messages=[{"role": "user", "content": "x"}])
        with running(api_key="secret") as server:
            with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as right:
                right.messages.create(model=NAME, max_tokens=2, messages=[{"role": "user", "content": "x"}])
            wrong = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
            with wrong, pytest.raises(anthropic.AuthenticationError):
                wrong.messages.create(model=NAME, max_tokens=2, messages=[{"role": "user", "content": "x"}])


class TestOtherClients:
    def test_langchain(self, scripted: Running, says: Any) -> None:
        langchain = pytest.importorskip("langchain_openai")
        model = langchain.ChatOpenAI(base_url=scripted.v1, api_key="any", model=NAME, temperature=0, max_retries=0)
        says("Hello.")
        assert model.invoke("hi").content == "Hello."
        assert "".join(chunk.content for chunk in model.stream("hi")) == "Hello."
        says(CALL)
        (call,) = model.bind_tools([WEATHER]).invoke("hi").tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome", "days": 2})
        schema = {"title": "X", "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        schema |= {"additionalProperties": False, "description": "x"}
        says('{"a": 5}')
        assert model.with_structured_output(schema, method="json_schema").invoke("hi") == {"a": 5}

    def test_litellm(self, scripted: Running, says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        litellm = pytest.importorskip("litellm")
        asked = {"model": f"openai/{NAME}", "api_base": scripted.v1, "api_key": "any", "temperature": 0}
        hi = [{"role": "user", "content": "hi"}]
        says("Hello.")
        assert litellm.completion(messages=hi, **asked).choices[0].message.content == "Hello."
        said = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(messages=hi, stream=True, **asked)]
        assert "".join(said) == "Hello."
        says(CALL)
        answer = litellm.completion(messages=hi, tools=[WEATHER], **asked)
        assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"

    def test_a_chat_as_open_webui_sends_it(self) -> None:
        """The list of models, a streamed answer, title, tags and follow-up questions of the chat, its next turn, and an
        answer that is made again; what was read before is not read again."""
        with (
            running(api_key="secret", prompt_cache_bytes=10**7, context=1024) as server,
            httpx2.Client(headers={"authorization": "Bearer secret"}, timeout=30) as web,
        ):
            assert [card["id"] for card in web.get(f"{server.v1}/models").json()["data"]] == [NAME]
            talk: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of France? " * 4}]

            def streamed(messages: list[dict[str, Any]]) -> tuple[str, int]:
                """Return the text of an answer and the tokens that were kept of its prompt."""
                body = {"model": NAME, "messages": messages, "stream": True, "temperature": 0, "max_tokens": 20}
                body |= {"stream_options": {"include_usage": True}, "metadata": {"chat_id": "1"}, "stop": []}
                text, cached = "", -1
                with web.stream("POST", f"{server.v1}/chat/completions", json=body) as answer:
                    assert answer.status_code == 200
                    for line in answer.iter_lines():
                        if line.startswith("data: {"):
                            event = json.loads(line.removeprefix("data: "))
                            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                            if event.get("usage"):
                                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
                return text, cached

            first, cached = streamed(talk)
            assert (len(first), cached) == (20, 0)
            talk.append({"role": "assistant", "content": first})
            for task in ("a title", "tags", "follow-up questions"):
                prompt = f"### Task: Generate {task} for the chat.\n<chat_history>\n{talk}\n</chat_history>"
                body = {"model": NAME, "messages": [{"role": "user", "content": prompt}], "stream": False}
                answer = web.post(f"{server.v1}/chat/completions", json=body | {"max_completion_tokens": 9})
                assert answer.json()["choices"][0]["message"]["content"]
            second, cached = streamed([*talk, {"role": "user", "content": "And of Italy?"}])
            assert (len(second), cached) == (20, 128), "whole chunks of the first prompt"
            again, cached = streamed(talk[:1])
            assert (again, cached) == (first, 129)
            body = {"model": NAME, "messages": talk[:1], "stream": True}
            with web.stream("POST", f"{server.v1}/chat/completions", json=body) as answer:
                next(answer.iter_lines())  # and the person presses stop
            server.wait_for(running=0)


class TestTokenization:
    def test_texts(self, server: Running) -> None:
        ids = TOKENIZER.encode("hello").ids
        told = httpx2.post(f"{server.url}/tokenize", json={"prompt": "hello", "return_token_strs": True}).json()
        assert told == {"count": 5, "max_model_len": 128, "tokens": ids, "token_strs": list("hello")}
        told = httpx2.post(f"{server.url}/tokenize", json={"content": "hello"}).json()
        assert told["tokens"] == ids
        told = httpx2.post(f"{server.url}/detokenize", json={"tokens": ids}).json()
        assert told == {"prompt": "hello", "content": "hello"}

    def test_conversations(self, server: Running) -> None:
        asked = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
        told = httpx2.post(f"{server.url}/tokenize", json=asked).json()
        assert told["tokens"] == TOKENIZER.encode("u:hi;").ids

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("tokenize", {}),
            ("tokenize", {"prompt": "a", "content": "b"}),
            ("tokenize", {"prompt": 5}),
            ("detokenize", {"tokens": [9999]}),
            ("detokenize", {"tokens": ["a"]}),
        ],
    )
    def test_refusals(self, path: str, body: dict[str, Any], server: Running) -> None:
        assert httpx2.post(f"{server.url}/{path}", json=body).status_code == 400


PAGE = "https://app.example"


class TestPages:
    def test_allowed_origins_may_ask_and_read(self) -> None:
        with running(hosts=Hosts(origins=[PAGE]), api_key="k") as server:
            asked = {"origin": PAGE, "access-control-request-method": "POST"}
            asked |= {"access-control-request-headers": "authorization,content-type"}
            preflight = httpx2.request("OPTIONS", f"{server.v1}/chat/completions", headers=asked)
            assert preflight.status_code == 204
            assert preflight.headers["access-control-allow-origin"] == PAGE
            assert "POST" in preflight.headers["access-control-allow-methods"]
            assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
            headers = {"origin": PAGE, "authorization": "Bearer k"}
            answer = httpx2.post(f"{server.v1}/completions", json={"prompt": "a", "temperature": 0}, headers=headers)
            assert answer.json()["choices"][0]["text"] == reply("a", 16)
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "origin" in answer.headers["vary"]
            wrong = httpx2.post(f"{server.v1}/completions", json={"prompt": "a"}, headers={"origin": PAGE})
            assert wrong.status_code == 401
            assert wrong.headers["access-control-allow-origin"] == PAGE, "so that the page may read the error"
            other = httpx2.get(f"{server.v1}/models", headers=headers | {"origin": "https://other.example"})
            assert other.status_code == 403
            assert "access-control-allow-origin" not in other.headers
            asked["origin"] = "https://other.example"
            assert httpx2.request("OPTIONS", f"{server.v1}/models", headers=asked).status_code == 403

    def test_any_origin(self) -> None:
        with running(hosts=Hosts(origins=["*"])) as server:
            answer = httpx2.get(f"{server.v1}/models", headers={"origin": "http://a.example"})
            assert answer.headers["access-control-allow-origin"] == "http://a.example"

    def test_options_without_a_page(self, server: Running) -> None:
        answer = httpx2.request("OPTIONS", f"{server.v1}/models")
        assert (answer.status_code, answer.content) == (204, b"")
        assert "GET" in answer.headers["allow"]


def test_a_proxy_may_show_the_server_below_a_path() -> None:
    from tests.runtime.server.fake import listening, open_app

    with open_app(root_path="/llm", api_key="k") as opened, listening(opened.app) as url:
        for path in ("/llm/v1/models", "/v1/models"):
            assert httpx2.get(url + path).status_code == 401, "the key guards both"
            assert httpx2.get(url + path, headers={"authorization": "Bearer k"}).status_code == 200
        assert httpx2.get(f"{url}/llm/health").status_code == 200
        assert httpx2.get(f"{url}/llmx/health").status_code == 404


def test_any_of_several_keys() -> None:
    with running(api_key=("one", "two")) as server:
        for key, status in (("one", 200), ("two", 200), ("three", 401)):
            assert httpx2.get(f"{server.v1}/models", headers={"authorization": f"Bearer {key}"}).status_code == status


def test_https(tmp_path: Path) -> None:
    from tests.runtime.server.fake import listening, open_app

    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with open_app() as opened, listening(opened.app, Tls(certificate, key)) as url:
        assert url.startswith("https://")
        assert httpx2.get(f"{url}/health", verify=False).status_code == 200
    with pytest.raises(UsageError):
        config_of(opened.app, 1, Tls(key, certificate))
    with pytest.raises(UsageError):
        config_of(opened.app, 1, Tls(tmp_path / "none.pem"))
