"""Score of one example with one compressed cache.

The logits after a prompt come from prefill, whose attention is exact and does not depend on the compressed cache.
Therefore a decode step repeats the last token of the prompt at its position, and all scored tokens depend on the cache.
Recurrent states and convolutions cannot read a token twice: with these, the prompt is prefilled without its last token,
which a decode step then reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from sscc.compiler.tools.quality.answer_scores import METRICS
from sscc.compiler.tools.quality.example import Example
from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.excerpt import Excerpt, PromptTokens
from sscc.runtime.session.samplers import Sampler
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.text.tokenizer import decode

NATS = "nats"
TOKENS = "tokens"


class ExampleScoringErrors(ErrorKind):
    UNKNOWN_METRIC = InternalError, "the metric of the example {example} must be one of {metrics}, got {metric!r}"


@dataclass(frozen=True)
class ExampleResult:
    """Result of an example.

    Attributes:
        score: score of the example's metric, 0 to 1; nats per token (lower is better) for a predicted continuation.
        said: generated text; "" without a tokenizer.
        tokens: generated tokens, the end token included; empty for a predicted continuation.
        kept_rows: rows of the cache in use at the end, per layer and KV head.
        seconds: wall time of prefill and decode.
    """

    score: float
    said: str
    tokens: tuple[int, ...]
    kept_rows: int
    seconds: float


def prefilled_part(signature: Signature, prompt: Excerpt) -> Excerpt:
    """Return the tokens of a prompt to prefill before `logits_over_cache`: all, or all but the last."""
    behind = prompt.positions[-2:]
    if signature.reads_twice or len(behind) < 2 or behind[1] != behind[0] + 1:
        return prompt
    return Excerpt(prompt.tokens[:-1], prompt.positions[:-1])


def logits_over_cache(session: Session, slot: int, prompt: Excerpt) -> Array:
    """Return the logits [V] after a prompt whose `prefilled_part` is in a slot, from a decode step over its cache.

    A prompt of one token, or one that omits the last token but one, has them from prefill where its last token cannot
    be read twice.
    """
    if session.signature.reads_twice:
        return session.replay(slot)
    prefilled = session.prompt(slot)
    if len(prefilled.tokens) == len(prompt):
        return prefilled.logits
    logits: Array = session.decode({slot: int(prompt.tokens[-1])})[slot]
    return logits


def run_example(
    session: Session, example: Example, tokenizer: Tokenizer | None, prompt: PromptTokens | None = None
) -> ExampleResult:
    """Run an example in slot 0 and score its output.

    Args:
        session: session of the cell's program.
        example: the example.
        tokenizer: tokenizer of the model; None without one.
        prompt: shortened prompt, in place of the example's.
    """
    start = time.perf_counter()
    given = example.prompt if prompt is None else prompt
    excerpt = given if isinstance(given, Excerpt) else Excerpt.whole(np.asarray(given, np.int64))
    session.prefill(0, prefilled_part(session.signature, excerpt))
    logits = logits_over_cache(session, 0, excerpt)
    for token in example.spoken:
        logits = session.decode({0: token})[0]
    tokens: tuple[int, ...] = ()
    said = ""
    if example.metric == NATS:
        score = _nats(session, logits, example.continuation)
    else:
        tokens = _greedy(session, logits, example.max_new_tokens)
        said = "" if tokenizer is None else decode(tokenizer, tokens)
        score = _score(example, said, tokens)
    seconds = time.perf_counter() - start
    return ExampleResult(score, said, tokens, session.kept(0).kept, seconds)


def _greedy(session: Session, logits: Array, count: int) -> tuple[int, ...]:
    """Return at most `count` greedy tokens, the end token included."""
    ends, sampler = session.signature.eos_token_ids, Sampler(Sampling())
    tokens = [sampler.pick(logits)]
    while len(tokens) < count and tokens[-1] not in ends:
        tokens.append(sampler.pick(session.decode({0: tokens[-1]})[0]))
    return tuple(tokens)


def _nats(session: Session, logits: Array, continuation: Sequence[int]) -> float:
    """Return the negative mean log-probability of the tokens, each after those before it."""
    total = 0.0
    for number, token in enumerate(continuation, 1):
        total -= log_probability(logits, token)
        if number < len(continuation):
            logits = session.decode({0: token})[0]
    return total / len(continuation)


def log_probability(logits: Array, token: int) -> float:
    """Return the log-probability of a token for logits [V], in double precision."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    return float(wide[token] - largest - np.log(np.exp(wide - largest).sum()))


def _score(example: Example, said: str, tokens: Sequence[int]) -> float:
    if example.metric == TOKENS:
        return float(tuple(tokens[: len(example.answer_tokens)]) == example.answer_tokens)
    if example.metric not in METRICS:
        raise ExampleScoringErrors.UNKNOWN_METRIC(example=example.name, metric=example.metric, metrics=list(METRICS))
    return METRICS[example.metric](said, example.answers)
