"""Streams as counts: the possible order of firings, without data.

`Streams` is a pipeline with a number of iterations; `simulate` applies the firing rule documented at `Pipeline`, and
refuses a deadlock, a slot read before it is complete and a place overwritten before it is free.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import gcd, inf, lcm
from operator import itemgetter
from typing import Any, NoReturn

from sscc.ir.errors import SsccError
from sscc.runtime.validator.failure import Limits, ProofKind
from sscc.runtime.validator.pipelines import PipelineView


class FiringProofErrors(ProofKind):
    """Streams that deadlock, or whose slots are used too early."""

    OVERWRITES = (
        "firing {firing:.0f} (iteration {iteration:.0f}) overwrites slot {slot:.0f} of buffer {buffer!r} without "
        "waiting for its place to be free of slot {before:.0f}: stage {other!r} has fired {fired:.0f} of the "
        "{needed:.0f} times that read it"
    )
    READS_INCOMPLETE = (
        "firing {firing:.0f} (iteration {iteration:.0f}) reads slot {slot:.0f} of buffer {buffer!r} without waiting "
        "for it to be complete: stage {other!r} has fired {fired:.0f} of the {needed:.0f} times that complete it"
    )
    READS_UNFILLED = (
        "firing {firing:.0f} (iteration {iteration:.0f}) reads slot {slot:.0f} of buffer {buffer!r}, which no stage "
        "fills"
    )
    DEADLOCK = "the streams deadlock in iteration {iteration:.0f}: the stages {stages!r} wait; {waits}"
    TOO_MANY_ROUNDS = "its streams cannot be proved within {rounds} rounds"
    NO_REPETITION = "its streams do not repeat within {rounds} rounds"


@dataclass(frozen=True)
class End:
    """A stage's end of a buffer: firing f uses slot ``f // per + lag``."""

    stage: int
    buffer: str
    per: float
    lag: float
    writes: bool
    waited: bool

    def slots(self, firings: float) -> tuple[float, float]:
        """Return the first slot and the one after the last, for `firings` firings."""
        if firings == inf or self.per == inf:
            return self.lag, self.lag + (1 if self.per == inf else inf)
        return self.lag, self.lag - (-firings // self.per)

    def done(self, slot: float) -> float:
        """Return the number of firings after which the stage has finished with a slot."""
        return (slot - self.lag + 1) * self.per


class Streams:
    """The buffers of a pipeline that runs `iterations` times, which may be infinite.

    A shorter run represents the whole one: events at the end move with the end, so the lag of an epilogue shrinks with
    the omitted iterations, and a port that keeps one slot through all iterations still does.

    Attributes:
        contended: for each writing end, the slot from which on its places are always free.
        neighbours: for each stage, the stages that use a buffer which it uses, including itself.
    """

    def __init__(self, view: PipelineView, iterations: float, whole: int | None = None) -> None:
        self.view, self.iterations = view, iterations
        self.left_out = 0 if whole is None else whole - iterations
        self.whole = whole or 0
        self.stages = [facts.stage for facts in view.stages]
        self.firings = [s.trips * (iterations if s.when == "each" else 1) for s in self.stages]
        self.trips = [s.trips for s in self.stages]
        self.rates = self._rates()
        self.ends = [self._ends(number) for number in range(len(self.stages))]
        everything = [end for ends in self.ends for end in ends]
        self.writers = {b: [e for e in everything if e.buffer == b and e.writes] for b in view.buffers}
        self.readers = {b: [e for e in everything if e.buffer == b and not e.writes] for b in view.buffers}
        self.contended = {end: self._contended(end) for end in everything if end.writes}
        touching = {b: {e.stage for e in (*self.writers[b], *self.readers[b])} for b in view.buffers}
        self.neighbours = [set[int]().union(*(touching[end.buffer] for end in ends)) for ends in self.ends]

    def depth(self, buffer: str) -> int:
        return self.view.buffers[buffer].depth

    def _contended(self, end: End) -> float:
        """Return the slot from which on a writer's places are always free, because no earlier slots are read."""
        used = [reader.slots(self.firings[reader.stage]) for reader in self.readers[end.buffer]]
        return max((high for low, high in used if low != inf), default=0) + self.depth(end.buffer)

    def _rates(self) -> dict[str, tuple[int, int]]:
        """Return the slots per iteration, as a reduced fraction, of every buffer that is filled repeatedly."""
        rates = {}
        for facts in self.view.stages:
            for port in facts.ports:
                trips, per = facts.trips, port.port.per
                if not port.memory and port.writes and facts.stage.when == "each" and per != trips * self.whole:
                    rates[port.name] = (trips // gcd(trips, per), per // gcd(trips, per))
        return rates

    def _ends(self, number: int) -> list[End]:
        facts = self.view.stages[number]
        ends: list[End] = []
        for port in facts.ports:
            if port.memory:
                continue
            per: float = port.port.per
            if per == facts.trips * self.whole:
                per = facts.trips * self.iterations
            waited = port.name in facts.stage.waits
            lag = self._lag(facts.stage.when, port.name, port.port.lag)
            end = End(number, port.name, per, lag, port.writes, waited)
            if end not in ends:  # two ports on parts of one slot are one end
                ends.append(end)
        return ends

    def _lag(self, when: str, buffer: str, lag: int) -> float:
        """Return the lag in the shortened run. A slot that is read last and filled in iterations lies near their end,
        because its place is reused otherwise."""
        if when != "last" or buffer not in self.rates:
            return lag
        slots, period = self.rates[buffer]
        return inf if self.left_out == -inf else lag - self.left_out * slots // period


@dataclass(frozen=True)
class _Stall:
    """A slot for which a stage cannot fire.

    Attributes:
        other: stage that has yet to fill the slot, or to read the one in its place; "" if no stage fills it.
        fired, needed: firings of `other`, and the number after which it has done so.
        before: slot in the place; None if the slot is to be read.
    """

    buffer: str
    slot: float
    other: str = ""
    fired: float = 0
    needed: float = 0
    before: float | None = None

    def wait(self, stage: str) -> str:
        """Return the reason why `stage` waits, for the list in a deadlock."""
        wait = f"{stage!r} waits for slot {self.slot:.0f} of buffer {self.buffer!r}"
        if not self.other:
            return f"{wait}, which no stage fills"
        progress = f"{self.other!r} has fired {self.fired:.0f} of {self.needed:.0f} times"
        if self.before is None:
            return f"{wait} to be complete ({progress})"
        return f"{wait} to be free of slot {self.before:.0f} ({progress})"

    def violation(self, where: str, firing: float, iteration: float) -> SsccError:
        """Return the error of a firing that does not wait for the slot."""
        at: dict[str, Any] = {"where": where, "firing": firing, "iteration": iteration, "slot": self.slot}
        at["buffer"] = self.buffer
        if not self.other:
            return FiringProofErrors.READS_UNFILLED(**at)
        at |= {"other": self.other, "fired": self.fired, "needed": self.needed}
        if self.before is None:
            return FiringProofErrors.READS_INCOMPLETE(**at)
        return FiringProofErrors.OVERWRITES(**at, before=self.before)


class Simulation:
    """Counts of firings, advanced round by round."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.fired: list[float] = [0] * len(streams.stages)
        self._may_fire = set(range(len(streams.stages)))

    def finished(self) -> bool:
        return self.fired == self.streams.firings

    def round(self) -> Iterator[tuple[int, float]]:
        """Execute one turn of every stage, in order, and yield (stage, firings) for those that fire.

        In an infinite run, a stage that feeds itself would never end its turn: it stops where it first waits. Which
        firings are possible does not depend on their order. A stopped stage stays stopped until a neighbour fires.
        """
        for stage in range(len(self.fired)):
            while stage in self._may_fire:
                count = self._turn(stage)
                if count <= 0:
                    self._may_fire.remove(stage)
                    break
                self.fired[stage] += count
                self._may_fire |= self.streams.neighbours[stage]
                yield stage, count
                if self.streams.iterations == inf:
                    break

    def _turn(self, stage: int) -> float:
        total, fired = self.streams.firings[stage], self.fired[stage]
        if fired == total:
            return 0
        limits = [(end, *self._limit(end)) for end in self.streams.ends[stage]]
        allowed = min([total - fired, *(may for end, may, _ in limits if end.waited)])
        unsafe = [limit for limit in limits if limit[1] < allowed]
        if unsafe:
            _, safe, stall = min(unsafe, key=itemgetter(1))
            assert stall is not None  # a stage that is not stopped may fire all its remaining times
            where = f"{self.streams.view.where}, stage {self.streams.stages[stage].name!r}"
            raise stall.violation(where, fired + safe, (fired + safe) // self.streams.trips[stage])
        return allowed

    def _limit(self, end: End) -> tuple[float, _Stall | None]:
        """Return the number of further firings that one end allows now, and the reason why the next one is stopped."""
        fired = self.fired[end.stage]
        most = self.streams.firings[end.stage]
        count = fired
        contended = self.streams.contended.get(end, inf)
        while count < most:
            slot = count // end.per + end.lag if end.per != inf else end.lag
            if slot >= contended:
                return most - fired, None
            stall = self._free(end, slot) if end.writes else self._complete(end.buffer, slot)
            if stall is not None:
                return count - fired, stall
            count = min(end.done(slot), most)
        return count - fired, None

    def _complete(self, buffer: str, slot: float) -> _Stall | None:
        for writer in self.streams.writers[buffer]:
            low, high = writer.slots(self.streams.firings[writer.stage])
            if low <= slot < high:
                done = writer.done(slot)
                fired = self.fired[writer.stage]
                if fired >= done:
                    return None
                return _Stall(buffer, slot, self.streams.stages[writer.stage].name, fired, done)
        return _Stall(buffer, slot)

    def _free(self, end: End, slot: float) -> _Stall | None:
        """Return the stall of a writer whose place still holds an unread slot; None if the place is free. A slot is
        always read once it is complete (check_rates)."""
        before = slot - self.streams.depth(end.buffer)
        for reader in self.streams.readers[end.buffer]:
            low, high = reader.slots(self.streams.firings[reader.stage])
            fired = self.fired[reader.stage]
            if low <= before < high and fired < reader.done(before):
                name = self.streams.stages[reader.stage].name
                return _Stall(end.buffer, slot, name, fired, reader.done(before), before)
        return None

    def deadlock(self) -> NoReturn:
        """Raise InputError, naming every stage that waits."""
        waiting: dict[str, str] = {}
        first = inf
        for stage, ends in enumerate(self.streams.ends):
            left = self.streams.firings[stage] - self.fired[stage]
            blocks = [self._limit(end) for end in ends if end.waited] if left > 0 else []
            block = next((b for may, b in blocks if may == 0 and b is not None), None)
            if block is None:
                continue
            first = min(first, self.fired[stage] // self.streams.trips[stage])
            name = self.streams.stages[stage].name
            waiting[name] = block.wait(name)
        raise FiringProofErrors.DEADLOCK(
            where=self.streams.view.where, iteration=first if waiting else 0, stages=list(waiting),
            waits=list(waiting.values()),
        )  # fmt: skip


def simulate(streams: Streams, limits: Limits) -> list[tuple[int, int]]:
    """Simulate all firings. Returns (stage, consecutive firings), in order."""
    simulation = Simulation(streams)
    order: list[tuple[int, int]] = []
    for _ in range(limits.rounds):
        if simulation.finished():
            return order
        fired = [(stage, int(count)) for stage, count in simulation.round()]
        if not fired:
            simulation.deadlock()
        order += fired
    raise FiringProofErrors.TOO_MANY_ROUNDS(where=streams.view.where, rounds=limits.rounds)


def check_tokens(view: PipelineView, limits: Limits, proved: set[Hashable] | None = None) -> None:
    """Prove that streams neither deadlock nor overwrite, for the iterations of a pipeline, or for any number that it
    may have.

    Args:
        proved: structures of pipelines for which this is known, within the same limits; this one is added.
    """
    structure = _structure(view)
    if proved is not None and structure in proved:
        return
    _play(view, limits)
    if proved is not None:
        proved.add(structure)


def _structure(view: PipelineView) -> Hashable:
    """Return the numbers on which firings depend. A buffer's number stands for its name."""
    numbers = {name: number for number, name in enumerate(view.buffers)}
    stages = tuple(
        (
            facts.stage.when,
            facts.trips,
            tuple(
                (numbers[port.name], port.port.per, port.port.lag, port.writes, port.name in facts.stage.waits)
                for port in facts.ports
                if not port.memory
            ),
        )
        for facts in view.stages
    )
    return view.iterations, view.most_iterations, tuple(view.buffers[name].depth for name in numbers), stages


def _play(view: PipelineView, limits: Limits) -> None:
    trips = sum(facts.trips for facts in view.stages)
    most = view.most_iterations
    if view.iterations is not None:
        known = view.iterations
        whole = known == 1 or known * trips <= limits.firings
        simulate(Streams(view, known) if whole else _shortened(view, known, limits), limits)
        return
    start, period = _repetition(view, limits, None)
    for iterations in range(1, int(min(most, start + 2 * period)) + 1):
        simulate(Streams(view, iterations), limits)


def _shortened(view: PipelineView, iterations: int, limits: Limits) -> Streams:
    """Return a number of iterations that goes through every state of the whole run."""
    start, period = _repetition(view, limits, iterations)
    period = lcm(period, port_period(view, iterations))
    count = start + period + (iterations - start) % period
    return Streams(view, min(count, iterations), iterations)


def port_period(view: PipelineView, iterations: int) -> int:
    """Return the number of iterations after which every port is at the beginning of a slot again, except ports that
    never move."""
    return lcm(
        *(
            port.port.per // gcd(port.port.per, facts.trips)
            for facts in view.stages
            for port in facts.ports
            if not port.memory and port.port.per != facts.trips * iterations
        )
    )


def _repetition(view: PipelineView, limits: Limits, whole: int | None) -> tuple[int, int]:
    """Return (iterations begun, period in iterations) when the state of the streams repeats in an infinite run.

    Stages that no stream connects run at independent speeds, so each group of connected stages repeats by itself.
    """
    streams = Streams(view, inf, whole)
    simulation = Simulation(streams)
    groups = [_Group(streams, members, _warm_up(streams)) for members in _groups(streams)]
    for _ in range(limits.rounds):
        progress = {stage for stage, _ in simulation.round()}
        once = any(streams.stages[stage].when != "each" for stage in progress)
        waiting = [group for group in groups if not group.repeats(simulation.fired)]
        if not waiting:
            return max([group.begun for group in groups], default=1), lcm(*(group.period for group in groups))
        if not once and any(progress.isdisjoint(group.members) for group in waiting):
            simulation.deadlock()
    raise FiringProofErrors.NO_REPETITION(where=view.where, rounds=limits.rounds)


def _groups(streams: Streams) -> list[list[int]]:
    """Return the stages that fire in each iteration, in groups connected by buffers."""
    each = [number for number, stage in enumerate(streams.stages) if stage.when == "each"]
    groups = [[number] for number in each]
    for buffer in streams.view.buffers:
        ends = {end.stage for end in (*streams.writers[buffer], *streams.readers[buffer])}
        joined = [group for group in groups if ends & set(group)]
        groups = [group for group in groups if not ends & set(group)]
        if joined:
            groups.append(sorted(number for group in joined for number in group))
    return groups


class _Group:
    """Observes connected stages until their state, relative to the slowest one, repeats."""

    def __init__(self, streams: Streams, members: list[int], warm: int) -> None:
        self.members = members
        self._trips = {number: streams.trips[number] for number in members}
        self._warm = warm
        self._seen: dict[tuple[float, ...], int] = {}
        self.begun, self.period = 0, 0

    def repeats(self, fired: list[float]) -> bool:
        moving = {number: trips for number, trips in self._trips.items() if fired[number] != inf}
        if not self.period and not moving:
            self.begun = self.period = 1
        if self.period:
            return True
        iterations = [fired[number] // trips for number, trips in moving.items()]
        base = int(min(iterations))
        if base < self._warm:
            return False
        state = tuple(fired[number] - base * trips for number, trips in moving.items())
        before = self._seen.setdefault(state, base)
        if base > before:
            self.begun, self.period = int(max(iterations)) + 1, base - before
        return self.period > 0


def _warm_up(streams: Streams) -> int:
    """Return the number of iterations that the slowest stage has to complete.
    A stage that is stopped forever stops before every port is at the beginning of a slot again, because a circular wait
    would also occur that number of iterations earlier. Slots that are read last occupy one of the places, counted from
    the end.
    """
    slots = [-(-streams.depth(name) * period // slots) for name, (slots, period) in streams.rates.items()]
    return max([port_period(streams.view, streams.whole), *slots])
