"""Layout of a kernel function on the machine: its parameters, control flow, pipelines, and the place of each value.

A straight run of stages is a pipeline of one iteration; a loop marked `df.pipelined` is a pipeline of its iterations,
with the loads before it (once, first) and the stores after it (last). In a function without placement (-O0: one
operation per kernel) a stage reads and writes memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_mlir import ir

from sscc.compiler.emit.access import identity_map
from sscc.compiler.emit.bodies import EmittedBody, dtype_of
from sscc.compiler.emit.flow import Flow
from sscc.compiler.emit.windows import dropped, is_dense, is_whole, whole
from sscc.ir import schedule as sch
from sscc.ir.choices import ON_CHIP
from sscc.ir.dialects import df
from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.locations import describe_location, origin_of

TILE = "t0"
"""Index of a stage's firings."""


class KernelLayoutErrors(ErrorKind):
    COPY_NOT_PLACED = (
        InternalError,
        "{origin}kernel {kernel!r} needs a rearranged copy of {type}, but no pass has placed a buffer for it",
    )
    STRIDED_UPDATE = InternalError, "{body} updates windows of an operand that is not dense"
    STAGES_BEFORE_LOOP = InternalError, "{origin}stages that compute precede a pipelined loop in its block"
    TILE_LOOP_YIELD = InternalError, "{origin}a tile loop yields a value other than its accumulator"
    RESULT_NOT_PLACED = (
        InternalError,
        "{origin}stage {stage!r} produces a value, but no pass has placed a buffer for it",
    )
    TILE_NOT_INSERTED = InternalError, "{origin}a tile is inserted into {users} results instead of one"


@dataclass(frozen=True)
class StageLayout:
    """A stage before its ports are known.

    Attributes:
        reads, writes: windows of its body's parameters, in this order: operands (also those that it updates), and
            results with a place of their own.
        scalars: scalars of the body.
        grid, when, pcus: as in the schedule.
    """

    name: str
    body: sch.Body
    reads: tuple[sch.View, ...]
    writes: tuple[sch.View, ...]
    scalars: tuple[sch.ScalarOperand, ...] = ()
    grid: tuple[int, ...] = ()
    when: sch.When = "each"
    pcus: int = 0


@dataclass(frozen=True)
class Stream:
    """A buffer, and the contents of one of its slots."""

    buffer: sch.Buffer
    kind: df.StreamKind


@dataclass(frozen=True)
class KernelLayout:
    """A kernel, complete except for the ports of its stages.

    Attributes:
        params: tensor operands and separate results, with the accesses of the kernel as a whole.
        scalars: names of scalar operands.
        tied: for each result, the index of the operand that it updates in place, or None for a parameter of its own.
        control: loops, branches, scalars, and pipelines without their buffers and stages.
        streams: streams by the buffer's name, per pipeline.
        stages: stages in order, per pipeline.
    """

    name: str
    location: str
    params: tuple[sch.Param, ...]
    scalars: tuple[str, ...]
    tied: tuple[int | None, ...]
    control: tuple[sch.Item, ...]
    streams: Mapping[str, Mapping[str, Stream]]
    stages: Mapping[str, Sequence[StageLayout]]


def copy_body(shape: tuple[int, ...], dtype: Any) -> sch.Body:
    """Return the body that copies a box of one shape and dtype."""
    identity = identity_map(len(shape))
    step = sch.Vector(shape, (sch.Access("x0", identity),), sch.Access("y0", identity), (), "in0")
    params = sch.Param("x0", shape, dtype, "read"), sch.Param("y0", shape, dtype, "write")
    return sch.Body(f"copy.{'x'.join(map(str, shape))}.{dtype}", params, (), (), (), (step,))


def gathered(body: sch.Body, strided: Sequence[bool]) -> sch.Body:
    """Return `body` with its windows of strided parameters moved to dense copies, which it makes first.

    Offsets and strides of a window count elements of a dense region. An operand may be strided if the model slices a
    computed value, as Falcon does with the rows of one product that holds queries, keys and values of each group.

    Args:
        strided: for each parameter that is read, True if its operand is not dense; results follow.
    """
    wanted = {window.view.tensor for window in body.windows}
    pairs = zip(body.params, strided, strict=False)
    sources = [param for param, is_strided in pairs if is_strided and param.name in wanted]
    if not sources:
        return body
    if any(param.access != "read" for param in sources):
        raise KernelLayoutErrors.STRIDED_UPDATE(body=body.name)
    taken = {*(p.name for p in body.params), *(local.name for local in body.locals), *(w.name for w in body.windows)}
    names = iter(name for name in map("t{}".format, itertools.count(len(body.locals))) if name not in taken)
    copies = {param.name: sch.Local(next(names), param.shape, param.dtype) for param in sources}
    steps = [
        sch.Vector(
            param.shape,
            (sch.Access(param.name, identity_map(len(param.shape))),),
            sch.Access(copies[param.name].name, identity_map(len(param.shape))),
            (),
            "in0",
        )
        for param in sources
    ]
    windows = tuple(
        replace(window, view=replace(window.view, tensor=copies[window.view.tensor].name))
        if window.view.tensor in copies
        else window
        for window in body.windows
    )
    return replace(body, locals=(*body.locals, *copies.values()), windows=windows, steps=(*steps, *body.steps))


@dataclass
class KernelAnalysis(Flow):
    """Analysis of a kernel function whose stages call `bodies`, which finds its layout."""

    bodies: Mapping[str, EmittedBody] = field(default_factory=dict)
    streams: dict[str, dict[str, Stream]] = field(default_factory=dict)
    stages: dict[str, list[StageLayout]] = field(default_factory=dict)
    open: sch.Pipeline | None = None
    looped: bool = False  # the loop of the open pipeline has ended: only stores may follow
    handed: dict[ir.Value, str] = field(default_factory=dict)  # values that a loop yields in a buffer
    factors: dict[ir.Value, int] = field(default_factory=dict)  # offsets of tiles: advance per firing

    def layout(self) -> KernelLayout:
        """Return the layout. Raises InternalError if a value has no place, or a loop is not a pipeline;
        UnsupportedError if an update in place would destroy a value that is read later."""
        operands = {f"x{index}": value for index, value in enumerate(self.function.arguments)}
        tensors = {name: value for name, value in operands.items() if isinstance(value.type, ir.RankedTensorType)}
        scalars = tuple(name for name in operands if name not in tensors)
        self.windows = {value: whole(name, value.type.shape) for name, value in tensors.items()}
        self.scalars = {operands[name]: name for name in scalars}
        *body, terminator = [op.operation for op in self.function.entry_block.operations]
        results = {f"y{index}": value for index, value in enumerate(terminator.operands)}
        self.returned = {value: name for name, value in reversed(results.items())}  # a value's first name counts
        self.reserved = {*operands, *results}
        for op in body:
            self.operation(op)
        tied = tuple(self._tie(value, name, list(operands)) for name, value in results.items())
        self.finish()
        own = {name: value for (name, value), operand in zip(results.items(), tied, strict=True) if operand is None}
        access = _accesses(stage for stages in self.stages.values() for stage in stages)
        params = tuple(
            sch.Param(name, tuple(value.type.shape), dtype_of(value.type), access.get(name, "read"))
            for name, value in (tensors | own).items()
        )
        name, location = self.function.name.value, describe_location(self.function.location)
        return KernelLayout(name, location, params, scalars, tied, tuple(self.items[0]), self.streams, self.stages)

    def _tie(self, value: ir.Value, name: str, operands: list[str]) -> int | None:
        """Return the index of the operand that a returned value updates in place; None after copying it to a parameter.
        """
        view = self.windows[value]
        if view.tensor in operands:
            index = operands.index(view.tensor)
            if is_whole(view, self.function.arguments[index].type.shape):
                return index
        if view.tensor != name:
            self.copy(view, whole(name, value.type.shape), value.type)
        return None

    def temporary(self, type_: ir.RankedTensorType) -> sch.View:
        origin, kernel = origin_of(self.function), self.function.name.value
        raise KernelLayoutErrors.COPY_NOT_PLACED(origin=origin, kernel=kernel, type=type_)

    def copy(self, source: sch.View, target: sch.View, type_: ir.RankedTensorType) -> None:
        """Store a whole stream to memory, or copy memory."""
        name, body = f"store {target.tensor}", copy_body(source.shape, dtype_of(type_))
        self._add(StageLayout(name, body, (source,), (target,), when="last" if self.looped else "each"))

    # ---------------------------------------------------------------------------------------------- pipelines

    def _pipeline(self) -> sch.Pipeline:
        """Return the pipeline to which stages are added: the open one, or a new one."""
        if self.open is None:
            number = len(self.stages)
            self.open = sch.Pipeline(f"p{number}", f"i{number}", 0, 1, (), (), ())
            self.stages[self.open.name], self.streams[self.open.name] = [], {}
        return self.open

    def finish(self) -> None:
        """End the open pipeline, if any."""
        if self.open is not None and self.stages[self.open.name]:
            self.items[-1].append(self.open)
        self.open, self.looped = None, False

    def work(self, op: ir.Operation) -> bool:
        if not any(mark in op.attributes for mark in (df.STAGE, df.TILES, df.PIPELINED)):
            return False
        if self.looped:
            self.finish()
        if df.PIPELINED in op.attributes:
            self._loop(op)
        elif df.TILES in op.attributes:
            self._tiles(op)
        elif df.is_stage(op):
            self._compute(op)
        else:
            self._load(op)
        return True

    def _loop(self, op: ir.Operation) -> None:
        """Emit a loop. A loop with overlapping iterations belongs to the open pipeline, in which only loads may precede
        it."""
        pipeline = self._pipeline()
        if any(stage.when != "first" for stage in self.stages[pipeline.name]):
            raise KernelLayoutErrors.STAGES_BEFORE_LOOP(origin=origin_of(op))
        block, streams = op.regions[0].blocks[0], self.streams[pipeline.name]
        lower, upper, targets = self.enter(op, pipeline.index)
        for yielded, target in zip(list(block.operations)[-1].operands, targets, strict=True):
            if target.tensor in streams:
                self.handed[yielded] = target.tensor
                streams[target.tensor] = replace(streams[target.tensor], kind="carried")
        self.items.append([])
        self.walk(block, targets)
        scalars = tuple(item for item in self.items.pop() if isinstance(item, sch.Scalar))
        self.open, self.looped = replace(pipeline, lower=lower, upper=upper, scalars=scalars), True

    # ------------------------------------------------------------------------------------------- stages and loads

    def _add(self, stage: StageLayout) -> None:
        stages = self.stages[self._pipeline().name]
        names = {other.name for other in stages}
        name, number = stage.name, 1
        while name in names:
            number += 1
            name = f"{stage.name} {number}"
        stages.append(replace(stage, name=name))

    def _load(self, op: ir.Operation) -> None:
        """Add a stage that copies a window of memory into a buffer: a tile per firing inside a tile loop."""
        name, early, grid = df.stage_name(op), df.EARLY in op.attributes, self._grid(op)
        source = self.windows[op.operands[0]]
        stream = self._stream(op, 0, name, "early" if early else "tile" if grid else "whole")
        body = copy_body(source.shape, dtype_of(op.results[0].type))
        self._add(StageLayout(f"load {name}", body, (source,), (stream,), (), grid, "first" if early else "each"))
        self.windows[op.results[0]] = stream

    def _tiles(self, op: ir.Operation) -> None:
        """Add stages that fire in turn, once per iteration of `op`, with the loads of their tiles. The last one's tiles
        are the results."""
        index, *accumulators = op.regions[0].blocks[0].arguments
        *body, terminator = [inner.operation for inner in op.regions[0].blocks[0].operations]
        *_, name = (df.stage_name(inner) for inner in body if df.is_stage(inner))
        self.scalars[index] = TILE
        for number, (argument, place) in enumerate(zip(accumulators, df.buffers_of(op), strict=True)):
            view = self._stream(op, number, name) if place.depth else self.windows[op.operands[3 + number]]
            self.windows[argument] = self.windows[op.results[number]] = view
        for inner in sorted(body, key=lambda inner: not inner.name.startswith("arith.")):  # offsets first
            if inner.name == "arith.muli":
                self.factors[inner.results[0]] = next(int(self.scalars[v]) for v in inner.operands if v != index)
            else:
                self.operation(inner)
        for value, argument in zip(terminator.operands, accumulators, strict=True):
            if self.windows[value] != self.windows[argument]:
                raise KernelLayoutErrors.TILE_LOOP_YIELD(origin=origin_of(op))

    def offset(self, value: ir.Value) -> sch.ScalarOperand | tuple[str, int]:
        return (TILE, self.factors[value]) if value in self.factors else super().offset(value)

    def _grid(self, op: ir.Operation) -> tuple[int, ...]:
        """Return the grid of a stage or a load: one firing per iteration of the tile loop around it."""
        loop = op.parent.operation
        return (int(self.scalars[loop.operands[1]]),) if df.TILES in loop.attributes else ()

    def _compute(self, op: ir.Operation) -> None:
        """Add a stage that fires a body."""
        emitted = self.bodies[op.attributes["callee"].value]
        reads = tuple(self.windows[v] for v in op.operands if isinstance(v.type, ir.RankedTensorType))
        scalars = tuple(self.scalars[v] for v in op.operands if not isinstance(v.type, ir.RankedTensorType))
        writes = []
        for index, tied in enumerate(emitted.tied):
            if tied is None:
                view = self._place(op, index)
                writes.append(view)
            else:
                self.check_dead(op, op.operands[tied])
                view = self.windows[op.operands[tied]]
            self.windows[op.results[index]] = view
        pcus = int(op.attributes[df.PCUS].value) if df.PCUS in op.attributes else 0
        name, grid = df.stage_name(op), self._grid(op)
        body = gathered(emitted.body, [not is_dense(view) for view in reads])
        self._add(StageLayout(name, body, reads, tuple(writes), scalars, grid, pcus=pcus))

    def _place(self, op: ir.Operation, index: int) -> sch.View:
        """Return the place of a stage's result that is not an operand: a window of its tile loop's accumulator, a
        buffer, or memory if nothing is placed."""
        result = op.results[index]
        if df.TILES in op.parent.operation.attributes:
            if df.BUFFERS in op.attributes:
                return self._stream(op, index, df.stage_name(op), "tile")
            return self._inserted(result)
        if df.BUFFERS not in op.attributes and result in self.returned:
            return whole(self.returned[result], result.type.shape)
        if df.BUFFERS not in op.attributes or not df.buffers_of(op)[index].depth:
            raise KernelLayoutErrors.RESULT_NOT_PLACED(origin=origin_of(op), stage=df.stage_name(op))
        return self._stream(op, index, df.stage_name(op))

    def _inserted(self, result: ir.Value) -> sch.View:
        """Return the window into which the loop inserts a tile."""
        users = [use.owner.operation for use in result.uses]
        inserts = [user for user in users if user.name == "tensor.insert_slice"]
        if len(users) != 1 or len(inserts) != 1:
            raise KernelLayoutErrors.TILE_NOT_INSERTED(origin=origin_of(result.owner), users=len(inserts))
        insert = users[0]
        box = self.box(insert, self.windows[insert.operands[1]], list(insert.operands)[2:])
        return dropped(box, result.type.shape)

    def _stream(self, op: ir.Operation, index: int, stage: str, kind: df.StreamKind = "between") -> sch.View:
        """Return the buffer of a result: that of the value it is carried to, or a new one."""
        result = op.results[index]
        shape = tuple(result.type.shape)
        if result in self.handed:
            return whole(self.handed[result], shape)
        streams = self.streams[self._pipeline().name]
        base = name = stage + (f".{index}" if index else "")
        while name in streams or name in self.reserved:
            name = f"{base}.{len(streams)}"
        place = df.buffers_of(op)[index]
        buffer = sch.Buffer(name, shape, dtype_of(result.type), ON_CHIP, place.address, place.depth)
        streams[name] = Stream(buffer, kind)
        return whole(name, shape)


def _accesses(stages: Iterable[StageLayout]) -> dict[str, sch.ParamAccess]:
    """Return the accesses of a kernel as a whole to its parameters: parameters that are only stored to are written, not
    updated."""
    accesses: dict[str, set[sch.ParamAccess]] = {}
    for stage in stages:
        for param, view in zip(stage.body.params, (*stage.reads, *stage.writes), strict=True):
            accesses.setdefault(view.tensor, set()).add(param.access)
    return {name: "update" if len(kinds) > 1 else kinds.pop() for name, kinds in accesses.items()}
