"""The oracles of SnapStream through compiled programs of many geometries, in checked mode.

One tiny model, a program per geometry; each program meets prompts around every boundary of its cache.
"""

from __future__ import annotations

import random

import pytest
import torch

from sscc.ir.geometry import Geometry
from tests.families import Compiler, caches, feed, random_tokens, replay, selected

FAMILY = "llama3-rope"  # two layers, two KV heads of two query heads each
CONTEXT = 48
EXACT = 1e-4
SCORE_TIE = 1e-5


def random_geometry(seed: int) -> Geometry:
    pick = random.Random(seed)
    return Geometry(
        sink=pick.randint(0, 5),
        recent=pick.randint(1, 12),
        topk=pick.randint(1, 14),
        obs=pick.randint(1, 10),
        pool=pick.choice([1, 3, 5, 7]),
        pool_mode=pick.choice(["avg", "max"]),
        max_context=CONTEXT,
    )


GEOMETRIES = {
    **{f"random-{seed}": random_geometry(seed) for seed in range(4)},
    "ring-of-one": Geometry(sink=0, recent=1, topk=5, obs=4, pool=3, pool_mode="max", max_context=CONTEXT),
    "window-beyond-ring": Geometry(sink=2, recent=3, topk=6, obs=9, pool=5, pool_mode="avg", max_context=CONTEXT),
    "streaming": Geometry(sink=3, recent=6, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT),
    "all-candidates": Geometry(sink=3, recent=8, topk=30, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT),
}
STATIC = Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)


def chunk_of(name: str) -> int:
    """Chunks that divide neither the context nor the prompts, and small ones that cut observation windows."""
    return (5, 7, 11)[sum(map(ord, name)) % 3]


def lengths(g: Geometry) -> list[int]:
    """Prompts around every boundary, valid_topk 0, 1, topk - 1 and topk among them, SR exactly, and many laps."""
    sr = g.sink_recent
    edges = {1, g.sink, g.sink + 1, sr - 1, sr, sr + 1, sr + g.topk - 1, sr + g.topk, sr + g.topk + 1, 40}
    return sorted(n for n in edges if 1 <= n <= 42)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_equals_the_independent_snapstream(name: str, compiled: Compiler) -> None:
    """Selection, the last prompt token replayed over the cache, and decode steps, for every length."""
    g = GEOMETRIES[name]
    program = compiled(FAMILY, g, batch=1, chunk=chunk_of(name))
    session, excused = program.session(checked=True), 0
    for n in lengths(g):
        prompt, oracle = random_tokens(n), program.oracle()
        assert (session.prefill(0, prompt) - oracle.prefill(prompt)).abs().max() < EXACT
        if g.topk:
            chosen = selected(session)
            assert all(int((rows >= 0).sum(-1).max()) == g.valid_topk(n) for rows in chosen)
            excused += oracle.count_near_ties(chosen, SCORE_TIE)
            oracle.adopt(chosen)
        again = replay(session, prompt)
        assert (again - oracle.decode(prompt[-1], position=n - 1)).abs().max() < EXACT
        # The replay wrote the row of n - 1 anew, over a compressed cache: start over to see what prefill left there.
        session.prefill(0, prompt)
        oracle.prefill(prompt)
        if g.topk:
            oracle.adopt(selected(session))
        for token in random_tokens(4, seed=n):
            assert (session.decode({0: token})[0] - oracle.decode(token)).abs().max() < EXACT
    assert excused <= 1, f"{excused} near ties"


@pytest.mark.parametrize("name", GEOMETRIES)
def test_decode_writes_the_row_of_its_position_and_no_other(name: str, compiled: Compiler) -> None:
    """So sinks and top-K keep their bytes over several laps of the ring, and p and p - recent share a row."""
    g = GEOMETRIES[name]
    session = compiled(FAMILY, g, batch=1, chunk=chunk_of(name)).session(checked=True)
    n = min(g.budget + 2, CONTEXT - g.recent - 2)
    session.prefill(0, random_tokens(n))
    before = caches(session)
    kept = [*range(g.sink), *range(g.sink_recent, g.budget)]
    start = before[..., kept, :]
    for step, token in enumerate(random_tokens(min(2 * g.recent + 2, CONTEXT - n), seed=1)):
        position = n + step
        session.decode({0: token})
        after = caches(session)
        changed = (after != before).any(-1).flatten(0, 2).any(0).nonzero().flatten().tolist()
        assert changed == [g.row(position)]
        assert position < g.sink_recent or g.row(position) == g.row(position - g.recent)
        before = after
    assert torch.equal(before[..., kept, :], start)


@pytest.mark.parametrize("name", ["random-0", "random-1", "ring-of-one", "streaming"])
def test_the_ring_after_a_prompt_is_the_ring_after_feeding_it(name: str, compiled: Compiler) -> None:
    """In layer 0, whose K and V depend on token and position alone; deeper layers see other hidden states."""
    g = GEOMETRIES[name]
    program = compiled(FAMILY, g, batch=1, chunk=chunk_of(name))
    for n in (g.sink + 1, g.sink_recent, g.sink_recent + 1, 40):
        tokens = random_tokens(n)
        whole, fed = program.session(), program.session()
        whole.prefill(0, tokens)
        feed(fed, tokens[:1], tokens[1:])
        rows = min(n, g.sink_recent)
        torch.testing.assert_close(caches(whole)[:, 0, :, :rows], caches(fed)[:, 0, :, :rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["random-0", "all-candidates"])
def test_below_sink_plus_recent_it_is_a_static_cache_bit_for_bit(name: str, compiled: Compiler) -> None:
    g = GEOMETRIES[name]
    session = compiled(FAMILY, g, batch=1, chunk=8).session()
    static = compiled(FAMILY, STATIC, batch=1, chunk=8).session()
    tokens = random_tokens(g.sink_recent)
    n = max(len(tokens) // 2, 1)
    assert torch.equal(feed(session, tokens[:n], tokens[n:]), feed(static, tokens[:n], tokens[n:]))
    rows = g.sink_recent
    assert torch.equal(caches(session)[..., :rows, :], caches(static)[..., :rows, :])


def test_with_every_candidate_kept_the_replayed_query_sees_everything(compiled: Compiler) -> None:
    """topk >= n - SR: the query of n-1 over the assembled cache is its full causal attention, in f64 to 1e-12; later
    ones lack exactly the positions n - recent .. p - recent."""
    g = GEOMETRIES["all-candidates"]
    program = compiled(FAMILY, g, batch=1, chunk=chunk_of("all-candidates"))
    for n in (12, 25, g.budget):
        prompt = random_tokens(n)
        exact = program.session(precision="f64")
        full = exact.prefill(0, prompt)
        assert (replay(exact, prompt) - full).norm() / full.norm() < 1e-12
        session, oracle = program.session(checked=True), program.oracle()
        session.prefill(0, prompt)
        oracle.prefill(prompt)
        for position, token in enumerate(random_tokens(min(6, CONTEXT - n), seed=1), start=n):
            lost = set(range(max(n - g.recent, g.sink), position - g.recent + 1))
            for choice in oracle.choices:
                assert all(oracle.visible(position, kept) == set(range(position + 1)) - lost for kept in choice.kept)
            assert (session.decode({0: token})[0] - oracle.decode(token)).abs().max() < EXACT
