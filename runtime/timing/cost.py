"""Conversion of work to durations, by a target's figures.

Times are integers in femtoseconds, so that a steady state repeats exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from sscc.ir.choices import ON_CHIP
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.target import Target
from sscc.runtime.timing.work import Work


class CostErrors(ErrorKind):
    """Work that a target cannot do."""

    NO_LINKS = InputError, "the program has ranks that exchange values, but the target {target} has no links"


SECOND = 10**15  # femtoseconds


@dataclass(frozen=True)
class Transfer:
    """Bytes that one firing moves through a tier.

    Attributes:
        duration: duration at full bandwidth, in femtoseconds.
        latency: minimum duration of the firing, in femtoseconds.
    """

    tier: str
    nbytes: int
    duration: int
    latency: int = 0


@dataclass(frozen=True, eq=False)  # compared by identity: the replay counts firings per cost
class Cost:
    """The cost of one firing.

    Attributes:
        compute: femtoseconds of arithmetic on the stage's compute units.
        fixed: femtoseconds before the arithmetic of every firing; transfers continue during it.
        reads, writes: per tier, at most one of each.
        operations: operations of the arithmetic.
    """

    compute: int
    fixed: int
    reads: tuple[Transfer, ...]
    writes: tuple[Transfer, ...]
    operations: int = 0

    @functools.cached_property
    def overlapped(self) -> tuple[FiringPhase, ...]:
        """One phase with arithmetic and all transfers."""
        return (FiringPhase.of(self.fixed + self.compute, (*self.reads, *self.writes)),)

    @functools.cached_property
    def in_turn(self) -> tuple[FiringPhase, ...]:
        """Phases in sequence: memory reads, arithmetic, memory writes; on-chip traffic belongs to the arithmetic."""
        inner = [transfer for transfer in (*self.reads, *self.writes) if transfer.tier == ON_CHIP]
        sides = [[t for t in side if t.tier != ON_CHIP] for side in (self.reads, self.writes)]
        work = FiringPhase.of(self.fixed + self.compute, inner)
        return (FiringPhase.of(0, sides[0]), work, FiringPhase.of(0, sides[1]))

    def duration(self, overlapped: bool) -> int:
        """Return the femtoseconds of a firing without sharing of tiers."""
        return self._overlapped if overlapped else sum(phase.alone for phase in self.in_turn)

    @functools.cached_property
    def _overlapped(self) -> int:
        return self.overlapped[0].alone


@dataclass(frozen=True)
class FiringPhase:
    """A phase of a firing: arithmetic and transfers in parallel.

    Attributes:
        compute: femtoseconds besides transfers: of arithmetic, or of a longer latency.
        transfers: at most one per tier.
    """

    compute: int
    transfers: tuple[Transfer, ...]

    @classmethod
    def of(cls, compute: int, transfers: Sequence[Transfer]) -> FiringPhase:
        return cls(max([compute, *(transfer.latency for transfer in transfers)]), _merged(transfers))

    @property
    def alone(self) -> int:
        return max([self.compute, *(transfer.duration for transfer in self.transfers)])


def _merged(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    merged: dict[str, Transfer] = {}
    for one in transfers:
        other = merged.get(one.tier, Transfer(one.tier, 0, 0))
        moved, duration = other.nbytes + one.nbytes, other.duration + one.duration
        merged[one.tier] = Transfer(one.tier, moved, duration, one.latency)
    return tuple(merged.values())


class CostModel:
    """Rates of all sockets of a target together, or of the sockets of one rank."""

    def __init__(self, target: Target) -> None:
        sockets, units = target.sockets.value, target.units
        self._pcus = units.pcus.value
        self._flops = {"bf16": units.bf16_flops.value * sockets, "f32": units.f32_flops.value * sockets}
        self._lanes = units.simd_lanes.value * units.clock.value * sockets  # operations per PCU and second
        self._stages = units.simd_stages.value
        self._firing = round(target.costs.firing_seconds.value * SECOND)
        self._bandwidth: dict[str, float] = {level.name: target.bandwidth(level.name) for level in target.levels}
        latencies = {level.name: level.latency for level in target.levels if level.latency is not None}
        self._latency: dict[str, int] = {name: round(figure.value * SECOND) for name, figure in latencies.items()}
        self._target = target

    def transfer(self, tier: str, nbytes: int) -> Transfer:
        duration = round(nbytes * SECOND / self._bandwidth[tier])
        return Transfer(tier, nbytes, duration, self._latency.get(tier, 0))

    def exchange(self, work: Work) -> Transfer | None:
        """Return the messages of a firing to other ranks, over the shortest link: each socket of a rank has its own."""
        if not work.hops:
            return None
        if not self._target.links:
            raise CostErrors.NO_LINKS(target=self._target.name)
        duration = round(work.sent * SECOND / self._target.link_bandwidth)
        under_way = work.hops * round(self._target.link_latency * SECOND)
        return Transfer(self._target.links[0].name, work.sent, duration, duration + under_way)

    def compute(self, work: Work, pcus: int) -> int:
        """Return the femtoseconds of the arithmetic on `pcus` compute units per socket, 0 for all of them.

        Products run at the peak rate of their dtype. Element-wise passes process one point per lane and cycle for every
        `simd_stages` operations. The parts run in sequence.
        """
        used = pcus or self._pcus
        seconds = sum(flops / (self._flops[dtype] * used / self._pcus) for dtype, flops in work.products.items())
        seconds += sum(points * ceil(ops / self._stages) for points, ops in work.vectors) / (self._lanes * used)
        return round(seconds * SECOND)

    def cost(self, work: Work, pcus: int, read: Mapping[str, int], written: Mapping[str, int]) -> Cost:
        """Return the cost of a firing that moves `read` and `written` bytes per tier; its locals are on the chip."""
        reads = tuple(self.transfer(tier, read[tier]) for tier in self._bandwidth if read.get(tier))
        local: dict[str, int] = {ON_CHIP: work.local_bytes}
        out = {tier: written.get(tier, 0) + local.get(tier, 0) for tier in self._bandwidth}
        writes = tuple(self.transfer(tier, nbytes) for tier, nbytes in out.items() if nbytes)
        sent = self.exchange(work)
        moved = writes if sent is None else (*writes, sent)
        return Cost(self.compute(work, pcus), self._firing, reads, moved, work.operations)
