"""Attention to rows selected by the model's learned index: the operators through which a captured model calls it, and
their definition in plain torch.

DeepSeek-V3.2 (DeepSeek Sparse Attention, arXiv 2512.02556) keeps a short key for each position, scores all of them by
queries of several heads, and attends to the positions with the highest scores. `sscc.ir.operations` has the formulas
(`ChooseByIndex`, `AttendChosen`). Importing this module registers the operators.
`sscc.compiler.frontend.learned_index` recognises them in a model's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.compiler.frontend.algorithm import Softmax

Earlier = Callable[[int, str, Tensor, int], Tensor]
"""Called as earlier(layer, name, rows, axis). Records the rows of new tokens along an axis, and returns those of all
tokens so far."""

_earlier: ContextVar[Earlier | None] = ContextVar("sscc_earlier_rows", default=None)


@dataclass(frozen=True, eq=False)
class Choice:
    """Selected positions, in place of the tensor that a model's index would return.

    Attributes:
        chosen: [b, Hc, s, K] i64, ascending, then -1.
    """

    chosen: Tensor

    def to(self, *args: Any, **keywords: Any) -> Choice:
        """Return the same: positions have one type."""
        return self

    def masked_fill(self, where: Any, value: Any) -> Choice:
        """Return self: invalid positions are already -1."""
        return self


class CausalMask:
    """The mask for a model whose index needs one. Operators are causal by themselves.

    Attributes:
        dtype: dtype of a mask that is added to scores.
    """

    dtype = torch.float32

    def __getitem__(self, index: Any) -> CausalMask:
        return self

    def __radd__(self, scores: Tensor) -> Tensor:
        return scores


@torch.library.custom_op("sscc::index", mutates_args=())
def index(
    query: Tensor, key: Tensor, weight: Tensor | None, layer: int, block: int, local: int, topk: int
) -> Tensor:
    """Selection of positions by a learned index (`sscc.ir.operations.ChooseByIndex`).

    Args:
        query: [b, s, Hi, D].
        key: [b, s, D], kept for later tokens.
        weight: [b, s, Hi] f32, weight of each head; None if each head selects separately.
        layer: index of the decoder layer.
        block: number of positions that are selected together.
        local: number of newest blocks that are always selected.
        topk: number of selected positions, a multiple of `block`.

    Returns:
        [b, 1 or Hi, s, topk] i64: positions in ascending order, then -1.
    """
    earlier = _earlier.get()
    keys = key if earlier is None else earlier(layer, "index", key, 1)
    products = torch.einsum("bshd,btd->bhst", query.float(), keys.float())
    if weight is not None:
        products = torch.einsum("bhst,bsh->bst", products.relu(), weight)[:, None]
    first, count = keys.shape[1] - query.shape[1], keys.shape[1]
    future = torch.arange(count) > torch.arange(first, count)[:, None]
    blocks = -(-count // block)
    scores = pad(products.masked_fill(future, float("-inf")), (0, blocks * block - count), value=float("-inf"))
    best = scores.unflatten(3, (blocks, block)).amax(4)
    newest = torch.arange(first, count)[:, None] // block
    number = torch.arange(blocks)
    best = best.masked_fill((number <= newest) & (number > newest - local), float("inf"))
    order = best.sort(dim=3, descending=True, stable=True)
    picked = torch.where(order.values == float("-inf"), -1, order.indices)[..., : topk // block]
    positions = torch.where(picked[..., None] < 0, -1, picked[..., None] * block + torch.arange(block)).flatten(3)
    positions = torch.where((positions < 0) | (positions >= torch.arange(first, count)[:, None] + 1), count, positions)
    positions = pad(positions.sort(dim=3).values, (0, topk - positions.shape[3]), value=count)
    return torch.where(positions == count, -1, positions)


@index.register_fake
def _(query: Tensor, key: Tensor, weight: Tensor | None, layer: int, block: int, local: int, topk: int) -> Tensor:
    heads = query.shape[2] if weight is None else 1
    return query.new_empty((query.shape[0], heads, query.shape[1], topk), dtype=torch.int64)


@torch.library.custom_op("sscc::chosen_attention", mutates_args=())
def chosen_attention(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sinks: Tensor | None, layer: int, scale: float, softcap: float
) -> Tensor:
    """Attention of decoder layer `layer` to selected positions; softmax and sums in f32.

    Args:
        q: [b, H, s, D], after RoPE.
        k: [b, Hkv, s, D], after RoPE, kept for later tokens.
        v: [b, Hkv, s, Dv], kept for later tokens.
        chosen: [b, Hc, s, K] i64 from `index`, Hkv a multiple of Hc.
        sinks, layer, scale, softcap: as for `sscc::attention`.

    Returns:
        [b, H, s, Dv] of q's dtype.
    """
    earlier = _earlier.get()
    if earlier is not None:
        k, v = earlier(layer, "k", k, 2), earlier(layer, "v", v, 2)
    seen = torch.zeros(*chosen.shape[:3], k.shape[2] + 1, dtype=torch.bool)
    seen = seen.scatter(3, torch.where(chosen < 0, k.shape[2], chosen), True)[..., :-1]
    softmax, group = Softmax(softcap or None, sinks), q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (side.to(wide).repeat_interleave(group, 1) for side in (k, v))
    scores = softmax.scores(q.to(wide) @ keys.mT * scale)
    hidden = ~seen.repeat_interleave(q.shape[1] // seen.shape[1], 1)
    weights = softmax.weights(scores.masked_fill(hidden, float("-inf")), torch.arange(q.shape[1]))
    return (weights @ values).to(q.dtype)


@chosen_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sinks: Tensor | None, layer: int, scale: float, softcap: float
) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@contextmanager
def with_earlier(earlier: Earlier) -> Iterator[None]:
    """Make rows of earlier tokens visible to operators that run eagerly inside the block."""
    token = _earlier.set(earlier)
    try:
        yield
    finally:
        _earlier.reset(token)
