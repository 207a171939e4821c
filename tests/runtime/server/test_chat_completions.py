"""/v1/chat/completions with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest

from sscc.runtime.text.chat_template import ChatTemplate
from tests.runtime.server.fake import CONTEXT, NAME, TOKENIZER, Running, reply, running

GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0}
HI: Any = [{"role": "user", "content": "hi"}]
HI_TEXT = "u:hi;a:"


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.v1, api_key="any", max_retries=0)


class TestWhole:
    def test_the_answer(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(messages=HI, max_tokens=5, **GREEDY)
        assert (answer.object, answer.model) == ("chat.completion", NAME)
        assert answer.id.startswith("chatcmpl-")
        (choice,) = answer.choices
        assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
        assert (choice.message.role, choice.message.content) == ("assistant", reply(HI_TEXT, 5))

    def test_usage(self, client: openai.OpenAI) -> None:
        usage = client.chat.completions.create(messages=HI, n=3, max_tokens=5, **GREEDY).usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(HI_TEXT), 15)

    def test_without_a_limit_it_goes_on_to_its_end(self, client: openai.OpenAI) -> None:
        choice = client.chat.completions.create(messages=HI, **GREEDY).choices[0]
        assert (choice.message.content, choice.finish_reason) == (reply(HI_TEXT), "stop")

    def test_without_a_limit_it_fills_the_context(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(messages=HI, extra_body={"ignore_eos": True}, **GREEDY)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.total_tokens == CONTEXT

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_limits_of_either_name(self, name: str, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(messages=HI, **GREEDY, **{name: 3})
        assert answer.choices[0].message.content == reply(HI_TEXT, 3)

    def test_a_conversation(self, client: openai.OpenAI) -> None:
        messages: Any = [{"role": "system", "content": "be brief"}, *HI]
        first = client.chat.completions.create(messages=messages, max_tokens=4, **GREEDY).choices[0].message
        messages += [
            first,
            {"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "on"}]},
        ]
        message = client.chat.completions.create(messages=messages, max_tokens=4, **GREEDY).choices[0].message
        text = f"s:be brief;u:hi;a:{first.content};u:go\non;a:"
        assert message.content == reply(text, 4)

    def test_the_developer_is_the_system(self, client: openai.OpenAI) -> None:
        messages: Any = [{"role": "developer", "content": "x"}, *HI]
        answer = client.chat.completions.create(messages=messages, max_tokens=4, **GREEDY)
        assert answer.choices[0].message.content == reply(f"s:x;{HI_TEXT}", 4)

    def test_a_stop_string(self, client: openai.OpenAI) -> None:
        text = reply(HI_TEXT)
        choice = client.chat.completions.create(messages=HI, stop=[text[3:5]], **GREEDY).choices[0]
        assert (choice.message.content, choice.finish_reason) == (text[:3], "stop")

    def test_parameters_that_ask_for_nothing(self, client: openai.OpenAI) -> None:
        extra: dict[str, Any] = {
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "service_tier": "auto",
            "parallel_tool_calls": True,
            "metadata": {"a": "b"},
            "user": "me",
            "store": None,
        }
        answer = client.chat.completions.create(messages=HI, max_tokens=4, extra_body=extra, **GREEDY)
        assert answer.choices[0].message.content == reply(HI_TEXT, 4)


class TestLogprobs:
    def test_their_form(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(messages=HI, max_tokens=3, logprobs=True, top_logprobs=2, **GREEDY)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert [entry.token for entry in logprobs.content] == list(reply(HI_TEXT, 3))
        assert [entry.bytes for entry in logprobs.content] == [[ord(letter)] for letter in reply(HI_TEXT, 3)]
        for entry in logprobs.content:
            assert len(entry.top_logprobs) == 2
            assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)

    def test_without_alternatives(self, client: openai.OpenAI) -> None:
        logprobs = (
            client.chat.completions.create(messages=HI, max_tokens=3, logprobs=True, **GREEDY).choices[0].logprobs
        )
        assert logprobs is not None
        assert logprobs.content is not None
        assert [entry.top_logprobs for entry in logprobs.content] == [[], [], []]

    def test_streamed_they_are_the_same(self, client: openai.OpenAI) -> None:
        options: dict[str, Any] = {"messages": HI, "max_tokens": 9, "logprobs": True, "top_logprobs": 1, **GREEDY}
        whole = client.chat.completions.create(**options).choices[0].logprobs
        parts = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(stream=True, **options)]
        assert whole is not None
        assert [entry for part in parts if part is not None for entry in part.content or ()] == whole.content

    def test_a_byte_that_is_no_text(self, client: openai.OpenAI) -> None:
        (token,) = (
            token for token in range(256) if TOKENIZER.id_to_token(token) == "\N{LATIN SMALL LETTER A WITH TILDE}"
        )
        answer = client.chat.completions.create(
            messages=HI, max_tokens=1, logprobs=True, logit_bias={str(token): 100}, **GREEDY
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert (logprobs.content[0].token, logprobs.content[0].bytes) == ("bytes:\\xe3", [0xE3])


class TestStreaming:
    def test_the_role_comes_first_and_the_reason_last(self, client: openai.OpenAI) -> None:
        chunks = list(client.chat.completions.create(messages=HI, max_tokens=6, stream=True, **GREEDY))
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
        first, *others = [chunk.choices[0].delta for chunk in chunks]
        assert (first.role, first.content) == ("assistant", "")
        assert all(delta.role is None for delta in others)
        assert "".join(delta.content or "" for delta in others) == reply(HI_TEXT, 6)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["length"]

    def test_usage_comes_last_where_asked_for(self, client: openai.OpenAI) -> None:
        options: Any = {"include_usage": True}
        stream = client.chat.completions.create(
            messages=HI, max_tokens=6, stream=True, stream_options=options, **GREEDY
        )
        *chunks, last = list(stream)
        assert all(chunk.usage is None for chunk in chunks)
        assert last.choices == []
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(HI_TEXT), 6)

    def test_every_answer_has_its_role(self, client: openai.OpenAI) -> None:
        texts, roles = [""] * 5, [0] * 5
        for chunk in client.chat.completions.create(messages=HI, n=5, max_tokens=9, stream=True, **GREEDY):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles[choice.index] += choice.delta.role == "assistant"
        assert texts == [reply(HI_TEXT, 9)] * 5
        assert roles == [1] * 5

    def test_the_clients_own_assembly(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(messages=HI, **GREEDY) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == reply(HI_TEXT)

    def test_async(self, server: Running) -> None:
        async def ask() -> str:
            async with openai.AsyncOpenAI(base_url=server.v1, api_key="any", max_retries=0) as client:
                stream = await client.chat.completions.create(messages=HI, max_tokens=9, stream=True, **GREEDY)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert asyncio.run(ask()) == reply(HI_TEXT, 9)


REFUSED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "no_tool_calls", "--tool-parser"),
    "functions": ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter", ""),
    "audio": ({"modalities": ["audio"]}, "modalities", "unsupported_parameter", ""),
    "reasoning": ({"reasoning_effort": "high"}, "reasoning_effort", "served-request.no-effort", "high"),
    "unknown": ({"colour": "red"}, "colour", "unknown_parameter", ""),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs", "api-parameter.top-logprobs-without-logprobs", ""),
    "too many logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value", "20"),
    "two limits": (
        {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens",
        "api-parameter.two-limits", "max_completion_tokens is 4",
    ),
    "no messages": ({"messages": []}, "messages", "invalid_value", "at least 1"),
    "a role": (
        {"messages": [{"role": "function", "content": "x"}]}, "messages.0.role",
        "invalid_value", "'system', 'developer', 'user'",
    ),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content", "invalid_value", "'image_url'",
    ),
    "tool calls": (
        {"messages": [*HI, {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
        "messages.1.tool_calls.0.function", "missing_required_parameter", "",
    ),
    "half a character": (
        {"messages": [{"role": "user", "content": "\ud83d"}]}, "messages.0.content",
        "invalid_value", "surrogate",
    ),
    "half a name": (
        {"messages": [{"role": "user", "content": "a", "name": "\ud83d"}]}, "messages.0.name",
        "invalid_value", "surrogate",
    ),
    "no content": ({"messages": [{"role": "user"}]}, "messages.0", "invalid_value", "must have a content"),
    "long": (
        {"messages": [{"role": "user", "content": "x" * 200}]}, "messages",
        "context_length_exceeded", "205 tokens",
    ),
}


@pytest.mark.parametrize(("changes", "param", "code", "named"), REFUSED.values(), ids=REFUSED)
def test_refusals(changes: dict[str, Any], param: str, code: str, named: str, client: openai.OpenAI) -> None:
    body = json.dumps({"messages": HI, "model": NAME} | changes).encode()
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", content=body, cast_to=object)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"
    assert named in caught.value.message


class TestTemplates:
    def test_without_one_there_is_no_chat(self) -> None:
        with running(chat_template=None) as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(messages=HI, **GREEDY)
            assert caught.value.code == "no_chat_template"
            assert client.completions.create(prompt="a", max_tokens=2, **GREEDY).choices[0].text == reply("a", 2)

    def test_its_own_refusal_is_the_clients(self) -> None:
        template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
        with running(chat_template=template) as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(messages=HI, **GREEDY)
            assert (caught.value.param, caught.value.code) == ("messages", "served-request.template-refuses")
            assert "roles must alternate" in caught.value.message  # words of the template

    def test_special_tokens_are_not_added_again(self) -> None:
        from tokenizers.processors import TemplateProcessing

        from tests.models.tiny_llama import END, byte_tokenizer

        tokenizer = byte_tokenizer()
        tokenizer.post_processor = TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", END)])
        with running(tokenizer=tokenizer) as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            chat = client.chat.completions.create(messages=HI, max_tokens=2, **GREEDY)
            plain = client.completions.create(prompt=HI_TEXT, max_tokens=2, **GREEDY)
            assert chat.usage is not None
            assert plain.usage is not None
            assert (chat.usage.prompt_tokens, plain.usage.prompt_tokens) == (len(HI_TEXT), len(HI_TEXT) + 1)


class TestHistories:
    def test_an_answer_without_content(self, client: openai.OpenAI) -> None:
        messages: Any = [*HI, {"role": "assistant", "content": None, "tool_calls": []}, *HI]
        answer = client.chat.completions.create(messages=messages, max_tokens=4, **GREEDY)
        assert answer.choices[0].message.content == reply("u:hi;a:;u:hi;a:", 4)

    @pytest.mark.parametrize("role", ["user", "system"])
    def test_other_messages_need_one(self, role: str, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(messages=[{"role": role, "content": None}], **GREEDY)  # type: ignore[call-overload]

    def test_parts_that_a_proxy_wants_cached(self, client: openai.OpenAI) -> None:
        part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
        messages: Any = [{"role": "user", "content": [part]}]
        answer = client.chat.completions.create(messages=messages, max_tokens=4, **GREEDY)
        assert answer.choices[0].message.content == reply(HI_TEXT, 4)

    def test_reasoning_is_sent_back(self) -> None:
        """Templates get the reasoning of earlier answers; for an answer without reasoning the name is undefined."""
        template = "{% for m in messages %}{{ m.content }}{% if 'reasoning_content' in m %}<{{ m.reasoning_content }}>"
        template += "{% endif %}{% endfor %}"
        with running(chat_template=ChatTemplate(template)) as server:
            messages = [{"role": "assistant", "content": "a", "reasoning_content": "why"}, *HI]
            body = {"messages": messages, "max_tokens": 4, "temperature": 0}
            answer = httpx2.post(f"{server.v1}/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == reply("a<why>hi", 4)
