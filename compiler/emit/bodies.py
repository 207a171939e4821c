"""Body functions become schedule bodies: each operation turns into one or more steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch_mlir import ir

from sscc.compiler.emit.access import access_map, identity_map, loop_sizes
from sscc.compiler.emit.body import BodyTranslator, Literal, literal
from sscc.compiler.emit.windows import dropped, is_whole, reshaped, sliced, transposed, whole
from sscc.ir import schedule as sch
from sscc.ir.collectives import grid_axes
from sscc.ir.dialects import kv
from sscc.ir.dialects.kv import geometry_of
from sscc.ir.errors import ErrorKind, InternalError, UnsupportedError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import walk
from sscc.ir.locations import describe_location, origin_of
from sscc.ir.opspec import Operand
from sscc.ir.rewriting import fill_value, outer_values
from sscc.ir.views import RESHAPES, is_view, permutation_of

COMBINERS = {
    "arith.addf": "addf",
    "arith.mulf": "mulf",
    "arith.maximumf": "maximumf",
    "arith.maxnumf": "maximumf",
    "arith.minimumf": "minimumf",
    "arith.minnumf": "minimumf",
}


class BodyEmissionErrors(ErrorKind):
    DTYPE = UnsupportedError, "{origin}a schedule has no tensors of {dtype}, only of {dtypes}"
    OPERATION = UnsupportedError, "{origin}a schedule has no step for '{op}'"
    OFFSETS_NOT_CONSTANT = UnsupportedError, "{origin}the offsets of '{op}' inside a stage are not constant"
    NO_VIEW = InternalError, "{origin}{source} cannot be viewed as {result} without a copy"
    TENSOR_LITERAL = UnsupportedError, "{origin}a literal tensor inside a stage has elements that differ"
    SEVERAL_RESULTS = UnsupportedError, "{origin}{results} results of '{op}' are read, but a step has one"
    START = (
        UnsupportedError,
        "{origin}a reduction starts from a tensor, but in a schedule it must start from a constant",
    )
    COMBINER = UnsupportedError, "{origin}a schedule has no reduction by '{op}'"
    INTEGER_SUM = UnsupportedError, "{origin}a schedule has no reduction by '{op}': sum floats instead of integers"


@dataclass(frozen=True)
class EmittedBody:
    """A schedule body, and the parameters of its stage's operands and results.

    Tensor operands are the first parameters, in order; results that are not tied follow.

    Attributes:
        tied: for each result, the index of the operand that it updates in place, or None for a parameter of its own.
    """

    body: sch.Body
    tied: tuple[int | None, ...]


def dtype_of(type_: ir.Type, origin: str = "") -> Any:
    """Return the schedule dtype of a tensor's element type. Raises UnsupportedError for others.

    Args:
        origin: source line with which an error's message begins (`origin_of`).
    """
    name = str(type_.element_type if isinstance(type_, ir.RankedTensorType) else type_)
    if name not in sch.DTYPE_BYTES:
        raise BodyEmissionErrors.DTYPE(origin=origin, dtype=name, dtypes=list(sch.DTYPE_BYTES))
    return name


def emit_body(function: Any) -> EmittedBody:
    """Emit a stage's body function, whose named linalg operations have been generalised.

    Raises:
        UnsupportedError: a schedule cannot express an operation; the message has the stage's source line.
    """
    return _BodyEmitter(function).emit()


@dataclass
class _BodyEmitter:
    function: Any
    steps: list[sch.Step] = field(default_factory=list)
    literals: dict[ir.Value, Literal] = field(default_factory=dict)
    scalars: dict[ir.Value, str] = field(default_factory=dict)
    views: dict[ir.Value, sch.View] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    locals: list[sch.Local] = field(default_factory=list)
    windows: dict[sch.View, str] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)

    def emit(self) -> EmittedBody:
        block = self.function.entry_block
        for index, value in enumerate(block.arguments):
            if isinstance(value.type, ir.RankedTensorType):
                self._region(value, f"x{index}")
            else:
                self.scalars[value] = f"x{index}"
        *body, terminator = [op.operation for op in block.operations]
        results = {f"y{index}": value for index, value in enumerate(terminator.operands)}
        self.returned = {value: name for name, value in reversed(results.items())}  # a value's first name counts
        for op in body:
            self._operation(op)
        arguments = list(block.arguments)
        names = [self.views[value].tensor if value in self.views else "" for value in arguments]
        tied = tuple(self._tie(value, names) for value in terminator.operands)
        for (name, value), operand in zip(results.items(), tied, strict=True):
            if operand is None and self.views[value].tensor != name:
                self._copy(value, name)
        params = [
            self._param(f"x{index}", value.type, "update" if f"x{index}" in self.updated else "read")
            for index, value in enumerate(arguments)
            if value not in self.scalars
        ]
        params += [
            self._param(name, value.type, "write")
            for (name, value), operand in zip(results.items(), tied, strict=True)
            if operand is None
        ]
        emitted = sch.Body(
            self.function.name.value,
            tuple(params),
            tuple(self.scalars.values()),
            tuple(self.locals),
            tuple(sch.Window(name, view) for view, name in self.windows.items()),
            tuple(self.steps),
            describe_location(self.function.location),
        )
        return EmittedBody(emitted, tied)

    @cached_property
    def origin(self) -> str:
        """Source line of the stage, with which an error's message begins."""
        return origin_of(self.function)

    def _region(self, value: ir.Value, name: str) -> None:
        self.shapes[name] = tuple(value.type.shape)
        self.views[value] = whole(name, value.type.shape)

    def _tie(self, value: ir.Value, operand_names: list[str]) -> int | None:
        """Return the index of the operand that a returned value updates in place; None for other values, which are
        copied."""
        name = self.views[value].tensor
        return operand_names.index(name) if name in self.updated and name in operand_names else None

    def _copy(self, value: ir.Value, name: str) -> None:
        """Copy a returned value that is a view of another tensor to a parameter."""
        shape = tuple(value.type.shape)
        identity = identity_map(len(shape))
        source = sch.Access(self.name(value), identity)
        self.steps.append(sch.Vector(shape, (source,), sch.Access(name, identity), (), "in0"))

    def _param(self, name: str, type_: ir.RankedTensorType, access: Any) -> sch.Param:
        return sch.Param(name, tuple(type_.shape), dtype_of(type_, self.origin), access)

    def name(self, value: ir.Value) -> str:
        """Return the name of the parameter, local or window that shows exactly `value`, or of the scalar that it is."""
        if value in self.scalars:
            return self.scalars[value]
        view = self.views[value]
        if is_whole(view, self.shapes[view.tensor]):
            return view.tensor
        return self.windows.setdefault(view, f"w{len(self.windows)}")

    def filled(self, value: ir.Value) -> None:
        """Create a local for a filled tensor that an operation of the algorithm reads."""
        if value in self.literals and value not in self.views and isinstance(value.type, ir.RankedTensorType):
            name, dtype = self.written(value), dtype_of(value.type, self.origin)
            self.vector(tuple(value.type.shape), [], name, [("literal", "const", [self.literals[value]], dtype)])

    def flat(self, value: ir.Value) -> str:
        """Return the name of `value` [.., rows, 1], which has one number per row, viewed as [.., rows]."""
        view = dropped(self.views[value], list(value.type.shape)[:-1])
        return self.windows.setdefault(view, f"w{len(self.windows)}")

    def written(self, value: ir.Value) -> str:
        """Return a place for the result of an operation: a parameter if it is returned, else a local."""
        if value not in self.views:
            name = self.returned.get(value)
            if name is None:
                name = f"t{len(self.locals)}"
                self.locals.append(sch.Local(name, tuple(value.type.shape), dtype_of(value.type, self.origin)))
            self._region(value, name)
        return self.name(value)

    # ------------------------------------------------------------------------------------------ operations

    def _operation(self, op: ir.Operation) -> None:
        if op.name == "tensor.empty":
            return
        if is_view(op):
            if op.operands[0] in self.views:
                self._view(op)
            elif op.operands[0] in self.literals:  # a view of a filled tensor
                self.literals[op.results[0]] = self.literals[op.operands[0]]
            return
        if op.name == "arith.constant":
            self.literals[op.results[0]] = self._constant(op)
            return
        if op.name == "linalg.generic":
            self._generic(op)
            return
        emit = _STEPS.get(op.name)
        if emit is None:
            raise BodyEmissionErrors.OPERATION(origin=self.origin, op=op.name)
        emit(self, op)

    def _view(self, op: ir.Operation) -> None:
        source = self.views[op.operands[0]]
        permutation = permutation_of(op)
        if permutation is not None:
            view: sch.View | None = transposed(source, permutation)
        elif op.name == "tensor.extract_slice" and len(op.operands) == 1:
            sizes, steps = list(op.attributes["static_sizes"]), list(op.attributes["static_strides"])
            box = sliced(source, list(op.attributes["static_offsets"]), sizes, steps)
            view = dropped(box, op.results[0].type.shape)
        elif op.name in RESHAPES:
            view = reshaped(source, op.results[0].type.shape)
        else:
            raise BodyEmissionErrors.OFFSETS_NOT_CONSTANT(origin=self.origin, op=op.name)
        if view is None:
            source, result = op.operands[0].type, op.results[0].type
            raise BodyEmissionErrors.NO_VIEW(origin=origin_of(op) or self.origin, source=source, result=result)
        self.views[op.results[0]] = view

    def _constant(self, op: ir.Operation) -> Literal:
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr):
            if not attribute.is_splat:
                raise BodyEmissionErrors.TENSOR_LITERAL(origin=self.origin)
            attribute = attribute.get_splat_value()
        return literal(attribute)

    def _generic(self, op: ir.Operation) -> None:
        block = op.regions[0].blocks[0]
        used = [index for index, value in enumerate(op.results) if any(True for _ in value.uses)]
        if len(used) != 1:  # torch-mlir computes a maximum together with its index, even if only one is used
            raise BodyEmissionErrors.SEVERAL_RESULTS(origin=self.origin, op=op.name, results=len(used))
        (number,) = used
        result, count = op.results[number], len(block.arguments) - len(op.results)
        inputs = list(op.operands)[:count]
        init = list(op.operands)[count + number]
        filled = fill_value(op)
        if filled is not None:
            self.literals[result] = self.literals[filled]
            if result not in self.returned:
                return
        maps = [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]
        maps = [*maps[:count], maps[count + number]]
        dims = loop_sizes(maps, [value.type for value in [*inputs, result]], self.origin)
        reduced = tuple(i for i, kind in enumerate(op.attributes["iterator_types"]) if "reduction" in str(kind))
        inside = {operand for inner in walk(op) for operand in inner.operands}  # reads other than through the maps
        known = (v for v in outer_values(op) if v in inside and (v in self.views or v in self.scalars))
        outside = {value: self.name(value) for value in known}
        body = BodyTranslator(block, outside, self.literals, self.origin)
        accesses = self._accesses(op, inputs, maps, body)
        output = sch.Access(self.written(result), access_map(maps[-1], len(dims), self.origin))
        if not reduced:
            body.bind_output(block.arguments[count + number], self.literals.get(init))
            value = body.terminator.operands[number]
            self.steps.append(sch.Vector(dims, tuple(accesses), output, *body.program_for(value)))
            return
        combination = _combiner(body, block.arguments[count + number], number)
        self._reduction(combination, dims, reduced, accesses, output, init, body)

    def _accesses(
        self, op: ir.Operation, inputs: list[ir.Value], maps: list[Any], body: BodyTranslator
    ) -> list[sch.Access]:
        """Return access maps of the tensor inputs; inputs that are literals are bound into the body instead."""
        accesses: list[sch.Access] = []
        for index, value in enumerate(inputs):
            argument = op.regions[0].blocks[0].arguments[index]
            if value in self.literals:
                body.bind(argument, self.literals[value])
                continue
            body.bind(argument, f"in{len(accesses)}")
            rows = access_map(maps[index], maps[index].n_dims, self.origin)
            reduces = len(inputs) == 1 and len(maps[-1].results) < len(maps[0].results)  # a sum, say
            accesses.append(self._access(value, rows) if reduces else sch.Access(self.name(value), rows))
        return accesses

    def _access(self, value: ir.Value, rows: tuple[tuple[int, ...], ...]) -> sch.Access:
        """Return an access to a reduced operand. A parameter that it shows with other unit dimensions is accessed
        directly: a window would need it to be dense, but a tile of it is a part of a wider tensor."""
        view = self.views.get(value)
        if view is None or not view.tensor.startswith("x") or is_whole(view, self.shapes[view.tensor]):
            return sch.Access(self.name(value), rows)
        shape = self.shapes[view.tensor]
        same = [size for size in shape if size != 1] == [size for size in view.shape if size != 1]
        if not same or view != reshaped(whole(view.tensor, shape), view.shape):
            return sch.Access(self.name(value), rows)
        kept = iter([row for row, size in zip(rows, view.shape, strict=True) if size != 1])
        first = (0,) * len(rows[0])
        return sch.Access(view.tensor, tuple(next(kept) if size != 1 else first for size in shape))

    def _reduction(
        self,
        combination: tuple[str, ir.Value],
        dims: tuple[int, ...],
        reduced: tuple[int, ...],
        accesses: list[sch.Access],
        output: sch.Access,
        init: ir.Value,
        body: BodyTranslator,
    ) -> None:
        if init not in self.literals:
            raise BodyEmissionErrors.START(origin=self.origin)
        combine, value = combination
        if combine not in COMBINERS:
            kind = BodyEmissionErrors.INTEGER_SUM if combine == "arith.addi" else BodyEmissionErrors.COMBINER
            raise kind(origin=self.origin, op=combine)
        start = float(self.literals[init])
        factors = body.product_of(value)
        if factors is not None and COMBINERS[combine] == "addf" and start == 0.0 and len(accesses) == 2:
            a, b = (accesses[int(name[2:])] for name in factors)
            self.steps.append(sch.Product(dims, reduced, a, b, output))
            return
        instructions, result = body.program_for(value)
        self.steps.append(
            sch.Reduction(
                dims, reduced, tuple(accesses), output, instructions, result, COMBINERS[combine], start
            )
        )

    # ------------------------------------------------------------------------------------------- kv stages

    def geometry(self, op: ir.Operation) -> Geometry:
        return geometry_of(op)

    def operand(self, op: ir.Operation, index: int) -> str:
        return self.name(op.operands[index])

    def updates(self, op: ir.Operation) -> None:
        """Record the results that are operands updated in place."""
        for result, operand in kv.ties_of(op).items():
            view = self.views[op.results[result]] = self.views[op.operands[operand]]
            self.updated.add(view.tensor)

    def vector(
        self, dims: tuple[int, ...], inputs: list[sch.Access], out: str, program: list[tuple[Any, ...]], first: int = 0
    ) -> None:
        """Append a vector program of (name, op, args, type) rows, of which the last one is the result.

        Args:
            first: start of the written range along the last dimension of `out`.
        """
        instructions = tuple(sch.Instr(name, op, tuple(args), type_) for name, op, args, type_ in program)
        *rows, last = identity_map(len(dims))
        output = sch.Access(out, (*rows, (*last[:-1], first)))
        self.steps.append(
            sch.Vector(dims, tuple(inputs), output, instructions, instructions[-1].name)
        )


def _combiner(body: BodyTranslator, accumulator: ir.Value, number: int) -> tuple[str, ir.Value]:
    """Return the combining operation of a reduction's body for one of its results, and the value that it combines with
    the accumulator."""
    last = body.terminator.operands[number].owner
    if isinstance(last, ir.Block):
        return "none", accumulator
    operands = list(last.operation.operands)
    if accumulator not in operands or len(operands) != 2:
        return str(last.operation.name), operands[0]
    return str(last.operation.name), operands[1] if operands[0] == accumulator else operands[0]


# ---------------------------------------------------------------------------------------- one emitter per kv op


def _long(view: sch.View) -> list[tuple[int, int]]:
    """Return sizes and strides of the dimensions with more than one element."""
    return [(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size != 1]


def _row(e: _BodyEmitter, op: ir.Operation) -> None:
    program = [
        *_ring(e.geometry(op), e.operand(op, 2), "in1"),
        ("lap", "remsi", ["past", "ring"], "i64"),
        ("place", "addi", ["lap", "base"], "i64"),
        ("before", "cmpi_slt", ["in0", "base"], "i1"),
        ("row", "select", ["before", "in0", "place"], "i64"),
    ]
    batch = op.results[0].type.shape[0]
    inputs = [sch.Access(e.operand(op, index), ((1, 0),)) for index in range(2)]
    e.vector((batch,), inputs, e.written(op.results[0]), program)


def _ring(g: Geometry, topk: str | int, base: str) -> list[tuple[Any, ...]]:
    """Return the instructions for the ring of a slot: its first row `base`, its end, its number of rows `ring`, and how
    far in0, a position, is behind its begin (`past`).

    Args:
        topk: operand with the number of selected rows.
        base: operand with the slot's base.
    """
    return [
        ("most", "addi", [topk, g.sink], "i64"),
        ("end", "addi", ["most", g.ring_rows], "i64"),
        ("raised", "maxsi", [base, g.sink], "i64"),
        ("base", "minsi", ["raised", "most"], "i64"),
        ("past", "subi", ["in0", "base"], "i64"),
        ("behind", "subi", ["end", "base"], "i64"),
        ("ring", "maxsi", ["behind", g.ring_rows], "i64"),  # always true; it proves that the divisor is positive
    ]


def _validity(e: _BodyEmitter, op: ir.Operation) -> None:
    """Emit the flags of the cache's rows; with an index also those of its rows, and then those of the rows that they
    replace."""
    g, operands = e.geometry(op), kv.operands_of(op)
    slots, out = op.results[0].type.shape[0], e.written(op.results[0])
    names = ("position", "active", *(["base"] if g.spare else []))
    masks = [sch.Access(e.name(operands[name]), ((1, 0, 0),)) for name in names]

    def seen(first: int) -> list[tuple[Any, ...]]:
        if g.spare:
            return _seen_of_ring(g, first, e.name(operands["topk"]))
        passed = _passed_of_chunk(g)
        return [
            ("column", "index", [1], "i64"),
            ("row", "addi", ["column", first], "i64"),
            *passed,
            ("length", "addi", ["passed" if passed else "in0", 1], "i64"),
            ("end", "addi", [e.name(operands["topk"]), g.sink_recent], "i64"),
            ("filled", "minsi", ["length", "end"], "i64"),
            ("written", "cmpi_slt", ["row", "filled"], "i1"),
            ("valid", "andi", ["written", "in1"], "i1"),
        ]

    if g.spare and g.by_query:
        e.vector((slots, g.cache_rows), masks, out, _seen_of_ring(g, 0, 0))
        e.vector((slots, g.topk), masks, out, _seen_of_chosen(g), g.cache_rows)
        return
    e.vector((slots, g.covered_rows), masks, out, seen(0))
    if "index" in operands:
        index = sch.Access(e.name(operands["index"]), ((1, 0, 0), (0, 0, 0), (0, 1, 0)))
        for at, relation in ((g.sink, "cmpi_slt"), (g.covered_rows, "cmpi_sge")):
            replaced = [("there", relation, [f"in{len(masks)}", 0], "i1"), ("here", "andi", ["valid", "there"], "i1")]
            e.vector((slots, g.topk), [*masks, index], out, [*seen(g.sink), *replaced], at)


def _passed_of_chunk(g: Geometry) -> list[tuple[Any, ...]]:
    """Return the instruction that counts the earlier positions of the query's chunk, or none without a chunked
    window."""
    return [("passed", "remsi", ["in0", g.window_stride], "i64")] if g.window_stride else []


def _seen_of_ring(g: Geometry, first: int, topk: str | int) -> list[tuple[Any, ...]]:
    """Return the program that computes whether a query sees row `first` + column of a cache whose ring has spare rows.

    Args:
        g: geometry of the cache. in0, in1 and in2 are the position, activity and base of a slot.
        first: row of column 0.
        topk: operand with the number of selected rows.
    """
    passed = _passed_of_chunk(g)
    return [
        ("column", "index", [1], "i64"),
        ("row", "addi", ["column", first], "i64"),
        *_ring(g, topk, "in2"),
        ("room", "subi", ["ring", g.spare], "i64"),
        *passed,
        ("length", "addi", ["passed" if passed else "past", 1], "i64"),
        ("newest", "minsi", ["length", "room"], "i64"),
        ("distance", "subi", ["in0", "row"], "i64"),
        ("signed", "remsi", ["distance", "ring"], "i64"),
        ("positive", "addi", ["signed", "ring"], "i64"),
        ("age", "remsi", ["positive", "ring"], "i64"),
        ("young", "cmpi_slt", ["age", "newest"], "i1"),
        ("inside", "cmpi_slt", ["row", "end"], "i1"),
        ("in_ring", "andi", ["young", "inside"], "i1"),
        ("written", "cmpi_sge", ["distance", 0], "i1"),
        ("least", "minsi", ["in0", "row"], "i64"),
        ("fixed", "cmpi_slt", ["least", "base"], "i1"),  # a row before the ring, or a position before it
        ("seen", "select", ["fixed", "written", "in_ring"], "i1"),
        ("valid", "andi", ["seen", "in1"], "i1"),
    ]


def _seen_of_chosen(g: Geometry) -> list[tuple[Any, ...]]:
    """Return the program that computes whether a query that selects rows sees the selected row number `column`. in0 and
    in1 are the position and activity of its slot."""
    return [
        ("column", "index", [1], "i64"),
        ("candidates", "subi", ["in0", g.sink_recent - 1], "i64"),
        ("chosen", "cmpi_slt", ["column", "candidates"], "i1"),
        ("valid", "andi", ["chosen", "in1"], "i1"),
    ]


def _kept_positions(e: _BodyEmitter, op: ir.Operation) -> None:
    """Emit the positions of all rows; then, if there is such an operand, those of the rows between sinks and ring."""
    g, operands = e.geometry(op), kv.operands_of(op)
    heads, rows = op.results[0].type.shape
    out, length, topk = e.written(op.results[0]), e.name(operands["length"]), e.name(operands["topk"])

    newest: list[tuple[Any, ...]] = [("newest", "subi", ["last", "back"], "i64")]
    all_rows: list[tuple[Any, ...]] = []
    if g.spare:
        all_rows = [("behind", "addi", ["end", g.spare], "i64")]
        recent = ("recent", "cmpi_slt", ["back", g.recent], "i1")
        newest = [("position_of_row", "subi", ["last", "back"], "i64"), recent]
        newest.append(("newest", "select", ["recent", "position_of_row", -1], "i64"))

    def kept(first: int, selected: str | int) -> list[tuple[Any, ...]]:
        return [
            ("column", "index", [1], "i64"),
            ("row", "addi", ["column", first], "i64"),
            ("ring", "addi", [topk, g.sink], "i64"),
            ("end", "addi", ["ring", g.recent], "i64"),
            ("last", "subi", [length, 1], "i64"),
            ("distance", "subi", ["last", "row"], "i64"),
            ("signed", "remsi", ["distance", g.ring_rows], "i64"),
            ("raised", "addi", ["signed", g.ring_rows], "i64"),
            ("back", "remsi", ["raised", g.ring_rows], "i64"),
            *newest,
            ("before_ring", "cmpi_slt", ["row", "ring"], "i1"),
            ("behind_sinks", "select", ["before_ring", selected, "newest"], "i64"),
            ("is_sink", "cmpi_slt", ["row", g.sink], "i1"),
            ("of_longer", "select", ["is_sink", "row", "behind_sinks"], "i64"),
            ("fits", "cmpi_sge", ["end", length], "i1"),
            ("position", "select", ["fits", "row", "of_longer"], "i64"),
            *all_rows,
            ("limit", "minsi", [all_rows[-1][0] if all_rows else "end", length], "i64"),
            ("is_used", "cmpi_slt", ["row", "limit"], "i1"),
            ("kept", "select", ["is_used", "position", -1], "i64"),
        ]

    e.vector((heads, rows), [], out, kept(0, -1))
    if "selected" in operands:
        selected = sch.Access(e.name(operands["selected"]), identity_map(2))
        e.vector((heads, g.topk), [selected], out, kept(g.sink, "in0"), g.sink)


def _expert_product(e: _BodyEmitter, op: ir.Operation) -> None:
    (_, rows, depth), (tokens, chosen, columns) = op.operands[0].type.shape, op.results[0].type.shape
    token, choice, column, summed = identity_map(4)
    zero = (0,) * 5
    a = sch.Access(e.operand(op, 0), (token, zero if rows == 1 else choice, summed))
    expert = sch.Indirect(0, sch.Access(e.operand(op, 2), (token, choice)))
    b = sch.Access(e.operand(op, 1), (zero, column, summed), expert)
    output = sch.Access(e.written(op.results[0]), (token, choice, column))
    e.steps.append(sch.Product((tokens, chosen, columns, depth), (3,), a, b, output))


def _concat(e: _BodyEmitter, op: ir.Operation) -> None:
    axis = op.attributes["dim"].value
    out = e.written(op.results[0])
    offset = 0
    for operand in op.operands:
        dims = tuple(operand.type.shape)
        identity = identity_map(len(dims))
        shifted = [(*row[:-1], offset) if index == axis else row for index, row in enumerate(identity)]
        source = sch.Access(e.name(operand), identity)
        e.steps.append(sch.Vector(dims, (source,), sch.Access(out, tuple(shifted)), (), "in0"))
        offset += dims[axis]


def _all_reduce(e: _BodyEmitter, op: ir.Operation) -> None:
    e.steps.append(sch.AllReduce(e.operand(op, 0), e.written(op.results[0]), grid_axes(op)))


def _reduce_scatter(e: _BodyEmitter, op: ir.Operation) -> None:
    axis = op.attributes["scatter_dim"].value
    e.steps.append(sch.ReduceScatter(e.operand(op, 0), e.written(op.results[0]), axis, grid_axes(op)))


def _all_gather(e: _BodyEmitter, op: ir.Operation) -> None:
    axis = op.attributes["gather_axis"].value
    e.steps.append(sch.AllGather(e.operand(op, 0), e.written(op.results[0]), axis, grid_axes(op)))


def _all_slice(e: _BodyEmitter, op: ir.Operation) -> None:
    axis = op.attributes["slice_axis"].value
    e.steps.append(sch.AllSlice(e.operand(op, 0), e.written(op.results[0]), axis, grid_axes(op)))


def _all_to_all(e: _BodyEmitter, op: ir.Operation) -> None:
    split, axis = (op.attributes[name].value for name in ("split_axis", "concat_axis"))
    e.steps.append(sch.AllToAll(e.operand(op, 0), e.written(op.results[0]), split, axis, grid_axes(op)))


def _cleared(e: _BodyEmitter, value: ir.Value) -> str:
    """Return the place of a result of which only the first `length` columns are computed; it is filled with zeros
    first."""
    name, shape = e.written(value), tuple(value.type.shape)
    e.vector(shape, [], name, [("literal", "const", [0.0], "f32")])
    return name


def _step(e: _BodyEmitter, op: ir.Operation) -> None:
    """Emit the step of an operation of the algorithm, according to its specification."""
    spec = kv.spec_of_op(op)
    e.updates(op)
    for value in op.operands:
        e.filled(value)
    values = dict(zip((*spec.inputs, *spec.results), (*op.operands, *op.results), strict=True))
    fields: dict[str, Any] = {
        name: e.flat(values[name]) if name in spec.operands and spec.operands[name].flat else e.name(values[name])
        for name in spec.inputs
    }
    for name in spec.only_results:
        fields[name] = _result_place(e, values[name], spec.operands[name])
    for name, attribute in spec.attributes.items():
        whose = attribute.geometry
        fields[name] = getattr(e.geometry(op), whose) if whose else kv.optional_of(op, name)
    step: Any = spec.step(fields)
    e.steps.append(step)


def _result_place(e: _BodyEmitter, value: ir.Value, operand: Operand) -> str:
    """Return the name of the place for a result; "" for an optional result without readers. If a step writes only a
    part of it, the rest is filled if other bodies may read it."""
    if operand.optional and not any(True for _ in value.uses):
        return ""
    name = _cleared(e, value) if operand.mode == "part" and value in e.returned else e.written(value)
    return e.flat(value) if operand.flat else name


_STEPS: dict[str, Callable[[_BodyEmitter, ir.Operation], None]] = {
    "tensor.concat": _concat,
    "kv.row": _row,
    "kv.validity": _validity,
    "kv.kept_positions": _kept_positions,
    "kv.expert_product": _expert_product,
    "shard.all_reduce": _all_reduce,
    "shard.reduce_scatter": _reduce_scatter,
    "shard.all_gather": _all_gather,
    "shard.all_slice": _all_slice,
    "shard.all_to_all": _all_to_all,
    **{name: _step for name, spec in kv.SPECS.items() if spec.record.kind},
}
