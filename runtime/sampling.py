"""From logits to the next token: greedy, or temperature with top-k and top-p, reproducible by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sscc.ir.errors import InputError, UsageError
from sscc.runtime.tensor_files import Array


@dataclass(frozen=True)
class Sampling:
    """How to pick a token.

    Attributes:
        temperature: 0 is greedy (first of the largest logits); otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches top_p; 1 keeps all.
        seed: of the random draws.

    Raises UsageError for values outside these ranges.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}, it must be at least 0 (0 is greedy)")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}, it must be at least 0 (0 keeps every token)")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top-p is {self.top_p}, it must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed is {self.seed}, it must be between 0 and 2**63 - 1")


class Sampler:
    """Draws tokens one after the other; two samplers of equal `Sampling` give equal tokens for equal logits.

    Each token takes one number of numpy's PCG64, so that the draws of a seed are the same wherever logits are.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        # Greedy draws nothing, and numpy imports its random numbers when they are first used.
        self._generator = np.random.Generator(np.random.PCG64(sampling.seed)) if sampling.temperature else None

    def pick(self, logits: Array) -> int:
        """The next token from logits [V] of any floating dtype.

        Raises InputError where the largest is NaN or infinite.
        """
        logits = logits.astype(np.float32, copy=False)
        first = int(np.argmax(logits))  # a NaN counts as the largest
        if not np.isfinite(logits[first]):
            raise InputError(f"the largest logit is {logits[first]}: the weights are damaged, or too large for bf16")
        return first if self._generator is None else self._draw(logits, self._generator.random())

    def _draw(self, logits: Array, uniform: float) -> int:
        """The first token at which the kept weights, summed up, exceed `uniform` times all of them."""
        sampling = self._sampling
        tokens = _largest(logits, sampling.top_k) if 0 < sampling.top_k < len(logits) else None
        weights = _weights(logits if tokens is None else logits[tokens], sampling.temperature)
        if sampling.top_p < 1.0:
            kept = _most_likely(weights, sampling.top_p)
            weights, tokens = weights[kept], kept if tokens is None else tokens[kept]
        sums = np.cumsum(weights)
        drawn = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(sums) - 1)
        return drawn if tokens is None else int(tokens[drawn])


def _weights(logits: Array, temperature: float) -> Array:
    """Probabilities times some number, in f64; that of the largest logit is 1."""
    weights: Array = logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature makes minus infinity of all but the largest
        weights /= temperature
    np.exp(weights, out=weights)
    return weights


def _largest(logits: Array, count: int) -> Array:
    """The tokens of the `count` largest logits, of equal ones the first, in falling order."""
    # All that reach the count-th largest: more than `count` of them where some are equal to it.
    tokens = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return tokens[np.argsort(-logits[tokens], kind="stable")][:count]


def _most_likely(weights: Array, share: float) -> Array:
    """Indices of the fewest weights that have `share` of the total together, at least one, in falling order."""
    total = weights.sum()
    # All that are smaller than this have less than 1 - share together, so the others reach it: sort only those.
    likely = np.flatnonzero(weights >= (1.0 - share) * total / len(weights))
    order = likely[np.argsort(-weights[likely], kind="stable")]
    before = np.cumsum(weights[order]) - weights[order]
    before[0] = -1.0  # the most likely one stays, however small `share` is
    kept: Array = order[before < share * total]
    return kept
