"""Trains the tiny model of the tests: a two-layer Llama of 445k parameters that recalls values at length 1024.

Run from the root of the repository, on one CPU thread, in about five minutes::

    python -m tests.models.tiny.train [FOLDER]

The recipe is deterministic: one thread, one seed, data made by `task.scattered_triples`; the same machine and torch
give the same bytes. Half of each batch is periodic copies of random tokens; without them the loss sticks before any
head learns to match. The triples are as dense as fit: with few of them in a sequence the model learns to copy but
not to recall. The length grows from 32 to 1024 while a step keeps 4096 tokens.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.tiny.task import BOS, KEYS, VOCABULARY, fixed_queries, scattered_triples

SEED = 7
TOKENS_PER_STEP = 4096
PEAK_RATE = 3e-3
WARMUP_STEPS = 50
# (tokens per sequence, steps)
CURRICULUM = ((32, 500), (64, 250), (128, 80), (256, 80), (512, 80), (1024, 160))
MOST_TRIPLES = 48
MOST_QUESTIONS = 32
LOG_EVERY = 50


def make_config() -> LlamaConfig:
    """The shape of the tiny model: 2 layers, hidden 128, 4 query and 2 KV heads of 32, untied embeddings."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="sdpa",
    )


def periodic_copies(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random tokens repeated with a random period per row; both [batch, length], the second marks what to learn."""
    period = torch.randint(4, length // 2 + 1, (batch, 1), generator=generator)
    source = torch.randint(KEYS.start, VOCABULARY, (batch, length), generator=generator)
    index = torch.arange(length).expand(batch, length)
    return source.gather(1, index % period), index >= period


def batches(generator: torch.Generator) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields (length, tokens [b, length], learn [b, length] bool) for every step of the curriculum."""
    for length, steps in CURRICULUM:
        triples = min(MOST_TRIPLES, (length - 1) // 6)
        half = TOKENS_PER_STEP // length // 2  # sequences of each kind
        for _ in range(steps):
            recall = scattered_triples(half, length, triples, min(triples, MOST_QUESTIONS), generator)
            copy = periodic_copies(half, length, generator)
            tokens, learn = (torch.cat(pair) for pair in zip(recall, copy, strict=True))
            yield length, tokens, learn


def learning_rate(step: int, total: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak."""
    if step < WARMUP_STEPS:
        return PEAK_RATE * (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / (total - WARMUP_STEPS)
    return PEAK_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def full_accuracy(model: LlamaForCausalLM) -> float:
    """Share of the fixed queries answered by full attention."""
    queries = fixed_queries()
    right = 0
    for start in range(0, len(queries), 8):
        part = queries[start : start + 8]
        logits = model(torch.tensor([query.prompt for query in part]), logits_to_keep=1).logits[:, -1]
        right += int((logits.argmax(-1) == torch.tensor([query.answer for query in part])).sum())
    return right / len(queries)


def train() -> LlamaForCausalLM:
    """Runs the recipe and returns the model, f32."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(make_config())
    total = sum(steps for _, steps in CURRICULUM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    for step, (length, tokens, learn) in enumerate(batches(torch.Generator().manual_seed(SEED))):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, total)
        logits = model(tokens, use_cache=False).logits[:, :-1]
        targets, mask = tokens[:, 1:], learn[:, 1:]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        recall, copy = (part[where].mean() for part, where in zip(losses.chunk(2), mask.chunk(2), strict=True))
        optimizer.zero_grad()
        (recall + copy).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % LOG_EVERY == 0:
            line = f"{time.monotonic() - began:6.0f} s  step {step:5d}  length {length:5d}"
            sys.stderr.write(f"{line}  recall {recall.item():.3f}  copy {copy.item():.3f}\n")
    return model.eval()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    model = train()
    sys.stderr.write(f"accuracy with the full cache: {full_accuracy(model):.3f}\n")
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
