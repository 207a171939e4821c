"""Access to the outputs of stages while native code runs, through hooks of the core and the plan's buffer addresses."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.schedule import Buffer, Pipeline, Port, Program, Stage, pipelines
from sscc.runtime.artifact.tensor_files import NUMPY_DTYPES, Array
from sscc.runtime.backends.cpu.plan.plan import Branch, Execute, Item, NativePlan, PlanLoop, PlanRun
from sscc.runtime.backends.interpreter import StageName, StageRun, Watcher
from sscc.runtime.support import _native


class NativeWatchErrors(ErrorKind):
    NO_STAGE = UsageError, "native code has no separate stage {stage!r}: use the reference interpreter to watch it"


@dataclass(frozen=True)
class _Place:
    """Position of a run in the plan.

    Attributes:
        name: name of the stage.
        launch: number of the stage's launch in the entry.
        loops: registers of the loops around the run, outermost first.
    """

    name: StageName
    launch: int
    loops: tuple[int, ...]


@dataclass(frozen=True)
class _Output:
    """Buffer that a stage writes, with the number of the run's argument that points into it."""

    buffer: Buffer
    port: Port
    argument: int


class NativeStages:
    """Stages of a program in a native plan.

    Args:
        program: schedule.
        plan: native plan of the schedule.
        core: core that executes the plan.
    """

    def __init__(self, program: Program, plan: NativePlan, core: _native.Core) -> None:
        self._plan, self._core = plan, core
        bodies = {body.name: body for body in program.bodies}
        self._stages: dict[StageName, Stage] = {}
        self._outputs: dict[StageName, list[_Output]] = {}
        for kernel in program.kernels:
            for pipeline in pipelines(kernel.body):
                for stage in pipeline.stages:
                    name = (kernel.name, pipeline.name, stage.name)
                    self._stages[name] = stage
                    accesses = [param.access for param in bodies[stage.body].params]
                    self._outputs[name] = [*_written(pipeline, stage, accesses)]
        labels = {".".join(name): name for name in self._stages}
        self._places: dict[int, _Place] = {}
        for entry in plan.entries:
            self._place([*_runs(entry.body, ())], labels)

    def _place(self, runs: list[tuple[int, tuple[int, ...]]], labels: dict[str, StageName]) -> None:
        """Record the last run of each stage. The runs before it with the same arguments are earlier phases of the
        stage."""
        launches: dict[str, int] = {}
        for (number, loops), (following, _) in itertools.pairwise([*runs, (-1, ())]):
            run = self._plan.runs[number]
            other = self._plan.runs[following] if following >= 0 else None
            if other is not None and (other.label, other.arguments) == (run.label, run.arguments):
                continue
            label = self._plan.labels[run.label]
            self._places[number] = _Place(labels[label], launches.get(label, 0), loops)
            launches[label] = launches.get(label, 0) + 1

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """See `Interpreter.watch`."""
        if watcher is None:
            self._core.set_hook(None, None)
            return
        missing = [".".join(name) for name in stages if name not in self.names]
        if missing:
            raise NativeWatchErrors.NO_STAGE(stage=missing[0])
        see = watcher

        def hook(_label: str, number: int) -> None:
            place = self._places.get(number)
            if place is not None:
                registers = self._core.registers()
                loops = tuple(registers[each] for each in place.loops)
                buffers = {
                    output.buffer.name: self._read(self._plan.runs[number], output, place.name, registers)
                    for output in self._outputs[place.name]
                }
                see(StageRun(place.name, place.launch, loops, buffers))

        self._core.set_hook([".".join(name) for name in stages], hook)

    @property
    def names(self) -> frozenset[StageName]:
        """Names of the stages of native code. Loads that only copy may have been merged into other stages."""
        return frozenset(place.name for place in self._places.values())

    def _read(self, run: PlanRun, output: _Output, name: StageName, registers: Sequence[int]) -> Array:
        """Return the current contents of the slots that the stage has filled, stacked if there are several."""
        stage, view, buffer = self._stages[name], output.port.view, output.buffer
        argument = run.arguments[output.argument]
        base, _ = self._core.region(self._plan.regions[argument.region].name)
        size = np.dtype(NUMPY_DTYPES[buffer.dtype]).itemsize
        of_grid = {register for register, _ in run.grid}
        fixed = argument.offset + sum(registers[r] * factor for r, factor in argument.terms if r not in of_grid)
        # The register of a dimension of the grid that is 1 is not part of the run, and is 0.
        moving = [dim for dim, extent in enumerate(stage.grid) if extent > 1]
        slots = []
        for firing, point in enumerate(itertools.product(*map(range, stage.grid))):
            if firing % max(output.port.per, 1):
                continue
            at = {register: point[dim] for (register, _), dim in zip(run.grid, moving, strict=True)}
            offset = fixed + sum(at[r] * factor for r, factor in argument.terms if r in of_grid)
            inside = view.offset + sum(
                point[int(term[1:])] * factor for term, factor in view.terms if _is_axis(term, stage)
            )
            raw = (ctypes.c_uint8 * (buffer.slot_bytes)).from_address(base + offset - inside * size)
            slots.append(np.frombuffer(bytes(raw), NUMPY_DTYPES[buffer.dtype]).reshape(buffer.shape))
        return slots[0] if len(slots) == 1 else np.stack(slots)


def _is_axis(term: str, stage: Stage) -> bool:
    return term[:1] == "t" and term[1:].isdecimal() and int(term[1:]) < len(stage.grid)


def _written(pipeline: Pipeline, stage: Stage, accesses: Sequence[str]) -> Iterator[_Output]:
    buffers = {buffer.name: buffer for buffer in pipeline.buffers}
    for number, (port, access) in enumerate(zip(stage.ports, accesses, strict=True)):
        if access != "read" and port.view.tensor in buffers:
            yield _Output(buffers[port.view.tensor], port, number)


def _runs(items: Sequence[Item], loops: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield every run in order, with the registers of the loops around it."""
    for item in items:
        match item:
            case Execute():
                yield item.run, loops
            case PlanLoop():
                yield from _runs(item.body, (*loops, item.register))
            case Branch():
                yield from _runs(item.body, loops)
