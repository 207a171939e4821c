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
    def step(x: Operands) -> tuple[Tensor, Tensor]:
        outs, states = zip(*(_slot(x, slot) for slot in range(x["state"].shape[0])), strict=True)
        return torch.stack(outs)[:, None], torch.stack(states)

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


def _slot(x: Operands, slot: int) -> tuple[Tensor, Tensor]:
    """Return the results [H, Dv] of one slot's token and its state [H, D, Dv]."""
    state = x["state"][slot]
    heads = [_head(x, slot, head, 1, state[head]) for head in range(state.shape[0])]
    new = torch.stack([state for _, state in heads])
    return torch.cat([out for out, _ in heads]), new if bool(x["active"][slot]) else state


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
