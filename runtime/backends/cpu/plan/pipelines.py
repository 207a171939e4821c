"""Translation of a pipeline to items of the plan: places of buffers, order of stages, arguments of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from sscc.ir.operations import ChunkAttention, LatentChunkAttention, QueryAttention
from sscc.ir.schedule import DTYPE_BYTES, Kernel, Pipeline, ScalarOperand, Tensor, View
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.codegen.bodies import Variant
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import REPLICATED_ELEMENTS
from sscc.runtime.backends.cpu.codegen.nests import Strides
from sscc.runtime.backends.cpu.codegen.refusal import NoNativeStage
from sscc.runtime.backends.cpu.plan import plan as plans
from sscc.runtime.backends.cpu.plan.barriers import Span
from sscc.runtime.backends.cpu.plan.buffer_slots import Slots, slots_of
from sscc.runtime.backends.cpu.plan.collectives import boxes_of, part_bytes
from sscc.runtime.backends.cpu.plan.draft import INBOX, OUTBOX, PRIVATE, WORKSPACE, Track
from sscc.runtime.backends.cpu.plan.stages import (
    BufferPort,
    MemoryPort,
    ResolvedStage,
    compose,
    feeds,
    firings,
    resolve_stages,
)
from sscc.runtime.backends.cpu.plan.storage import PanelPacking


class NativePipelineErrors(NoNativeStage):
    WAITS_FOR_LATER = "it reads data that a later iteration writes"
    SEVERAL_ITERATIONS = "it fills slots of several iterations before or after all of them"
    WINDOW = "its window of {tensor!r} is not an affine view of the launch's argument"


def plan_pipeline(track: Track, call: KernelCall, pipeline: Pipeline, env: Mapping[str, int]) -> list[plans.Item]:
    """Return the plan's items for a pipeline.

    Args:
        call: launch of the kernel that has the pipeline.
        env: registers of the kernel's scalars.

    Raises InputError for a pipeline that native execution does not support (`NoNativeStage`).
    """
    return _PipelinePlan(track, call, pipeline, env).run()


@dataclass(frozen=True)
class _Pointer:
    """Argument of a run, with its region by name: offset and extent in bytes, terms over registers, and the span of
    memory that it may access."""

    region: str
    offset: int
    extent: int
    terms: tuple[tuple[int, int], ...]
    span: Span


@dataclass(frozen=True)
class KernelCall:
    """Kernel of a launch, with the view that is passed for each parameter and its terms over registers."""

    kernel: Kernel
    views: Mapping[str, View]
    terms: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class _Chunk:
    """Part of a prompt that an iteration processes: positions start .. start + positions - 1. Positions from `length`
    on are padding."""

    start: ScalarOperand
    length: ScalarOperand
    positions: int


class _PipelinePlan:
    def __init__(self, track: Track, kernel: KernelCall, pipeline: Pipeline, env: Mapping[str, int]) -> None:
        self.track = track
        self.draft = track.draft
        self.kernel = kernel
        self.pipeline = pipeline
        self.env = dict(env)
        self.where = f"{kernel.kernel.name}.{pipeline.name}"
        self.stages = self._ordered(
            resolve_stages(kernel.kernel, pipeline, self.draft.bodies, self.draft.aliased[kernel.kernel.name])
        )
        self.trips = _static_trips(pipeline)
        self.used = 0
        self.private_used = 0
        self.generation: dict[tuple[int, int], int] = {}
        replicated = self._replicated()
        self.replicated = {s.stage.name for s in replicated}
        self.chunk = next((c for s in self.stages if (c := _chunk_of(s)) is not None), None)
        self.live: tuple[int, int] | None = None  # positions of a chunk, register with those not padding
        self.slots = self._layout({p.buffer for s in replicated for p in _written(s)})

    def _ordered(self, stages: list[ResolvedStage]) -> list[ResolvedStage]:
        """Return the stages in an order in which each one comes after those whose output it reads in the same
        iteration. The schedule's order is kept where it satisfies this."""
        ordered: list[ResolvedStage] = []
        left = list(stages)
        while left:
            ready = next((s for s in left if not any(self._feeds(other, s) for other in left if other is not s)), None)
            if ready is None:
                raise NativePipelineErrors.WAITS_FOR_LATER(stage=left[0].stage.name, pipeline=self.where)
            ordered.append(ready)
            left.remove(ready)
        return ordered

    def _feeds(self, writer: ResolvedStage, reader: ResolvedStage) -> bool:
        return feeds(writer.stage, reader.stage, self.draft.bodies)

    # -- memory layout

    def _replicated(self) -> list[ResolvedStage]:
        """Return the cheap stages that write only to buffers. Every thread computes them for itself, which saves a
        barrier."""
        writers: dict[str, int] = {}
        for stage in self.stages:
            for port in _written(stage):
                writers[port.buffer] = writers.get(port.buffer, 0) + 1
        replicated = []
        for stage in self.stages:
            outputs = [
                (port, param)
                for port, param in zip(stage.ports, stage.body.params, strict=True)
                if param.access != "read"
            ]
            single_writer = all(isinstance(p, BufferPort) and writers[p.buffer] == 1 and not p.lag for p, _ in outputs)
            small = sum(prod(param.shape) for _, param in outputs) * stage.stage.trips <= REPLICATED_ELEMENTS
            affine = all(step.kind in ("vector", "reduction") for step in stage.body.steps)
            if outputs and single_writer and small and affine:
                replicated.append(stage)
        return replicated

    def _layout(self, private: set[str]) -> dict[str, Slots]:
        ports: dict[str, list[tuple[ResolvedStage, BufferPort, bool]]] = {}
        for stage in self.stages:
            for port, param in zip(stage.ports, stage.body.params, strict=True):
                if isinstance(port, BufferPort):
                    ports.setdefault(port.buffer, []).append((stage, port, param.access != "read"))
        slots: dict[str, Slots] = {}
        for buffer in self.pipeline.buffers:
            if buffer.name in ports:
                own, size = buffer.name in private, align(buffer.slot_bytes)
                offset = self.private_used if own else self.used
                slots[buffer.name] = memory = slots_of(ports[buffer.name], offset, size, private=own)
                if own:
                    self.private_used += memory.nbytes
                else:
                    self.used += memory.nbytes
        return slots

    # -- control

    def run(self) -> list[plans.Item]:
        draft, pipeline = self.draft, self.pipeline
        lower, upper = draft.operand(pipeline.lower, self.env), draft.operand(pipeline.upper, self.env)
        once = self.trips == 1
        index = lower if once else draft.register()
        self.env[pipeline.index] = index
        items: list[plans.Item] = []
        if once:
            for when in ("first", "each", "last"):
                items += self._iteration(when, lower, scalars=when == "first")
            self._close(items)
            return items
        first = [s for s in self.stages if s.stage.when == "first"]
        last = [s for s in self.stages if s.stage.when == "last"]
        if first:
            start = draft.compute("add", lower, draft.constant(0))
            self.env[pipeline.index] = start.target
            items += [start, *self._iteration("first", lower, scalars=True)]
            self.env[pipeline.index] = index
        items += self.track.loop(index, lower, upper, lambda: self._iteration("each", lower, scalars=True))
        if last:
            end = draft.compute("sub", upper, draft.constant(1))
            self.env[pipeline.index] = end.target
            items += [end, *self._iteration("last", lower, scalars=True)]
        some = draft.compute("lt", lower, upper)
        branch = plans.Branch(some.target, tuple(items))
        out: list[plans.Item] = [some, branch]
        self._close(out)
        return out

    def _close(self, items: list[plans.Item]) -> None:
        """End the pipeline with a barrier, because the next pipeline uses the same workspace."""
        items += self.track.settle()
        self.draft.workspace_bytes = max(self.draft.workspace_bytes, align(self.used))
        self.draft.private_bytes = max(self.draft.private_bytes, align(self.private_used))

    def _iteration(self, when: str, lower: int, *, scalars: bool) -> list[plans.Item]:
        items: list[plans.Item] = []
        if scalars:
            for scalar in self.pipeline.scalars:
                items.append(self.track.scalar(scalar, self.env))
        if when == "each":
            items += self._generations(lower) + self._live_positions()
        for stage in self.stages:
            if stage.stage.when == when:
                items += self._stage(stage)
        return items

    def _generations(self, lower: int) -> list[plans.Item]:
        """Compute registers with the slot generation of an iteration, for buffers with several generations."""
        draft = self.draft
        items: list[plans.Item] = []
        number = None
        for stage in self.stages:
            for port in stage.ports:
                if not isinstance(port, BufferPort) or stage.stage.when != "each":
                    continue
                slots = self.slots[port.buffer]
                key = (slots.ahead(port), slots.generations)
                if slots.generations == 1 or key in self.generation:
                    continue
                if number is None:
                    number = draft.compute("sub", self.env[self.pipeline.index], lower)
                    items.append(number)
                ahead = draft.compute("add", number.target, draft.constant(key[0]))
                place = draft.compute("mod", ahead.target, draft.constant(slots.generations))
                items += [ahead, place]
                self.generation[key] = place.target
        return items

    def _live_positions(self) -> list[plans.Item]:
        """Compute a register with the number of a chunk's positions that are not padding, if an iteration is a
        chunk."""
        if self.chunk is None:
            return []
        draft = self.draft
        start, length = (draft.operand(o, self.env) for o in (self.chunk.start, self.chunk.length))
        left = draft.compute("sub", length, start)
        some = draft.compute("max", left.target, draft.constant(0))
        live = draft.compute("min", some.target, draft.constant(self.chunk.positions))
        self.live = (self.chunk.positions, live.target)
        return [left, some, live]

    # -- stages

    def _stage(self, stage: ResolvedStage) -> list[plans.Item]:
        draft = self.draft
        rank = len(stage.stage.grid)
        grid = draft.grid(rank)
        env = {**self.env, **{f"t{d}": register for d, register in enumerate(grid)}}
        pointers, strides = [], []
        for port, param in zip(stage.ports, stage.body.params, strict=True):
            view, pointer = self._pointer(stage, port, param.dtype, env, grid)
            pointers.append(pointer)
            strides.append(view)
        packed = tuple(
            (param.name, draft.packed[pointer.region].panels)
            for param, pointer in zip(stage.body.params, pointers, strict=True)
            if pointer.region in draft.packed
        )
        live = self.live if packed and stage.stage.when == "each" else None
        streams = self._streams_after(stage)
        streamed = sum(stream.extent for stream in streams)
        part = part_bytes(stage.body)
        windows = draft.windows if part else None
        positions = None if live is None else live[0]
        variant = Variant(stage.body, tuple(strides), packed, positions, streamed, windows)
        code = draft.code(variant)
        trips = [(register, extent) for register, extent in zip(grid, stage.stage.grid, strict=True) if extent > 1]
        scalars = tuple(draft.operand(o, env) for o in stage.stage.scalars) + (() if live is None else live[1:])
        private = stage.stage.name in self.replicated
        shared = self._shared(code.shared_bytes, trips, private)
        pairs = list(zip(pointers, stage.body.params, strict=True))
        reads = {pointer.span for pointer, param in pairs if param.access != "write"} | {shared.span}
        writes = {pointer.span for pointer, param in pairs if param.access != "read"} | {shared.span}
        boxes = self._boxes(stage, variant, pointers, part, trips)
        arguments = tuple(self._argument(pointer) for pointer in (*pointers, shared, *streams, *boxes))
        items: list[plans.Item] = []
        for routine in code.routines:
            if routine.meets:
                items += self.track.meet(part * stage.stage.trips)
            items += self.track.touch(*(_seen(spans) for spans in (reads, writes)))
            single_unit = routine.units * stage.stage.trips == 1
            run = plans.PlanRun(
                function=draft.function(routine.function),
                mode="replicated" if private else "serial" if single_unit else "split",
                units=routine.units,
                grid=tuple(trips),
                arguments=arguments,
                scalars=scalars,
                label=draft.label(f"{self.where}.{stage.stage.name}"),
            )
            draft.runs.append(run)
            items.append(plans.Execute(len(draft.runs) - 1))
        return items

    def _streams_after(self, stage: ResolvedStage) -> list[_Pointer]:
        """Return a pointer to the packed weight that the iteration reads next, so that a stage which leaves memory idle
        (scores by quantized keys) can prefetch it. Empty for other stages, and if the weight's tiles are not
        contiguous."""
        if not any(isinstance(step, QueryAttention) for step in stage.body.steps):
            return []
        for other in self.stages[self.stages.index(stage) + 1 :]:
            grid = self.draft.grid(len(other.stage.grid))
            env = {**self.env, **{f"t{d}": register for d, register in enumerate(grid)}}
            for port in other.ports:
                if isinstance(port, MemoryPort) and other.stage.when == stage.stage.when:
                    _, pointer = self._memory(other, port, env)
                    if pointer.region in self.draft.packed:
                        return _all_tiles(pointer, other.stage.trips, grid)
        return []

    def _shared(self, nbytes: int, trips: list[tuple[int, int]], private: bool) -> _Pointer:
        """Allocate the scratch that the phases of a stage share, with a piece for each firing."""
        total = nbytes * prod(t for _, t in trips)
        offset = self.private_used if private else self.used
        if private:
            self.private_used += align(total)
        else:
            self.used += align(total)
        terms, step = [], nbytes
        for register, extent in reversed(trips):
            terms.append((register, step))
            step *= extent
        region = PRIVATE if private else WORKSPACE
        return _Pointer(region, offset, nbytes, tuple(terms), (region, offset, offset + total))

    def _boxes(
        self, stage: ResolvedStage, variant: Variant, pointers: Sequence[_Pointer], part: int,
        trips: list[tuple[int, int]],
    ) -> list[_Pointer]:  # fmt: skip
        """Return the pointers of a stage with collectives: to a firing's part of the ranks' windows, and to a rank's
        part of a parameter. Only the firing writes there between two meetings, so threads need no barrier for it.

        Args:
            pointers: pointers to the stage's parameters.
        """
        terms, step = [], part
        for register, extent in reversed(trips):
            terms.append((register, step))
            step *= extent
        nothing = (PRIVATE, 0, 0)
        windows = self.draft.windows
        by_name = {param.name: pointer for param, pointer in zip(stage.body.params, pointers, strict=True)}
        boxes = []
        for box in boxes_of(stage.body, variant.regions):
            ahead = ((self.track.place(box.axes), box.piece),) if box.piece else ()
            if box.parameter:
                whole = by_name[box.parameter]
                boxes.append(replace(whole, extent=box.nbytes, terms=(*whole.terms, *ahead)))
                continue
            assert windows is not None  # the stage has a collective, so the program has windows
            if not box.axes:
                boxes.append(_Pointer(OUTBOX, 0, box.nbytes, tuple(terms), nothing))
                continue
            first = self.track.first_rank(box.axes)
            ahead = (*ahead, *(() if first is None else ((first, windows.nbytes),)))
            extent = windows.offsets(box.axes)[-1] + box.nbytes
            boxes.append(_Pointer(INBOX, 0, extent, (*terms, *ahead), nothing))
        return boxes

    def _argument(self, pointer: _Pointer) -> plans.PlanArgument:
        return plans.PlanArgument(
            self.draft.region(pointer.region), pointer.offset, pointer.extent, pointer.terms
        )

    def _pointer(
        self, stage: ResolvedStage, port: MemoryPort | BufferPort, dtype: str, env: Mapping[str, int], grid: list[int]
    ) -> tuple[Strides, _Pointer]:
        if isinstance(port, MemoryPort):
            return self._memory(stage, port, env)
        slots = self.slots[port.buffer]
        size = DTYPE_BYTES[dtype]
        terms = [(self.draft.operand(name, env), c * size) for name, c in port.view.terms]
        offset = slots.offset + port.view.offset * size
        number, more = self._slot(stage, port, slots, grid)
        region = PRIVATE if slots.private else WORKSPACE
        key = (region, slots.offset, slots.offset + slots.nbytes)
        extent = _extent(port.view.shape, port.view.strides) * size
        pointer = _Pointer(region, offset + number * slots.slot_bytes, extent, (*terms, *more), key)
        return port.view.strides, pointer

    def _slot(
        self, stage: ResolvedStage, port: BufferPort, slots: Slots, grid: list[int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return the slot of a port: a slot number, and terms over registers in bytes."""
        place = slots.place(stage, port, self.trips, self.where)
        terms: list[tuple[int, int]] = []
        if place.ahead is not None:
            register = self.generation.get((place.ahead, slots.generations))
            if register is None:
                raise NativePipelineErrors.SEVERAL_ITERATIONS(stage=stage.stage.name, pipeline=self.where)
            terms.append((register, slots.per_iteration * slots.slot_bytes))
        moves = reversed(list(zip(grid, place.moves, strict=False)))
        return place.number, [*terms, *((register, move * slots.slot_bytes) for register, move in moves)]

    def _memory(
        self, stage: ResolvedStage, port: MemoryPort, env: Mapping[str, int]
    ) -> tuple[Strides, _Pointer]:
        draft = self.draft
        shape = next(p.shape for p in self.kernel.kernel.params if p.name == port.param)
        shown = self.kernel.views[port.param]
        bare = View(shown.tensor, shown.shape, shown.strides, shown.offset)
        view = compose(port.view, shape, bare, firings(stage.stage))
        if view is None:
            raise NativePipelineErrors.WINDOW(stage=stage.stage.name, pipeline=self.where, tensor=port.param)
        tensor = draft.tensors[shown.tensor]
        terms = [*self.kernel.terms[port.param], *((draft.operand(n, env), c) for n, c in view.terms)]
        size = DTYPE_BYTES[tensor.dtype]
        packing = draft.packed.get(tensor.name)
        if packing is not None:
            return view.strides, _packed_pointer(tensor, packing, view, terms)
        if tensor.role in ("weight", "constant"):
            region, base = tensor.name, 0
        else:
            region, base = plans.MEMORY, tensor.address
        key = (region, base, base + tensor.nbytes)
        extent = _extent(view.shape, view.strides) * size
        offset = base + view.offset * size
        return view.strides, _Pointer(region, offset, extent, tuple((r, c * size) for r, c in terms), key)


def _all_tiles(pointer: _Pointer, trips: int, grid: Sequence[int]) -> list[_Pointer]:
    """Extend a pointer to a tile to all tiles of a grid. Empty if they are not contiguous."""
    steps = [by for register, by in pointer.terms if register in grid]
    terms = tuple((register, by) for register, by in pointer.terms if register not in grid)
    dense = steps == [pointer.extent] * (trips > 1)
    return [replace(pointer, extent=pointer.extent * trips, terms=terms)] if dense else []


def _packed_pointer(tensor: Tensor, packing: PanelPacking, view: View, terms: list[tuple[int, int]]) -> _Pointer:
    """Return a pointer to the panels with the elements of a view of a packed weight."""
    panels = packing.panels
    last = sum(stride * (extent - 1) for stride, extent in zip(view.strides, view.shape, strict=True))
    slices, rest = divmod(last, packing.slice_elements)
    rows = rest // packing.row_elements + 1
    whole = packing.row_elements == 1 or rows >= panels.n
    extent = slices * panels.packed_bytes
    extent += panels.packed_bytes if whole else -(-rows // LANES) * panels.panel_bytes
    moved = tuple((register, packing.offset(coefficient)) for register, coefficient in terms)
    return _Pointer(tensor.name, packing.offset(view.offset), extent, moved, (tensor.name, 0, 0))


def _chunk_of(stage: ResolvedStage) -> _Chunk | None:
    """Return the chunk that a stage's pipeline processes; None if the stage has no attention over a chunk."""
    for step in stage.body.steps:
        if isinstance(step, ChunkAttention | LatentChunkAttention):
            scalars = dict(zip(stage.body.scalars, stage.stage.scalars, strict=True))
            shapes = {p.name: p.shape for p in stage.body.params} | {w.name: w.view.shape for w in stage.body.windows}
            return _Chunk(scalars[step.start], scalars[step.length], shapes[step.query][2])
    return None


def _written(stage: ResolvedStage) -> list[BufferPort]:
    pairs = zip(stage.ports, stage.body.params, strict=True)
    return [port for port, param in pairs if param.access != "read" and isinstance(port, BufferPort)]


def _seen(spans: set[Span]) -> set[Span]:
    """Return the spans that more than one thread can access, without empty ones."""
    return {span for span in spans if span[0] != PRIVATE and span[1] < span[2]}


def _static_trips(pipeline: Pipeline) -> int | None:
    if isinstance(pipeline.lower, int) and isinstance(pipeline.upper, int):
        return max(0, pipeline.upper - pipeline.lower)
    return None


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
