"""From logits to the next token: greedy, or temperature with top-k and top-p, reproducible by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sscc.ir.errors import UsageError


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
    """Draws tokens one after the other; two samplers of equal `Sampling` give equal tokens for equal logits."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def pick(self, logits: torch.Tensor) -> int:
        """The next token from logits [V] of any floating dtype."""
        if self._sampling.temperature == 0.0:
            return int(torch.argmax(logits))
        probabilities, tokens = _candidates(logits, self._sampling)
        return int(tokens[torch.multinomial(probabilities, 1, generator=self._generator)])


def _candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (not renormalised after top-p) and tokens, most likely first."""
    ordered, tokens = torch.sort(logits.to(torch.float32), descending=True, stable=True)
    if sampling.top_k:
        ordered, tokens = ordered[: sampling.top_k], tokens[: sampling.top_k]
    # Subtracting the maximum first keeps tiny temperatures finite.
    probabilities = torch.softmax((ordered - ordered[0]) / sampling.temperature, dim=0)
    before = torch.cumsum(probabilities, dim=0) - probabilities
    kept = before < sampling.top_p
    kept[0] = True  # the most likely token stays, however small top_p is
    return probabilities[kept], tokens[kept]
