"""Results of the timing model. Seconds are floats, bytes are integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sscc.ir.schedule import Launch
from sscc.ir.target import Target
from sscc.runtime.timing.replay import Recording


@dataclass(frozen=True)
class StageTiming:
    """A stage over all its firings. For the rest of the pipeline's time it is idle.

    Attributes:
        pcus: compute units per socket; 0 for the whole machine.
        busy_seconds: time of computing or transferring.
        compute_seconds: time of the arithmetic alone.
        fixed_seconds: fixed cost of its firings.
        nbytes: bytes moved per tier.
        operations: operations of its arithmetic.
    """

    name: str
    body: str
    pcus: int
    firings: int
    busy_seconds: float
    compute_seconds: float
    fixed_seconds: float
    nbytes: Mapping[str, int]
    operations: int = 0

    @property
    def bound(self) -> str:
        """Bound of its busy time: "compute", "firings" (their fixed cost), or "memory" (transfers take longer than
        both)."""
        if 2 * (self.compute_seconds + self.fixed_seconds) <= self.busy_seconds:
            return "memory"
        return "compute" if self.compute_seconds >= self.fixed_seconds else "firings"


@dataclass(frozen=True)
class PipelineTiming:
    """One execution of a pipeline.

    Attributes:
        on_chip_bytes: end of its buffers in on-chip memory.
        pcus: compute units of all its stages, per socket.
        param_bytes: bytes moved per parameter of the kernel.
        recording: every firing, if requested.
    """

    name: str
    iterations: int
    seconds: float
    on_chip_bytes: int
    pcus: int
    stages: tuple[StageTiming, ...]
    param_bytes: Mapping[str, int]
    recording: Recording | None


@dataclass(frozen=True)
class KernelTiming:
    """One execution of a kernel, without launch and boundary: its pipelines in sequence.

    Attributes:
        pcus, pmus: compute and memory units that it occupies, per socket.
    """

    name: str
    location: str
    pipelines: tuple[PipelineTiming, ...]
    pcus: int
    pmus: int

    @cached_property
    def seconds(self) -> float:
        return sum(pipeline.seconds for pipeline in self.pipelines)

    @cached_property
    def on_chip_bytes(self) -> int:
        return max((pipeline.on_chip_bytes for pipeline in self.pipelines), default=0)

    @cached_property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes per tier."""
        return _total(stage.nbytes for pipeline in self.pipelines for stage in pipeline.stages)

    @cached_property
    def param_bytes(self) -> Mapping[str, int]:
        return _total(pipeline.param_bytes for pipeline in self.pipelines)

    @property
    def slowest(self) -> StageTiming | None:
        """The stage with the longest busy time."""
        stages = [stage for pipeline in self.pipelines for stage in pipeline.stages]
        return max(stages, key=lambda stage: stage.busy_seconds, default=None)


@dataclass(frozen=True)
class LaunchTiming:
    """A launch: launch and boundary cost from `begin` on, then the kernel. Equal launches share a `KernelTiming`."""

    launch: Launch
    kernel: KernelTiming
    begin: float


@dataclass(frozen=True)
class KernelSummary:
    """All launches of a kernel in one call of an entry; PCUs and PMUs per socket.

    Attributes:
        seconds: time with launch and boundary cost, so that the kernels of a call add up to its time. `sscc inspect`
            and `sscc report` show this time, and fractions of the call's time.
        launch_seconds: launch and boundary cost, a part of `seconds`.
        slowest: stage with the longest busy time, "" if there is none.
        bound: bound of its time (`StageTiming.bound`).
    """

    name: str
    location: str
    launches: int
    seconds: float
    launch_seconds: float
    pcus: int
    pmus: int
    on_chip_bytes: int
    slowest: str
    bound: str


@dataclass(frozen=True)
class StageSummary:
    """All firings of a stage in one call of an entry; other attributes as in `StageTiming`.

    Attributes:
        kernel, pipeline, stage: their names; names of stages are unique within a pipeline.
        bound: bound of its longest execution.
    """

    kernel: str
    pipeline: str
    stage: str
    firings: int
    busy_seconds: float
    operations: int
    nbytes: Mapping[str, int]
    bound: str


@dataclass(frozen=True)
class Timing:
    """One call of an entry on a machine.

    Attributes:
        launch_overhead: seconds per launch that are not execution: launch plus boundary.
        tensor_bytes: bytes moved per tensor of the program.
        assumptions: assumptions of the model, one sentence each.
    """

    entry: str
    target: Target
    scalars: Mapping[str, int]
    launches: tuple[LaunchTiming, ...]
    launch_overhead: float
    tensor_bytes: Mapping[str, int]
    assumptions: tuple[str, ...]

    @cached_property
    def execution_seconds(self) -> float:
        return sum(launch.kernel.seconds for launch in self.launches)

    @property
    def seconds(self) -> float:
        return self.execution_seconds + len(self.launches) * self.launch_overhead

    @cached_property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes per tier."""
        return _total(launch.kernel.nbytes for launch in self.launches)

    def bandwidth(self, tier: str) -> float:
        """Return the mean bytes per second that a tier moves."""
        return self.nbytes.get(tier, 0) / self.seconds if self.seconds else 0.0

    @property
    def roofline_fraction(self) -> float:
        """Fraction of main memory's roofline: the minimum time for its bytes over the actual time."""
        main = self.target.main.name
        return self.target.seconds({main: self.nbytes.get(main, 0)}) / self.seconds if self.seconds else 0.0

    @property
    def on_chip_bytes(self) -> int:
        """High-water mark of on-chip memory, from the buffers' addresses."""
        return max((launch.kernel.on_chip_bytes for launch in self.launches), default=0)

    @property
    def pcus(self) -> int:
        return max((launch.kernel.pcus for launch in self.launches), default=0)

    @property
    def pmus(self) -> int:
        return max((launch.kernel.pmus for launch in self.launches), default=0)

    def kernels(self) -> tuple[KernelSummary, ...]:
        """Return a summary per kernel, the most expensive first."""
        groups: dict[str, list[KernelTiming]] = {}
        for launch in self.launches:
            groups.setdefault(launch.kernel.name, []).append(launch.kernel)
        summaries = [self._summary(group) for group in groups.values()]
        return tuple(sorted(summaries, key=lambda kernel: (-kernel.seconds, kernel.name)))

    def stages(self) -> tuple[StageSummary, ...]:
        """Return a summary per stage, over all launches of its kernel, in order of first appearance."""
        parts: dict[tuple[str, str, str], list[StageTiming]] = {}
        for launch in self.launches:
            for pipeline in launch.kernel.pipelines:
                for stage in pipeline.stages:
                    parts.setdefault((launch.kernel.name, pipeline.name, stage.name), []).append(stage)
        return tuple(
            StageSummary(
                kernel=kernel,
                pipeline=pipeline,
                stage=name,
                firings=sum(stage.firings for stage in group),
                busy_seconds=sum(stage.busy_seconds for stage in group),
                operations=sum(stage.operations for stage in group),
                nbytes=_total(stage.nbytes for stage in group),
                bound=max(group, key=lambda stage: stage.busy_seconds).bound,
            )
            for (kernel, pipeline, name), group in parts.items()
        )

    def _summary(self, group: list[KernelTiming]) -> KernelSummary:
        longest = max(group, key=lambda kernel: kernel.seconds)
        slowest = longest.slowest
        launching = len(group) * self.launch_overhead
        return KernelSummary(
            name=longest.name,
            location=longest.location,
            launches=len(group),
            seconds=sum(kernel.seconds for kernel in group) + launching,
            launch_seconds=launching,
            pcus=_most(group, lambda kernel: kernel.pcus),
            pmus=_most(group, lambda kernel: kernel.pmus),
            on_chip_bytes=_most(group, lambda kernel: kernel.on_chip_bytes),
            slowest="" if slowest is None else slowest.name,
            bound="" if slowest is None else slowest.bound,
        )


def _most(group: list[KernelTiming], value: Callable[[KernelTiming], int]) -> int:
    return max(value(kernel) for kernel in group)


def _total(parts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
