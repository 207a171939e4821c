"""kv with indexed rows: every operation against the same one over the rows in a cache."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sscc.compiler.frontend import algorithm
from sscc.compiler.interpret.kv_cache import CacheUndefinedErrors
from tests.compiler.interpret.test_cache import (
    DV,
    HKV,
    G,
    H,
    _type,
    decode_inputs,
    kv,
    randn,
)
from tests.errors import raises

INDEXED = dataclasses.replace(G, rows="indexed")
T = 24
NONE = [[-1, -1, -1, -1]] * HKV
SELECTED = torch.tensor([NONE, [[3, 9, 10, 11], [2, 4, 21, 23]], [[5, 6, 7, 8]] * HKV, NONE])
"""Of a short prompt, a long one, a slot that is not active, and another short one."""


@pytest.mark.parametrize("topk", [G.topk, 2])
def test_indexed_attention_is_decode_attention_over_the_same_rows(topk: int) -> None:
    """Rows of a prompt stand in the place of the cache's where the index is not negative; a layer that selects fewer
    has fewer of them. Nothing reads the rows that they replace."""
    x, selected = decode_inputs(G), SELECTED.clone()
    selected[..., topk:] = -1
    prompts = {name: randn(4, HKV, T, x[name].shape[3], seed=7) for name in ("key", "value")}
    plain = {name: x[name].clone() for name in prompts}
    for name, source in prompts.items():
        for b in range(4):
            for h in range(HKV):
                for j, p in enumerate(selected[b, h].tolist()):
                    if p >= 0:
                        plain[name][b, h, G.sink + j] = source[b, h, p]
                        x[name][b, h, G.sink + j] = torch.nan
    new = [x[name] for name in ("query", "new_key", "new_value")]
    last: list[Tensor | int] = [x[name] for name in ("position", "base", "active")] + [topk]
    types = [_type(torch.zeros(4, H, 1, DV)), *(_type(x[name]) for name in prompts)]
    operands = [*new, *plain.values(), *plain.values(), *last]
    want, *_ = kv("decode_attention", operands, types, G, present="1" * 11 + "0000")
    caches = [x[name] for name in prompts]
    operands = [*new, *caches, *caches, *last, *prompts.values(), selected]
    result, *updated = kv("decode_attention", operands, types, INDEXED, present="1" * 11 + "0111")
    torch.testing.assert_close(result, want)  # sums have another order: selected rows come last
    assert result[[0, 1, 3]].any(3).all()
    assert result.isfinite().all()
    own = dataclasses.replace(G, topk=topk)
    for now, before, row in zip(updated, caches, new[1:], strict=True):
        expected = before.clone()
        for slot in (0, 1, 3):
            first = min(int(x["base"][slot]), G.sink + topk)
            expected[slot, :, algorithm.row(int(x["position"][slot]), first, own)] = row[slot, :, 0]
        torch.testing.assert_close(now, expected, rtol=0, atol=0, equal_nan=True)
    operands[13] = selected + T
    with raises(CacheUndefinedErrors.SCRATCH_OUT_OF_BOUNDS):
        kv("decode_attention", operands, types, INDEXED, present="1" * 11 + "0111")


@pytest.mark.parametrize("topk", [G.topk, 2])
def test_a_mask_has_a_row_of_the_index_or_the_one_that_it_replaces(topk: int) -> None:
    x, selected = decode_inputs(G), SELECTED.clone()
    selected[..., topk:] = -1
    position, active = torch.tensor([1, 17, 6, 3]), x["active"]
    selected[3, :, :topk] = torch.arange(2, 2 + topk)  # a position that is not reached yet: its row is not seen
    operands: list[Tensor | int] = [position, x["base"], active, topk]
    (valid,) = kv("validity", [*operands, selected], [f"tensor<4x{G.budget + G.topk}xi1>"], INDEXED)
    (plain,) = kv("validity", operands, [f"tensor<4x{G.budget}xi1>"], G)
    for slot in range(4):
        for row in range(G.budget):
            j = row - G.sink
            replaced = 0 <= j < G.topk and int(selected[slot, 0, j]) >= 0
            assert bool(valid[slot, row]) == (bool(plain[slot, row]) and not replaced)
            if 0 <= j < G.topk:
                assert bool(valid[slot, G.budget + j]) == (bool(plain[slot, row]) and replaced)
    assert valid.sum(1).tolist() == plain.sum(1).tolist() == [2, 7 + topk, 0, 4]
