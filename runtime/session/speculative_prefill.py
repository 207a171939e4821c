"""Speculative prefill (arXiv 2502.02789): a small program, the draft, reads a prompt, and a large one reads only the
part to which the draft's next tokens attend.

The draft reads the prompt and generates a few tokens. Their queries, and that of the prompt's last token, score it::

    S[l,h,i,t] = softmax over t < n of Q[l,h,i] . K[l,t] * scale     i: at most 8 queries; all in f32
    s[i,t]     = max over layers l and heads h of the mean of S[l,h,i] over t - 6 .. t + 6, zeros beyond the prompt
    s[t]       = mean over i
    c[j]       = mean of s over the j-th 32 tokens

Of J chunks the ceil(keep * J) best are kept, ties to the earlier, and always the last one: the continuation follows the
prompt's last token. Kept tokens keep their positions (`sscc.runtime.session.excerpt`).

Queries of a decode step are not kept in a state. So the draft reads the prompt a second time, followed by its own next
tokens: the last queries of a prompt are kept for each layer when it is done, together with its keys. A draft that keeps
the rows of prompts (`--kv-rows indexed`) continues from them and reads only the last chunk again; others read
everything twice, or more often if fewer queries are kept than score (`--kv-obs`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from sscc.ir.cache_plan import LayerGroup
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.kept_rows import Copy
from sscc.runtime.session.session import Session

LOOK_AHEAD, POOL, CHUNK = 8, 13, 32
"""Number of scoring queries, width of pooling, and tokens of a chunk, as published."""

SLOT = 0

T = TypeVar("T")


class DraftErrors(ErrorKind):
    SELECTS_NO_ROWS = (
        UsageError,
        "a draft scores a prompt by its last queries, but this program selects no rows by them: compile it "
        "without --kv-policy query and with --kv-topk above 0, best with --kv-rows indexed",
    )
    LATENT_ROWS = (
        UsageError,
        "layer {layer} of the draft keeps latent rows instead of keys: use a draft whose heads have separate keys",
    )
    NOT_A_SHARE = UsageError, "keep must be above 0 and at most 1, got {keep:g}"
    SEVERAL_RANKS = (
        UsageError,
        "a draft must be a program of one rank, but this one has several: compile it without --tp",
    )
    SCALES_DIFFER = (
        InputError,
        "all layers of the draft must scale their scores equally, got {ways} different scales",
    )


class Draft:
    """A program that determines the important parts of a prompt.

    Args:
        session: session for the draft alone while a prompt is scored; the contents of its first slot are discarded.

    Raises UsageError for a program whose layers do not keep the queries that score a prompt.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._scale, self._softcap = _score_settings(session)
        self._groups = {layer: (group, index) for group in session.signature.plan if group.geometry.selects
                        for index, layer in enumerate(group.layers)}  # fmt: skip
        self._check(session)

    def _check(self, session: Session) -> None:
        plan = session.signature.plan
        if not self._groups:
            raise DraftErrors.SELECTS_NO_ROWS()
        latent = next((group for group in plan if group.latent), None)
        if latent is not None:
            raise DraftErrors.LATENT_ROWS(layer=latent.layers[0])

    @property
    def longest(self) -> int:
        """Length of the longest prompt that it scores, in tokens."""
        return self.session.signature.geometry.max_context

    @property
    def steps_of_a_chunk(self) -> int:
        """Chunk steps of one chunk of a prompt through all layers."""
        return self.session.signature.prefill_steps(1)

    def scores(self, prompt: Array) -> Array:
        """Return the attention of the draft's next tokens to each token of a prompt [n] i64: [n] f32.

        Raises UsageError for a prompt that the draft cannot read.
        """
        return result_of(self.scoring(prompt))

    def scoring(self, prompt: Array, steps: int | None = None) -> Generator[None, None, Array]:
        """Do the same in pieces: each `next` executes about `steps` chunk steps, or a decode step; None for all chunk
        steps."""
        session = self.session
        try:
            fill = self._empty_chunks(len(prompt))
            session.start_prefill(SLOT, prompt, fill=fill)
            while not session.step_prefill(steps or session.signature.prefill_steps(len(prompt))):
                yield
            ahead = yield from self._look_ahead(len(prompt))
            text = np.concatenate([prompt, np.array(ahead, np.int64)])
            return (yield from self._scored(text, len(prompt), fill, steps))
        finally:
            session.abandon_prefill()
            session.release(SLOT)

    def _empty_chunks(self, length: int) -> dict[int, Copy]:
        """Return memory for the chunks of a prompt that need not be read again."""
        return {chunk: self.session.empty_chunk() for chunk in range(self.session.reusable_chunks(length))}

    def _look_ahead(self, length: int) -> Generator[None, None, list[int]]:
        """Return the tokens that follow the prompt, except the last one, whose query is not used."""
        session, ends = self.session, self.session.signature.eos_token_ids
        logits = session.prefill_logits
        ahead: list[int] = []
        while len(ahead) < min(LOOK_AHEAD - 1, self.longest - length):
            token = int(logits.argmax())
            if token in ends:
                break
            ahead.append(token)
            if len(ahead) < LOOK_AHEAD - 1 and length + len(ahead) < self.longest:
                logits = session.decode({SLOT: token})[SLOT]
                yield
        return ahead

    def _scored(
        self, text: Array, length: int, fill: Mapping[int, Copy], steps: int | None
    ) -> Generator[None, None, Array]:
        """Read a prompt of `length` tokens with those that follow it, and score it by their queries, at most the number
        that a layer keeps at a time."""
        queries = len(text) - length + 1
        window = min(group.geometry.obs for group, _ in self._groups.values())
        best = np.zeros((queries, length), np.float32)
        since = 0
        for first in range(0, queries, window):
            rows = best[first : first + window]
            read = text[: length + first + len(rows) - 1]
            prefix = [fill[chunk] for chunk in range(min(len(fill), self.session.reusable_chunks(len(read))))]
            for layer, taken in self._layers(read, prefix, steps):
                if layer in self._groups:
                    scores = self._layer_scores(*self._groups[layer], len(rows), len(read), length)
                    np.maximum(rows, scores, out=rows)
                since += taken
                if steps is not None and since >= steps:
                    since = 0
                    yield
        mean: Array = best.mean(axis=0)
        return mean

    def _layers(self, text: Array, prefix: list[Copy], steps: int | None) -> Iterator[tuple[int, int]]:
        """Prefill, and yield after every `steps` chunks of a layer: the layer's number after its last chunk, otherwise
        -1, with the number of chunk steps."""
        signature = self.session.signature
        chunks = signature.chunks(len(text)) - len(prefix)
        self.session.start_prefill(SLOT, text, prefix)
        for phase in range(signature.layers + 1):  # the embedding first; the head is not needed
            for first in range(0, chunks, steps or chunks):
                taken = min(steps or chunks, chunks - first)
                self.session.step_prefill(taken)
                yield phase - 1 if first + taken == chunks else -1, taken
        self.session.abandon_prefill()

    def _layer_scores(self, group: LayerGroup, index: int, queries: int, read: int, length: int) -> Array:
        """Return the best scores of a layer's heads [queries, length] f32, after a prefill of `read` tokens."""
        tensor, plan, g = self.session.interpreter.device_tensor, self.session.signature.plan, group.geometry
        observed = tensor(plan.scratch(group).state("observed"))[0]
        last = min(g.obs, read)
        asked = observed[:, last - queries : last].read().astype(np.float32)
        keys = self.session.signature.rows(group).prompt_rows(tensor, group.key, index, SLOT)[:, :length]
        best = np.zeros((queries, length), np.float32)
        each = group.heads // group.kv_heads
        for head in range(group.kv_heads):
            rows = asked[head * each : (head + 1) * each].reshape(each * queries, -1)
            scores = rows @ keys[head].read().astype(np.float32).T
            pooled = _pooled(_softmax(self._capped(scores)))
            best = np.maximum(best, pooled.reshape(each, queries, length).max(axis=0))
        return best

    def _capped(self, products: Array) -> Array:
        products *= np.float32(self._scale)
        if self._softcap is None:
            return products
        capped: Array = np.float32(self._softcap) * np.tanh(products / np.float32(self._softcap))
        return capped


def kept_chunks(scores: Array, keep: float) -> Array:
    """Return the numbers of the kept chunks of a prompt, ascending: [k] i64.

    Args:
        scores: [n] f32, scores of the prompt's tokens.
        keep: fraction of chunks, above 0, at most 1.
    """
    begins = np.arange(0, len(scores), CHUNK)
    sizes = np.diff(np.append(begins, len(scores)))
    means = np.add.reduceat(scores.astype(np.float64), begins) / sizes
    means[-1] = np.inf  # the continuation follows the last token
    best = np.argsort(-means, kind="stable")[: chunks_kept(len(scores), keep)]
    chosen: Array = np.sort(best)
    return chosen


def chunks_kept(length: int, keep: float) -> int:
    """Return the number of kept chunks of a prompt of `length` tokens."""
    return math.ceil(keep * -(-length // CHUNK))


def kept_positions(scores: Array, keep: float) -> Array:
    """Return the positions of the tokens in the kept chunks, ascending: [m] i64. Arguments are those of `kept_chunks`.
    """
    positions = (kept_chunks(scores, keep)[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
    inside: Array = positions[positions < len(scores)]
    return inside


def check_keep(keep: float) -> None:
    """Raise UsageError for an invalid fraction."""
    if not 0 < keep <= 1:
        raise DraftErrors.NOT_A_SHARE(keep=keep)


def result_of(work: Generator[None, None, T]) -> T:
    """Run work in pieces to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def _softmax(scores: Array) -> Array:
    """Compute the softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _pooled(shares: Array) -> Array:
    """Return the mean of `POOL` neighbours along the last axis, with zeros beyond the ends: f32."""
    half = POOL // 2
    sums = np.cumsum(shares, axis=-1, dtype=np.float64)
    ends = np.minimum(np.arange(shares.shape[-1]) + half, shares.shape[-1] - 1)
    begins = np.arange(shares.shape[-1]) - half - 1
    before = np.where(begins >= 0, sums[..., np.maximum(begins, 0)], 0.0)
    pooled: Array = ((sums[..., ends] - before) / POOL).astype(np.float32)
    return pooled


def _score_settings(session: Session) -> tuple[float, float | None]:
    """Return the scale of a program's attention scores, and their cap. Raises UsageError if layers differ."""
    program = session.interpreter.program
    if program is None:
        raise DraftErrors.SEVERAL_RANKS()
    steps: list[Any] = [step for body in program.bodies for step in body.steps]
    scoring = [step for step in steps if {"scale", "softcap"} <= {field.name for field in fields(step)}]
    settings = {(step.scale, step.softcap or None) for step in scoring}
    if len(settings) != 1:
        raise DraftErrors.SCALES_DIFFER(ways=len(settings))
    return settings.pop()


__all__ = ["CHUNK", "Draft", "check_keep", "chunks_kept", "kept_chunks", "kept_positions", "result_of"]
