"""Rows of the prompt by index: equal to the same rows in the cache, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sscc.ir.operations import DecodeAttention, SelectedRows
from sscc.runtime.backends.reference import attention
from sscc.runtime.backends.reference.attention import ReferenceAttentionErrors
from sscc.runtime.backends.reference.kv_cache import ReferenceCacheErrors
from sscc.runtime.backends.reference.softmax import KEY_TILE
from tests.errors import raises
from tests.runtime.programs import run_steps

Tensors = dict[str, Tensor]
SINK, RECENT = 2, 5
SR = SINK + RECENT
SMALL = "query new_key new_value position base active".split()
ROWS = SelectedRows("k_store", "v_store", "selected")
COMPACT = DecodeAttention(
    "query", "new_key", "new_value", "k_cache", "v_cache", "k_cache", "v_cache", "position", "base", "active", "topk",
    "out", 0.3, SINK, RECENT,
)  # fmt: skip
INDEXED = replace(COMPACT, segments=(ROWS,))


def step_inputs(
    topk: int, positions: list[int], dtype: torch.dtype, sink: int = SINK, recent: int = RECENT
) -> tuple[Tensors, Tensors]:
    """Inputs and caches of a step: 4 query heads, 2 KV heads, a slot per position, prompts of topk + 9 rows.

    Slots 0, 3, .. have short prompts: no row is selected, and the ring begins at row 0, 3, .. of the cache or behind
    its sinks. Of the others slot b has b selected positions (of many rows `topk` without b) per head, ascending, then
    -1. Slot 1 is not active.
    """
    slots, rows = len(positions), topk + 9
    selected, base = torch.full((slots, 2, topk), -1), torch.arange(slots)
    for b in range(slots):
        count = min(b, topk) if topk < KEY_TILE else topk - b
        base[b] = sink + topk + b if b % 3 else b
        for h in range(2 if b % 3 else 0):
            selected[b, h, :count] = torch.randperm(rows)[:count].sort().values
    inputs = {
        "query": torch.randn(slots, 4, 1, 8).to(dtype),
        "new_key": torch.randn(slots, 2, 1, 8).to(dtype),
        "new_value": torch.randn(slots, 2, 1, 6).to(dtype),
        "position": torch.tensor(positions),
        "base": base,
        "active": torch.tensor([slot != 1 for slot in range(slots)]),
        "k_store": torch.randn(slots, 2, rows, 8).to(dtype),
        "v_store": torch.randn(slots, 2, rows, 6).to(dtype),
        "selected": selected,
    }
    budget = sink + topk + recent
    caches = {"k_cache": torch.randn(slots, 2, budget, 8), "v_cache": torch.randn(slots, 2, budget, 6)}
    return inputs, {name: cache.to(dtype) for name, cache in caches.items()}


def places(inputs: Tensors, sink: int = SINK) -> list[tuple[int, int, int, int]]:
    """Slot, head and row of the cache of every selected position, and that position."""
    found = []
    for b, of_slot in enumerate(inputs["selected"].tolist()):
        for h, positions in enumerate(of_slot):
            found += [(b, h, sink + j, p) for j, p in enumerate(positions) if p >= 0]
    return found


def assembled(inputs: Tensors, caches: Tensors, sink: int) -> Tensors:
    """The caches with the selected rows behind their sinks, put there one by one."""
    result = {name: cache.clone() for name, cache in caches.items()}
    for kind in "kv":
        for b, h, row, p in places(inputs, sink):
            result[f"{kind}_cache"][b, h, row] = inputs[f"{kind}_store"][b, h, p]
    return result


def run_both(
    inputs: Tensors, caches: Tensors, precision: str = "f32", sink: int = SINK, recent: int = RECENT
) -> tuple[Tensors, Tensors]:
    """Return the step's results over indexed rows, and over the same rows in a cache."""
    out = torch.full((*inputs["query"].shape[:3], 6), 9.0).to(inputs["query"].dtype)
    fields = {"sink": sink, "recent": recent}
    small = {name: inputs[name] for name in SMALL}
    scalars = {"topk": inputs["selected"].shape[2]}
    indexed = run_steps(
        (replace(INDEXED, **fields),),  # type: ignore[arg-type]
        inputs,
        {**caches, "out": out},
        scalars,
        precision=precision,
    )
    compact = run_steps(
        (replace(COMPACT, **fields),),  # type: ignore[arg-type]
        small,
        {**assembled(inputs, caches, sink), "out": out},
        scalars,
        precision=precision,
    )
    return indexed, compact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("topk", [1, 4, KEY_TILE - SR, KEY_TILE - SR + 1, KEY_TILE, 2 * KEY_TILE + 3])
def test_indexed_attention_is_decode_attention_over_the_assembled_rows(topk: int, dtype: torch.dtype) -> None:
    """Rows in whose place others stand keep their bytes."""
    budget = SR + topk
    inputs, caches = step_inputs(topk, [0, 3, 1, budget - 1, budget, 2 * budget + 3, 3 * budget + 1], dtype)
    indexed, compact = run_both(inputs, caches)
    assert torch.equal(indexed["out"], compact["out"])
    assert not indexed["out"][1].any()
    assert indexed["out"][0].any()
    for name, before in caches.items():
        for b, h, row, _ in places(inputs):
            assert torch.equal(indexed[name][b, h, row], before[b, h, row])
            compact[name][b, h, row] = before[b, h, row]
        assert torch.equal(indexed[name], compact[name])


@pytest.mark.parametrize(
    ("sink", "topk"), [(KEY_TILE, 40), (KEY_TILE - 3, 40), (KEY_TILE + 30, 40), (SINK, KEY_TILE - SINK)]
)
def test_a_tile_may_begin_with_the_first_indexed_row_or_hold_rows_of_both(sink: int, topk: int) -> None:
    """Or begin with the first row of the ring."""
    budget = sink + topk + 9
    inputs, caches = step_inputs(topk, [budget + 9, 3, budget, sink + 2], torch.float32, sink, 9)
    indexed, compact = run_both(inputs, caches, sink=sink, recent=9)
    assert torch.equal(indexed["out"], compact["out"])


def test_indexed_attention_in_double_precision() -> None:
    inputs, caches = step_inputs(4, [4, 9, 40], torch.float32)
    indexed, compact = run_both(inputs, caches, "f64")
    assert indexed["out"].dtype is torch.float64
    assert torch.equal(indexed["out"], compact["out"])


def test_rows_of_the_prompt_that_are_not_selected_are_not_read() -> None:
    """Nor are rows of the cache in whose place others stand, nor is an index of rows that a slot does not see."""
    inputs, caches = step_inputs(4, [9, 3, 8, 30, 4], torch.float32)
    want, _ = run_both(inputs, caches)
    for b in range(5):
        for h in range(2):
            others = torch.ones(13, dtype=torch.bool)
            others[inputs["selected"][b, h][inputs["selected"][b, h] >= 0]] = False
            inputs["k_store"][b, h, others] = torch.nan
            inputs["v_store"][b, h, others] = torch.nan
    seen = [(b, h, row) for b, h, row, _ in places(inputs) if row <= inputs["position"][b] and b != 1]
    for b, h, row in seen:
        for cache in caches.values():
            cache[b, h, row] = torch.nan
    inputs["selected"][4, :, 5 - SINK :] = inputs["selected"][1] = 2**62
    got = run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(5, 4, 1, 6)}, {"topk": 4})
    assert torch.equal(got["out"], want["out"])
    assert got["out"].isfinite().all()


def test_a_short_prompt_is_read_from_the_cache_alone() -> None:
    """Its rows behind the sinks as well, until the ring overwrites them."""
    inputs, caches = step_inputs(4, [10, 3, 6, 25], torch.float32)
    inputs["selected"].fill_(-1)
    inputs["base"] = torch.tensor([11, 3, 4, 5])
    for name in ("k_store", "v_store"):
        inputs[name].fill_(torch.nan)
    indexed, compact = run_both(inputs, caches)
    assert all(torch.equal(indexed[name], compact[name]) for name in compact)
    assert indexed["out"].isfinite().all()
    written = [(b, r) for b in range(4) for r in range(11) if (indexed["k_cache"] != caches["k_cache"])[b, :, r].any()]
    assert written == [(0, 6 + (10 - 6) % 5), (2, 6), (3, 5 + (25 - 5) % 6)]


def test_no_more_rows_than_a_tile_are_gathered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    gathered = attention.gathered

    def counted(source: Tensor, index: Tensor) -> Tensor:
        counts.append(index.shape[2])
        return gathered(source, index)

    monkeypatch.setattr(attention, "gathered", counted)
    inputs, caches = step_inputs(2 * KEY_TILE + 3, [9, 3, 5000], torch.float32)
    run_both(inputs, caches)
    assert sum(counts) == 2 * (2 * KEY_TILE + 3)  # K and V, once each
    assert max(counts) <= KEY_TILE


def test_the_new_row_takes_part_and_a_copy_of_the_cache_is_not_written() -> None:
    inputs, caches = step_inputs(4, [12, 3, 25], torch.float32)
    want, _ = run_both(inputs, caches)
    copies = {"key": caches["k_cache"], "value": caches["v_cache"]}
    stale = {name: torch.full_like(cache, torch.nan) for name, cache in caches.items()}
    out = torch.zeros(3, 4, 1, 6)
    step = replace(INDEXED, key="key", value="value")
    got = run_steps((step,), inputs, {**copies, **stale, "out": out}, {"topk": 4})
    assert torch.equal(got["out"], want["out"])
    assert all(torch.equal(got[name], before) for name, before in copies.items())
    written = [(b, r) for b in range(3) for r in range(SR + 4) if not got["k_cache"][b, :, r].isnan().any()]
    assert written == [(0, 2 + (12 - 2) % 9), (2, 6 + (25 - 6) % 5)]


def test_an_index_beyond_the_prompt_is_refused() -> None:
    inputs, caches = step_inputs(4, [8, 3, 25], torch.float32)
    inputs["selected"][2, 1, 1] = 13
    with raises(ReferenceCacheErrors.GATHERED_OUTSIDE, row=13, size=13):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(3, 4, 1, 6)}, {"topk": 4})


def test_a_position_that_has_no_row_is_refused() -> None:
    inputs, caches = step_inputs(4, [-1, 3], torch.float32)
    with raises(ReferenceCacheErrors.UPDATED_OUTSIDE, rows=[-1], size=11):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(2, 4, 1, 6)}, {"topk": 4})


@pytest.mark.parametrize("topk", [-1, 5])
def test_more_rows_than_there_are_between_sinks_and_ring_are_refused(topk: int) -> None:
    inputs, caches = step_inputs(4, [8, 3], torch.float32)
    with raises(ReferenceCacheErrors.TOO_MANY, topk=topk, most=4):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(2, 4, 1, 6)}, {"topk": topk})


def test_a_prompt_of_another_dtype_than_the_cache_is_refused() -> None:
    inputs, caches = step_inputs(4, [3], torch.float32)
    inputs["v_store"] = inputs["v_store"].bfloat16()
    with raises(ReferenceAttentionErrors.DTYPES_DIFFER, param="v_store", other="v_cache"):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(1, 4, 1, 6)}, {"topk": 4})
