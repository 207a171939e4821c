"""/v1/completions with OpenAI's own client: whole and streamed, sync and async, and what every parameter does."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Completion

from sscc.runtime.session.sampling import Sampling
from tests.runtime.server.fake import CONTEXT, CREATED, END, NAME, TOKENIZER, Running, reply, running

GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0}


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.v1, api_key="any", max_retries=0)


class TestWhole:
    def test_the_answer(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(prompt="hello", max_tokens=5, **GREEDY)
        assert (answer.object, answer.model) == ("text_completion", NAME)
        assert answer.id.startswith("cmpl-")
        assert answer.created > CREATED
        (choice,) = answer.choices
        assert (choice.index, choice.text, choice.finish_reason) == (0, reply("hello", 5), "length")
        assert choice.logprobs is None

    def test_usage(self, client: openai.OpenAI) -> None:
        usage = client.completions.create(prompt=["hello", "you"], n=2, max_tokens=5, **GREEDY).usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (8, 20, 28)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 0

    def test_it_ends_with_the_text(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(prompt="hello", max_tokens=60, **GREEDY)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (reply("hello"), "stop")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 27, "the ending token is one of them"

    def test_it_goes_on_where_asked_to(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(prompt="hello", max_tokens=30, extra_body={"ignore_eos": True}, **GREEDY)
        assert answer.choices[0].text == reply("hello") + reply("hello", 3)
        assert answer.choices[0].finish_reason == "length"

    def test_16_tokens_are_the_default(self, client: openai.OpenAI) -> None:
        assert client.completions.create(prompt="hello", **GREEDY).choices[0].text == reply("hello", 16)

    def test_the_default_fits_the_context(self, client: openai.OpenAI) -> None:
        prompt = "x" * (CONTEXT - 4)
        choice = client.completions.create(prompt=prompt, **GREEDY).choices[0]
        assert (choice.text, choice.finish_reason) == (reply(prompt, 4), "length")

    @pytest.mark.parametrize(
        ("prompt", "texts"),
        [
            ("ab", ["ab"]),
            (["ab", "abc"], ["ab", "abc"]),
            (TOKENIZER.encode("ab").ids, ["ab"]),
            ([TOKENIZER.encode("ab").ids, TOKENIZER.encode("c").ids], ["ab", "c"]),
        ],
        ids=["text", "texts", "tokens", "lists of tokens"],
    )
    def test_prompts_of_every_form(self, prompt: Any, texts: list[str], client: openai.OpenAI) -> None:
        choices = client.completions.create(prompt=prompt, max_tokens=4, **GREEDY).choices
        assert [(one.index, one.text) for one in choices] == [(i, reply(text, 4)) for i, text in enumerate(texts)]

    def test_more_answers_than_slots(self, client: openai.OpenAI) -> None:
        prompts = [f"prompt {index}" for index in range(9)]
        choices = client.completions.create(prompt=prompts, n=2, max_tokens=6, **GREEDY).choices
        assert [one.index for one in choices] == list(range(18))
        assert [one.text for one in choices] == [reply(prompt, 6) for prompt in prompts for _ in range(2)]

    def test_bodies_with_nulls_and_parameters_without_effect(self, client: openai.OpenAI) -> None:
        extra = {"user": "me", "echo": False, "suffix": None, "best_of": 1, "logprobs": None, "store": False}
        answer = client.completions.create(prompt="ab", max_tokens=4, extra_body=extra, **GREEDY)
        assert answer.choices[0].text == reply("ab", 4)


class TestStop:
    def test_the_text_ends_before_it(self, client: openai.OpenAI) -> None:
        text = reply("hello")
        answer = client.completions.create(prompt="hello", max_tokens=26, stop=text[5:8], **GREEDY)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text[:5], "stop")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8, "the tokens of the stop string were made"

    def test_the_first_of_several(self, client: openai.OpenAI) -> None:
        text = reply("hello")
        answer = client.completions.create(prompt="hello", max_tokens=26, stop=[text[9:11], "no", text[3:6]], **GREEDY)
        assert answer.choices[0].text == text[:3]

    def test_no_part_of_it_is_streamed(self, client: openai.OpenAI) -> None:
        text = reply("hello")
        stream = client.completions.create(prompt="hello", max_tokens=26, stop=text[5:8], stream=True, **GREEDY)
        texts = ["".join(choice.text for choice in chunk.choices) for chunk in stream]
        assert "".join(texts) == text[:5]

    def test_what_only_looked_like_it_is_given_out(self, client: openai.OpenAI) -> None:
        text = reply("hello")
        stream = client.completions.create(prompt="hello", max_tokens=26, stop=text[24:26] + "!", stream=True, **GREEDY)
        assert "".join(chunk.choices[0].text for chunk in stream) == text


class TestSampling:
    def answer(self, client: openai.OpenAI, **options: Any) -> str:
        return client.completions.create(model=NAME, prompt="hello", max_tokens=20, **options).choices[0].text

    def test_a_seed_repeats_the_answer(self, client: openai.OpenAI) -> None:
        hot = {"temperature": 2.0}
        one, again, other = (self.answer(client, seed=seed, **hot) for seed in (1, 1, 2))
        assert one == again != other
        assert self.answer(client, seed=-1, **hot) == self.answer(client, seed=2**63 - 1, **hot)

    def test_without_a_seed_every_answer_is_another(self, client: openai.OpenAI) -> None:
        assert len({self.answer(client, temperature=2.0) for _ in range(4)}) > 1

    def test_the_default_is_the_models(self, client: openai.OpenAI) -> None:
        assert self.answer(client, seed=5) == reply("hello", 20)
        model = Sampling(temperature=1.0, top_k=2, repetition_penalty=1.5)
        with running(sampling=model) as server, openai.OpenAI(base_url=server.v1, api_key="any") as other:
            unsaid = self.answer(other, seed=5)
            extra = {"top_k": 2, "repetition_penalty": 1.5}
            assert unsaid == self.answer(client, seed=5, temperature=1, extra_body=extra) != reply("hello", 20)
            assert self.answer(other, temperature=0, extra_body={"repetition_penalty": 1}) == reply("hello", 20)
            all_tokens = self.answer(other, seed=5, temperature=2, extra_body={"top_k": -1})
            assert all_tokens == self.answer(client, seed=5, temperature=2, extra_body={"repetition_penalty": 1.5})

    def test_answer_i_has_seed_plus_i(self, client: openai.OpenAI) -> None:
        hot: dict[str, Any] = {"model": NAME, "prompt": ["hello", "you"], "max_tokens": 20, "temperature": 2}
        texts = [choice.text for choice in client.completions.create(n=3, seed=7, **hot).choices]
        alone = [
            client.completions.create(seed=seed, **hot | {"prompt": prompt}).choices[0].text
            for prompt in ("hello", "you")
            for seed in (7, 8, 9)
        ]
        assert texts == alone
        assert len(set(texts)) > 2

    @pytest.mark.parametrize("options", [{"top_k": 1}, {"min_p": 0.9}], ids=str)
    def test_vllms_parameters(self, options: dict[str, Any], client: openai.OpenAI) -> None:
        assert self.answer(client, temperature=2, extra_body=options) == reply("hello", 20)
        assert self.answer(client, temperature=2, seed=1) != reply("hello", 20)

    def test_top_p(self, client: openai.OpenAI) -> None:
        assert self.answer(client, temperature=2, top_p=0.1) == reply("hello", 20)

    def test_logit_bias(self, client: openai.OpenAI) -> None:
        (letter,) = TOKENIZER.encode("q").ids
        assert self.answer(client, temperature=0, logit_bias={str(letter): 100}) == "q" * 20

    @pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
    def test_penalties(self, name: str, client: openai.OpenAI) -> None:
        """A bias makes one letter win at first; the penalty then lets the others pass."""
        (letter,) = TOKENIZER.encode("q").ids
        options: dict[str, Any] = {"temperature": 0, "logit_bias": {str(letter): 31}}
        assert self.answer(client, **options) == "q" * 20
        assert self.answer(client, **options, **{name: 2}) != "q" * 20

    def test_repetition_penalty(self, client: openai.OpenAI) -> None:
        """30 over 3 is less than the second letter's 28, of those letters that were there."""
        prompt = reply("hello", 1)
        plain = client.completions.create(prompt=prompt, max_tokens=1, **GREEDY).choices[0].text
        seen = f"{plain}{prompt}"
        first = client.completions.create(prompt=seen, max_tokens=1, **GREEDY).choices[0].text
        options = {"repetition_penalty": 3.0}
        answer = client.completions.create(prompt=seen + first, max_tokens=1, extra_body=options, **GREEDY)
        assert answer.choices[0].text not in seen + first


class TestLogprobs:
    def test_their_form(self, client: openai.OpenAI) -> None:
        logprobs = client.completions.create(prompt="hello", max_tokens=3, logprobs=2, **GREEDY).choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens == list(reply("hello", 3))
        assert logprobs.text_offset == [0, 1, 2]
        total = math.log(math.exp(0) + math.exp(-2) + math.exp(-4))
        assert logprobs.token_logprobs == pytest.approx([-total] * 3, abs=1e-4)
        assert logprobs.top_logprobs is not None
        two = pytest.approx([-total, -2 - total], abs=1e-4)
        assert [list(top.values()) for top in logprobs.top_logprobs] == [two] * 3
        assert [next(iter(top)) for top in logprobs.top_logprobs] == logprobs.tokens

    def test_the_picked_token_is_always_told(self, client: openai.OpenAI) -> None:
        (letter,) = TOKENIZER.encode("q").ids
        answer = client.completions.create(
            prompt="hello", max_tokens=2, logprobs=1, logit_bias={str(letter): 100}, **GREEDY
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.top_logprobs is not None
        assert [len(top) for top in logprobs.top_logprobs] == [2, 2]
        assert all("q" in top for top in logprobs.top_logprobs)

    def test_the_ending_token_has_one(self, client: openai.OpenAI) -> None:
        choice = client.completions.create(prompt="hello", max_tokens=30, logprobs=0, **GREEDY).choices[0]
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert choice.logprobs.tokens[-1] == "<|end|>"
        assert choice.logprobs.text_offset == list(range(27))

    def test_streamed_they_are_the_same(self, client: openai.OpenAI) -> None:
        options: dict[str, Any] = {"prompt": "hello", "max_tokens": 8, "logprobs": 1, **GREEDY}
        whole = client.completions.create(**options).choices[0].logprobs
        parts = [chunk.choices[0].logprobs for chunk in client.completions.create(stream=True, **options)]
        assert whole is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [entry for part in parts if part is not None for entry in getattr(part, name)]
            assert joined == getattr(whole, name)


def chunks_of(stream: openai.Stream[Completion]) -> list[Completion]:
    return list(stream)


class TestStreaming:
    def test_the_chunks(self, client: openai.OpenAI) -> None:
        chunks = chunks_of(client.completions.create(prompt="hello", max_tokens=12, stream=True, **GREEDY))
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.object == "text_completion" and chunk.usage is None for chunk in chunks)
        assert "".join(chunk.choices[0].text for chunk in chunks) == reply("hello", 12)
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]

    def test_it_comes_bit_by_bit(self) -> None:
        """The first letters are there while the engine waits to make the others."""
        with running() as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            server.interpreter.go.clear()
            stream = client.completions.create(prompt="hello", max_tokens=6, stream=True, **GREEDY)
            first = next(stream).choices[0].text
            assert first == reply("hello", 1)
            server.interpreter.go.set()
            assert first + "".join(chunk.choices[0].text for chunk in stream) == reply("hello", 6)

    def test_usage_comes_last_where_asked_for(self, client: openai.OpenAI) -> None:
        options = {"include_usage": True}
        stream = client.completions.create(
            prompt=["hello", "you"], n=2, max_tokens=30, stream=True, stream_options=options, **GREEDY
        )
        *chunks, last = chunks_of(stream)
        assert all(chunk.usage is None for chunk in chunks)
        assert last.choices == []
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (8, 108, 116)
        assert last.usage.prompt_tokens_details is not None
        assert last.usage.prompt_tokens_details.cached_tokens == 0

    def test_usage_in_every_chunk_where_asked_for(self, client: openai.OpenAI) -> None:
        """Of the answer so far; without include_usage there is none."""
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        stream = client.completions.create(
            prompt=["hello", "you"], max_tokens=30, stream=True, stream_options=options, **GREEDY
        )
        *chunks, last = chunks_of(stream)
        counts: dict[int, list[int]] = {0: [], 1: []}
        for chunk in chunks:
            (choice,) = chunk.choices
            assert chunk.usage.prompt_tokens == len(("hello", "you")[choice.index])
            counts[choice.index].append(chunk.usage.completion_tokens)
        assert all(count == sorted(count) for count in counts.values())
        assert last.usage.completion_tokens == counts[0][-1] + counts[1][-1]
        options = {"continuous_usage_stats": True}
        stream = client.completions.create(prompt="hello", max_tokens=3, stream=True, stream_options=options, **GREEDY)
        assert all(chunk.usage is None for chunk in chunks_of(stream))

    def test_several_answers_at_once(self, client: openai.OpenAI) -> None:
        prompts = [f"prompt {index}" for index in range(5)]
        texts = [""] * 10
        for chunk in client.completions.create(prompt=prompts, n=2, max_tokens=9, stream=True, **GREEDY):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [reply(prompt, 9) for prompt in prompts for _ in range(2)]


class TestAsync:
    def test_whole_and_streamed(self, server: Running) -> None:
        async def ask() -> tuple[list[str], list[str]]:
            async with openai.AsyncOpenAI(base_url=server.v1, api_key="any", max_retries=0) as client:

                async def whole(prompt: str) -> str:
                    return (await client.completions.create(prompt=prompt, max_tokens=20, **GREEDY)).choices[0].text

                async def streamed(prompt: str) -> str:
                    stream = await client.completions.create(prompt=prompt, max_tokens=20, stream=True, **GREEDY)
                    return "".join([chunk.choices[0].text async for chunk in stream])

                prompts = [f"number {index}" for index in range(8)]
                return (
                    list(await asyncio.gather(*map(whole, prompts))),
                    list(await asyncio.gather(*map(streamed, prompts))),
                )

        whole, streamed = asyncio.run(ask())
        assert whole == streamed == [reply(f"number {index}", 20) for index in range(8)]


def test_a_token_that_ends_the_text_is_the_programs(server: Running) -> None:
    assert server.engine.signature.eos_token_ids == (END,)


ASKS_FOR_NOTHING: dict[str, Any] = {
    "model": None, "stop": "", "top_k": -1, "echo": False, "min_tokens": 0, "use_beam_search": False,
    "length_penalty": 1.0, "early_stopping": False, "skip_special_tokens": True, "stop_token_ids": [],
    "include_stop_str_in_output": False, "bad_words": [], "guided_json": None, "truncate_prompt_tokens": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ASKS_FOR_NOTHING)
def test_fields_that_ask_for_nothing_pass(name: str, server: Running) -> None:
    body = {"model": NAME, "prompt": "hello", "max_tokens": 5, "temperature": 0} | {name: ASKS_FOR_NOTHING[name]}
    answer = httpx2.post(f"{server.v1}/completions", json=body)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == reply("hello", 5)


def test_a_top_p_of_0_is_greedy(server: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 5, "temperature": 2, "top_p": 0, "stop": ["", "\0"]}
    answer = httpx2.post(f"{server.v1}/completions", json=body).json()
    assert answer["model"] == NAME
    assert answer["choices"][0]["text"] == reply("hello", 5)


class TestEcho:
    """Answers that begin with their prompts, and the logprobs of these."""

    def test_the_prompt_comes_first(self, client: openai.OpenAI) -> None:
        for prompt in ("hello", TOKENIZER.encode("hello").ids):
            (choice,) = client.completions.create(prompt=prompt, max_tokens=3, echo=True, **GREEDY).choices
            assert (choice.text, choice.logprobs) == ("hello" + reply("hello", 3), None)

    @pytest.mark.parametrize("prompt", ["hello", "h", "x" * (CONTEXT - 3)])
    @pytest.mark.parametrize("new", [0, 2])
    def test_logprobs_are_those_of_the_prompt(self, prompt: str, new: int, client: openai.OpenAI) -> None:
        answer = client.completions.create(prompt=prompt, max_tokens=new, echo=True, logprobs=2, **GREEDY)
        (choice,) = answer.choices
        text = prompt + reply(prompt, new)
        assert (choice.text, choice.finish_reason) == (text, "length")
        figures = choice.logprobs
        assert figures is not None
        assert figures.tokens == list(text)
        assert figures.text_offset == list(range(len(text)))
        assert figures.token_logprobs is not None
        assert figures.top_logprobs is not None
        (first, *rest), (none, *tops) = figures.token_logprobs, figures.top_logprobs
        assert first is none is None
        for before, token, logprob, top in zip(prompt, prompt[1:], rest, tops, strict=False):
            ids = [TOKENIZER.encode(letter).ids[0] for letter in (before, token)]
            total = math.log(math.exp(2) + math.exp(1) + 255 * math.exp(-5))
            right = {1: 2.0, 2: 1.0}.get(ids[1] - ids[0], -5.0)
            assert logprob == pytest.approx(right - total, abs=1e-5)
            assert len(top) == 2 + (right == -5)
            assert top[token] == logprob
        assert len(rest) == len(text) - 1
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), new)

    @pytest.mark.parametrize("new", [0, 2])
    def test_streams_have_the_same(self, new: int, client: openai.OpenAI) -> None:
        options: dict[str, Any] = {"prompt": ["hello", "you"], "max_tokens": new, "echo": True, "logprobs": 1, **GREEDY}
        whole = client.completions.create(**options).choices
        usage = {"stream_options": {"include_usage": True}}
        *chunks, last = client.completions.create(stream=True, **usage, **options)
        assert last.usage is not None
        assert last.usage.completion_tokens == 2 * new
        for choice in whole:
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
            assert "".join(one.text for one in mine) == choice.text
            assert choice.logprobs is not None
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                parts = [getattr(one.logprobs, name) for one in mine]
                assert [value for part in parts for value in part] == getattr(choice.logprobs, name)

    def test_a_prompt_whose_beginning_is_kept_has_all_of_them(self) -> None:
        with running(prompt_cache_bytes=10**6) as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
            options: dict[str, Any] = {"prompt": "x" * 40, "max_tokens": 1, **GREEDY}
            client.completions.create(**options)
            answer = client.completions.create(echo=True, logprobs=0, **options)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            assert answer.usage.prompt_tokens_details.cached_tokens == 0
            assert answer.choices[0].logprobs is not None
            assert len(answer.choices[0].logprobs.token_logprobs or ()) == 41
