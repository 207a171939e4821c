"""Rows of the prompt by index: equal to the same rows in the cache, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sscc.ir.schedule import DecodeAttention, MoreRows
from sscc.runtime.backends.reference import attention
from sscc.runtime.backends.reference.attention import ReferenceAttentionErrors
from sscc.runtime.backends.reference.cache import ReferenceCacheErrors
from sscc.runtime.backends.reference.softmax import KEY_TILE
from tests.errors import raises
from tests.runtime.programs import run_steps

Tensors = dict[str, Tensor]
SINK, RECENT = 2, 5
SR = SINK + RECENT
SMALL = "query new_key new_value position prompt_len active".split()
ROWS = MoreRows("k_store", "v_store", "selected")
COMPACT = DecodeAttention(
    "query", "new_key", "new_value", "k_cache", "v_cache", "k_cache", "v_cache", "position", "prompt_len", "active",
    "out", 0.3, SINK, RECENT,
)  # fmt: skip
INDEXED = replace(COMPACT, segments=(ROWS,))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def step_inputs(topk: int, positions: list[int], dtype: torch.dtype, sink_recent: int = SR) -> tuple[Tensors, Tensors]:
    """Inputs and caches of a step: 4 query heads, 2 KV heads, a slot per position, prompts of topk + 9 rows.

    Slot b has b selected positions (at most `topk`) per head, ascending, then -1. Slot 1 is not active.
    """
    slots, rows = len(positions), topk + 9
    counts = [min(slot, topk) for slot in range(slots)] if topk < KEY_TILE else [topk - slot for slot in range(slots)]
    selected = torch.full((slots, 2, topk), -1)
    for b, count in enumerate(counts):
        for h in range(2):
            selected[b, h, :count] = torch.randperm(rows)[:count].sort().values
    inputs = {
        "query": torch.randn(slots, 4, 1, 8).to(dtype),
        "new_key": torch.randn(slots, 2, 1, 8).to(dtype),
        "new_value": torch.randn(slots, 2, 1, 6).to(dtype),
        "position": torch.tensor(positions),
        "prompt_len": torch.tensor(counts) + sink_recent,
        "active": torch.tensor([slot != 1 for slot in range(slots)]),
        "k_store": torch.randn(slots, 2, rows, 8).to(dtype),
        "v_store": torch.randn(slots, 2, rows, 6).to(dtype),
        "selected": selected,
    }
    caches = {"k_cache": torch.randn(slots, 2, sink_recent, 8), "v_cache": torch.randn(slots, 2, sink_recent, 6)}
    return inputs, {name: cache.to(dtype) for name, cache in caches.items()}


def assembled(inputs: Tensors, caches: Tensors) -> Tensors:
    """The caches with the selected rows behind their own, put there one by one."""
    result = {}
    for kind in "kv":
        cache, prompt = caches[f"{kind}_cache"], inputs[f"{kind}_store"]
        slots, heads, topk = inputs["selected"].shape
        rows = torch.zeros(slots, heads, topk, prompt.shape[3], dtype=prompt.dtype)
        for b in range(slots):
            for h in range(heads):
                for j, p in enumerate(inputs["selected"][b, h].tolist()):
                    if p >= 0:
                        rows[b, h, j] = prompt[b, h, p]
        result[f"{kind}_cache"] = torch.cat([cache, rows], 2)
    return result


def run_both(
    inputs: Tensors, caches: Tensors, precision: str = "f32", sink: int = SINK, recent: int = RECENT
) -> tuple[Tensors, Tensors]:
    """What the step gives over indexed rows, and over the same rows in a cache."""
    out = torch.full((*inputs["query"].shape[:3], 6), 9.0).to(inputs["query"].dtype)
    fields = {"sink": sink, "recent": recent}
    small = {name: inputs[name] for name in SMALL}
    indexed = run_steps((replace(INDEXED, **fields),), inputs, {**caches, "out": out}, precision=precision)  # type: ignore[arg-type]
    compact = run_steps(
        (replace(COMPACT, **fields),),  # type: ignore[arg-type]
        small,
        {**assembled(inputs, caches), "out": out},
        precision=precision,
    )
    return indexed, compact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("topk", [1, 4, KEY_TILE - SR, KEY_TILE - SR + 1, KEY_TILE, 2 * KEY_TILE + 3])
def test_indexed_attention_is_decode_attention_over_the_assembled_rows(topk: int, dtype: torch.dtype) -> None:
    inputs, caches = step_inputs(topk, [0, 3, 1, 6, 7, 23], dtype)
    indexed, compact = run_both(inputs, caches)
    assert torch.equal(indexed["out"], compact["out"])
    assert not indexed["out"][1].any()
    assert indexed["out"][0].any()
    for name in ("k_cache", "v_cache"):
        assert torch.equal(indexed[name], compact[name][:, :, :SR])


@pytest.mark.parametrize("recent", [KEY_TILE - SINK, KEY_TILE - SINK - 3, KEY_TILE + 30])
def test_a_tile_may_begin_with_the_first_indexed_row_or_hold_rows_of_both(recent: int) -> None:
    inputs, caches = step_inputs(40, [recent + 9, 3, recent], torch.float32, SINK + recent)
    indexed, compact = run_both(inputs, caches, recent=recent)
    assert torch.equal(indexed["out"], compact["out"])


def test_indexed_attention_in_double_precision() -> None:
    inputs, caches = step_inputs(4, [4, 9, 40], torch.float32)
    indexed, compact = run_both(inputs, caches, "f64")
    assert indexed["out"].dtype is torch.float64
    assert torch.equal(indexed["out"], compact["out"])


def test_rows_of_the_prompt_that_are_not_selected_are_not_read() -> None:
    inputs, caches = step_inputs(4, [9, 3, 8, 30], torch.float32)
    want, _ = run_both(inputs, caches)
    for b in range(4):
        for h in range(2):
            others = torch.ones(13, dtype=torch.bool)
            others[inputs["selected"][b, h][inputs["selected"][b, h] >= 0]] = False
            inputs["k_store"][b, h, others] = torch.nan
            inputs["v_store"][b, h, others] = torch.nan
    got, _ = run_both(inputs, caches)
    assert torch.equal(got["out"], want["out"])
    assert got["out"].isfinite().all()


def test_no_more_rows_than_a_tile_are_gathered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    gathered = attention.gathered

    def counted(source: Tensor, index: Tensor) -> Tensor:
        counts.append(index.shape[2])
        return gathered(source, index)

    monkeypatch.setattr(attention, "gathered", counted)
    inputs, caches = step_inputs(2 * KEY_TILE + 3, [9, 3, 8], torch.float32)
    run_both(inputs, caches)
    assert sum(counts) == 2 * (2 * KEY_TILE + 3)  # K and V, once each
    assert max(counts) <= KEY_TILE


def test_the_new_row_takes_part_and_a_copy_of_the_cache_is_not_written() -> None:
    inputs, caches = step_inputs(4, [8, 3, 25], torch.float32)
    want, _ = run_both(inputs, caches)
    copies = {"key": caches["k_cache"], "value": caches["v_cache"]}
    stale = {name: torch.full_like(cache, torch.nan) for name, cache in caches.items()}
    out = torch.zeros(3, 4, 1, 6)
    step = replace(INDEXED, key="key", value="value")
    got = run_steps((step,), inputs, {**copies, **stale, "out": out})
    assert torch.equal(got["out"], want["out"])
    assert all(torch.equal(got[name], before) for name, before in copies.items())
    written = [(b, r) for b in range(3) for r in range(SR) if not got["k_cache"][b, :, r].isnan().any()]
    assert written == [(0, 2 + (8 - 2) % 5), (2, 2 + (25 - 2) % 5)]


def test_an_index_beyond_the_prompt_is_refused() -> None:
    inputs, caches = step_inputs(4, [8, 3, 25], torch.float32)
    inputs["selected"][2, 1, 1] = 13
    with raises(ReferenceCacheErrors.GATHERED_OUTSIDE, row=13, size=13):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(3, 4, 1, 6)})


def test_a_position_that_has_no_row_is_refused() -> None:
    inputs, caches = step_inputs(4, [-1, 3], torch.float32)
    with raises(ReferenceCacheErrors.UPDATED_OUTSIDE, rows=[-1], size=7):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(2, 4, 1, 6)})


def test_a_prompt_of_another_dtype_than_the_cache_is_refused() -> None:
    inputs, caches = step_inputs(4, [3], torch.float32)
    inputs["v_store"] = inputs["v_store"].bfloat16()
    with raises(ReferenceAttentionErrors.DTYPES_DIFFER, param="v_store", other="v_cache"):
        run_steps((INDEXED,), inputs, {**caches, "out": torch.zeros(1, 4, 1, 6)})
