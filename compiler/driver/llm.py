"""Text generation with an artifact in this process: continuous batching of many prompts, with vLLM's names.

`LLM` opens an artifact and an engine over it (`sscc.runtime.serving.engine`). Prompts in excess of the program's slots
wait.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sscc.compiler.driver.sessions import open_session, open_speculation
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.runtime.backends.registry import DEFAULT_BACKEND
from sscc.runtime.serving.engine import (
    FINISH_REASONS,
    Completion,
    Engine,
    EngineOptions,
    Request,
    RequestHandle,
    cancel_all,
    shown_text,
)
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.generation import default_new_tokens
from sscc.runtime.session.generation_config import default_sampling, overriding
from sscc.runtime.session.samplers import TokenLogprobs
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.speculation import Speculation
from sscc.runtime.support.serving_options import NEW_TOKENS
from sscc.runtime.text.grammar import Grammar

if TYPE_CHECKING:
    from os import PathLike

    from tokenizers import Tokenizer

    from sscc.runtime.session.session import Session
    from sscc.runtime.text.chat_template import ChatTemplate

Prompt = str | Sequence[int]
"""Text or tokens."""

Conversation = Sequence[Mapping[str, Any]]
"""Messages with `role` and `content`, oldest first."""

_SEEDS = 2**63


class LlmErrors(ErrorKind):
    TOO_SMALL = UsageError, "{parameter} must be at least 1, got {value}"
    NO_CHAT_TEMPLATE = InputError, "{path} has no chat template, so it cannot chat: use generate"
    SEVERAL_STREAMED = UsageError, "n is {n}, but only one answer can be streamed: use generate"
    PARAMETERS_DIFFER = (
        UsageError,
        "{parameters} sampling_params were given for {prompts} prompts: give one, or one for each prompt",
    )
    PROMPT = UsageError, "prompt {number}: {cause}"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request, with vLLM's names.

    Attributes:
        n: number of answers to each prompt. Answer i is sampled with seed + i, so that a single request with that seed
            reproduces it.
        temperature: 0 for greedy decoding; None for the value in the model's generation_config.json, or greedy without
            that file. None has this meaning also for `top_p`, `top_k`, `min_p` and `repetition_penalty`.
        top_p: keep the most likely tokens that together have this probability; 1 keeps all.
        top_k: number of most likely tokens to keep; 0 or -1 keeps all.
        min_p: drop tokens less likely than this times the most likely; 0 drops none.
        seed: random seed; None for a different one every time.
        max_tokens: maximum tokens of an answer; None for 64, or fewer if fewer fit the context.
        stop: strings that end the text, and are not part of it.
        stop_token_ids: tokens that end the text, in addition to the model's end tokens.
        ignore_eos: True if the model's end tokens do not end the text.
        repetition_penalty, presence_penalty, frequency_penalty: see `Sampling`; 1, 0 and 0 change nothing.
        logit_bias: number to add to the logit of each token.
        logprobs: number of alternatives reported for each token; None for no logprobs.
        prompt_logprobs: number of alternatives reported for each token of the prompt; None for no logprobs of the
            prompt.
        grammar: grammar that the text must match; None for any text. It needs the package llguidance.
        min_tokens: minimum number of tokens; nothing ends the text earlier.
        allowed_token_ids: tokens that the text may contain, besides end tokens; None for any.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string that ends the text.

    Raises UsageError for invalid values.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    min_tokens: int = 0
    allowed_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise LlmErrors.TOO_SMALL(parameter="n", value=self.n)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise LlmErrors.TOO_SMALL(parameter="max_tokens", value=self.max_tokens)
        self.requests((0,), NEW_TOKENS + 1, frozenset())  # refuses invalid values of the other fields

    def requests(
        self, prompt: tuple[int, ...], max_context: int, eos: frozenset[int], model: Sampling | None = None
    ) -> list[Request]:
        """Return the requests for an engine, one for each answer.

        Args:
            max_context: maximum number of tokens of prompt and answer together.
            eos: end tokens of the program.
            model: default sampling of the model (`default_sampling`).
        """
        seed = secrets.randbelow(_SEEDS) if self.seed is None else self.seed
        sampling = replace(
            model or Sampling(),
            **overriding(self),
            seed=seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(self.logit_bias.items()),
        )
        return [
            Request(
                prompt=prompt,
                max_new_tokens=self.max_tokens or default_new_tokens(max_context, len(prompt)),
                sampling=replace(sampling, seed=(seed + index) % _SEEDS),
                stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
                eos=(frozenset() if self.ignore_eos else eos).union(self.stop_token_ids),
                logprobs=self.logprobs,
                prompt_logprobs=self.prompt_logprobs if index == 0 else None,
                grammar=self.grammar,
                min_tokens=self.min_tokens,
                allowed_tokens=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
                keep_stop=self.include_stop_str_in_output,
                spell_special=not self.skip_special_tokens,
            )
            for index in range(self.n)
        ]


@dataclass(frozen=True, repr=False)
class CompletionOutput:
    """One answer to a prompt.

    Attributes:
        index: index among the answers to the same prompt.
        text: text without the stop string or the end token; "" if the artifact has no tokenizer.
        token_ids: all generated tokens, the end token included.
        finish_reason: "stop" after an end token or a stop string, "length" after `max_tokens`.
        logprobs: one per token if requested.
        kept_rows, evicted_rows: rows of the answer's cache at its end, per layer and KV head.
        first_token_seconds, seconds: time from submission to the first token, and to the end.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...]
    kept_rows: int
    evicted_rows: int
    first_token_seconds: float
    seconds: float

    @property
    def cumulative_logprob(self) -> float | None:
        """Logarithm of the answer's probability; None without logprobs."""
        return sum(each.logprob for each in self.logprobs) if self.logprobs else None

    def __repr__(self) -> str:
        rows = f"{self.kept_rows} rows kept, {self.evicted_rows} evicted"
        tokens = f"{self.finish_reason} after {len(self.token_ids)} tokens"
        return f"CompletionOutput({shown_text(self.text)}, {tokens}, {rows})"

    @classmethod
    def of(cls, index: int, completion: Completion) -> CompletionOutput:
        """Return an answer of the engine."""
        return cls(
            index=index,
            text=completion.text,
            token_ids=completion.tokens,
            finish_reason=FINISH_REASONS.get(completion.finish, completion.finish),
            logprobs=completion.logprobs,
            kept_rows=completion.kept_rows,
            evicted_rows=completion.evicted_rows,
            first_token_seconds=completion.first_token_seconds,
            seconds=completion.seconds,
        )


@dataclass(frozen=True, repr=False)
class RequestOutput:
    """A prompt and its answers.

    Attributes:
        prompt: its text, for a conversation after applying the chat template; None for a prompt of tokens.
        prompt_token_ids: its tokens.
        outputs: the `SamplingParams.n` answers.
        prompt_logprobs: one for each token of the prompt except the first, if requested.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.outputs[0].text

    def __repr__(self) -> str:
        prompt = f"{len(self.prompt_token_ids)} tokens" if self.prompt is None else shown_text(self.prompt)
        return f"RequestOutput(prompt {prompt}, {', '.join(map(repr, self.outputs))})"


class LLM:
    """A model that generates text::

        with sscc.LLM("model.rdu") as llm:
            for output in llm.generate(["once upon", "the end"], sscc.SamplingParams(temperature=0, max_tokens=32)):
                print(output.prompt, output.text)

    Answers depend only on their prompts and sampling parameters, not on concurrent requests. Methods may be called from
    several threads. Leaving the context, or `close`, ends the engine and, for a program of several ranks, the other
    ranks.

    Args:
        model: an artifact.
        checkpoint, interpreter, threads, verify: see `sscc.load`.
        prompt_cache_bytes: see `EngineOptions`; 0 disables the prompt cache.
        speculate: draft of the answers' tokens, several of which are then verified in one step: "lookup", or the
            artifact of a smaller model with the same tokens; None for one token a step.

    Attributes:
        session: session with which the engine decodes; its slots belong to the engine.
        engine: engine, for non-blocking requests, asyncio and metrics.

    Raises:
        UsageError: there is no such interpreter.
        InputError: missing, truncated or damaged files, or a newer format.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        checkpoint: str | PathLike[str] | None = None,
        interpreter: str = DEFAULT_BACKEND,
        threads: int | None = None,
        verify: bool = True,
        prompt_cache_bytes: int | None = None,
        speculate: str | PathLike[str] | None = None,
    ) -> None:
        options = EngineOptions(max_queue=None, prompt_cache_bytes=prompt_cache_bytes)
        self._artifact = Artifact.load(model, verify=verify)
        weights = None if checkpoint is None else Path(checkpoint)
        self.session: Session = open_session(self._artifact, weights, interpreter=interpreter, threads=threads)
        has_text = self._artifact.tokenizer_file is not None
        with ExitStack() as opened:
            opened.callback(self.session.close)
            tokenizer, speculation = self.session.tokenizer if has_text else None, None
            if speculate is not None:
                speculation = open_speculation(
                    speculate, self.session.signature, interpreter=interpreter, threads=threads, verify=verify
                )
                opened.callback(speculation.close)
            self.engine = Engine(self.session, tokenizer, options, speculation=speculation)
            opened.pop_all()
        self._closed = weakref.finalize(self, _close, self.engine, self.session, speculation)

    def __repr__(self) -> str:
        return f"LLM({self._artifact.path.name}: {self.session.signature.in_words()})"

    @property
    def tokenizer(self) -> Tokenizer:
        """Converter between text and tokens. Raises InputError if the artifact has none."""
        return self.session.tokenizer

    @cached_property
    def _sampling(self) -> Sampling:
        return default_sampling(self._artifact.tokenizer, self._artifact.tokenizer_files)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Converter from messages to the text of a prompt. Raises InputError if the checkpoint had none."""
        from sscc.runtime.text.chat_template import ChatTemplate

        folder = self._artifact.tokenizer
        template = None if folder is None else ChatTemplate.load(folder, names=self._artifact.tokenizer_files)
        if template is None:
            raise LlmErrors.NO_CHAT_TEMPLATE(path=self._artifact.path)
        return template

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Return the answers to one prompt or several, in order. An exception during generation (Ctrl-C) ends all of
        them.

        Args:
            prompts: text or lists of tokens; `[1, 2]` is one prompt of two tokens.
            sampling_params: one for all prompts, or one for each prompt; None for `SamplingParams()`.

        Raises:
            UsageError: a prompt is empty, too long or has a token outside of the vocabulary, or the numbers of
                parameters and prompts differ. In these cases nothing is generated.
            InputError: a prompt is text, and the artifact has no tokenizer.
        """
        return self._answers([self._prompt(each) for each in _several(prompts)], sampling_params)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Return the assistant's next message in one conversation or several.

        Args:
            messages: `[{"role": "user", "content": "hello"}]`, or a list of such lists.
            sampling_params: as for `generate`.

        Raises as `generate` does, and InputError if the checkpoint had no chat template.
        """
        return self._answers([self._conversation(each) for each in _conversations(messages)], sampling_params)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the text of one answer piece by piece as it is generated. Dropping the iterator ends the request.

        Raises the errors of `generate` immediately, and UsageError for several answers.
        """
        if sampling_params is not None and sampling_params.n > 1:
            raise LlmErrors.SEVERAL_STREAMED(n=sampling_params.n)
        (asked,) = self._requests([self._prompt(prompt)], sampling_params)[0]
        return self._texts(self.engine.submit(asked))

    def _texts(self, handle: RequestHandle) -> Iterator[str]:
        """Yield the text of a request. The reference to self keeps the engine open until it ends."""
        yield from (piece.text for piece in handle.pieces() if piece.text)

    def close(self) -> None:
        """End running requests, the engine and other ranks. Closing twice has no effect."""
        self._closed()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- prompts

    def _prompt(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        from sscc.runtime.text.tokenizer import encode

        if isinstance(prompt, str):
            return prompt, tuple(encode(self.tokenizer, prompt))
        return None, tuple(prompt)

    def _conversation(self, messages: Conversation) -> tuple[str | None, tuple[int, ...]]:
        from sscc.runtime.text.tokenizer import encode

        text = self.chat_template.render(messages)
        return text, tuple(encode(self.tokenizer, text, special=False))

    def _requests(
        self,
        prompts: Sequence[tuple[str | None, tuple[int, ...]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[list[Request]]:
        params = sampling_params or SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else [*params]
        if len(each) != len(prompts):
            raise LlmErrors.PARAMETERS_DIFFER(parameters=len(each), prompts=len(prompts))
        signature = self.session.signature
        eos, context = frozenset(signature.eos_token_ids), signature.geometry.max_context
        model = self._sampling
        requests = [one.requests(tokens, context, eos, model) for one, (_, tokens) in zip(each, prompts, strict=True)]
        for number, (first, *_) in enumerate(requests):
            try:
                self.session.check_request(first.prompt, first.max_new_tokens)
            except UsageError as error:
                raise LlmErrors.PROMPT(number=number, cause=error) from None
        return requests

    def _answers(
        self,
        prompts: Sequence[tuple[str | None, tuple[int, ...]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[RequestOutput]:
        requests = self._requests(prompts, sampling_params)
        handles = self.engine.submit_all([request for several in requests for request in several])
        try:
            completions = iter([handle.result() for handle in handles])
        except BaseException:
            cancel_all(handles)
            raise
        outputs = []
        for (text, tokens), several in zip(prompts, requests, strict=True):
            done = [next(completions) for _ in several]
            answers = tuple(CompletionOutput.of(index, one) for index, one in enumerate(done))
            outputs.append(RequestOutput(text, tokens, answers, done[0].prompt_logprobs))
        return outputs


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt or several as a list."""
    if isinstance(prompts, str):
        return [prompts]
    texts_or_lists = [each for each in prompts if isinstance(each, str | Sequence)]
    return [*texts_or_lists] if len(texts_or_lists) == len(prompts) else [cast("Sequence[int]", prompts)]


def _conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Return one conversation or several as a list."""
    several = [each for each in messages if not isinstance(each, Mapping)]
    return several if len(several) == len(messages) else [cast("Conversation", messages)]


def _close(engine: Engine, session: Session, speculation: Speculation | None) -> None:
    engine.close(drain=False)
    session.close()
    if speculation is not None:
        speculation.close()
