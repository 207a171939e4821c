"""Encoded rows: the same bits as sscc.ir.kv_rows, and attention over the dequantized rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sscc.ir import kv_rows
from sscc.ir.operations import (
    CachedAttention,
    DecodeAttention,
    GatherRows,
    QuantizeRows,
    Segment,
    SelectedRows,
    UpdateRows,
)
from sscc.ir.schedule import Local
from sscc.runtime.backends.reference import attention
from sscc.runtime.backends.reference.attention import ReferenceAttentionErrors
from sscc.runtime.backends.reference.encoded_rows import decode, encode
from sscc.runtime.backends.reference.softmax import KEY_TILE
from tests.errors import raises
from tests.runtime.programs import DTYPES, run_steps

Tensors = dict[str, Tensor]
SEGMENTS = (Segment("key", "value", "valid"),)


def defined(rows: Tensor) -> Tensor:
    """Encoded by the definition."""
    return torch.from_numpy(kv_rows.encode(rows.float().numpy()))


def blank(rows: Tensor) -> Tensor:
    """Return memory for encoded rows of this shape, filled with other bytes."""
    return torch.full((*rows.shape[:-1], rows.shape[-1] + 4), 77, dtype=torch.int8)


# ------------------------------------------------------------------------------------------- encoding, decoding


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 7, 6), (1, 2, KEY_TILE + 5, 8), (3, 1, 1, 128)])
def test_rows_are_encoded_as_defined(shape: tuple[int, ...], dtype: torch.dtype, precision: str) -> None:
    x = (torch.randn(shape) * 10 ** torch.linspace(-6, 6, shape[2])[:, None]).to(dtype)
    got = run_steps((QuantizeRows("x", "y"),), {"x": x}, {"y": blank(x)}, access="write", precision=precision)["y"]
    assert got.dtype is torch.int8
    assert torch.equal(got, defined(x))


def test_zeros_and_rows_too_small_are_zero_bytes() -> None:
    edge = 127 * 2.0**-126  # of the smallest normal scale
    values = [0.0, -0.0, 1e-45, 1e-39, 1e-37, edge * (1 - 2**-10), edge, edge * (1 + 2**-10), 1e-35, 1.0, 3e38]
    x = torch.tensor(values)[:, None] * torch.tensor([1.0, -0.5, 0.25, 0.0, 1.0])
    assert torch.equal(encode(x), defined(x))
    assert [bool(row.any()) for row in encode(x)] == [value >= edge for value in values]
    assert not decode(encode(x))[:6].any()


def test_codes_are_rounded_half_to_even_and_stay_within_127() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5], [-1.0, 1.0, -1.0, 1.0, 0.5, 0.0, -0.0, 1 / 254]])
    assert torch.equal(encode(x), defined(x))
    assert encode(x)[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]
    many = torch.randn(20000, 4) * 10 ** (torch.rand(20000, 1) * 70 - 35)
    assert torch.equal(encode(many), defined(many))
    assert int(encode(many)[:, :4].min()) == -127


def test_a_row_that_is_not_finite_shows_and_leaves_the_others_alone() -> None:
    x = torch.randn(5, 8)
    clean = encode(x)
    x[1, 3], x[2, 0], x[4, 7] = torch.inf, -torch.inf, torch.nan
    got = encode(x)
    for row in (1, 2, 4):
        assert not decode(got)[row].isfinite().any()
    assert torch.equal(got[[0, 3]], clean[[0, 3]])


@pytest.mark.parametrize("width", [1, 5, 6, 8])
def test_encoded_rows_are_decoded_wherever_their_bytes_lie(width: int) -> None:
    rows = defined(torch.randn(2, 3, 7, width))
    for view in (rows, rows[:, 1:, 2:5], rows[1:, 1:2, 3:4], rows[0, 0, 1], rows.transpose(1, 2), rows[:, :, 3:3]):
        want = torch.from_numpy(kv_rows.decode(np.ascontiguousarray(view.numpy())))
        assert torch.equal(decode(view), want)


def test_encoding_is_in_f32_where_all_else_is_in_f64() -> None:
    x = torch.randn(1, 2, 4, 8, dtype=torch.float64)
    got = run_steps((QuantizeRows("x", "y"),), {"x": x}, {"y": blank(x)}, precision="f64")["y"]
    assert torch.equal(got, defined(x.float()))


# ----------------------------------------------------------------------------------------------------- attention

SINK, RECENT = 2, 5
SR = SINK + RECENT
DECODE = DecodeAttention(
    "query", "new_key", "new_value", "k_cache", "v_cache", "k_cache", "v_cache", "position", "base", "active", "topk",
    "out", 0.3, SINK, RECENT,
)  # fmt: skip


def decode_inputs(rows: int, positions: list[int], dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Inputs and encoded caches of one decode step: 4 query heads, 2 KV heads, a slot for each position. The ring of
    slot b begins at row b, or at the nearest one where a ring may begin; that of the last one begins beyond."""
    slots = len(positions)
    inputs = {
        "query": torch.randn(slots, 4, 1, 8).to(dtype),
        "new_key": torch.randn(slots, 2, 1, 8).to(dtype),
        "new_value": torch.randn(slots, 2, 1, 6).to(dtype),
        "position": torch.tensor(positions),
        "base": torch.tensor([*range(slots - 1), rows + 9]),
        "active": torch.tensor([slot != 1 for slot in range(slots)]),
    }
    inputs["new_key"][0] = 0  # a row of zero bytes
    caches = {
        "k_cache": defined(torch.randn(slots, 2, rows, 8)),
        "v_cache": defined(torch.randn(slots, 2, rows, 6)),
        "out": torch.full((slots, 4, 1, 6), 9.0).to(dtype),
    }
    return inputs, caches


def decode_unfused(inputs: Tensors, caches: Tensors, precision: str, topk: int) -> Tensors:
    """Compute the same step by QuantizeRows, UpdateRows and CachedAttention, with row and mask computed here."""
    slots, _, rows, _ = caches["k_cache"].shape
    row = torch.zeros(slots, dtype=torch.int64)
    for b in range(slots):
        p, first = int(inputs["position"][b]), sorted([SINK, int(inputs["base"][b]), SINK + topk])[1]
        row[b] = p if p < first else first + (p - first) % (SR + topk - first)
    valid = torch.arange(rows) < (inputs["position"][:, None] + 1).clamp(max=SR + topk)
    valid &= inputs["active"][:, None]
    steps = (
        QuantizeRows("new_key", "encoded_key"),
        QuantizeRows("new_value", "encoded_value"),
        UpdateRows("k_cache", "encoded_key", "row", "active"),
        UpdateRows("v_cache", "encoded_value", "row", "active"),
        CachedAttention("query", (Segment("k_cache", "v_cache", "valid"),), "out", 0.3),
    )
    plain_inputs = {name: inputs[name] for name in ("query", "new_key", "new_value", "active")}
    locals_ = (Local("encoded_key", (slots, 2, 1, 12), "i8"), Local("encoded_value", (slots, 2, 1, 10), "i8"))
    return run_steps(steps, {**plain_inputs, "row": row, "valid": valid}, caches, precision=precision, locals_=locals_)


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "topk"), [(SR, 0), (12, 5), (12, 3), (KEY_TILE, KEY_TILE - SR), (KEY_TILE + 9, KEY_TILE + 2)]
)
def test_decode_attention_is_encoding_update_and_attention(
    rows: int, topk: int, dtype: torch.dtype, separate: bool, precision: str
) -> None:
    inputs, caches = decode_inputs(rows, [0, 3, 1, 6, 7, rows - 1, rows, 2 * rows + 5, 23], dtype)
    want = decode_unfused(inputs, caches, precision, topk)
    step, writes = DECODE, caches
    if separate:
        step = replace(DECODE, key="key", value="value")
        writes = {"key": caches["k_cache"], "value": caches["v_cache"], **caches}
    got = run_steps((step,), inputs, writes, {"topk": topk}, precision=precision)
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name
    assert torch.equal(got["k_cache"][0, :, 0], torch.zeros(2, 12, dtype=torch.int8))
    assert torch.equal(got["k_cache"][1], caches["k_cache"][1]), "an idle slot keeps its bytes"
    if separate:
        assert torch.equal(got["key"], caches["k_cache"]), "a separate copy is not written"


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("encoded", [("key", "value"), ("key",), ("value",)])
@pytest.mark.parametrize("rows", [1, 12, KEY_TILE + 9])
def test_cached_attention_is_over_the_numbers_that_rows_stand_for(
    rows: int, encoded: tuple[str, ...], precision: str
) -> None:
    inputs = {"query": torch.randn(3, 4, 1, 8), "valid": torch.rand(3, rows) < 0.6}
    plain = {"key": torch.randn(3, 2, rows, 8), "value": torch.randn(3, 2, rows, 6)}
    stored = {name: defined(x) if name in encoded else x for name, x in plain.items()}
    plain = {name: decode(stored[name]) if name in encoded else x for name, x in plain.items()}
    step, out = CachedAttention("query", SEGMENTS, "out", 0.3), {"out": torch.zeros(3, 4, 1, 6)}
    want = run_steps((step,), {**inputs, **plain}, out, precision=precision)["out"]
    assert torch.equal(run_steps((step,), {**inputs, **stored}, out, precision=precision)["out"], want)


def test_attention_is_close_to_that_over_what_was_encoded() -> None:
    inputs = {"query": torch.randn(3, 4, 1, 8), "valid": torch.rand(3, 40) < 0.6}
    plain = {"key": torch.randn(3, 2, 40, 8), "value": torch.randn(3, 2, 40, 6)}
    step, out = CachedAttention("query", SEGMENTS, "out", 0.3), {"out": torch.zeros(3, 4, 1, 6)}
    want = run_steps((step,), {**inputs, **plain}, out)["out"]
    got = run_steps((step,), {**inputs, **{name: defined(x) for name, x in plain.items()}}, out)["out"]
    torch.testing.assert_close(got, want, rtol=0, atol=0.03)
    assert not torch.equal(got, want)


def test_no_more_than_a_tile_of_rows_is_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(rows: Tensor, dim: int) -> Tensor:
        seen.append(rows.shape[-2])
        return decode(rows)

    monkeypatch.setattr(attention, "numbers", watched)
    inputs, caches = decode_inputs(3 * KEY_TILE + 1, [900, 900, 900], torch.float32)
    run_steps((DECODE,), inputs, caches, {"topk": 3 * KEY_TILE + 1 - SR})
    assert (max(seen), seen.count(KEY_TILE)) == (KEY_TILE, 2 * 3)


def test_an_update_copies_bytes() -> None:
    cache, new = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((3, 2, 6, 9), (3, 2, 1, 9)))
    slots = {"row": torch.tensor([5, 99, 0]), "active": torch.tensor([True, False, True])}
    got = run_steps((UpdateRows("cache", "new", "row", "active"),), {"new": new, **slots}, {"cache": cache})["cache"]
    want = cache.clone()
    want[0, :, 5], want[2, :, 0] = new[0, :, 0], new[2, :, 0]
    assert torch.equal(got, want)


# -------------------------------------------------------------------------------------------------------- gathers


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathering_into_encoded_rows_is_gathering_and_encoding(dtype: torch.dtype, precision: str) -> None:
    given = {"source": torch.randn(1, 2, 20, 8).to(dtype), "index": torch.randint(-1, 20, (2, 30))}
    out = {"out": blank(torch.zeros(1, 2, 30, 8))}
    got = run_steps((GatherRows("source", "index", "out"),), given, out, access="write", precision=precision)["out"]
    steps = (GatherRows("source", "index", "rows"), QuantizeRows("rows", "out"))
    locals_ = (Local("rows", (1, 2, 30, 8), DTYPES[dtype]),)
    want = run_steps(steps, given, out, access="write", precision=precision, locals_=locals_)["out"]
    assert torch.equal(got, want)
    assert not got[0][given["index"] < 0].any(), "an empty row is zero bytes"


# ------------------------------------------------------------------------------------------------------- refusals


def refused_dtypes(step: Any, param: str, other: str, **shapes: tuple[str, tuple[int, ...]]) -> None:
    """Check that a step is refused because `param` does not have the dtype of `other`."""
    dtypes = {name: dtype for dtype, name in DTYPES.items() if dtype is not torch.float64}
    writes = {name: torch.zeros(shape, dtype=dtypes[dtype]) for name, (dtype, shape) in shapes.items()}
    dtypes_of = {"dtype": shapes[param][0], "other_dtype": shapes[other][0]}
    with raises(ReferenceAttentionErrors.DTYPES_DIFFER, step="decode_attention", param=param, other=other, **dtypes_of):
        run_steps((step,), {}, writes, {"topk": 2})


SLOTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "query": ("f32", (2, 4, 1, 8)),
    "new_key": ("f32", (2, 2, 1, 8)),
    "new_value": ("f32", (2, 2, 1, 6)),
    "position": ("i64", (2,)),
    "base": ("i64", (2,)),
    "active": ("i1", (2,)),
    "out": ("f32", (2, 4, 1, 6)),
}


def test_a_copy_that_is_not_encoded_as_its_cache_is_refused() -> None:
    caches = {"k_cache": ("i8", (2, 2, 9, 12)), "v_cache": ("i8", (2, 2, 9, 10))}
    copies = {"key": ("f32", (2, 2, 9, 8)), "value": ("f32", (2, 2, 9, 6))}
    step = replace(DECODE, key="key", value="value")
    refused_dtypes(step, "key", "k_cache", **SLOTS, **caches, **copies)


def test_rows_of_a_store_are_as_those_of_the_cache() -> None:
    names = ("query", "new_key", "new_value", "k_cache", "v_cache", "k_cache", "v_cache")
    rows = SelectedRows("k_store", "v_store", "selected")
    step = DecodeAttention(*names, "position", "base", "active", "topk", "out", 0.3, SINK, RECENT, (rows,))
    refused_dtypes(
        step,
        "k_store",
        "k_cache",
        **SLOTS,
        k_cache=("i8", (2, 2, 10, 12)),
        v_cache=("i8", (2, 2, 10, 10)),
        k_store=("f32", (2, 2, 20, 8)),
        v_store=("f32", (2, 2, 20, 6)),
        selected=("i64", (2, 2, 3)),
    )
