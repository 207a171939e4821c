"""The roofline: operations per byte of every stage, and its modelled rate, below the ceilings.

After Williams, Waterman and Patterson (2009). The operations of a stage are those of its body, its bytes those that it
and its loads and stores move from and to off-chip memory, and its time is that of all of them with memory to themselves
(`sscc.compiler.tools.report.graph.Node`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sscc.compiler.tools.report.graph import KernelGraph, Node, kernel_graphs
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.sizes import format_bytes, format_seconds
from sscc.ir.target import Target

WIDTH, HEIGHT = 860.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 16.0, 18.0, 46.0
LISTED = 40
NAMED = 7
"""Maximum number of stages of each entry whose names are drawn: the slowest ones, if there is room."""
LETTER, LINE = 6.6, 14.0
"""Width of a letter of these names, and height of a line."""
TOGETHER = 5.0
"""Points closer than this share a name."""
SMALLEST, LARGEST = 3.0, 11.0
"""Radius of a point: its area grows with the stage's time."""


@dataclass(frozen=True)
class Ceiling:
    """A ceiling.

    Attributes:
        points: ends of its line; empty for a label alone.
        x, y: position of the label, which is rotated by `angle` degrees.
        label: text of the label; "" for none.
    """

    kind: str
    label: str
    points: tuple[tuple[float, float], ...]
    x: float
    y: float
    angle: float


@dataclass(frozen=True)
class Point:
    """A stage.

    Attributes:
        name: name drawn beside it; "" if only its tooltip has it.
    """

    entry: str
    kind: str
    x: float
    y: float
    radius: float
    name: str
    left: bool
    hint: str


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        intensity: operations per byte; None if nothing moves off the chip.
        roof: lowest ceiling at this intensity, in operations per second.
    """

    entry: str
    kernel: str
    stage: str
    kind: str
    seconds: float
    operations: int
    memory_bytes: int
    intensity: float | None
    rate: float
    roof: float
    bound: str


@dataclass(frozen=True)
class Roofline:
    width: float
    height: float
    left: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    left_out: str


def roofline(sources: Sources) -> Roofline:
    machine, program = sources.machine, sources.artifact.program
    peaks = compute_ceilings(machine, sources.artifact.signature.dtype)
    tiers = {tensor.tier for tensor in program.tensors} | {machine.main.name}
    slopes = {level.label: machine.bandwidth(level.name) for level in machine.memories if level.name in tiers}
    rows: list[Row] = []
    fastest = max(slopes.values())
    for timing in sources.timings.values():
        for graph in kernel_graphs(program, timing):
            nodes = (node for pipeline in graph.pipelines for node in pipeline.nodes if node.seconds)
            rows += [_row(graph, node, peaks, fastest) for node in nodes]
    rows.sort(key=lambda row: -row.seconds)
    placed = [row for row in rows if row.intensity and row.rate]
    scale = _Scale.around(placed, peaks, fastest)
    named = {id(row) for entry in sources.timings for row in [r for r in placed if r.entry == entry][:NAMED]}
    longest = max((row.seconds for row in placed), default=1.0)
    points = _apart([_point(row, scale, longest, id(row) in named) for row in reversed(placed)])
    unplaced = sum(1 for row in rows if not row.intensity)
    notes = [f"{unplaced} compute nothing, or move nothing off the chip, and are not in the drawing"] * bool(
        unplaced
    )
    notes += [f"{len(rows) - LISTED} that take less time are left out of the table"] * (len(rows) > LISTED)
    return Roofline(
        WIDTH,
        HEIGHT,
        LEFT,
        HEIGHT - BOTTOM,
        tuple(_ticks(scale.x_low, scale.x_high, scale.x)),
        tuple(_ticks(scale.y_low, scale.y_high, scale.y)),
        tuple(_ceilings(slopes, peaks, scale)),
        points,
        tuple(rows[:LISTED]),
        "; ".join(notes),
    )


def compute_ceilings(machine: Target, dtype: str) -> dict[str, float]:
    """Return the operations per second of all units of a machine: of products in a program's dtype, and element-wise.
    """
    units, sockets = machine.units, machine.sockets.value
    simd = units.pcus.value * units.simd_lanes.value * units.simd_stages.value * units.clock.value
    products = units.bf16_flops if dtype == "bf16" else units.f32_flops
    return {f"{dtype} products": products.value * sockets, "element-wise": simd * sockets}


def _row(graph: KernelGraph, node: Node, peaks: Mapping[str, float], bandwidth: float) -> Row:
    moves = node.memory_bytes
    intensity = node.operations / moves if moves and node.operations else None
    peak = max(peaks.values())
    roof = peak if intensity is None else min(peak, intensity * bandwidth)
    rate = node.operations / node.seconds
    return Row(
        graph.entry, graph.name, node.name, node.kind, node.seconds, node.operations, moves, intensity, rate, roof,
        node.bound,
    )  # fmt: skip


@dataclass(frozen=True)
class _Scale:
    """Conversion of powers of ten to coordinates."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int

    @classmethod
    def around(cls, rows: list[Row], peaks: Mapping[str, float], bandwidth: float) -> _Scale:
        intensities = [row.intensity for row in rows if row.intensity] or [1.0]
        ridge = max(peaks.values()) / bandwidth
        rates = [row.rate for row in rows] or [min(peaks.values())]
        x_low, x_high = _floor(min(*intensities, 0.1)), _ceil(max(*intensities, 4 * ridge))
        return cls(x_low, x_high, _floor(min(rates)), _ceil(2 * max(*rates, *peaks.values())))

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _floor(value: float) -> int:
    return math.floor(math.log10(value))


def _ceil(value: float) -> int:
    return math.ceil(math.log10(value))


def _ticks(low: int, high: int, place: Callable[[float], float]) -> Iterator[Tick]:
    for power in range(low, high + 1):
        yield Tick(place(10.0**power), _power(power))


def _power(power: int) -> str:
    """Return a power of ten as an axis label: "0.1", "10", "100 G"."""
    prefix = {0: "", 1: " K", 2: " M", 3: " G", 4: " T", 5: " P", 6: " E"}.get(power // 3)
    return f"{10.0**power:g}" if prefix is None else f"{10 ** (power % 3)}{prefix}"


def _ceilings(slopes: Mapping[str, float], peaks: Mapping[str, float], scale: _Scale) -> Iterator[Ceiling]:
    highest, lowest_x, highest_x = max(peaks.values()), 10.0**scale.x_low, 10.0**scale.x_high
    lowest_y = 10.0**scale.y_low
    for label, rate in slopes.items():
        start, end = max(lowest_x, lowest_y / rate), min(highest / rate, highest_x)
        if end <= start:
            continue
        points = tuple((scale.x(x), scale.y(x * rate)) for x in (start, end))
        (x, y), (x2, y2) = points
        angle = math.degrees(math.atan2(y2 - y, x2 - x))
        named = f"{label} {rate / 1e9:,.4g} GB/s"
        yield Ceiling("bandwidth", named, points, x + 0.3 * (x2 - x), y + 0.3 * (y2 - y) - 6, angle)
    labels: list[tuple[float, str]] = []
    for name, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        ridge, end, y = scale.x(max(lowest_x, peak / max(slopes.values()))), scale.x(highest_x), scale.y(peak)
        label = f"{name} {_rate(peak)}"
        if labels and y - labels[-1][0] < LINE:  # too close to the previous label
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {label}")
        else:
            labels.append((y, label))
        yield Ceiling("compute", "", ((ridge, y), (end, y)), end - 4, y - 6, 0.0)
    for y, label in labels:
        yield Ceiling("compute", label, (), scale.x(highest_x) - 4, y - 6, 0.0)


def _point(row: Row, scale: _Scale, longest: float, named: bool) -> Point:
    assert row.intensity is not None
    radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(row.seconds / longest)
    hint = (
        f"{row.entry}: {row.stage}\n{row.intensity:.3g} operations a byte, {_rate(row.rate)}\n"
        f"{format_bytes(row.memory_bytes)} in {format_seconds(row.seconds)}, {row.bound}"
    )
    x = scale.x(row.intensity)
    return Point(row.entry, row.kind, x, scale.y(row.rate), radius, row.stage * named, x > 0.72 * WIDTH, hint)


def _apart(points: list[Point]) -> tuple[Point, ...]:
    """Return the points with names only where these do not overlap others; the last points come first."""
    taken: list[tuple[float, float, float]] = []
    placed: list[Point] = []
    for point in reversed(points):
        near = [p for p in points if p.entry == point.entry and abs(p.x - point.x) + abs(p.y - point.y) < TOGETHER]
        name = point.name and f"{point.name}{f' and {len(near) - 1} more' * (len(near) > 1)}"
        width = LETTER * len(name) + 2 * point.radius + 10
        begin = point.x - width if point.left else point.x
        free = all(abs(point.y - y) > LINE or begin > end or begin + width < start for start, end, y in taken)
        if name and free:
            taken.append((begin, begin + width, point.y))
        placed.append(replace(point, name=name * free))
    return tuple(reversed(placed))


def _rate(rate: float) -> str:
    for unit, size in (("Pop/s", 1e15), ("Top/s", 1e12), ("Gop/s", 1e9), ("Mop/s", 1e6)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g} op/s"


