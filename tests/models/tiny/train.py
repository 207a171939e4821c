"""Trains the tiny models of the tests, of some 450k parameters, which recall values at length 1024.

Run from the root of the repository, on one CPU thread, in five to ten minutes::

    python -m tests.models.tiny.train dense|moe|mla|hybrid|indexed [FOLDER]

The recipe is deterministic: one thread, one seed, data made by `task.scattered_triples`; the same machine and torch
give the same bytes. Half of each batch is periodic copies of random tokens; without them the loss sticks before any
head learns to match. The triples are as dense as fit: with few of them in a sequence the model learns to copy but
not to recall. The length grows from 32 to 1024 while a step keeps 4096 tokens.

The index of the indexed model learns as DeepSeek-V3.2's does in its warm-up (arXiv 2512.02556): attention is to all
positions, and the index's scores follow its weights, summed over heads, by their divergence. The model that is saved
chooses 32 positions.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV32Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
)
from transformers.models.deepseek_v32.modeling_deepseek_v32 import apply_rotary_pos_emb

from tests.models.tiny.task import BOS, FOLDERS, KEYS, VOCABULARY, fixed_queries, scattered_triples

SEED = 7
TOKENS_PER_STEP = 4096
PEAK_RATE = 3e-3
WARMUP_STEPS = 50
Curriculum = tuple[tuple[int, int], ...]
"""(Tokens per sequence, steps), one after the other."""
CURRICULUM: Curriculum = ((32, 500), (64, 250), (128, 80), (256, 80), (512, 80), (1024, 160))
# With experts, matching is learnt after some 200 steps, with latent rows after 400.
CURRICULA = {
    "moe": ((32, 260), (64, 50), (128, 40), (256, 40), (512, 40), (1024, 100)),
    "indexed": ((32, 1000), (64, 120), (128, 60), (256, 60), (512, 60), (1024, 80)),
}
"""Of kinds that learn sooner or later than the others."""
INDEX_SHARE = 0.1
"""Factor on the loss of an index: gradients are clipped together."""
MOST_TRIPLES = 48
MOST_QUESTIONS = 32
LOG_EVERY = 50
CHOSEN = 32
"""Positions that the index of the indexed model chooses."""

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": None,
    "pad_token_id": None,
}

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "first_k_dense_replace": 2,
}  # fmt: skip
"""Heads over latent rows, in layers without experts."""


def dense() -> PreTrainedConfig:
    """4 query and 2 KV heads of 32."""
    return LlamaConfig(**COMMON, intermediate_size=384, num_key_value_heads=2, rope_theta=10000.0)


def experts() -> PreTrainedConfig:
    """The attention of `dense`; 2 of 8 experts of 48 for each token."""
    return MixtralConfig(
        **COMMON,
        intermediate_size=48,
        num_key_value_heads=2,
        rope_theta=10000.0,
        num_local_experts=8,
        num_experts_per_tok=2,
    )


def latent() -> PreTrainedConfig:
    """4 heads, whose keys of 32 + 16 and values of 32 are made of a row of 64 + 16, the last 16 rotated."""
    return DeepseekV3Config(
        **COMMON,
        **LATENT,
        intermediate_size=352,
        q_lora_rank=None,
        num_mtp_layers=0,
    )


def hybrid() -> PreTrainedConfig:
    """A gated delta net of 4 heads of 16 x 32, then 4 query and 2 KV heads of 32."""
    return Qwen3_5TextConfig(
        **COMMON,
        intermediate_size=352,
        num_key_value_heads=2,
        head_dim=32,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
    )


def indexed() -> PreTrainedConfig:
    """The heads of `latent`, and an index of 4 heads of 32 that chooses 32 positions."""
    return DeepseekV32Config(
        **COMMON,
        **LATENT,
        intermediate_size=288,
        q_lora_rank=48,
        index_n_heads=4,
        index_head_dim=32,
        index_topk=CHOSEN,
    )


KINDS: dict[str, Callable[[], PreTrainedConfig]] = {
    "dense": dense, "moe": experts, "mla": latent, "hybrid": hybrid, "indexed": indexed,
}  # fmt: skip


def periodic_copies(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random tokens repeated with a random period per row; both [batch, length], the second marks what to learn."""
    period = torch.randint(4, length // 2 + 1, (batch, 1), generator=generator)
    source = torch.randint(KEYS.start, VOCABULARY, (batch, length), generator=generator)
    index = torch.arange(length).expand(batch, length)
    return source.gather(1, index % period), index >= period


def batches(curriculum: Curriculum, generator: torch.Generator) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields (length, tokens [b, length], learn [b, length] bool) for every step of a curriculum."""
    for length, steps in curriculum:
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
def full_accuracy(model: PreTrainedModel) -> float:
    """Share of the fixed queries answered by full attention."""
    queries = fixed_queries()
    right = 0
    for start in range(0, len(queries), 8):
        part = queries[start : start + 8]
        logits = model(torch.tensor([query.prompt for query in part]), logits_to_keep=1).logits[:, -1]
        right += int((logits.argmax(-1) == torch.tensor([query.answer for query in part])).sum())
    return right / len(queries)


class IndexLoss:
    """The divergence of the weights of a model's attention, in the mean of its heads, from the scores of its indexes.

    Args:
        model: which attends to all positions, and gives its weights.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._losses: list[Tensor] = []
        self._scores: list[Tensor] = []
        for module in model.modules():
            if type(module).__name__ == "DeepseekV32Indexer":
                module.register_forward_pre_hook(self._score, with_kwargs=True)
            elif type(module).__name__ == "DeepseekV32Attention":
                module.register_forward_hook(self._compare)

    def take(self) -> Tensor:
        """Return the loss of the layers that have run."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum()

    def _score(self, index: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Compute what the index does, which learns nothing itself. Other weights do not learn from it."""
        hidden, latent, (cos, sin) = args[0].detach(), args[1].detach(), args[2]
        query = index.wq_b(latent).unflatten(2, (index.n_heads, index.head_dim))
        key = index.k_norm(index.wk(hidden))[:, :, None]
        parts = [part.split([cos.shape[2], index.head_dim - cos.shape[2]], 3) for part in (query, key)]
        rotated = apply_rotary_pos_emb(parts[0][0], parts[1][0], cos, sin, unsqueeze_dim=2)
        query, key = (torch.cat([first, part[1]], 3) for first, part in zip(rotated, parts, strict=True))
        scores = torch.einsum("bshd,btd->bsht", query, key[:, :, 0]).relu() * index.softmax_scale
        self._scores.append(torch.einsum("bsht,bsh->bst", scores, index.weights_proj(hidden) * index.n_heads**-0.5))

    def _compare(self, module: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        scores, weights = self._scores.pop(), output[1].detach().mean(1)
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        logs = scores.masked_fill(future, float("-inf")).log_softmax(2).masked_fill(future, 0.0)
        self._losses.append(-(weights * logs).sum(2).mean())


def train(config: PreTrainedConfig, curriculum: Curriculum) -> PreTrainedModel:
    """Runs the recipe and returns the model, f32.

    Routers also learn to use all experts alike, by the loss that transformers has for it.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    chosen = getattr(config, "index_topk", None)
    attention = "sdpa" if chosen is None else "eager"
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    indexes = None if chosen is None else IndexLoss(model)
    _choose(model, config.max_position_embeddings if chosen else None)
    balance = getattr(config, "router_aux_loss_coef", 0.0)
    routed = {"output_router_logits": True} if balance else {}
    total = sum(steps for _, steps in curriculum)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    for step, (length, tokens, learn) in enumerate(batches(curriculum, torch.Generator().manual_seed(SEED))):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, total)
        output = model(tokens, use_cache=False, **routed)
        targets, mask = tokens[:, 1:], learn[:, 1:]
        losses = torch.nn.functional.cross_entropy(output.logits[:, :-1].transpose(1, 2), targets, reduction="none")
        recall, copy = (part[where].mean() for part, where in zip(losses.chunk(2), mask.chunk(2), strict=True))
        optimizer.zero_grad()
        loss = recall + copy
        if balance:
            loss = loss + balance * output.aux_loss
        if indexes is not None:
            loss = loss + INDEX_SHARE * indexes.take()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % LOG_EVERY == 0:
            line = f"{time.monotonic() - began:6.0f} s  step {step:5d}  length {length:5d}"
            sys.stderr.write(f"{line}  recall {recall.item():.3f}  copy {copy.item():.3f}\n")
    _choose(model, chosen)
    return model.eval()


def _choose(model: PreTrainedModel, topk: int | None) -> None:
    """Let the indexes of a model choose `topk` positions; None where it has none."""
    for module in model.modules():
        if hasattr(module, "index_topk"):
            module.index_topk = topk


def main() -> None:
    kind = sys.argv[1]
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDERS[kind]
    model = train(KINDS[kind](), CURRICULA.get(kind, CURRICULUM))
    sys.stderr.write(f"accuracy with the full cache: {full_accuracy(model):.3f}\n")
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
