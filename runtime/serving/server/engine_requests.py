"""Conversion of request bodies to requests of the engine: prompts as tokens, with checked lengths and final seeds."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import lt
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from sscc.ir.errors import UsageError
from sscc.runtime.serving.engine import Request, ThoughtBound
from sscc.runtime.serving.server.api_errors import ApiKind, Http
from sscc.runtime.serving.server.openai import ChatBody, CompletionBody, GenerationBody
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support.serving_options import RequestLimits
from sscc.runtime.text.chat_formats import ChatFormats
from sscc.runtime.text.chat_template import ChatTemplate
from sscc.runtime.text.grammar import Grammar, literal
from sscc.runtime.text.tokenizer import decode, encode, longest_token

MAX_LOGPROB_ENTRIES = 1 << 18  # in one request; each entry takes some hundred bytes
TOO_LONG = Http(code="context_length_exceeded")


class ServedRequestErrors(ApiKind):
    NO_CHAT_TEMPLATE = (
        "{model} has no chat template, so it cannot chat: use /v1/completions",
        Http(code="no_chat_template"),
    )
    TEMPLATE_REFUSES = "{cause}"
    NO_CALLS = (
        "the chat template of {model} shows no format of tool calls: name the format with --tool-parser",
        Http(code="no_tool_calls"),
    )
    NO_THOUGHTS = (
        "the chat template of {model} defines no format of reasoning: name the format with --reasoning-parser"
    )
    NO_EFFORT = "reasoning_effort is {effort!r}, but the chat template of this model does not read it"
    NO_TOKENS = "the prompt has 0 tokens, but must have at least 1"
    POSITIONS_NOT_OF_TOKENS = "there are {positions} positions for {tokens} tokens"
    POSITIONS_NOT_ASCENDING = "positions must be ascending and not negative"
    TEXT_TOO_LONG = "the prompt has {tokens} tokens, but the context has only {context}", TOO_LONG
    ABOVE_LIMIT = "the prompt has {tokens} tokens, but this server accepts at most {most}", TOO_LONG
    TOO_MANY_BYTES = (
        "the prompt has {size} bytes, which cannot be {tokens} tokens or less: a prompt may have at most {most} bytes",
        TOO_LONG,
    )
    NO_ROOM = "the prompt has {tokens} tokens, which leaves no room in the context of {context}", TOO_LONG
    TOO_LITTLE_ROOM = (
        "the prompt has {tokens} tokens and max_tokens is {asked}, but the context has only {context}",
        TOO_LONG,
    )
    TOO_MANY_CHOICES = "{prompts} prompts x n = {n} is more than the {most} answers that a request may have"
    NO_SUCH_TOKEN = "token {token} is out of range: the vocabulary is 0 .. {last}"
    NO_SUCH_BIASED_TOKEN = "token {token} of logit_bias is out of range: the vocabulary is 0 .. {last}"
    TOO_MANY_LOGPROBS = (
        "the request asks for up to {entries} logprobs, but at most {most} are possible: reduce logprobs, "
        "max_tokens or n"
    )
    TOO_MANY_NEW_TOKENS = "max_tokens is {asked}, but this server generates at most {most} tokens"


@dataclass(frozen=True)
class Model:
    """The served model.

    Attributes:
        name: name of the model in requests.
        max_context: maximum number of tokens of prompt and answer together.
        vocab_size: size of the vocabulary.
        created: creation time in seconds since 1970.
        tokenizer: tokenizer of the artifact.
        chat_template: chat template; None if the checkpoint has none.
        keep: fraction of a prompt's chunks to prefill, selected by a draft; None without a draft.
        ends: end tokens.
        formats: formats of the model's reasoning and tool calls.
        sampling: default sampling parameters of requests.
        longest_token: maximum number of bytes of text per token.
    """

    name: str
    max_context: int
    vocab_size: int
    created: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None
    keep: float | None = None
    ends: tuple[int, ...] = ()
    formats: ChatFormats = field(default_factory=ChatFormats)
    sampling: Sampling = field(default_factory=Sampling)

    @cached_property
    def longest_token(self) -> int:
        return longest_token(self.tokenizer)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens by their text."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        return {str(token.content): number for number, token in added if token.special}

    @cached_property
    def spelled(self) -> frozenset[int]:
        """Special tokens that occur in the markers of reasoning and calls."""
        held = self.special_tokens
        marks = "".join(self.formats.markers)
        return frozenset(number for text, number in held.items() if text in marks)

    def spell(self, marker: str) -> str:
        """Return a marker in Lark's syntax, with its special tokens as tokens."""
        held = self.special_tokens
        words = sorted((text for text in held if text in marker), key=len, reverse=True)
        pieces = re.split("|".join(f"({re.escape(word)})" for word in words), marker) if words else [marker]
        return " ".join(f"<[{held[piece]}]>" if piece in held else literal(piece) for piece in pieces if piece)


@dataclass(frozen=True)
class ServedPrompt:
    """A prompt of a request.

    Attributes:
        tokens: tokens of the prompt.
        text: text of the tokens; None if the client sent tokens.
        special: True if the tokenizer added special tokens around the text.
        rendered: the whole text, of which the prompt is the end if it was truncated.
        echo: text of the prompt for an answer that repeats it; None for no repetition.
    """

    tokens: tuple[int, ...]
    text: str | None = None
    special: bool = True
    rendered: str = ""
    echo: str | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def completion_prompts(body: CompletionBody, model: Model, limits: RequestLimits) -> list[ServedPrompt]:
    """Return the prompts as tokens, texts with the special tokens that the tokenizer adds. Raises ApiError."""
    _check_choices(len(body.prompt), body.n, limits)
    special = body.add_special_tokens is not False
    prompts = []
    for one in body.prompt:
        if isinstance(one, str):
            prompts.append(_text_prompt(one, special, "prompt", body, model, limits))
        else:
            prompts.append(_end_of(ServedPrompt(tuple(_checked_tokens(one, model))), body, model))
    if body.echo:
        prompts = [replace(prompt, echo=_text_of(prompt, model)) for prompt in prompts]
    return prompts


def _text_of(prompt: ServedPrompt, model: Model) -> str:
    """Return the text of a prompt: as the client sent it, or decoded from the tokens."""
    if prompt.text is not None:
        return prompt.text
    return decode(model.tokenizer, prompt.tokens, special=True)


def chat_prompts(body: ChatBody, model: Model, limits: RequestLimits) -> list[ServedPrompt]:
    """Return the prompt that the chat template renders from the messages, as a list of one. Raises ApiError without
    one."""
    _check_choices(1, body.n, limits)
    if model.chat_template is None:
        raise ServedRequestErrors.NO_CHAT_TEMPLATE(param="messages", model=model.name)
    variables = _variables(body, model.chat_template)
    if body.callable_tools and not model.formats.calls:
        raise ServedRequestErrors.NO_CALLS(param="tools", model=model.name)
    try:
        text = model.chat_template.render(
            [message.for_template() for message in body.messages],
            tools=body.tools if body.callable_tools else None,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            documents=body.documents,
            variables=variables,
        )
    except UsageError as error:
        raise ServedRequestErrors.TEMPLATE_REFUSES(param="messages", cause=error) from None
    return [_text_prompt(text, bool(body.add_special_tokens), "messages", body, model, limits)]


def _variables(body: ChatBody, template: ChatTemplate) -> dict[str, Any]:
    """Return the template variables of a body. Raises ApiError if the template does not read its reasoning effort."""
    variables = dict(body.chat_template_kwargs)
    effort = body.reasoning_effort
    if effort is None:
        return variables
    if "reasoning_effort" in template.source:
        return {"reasoning_effort": effort} | variables
    if effort == "none" and "enable_thinking" in template.source:
        return {"enable_thinking": False} | variables
    raise ServedRequestErrors.NO_EFFORT(param="reasoning_effort", effort=effort)


def checked_excerpt(
    tokens: list[int], positions: list[int] | None, model: Model, limits: RequestLimits
) -> tuple[int, ...] | Excerpt:
    """Return the tokens of a prompt, which leaves room for at least one more; with positions, an excerpt. Raises
    ApiError.
    """
    if not tokens:
        raise ServedRequestErrors.NO_TOKENS(param="prompt")
    if positions is not None and len(positions) != len(tokens):
        raise ServedRequestErrors.POSITIONS_NOT_OF_TOKENS(
            param="positions", positions=len(positions), tokens=len(tokens)
        )
    length = len(tokens) if positions is None else positions[-1] + 1
    if length >= model.max_context:
        raise ServedRequestErrors.TEXT_TOO_LONG(param="prompt", tokens=length, context=model.max_context)
    if positions is not None and not all(map(lt, [-1, *positions], positions)):
        raise ServedRequestErrors.POSITIONS_NOT_ASCENDING(param="positions")
    _check_length(len(tokens), "prompt", limits)
    checked = _checked_tokens(tokens, model)
    return tuple(checked) if positions is None else Excerpt(np.array(checked, np.int64), np.array(positions, np.int64))


def _check_length(prompt: int, param: str, limits: RequestLimits) -> None:
    if limits.max_prompt is not None and prompt > limits.max_prompt:
        raise ServedRequestErrors.ABOVE_LIMIT(param=param, tokens=prompt, most=limits.max_prompt)


def _check_choices(prompts: int, n: int, limits: RequestLimits) -> None:
    if prompts * n > limits.max_choices:
        param = "n" if prompts == 1 else "prompt"
        raise ServedRequestErrors.TOO_MANY_CHOICES(param=param, prompts=prompts, n=n, most=limits.max_choices)


def _checked_tokens(tokens: list[int], model: Model) -> list[int]:
    for token in tokens:
        if not 0 <= token < model.vocab_size:
            raise ServedRequestErrors.NO_SUCH_TOKEN(param="prompt", token=token, last=model.vocab_size - 1)
    return tokens


def _text_prompt(
    text: str, special: bool, param: str, body: GenerationBody, model: Model, limits: RequestLimits
) -> ServedPrompt:
    if body.truncate_prompt_tokens is None:
        _check_bytes(text, param, model, min(model.max_context, limits.max_prompt or model.max_context))
    tokens = tuple(encode(model.tokenizer, text, special=special))
    return _end_of(ServedPrompt(tokens, text, special, text), body, model)


def _end_of(prompt: ServedPrompt, body: GenerationBody, model: Model) -> ServedPrompt:
    """Return the last tokens of a prompt, at most `truncate_prompt_tokens`."""
    most = body.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == -1:
        most = model.max_context - (body.asked_tokens or body.default_tokens or 1)
    if len(prompt) <= max(most, 0):
        return prompt
    return ServedPrompt(prompt.tokens[len(prompt) - max(most, 0) :], rendered=prompt.rendered)


def _check_bytes(text: str, param: str, model: Model, tokens: int) -> None:
    """Refuse a text that must have more than `tokens` tokens, before it is tokenized: tokenization takes seconds for a
    megabyte without spaces."""
    size, most = len(text.encode()), tokens * model.longest_token
    if size > most:
        raise ServedRequestErrors.TOO_MANY_BYTES(param=param, size=size, tokens=tokens, most=most)


def requests_for(
    body: GenerationBody, prompts: Sequence[ServedPrompt], model: Model, limits: RequestLimits
) -> list[Request]:
    """Return one request per answer, grouped by prompt. Raises ApiError and UsageError.

    Answer i of a prompt is sampled with seed + i, so that a single request with that seed reproduces it.
    """
    for token in map(int, body.logit_bias):
        if token >= model.vocab_size:
            raise ServedRequestErrors.NO_SUCH_BIASED_TOKEN(param="logit_bias", token=token, last=model.vocab_size - 1)
    grammars = [_grammar(body, prompt, model) for prompt in prompts]
    ends = frozenset(() if body.ignore_eos else model.ends) | frozenset(body.stop_token_ids)
    predicted = _predicted(body, model)
    requests = [
        Request(
            prompt=prompt.tokens,
            max_new_tokens=_new_tokens(len(prompt), body, model, limits),
            sampling=body.sampling(_seed(body.seed, index), model.sampling),
            stop=tuple(body.stop),
            eos=ends if body.ignore_eos or body.stop_token_ids else None,
            logprobs=_at_most(body.alternatives, model),
            timeout=limits.timeout,
            keep=model.keep,
            text=prompt.text,
            special=prompt.special,
            grammar=grammar,
            thought=_thought_bound(body, prompt, model),
            spelled=model.spelled if isinstance(body, ChatBody) else frozenset(),
            min_tokens=body.min_tokens,
            allowed_tokens=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
            keep_stop=body.include_stop_str_in_output,
            spell_special=not body.skip_special_tokens,
            prompt_logprobs=_at_most(body.prompt_alternatives, model),
            predicted=predicted,
        )
        for prompt, grammar in zip(prompts, grammars, strict=True)
        for index in range(body.n)
    ]
    _check_logprobs(requests)
    return requests


def _predicted(body: GenerationBody, model: Model) -> tuple[int, ...]:
    """Return the tokens of the text that the answer is expected to resemble; none without one. Raises ApiError if it is
    longer than any answer."""
    if not isinstance(body, ChatBody) or body.prediction is None:
        return ()
    text = body.prediction.content
    _check_bytes(text, "prediction", model, model.max_context)
    return tuple(encode(model.tokenizer, text, special=False))


def _at_most(alternatives: int | None, model: Model) -> int | None:
    return None if alternatives is None else min(alternatives, model.vocab_size)


def _grammar(body: GenerationBody, prompt: ServedPrompt, model: Model) -> Grammar | None:
    """Return the grammar of the answer; None for any text. Raises ApiError, UsageError."""
    answer = body.answer_grammar()
    if not isinstance(body, ChatBody):
        return answer
    formats, tools = model.formats, body.callable_tools
    calls = formats.call_grammar(tools, body.most_calls is None, model.spell) if tools and model.formats.calls else None
    if body.must_call and calls is not None:
        return formats.after_thought(calls, prompt.rendered, model.spell)
    if answer is None:
        return None
    return formats.answer_grammar(answer, None if calls is None else calls, prompt.rendered, model.spell)


def _thought_bound(body: GenerationBody, prompt: ServedPrompt, model: Model) -> ThoughtBound | None:
    """Return the bound on the reasoning; None for any length. Raises ApiError if the model has no format for it."""
    most = body.longest_thought if isinstance(body, ChatBody) else None
    if most is None:
        return None
    marks = model.formats.thought_marks()
    if marks is None:
        raise ServedRequestErrors.NO_THOUGHTS(param="thinking_token_budget", model=model.name)
    start, end, forced = (tuple(encode(model.tokenizer, mark, special=False)) for mark in marks)
    return ThoughtBound(most, start, end, forced, model.formats.thinks(prompt.rendered))


def _check_logprobs(requests: Sequence[Request]) -> None:
    asked = [(each.max_new_tokens, each.logprobs) for each in requests]
    asked += [(len(each.prompt), each.prompt_logprobs) for each in requests]
    entries = sum(tokens * (alternatives + 1) for tokens, alternatives in asked if alternatives is not None)
    if entries > MAX_LOGPROB_ENTRIES:
        raise ServedRequestErrors.TOO_MANY_LOGPROBS(param="logprobs", entries=entries, most=MAX_LOGPROB_ENTRIES)


def _seed(seed: int | None, index: int) -> int:
    return secrets.randbits(63) if seed is None else (seed + index) % 2**63


def _new_tokens(prompt: int, body: GenerationBody, model: Model, limits: RequestLimits) -> int:
    """Return the maximum number of tokens to generate after a prompt of this length. Raises ApiError."""
    param = "messages" if isinstance(body, ChatBody) else "prompt"
    if prompt == 0:
        raise ServedRequestErrors.NO_TOKENS(param=param)
    _check_length(prompt, param, limits)
    asked, most = body.asked_tokens, limits.max_new_tokens
    if asked is not None and most is not None and asked > most:
        raise ServedRequestErrors.TOO_MANY_NEW_TOKENS(param="max_tokens", asked=asked, most=most)
    if asked is None and prompt + 1 > model.max_context:
        raise ServedRequestErrors.NO_ROOM(param=param, tokens=prompt, context=model.max_context)
    if asked is not None and prompt + asked > model.max_context:
        raise ServedRequestErrors.TOO_LITTLE_ROOM(param=param, tokens=prompt, asked=asked, context=model.max_context)
    bounds = (model.max_context - prompt, most, asked, body.default_tokens if asked is None else None)
    return min(bound for bound in bounds if bound is not None)
