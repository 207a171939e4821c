"""Work of one firing of each kind of step, compared with counts made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sscc.ir.geometry import Span
from sscc.ir.operations import (
    CachedAttention,
    CausalAttention,
    ChunkAttention,
    DecodeAttention,
    GatherRows,
    LatentChunkAttention,
    ObservationScores,
    Observe,
    Pool,
    QuantizeRows,
    Segment,
    Select,
    UpdateRows,
)
from sscc.ir.schedule import (
    STEPS,
    Access,
    Body,
    Indirect,
    Instr,
    Local,
    Param,
    Product,
    Reduction,
    Vector,
    View,
    Window,
)
from sscc.runtime.timing.cost import SECOND, CostModel
from sscc.runtime.timing.work import (
    ARITHMETIC,
    CAP_OPS,
    DECODE_OPS,
    ENCODE_OPS,
    SOFTMAX_OPS,
    Work,
    dynamic_scalars,
    measure,
)
from tests.targets import changed

B, H, G, R, D, T, C, OBS, K = 2, 8, 4, 16, 8, 64, 4, 3, 5


def counted(
    step: Any, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int] | None = None, **keywords: Any
) -> Work:
    """Return the work of one step; parameters `i..` are i64, `m..` i1, `e..` i8, others bf16."""
    kinds: dict[str, Any] = {"i": "i64", "m": "i1", "e": "i8"}
    params = tuple(Param(name, shape, kinds.get(name[0], "bf16"), "update") for name, shape in shapes.items())
    body = Body("b", params, tuple(scalars or {}), (), (), (step,))
    assert dynamic_scalars(body) == set(scalars or {})
    return measure(body, scalars or {}, **keywords)


def test_a_product_counts_two_operations_per_point() -> None:
    maps = (((1, 0, 0, 0), (0, 0, 1, 0)), ((0, 1, 0, 0), (0, 0, 1, 0)), ((1, 0, 0, 0), (0, 1, 0, 0)))
    step = Product((2, 3, 5), (2,), *(Access(name, rows) for name, rows in zip("abc", maps, strict=True)))
    work = counted(step, {"a": (2, 5), "b": (3, 5), "c": (2, 3)})
    assert work.products == {"bf16": 60}
    assert (work.read, work.written) == ({"a": 20, "b": 30}, {"c": 12})


def test_of_an_indirect_axis_as_many_places_count_as_there_are_indices() -> None:
    """Three groups read at most three of eight slices, and both of two slices."""
    x, w, y = ((1, 0, 0, 0), (0, 0, 1, 0)), ((0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)), ((1, 0, 0, 0), (0, 1, 0, 0))
    b = Access("b", w, Indirect(0, Access("i", ((1, 0, 0, 0),))))
    step = Product((3, 7, 5), (2,), Access("a", x), b, Access("c", y))
    for slices, read in ((8, 3), (2, 2)):
        work = counted(step, {"a": (3, 5), "b": (slices, 7, 5), "c": (3, 7), "i": (3,)})
        assert work.read == {"a": 30, "b": read * 70, "i": 24}
        assert work.products == {"bf16": 2 * 3 * 7 * 5}


@pytest.mark.parametrize(("tokens", "most", "mean"), [(1, 2, 2), (4, 8, 5), (16, 8, 8)])
def test_of_experts_the_mean_may_be_counted(tokens: int, most: int, mean: int) -> None:
    """Of 8 a token chooses 2: 8 (1 - (3/4)^T) are read in the mean, 5.47 by four tokens."""
    token, pair = (1, 0, 0, 0, 0), (0, 1, 0, 0, 0)
    row, column = (0, 0, 1, 0, 0), (0, 0, 0, 1, 0)
    b = Access("b", ((0,) * 5, row, column), Indirect(0, Access("i", (token, pair))))
    step = Product((tokens, 2, 7, 5), (3,), Access("a", (token, column)), b, Access("c", (token, pair, row)))
    shapes = {"a": (tokens, 5), "b": (8, 7, 5), "c": (tokens, 2, 7), "i": (tokens, 2)}
    assert counted(step, shapes).read["b"] == most * 70
    assert counted(step, shapes, mean_experts=True).read["b"] == mean * 70


def test_only_the_part_that_an_access_reaches_counts() -> None:
    step = Vector((4, 2), (Access("x", ((2, 0, 1), (0, 0, 3))),), Access("y", ((1, 0, 0), (0, 1, 0))), (), "in0")
    work = counted(step, {"x": (100, 10), "y": (4, 2)})
    assert (work.read, work.written) == ({"x": 4 * 2}, {"y": 8 * 2})
    assert work.vectors == ()  # a copy computes nothing


def test_a_parameter_that_two_steps_read_comes_in_once() -> None:
    one = ((1, 0),)
    double = (Instr("d", "addf", ("in0", "in0"), "bf16"),)
    steps = (
        Reduction((6,), (0,), (Access("x", one),), Access("s", ((0, 0),)), double, "d", "addf", 0.0),
        Vector((6,), (Access("x", one),), Access("y", one), (*double, Instr("e", "mulf", ("d", "d"), "bf16")), "e"),
    )
    params = (Param("x", (6,), "bf16", "read"), Param("y", (6,), "bf16", "write"))
    work = measure(Body("b", params, (), (Local("s", (1,), "f32"),), (), steps), {})
    assert (work.read, work.written, work.local_bytes) == ({"x": 12}, {"y": 12}, 4)
    assert work.vectors == ((6, 2), (6, 2))  # the sum is an operation too


def test_a_window_is_the_parameter_that_it_shows() -> None:
    copy = Vector((2,), (Access("half", ((1, 0),)),), Access("y", ((1, 0),)), (), "in0")
    params = (Param("x", (4,), "bf16", "read"), Param("y", (2,), "bf16", "write"))
    work = measure(Body("b", params, (), (), (Window("half", View("x", (2,), (1,), 2)),), (copy,)), {})
    assert work.read == {"x": 4}


def test_gathers_move_the_rows_that_they_take() -> None:
    load = (Instr("c", "index", (1,), "i64"), Instr("v", "load", ("table", "in0", "c"), "bf16"))
    step = Vector((B, D), (Access("i", ((1, 0, 0),)),), Access("y", ((1, 0, 0), (0, 1, 0))), load, "v")
    work = counted(step, {"table": (1000, D), "i": (B,), "y": (B, D)})
    assert work.read == {"table": B * D * 2, "i": B * 8}
    assert work.vectors == ()
    rows = counted(GatherRows("x", "i", "y"), {"x": (1, G, T, D), "i": (G, K), "y": (1, G, K, D)})
    assert rows.read == {"x": G * K * D * 2, "i": G * K * 8}


def test_an_update_writes_one_row_per_slot_and_head() -> None:
    shapes = {"x": (B, G, R, D), "new": (B, G, 1, D), "i": (B,), "m": (B,)}
    work = counted(UpdateRows("x", "new", "i", "m"), shapes)
    assert (work.read, work.written) == ({"new": B * G * D * 2, "i": B * 8, "m": B}, {"x": B * G * D * 2})


@pytest.mark.parametrize("valid", [None, 6, 1000])
def test_decode_attention_streams_all_rows_and_computes_on_the_valid_ones(valid: int | None) -> None:
    step = DecodeAttention("q", "nk", "nv", "k", "v", "kc", "vc", "ip", "ib", "m", "topk", "y", 1.0, 2, 3)
    shapes = {"q": (B, H, 1, D), "nk": (B, G, 1, D), "nv": (B, G, 1, D), "k": (B, G, R, D), "v": (B, G, R, D)}
    shapes |= {"kc": (B, G, R, D), "vc": (B, G, R, D), "ip": (B,), "ib": (B,), "m": (B,), "y": (B, H, 1, D)}
    work = counted(step, shapes, {"topk": R - 5}, valid_rows=valid)
    rows = {None: R, 6: 6, 1000: R}[valid]
    assert work.products == {"bf16": 2 * B * H * rows * 2 * D}
    assert work.vectors == ((B * H * rows, SOFTMAX_OPS),)
    assert work.read["k"] == work.read["v"] == B * G * R * D * 2
    assert work.written == {"kc": B * G * D * 2, "vc": B * G * D * 2, "y": B * H * D * 2}
    capped = counted(replace(step, softcap=50.0), shapes, {"topk": R - 5}, valid_rows=valid)
    assert capped.vectors == ((B * H * rows, SOFTMAX_OPS + CAP_OPS),)
    same = CachedAttention("q", (Segment("k", "v", "m"),), "y", 1.0)
    cached = counted(same, {**{n: shapes[n] for n in ("q", "k", "v", "y")}, "m": (B, R)}, valid_rows=valid)
    assert (cached.products, cached.read["k"]) == (work.products, work.read["k"])


W, ED, EW = 6, D + 4, 6 + 4  # numbers of a row of V, and bytes of encoded rows of K and V


def test_encoding_counts_numbers_and_moves_bytes() -> None:
    work = counted(QuantizeRows("x", "e"), {"x": (B, G, R, D), "e": (B, G, R, ED)})
    assert (work.read, work.written) == ({"x": B * G * R * D * 2}, {"e": B * G * R * ED})
    assert work.vectors == ((B * G * R * D, ENCODE_OPS),)
    shapes = {"e": (B, G, R, ED), "en": (B, G, 1, ED)} | {"i": (B,), "m": (B,)}
    update = counted(UpdateRows("e", "en", "i", "m"), shapes)
    assert (update.read["en"], update.written, update.vectors) == (B * G * ED, {"e": B * G * ED}, ())


@pytest.mark.parametrize("valid", [None, 6])
def test_decode_attention_on_encoded_rows_moves_their_bytes(valid: int | None) -> None:
    step = DecodeAttention("q", "nk", "nv", "ek", "ev", "ekc", "evc", "ip", "ib", "m", "topk", "y", 1.0, 2, 3)
    shapes = {"q": (B, H, 1, D), "nk": (B, G, 1, D), "nv": (B, G, 1, W), "ek": (B, G, R, ED), "ev": (B, G, R, EW)}
    shapes |= {"ekc": (B, G, R, ED), "evc": (B, G, R, EW), "ip": (B,), "ib": (B,), "m": (B,), "y": (B, H, 1, W)}
    work = counted(step, shapes, {"topk": R - 5}, valid_rows=valid)
    rows = R if valid is None else valid
    assert (work.read["ek"], work.read["ev"]) == (B * G * R * ED, B * G * R * EW)
    assert work.written == {"ekc": B * G * ED, "evc": B * G * EW, "y": B * H * W * 2}
    assert work.products == {"bf16": 2 * B * H * rows * (D + W)}
    encoding = ((B * G * D, ENCODE_OPS), (B * G * W, ENCODE_OPS))
    attention = ((B * G * rows * D, DECODE_OPS), (B * G * rows * W, DECODE_OPS), (B * H * rows, SOFTMAX_OPS))
    assert work.vectors == encoding + attention
    same = CachedAttention("q", (Segment("ek", "ev", "m"),), "y", 1.0)
    cached = counted(same, {**{n: shapes[n] for n in ("q", "ek", "ev", "y")}, "m": (B, R)}, valid_rows=valid)
    assert (cached.products, cached.vectors, cached.read["ek"]) == (work.products, attention, work.read["ek"])


def test_gathering_into_encoded_rows_writes_their_bytes() -> None:
    work = counted(GatherRows("x", "i", "ey"), {"x": (1, G, T, D), "i": (G, K), "ey": (1, G, K, ED)})
    assert (work.read["x"], work.written) == (G * K * D * 2, {"ey": G * K * ED})
    assert work.vectors == ((G * K * D, ENCODE_OPS),)


def test_causal_attention_reads_the_prompt_so_far() -> None:
    shapes = {"q": (1, H, C, D), "k": (1, G, T, D), "v": (1, G, T, D), "y": (1, H, C, D)}
    work = counted(CausalAttention("q", "k", "v", "y", "start", "n", 1.0), shapes, {"start": 8, "n": T})
    assert work.read["k"] == work.read["v"] == G * (8 + C) * D * 2
    assert work.products == {"bf16": 2 * H * (9 + 10 + 11 + 12) * 2 * D}


@pytest.mark.parametrize(
    "window", [*map(Span, (1, 2, C, C + 1, 7, 12, T)), *(Span(n, n) for n in (2, C, C + 1, 7, 12))], ids=str
)
@pytest.mark.parametrize("start", [0, C, 2 * C, 5 * C])
def test_a_windowed_chunk_counts_what_its_queries_see(start: int, window: Span) -> None:
    """By brute force: pairs of a query and a key, and rows that some query sees."""
    seen = [range(window.first(p), p + 1) for p in range(start, start + C)]
    bounds: dict[str, Any] = {"window": window.size, "window_stride": window.stride if window.chunked else None}
    pairs, rows = sum(map(len, seen)), len({row for each in seen for row in each})
    shapes = {"q": (1, H, C, D), "k": (1, G, T, D), "v": (1, G, T, W), "y": (1, H, C, W)}
    scalars = {"start": start, "n": T}
    work = counted(CausalAttention("q", "k", "v", "y", "start", "n", 1.0, **bounds), shapes, scalars)
    assert (work.read["k"], work.read["v"]) == (G * rows * D * 2, G * rows * W * 2)
    assert work.products == {"bf16": 2 * H * pairs * (D + W)}
    assert work.vectors == ((H * pairs, SOFTMAX_OPS),)

    shapes = {"q": (1, H, C, D), "nk": (1, G, C, D), "nv": (1, G, C, W), "k": (1, G, T, D), "v": (1, G, T, W)}
    shapes |= {"y": (1, H, C, W)}
    names = ("q", "nk", "nv", "k", "v", "y", "start", "n")
    chunk = counted(ChunkAttention(*names, 1.0, **bounds), shapes, scalars)
    assert (chunk.products, chunk.vectors) == (work.products, work.vectors)
    assert (chunk.read["k"], chunk.read["v"]) == (work.read["k"], work.read["v"])
    assert (chunk.written["k"], chunk.written["v"]) == (G * C * D * 2, G * C * W * 2)


@pytest.mark.parametrize("start", [0, C, 5 * C])
def test_a_chunk_over_latent_rows_makes_keys_and_values_of_all_that_it_sees(start: int) -> None:
    rank, made = 6, D - 2
    shapes = {"q": (1, H, C, D), "nr": (1, 1, C, rank + 2), "r": (1, 1, T, rank + 2), "y": (1, H, C, W)}
    shapes |= {"ku": (H, made, rank), "vu": (H, W, rank)}
    step = LatentChunkAttention("q", "nr", "r", "ku", "vu", "y", "start", "n", 1.0, 0)
    work = counted(step, shapes, {"start": start, "n": T})
    seen, pairs = start + C, sum(range(start + 1, start + C + 1))
    assert work.products == {"bf16": 2 * H * (pairs * (D + W) + seen * rank * (made + W))}
    assert (work.read["r"], work.written["r"]) == (seen * (rank + 2) * 2, C * (rank + 2) * 2)
    assert (work.read["ku"], work.read["vu"]) == (H * made * rank * 2, H * W * rank * 2)


@pytest.mark.parametrize(("start", "kept"), [(0, 0), (4, 1), (8, 2)])
def test_observing_keeps_the_last_queries(start: int, kept: int) -> None:
    step = Observe("o", "q", "start", "length")  # a prompt of 10: positions 7, 8 and 9
    work = counted(step, {"o": (1, H, OBS, D), "q": (1, H, C, D)}, {"start": start, "length": 10})
    assert work.written.get("o", 0) == work.read.get("q", 0) == H * kept * D * 2


def test_selection_reads_the_prompt() -> None:
    scores = counted(
        ObservationScores("o", "k", "s", "n", 1.0, 4), {"o": (1, H, OBS, D), "k": (1, G, T, D), "s": (G, T)}, {"n": 20}
    )
    assert scores.read["k"] == G * 20 * D * 2
    assert scores.products == {"bf16": 2 * H * OBS * 20 * D}
    pooled = counted(Pool("s", "p", "n", 7, "avg"), {"s": (G, T), "p": (G, T)}, {"n": 20})
    assert (pooled.read, pooled.vectors) == ({"s": G * 20 * 2}, ((G * 20, 7),))
    chosen = counted(Select("s", "i", "n", "top", 1, 2), {"s": (G, T), "i": (G, K)}, {"n": 20, "top": K})
    assert (chosen.written, chosen.vectors) == ({"i": G * K * 8}, ((G * 20, 4),))


def test_every_step_is_counted() -> None:
    assert set(ARITHMETIC) == set(STEPS)


def test_rates() -> None:
    model = CostModel(
        changed(
            {"pcus": 10, "bf16_flops": 1e9, "f32_flops": 5e8, "simd_lanes": 4, "simd_stages": 2, "clock": 1e6}
        ).with_sockets(2)
    )
    assert model.compute(Work({"bf16": 1000}, (), {}, {}, 0), 0) == SECOND * 1000 // int(2e9)
    assert model.compute(Work({"f32": 1000}, (), {}, {}, 0), 5) == SECOND * 1000 // int(5e8)
    three_operations = Work({}, ((800, 3),), {}, {}, 0)  # two passes of 800 points, 4 lanes on 10 PCUs of 2 sockets
    assert model.compute(three_operations, 10) == SECOND * 2 * 10 // int(1e6)
