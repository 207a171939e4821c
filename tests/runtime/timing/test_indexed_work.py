"""Work of attention over indexed rows, compared with counts made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sscc.ir.operations import CachedAttention, DecodeAttention, Segment, SelectedRows
from sscc.ir.schedule import Body, Param
from sscc.runtime.timing.work import SOFTMAX_OPS, Work, measure

B, H, G, SINK, RECENT, D, T, K = 2, 8, 4, 2, 8, 8, 64, 6
SR, R = SINK + RECENT, SINK + RECENT + K


def counted(step: Any, shapes: dict[str, tuple[int, ...]], valid: int | None = None) -> Work:
    """Return the work of one step; parameters `i..` are i64, `m..` i1, others bf16."""
    kinds: dict[str, Any] = {"i": "i64", "m": "i1"}
    params = tuple(Param(name, shape, kinds.get(name[0], "bf16"), "update") for name, shape in shapes.items())
    return measure(Body("b", params, ("topk",), (), (), (step,)), {"topk": K}, valid)


def shapes(rows: int) -> dict[str, tuple[int, ...]]:
    cache = (B, G, rows, D)
    return {"q": (B, H, 1, D), "nk": (B, G, 1, D), "nv": (B, G, 1, D), "k": cache, "v": cache, "kc": cache, "vc": cache,
            "ip": (B,), "ib": (B,), "m": (B,), "y": (B, H, 1, D)}  # fmt: skip


COMPACT = DecodeAttention("q", "nk", "nv", "k", "v", "kc", "vc", "ip", "ib", "m", "topk", "y", 1.0, SINK, RECENT)
INDEXED = replace(COMPACT, segments=(SelectedRows("kp", "vp", "is"),))


@pytest.mark.parametrize(
    ("valid", "rows", "fetched"), [(None, 16, 6), (16, 16, 6), (10, 10, 6), (5, 5, 3), (2, 2, 0), (1, 1, 0)]
)
def test_only_the_valid_rows_of_a_prompt_are_fetched(valid: int | None, rows: int, fetched: int) -> None:
    """And none of the cache's rows in whose place they stand."""
    work = counted(INDEXED, {**shapes(R), "kp": (B, G, T, D), "vp": (B, G, T, D), "is": (B, G, K)}, valid)
    assert work.products == {"bf16": 2 * B * H * rows * 2 * D}
    assert work.vectors == ((B * H * rows, SOFTMAX_OPS),)
    assert work.read["k"] == work.read["v"] == B * G * (R - fetched) * D * 2
    assert work.read.get("kp", 0) == work.read.get("vp", 0) == B * G * fetched * D * 2
    assert work.read["is"] == B * G * K * 8
    assert work.written == {"kc": B * G * D * 2, "vc": B * G * D * 2, "y": B * H * D * 2}


def test_it_moves_what_compact_rows_move_and_the_index() -> None:
    indexed = counted(INDEXED, {**shapes(R), "kp": (B, G, T, D), "vp": (B, G, T, D), "is": (B, G, K)})
    compact = counted(COMPACT, shapes(R))
    assert (indexed.products, indexed.vectors, indexed.written) == (compact.products, compact.vectors, compact.written)
    assert sum(indexed.read.values()) == sum(compact.read.values()) + B * G * K * 8


def test_unfused_all_rows_that_the_index_names_are_fetched() -> None:
    step = CachedAttention("q", (Segment("k", "v", "m"), Segment("kp", "vp", "m2", "is")), "y", 1.0)
    sizes = {"k": (B, G, SR, D), "v": (B, G, SR, D), "kp": (B, G, T, D), "vp": (B, G, T, D), "is": (B, G, K)}
    work = counted(step, {**sizes, "q": (B, H, 1, D), "m": (B, SR), "m2": (B, K), "y": (B, H, 1, D)}, 13)
    assert work.read["k"] == work.read["v"] == B * G * SR * D * 2
    assert work.read["kp"] == work.read["vp"] == B * G * K * D * 2
    assert work.products == {"bf16": 2 * B * H * 13 * 2 * D}
