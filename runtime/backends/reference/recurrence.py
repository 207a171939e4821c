"""Steps of recurrences, token by token as `sscc.ir.operations.Recurrence` defines them."""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.opspec import executes


@executes(operations.RecurrentStep)
def recurrent_step(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor, active: Tensor, out: Tensor,
    rate: Tensor | None, beta: Tensor | None, pending: Tensor | None, held: Tensor | None, position: Tensor | None,
    *, wide: torch.dtype,
) -> None:  # fmt: skip
    """Execute the step `RecurrentStep` (see it for shapes)."""
    slots = state.shape[0]
    sides = [side.unflatten(0, (slots, -1))[:, :, 0].to(wide) for side in (query, key, value, decay)]
    betas = None if beta is None else beta.unflatten(0, (slots, -1))[:, :, 0].to(wide)
    live, results = active.unflatten(0, (slots, -1)), out.unflatten(0, (slots, -1))[:, :, 0]
    tokens, current = live.shape[1], state.to(wide)
    if pending is not None:
        assert held is not None
        assert position is not None
        start = position.unflatten(0, (slots, -1))[:, 0]
        current = _with_pending(current, rate, pending.to(wide), held, start, live[:, 0], sides[1:], betas is not None)
        held.copy_(torch.where(live[:, :1], (start + (tokens == 1))[:, None], held))
        if tokens > 1:
            state.copy_(current)
            _keep(pending, start, live, sides[1:], betas)
    for token in range(tokens):
        of_token = None if betas is None else betas[:, token]
        result, new = _token(tuple(side[:, token] for side in sides), current, rate, of_token)
        results[:, token] = torch.where(live[:, token, None, None], result, 0.0)
        current = torch.where(live[:, token, None, None, None], new, current)
    if tokens == 1:
        state.copy_(current)


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


def _with_pending(
    state: Tensor, rate: Tensor | None, pending: Tensor, held: Tensor, start: Tensor, active: Tensor,
    sides: list[Tensor], delta: bool,
) -> Tensor:  # fmt: skip
    """Return the states after the pending inputs of each active slot, those before position `start` [B].

    Args:
        sides: key, value and decay of the step, for their widths.
    """
    slots, rows = torch.arange(state.shape[0]), pending.shape[2]
    widths = [side.shape[3] for side in sides]
    for back in range(rows, 0, -1):
        at = start - back
        key, value, decay, beta = pending[slots, :, at.clamp(0) % rows].split([*widths, 1], 2)
        _, new = _token((key, key, value, decay), state, rate, beta[..., 0] if delta else None)
        waits = active[:, None] & (at[:, None] >= held) & (at[:, None] >= 0)
        state = torch.where(waits[..., None, None], new, state)
    return state


def _keep(pending: Tensor, start: Tensor, live: Tensor, sides: list[Tensor], beta: Tensor | None) -> None:
    """Write the inputs of the active tokens of a step to `pending`."""
    key, value, decay = sides
    heads, rows = value.shape[2], pending.shape[2]
    beta = torch.zeros_like(value[..., 0]) if beta is None else beta
    inputs = torch.cat([key.repeat_interleave(heads // key.shape[2], 2), value, decay, beta[..., None]], 3)
    slots, tokens = live.nonzero(as_tuple=True)
    pending[slots, :, (start[slots] + tokens) % rows] = inputs[slots, tokens].to(pending.dtype)


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
