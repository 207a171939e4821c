"""Chrome traces of a timing: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process per socket; sockets do the same, so their processes are equal. Tracks: kernels (each launch with its
launch and boundary cost and its pipelines inside), loop iterations (asynchronous spans, because they overlap), the
memory tiers, and every stage of every kernel; a counter shows the bytes of SRAM in use. Times are microseconds.
Firings (or transfers) of one iteration without a gap between them are one event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sscc.ir.errors import UsageError
from sscc.ir.files import writing
from sscc.runtime.timing.replay import Recording, Span
from sscc.runtime.timing.result import KernelTiming, LaunchTiming, PipelineTiming, Timing

KERNELS, ITERATIONS, FIRST_TIER = range(1, 4)
_FEMTO = 1e-9  # femtoseconds in microseconds
_MICRO = 1e6

Event = dict[str, Any]


def write_trace(timing: Timing, path: Path) -> None:
    """Writes the trace of a timing that was made with ``record=True``; to stdout where `path` is "-".

    Raises:
        UsageError: a timing without a recording. OutputError: the file cannot be written.
    """
    with writing(path) as file:
        file.write(b'{"displayTimeUnit":"ns","otherData":')
        file.write(json.dumps({"entry": timing.entry, "assumptions": timing.assumptions}).encode())
        file.write(b',"traceEvents":[')
        for number, event in enumerate(trace_events(timing)):
            file.write((",\n" if number else "\n").encode() + json.dumps(event, separators=(",", ":")).encode())
        file.write(b"\n]}\n")


def trace_events(timing: Timing) -> Iterator[Event]:
    """All events, metadata first."""
    tracks = _Tracks.of(timing)
    sockets = range(int(timing.target.sockets.value))
    for socket in sockets:
        yield from _metadata(socket, tracks)
    for socket in sockets:
        for number, launch in enumerate(timing.launches):
            for event in _launch(timing, launch, number, tracks):
                yield {**event, "pid": socket}


@dataclass(frozen=True)
class _Tracks:
    """Thread numbers, of the memory tiers and then of stages by kernel, pipeline and stage, in order of appearance."""

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


def _metadata(socket: int, tracks: _Tracks) -> Iterator[Event]:
    named = {KERNELS: "kernels", ITERATIONS: "loop iterations"}
    named.update({track: tier.upper() for tier, track in tracks.tiers.items()})
    named.update({track: f"{kernel}: {stage}" for (kernel, _, stage), track in tracks.stages.items()})
    yield {"ph": "M", "pid": socket, "name": "process_name", "args": {"name": f"socket {socket}"}}
    for track, name in named.items():
        yield {"ph": "M", "pid": socket, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": socket, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _launch(timing: Timing, launch: LaunchTiming, number: int, tracks: _Tracks) -> Iterator[Event]:
    kernel, costs = launch.kernel, timing.target.costs
    begin, overhead = launch.begin * _MICRO, timing.launch_overhead * _MICRO
    args = {"location": kernel.location, "bytes": dict(kernel.nbytes), "pcus": kernel.pcus, "pmus": kernel.pmus}
    yield _complete(KERNELS, kernel.name, begin, overhead + kernel.seconds * _MICRO, args)
    yield _complete(KERNELS, "launch", begin, costs.launch_seconds.value * _MICRO, {})
    boundary = costs.boundary_seconds.value * _MICRO
    yield _complete(KERNELS, "boundary", begin + costs.launch_seconds.value * _MICRO, boundary, {})
    begin += overhead
    for order, pipeline in enumerate(kernel.pipelines):
        yield _complete(KERNELS, pipeline.name, begin, pipeline.seconds * _MICRO, {"iterations": pipeline.iterations})
        yield from _pipeline(kernel, pipeline, begin, f"{number}.{order}", tracks)
        begin += pipeline.seconds * _MICRO


def _pipeline(
    kernel: KernelTiming, pipeline: PipelineTiming, begin: float, identity: str, tracks: _Tracks
) -> Iterator[Event]:
    recording = pipeline.recording
    if recording is None:
        raise UsageError("a trace needs a timing that was recorded")
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
            "id": f"{identity}.{span.iteration}",
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
                "tid": 0,
                "name": "SRAM in use",
                "ts": begin + time * _FEMTO,
                "args": {"bytes": used},
            }


def _span(track: int, span: Span, begin: float) -> Event:
    args = {"iteration": span.iteration, "count": span.count}
    if span.nbytes:
        args = {"bytes": span.nbytes, "count": span.count}
    return _complete(track, span.name, begin + span.begin * _FEMTO, (span.end - span.begin) * _FEMTO, args)


def _complete(track: int, name: str, begin: float, duration: float, args: dict[str, Any]) -> Event:
    return {"ph": "X", "tid": track, "name": name, "ts": begin, "dur": duration, "args": args}
