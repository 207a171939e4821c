"""The replay: skipped periods of random pipelines give the times of a full replay; carries, prologues, epilogues."""

from __future__ import annotations

import random

import pytest

from sscc.ir.schedule import Buffer
from sscc.runtime.timing.cost import Cost, Transfer
from sscc.runtime.timing.replay import Link, Outcome, StagePlan, replay


def cost(compute: int, hbm: int = 0, sram: int = 0) -> Cost:
    reads = [Transfer(tier, time, time) for tier, time in (("hbm", hbm), ("sram", sram)) if time]
    return Cost(compute, 0, tuple(reads), ())


def plan(
    name: str,
    trips: int,
    what: Cost,
    reads: tuple[Link, ...] = (),
    writes: tuple[Link, ...] = (),
    when: str = "each",
    loads: bool = False,
) -> StagePlan:
    return StagePlan(name, when, trips, reads, writes, lambda _: what, True, loads)  # type: ignore[arg-type]


def buffers(*depths: int) -> list[Buffer]:
    return [Buffer(f"b{index}", (1,), "bf16", "sram", 0, depth) for index, depth in enumerate(depths)]


def random_pipeline(seed: int, iterations: int) -> tuple[list[StagePlan], list[Buffer]]:
    """Loads of several tiles per iteration, a chain of stages, and a value that is carried on chip."""
    rng = random.Random(seed)
    per, tiles = rng.choice([1, 2, 3]), rng.randint(1, 4)
    trips = per * tiles
    places = buffers(rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 3), rng.randint(2, 3))
    stages = [
        plan("begin", 1, cost(rng.randint(0, 50)), writes=(Link(3, 1, 0),), when="first"),
        plan("load", trips, cost(0, rng.randint(1, 40), 3), writes=(Link(0, per, 0),), loads=True),
        plan("side", 1, cost(0, rng.randint(1, 100)), writes=(Link(1, 1, 0),), loads=True),
        plan(
            "middle",
            tiles,
            cost(rng.randint(0, 90), rng.choice([0, 7])),
            (Link(0, 1, 0), Link(1, tiles, 0)),
            (Link(2, 1, 0),),
        ),
        plan("join", tiles, cost(rng.randint(0, 60)), (Link(2, 1, 0), Link(3, tiles, 0)), (Link(3, tiles, 1),)),
        plan("end", 1, cost(0, 5), (Link(3, 1, iterations),), when="last"),
    ]
    return stages, places


def facts(outcome: Outcome) -> tuple[object, ...]:
    fired = [sorted(counter.values()) for counter in outcome.fired]
    return outcome.duration, outcome.busy, fired


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_skipping_equals_the_full_replay(seed: int, prefetch: bool) -> None:
    stages, places = random_pipeline(seed, 60)
    quick = replay("p", stages, places, 60, prefetch=prefetch)
    full = replay("p", stages, places, 60, prefetch=prefetch, extrapolate=False)
    assert facts(quick) == facts(full)


@pytest.mark.parametrize("seed", range(40))
def test_most_steady_states_are_found(seed: int) -> None:
    """A million iterations would take minutes if they were replayed."""
    short, long = (replay("p", *random_pipeline(seed, n), n).duration for n in (100_000, 1_000_000))
    assert long / short == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("seed", range(40))
def test_prefetch_never_costs_time(seed: int) -> None:
    stages, places = random_pipeline(seed, 20)
    held = replay("p", stages, places, 20, prefetch=False)
    assert replay("p", stages, places, 20).duration <= held.duration


def test_a_carried_value_orders_the_iterations() -> None:
    stages = [
        plan("begin", 1, cost(3), writes=(Link(0, 1, 0),), when="first"),
        plan("step", 1, cost(10), (Link(0, 1, 0),), (Link(0, 1, 1),)),
        plan("end", 1, cost(5), (Link(0, 1, 7),), when="last"),
    ]
    assert replay("p", stages, buffers(2), 7).duration == 3 + 7 * 10 + 5


def test_an_invariant_value_is_loaded_once() -> None:
    stages = [
        plan("begin", 1, cost(3), writes=(Link(0, 1, 0),), when="first"),
        plan("step", 2, cost(10), (Link(0, 1000, 0),)),
    ]
    assert replay("p", stages, buffers(1), 500).duration == 3 + 500 * 20
    assert replay("p", stages, buffers(1), 500, extrapolate=False).duration == 3 + 500 * 20


def test_a_slot_is_complete_after_all_its_firings() -> None:
    stages = [
        plan("fill", 6, cost(10), writes=(Link(0, 3, 0),)),
        plan("take", 2, cost(1), (Link(0, 1, 0),)),
    ]
    assert replay("p", stages, buffers(2), 1).duration == 60 + 1


def test_a_place_is_free_when_every_reader_is_done() -> None:
    stages = [
        plan("fill", 2, cost(10), writes=(Link(0, 1, 0),)),
        plan("quick", 2, cost(1), (Link(0, 1, 0),)),
        plan("slow", 2, cost(50), (Link(0, 1, 0),)),
    ]
    assert replay("p", stages, buffers(1), 1).duration == 2 * (10 + 50)


def test_transfers_share_a_tier_equally() -> None:
    stages = [plan("short", 1, cost(0, 10)), plan("long", 1, cost(0, 30)), plan("idle", 1, cost(1))]
    outcome = replay("p", stages, buffers(1), 1)  # 10 of each by 20, then 20 more of the long one
    assert outcome.duration == 40
    assert outcome.busy == [10, 30, 1]


def test_nothing_happens_in_no_iterations() -> None:
    stages, places = random_pipeline(0, 0)
    assert replay("p", stages, places, 0).duration == 0


def test_the_recording_adds_up() -> None:
    stages, places = random_pipeline(3, 10)
    outcome = replay("p", stages, places, 10, record=True)
    assert outcome.recording is not None
    for busy, spans in zip(outcome.busy, outcome.recording.stages, strict=True):
        assert sum(span.end - span.begin for span in spans) >= busy
    busy = sum(span.end - span.begin for span in outcome.recording.tiers["hbm"])
    moved = sum(t.nbytes * n for fired in outcome.fired for c, n in fired.items() for t in c.reads if t.tier == "hbm")
    assert busy == pytest.approx(moved, abs=len(outcome.recording.tiers["hbm"]) * 50)
    assert len(outcome.recording.iterations) == 10
    assert sum(change for _, change in outcome.recording.occupancy) == 0


@pytest.mark.parametrize("slot", [1, 20, 39, 40])
def test_an_epilogue_may_take_a_value_of_the_middle(slot: int) -> None:
    stages = [
        plan("begin", 1, cost(3), writes=(Link(0, 1, 0),), when="first"),
        plan("step", 1, cost(10), (Link(0, 1, 0),), (Link(0, 1, 1),)),
        plan("end", 1, cost(5), (Link(0, 1, slot),), when="last"),
    ]
    quick, full = (replay("p", stages, buffers(50), 40, extrapolate=choice) for choice in (True, False))
    assert facts(quick) == facts(full)
