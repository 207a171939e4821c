"""Requests that need two rare things at once: several answers with a cached prompt, stops with several answers."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from tests.runtime.server.fake import reply, running

GREEDY: dict[str, Any] = {"model": "test", "temperature": 0}
PROMPT = "of the capital of France " * 8


@pytest.fixture
def cached() -> Any:
    with running(prompt_cache_bytes=10**7, context=1024, batch=2) as server:
        yield server, openai.OpenAI(base_url=server.v1, api_key="any", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_to_a_prompt_that_is_kept(cached: Any, stream: bool) -> None:
    """With more answers than slots each answer is that of a request alone, and usage counts the kept tokens once."""
    server, client = cached
    prompt = PROMPT + str(stream)
    model = server.engine and httpx2.get(f"{server.v1}/models").json()["data"][0]["id"]
    words = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 7}
    first = client.completions.create(**words)
    expected = reply(prompt, 7)
    assert first.choices[0].text == expected
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    if not stream:
        answer = client.completions.create(**words, n=3)
        texts = {choice.index: choice.text for choice in answer.choices}
        usage = answer.usage
    else:
        texts, usage = {}, None
        chunks = client.completions.create(**words, n=3, stream=True, stream_options={"include_usage": True})
        for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == dict.fromkeys(range(3), expected)
    assert usage is not None
    length = len(prompt)
    assert (usage.prompt_tokens, usage.completion_tokens) == (length, 21)
    assert usage.prompt_tokens_details.cached_tokens == length, "the whole prompt, as it is told once"
    server.wait_for(running=0)


def test_prompts_of_which_some_are_kept(cached: Any) -> None:
    server, client = cached
    model = httpx2.get(f"{server.v1}/models").json()["data"][0]["id"]
    words = {"model": model, "temperature": 0, "max_tokens": 5}
    client.completions.create(**words, prompt=PROMPT)
    other = "quite another " * 9
    answer = client.completions.create(**words, prompt=[PROMPT, other], n=2)
    assert [choice.text for choice in answer.choices] == [reply(PROMPT, 5)] * 2 + [reply(other, 5)] * 2
    assert answer.usage.prompt_tokens == len(PROMPT) + len(other)
    assert answer.usage.prompt_tokens_details.cached_tokens == len(PROMPT)
    server.wait_for(running=0)


def test_one_of_several_answers_that_stops(cached: Any) -> None:
    """A stop string ends each answer for itself, and the kept prompt serves the next request unharmed."""
    server, client = cached
    model = httpx2.get(f"{server.v1}/models").json()["data"][0]["id"]
    whole = reply(PROMPT, 12)
    stop = whole[5:7]
    for _ in range(2):
        answer = client.completions.create(
            model=model, prompt=PROMPT, n=2, stop=[stop], temperature=0, max_tokens=12
        )
        assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [(whole[:5], "stop")] * 2
    assert client.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=12).choices[0].text == whole
    server.wait_for(running=0)
