"""Memory that stages share, against all pairs of firings and the order that streams give them, listed one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from sscc.ir.errors import InputError
from sscc.ir.schedule import Access, Body, Instr, Kernel, Param, Pipeline, Port, Stage, Vector, View
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.hazards import HazardProofErrors, check_hazards
from sscc.runtime.validator.linear import Scope
from sscc.runtime.validator.pipelines import PipelineView
from tests.errors import check, raises, refusal
from tests.runtime.broken.build import port, sram
from tests.runtime.schedules import read, update, write

ROOM = 4096


@dataclass(frozen=True)
class Reach:
    """The elements that a port accesses: `width` elements from ``offset + step * i + move * t0`` on."""

    access: Any
    width: int
    offset: int
    step: int
    move: int

    def elements(self, iteration: int, firing: int) -> range:
        begin = self.offset + self.step * iteration + self.move * firing
        return range(begin, begin + self.width)


@dataclass
class Part:
    """A stage: its firings per iteration, its ports on the memory, and its ends of links, (buffer, kind, per).

    `lag`: of its ends that write.
    """

    when: Any
    trips: int
    places: list[Reach]
    ends: list[tuple[str, str, int]] = field(default_factory=list)
    lag: int = 0

    def all(self, place: Reach, iteration: int) -> set[int]:
        return {element for t in range(self.trips) for element in place.elements(iteration, t)}

    def shows(self, place: Reach, iterations: int) -> tuple[int, ...]:
        """The same for two places that show the same elements in each firing."""
        if self.when == "each":
            return place.width, place.move, place.offset, place.step
        return place.width, place.move, place.offset + place.step * (iterations - 1) * (self.when == "last")

    def firings(self, iterations: int) -> list[tuple[int, int]]:
        """(iteration, firing of it) of each firing."""
        return list(product(self.turns(iterations), range(self.trips)))

    def turns(self, iterations: int) -> range:
        return {"first": range(1), "last": range(iterations - 1, iterations), "each": range(iterations)}[self.when]


def view_of(parts: list[Part], iterations: int, buffers: dict[str, int]) -> PipelineView:
    stages, facts = [], {}
    for number, part in enumerate(parts):
        params, ports = [], []
        for place in part.places:
            params.append(Param(f"p{len(params)}", (place.width,), "f32", place.access))
            moves = (("i", place.step), ("t0", place.move))
            ports.append(Port(View("m", (place.width,), (1,), place.offset, moves)))
        for buffer, kind, per in part.ends:
            params.append((read if kind == "read" else write)(f"p{len(params)}", (1,)))
            ports.append(port(buffer, (1,), per, part.lag if kind == "write" else 0, (("t0", 1),)))
        steps = tuple(_fill(param) for param in params if param.access != "read")
        name = f"s{number}"
        facts[name] = prove_body(Body(name, tuple(params), (), (), (), steps), Limits())
        waits = tuple(dict.fromkeys(buffer for buffer, *_ in part.ends))
        stages.append(Stage(name, name, (part.trips,), tuple(ports), (), waits, part.when))
    placed = sram(*((name, (64,), depth) for name, depth in buffers.items()))
    pipeline = Pipeline("p", "i", 0, iterations, (), placed, tuple(stages))
    return PipelineView(Kernel("k", (update("m", (ROOM,)),), (), (pipeline,)), pipeline, facts, Scope("test"))


def _fill(param: Param) -> Vector:
    return Vector(param.shape, (), Access(param.name, ((1, 0),)), (Instr("one", "const", (1.0,), "f32"),), "one")


# ------------------------------------------------------------------------------------------------ the rules, listed


def is_right(parts: list[Part], iterations: int) -> bool:
    before = _order(parts, iterations)
    return all(_right_alone(part, iterations) for part in parts) and all(
        _right_together(parts, a, b, iterations, before) for a, b in product(range(len(parts)), repeat=2)
    )


def _right_alone(part: Part, iterations: int) -> bool:
    """Firings of an iteration write different elements, and touch nothing that another one writes."""
    turns = part.turns(iterations)
    for one in part.places:
        if one.access == "read":
            continue
        if len(part.all(one, turns[0])) != one.width * part.trips:
            return False
        for other in part.places:
            if other is one:
                continue
            alike = part.shows(one, iterations) == part.shows(other, iterations)
            for firing in part.firings(iterations):
                common = set(one.elements(*firing)) & set(other.elements(*firing))
                if common and not (alike and other.access == "read"):
                    return False
            if part.trips > 1 and not alike and any(part.all(one, turn) & part.all(other, turn) for turn in turns):
                return False
    return True


def _right_together(parts: list[Part], a: int, b: int, iterations: int, before: set[Any]) -> bool:
    for one, other in product(parts[a].places, parts[b].places):
        if one.access == "read":
            continue
        if not _right_layers(parts[a], one, parts[b], other, iterations):
            return False
        if a == b:
            continue
        pairs = product(enumerate(parts[a].firings(iterations)), enumerate(parts[b].firings(iterations)))
        for (m, turn_a), (n, turn_b) in pairs:
            ordered = ((a, m), (b, n)) in before or ((b, n), (a, m)) in before
            if not ordered and set(one.elements(*turn_a)) & set(other.elements(*turn_b)):
                return False
    return True


def _right_layers(part: Part, one: Reach, around: Part, other: Reach, iterations: int) -> bool:
    """Return True if each element of a moving view belongs to one iteration, or if all or none of them belong to the
    other view, which does not move."""
    if iterations == 1 or not one.step or part.when != "each" or around.when != "each":
        return True
    if other.step:
        turns = product(range(iterations), repeat=2)
        return not any(a != b and part.all(one, a) & around.all(other, b) for a, b in turns)
    written = {element for n in range(iterations) for element in part.all(one, n)}
    fixed = around.all(other, 0)
    return not written & fixed or written <= fixed


def _order(parts: list[Part], iterations: int) -> set[Any]:
    """All pairs of firings of which one surely comes before the other."""
    total = [len(part.firings(iterations)) for part in parts]
    after: dict[tuple[int, int], set[tuple[int, int]]] = {
        (stage, n): {(stage, n + 1)} if n + 1 < total[stage] else set()
        for stage, count in enumerate(total)
        for n in range(count)
    }
    for (a, one), (b, other) in product(enumerate(parts), repeat=2):
        for (buffer, kind, per), (read_from, reads, per_read) in product(one.ends, other.ends):
            if buffer == read_from and (kind, reads) == ("write", "read"):
                for n in range(total[b]):
                    if 0 <= (last := (n // per_read - one.lag + 1) * per - 1) < total[a]:
                        after[a, last].add((b, n))
    pairs = set()
    for begin in after:
        reached, waiting = set(), [begin]
        while waiting:
            fresh = after[waiting.pop()] - reached
            reached |= fresh
            waiting += fresh
        pairs |= {(begin, end) for end in reached}
    return pairs


# ------------------------------------------------------------------------------------------------ random pipelines


def random_parts(seed: int, turns: tuple[int, ...] = (1, 2, 3, 5, 7, 9, 20)) -> tuple[list[Part], int, dict[str, int]]:
    choose = random.Random(seed)
    iterations = choose.choice(turns)
    parts = []
    for _ in range(choose.choice((1, 2, 2, 3, 3))):
        trips, width = choose.choice((1, 1, 2, 3)), choose.choice((1, 2, 4))
        step = choose.choice((0, width * trips, width * trips, -width * trips, 12, 6))
        places = []
        for access in choose.choice((("read",), ("update",), ("write",), ("update", "read"), ("write", "update"))):
            offset = 1500 + choose.choice((0, 0, 0, 1, width, 6, 12, step, 300))
            wide = choose.choice((width, width, width, 60))
            move = choose.choice((width, width, width, -width, 0)) if wide == width else choose.choice((0, wide))
            places.append(Reach(access, wide, offset, choose.choice((step, step, step, 0)), move))
        if choose.random() < 0.3:
            places = [places[0], *(Reach(place.access, *_numbers(places[0])) for place in places[1:])]
        parts.append(Part(choose.choice(("each", "each", "each", "first", "last")), trips, places))
    buffers = {}
    for (a, one), (b, other) in product(enumerate(parts), repeat=2):
        if a < b and choose.random() < 0.7 and (name := f"b{a}{b}") and _link(choose, name, one, other, iterations):
            buffers[name] = choose.choice((1, 2, 3))
    for part in parts:
        if not part.ends and not any(place.move for place in part.places):
            part.trips = 1  # firings that show nothing else are refused before
    return parts, iterations, buffers


def _numbers(place: Reach) -> tuple[int, int, int, int]:
    return place.width, place.offset, place.step, place.move


def _link(choose: random.Random, name: str, one: Part, other: Part, iterations: int) -> bool:
    """A stream from one stage to another: a slot per firing, per iteration, or for the whole run."""
    pairs = (one.when, other.when)
    whole = (
        one.trips * (iterations if one.when == "each" else 1),
        other.trips * (iterations if other.when == "each" else 1),
    )
    kinds = [whole]
    if pairs == ("each", "each"):
        kinds = [(one.trips, other.trips)] + [(1, 1)] * (one.trips == other.trips)
    if pairs in (("last", "each"), ("last", "first"), ("each", "first")):
        return False
    per = choose.choice(kinds)
    one.ends.append((name, "write", per[0]))
    other.ends.append((name, "read", per[1]))
    return True


def accepted(view: PipelineView, limits: Limits | None = None) -> bool:
    try:
        check_hazards(view, {}, limits or Limits())
    except InputError:
        return False
    return True


def test_memory_is_shared_in_order_or_refused() -> None:
    seen = []
    for seed in range(500):
        parts, iterations, buffers = random_parts(seed)
        right = is_right(parts, iterations)
        assert accepted(view_of(parts, iterations, buffers)) == right, seed
        seen.append(right)
    assert min(seen.count(True), seen.count(False)) > 100, (seen.count(True), seen.count(False))


def test_firings_of_two_stages_are_ordered_tile_by_tile() -> None:
    """A slot per firing orders each tile that is read after it is written, or written after it is read."""
    seen = []
    for seed in range(250):
        choose = random.Random(seed)
        trips, iterations = choose.choice((2, 3, 4)), choose.choice((1, 2, 3, 6))
        step = choose.choice((0, 2 * trips))
        shift = choose.choice((0, 0, 0, 2, -2, 2 * (trips - 1)))
        move = choose.choice((2, 2, -2)) if shift else 2
        kinds = choose.choice((("write", "read"), ("read", "write"), ("write", "write")))
        places = [Reach(kinds[0], 2, 100, step, 2), Reach(kinds[1], 2, 100 + shift, step, move)]
        parts = [
            Part("each", trips, [place], [("b", kind, 1)])
            for place, kind in zip(places, ("write", "read"), strict=True)
        ]
        parts.append(Part("each", trips, [Reach("read", 2, 900, 0, 2)], []))
        right = is_right(parts, iterations)
        assert accepted(view_of(parts, iterations, {"b": choose.choice((1, 2))})) == right, seed
        seen.append(right)
    assert min(seen.count(True), seen.count(False)) > 40, (seen.count(True), seen.count(False))


# ------------------------------------------------------------------------- more iterations than are compared one by one

FAR = 110
FIXED, MOVING = ("read", 2, 200, 0, 0), ("read", 2, 0, 2, 0)  # they meet in iteration 100


def _writing(place: tuple[Any, ...]) -> Reach:
    return Reach("write", *place[1:])


def _pair(
    turns: tuple[str, str], writes: tuple[Any, ...], reads: tuple[Any, ...], link: tuple[int, int] | None
) -> tuple[list[Part], dict[str, int]]:
    """Return a stage that writes and one that reads. With `link` the first feeds the second through a buffer."""
    parts = [Part(turns[0], 1, [_writing(writes)]), Part(turns[1], 1, [Reach(*reads)])]
    if link is not None:
        parts[0].ends.append(("b", "write", link[0]))
        parts[1].ends.append(("b", "read", link[1]))
    return parts, {} if link is None else {"b": 1}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("turns", "writes", "reads", "link", "right"),
    [
        (("first", "last"), FIXED, FIXED, (1, 1), True),
        (("first", "last"), FIXED, FIXED, None, False),
        (("first", "each"), FIXED, MOVING, (1, FAR), True),
        (("first", "each"), FIXED, MOVING, None, False),
        (("first", "each"), MOVING, FIXED, (1, FAR), True),
        (("each", "last"), MOVING, FIXED, (FAR, 1), True),
        (("each", "last"), FIXED, MOVING, (FAR, 1), True),
        (("each", "last"), FIXED, FIXED, None, False),
        (("each", "last"), MOVING, FIXED, None, False),
        (("each", "each"), MOVING, MOVING, (1, 1), True),
        (("each", "each"), MOVING, MOVING, None, False),
        # The reader of iteration 100 has the writer's 101st beside it, long after the iterations that are compared.
        (("each", "each"), FIXED, MOVING, (1, 1), False),
        (("each", "each"), FIXED, MOVING, None, False),
    ],
)
def test_what_meets_long_after_the_beginning_is_seen(
    turned: bool, turns: tuple[str, str], writes: Any, reads: Any, link: Any, right: bool
) -> None:
    parts, buffers = _pair(turns, writes, reads, link)
    parts = parts[::-1] if turned else parts
    assert is_right(parts, FAR) == right
    assert accepted(view_of(parts, FAR, buffers)) == right


@pytest.mark.parametrize(("one", "other"), [("write", "read"), ("read", "write"), ("write", "write")])
@pytest.mark.parametrize(
    ("places", "right"), [((FIXED, MOVING), False), ((MOVING, FIXED), False), ((MOVING, MOVING), True)]
)
def test_order_in_one_direction_is_not_enough(one: str, other: str, places: Any, right: bool) -> None:
    """Each iteration of the first stage precedes that of the second one, which meets it a hundred iterations later."""
    parts = [Part("each", 1, [Reach(access, *place[1:])]) for access, place in zip((one, other), places, strict=True)]
    parts[0].ends.append(("b", "write", 1))
    parts[1].ends.append(("b", "read", 1))
    assert is_right(parts, FAR) == right
    assert accepted(view_of(parts, FAR, {"b": 1})) == right


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("iterations", [2, 5, FAR])
def test_a_carry_orders_what_comes_again(carried: bool, iterations: int) -> None:
    """A stage writes the data that another one reads, and waits for it: no iteration is too early."""
    parts = [Part("each", 1, [_writing(FIXED)], [("b", "write", 1), ("c", "read", 1)])]
    parts.append(Part("each", 1, [Reach(*FIXED)], [("b", "read", 1)]))
    parts.append(Part("each", 1, [], [("d", "read", 1), ("c", "write", 1)], lag=1))
    source = parts[1] if carried else Part("each", 1, [])
    source.ends.append(("d", "write", 1))
    parts += [Part("first", 1, [], [("c", "write", 1)])] + [source] * (not carried)
    right = is_right(parts, iterations)
    assert right == carried
    assert accepted(view_of(parts, iterations, {"b": 2, "c": 2, "d": 2})) == right


def test_as_many_pairs_of_firings_are_compared_as_may_be() -> None:
    """Four firings that write tiles, and four that each read the tile of the corresponding firing."""
    parts = [Part("each", 4, [Reach("write", 2, 0, 0, 2)], [("b", "write", 1)])]
    parts.append(Part("each", 4, [Reach("read", 2, 0, 0, 2)], [("b", "read", 1)]))
    view = view_of(parts, 1, {"b": 1})
    assert accepted(view, Limits(pairs=16))
    assert not accepted(view, Limits(pairs=15))


@pytest.mark.parametrize(("width", "right"), [(2, True), (4, False), (1, False)])
def test_a_firing_reads_what_it_writes_only_by_the_same_view(width: int, right: bool) -> None:
    parts = [Part("each", 1, [Reach("write", 2, 100, 0, 0), Reach("read", width, 100, 0, 0)])]
    assert is_right(parts, 1) == right
    assert accepted(view_of(parts, 1, {})) == right


def test_firings_of_one_iteration_are_compared_in_every_iteration() -> None:
    """Views that move by 30 and by 31 elements per iteration meet only in iteration 10, in other firings."""
    for trips, behind, right in ((2, 1, False), (2, 2, True), (1, 1, True), (1, 0, False), (3, 2, False)):
        places = [Reach("write", 1, 1500, 30, 100_000), Reach("read", 1, 1490 - behind * 100_000, 31, 100_000)]
        parts = [Part("each", trips, places)]
        assert is_right(parts, 40) == right
        assert accepted(view_of(parts, 40, {})) == right, (trips, behind)
        assert accepted(view_of(parts, 10, {}))


def shared(parts: list[Part], iterations: int, buffers: dict[str, int] | None = None) -> None:
    check_hazards(view_of(parts, iterations, buffers or {}), {}, Limits())


def apart(stages: int, *places: Reach) -> list[Part]:
    """The places in one stage, or each in a stage of its own, which no stream orders."""
    return [Part("each", 1, list(places))] if stages == 1 else [Part("each", 1, [place]) for place in places]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("iterations", [64, 65, 10**9])
@pytest.mark.parametrize(
    "places",
    [
        (Reach("write", 1, 0, 2, 0), Reach("read", 1, 1, 4, 0)),
        (Reach("write", 1, 0, 4, 0), Reach("read", 2, 2, -8, 0)),
        (Reach("write", 2, 0, 0, 0), Reach("read", 2, 2, 0, 0)),
        (Reach("write", 2, 0, 0, 0), Reach("read", 2, 2, 4, 0)),
    ],
)
def test_places_that_never_meet_are_apart_over_any_number_of_iterations(
    places: tuple[Reach, Reach], iterations: int, stages: int
) -> None:
    parts = apart(stages, *places)
    assert is_right(parts, 64)
    assert accepted(view_of(parts, iterations, {}))


@pytest.mark.parametrize("stages", [1, 2])
def test_as_many_iterations_are_compared_as_may_be(stages: int) -> None:
    """Places that move by different steps and meet in iteration 1 of the one and 134 of the other."""
    parts = apart(stages, Reach("write", 1, 1000, 2, 0), Reach("read", 1, 600, 3, 0))
    assert is_right(parts, 134)
    assert accepted(view_of(parts, 134, {}))
    assert not is_right(parts, 135)
    error = refusal(shared, parts, 135)
    if stages == 1:
        moves = {"step": 2, "other_step": 3, "iterations": 135}
        check(error, HazardProofErrors.STEPS_NOT_APART, stage="s0", other="s0", tensor="m", **moves)
    else:
        check(error, HazardProofErrors.NOT_ORDERED, stage="s0", other="s1", tensor="m", iterations=64)


@pytest.mark.parametrize("access", ["read", "write", "update"])
def test_what_is_refused_says_what_it_does(access: Any) -> None:
    does = "reads" if access == "read" else "writes"
    both = HazardProofErrors.PORTS_OVERLAP if access == "read" else HazardProofErrors.PORTS_WRITE_TWICE

    def after(*other: int) -> list[Part]:
        parts = [Part("each", 1, [Reach("write", 2, 100, 2, 0)], [("b", "write", 1)])]
        return [*parts, Part("each", 1, [Reach(access, *other)], [("b", "read", 1)])]

    def alone(trips: int, *other: int) -> list[Part]:
        return [Part("each", trips, [Reach("write", 2, 100, 2 * trips, 2), Reach(access, *other)])]

    where = "kernel 'k', pipeline 'p'"
    two = {"where": where, "stage": "s0", "tensor": "m", "other": "s1", "does": does}
    with raises(HazardProofErrors.ITERATIONS_OVERLAP, iteration=0, other_iteration=1, **two):
        shared(after(2, 98, 2, 0), 3, {"b": 1})
    assert accepted(view_of(after(1, 100, 0, 0), 1, {"b": 1}))
    with raises(HazardProofErrors.FIXED_PART, **two):
        shared(after(1, 100, 0, 0), 2, {"b": 1})
    firings = " (firings 0 and 0 of the iterations)"
    with raises(
        HazardProofErrors.ITERATIONS_NOT_ORDERED, iteration=1, other_iteration=0, firings_hint=firings, **two
    ):
        shared(after(2, 102, 0, 0), 3, {"b": 1})
    ports = {"where": f"{where}, stage 's0'", "port": "p0", "tensor": "m", "other": "p1"}
    with raises(both, **ports):
        shared(alone(1, 1, 103, 0, 0), 3)
    with raises(HazardProofErrors.BETWEEN_FIRINGS, does=does, **ports):
        shared(alone(2, 2, 98, 4, 2), 1)
    with raises(HazardProofErrors.ITERATIONS_OVERLAP, iteration=0, other_iteration=1, **{**two, "other": "s0"}):
        shared(alone(1, 2, 98, 2, 0), 3)


@pytest.mark.parametrize(("step", "offset", "right"), [(30, 1490, True), (31, 1490, False), (31, 1480, False)])
def test_what_moves_by_different_steps_may_meet_much_later(step: int, offset: int, right: bool) -> None:
    """In iteration 10 or 20 of both, long after the first ones, and nowhere else."""
    parts = [Part("each", 1, [Reach("write", 1, 1500, 30, 0)]), Part("each", 1, [Reach("read", 1, offset, step, 0)])]
    assert is_right(parts, 40) == right
    assert accepted(view_of(parts, 40, {})) == right
