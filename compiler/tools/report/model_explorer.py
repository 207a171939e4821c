"""The graph of a program for Google's Model Explorer: a graph collection in JSON, with one graph per entry.

https://github.com/google-ai-edge/model-explorer/wiki/6.-Develop-Adapter-Extension describes the fields. A namespace is
a kernel with its pipelines as inner namespaces; an edge is a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sscc.compiler.tools.report.graph import KernelGraph, Node, PipelineGraph
from sscc.ir.sizes import format_bytes, format_seconds


def model_explorer_text(name: str, kernels: Sequence[KernelGraph]) -> str:
    """Return the collection as JSON text that ends with a newline."""
    entries = dict.fromkeys(kernel.entry for kernel in kernels)
    graphs = [_graph(entry, [kernel for kernel in kernels if kernel.entry == entry]) for entry in entries]
    return json.dumps({"label": name, "graphs": graphs}, indent=1) + "\n"


def _graph(entry: str, kernels: list[KernelGraph]) -> dict[str, Any]:
    nodes, groups = [], {}
    for kernel in kernels:
        own = _segment(kernel.name)
        groups[own] = {
            "launches": str(kernel.launches),
            "modelled time": format_seconds(kernel.seconds),
            "units": f"{kernel.pcus} PCUs, {kernel.pmus} PMUs",
            "on-chip memory": format_bytes(kernel.on_chip_bytes),
            "location": kernel.location,
        }
        for pipeline in kernel.pipelines:
            namespace = f"{own}/{_segment(pipeline.name)}"
            groups[namespace] = {"iterations": ", ".join([*pipeline.loops, pipeline.iterations])}
            nodes += list(_nodes(namespace, pipeline))
    return {"id": entry, "nodes": nodes, "groupNodeAttributes": groups}


def _nodes(namespace: str, pipeline: PipelineGraph) -> Iterator[dict[str, Any]]:
    outputs: dict[str, list[str]] = {node.name: [] for node in pipeline.nodes}
    for stream in pipeline.streams:
        if stream.name not in outputs[stream.source]:
            outputs[stream.source].append(stream.name)
    elements = {stream.name: stream for stream in pipeline.streams}
    for node in pipeline.nodes:
        incoming = [stream for stream in pipeline.streams if stream.target == node.name]
        yield {
            "id": f"{namespace}/{node.name}",
            "label": node.name,
            "namespace": namespace,
            "attrs": [{"key": key, "value": value} for key, value in _attributes(node)],
            "incomingEdges": [
                {
                    "sourceNodeId": f"{namespace}/{stream.source}",
                    "sourceNodeOutputId": str(outputs[stream.source].index(stream.name)),
                    "targetNodeInputId": str(at),
                }
                for at, stream in enumerate(incoming)
            ],
            "inputsMetadata": [
                {"id": str(at), "attrs": [{"key": "__tensor_tag", "value": stream.name}]}
                for at, stream in enumerate(incoming)
            ],
            "outputsMetadata": [
                {
                    "id": str(at),
                    "attrs": [
                        {"key": "__tensor_tag", "value": name},
                        {"key": "tensor_shape", "value": elements[name].element},
                        {"key": "slots", "value": str(elements[name].slots)},
                    ],
                }
                for at, name in enumerate(outputs[node.name])
            ],
        }


def _attributes(node: Node) -> Iterator[tuple[str, str]]:
    yield "kind", node.kind
    yield "steps", node.steps
    yield "tiles", str(node.tiles)
    yield "PCUs", str(node.pcus or "all")
    yield "modelled time", format_seconds(node.seconds)
    if node.bound:
        yield "bound by", node.bound
    yield "operations", str(node.operations)
    yield "off-chip bytes", str(node.memory_bytes)
    for number, access in enumerate(node.accesses):
        yield f"memory {number}", f"{access.verb} {access.name}"
    for name in node.carries:
        yield "carried to the next iteration", name
    if node.location:
        yield "location", node.location


def _segment(name: str) -> str:
    """Return a name as one part of a namespace, whose parts are separated by slashes."""
    return name.replace("/", "_")
