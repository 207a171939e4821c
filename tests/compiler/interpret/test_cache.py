"""kv: every operation against the readable definition of the algorithm, over geometries and prompt lengths."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sscc.compiler.frontend import algorithm
from sscc.compiler.interpret.kv_cache import CacheUndefinedErrors, encoded
from sscc.compiler.interpret.types import Types
from sscc.ir.geometry import Geometry, Span
from tests.compiler.interpret.functions import evaluate
from tests.errors import raises

H, HKV, D, DV, C = 4, 2, 8, 4, 4
SCALE = 0.37
G = Geometry(sink=2, recent=5, topk=4, obs=3, pool=3, pool_mode="avg", max_context=24)
GEOMETRIES = [
    G,
    dataclasses.replace(G, sink=0, pool=5, pool_mode="max"),
    dataclasses.replace(G, obs=7, recent=2, topk=6),
    dataclasses.replace(G, spare=3),
]
LENGTHS = [1, 2, 4, 8, 13, 24]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kv(
    operation: str,
    operands: list[Tensor | int],
    results: list[str],
    g: Geometry,
    *,
    scale: bool = False,
    present: str = "",
    more: str = "",
) -> list[Tensor]:
    """Applies one operation of the dialect; an integer operand is an index. `present` are its operandSegmentSizes and
    `more` other attributes."""
    types = [_type(operand) for operand in operands]
    names = [f"%a{i}" for i in range(len(operands))]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    outputs, attributes = ", ".join(results), f" {{scale = {SCALE} : f64{more}}}" if scale else ""
    if present:
        attributes = f" {{operandSegmentSizes = array<i32: {', '.join(present)}>, scale = {SCALE} : f64{more}}}"
    text = f"""func.func @f({arguments}) -> ({outputs}) {{
      %r:{len(results)} = "kv.{operation}"({", ".join(names)}){attributes} : ({", ".join(types)}) -> ({outputs})
      return {", ".join(f"%r#{i}" for i in range(len(results)))} : {outputs}
    }}"""
    return evaluate(text, *operands, geometry=g)


def _type(value: Tensor | int) -> str:
    if isinstance(value, int):
        return "index"
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "i1", torch.int8: "i8"}
    element = names[value.dtype]
    return f"tensor<{''.join(f'{size}x' for size in value.shape)}{element}>"


def prompt(g: Geometry, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of a prompt as the scratch holds them: [1, heads, 24, width], garbage from `length` on."""
    q, k, v = randn(1, H, 24, D), randn(1, HKV, 24, D, seed=1), randn(1, HKV, 24, DV, seed=2)
    for tensor in (q, k, v):
        tensor[:, :, length:] = 1e3
    return q, k, v


def observed(q: Tensor, k: Tensor, g: Geometry, length: int) -> tuple[Tensor, Tensor]:
    """The last queries of a prompt and the log-sum-exp of their scores, as prefill leaves them."""
    queries, sums = torch.full((1, H, g.obs, D), 9.0), torch.full((1, H, g.obs, 1), 9.0)
    count = min(g.obs, length)
    for row, position in enumerate(range(length - count, length)):
        for head in range(H):
            scores = k[0, head // (H // HKV), : position + 1] @ q[0, head, position] * SCALE
            queries[0, head, row], sums[0, head, row] = q[0, head, position], scores.logsumexp(0)
    return queries, sums


@pytest.mark.parametrize("topk", [None, 2, 0])
@pytest.mark.parametrize("g", GEOMETRIES)
def test_rows_validity_and_kept_positions(g: Geometry, topk: int | None) -> None:
    """A layer that selects fewer positions than there is room for leaves rows behind its ring unused."""
    own = g if topk is None else dataclasses.replace(g, topk=topk)
    positions = torch.arange(24)
    for length in LENGTHS:
        base = torch.full((24,), algorithm.base(length, own))
        (rows,) = kv("row", [positions, base, own.topk], ["tensor<24xi64>"], g)
        assert rows.tolist() == [algorithm.row(p, int(base[0]), own) for p in range(24)]
    active = positions % 5 != 0
    for length in LENGTHS:
        base = algorithm.base(length, own)
        operands = [positions, torch.full((24,), base), active, own.topk]
        (valid,) = kv("validity", operands, [f"tensor<24x{g.cache_rows}xi1>"], g)
        for p in range(24):
            expected = algorithm.valid_rows(p, base, own) & bool(active[p])
            assert torch.equal(valid[p, : own.cache_rows], expected)
        assert not valid[:, own.cache_rows :].any()
    chosen = torch.tensor([[2, 4, 5, 7, 8, 9], [3, 4, 6, 7, 10, 11]])[:, : g.topk]
    for length in LENGTHS:
        found = kv("kept_positions", [length, own.topk], [f"tensor<2x{g.cache_rows}xi64>"], g)
        found += kv("kept_positions", [length, own.topk, chosen], [f"tensor<2x{g.cache_rows}xi64>"], g)
        for kept, selected in zip(found, (torch.full_like(chosen, -1), chosen), strict=True):
            expected = algorithm.row_positions(selected[:, : own.topk], length, own)
            assert torch.equal(kept[:, : own.cache_rows], expected)
            assert kept[:, own.cache_rows :].eq(-1).all()


def test_a_base_outside_of_the_kept_rows_is_the_nearest_one_inside() -> None:
    """Layers that select different numbers of positions have one base as an operand."""
    position = torch.tensor([1, 2, 9, 17, 23])
    for topk in (0, 3, G.topk):
        own = dataclasses.replace(G, topk=topk)
        for base in (-1, 0, G.sink + 1, G.sink + 3, G.budget, 24):
            first = min(max(base, G.sink), G.sink + topk)
            expected = [algorithm.row(p, first, own) for p in position.tolist()]
            (rows,) = kv("row", [position, torch.full((5,), base), topk], ["tensor<5xi64>"], G)
            assert rows.tolist() == expected


@pytest.mark.parametrize("operation", ["row", "validity", "kept_positions"])
@pytest.mark.parametrize("topk", [-1, G.topk + 1])
def test_more_kept_rows_than_there_is_room_for_are_refused(operation: str, topk: int) -> None:
    positions, flags = torch.arange(2), torch.ones(2, dtype=torch.bool)
    operands, result = {
        "row": ([positions, positions, topk], "tensor<2xi64>"),
        "validity": ([positions, positions, flags, topk], f"tensor<2x{G.budget}xi1>"),
        "kept_positions": ([9, topk], f"tensor<2x{G.budget}xi64>"),
    }[operation]
    with raises(CacheUndefinedErrors.TOO_MANY, most=G.topk, topk=topk):
        kv(operation, operands, [result], G)


PROMPTS = (1, G.budget + 2, G.sink_recent + 1, G.sink + 1)


def decode_inputs(g: Geometry) -> dict[str, Tensor]:
    """Four slots: one with room, one of a long prompt whose ring has turned, one that is not active, and one of a short
    prompt whose ring has turned."""
    return {
        "query": randn(4, H, 1, D),
        "new_key": randn(4, HKV, 1, D, seed=1),
        "new_value": randn(4, HKV, 1, DV, seed=2),
        "key": randn(4, HKV, g.cache_rows, D, seed=3),
        "value": randn(4, HKV, g.cache_rows, DV, seed=4),
        "position": torch.tensor([1, 17, 6, 21]),
        "base": torch.tensor([algorithm.base(n, g) for n in PROMPTS]),
        "active": torch.tensor([True, True, False, True]),
    }


def decoded(g: Geometry) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of decode attention by the definition: attention, K and V."""
    x = decode_inputs(g)
    k, v, out = x["key"].clone(), x["value"].clone(), torch.zeros(4, H, 1, DV)
    for slot in (0, 1, 3):
        position = int(x["position"][slot])
        row = algorithm.row(position, algorithm.base(PROMPTS[slot], g), g)
        k[slot, :, row], v[slot, :, row] = x["new_key"][slot, :, 0], x["new_value"][slot, :, 0]
        valid = algorithm.valid_rows(position, algorithm.base(PROMPTS[slot], g), g)
        out[slot, :, 0] = algorithm.cached_attention(x["query"][slot, :, 0], k[slot], v[slot], valid, SCALE)
    return out, k, v


@pytest.mark.parametrize("g", [G, dataclasses.replace(G, spare=3)], ids=["plain", "spare"])
def test_update_and_cached_attention(g: Geometry) -> None:
    x, (out, k, v) = decode_inputs(g), decoded(g)
    (row,) = kv("row", [x["position"], x["base"], g.topk], ["tensor<4xi64>"], g)
    (k_new,) = kv("update", [x["key"], x["new_key"], row, x["active"]], [_type(k)], g)
    (v_new,) = kv("update", [x["value"], x["new_value"], row, x["active"]], [_type(v)], g)
    flags = f"tensor<4x{g.cache_rows}xi1>"
    (valid,) = kv("validity", [x["position"], x["base"], x["active"], g.topk], [flags], g)
    (result,) = kv("cached_attention", [x["query"], k_new, v_new, valid], [_type(out)], g, present="10111000000000")
    assert torch.equal(k_new, k)
    assert torch.equal(v_new, v)
    torch.testing.assert_close(result, out)
    assert not result[2].any()


@pytest.mark.parametrize("g", [G, dataclasses.replace(G, spare=3)], ids=["plain", "spare"])
@pytest.mark.parametrize("streamed", [False, True])
def test_decode_attention_is_all_of_it_in_one(g: Geometry, *, streamed: bool) -> None:
    """`key` and `value` give the rows that are attended; the caches that are updated may be others."""
    x, (out, k, v) = decode_inputs(g), decoded(g)
    names = "query new_key new_value key value key value position base active".split()
    operands: list[Tensor | int] = [*(x[name] for name in names), g.topk]
    if streamed:
        operands[5], operands[6] = x["key"] + 1, x["value"] + 1
    types = [_type(out), _type(k), _type(v)]
    found, k_new, v_new = kv("decode_attention", operands, types, g, present="111111111110000")
    torch.testing.assert_close(found, out)
    if not streamed:
        assert torch.equal(k_new, k)
        assert torch.equal(v_new, v)
        return
    row = algorithm.row(17, g.sink + g.topk, g)
    assert torch.equal(k_new[1, :, row], x["new_key"][1, :, 0])
    assert torch.equal(v_new[2], x["value"][2] + 1)


@pytest.mark.parametrize("dtype", ["model", "int8"])
def test_several_tokens_of_a_slot_are_one_after_the_other(dtype: str) -> None:
    """Also where the second token is not active. A slot has at most one token more than there are spare rows."""
    g = dataclasses.replace(G, spare=1, dtype=dtype)
    x, names = decode_inputs(g), "query new_key new_value".split()
    several = {name: randn(8, *x[name].shape[1:], seed=number) for number, name in enumerate(names)}
    several["position"] = (x["position"][:, None] + torch.arange(2)).flatten()
    several["base"] = x["base"].repeat_interleave(2)
    several["active"] = torch.tensor([True, True, True, False, False, False, True, True])
    caches = [evaluator_rows(x[side], g) for side in ("key", "value")]

    def step(tokens: dict[str, Tensor], k: Tensor, v: Tensor) -> list[Tensor]:
        operands = [*(tokens[name] for name in names), k, v, k, v]
        operands += [tokens[name] for name in ("position", "base", "active")]
        types = [f"tensor<{len(tokens['query'])}x{H}x1x{DV}xf32>", _type(k), _type(v)]
        return kv("decode_attention", [*operands, g.topk], types, g, present="111111111110000")

    out, *found = step(several, *caches)
    for token in range(2):
        own, *caches = step({name: value[token::2] for name, value in several.items()}, *caches)
        assert torch.equal(out[token::2], own)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, caches, strict=True))


def evaluator_rows(rows: Tensor, g: Geometry) -> Tensor:
    """Return rows as the cache of a geometry stores them."""
    return encoded(rows) if g.dtype == "int8" else rows


def test_a_row_outside_of_the_cache_is_refused() -> None:
    x = decode_inputs(G)
    with raises(CacheUndefinedErrors.ROW_OUT_OF_BOUNDS, op="kv.update", row=11, slot=1, rows=11):
        kv("update", [x["key"], x["new_key"], torch.tensor([0, 11, 99, 0]), x["active"]], [_type(x["key"])], G)


@pytest.mark.parametrize("window", [1, 3, C, C + 1, 9, 24])
@pytest.mark.parametrize("start", [0, C, 8])
def test_causal_attention_within_a_window(start: int, window: int) -> None:
    """Query by query over the keys that it sees, without a mask; the geometry of the operation's group says which."""
    q, k, v = prompt(G, 24)
    types = [f"tensor<1x{H}x{C}x{DV}xf32>", f"tensor<1x{H}x{C}x1xf32>"]
    chunk = q[:, :, start : start + C]
    out, sums = kv("causal_attention", [chunk, k, v, start, start + C], types, G.windowed(Span(window)), scale=True)
    whole = algorithm.causal_attention(q[0], k[0], v[0], SCALE, Span(window))
    for i, position in enumerate(range(start, start + C)):
        seen = slice(max(position - window + 1, 0), position + 1)
        for head in range(H):
            keys, values = (x[0, head // (H // HKV), seen] for x in (k, v))
            scores = keys @ q[0, head, position] * SCALE
            expected = scores.softmax(0) @ values
            torch.testing.assert_close(out[0, head, i], expected)
            torch.testing.assert_close(whole[head, position], expected)
            torch.testing.assert_close(sums[0, head, i, 0], scores.logsumexp(0))


def test_scores_may_be_capped_and_heads_have_sinks() -> None:
    """Number by number, in a chunk, in a decode step, and as the definition has it."""
    (q, k, v), sinks, cap = prompt(G, 24), torch.linspace(-1, 2, H), 0.7
    types = [f"tensor<1x{H}x{C}x{DV}xf32>", f"tensor<1x{H}x{C}x1xf32>"]
    operands = [q[:, :, 8 : 8 + C], k, v, 8, 8 + C, sinks]
    out, sums = kv("causal_attention", operands, types, G, scale=True, more=f", softcap = {cap} : f64")
    softmax = algorithm.Softmax(cap, sinks)
    whole = algorithm.causal_attention(q[0], k[0], v[0], SCALE, Span(), softmax)
    position = 8 + C - 1
    valid = torch.ones(1, position + 1, dtype=torch.bool)
    segment = [x[:, :, : position + 1] for x in (k, v)]
    last = [q[:, :, position : position + 1], sinks, *segment, valid]
    types, g = [f"tensor<1x{H}x1x{DV}xf32>"], dataclasses.replace(G, recent=position + 1 - G.sink - G.topk)
    (step,) = kv("cached_attention", last, types, g, present="11111000000000", more=f", softcap = {cap} : f64")
    for head in range(H):
        keys, values = (x[0, head // (H // HKV), : position + 1] for x in (k, v))
        exponentials = (cap * torch.tanh(keys @ q[0, head, position] * SCALE / cap)).exp()
        total = exponentials.sum() + sinks[head].exp()
        for found in (out[0, head, -1], step[0, head, 0], whole[head, position]):
            torch.testing.assert_close(found, exponentials @ values / total)
        torch.testing.assert_close(sums[0, head, -1, 0], total.log())


@pytest.mark.parametrize("start", [0, 8])
def test_causal_attention_and_its_log_sum_exp(start: int) -> None:
    q, k, v = prompt(G, start + C)
    chunk = q[:, :, start : start + C]
    out, sums = kv(
        "causal_attention",
        [chunk, k, v, start, start + C],
        [f"tensor<1x{H}x{C}x{DV}xf32>", f"tensor<1x{H}x{C}x1xf32>"],
        G,
        scale=True,
    )
    end = start + C
    expected = algorithm.causal_attention(q[0, :, :end], k[0, :, :end], v[0, :, :end], SCALE)
    torch.testing.assert_close(out[0], expected[:, start:])
    whole = dataclasses.replace(G, obs=C)
    torch.testing.assert_close(sums, observed(q, k, whole, end)[1])


def test_attention_of_bf16_is_computed_in_f32_and_rounded_once() -> None:
    q, k, v = (x.bfloat16() for x in prompt(G, C))
    types = [f"tensor<1x{H}x{C}x{DV}xbf16>", f"tensor<1x{H}x{C}x1xf32>"]
    out, sums = kv("causal_attention", [q[:, :, :C], k, v, 0, C], types, G, scale=True)
    wide = algorithm.causal_attention(*(x[0, :, :C].float() for x in (q, k, v)), SCALE)
    assert out.dtype is torch.bfloat16
    assert sums.dtype is torch.float32
    torch.testing.assert_close(out[0], wide.bfloat16())


def test_rows_behind_the_scratch_are_refused() -> None:
    q, k, v = prompt(G, 24)
    types = [f"tensor<1x{H}x{C}x{DV}xf32>", f"tensor<1x{H}x{C}x1xf32>"]
    with raises(CacheUndefinedErrors.CHUNK_OUT_OF_BOUNDS, op="kv.causal_attention", first=24, last=27, rows=24):
        kv("causal_attention", [q[:, :, :C], k, v, 24, 24], types, G, scale=True)


@pytest.mark.parametrize("length", [2, 5, 9, 24])
def test_observation_keeps_the_last_queries_of_the_prompt(length: int) -> None:
    q, k, _ = prompt(G, length)
    kept = torch.full((1, H, G.obs, D), 9.0)
    for start in range(0, -(-length // C) * C, C):
        (kept,) = kv("observe", [kept, q[:, :, start : start + C], start, length], [_type(kept)], G)
    assert torch.equal(kept, observed(q, k, G, length)[0])


def test_chunk_attention_is_all_of_it_in_one() -> None:
    length = 10
    q, k, v = prompt(G, length)
    states = [torch.zeros_like(k), torch.zeros_like(v)]
    outs, sums = [], []
    for start in range(0, 12, C):
        new = [x[:, :, start : start + C] for x in (q, k, v)]
        types = [f"tensor<1x{H}x{C}x{DV}xf32>", f"tensor<1x{H}x{C}x1xf32>", *map(_type, states)]
        out, log_sum_exp, *states = kv("chunk_attention", [*new, *states, start, length], types, G, scale=True)
        outs.append(out)
        sums.append(log_sum_exp)
    expected = algorithm.causal_attention(q[0, :, :length], k[0, :, :length], v[0, :, :length], SCALE)
    torch.testing.assert_close(torch.cat(outs, 2)[0, :, :length], expected)
    assert torch.equal(states[0][:, :, :12], k[:, :, :12])
    assert torch.equal(states[1][:, :, :12], v[:, :, :12])
    found = torch.cat(sums, 2)[:, :, length - G.obs : length]
    torch.testing.assert_close(found, observed(q, k, G, length)[1])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("g", GEOMETRIES)
@pytest.mark.parametrize("topk", [None, 2, 0])
def test_compression_step_by_step(g: Geometry, length: int, topk: int | None) -> None:
    """Selecting fewer positions than a cache has room for gives the result of a cache with exactly this room."""
    q, k, v = prompt(g, length)
    own = g if topk is None else dataclasses.replace(g, topk=topk)
    queries, sums = observed(q, k, g, length)
    scores_type, selected_type = f"tensor<{HKV}x24xf32>", f"tensor<{HKV}x{g.topk}xi64>"
    (scores,) = kv("observation_scores", [queries, sums, k, length], [scores_type], g, scale=True)
    last = q[0, :, length - min(g.obs, length) : length]
    expected = algorithm.observation_scores(last, k[0, :, :length], SCALE, g)
    torch.testing.assert_close(scores[:, :length], expected)
    (pooled,) = kv("pool", [scores, length], [scores_type], g)
    torch.testing.assert_close(pooled[:, :length], algorithm.pool_scores(expected, g))
    assert not pooled[:, length:].any()
    (selected,) = kv("select", [pooled, length, own.topk], [selected_type], g)
    k_rows, v_rows, found = algorithm.compress(q[0, :, :length], k[0, :, :length], v[0, :, :length], SCALE, own)
    chosen = torch.nn.functional.pad(found, (0, g.topk - own.topk), value=-1)
    assert torch.equal(selected, chosen)
    k_type, v_type = f"tensor<1x{HKV}x{g.cache_rows}x{D}xf32>", f"tensor<1x{HKV}x{g.cache_rows}x{DV}xf32>"
    caches = [torch.zeros(1, HKV, g.cache_rows, width) for width in (D, DV)]
    (index,) = kv("kept_positions", [length, own.topk, selected], [f"tensor<{HKV}x{g.cache_rows}xi64>"], g)
    (k_new,), (v_new,) = (
        kv("gather", [rows, index, cache], [type_], g)
        for rows, cache, type_ in zip((k, v), caches, (k_type, v_type), strict=True)
    )
    for new, rows in ((k_new, k_rows), (v_new, v_rows)):
        assert torch.equal(new[0, :, : own.cache_rows], rows)
        assert not new[0, :, own.cache_rows :].any()


@pytest.mark.parametrize("topk", [-1, G.topk + 1])
def test_more_positions_than_there_is_room_for_are_refused(topk: int) -> None:
    with raises(CacheUndefinedErrors.TOO_MANY, most=G.topk, topk=topk):
        kv("select", [torch.zeros(HKV, 24), 24, topk], [f"tensor<{HKV}x{G.topk}xi64>"], G)


def test_ties_go_to_the_earlier_position() -> None:
    scores = torch.zeros(HKV, 24)
    scores[1, 9] = 1.0
    (selected,) = kv("select", [scores, 24, G.topk], [f"tensor<{HKV}x{G.topk}xi64>"], G)
    assert selected.tolist() == [[2, 3, 4, 5], [2, 3, 4, 9]]


def test_rows_are_gathered_by_head() -> None:
    (_, k, _), index = prompt(G, 24), torch.tensor([[3, -1, 0], [5, 5, -1]])
    (rows,) = kv("gather", [k, index, torch.zeros(1, HKV, 3, D)], [f"tensor<1x{HKV}x3x{D}xf32>"], G)
    for head in range(HKV):
        for j, position in enumerate(index[head].tolist()):
            expected = torch.zeros(D) if position < 0 else k[0, head, position]
            assert torch.equal(rows[0, head, j], expected)


def test_an_index_behind_the_scratch_is_refused() -> None:
    _, k, _ = prompt(G, 24)
    with raises(CacheUndefinedErrors.SCRATCH_OUT_OF_BOUNDS, op="kv.gather", row=24, rows=24):
        kv("gather", [k, torch.tensor([[24]] * HKV), torch.zeros(1, HKV, 1, D)], [f"tensor<1x{HKV}x1x{D}xf32>"], G)


def test_types_know_their_precisions() -> None:
    assert Types("f64").accumulate is torch.float64
    assert Types().sums(torch.bfloat16) is torch.float32
    assert Types().sums(torch.int64) is torch.int64
