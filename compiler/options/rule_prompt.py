"""The prefilled prompt passed to a rule that scores positions, and the attention mass as a single operator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """State of one layer at the end of prefill: keys and values of n positions, and the last W queries.

    In a compiled program n is the maximum prompt length and W the size of the observation window: shapes are static,
    regardless of the length of the prompt. Rows of positions and queries beyond the prompt are zeros, which do not
    change sums; if zeros would matter, `exists` and `query_exists` mark the real ones. Scores of positions beyond the
    prompt are ignored.

    Query head h belongs to KV head h // (H // Hkv). The rotary embedding has been applied to keys and queries.

    Attributes:
        observed: queries [1, H, W, D] in the program's dtype; rules read `queries` instead.
        keys_scratch: keys [1, Hkv, n, D] in the program's dtype; rules read `keys` instead.
        values_scratch: values [1, Hkv, n, Dv] in the program's dtype; rules read `values` instead.
        log_sum_exp: [1, H, W, 1] f32, log-sum-exp of each query's scores over the positions that it sees.
        query_positions: [W] i64, positions of the queries.
        length: [1] i64, number of tokens of the prompt, at most n.
        scale: factor on the dot products of queries and keys.
        softcap: cap of the scaled dot products (`Softmax`), 0 for none.
        recent: rows of the ring: the last `recent` positions are kept regardless of their scores.
    """

    observed: Tensor
    log_sum_exp: Tensor
    keys_scratch: Tensor
    values_scratch: Tensor
    query_positions: Tensor
    length: Tensor
    scale: float
    softcap: float = 0.0
    recent: int = 1

    @cached_property
    def positions(self) -> Tensor:
        """[n] i64: 0, 1, 2, .."""
        return torch.arange(self.keys_scratch.shape[2])

    @cached_property
    def exists(self) -> Tensor:
        """[n] bool: True for positions of the prompt."""
        return self.positions < self.length

    @cached_property
    def query_exists(self) -> Tensor:
        """[W] bool: True for queries of the prompt: all, unless it is shorter than the observation window."""
        return self.query_positions < self.length

    @cached_property
    def visible(self) -> Tensor:
        """[W, n] bool: True for positions that a query sees."""
        return (self.positions[None, :] <= self.query_positions[:, None]) & self.query_exists[:, None]

    @cached_property
    def queries(self) -> Tensor:
        """[H, W, D] f32."""
        return torch.where(self.query_exists[:, None], self.observed[0].to(torch.float32), 0.0)

    @cached_property
    def keys(self) -> Tensor:
        """[Hkv, n, D] f32."""
        return torch.where(self.exists[:, None], self.keys_scratch[0].to(torch.float32), 0.0)

    @cached_property
    def values(self) -> Tensor:
        """[Hkv, n, Dv] f32."""
        return torch.where(self.exists[:, None], self.values_scratch[0].to(torch.float32), 0.0)

    def attention(self) -> Tensor:
        """Return the attention weights [H, W, n] f32 of each query, 0 for positions that it does not see.

        The result is a matrix of H W n numbers in memory. For its sum, `attention_mass` needs no matrix.
        """
        heads, window, width = self.queries.shape
        kv_heads, count = self.keys.shape[:2]
        grouped = self.queries.reshape(kv_heads, heads // kv_heads * window, width)
        products = torch.bmm(grouped, self.keys.transpose(1, 2)).reshape(heads, window, count) * self.scale
        scores = torch.tanh(products / self.softcap) * self.softcap if self.softcap else products
        return torch.where(self.visible, (scores - self.log_sum_exp[0]).exp(), 0.0)

    def attention_mass(self) -> Tensor:
        """Return [Hkv, n] f32: `attention` summed over the queries and averaged over the query heads of each KV head.

        The last min(W, recent) positions have zero: they are not candidates, and pooling must not spread the attention
        that the window pays to itself. This is one operation at every level (`kv.observation_scores`), without the
        matrix of `attention`.
        """
        operands = (self.observed, self.log_sum_exp, self.keys_scratch, self.query_positions, self.length)
        mass: Tensor = torch.ops.sscc.attention_mass(*operands, self.scale, self.softcap, self.recent)
        return mass

    def mean_over_group(self, of_heads: Tensor) -> Tensor:
        """Return [Hkv, ..]: the mean of `of_heads`, [H, ..], over the query heads of each KV head."""
        kv_heads = self.keys_scratch.shape[1]
        return of_heads.reshape(kv_heads, -1, *of_heads.shape[1:]).mean(dim=1)


@torch.library.custom_op("sscc::attention_mass", mutates_args=())
def attention_mass(
    observed: Tensor, log_sum_exp: Tensor, keys: Tensor, query_positions: Tensor, length: Tensor, scale: float,
    softcap: float, recent: int,
) -> Tensor:  # fmt: skip
    """Return `Prompt.attention_mass` for the fields of a `Prompt`."""
    prompt = Prompt(observed, log_sum_exp, keys, keys[..., :0], query_positions, length, scale, softcap, recent)
    mass = prompt.mean_over_group(prompt.attention().sum(dim=1))
    window = min(observed.shape[2], recent)
    return torch.where(prompt.positions < (length - window).clamp(min=0), mass, 0.0)


@attention_mass.register_fake
def _(
    observed: Tensor, log_sum_exp: Tensor, keys: Tensor, query_positions: Tensor, length: Tensor, scale: float,
    softcap: float, recent: int,
) -> Tensor:  # fmt: skip
    return observed.new_empty(keys.shape[1:3], dtype=torch.float32)
