"""Calls of tools and thoughts over HTTP, with OpenAI's own client: whole, streamed, constrained, in histories."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.runtime.server.fake import NAME, TOKENIZER, Running, running

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'


def ask(client: openai.OpenAI, **parameters: Any) -> Any:
    return client.chat.completions.create(
        **{"model": NAME, "messages": HI, "temperature": 0, "max_tokens": 600} | parameters  # type: ignore[arg-type]
    )


def streamed(client: openai.OpenAI, **parameters: Any) -> tuple[dict[str, Any], list[Any]]:
    """The message that a stream adds up to, and its chunks."""
    chunks = list(ask(client, stream=True, **parameters))
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    for chunk in chunks:
        (choice,) = chunk.choices
        delta = choice.delta.model_dump(exclude_none=True)
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            held = message["tool_calls"].setdefault(call["index"], {"name": "", "arguments": "", "id": ""})
            held["name"] += call["function"].get("name", "")
            held["arguments"] += call["function"].get("arguments", "")
            held["id"] += call.get("id", "")
        message["finish_reason"] = choice.finish_reason
    return message, chunks


def test_a_call(client: openai.OpenAI, says: Any) -> None:
    says(f"I look.\n{CALL}")
    (choice,) = ask(client, tools=[WEATHER, NOW]).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Rome", "days": 2}
    assert call.id.startswith("call_")


def test_calls_alone_have_no_content(client: openai.OpenAI, says: Any) -> None:
    says(f'{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>')
    (choice,) = ask(client, tools=[WEATHER, NOW]).choices
    assert choice.message.content is None
    first, second = choice.message.tool_calls
    assert (first.function.name, second.function.name) == ("get_weather", "now")
    assert first.id != second.id
    (choice,) = ask(client, tools=[WEATHER, NOW], parallel_tool_calls=False).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]


def test_streams_tell_the_same(client: openai.OpenAI, says: Any) -> None:
    says(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n" + '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    message, chunks = streamed(client, tools=[WEATHER, NOW])
    assert (message["content"], message["reasoning_content"]) == ("I look.", "Hm.")
    assert message["finish_reason"] == "tool_calls"
    assert [call["name"] for call in message["tool_calls"].values()] == ["get_weather", "now"]
    assert json.loads(message["tool_calls"][0]["arguments"]) == {"city": "Rome", "days": 2}
    assert all(call["id"].startswith("call_") and len(call["id"]) == 29 for call in message["tool_calls"].values())
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    with client.chat.completions.stream(
        model=NAME, messages=HI, tools=[WEATHER, NOW], temperature=0  # type: ignore[arg-type,list-item]
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "I look."
    assert [call.function.name for call in final.choices[0].message.tool_calls or []] == ["get_weather", "now"]


def test_a_call_that_does_not_parse_is_text(client: openai.OpenAI, says: Any) -> None:
    text = CALL.replace("}}", "}")
    says(text)
    (choice,) = ask(client, tools=[WEATHER]).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")
    message, _ = streamed(client, tools=[WEATHER])
    assert (message["content"], message["tool_calls"], message["finish_reason"]) == (text, {}, "stop")


def test_without_tools_nothing_is_a_call(client: openai.OpenAI, says: Any) -> None:
    says(CALL)
    for parameters in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        (choice,) = ask(client, **parameters).choices
        assert (choice.message.content, choice.message.tool_calls) == (CALL, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "now"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ],
)
@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("text", ['<tool_call>\n{"name": "get_weather", no', "<think>Should I?</think>\n\nNo.", CALL])
def test_a_call_may_be_required(
    text: str, temperature: float, choice: Any, names: set[str], stream: bool, client: openai.OpenAI, says: Any
) -> None:
    """Whatever the model would rather say. At such a temperature a model says anything; without, it closes what it
    opens."""
    says(text)
    parameters = {"tools": [WEATHER, NOW], "tool_choice": choice, "temperature": temperature, "seed": 5}
    parameters["logit_bias"] = {str(TOKENIZER.encode(letter).ids[0]): 9 - rank for rank, letter in enumerate('}"5')}
    if stream:
        message, _ = streamed(client, **parameters)
        calls = [(call["name"], call["arguments"]) for call in message["tool_calls"].values()]
        finish = message["finish_reason"]
    else:
        (one,) = ask(client, **parameters).choices
        calls = [(call.function.name, call.function.arguments) for call in one.message.tool_calls or []]
        finish = one.finish_reason
    if temperature and finish == "length":
        return
    assert finish == "tool_calls"
    assert {name for name, _ in calls} <= names
    assert calls
    for name, arguments in calls:
        assert name != "get_weather" or len(json.loads(arguments)["city"]) <= 9


def test_a_schema_beside_tools(client: openai.OpenAI, says: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}}}
    says('{"a": true}')
    (choice,) = ask(client, tools=[WEATHER], response_format=form).choices
    assert (json.loads(choice.message.content), choice.message.tool_calls) == ({"a": True}, None)
    says(CALL)
    (choice,) = ask(client, tools=[WEATHER], response_format=form).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]


# ---------------------------------------------------------------------------------------------------------- thoughts


def test_thoughts_are_apart(client: openai.OpenAI, says: Any) -> None:
    says("<think>\nHm.\n\nSo.\n</think>\n\nYes.")
    message = ask(client).choices[0].message
    assert (message.content, message.reasoning_content) == ("Yes.", "Hm.\n\nSo.")
    message = ask(client, extra_body={"include_reasoning": False}).choices[0].message
    assert (message.content, getattr(message, "reasoning_content", None)) == ("Yes.", None)


def test_a_prompt_may_begin_the_thought(client: openai.OpenAI, says: Any) -> None:
    says("Hm.</think>Yes.")
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    message = ask(client, extra_body=thinking).choices[0].message
    assert (message.content, message.reasoning_content) == ("Yes.", "Hm.")
    assert ask(client).choices[0].message.content == "Hm.</think>Yes."
    told, _ = streamed(client, extra_body=thinking)
    assert (told["content"], told["reasoning_content"]) == ("Yes.", "Hm.")


def test_a_schema_is_of_what_follows_the_thought(client: openai.OpenAI, says: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "maxItems": 2}}}
    thought = "Hm [.</think>\n\n[1, 2]"
    for thinking, text in ((True, thought), (False, f"<think>{thought}"), (False, "[1, 2]")):
        says(text)
        kwargs = {"chat_template_kwargs": {"enable_thinking": thinking}}
        message = ask(client, response_format=form, extra_body=kwargs).choices[0].message
        assert json.loads(message.content) == [1, 2]


@pytest.mark.parametrize(("most", "thought"), [(0, ""), (3, "abc"), (9, "abcdef"), (6, "abcdef")])
@pytest.mark.parametrize("inside", [False, True])
def test_a_thought_has_a_bound(most: int, thought: str, inside: bool, client: openai.OpenAI, says: Any) -> None:
    """The reasoning ends at its limit, and the model's script continues from there."""
    says(("" if inside else "<think>") + "abcdef</think>The answer is long.")
    kwargs: dict[str, Any] = {"thinking_token_budget": most, "chat_template_kwargs": {"enable_thinking": inside}}
    message = ask(client, extra_body=kwargs).choices[0].message
    assert getattr(message, "reasoning_content", "") == thought
    assert message.content
    told, _ = streamed(client, extra_body=kwargs)
    assert (told["reasoning_content"], told["content"]) == (thought, message.content)


def test_a_bound_and_a_schema(client: openai.OpenAI, says: Any) -> None:
    says("<think>[5] or [6]? [5] or [6]? [7, 7]")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "maxItems": 2}}}
    kwargs: dict[str, Any] = {"thinking_token_budget": 10}
    message = ask(client, response_format=form, extra_body=kwargs).choices[0].message
    assert message.reasoning_content == "[5] or [6]"
    assert isinstance(json.loads(message.content), list)


def test_what_does_not_think_has_no_bound() -> None:
    with running() as server:
        answer = httpx2.post(f"{server.v1}/chat/completions", json={"messages": HI, "thinking_token_budget": 5})
    assert answer.json()["error"]["code"] == "served-request.no-thoughts"


def test_an_effort_goes_to_templates_that_read_it(client: openai.OpenAI, says: Any) -> None:
    says("Hm.</think>Yes.")
    message = ask(client, reasoning_effort="none").choices[0].message
    assert message.content == "Hm.</think>Yes."
    with pytest.raises(openai.BadRequestError):
        ask(client, reasoning_effort="high")


# --------------------------------------------------------------------------------------------------------- histories


def test_what_an_agent_sends_back(client: openai.OpenAI, says: Any) -> None:
    says(f"<think>Hm.</think>{CALL}")
    first = ask(client, tools=[WEATHER]).choices[0].message
    history = [*HI, first.model_dump(), {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sun"}]
    says("It is sunny.")
    answer = ask(client, tools=[WEATHER], messages=history)
    assert answer.choices[0].message.content == "It is sunny."
    prompt = json.dumps(WEATHER, ensure_ascii=False) + "\n<user>hi<assistant><think>Hm.</think>"
    prompt += "[get_weather|city=Romedays=2]<tool>sun<assistant>"
    assert answer.usage.prompt_tokens == len(prompt)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice"),
    "a choice of another tool": (
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice",
    ),
    "no choice": ({"tools": [NOW], "tool_choice": "maybe"}, "tool_choice"),
    "no tool": ({"tools": [{"type": "web_search"}]}, "tools"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools"),
    "a strange name": ({"tools": [{"type": "function", "function": {"name": 'a"b'}}]}, "tools"),
    "two of one name": ({"tools": [NOW, NOW]}, "tools"),
    "no parameters": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]}, "tools"),
    "too many": ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
    "calls of a user": (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages.0",
    ),
    "a wrong schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}],
         "tool_choice": "required"}, "tools",
    ),
    "a schema with what is not supported": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
         "tool_choice": "required"}, None,
    ),
    "a variable that is taken": ({"chat_template_kwargs": {"messages": []}}, "messages"),
    "nothing to continue": ({"continue_final_message": True}, "continue_final_message"),
}  # type: ignore[dict-item]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, scripted: Running) -> None:
    changes, param = REFUSED[case]
    answer = httpx2.post(f"{scripted.v1}/chat/completions", json={"messages": HI} | changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_message_may_be_continued(client: openai.OpenAI, says: Any) -> None:
    says("lo!")
    body = {"add_generation_prompt": False, "continue_final_message": True}
    history = [*HI, {"role": "assistant", "content": "Hel"}]
    answer = ask(client, messages=history, extra_body=body)
    assert answer.choices[0].message.content == "lo!"
    assert answer.usage.prompt_tokens == len("<user>hi<assistant>Hel")
