"""A prompt at its end, as a rule that scores its positions sees it, and the operator that stays whole in a rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """What one layer knows once a prompt has been read: n positions, and the last queries, W of them.

    In a compiled program n is the longest prompt there can be, and W the whole observation window: shapes are static,
    whatever the prompt is. So a rule must not read more positions than there are. Rows of positions and of queries that
    a prompt does not have are zeros, which sums do not notice; `exists` tells them apart where zeros would matter, and
    what `scores` says of them is never looked at.

    Query head h belongs to KV head h // (H // Hkv). Keys and queries carry their rotary embedding.

    Attributes:
        observed: [1, H, W, D], keys_scratch: [1, Hkv, n, D], values_scratch: [1, Hkv, n, Dv], as the program holds
            them; rules read `queries`, `keys` and `values`.
        log_sum_exp: [1, H, W, 1] f32, of each query's scores over all positions that it sees.
        query_positions: [W] i64, where the queries stand.
        length: [1] i64, the tokens of the prompt, at most n.
        scale: factor on products of queries and keys; softcap: what caps them (`Softmax`), 0 where nothing does.
        recent: rows of the ring: that many last positions are kept whatever their scores are.
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
        """[n] bool: which positions the prompt has."""
        return self.positions < self.length

    @cached_property
    def query_exists(self) -> Tensor:
        """[W] bool: which of the queries the prompt has; all, unless it is shorter than the observation window."""
        return self.query_positions < self.length

    @cached_property
    def visible(self) -> Tensor:
        """[W, n] bool: which positions each query sees."""
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
        """[H, W, n] f32: the weight that each query gave each position when the prompt was read, 0 where it sees none.

        This is a matrix of H W n numbers in memory. Where only its sum is wanted, `attention_mass` needs no matrix.
        """
        heads, window, width = self.queries.shape
        kv_heads, count = self.keys.shape[:2]
        grouped = self.queries.reshape(kv_heads, heads // kv_heads * window, width)
        products = torch.bmm(grouped, self.keys.transpose(1, 2)).reshape(heads, window, count) * self.scale
        scores = torch.tanh(products / self.softcap) * self.softcap if self.softcap else products
        return torch.where(self.visible, (scores - self.log_sum_exp[0]).exp(), 0.0)

    def attention_mass(self) -> Tensor:
        """[Hkv, n] f32: `attention` summed over the queries, and its mean over the query heads of each KV head.

        Zero for the last min(W, recent) positions, which are no candidates, so that pooling does not spread what the
        window pays itself. One operation at every level (`kv.observation_scores`), and no matrix.
        """
        operands = (self.observed, self.log_sum_exp, self.keys_scratch, self.query_positions, self.length)
        mass: Tensor = torch.ops.sscc.attention_mass(*operands, self.scale, self.softcap, self.recent)
        return mass

    def mean_over_group(self, of_heads: Tensor) -> Tensor:
        """[Hkv, ..]: the mean over the query heads of each KV head of [H, ..]."""
        kv_heads = self.keys_scratch.shape[1]
        return of_heads.reshape(kv_heads, -1, *of_heads.shape[1:]).mean(dim=1)


@torch.library.custom_op("sscc::attention_mass", mutates_args=())
def attention_mass(
    observed: Tensor, log_sum_exp: Tensor, keys: Tensor, query_positions: Tensor, length: Tensor, scale: float,
    softcap: float, recent: int,
) -> Tensor:  # fmt: skip
    """`Prompt.attention_mass`, of the fields of a `Prompt`."""
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
