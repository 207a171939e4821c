"""What goes into an engine and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sscc.ir.errors import ErrorKind, SsccError, UsageError
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.samplers import TokenLogprobs
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.speculative_prefill import check_keep
from sscc.runtime.support import serving_options
from sscc.runtime.text.grammar import Grammar

Finish = Literal["eos", "stop", "length", "grammar", "prefilled", "cancelled", "timeout", "error"]
"""The reason why a request ended: an ending token, a stop string or a complete grammar, max_new_tokens, a grammar whose
next token could not be computed, a prompt that another process goes on from, its owner, its timeout, a failure."""

FINISH_REASONS: dict[Finish, str] = {"eos": "stop", "stop": "stop", "length": "length", "grammar": "length"}
"""The reasons of answers in OpenAI's words; the other reasons are errors."""


class RequestErrors(ErrorKind):
    STOP_NOT_TEXTS = UsageError, "stop is {stop!r}, it must be a tuple of strings that are not empty"
    LOGPROBS_NEGATIVE = UsageError, "logprobs is {logprobs}, it must be at least 0"
    TIMEOUT_OUT_OF_RANGE = UsageError, "timeout is {seconds} s, it must be above 0 and at most {most:.0f} s"
    LEAST_ABOVE_MOST = UsageError, "min_tokens is {least}, it must be between 0 and max_new_tokens, which is {most}"
    NO_TOKENS_ALLOWED = UsageError, "allowed_tokens is empty, which allows no answer"


class QueueFull(SsccError):
    """The queue of requests is full: try again later."""


class EngineClosed(SsccError):
    """The engine takes no more requests: it was closed, or it failed."""


@dataclass(frozen=True)
class ThoughtBound:
    """The longest thought with which an answer may begin.

    Attributes:
        most: tokens of it.
        start: tokens with which a thought begins.
        end: tokens with which it ends.
        forced: tokens that follow where it is longer; they contain those of `end`.
        inside: the prompt ends within the thought.
    """

    most: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    forced: tuple[int, ...]
    inside: bool = False


@dataclass(frozen=True)
class Request:
    """A text to be continued.

    Attributes:
        prompt: its tokens, at least one; an `Excerpt` where not all of them are prefilled.
        max_new_tokens: at most so many are made, at least 1.
        sampling: how they are chosen.
        stop: strings that end the text and are no part of it; they need the engine's tokenizer.
        eos: tokens that end the text, the last of its tokens; None: the program's; empty: none.
        logprobs: how many alternatives per token are told; None: no logprobs at all.
        timeout: seconds from submission after which it ends, wherever it is, at most a week; None: no limit.
        keep: the share of the prompt's chunks that is read, as the engine's draft chooses (`Shortener`); None: all.
        text: that the prompt is of, for a draft with another tokenizer; None: it is made of the tokens.
        special: whether the tokenizer put special tokens around the text.
        keep_slot: make no token: once the prompt is prefilled the request has its slot, whose content another process
            is to go on from (`Ticket.aslot`), until `Ticket.taken` or its end.
        grammar: what the text must match; None: anything. It needs the engine's tokenizer. A stop string then ends the
            text only where what comes before it matches as a whole.
        min_tokens: tokens before which no ending token is picked, unless the grammar allows nothing else.
        allowed_tokens: the only tokens that are picked besides ending ones; None: any.
        thought: how long the answer's thought may be; None: any length.
        keep_stop: leave the stop string that ends the text in it.
        spell_special: spell special tokens in the text, but for an ending one.
        spelled: special tokens that are spelled in any case.
        prompt_logprobs: alternatives that are told for each token of the prompt; None: no logprobs of the prompt. Its
            chunks are all prefilled then, and full attention has made the numbers: they say nothing of the cache.

    Raises UsageError for values that no engine takes.
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
"""Characters of a text that are shown where it is printed as part of an object."""


def shown_text(text: str) -> str:
    """The text, or its beginning, as Python writes it."""
    return repr(text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..")


@dataclass(frozen=True)
class Piece:
    """What is new since the piece before.

    Attributes:
        tokens: may be more than one where the consumer is slower than the engine.
        text: that the tokens complete; "" without a tokenizer; never text that may yet become part of a stop string.
        logprobs: one per token where asked for.
        finish: set in the last piece.
        prompt_logprobs: in the first piece, where asked for: one for each token of the prompt but the first.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, repr=False)
class Completion:
    """A request that has ended.

    Attributes:
        tokens: all new ones, the ending one included.
        text: theirs, without an ending token or a stop string; "" without a tokenizer.
        logprobs: one per token where asked for.
        finish: why it ended.
        prompt_tokens: of the request.
        kept_rows, evicted_rows: of its cache at the end, per layer and KV head; 0 where prefill did not finish.
        cached_tokens: of the prompt, whose prefill an earlier one saved.
        queued_seconds: from submission until a slot took it.
        first_token_seconds: from submission to the first token; where there is none, to the end.
        seconds: from submission to the end.
        left_out_tokens: of the prompt, by a draft; with another tokenizer, by how many it has become shorter.
        prompt_logprobs: one for each token of the prompt but the first, where asked for.
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
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def __repr__(self) -> str:
        tokens = f"{self.finish} after {len(self.tokens)} tokens, prompt of {self.prompt_tokens}"
        rows = f"{self.kept_rows} rows kept, {self.evicted_rows} evicted"
        return f"Completion({shown_text(self.text)}, {tokens}, {rows}, {self.seconds:.3g} s)"
