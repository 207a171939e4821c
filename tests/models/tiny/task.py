"""The task of the tiny models: recall one value out of marker-key-value triples scattered in noise.

A sequence is ``BOS, noise .. MARKER key value .. noise .., MARKER key`` and the answer is the value that followed
that key. Keys are distinct inside one sequence. To answer, a model needs two attention heads (previous token, then
match), so it fails as soon as the rows of the asked triple are missing from its cache.

The answer is scored through the compressed cache: prefill the whole prompt, compress, then feed the last prompt
token again as a decode step at position n - 1. The argmax of those logits is the answer. Scored on the logits of
prefill, which come from full attention, every method would look perfect.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_MODELS = Path(__file__).parents[1]
FOLDERS = {
    "dense": _MODELS / "tiny", "moe": _MODELS / "tiny_moe", "mla": _MODELS / "tiny_mla",
    "hybrid": _MODELS / "tiny_hybrid", "indexed": _MODELS / "tiny_indexed",
}  # fmt: skip
"""Of the models that `train.py` made for the task, by kind."""
BOS = 0
MARKER = 1
KEYS = range(8, 72)
VALUES = range(72, 104)
NOISE = range(104, 200)
VOCABULARY = 200
LENGTH = 1024
TRIPLES = 16
SEED = 20240
QUERIES = 128


@dataclass(frozen=True)
class Query:
    """One question: token ids of the prompt (the last one is the asked key) and the token that answers it."""

    prompt: tuple[int, ...]
    answer: int


def scattered_triples(
    batch: int, length: int, triples: int, questions: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random sequences with `questions` answered triples at their end.

    Args:
        batch: number of sequences.
        length: tokens per sequence.
        triples: marker-key-value triples scattered over the sequence, at most ``len(KEYS)``.
        questions: how many of them are asked, and answered, by the last ``3 * questions`` tokens.
        generator: source of randomness; equal states give equal sequences.

    Returns:
        tokens: [batch, length] i64.
        answers: [batch, length] bool, true where the token is the answer to a question.
    """

    def choose(items: range, count: int) -> Tensor:
        """[batch, count] distinct members of `items` per row, in random order."""
        return items.start + torch.rand(batch, len(items), generator=generator).argsort(1)[:, :count]

    def draw(items: range, count: int) -> Tensor:
        return torch.randint(items.start, items.stop, (batch, count), generator=generator)

    body = length - 1 - 3 * questions
    tokens = torch.cat([torch.full((batch, 1), BOS), draw(NOISE, length - 1)], dim=1)
    keys, values = choose(KEYS, triples), draw(VALUES, triples)
    cells = torch.rand(batch, body // 3, generator=generator).argsort(1)[:, :triples]
    shift = torch.randint(0, body - 3 * (body // 3) + 1, (batch, 1), generator=generator)
    starts = 1 + shift + 3 * cells
    for offset, part in enumerate((torch.full_like(keys, MARKER), keys, values)):
        tokens.scatter_(1, starts + offset, part)
    asked = torch.rand(batch, triples, generator=generator).argsort(1)[:, :questions]
    tail = torch.stack([torch.full_like(asked, MARKER), keys.gather(1, asked), values.gather(1, asked)], dim=2)
    tokens[:, length - 3 * questions :] = tail.flatten(1)
    answers = torch.zeros(batch, length, dtype=torch.bool)
    answers[:, length - 3 * questions + 2 :: 3] = True
    return tokens, answers


def fixed_queries(count: int = QUERIES, length: int = LENGTH, triples: int = TRIPLES, seed: int = SEED) -> list[Query]:
    """The queries that the gates use: the same on every machine for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    tokens, _ = scattered_triples(count, length + 1, triples, 1, generator)
    return [Query(tuple(row[:-1]), row[-1]) for row in tokens.tolist()]
