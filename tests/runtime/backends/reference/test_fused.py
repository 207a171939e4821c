"""Steps that do in one what others do in several: equal to those, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sscc.ir.errors import InputError
from sscc.ir.schedule import (
    CachedAttention,
    CausalAttention,
    ChunkAttention,
    Compress,
    DecodeAttention,
    GatherRows,
    ObservationScores,
    Observe,
    Pool,
    Segment,
    Select,
    UpdateRows,
    Window,
)
from sscc.runtime.backends.reference.softmax import KEY_TILE
from tests.runtime.programs import run_steps, view_of

Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------- decode attention

SINK, RECENT = 2, 5
DECODE = DecodeAttention(
    "query", "new_key", "new_value", "key", "value", "k_cache", "v_cache", "position", "prompt_len", "active", "out",
    0.3, SINK, RECENT,
)  # fmt: skip


def decode_inputs(rows: int, positions: list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensors, Tensors]:
    """Inputs and caches of one decode step: 4 query heads, 2 KV heads, one slot for each position."""
    slots = len(positions)
    inputs = {
        "query": torch.randn(slots, 4, 1, 8).to(dtype),
        "new_key": torch.randn(slots, 2, 1, 8).to(dtype),
        "new_value": torch.randn(slots, 2, 1, 6).to(dtype),
        "position": torch.tensor(positions),
        "prompt_len": torch.tensor([SINK + RECENT + slot if slot else 3 for slot in range(slots)]),
        "active": torch.tensor([slot != 1 for slot in range(slots)]),
    }
    caches = {"k_cache": torch.randn(slots, 2, rows, 8).to(dtype), "v_cache": torch.randn(slots, 2, rows, 6).to(dtype)}
    return inputs, caches


def decode_unfused(inputs: Tensors, caches: Tensors, precision: str) -> Tensors:
    """The same step by UpdateRows and CachedAttention, with the mask written out here."""
    slots, _, rows, _ = caches["k_cache"].shape
    row = torch.zeros(slots, dtype=torch.int64)
    valid = torch.zeros(slots, rows, dtype=torch.bool)
    for b in range(slots):
        p, k = int(inputs["position"][b]), int(inputs["prompt_len"][b]) - SINK - RECENT
        row[b] = p if p < SINK else SINK + (p - SINK) % RECENT
        if inputs["active"][b]:
            valid[b] = torch.tensor([r < min(p + 1, SINK + RECENT) or 0 <= r - SINK - RECENT < k for r in range(rows)])
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
@pytest.mark.parametrize("rows", [SINK + RECENT, 12, KEY_TILE, KEY_TILE + 9])
def test_decode_attention_is_update_validity_and_attention(rows: int, dtype: torch.dtype, separate: bool) -> None:
    inputs, caches = decode_inputs(rows, [0, 3, 1, 6, 7, 23], dtype)
    want = decode_unfused(inputs, caches, "f32")
    out = torch.full_like(want["out"], 9.0)
    step, copies = DECODE, {"key": caches["k_cache"], "value": caches["v_cache"]}
    if not separate:
        step = DecodeAttention(**{**DECODE.__dict__, "key": "k_cache", "value": "v_cache"})
        copies = {}
    got = run_steps((step,), inputs, {**copies, **caches, "out": out})
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
    got = run_steps((DECODE,), inputs, writes)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_decode_attention_in_double_precision() -> None:
    inputs, caches = decode_inputs(12, [4, 9, 40])
    want = decode_unfused(inputs, caches, "f64")
    out = torch.full((3, 4, 1, 6), 9.0)
    got = run_steps(
        (DECODE,), inputs, {"key": caches["k_cache"], "value": caches["v_cache"], **caches, "out": out}, precision="f64"
    )
    assert got["out"].dtype is torch.float64
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_decode_attention_writes_only_the_new_row_of_its_cache() -> None:
    """The cache behind a copy that was prefetched: its other rows are not even read."""
    inputs, caches = decode_inputs(12, [3, 8, 25])
    stale = {name: torch.full_like(cache, torch.nan) for name, cache in caches.items()}
    out = torch.zeros(3, 4, 1, 6)
    got = run_steps((DECODE,), inputs, {"key": caches["k_cache"], "value": caches["v_cache"], **stale, "out": out})
    assert torch.equal(got["out"], decode_unfused(inputs, caches, "f32")["out"])
    written = [(b, r) for b in range(3) for r in range(12) if not got["k_cache"][b, :, r].isnan().any()]
    assert written == [(0, 3), (2, 2 + (25 - 2) % 5)]


def test_decode_attention_does_not_depend_on_how_many_invalid_rows_follow() -> None:
    inputs, caches = decode_inputs(3 * KEY_TILE, [2, 9, 30])
    inputs["prompt_len"] = torch.tensor([4, SINK + RECENT + 3, SINK + RECENT + 5])
    results = []
    for rows in (12, 100, KEY_TILE, 3 * KEY_TILE):
        cut = {name: cache[:, :, :rows].clone() for name, cache in caches.items()}
        writes = {"key": cut["k_cache"], "value": cut["v_cache"], **cut, "out": torch.zeros(3, 4, 1, 6)}
        results.append(run_steps((DECODE,), inputs, writes)["out"])
    assert all(torch.equal(result, results[0]) for result in results)


def test_decode_attention_of_a_position_that_has_no_row_is_refused() -> None:
    inputs, caches = decode_inputs(12, [-1, 3])
    with pytest.raises(InputError, match=r"cache of 12 rows is updated at rows \[-1\]"):
        run_steps(
            (DECODE,),
            inputs,
            {"key": caches["k_cache"], "value": caches["v_cache"], **caches, "out": torch.zeros(2, 4, 1, 6)},
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sink": 9}, "sink 9 and recent 5 in a cache of 12 rows"), ({"recent": 0}, "sink 2 and recent 0")],
)
def test_decode_attention_whose_ring_does_not_fit_is_refused(change: Any, message: str) -> None:
    inputs, caches = decode_inputs(12, [3])
    writes = {"key": caches["k_cache"], "value": caches["v_cache"], **caches, "out": torch.zeros(1, 4, 1, 6)}
    with pytest.raises(InputError, match=message):
        run_steps((DecodeAttention(**{**DECODE.__dict__, **change}),), inputs, writes)


# ------------------------------------------------------------------------------------------------ chunk attention

CHUNK = ChunkAttention(
    "query", "new_key", "new_value", "k_scratch", "v_scratch", "observed", "log_sum_exp", "out", "start", "n", 0.4
)


def prompt_states(rows: int, obs: int) -> Tensors:
    return {
        "k_scratch": torch.full((1, 2, rows, 8), torch.nan),
        "v_scratch": torch.full((1, 2, rows, 6), torch.nan),
        "observed": torch.zeros(1, 4, obs, 8),
    }


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize(("length", "obs", "chunk"), [(1, 4, 8), (13, 4, 8), (16, 20, 8), (KEY_TILE + 40, 32, 128)])
def test_chunk_attention_is_insertion_causal_attention_and_observation(
    length: int, obs: int, chunk: int, precision: str
) -> None:
    rows = -(-length // chunk) * chunk
    query, key, value = torch.randn(1, 4, rows, 8), torch.randn(1, 2, rows, 8), torch.randn(1, 2, rows, 6)
    fused = {**prompt_states(rows, obs), "log_sum_exp": torch.zeros(1, 4, obs)}
    plain = {**prompt_states(rows, obs), "log_sum_exp": torch.zeros(1, 4, obs), "sums": torch.zeros(1, 4, chunk)}
    windows = tuple(Window(f"{name}.rows", view_of(name, (*plain[name].shape, 1))) for name in ("log_sum_exp", "sums"))
    for start in range(0, length, chunk):
        scalars = {"start": start, "n": length}
        part = {
            "query": query[:, :, start : start + chunk].clone(),
            "new_key": key[:, :, start : start + chunk].clone(),
            "new_value": value[:, :, start : start + chunk].clone(),
        }
        out = torch.zeros(1, 4, chunk, 6)
        fused = run_steps((CHUNK,), part, {**fused, "out": out}, scalars, precision=precision)
        for name, rows_of in (("k_scratch", "new_key"), ("v_scratch", "new_value")):
            plain[name] = plain[name].to(fused[name].dtype)
            plain[name][:, :, start : start + chunk] = part[rows_of]
        steps = (
            CausalAttention("query", "k_scratch", "v_scratch", "out", "start", 0.4, "sums"),
            Observe("observed", "query", "start", "n"),
            Observe("log_sum_exp.rows", "sums.rows", "start", "n"),
        )
        reads, writes = {"query": part["query"]}, {**plain, "out": out}
        plain = run_steps(steps, reads, writes, scalars, precision=precision, windows=windows)
        live = min(chunk, length - start)
        for name in ("k_scratch", "v_scratch"):
            assert torch.equal(fused[name][:, :, : start + live], plain[name][:, :, : start + live]), name
            assert fused[name][:, :, start + live :].isnan().all(), name
        assert torch.equal(fused["observed"], plain["observed"])
        torch.testing.assert_close(fused["log_sum_exp"], plain["log_sum_exp"], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(fused["out"][:, :, :live], plain["out"][:, :, :live], rtol=1e-6, atol=1e-6)
        assert (fused["out"][:, :, live:] == 0).all(), "padding keeps its bytes"
        del plain["out"], fused["out"]
    want = torch.zeros(1, 4, obs, dtype=torch.float64)
    for h in range(4):
        for position in range(max(0, length - obs), length):
            products = key[0, h // 2, : position + 1].double() @ query[0, h, position].double() * 0.4
            want[0, h, position - max(length - obs, 0)] = torch.logsumexp(products, 0)
    tolerance = 1e-12 if precision == "f64" else 1e-5
    torch.testing.assert_close(fused["log_sum_exp"].double(), want, rtol=tolerance, atol=tolerance)


def test_chunk_attention_beyond_the_scratch_is_refused_and_writes_nothing() -> None:
    part = {"query": torch.zeros(1, 4, 4, 8), "new_key": torch.zeros(1, 2, 4, 8), "new_value": torch.zeros(1, 2, 4, 6)}
    writes = {**prompt_states(6, 2), "log_sum_exp": torch.zeros(1, 4, 2), "out": torch.zeros(1, 4, 4, 6)}
    with pytest.raises(InputError, match="from row 4 needs 8 key rows, there are 6"):
        run_steps((CHUNK,), part, writes, {"start": 4, "n": 8})


# ----------------------------------------------------------------------------------------------------- compression


def compress_step(sink: int, recent: int, room: int, pool: int, mode: str) -> Compress:
    selected = "selected" if room else ""
    names = ("observed", "log_sum_exp", "key", "value", "k_cache", "v_cache", selected, "n", "top")
    return Compress(*names, 0.5, sink, recent, pool, mode)


def prompt(length: int, rows: int, obs: int) -> tuple[Tensors, torch.Tensor]:
    """A prompt's keys, values (NaN behind its end) and observed queries; and the log-sum-exp of these, in f64."""
    key, value, observed = torch.randn(1, 2, rows, 8), torch.randn(1, 2, rows, 6), torch.randn(1, 4, obs, 8)
    key[:, :, length:] = torch.nan
    value[:, :, length:] = torch.nan
    window = min(obs, length)
    observed[:, :, window:] = torch.nan
    kept = torch.full((1, 4, obs), torch.nan, dtype=torch.float64)
    for h in range(4):
        for i in range(window):
            seen = key[0, h // 2, : length - window + i + 1].double()
            kept[0, h, i] = torch.logsumexp(seen @ observed[0, h, i].double() * 0.5, 0)
    return {"key": key, "value": value, "observed": observed}, kept


def compress_unfused(
    inputs: Tensors, length: int, sink: int, recent: int, room: int, pool: int, mode: str, topk: int
) -> Tensors:
    """Scores, pooling, selection and gathers as steps of their own; the ring's positions are written out here.

    Scores take the log-sum-exp of `inputs`, or compute it where there is none.
    """
    rows, last = inputs["key"].shape[2], length - 1
    ring = [last - (last - sink - i) % recent for i in range(recent)]
    index = torch.tensor([[*range(sink), *(p if p >= sink else -1 for p in ring)]] * 2)
    head = sink + recent
    results = run_steps(
        (GatherRows("key", "index", "k_cache"), GatherRows("value", "index", "v_cache")),
        {"key": inputs["key"], "value": inputs["value"], "index": index},
        {"k_cache": torch.zeros(1, 2, head, 8), "v_cache": torch.zeros(1, 2, head, 6)},
    )
    if not room:
        return results
    steps = (
        ObservationScores(
            "observed", "key", "scores", "n", 0.5, recent, "log_sum_exp" if "log_sum_exp" in inputs else ""
        ),
        Pool("scores", "pooled", "n", pool, mode),
        Select("pooled", "selected", "n", "top", sink, recent),
        GatherRows("key", "selected", "k_picked"),
        GatherRows("value", "selected", "v_picked"),
    )
    writes = {
        "scores": torch.zeros(2, rows),
        "pooled": torch.zeros(2, rows),
        "selected": torch.zeros(2, room, dtype=torch.int64),
        "k_picked": torch.zeros(1, 2, room, 8),
        "v_picked": torch.zeros(1, 2, room, 6),
    }
    picked = run_steps(steps, inputs, writes, {"n": length, "top": topk})
    return {
        "k_cache": torch.cat([results["k_cache"], picked["k_picked"]], 2),
        "v_cache": torch.cat([results["v_cache"], picked["v_picked"]], 2),
        "selected": picked["selected"],
    }


def with_room(results: Tensors, room: int) -> Tensors:
    """The results of a selection in as much room as it needs, as they are where there is more: -1, and empty rows."""
    selected = results.get("selected", torch.empty(2, 0, dtype=torch.int64))
    more = room - selected.shape[1]
    wide = {name: torch.nn.functional.pad(results[name], (0, 0, 0, more)) for name in ("k_cache", "v_cache")}
    return wide | ({"selected": torch.nn.functional.pad(selected, (0, more), value=-1)} if room else {})


def check_compress(
    length: int, obs: int, sink: int, recent: int, room: int, pool: int, mode: str, rows: int | None = None,
    topk: int | None = None,
) -> None:  # fmt: skip
    """`rows`: of the prompt's scratch; by default a few more than the prompt has. `topk`: by default `room`."""
    topk = room if topk is None else topk
    given, kept = prompt(length, rows or max(length, sink) + 3, obs)
    given["key"][:, :, length:sink] = 0.0  # a prompt shorter than the sinks: the rows between are copied as they are
    given["value"][:, :, length:sink] = 0.0
    computed = compress_unfused(given, length, sink, recent, room, pool, mode, topk)
    given["log_sum_exp"] = kept.float()
    want = with_room(compress_unfused(given, length, sink, recent, topk, pool, mode, topk), room)
    writes = {name: torch.full_like(tensor, 99) for name, tensor in want.items()}
    scalars = {"n": length, "top": topk}
    got = run_steps((compress_step(sink, recent, room, pool, mode),), given, writes, scalars, "write")
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name
        assert torch.equal(computed[name], tensor), f"{name}, with a log-sum-exp computed anew"


SR = 3 + 6


@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, SR, SR + 1, SR + 4, 3 * SR, 100])
@pytest.mark.parametrize(("room", "topk"), [(0, 0), (1, 1), (4, 4), (4, 1), (4, 0), (50, 50), (50, 7)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_compress_around_the_seams_of_the_cache(length: int, room: int, topk: int, mode: str) -> None:
    check_compress(length, obs=4, sink=3, recent=6, room=room, pool=5, mode=mode, rows=103, topk=topk)


@pytest.mark.parametrize(
    "length", [KEY_TILE - 1, KEY_TILE, KEY_TILE + 1, KEY_TILE + 6, KEY_TILE + 10, 2 * KEY_TILE + 3, 3 * KEY_TILE]
)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("topk", "rows"), [(40, None), (13, 3 * KEY_TILE + 3)])
def test_compress_around_the_seams_of_tiles(length: int, mode: str, topk: int, rows: int | None) -> None:
    """In a scratch that ends soon after the prompt, and in one that all lengths share, with its code."""
    check_compress(length, obs=8, sink=4, recent=6, room=40, pool=7, mode=mode, rows=rows, topk=topk)


@pytest.mark.parametrize(
    ("length", "obs", "sink", "recent", "pool"),
    [
        (20, 50, 2, 4, 3),  # more observation rows than tokens
        (20, 3, 0, 1, 1),  # no sinks, a ring of one, no pooling
        (300, 3, 0, 40, 5),  # scores between the candidates and the window reach candidates
        (300, 40, 0, 1, 9),  # the window is wider than the ring
        (30, 4, 2, 4, 61),  # a pool wider than the prompt
        (600, 4, 2, 4, 2 * KEY_TILE + 41),  # a pool wider than two tiles
    ],
)
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_compress_of_other_geometries(length: int, obs: int, sink: int, recent: int, pool: int, mode: str) -> None:
    check_compress(length, obs, sink, recent, 7, pool, mode)


@pytest.mark.parametrize("topk", [5, 2])
def test_compress_gives_ties_to_the_earlier_position(topk: int) -> None:
    """All keys equal: all scores are. Tiles meet in the running top-K, and the first positions win."""
    length = 2 * KEY_TILE + 50
    inputs = {
        "key": torch.zeros(1, 2, length, 8),
        "value": torch.randn(1, 2, length, 6),
        "observed": torch.randn(1, 4, 4, 8),
    }
    kept = torch.log(torch.arange(length - 3, length + 1).float()).expand(1, 4, 4).clone()
    writes = {
        "k_cache": torch.zeros(1, 2, 3 + 6 + 5, 8),
        "v_cache": torch.zeros(1, 2, 3 + 6 + 5, 6),
        "selected": torch.zeros(2, 5, dtype=torch.int64),
    }
    inputs["log_sum_exp"] = kept
    got = run_steps((compress_step(3, 6, 5, 1, "avg"),), inputs, writes, {"n": length, "top": topk})
    assert got["selected"].tolist() == [[3, 4, 5, 6, 7][:topk] + [-1] * (5 - topk)] * 2


def test_compress_depends_on_the_log_sum_exp_that_was_kept() -> None:
    """Raising one query's log-sum-exp takes its vote away."""
    prompt_inputs, kept = prompt(60, 60, 2)
    writes = {
        "k_cache": torch.zeros(1, 2, 9, 8),
        "v_cache": torch.zeros(1, 2, 9, 6),
        "selected": torch.zeros(2, 3, dtype=torch.int64),
    }

    def best(log_sum_exp: torch.Tensor) -> list[list[int]]:
        inputs = {**prompt_inputs, "log_sum_exp": log_sum_exp.float()}
        selected: list[list[int]] = run_steps((compress_step(2, 4, 3, 1, "avg"),), inputs, writes, {"n": 60, "top": 3})[
            "selected"
        ].tolist()
        return selected

    muted = kept.clone()
    muted[:, 1:] = torch.inf
    lone = {**prompt_inputs, "observed": prompt_inputs["observed"].clone()}
    products = lone["key"][0, 0].double() @ lone["observed"][0, 0].double().T * 0.5
    votes = torch.exp(products - muted[0, 0])[2:56].sum(1)
    assert best(muted)[0] == sorted((votes.argsort(descending=True)[:3] + 2).tolist())
    assert best(muted) != best(kept)


@pytest.mark.parametrize("length", [0, 13])
def test_compress_of_a_prompt_that_the_scratch_does_not_hold_is_refused(length: int) -> None:
    inputs, kept = prompt(12, 12, 2)
    writes = {"k_cache": torch.zeros(1, 2, 9, 8), "v_cache": torch.zeros(1, 2, 9, 6)}
    inputs["log_sum_exp"] = kept.float()
    with pytest.raises(InputError, match=f"prompt of {length} tokens, the scratch holds 1 .. 12"):
        run_steps((compress_step(3, 6, 0, 1, "avg"),), inputs, writes, {"n": length, "top": 0})


@pytest.mark.parametrize(("room", "topk"), [(0, 1), (3, 4), (3, -1)])
def test_compress_that_selects_more_than_there_is_room_for_is_refused(room: int, topk: int) -> None:
    given, kept = prompt(20, 20, 2)
    writes = {"k_cache": torch.zeros(1, 2, 9 + room, 8), "v_cache": torch.zeros(1, 2, 9 + room, 6)}
    writes |= {"selected": torch.zeros(2, room, dtype=torch.int64)} if room else {}
    given["log_sum_exp"] = kept.float()
    with pytest.raises(InputError, match=f"{topk} positions are selected, there is room for 0 .. {room}"):
        run_steps((compress_step(3, 6, room, 1, "avg"),), given, writes, {"n": 20, "top": topk})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (compress_step(3, 5, 0, 1, "avg"), r"fills 9 rows with sink 3 \+ recent 5 \+ topk 0"),
        (compress_step(3, 6, 0, 4, "avg"), "pools with mode 'avg' and width 4"),
        (compress_step(3, 6, 0, 3, "min"), "pools with mode 'min'"),
    ],
)
def test_compress_that_does_not_fit_is_refused(step: Compress, message: str) -> None:
    inputs, kept = prompt(12, 12, 2)
    writes = {"k_cache": torch.zeros(1, 2, 9, 8), "v_cache": torch.zeros(1, 2, 9, 6)}
    with pytest.raises(InputError, match=message):
        run_steps((step,), {**inputs, "log_sum_exp": kept.float()}, writes, {"n": 12, "top": 0})
