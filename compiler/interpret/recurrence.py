"""The kv dialect: recurrences, a chunk as one block of tokens (`sscc.ir.operations.RecurrentChunk`), head by head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Several
from sscc.compiler.interpret.kv_cache import Operands, named
from sscc.ir import operations
from sscc.ir.opspec import executes


@executes(operations.RecurrentStep)
def _recurrent_step(op: ir.Operation, b: Builder) -> Several:
    def step(x: Operands) -> tuple[Tensor, ...]:
        slots = x["state"].shape[0]
        of_tokens = ("query", "key", "value", "decay", "beta", "active", "position")
        x = {name: side.unflatten(0, (slots, -1)) if name in of_tokens else side for name, side in x.items()}
        x |= {name: x[name].squeeze(2) for name in of_tokens[:5] if name in x}
        out, *states = map(torch.stack, zip(*(_slot(x, slot) for slot in range(slots)), strict=True))
        return (out.flatten(0, 1)[:, None], *states)

    return named(op, step)


@executes(operations.RecurrentChunk)
def _recurrent_chunk(op: ir.Operation, b: Builder) -> Several:
    def chunk(x: Operands) -> tuple[Tensor, Tensor]:
        start, length = int(x["start"]), int(x["length"])
        tokens = max(min(length - start, x["query"].shape[1]), 0)
        state = x["state"][0] if start > 0 else torch.zeros_like(x["state"][0])
        out = torch.zeros_like(x["value"])
        if tokens:
            heads = range(state.shape[0])
            outs, states = zip(*(_head(x, 0, head, tokens, state[head]) for head in heads), strict=True)
            out[0, :tokens], state = torch.stack(outs, 1), torch.stack(states)
        return out, state[None]

    return named(op, chunk)


def _slot(x: Operands, slot: int) -> tuple[Tensor, ...]:
    """Return the results [n, H, Dv] of a slot's n tokens, its state [H, D, Dv], pending inputs and their position."""
    state, live = x["state"][slot], int(x["active"][slot].sum())
    kept = [x[name][slot] for name in ("pending", "held") if name in x]
    out = torch.zeros_like(x["value"][slot])
    if not live:
        return (out, state, *kept)
    heads = range(state.shape[0])
    if kept:
        state = torch.stack([_after_pending(x, slot, head) for head in heads])
    outs, states = zip(*(_head(x, slot, head, live, state[head]) for head in heads), strict=True)
    out[:live] = torch.stack(outs, 1)
    position = int(x["position"][slot, 0]) if kept else 0
    if len(out) == 1:
        return (out, torch.stack(states), *kept[:1], *(torch.full_like(held, position + 1) for held in kept[1:]))
    pending, held = kept[0].clone(), torch.full_like(kept[1], position)
    rows = [(position + token) % pending.shape[1] for token in range(live)]
    pending[:, rows] = torch.stack([_inputs(x, slot, head, live) for head in heads])
    return out, state, pending, held


def _after_pending(x: Operands, slot: int, head: int) -> Tensor:
    """Return a head's state before the slot's first token: with the pending inputs."""
    state, pending = x["state"][slot, head], x["pending"][slot, head]
    rows = [at % len(pending) for at in range(int(x["held"][slot, head]), int(x["position"][slot, 0]))]
    if not rows:
        return state
    widths = [x[name].shape[3] for name in ("key", "value", "decay")]
    key, value, decay, beta = (part[None, :, None] for part in pending[rows].split([*widths, 1], 1))
    inputs = {"query": key, "key": key, "value": value, "decay": decay}
    inputs |= {"beta": beta[..., 0]} if "beta" in x else {}
    inputs |= {"rate": x["rate"][head, None]} if "rate" in x else {}
    return _head(inputs, 0, 0, len(rows), state)[1]


def _inputs(x: Operands, slot: int, head: int, tokens: int) -> Tensor:
    """Return the inputs [n, Packed] of a head that `pending` holds."""
    group = head // (x["value"].shape[2] // x["query"].shape[2])
    beta = x["beta"][slot, :tokens, head, None] if "beta" in x else torch.zeros(tokens, 1)
    sides = (x["key"][slot, :tokens, group], x["value"][slot, :tokens, head], x["decay"][slot, :tokens, head])
    return torch.cat([*sides, beta.to(sides[0].dtype)], 1)


def _head(x: Operands, slot: int, head: int, tokens: int, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results [t, Dv] of a head for the first `tokens` tokens, and its state [D, Dv] after them."""
    group = head // (x["value"].shape[2] // x["query"].shape[2])
    query, key = (x[name][slot, :tokens, group] for name in ("query", "key"))
    value, decay = (x[name][slot, :tokens, head] for name in ("value", "decay"))
    if "rate" in x:
        decay = decay * x["rate"][head]
    between = _between(decay.expand(tokens, key.shape[1]))
    before, after = decay.cumsum(0).exp(), between[-1]
    if "beta" in x:
        beta = x["beta"][slot, :tokens, head, None]
        weighed = torch.einsum("td,tjd,jd->tj", key, between, key).tril(-1)
        system = torch.eye(tokens, dtype=key.dtype) + beta * weighed
        value = torch.linalg.solve_triangular(system, beta * (value - (key * before) @ state), upper=False)
    out = (query * before) @ state + torch.einsum("td,tjd,jd->tj", query, between, key) @ value
    return out, state * before[-1][:, None] + (key * after).T @ value


def _between(decay: Tensor) -> Tensor:
    """Return exp of the sum of the decays [t, D] of tokens j + 1 .. t, [t, j, D]; 0 for j > t."""
    tokens = decay.shape[0]
    later = torch.ones(tokens, tokens, dtype=torch.bool).tril(-1)[..., None]
    sums = torch.where(later, decay[:, None], 0.0).cumsum(0)
    return torch.where(torch.ones(tokens, tokens, dtype=torch.bool).tril()[..., None], sums.exp(), 0.0)
