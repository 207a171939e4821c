"""Timing of a kernel: its control flow runs, and its pipelines are replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

from sscc.ir.schedule import (
    DTYPE_BYTES,
    Body,
    Dtype,
    For,
    If,
    Item,
    Kernel,
    Pipeline,
    Program,
    Scalar,
    ScalarOperand,
    Stage,
    View,
    scalars,
)
from sscc.ir.target import Target
from sscc.runtime.support.scalars import evaluate, executed, value_of
from sscc.runtime.timing.cost import SECOND, Cost, CostModel
from sscc.runtime.timing.replay import Link, StagePlan, replay
from sscc.runtime.timing.result import KernelTiming, PipelineTiming, StageTiming
from sscc.runtime.timing.work import dynamic_scalars, measure

Environment = dict[str, int]


class Binding(NamedTuple):
    """Argument of a launch: its tier, and the number of distinct bytes for a view that repeats elements, else None."""

    tier: str
    limit: int | None


@dataclass(frozen=True)
class Settings:
    """Settings of a replay; see `time_entry`."""

    valid_rows: int | None
    mean_rows: Mapping[int, int]
    staying: float
    prefetch: bool
    record: bool
    grid: Sequence[int]
    mean_experts: bool = False


class KernelTimer:
    """Times kernels of a program on a machine; equal executions are replayed once."""

    def __init__(self, program: Program, target: Target, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._model = CostModel(target)
        self._bodies = {body.name: body for body in program.bodies}
        self._kernels = {kernel.name: kernel for kernel in program.kernels}
        self._relevant: dict[str, frozenset[str]] = {}
        self._known: dict[tuple[str, tuple[Binding, ...], tuple[tuple[str, int], ...]], KernelTiming] = {}
        self._replayed: dict[tuple[int, tuple[Binding, ...], tuple[int, ...]], PipelineTiming] = {}

    def time(self, name: str, bindings: Sequence[Binding], scalars: Sequence[int]) -> KernelTiming:
        """Return the timing of one execution, with a binding per tensor parameter and a value per scalar parameter."""
        kernel = self._kernels[name]
        environment = dict(zip(kernel.scalars, scalars, strict=True))
        relevant = self._relevant_scalars(kernel)
        values = tuple((name, value) for name, value in environment.items() if name in relevant)
        key = (kernel.name, tuple(bindings), values)
        if key not in self._known:
            params = {param.name: binding for param, binding in zip(kernel.params, bindings, strict=True)}
            self._known[key] = self._time(kernel, params, environment)
        return self._known[key]

    def _time(self, kernel: Kernel, params: Mapping[str, Binding], environment: Environment) -> KernelTiming:
        pipelines = tuple(
            self._once(kernel, pipeline, params, scope) for pipeline, scope in _executed(kernel, environment)
        )
        sram = max((pipeline.on_chip_bytes for pipeline in pipelines), default=0)
        return KernelTiming(
            name=kernel.name,
            location=kernel.location,
            pipelines=pipelines,
            pcus=max((pipeline.pcus for pipeline in pipelines), default=0),
            pmus=ceil(sram / self._target.units.pmu_bytes.value),
        )

    def _once(
        self, kernel: Kernel, pipeline: Pipeline, params: Mapping[str, Binding], environment: Environment
    ) -> PipelineTiming:
        """Replay a pipeline, or return an earlier result with the same bounds and the same work."""
        works = [_work_operands(stage, self._bodies[stage.body]).values() for stage in pipeline.stages]
        needed = {name for operands in works for name in operands if isinstance(name, str)}
        needed = _closure(needed, pipeline.scalars) & environment.keys()
        bounds = (value_of(pipeline.lower, environment), value_of(pipeline.upper, environment))
        values = (*bounds, *(environment[name] for name in sorted(needed)))
        key = (id(pipeline), tuple(params.values()), values)
        if key not in self._replayed:
            self._replayed[key] = self._pipeline(kernel, pipeline, params, environment)
        return self._replayed[key]

    def _pipeline(
        self, kernel: Kernel, pipeline: Pipeline, params: Mapping[str, Binding], environment: Environment
    ) -> PipelineTiming:
        lower, upper = value_of(pipeline.lower, environment), value_of(pipeline.upper, environment)
        span = range(lower, max(lower, upper))
        coster = [
            _StageCost(
                stage, self._bodies[stage.body], pipeline, params, environment, span, self._model, self._settings
            )
            for stage in pipeline.stages
        ]
        outcome = replay(
            f"kernel {kernel.name!r}, pipeline {pipeline.name!r}",
            [stage.plan() for stage in coster],
            pipeline.buffers,
            len(span),
            prefetch=self._settings.prefetch,
            record=self._settings.record,
        )
        moved: Counter[str] = Counter()
        stages = []
        for stage, busy, fired in zip(coster, outcome.busy, outcome.fired, strict=True):
            stages.append(_stage_timing(stage.stage, busy, fired))
            for cost, count in fired.items():
                moved.update({name: count * nbytes for name, nbytes in stage.param_bytes(cost).items()})
        whole = int(self._target.units.pcus.value)
        return PipelineTiming(
            name=pipeline.name,
            iterations=len(span),
            seconds=outcome.duration / SECOND,
            on_chip_bytes=max((b.address + b.nbytes for b in pipeline.buffers if b.on_chip), default=0),
            pcus=whole if any(not s.pcus and s.compute_seconds for s in stages) else sum(s.pcus for s in stages),
            stages=tuple(stages),
            param_bytes=dict(moved),
            recording=outcome.recording,
        )

    def _relevant_scalars(self, kernel: Kernel) -> frozenset[str]:
        """Return the kernel's scalars that affect the amount of work; the others only move addresses."""
        if kernel.name not in self._relevant:
            needed = {name for name in self._deciding(kernel.body) if isinstance(name, str)}
            needed = _closure(needed, list(scalars(kernel.body)))
            self._relevant[kernel.name] = frozenset(needed & set(kernel.scalars))
        return self._relevant[kernel.name]

    def _deciding(self, items: Sequence[Item]) -> Iterator[ScalarOperand]:
        for item in items:
            if isinstance(item, For):
                yield from (item.lower, item.upper)
                yield from self._deciding(item.body)
            elif isinstance(item, If):
                yield item.condition
                yield from self._deciding(item.body)
            elif isinstance(item, Pipeline):
                yield from (item.lower, item.upper)
                for stage in item.stages:
                    yield from _work_operands(stage, self._bodies[stage.body]).values()


class _StageCost:
    """The cost of a stage's firings in one execution of a pipeline; equal firings share a `Cost`."""

    def __init__(
        self,
        stage: Stage,
        body: Body,
        pipeline: Pipeline,
        params: Mapping[str, Binding],
        environment: Environment,
        span: range,
        model: CostModel,
        settings: Settings,
    ) -> None:
        self.stage, self._body, self._pipeline = stage, body, pipeline
        self._params, self._environment, self._span = params, environment, span
        self._model, self._settings = model, settings
        self._buffers = {buffer.name: number for number, buffer in enumerate(pipeline.buffers)}
        self._operands = _work_operands(stage, body)
        self._costs: dict[tuple[int, ...], Cost] = {}
        self._param_bytes: dict[Cost, dict[str, int]] = {}
        varying = _varying(pipeline, stage)
        self._uniform = not any(operand in varying for operand in self._operands.values())

    def plan(self) -> StagePlan:
        reads: list[Link] = []
        writes: list[Link] = []
        for param, port in zip(self._body.params, self.stage.ports, strict=True):
            if port.per and port.view.tensor in self.stage.waits:
                link = Link(self._buffers[port.view.tensor], port.per, port.lag)
                (reads if param.access == "read" else writes).append(link)
        loads = any(
            param.access != "write" and port.view.tensor in self._params
            for param, port in zip(self._body.params, self.stage.ports, strict=True)
        )
        constant = self._at(0) if self._uniform else None
        return StagePlan(
            name=self.stage.name,
            when=self.stage.when,
            trips=self.stage.trips,
            reads=tuple(reads),
            writes=tuple(writes),
            cost=self._at if constant is None else lambda _: constant,
            uniform=constant is not None,
            loads=loads,
        )

    def param_bytes(self, cost: Cost) -> Mapping[str, int]:
        """Return the bytes that a firing of this cost moves, per parameter of the kernel."""
        return self._param_bytes[cost]

    def _at(self, firing: int) -> Cost:
        scope = self._scope(firing)
        values = tuple(value_of(operand, scope) for operand in self._operands.values())
        if values not in self._costs:
            self._costs[values] = self._measure(dict(zip(self._operands, values, strict=True)))
        return self._costs[values]

    def _scope(self, firing: int) -> Environment:
        """Return the scalars that are visible in a firing."""
        iteration, trip = divmod(firing, self.stage.trips)
        scope = dict(self._environment)
        first = self._span.stop - 1 if self.stage.when == "last" else self._span.start
        scope[self._pipeline.index] = first + iteration
        for scalar in self._pipeline.scalars:
            scope[scalar.name] = evaluate(scalar, scope)
        for axis in reversed(range(len(self.stage.grid))):
            trip, scope[f"t{axis}"] = divmod(trip, self.stage.grid[axis])
        return scope

    def _measure(self, scalars: Mapping[str, int]) -> Cost:
        s = self._settings
        work = measure(self._body, scalars, s.valid_rows, s.mean_rows, s.staying, s.grid, s.mean_experts)
        read: Counter[str] = Counter()
        written: Counter[str] = Counter()
        moved: Counter[str] = Counter()
        for param, port in zip(self._body.params, self.stage.ports, strict=True):
            name = port.view.tensor
            for tiers, nbytes in ((read, work.read.get(param.name, 0)), (written, work.written.get(param.name, 0))):
                limited = min(nbytes, *self._limits(port.view, param.dtype), nbytes)
                tiers[self._tier(name)] += limited
                if name in self._params:
                    moved[name] += limited
        cost = self._model.cost(work, self.stage.pcus, read, written)
        self._param_bytes[cost] = dict(moved)
        return cost

    def _tier(self, region: str) -> str:
        if region in self._params:
            return self._params[region].tier
        return self._pipeline.buffers[self._buffers[region]].tier

    def _limits(self, view: View, dtype: Dtype) -> Iterator[int]:
        """Return the maximum bytes moved through a view that repeats elements."""
        binding = self._params.get(view.tensor)
        for limit in (repeat_limit(view, dtype), None if binding is None else binding.limit):
            if limit is not None:
                yield limit


def repeat_limit(view: View, dtype: Dtype) -> int | None:
    """Return the bytes of a view's distinct elements, if it repeats some; else None."""
    if all(stride or size <= 1 for size, stride in zip(view.shape, view.strides, strict=True)):
        return None
    sizes = [size for size, stride in zip(view.shape, view.strides, strict=True) if stride or not size]
    return prod(sizes) * DTYPE_BYTES[dtype]


def _executed(kernel: Kernel, environment: Environment) -> Iterator[tuple[Pipeline, Environment]]:
    """Yield the pipelines that a kernel runs, in order, each with the scalars at that point."""
    for item in executed(kernel.body, environment):
        assert isinstance(item, Pipeline)  # the validator allows nothing else in a kernel
        yield item, dict(environment)


def _closure(names: set[str], definitions: Sequence[Scalar]) -> set[str]:
    """Return the names, and all names from which they are computed."""
    closure = set(names)
    while True:
        more = {arg for s in definitions if s.name in closure for arg in s.args if isinstance(arg, str)} - closure
        if not more:
            return closure
        closure |= more


def _work_operands(stage: Stage, body: Body) -> dict[str, ScalarOperand]:
    """Return the operands of a stage on which the work of a firing depends, by the body's name."""
    dynamic = dynamic_scalars(body)
    return {name: operand for name, operand in zip(body.scalars, stage.scalars, strict=True) if name in dynamic}


def _varying(pipeline: Pipeline, stage: Stage) -> set[ScalarOperand]:
    """Return the scalars that differ between the firings of a stage."""
    varying: set[ScalarOperand] = {pipeline.index, *(f"t{axis}" for axis in range(len(stage.grid)))}
    for scalar in pipeline.scalars:
        if any(arg in varying for arg in scalar.args):
            varying.add(scalar.name)
    return varying


def _stage_timing(stage: Stage, busy: int, fired: Mapping[Cost, int]) -> StageTiming:
    moved: Counter[str] = Counter()
    for cost, count in fired.items():
        moved.update({transfer.tier: count * transfer.nbytes for transfer in cost.overlapped[0].transfers})
    return StageTiming(
        name=stage.name,
        body=stage.body,
        pcus=stage.pcus,
        firings=sum(fired.values()),
        busy_seconds=busy / SECOND,
        compute_seconds=sum(cost.compute * count for cost, count in fired.items()) / SECOND,
        fixed_seconds=sum(cost.fixed * count for cost, count in fired.items()) / SECOND,
        nbytes=dict(moved),
        operations=sum(cost.operations * count for cost, count in fired.items()),
    )
