"""Work and machine figures become durations.

Time is counted in whole femtoseconds, so that a steady state repeats exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from sscc.ir.machine import Machine
from sscc.runtime.timing.work import Work

SECOND = 10**15  # femtoseconds
TIERS = ("sram", "hbm", "ddr")


@dataclass(frozen=True)
class Transfer:
    """Bytes that one firing moves through a tier, and how long that takes at full bandwidth, in femtoseconds."""

    tier: str
    nbytes: int
    duration: int


@dataclass(frozen=True, eq=False)  # compared by identity: the replay counts firings per cost
class Cost:
    """What one firing takes.

    Attributes:
        compute: femtoseconds of arithmetic on the stage's compute units.
        fixed: femtoseconds that every firing takes before it; transfers go on meanwhile.
        reads, writes: per tier, at most one of each.
    """

    compute: int
    fixed: int
    reads: tuple[Transfer, ...]
    writes: tuple[Transfer, ...]

    @functools.cached_property
    def overlapped(self) -> tuple[Phase, ...]:
        """Everything at once."""
        return (Phase(self.fixed + self.compute, _merged((*self.reads, *self.writes))),)

    @functools.cached_property
    def in_turn(self) -> tuple[Phase, ...]:
        """Memory in, compute, memory out; on-chip traffic belongs to the computation."""
        inner = [transfer for transfer in (*self.reads, *self.writes) if transfer.tier == "sram"]
        sides = [tuple(t for t in side if t.tier != "sram") for side in (self.reads, self.writes)]
        return (Phase(0, sides[0]), Phase(self.fixed + self.compute, _merged(inner)), Phase(0, sides[1]))

    def duration(self, overlapped: bool) -> int:
        """Femtoseconds of a firing that has the tiers for itself."""
        return self._overlapped if overlapped else sum(phase.alone for phase in self.in_turn)

    @functools.cached_property
    def _overlapped(self) -> int:
        return self.overlapped[0].alone


@dataclass(frozen=True)
class Phase:
    """A part of a firing: arithmetic and transfers side by side, at most one per tier."""

    compute: int
    transfers: tuple[Transfer, ...]

    @property
    def alone(self) -> int:
        return max([self.compute, *(transfer.duration for transfer in self.transfers)])


def _merged(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    merged: dict[str, Transfer] = {}
    for one in transfers:
        other = merged.get(one.tier, Transfer(one.tier, 0, 0))
        merged[one.tier] = Transfer(one.tier, other.nbytes + one.nbytes, other.duration + one.duration)
    return tuple(merged.values())


class CostModel:
    """The rates of all sockets of a machine together."""

    def __init__(self, machine: Machine) -> None:
        sockets = machine.sockets.value
        self._pcus = machine.pcus.value
        self._flops = {"bf16": machine.bf16_flops.value * sockets, "f32": machine.f32_flops.value * sockets}
        self._lanes = machine.simd_lanes.value * machine.clock.value * sockets  # per PCU and second
        self._stages = machine.simd_stages.value
        self._firing = round(machine.firing_seconds.value * SECOND)
        self._bandwidth = {
            "sram": machine.sram_bandwidth.value * sockets,
            "hbm": machine.hbm_bandwidth.value * sockets,
            "ddr": machine.ddr_bandwidth.value * sockets,
        }

    def transfer(self, tier: str, nbytes: int) -> Transfer:
        return Transfer(tier, nbytes, round(nbytes * SECOND / self._bandwidth[tier]))

    def compute(self, work: Work, pcus: int) -> int:
        """Femtoseconds of the arithmetic on `pcus` compute units per socket, 0 for all of them.

        Products run at the peak of their dtype. Element-wise passes take a point per lane and cycle for every
        `simd_stages` operations. The parts follow one another.
        """
        used = pcus or self._pcus
        seconds = sum(flops / (self._flops[dtype] * used / self._pcus) for dtype, flops in work.products.items())
        seconds += sum(points * ceil(ops / self._stages) for points, ops in work.vectors) / (self._lanes * used)
        return round(seconds * SECOND)

    def cost(self, work: Work, pcus: int, read: Mapping[str, int], written: Mapping[str, int]) -> Cost:
        """The cost of a firing that moves `read` and `written` bytes per tier; the locals' bytes are SRAM's too."""
        reads = tuple(self.transfer(tier, read[tier]) for tier in TIERS if read.get(tier))
        local = {"sram": work.local_bytes} if work.local_bytes else {}
        out = {tier: written.get(tier, 0) + local.get(tier, 0) for tier in TIERS}
        writes = tuple(self.transfer(tier, nbytes) for tier, nbytes in out.items() if nbytes)
        return Cost(self.compute(work, pcus), self._firing, reads, writes)
