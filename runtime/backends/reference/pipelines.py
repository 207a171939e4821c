"""Pipelines: stages that fire as often as the buffers between them allow.

`streams` decides when a stage may fire. A stage that touches a buffer without waiting for it fires anyway; it is
refused when it reads an incomplete slot, or begins a slot whose place still has to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Kernel, Pipeline
from sscc.runtime.backends.reference.bodies import BodyCode
from sscc.runtime.backends.reference.control import Action, Environment, Memo, compile_scalar, getter
from sscc.runtime.backends.reference.interface import Views
from sscc.runtime.backends.reference.memory import Memory
from sscc.runtime.backends.reference.stages import BoundStage, Place, StageCode
from sscc.runtime.backends.reference.streams import Condition, FilledTwice, conditions
from sscc.runtime.backends.reference.views import MalformedKind
from sscc.runtime.backends.reference.watching import Watch


class ReferenceStuckErrors(ErrorKind):
    """Deadlocked stages, as fields of the error about the deadlock."""

    WAITS = InputError, "stage {stage!r} in firing {firing} (iteration {iteration}) of {firings} waits for {obstacles}"


class ReferencePipelineErrors(MalformedKind):
    FILLED_TWICE = "slot {slot} of buffer {buffer!r} is filled twice, by stage {stage!r} and by stage {other!r}"
    READS_TOO_EARLY = (
        "stage {stage!r} in firing {firing} (iteration {iteration}) reads {obstacle}, because it does not wait for "
        "{buffer!r}"
    )
    FILLS_TOO_EARLY = (
        "stage {stage!r} in firing {firing} (iteration {iteration}) begins to fill {obstacle}, because it does not "
        "wait for {buffer!r}"
    )
    DEADLOCK = "deadlock: {stuck}"

_PLANS = 64
"""Number of iteration counts for which a pipeline keeps its conditions."""


class PipelineCode:
    """A pipeline, compiled once per kernel.

    Args:
        pipeline: pipeline to compile.
        kernel: kernel that contains it.
        bodies: bodies by name.
        memory: memory with the slots of the buffers.
        checked: fill a slot with NaN when its producer begins it.
        loops: indices of the kernel's loops around it.
        watch: watcher of stages.

    Raises:
        InputError: a view leaves the tensor that it shows, or a buffer lies outside of memory.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        kernel: Kernel,
        bodies: Mapping[str, BodyCode],
        memory: Memory,
        *,
        checked: bool,
        loops: tuple[str, ...],
        watch: Watch,
    ) -> None:
        self.pipeline = pipeline
        self._where = f"kernel {kernel.name!r}, pipeline {pipeline.name!r}"
        params = {param.name: param for param in kernel.params}
        buffers = {buffer.name: buffer for buffer in pipeline.buffers}
        self._names = [stage.name for stage in pipeline.stages]
        self._lower, self._upper = getter(pipeline.lower), getter(pipeline.upper)
        self._scalars = [compile_scalar(item) for item in pipeline.scalars]
        slots = {name: memory.slots(buffer) for name, buffer in buffers.items()}
        fixed = isinstance(pipeline.lower, int) and isinstance(pipeline.upper, int)
        once = fixed and len(self._range({})) == 1
        around = loops if once else (*loops, pipeline.index)
        place = Place(self._where, params, buffers, slots, checked, kernel.name, pipeline.name, around, watch)
        self._stages = [
            StageCode(stage, number, bodies[stage.body], place) for number, stage in enumerate(pipeline.stages)
        ]
        self._uses = [use for stage in self._stages for use in stage.uses]
        self._plans: Memo[int, tuple[list[int], list[list[Condition]]]] = Memo(_PLANS)
        self._own_scalars = {pipeline.index, *(item.name for item in pipeline.scalars)}

    def bind(self, views: Views) -> Action:
        """Fix the kernel's arguments. Raises InputError if a port shows a window of one that is not dense."""
        stages = [stage.bind(views) for stage in self._stages]
        return self._once(stages[0]) if self._single else lambda environment: self._run(stages, environment)

    # -- one firing that is the same in every launch

    @property
    def _single(self) -> bool:
        pipeline, stages = self.pipeline, self._stages
        literal = isinstance(pipeline.lower, int) and isinstance(pipeline.upper, int)
        if not literal or len(self._range({})) != 1 or len(stages) != 1 or not stages[0].static:
            return False
        return self._own_scalars.isdisjoint(stages[0].stage.scalars)

    def _once(self, stage: BoundStage) -> Action:
        fires = stage.bind(0)
        code = self._stages[0]
        watch = code.place.watch
        renamed = any(name != operand for name, operand in zip(code.steady, code.stage.scalars, strict=True))

        def action(environment: Environment) -> None:
            scalars = {name: get(environment) for name, get in code.steady.items()} if renamed else environment
            for fire in fires:
                fire(scalars)
            if watch.watches(stage.full_name):
                stage.show(0, environment)

        return action

    # -- rounds

    def _run(self, stages: Sequence[BoundStage], environment: Environment) -> None:
        bounds = self._range(environment)
        if not bounds:
            return
        environments = [self._iteration(environment, index) for index in bounds]
        for code, stage in zip(self._stages, stages, strict=True):
            stage.start(environments[-1:] if code.stage.when == "last" else environments)
        plan = self._plans.get(len(bounds))
        if plan is None:
            plan = self._plan(len(bounds))
            self._plans.keep(len(bounds), plan)
        totals, waits = plan
        fired = [0] * len(stages)
        unfinished = list(range(len(stages)))
        while unfinished:
            before = sum(fired)
            for number in unfinished:
                self._turn(stages[number], number, fired, totals[number], waits[number], bounds)
            if sum(fired) == before:
                self._deadlock(fired, totals, waits, bounds)
            unfinished = [number for number in unfinished if fired[number] < totals[number]]

    def _turn(
        self, stage: BoundStage, number: int, fired: list[int], total: int, waits: Sequence[Condition], bounds: range
    ) -> None:
        """Fire a stage as often as its buffers allow."""
        now = fired[number]
        while now < total:
            end = total
            for condition in waits:
                end = min(end, condition.bound(fired))
                if end <= now:
                    if not condition.use.waited:
                        self._hasty(condition, fired, bounds)
                    return
            stage.fire(now, end)
            fired[number] = now = end

    def _range(self, environment: Environment) -> range:
        return range(self._lower(environment), self._upper(environment))

    def _iteration(self, environment: Environment, index: int) -> Environment:
        """Return the scalars of one iteration."""
        inner = {**environment, self.pipeline.index: index}
        for action in self._scalars:
            action(inner)
        return inner

    def _plan(self, count: int) -> tuple[list[int], list[list[Condition]]]:
        """Return how often each stage fires in `count` iterations, and the conditions that it waits for."""
        totals = [s.stage.trips * (count if s.stage.when == "each" else 1) for s in self._stages]
        try:
            return totals, conditions(self._uses, totals)
        except FilledTwice as error:
            first, second = (self._names[number] for number in error.stages)
            raise ReferencePipelineErrors.FILLED_TWICE(
                where=self._where, slot=error.slot, buffer=error.buffer, stage=first, other=second
            ) from None

    # -- errors

    def _next_firing(self, number: int, fired: Sequence[int], bounds: range) -> dict[str, Any]:
        """Return the name of a stage, the firing that it comes to, and its iteration."""
        stage, firing = self._stages[number].stage, fired[number]
        iteration = bounds[-1] if stage.when == "last" else bounds[firing // stage.trips]
        return {"stage": stage.name, "firing": firing, "iteration": iteration}

    def _hasty(self, condition: Condition, fired: Sequence[int], bounds: range) -> NoReturn:
        use = condition.use
        kind = ReferencePipelineErrors.FILLS_TOO_EARLY if use.writes else ReferencePipelineErrors.READS_TOO_EARLY
        raise kind(
            where=self._where,
            **self._next_firing(use.stage, fired, bounds),
            buffer=use.buffer,
            obstacle=condition.obstacle(fired, self._names),
        )

    def _deadlock(
        self, fired: Sequence[int], totals: Sequence[int], waits: Sequence[Sequence[Condition]], bounds: range
    ) -> NoReturn:
        stuck = []
        for number, total in enumerate(totals):
            if fired[number] < total:
                held = [c.obstacle(fired, self._names) for c in waits[number] if c.bound(fired) <= fired[number]]
                at = self._next_firing(number, fired, bounds)
                stuck.append(ReferenceStuckErrors.WAITS(**at, firings=total, obstacles=held))
        raise ReferencePipelineErrors.DEADLOCK(where=self._where, stuck=stuck)
