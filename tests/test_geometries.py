"""The oracles of SnapStream through compiled programs of many geometries, in checked mode.

One tiny model, a program per geometry; each program meets prompts around every boundary of its cache.
"""

from __future__ import annotations

import random
from dataclasses import replace

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
    "spare rows": Geometry(sink=2, recent=5, topk=6, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT, spare=3),
    "all-candidates": Geometry(sink=3, recent=8, topk=30, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT),
}
STATIC = Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)


def chunk_of(name: str) -> int:
    """Chunks that divide neither the context nor the prompts, and small ones that cut observation windows."""
    return (5, 7, 11)[sum(map(ord, name)) % 3]


def lengths(g: Geometry) -> list[int]:
    """Return lengths of prompts around every boundary: sinks, kept rows, the budget, and many laps of the ring."""
    kept = g.sink + g.topk
    edges = {1, g.sink, g.sink + 1, kept - 1, kept, kept + 1, g.budget - 1, g.budget, g.budget + 1, 40}
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
            count = g.topk if n > g.budget else 0
            assert all(set((rows >= 0).sum(-1).tolist()) == {count} for rows in chosen)
            excused += oracle.count_near_ties(chosen, SCORE_TIE)
            oracle.adopt(chosen)
        again = replay(session, prompt)
        assert (again - oracle.decode(prompt[-1], position=n - 1)).abs().max() < EXACT
        # The replay wrote the row of n - 1 anew, over a compressed cache: start over to see what prefill left there.
        session.prefill(0, prompt)
        oracle.prefill(prompt)
        if g.topk:
            oracle.adopt(selected(session))
        for token in random_tokens(min(g.recent + 4, CONTEXT - n), seed=n):
            assert (session.decode({0: token})[0] - oracle.decode(token)).abs().max() < EXACT
    assert excused <= 1, f"{excused} near ties"


def base_of(n: int, g: Geometry) -> int:
    """Return the first row of the ring after a prompt of `n` tokens."""
    return min(max(n, g.sink), g.sink + g.topk)


def row_of(position: int, n: int, g: Geometry) -> int:
    """Return the row of a position that is no selected one, after a prompt of `n` tokens."""
    base = base_of(n, g)
    return position if position < base else base + (position - base) % (g.cache_rows - base)


@pytest.mark.parametrize("which", ["short", "fits", "long"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_decode_writes_the_row_of_its_position_and_no_other(name: str, which: str, compiled: Compiler) -> None:
    """Rows before the ring keep their bytes when the ring wraps around, and positions one lap apart share a row."""
    g = GEOMETRIES[name]
    session = compiled(FAMILY, g, batch=1, chunk=chunk_of(name)).session(checked=True)
    n = {"short": g.sink + 1, "fits": g.budget, "long": min(g.budget + 2, CONTEXT - g.recent - 2)}[which]
    session.prefill(0, random_tokens(n))
    before, base = caches(session), base_of(n, g)
    start = before[..., : min(n, base), :]
    for step, token in enumerate(random_tokens(min(2 * (g.cache_rows - base) + 2, CONTEXT - n), seed=1)):
        session.decode({0: token})
        after = caches(session)
        changed = (after != before).any(-1).flatten(0, 2).any(0).nonzero().flatten().tolist()
        assert changed == [row_of(n + step, n, g)]
        before = after
    assert torch.equal(before[..., : min(n, base), :], start)


@pytest.mark.parametrize("name", ["random-0", "random-1", "ring-of-one", "streaming", "spare rows"])
def test_the_ring_after_a_prompt_is_the_ring_after_feeding_it(name: str, compiled: Compiler) -> None:
    """In layer 0, whose K and V depend on token and position alone; deeper layers see other hidden states."""
    g = GEOMETRIES[name]
    program = compiled(FAMILY, g, batch=1, chunk=chunk_of(name))
    for n in (g.sink + 1, g.budget, g.budget + 1, 40):
        tokens = random_tokens(n)
        whole, fed = program.session(), program.session()
        whole.prefill(0, tokens)
        feed(fed, tokens[:1], tokens[1:])
        there = range(n) if n <= g.budget else [*range(g.sink), *range(n - g.recent, n)]
        ours, others = ([row_of(position, prompt, g) for position in there] for prompt in (n, 1))
        torch.testing.assert_close(
            caches(whole)[:, 0, :, ours], caches(fed)[:, 0, :, others], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("name", ["random-0", "random-1", "ring-of-one", "streaming", "all-candidates"])
def test_within_the_budget_it_is_a_full_cache(name: str, compiled: Compiler) -> None:
    """The same bits as a cache of the same size, and equal to a larger one up to rounding, wherever the prompt ends."""
    g = GEOMETRIES[name]
    session = compiled(FAMILY, g, batch=1, chunk=8).session()
    full = replace(STATIC, recent=g.budget)
    equal, larger = (compiled(FAMILY, geometry, batch=1, chunk=8).session() for geometry in (full, STATIC))
    tokens = random_tokens(g.budget)
    for n in sorted({1, g.sink + 1, g.budget // 2, g.budget - 1, g.budget}):
        logits = feed(session, tokens[:n], tokens[n:])
        assert torch.equal(logits, feed(equal, tokens[:n], tokens[n:]))
        assert torch.equal(caches(session), caches(equal))
        torch.testing.assert_close(logits, feed(larger, tokens[:n], tokens[n:]), atol=1e-5, rtol=1e-5)


def test_a_prompt_that_fits_sinks_and_kept_rows_is_kept_for_ever(compiled: Compiler) -> None:
    """The query of n - 1 over the assembled cache is its full causal attention, in f64 to 1e-12; later ones lack
    exactly what left the ring, and nothing of the prompt."""
    g = GEOMETRIES["all-candidates"]
    program = compiled(FAMILY, g, batch=1, chunk=chunk_of("all-candidates"))
    for n in (12, g.sink + g.topk, g.budget):
        prompt = random_tokens(n)
        exact = program.session(precision="f64")
        full = exact.prefill(0, prompt)
        assert (replay(exact, prompt) - full).norm() / full.norm() < 1e-12
        session, oracle = program.session(checked=True), program.oracle()
        session.prefill(0, prompt)
        oracle.prefill(prompt)
        base = base_of(n, g)
        for position, token in enumerate(random_tokens(CONTEXT - n, seed=1), start=n):
            lost = set(range(base, position - (g.budget - base) + 1))
            for choice in oracle.choices:
                visible = [oracle.visible(position, kept, g.topk) for kept in choice.kept]
                assert all(seen == set(range(position + 1)) - lost for seen in visible)
            assert (session.decode({0: token})[0] - oracle.decode(token)).abs().max() < EXACT
