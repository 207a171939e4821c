"""Graphs of the kernels of an entry: stages, the streams between them, and their accesses to memory.

A load (a stage that only copies a tile from memory to a stream) is folded into the stages that read the stream, and a
store into the stage that fills it, so that a graph has one node per stage that computes. Costs are those of one call of
the entry in the timing model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sscc.ir.operations import Dequantize, LookUp, TopK
from sscc.ir.opspec import Op
from sscc.ir.schedule import (
    Body,
    Buffer,
    Collective,
    For,
    If,
    Item,
    Kernel,
    Launch,
    Pipeline,
    Port,
    Product,
    Program,
    ScalarOperand,
    Stage,
    Vector,
    When,
    launches,
)
from sscc.ir.target import Target
from sscc.runtime.timing import StageSummary, Timing

Kind = Literal["product", "cache", "elementwise", "exchange", "copy"]
"""Main work of a stage: matmuls; attention and the KV cache; element-wise work and reductions; communication with other
ranks; copying."""

NOT_OF_THE_CACHE = Dequantize, LookUp, TopK
"""Operations that do not belong to the KV cache: those on weights and on scores of experts."""

Verb = Literal["loads", "reads", "updates", "stores", "writes"]


@dataclass(frozen=True)
class Access:
    """An access of a stage to memory: by a load or a store of its own, or in place.

    Attributes:
        name: name of the tensor, in the first launch of the kernel.
        stage: name of the load or store; "" for an access in place.
        tiles: firings of the load or store in an iteration.
        when: as for a stage.
        slots, slot_bytes: size of its stream; 0 if there is none.
        nbytes: bytes moved in a call of the entry; None for an access in place.
    """

    verb: Verb
    name: str
    stage: str = ""
    tiles: int = 1
    when: When = "each"
    slots: int = 0
    slot_bytes: int = 0
    nbytes: int | None = None


@dataclass(frozen=True)
class Node:
    """A stage with its loads and stores.

    Attributes:
        steps: list of the steps of its body, in words.
        tiles: firings in an iteration.
        pcus: compute units; 0 for the whole machine.
        seconds: time of the stage with its loads and stores in a call of the entry, without contention for memory: the
            longest busy time of one of them, or the transfer time of the bytes of all.
        bound: limit of that time ("compute", "firings", or transfers: "memory", "links" to other ranks, "chip"); "" if
            it never fires.
        operations: operations of a call.
        memory_bytes: bytes moved from and to off-chip memory, including loads and stores.
        carries: streams that the next iteration reads.
    """

    name: str
    kind: Kind
    steps: str
    location: str
    tiles: int
    when: When
    pcus: int
    accesses: tuple[Access, ...]
    seconds: float
    bound: str
    operations: int
    memory_bytes: int
    carries: tuple[str, ...]


@dataclass(frozen=True)
class Stream:
    """A buffer from one stage to another.

    Attributes:
        carried: True if the next iteration reads it.
    """

    source: str
    target: str
    name: str
    element: str
    slots: int
    slot_bytes: int
    carried: bool


@dataclass(frozen=True)
class PipelineGraph:
    """The graph of a pipeline.

    Attributes:
        loops: descriptions of the loops around it, outermost first.
        iterations: description of its own iterations.
    """

    name: str
    loops: tuple[str, ...]
    iterations: str
    nodes: tuple[Node, ...]
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class KernelGraph:
    """A kernel in one call of an entry.

    Attributes:
        seconds: time of all its launches.
        pcus, pmus: units per socket.
    """

    entry: str
    name: str
    location: str
    launches: int
    seconds: float
    pcus: int
    pmus: int
    on_chip_bytes: int
    bound: str
    slowest: str
    pipelines: tuple[PipelineGraph, ...]

    @property
    def stages(self) -> int:
        """Number of nodes in all pipelines."""
        return sum(len(pipeline.nodes) for pipeline in self.pipelines)


def kernel_graphs(program: Program, timing: Timing) -> tuple[KernelGraph, ...]:
    """Return the kernels that an entry launches, each once, in the order of their first launches."""
    kernels = {kernel.name: kernel for kernel in program.kernels}
    summaries = {summary.name: summary for summary in timing.kernels()}
    first: dict[str, Launch] = {}
    for launch in launches(program.entry(timing.entry).body):
        first.setdefault(launch.kernel, launch)
    builder = _Builder(program, timing)
    return tuple(
        KernelGraph(
            entry=timing.entry,
            name=name,
            location=summary.location,
            launches=summary.launches,
            seconds=summary.seconds,
            pcus=summary.pcus,
            pmus=summary.pmus,
            on_chip_bytes=summary.on_chip_bytes,
            bound=summary.bound,
            slowest=summary.slowest,
            pipelines=tuple(builder.pipelines(kernels[name], launch)),
        )
        for name, launch in first.items()
        if (summary := summaries.get(name)) is not None
    )


class _Builder:
    def __init__(self, program: Program, timing: Timing) -> None:
        self._bodies = {body.name: body for body in program.bodies}
        self._target: Target = timing.target
        self._timed = {(s.kernel, s.pipeline, s.stage): s for s in timing.stages()}

    def pipelines(self, kernel: Kernel, launch: Launch) -> Iterator[PipelineGraph]:
        names = {param.name: view.tensor for param, view in zip(kernel.params, launch.args, strict=True)}
        for pipeline, loops in _pipelines(kernel.body, ()):
            timed = {s.name: self._timed.get((kernel.name, pipeline.name, s.name)) for s in pipeline.stages}
            yield _Pipeline(pipeline, self._bodies, names, timed, self._target).graph(loops)


def _pipelines(items: Sequence[Item], loops: tuple[str, ...]) -> Iterator[tuple[Pipeline, tuple[str, ...]]]:
    for item in items:
        if isinstance(item, Pipeline):
            yield item, loops
        elif isinstance(item, For):
            yield from _pipelines(item.body, (*loops, f"for {item.index} in {_span(item.lower, item.upper)}"))
        elif isinstance(item, If):
            yield from _pipelines(item.body, (*loops, f"if {item.condition}"))


def _span(lower: ScalarOperand, upper: ScalarOperand) -> str:
    return f"{lower} .. {upper}"


class _Pipeline:
    """One pipeline. Stages are identified by their names, which are unique within it."""

    def __init__(
        self,
        pipeline: Pipeline,
        bodies: Mapping[str, Body],
        names: Mapping[str, str],
        timed: Mapping[str, StageSummary | None],
        target: Target,
    ) -> None:
        self._pipeline, self._bodies, self._names, self._timed = pipeline, bodies, names, timed
        self._target, self._memories = target, [level.name for level in target.memories]
        self._buffers = {buffer.name: buffer for buffer in pipeline.buffers}
        self._stages = {stage.name: stage for stage in pipeline.stages}
        self._writers: dict[str, list[str]] = {name: [] for name in self._buffers}
        self._readers: dict[str, list[str]] = {name: [] for name in self._buffers}
        for stage in pipeline.stages:
            for access, port in self._ports(stage):
                if port.view.tensor in self._buffers:
                    users = self._readers if access == "read" else self._writers
                    users[port.view.tensor].append(stage.name)
        self._folded = self._fold()

    def graph(self, loops: tuple[str, ...]) -> PipelineGraph:
        p = self._pipeline
        nodes = tuple(self._node(stage) for stage in p.stages if stage.name not in self._folded)
        span = f"for {p.index} in {_span(p.lower, p.upper)}"
        return PipelineGraph(p.name, loops, span, nodes, tuple(self._streams()))

    def _ports(self, stage: Stage) -> Iterator[tuple[str, Port]]:
        params = self._bodies[stage.body].params
        return ((param.access, port) for param, port in zip(params, stage.ports, strict=True))

    def _copied(self, stage: Stage) -> tuple[str, str] | None:
        """Return the source and the destination of a stage that only copies; None for any other stage."""
        body = self._bodies[stage.body]
        if not _is_copy(body) or len(body.params) != 2:
            return None
        (first, a), (second, b) = self._ports(stage)
        if {first, second} != {"read", "write"}:
            return None
        return (a.view.tensor, b.view.tensor) if first == "read" else (b.view.tensor, a.view.tensor)

    def _fold(self) -> dict[str, str]:
        """Return the loads and stores to fold into other stages, each with the stream that it fills or drains."""
        copies = {name: copied for name, stage in self._stages.items() if (copied := self._copied(stage))}
        loads = {name: to for name, (of, to) in copies.items() if of in self._names and to in self._buffers}
        stores = {name: of for name, (of, to) in copies.items() if to in self._names and of in self._buffers}
        stores = {name: stream for name, stream in stores.items() if {*self._writers[stream]} - {*loads}}
        loads = {name: stream for name, stream in loads.items() if {*self._readers[stream]} - {*stores}}
        return {**loads, **stores}

    def _node(self, stage: Stage) -> Node:
        body = self._bodies[stage.body]
        own = self._timed[stage.name]
        accesses = tuple(dict.fromkeys(self._accesses(stage)))
        parts = [own, *(self._timed[access.stage] for access in accesses if access.stage)]
        timed = [part for part in parts if part is not None]
        longest = max(timed, key=lambda part: part.busy_seconds, default=None)
        moved: dict[str, int] = {t: sum(part.nbytes.get(t, 0) for part in timed) for t in self._memories}
        transfers = self._target.seconds(moved)
        busy = 0.0 if longest is None else longest.busy_seconds
        bound = "" if longest is None else longest.bound
        if bound == "memory" and not any(moved.values()):
            bound = "links" if kind_of(body) == "exchange" else "chip"
        return Node(
            name=stage.name,
            kind=kind_of(body),
            steps=_steps(body),
            location=body.location,
            tiles=stage.trips,
            when=stage.when,
            pcus=stage.pcus,
            accesses=accesses,
            seconds=max(busy, transfers),
            bound="memory" if transfers > busy else bound,
            operations=0 if own is None else own.operations,
            memory_bytes=sum(moved.values()),
            carries=tuple(
                port.view.tensor
                for access, port in self._ports(stage)
                if access != "read" and port.lag and port.view.tensor in self._buffers
            ),
        )

    def _accesses(self, stage: Stage) -> Iterator[Access]:
        for access, port in self._ports(stage):
            region = port.view.tensor
            if region in self._names:
                verbs: dict[str, Verb] = {"read": "reads", "update": "updates", "write": "writes"}
                yield Access(verbs[access], self._names[region])
                continue
            users, verb = (self._writers, "loads") if access == "read" else (self._readers, "stores")
            for name in users[region]:
                if name in self._folded:
                    yield self._through(name, "loads" if verb == "loads" else "stores", self._buffers[region])

    def _through(self, name: str, verb: Verb, buffer: Buffer) -> Access:
        """Return a load or a store."""
        stage, timed = self._stages[name], self._timed[name]
        copied = self._copied(stage)
        assert copied is not None
        tensor = self._names[copied[0] if verb == "loads" else copied[1]]
        moved = 0 if timed is None else sum(timed.nbytes.get(tier, 0) for tier in self._memories)
        return Access(verb, tensor, name, stage.trips, stage.when, buffer.depth, buffer.slot_bytes, moved)

    def _streams(self) -> Iterator[Stream]:
        for buffer in self._pipeline.buffers:
            writers = [name for name in self._writers[buffer.name] if name not in self._folded]
            readers = [name for name in self._readers[buffer.name] if name not in self._folded]
            element = f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
            for writer in dict.fromkeys(writers):
                carried = buffer.name in self._carried(writer)
                for reader in dict.fromkeys(readers):
                    if reader != writer or carried:
                        yield Stream(
                            writer, reader, buffer.name, element, buffer.depth, buffer.slot_bytes, carried
                        )

    def _carried(self, stage: str) -> set[str]:
        ports = self._ports(self._stages[stage])
        return {port.view.tensor for access, port in ports if access != "read" and port.lag}


def kind_of(body: Body) -> Kind:
    """Return the main work of a body."""
    if any(isinstance(step, Op) and not isinstance(step, NOT_OF_THE_CACHE) for step in body.steps):
        return "cache"
    if any(isinstance(step, Collective) for step in body.steps):
        return "exchange"
    if any(isinstance(step, Product) for step in body.steps):
        return "product"
    return "copy" if _is_copy(body) else "elementwise"


def _is_copy(body: Body) -> bool:
    if len(body.steps) != 1:
        return False
    (step,) = body.steps
    return isinstance(step, Vector) and not step.body and step.result == "in0" and len(step.inputs) == 1


def _steps(body: Body) -> str:
    counts = Counter(step.kind for step in body.steps)
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in counts.items())
