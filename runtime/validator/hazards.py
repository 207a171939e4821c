"""Memory that stages of one pipeline share: a write must be ordered with every other access to the same elements.

Streams order firings: a firing that reads a slot follows all firings that fill it, and the iterations of a stage are
ordered. A wait for a free place does not count as an order, because it depends on depths, which an interpreter with
more memory may exceed. The firings of a stage within one iteration are not ordered either: they may run in parallel.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import mul
from typing import NoReturn

from sscc.ir.schedule import Stage
from sscc.runtime.validator.failure import Limits, ProofKind
from sscc.runtime.validator.firing_counts import End, Streams, port_period, simulate
from sscc.runtime.validator.linear import Linear, Scope
from sscc.runtime.validator.pipelines import (
    PipelineView,
    PortFacts,
    StageFacts,
    grid_scope,
    grid_terms,
    linear_offset,
    may_meet,
)
from sscc.runtime.validator.regions import FAR, Region, covered, injective


class HazardProofErrors(ProofKind):
    """Memory that firings access in an undefined order."""

    FIRINGS_WRITE_TWICE = "the {firings} firings of an iteration write elements of {tensor!r} more than once"
    BETWEEN_FIRINGS = (
        "port {port!r} writes elements of {tensor!r} in one firing of an iteration that port {other!r} {does} in "
        "another"
    )
    PORTS_WRITE_TWICE = "port {port!r} writes elements of {tensor!r} that port {other!r} writes too"
    PORTS_OVERLAP = "port {port!r} writes elements of {tensor!r} that port {other!r} shows by another view"
    ITERATIONS_OVERLAP = (
        "stage {stage!r} writes in iteration {iteration} elements of {tensor!r} that stage {other!r} {does} in "
        "iteration {other_iteration}"
    )
    STEPS_NOT_APART = (
        "stages {stage!r} and {other!r} move through {tensor!r} by {step} and {other_step} elements per iteration, "
        "which could not be proved disjoint over {iterations:.0f} iterations"
    )
    FIXED_PART = (
        "stage {stage!r} writes another part of {tensor!r} in each iteration, but stage {other!r} {does} the part of "
        "one iteration in all of them"
    )
    NOT_ORDERED = (
        "stages {stage!r} and {other!r} share elements of {tensor!r}, but no stream orders them over {iterations} "
        "iterations"
    )
    ITERATIONS_NOT_ORDERED = (
        "stage {stage!r} writes in iteration {iteration} elements of {tensor!r} that stage {other!r} {does} in "
        "iteration {other_iteration}{firings_hint}, but no stream orders the two"
    )


_WINDOWS = (4, 8, 16, 32, 64)  # iterations compared one by one


@dataclass(frozen=True)
class _Tile:
    """The elements that a port accesses in one iteration: offset, its own dimensions, and those of the grid."""

    offset: Linear
    pairs: tuple[tuple[int, int], ...]
    grid: tuple[tuple[int, int], ...]

    def all(self) -> Region:
        return Region.of(0, [*self.pairs, *self.grid])

    def one(self) -> Region:
        return Region.of(0, self.pairs)


@dataclass(frozen=True)
class _Side:
    number: int
    facts: StageFacts
    port: PortFacts

    @property
    def stage(self) -> Stage:
        return self.facts.stage


def check_hazards(view: PipelineView, aliases: Mapping[str, str], limits: Limits) -> None:
    """Refuse memory that is accessed in an undefined order.

    Args:
        aliases: parameters of the kernel that a launch gives the same view, by the name of one of them.
    """
    sides = [
        _Side(number, facts, port) for number, facts in enumerate(view.stages) for port in facts.ports if port.memory
    ]
    proof = _HazardProof(view, limits)
    for side in sides:
        if side.port.writes:
            proof.written_once(side)
    names = {side.port.name: aliases.get(side.port.name, side.port.name) for side in sides}
    shared = [(a, b) for a, b in product(sides, sides) if a.port.writes and names[a.port.name] == names[b.port.name]]
    for one, other in shared:
        if one.number != other.number:
            proof.ordered(one, other)
        elif one.port is not other.port:
            proof.one_firing(one, other)
            proof.between_firings(one, other)
    for one, other in shared if view.most_iterations > 1 else ():
        proof.layers(one, other)


class _HazardProof:
    def __init__(self, view: PipelineView, limits: Limits) -> None:
        self._view, self._limits = view, limits
        self._clocks: dict[tuple[int, int, int], _Clocks] = {}

    # -- places

    def _tile(self, side: _Side, index: Linear) -> _Tile:
        return self._placed(side, grid_scope(self._view.at(index), side.stage))

    def _placed(self, side: _Side, scope: Scope) -> _Tile:
        view = side.port.port.view
        value = linear_offset(view.offset, view.terms, scope, side.port.where)
        rest, factors = grid_terms(value, side.stage)
        return _Tile(rest, tuple(side.port.pairs), tuple(zip(factors, side.stage.grid, strict=True)))

    def _index(self, side: _Side, iteration: int) -> Linear:
        """Return the index in iteration number `iteration`; a "last" stage fires after all iterations."""
        if side.stage.when == "last":
            return self._view.upper.plus(Linear(-1))
        return self._view.lower.plus(Linear(iteration))

    def _meet(self, one: Region, other: Region, shift: Linear) -> bool:
        return may_meet(one, other, shift, self._view.scope)

    # -- one stage

    def written_once(self, side: _Side) -> None:
        """Check that the firings of one iteration write different elements."""
        tile = self._placed(side, self._view.everywhere(side.stage))
        if not injective([*tile.pairs, *tile.grid]):
            raise HazardProofErrors.FIRINGS_WRITE_TWICE(
                where=side.port.where, firings=side.facts.trips, tensor=side.port.name
            )

    def between_firings(self, one: _Side, other: _Side) -> None:
        """Check that within an iteration no firing accesses elements that another firing of the stage writes."""
        if one.facts.trips == 1:
            return
        scope = self._view.everywhere(one.stage)
        mine, theirs = self._placed(one, scope), self._placed(other, scope)
        if mine == theirs:  # firings write different elements, so each reads only elements that it writes
            return
        if may_meet(mine.all(), theirs.all(), theirs.offset.plus(mine.offset, -1), scope):
            raise HazardProofErrors.BETWEEN_FIRINGS(
                where=one.facts.where, port=one.port.param.name, tensor=one.port.name, other=other.port.param.name,
                does=_does(other),
            )  # fmt: skip

    def one_firing(self, one: _Side, other: _Side) -> None:
        """Check that within a firing a written port shares elements only with a port that reads, by the same view."""
        scope = self._view.everywhere(one.stage)
        views = [side.port.port.view for side in (one, other)]
        offsets = [linear_offset(view.offset, view.terms, scope, one.facts.where) for view in views]
        shift = offsets[1].plus(offsets[0], -1)
        same = shift == Linear(0) and one.port.pairs == other.port.pairs
        both = other.port.writes
        if same and not both:
            return
        if may_meet(Region.of(0, one.port.pairs), Region.of(0, other.port.pairs), shift, scope):
            kind = HazardProofErrors.PORTS_WRITE_TWICE if both else HazardProofErrors.PORTS_OVERLAP
            raise kind(
                where=one.facts.where, port=one.port.param.name, tensor=one.port.name, other=other.port.param.name
            )

    # -- layers: iterations with separate parts of a tensor

    def layers(self, one: _Side, other: _Side) -> None:
        """Check that a part that moves with the index and is written in one iteration is not accessed in another one.
        """
        steps = self._step(one), self._step(other)
        if one.stage.when != "each" or other.stage.when != "each" or not steps[0] or steps[1] is None:
            return
        if steps[1] == 0:
            self._fixed(one, other, steps[0])
            return
        if self._never_meet(one, other) or (steps[0] == steps[1] and self._apart(one, other, steps[0])):
            return
        count = int(min(self._view.most_iterations, _WINDOWS[-1]))
        for a, b in product(range(count), range(count)):
            mine, theirs = self._tile(one, self._index(one, a)), self._tile(other, self._index(other, b))
            if a != b and self._meet(mine.all(), theirs.all(), theirs.offset.plus(mine.offset, -1)):
                raise HazardProofErrors.ITERATIONS_OVERLAP(
                    where=self._view.where, stage=one.stage.name, iteration=a, tensor=one.port.name,
                    other=other.stage.name, does=_does(other), other_iteration=b,
                )  # fmt: skip
        if self._view.most_iterations > count:
            raise HazardProofErrors.STEPS_NOT_APART(
                where=self._view.where, stage=one.stage.name, other=other.stage.name, tensor=one.port.name,
                step=steps[0], other_step=steps[1], iterations=self._view.most_iterations,
            )  # fmt: skip

    def _fixed(self, one: _Side, other: _Side, step: int) -> None:
        """Check that a part that does not move contains all elements that the iterations write (as for a prompt's K and
        V), or none."""
        further = int(min(self._view.most_iterations, FAR))
        a, b = self._tile(one, self._view.lower), self._tile(other, self._view.lower)
        shift = b.offset.plus(a.offset, -1)
        written = Region.of(0, [*a.pairs, *a.grid, (step, further)])
        if not self._meet(written, b.all(), shift):
            return
        there = Region.of(shift.const, [*b.pairs, *b.grid])
        if shift.terms or covered([there], written, self._limits.painted) is not True:
            raise HazardProofErrors.FIXED_PART(
                where=self._view.where, stage=one.stage.name, tensor=one.port.name, other=other.stage.name,
                does=_does(other),
            )  # fmt: skip

    def _step(self, side: _Side) -> int | None:
        """Return the number of elements by which a port moves per iteration; None if its place is not linear in the
        index."""
        scope = self._view.everywhere(side.stage)
        view = side.port.port.view
        factors = dict(linear_offset(view.offset, view.terms, scope, side.port.where).terms)
        step = factors.pop(self._view.pipeline.index, 0)
        around = {*self._view.scope.bounds, *(f"t{axis}" for axis in range(len(side.stage.grid)))}
        return step if set(factors) <= around else None

    def _apart(self, one: _Side, other: _Side, step: int) -> bool:
        """Return True if parts that move by the same step are disjoint in every two different iterations."""
        further = int(min(self._view.most_iterations, FAR)) - 1
        a, b = self._tile(one, self._view.lower), self._tile(other, self._view.lower)
        shift = b.offset.plus(a.offset, -1)
        return not any(
            self._meet(a.all(), Region.of(0, [*b.pairs, *b.grid, (move, further)]), shift.plus(Linear(move)))
            for move in (step, -step)
        )

    def _never_meet(self, one: _Side, other: _Side) -> bool:
        """Return True if all elements that one side accesses in any number of iterations are disjoint from all of the
        other's."""
        mine, theirs = self._everywhere(one), self._everywhere(other)
        if mine is None or theirs is None:
            return False
        (begin_a, all_a), (begin_b, all_b) = mine, theirs
        return not self._meet(all_a, all_b, begin_b.plus(begin_a, -1))

    def _everywhere(self, side: _Side) -> tuple[Linear, Region] | None:
        """Return all elements that a side accesses in a run, relative to its place in the first iteration; None if that
        is not linear."""
        step = self._step(side)
        if step is None:
            return None
        tile = self._tile(side, self._index(side, 0))
        turns = int(min(self._view.most_iterations, FAR)) if side.stage.when == "each" else 1
        return tile.offset, Region.of(0, [*tile.pairs, *tile.grid, (step, turns)])

    # -- two stages

    def ordered(self, one: _Side, other: _Side) -> None:
        """Check that every two firings of two stages that access a common element, one of them writing, are ordered by
        streams."""
        if self._never_meet(one, other):
            return
        most = self._view.most_iterations
        for window in _WINDOWS:
            count = self._count(window)
            self._check_window(one, other, count)
            if count >= most or self._settled(one, other, count):
                return
        raise HazardProofErrors.NOT_ORDERED(
            where=self._view.where, stage=one.stage.name, other=other.stage.name, tensor=one.port.name,
            iterations=_WINDOWS[-1],
        )  # fmt: skip

    def _count(self, window: int) -> int:
        """Return a number of iterations near `window` that ends as the whole run does."""
        known = self._view.iterations
        if known is None:
            return int(min(window, self._view.most_iterations))
        if known <= window:
            return known
        period = port_period(self._view, known)
        return min(known, window + (known - window) % period)

    def _iterations(self, side: _Side, window: int) -> list[int]:
        return {"first": [0], "last": [window - 1], "each": list(range(window))}[side.stage.when]

    def _check_window(self, one: _Side, other: _Side, window: int) -> None:
        tied = "last" in (one.stage.when, other.stage.when)
        for a, b in product(self._iterations(one, window), self._iterations(other, window)):
            mine, theirs = (
                self._tile(side, self._from_end(side, n, window) if tied else self._index(side, n))
                for side, n in ((one, a), (other, b))
            )
            if not self._meet(mine.all(), theirs.all(), theirs.offset.plus(mine.offset, -1)):
                continue
            if not self._in_order(one, a, other, b, window):
                self._check_firings(one, a, mine, other, b, theirs, window)

    def _from_end(self, side: _Side, iteration: int, window: int) -> Linear:
        """Return the index of an iteration of a window at the end of the run."""
        if side.stage.when == "first":
            return self._view.lower
        return self._view.upper.plus(Linear(iteration - window))

    def _in_order(self, one: _Side, a: int, other: _Side, b: int, window: int) -> bool:
        """Return True if all firings of one iteration precede all of another, in either direction."""
        clocks = self._clock(one.number, other.number, window)
        first_a, last_a = self._firings(one, a)
        first_b, last_b = self._firings(other, b)
        return clocks.before(other.number, first_b, one.number) > last_a or (
            clocks.before(one.number, first_a, other.number) > last_b
        )

    def _firings(self, side: _Side, iteration: int) -> tuple[int, int]:
        begin = iteration * side.facts.trips if side.stage.when == "each" else 0
        return begin, begin + side.facts.trips - 1

    def _check_firings(self, one: _Side, a: int, mine: _Tile, other: _Side, b: int, theirs: _Tile, window: int) -> None:
        if one.facts.trips * other.facts.trips > self._limits.pairs:
            self._refuse_order(one, other, a, b, "")
        clocks = self._clock(one.number, other.number, window)
        begin_a, begin_b = self._firings(one, a)[0], self._firings(other, b)[0]
        known: dict[int, bool] = {}
        between = theirs.offset.plus(mine.offset, -1)
        region_a, region_b = mine.one(), theirs.one()
        for (m, place_a), (n, place_b) in product(enumerate(_places(mine)), enumerate(_places(theirs))):
            move = place_b - place_a
            if move not in known:
                known[move] = self._meet(region_a, region_b, between.plus(Linear(move)))
            if not known[move] or clocks.before(other.number, begin_b + n, one.number) > begin_a + m:
                continue
            if clocks.before(one.number, begin_a + m, other.number) <= begin_b + n:
                self._refuse_order(one, other, a, b, f" (firings {m} and {n} of the iterations)")

    def _refuse_order(self, one: _Side, other: _Side, a: int, b: int, firings_hint: str) -> NoReturn:
        raise HazardProofErrors.ITERATIONS_NOT_ORDERED(
            where=self._view.where, stage=one.stage.name, iteration=a, tensor=one.port.name, other=other.stage.name,
            does=_does(other), other_iteration=b, firings_hint=firings_hint,
        )  # fmt: skip

    def _settled(self, one: _Side, other: _Side, window: int) -> bool:
        """Return True if iterations further apart than a window are ordered as a whole, or have no common elements."""
        if "each" not in (one.stage.when, other.stage.when):
            return True
        if one.stage.when == other.stage.when:
            far = self._follows(one, other, window) and self._follows(other, one, window)
            return far or self._far_apart(one, other)
        once, each = (one, other) if one.stage.when != "each" else (other, one)
        return self._follows(once, each, window) if once.stage.when == "first" else self._follows(each, once, window)

    def _follows(self, before: _Side, after: _Side, window: int) -> bool:
        """Return True if the first firings of a stage precede those of another one after all iterations of a window."""
        clocks = self._clock(before.number, after.number, window)
        return clocks.before(after.number, self._firings(after, window)[0], before.number) > before.facts.trips - 1

    def _far_apart(self, one: _Side, other: _Side) -> bool:
        step = self._step(one)
        return step is not None and step != 0 and step == self._step(other) and self._apart(one, other, step)

    def _clock(self, one: int, other: int, window: int) -> _Clocks:
        key = (min(one, other), max(one, other), window)
        if key not in self._clocks:
            streams = Streams(self._view, window, self._view.iterations)
            self._clocks[key] = _Clocks(streams, key[:2], self._limits)
        return self._clocks[key]


def _does(side: _Side) -> str:
    return "writes" if side.port.writes else "reads"


def _places(tile: _Tile) -> list[int]:
    """Return the offset of each firing of an iteration, in order, from that of the first."""
    factors = [factor for factor, _ in tile.grid]
    return [sum(map(mul, at, factors)) for at in product(*(range(size) for _, size in tile.grid))]


class _Clocks:
    """For each firing, the number of firings of two stages that always precede it."""

    def __init__(self, streams: Streams, watched: Sequence[int], limits: Limits) -> None:
        self._streams, self._watched = streams, tuple(watched)
        count = len(streams.stages)
        self._begins: list[list[int]] = [[] for _ in range(count)]
        self._values: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        fired = [0] * count
        for stage, firings in simulate(streams, limits):
            self._advance(stage, fired[stage], fired[stage] + firings)
            fired[stage] += firings

    def before(self, stage: int, firing: int, other: int) -> int:
        """Return the number of firings of `other` that precede this one."""
        return self._at(stage, firing)[self._watched.index(other)]

    def _at(self, stage: int, firing: int) -> list[int]:
        place = bisect_right(self._begins[stage], firing) - 1
        value = list(self._values[stage][place]) if place >= 0 else [0] * len(self._watched)
        if stage in self._watched:
            value[self._watched.index(stage)] = firing
        return value

    def _advance(self, stage: int, begin: int, end: int) -> None:
        """Compute the clocks of firings `begin` .. `end` - 1; they change only where a slot does."""
        firing = begin
        while firing < end:
            value = self._at(stage, firing)
            following = end
            for own in self._streams.ends[stage]:
                slot = firing // own.per + own.lag
                following = min(following, int(own.done(slot)))
                for other, last in self._predecessors(own, slot):
                    self._join(value, other, last)
            self._begins[stage].append(firing)
            self._values[stage].append(tuple(value))
            firing = following

    def _predecessors(self, end: End, slot: float) -> list[tuple[int, int]]:
        """Return (stage, its last firing) of the stages that fill a slot which is read."""
        streams = self._streams
        firings = []
        for other in () if end.writes else streams.writers[end.buffer]:
            low, high = other.slots(streams.firings[other.stage])
            if low <= slot < high:
                firings.append((other.stage, int(other.done(slot)) - 1))
        return firings

    def _join(self, value: list[int], other: int, last: int) -> None:
        for position, count in enumerate(self._at(other, last)):
            value[position] = max(value[position], count)
        if other in self._watched:
            position = self._watched.index(other)
            value[position] = max(value[position], last + 1)
