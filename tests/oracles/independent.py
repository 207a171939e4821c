"""A second, independent eager SnapStream, for tests: no rows, no ring, nothing imported from sscc.

The transformers model runs untouched, with its own "eager" attention and its own cache that keeps every position.
Prefill asks the model for its attention weights, so the scores of the selection come from transformers' softmax.
Decode hides positions: forward hooks hand every attention module a mask over absolute positions, a set per KV head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@dataclass
class Choice:
    """Rows that one layer keeps from the middle of the prompt.

    Attributes:
        kept: per KV head, the set of absolute positions.
        scores: per KV head, the pooled score of every prompt position.
        gap: per KV head, the lowest kept score minus the highest dropped one; infinity if nothing was dropped.
    """

    kept: list[set[int]] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)


class IndependentSnapStream:
    """One sequence on a transformers model loaded with ``attn_implementation="eager"``.

    Attributes:
        choices: per layer, what prefill selected.
        position: absolute position of the next token.
    """

    def __init__(
        self, model: PreTrainedModel, *, sink: int, recent: int, topk: int, obs: int, pool: int, pool_mode: str
    ) -> None:
        self.model = model
        self.sink, self.recent, self.topk = sink, recent, topk
        self.obs, self.pool, self.pool_mode = obs, pool, pool_mode
        self.cache = DynamicCache()
        self.choices: list[Choice] = []
        self.position = self.prompt_len = 0

    @torch.no_grad()
    def prefill(self, prompt: Sequence[int]) -> Tensor:
        """Run full attention over the prompt, choose the rows that stay, return the logits [V] of the last token."""
        self.cache = DynamicCache()
        out = self.model(
            input_ids=torch.tensor([list(prompt)]), past_key_values=self.cache, use_cache=True, output_attentions=True
        )
        self.position = self.prompt_len = len(prompt)
        keys = [layer.keys[0] for layer in self.cache.layers]
        # The last layers may share the keys of an earlier layer, and then also its choice.
        attended = enumerate(zip(out.attentions, keys, strict=False))
        self.choices = [self._choose(weights[0], own, self.topk_in(layer)) for layer, (weights, own) in attended]
        self.choices += [self.choices[-1]] * (len(out.attentions) - len(keys))
        logits: Tensor = out.logits[0, -1]
        return logits

    @torch.no_grad()
    def decode(self, token: int, position: int | None = None) -> Tensor:
        """Feed a token at `position` (default: the next one; an earlier one is replayed) and return its logits [V]."""
        at = self.position if position is None else position
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, :at], layer.values[:, :, :at]
        self.position = at + 1
        with self._hiding(at):
            out = self.model(
                input_ids=torch.tensor([[token]]),
                position_ids=torch.tensor([[at]]),
                past_key_values=self.cache,
                use_cache=True,
            )
        logits: Tensor = out.logits[0, -1]
        return logits

    def visible(self, at: int, kept: set[int], topk: int) -> set[int]:
        """Return the absolute positions that a query at position `at` sees, for one KV head of a layer that keeps
        `topk` positions of the middle.

        It sees all positions while they fit. Later it sees the kept ones (the beginning of a prompt that fits the
        budget), and the newest ones for which the budget has room."""
        budget, seen = self.sink + topk + self.recent, set(range(at + 1))
        if self.prompt_len > budget:
            first, newest = set(range(self.sink)) | kept, self.recent
        else:
            stays = max(self.sink, min(self.prompt_len, self.sink + topk))
            first, newest = set(range(stays)), budget - stays
        return seen if len(seen) <= budget else first | {t for t in seen if t > at - newest}

    def adopt(self, selected: Sequence[Tensor]) -> None:
        """Takes over another implementation's selection (per layer [Hkv, topk] i64, -1 as padding)."""
        for choice, rows in zip(self.choices, selected, strict=True):
            choice.kept = [{int(t) for t in row if t >= 0} for row in rows]

    def count_near_ties(self, selected: Sequence[Tensor], tolerance: float) -> int:
        """Compares another implementation's selection with this one's.

        Returns:
            how many KV heads, over all layers, differ only in positions whose scores lie within `tolerance` of the
            lowest kept score.

        Raises:
            AssertionError: a difference that is no near tie, or a row that is not ascending and then -1.
        """
        excused = 0
        for layer, (choice, rows) in enumerate(zip(self.choices, selected, strict=True)):
            for head, row in enumerate(rows.tolist()):
                picks = [t for t in row if t >= 0]
                ordered = picks == sorted(set(picks)) and row == picks + [-1] * (len(row) - len(picks))
                assert ordered, f"layer {layer} head {head}: {row} is not ascending and then -1"
                assert len(picks) == len(choice.kept[head]), f"layer {layer} head {head}: wrong number of rows"
                different = choice.kept[head] ^ set(picks)
                if not different:
                    continue
                edge = min(choice.scores[head][t] for t in choice.kept[head])
                worst = max(abs(choice.scores[head][t] - edge) for t in different)
                assert worst <= tolerance, f"layer {layer} head {head}: {sorted(different)} differ by {worst}"
                excused += 1
        return excused

    def topk_in(self, layer: int) -> int:
        """Return the number of positions that a layer keeps from the middle of the prompt."""
        return self.topk

    def scores_of(self, weights: Tensor, keys: Tensor) -> list[float]:
        """The score of every prompt position in one KV head.

        Args:
            weights: [G, n, n] f64, the attention probabilities of its query heads.
            keys: [n, D].
        """
        n = keys.shape[0]
        column = weights[:, max(n - self.obs, 0) :, :].sum(1).mean(0)
        return self._pool([float(s) if t < n - min(self.obs, self.recent) else 0.0 for t, s in enumerate(column)])

    def _choose(self, weights: Tensor, keys: Tensor, topk: int) -> Choice:
        """`weights`: [H, n, n] attention probabilities of one layer; `keys`: [Hkv, n, D]."""
        n = keys.shape[1]
        choice = Choice()
        for mine, own in zip(weights.double().split(weights.shape[0] // keys.shape[0]), keys, strict=True):
            scores = self.scores_of(mine, own)
            fits = n <= self.sink + topk + self.recent
            middle = [] if fits else sorted(range(self.sink, n - self.recent), key=lambda t: (-scores[t], t))
            kept, dropped = middle[:topk], middle[topk:]
            choice.kept.append(set(kept))
            choice.scores.append(scores)
            choice.gap.append(scores[kept[-1]] - scores[dropped[0]] if kept and dropped else float("inf"))
        return choice

    def _pool(self, scores: list[float]) -> list[float]:
        reach = self.pool // 2
        windows = [scores[max(t - reach, 0) : t + reach + 1] for t in range(len(scores))]
        return [max(w) if self.pool_mode == "max" else sum(w) / self.pool for w in windows]

    @contextmanager
    def _hiding(self, at: int) -> Iterator[None]:
        """Inside, the attention module of every layer gets a mask of its own, [1, H, 1, at + 1], added to logits."""

        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return args, {**kwargs, "attention_mask": self._mask(module.layer_idx, at)}

        modules = [m for m in self.model.modules() if hasattr(m, "layer_idx") and "Attention" in type(m).__name__]
        handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _mask(self, layer: int, at: int) -> Tensor:
        kept = self.choices[layer].kept
        mask = torch.full((len(kept), at + 1), torch.finfo(self.model.dtype).min, dtype=self.model.dtype)
        for head, positions in enumerate(kept):
            mask[head, sorted(self.visible(at, positions, self.topk_in(layer)))] = 0.0
        group = self.model.config.num_attention_heads // len(kept)
        return mask.repeat_interleave(group, dim=0)[None, :, None]
