"""Kernel functions become schedule kernels: each operation of a kernel turns into one or more stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from sscc.compiler.backend.access import access_map, identity_map, loop_sizes
from sscc.compiler.backend.body import Body, Literal, literal
from sscc.ir.dialects.kv import geometry_of
from sscc.ir.errors import InternalError, UnsupportedError
from sscc.ir.geometry import Geometry
from sscc.ir.rewriting import module_path
from sscc.runtime import schedule as sch

COMBINERS = {
    "arith.addf": "addf",
    "arith.mulf": "mulf",
    "arith.maximumf": "maximumf",
    "arith.maxnumf": "maximumf",
    "arith.minimumf": "minimumf",
    "arith.minnumf": "minimumf",
}


@dataclass(frozen=True)
class EmittedKernel:
    """A schedule kernel and how its call's operands and results map to parameters.

    Attributes:
        kernel: the kernel.
        tied: per result, the operand index it updates in place, or None for a parameter of its own.
    """

    kernel: sch.Kernel
    tied: tuple[int | None, ...]


def dtype_of(type_: ir.Type) -> Any:
    """The schedule dtype of a tensor's element type. Raises UnsupportedError for others."""
    name = str(type_.element_type if isinstance(type_, ir.RankedTensorType) else type_)
    if name not in sch.DTYPE_BYTES:
        raise UnsupportedError(f"tensors of {name} have no place in a schedule (f32, bf16, i64 and i1 do)")
    return name


def describe_location(location: ir.Location) -> str:
    """`module.path file.py:line` of an operation, as far as known."""
    path = module_path(location)
    while isinstance(location, (ir.NameLoc, ir.CallSiteLoc)):
        location = location.child_loc if isinstance(location, ir.NameLoc) else location.callee
    if isinstance(location, ir.FileLineColLoc):
        return f"{path} {location.filename}:{location.start_line}".strip()
    return path


def emit_kernel(function: Any) -> EmittedKernel:
    """Emits one kernel function whose named linalg operations have been generalised.

    Raises:
        UnsupportedError: with the kernel's source line, for what a schedule cannot express.
    """
    try:
        return _KernelEmitter(function).emit()
    except UnsupportedError as error:
        where = describe_location(function.location)
        raise UnsupportedError(f"{where}: {error}" if where else str(error)) from None


@dataclass
class _KernelEmitter:
    function: Any
    params: list[sch.Param] = field(default_factory=list)
    stages: list[sch.Stage] = field(default_factory=list)
    literals: dict[ir.Value, Literal] = field(default_factory=dict)
    names: dict[ir.Value, str] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)

    def emit(self) -> EmittedKernel:
        scalars = []
        operand_names = []
        for index, value in enumerate(self.function.arguments):
            name = f"x{index}"
            self.names[value] = name
            operand_names.append(name)
            if isinstance(value.type, ir.IndexType):
                scalars.append(name)
        *body, terminator = [op.operation for op in self.function.entry_block.operations]
        returned = {value: index for index, value in enumerate(terminator.operands)}
        self._name_outputs(returned)
        for op in body:
            self._operation(op)
        tied = tuple(self._tie(value, operand_names) for value in terminator.operands)
        kernel = sch.Kernel(
            self.function.name.value,
            tuple(self._parameters(terminator, tied)),
            tuple(scalars),
            tuple(self.stages),
            describe_location(self.function.location),
        )
        return EmittedKernel(kernel, tied)

    def _name_outputs(self, returned: dict[ir.Value, int]) -> None:
        for value, index in returned.items():
            self.names.setdefault(value, f"y{index}")

    def _tie(self, value: ir.Value, operand_names: list[str]) -> int | None:
        name = self.names[value]
        return operand_names.index(name) if name in operand_names else None

    def _parameters(self, terminator: ir.Operation, tied: Sequence[int | None]) -> list[sch.Param]:
        params = []
        for value in self.function.arguments:
            if isinstance(value.type, ir.RankedTensorType):
                name = self.names[value]
                params.append(self._param(name, value.type, "update" if name in self.updated else "read"))
        for value, operand in zip(terminator.operands, tied, strict=True):
            if operand is None:
                params.append(self._param(self.names[value], value.type, "write"))
        return params

    def _param(self, name: str, type_: ir.RankedTensorType, access: Any) -> sch.Param:
        return sch.Param(name, tuple(type_.shape), dtype_of(type_), access)

    # ------------------------------------------------------------------------------------------ operations

    def _operation(self, op: ir.Operation) -> None:
        if op.name == "tensor.empty":
            return
        if op.name == "arith.constant":
            self.literals[op.results[0]] = self._constant(op)
            return
        if op.name == "linalg.generic":
            self._generic(op)
            return
        emit = _STAGES.get(op.name)
        if emit is None:
            raise UnsupportedError(f"'{op.name}' has no stage in a schedule")
        emit(self, op)

    def _constant(self, op: ir.Operation) -> Literal:
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr):
            if not attribute.is_splat:
                raise UnsupportedError("a literal tensor must become a constant")
            attribute = attribute.get_splat_value()
        return literal(attribute)

    def _generic(self, op: ir.Operation) -> None:
        block = op.regions[0].blocks[0]
        outputs = len(op.results)
        if outputs != 1:
            raise UnsupportedError(f"an operation with {outputs} results")
        count = len(block.arguments) - outputs
        inputs = list(op.operands)[:count]
        init = list(op.operands)[count]
        if _is_fill(op, inputs) and inputs[0] in self.literals:
            self.literals[op.results[0]] = self.literals[inputs[0]]
            if op.results[0] not in self.names:
                return
        maps = [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]
        types = [value.type for value in [*inputs, op.results[0]]]
        dims = loop_sizes(maps, types)
        reduced = tuple(i for i, kind in enumerate(op.attributes["iterator_types"]) if "reduction" in str(kind))
        body = Body(block, self.names, self.literals)
        accesses = self._accesses(op, inputs, maps, body)
        output = sch.Access(self._written(op), access_map(maps[-1], len(dims)))
        if not reduced:
            body.bind_output(block.arguments[count], self.literals.get(init))
            self.stages.append(sch.Vector(dims, tuple(accesses), output, *body.program()))
            return
        self._reduction(op, dims, reduced, accesses, output, init, body)

    def _accesses(
        self, op: ir.Operation, inputs: list[ir.Value], maps: list[Any], body: Body
    ) -> list[sch.Access]:
        """Access maps of the tensor inputs; inputs that are literals are bound into the body instead."""
        accesses: list[sch.Access] = []
        for index, value in enumerate(inputs):
            argument = op.regions[0].blocks[0].arguments[index]
            if value in self.literals:
                body.bind(argument, self.literals[value])
                continue
            body.bind(argument, f"in{len(accesses)}")
            accesses.append(sch.Access(self.names[value], access_map(maps[index], maps[index].n_dims)))
        return accesses

    def _written(self, op: ir.Operation) -> str:
        """The parameter that the operation's result is; results that stay inside a kernel are not emitted yet."""
        result = op.results[0]
        if result not in self.names:
            raise InternalError(f"{op.location}: '{op.name}' makes a value that its kernel does not return")
        return self.names[result]

    def _reduction(
        self,
        op: ir.Operation,
        dims: tuple[int, ...],
        reduced: tuple[int, ...],
        accesses: list[sch.Access],
        output: sch.Access,
        init: ir.Value,
        body: Body,
    ) -> None:
        if init not in self.literals:
            raise UnsupportedError("a reduction that starts from a tensor instead of a constant")
        combine, value = _combiner(op)
        if combine not in COMBINERS:
            raise UnsupportedError(f"a reduction by '{combine}'")
        start = float(self.literals[init])
        factors = body.product_of(value)
        if factors is not None and COMBINERS[combine] == "addf" and start == 0.0 and len(accesses) == 2:
            a, b = (accesses[int(name[2:])] for name in factors)
            self.stages.append(sch.Product(dims, reduced, a, b, output))
            return
        instructions, result = body.program_for(value)
        self.stages.append(
            sch.Reduction(
                dims, reduced, tuple(accesses), output, instructions, result, COMBINERS[combine], start
            )
        )

    # ------------------------------------------------------------------------------------------- kv stages

    def geometry(self, op: ir.Operation) -> Geometry:
        return geometry_of(op)

    def operand(self, op: ir.Operation, index: int) -> str:
        return self.names[op.operands[index]]

    def update(self, op: ir.Operation, index: int) -> str:
        """The operand that the operation's result updates in place."""
        name = self.names[op.operands[index]]
        self.names[op.results[0]] = name
        self.updated.add(name)
        return name

    def vector(self, dims: tuple[int, ...], inputs: list[sch.Access], out: str, program: list[tuple[Any, ...]]) -> None:
        """Appends an integer vector program given as (name, op, args, type) rows; the last row is the result."""
        instructions = tuple(sch.Instr(name, op, tuple(args), type_) for name, op, args, type_ in program)
        output = sch.Access(out, identity_map(len(dims)))
        self.stages.append(
            sch.Vector(dims, tuple(inputs), output, instructions, instructions[-1].name)
        )


def _is_fill(op: ir.Operation, inputs: list[ir.Value]) -> bool:
    block = op.regions[0].blocks[0]
    operations = list(block.operations)
    return len(inputs) == 1 and len(operations) == 1 and operations[0].operation.operands[0] == block.arguments[0]


def _combiner(op: ir.Operation) -> tuple[str, ir.Value]:
    """The combining operation of a reduction's body, and the value it combines with the accumulator."""
    block = op.regions[0].blocks[0]
    accumulator = block.arguments[len(block.arguments) - 1]
    *_, terminator = block.operations
    last = terminator.operation.operands[0].owner
    if isinstance(last, ir.Block):
        return "none", accumulator
    operands = list(last.operation.operands)
    if accumulator not in operands or len(operands) != 2:
        return str(last.operation.name), operands[0]
    return str(last.operation.name), operands[1] if operands[0] == accumulator else operands[0]


# ---------------------------------------------------------------------------------------- one emitter per kv op


def _row(e: _KernelEmitter, op: ir.Operation) -> None:
    g = e.geometry(op)
    program = [
        ("past", "subi", ["in0", g.sink], "i64"),
        ("lap", "remsi", ["past", g.recent], "i64"),
        ("ring", "addi", ["lap", g.sink], "i64"),
        ("is_sink", "cmpi_slt", ["in0", g.sink], "i1"),
        ("row", "select", ["is_sink", "in0", "ring"], "i64"),
    ]
    batch = op.results[0].type.shape[0]
    e.vector((batch,), [sch.Access(e.operand(op, 0), ((1, 0),))], e.names[op.results[0]], program)


def _validity(e: _KernelEmitter, op: ir.Operation) -> None:
    sr = e.geometry(op).sink_recent
    program = [
        ("row", "index", [1], "i64"),
        ("length", "addi", ["in0", 1], "i64"),
        ("filled", "minsi", ["length", sr], "i64"),
        ("in_window", "cmpi_slt", ["row", "filled"], "i1"),
        ("after", "cmpi_sge", ["row", sr], "i1"),
        ("end", "addi", ["in1", sr], "i64"),
        ("before", "cmpi_slt", ["row", "end"], "i1"),
        ("in_topk", "andi", ["after", "before"], "i1"),
        ("held", "ori", ["in_window", "in_topk"], "i1"),
        ("valid", "andi", ["held", "in2"], "i1"),
    ]
    inputs = [sch.Access(e.operand(op, index), ((1, 0, 0),)) for index in range(3)]
    e.vector(tuple(op.results[0].type.shape), inputs, e.names[op.results[0]], program)


def _ring_positions(e: _KernelEmitter, op: ir.Operation) -> None:
    g = e.geometry(op)
    program = [
        ("i", "index", [0], "i64"),
        ("last", "subi", [e.operand(op, 0), 1], "i64"),
        ("past", "subi", ["last", g.sink], "i64"),
        ("distance", "subi", ["past", "i"], "i64"),
        ("signed", "remsi", ["distance", g.recent], "i64"),
        ("raised", "addi", ["signed", g.recent], "i64"),
        ("back", "remsi", ["raised", g.recent], "i64"),
        ("position", "subi", ["last", "back"], "i64"),
        ("is_recent", "cmpi_sge", ["position", g.sink], "i1"),
        ("held", "select", ["is_recent", "position", -1], "i64"),
    ]
    e.vector((g.recent,), [], e.names[op.results[0]], program)


def _concat(e: _KernelEmitter, op: ir.Operation) -> None:
    axis = op.attributes["dim"].value
    out = e.names[op.results[0]]
    offset = 0
    for operand in op.operands:
        dims = tuple(operand.type.shape)
        identity = identity_map(len(dims))
        shifted = [(*row[:-1], offset) if index == axis else row for index, row in enumerate(identity)]
        source = sch.Access(e.names[operand], identity)
        e.stages.append(sch.Vector(dims, (source,), sch.Access(out, tuple(shifted)), (), "in0"))
        offset += dims[axis]


def _update(e: _KernelEmitter, op: ir.Operation) -> None:
    cache = e.update(op, 0)
    e.stages.append(sch.UpdateRows(cache, e.operand(op, 1), e.operand(op, 2), e.operand(op, 3)))


def _cached_attention(e: _KernelEmitter, op: ir.Operation) -> None:
    query, key, value, valid = (e.operand(op, index) for index in range(4))
    out = e.names[op.results[0]]
    e.stages.append(sch.CachedAttention(query, key, value, valid, out, op.attributes["scale"].value))


def _causal_attention(e: _KernelEmitter, op: ir.Operation) -> None:
    query, key, value, start = (e.operand(op, index) for index in range(4))
    out = e.names[op.results[0]]
    e.stages.append(sch.CausalAttention(query, key, value, out, start, op.attributes["scale"].value))


def _observe(e: _KernelEmitter, op: ir.Operation) -> None:
    observed = e.update(op, 0)
    e.stages.append(sch.Observe(observed, e.operand(op, 1), e.operand(op, 2), e.operand(op, 3)))


def _observation_scores(e: _KernelEmitter, op: ir.Operation) -> None:
    observed, key, length = (e.operand(op, index) for index in range(3))
    scale, recent = op.attributes["scale"].value, e.geometry(op).recent
    e.stages.append(sch.ObservationScores(observed, key, e.names[op.results[0]], length, scale, recent))


def _pool(e: _KernelEmitter, op: ir.Operation) -> None:
    g = e.geometry(op)
    scores, length = e.operand(op, 0), e.operand(op, 1)
    e.stages.append(sch.Pool(scores, e.names[op.results[0]], length, g.pool, g.pool_mode))


def _select(e: _KernelEmitter, op: ir.Operation) -> None:
    g = e.geometry(op)
    scores, length = e.operand(op, 0), e.operand(op, 1)
    e.stages.append(sch.Select(scores, e.names[op.results[0]], length, g.sink, g.recent))


def _gather(e: _KernelEmitter, op: ir.Operation) -> None:
    e.stages.append(sch.GatherRows(e.operand(op, 0), e.operand(op, 1), e.names[op.results[0]]))


_STAGES: dict[str, Callable[[_KernelEmitter, ir.Operation], None]] = {
    "tensor.concat": _concat,
    "kv.row": _row,
    "kv.validity": _validity,
    "kv.ring_positions": _ring_positions,
    "kv.update": _update,
    "kv.cached_attention": _cached_attention,
    "kv.causal_attention": _causal_attention,
    "kv.observe": _observe,
    "kv.observation_scores": _observation_scores,
    "kv.pool": _pool,
    "kv.select": _select,
    "kv.gather": _gather,
}
