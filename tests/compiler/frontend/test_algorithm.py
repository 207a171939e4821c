"""The oracles (a)-(j) of the SnapStream definition, on the definition itself, over random geometries."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sscc.compiler.frontend import algorithm
from sscc.compiler.frontend.operator import attention
from sscc.ir.geometry import Geometry

deterministic = settings(max_examples=60)

KV_HEADS, GROUP, WIDTH, SCALE = 2, 2, 4, 0.7


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Small geometries; max_context leaves room for many laps of the ring."""
    sink, recent, topk = draw(st.integers(0, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 6))
    obs, pool = draw(st.integers(1, 6)), draw(st.sampled_from((1, 3, 5, 7)))
    context = sink + recent + topk + draw(st.integers(0, 40))
    mode, spare = draw(st.sampled_from(("avg", "max"))), draw(st.sampled_from((0, 0, 1, 4)))
    return Geometry(sink, recent, topk, obs, pool, mode, context, spare=spare)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Geometry, int, int]:
    """(geometry, prompt length around sink, sink + topk, the budget or anywhere, seed)."""
    g = draw(geometries())
    kept = g.sink + g.topk
    edges = (1, g.sink, g.sink + 1, kept, kept + 1, g.budget, g.budget + 1, g.max_context)
    anywhere = st.integers(1, g.max_context)
    n = draw(st.one_of(st.sampled_from([e for e in edges if 1 <= e <= g.max_context]), anywhere))
    return g, n, draw(st.integers(0, 1000))


def random_qkv(n: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Q [H, n, D], K [Hkv, n, D], V [Hkv, n, D]."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((KV_HEADS * GROUP, n, WIDTH), (KV_HEADS, n, WIDTH), (KV_HEADS, n, WIDTH))
    q, k, v = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return q, k, v


def feed(rows: Tensor, x: Tensor, positions: range, base: int, g: Geometry) -> Tensor:
    """Write x [Hkv, n, D] at `positions`, one by one, into a copy of `rows` [Hkv, R, D] whose ring begins at `base`."""
    rows = rows.clone()
    for position in positions:
        rows[:, algorithm.row(position, base, g)] = x[:, position]
    return rows


def empty_rows(g: Geometry) -> Tensor:
    return torch.zeros(KV_HEADS, g.cache_rows, WIDTH)


# --------------------------------------------------------------------------------------------- rows and the ring


def test_worked_example_of_the_paper() -> None:
    g = Geometry(sink=1, recent=4, topk=0, obs=1, pool=1, pool_mode="avg", max_context=64)
    none, base = torch.empty(1, 0, dtype=torch.int64), algorithm.base(27, g)
    assert algorithm.row_positions(none, 27, g)[0, 1:].tolist() == [25, 26, 23, 24]
    assert algorithm.row_positions(none, 28, g)[0, 1:].tolist() == [25, 26, 27, 24]
    assert algorithm.row(27, base, g) == algorithm.row(23, base, g) == 1 + 2


def test_every_promise_of_the_layout_for_every_small_geometry() -> None:
    """Every geometry of fewer than 4 sinks, 6 recent and 7 selected rows, every prompt up to the budget and a dozen
    more tokens, three laps of the ring: what is in which row, written here as a cache would be."""
    steps = 0
    for sink, recent, topk, spare in itertools.product(range(4), range(1, 6), range(7), (0, 2)):
        budget = sink + recent + topk
        g = Geometry(sink, recent, topk, 1, 1, "avg", 4 * budget + 16, spare=spare)
        for n in range(1, budget + 12):
            picked = list(range(sink, sink + topk))  # of a longer prompt, any of those between sinks and ring
            base = algorithm.base(n, g)
            assert base == g.base(n)
            rows = algorithm.row_positions(torch.tensor([picked if n > budget else [-1] * topk]), n, g)[0].tolist()
            held = {row: position for row, position in enumerate(rows) if position >= 0}
            for t in range(n - 1, n + 3 * (budget - base)):
                if t >= n:
                    held[algorithm.row(t, base, g)] = t
                assert algorithm.row(t, base, g) == g.row(t, base)
                valid = algorithm.valid_rows(t, base, g).tolist()
                seen = {row: position for row, position in held.items() if row < base or position > t - (budget - base)}
                assert valid == [row in seen for row in range(budget + spare)]
                assert valid == [g.sees_row(row, t, base) for row in range(budget + spare)]
                assert spare or valid == sorted(valid, reverse=True), "rows in use are the first"
                positions = set(seen.values())
                assert set(range(max(t + 1 - recent, 0), t + 1)) <= positions, "the newest are there"
                assert set(range(min(sink, t + 1))) <= positions, "so are sinks"
                if t < budget:
                    assert seen == {position: position for position in range(t + 1)}
                if n <= sink + topk:
                    assert set(range(n)) <= positions, "such a prompt is kept whole"
                if n > budget:
                    assert set(picked) <= positions
                    assert len(positions) == budget
                steps += 1
    assert steps == 2 * 30_730


@deterministic
@given(cases())
def test_a_ring_after_prefill_is_the_ring_after_feeding(case: tuple[Geometry, int, int]) -> None:
    g, n, seed = case
    x, base = random_qkv(n, seed)[1], algorithm.base(n, g)
    assembled = algorithm.assemble(x, algorithm.row_positions(torch.full((KV_HEADS, g.topk), -1), n, g))
    fed = feed(empty_rows(g), x, range(n), base, g)
    if n > g.budget:
        fed[:, g.sink : base] = 0  # of which none is selected here
        fed[:, ~algorithm.valid_rows(n - 1, base, g)] = 0
    assert torch.equal(assembled, fed)


@deterministic
@given(geometries(), st.integers(0, 60), st.integers(0, 500))
def test_g_positions_one_lap_apart_share_a_row(g: Geometry, n: int, position: int) -> None:
    base = algorithm.base(n, g)
    row, lap = algorithm.row(position, base, g), g.cache_rows - base
    assert row == position if position < g.cache_rows else base <= row < g.cache_rows
    if position >= g.cache_rows:
        assert row == algorithm.row(position - lap, base, g)


# ---------------------------------------------------------------------------------------------------- selection


def loop_scores(q: Tensor, k: Tensor, g: Geometry) -> list[list[float]]:
    """The score formula with loops over everything: q [H, n, D], k [Hkv, n, D]."""
    n = k.shape[1]
    scores = [[0.0] * n for _ in range(KV_HEADS)]
    for head in range(KV_HEADS * GROUP):
        for i in range(n - min(g.obs, n), n):
            logits = [float(q[head, i] @ k[head // GROUP, t]) * SCALE for t in range(i + 1)]
            weights = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
            for t, weight in enumerate(weights):
                scores[head // GROUP][t] += weight / GROUP
    edge = n - min(g.obs, g.recent)
    return [[s if t < edge else 0.0 for t, s in enumerate(row)] for row in scores]


@deterministic
@given(cases())
def test_scores_and_pool_follow_the_formula(case: tuple[Geometry, int, int]) -> None:
    g, n, seed = case
    q, k, _ = random_qkv(n, seed, torch.float64)
    scores = algorithm.observation_scores(q[:, n - min(g.obs, n) :], k, SCALE, g)
    expected = loop_scores(q, k, g)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64))
    reach = g.pool // 2
    windows = [[row[max(t - reach, 0) : t + reach + 1] for t in range(n)] for row in scores.tolist()]
    pooled = [[max(w) if g.pool_mode == "max" else sum(w) / g.pool for w in row] for row in windows]
    torch.testing.assert_close(algorithm.pool_scores(scores, g), torch.tensor(pooled, dtype=torch.float64))


@deterministic
@given(cases(), st.integers(1, 5))
def test_e_selection_with_ties_and_few_candidates(case: tuple[Geometry, int, int], levels: int) -> None:
    g, n, seed = case
    scores = torch.randint(0, levels, (KV_HEADS, n), generator=torch.Generator().manual_seed(seed)).float()
    selected = algorithm.select(scores, n, g)
    assert selected.shape == (KV_HEADS, g.topk)
    for head in range(KV_HEADS):
        order = sorted(range(g.sink, n - g.recent), key=lambda t: (-float(scores[head, t]), t))
        expected = sorted(order[: g.topk]) if n > g.budget else []
        assert selected[head].tolist() == expected + [-1] * (g.topk - len(expected))


@pytest.mark.parametrize("n", [9, 14, 15, 16, 40])
def test_e_a_prompt_that_fits_selects_nothing(n: int) -> None:
    g = Geometry(sink=3, recent=7, topk=5, obs=4, pool=3, pool_mode="avg", max_context=64)
    q, k, v = random_qkv(n, seed=n)
    keys, values, selected = algorithm.compress(q, k, v, SCALE, g)
    if n <= 15:
        assert g.selected(n) == 0
        assert (selected == -1).all()
        assert torch.equal(keys[:, :n], k)
        assert not keys[:, n:].any()
        return
    assert g.selected(n) == 5
    assert (selected >= 0).all()
    for head in range(KV_HEADS):
        assert torch.equal(keys[head, 3:8], k[head, selected[head]])
        assert torch.equal(values[head, 3:8], v[head, selected[head]])


@deterministic
@given(cases(), st.integers(1, 5))
def test_h_static_shapes_give_the_same_selection(case: tuple[Geometry, int, int], levels: int) -> None:
    """The form a static graph uses: scores of max_context positions, one stable sort, non-candidates last."""
    g, n, seed = case
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (KV_HEADS, g.max_context), generator=generator).float()
    positions = torch.arange(g.max_context)
    candidate = (positions >= g.sink) & (positions < n - g.recent)
    order = scores.masked_fill(~candidate, -1.0).sort(dim=1, descending=True, stable=True).indices[:, : g.topk]
    picks = torch.where(candidate[order], order, g.max_context).sort(dim=1).values
    static = torch.where((picks < g.max_context) & (n > g.budget), picks, -1)
    assert torch.equal(static, algorithm.select(scores[:, :n], n, g))


@deterministic
@given(cases(), st.integers(1, 9))
def test_j_chunks_hand_over_the_same_observation_queries(case: tuple[Geometry, int, int], chunk: int) -> None:
    """Kept per chunk at row position - max(n - obs, 0), the padded tail dropped, they give the same indices."""
    g, n, seed = case
    q, k, v = random_qkv(n, seed)
    padded = torch.cat([q, torch.full((KV_HEADS * GROUP, chunk, WIDTH), 1e3)], dim=1)
    observed = torch.zeros(KV_HEADS * GROUP, g.obs, WIDTH)
    for start in range(0, n, chunk):
        for position in range(start, start + chunk):
            row = position - max(n - g.obs, 0)
            if 0 <= row < min(g.obs, n):
                observed[:, row] = padded[:, position]
    scores = algorithm.observation_scores(observed[:, : min(g.obs, n)], k, SCALE, g)
    selected = algorithm.select(algorithm.pool_scores(scores, g), n, g)
    assert torch.equal(selected, algorithm.compress(q, k, v, SCALE, g)[2])


@deterministic
@given(cases())
def test_j_attention_token_by_token_is_causal_attention(case: tuple[Geometry, int, int]) -> None:
    _, n, seed = case
    q, k, v = random_qkv(n, seed)
    every = torch.ones(n, dtype=torch.bool)
    steps = [algorithm.cached_attention(q[:, i], k[:, : i + 1], v[:, : i + 1], every[: i + 1], SCALE) for i in range(n)]
    whole = algorithm.causal_attention(q, k, v, SCALE)
    assert torch.linalg.norm(torch.stack(steps, 1) - whole) <= 1e-5 * torch.linalg.norm(whole)


# --------------------------------------------------------------------------------------- attention over the cache


@deterministic
@given(geometries(), st.integers(0, 1000), st.data())
def test_b_short_sequences_are_an_ordinary_static_cache(g: Geometry, seed: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, g.budget - 1))
    base = algorithm.base(data.draw(st.integers(1, position + 1)), g)
    q, k, v = random_qkv(position + 1, seed)
    static_k, static_v = empty_rows(g), empty_rows(g)
    static_k[:, : position + 1], static_v[:, : position + 1] = k, v
    fed_k, fed_v = (feed(empty_rows(g), x, range(position + 1), base, g) for x in (k, v))
    valid = algorithm.valid_rows(position, base, g)
    assert torch.equal(valid, torch.arange(g.cache_rows) <= position)
    ours = algorithm.cached_attention(q[:, -1], fed_k, fed_v, valid, SCALE)
    assert torch.equal(ours, algorithm.cached_attention(q[:, -1], static_k, static_v, valid, SCALE))
    torch.testing.assert_close(ours, algorithm.causal_attention(q, k, v, SCALE)[:, -1])


@deterministic
@given(cases(), st.integers(0, 14))
def test_c_with_room_for_all_only_the_ring_forgets(case: tuple[Geometry, int, int], steps: int) -> None:
    g, n, seed = case
    g = replace(g, topk=max(g.topk, n - g.sink_recent, 0), max_context=g.max_context + 64)
    base = algorithm.base(n, g)
    q, k, v = random_qkv(n + steps, seed, torch.float64)
    rows_k, rows_v, _ = algorithm.compress(q[:, :n], k[:, :n], v[:, :n], SCALE, g)
    replayed = algorithm.cached_attention(q[:, n - 1], rows_k, rows_v, algorithm.valid_rows(n - 1, base, g), SCALE)
    torch.testing.assert_close(replayed, algorithm.causal_attention(q[:, :n], k[:, :n], v[:, :n], SCALE)[:, -1])

    rows_k, rows_v = (feed(rows, x, range(n, n + steps), base, g) for rows, x in ((rows_k, k), (rows_v, v)))
    last = n + steps - 1
    seen = torch.ones(last + 1, dtype=torch.bool)
    seen[base : max(last - (g.budget - base) + 1, base)] = False
    decoded = algorithm.cached_attention(q[:, last], rows_k, rows_v, algorithm.valid_rows(last, base, g), SCALE)
    torch.testing.assert_close(decoded, algorithm.cached_attention(q[:, last], k, v, seen, SCALE))


@deterministic
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_d_permuting_the_batch_permutes_the_outputs(order: list[int], seed: int) -> None:
    sequences = [random_qkv(6, seed + i) for i in range(4)]
    q, k, v = (torch.stack(parts) for parts in zip(*sequences, strict=True))
    assert torch.equal(attention(q, k, v, 0, SCALE)[order], attention(q[order], k[order], v[order], 0, SCALE))


@deterministic
@given(cases())
def test_f_rows_before_the_ring_never_change(case: tuple[Geometry, int, int]) -> None:
    g, n, seed = case
    n = max(n, g.sink, 1)
    base = algorithm.base(n, g)
    steps = 2 * (g.cache_rows - base) + 1
    q, k, v = random_qkv(n + steps, seed)
    rows = algorithm.compress(q[:, :n], k[:, :n], v[:, :n], SCALE, g)[0]
    later = feed(rows, k, range(n, n + steps), base, g)
    assert torch.equal(later[:, :base], rows[:, :base])
    assert not (later[:, base:] == rows[:, base:]).all(-1).any(), "every row of the ring is written"


def test_an_empty_mask_gives_zeros() -> None:
    q, k, v = random_qkv(5, seed=0)
    out = algorithm.cached_attention(q[:, 0], k, v, torch.zeros(5, dtype=torch.bool), SCALE)
    assert torch.equal(out, torch.zeros(KV_HEADS * GROUP, WIDTH))


def test_values_may_be_narrower_than_keys() -> None:
    q, k, v = random_qkv(9, seed=1)
    out = algorithm.causal_attention(q, k, v[..., :3], SCALE)
    torch.testing.assert_close(out, algorithm.causal_attention(q, k, v, SCALE)[..., :3])


def test_bf16_is_rounded_once() -> None:
    q, k, v = (x.bfloat16() for x in random_qkv(9, seed=2))
    out = algorithm.causal_attention(q, k, v, SCALE)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, algorithm.causal_attention(q.float(), k.float(), v.float(), SCALE).bfloat16())
