"""Entry functions become schedule entries: control, scalars, launches, and the tensors they touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from sscc.compiler.backend.access import identity_map
from sscc.compiler.backend.kernels import EmittedKernel, dtype_of
from sscc.compiler.backend.memory import Lifetime
from sscc.compiler.backend.windows import dropped, reshaped, sliced, transposed, whole
from sscc.ir.builders import Argument, arguments_of, results_of
from sscc.ir.errors import InternalError
from sscc.runtime import schedule as sch

SCALAR_OPS = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.floordivsi": "floordiv",
    "arith.ceildivsi": "ceildiv",
    "arith.minsi": "min",
    "arith.maxsi": "max",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.select": "select",
}
COMPARISONS = {0: "eq", 1: "ne", 2: "lt", 3: "le", 4: "gt", 5: "ge"}


@dataclass
class EmittedEntry:
    """An entry, the tensors it names (address 0 until placed), and how long its temporaries live."""

    entry: sch.Entry
    tensors: dict[str, sch.Tensor]
    lifetimes: dict[str, Lifetime]


@dataclass
class CopyKernels:
    """Kernels that move a box of one shape and dtype, made on demand."""

    kernels: dict[tuple[tuple[int, ...], str], sch.Kernel] = field(default_factory=dict)

    def get(self, shape: tuple[int, ...], dtype: Any) -> str:
        key = (shape, dtype)
        if key not in self.kernels:
            name = f"copy.{'x'.join(map(str, shape))}.{dtype}"
            identity = identity_map(len(shape))
            params = (sch.Param("x0", shape, dtype, "read"), sch.Param("y0", shape, dtype, "write"))
            stage = sch.Vector(shape, (sch.Access("x0", identity),), sch.Access("y0", identity), (), "in0")
            self.kernels[key] = sch.Kernel(name, params, (), (stage,))
        return self.kernels[key].name


@dataclass
class EntryEmitter:
    """Emits one entry function.

    Tensors are values in the IR and windows of named regions in the schedule: what an operation updates in
    place (a tied kernel operand, the destination of an insert) keeps its window, everything else a kernel
    returns becomes a temporary.
    """

    function: Any
    kernels: dict[str, EmittedKernel]
    copies: CopyKernels
    windows: dict[ir.Value, sch.View] = field(default_factory=dict)
    scalars: dict[ir.Value, sch.Operand] = field(default_factory=dict)
    tensors: dict[str, sch.Tensor] = field(default_factory=dict)
    items: list[list[sch.Item]] = field(default_factory=lambda: [[]])
    launches: int = 0
    touched: dict[str, list[int]] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)

    def emit(self) -> EmittedEntry:
        arguments = arguments_of(self.function)
        scalar_inputs = []
        for argument, value in zip(arguments, self.function.arguments, strict=True):
            if isinstance(argument.type, ir.RankedTensorType):
                self.windows[value] = self._declare(argument)
            else:
                self.scalars[value] = argument.name
                scalar_inputs.append(argument.name)
        *body, terminator = [op.operation for op in self.function.entry_block.operations]
        for op in body:
            self._operation(op)
        outputs, scalar_outputs = self._return(terminator)
        entry = sch.Entry(
            self.function.name.value,
            tuple(name for name, tensor in self.tensors.items() if tensor.role == "input"),
            tuple(outputs),
            tuple(scalar_inputs),
            tuple(scalar_outputs),
            tuple(self.items[0]),
        )
        return EmittedEntry(entry, self.tensors, self._lifetimes())

    # --------------------------------------------------------------------------------------------- tensors

    def _declare(self, argument: Argument) -> sch.View:
        role: Any = argument.role
        source = argument.name if role in ("weight", "constant") else ""
        return self._tensor(argument.name, argument.type, role, source)

    def _tensor(self, name: str, type_: ir.RankedTensorType, role: Any, source: str = "") -> sch.View:
        self.tensors[name] = sch.Tensor(name, tuple(type_.shape), dtype_of(type_), role, "hbm", 0, source)
        return whole(name, type_.shape)

    def _temporary(self, type_: ir.RankedTensorType) -> sch.View:
        name = f"{self.function.name.value}.t{sum(1 for t in self.tensors.values() if t.role == 'temporary')}"
        return self._tensor(name, type_, "temporary")

    def _launch(self, kernel: str, args: list[sch.View], scalars: list[sch.Operand]) -> None:
        self.items[-1].append(sch.Launch(kernel, tuple(args), tuple(scalars)))
        for view in args:
            self.touched.setdefault(view.tensor, []).append(self.launches)
        self.launches += 1

    def _copy(self, source: sch.View, target: sch.View) -> None:
        kernel = self.copies.get(source.shape, self.tensors[source.tensor].dtype)
        self._launch(kernel, [source, target], [])

    def _lifetimes(self) -> dict[str, Lifetime]:
        """First and last launch that touch each temporary; one that enters a loop lives to its end."""
        lifetimes = {}
        for name, tensor in self.tensors.items():
            if tensor.role != "temporary" or name not in self.touched:
                continue
            first, last = self.touched[name][0], self.touched[name][-1]
            for begin, end in self.loops:
                if first < begin <= last < end:
                    last = end - 1
            lifetimes[name] = Lifetime(tensor.nbytes, first, last)
        return lifetimes

    # ------------------------------------------------------------------------------------------ operations

    def _operation(self, op: ir.Operation) -> None:
        handler = _HANDLERS.get(op.name)
        if handler is not None:
            handler(self, op)
        elif op.name.startswith("arith."):
            self._scalar(op)
        elif op.name != "tensor.empty":
            raise InternalError(f"{op.location}: '{op.name}' has no place in an entry")

    def _scalar(self, op: ir.Operation) -> None:
        result = op.results[0]
        if op.name == "arith.constant":
            self.scalars[result] = int(op.attributes["value"].value)
            return
        args = tuple(self.scalars[operand] for operand in op.operands)
        if op.name == "arith.cmpi":
            name = COMPARISONS[op.attributes["predicate"].value]
        elif op.name in SCALAR_OPS:
            name = SCALAR_OPS[op.name]
        else:
            raise InternalError(f"{op.location}: '{op.name}' is not scalar arithmetic of a schedule")
        scalar = sch.Scalar(f"s{len(self.scalars)}", name, args)
        self.items[-1].append(scalar)
        self.scalars[result] = scalar.name

    def _reshape(self, op: ir.Operation) -> None:
        source, type_ = self.windows[op.operands[0]], op.results[0].type
        window = reshaped(source, type_.shape)
        if window is None:
            packed = self._temporary(op.operands[0].type)
            self._copy(source, packed)
            window = reshaped(packed, type_.shape)
        if window is None:
            raise InternalError(f"{op.location}: {op.operands[0].type} cannot be seen as {type_}")
        self.windows[op.results[0]] = window

    def _transpose(self, op: ir.Operation) -> None:
        permutation = list(op.attributes["permutation"])
        self.windows[op.results[0]] = transposed(self.windows[op.operands[0]], permutation)

    def _extract(self, op: ir.Operation) -> None:
        sizes = list(op.attributes["static_sizes"])
        window = self._box(op, self.windows[op.operands[0]], list(op.operands)[1:], sizes)
        self.windows[op.results[0]] = dropped(window, op.results[0].type.shape)

    def _insert(self, op: ir.Operation) -> None:
        source, dest = self.windows[op.operands[0]], self.windows[op.operands[1]]
        self._check_dead(op, op.operands[1])
        sizes = list(op.attributes["static_sizes"])
        box = self._box(op, dest, list(op.operands)[2:], sizes)
        target = dropped(box, op.operands[0].type.shape)
        if target != source:
            self._copy(source, target)
        self.windows[op.results[0]] = dest

    def _box(self, op: ir.Operation, view: sch.View, dynamic: list[ir.Value], sizes: list[int]) -> sch.View:
        values = iter(dynamic)
        marker = ir.ShapedType.get_dynamic_size()
        offsets = [self.scalars[next(values)] if o == marker else o for o in op.attributes["static_offsets"]]
        return sliced(view, offsets, sizes, list(op.attributes["static_strides"]))

    def _check_dead(self, op: ir.Operation, value: ir.Value) -> None:
        """An in-place update is legal only where nobody reads the old value afterwards."""
        around = {outer.block: outer for outer in _nest(op)}
        for use in value.uses:
            reader = use.owner.operation
            shared = next(outer for outer in _nest(reader) if outer.block in around)
            here = around[shared.block]
            if here != shared and here.is_before_in_block(shared):
                raise InternalError(f"{op.location}: '{op.name}' overwrites a value that {reader.location} reads later")

    def _call(self, op: ir.Operation) -> None:
        emitted = self.kernels[op.attributes["callee"].value]
        views, scalars = [], []
        for operand in op.operands:
            if isinstance(operand.type, ir.RankedTensorType):
                views.append(self.windows[operand])
            else:
                scalars.append(self.scalars[operand])
        for result, tied in zip(op.results, emitted.tied, strict=True):
            if tied is None:
                self.windows[result] = self._temporary(result.type)
                views.append(self.windows[result])
            else:
                self._check_dead(op, op.operands[tied])
                self.windows[result] = self.windows[op.operands[tied]]
        self._launch(emitted.kernel.name, views, scalars)

    # --------------------------------------------------------------------------------------------- control

    def _for(self, op: ir.Operation) -> None:
        lower, upper, step, *inits = op.operands
        if self.scalars[step] != 1:
            raise InternalError(f"{op.location}: a loop with a step other than 1")
        block = op.regions[0].blocks[0]
        index = f"c{len(self.scalars)}"
        self.scalars[block.arguments[0]] = index
        for argument, init in zip(list(block.arguments)[1:], inits, strict=True):
            self.windows[argument] = self.windows[init]
        begin = self.launches
        body = self._block(block, [self.windows[init] for init in inits])
        self.loops.append((begin, self.launches))
        self.items[-1].append(sch.For(index, self.scalars[lower], self.scalars[upper], body))
        for result, init in zip(op.results, inits, strict=True):
            self.windows[result] = self.windows[init]

    def _if(self, op: ir.Operation) -> None:
        otherwise = op.regions[1].blocks[0]
        *work, terminator = [inner.operation for inner in otherwise.operations]
        if work:
            raise InternalError(f"{op.location}: a branch that works on both sides")
        targets = [self.windows[value] for value in terminator.operands]
        body = self._block(op.regions[0].blocks[0], targets)
        self.items[-1].append(sch.If(self.scalars[op.operands[0]], body))
        for result, target in zip(op.results, targets, strict=True):
            self.windows[result] = target

    def _block(self, block: ir.Block, targets: list[sch.View]) -> tuple[sch.Item, ...]:
        """Emits a nested block whose yielded values must end up in `targets`."""
        self.items.append([])
        *body, terminator = [inner.operation for inner in block.operations]
        for inner in body:
            self._operation(inner)
        self._settle(terminator, list(zip(terminator.operands, targets, strict=True)))
        return tuple(self.items.pop())

    def _settle(self, terminator: ir.Operation, pairs: list[tuple[ir.Value, sch.View]]) -> None:
        """Copies each value to where it must end up, unless it is there already."""
        moves = [(self.windows[value], target) for value, target in pairs if self.windows[value] != target]
        overwritten: set[str] = set()
        for source, target in moves:
            if source.tensor in overwritten:
                raise InternalError(f"{terminator.location}: {source.tensor} and {target.tensor} trade places")
            overwritten.add(target.tensor)
            self._copy(source, target)

    def _return(self, terminator: ir.Operation) -> tuple[list[str], list[sch.Operand]]:
        outputs: list[str] = []
        scalar_outputs: list[sch.Operand] = []
        settled: list[tuple[ir.Value, sch.View]] = []
        for result, value in zip(results_of(self.function), terminator.operands, strict=True):
            if not isinstance(result.type, ir.RankedTensorType):
                scalar_outputs.append(self.scalars[value])
                continue
            if result.role == "output":
                outputs.append(result.name)
            if result.name not in self.tensors:
                self._tensor(result.name, result.type, result.role)
            settled.append((value, whole(result.name, result.type.shape)))
        self._settle(terminator, settled)
        return outputs, scalar_outputs


def _nest(op: ir.Operation) -> Iterator[ir.Operation]:
    """`op` and the operations around it, up to the function."""
    while op.name != "func.func":
        yield op
        op = op.parent.operation


_HANDLERS: dict[str, Callable[[EntryEmitter, ir.Operation], None]] = {
    "tensor.expand_shape": EntryEmitter._reshape,
    "tensor.collapse_shape": EntryEmitter._reshape,
    "tensor.extract_slice": EntryEmitter._extract,
    "tensor.insert_slice": EntryEmitter._insert,
    "linalg.transpose": EntryEmitter._transpose,
    "func.call": EntryEmitter._call,
    "scf.for": EntryEmitter._for,
    "scf.if": EntryEmitter._if,
}
