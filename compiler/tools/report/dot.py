"""The graph of a program as Graphviz text, with a cluster for each kernel and pipeline. `dot -Tsvg` draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sscc.compiler.tools.report.graph import KernelGraph, Node, Stream
from sscc.ir.sizes import format_bytes, format_seconds

SHAPES = {"product": "box", "cache": "box3d", "elementwise": "ellipse", "exchange": "hexagon", "copy": "cds"}


def dot_text(name: str, kernels: Sequence[KernelGraph]) -> str:
    """Return the kernels of all entries as one directed graph; streams to the next iteration are dashed."""
    lines = [f"digraph {_quoted(name)} {{", '  node [fontname="sans-serif", fontsize=10];']
    lines += ['  edge [fontname="sans-serif", fontsize=9];', "  compound=true;"]
    for number, kernel in enumerate(kernels):
        lines += [f"  {line}" for line in _kernel(number, kernel)]
    return "\n".join([*lines, "}"]) + "\n"


def _kernel(number: int, kernel: KernelGraph) -> Iterator[str]:
    launches = f"{kernel.launches} launch{'es' * (kernel.launches > 1)}"
    title = f"{kernel.entry}: {kernel.name}, {launches}, {format_seconds(kernel.seconds)}"
    yield f"subgraph cluster_{number} {{"
    yield f"  label={_quoted(title)};"
    for index, pipeline in enumerate(kernel.pipelines):
        names = {node.name: f"n{number}_{index}_{at}" for at, node in enumerate(pipeline.nodes)}
        yield f"  subgraph cluster_{number}_{index} {{"
        yield f"    label={_quoted(', '.join([*pipeline.loops, pipeline.iterations]))};"
        for node in pipeline.nodes:
            yield f"    {names[node.name]} [label={_quoted(_label(node))}, shape={SHAPES[node.kind]}];"
        for stream in pipeline.streams:
            yield f"    {names[stream.source]} -> {names[stream.target]} [{_edge(stream)}];"
        yield "  }"
    yield "}"


def _label(node: Node) -> str:
    tiles = f"{node.tiles} tiles, " if node.tiles > 1 else ""
    lines = [node.name, f"{tiles}{node.pcus or 'all'} PCUs", *(f"{a.verb} {a.name}" for a in node.accesses)]
    return "\n".join(lines)


def _edge(stream: Stream) -> str:
    slots = f" x{stream.slots}" if stream.slots > 1 else ""
    style = ", style=dashed, constraint=false" if stream.carried else ""
    return f"label={_quoted(format_bytes(stream.slot_bytes) + slots)}{style}"


def _quoted(text: str) -> str:
    r"""Return a string of the DOT language: quotes and backslashes are escaped, and line breaks become \n."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
