"""Times of what ranks exchange, against times worked out by hand. `ns` are nanoseconds.

A byte takes 1 ns over the link and 1 ns from HBM, a message 100 ns at least. A sum over 4 ranks of a tile of 200 bytes
takes two hops, in each of which a rank sends 50 bytes to each of 3 others: 300 + 200 ns.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sscc.ir.schedule import AllGather, AllReduce, Body, Param, Port, Stage
from sscc.ir.target import Target
from sscc.runtime.timing import Timing, time_entry
from sscc.runtime.timing.cost import CostErrors
from sscc.runtime.timing.work import measure
from tests.errors import raises
from tests.runtime.schedules import view_of
from tests.runtime.timing.programs import COPY, MACHINE, NS, TILE, kernel, load, program, tiles
from tests.targets import changed

RANKS = 4
LINKED = changed({"socket.bandwidth": 1e9, "socket.latency": 100 * NS}, MACHINE)
TOTAL = Body(
    "total",
    (Param("part", (TILE,), "bf16", "read"), Param("total", (TILE,), "bf16", "write")),
    (),
    (),
    (),
    (AllReduce("part", "total", (0,)),),
)


def stage(name: str, body: Body, *ports: Port, trips: int = 1) -> Stage:
    return Stage(name, body.name, (trips,), ports, (), tuple(port.view.tensor for port in ports if port.per))


def slot(buffer: str, per: int = 1, lag: int = 0) -> Port:
    return Port(view_of(buffer, (TILE,)), per, lag)


def timed(stages: tuple[Stage, ...], buffers: Any, target: Target = LINKED, *, iterations: int = 1) -> Timing:
    """A kernel with parameters w [.., TILE], v and y [TILE] in HBM, of a program of four ranks."""
    shapes = {"w": (64, TILE), "v": (64, TILE), "y": (TILE,)}
    params = tuple(Param(n, shape, "bf16", "write" if n == "y" else "read") for n, shape in shapes.items())
    whole = program((kernel(stages, buffers, params, upper=iterations),), (COPY, TOTAL), tiers={"y": "sram"})
    return time_entry(dataclasses.replace(whole, grid=(RANKS,)), "main", target)


def ns(timing: Timing) -> float:
    return timing.execution_seconds / NS


def summed(trips: int) -> tuple[Stage, ...]:
    """Tiles are loaded, each is summed over the ranks, and kept."""
    store = Stage("store", "copy", (trips,), (slot("t"), Port(view_of("y", (TILE,)))), (), ("t",))
    return load("load", "w", "b", trips), stage("sum", TOTAL, slot("b"), slot("t"), trips=trips), store


def test_a_sum_takes_two_hops_and_what_it_sends() -> None:
    assert ns(timed(summed(1), (tiles("b", 2), tiles("t", 2)))) == pytest.approx(200 + 500)
    assert ns(timed(summed(10), (tiles("b", 2), tiles("t", 2)))) == pytest.approx(200 + 10 * 500)
    slow = changed({"socket.bandwidth": 5e8, "socket.latency": 400 * NS}, LINKED)
    assert ns(timed(summed(1), (tiles("b", 2), tiles("t", 2)), slow)) == pytest.approx(200 + 2 * 300 + 2 * 400)


def test_pieces_take_one_hop() -> None:
    params = (Param("part", (TILE,), "bf16", "read"), Param("whole", (RANKS * TILE,), "bf16", "write"))
    work = measure(Body("b", params, (), (), (), (AllGather("part", "whole", 0, (0,)),)), {}, grid=(RANKS,))
    assert (work.sent, work.hops) == (3 * 200, 1)


def test_exchanges_under_way_share_the_link_and_wait_side_by_side() -> None:
    """Two sums at a time send 600 bytes over the link; alone each would be done after 500 ns."""
    two = (
        load("load", "w", "a", 1), load("load 2", "v", "b", 1),
        stage("sum", TOTAL, slot("a"), slot("s")), stage("sum 2", TOTAL, slot("b"), slot("t")),
        stage("store", COPY, slot("s"), Port(view_of("y", (TILE,)))),
        stage("store 2", COPY, slot("t"), Port(view_of("y", (TILE,)))),
    )  # fmt: skip
    assert ns(timed(two, tuple(tiles(name, 1) for name in "abst"))) == pytest.approx(400 + 600)


@pytest.mark.parametrize(("slots", "period"), [(2, 500 + 2 * 200), (3, 4 * 200), (4, 4 * 200)])
def test_what_is_loaded_during_an_exchange_needs_slots(slots: int, period: int) -> None:
    """A loop: a sum over ranks (500 ns), then a matrix of four tiles (800 ns), whose result the next sum takes. Two
    slots are full after 400 ns, and main memory idles."""
    trips = 4
    stages = (
        Stage("first", "copy", (1,), (Port(view_of("v", (TILE,))), slot("h")), (), ("h",), "first"),
        stage("sum", TOTAL, slot("h"), slot("s")),
        load("load", "w", "b", trips),
        Stage("use", "use", (trips,), (slot("b"), slot("s", trips), slot("h", trips, 1)), (), ("b", "s", "h")),
    )
    use = Body("use", (*COPY.params[:1], Param("s", (TILE,), "bf16", "read"), COPY.params[1]), (), (), (), COPY.steps)
    params = (Param("w", (4, TILE), "bf16", "read"), Param("v", (TILE,), "bf16", "read"))
    buffers = (tiles("h", 2), tiles("s", 1), tiles("b", slots))
    many, more = (
        program((kernel(stages, buffers, params, upper=count),), (COPY, TOTAL, use)) for count in (20, 30)
    )
    times = [ns(time_entry(dataclasses.replace(p, grid=(RANKS,)), "main", LINKED)) for p in (many, more)]
    assert times[1] - times[0] == pytest.approx(10 * period)


def test_ranks_need_links() -> None:
    alone = dataclasses.replace(LINKED, links=())
    with raises(CostErrors.NO_LINKS):
        timed(summed(1), (tiles("b", 2), tiles("t", 2)), alone)
