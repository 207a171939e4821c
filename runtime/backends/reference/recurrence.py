"""Steps of recurrences, token by token as `sscc.ir.operations.Recurrence` defines them."""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.opspec import executes


@executes(operations.RecurrentStep)
def recurrent_step(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor, active: Tensor, out: Tensor,
    rate: Tensor | None, beta: Tensor | None, *, wide: torch.dtype,
) -> None:  # fmt: skip
    """Execute the step `RecurrentStep` (see it for shapes)."""
    sides = (side[:, 0].to(wide) for side in (query, key, value, decay))
    result, new = _token(tuple(sides), state.to(wide), rate, None if beta is None else beta[:, 0].to(wide))
    out.copy_(result[:, None])
    state.copy_(torch.where(active[:, None, None, None], new, state.to(wide)))


@executes(operations.RecurrentChunk)
def recurrent_chunk(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor, out: Tensor,
    rate: Tensor | None, beta: Tensor | None, *, start: int, length: int, wide: torch.dtype,
) -> None:  # fmt: skip
    """Execute the step `RecurrentChunk` (see it for shapes). Padding rows of `out` keep their bytes."""
    current = state.to(wide) if start > 0 else torch.zeros_like(state, dtype=wide)
    for token in range(min(length - start, query.shape[1])):
        sides = tuple(side[:, token].to(wide) for side in (query, key, value, decay))
        of_token = None if beta is None else beta[:, token].to(wide)
        out[:, token], current = _token(sides, current, rate, of_token)
    state.copy_(current)


def _token(
    sides: tuple[Tensor, ...], state: Tensor, rate: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the results [b, H, Dv] of a token and the new state [b, H, D, Dv].

    Args:
        sides: query, key, value and decay of a step, without the axis of tokens; likewise `beta`.
    """
    query, key, value, decay = sides
    heads = value.shape[1]
    query, key = (side.repeat_interleave(heads // side.shape[1], 1)[..., None] for side in (query, key))
    state = state * (decay if rate is None else decay * rate).exp()[..., None]
    if beta is not None:
        value = beta[..., None] * (value - (key * state).sum(2))
    state = state + key * value[:, :, None]
    return (query * state).sum(2), state
