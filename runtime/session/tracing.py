"""Traces of real runs: spans of the host's thread, the native interpreter's threads and an engine's requests.

A tracer keeps the latest spans, up to its capacity; the native core keeps its own, per thread, in memory allocated at
the start. Without a tracer, a call of the interpreter costs one additional comparison, and the core none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any, BinaryIO

from sscc.runtime.backends.stage_trace import BARRIER, MEETING, StageTrace
from sscc.runtime.support.trace_file import Event, complete, process_name, thread_name, trace_file, write_events

if TYPE_CHECKING:
    from sscc.runtime.backends.interpreter import Interpreter

CAPACITY = 1 << 16
"""Maximum number of kept spans, of the host and of each thread of the interpreter; those of a request count once."""
THREADS, REQUESTS = 0, 1
"""Numbers of processes in the file."""
HOST = 0
"""Track of the thread that calls the interpreter, which is the first of its threads."""
_SAME_CLOCK_NS = 1_000_000


@dataclass(frozen=True)
class RequestSpan:
    """A request of an engine; times in seconds of `time.perf_counter`, None for a stage that it did not reach."""

    number: int
    submitted: float
    admitted: float | None
    first_token: float | None
    ended: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Tracer:
    """Records execution until it is stopped.

    Args:
        interpreter: interpreter whose stages are traced, if it can; with several ranks, those of this process's rank.
        capacity: see `CAPACITY`.
    """

    def __init__(self, interpreter: Interpreter, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._spans: deque[tuple[str, int, int, Mapping[str, Any]]] = deque(maxlen=capacity)
        self._span_count = 0
        self._requests: deque[RequestSpan] = deque(maxlen=capacity)
        self._request_count = 0
        self._interpreter = interpreter
        self._stages: StageTrace | None = None
        self._stopped = False
        offset = monotonic_ns() - perf_counter_ns()
        self._apart = offset if abs(offset) > _SAME_CLOCK_NS else 0  # the same clock, on most systems
        interpreter.start_trace(capacity)

    def span(self, name: str, start: int, end: int, facts: Mapping[str, Any]) -> None:
        """Record an activity of the host's thread, from `start` to `end` in ns of `time.perf_counter_ns`."""
        if not self._stopped:
            self._spans.append((name, start, end, facts))
            self._span_count += 1

    def request(self, request: RequestSpan) -> None:
        """Record a request that has ended."""
        if not self._stopped:
            self._requests.append(request)
            self._request_count += 1

    def stop(self) -> None:
        """End the recording, while no call of the interpreter is running. Without effect if it has ended."""
        if not self._stopped:
            self._stages = self._interpreter.end_trace()
        self._stopped = True

    def write(self, path: Path) -> None:
        """Stop, and write a file for Perfetto; to stdout for the path "-". Raises OutputError."""
        with trace_file(path) as file:
            self.write_to(file)

    def write_to(self, file: BinaryIO) -> None:
        """Stop, and write into an open file (`sscc.runtime.support.trace_file`)."""
        self.stop()
        write_events(file, self.events(), self._facts())

    def events(self) -> Iterator[Event]:
        """Yield everything that was kept, names first, in order of time."""
        stages = self._stages or StageTrace([], 1, [], [])
        base = self._base(stages)
        yield from process_name(THREADS, "interpreter")
        for thread in range(stages.threads):
            name = "thread 0: calls and stages" if thread == HOST else f"thread {thread}"
            yield from thread_name(THREADS, thread, name)
        for name, start, end, facts in self._spans:
            shown = complete(HOST, name, (start + self._apart - base) / 1e3, (end - start) / 1e3, facts)
            yield {**shown, "cat": "host", "pid": THREADS}
        waits = {BARRIER: "barrier", MEETING: "wait for other ranks"}
        for label, thread, start, end in stages.events:
            name = waits.get(label) or stages.labels[label]
            shown = complete(thread, name, (start - base) / 1e3, (end - start) / 1e3, {})
            yield {**shown, "cat": "wait" if label < 0 else "stage", "pid": THREADS}
        yield from self._request_events(base)

    def _base(self, stages: StageTrace) -> int:
        """Return the earliest kept time, in ns of the monotonic clock."""
        times = [start + self._apart for _, start, _, _ in self._spans]
        times += [start for _, _, start, _ in stages.events]
        times += [self._ns(request.submitted) for request in self._requests]
        return min(times, default=0)

    def _ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._apart

    def _request_events(self, base: int) -> Iterator[Event]:
        """Yield a nest of asynchronous spans for each request, and the numbers of waiting and running ones."""
        if not self._requests:
            return
        yield from process_name(REQUESTS, "requests")
        yield from thread_name(REQUESTS, 0, "requests")
        changes: list[tuple[float, int, int]] = []
        for request in self._requests:
            ended = request.ended
            times = {"request": (request.submitted, ended), "queued": (request.submitted, request.admitted or ended)}
            changes += [(request.submitted, 1, 0), (request.admitted or ended, -1, 0)]
            if request.admitted is not None:
                times["prefill"] = (request.admitted, request.first_token or ended)
                changes += [(request.admitted, 0, 1), (ended, 0, -1)]
            if request.first_token is not None:
                times["decode"] = (request.first_token, ended)
            for name, (begin, end) in times.items():
                shared = {
                    "cat": "request", "id2": {"local": str(request.number)}, "pid": REQUESTS, "tid": 0,
                    "name": f"request {request.number}" if name == "request" else name,
                }  # fmt: skip
                facts = dict(request.facts) if name == "request" else {}
                yield {"ph": "b", "ts": (self._ns(begin) - base) / 1e3, "args": facts, **shared}
                if name != "request":
                    yield {"ph": "e", "ts": (self._ns(end) - base) / 1e3, **shared}
            whole = {"cat": "request", "id2": {"local": str(request.number)}, "pid": REQUESTS, "tid": 0}
            yield {"ph": "e", "ts": (self._ns(ended) - base) / 1e3, "name": f"request {request.number}", **whole}
        waiting = running = 0
        for time, waits, runs in sorted(changes):
            waiting, running = waiting + waits, running + runs
            counted = {"queued": waiting, "running": running}
            at = (self._ns(time) - base) / 1e3
            yield {"ph": "C", "pid": REQUESTS, "tid": 0, "name": "requests", "ts": at, "args": counted}

    def _facts(self) -> dict[str, Any]:
        """Return facts for the file: the number of kept events, and of all events."""
        kept = {
            "calls": _of(len(self._spans), self._span_count),
            "requests": _of(len(self._requests), self._request_count),
        }
        stages = self._stages
        if stages is None:
            return {"kept": kept, "stages": "not traced: the interpreter does not record any"}
        for thread, count in enumerate(stages.counts):
            kept[f"stages of thread {thread}"] = _of(min(count, self._capacity), count)
        return {"kept": kept, "clock": "monotonic, from the earliest event on"}


def _of(kept: int, count: int) -> str:
    return f"{kept}, all of them" if kept == count else f"the latest {kept} of {count}"
