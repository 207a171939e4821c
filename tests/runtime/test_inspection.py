"""Counts and bytes that `sscc inspect` reads off a schedule, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sscc.compiler.cli import main
from sscc.runtime.inspection import launches, traffic, weights_read
from sscc.runtime.schedule import (
    Access,
    Entry,
    For,
    GatherRows,
    If,
    Kernel,
    Launch,
    Param,
    Product,
    Program,
    Tensor,
    UpdateRows,
    View,
)

D, R = 8, 16


def view(name: str, *shape: int) -> View:
    return View(name, shape, (1,) * len(shape))


PRODUCT = Kernel(
    "product",
    (Param("x", (1, D), "f32", "read"), Param("w", (D, D), "f32", "read"), Param("y", (1, D), "f32", "write")),
    (),
    (
        Product(
            (1, D, D),
            (2,),
            Access("x", ((1, 0, 0, 0), (0, 0, 1, 0))),
            Access("w", ((0, 0, 1, 0), (0, 1, 0, 0))),
            Access("y", ((1, 0, 0, 0), (0, 1, 0, 0))),
        ),
    ),
)
UPDATE = Kernel(
    "update",
    (
        Param("cache", (1, 1, R, D), "f32", "update"),
        Param("new", (1, 1, 1, D), "f32", "read"),
        Param("row", (1,), "i64", "read"),
        Param("active", (1,), "i1", "read"),
    ),
    (),
    (UpdateRows("cache", "new", "row", "active"),),
)
GATHER = Kernel(
    "gather",
    (
        Param("source", (1, 1, 100, D), "f32", "read"),
        Param("index", (4,), "i64", "read"),
        Param("out", (1, 1, 4, D), "f32", "write"),
    ),
    (),
    (GatherRows("source", "index", "out"),),
)
PROGRAM = Program(
    (Tensor("w", (D, D), "f32", "weight", "hbm", 0, "w"), Tensor("x", (1, D), "f32", "state", "hbm", 0)),
    (PRODUCT, UPDATE, GATHER),
    (
        Entry(
            "decode",
            (),
            (),
            (),
            (),
            (
                Launch("product", (view("x", 1, D), view("w", D, D), view("x", 1, D))),
                For("i", 0, 3, (Launch("product", (view("x", 1, D), view("w", D, D), view("x", 1, D))),)),
                If(1, (Launch("update", (view("x", 1, 1, R, D), view("x", 1, 1, 1, D), view("x", 1), view("x", 1))),)),
                Launch("gather", (view("x", 1, 1, 100, D), view("x", 4), view("x", 1, 1, 4, D))),
            ),
        ),
    ),
    0,
)


def test_launches_are_counted_once_inside_loops_and_branches() -> None:
    assert [launch.kernel for launch in launches(PROGRAM.entry("decode").body)] == [
        "product",
        "product",
        "update",
        "gather",
    ]


def test_traffic_counts_what_a_launch_touches() -> None:
    product = 4 * (D + D * D + D)  # x, w and y
    update = 2 * 4 * D  # one row is read from `new` and written to the cache
    gather = 4 * 4 * D + 8 * 4 + 4 * 4 * D  # four rows read, four indices, four rows written
    assert traffic(PROGRAM, "decode") == 2 * product + update + gather


def test_a_weight_that_is_read_twice_is_one_weight() -> None:
    assert weights_read(PROGRAM, "decode") == 4 * D * D


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command(as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sscc

    folder = Path(__file__).parents[1] / "models" / "tiny"
    out = tmp_path / "tiny.rdu"
    sscc.compile(folder, output=out, kv_budget=64, kv_obs=8, max_context=256, weights="reference")
    assert main(["inspect", str(out), *(["--json"] if as_json else [])]) == 0
    text = capsys.readouterr().out
    if as_json:
        found = json.loads(text)
        assert found["kv_bytes"] == 2 * 2 * 2 * 64 * 32 * 4
        assert found["full_kv_bytes"] == 4 * found["kv_bytes"]
        assert found["decode_floor_bytes"] <= found["decode_traffic_bytes"] < 1.2 * found["decode_floor_bytes"]
        assert found["stages"]["cached_attention"] == 1
        assert found["decode_floor_seconds"] == pytest.approx(found["decode_floor_bytes"] / 1.6e12)
        more = found["full_kv_bytes"] - found["kv_bytes"]
        assert found["full_cache_floor_seconds"] == pytest.approx((found["decode_floor_bytes"] + more) / 1.6e12)
        assert found["hbm_bytes"] < found["hbm_capacity_bytes"] == 64 * 2**30
    else:
        assert "64 rows = sink 4 + recent 16 + topk 44, for 256 tokens" in text
        assert " of 64 GiB" in text
        assert "KV         64 KiB a sequence, 256 KiB uncompressed (4.0x)" in text
