"""Timeline section: two iterations of the layer loop, recorded by the timing model, and the effect of prefetching."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sscc.compiler.tools.report.kernels import shortened
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.choices import DECODE
from sscc.ir.sizes import format_seconds
from sscc.runtime.timing import Timing
from sscc.runtime.timing.cost import SECOND
from sscc.runtime.timing.replay import Span
from sscc.runtime.timing.result import PipelineTiming

LEFT, WIDTH, RIGHT = 216.0, 1000.0, 24.0
ROW, BAR, TOP = 19.0, 13.0, 44.0
MARK = 100.0
"""Width of a mark's label."""
LETTERS = 33
ROWS = 60
"""Maximum number of stages to draw: those with the longest busy time."""


@dataclass(frozen=True)
class Bar:
    """A bar of the timeline.

    Attributes:
        which: "first", "second" (of the shown iterations), "other", or "busy" for a memory.
    """

    x: float
    width: float
    y: float
    which: str
    hint: str


@dataclass(frozen=True)
class Row:
    label: str
    name: str
    y: float
    memory: bool


@dataclass(frozen=True)
class Mark:
    """A time on the axis.

    Attributes:
        x: its coordinate.
        anchor: anchor of the label, as in SVG; "" for a label that is only shown on hover.
    """

    x: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Timeline:
    """The contents of the section.

    Attributes:
        heading: the shown iterations and their pipeline.
        sentences: the transfers that prefetching hides, and the time that it saves.
        legend: kinds of bars and their labels.
    """

    heading: str
    sentences: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]
    width: float
    height: float
    left: float
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    ticks: tuple[Mark, ...]
    borders: tuple[Mark, ...]
    left_out: str


def timeline(sources: Sources) -> Timeline | None:
    """Return the section; None if decode launches nothing that fires."""
    step = sources.timings[DECODE]
    executed = [(launch.kernel.name, p) for launch in step.launches for p in launch.kernel.pipelines if p.iterations]
    if not executed:
        return None
    kernel, pipeline = max(executed, key=lambda pair: (pair[1].iterations > 1, pair[1].seconds))
    return _Drawn(kernel, pipeline, step, sources).timeline()


class _Drawn:
    def __init__(self, kernel: str, pipeline: PipelineTiming, step: Timing, sources: Sources) -> None:
        assert pipeline.recording is not None  # the decode step of a report is recorded
        self._kernel, self._pipeline, self._recording = kernel, pipeline, pipeline.recording
        self._step, self._sources = step, sources
        spans = {span.iteration: span for span in self._recording.iterations}
        self._iterations = sorted(spans)
        at = max(0, len(self._iterations) // 2 - 1)
        self._first = self._iterations[at]
        self._second = self._iterations[min(at + 1, len(self._iterations) - 1)]
        self._spans = spans
        self._begin = min(spans[self._first].begin, spans[self._second].begin)
        self._end = max(spans[self._first].end, spans[self._second].end)

    def timeline(self) -> Timeline:
        p, recording = self._pipeline, self._recording
        nearest = self._step.target.nearest.name
        tiers = [(t, spans) for t, spans in recording.tiers.items() if t != nearest and self._within(spans)]
        stages = [(stage.name, spans) for stage, spans in zip(p.stages, recording.stages, strict=True)]
        busy = sorted((pair for pair in stages if self._within(pair[1])), key=lambda pair: -_length(pair[1]))
        kept = {name for name, _ in busy[:ROWS]}
        shown = [(tier.upper(), spans, True) for tier, spans in tiers]
        shown += [(name, spans, False) for name, spans in stages if name in kept]
        rows, bars = [], []
        for number, (name, spans, memory) in enumerate(shown):
            y = TOP + ROW * number
            rows.append(Row(shortened(name, LETTERS), name, y, memory))
            bars += list(self._bars(spans, y, memory))
        left_out = len(busy) - len(kept)
        return Timeline(
            heading=self._heading(),
            sentences=tuple(self._sentences()),
            legend=tuple(self._legend()),
            width=WIDTH,
            height=TOP + ROW * len(shown) + 8,
            left=LEFT,
            rows=tuple(rows),
            bars=tuple(bars),
            ticks=tuple(self._ticks()),
            borders=tuple(self._borders()),
            left_out=f"Not drawn: {left_out} stages with less busy time." * (left_out > 0),
        )

    def _heading(self) -> str:
        where = f"kernel {self._kernel}, pipeline {self._pipeline.name}"
        if self._first == self._second:
            return f"The only iteration of {where} (no decode pipeline has more)"
        return f"Iterations {self._first} and {self._second} (of {self._pipeline.iterations}) of {where}"

    def _within(self, spans: Iterable[Span]) -> list[Span]:
        return [span for span in spans if span.end > self._begin and span.begin < self._end]

    def _x(self, time: int) -> float:
        share = (min(max(time, self._begin), self._end) - self._begin) / max(1, self._end - self._begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def _which(self, span: Span, memory: bool) -> str:
        return "busy" if memory else {self._second: "second", self._first: "first"}.get(span.iteration, "other")

    def _bars(self, spans: list[Span], y: float, memory: bool) -> Iterator[Bar]:
        """Yield bars. Adjacent firings of one iteration that would be indistinguishable are merged into one bar."""
        runs: list[list[Span]] = []
        for span in sorted(self._within(spans), key=lambda s: (s.begin, s.end)):
            last = runs[-1][-1] if runs else None
            near = last is not None and self._x(span.begin) - self._x(last.end) < 0.4
            if last is not None and near and (memory or last.iteration == span.iteration):
                runs[-1].append(span)
            else:
                runs.append([span])
        for run in runs:
            begin, end = run[0].begin, max(span.end for span in run)
            x, count = self._x(begin), sum(span.count for span in run)
            time = f"{format_seconds((end - begin) / SECOND)} from {format_seconds((begin - self._begin) / SECOND)} on"
            which = "busy" if memory else f"iteration {run[0].iteration}: {count} firing{'s' * (count > 1)}"
            hint = f"{run[0].name}, {which}, {time}"
            yield Bar(x, max(0.6, self._x(end) - x), y, self._which(run[0], memory), hint)

    def _ticks(self) -> Iterator[Mark]:
        length = (self._end - self._begin) / SECOND
        step = 10.0 ** math.floor(math.log10(length / 4)) if length > 0 else 1.0
        step *= next((n for n in (5, 2) if length / (step * n) >= 4), 1)
        for number in range(int(length / step) + 1):
            yield Mark(self._x(self._begin + round(number * step * SECOND)), format_seconds(number * step))

    def _borders(self) -> Iterator[Mark]:
        shown = dict.fromkeys((self._first, self._second))
        times = [(self._spans[i].begin, f"iteration {i} begins", "start") for i in shown]
        times += [(self._spans[i].end, f"iteration {i} ends", "end") for i in shown]
        reached = 0.0
        for time, label, anchor in sorted(times):
            x = self._x(time)
            begin = x if anchor == "start" else x - MARK
            free = begin >= reached
            reached = begin + MARK if free else reached
            yield Mark(x, label, anchor if free else "")

    def _sentences(self) -> Iterator[str]:
        if self._first != self._second:
            loads = [
                span
                for stage, spans in zip(self._pipeline.stages, self._recording.stages, strict=True)
                for span in spans
                if span.iteration == self._second and any(stage.nbytes.get(t) for t in self._memories)
            ]
            ready = self._spans[self._first].end
            busy = _union((span.begin, span.end) for span in loads)
            early = _union((span.begin, min(span.end, ready)) for span in loads if span.begin < ready)
            if busy:
                yield (
                    f"The loads and stores of iteration {self._second} take {format_seconds(busy / SECOND)}; "
                    f"{100 * early / busy:.0f}% of that time is before the end of iteration {self._first}."
                )
        slow, fast = self._sources.without_prefetch.seconds, self._step.seconds
        saved = f"saves {format_seconds(slow - fast)}" if slow > fast else "saves nothing"
        yield (
            f"Prefetch {saved}: a decode step takes {format_seconds(fast)}, and {format_seconds(slow)} if every load "
            "waits for the end of the previous iteration."
        )
        main = self._step.target.main.name
        yield f"{main.upper()} is busy {100 * self._share(main):.0f}% of the time shown."

    def _legend(self) -> Iterator[tuple[str, str]]:
        if self._first != self._second:
            yield "first", f"iteration {self._first}"
        yield "second", f"iteration {self._second}"
        if len(self._iterations) > 2:
            yield "other", "other iterations"
        yield "busy", "memory busy"

    def _share(self, tier: str) -> float:
        inside = self._within(self._recording.tiers.get(tier, []))
        clipped = ((max(s.begin, self._begin), min(s.end, self._end)) for s in inside)
        return _union(clipped) / max(1, self._end - self._begin)

    @property
    def _memories(self) -> list[str]:
        return [level.name for level in self._step.target.memories]


def _length(spans: list[Span]) -> int:
    return sum(span.end - span.begin for span in spans)


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of intervals."""
    covered, reached = 0, -1
    for begin, end in sorted(intervals):
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
