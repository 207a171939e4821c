"""The kv dialect: selection by a learned index, and attention to the selected rows, token by token
(`sscc.ir.operations`)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Several, UndefinedKind, undefined
from sscc.compiler.interpret.kv_cache import Operands, Scoring, attention, decoded, format_of, named, stored
from sscc.compiler.interpret.types import Types
from sscc.ir import operations
from sscc.ir.dialects.kv import geometry_of
from sscc.ir.layer_state.codecs import codec_of
from sscc.ir.opspec import executes


class IndexUndefinedErrors(UndefinedKind):
    TOO_FEW_KEYS = "chooses for position {position}, but reads index keys of {rows} positions"
    BEYOND_ROWS = "attends to row {row} of {rows}"


@executes(operations.ChooseByIndex)
def _choose_by_index(op: ir.Operation, b: Builder) -> Several:
    block, local = (int(op.attributes[name].value) for name in ("block", "local"))
    shape = list(op.results[0].type.shape)

    def choose(x: Operands) -> tuple[Tensor, Tensor]:
        x = {**x, "keys": _written(x["keys"], x["new_key"], x["position"])}
        end = int(x["start"]) + shape[2]
        chosen = torch.full(shape, -1)
        for step, token in (x["position"] >= 0).nonzero().tolist():
            position = int(x["position"][step, token])
            if position >= end:
                undefined(IndexUndefinedErrors.TOO_FEW_KEYS, position=position, rows=end)
            scores = _scores(x, step, token, position + 1, b.types)
            for choice, of_choice in enumerate(scores):
                picked = _picked(of_choice, shape[3], block, local)
                chosen[step, choice, token, : len(picked)] = picked
        return chosen, x["keys"]

    return named(op, choose)


def _written(store: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """Return a store [B, Hkv, T, ..] with the new rows [Q, Hkv, S, ..] of tokens at their positions [Q, S]."""
    result, per_slot = store.clone(), len(new) // len(store)
    for step, token in (position >= 0).nonzero().tolist():
        row = int(position[step, token])
        if row >= store.shape[2]:
            undefined(IndexUndefinedErrors.BEYOND_ROWS, row=row, rows=store.shape[2])
        result[step // per_slot, :, row] = new[step, :, token]
    return result


def _scores(x: Operands, step: int, token: int, count: int, types: Types) -> Tensor:
    """Return the scores [Hc, count] of the first positions of a slot for one of its tokens."""
    slot = step // (len(x["query"]) // len(x["keys"]))
    query, keys = (rows.to(types.accumulate) for rows in (x["query"][step, token], x["keys"][slot, 0, :count]))
    products = query @ keys.T
    return x["weight"][step, token][None].to(products.dtype) @ products.relu() if "weight" in x else products


def _picked(scores: Tensor, most: int, block: int, local: int) -> Tensor:
    """Return the chosen ones of the positions that have `scores` [n], ascending."""
    count = len(scores)
    blocks = -(-count // block)
    padded = torch.nn.functional.pad(scores, (0, blocks * block - count), value=float("-inf"))
    of_blocks = padded.reshape(blocks, block).amax(1)
    of_blocks[max(blocks - local, 0) :] = float("inf")
    best = torch.argsort(of_blocks, descending=True, stable=True)[: most // block].sort().values
    positions = (best[:, None] * block + torch.arange(block)).flatten()
    return positions[positions < count]


@executes(operations.AttendChosen)
def _attend_chosen(op: ir.Operation, b: Builder) -> Several:
    scoring, g, width = Scoring.of(op), geometry_of(op), op.results[0].type.shape[3]
    row_format, codec = format_of(g), codec_of(g)

    def attend(x: Operands) -> tuple[Tensor, ...]:
        sides = {"k": "key", "v": "value"} if "v_store" in x else {"k": "key"}
        new = {side: stored(x[f"new_{name}"], codec) for side, name in sides.items()}
        stores = {side: _written(x[f"{side}_store"], rows, x["position"]) for side, rows in new.items()}
        out, sinks = torch.zeros(*x["query"].shape[:3], width, dtype=x["query"].dtype), x.get("sink_logits")
        slots, kv_heads, rows, _ = stores["k"].shape
        group = out.shape[1] // kv_heads
        if int(x["chosen"].max()) >= rows:
            undefined(IndexUndefinedErrors.BEYOND_ROWS, row=int(x["chosen"].max()), rows=rows)
        for step in range(len(out)):
            slot = step // (len(out) // slots)
            for head in range(kv_heads):
                heads = slice(head * group, (head + 1) * group)
                own = Scoring(scoring.scale, scoring.softcap, None if sinks is None else sinks[heads])
                choices = x["chosen"][step, head * x["chosen"].shape[1] // kv_heads]
                for token, choice in enumerate(choices):
                    picked = choice[choice >= 0]
                    if len(picked):
                        key, *values = (decoded(store[slot, head, picked], row_format) for store in stores.values())
                        value = [*values, key][0][:, :width]
                        query = x["query"][step, heads, token, None]
                        out[step, heads, token, None], _ = attention(
                            query, key[None], value[None], own, None, b.types
                        )
        return out, *stores.values()

    return named(op, attend)
