"""Steps of a learned index: the choice of rows for each token, and the attention to them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.encoded_rows import as_stored, numbers
from sscc.runtime.backends.reference.softmax import KEY_TILE, RunningSoftmax, Scoring


class ReferenceChoiceErrors(ErrorKind):
    TOO_FEW_KEYS = (
        InputError,
        "position {position} needs the index keys of all earlier positions, but there are only {keys}",
    )
    BEYOND_ROWS = InputError, "row {row} is attended to, but there are only {rows} rows"


@executes(operations.ChooseByIndex)
def choose_by_index(
    query: Tensor, new_key: Tensor, keys: Tensor, position: Tensor, chosen: Tensor, weight: Tensor | None, *,
    start: int, block: int, local: int, wide: torch.dtype,
) -> None:  # fmt: skip
    """Execute the step `ChooseByIndex` (see it for shapes)."""
    chosen.fill_(-1)
    end = start + query.shape[1]
    if int(position.max()) >= end:
        raise ReferenceChoiceErrors.TOO_FEW_KEYS(position=int(position.max()), keys=end)
    _write(keys, new_key, position)
    per_slot = query.shape[0] // keys.shape[0]
    for step in range(query.shape[0]):
        for token, last in enumerate(position[step].tolist()):
            if last < 0:
                continue
            scores = query[step, token].to(wide) @ keys[step // per_slot, 0, : last + 1].to(wide).T
            if weight is not None:
                scores = weight[step, token].to(wide)[None] @ scores.clamp(min=0)
            _choose(scores, chosen[step, :, token], block, local)


def _write(store: Tensor, new: Tensor, position: Tensor) -> None:
    """Write the rows [Q, Hkv, S, ..] of tokens to a store [B, Hkv, T, ..] at their positions [Q, S]."""
    rows, per_slot = as_stored(new, store), new.shape[0] // store.shape[0]
    for step, token in (position >= 0).nonzero().tolist():
        store[step // per_slot, :, position[step, token]] = rows[step, :, token]


def _choose(scores: Tensor, chosen: Tensor, block: int, local: int) -> None:
    """Write the chosen positions to `chosen` [Hc, Top], given the scores [Hc, n] of all positions of a slot."""
    count = scores.shape[1]
    blocks = -(-count // block)
    best = pad(scores, (0, blocks * block - count), value=-torch.inf).unflatten(1, (blocks, block)).amax(2)
    best[:, max(blocks - local, 0) :] = torch.inf
    order = best.sort(dim=1, descending=True, stable=True).indices[:, : chosen.shape[1] // block].sort(dim=1).values
    for target, picked in zip(chosen, order, strict=True):
        positions = (picked[:, None] * block + torch.arange(block)).flatten()
        positions = positions[positions < count]
        target[: len(positions)] = positions


@executes(operations.AttendChosen)
def attend_chosen(
    query: Tensor, new_key: Tensor, new_value: Tensor | None, k_store: Tensor, v_store: Tensor | None,
    position: Tensor, chosen: Tensor, out: Tensor, sink_logits: Tensor | None, *, scale: float, softcap: float | None,
    wide: torch.dtype,
) -> None:  # fmt: skip
    """Execute the step `AttendChosen` (see it for shapes)."""
    last = max(int(chosen.max()), int(position.max()))
    if last >= k_store.shape[2]:
        raise ReferenceChoiceErrors.BEYOND_ROWS(row=last, rows=k_store.shape[2])
    _write(k_store, new_key, position)
    if v_store is not None and new_value is not None:
        _write(v_store, new_value, position)
    scoring = Scoring(scale, softcap, sink_logits)
    kv_heads = k_store.shape[1]
    sinks = scoring.sinks_of(kv_heads)
    queries, outs = (side.unflatten(1, (kv_heads, -1)) for side in (query, out))
    for step in range(query.shape[0]):
        slot = step // (query.shape[0] // k_store.shape[0])
        for head in range(kv_heads):
            sides = (k_store[slot, head], None if v_store is None else v_store[slot, head])
            choices = chosen[step, head * chosen.shape[1] // kv_heads]
            for token, choice in enumerate(choices):
                target, own = outs[step, head, :, token], None if sinks is None else sinks[head]
                of_token = queries[step, head, :, token].to(wide)
                target.copy_(_attend(of_token, sides, choice, target.shape[1], own, scoring))


def _attend(
    query: Tensor, sides: tuple[Tensor, Tensor | None], choice: Tensor, width: int, sinks: Tensor | None,
    scoring: Scoring,
) -> Tensor:  # fmt: skip
    """Return the attention [G, width] of a token to the chosen rows of a KV head.

    Args:
        query: [G, D].
        sides: rows [T, ..] of keys and of values, None if values are the first numbers of keys.
        choice: row numbers, then -1.
    """
    picked = choice[choice >= 0]
    if not len(picked):
        return query.new_zeros(query.shape[0], width)
    softmax = RunningSoftmax((query.shape[0],), width, query.dtype, sinks)
    keys, values = sides
    for begin in range(0, len(picked), KEY_TILE):
        rows = picked[begin : begin + KEY_TILE]
        k = numbers(keys[rows], query.shape[1]).to(query.dtype)
        v = k[:, :width] if values is None else numbers(values[rows], width).to(query.dtype)
        softmax.add(scoring.scores(query @ k.T), v)
    return softmax.output()
