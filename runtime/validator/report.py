"""What a proof found: capacities used, bytes moved, and which bounds hold for all values or for samples only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Traffic = Mapping[str, int]
"""Bytes per tier."""


@dataclass(frozen=True)
class PipelineReport:
    """One pipeline.

    Attributes:
        iterations: their number, None where it depends on scalars.
        on_chip_bytes: end of the highest buffer. pmus: sum over buffers of their bytes in units of `pmu_bytes`, rounded
            up (0 without a machine). pcus: of all stages.
        loads, stores: bytes per iteration and tier, at most; spilled buffers included.
        once_loads, once_stores: of stages that fire first or last.
    """

    name: str
    iterations: int | None
    stages: int
    buffers: int
    on_chip_bytes: int
    pmus: int
    pcus: int
    loads: Traffic
    stores: Traffic
    once_loads: Traffic
    once_stores: Traffic


@dataclass(frozen=True)
class KernelReport:
    """One kernel: the most that any of its pipelines needs."""

    name: str
    pipelines: tuple[PipelineReport, ...]

    @property
    def on_chip_bytes(self) -> int:
        return max((p.on_chip_bytes for p in self.pipelines), default=0)

    @property
    def pmus(self) -> int:
        return max((p.pmus for p in self.pipelines), default=0)

    @property
    def pcus(self) -> int:
        return max((p.pcus for p in self.pipelines), default=0)

    @property
    def stages(self) -> int:
        return sum(p.stages for p in self.pipelines)

    @property
    def buffers(self) -> int:
        return sum(p.buffers for p in self.pipelines)


@dataclass(frozen=True)
class Run:
    """One call of an entry with given scalars: exact counts of what control enters.

    Attributes:
        firings: of all stages. loads, stores: bytes per tier, at most.
        written: outputs of which every element is surely written. touched: tensors of which anything is written.
        results: the scalar outputs.
    """

    scalars: Mapping[str, int]
    launches: int
    firings: int
    loads: Traffic
    stores: Traffic
    written: frozenset[str]
    touched: frozenset[str]
    results: tuple[int, ...]


@dataclass(frozen=True)
class EntryReport:
    """One entry. `launches` counts them in its body, loops and branches entered once."""

    name: str
    launches: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Report:
    """A valid schedule.

    Attributes:
        proved: bounds (views, ports, scalars) that hold for all values within the declared ranges.
        sampled: bounds that were only evaluated, in the sample runs: one line each.
        data: accesses whose place tensors' contents decide; the interpreters check those when they run.
        tier_bytes: bytes of each tier that tensors and spilled buffers take, shared places counted once.
    """

    kernels: tuple[KernelReport, ...]
    entries: tuple[EntryReport, ...]
    proved: int
    sampled: tuple[str, ...]
    data: tuple[str, ...]
    tier_bytes: Traffic

    def kernel(self, name: str) -> KernelReport:
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def entry(self, name: str) -> EntryReport:
        return next(entry for entry in self.entries if entry.name == name)
