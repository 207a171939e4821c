"""Uses of slots, compared with a list of every firing's slot and elements."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import product
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Access, Body, Buffer, Instr, Kernel, Pipeline, Port, Scalar, Stage, Vector, View
from sscc.runtime.validator import Limits, streams
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.linear import Scope
from sscc.runtime.validator.pipelines import PipelineView
from sscc.runtime.validator.streams import StreamProofErrors, check_covers, check_rates
from tests.errors import raises, refusal
from tests.runtime.schedules import write
from tests.runtime.test_validator_tokens import Net

Views = list[tuple[int, int, int, int, int]]  # offset, and factors of q, t0, t1, i


def filling(
    views: Views, width: int, size: int, grid: tuple[int, ...], per: int, iterations: int | str, when: str = "each"
) -> PipelineView:
    """One stage that fills slots of `size` elements, `width` by each port and firing; q counts a slot's iterations."""
    names = [f"p{n}" for n in range(len(views))]
    one = Instr("one", "const", (1.0,), "f32")
    steps = tuple(Vector((width,), (), Access(name, ((1, 0),)), (one,), "one") for name in names)
    facts = prove_body(Body("b", tuple(write(name, (width,)) for name in names), (), (), (), steps), Limits())
    terms = ("q", *(f"t{axis}" for axis in range(len(grid))))
    ports = []
    for offset, of_q, of_t0, of_t1, of_i in views:
        moves = (*zip(terms, (of_q, of_t0, of_t1), strict=False), ("i", of_i))
        ports.append(Port(View("b", (width,), (1,), offset, moves), per))
    several = max(1, per // _trips(grid))
    scope = Scope("test")
    if isinstance(iterations, str):
        scope.variable(iterations, (1, 12))
    stage = Stage("s", "b", grid, tuple(ports), (), ("b",), when)  # type: ignore[arg-type]
    buffers = (Buffer("b", (size,), "f32", "sram", 0, 2),)
    pipeline = Pipeline("p", "i", 0, iterations, (Scalar("q", "mod", ("i", several)),), buffers, (stage,))
    return PipelineView(Kernel("k", (), (), (pipeline,)), pipeline, {"b": facts}, scope)


def _trips(grid: tuple[int, ...]) -> int:
    trips = 1
    for size in grid:
        trips *= size
    return trips


def is_covered(views: Views, width: int, size: int, grid: tuple[int, ...], per: int, iterations: int) -> bool:
    """Return True if each slot gets each of its elements once, by listing all firings."""
    written: dict[int, Counter[int]] = {}
    several = max(1, per // _trips(grid))
    firings = product(range(iterations), *(range(count) for count in grid))
    for firing, (i, *t) in enumerate(firings):
        t0, t1 = (*t, 0, 0)[:2]
        for offset, of_q, of_t0, of_t1, of_i in views:
            begin = offset + of_q * (i % several) + of_t0 * t0 + of_t1 * t1 + of_i * i
            written.setdefault(firing // per, Counter()).update(range(begin, begin + width))
    everything = Counter(range(size))
    return all(elements == everything for elements in written.values())


def accepts(*case: Any) -> bool:
    try:
        check_covers(filling(*case), Limits())
    except InputError:
        return False
    return True


def random_filling(choose: random.Random) -> tuple[Views, int, int, tuple[int, ...], int, int]:
    """Often right, with at most one number changed."""
    grid = tuple(choose.choice((1, 2, 3)) for _ in range(choose.choice((1, 2))))
    inner = choose.choice((1, *(_trips(grid[n:]) for n in range(len(grid)))))
    several = choose.choice((1, 1, 2, 3)) if inner == _trips(grid) else 1
    ports, width = choose.choice((1, 1, 2)), choose.choice((1, 2))
    tiles = [count if _trips(grid[axis:]) <= inner else 1 for axis, count in enumerate(grid)]
    factors, reach = [], width
    for count in reversed([several, *tiles]):
        factors.insert(0, reach if count > 1 else 0)
        reach *= count
    numbers = [0, *factors, *[0] * (2 - len(grid)), 0]
    views = [[n * reach, *numbers[1:]] for n in range(ports)]
    size = reach * ports
    if choose.random() < 0.6:
        place = choose.randrange(5)
        views[choose.randrange(ports)][place] += choose.choice((-1, 1, width, reach))
    if choose.random() < 0.1:
        size += 1
    iterations = several * choose.choice((1, 2, 3))
    return [tuple(view) for view in views], width, size, grid, inner * several, iterations  # type: ignore[misc]


def test_slots_are_filled_whole_and_once_or_refused() -> None:
    choose, seen = random.Random(11), []
    for _ in range(1500):
        case = random_filling(choose)
        right = is_covered(*case)
        assert accepts(*case) == right, case
        seen.append(right)
    assert min(seen.count(True), seen.count(False)) > 300, (seen.count(True), seen.count(False))


@pytest.mark.parametrize(
    ("grid", "per", "kind", "fields"),
    [
        ((2, 3), 2, StreamProofErrors.SLOT_NO_BLOCK, {"per": 2, "grid": [2, 3]}),
        ((4, 3), 9, StreamProofErrors.SLOT_NO_BLOCK, {"per": 9, "grid": [4, 3]}),
        ((5,), 2, StreamProofErrors.SLOT_NO_BLOCK, {"per": 2, "grid": [5]}),
        ((2,), 3, StreamProofErrors.SLOT_ACROSS_ITERATIONS, {"per": 3, "trips": 2}),
    ],
)
def test_firings_of_a_slot_that_are_no_block_of_the_grid_are_refused(
    grid: tuple[int, ...], per: int, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        check_covers(filling([(0, 0, 1, 1, 0)], 1, per, grid, per, 6), Limits())


def test_slots_of_any_number_of_iterations() -> None:
    """If the number of iterations is not constant, a slot takes one; a stage that fires once fills its slots at
    once."""
    assert accepts([(0, 0, 1, 0, 0)], 1, 2, (2,), 2, "n")
    assert not accepts([(0, 0, 1, 0, 2)], 1, 2, (2,), 2, "n")
    assert accepts([(0, 0, 1, 0, 2)], 1, 2, (2,), 2, 5, "first")
    assert not accepts([(0, 0, 1, 0, 2)], 1, 2, (2,), 2, 5, "last")
    assert accepts([(-8, 0, 1, 0, 2)], 1, 2, (2,), 2, 5, "last")


def test_as_many_iterations_of_a_slot_are_followed_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots, or the only one that there is: the second one may be filled otherwise."""
    monkeypatch.setattr(streams, "_ITERATIONS", 6)

    def covered(several: int, iterations: int, of_i: int = 0) -> None:
        check_covers(filling([(0, 1 - of_i, 0, 0, of_i)], 1, several, (1,), several, iterations), Limits())

    for several, iterations, of_i in ((6, 6, 0), (3, 6, 0), (3, 300, 0), (6, 6, 1)):
        covered(several, iterations, of_i)
    with raises(StreamProofErrors.WRITTEN_IN_PART):
        covered(3, 300, of_i=1)
    for several, iterations in ((7, 7), (4, 8)):
        with raises(
            StreamProofErrors.SLOT_TOO_LONG, buffer="b", several=several, iterations=iterations, followed=6
        ):
            covered(several, iterations)


# ----------------------------------------------------------------------------------------------------------- rates


def random_ends(choose: random.Random, iterations: int) -> Net:
    """A buffer or two with writers and readers that mostly fit each other."""
    net = Net()
    for name in ("first", "a", "b", "last"):
        net.stage(name, choose.choice((1, 2, 3)), name if name in ("first", "last") else "each")
    for buffer in ("x", "y")[: choose.choice((1, 2))]:
        lag = choose.choice((0, 0, 1, 2))
        fills, takes = ("read", "write") if choose.random() < 0.15 else ("write", "read")  # or against all order
        net.depths[buffer] = choose.choice((1, 2, 4))
        source, target = choose.choice((("a", "b"), ("b", "a"), ("a", "a")))
        net.ends[source].append((buffer, fills, net.stages[source][0], lag))
        net.ends[target].append((buffer, takes, net.stages[target][0], choose.choice((0, 0, 0, 0, 0, 1))))
        if lag or choose.random() < 0.1:
            trips = net.stages["first"][0]
            net.ends["first"].append((buffer, fills, choose.choice((trips, 1)), choose.choice((0, 0, 1))))
            per = choose.choice((net.stages["last"][0], 1))
            net.ends["last"].append((buffer, takes, per, iterations + choose.choice((0, 0, 1, -1))))
    net.stages = {name: stage for name, stage in net.stages.items() if net.ends[name]}
    net.ends = {name: net.ends[name] for name in net.stages}
    return net


def slots_agree(net: Net, iterations: int) -> bool:
    """Each slot that is filled is filled whole, by one stage, and read; each that is read is read whole and filled."""
    used: dict[str, dict[str, list[int]]] = {buffer: {"write": [], "read": []} for buffer in net.depths}
    for name, (trips, when) in net.stages.items():
        for buffer, kind, per, lag in net.ends[name]:
            firings = trips * (iterations if when == "each" else 1)
            if firings % per:
                return False
            used[buffer][kind] += [slot + lag for slot in range(firings // per)]
    return all(
        len(set(ends["write"])) == len(ends["write"]) and set(ends["write"]) == set(ends["read"])
        for ends in used.values()
    )


def random_spans(choose: random.Random, iterations: int) -> Net:
    """A buffer whose slots are shared out among those that fill it, and among those that read it, in any order."""
    net = Net()
    net.depths = {"x": choose.choice((1, 2, 3, 4, 8))}
    every, total = choose.choice((1, 1, 2)), 0
    parts = [*choose.choices(("first", "last", "kept"), k=choose.choice((0, 0, 1, 1, 2))), "each"]
    for kind in ("write", "read"):
        slot = 0
        for when in choose.sample(parts, len(parts)):
            count = {"each": every * iterations, "kept": 1}.get(when, choose.choice((1, 2)))
            if kind == "read" and slot + count > total:
                count = total - slot
            if not count or (when == "each" and count != every * iterations):
                continue
            name, per = f"{kind}_{len(net.stages)}", choose.choice((1, 2))
            trips = {"each": every * per, "kept": per}.get(when, count * per)
            net.stage(name, trips, "each" if when == "kept" else when)
            net.ends[name].append(("x", kind, per * iterations if when == "kept" else per, slot))
            slot += count
        total = slot
    for name in ("read_again", "read_kept"):
        if choose.random() < 0.3:
            net.stage(name, 1, choose.choice(("first", "last", "each")))
            per = iterations if net.stages[name][1] == "each" else 1
            net.ends[name].append(("x", "read", per, choose.randrange(total)))
    return net


def runs_in_turn(net: Net, iterations: int) -> bool:
    """Whether what fires first, then iteration after iteration, then what fires last, is an order that streams allow:
    nothing is read before it is filled, and what fires before another stage does not wait for a place of it."""
    for buffer, depth in net.depths.items():
        uses = []
        for name, (trips, when) in net.stages.items():
            order = ("first", "each", "last").index(when)
            firings = trips * (iterations if when == "each" else 1)
            for _, kind, per, lag in (end for end in net.ends[name] if end[0] == buffer):
                uses += [(kind, lag + firing // per, order, firing // trips) for firing in range(firings)]
        for (one, slot, *turn), (other, there, *later) in product(uses, repeat=2):
            if (one, other, slot) == ("read", "write", there) and later > turn:
                return False
            if one == "write" and there < slot and (slot - there) % depth == 0 and later[0] > turn[0]:
                return False
    return True


@pytest.mark.parametrize("nets", [random_ends, random_spans])
def test_slots_have_one_producer_and_a_reader_and_are_filled_in_turn_or_are_refused(nets: Any) -> None:
    choose, seen = random.Random(4), Counter[str]()
    orders = {
        StreamProofErrors.PLACE_IN_USE: "fills",
        StreamProofErrors.READ_BEFORE_FILLED: "reads",
        StreamProofErrors.READ_ITERATION_BEFORE: "reads",
    }
    for _ in range(2000):
        iterations = choose.choice((1, 2, 3, 4))
        net = nets(choose, iterations)
        error = refusal(check_rates, net.view(iterations))
        order = orders.get(error.kind) if error else None
        if slots_agree(net, iterations):
            assert (order is None) == (error is None) == runs_in_turn(net, iterations), (error, net.ends)
        else:
            assert error is not None, net.ends
        seen[order or ("wrong" if error else "")] += 1
    assert set(seen) == {"", "wrong", "fills", "reads"}, seen


def test_what_is_wrong_with_slots_is_said_with_its_number() -> None:
    def rates(iterations: int, depth: int, **stages: tuple[int, str, str, int, int]) -> None:
        net = Net()
        for name, (trips, when, kind, per, lag) in stages.items():
            net.stage(name, trips, when)
            net.ends[name].append(("x", kind, per, lag))
        net.depths["x"] = depth
        check_rates(net.view(iterations))

    where = "kernel 'k', pipeline 'p', buffer 'x'"
    fills, reads = (2, "each", "write", 2, 0), (3, "each", "read", 3, 0)
    rates(4, 2, a=fills, b=reads)
    with raises(StreamProofErrors.NEVER_READ, where=where):
        rates(4, 2, a=fills)
    with raises(StreamProofErrors.NEVER_FILLED, where=where):
        rates(4, 2, b=reads)
    with raises(StreamProofErrors.BUFFER_FORM, buffer="x", depth=0, shape=[64]):
        rates(4, 0, a=fills, b=reads)
    with raises(StreamProofErrors.FILLED_IN_PART, where=where, stage="a", firings=6, iterations=3, per=4):
        rates(3, 2, a=(2, "each", "write", 4, 0), b=(2, "each", "read", 4, 0))
    with raises(StreamProofErrors.READ_IN_PART, where=where, stage="b", firings=6, iterations=3, per=4):
        rates(3, 2, a=fills, b=(2, "each", "read", 4, 0))
    with raises(StreamProofErrors.FILLED_TWICE, where=where, slot=3, one="a", other="c"):
        rates(4, 2, a=fills, b=reads, c=(2, "last", "write", 1, 3))
    with raises(StreamProofErrors.SLOT_UNREAD, where=where, slot=0, stage="a"):
        rates(4, 2, a=fills, b=(3, "each", "read", 3, 1), c=(1, "last", "read", 1, 4))
    with raises(StreamProofErrors.SLOT_UNFILLED, where=where, stage="c", slot=4, iterations=4):
        rates(4, 2, a=fills, b=reads, c=(1, "last", "read", 1, 4))
    with raises(StreamProofErrors.RATES, where=where, rates=["stage 'a' fills 2 / 1", "stage 'b' reads 3 / 3"]):
        rates(4, 9, a=(2, "each", "write", 1, 0), b=reads)
    with raises(StreamProofErrors.READ_BEFORE_FILLED, where=where, stage="c", writer="a", turn="in each iteration"):
        rates(4, 2, a=fills, b=reads, c=(1, "first", "read", 1, 0))
    with raises(StreamProofErrors.READ_ITERATION_BEFORE, where=where, stage="b", writer="a"):
        rates(4, 4, a=fills, b=(3, "each", "read", 12, 1), c=reads)
    with raises(StreamProofErrors.PLACE_IN_USE, where=where, stage="a", user="c", turn="last"):
        rates(4, 2, a=fills, b=reads, c=(1, "last", "read", 1, 1))


def test_buffers_lie_on_chip_or_in_hbm_at_a_multiple_of_their_elements() -> None:
    def rates(**fields: Any) -> None:
        net = Net()
        net.stage("a", 1)
        net.ends["a"], net.depths["x"] = [("x", "write", 1, 0)], 1
        net.stage("b", 1)
        net.ends["b"] = [("x", "read", 1, 0)]
        view = net.view(2)
        (buffer,) = view.pipeline.buffers
        object.__setattr__(view.pipeline, "buffers", (dataclasses.replace(buffer, **fields),))
        check_rates(view)

    rates()
    rates(tier="hbm")
    rates(address=4)
    with raises(StreamProofErrors.BUFFER_PLACE, dtype="f32", tier="DDR", address=0, main="HBM"):
        rates(tier="ddr")
    with raises(StreamProofErrors.BUFFER_PLACE, tier="SRAM", address=6):
        rates(address=6)
    with raises(StreamProofErrors.BUFFER_FORM, depth=1, shape=[0]):
        rates(shape=(0,))
