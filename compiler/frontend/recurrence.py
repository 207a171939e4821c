"""Gated linear recurrences: the operator through which a captured model calls them, and its definition in plain torch.

`sscc.ir.operations.Recurrence` has the formula. The delta rule, Kimi Delta Attention, Mamba, Mamba-2, lightning
attention and RG-LRU are special cases of it. Importing this module registers the operator.
`sscc.compiler.frontend.recurrent_functions` recognises it in a model's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 16
"""Tokens whose updates of a state are summed together."""

Recurrer = Callable[["RecurrentInputs", int], Tensor]
"""Called as recurrer(inputs, layer), returns [b, s, H, Dv]."""

_recurrer: ContextVar[Recurrer | None] = ContextVar("sscc_recurrer", default=None)


@dataclass(frozen=True)
class RecurrentInputs:
    """The operands of a recurrence over s tokens, all f32.

    Attributes:
        query, key: [b, s, G, D].
        value: [b, s, H, Dv], H a multiple of G.
        decay: [b, s, H, 1] or [b, s, H, D], at most 0.
        rate: [H, D], or None.
        beta: [b, s, H] for the delta rule, otherwise None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    rate: Tensor | None = None
    beta: Tensor | None = None

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """[b, H, D, Dv]."""
        batch, _, heads, width = self.value.shape
        return batch, heads, self.key.shape[3], width

    def zeros(self) -> Tensor:
        """Return the state before the first token."""
        return self.value.new_zeros(self.state_shape)


@torch.library.custom_op("sscc::recurrence", mutates_args=())
def recurrence(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor | None, beta: Tensor | None, layer: int
) -> Tensor:
    """Gated linear recurrence of decoder layer `layer` over the tokens given (`RecurrentInputs`).

    Args:
        layer: index of the decoder layer.

    Returns:
        [b, s, H, Dv] f32. Eagerly, outside of `recurring`: the state is zero before the first token.
    """
    inputs = RecurrentInputs(query, key, value, decay, rate, beta)
    recurrer = _recurrer.get()
    if recurrer is not None:
        return recurrer(inputs, layer)
    return in_blocks(inputs, inputs.zeros())[0]


@recurrence.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor | None, beta: Tensor | None, layer: int
) -> Tensor:
    return torch.empty_like(value)


@contextmanager
def recurring(recurrer: Recurrer) -> Iterator[None]:
    """Let `recurrer` compute every `sscc::recurrence` that runs eagerly inside the block."""
    token = _recurrer.set(recurrer)
    try:
        yield
    finally:
        _recurrer.reset(token)


def in_steps(inputs: RecurrentInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results [b, s, H, Dv] of a recurrence and its new state [b, H, D, Dv], token by token."""
    heads = inputs.value.shape[2]
    query, key = (_of_heads(side, heads) for side in (inputs.query, inputs.key))
    out = torch.empty_like(inputs.value)
    for token in range(out.shape[1]):
        decay = inputs.decay[:, token] if inputs.rate is None else inputs.decay[:, token] * inputs.rate
        state = state * decay.exp()[..., None]
        update = inputs.value[:, token]
        if inputs.beta is not None:
            known = (key[:, token, :, :, None] * state).sum(2)
            update = inputs.beta[:, token, :, None] * (update - known)
        state = state + key[:, token, :, :, None] * update[:, :, None]
        out[:, token] = (query[:, token, :, :, None] * state).sum(2)
    return out, state


def in_blocks(inputs: RecurrentInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `in_steps`, computed by products over blocks of tokens
    (`sscc.ir.operations.RecurrentChunk`)."""
    heads, tokens = inputs.value.shape[2], inputs.value.shape[1]
    query, key = (_of_heads(side, heads) for side in (inputs.query, inputs.key))
    parts = []
    for first in range(0, tokens, BLOCK):
        span = slice(first, first + BLOCK)
        q, k, v, decay = (side[:, span].transpose(1, 2) for side in (query, key, inputs.value, inputs.decay))
        if inputs.rate is not None:
            decay = decay * inputs.rate[:, None]
        beta = None if inputs.beta is None else inputs.beta[:, span].transpose(1, 2)[..., None]
        out, state = _block(q, k, v, decay, beta, state)
        parts.append(out.transpose(1, 2))
    return torch.cat(parts, 1) if parts else torch.empty_like(inputs.value), state


def _block(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the results of a block of t tokens and the new state.

    Args:
        query, key: [b, H, t, D].
        value: [b, H, t, Dv].
        decay: [b, H, t, N].
        beta: [b, H, t, 1], or None.
    """
    between = _decays_between(decay)
    pairs = [_weighed(side, key, between) for side in (key, query)]
    before = decay.cumsum(2).exp()
    after = between[:, :, -1]
    update = value
    if beta is not None:
        known = (key * before) @ state
        system = torch.eye(key.shape[2], dtype=key.dtype) + (beta * pairs[0]).tril(-1)
        update = torch.linalg.solve_triangular(system, beta * (value - known), upper=False, unitriangular=True)
    out = (query * before) @ state + pairs[1] @ update
    state = state * before[:, :, -1, :, None] + (key * after).transpose(2, 3) @ update
    return out, state


def _decays_between(decay: Tensor) -> Tensor:
    """Return exp of the sum of the decays of tokens j + 1 .. t, [b, H, t, j, N]; 0 for j > t.

    Sums are computed without subtraction, so that a decay of -inf, which clears a state, gives 0.
    """
    tokens = decay.shape[2]
    below = torch.ones(tokens, tokens, dtype=torch.bool).tril(-1)[:, :, None]
    sums = torch.where(below, decay[:, :, :, None], 0.0).cumsum(2)
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()[:, :, None]
    return torch.where(causal, sums.exp(), 0.0)


def _weighed(left: Tensor, right: Tensor, between: Tensor) -> Tensor:
    """Return the products of rows of `left` and `right` [b, H, t, D], weighed by the decays between: [b, H, t, t]."""
    if between.shape[4] == 1:
        return (left @ right.transpose(2, 3)) * between[..., 0]
    return torch.einsum("bhtd,bhtjd,bhjd->bhtj", left, between, right)


def _of_heads(side: Tensor, heads: int) -> Tensor:
    """Return keys or queries [b, s, G, D] for every head: [b, s, H, D]."""
    return side.repeat_interleave(heads // side.shape[2], 2)
