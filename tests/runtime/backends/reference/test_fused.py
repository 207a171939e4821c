"""Fused steps: equal to the sequences of steps that they replace, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sscc.ir.operations import CachedAttention, CausalAttention, ChunkAttention, DecodeAttention, Segment, UpdateRows
from sscc.runtime.backends.reference.kv_cache import ReferenceCacheErrors
from sscc.runtime.backends.reference.prefill_chunk import ReferencePromptErrors
from sscc.runtime.backends.reference.softmax import KEY_TILE
from tests.errors import raises
from tests.runtime.programs import run_steps

Tensors = dict[str, torch.Tensor]


# ------------------------------------------------------------------------------------------- decode attention

SINK, RECENT = 2, 5
SR = SINK + RECENT
DECODE = DecodeAttention(
    "query", "new_key", "new_value", "key", "value", "k_cache", "v_cache", "position", "base", "active", "topk",
    "out", 0.3, SINK, RECENT,
)  # fmt: skip


def decode_inputs(rows: int, positions: list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensors, Tensors]:
    """Inputs and caches of one decode step: 4 query heads, 2 KV heads, one slot for each position. The ring of slot b
    begins at row b, or at the nearest one where a ring may begin; that of the last one begins beyond."""
    slots = len(positions)
    inputs = {
        "query": torch.randn(slots, 4, 1, 8).to(dtype),
        "new_key": torch.randn(slots, 2, 1, 8).to(dtype),
        "new_value": torch.randn(slots, 2, 1, 6).to(dtype),
        "position": torch.tensor(positions),
        "base": torch.tensor([*range(slots - 1), rows + 9]),
        "active": torch.tensor([slot != 1 for slot in range(slots)]),
    }
    caches = {"k_cache": torch.randn(slots, 2, rows, 8).to(dtype), "v_cache": torch.randn(slots, 2, rows, 6).to(dtype)}
    return inputs, caches


def decode_unfused(
    inputs: Tensors, caches: Tensors, precision: str, topk: int | None = None, spare: int = 0
) -> Tensors:
    """The same step by UpdateRows and CachedAttention, with row and mask written out here. `topk`: all rows of the
    cache that are neither sinks nor ring, unless it is given."""
    slots, _, rows, _ = caches["k_cache"].shape
    topk = rows - SR - spare if topk is None else topk
    row = torch.zeros(slots, dtype=torch.int64)
    valid = torch.zeros(slots, rows, dtype=torch.bool)
    for b in range(slots):
        p, first = int(inputs["position"][b]), sorted([SINK, int(inputs["base"][b]), SINK + topk])[1]
        places = [i if i < first else first + (i - first) % (SR + topk + spare - first) for i in range(max(p, 0) + 1)]
        row[b] = places[-1]
        if inputs["active"][b]:
            valid[b, [place for i, place in enumerate(places) if place < first or i > p - (SR + topk - first)]] = True
    steps = (
        UpdateRows("k_cache", "new_key", "row", "active"),
        UpdateRows("v_cache", "new_value", "row", "active"),
        CachedAttention("query", (Segment("k_cache", "v_cache", "valid"),), "out", 0.3),
    )
    plain_inputs = {name: inputs[name] for name in ("query", "new_key", "new_value", "active")}
    out = torch.full((slots, 4, 1, 6), 9.0).to(inputs["query"].dtype)
    return run_steps(steps, {**plain_inputs, "row": row, "valid": valid}, {**caches, "out": out}, precision=precision)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "topk", "spare"),
    [
        (SR, 0, 0), (12, 5, 0), (12, 3, 0), (12, 0, 0), (KEY_TILE, KEY_TILE - SR, 0), (KEY_TILE + 9, KEY_TILE + 2, 0),
        (KEY_TILE + 9, 4, 0), (SR + 1, 0, 1), (14, 4, 3), (KEY_TILE + 9, KEY_TILE - 4, 6),
    ],
)  # fmt: skip
def test_decode_attention_is_update_validity_and_attention(
    rows: int, topk: int, spare: int, dtype: torch.dtype, separate: bool
) -> None:
    inputs, caches = decode_inputs(rows, [0, 3, 1, 6, 7, rows - 1, rows, 2 * rows + 5, 23, 3 * rows], dtype)
    want = decode_unfused(inputs, caches, "f32", topk, spare)
    out = torch.full_like(want["out"], 9.0)
    step, copies = replace(DECODE, spare=spare), {"key": caches["k_cache"], "value": caches["v_cache"]}
    if not separate:
        step = replace(step, key="k_cache", value="v_cache")
        copies = {}
    got = run_steps((step,), inputs, {**copies, **caches, "out": out}, {"topk": topk})
    for name in ("k_cache", "v_cache", "out"):
        assert torch.equal(got[name], want[name]), name
    assert torch.equal(got["out"][1], torch.zeros_like(got["out"][1]))
    for name, before in copies.items():
        assert torch.equal(got[name], before), "a separate copy is not written"


def test_decode_attention_rounds_the_new_row_as_the_cache_does() -> None:
    inputs, caches = decode_inputs(12, [3, 8, 25])
    caches = {name: cache.bfloat16() for name, cache in caches.items()}
    want = decode_unfused(inputs, caches, "f32")
    writes = {"key": caches["k_cache"], "value": caches["v_cache"], **caches, "out": torch.zeros(3, 4, 1, 6)}
    got = run_steps((DECODE,), inputs, writes, {"topk": 12 - SR})
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_decode_attention_in_double_precision() -> None:
    inputs, caches = decode_inputs(12, [4, 9, 40])
    want = decode_unfused(inputs, caches, "f64")
    out = torch.full((3, 4, 1, 6), 9.0)
    writes = {"key": caches["k_cache"], "value": caches["v_cache"], **caches, "out": out}
    got = run_steps((DECODE,), inputs, writes, {"topk": 12 - SR}, precision="f64")
    assert got["out"].dtype is torch.float64
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_decode_attention_writes_only_the_new_row_of_its_cache() -> None:
    """The cache behind a copy that was prefetched: its other rows are not even read."""
    inputs, caches = decode_inputs(12, [3, 8, 25])
    stale = {name: torch.full_like(cache, torch.nan) for name, cache in caches.items()}
    writes = {"key": caches["k_cache"], "value": caches["v_cache"], **stale, "out": torch.zeros(3, 4, 1, 6)}
    got = run_steps((DECODE,), inputs, writes, {"topk": 12 - SR})
    assert torch.equal(got["out"], decode_unfused(inputs, caches, "f32")["out"])
    written = [(b, r) for b in range(3) for r in range(12) if not got["k_cache"][b, :, r].isnan().any()]
    assert written == [(0, 3), (2, 7 + (25 - 7) % 5)]


def test_decode_attention_does_not_depend_on_how_many_invalid_rows_follow() -> None:
    inputs, caches = decode_inputs(3 * KEY_TILE, [2, 9, 30])
    inputs["base"] = torch.tensor([4, SINK + 3, SINK + 5])
    results = []
    for rows in (12, 100, KEY_TILE, 3 * KEY_TILE):
        cut = {name: cache[:, :, :rows].clone() for name, cache in caches.items()}
        writes = {"key": cut["k_cache"], "value": cut["v_cache"], **cut, "out": torch.zeros(3, 4, 1, 6)}
        results.append(run_steps((DECODE,), inputs, writes, {"topk": 5})["out"])
    assert all(torch.equal(result, results[0]) for result in results)


def test_decode_attention_of_a_position_that_has_no_row_is_refused() -> None:
    inputs, caches = decode_inputs(12, [-1, 3])
    with raises(ReferenceCacheErrors.UPDATED_OUTSIDE, rows=[-1], size=12):
        run_steps(
            (DECODE,),
            inputs,
            {"key": caches["k_cache"], "value": caches["v_cache"], **caches, "out": torch.zeros(2, 4, 1, 6)},
            {"topk": 12 - SR},
        )


# ------------------------------------------------------------------------------------------------ chunk attention

CHUNK = ChunkAttention("query", "new_key", "new_value", "k_scratch", "v_scratch", "out", "start", "n", 0.4, "sums")


def prompt_states(rows: int) -> Tensors:
    return {
        "k_scratch": torch.full((1, 2, rows, 8), torch.nan),
        "v_scratch": torch.full((1, 2, rows, 6), torch.nan),
    }


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize(("length", "chunk"), [(1, 8), (13, 8), (16, 8), (KEY_TILE + 40, 128)])
def test_chunk_attention_is_insertion_and_causal_attention(length: int, chunk: int, precision: str) -> None:
    rows = -(-length // chunk) * chunk
    query, key, value = torch.randn(1, 4, rows, 8), torch.randn(1, 2, rows, 8), torch.randn(1, 2, rows, 6)
    fused, plain = prompt_states(rows), prompt_states(rows)
    step = CausalAttention("query", "k_scratch", "v_scratch", "out", "start", "n", 0.4, "sums")
    made = {"out": torch.zeros(1, 4, chunk, 6), "sums": torch.zeros(1, 4, chunk)}
    found = []
    for start in range(0, length, chunk):
        scalars = {"start": start, "n": length}
        part = {
            "query": query[:, :, start : start + chunk].clone(),
            "new_key": key[:, :, start : start + chunk].clone(),
            "new_value": value[:, :, start : start + chunk].clone(),
        }
        fused = run_steps((CHUNK,), part, {**fused, **made}, scalars, precision=precision)
        for name, rows_of in (("k_scratch", "new_key"), ("v_scratch", "new_value")):
            plain[name] = plain[name].to(fused[name].dtype)
            plain[name][:, :, start : start + chunk] = part[rows_of]
        plain = run_steps((step,), {"query": part["query"]}, {**plain, **made}, scalars, precision=precision)
        live = min(chunk, length - start)
        for name in ("k_scratch", "v_scratch"):
            assert torch.equal(fused[name][:, :, : start + live], plain[name][:, :, : start + live]), name
            assert fused[name][:, :, start + live :].isnan().all(), name
        for name in made:
            torch.testing.assert_close(fused[name][:, :, :live], plain[name][:, :, :live], rtol=1e-6, atol=1e-6)
            assert (fused[name][:, :, live:] == 0).all(), "padding keeps its bytes"
            assert (plain[name][:, :, live:] == 0).all(), "padding keeps its bytes"
        found.append(fused["sums"][:, :, :live].double())
    want = torch.zeros(1, 4, length, dtype=torch.float64)
    for h in range(4):
        for position in range(length):
            products = key[0, h // 2, : position + 1].double() @ query[0, h, position].double() * 0.4
            want[0, h, position] = torch.logsumexp(products, 0)
    tolerance = 1e-12 if precision == "f64" else 1e-5
    torch.testing.assert_close(torch.cat(found, 2), want, rtol=tolerance, atol=tolerance)


def test_chunk_attention_beyond_the_scratch_is_refused_and_writes_nothing() -> None:
    part = {"query": torch.zeros(1, 4, 4, 8), "new_key": torch.zeros(1, 2, 4, 8), "new_value": torch.zeros(1, 2, 4, 6)}
    writes = {**prompt_states(6), "sums": torch.zeros(1, 4, 4), "out": torch.zeros(1, 4, 4, 6)}
    with raises(ReferencePromptErrors.TOO_FEW_ROWS, start=4, needed=8, rows=6):
        run_steps((CHUNK,), part, writes, {"start": 4, "n": 8})
