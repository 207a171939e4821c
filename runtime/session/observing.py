"""Observation of a running program: values that stages write, for any layer, and execution stage by stage.

The full name of a stage is "KERNEL.PIPELINE.STAGE", as in `sscc inspect` and schedules. It can also be selected by its
own name, by a pattern, or by the end of the path of the module that it comes from.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from queue import SimpleQueue

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.schedule import Entry, Program, launches, pipelines
from sscc.ir.suggestions import did_you_mean
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.interpreter import Interpreter, StageName, StageRun

_LAYERS = re.compile(r"\.layer\.(\d+)")
_TIMES = re.compile(r"\.x(\d+)$")


class WatchingErrors(ErrorKind):
    SEVERAL_BUFFERS = UsageError, "stage {stage!r} has written {count} buffers ({buffers}), so it has no single value"
    NO_STAGE = UsageError, "no stage is called {pattern!r}; the stages are {stages}{similar_hint}"


@dataclass(frozen=True, repr=False)
class Observation:
    """Values that a stage has written in one iteration.

    Attributes:
        stage: "KERNEL.PIPELINE.STAGE".
        module: path of the module that it comes from, the first one if several compute the same; "" for none.
        layer: number of the layer; None if the kernel belongs to no layer, to single operations (-O0), or to
            alternating layers of several kinds.
        loops: indices of the loops around it, outermost first.
        buffers: copies of the buffers that it has written, by name: [shape of the buffer], or [slots, ..] of several.
    """

    stage: str
    module: str
    layer: int | None
    loops: tuple[int, ...]
    buffers: dict[str, Array] = field(default_factory=dict)

    @property
    def value(self) -> Array:
        """Value of a stage that writes one buffer. Raises UsageError for others."""
        if len(self.buffers) != 1:
            count, names = len(self.buffers), list(self.buffers)
            raise WatchingErrors.SEVERAL_BUFFERS(stage=self.stage, count=count, buffers=names)
        return next(iter(self.buffers.values()))

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in self.buffers.items())
        return f"Observation({self.stage}, layer {self.layer}, {shapes or 'writes no buffer'})"


class Stages:
    """The stages of a program, and their selection by the user.

    Args:
        program: the schedule.
        names: names of the stages that can be watched.
    """

    def __init__(self, program: Program, names: frozenset[StageName]) -> None:
        bodies = {body.name: body for body in program.bodies}
        self.modules: dict[StageName, str] = {
            name: bodies[stage.body].location.split(" ")[0] if bodies[stage.body].location else ""
            for kernel in program.kernels
            for pipeline in pipelines(kernel.body)
            for stage in pipeline.stages
            if (name := (kernel.name, pipeline.name, stage.name)) in names
        }
        self._first: dict[tuple[str, int], int] = {}
        for entry in program.entries:
            self._count(entry)

    def _count(self, entry: Entry) -> None:
        """Determine the first layer of every launch."""
        layers, seen = 0, dict.fromkeys((launch.kernel for launch in launches(entry.body)), 0)
        for launch in launches(entry.body):
            firsts, times = _layers_of(launch.kernel)
            self._first[launch.kernel, seen[launch.kernel]] = layers
            seen[launch.kernel] += 1
            layers += len(firsts) * times

    def chosen(self, patterns: Sequence[str]) -> list[StageName]:
        """Return the selected stages; all of them without a pattern. Raises UsageError for a pattern without a match.
        """
        chosen: dict[StageName, None] = {}
        for pattern in patterns or ["*"]:
            meant = [name for name, module in self.modules.items() if _is_meant(name, module, pattern)]
            if not meant:
                known = sorted({name[2] for name in self.modules})
                similar = did_you_mean(pattern, known)
                raise WatchingErrors.NO_STAGE(pattern=pattern, stages=known, similar_hint=similar)
            chosen |= dict.fromkeys(meant)
        return list(chosen)

    def observation(self, run: StageRun) -> Observation:
        """Return the observation for a run of a stage."""
        module = self.modules[run.name]
        return Observation(".".join(run.name), module, self._layer(run), run.loops, dict(run.buffers))

    def _layer(self, run: StageRun) -> int | None:
        firsts, times = _layers_of(run.name[0])
        if len(firsts) != 1 or (times > 1 and not run.loops):
            return None  # of no layer, of alternating kinds, or outside of the loop over layers
        return self._first[run.name[0], run.launch] + (run.loops[0] if times > 1 else 0)


def _layers_of(kernel: str) -> tuple[list[int], int]:
    """Return the layers in a kernel's name, and the number of times it loops over them."""
    times = _TIMES.search(kernel)
    return [int(number) for number in _LAYERS.findall(kernel)], int(times[1]) if times else 1


def _is_meant(name: StageName, module: str, pattern: str) -> bool:
    ends = module == pattern or module.endswith(f".{pattern}")
    return ends or any(fnmatchcase(text, pattern) for text in (name[2], ".".join(name)))


class Watching:
    """Recorded observations; a context manager for the recording. Iteration yields the observations in order.

    Attributes:
        observations: all of them, unless a callback was given.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        stages: Stages,
        patterns: Sequence[str],
        layer: int | None = None,
        call: Callable[[Observation], object] | None = None,
    ) -> None:
        self.observations: list[Observation] = []
        self._interpreter, self._stages, self._layer = interpreter, stages, layer
        self._names = stages.chosen(patterns)
        self._call = self.observations.append if call is None else call

    def __enter__(self) -> Watching:
        self._interpreter.watch(self._names, self._see)
        return self

    def __exit__(self, *_: object) -> None:
        self._interpreter.watch((), None)

    def __iter__(self) -> Iterator[Observation]:
        return iter(self.observations)

    def __len__(self) -> int:
        return len(self.observations)

    def __getitem__(self, index: int) -> Observation:
        return self.observations[index]

    def __repr__(self) -> str:
        return f"Watching({len(self._names)} stages, {len(self.observations)} observations)"

    def _see(self, run: StageRun) -> None:
        observation = self._stages.observation(run)
        if self._layer is None or observation.layer == self._layer:
            self._call(observation)


def step_through(
    watching: Callable[[Callable[[Observation], object]], Watching], run: Callable[[], object]
) -> Iterator[Observation]:
    """Run a call in a separate thread, which pauses after every stage until the next one is requested. If iteration
    stops, the call runs to its end.

    Raises what the call raises.
    """
    seen: SimpleQueue[Observation | BaseException | None] = SimpleQueue()
    go_on, free = threading.Semaphore(0), threading.Event()

    def stop(observation: Observation) -> None:
        if not free.is_set():
            seen.put(observation)
            go_on.acquire()

    def call() -> None:
        try:
            with watching(stop):
                run()
            seen.put(None)
        except BaseException as error:
            seen.put(error)

    thread = threading.Thread(target=call, name="sscc-steps", daemon=True)
    thread.start()
    try:
        while (item := seen.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
            go_on.release()
    finally:
        free.set()
        go_on.release()
        thread.join()
