"""Chrome traces of a timing: JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

One process per socket; sockets do the same, so their processes are equal. Tracks: kernels (each launch with its
launch and boundary cost and its pipelines inside), loop iterations (asynchronous spans, because they overlap), the
memory tiers, and every stage of every kernel; a counter shows the bytes of SRAM in use. Times are microseconds.
Consecutive firings (or transfers) of one iteration without a gap are one event. Several timings are separate processes,
each from time 0 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.support.trace_file import Event, complete, process_name, thread_name, trace_file, write_events
from sscc.runtime.timing.replay import Recording, Span
from sscc.runtime.timing.result import KernelTiming, LaunchTiming, PipelineTiming, Timing


class TimelineErrors(ErrorKind):
    """Timings that cannot be shown as a trace."""

    NOT_RECORDED = UsageError, "a trace needs a timing that was recorded: time the entry with record=True"


COUNTERS, KERNELS, ITERATIONS, FIRST_TIER = range(4)
_FEMTO = 1e-9  # femtoseconds in microseconds
_MICRO = 1e6


def write_trace(path: Path, *timings: Timing) -> None:
    """Write the trace of timings that were made with ``record=True``; to stdout for the path "-".

    Raises:
        UsageError: a timing without a recording.
        OutputError: the file cannot be written.
    """
    facts = [{"entry": timing.entry, "assumptions": timing.assumptions} for timing in timings]
    with trace_file(path) as file:
        write_events(file, trace_events(*timings), facts[0] if len(facts) == 1 else {"timings": facts})


def trace_events(*timings: Timing) -> Iterator[Event]:
    """Yield all events, metadata first."""
    sockets = [range(int(timing.target.sockets.value)) for timing in timings]
    first = [sum(map(len, sockets[:number])) for number in range(len(timings))]
    tracks = [_Tracks.of(timing) for timing in timings]
    for number, timing in enumerate(timings):
        for socket in sockets[number]:
            name = f"socket {socket}" if len(timings) == 1 else f"{timing.entry}, socket {socket}"
            yield from _metadata(first[number] + socket, name, tracks[number])
    for number, timing in enumerate(timings):
        for socket in sockets[number]:
            for order, launch in enumerate(timing.launches):
                for event in _launch(timing, launch, order, tracks[number]):
                    yield {**event, "pid": first[number] + socket}


@dataclass(frozen=True)
class _Tracks:
    """Thread numbers, first of the memory tiers, then of stages by kernel, pipeline and stage, in order of appearance.
    """

    tiers: dict[str, int]
    stages: dict[tuple[str, str, str], int]

    @classmethod
    def of(cls, timing: Timing) -> _Tracks:
        numbers = count(FIRST_TIER)
        tiers: dict[str, int] = {level.name: next(numbers) for level in timing.target.memories}
        kernels = {id(launch.kernel): launch.kernel for launch in timing.launches}.values()
        names = [
            (kernel.name, pipeline.name, stage.name)
            for kernel in kernels
            for pipeline in kernel.pipelines
            for stage in pipeline.stages
        ]
        return cls(tiers, {name: next(numbers) for name in dict.fromkeys(names)})


def _metadata(process: int, name: str, tracks: _Tracks) -> Iterator[Event]:
    named = {COUNTERS: "counters", KERNELS: "kernels", ITERATIONS: "loop iterations"}
    named.update({track: tier.upper() for tier, track in tracks.tiers.items()})
    named.update({track: f"{kernel}: {stage}" for (kernel, _, stage), track in tracks.stages.items()})
    yield from process_name(process, name)
    for track, track_name in named.items():
        yield from thread_name(process, track, track_name)


def _launch(timing: Timing, launch: LaunchTiming, number: int, tracks: _Tracks) -> Iterator[Event]:
    kernel, costs = launch.kernel, timing.target.costs
    begin, overhead = launch.begin * _MICRO, timing.launch_overhead * _MICRO
    args = {"location": kernel.location, "bytes": dict(kernel.nbytes), "pcus": kernel.pcus, "pmus": kernel.pmus}
    yield complete(KERNELS, kernel.name, begin, overhead + kernel.seconds * _MICRO, args)
    yield complete(KERNELS, "launch", begin, costs.launch_seconds.value * _MICRO, {})
    boundary = costs.boundary_seconds.value * _MICRO
    yield complete(KERNELS, "boundary", begin + costs.launch_seconds.value * _MICRO, boundary, {})
    begin += overhead
    for order, pipeline in enumerate(kernel.pipelines):
        yield complete(KERNELS, pipeline.name, begin, pipeline.seconds * _MICRO, {"iterations": pipeline.iterations})
        yield from _pipeline(kernel, pipeline, begin, f"{number}.{order}", tracks)
        begin += pipeline.seconds * _MICRO


def _pipeline(
    kernel: KernelTiming, pipeline: PipelineTiming, begin: float, identity: str, tracks: _Tracks
) -> Iterator[Event]:
    recording = pipeline.recording
    if recording is None:
        raise TimelineErrors.NOT_RECORDED()
    for stage, spans in zip(pipeline.stages, recording.stages, strict=True):
        for span in spans:
            yield _span(tracks.stages[kernel.name, pipeline.name, stage.name], span, begin)
    for tier, spans in recording.tiers.items():
        if tier in tracks.tiers:
            for span in spans:
                yield _span(tracks.tiers[tier], span, begin)
    yield from _iterations(kernel, recording, begin, identity)
    yield from _occupancy(recording, begin)


def _iterations(kernel: KernelTiming, recording: Recording, begin: float, identity: str) -> Iterator[Event]:
    for span in recording.iterations:
        shared = {
            "cat": "iteration",
            "id2": {"local": f"{identity}.{span.iteration}"},
            "tid": ITERATIONS,
            "name": f"{kernel.name} {span.iteration}",
        }
        yield {"ph": "b", "ts": begin + span.begin * _FEMTO, "args": {"firings": span.count}, **shared}
        yield {"ph": "e", "ts": begin + span.end * _FEMTO, **shared}


def _occupancy(recording: Recording, begin: float) -> Iterator[Event]:
    used = 0
    changes = sorted(recording.occupancy)
    for position, (time, change) in enumerate(changes):
        used += change
        if position + 1 == len(changes) or changes[position + 1][0] != time:
            yield {
                "ph": "C",
                "tid": COUNTERS,
                "name": "SRAM in use",
                "ts": begin + time * _FEMTO,
                "args": {"bytes": used},
            }


def _span(track: int, span: Span, begin: float) -> Event:
    args = {"iteration": span.iteration, "count": span.count}
    if span.nbytes:
        args = {"bytes": span.nbytes, "count": span.count}
    return complete(track, span.name, begin + span.begin * _FEMTO, (span.end - span.begin) * _FEMTO, args)
