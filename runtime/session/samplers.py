"""Sampling of the next token from logits, by penalties, temperature, truncation and a draw that is reproducible by a
seed.

Let x[0 .. V) be the logits of a slot, in f32. The next token is computed in this order:

1.  Penalties. A token of the prompt or picked before gets x / repetition_penalty if x > 0, else x * repetition_penalty;
    a token picked n > 0 times is then lowered by n * frequency_penalty + presence_penalty. In f64, rounded to f32 once.
2.  Logit bias. The addend of a token is added, in f64, rounded to f32. Results of 1 or 2 beyond the range of f32 become
    the largest f32 of their sign; minus infinity stays.
3.  Constraint. A token that a constrained slot may not pick gets minus infinity. If every allowed token has minus
    infinity, the first allowed one is picked, and the uniform number of 8 is not used.
4.  Temperature. At 0 the first of the largest x is picked, without a draw. Otherwise the weight of a token is
    exp((x - max x) / temperature); the largest x has weight 1, and weights below 2**-124 count as 0.
5.  top_k. The k tokens with the largest x are kept; ties, here and in 6, by lower id.
6.  top_p. Of these, the fewest with the largest x are kept that together have top_p of the total weight.
7.  min_p. Of these, those with a weight of at least min_p (relative to the most likely one's 1) are kept.
8.  Draw. The next uniform number u of the slot picks the first kept token, by id, at which the cumulative weight
    exceeds u times the total weight of the kept ones.

Uniform number i of a seed is ``numpy.random.Generator(numpy.random.Philox(key=seed)).random(i + 1)[i]``: of
Philox4x64-10, a function of the seed and i alone. A slot uses one per token, from 0 on, so a sequence gets the same
tokens in any slot, alone or together with others.

Weights are computed in f32, to 4e-7 of each (and 2e-7 more per unit of (max x - x) / temperature), and summed up to
some 1e-6 of a sum: a token closer than this to a boundary may fall on its other side. The same logits give the same
tokens on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support import _native


class SamplerErrors(ErrorKind):
    PROMPT = UsageError, "a prompt is a list of token ids, not an array of {dtype} with shape [{shape}]"
    BATCH_LOGITS = (
        UsageError,
        "logits must be a contiguous f32 or bf16 array of shape [{wanted}], not {order} {dtype} array of shape "
        "[{shape}]",
    )
    ACTIVE_SLOTS = (
        UsageError,
        "the active slots must be a contiguous bool array of shape [{wanted}], not {order} {dtype} array of shape "
        "[{shape}]",
    )
    LOGITS_SHAPE = UsageError, "the logits of one token must have the shape [V], not [{shape}]"
    LOGITS = InputError, "the largest logit is {value}: the weights are damaged, or too large for bf16"
    SLOT_LOGITS = (
        InputError,
        "the largest logit of slot {slot} is {value}: the weights are damaged, or too large for bf16",
    )


@dataclass(frozen=True)
class TokenLogprobs:
    """Probability of a picked token according to the model itself: at temperature 1, before penalties and bias.

    Attributes:
        token: the picked token.
        logprob: natural logarithm of its probability.
        top: most likely tokens with their log-probabilities, descending, ties by lower id: the requested number of
            tokens, fewer if the model excludes the others (a logit of minus infinity).
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Allowed:
    """The tokens that slots may pick.

    Attributes:
        bits: [B, ceil(V / 32)] u32; bit t % 32 of word t // 32 of a slot's row is that of token t.
        constrained: [B] bool, slots whose rows apply; the others may pick any token.
    """

    bits: Array
    constrained: Array

    @classmethod
    def none(cls, slots: int, vocab_size: int) -> Allowed:
        """Return the bits of `slots` slots, none of which is constrained."""
        return cls(np.zeros((slots, (vocab_size + 31) // 32), np.uint32), np.zeros(slots, np.bool_))


class BatchSampler:
    """Picks the next tokens of several sequences, each in its own slot with its own `Sampling`.

    One call at a time: a call while another thread picks raises UsageError.

    Args:
        slots: B.
        vocab_size: V.
        team: threads that share the slots of a pick. Without them, or while they are busy, the calling thread picks
            alone. The tokens are the same.

    Raises UsageError if either is below 1.
    """

    def __init__(self, slots: int, vocab_size: int, team: _native.Team | None = None) -> None:
        self._shape = (slots, vocab_size)
        self._native = _native.BatchSampler(slots, vocab_size, team=team)

    def start(self, slot: int, sampling: Sampling, prompt: Sequence[int] | Array, logprobs: int | None = None) -> None:
        """Begin a sequence in a slot, replacing the previous one.

        Args:
            slot: 0 .. B - 1.
            sampling: sampling of its tokens.
            prompt: tokens to which the repetition penalty also applies; may be empty.
            logprobs: number of most likely tokens that `logprobs` reports per token, at most V; None for no logprobs.

        Raises UsageError for a slot, a token or a count out of range.
        """
        tokens = np.asarray(prompt)
        if tokens.size and (tokens.ndim != 1 or tokens.dtype.kind not in "iu"):
            raise SamplerErrors.PROMPT(dtype=tokens.dtype, shape=tokens.shape)
        self._native.start(
            slot,
            np.ascontiguousarray(tokens.reshape(-1), np.int64),
            **{**vars(sampling), "logit_bias": list(sampling.logit_bias)},
            logprobs=logprobs,
        )

    def stop(self, slot: int) -> None:
        """End a slot's sequence, if it has one. Raises UsageError for a slot out of range."""
        self._native.stop(slot)

    def pick(self, logits: Array, active: Array, allowed: Allowed | None = None) -> Array:
        """Return the next tokens [B] i64 of the active slots, -1 in place of the others.

        Args:
            logits: [B, V] f32 or bf16, C-contiguous; only the rows of active slots are read.
            active: [B] bool.
            allowed: tokens that slots may pick; None for any.

        Raises:
            InputError: the largest logit of an active slot is NaN or infinite. Nothing was picked then.
            UsageError: arrays of another form, an active slot without a sequence, or a constrained one that may pick no
                token.
        """
        bad, tokens = self._pick(logits, active, allowed)
        if bad is not None:
            raise SamplerErrors.SLOT_LOGITS(slot=bad, value=_largest(logits[bad]))
        return tokens

    def _pick(self, logits: Array, active: Array, allowed: Allowed | None = None) -> tuple[int | None, Array]:
        """Return the first slot whose largest logit is NaN or infinite; the tokens, where there is none."""
        if logits.shape != self._shape or logits.dtype not in _DTYPES or not logits.flags.c_contiguous:
            raise SamplerErrors.BATCH_LOGITS(wanted=self._shape, **_form(logits))
        if active.shape != self._shape[:1] or active.dtype != np.bool_ or not active.flags.c_contiguous:
            raise SamplerErrors.ACTIVE_SLOTS(wanted=self._shape[:1], **_form(active))
        tokens = np.empty(self._shape[0], np.int64)
        bits = logits if logits.dtype == np.float32 else logits.view(np.uint16)
        if allowed is None or not allowed.constrained.any():
            return self._native.pick(bits, active, tokens), tokens
        return self._native.pick(bits, active, tokens, allowed.bits, allowed.constrained), tokens

    def logprobs(self, slot: int) -> TokenLogprobs | None:
        """Return the log-probabilities of the slot's last token; None before the first, and if they were not requested.

        Raises UsageError for a slot out of range.
        """
        logprobs = self._native.logprobs(slot)
        return None if logprobs is None else TokenLogprobs(logprobs[0], logprobs[1], tuple(logprobs[2]))


_DTYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))


def _form(array: Array) -> dict[str, Any]:
    """Return the fields of an error about an invalid array."""
    order = "a contiguous" if array.flags.c_contiguous else "a strided"
    return {"order": order, "dtype": array.dtype, "shape": array.shape}


def _largest(logits: Array) -> float:
    return float(logits.astype(np.float32).max())


class Sampler:
    """Picks the tokens of one sequence: the same ones as a slot of a `BatchSampler`.

    Args:
        sampling: sampling of the tokens.
        prompt: as for `BatchSampler.start`, checked at the first pick.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] | Array = ()) -> None:
        self._start = (sampling, prompt)
        self._batch: BatchSampler | None = None  # made when the vocabulary is known

    def pick(self, logits: Array) -> int:
        """Return the next token from logits [V] of any floating dtype; V is the same in every call.

        Raises InputError if the largest is NaN or infinite, UsageError for logits of another shape.
        """
        if self._batch is None:
            if logits.ndim != 1:
                raise SamplerErrors.LOGITS_SHAPE(shape=logits.shape)
            self._batch = BatchSampler(1, len(logits))
            self._batch.start(0, *self._start)
        if logits.dtype not in _DTYPES:
            logits = logits.astype(np.float32)
        bad, tokens = self._batch._pick(np.ascontiguousarray(logits)[None], _ONE)
        if bad is not None:
            raise SamplerErrors.LOGITS(value=_largest(logits))
        return int(tokens[0])


_ONE = np.ones(1, np.bool_)
