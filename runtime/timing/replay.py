"""Event-driven replay of one pipeline.

Every stage is a server: its firings run in sequence, each begins as soon as the stage is free and its waits are met
(`sscc.ir.schedule.Stage.waits`). Concurrent transfers in a tier share its bandwidth equally. A firing lasts until its
arithmetic, which follows the fixed cost of a firing, and its transfers, which run in parallel, are done. In a pipeline
without buffers nothing can overlap: a firing reads, computes and writes in sequence.

Iterations of equal work reach a steady state, in which the state of the replay repeats except for a shift in time. Once
it has repeated, whole periods are skipped; times are integers, so the result is that of the full replay.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sscc.ir.errors import ErrorKind, InputError, SsccError
from sscc.ir.schedule import Buffer, When
from sscc.runtime.timing.cost import Cost, FiringPhase


class ReplayKind(ErrorKind):
    """Base of the kinds of deadlocks of a replay."""

    def __init__(self, message: str) -> None:
        super().__init__(InputError, "the schedule deadlocks: {where}: " + message)


class ReplayErrors(ReplayKind):
    """Stages that can never continue."""

    WAITS_FOR_SLOT = "stage {stage!r} waits for slot {slot} of {buffer!r}"
    WAITS_FOR_PLACE = "stage {stage!r} waits for a free place in {buffer!r}"
    WAITS_FOR_ITERATION = "stage {stage!r} waits for the end of an iteration"


@dataclass(frozen=True)
class Link:
    """A port on a buffer: firing f uses slot f // per + lag of buffer number `buffer`."""

    buffer: int
    per: int
    lag: int


@dataclass(frozen=True)
class StagePlan:
    """A stage in the form of the replay.

    Attributes:
        trips: firings per iteration.
        reads, writes: ports on buffers that it waits for.
        cost: cost of a firing, by its number; `uniform` if it is the same for every firing.
        loads: True if it reads the kernel's parameters.
    """

    name: str
    when: When
    trips: int
    reads: tuple[Link, ...]
    writes: tuple[Link, ...]
    cost: Callable[[int], Cost]
    uniform: bool
    loads: bool

    def firings(self, iterations: int) -> int:
        """Return the total number of firings."""
        return self.trips * (iterations if self.when == "each" else min(iterations, 1))


@dataclass
class Span:
    """Consecutive firings of one iteration, or transfers of a tier, without a gap; times in femtoseconds."""

    name: str
    iteration: int
    begin: int
    end: int
    count: int = 1
    nbytes: int = 0


@dataclass
class Recording:
    """Contents of a trace. `occupancy` has (time, change in bytes of SRAM in use), unordered."""

    stages: list[list[Span]]
    tiers: dict[str, list[Span]]
    iterations: list[Span]
    occupancy: list[tuple[int, int]]


@dataclass
class Outcome:
    """Result of a replay: femtoseconds; per stage, its busy time, and firings per cost.

    A firing's busy time is its time without sharing of tiers.
    """

    duration: int
    busy: list[int]
    fired: list[Counter[Cost]]
    recording: Recording | None


def replay(
    where: str,
    stages: Sequence[StagePlan],
    buffers: Sequence[Buffer],
    iterations: int,
    *,
    prefetch: bool = True,
    record: bool = False,
    extrapolate: bool = True,
) -> Outcome:
    """Replay a pipeline of `iterations` iterations.

    Args:
        where: name of the pipeline in messages.
        prefetch: False makes every stage that reads the kernel's parameters wait for the end of the previous iteration.
        record: keep every firing; disables extrapolation.
        extrapolate: skip whole periods of a steady state.

    Raises:
        InputError: the schedule deadlocks.
    """
    return _Replay(where, stages, buffers, iterations, prefetch, record, extrapolate and not record).run()


@dataclass
class _Slots:
    """The slots of a buffer that are in use; `left` counts the readers that a complete slot still waits for."""

    depth: int
    left: dict[int, int] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)


@dataclass
class _Server:
    """State of a stage.

    Attributes:
        next: number of the firing that runs or comes next.
        running: True if a firing runs.
        since: time when it began, or when the stage became idle.
        phases: phases of the firing after the current one.
        pending: unfinished parts of the current phase.
    """

    next: int = 0
    running: bool = False
    since: int = 0
    cost: Cost | None = None
    phases: tuple[FiringPhase, ...] = ()
    pending: int = 0


class _Tier:
    """A tier with equal sharing: `served` is the service that each transfer has received since the tier was last idle,
    in femtoseconds of exclusive use."""

    def __init__(self, recording: list[Span] | None) -> None:
        self.served = 0
        self.updated = 0
        self.active: list[tuple[int, int]] = []  # (`served` at which it ends, stage)
        self._recording = recording

    def begin(self, now: int, duration: int, nbytes: int, stage: int) -> None:
        self._update(now)
        if self._recording is not None:
            if not self.active:
                _append(self._recording, Span("transfers", 0, now, now, 0))
            self._recording[-1].count += 1
            self._recording[-1].nbytes += nbytes
        heapq.heappush(self.active, (self.served + duration, stage))

    def next_end(self) -> int:
        return self.updated + (self.active[0][0] - self.served) * len(self.active)

    def ended(self, now: int) -> Iterable[int]:
        """Return the stages whose transfers end now."""
        self._update(now)
        while self.active and self.active[0][0] <= self.served:
            yield heapq.heappop(self.active)[1]
        if not self.active:
            self.served = 0
            if self._recording is not None:
                self._recording[-1].end = now

    def _update(self, now: int) -> None:
        if self.active:
            self.served += (now - self.updated) // len(self.active)
        self.updated = now


class _Replay:
    def __init__(
        self,
        where: str,
        stages: Sequence[StagePlan],
        buffers: Sequence[Buffer],
        iterations: int,
        prefetch: bool,
        record: bool,
        extrapolate: bool,
    ) -> None:
        self._where, self._stages, self._buffers = where, stages, buffers
        self._iterations, self._prefetch = iterations, prefetch
        self._totals = [stage.firings(iterations) for stage in stages]
        self._servers = [_Server() for _ in stages]
        self._busy = [0] * len(stages)
        self._fired: list[Counter[Cost]] = [Counter() for _ in stages]
        self._recording = Recording([[] for _ in stages], {}, [], []) if record else None
        self._tiers: dict[str, _Tier] = {}
        self._slots = [_Slots(buffer.depth) for buffer in buffers]
        self._readers = _ports(len(buffers), [stage.reads for stage in stages])
        self._writers = _ports(len(buffers), [stage.writes for stage in stages])
        self._each = [i for i, stage in enumerate(stages) if stage.when == "each" and self._totals[i]]
        self._completed = 0 if self._each else iterations
        self._skipping = extrapolate and all(stages[index].uniform for index in self._each)
        self._seen: dict[Any, tuple[int, int, list[int], list[Counter[Cost]]]] = {}
        self._computing: list[tuple[int, int]] = []  # (end, stage)
        self._waiting: dict[int, None] = dict.fromkeys(range(len(stages)))  # stages to check, in this order
        self._now = self._end = 0

    def run(self) -> Outcome:
        self._begin_all()
        while self._computing or any(tier.active for tier in self._tiers.values()):
            ends = [tier.next_end() for tier in self._tiers.values() if tier.active]
            self._now = min([*ends, self._computing[0][0]] if self._computing else ends)
            completed = self._completed
            self._end_all()
            self._begin_all()
            if self._skipping and self._completed > completed:
                self._skip()
        for index, server in enumerate(self._servers):
            if server.next < self._totals[index]:
                raise self._deadlock(index)
        return Outcome(self._end, self._busy, self._fired, self._recording)

    # -- firings

    def _begin_all(self) -> None:
        """Begin every firing that can begin now. Firings that take no time may enable others."""
        while self._waiting:
            index = next(iter(self._waiting))
            del self._waiting[index]
            server = self._servers[index]
            if not server.running and server.next < self._totals[index] and self._may_fire(index):
                self._begin(index)

    def _may_fire(self, index: int) -> bool:
        """Return True if a stage has its inputs and space for its outputs, and need not wait for the previous
        iteration."""
        stage, firing = self._stages[index], self._servers[index].next
        for link in stage.reads:
            if firing // link.per + link.lag not in self._slots[link.buffer].left:
                return False
        for link in stage.writes:
            if firing % link.per == 0 and not self._has_place(link.buffer, firing // link.per + link.lag):
                return False
        ahead = stage.when == "each" and firing // stage.trips > self._completed
        return self._prefetch or not (ahead and stage.loads)

    def _has_place(self, buffer: int, slot: int) -> bool:
        """Return True if the place of a slot is free, that is, no earlier slot occupies it."""
        before = slot - self._slots[buffer].depth
        written = before >= 0 and any(self._uses(*writer, before) for writer in self._writers[buffer])
        return not written or before in self._slots[buffer].free

    def _uses(self, index: int, link: Link, slot: int) -> range:
        """Return the firings of a stage that use a slot through a port."""
        first = (slot - link.lag) * link.per
        return range(max(first, 0), min(first + link.per, self._totals[index]))

    def _begin(self, index: int) -> None:
        stage, server = self._stages[index], self._servers[index]
        for link in stage.writes:
            if server.next % link.per == 0:
                slots = self._slots[link.buffer]
                slots.free.discard(server.next // link.per + link.lag - slots.depth)
                self._occupy(link.buffer, 1)
        server.cost = stage.cost(server.next)
        server.running, server.since = True, self._now
        server.phases = server.cost.overlapped if self._buffers else server.cost.in_turn
        self._go_on(index)

    def _go_on(self, index: int) -> None:
        """Begin the next phase of a firing, or end it after the last one."""
        server = self._servers[index]
        while server.phases and not server.pending:
            phase, server.phases = server.phases[0], server.phases[1:]
            if phase.compute:
                heapq.heappush(self._computing, (self._now + phase.compute, index))
                server.pending += 1
            for transfer in phase.transfers:
                if transfer.duration:
                    tier = self._tier(transfer.tier)
                    tier.begin(self._now, transfer.duration, transfer.nbytes, index)
                    server.pending += 1
        if not server.pending:
            self._finish(index)

    def _tier(self, name: str) -> _Tier:
        if name not in self._tiers:
            spans = None if self._recording is None else self._recording.tiers.setdefault(name, [])
            self._tiers[name] = _Tier(spans)
        return self._tiers[name]

    def _end_all(self) -> None:
        """End everything that ends now."""
        ended: list[int] = []
        for tier in self._tiers.values():
            if tier.active and tier.next_end() <= self._now:
                ended += tier.ended(self._now)
        while self._computing and self._computing[0][0] <= self._now:
            ended.append(heapq.heappop(self._computing)[1])
        for index in ended:
            server = self._servers[index]
            server.pending -= 1
            if not server.pending:
                self._go_on(index)

    def _finish(self, index: int) -> None:
        stage, server = self._stages[index], self._servers[index]
        assert server.cost is not None
        self._busy[index] += server.cost.duration(bool(self._buffers))
        self._fired[index][server.cost] += 1
        if self._recording is not None:
            self._record(index, self._recording, server)
        firing = server.next
        server.next, server.running, server.since = firing + 1, False, self._now
        self._end = max(self._end, self._now)
        self._waiting[index] = None
        self._settle(index, firing)
        if stage.when == "each" and server.next % stage.trips == 0:
            completed = min(self._servers[i].next // self._stages[i].trips for i in self._each)
            if completed > self._completed:
                self._completed = completed
                self._waiting.update(dict.fromkeys(() if self._prefetch else self._each))

    def _settle(self, index: int, firing: int) -> None:
        """Complete the slots that the firing filled, and free those that it read."""
        for link in self._stages[index].writes:
            if firing % link.per == link.per - 1:
                slot = firing // link.per + link.lag
                self._slots[link.buffer].left[slot] = sum(
                    1 for reader in self._readers[link.buffer] if self._uses(*reader, slot)
                )
                self._release(link.buffer, slot)
        for link in self._stages[index].reads:
            slot = firing // link.per + link.lag
            if firing + 1 == self._uses(index, link, slot).stop:
                self._slots[link.buffer].left[slot] -= 1
                self._release(link.buffer, slot)

    def _release(self, buffer: int, slot: int) -> None:
        """Free a slot if all readers are done, and check the stages that may wait for it in either direction."""
        slots = self._slots[buffer]
        if slots.left[slot] == 0:
            del slots.left[slot]
            slots.free.add(slot)
            self._occupy(buffer, -1)
        self._waiting.update((index, None) for index, _ in (*self._readers[buffer], *self._writers[buffer]))

    # -- recording

    def _occupy(self, buffer: int, sign: int) -> None:
        if self._recording is not None and self._buffers[buffer].on_chip:
            self._recording.occupancy.append((self._now, sign * self._buffers[buffer].slot_bytes))

    def _record(self, index: int, recording: Recording, server: _Server) -> None:
        stage, begin, end = self._stages[index], server.since, self._now
        iteration = self._iterations - 1 if stage.when == "last" else server.next // stage.trips
        _append(recording.stages[index], Span(stage.name, iteration, begin, end))
        if stage.when != "each":
            return
        spans = recording.iterations
        while len(spans) <= iteration:
            spans.append(Span(f"iteration {len(spans)}", len(spans), begin, end, 0))
        span = spans[iteration]
        span.begin, span.end, span.count = min(span.begin, begin), max(span.end, end), span.count + 1

    # -- steady state

    def _skip(self) -> None:
        """If the state is that of an earlier iteration, skip as many periods as possible without reaching the end."""
        key = self._state()
        if key not in self._seen:
            self._seen[key] = (self._completed, self._now, list(self._busy), [Counter(f) for f in self._fired])
            return
        completed, then, busy, fired = self._seen[key]
        self._skipping = False
        period = self._completed - completed
        shifts = self._slot_shifts(period)
        stages = [self._stages[index] for index in self._each]
        margin = 1 + max((link.lag for stage in stages for link in (*stage.reads, *stage.writes)), default=0)
        begun = max(self._servers[index].next // self._stages[index].trips + 1 for index in self._each)
        times = (self._iterations - margin - begun) // period
        if shifts is None or times < 1 or self._used_once(completed, self._iterations - margin):
            return
        self._shift(times, period, times * (self._now - then), shifts)
        for index in self._each:
            self._busy[index] += times * (self._busy[index] - busy[index])
            for cost, count in (self._fired[index] - fired[index]).items():
                self._fired[index][cost] += times * count

    def _state(self) -> Any:
        """Return everything that the future depends on, relative to the completed iterations and to the time."""
        base, now = self._completed, self._now
        servers = []
        for index, server in enumerate(self._servers):
            if self._stages[index].when == "each":
                number = server.next - base * self._stages[index].trips
                servers.append((number, server.since - now, len(server.phases), server.pending))
            elif server.running or server.next:
                servers.append((server.next, 0, len(server.phases), server.pending))
        slots = []
        for number, state in enumerate(self._slots):
            first = self._first_slot(number, base)
            left = tuple(sorted((slot - first, count) for slot, count in state.left.items()))
            slots.append((left, tuple(sorted(slot - first for slot in state.free))))
        tiers = tuple(
            (name, tier.updated - now, tuple(sorted((end - tier.served, index) for end, index in tier.active)))
            for name, tier in sorted(self._tiers.items())
            if tier.active
        )
        computing = tuple(sorted((end - now, index) for end, index in self._computing))
        return tuple(servers), tuple(slots), tiers, computing

    def _first_slot(self, buffer: int, iteration: int) -> int:
        """Return the first slot number of a buffer in an iteration."""
        for index, link in (*self._readers[buffer], *self._writers[buffer]):
            if self._moves(index, link):
                return iteration * self._stages[index].trips // link.per
        return 0

    def _moves(self, index: int, link: Link) -> bool:
        """Return True if a port uses different slots in later iterations."""
        return self._stages[index].when == "each" and link.per < self._totals[index]

    def _slot_shifts(self, period: int) -> list[int] | None:
        """Return the number of slots by which each buffer advances in a period; None if that is fractional or its ports
        differ."""
        shifts = []
        for readers, writers in zip(self._readers, self._writers, strict=True):
            moves = set()
            for index, link in (*readers, *writers):
                if self._stages[index].when == "each":
                    slots, rest = divmod(period * self._stages[index].trips, link.per)
                    moves.add(0 if not self._moves(index, link) else slots if not rest else -1)
            if len(moves) > 1 or -1 in moves:
                return None
            shifts.append(moves.pop() if moves else 0)
        return shifts

    def _used_once(self, lower: int, upper: int) -> bool:
        """Return True if a prologue or an epilogue uses a slot that belongs to iterations between two others."""
        for number, state in enumerate(zip(self._readers, self._writers, strict=True)):
            span = range(self._first_slot(number, lower), self._first_slot(number, upper))
            for index, link in (*state[0], *state[1]):
                firings = range(0, self._totals[index], link.per)
                if self._stages[index].when != "each" and any(f // link.per + link.lag in span for f in firings):
                    return True
        return False

    def _shift(self, times: int, period: int, later: int, shifts: list[int]) -> None:
        for index in self._each:
            self._servers[index].next += times * period * self._stages[index].trips
            self._servers[index].since += later
        self._completed += times * period
        self._now += later
        self._computing = [(end + later, index) for end, index in self._computing]
        for tier in self._tiers.values():
            tier.updated += later
        for slots, shift in zip(self._slots, shifts, strict=True):
            slots.left = {slot + times * shift: count for slot, count in slots.left.items()}
            slots.free = {slot + times * shift for slot in slots.free}

    # -- messages

    def _deadlock(self, index: int) -> SsccError:
        stage, firing = self._stages[index], self._servers[index].next
        for link in stage.reads:
            slot = firing // link.per + link.lag
            if slot not in self._slots[link.buffer].left:
                buffer = self._buffers[link.buffer].name
                return ReplayErrors.WAITS_FOR_SLOT(where=self._where, stage=stage.name, slot=slot, buffer=buffer)
        for link in stage.writes:
            if not self._has_place(link.buffer, firing // link.per + link.lag):
                buffer = self._buffers[link.buffer].name
                return ReplayErrors.WAITS_FOR_PLACE(where=self._where, stage=stage.name, buffer=buffer)
        return ReplayErrors.WAITS_FOR_ITERATION(where=self._where, stage=stage.name)


def _ports(buffers: int, links: Sequence[Sequence[Link]]) -> list[list[tuple[int, Link]]]:
    """Return the ports on each buffer, with the stage of each."""
    by_buffer: list[list[tuple[int, Link]]] = [[] for _ in range(buffers)]
    for index, ports in enumerate(links):
        for link in ports:
            by_buffer[link.buffer].append((index, link))
    return by_buffer


def _append(spans: list[Span], span: Span) -> None:
    """Append a span, or extend the last one if it is adjacent."""
    last = spans[-1] if spans else None
    if last is not None and last.end == span.begin and last.iteration == span.iteration:
        last.end, last.count, last.nbytes = span.end, last.count + span.count, last.nbytes + span.nbytes
    else:
        spans.append(span)
