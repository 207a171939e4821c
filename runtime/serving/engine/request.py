"""Requests of an engine, their results, and the engine's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sscc.ir.errors import ErrorKind, SsccError, UsageError
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.samplers import TokenLogprobs
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.speculative_prefill import check_keep
from sscc.runtime.support import serving_options
from sscc.runtime.text.grammar import Grammar

Finish = Literal["eos", "stop", "length", "grammar", "prefilled", "cancelled", "timeout", "error"]
"""Reason why a request ended. "eos": an end token; "stop": a stop string or a complete grammar; "length":
`max_new_tokens`; "grammar": the grammar failed to compute the next token; "prefilled": another process continues from
the prompt; "cancelled": by its owner; "timeout": `timeout` has passed; "error": a failure."""

FINISH_REASONS: dict[Finish, str] = {"eos": "stop", "stop": "stop", "length": "length", "grammar": "length"}
"""Finish reasons of complete answers, with OpenAI's name for each; all other reasons are errors."""


class RequestErrors(ErrorKind):
    STOP_NOT_TEXTS = UsageError, "stop must be a tuple of strings that are not empty, got {stop!r}"
    LOGPROBS_NEGATIVE = UsageError, "logprobs must be at least 0, got {logprobs}"
    TIMEOUT_OUT_OF_RANGE = UsageError, "timeout must be above 0 and at most {most:.0f} s, got {seconds} s"
    LEAST_ABOVE_MOST = UsageError, "min_tokens must be between 0 and max_new_tokens, which is {most}, got {least}"
    NO_TOKENS_ALLOWED = UsageError, "allowed_tokens is empty, which allows no answer"


class QueueFull(SsccError):
    """The queue of requests is full: try again later."""


class EngineClosed(SsccError):
    """The engine accepts no more requests: it was closed, or it failed."""


@dataclass(frozen=True)
class ThoughtBound:
    """Upper bound on the length of the reasoning at the beginning of an answer.

    Attributes:
        most: maximum number of tokens of the reasoning.
        start: tokens that start reasoning.
        end: tokens that end reasoning.
        forced: tokens forced after reasoning of `most` tokens; they contain `end`.
        inside: True if the prompt ends inside reasoning.
    """

    most: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    forced: tuple[int, ...]
    inside: bool = False


@dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it.

    Attributes:
        prompt: tokens of the prompt, at least one; an `Excerpt` if only a part of them is prefilled.
        max_new_tokens: maximum number of generated tokens, at least 1.
        sampling: sampling parameters.
        stop: strings that end the text and are not part of it; they need the engine's tokenizer.
        eos: end tokens, which end the text and are part of the request's tokens; None for the program's; empty for
            none.
        logprobs: number of alternatives reported for each token; None for no logprobs.
        timeout: seconds from submission after which the request ends in any state, at most a week; None for no limit.
        keep: fraction of the prompt's chunks to prefill, selected by the engine's draft (`Shortener`); None for all.
        text: text of the prompt, for a draft with another tokenizer; None to decode it from the tokens.
        special: True if the tokenizer added special tokens around the text.
        keep_slot: generate no tokens. After prefill the request keeps its slot, for another process to continue from
            (`RequestHandle.aslot`), until `RequestHandle.taken` or the end of the request.
        grammar: grammar that the text must match; None for any text. It needs the engine's tokenizer. With a grammar, a
            stop string ends the text only where the text before it is a complete match.
        min_tokens: number of tokens before which no end token is picked, unless the grammar allows nothing else.
        allowed_tokens: the only tokens that may be picked besides end tokens; None for any.
        thought: bound on the length of the answer's thought; None for any length.
        keep_stop: keep the stop string that ends the text.
        spell_special: spell special tokens in the text, except for an end token.
        spelled: special tokens that are spelled regardless of `spell_special`.
        predicted: tokens of a text that the answer is expected to resemble, as a draft; empty for none.
        prompt_logprobs: number of alternatives reported for each token of the prompt; None for no logprobs of the
            prompt. With it every chunk is prefilled, and the logits come from full attention: they do not depend on the
            compressed cache.

    Raises UsageError for values that no engine accepts.
    """

    prompt: tuple[int, ...] | Excerpt
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    eos: frozenset[int] | None = None
    logprobs: int | None = None
    timeout: float | None = None
    keep: float | None = None
    text: str | None = field(default=None, repr=False)
    special: bool = True
    keep_slot: bool = False
    grammar: Grammar | None = None
    min_tokens: int = 0
    allowed_tokens: tuple[int, ...] | None = None
    thought: ThoughtBound | None = None
    keep_stop: bool = False
    spell_special: bool = False
    spelled: frozenset[int] = frozenset()
    prompt_logprobs: int | None = None
    predicted: tuple[int, ...] = ()

    @property
    def predicted_tokens(self) -> NDArray[np.int64] | None:
        """[m], the tokens of `predicted`; None for none."""
        return np.array(self.predicted, np.int64) if self.predicted else None

    def __post_init__(self) -> None:
        if not isinstance(self.stop, tuple) or not all(self.stop):
            raise RequestErrors.STOP_NOT_TEXTS(stop=self.stop)
        if self.logprobs is not None and self.logprobs < 0:
            raise RequestErrors.LOGPROBS_NEGATIVE(logprobs=self.logprobs)
        if self.prompt_logprobs is not None and self.prompt_logprobs < 0:
            raise RequestErrors.LOGPROBS_NEGATIVE(logprobs=self.prompt_logprobs)
        if self.timeout is not None and not 0 < self.timeout <= serving_options.MOST_SECONDS:
            raise RequestErrors.TIMEOUT_OUT_OF_RANGE(seconds=self.timeout, most=serving_options.MOST_SECONDS)
        if self.keep is not None:
            check_keep(self.keep)
        if not 0 <= self.min_tokens <= max(self.max_new_tokens, 0):
            raise RequestErrors.LEAST_ABOVE_MOST(least=self.min_tokens, most=self.max_new_tokens)
        if self.allowed_tokens is not None and not self.allowed_tokens:
            raise RequestErrors.NO_TOKENS_ALLOWED()


SHOWN_TEXT = 80
"""Maximum number of characters of a text in the `repr` of an object."""


def shown_text(text: str) -> str:
    """Return the `repr` of a text, shortened to its beginning if it is long."""
    return repr(text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..")


@dataclass(frozen=True)
class Piece:
    """Output of a request since the previous piece.

    Attributes:
        tokens: new tokens; more than one if the consumer is slower than the engine.
        text: text completed by these tokens; "" without a tokenizer. Text that may become part of a stop string is held
            back.
        logprobs: one per token, if requested.
        finish: finish reason; set in the last piece only.
        prompt_logprobs: in the first piece, if requested: one for each token of the prompt but the first.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, repr=False)
class Completion:
    """Result of a request that has ended.

    Attributes:
        tokens: all generated tokens, the end token included.
        text: their text, without an end token or a stop string; "" without a tokenizer.
        logprobs: one per token, if requested.
        finish: finish reason.
        prompt_tokens: tokens of the submitted prompt.
        kept_rows, evicted_rows: rows of the request's cache at its end, per layer and KV head; 0 if prefill did not
            finish.
        drafted_tokens, accepted_tokens: tokens drafted for the answer, and those of them that were picked.
        cached_tokens: tokens of the prompt that did not have to be prefilled, because they were cached.
        queued_seconds: time from submission until the request got a slot.
        first_token_seconds: time from submission to the first token; without one, to the end.
        seconds: time from submission to the end.
        left_out_tokens: tokens of the prompt that a draft left out; if the draft has another tokenizer, the reduction
            in length.
        prompt_logprobs: one for each token of the prompt but the first, if requested.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]
    finish: Finish
    prompt_tokens: int
    kept_rows: int
    evicted_rows: int
    cached_tokens: int
    queued_seconds: float
    first_token_seconds: float
    seconds: float
    left_out_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def __repr__(self) -> str:
        tokens = f"{self.finish} after {len(self.tokens)} tokens, prompt of {self.prompt_tokens}"
        rows = f"{self.kept_rows} rows kept, {self.evicted_rows} evicted"
        return f"Completion({shown_text(self.text)}, {tokens}, {rows}, {self.seconds:.3g} s)"
