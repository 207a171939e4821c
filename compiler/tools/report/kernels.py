"""Drawings of kernels: a card for each stage, and a line for each stream between two stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sscc.compiler.tools.report.graph import Access, KernelGraph, Node, PipelineGraph, Stream, kernel_graphs
from sscc.compiler.tools.report.graph_layout import Point, place
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.sizes import format_bytes, format_seconds

DRAWN = 8
"""Maximum number of kernels drawn per entry: the slowest ones with several stages. The table lists all kernels."""
LARGEST = 160
"""Maximum number of stages of a pipeline that is drawn."""

WIDTH, HEAD, ROW, FOOT = 224.0, 64.0, 16.0, 6.0
ROWS = 6
MARGIN, RAIL = 8.0, 26.0
LETTERS = 30


@dataclass(frozen=True)
class Row:
    """A line of a card.

    Attributes:
        verb: verb of the `Access`.
        hint: full text for a tooltip.
    """

    verb: str
    text: str
    hint: str


@dataclass(frozen=True)
class Card:
    """A stage in the drawing.

    Attributes:
        share: time of the stage relative to the busiest stage of the pipeline, 0 .. 1.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str
    units: str
    time: str
    share: float
    rows: tuple[Row, ...]
    hint: str


@dataclass(frozen=True)
class Wire:
    """A stream in the drawing.

    Attributes:
        path: path in SVG's syntax.
        x, y: position of its label.
    """

    path: str
    label: str
    x: float
    y: float
    hint: str
    carried: bool


@dataclass(frozen=True)
class Drawing:
    """The drawing of a pipeline.

    Attributes:
        heading: description of the pipeline and the loops around it.
        left_out: reason why nothing is drawn, or "".
    """

    heading: str
    width: float
    height: float
    cards: tuple[Card, ...]
    wires: tuple[Wire, ...]
    left_out: str = ""


@dataclass(frozen=True)
class DrawnKernel:
    graph: KernelGraph
    drawings: tuple[Drawing, ...]
    note: str
    time: str


@dataclass(frozen=True)
class EntryKernels:
    """Kernels of an entry: those to draw in the order of their launches, and all of them for a table."""

    entry: str
    sequence: str
    drawn: tuple[DrawnKernel, ...]
    all: tuple[KernelGraph, ...]
    total: float
    left_out: str


def kernels(sources: Sources) -> tuple[EntryKernels, ...]:
    loops = {(r.entry, r.kernel): r.layers for r in sources.artifact.manifest.looping if r.looped}
    return tuple(_entry(sources, entry, loops) for entry in sources.timings)


def _entry(sources: Sources, entry: str, loops: dict[tuple[str, str], int]) -> EntryKernels:
    timing = sources.timings[entry]
    graphs = kernel_graphs(sources.artifact.program, timing)
    several = [graph for graph in graphs if graph.stages > 1]
    chosen = sorted(several, key=lambda graph: -graph.seconds)[:DRAWN]
    names = {graph.name for graph in chosen}
    drawn = tuple(_drawn(graph, loops) for graph in graphs if graph.name in names)
    single, rest = len(graphs) - len(several), len(several) - len(chosen)
    left_out = [f"{single} with a single stage"] * bool(single) + [f"{rest} shorter ones"] * bool(rest)
    return EntryKernels(
        entry=entry,
        sequence=_sequence(graphs),
        drawn=drawn,
        all=tuple(sorted(graphs, key=lambda graph: -graph.seconds)),
        total=timing.seconds or 1.0,
        left_out="" if not left_out else f"Kernels not drawn: {', '.join(left_out)}.",
    )


def _sequence(graphs: tuple[KernelGraph, ...]) -> str:
    """Return one line with the launches of a call."""
    shown = [f"{graph.name}{f' ({graph.launches} launches)' * (graph.launches > 1)}" for graph in graphs]
    if len(shown) <= DRAWN:
        return " → ".join(shown)
    return f"{len(shown)} kernels, {sum(graph.launches for graph in graphs)} launches"


def _looped(graph: KernelGraph, loops: dict[tuple[str, str], int]) -> int | None:
    """Return the number of layers that a kernel loops over, by its name, which begins with that of a looped kernel."""
    return next((n for (entry, name), n in loops.items() if entry == graph.entry and graph.name.startswith(name)), None)


def _drawn(graph: KernelGraph, loops: dict[tuple[str, str], int]) -> DrawnKernel:
    layers = _looped(graph, loops)
    note = "" if layers is None else f"one launch loops over {layers} layers; one layer is drawn"
    drawings = tuple(_drawing(pipeline) for pipeline in graph.pipelines)
    return DrawnKernel(graph, drawings, note, format_seconds(graph.seconds))


def _drawing(pipeline: PipelineGraph) -> Drawing:
    heading = ", ".join([*pipeline.loops, f"pipeline {pipeline.name} {pipeline.iterations}"])
    if len(pipeline.nodes) > LARGEST:
        reason = f"Not drawn: {len(pipeline.nodes)} stages, more than {LARGEST}. schedule.txt lists them."
        return Drawing(heading, 0, 0, (), (), reason)
    inner = [s for s in pipeline.streams if not s.carried]
    sizes = {node.name: (WIDTH, _height(node)) for node in pipeline.nodes}
    placed = place(sizes, [(s.source, s.target) for s in inner])
    longest = max((node.seconds for node in pipeline.nodes), default=0.0) or 1.0
    cards = {n.name: _card(n, placed.nodes[n.name], sizes[n.name][1], longest) for n in pipeline.nodes}
    carried = [s for s in pipeline.streams if s.carried]
    wires = [*_wires(inner, placed.paths), *_rails(carried, cards, placed.width + MARGIN)]
    rails = RAIL * len({s.name for s in carried})
    width, height = placed.width + 2 * MARGIN + rails + 70 * bool(rails), placed.height + 2 * MARGIN
    return Drawing(heading, width, height, tuple(cards.values()), tuple(wires))


def _height(node: Node) -> float:
    return HEAD + ROW * min(len(node.accesses), ROWS) + FOOT


def _card(node: Node, corner: Point, height: float, longest: float) -> Card:
    tiles = f"{node.tiles} tile{'s' * (node.tiles > 1)}"
    once = "" if node.when == "each" else f", {node.when} iteration"
    pcus = f"{node.pcus} PCUs" if node.pcus else "all PCUs"
    spent = f"{format_seconds(node.seconds)}, {node.bound}" if node.bound else "never fires"
    hint = f"{node.name}\n{node.steps}\n{tiles}{once}, {pcus}\n{spent}\n{node.operations:,} operations"
    return Card(
        x=corner[0] + MARGIN,
        y=corner[1] + MARGIN,
        width=WIDTH,
        height=height,
        kind=node.kind,
        title=shortened(node.name, 27),
        units=f"{tiles}{once} · {pcus}",
        time=spent,
        share=node.seconds / longest,
        rows=tuple(_rows(node)),
        hint=f"{hint}\n{node.location}".rstrip(),
    )


def _rows(node: Node) -> Iterator[Row]:
    shown = node.accesses if len(node.accesses) <= ROWS else node.accesses[: ROWS - 1]
    for access in shown:
        tiles = f" x{access.tiles}" if access.tiles > 1 else ""
        once = "" if access.when == "each" else f" ({access.when})"
        text = shortened(access.name, LETTERS - len(tiles) - len(once))
        yield Row(access.verb, f"{text}{tiles}{once}", _access_hint(access))
    rest = node.accesses[len(shown) :]
    if rest:
        yield Row("reads", f"and {len(rest)} more", "\n".join(access.name for access in rest))


def _access_hint(access: Access) -> str:
    if not access.stage:
        return f"{access.verb} {access.name} in memory, in place"
    tiles = f"{access.tiles} tile{'s' * (access.tiles > 1)}"
    each = {"each": "every iteration", "first": "before the first iteration", "last": "after the last iteration"}
    stream = _slots(access.slots, access.slot_bytes)
    moved = "" if access.nbytes is None else f"; {format_bytes(access.nbytes)} per call"
    return f"{access.verb} {access.name}: {tiles} {each[access.when]}, through {stream}{moved}"


def _slots(count: int, nbytes: int) -> str:
    return f"{count} slot{'s' * (count > 1)} of {format_bytes(nbytes)}"


def _hint(stream: Stream) -> str:
    slots = _slots(stream.slots, stream.slot_bytes)
    later = ", carried to the next iteration" if stream.carried else ""
    return f"{stream.name}: {stream.element}, {slots}{later}\n{stream.source} → {stream.target}"


def _wires(streams: list[Stream], paths: Mapping[tuple[str, str], tuple[Point, ...]]) -> Iterator[Wire]:
    """Yield one line for each pair of stages, even if several streams connect them."""
    pairs: dict[tuple[str, str], list[Stream]] = {}
    for stream in streams:
        pairs.setdefault((stream.source, stream.target), []).append(stream)
    for pair, group in pairs.items():
        points = [(x + MARGIN, y + MARGIN) for x, y in paths[pair]]
        (x, y), (x2, y2) = points[:2]
        label = format_bytes(group[0].slot_bytes) + (f" x{group[0].slots}" if group[0].slots > 1 else "")
        yield Wire(_curve(points), label, (x + x2) / 2, (y + y2) / 2, "\n".join(map(_hint, group)), False)


def _curve(points: list[Point]) -> str:
    parts = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x, y), (x2, y2) in itertools.pairwise(points):
        middle = (y + y2) / 2
        parts.append(f"C{x:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}")
    return " ".join(parts)


def _rails(streams: list[Stream], cards: dict[str, Card], right: float) -> Iterator[Wire]:
    """Yield the lines of streams that the next iteration reads. They lead upwards on the right-hand side."""
    names = list(dict.fromkeys(stream.name for stream in streams))
    repeated = [stream for at, stream in enumerate(streams) if stream.name in {s.name for s in streams[:at]}]
    for stream in streams:
        source, target = cards[stream.source], cards[stream.target]
        x = right + RAIL * (names.index(stream.name) + 0.75)
        start, end = source.y + source.height - 12, target.y + 14
        path = (
            f"M{source.x + source.width:.1f},{start:.1f} H{x - 8:.1f} Q{x:.1f},{start:.1f} {x:.1f},{start - 8:.1f} "
            f"V{end + 8:.1f} Q{x:.1f},{end:.1f} {x - 8:.1f},{end:.1f} H{target.x + target.width:.1f}"
        )
        label = stream.name * (stream not in repeated)
        yield Wire(path, label, x + 5, (start + end) / 2, _hint(stream), True)


def shortened(name: str, letters: int) -> str:
    """Shorten a name at its beginning, by whole parts if possible, because its end is more informative."""
    if len(name) <= letters:
        return name
    tail = name[1 - letters :]
    return f"…{tail.partition('.')[2] or tail}" if "." in tail[:-8] else f"…{tail}"
