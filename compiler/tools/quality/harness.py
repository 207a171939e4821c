"""Log-likelihoods for lm-evaluation-harness that include the effect of the compressed cache.

The harness requests the likelihood of a continuation after a context. A server that computes it with `echo` and
`logprobs` uses full attention, and the compressed cache has no effect. Here the context is prefilled, which compresses
its cache, and decode steps feed the tokens of the continuation one by one. The score of the first token comes from a
decode step that reads the context's last token with the compressed cache (`scoring.logits_over_cache`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sscc.compiler.tools.quality.scoring import log_probability, logits_over_cache, prefilled_part
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.prompt_store import PromptStore, default_limit
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.session import Session


class HarnessErrors(ErrorKind):
    NO_CONTINUATION = UsageError, "a continuation has no tokens"
    NO_CONTEXT = UsageError, "a context has no tokens: begin it with the token for the beginning of a text"
    TOO_LONG = UsageError, "a continuation of {tokens} tokens leaves no room for a context; the maximum is {most}"


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a continuation.

    Attributes:
        logprob: sum of its tokens' log-probabilities.
        greedy: True if each token is the most likely one.
    """

    logprob: float
    greedy: bool


@dataclass
class _Scoring:
    """A continuation that is being scored in a slot."""

    number: int
    tokens: Sequence[int]
    at: int = 0
    logprob: float = 0.0
    greedy: bool = True

    def take(self, logits: Array) -> bool:
        """Score the next token with its logits [V]. Return True if it was the last."""
        token = self.tokens[self.at]
        self.logprob += log_probability(logits, token)
        self.greedy &= token == int(logits.argmax())
        self.at += 1
        return self.at == len(self.tokens)


class CacheScorer:
    """Scorer of continuations with the cache of a session, in all of its slots concurrently.

    Contexts with a common prefix share its prefill.

    Args:
        session: session that nothing else uses.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._prompts = PromptStore(session, default_limit())
        self._last: Snapshot | None = None

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        """Return the likelihood of each continuation after its context, both in tokens.

        If a context and its continuation exceed the program's maximum context, the beginning of the context is dropped.

        Raises:
            UsageError: an empty context or continuation, or a continuation that alone does not fit.
        """
        contexts = [tuple(self._fitting(*pair)) for pair in pairs]
        order = sorted(range(len(pairs)), key=lambda number: contexts[number])
        results: dict[int, Likelihood] = {}
        waiting = iter(order)
        running: dict[int, _Scoring] = {}
        while True:
            for slot in set(range(self._session.signature.batch)) - running.keys():
                number = next(waiting, None)
                if number is None:
                    break
                scoring = _Scoring(number, pairs[number][1])
                if scoring.take(self._begin(slot, contexts[number])):
                    results[number] = Likelihood(scoring.logprob, scoring.greedy)
                else:
                    running[slot] = scoring
            if not running:
                if len(results) == len(pairs):
                    return [results[number] for number in range(len(pairs))]
                continue
            logits = self._session.decode({slot: one.tokens[one.at - 1] for slot, one in running.items()})
            for slot, one in list(running.items()):
                if one.take(logits[slot]):
                    results[one.number] = Likelihood(one.logprob, one.greedy)
                    del running[slot]

    def _fitting(self, context: Sequence[int], continuation: Sequence[int]) -> Sequence[int]:
        """Return the end of a context that fits together with its continuation, whose last token is not fed."""
        if not continuation:
            raise HarnessErrors.NO_CONTINUATION()
        if not context:
            raise HarnessErrors.NO_CONTEXT()
        most = self._session.signature.geometry.max_context
        room = most - (len(continuation) - 1)
        if room < 1:
            raise HarnessErrors.TOO_LONG(tokens=len(continuation), most=most)
        return context[max(0, len(context) - room) :]

    def _begin(self, slot: int, context: tuple[int, ...]) -> Array:
        """Prefill a context. Return the logits [V] after it from a decode step with the compressed cache."""
        whole = Excerpt.whole(np.array(context, np.int64))
        prompt = prefilled_part(self._session.signature, whole)
        if self._last is None or self._last.prompt.tokens.key != prompt.key:
            self._session.start_prefill(slot, prompt, *self._prompts.begin(prompt))
            while not self._session.step_prefill(self._session.signature.prefill_steps(len(prompt))):
                pass
            self._last = self._prompts.finish(slot) or self._session.snapshot(slot)
        else:
            self._session.restore(slot, self._last)
        return logits_over_cache(self._session, slot, whole)


def rolling_windows(tokens: Sequence[int], before: int, most: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield contexts and continuations of a text, so that each of its tokens is in one continuation.

    They are the disjoint windows of lm-evaluation-harness (`get_rolling_token_windows` with one token of context). Each
    continuation has `most` tokens after one token of context, except the last, whose longer context makes up for the
    missing tokens.

    Args:
        tokens: tokens of the text.
        before: context of the first window.
        most: maximum number of fed tokens; the last token of a continuation is not fed.
    """
    begin = 0
    while begin < len(tokens):
        end = min(begin + most, len(tokens))
        context = [before] if begin == 0 else list(tokens[max(0, end - most - 1) : begin])
        yield context, list(tokens[begin:end])
        begin = end
