"""Roofline section: arithmetic intensity and modelled rate of each stage, below the ceilings of the machine.

After Williams, Waterman and Patterson (2009). The operations of a stage are those of its body. Its bytes include its
loads and stores from and to off-chip memory, and its time is that of all of them without contention for memory
(`sscc.compiler.tools.report.graph.Node`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sscc.compiler.tools.report.graph import KernelGraph, Node, kernel_graphs
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.sizes import format_bytes, format_seconds
from sscc.ir.target import Target

WIDTH, HEIGHT = 860.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 16.0, 18.0, 46.0
LISTED = 40
NAMED = 7
"""Number of stages per entry that get a label, if there is room: the slowest ones."""
LETTER, LINE = 6.6, 14.0
"""Width of a letter and height of a line of a label."""
TOGETHER = 5.0
"""Distance of points below which they share a label."""
GAP = 5.0
"""Distance of a label from its point."""
SMALLEST, LARGEST = 3.0, 11.0
"""Radii of the smallest and the largest point; radii grow with the square root of the stage's time."""


Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


@dataclass(frozen=True)
class Ceiling:
    """A line of the drawing.

    Attributes:
        points: ends of the line.
    """

    kind: str
    points: tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Label:
    """A text of the drawing.

    Attributes:
        kind: "ceiling" or "point".
        x, y: an end or the middle of its baseline, according to `anchor` (as in SVG).
        angle: clockwise rotation in degrees.
    """

    kind: str
    text: str
    x: float
    y: float
    anchor: str = "start"
    angle: float = 0.0

    def boxes(self) -> tuple[Box, ...]:
        """Return boxes that cover the label: several if it is rotated."""
        width = LETTER * len(self.text)
        if not self.angle:
            begin = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
            return ((begin, self.y - 0.75 * LINE, begin + width, self.y + 0.25 * LINE),)
        turned = math.radians(self.angle)
        boxes = []
        for along in range(0, math.ceil(width), math.ceil(LETTER)):
            x = self.x + along * math.cos(turned) + 0.3 * LINE * math.sin(turned)
            y = self.y + along * math.sin(turned) - 0.3 * LINE * math.cos(turned)
            boxes.append((x - LETTER, y - LINE / 2, x + LETTER, y + LINE / 2))
        return tuple(boxes)


@dataclass(frozen=True)
class Point:
    """A stage of the drawing."""

    entry: str
    kind: str
    x: float
    y: float
    radius: float
    name: str
    hint: str

    def box(self) -> Box:
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        intensity: operations per byte; None without operations or off-chip traffic.
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
    labels: tuple[Label, ...]
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
    longest = max((row.seconds for row in placed), default=1.0)
    points = [_point(row, scale, longest) for row in placed]
    ceilings = tuple(_ceilings(slopes, peaks, scale))
    labels = [*_slope_labels(slopes, ceilings, points), *_peak_labels(peaks, scale, points)]
    labels += _point_labels(points, ceilings, labels)
    unplaced = sum(1 for row in rows if not row.intensity)
    notes = [f"Not drawn: {unplaced} stages without arithmetic or off-chip traffic."] * bool(unplaced)
    notes += [f"Not listed in the table: {len(rows) - LISTED} shorter stages."] * (len(rows) > LISTED)
    return Roofline(
        WIDTH,
        HEIGHT,
        LEFT,
        HEIGHT - BOTTOM,
        tuple(_ticks(scale.x_low, scale.x_high, scale.x)),
        tuple(_ticks(scale.y_low, scale.y_high, scale.y)),
        ceilings,
        tuple(reversed(points)),
        tuple(labels),
        tuple(rows[:LISTED]),
        " ".join(notes),
    )


def compute_ceilings(machine: Target, dtype: str) -> dict[str, float]:
    """Return the peak operations/s of a machine, for matmuls in a program's dtype and for element-wise operations."""
    units, sockets = machine.units, machine.sockets.value
    simd = units.pcus.value * units.simd_lanes.value * units.simd_stages.value * units.clock.value
    products = units.bf16_flops if dtype == "bf16" else units.f32_flops
    return {f"{dtype} matmul": products.value * sockets, "element-wise": simd * sockets}


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
    """Return a power of ten as a tick label: "0.1", "10", "100 G"."""
    prefix = {0: "", 1: " k", 2: " M", 3: " G", 4: " T", 5: " P", 6: " E"}.get(power // 3)
    return f"{10.0**power:g}" if prefix is None else f"{10 ** (power % 3)}{prefix}"


def _ceilings(slopes: Mapping[str, float], peaks: Mapping[str, float], scale: _Scale) -> Iterator[Ceiling]:
    """Yield the line of each memory, in the order of `slopes`, then the lines of the units."""
    highest, lowest_x, highest_x = max(peaks.values()), 10.0**scale.x_low, 10.0**scale.x_high
    lowest_y = 10.0**scale.y_low
    for rate in slopes.values():
        start = max(lowest_x, lowest_y / rate)
        end = max(start, min(highest / rate, highest_x))
        yield Ceiling("bandwidth", ((scale.x(start), scale.y(start * rate)), (scale.x(end), scale.y(end * rate))))
    for peak in sorted(peaks.values(), reverse=True):
        ridge, y = scale.x(max(lowest_x, peak / max(slopes.values()))), scale.y(peak)
        yield Ceiling("compute", ((ridge, y), (scale.x(highest_x), y)))


def _slope_labels(slopes: Mapping[str, float], ceilings: Sequence[Ceiling], points: Sequence[Point]) -> Iterator[Label]:
    """Yield a label along each memory's line, at the position where it covers the fewest points."""
    boxes = [point.box() for point in points]
    for (name, rate), ceiling in zip(slopes.items(), ceilings, strict=False):
        (x, y), (x2, y2) = ceiling.points
        if x2 <= x:
            continue
        angle = math.degrees(math.atan2(y2 - y, x2 - x))
        text = f"{name} {rate / 1e9:,.4g} GB/s"
        labels = [
            Label("ceiling", text, x + share * (x2 - x), y + share * (y2 - y) - 6, angle=angle)
            for share in (0.3, 0.4, 0.5, 0.6, 0.2, 0.1, 0.7)
        ]
        yield min(labels, key=lambda label: sum(_overlap(one, box) for one in label.boxes() for box in boxes))


def _peak_labels(peaks: Mapping[str, float], scale: _Scale, points: Sequence[Point]) -> Iterator[Label]:
    """Yield a label for each line of the units, above or below it, at the position where it covers the fewest points
    and lines. Equal peaks share a line and a label."""
    names: dict[float, list[str]] = {}
    for name, peak in sorted(peaks.items()):
        names.setdefault(peak, []).append(name)
    taken = [point.box() for point in points]
    lines = {peak: (LEFT, scale.y(peak) - 1, WIDTH, scale.y(peak) + 1) for peak in names}
    for peak, peak_names in sorted(names.items(), reverse=True):
        text = f"{' and '.join(peak_names)} {_rate(peak)}"
        labels = [
            Label("ceiling", text, WIDTH - RIGHT - 4 - left, scale.y(peak) + below, "end")
            for left in (0, 40, 80)
            for below in (-6, -4, 0.75 * LINE + 4)
        ]
        others = [*taken, *(line for other, line in lines.items() if other != peak)]
        label = min(labels, key=lambda label: sum(_overlap(one, box) for one in label.boxes() for box in others))
        taken += label.boxes()
        yield label


def _point(row: Row, scale: _Scale, longest: float) -> Point:
    assert row.intensity is not None
    radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(row.seconds / longest)
    hint = (
        f"{row.entry}: {row.stage}\n{row.intensity:.3g} operations per byte, {_rate(row.rate)}\n"
        f"{format_bytes(row.memory_bytes)} in {format_seconds(row.seconds)}, bound by {row.bound}"
    )
    return Point(row.entry, row.kind, scale.x(row.intensity), scale.y(row.rate), radius, row.stage, hint)


def _point_labels(points: Sequence[Point], ceilings: Sequence[Ceiling], labels: Sequence[Label]) -> Iterator[Label]:
    """Yield labels of the first `NAMED` points of each entry. A label covers no point, line or other label; a point
    without room for such a label has none."""
    taken = [box for label in labels for box in label.boxes()]
    taken += [box for ceiling in ceilings for box in _line_boxes(*ceiling.points)]
    names: Counter[str] = Counter()
    labelled: set[int] = set()
    for point in points:
        names[point.entry] += 1
        if names[point.entry] > NAMED or id(point) in labelled:
            continue
        near = {id(p) for p in points if abs(p.x - point.x) + abs(p.y - point.y) < TOGETHER}
        same_entry = [p for p in points if id(p) in near and p.entry == point.entry]
        text = f"{point.name}{f' and {len(same_entry) - 1} more' * (len(same_entry) > 1)}"
        others = taken + [p.box() for p in points if id(p) not in near]
        for label in _places(point, text):
            (box,) = label.boxes()
            inside = box[0] > LEFT and box[2] < WIDTH - RIGHT and box[1] > TOP and box[3] < HEIGHT - BOTTOM
            if inside and not any(_overlap(box, other) for other in others):
                taken.append(box)
                labelled |= {id(p) for p in same_entry}
                yield label
                break


def _places(point: Point, text: str) -> Iterator[Label]:
    """Yield possible labels of a point: beside it, beside and shifted up or down, above it, and below it."""
    side, away = point.radius + GAP, point.radius + 0.25 * LINE + 2
    yield Label("point", text, point.x + side, point.y + 4)
    yield Label("point", text, point.x - side, point.y + 4, "end")
    for shift in (-point.radius, point.radius):
        yield Label("point", text, point.x - side, point.y + 4 + shift, "end")
        yield Label("point", text, point.x + side, point.y + 4 + shift)
    yield Label("point", text, point.x, point.y - away, "middle")
    yield Label("point", text, point.x, point.y + away + 0.5 * LINE, "middle")


def _line_boxes(start: tuple[float, float], end: tuple[float, float]) -> Iterator[Box]:
    (x, y), (x2, y2) = start, end
    count = math.ceil(math.hypot(x2 - x, y2 - y) / 4)
    for at in range(count + 1):
        share = at / max(1, count)
        px, py = x + share * (x2 - x), y + share * (y2 - y)
        yield px - 1, py - 1, px + 1, py + 1


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _rate(rate: float) -> str:
    for unit, size in (("Pop/s", 1e15), ("Top/s", 1e12), ("Gop/s", 1e9), ("Mop/s", 1e6)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g} op/s"
