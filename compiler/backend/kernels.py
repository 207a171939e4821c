"""Kernel functions become schedule kernels: control around pipelines of stages, joined by buffers.

A straight run of stages is a pipeline of one iteration; a loop marked `df.pipelined` is a pipeline of its
iterations. In a function that nobody has placed (-O0: one operation per kernel) a stage reads and writes memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch_mlir import ir

from sscc.compiler.backend.access import identity_map
from sscc.compiler.backend.bodies import EmittedBody, describe_location, dtype_of
from sscc.compiler.backend.flow import Flow
from sscc.compiler.backend.windows import dropped, is_whole, whole
from sscc.ir import schedule as sch
from sscc.ir.choices import ON_CHIP
from sscc.ir.dialects import df
from sscc.ir.errors import InternalError


@dataclass(frozen=True)
class EmittedKernel:
    """A schedule kernel and how its call's operands and results map to parameters.

    Attributes:
        kernel: the kernel.
        tied: per result, the operand index it updates in place, or None for a parameter of its own.
    """

    kernel: sch.Kernel
    tied: tuple[int | None, ...]


@dataclass
class BodyTable:
    """The bodies of a program. Equal bodies are in it once, under the name of the first."""

    by_content: dict[sch.Body, str] = field(default_factory=dict)
    by_name: dict[str, sch.Body] = field(default_factory=dict)

    def add(self, body: sch.Body) -> str:
        content = dataclasses.replace(body, name="", location="")
        if content not in self.by_content:
            name = body.name
            while name in self.by_name:
                name = f"{body.name}.{len(self.by_name)}"
            self.by_content[content] = name
            self.by_name[name] = dataclasses.replace(body, name=name)
        return self.by_content[content]


@dataclass
class Copies:
    """Bodies and kernels that move a box of one shape and dtype, made on demand."""

    bodies: BodyTable = field(default_factory=BodyTable)
    kernels: dict[str, sch.Kernel] = field(default_factory=dict)

    def body(self, shape: tuple[int, ...], dtype: Any) -> str:
        identity = identity_map(len(shape))
        step = sch.Vector(shape, (sch.Access("x0", identity),), sch.Access("y0", identity), (), "in0")
        name = f"copy.{'x'.join(map(str, shape))}.{dtype}"
        return self.bodies.add(sch.Body(name, self._params(shape, dtype), (), (), (), (step,)))

    def kernel(self, shape: tuple[int, ...], dtype: Any) -> str:
        name = self.body(shape, dtype)
        if name not in self.kernels:
            params = self._params(shape, dtype)
            ports = tuple(sch.Port(whole(param.name, shape)) for param in params)
            self.kernels[name] = one_stage(name, params, sch.Stage("copy", name, (), ports, (), ()))
        return name

    def _params(self, shape: tuple[int, ...], dtype: Any) -> tuple[sch.Param, ...]:
        return sch.Param("x0", shape, dtype, "read"), sch.Param("y0", shape, dtype, "write")


def one_stage(name: str, params: tuple[sch.Param, ...], stage: sch.Stage) -> sch.Kernel:
    """A kernel that fires one stage once."""
    return sch.Kernel(name, params, (), (sch.Pipeline(stage.name, "i", 0, 1, (), (), (stage,)),))


@dataclass
class _OpenPipeline:
    """A pipeline under construction; `finished` once its loop is done and only stores may follow."""

    name: str
    index: str
    lower: sch.ScalarOperand = 0
    upper: sch.ScalarOperand = 1
    scalars: list[sch.Scalar] = field(default_factory=list)
    buffers: dict[str, sch.Buffer] = field(default_factory=dict)
    stages: list[sch.Stage] = field(default_factory=list)
    finished: bool = False

    @property
    def count(self) -> int | None:
        """The iterations, where they are known."""
        known = isinstance(self.lower, int) and isinstance(self.upper, int)
        return self.upper - self.lower if known else None  # type: ignore[operator]


@dataclass
class KernelEmitter(Flow):
    """Emits one kernel function."""

    bodies: dict[str, EmittedBody] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)
    params: dict[str, sch.Param] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)  # parameters, by how stages use them
    stored: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    open: _OpenPipeline | None = None
    tiled: set[str] = field(default_factory=set)  # buffers whose slot is one tile
    early: set[str] = field(default_factory=set)  # buffers that are filled once and read by every iteration
    chosen: dict[ir.Value, str] = field(default_factory=dict)  # values that a loop carries in a buffer
    factors: dict[ir.Value, int] = field(default_factory=dict)  # offsets of tiles: by how much each firing advances
    pipelines: int = 0

    def emit(self) -> EmittedKernel:
        scalars, operands = [], []
        for index, value in enumerate(self.function.arguments):
            name = f"x{index}"
            operands.append(name)
            if isinstance(value.type, ir.RankedTensorType):
                self._parameter(name, value.type, "read")
                self.windows[value] = whole(name, value.type.shape)
            else:
                self.scalars[value] = name
                scalars.append(name)
        *body, terminator = [op.operation for op in self.function.entry_block.operations]
        named = {f"y{index}": value for index, value in enumerate(terminator.operands)}
        self.returned = {value: name for name, value in reversed(named.items())}  # a value's first name counts
        for op in body:
            self.operation(op)
        tied = tuple(self._tie(value, name, operands) for name, value in named.items())
        self.finish()
        results = [name for name, t in zip(named, tied, strict=True) if t is None]
        order = [*(name for name in operands if name in self.params), *results]
        kernel = sch.Kernel(
            self.function.name.value,
            tuple(dataclasses.replace(self.params[name], access=self._access(name)) for name in order),
            tuple(scalars),
            tuple(self.items[0]),
            describe_location(self.function.location),
        )
        return EmittedKernel(kernel, tied)

    # --------------------------------------------------------------------------------------------- parameters

    def _parameter(self, name: str, type_: ir.RankedTensorType, access: Any) -> sch.View:
        self.params[name] = sch.Param(name, tuple(type_.shape), dtype_of(type_), access)
        return whole(name, type_.shape)

    def _access(self, name: str) -> sch.ParamAccess:
        """How the kernel as a whole uses a parameter: what is only stored to is written, not updated."""
        if name in self.updated or name in self.read & self.stored:
            return "update"
        return "write" if name in self.stored else "read"

    def _tie(self, value: ir.Value, name: str, operands: list[str]) -> int | None:
        """The operand that a returned value is, updated in place; None once it is in a parameter of its own."""
        view = self.windows[value]
        if view.tensor in operands and is_whole(view, self.params[view.tensor].shape):
            return operands.index(view.tensor)
        if view.tensor != name:
            self.copy(view, self._parameter(name, value.type, "write"), value.type)
        return None

    def temporary(self, type_: ir.RankedTensorType) -> sch.View:
        raise InternalError(f"{self.function.name.value} needs a rearranged copy of {type_} that no pass has placed")

    def copy(self, source: sch.View, target: sch.View, type_: ir.RankedTensorType) -> None:
        """Stores a stream to memory, whole, or moves memory."""
        pipeline = self._pipeline()
        body = self.copies.body(source.shape, dtype_of(type_))
        when: sch.When = "last" if pipeline.finished else "each"
        into = sch.Port(target, 1, 1) if target.tensor in pipeline.buffers else sch.Port(target)
        ports = (self._port(source, 1, when), into)
        self._stage(sch.Stage(f"store {target.tensor}", body, (), ports, (), self._waits(ports), when))
        self.stored.add(target.tensor)

    # ---------------------------------------------------------------------------------------------- pipelines

    def _pipeline(self) -> _OpenPipeline:
        if self.open is None:
            self.open = _OpenPipeline(f"p{self.pipelines}", f"i{self.pipelines}")
            self.pipelines += 1
        return self.open

    def finish(self) -> None:
        """Ends the pipeline under construction, if any."""
        p, self.open = self.open, None
        if p is not None and p.stages:
            self.items[-1].append(
                sch.Pipeline(
                    p.name, p.index, p.lower, p.upper, tuple(p.scalars), tuple(p.buffers.values()), tuple(p.stages)
                )
            )

    def _stage(self, stage: sch.Stage) -> None:
        names = {other.name for other in self._pipeline().stages}
        name, number = stage.name, 1
        while name in names:
            number += 1
            name = f"{stage.name} {number}"
        self._pipeline().stages.append(dataclasses.replace(stage, name=name))

    def work(self, op: ir.Operation) -> bool:
        if op.name == "scf.for" and df.PIPELINED in op.attributes:
            self._pipelined(op)
        elif op.name == "scf.for" and df.TILES in op.attributes:
            self._begin_stage()
            self._tiles(op)
        elif df.is_stage(op):
            self._begin_stage()
            self._compute(op, (), self._places(op))
        elif op.name == "df.load":
            self._begin_stage()
            self._load(op, ())
        else:
            return False
        return True

    def _begin_stage(self) -> None:
        if self.open is not None and self.open.finished:
            self.finish()

    def _pipelined(self, op: ir.Operation) -> None:
        """A loop whose iterations overlap, with the loads before it (once, first) and the stores after it (last)."""
        lower, upper, step, *inits = op.operands
        if self.scalars[step] != 1:
            raise InternalError(f"{op.location}: a loop with a step other than 1")
        pipeline = self._pipeline()
        if any(stage.when != "first" for stage in pipeline.stages):
            raise InternalError(f"{op.location}: stages that compute stand before a pipelined loop in its block")
        pipeline.lower, pipeline.upper = self.scalars[lower], self.scalars[upper]
        block = op.regions[0].blocks[0]
        self.scalars[block.arguments[0]] = pipeline.index
        *body, terminator = [inner.operation for inner in block.operations]
        for argument, init, yielded in zip(list(block.arguments)[1:], inits, terminator.operands, strict=True):
            self.windows[argument] = self.windows[init]
            if self.windows[init].tensor in pipeline.buffers:
                self.chosen[yielded] = self.windows[init].tensor
                self.early.discard(self.windows[init].tensor)
        self.items.append([])
        for inner in body:
            self.operation(inner)
        targets = [self.windows[init] for init in inits]
        self.settle(terminator, list(zip(terminator.operands, targets, strict=True)))
        pipeline.scalars += [item for item in self.items.pop() if isinstance(item, sch.Scalar)]
        pipeline.finished = True
        for result, target in zip(op.results, targets, strict=True):
            self.windows[result] = target

    # ------------------------------------------------------------------------------------------- stages and loads

    def _load(self, op: ir.Operation, grid: tuple[int, ...]) -> None:
        """A stage that copies a window of memory into a buffer: a tile per firing inside a tile loop."""
        early = df.EARLY in op.attributes
        when: sch.When = "first" if early else "each"
        type_ = op.results[0].type
        source = self.windows[op.operands[0]]
        buffer = self._buffer(op, 0)
        if grid:
            self.tiled.add(buffer)
        if early:
            self.early.add(buffer)
        self.windows[op.results[0]] = whole(buffer, type_.shape)
        ports = (self._port(source, 1, when), sch.Port(whole(buffer, type_.shape), 1))
        body = self.copies.body(source.shape, dtype_of(type_))
        self._stage(sch.Stage(f"load {df.stage_name(op)}", body, grid, ports, (), self._waits(ports), when))

    def _tiles(self, op: ir.Operation) -> None:
        """A stage that fires once per iteration of `op`, with the loads that bring its tiles."""
        lower, upper, _, *inits = op.operands
        grid = (int(self.scalars[upper]) - int(self.scalars[lower]),)
        block = op.regions[0].blocks[0]
        index, *accumulators = block.arguments
        self.scalars[index] = "t0"
        *body, terminator = [inner.operation for inner in block.operations]
        call = next(inner for inner in body if df.is_stage(inner))
        for number, (argument, init, place) in enumerate(zip(accumulators, inits, df.buffers_of(op), strict=True)):
            result = op.results[number]
            buffer = self._buffer(op, number, df.stage_name(call)) if place.depth else ""
            view = whole(buffer, result.type.shape) if buffer else self.windows[init]
            self.windows[argument] = self.windows[result] = view
        arithmetic = [inner for inner in body if inner.name.startswith("arith.")]
        for inner in arithmetic:
            if inner.name == "arith.muli":
                factor = next(self.scalars[v] for v in inner.operands if v != index)
                self.factors[inner.results[0]] = int(factor)
            else:
                self.operation(inner)
        for inner in [inner for inner in body if inner not in arithmetic]:
            if inner == call:
                self._compute(inner, grid, [self._inserted(result) for result in inner.results])
            elif inner.name == "df.load":
                self._load(inner, grid)
            else:
                self.operation(inner)
        for value, argument in zip(terminator.operands, accumulators, strict=True):
            if self.windows[value] != self.windows[argument]:
                raise InternalError(f"{op.location}: a tile loop that yields something else than it accumulates")

    def offset(self, value: ir.Value) -> sch.ScalarOperand | tuple[str, int]:
        return ("t0", self.factors[value]) if value in self.factors else super().offset(value)

    def _inserted(self, result: ir.Value) -> sch.View:
        """Where a tile goes: the window that the loop inserts it into."""
        users = [use.owner.operation for use in result.uses]
        if len(users) != 1 or users[0].name != "tensor.insert_slice":
            raise InternalError(f"{result.owner.location}: a tile that is not inserted into one result")
        insert = users[0]
        box = self.box(insert, self.windows[insert.operands[1]], list(insert.operands)[2:])
        return dropped(box, result.type.shape)

    def _places(self, op: ir.Operation) -> list[sch.View]:
        """Where the results of a stage outside of a tile loop go: buffers, or memory where nothing is placed."""
        views = []
        placed = df.buffers_of(op) if df.BUFFERS in op.attributes else None
        for index, result in enumerate(op.results):
            if placed is None:
                name = self.returned.get(result, "")  # "" where it is no result of the kernel
            else:
                name = self._buffer(op, index) if placed[index].depth else ""
            views.append(whole(name, result.type.shape))
        return views

    def _compute(self, op: ir.Operation, grid: tuple[int, ...], places: list[sch.View]) -> None:
        """The firing of a body; `places` are the windows of results that are not tied to an operand."""
        emitted = self.bodies[op.attributes["callee"].value]
        ports, scalars = [], []
        firings = prod(grid)
        for operand in op.operands:
            if isinstance(operand.type, ir.RankedTensorType):
                ports.append(self._port(self.windows[operand], firings, "each"))
            else:
                scalars.append(self.scalars[operand])
        for result, tied, place in zip(op.results, emitted.tied, places, strict=True):
            if tied is not None:
                self.check_dead(op, op.operands[tied])
                view = self.windows[result] = self.windows[op.operands[tied]]
                self.updated.add(view.tensor)
                continue
            if not place.tensor:
                raise InternalError(f"{op.location}: {df.stage_name(op)} makes a value that no pass has placed")
            if place.tensor in self._pipeline().buffers:
                ports.append(sch.Port(place, firings, 1 if place.tensor in self.chosen.values() else 0))
            else:
                self._parameter(place.tensor, result.type, "write")
                self.stored.add(place.tensor)
                ports.append(sch.Port(place))
            self.windows[result] = place
        pcus = int(op.attributes[df.PCUS].value) if df.PCUS in op.attributes else 0
        name, body = df.stage_name(op), self.copies.bodies.add(emitted.body)
        self._stage(sch.Stage(name, body, grid, tuple(ports), tuple(scalars), self._waits(ports), pcus=pcus))

    def _buffer(self, op: ir.Operation, index: int, name: str = "") -> str:
        """The buffer of a result: that of the value it is carried to, or a new one."""
        result = op.results[index]
        if result in self.chosen:
            return self.chosen[result]
        pipeline = self._pipeline()
        base = name = (name or df.stage_name(op)) + (f".{index}" if index else "")
        while name in pipeline.buffers or name in self.params:
            name = f"{base}.{len(pipeline.buffers)}"
        place = df.buffers_of(op)[index]
        shape, dtype = tuple(result.type.shape), dtype_of(result.type)
        pipeline.buffers[name] = sch.Buffer(name, shape, dtype, ON_CHIP, place.address, place.depth)
        return name

    # ------------------------------------------------------------------------------------------------ ports

    def _port(self, view: sch.View, firings: int, when: sch.When) -> sch.Port:
        """What a stage that fires `firings` times per iteration reads."""
        if view.tensor not in self._pipeline().buffers:
            self.read.add(view.tensor)
            return sch.Port(view)
        if view.tensor in self.tiled:
            return sch.Port(view, 1)
        if view.tensor in self.early and when == "each":
            return sch.Port(view, firings * self._count())
        lag = self._count() if when == "last" and view.tensor in self.chosen.values() else 0
        return sch.Port(view, firings, lag)

    def _count(self) -> int:
        count = self._pipeline().count
        if count is None:
            raise InternalError(f"{self.function.name.value}: a loop of unknown length carries a value on chip")
        return count

    def _waits(self, ports: tuple[sch.Port, ...] | list[sch.Port]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(port.view.tensor for port in ports if port.per))
