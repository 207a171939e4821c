"""From a schedule to a plan and the code that it calls.

Kernels are put in place of their launches, pipelines run one iteration after another, and in an iteration every stage
fires its whole grid before the next one: an order that the schedule's own buffers allow, because a buffer here has as
many slots as an iteration fills. Barriers stand only where one thread may read or overwrite what another one wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from sscc.ir.errors import InputError, InternalError
from sscc.runtime.codegen import plan as plans
from sscc.runtime.codegen.bodies import ALIGNMENT, BodyCode, Variant, lower_body
from sscc.runtime.codegen.features import Features
from sscc.runtime.codegen.mlir import Module
from sscc.runtime.codegen.nests import Strides, dense, is_dense
from sscc.runtime.codegen.packing import Panels
from sscc.runtime.codegen.stages import BufferPort, MemoryPort, ResolvedStage, compose, resolve_stages
from sscc.runtime.codegen.weights import aliased_params, packed_offset, packed_weights
from sscc.runtime.schedule import (
    DTYPE_BYTES,
    Entry,
    For,
    If,
    Item,
    Kernel,
    Launch,
    Operand,
    Pipeline,
    Program,
    Scalar,
    Tensor,
    View,
)

MEMORY, WORKSPACE = "memory", "workspace"
PRIVATE = "private"
REPLICATED_ELEMENTS = 1 << 14
"""A stage that writes no more than this is computed by every thread for itself: cheaper than to wait for another."""


@dataclass(frozen=True)
class Native:
    """What native execution needs besides the bytes of weights.

    Attributes:
        plan: control, memory and calls.
        module: the functions that it names.
        packed: how weights are packed, by name; others are as the schedule has them.
    """

    plan: plans.NativePlan
    module: Module
    packed: Mapping[str, Panels]


def plan_program(program: Program, features: Features) -> Native:
    """Plans all entries. Raises InputError for a schedule that native execution cannot do, naming what and where."""
    return _Planner(program, features).run()


@dataclass(frozen=True)
class _Pointer:
    """An argument before it has a region's number: bytes of offset and terms over registers, and what it touches."""

    region: str
    offset: int
    extent: int
    terms: tuple[tuple[int, int], ...]
    key: tuple[str, int, int]


@dataclass
class _Pending:
    """What has been read and written since the last barrier: (space, first byte, end)."""

    reads: set[tuple[str, int, int]] = field(default_factory=set)
    writes: set[tuple[str, int, int]] = field(default_factory=set)

    def conflicts(self, reads: set[tuple[str, int, int]], writes: set[tuple[str, int, int]]) -> bool:
        return _meet(reads, self.writes) or _meet(writes, self.writes) or _meet(writes, self.reads)


def _meet(a: set[tuple[str, int, int]], b: set[tuple[str, int, int]]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)


@dataclass(frozen=True)
class _Slots:
    """A buffer's place in the workspace: `generations` times `per_iteration` slots."""

    offset: int
    slot_bytes: int
    per_iteration: int
    generations: int
    private: bool


class _Planner:
    def __init__(self, program: Program, features: Features) -> None:
        self.program = program
        self.features = features
        self.module = Module()
        self.packed = packed_weights(program)
        self.tensors = {t.name: t for t in program.tensors}
        self.bodies = {b.name: b for b in program.bodies}
        self.kernels = {k.name: k for k in program.kernels}
        self.regions: dict[str, plans.Region] = {MEMORY: plans.Region(MEMORY, "arena", program.arena_bytes)}
        for tensor in program.tensors:
            if tensor.role in ("weight", "constant"):
                self.regions[tensor.name] = plans.Region(tensor.name, "external", self._stored_bytes(tensor))
        self.region_numbers = {name: i for i, name in enumerate([*self.regions, WORKSPACE, PRIVATE])}
        self.workspace_bytes = ALIGNMENT
        self.private_bytes = ALIGNMENT
        self.scratch_bytes = ALIGNMENT
        self.registers = 0
        self.constants: dict[int, int] = {}
        self.functions: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.runs: list[plans.Run] = []
        self.codes: dict[Variant, BodyCode] = {}
        self.aliased = {k.name: aliased_params(program, k) for k in program.kernels}
        self.grid_registers: list[int] = []

    def run(self) -> Native:
        entries = tuple(self._entry(entry) for entry in self.program.entries)
        regions = (
            *self.regions.values(),
            plans.Region(WORKSPACE, "arena", self.workspace_bytes),
            plans.Region(PRIVATE, "private", self.private_bytes),
        )
        plan = plans.NativePlan(
            regions=regions,
            functions=tuple(self.functions),
            labels=tuple(self.labels),
            runs=tuple(self.runs),
            constants=tuple((register, value) for value, register in self.constants.items()),
            registers=self.registers,
            scratch_bytes=self.scratch_bytes,
            entries=entries,
        )
        return Native(plan, self.module, self.packed)

    def _stored_bytes(self, tensor: Tensor) -> int:
        panels = self.packed.get(tensor.name)
        if panels is None:
            return tensor.nbytes
        return tensor.elements // (panels.n * panels.k) * panels.packed_bytes

    # -- registers

    def _register(self) -> int:
        self.registers += 1
        return self.registers - 1

    def _constant(self, value: int) -> int:
        if value not in self.constants:
            self.constants[value] = self._register()
        return self.constants[value]

    def _operand(self, operand: Operand, env: Mapping[str, int]) -> int:
        if isinstance(operand, int):
            return self._constant(operand)
        if operand not in env:
            raise InputError(f"the schedule is malformed: scalar {operand!r} is used before it is set")
        return env[operand]

    def _compute(self, op: str, *arguments: int) -> plans.Compute:
        return plans.Compute(op, self._register(), arguments)

    # -- control

    def _entry(self, entry: Entry) -> plans.Entry:
        env = {name: self._register() for name in entry.scalar_inputs}
        inputs = tuple(env.values())
        body = _Block(self).block(entry.body, env)
        outputs = tuple(self._operand(o, env) for o in entry.scalar_outputs)
        return plans.Entry(entry.name, inputs, outputs, tuple(body))

    # -- names

    def function(self, name: str) -> int:
        return self.functions.setdefault(name, len(self.functions))

    def label(self, name: str) -> int:
        return self.labels.setdefault(name, len(self.labels))

    def grid(self, rank: int) -> list[int]:
        while len(self.grid_registers) < rank:
            self.grid_registers.append(self._register())
        return self.grid_registers[:rank]

    def code(self, variant: Variant) -> BodyCode:
        if variant not in self.codes:
            name = f"{variant.body.name}.v{len(self.codes)}"
            code = lower_body(self.module, name, variant, self.features)
            self.scratch_bytes = max(self.scratch_bytes, _aligned(code.private_bytes))
            self.codes[variant] = code
        return self.codes[variant]


class _Block:
    """Turns an entry's control into items of the plan; knows what threads have done since the last barrier."""

    def __init__(self, planner: _Planner) -> None:
        self.planner = planner
        self.pending = _Pending()

    def block(self, items: Sequence[Item], env: dict[str, int], kernel: _Kernel | None = None) -> list[plans.Item]:
        out: list[plans.Item] = []
        for item in items:
            match item:
                case Scalar():
                    out.append(self._scalar(item, env))
                case For():
                    out += self._for(item, env, kernel)
                case If():
                    register = self.planner._operand(item.condition, env)
                    before = _copy(self.pending)
                    body = self.block(item.body, dict(env), kernel)
                    self.pending = _union(self.pending, before)
                    out.append(plans.Branch(register, tuple(body)))
                case Launch():
                    out += self._launch(item, env)
                case Pipeline():
                    if kernel is None:
                        raise InputError("the schedule is malformed: a pipeline stands outside of a kernel")
                    out += _PipelinePlan(self, kernel, item, env).run()
        return out

    def _scalar(self, item: Scalar, env: dict[str, int]) -> plans.Item:
        arguments = [self.planner._operand(a, env) for a in item.args]
        compute = self.planner._compute(item.op, *arguments)
        env[item.name] = compute.target
        return compute

    def _for(self, item: For, env: dict[str, int], kernel: _Kernel | None) -> list[plans.Item]:
        lower, upper = self.planner._operand(item.lower, env), self.planner._operand(item.upper, env)
        index = self.planner._register()
        return self.loop(index, lower, upper, lambda: self.block(item.body, {**env, item.index: index}, kernel))

    def loop(self, index: int, lower: int, upper: int, make: Callable[[], list[plans.Item]]) -> list[plans.Item]:
        """A loop with a barrier before it and one at its body's end, so that iterations need not be compared."""
        before = self.settle()
        body = make()
        return [*before, plans.Loop(index, lower, upper, (*body, *self.settle()))]

    def settle(self) -> list[plans.Item]:
        """A barrier, if there is anything to wait for."""
        if not self.pending.reads and not self.pending.writes:
            return []
        self.pending = _Pending()
        return [plans.Barrier()]

    def _launch(self, launch: Launch, env: dict[str, int]) -> list[plans.Item]:
        planner = self.planner
        if launch.kernel not in planner.kernels:
            raise InputError(f"the schedule is malformed: no kernel is called {launch.kernel!r}")
        kernel = planner.kernels[launch.kernel]
        inner = {n: planner._operand(o, env) for n, o in zip(kernel.scalars, launch.scalars, strict=True)}
        views = dict(zip((p.name for p in kernel.params), launch.args, strict=True))
        terms = {
            name: tuple((planner._operand(scalar, env), c) for scalar, c in view.terms) for name, view in views.items()
        }
        return self.block(kernel.body, inner, _Kernel(kernel, views, terms))


@dataclass(frozen=True)
class _Kernel:
    """A kernel at one launch: the view that each parameter is given, with its terms over registers."""

    kernel: Kernel
    views: Mapping[str, View]
    terms: Mapping[str, tuple[tuple[int, int], ...]]


class _PipelinePlan:
    def __init__(self, block: _Block, kernel: _Kernel, pipeline: Pipeline, env: dict[str, int]) -> None:
        self.block = block
        self.planner = block.planner
        self.kernel = kernel
        self.pipeline = pipeline
        self.env = dict(env)
        self.where = f"{kernel.kernel.name}.{pipeline.name}"
        self.stages = self._ordered(
            resolve_stages(kernel.kernel, pipeline, self.planner.bodies, self.planner.aliased[kernel.kernel.name])
        )
        self.trips = _static_trips(pipeline)
        self.used = 0
        self.private_used = 0
        self.generation: dict[tuple[int, int], int] = {}
        replicated = self._replicated()
        self.replicated = {s.stage.name for s in replicated}
        self.slots = self._layout({p.buffer for s in replicated for p in _written(s)})

    def _ordered(self, stages: list[ResolvedStage]) -> list[ResolvedStage]:
        """The stages so that whatever is read in an iteration was written before in it; their own order, if it is one."""
        ordered: list[ResolvedStage] = []
        left = list(stages)
        while left:
            ready = next((s for s in left if not any(_feeds(other, s) for other in left if other is not s)), None)
            if ready is None:
                raise self._refusal(left[0], "it waits for what later iterations give to earlier ones")
            ordered.append(ready)
            left.remove(ready)
        return ordered

    # -- what is where

    def _replicated(self) -> list[ResolvedStage]:
        """Stages that are cheap and write nothing but buffers: each thread computes them for itself."""
        writers: dict[str, int] = {}
        for stage in self.stages:
            for port in _written(stage):
                writers[port.buffer] = writers.get(port.buffer, 0) + 1
        found = []
        for stage in self.stages:
            outputs = [
                (port, param)
                for port, param in zip(stage.ports, stage.body.params, strict=True)
                if param.access != "read"
            ]
            alone = all(isinstance(p, BufferPort) and writers[p.buffer] == 1 and not p.lag for p, _ in outputs)
            small = sum(prod(param.shape) for _, param in outputs) * stage.stage.trips <= REPLICATED_ELEMENTS
            affine = all(step.kind in ("vector", "reduction") for step in stage.body.steps)
            if outputs and alone and small and affine:
                found.append(stage)
        return found

    def _layout(self, private: set[str]) -> dict[str, _Slots]:
        used = {p.buffer for s in self.stages for p in s.ports if isinstance(p, BufferPort)}
        slots = {}
        for buffer in self.pipeline.buffers:
            if buffer.name not in used:
                continue
            per_iteration, generations = self._shape(buffer.name)
            slot = _aligned(buffer.slot_bytes)
            total = slot * per_iteration * generations
            if buffer.name in private:
                offset, self.private_used = self.private_used, self.private_used + total
            else:
                offset, self.used = self.used, self.used + total
            slots[buffer.name] = _Slots(offset, slot, per_iteration, generations, buffer.name in private)
        return slots

    def _shape(self, buffer: str) -> tuple[int, int]:
        """Slots that an iteration fills, and how many iterations' worth of them live at the same time."""
        per_iteration = 1
        lags = []
        for stage in self.stages:
            for port in stage.ports:
                if not isinstance(port, BufferPort) or port.buffer != buffer:
                    continue
                if stage.stage.when == "each":
                    lags.append(port.lag)
                    if port.per < stage.stage.trips:
                        per_iteration = max(per_iteration, stage.stage.trips // port.per)
        if not lags:
            lags = [0]
        return per_iteration, -(-(max(lags) - min(lags)) // per_iteration) + 1

    # -- control

    def run(self) -> list[plans.Item]:
        planner, pipeline = self.planner, self.pipeline
        lower, upper = planner._operand(pipeline.lower, self.env), planner._operand(pipeline.upper, self.env)
        once = self.trips == 1
        index = lower if once else planner._register()
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
            start = planner._compute("add", lower, planner._constant(0))
            self.env[pipeline.index] = start.target
            items += [start, *self._iteration("first", lower, scalars=True)]
            self.env[pipeline.index] = index
        items += self.block.loop(index, lower, upper, lambda: self._iteration("each", lower, scalars=True))
        if last:
            end = planner._compute("sub", upper, planner._constant(1))
            self.env[pipeline.index] = end.target
            items += [end, *self._iteration("last", lower, scalars=True)]
        some = planner._compute("lt", lower, upper)
        branch = plans.Branch(some.target, tuple(items))
        out: list[plans.Item] = [some, branch]
        self._close(out)
        return out

    def _close(self, items: list[plans.Item]) -> None:
        """The workspace is the next pipeline's."""
        items += self.block.settle()
        self.planner.workspace_bytes = max(self.planner.workspace_bytes, _aligned(self.used))
        self.planner.private_bytes = max(self.planner.private_bytes, _aligned(self.private_used))

    def _iteration(self, when: str, lower: int, *, scalars: bool) -> list[plans.Item]:
        items: list[plans.Item] = []
        if scalars:
            for scalar in self.pipeline.scalars:
                items.append(self.block._scalar(scalar, self.env))
        if when == "each":
            items += self._generations(lower)
        for stage in self.stages:
            if stage.stage.when == when:
                items += self._stage(stage)
        return items

    def _generations(self, lower: int) -> list[plans.Item]:
        """Registers with the generation of slots that an iteration uses, where a buffer has several."""
        planner = self.planner
        items: list[plans.Item] = []
        number = None
        for stage in self.stages:
            for port in stage.ports:
                if not isinstance(port, BufferPort) or stage.stage.when != "each":
                    continue
                slots = self.slots[port.buffer]
                key = (port.lag // slots.per_iteration, slots.generations)
                if slots.generations == 1 or key in self.generation:
                    continue
                if number is None:
                    number = planner._compute("sub", self.env[self.pipeline.index], lower)
                    items.append(number)
                ahead = planner._compute("add", number.target, planner._constant(key[0]))
                place = planner._compute("mod", ahead.target, planner._constant(slots.generations))
                items += [ahead, place]
                self.generation[key] = place.target
        return items

    # -- stages

    def _stage(self, stage: ResolvedStage) -> list[plans.Item]:
        planner = self.planner
        rank = len(stage.stage.grid)
        grid = planner.grid(rank)
        env = {**self.env, **{f"t{d}": register for d, register in enumerate(grid)}}
        pointers, strides = [], []
        for port, param in zip(stage.ports, stage.body.params, strict=True):
            view, pointer = self._pointer(stage, port, param.dtype, env, grid)
            pointers.append(pointer)
            strides.append(view)
        packed = tuple(
            (param.name, planner.packed[pointer.region])
            for param, pointer in zip(stage.body.params, pointers, strict=True)
            if pointer.region in planner.packed
        )
        code = planner.code(Variant(stage.body, tuple(strides), packed))
        trips = [(register, extent) for register, extent in zip(grid, stage.stage.grid, strict=True) if extent > 1]
        scalars = tuple(planner._operand(o, self.env | env) for o in stage.stage.scalars)
        reads, writes = set(), set()
        for pointer, param in zip(pointers, stage.body.params, strict=True):
            if param.access != "write":
                reads.add(pointer.key)
            if param.access != "read":
                writes.add(pointer.key)
        items: list[plans.Item] = []
        private = stage.stage.name in self.replicated
        shared = self._shared(code.shared_bytes, trips, private)
        for routine in code.routines:
            alone = private or routine.units * stage.stage.trips == 1
            if not private:
                scratch = {shared.key} if shared is not None else set()
                if self.block.pending.conflicts(reads | scratch, writes | scratch):
                    items.append(plans.Barrier())
                    self.block.pending = _Pending()
                self.block.pending.reads |= reads | scratch
                self.block.pending.writes |= writes | scratch
            else:
                outside = {r for r in reads if r[0] != PRIVATE}
                if self.block.pending.conflicts(outside, set()):
                    items.append(plans.Barrier())
                    self.block.pending = _Pending()
                self.block.pending.reads |= outside
            arguments = [self._argument(p) for p in pointers]
            arguments.append(self._argument(shared) if shared is not None else plans.Argument(
                planner.region_numbers[PRIVATE], 0, 0))
            mode: plans.Mode = "replicated" if private else "serial" if alone else "split"
            run = plans.Run(
                function=planner.function(routine.function),
                mode=mode,
                units=routine.units,
                grid=tuple(trips),
                arguments=tuple(arguments),
                scalars=scalars,
                label=planner.label(f"{self.where}.{stage.stage.name}"),
            )
            planner.runs.append(run)
            items.append(plans.Execute(len(planner.runs) - 1))
        return items

    def _shared(self, nbytes: int, trips: list[tuple[int, int]], private: bool) -> _Pointer | None:
        """Scratch of a stage that its phases share: a piece for each firing."""
        if not nbytes:
            return None
        total = nbytes * prod(t for _, t in trips)
        offset = self.private_used if private else self.used
        if private:
            self.private_used += _aligned(total)
        else:
            self.used += _aligned(total)
        terms, step = [], nbytes
        for register, extent in reversed(trips):
            terms.append((register, step))
            step *= extent
        region = PRIVATE if private else WORKSPACE
        return _Pointer(region, offset, nbytes, tuple(terms), (region, offset, offset + total))

    def _argument(self, pointer: _Pointer) -> plans.Argument:
        return plans.Argument(
            self.planner.region_numbers[pointer.region], pointer.offset, pointer.extent, pointer.terms
        )

    def _pointer(
        self, stage: ResolvedStage, port: MemoryPort | BufferPort, dtype: str, env: Mapping[str, int], grid: list[int]
    ) -> tuple[Strides, _Pointer]:
        if isinstance(port, MemoryPort):
            return self._memory(port, dtype, env)
        slots = self.slots[port.buffer]
        size = DTYPE_BYTES[dtype]
        terms = [(self.planner._operand(name, env), c * size) for name, c in port.view.terms]
        offset = slots.offset + port.view.offset * size
        place, more = self._slot(stage, port, slots, grid)
        region = PRIVATE if slots.private else WORKSPACE
        end = slots.offset + slots.slot_bytes * slots.per_iteration * slots.generations
        key = (region, slots.offset, end)
        extent = _extent(port.view.shape, port.view.strides) * size
        pointer = _Pointer(region, offset + place * slots.slot_bytes, extent, (*terms, *more), key)
        return port.view.strides, pointer

    def _slot(
        self, stage: ResolvedStage, port: BufferPort, slots: _Slots, grid: list[int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """The place of the slot that a port uses: a number, and terms over registers in bytes."""
        trips = stage.stage.trips
        if stage.stage.when == "last":
            self._check_alive(stage, port, slots)
        if stage.stage.when != "each" or self.trips == 1:
            place = port.lag % (slots.per_iteration * slots.generations)
            if trips == 1 or port.per >= trips:
                return place, []
        generation, shift = divmod(port.lag, slots.per_iteration)
        if shift:
            raise self._refusal(stage, "a buffer's lag is not a whole number of iterations")
        whole_run = port.per > trips
        if whole_run and (self.trips is None or port.per < trips * self.trips):
            raise self._refusal(stage, "a buffer's slot serves several iterations, but not all of them")
        terms: list[tuple[int, int]] = []
        if slots.generations > 1 and not whole_run:
            register = self.generation[(generation, slots.generations)]
            terms.append((register, slots.per_iteration * slots.slot_bytes))
        if port.per < trips:
            if port.per != 1:
                raise self._refusal(stage, f"a slot takes {port.per} of {trips} firings")
            step = slots.slot_bytes
            for register, extent in zip(reversed(grid), reversed(stage.stage.grid), strict=True):
                terms.append((register, step))
                step *= extent
        return 0, terms

    def _check_alive(self, stage: ResolvedStage, port: BufferPort, slots: _Slots) -> None:
        """An epilogue reads what the last iterations left."""
        writers = [p for s in self.stages if s.stage.when == "each" for p in _written(s) if p.buffer == port.buffer]
        if not writers or port.per > 1:
            return
        if self.trips is None:
            raise self._refusal(stage, "it reads a slot by its number after a loop of unknown length")
        latest = self.trips - 1 + max(p.lag for p in writers) // slots.per_iteration
        if port.lag // slots.per_iteration <= latest - slots.generations:
            raise self._refusal(stage, "it reads a slot that many iterations have passed over")

    def _refusal(self, stage: ResolvedStage, why: str) -> InputError:
        return InputError(
            f"the native interpreter cannot run stage {stage.stage.name!r} of {self.where}: {why}: "
            "run with --interpreter reference"
        )

    def _memory(self, port: MemoryPort, dtype: str, env: Mapping[str, int]) -> tuple[Strides, _Pointer]:
        planner = self.planner
        shape = next(p.shape for p in self.kernel.kernel.params if p.name == port.param)
        given = self.kernel.views[port.param]
        bare = View(given.tensor, given.shape, given.strides, given.offset)
        view = compose(port.view, shape, bare)
        if view is None:
            raise InputError(f"the native interpreter cannot follow a window of {port.param!r} in {self.where}")
        tensor = planner.tensors[given.tensor]
        terms = [*self.kernel.terms[port.param], *((planner._operand(n, env), c) for n, c in view.terms)]
        size = DTYPE_BYTES[tensor.dtype]
        panels = planner.packed.get(tensor.name)
        if panels is not None:
            return view.strides, self._packed(tensor, panels, view, terms)
        if tensor.role in ("weight", "constant"):
            region, base = tensor.name, 0
        else:
            region, base = MEMORY, tensor.address
        key = (region, base, base + tensor.nbytes)
        extent = _extent(view.shape, view.strides) * size
        offset = base + view.offset * size
        return view.strides, _Pointer(region, offset, extent, tuple((r, c * size) for r, c in terms), key)

    def _packed(
        self, tensor: Tensor, panels: Panels, view: View, terms: list[tuple[int, int]]
    ) -> _Pointer:
        elements = panels.n * panels.k
        rows = 1 + max(s * (e - 1) for s, e in zip(view.strides, view.shape, strict=True)) // panels.n_stride
        count = -(-min(rows, panels.n) // 16) if prod(view.shape) <= elements else panels.count
        extent = min(count * panels.panel_bytes, panels.packed_bytes)
        if panels.n_stride == 1:
            extent = panels.packed_bytes
        return _Pointer(
            tensor.name,
            packed_offset(panels, elements, tensor.dtype, view.offset),
            extent,
            tuple((r, packed_offset(panels, elements, tensor.dtype, c)) for r, c in terms),
            (tensor.name, 0, 0),
        )


def _written(stage: ResolvedStage) -> list[BufferPort]:
    pairs = zip(stage.ports, stage.body.params, strict=True)
    return [port for port, param in pairs if param.access != "read" and isinstance(port, BufferPort)]


def _feeds(writer: ResolvedStage, reader: ResolvedStage) -> bool:
    """Whether a stage reads what another one writes in the same iteration."""
    written = {port.buffer: port for port in _written(writer)}
    for port, param in zip(reader.ports, reader.body.params, strict=True):
        if isinstance(port, BufferPort) and param.access == "read" and port.buffer in written:
            if writer.stage.when != reader.stage.when or port.lag >= written[port.buffer].lag:
                return True
    return False


def _static_trips(pipeline: Pipeline) -> int | None:
    if isinstance(pipeline.lower, int) and isinstance(pipeline.upper, int):
        return max(0, pipeline.upper - pipeline.lower)
    return None


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _copy(pending: _Pending) -> _Pending:
    return _Pending(set(pending.reads), set(pending.writes))


def _union(a: _Pending, b: _Pending) -> _Pending:
    return _Pending(a.reads | b.reads, a.writes | b.writes)


__all__ = ["InternalError", "Native", "dense", "is_dense", "plan_program"]
