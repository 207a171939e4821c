"""Schedule kernels from their layouts: stages get ports, that is, slots of streams and the buffers they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from sscc.compiler.emit.layout import KernelLayout, StageLayout, Stream
from sscc.ir import schedule as sch
from sscc.ir.errors import ErrorKind, InternalError


class KernelEmissionErrors(ErrorKind):
    CARRIED_VALUE = InternalError, "kernel {kernel!r}: a loop of unknown length carries a value on chip"


@dataclass
class BodyTable:
    """The bodies of a program. Equal bodies are stored once, under the name of the first."""

    by_content: dict[sch.Body, str] = field(default_factory=dict)
    by_name: dict[str, sch.Body] = field(default_factory=dict)

    def add(self, body: sch.Body) -> str:
        content = replace(body, name="", location="")
        if content not in self.by_content:
            name = body.name
            while name in self.by_name:
                name = f"{body.name}.{len(self.by_name)}"
            self.by_content[content] = name
            self.by_name[name] = replace(body, name=name)
        return self.by_content[content]


def emit_kernel(layout: KernelLayout, bodies: BodyTable) -> sch.Kernel:
    """Return the kernel of a layout; its bodies are added to `bodies`.

    Raises:
        InternalError: a loop of unknown length carries a value on the chip.
    """

    def emitted(item: sch.Item) -> sch.Item:
        if isinstance(item, sch.For | sch.If):
            return replace(item, body=tuple(map(emitted, item.body)))
        return _pipeline(item, layout, bodies) if isinstance(item, sch.Pipeline) else item

    control = tuple(map(emitted, layout.control))
    return sch.Kernel(layout.name, layout.params, layout.scalars, control, layout.location)


def _pipeline(pipeline: sch.Pipeline, layout: KernelLayout, bodies: BodyTable) -> sch.Pipeline:
    lower, upper, streams = pipeline.lower, pipeline.upper, layout.streams[pipeline.name]
    count = upper - lower if isinstance(lower, int) and isinstance(upper, int) else None
    if count is None and any(stream.kind in ("early", "carried") for stream in streams.values()):
        raise KernelEmissionErrors.CARRIED_VALUE(kernel=layout.name)
    stages = tuple(_stage(stage, bodies, streams, count or 0) for stage in layout.stages[pipeline.name])
    return replace(pipeline, buffers=tuple(stream.buffer for stream in streams.values()), stages=stages)


def _stage(stage: StageLayout, bodies: BodyTable, streams: Mapping[str, Stream], count: int) -> sch.Stage:
    """Return a stage of a pipeline of `count` iterations."""
    reads = [_port(view, stage, streams.get(view.tensor), count, written=False) for view in stage.reads]
    writes = [_port(view, stage, streams.get(view.tensor), count, written=True) for view in stage.writes]
    ports = (*reads, *writes)
    waits = tuple(dict.fromkeys(port.view.tensor for port in ports if port.per))
    body = bodies.add(stage.body)
    return sch.Stage(stage.name, body, stage.grid, ports, stage.scalars, waits, stage.when, pcus=stage.pcus)


def _port(view: sch.View, stage: StageLayout, stream: Stream | None, count: int, *, written: bool) -> sch.Port:
    """Return a port. A slot is one tile, or the result of all firings of an iteration; a value that is loaded early is
    one slot for all iterations. An iteration writes its carried value to the next slot; the store behind the last
    iteration reads that slot."""
    if stream is None:
        return sch.Port(view)
    per = 1 if stream.kind == "tile" else prod(stage.grid)
    if stream.kind == "early" and stage.when == "each":
        per *= count
    handed = stream.kind == "carried" and stage.when == ("each" if written else "last")
    return sch.Port(view, per, 0 if not handed else 1 if written else count)
