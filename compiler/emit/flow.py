"""Common parts of entries and kernels: control flow, scalar arithmetic, and tensors as windows of named regions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from sscc.compiler.emit.windows import dropped, reshaped, sliced, transposed
from sscc.ir import schedule as sch
from sscc.ir.errors import ErrorKind, InternalError, UnsupportedError
from sscc.ir.locations import describe_location, origin_of
from sscc.ir.rewriting import is_rematerialised, producer
from sscc.ir.views import RESHAPES, SLICES, is_view, permutation_of

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


class FlowErrors(ErrorKind):
    OPERATION = (
        InternalError,
        "{origin}'{op}' is not allowed in {function!r}, which has only control flow, calls and views",
    )
    SCALAR_OPERATION = InternalError, "{origin}a schedule has no scalar operation for '{op}'"
    TABLE_NOT_CONSTANT = (
        UnsupportedError,
        "{origin}'{op}' reads a number for control flow from a tensor that is not a constant table of one axis",
    )
    NO_VIEW = InternalError, "{origin}{source} cannot be viewed as {result}, not even in a copy"
    OVERWRITTEN = (
        UnsupportedError,
        "{origin}'{op}' overwrites a value that '{reader}' ({place}) reads later; a schedule updates in place: read "
        "the value before the update, or read the new one",
    )
    LOOP_STEP = InternalError, "{origin}a loop has the step {step}, but a schedule's loops have step 1"
    TWO_BRANCHES = InternalError, "{origin}both sides of a branch compute, but a schedule's branches have one"
    SWAPPED = (
        UnsupportedError,
        "{origin}{first} and {second} are swapped, which needs a third buffer that a schedule does not have",
    )


@dataclass
class Flow(ABC):
    """Walks a function whose tensors are values, and emits items in which they are windows of regions.

    A value that an operation updates in place (a tied operand, the destination of an insert) keeps its window; all
    other values get a place from the subclass.
    """

    function: Any
    windows: dict[ir.Value, sch.View] = field(default_factory=dict)
    scalars: dict[ir.Value, sch.ScalarOperand] = field(default_factory=dict)
    items: list[list[sch.Item]] = field(default_factory=lambda: [[]])

    @abstractmethod
    def work(self, op: ir.Operation) -> bool:
        """Emit an operation that computes or calls. Return False for an operation that the subclass does not know."""

    @abstractmethod
    def temporary(self, type_: ir.RankedTensorType) -> sch.View:
        """Return a new place for a tensor."""

    @abstractmethod
    def copy(self, source: sch.View, target: sch.View, type_: ir.RankedTensorType) -> None:
        """Copy the elements of one window to another of the same shape."""

    def finish(self) -> None:  # noqa: B027  (an emitter that builds items at once has nothing to end)
        """End the item under construction, if any, where a block begins or ends."""

    def operation(self, op: ir.Operation) -> None:
        handler = _HANDLERS.get(op.name)
        if self.work(op) or (is_rematerialised(op) and op.name != "arith.constant"):
            return
        if permutation_of(op) is not None:
            self._transpose(op)
        elif handler is not None:
            handler(self, op)
        elif op.name.startswith("arith."):
            self._scalar(op)
        else:
            function = self.function.name.value
            raise FlowErrors.OPERATION(origin=origin_of(op), op=op.name, function=function)

    def scalar_name(self) -> str:
        return f"s{len(self.scalars)}"

    # ------------------------------------------------------------------------------------------ scalars and views

    def _scalar(self, op: ir.Operation) -> None:
        result = op.results[0]
        if op.name == "arith.constant":
            if isinstance(result.type, ir.IndexType):
                self.scalars[result] = int(op.attributes["value"].value)
            return
        args = tuple(self.scalars[operand] for operand in op.operands)
        if op.name == "arith.cmpi":
            name = COMPARISONS[op.attributes["predicate"].value]
        elif op.name in SCALAR_OPS:
            name = SCALAR_OPS[op.name]
        else:
            raise FlowErrors.SCALAR_OPERATION(origin=origin_of(op), op=op.name)
        scalar = sch.Scalar(self.scalar_name(), name, args)
        self.items[-1].append(scalar)
        self.scalars[result] = scalar.name

    def _lookup(self, op: ir.Operation) -> None:
        table, *indices = op.operands
        constant = producer(table)
        numbers = None if constant is None or constant.name != "arith.constant" else constant.attributes["value"]
        if not isinstance(numbers, ir.DenseIntElementsAttr) or len(indices) != 1:
            raise FlowErrors.TABLE_NOT_CONSTANT(origin=origin_of(op), op=op.name)
        scalar = sch.Scalar(self.scalar_name(), "lookup", (self.scalars[indices[0]], *map(int, numbers)))
        self.items[-1].append(scalar)
        self.scalars[op.results[0]] = scalar.name

    def _reshape(self, op: ir.Operation) -> None:
        source, type_ = self.windows[op.operands[0]], op.results[0].type
        window = reshaped(source, type_.shape)
        if window is None:
            packed = self.temporary(op.operands[0].type)
            self.copy(source, packed, op.operands[0].type)
            window = reshaped(packed, type_.shape)
        if window is None:
            raise FlowErrors.NO_VIEW(origin=origin_of(op), source=op.operands[0].type, result=type_)
        self.windows[op.results[0]] = window

    def _transpose(self, op: ir.Operation) -> None:
        permutation = permutation_of(op)
        assert permutation is not None
        self.windows[op.results[0]] = transposed(self.windows[op.operands[0]], permutation)

    def _extract(self, op: ir.Operation) -> None:
        window = self.box(op, self.windows[op.operands[0]], list(op.operands)[1:])
        self.windows[op.results[0]] = dropped(window, op.results[0].type.shape)

    def _insert(self, op: ir.Operation) -> None:
        source, dest = self.windows[op.operands[0]], self.windows[op.operands[1]]
        self.check_dead(op, op.operands[1])
        target = dropped(self.box(op, dest, list(op.operands)[2:]), op.operands[0].type.shape)
        if target != source:
            self.copy(source, target, op.operands[0].type)
        self.windows[op.results[0]] = dest

    def box(self, op: ir.Operation, view: sch.View, dynamic: list[ir.Value]) -> sch.View:
        """Return the window that a slice or an insertion `op` with these dynamic offsets cuts from `view`."""
        values = iter(dynamic)
        marker = ir.ShapedType.get_dynamic_size()
        offsets = [self.offset(next(values)) if o == marker else o for o in op.attributes["static_offsets"]]
        return sliced(view, offsets, list(op.attributes["static_sizes"]), list(op.attributes["static_strides"]))

    def offset(self, value: ir.Value) -> sch.ScalarOperand | tuple[str, int]:
        """Return an offset in elements: a number, a scalar's name, or a name and a factor."""
        return self.scalars[value]

    def check_dead(self, op: ir.Operation, value: ir.Value) -> None:
        """Refuse an in-place update if the old value, or a part of it, is read afterwards."""
        around = {outer.block: outer for outer in _nest(op)}
        for reader in _readers(op, value):
            shared = next(outer for outer in _nest(reader) if outer.block in around)
            here = around[shared.block]
            if here != shared and here.is_before_in_block(shared):
                place = describe_location(reader.location)
                raise FlowErrors.OVERWRITTEN(origin=origin_of(op), op=op.name, reader=reader.name, place=place)

    # --------------------------------------------------------------------------------------------------- control

    def _for(self, op: ir.Operation) -> None:
        index = f"c{self.scalar_name()[1:]}"
        lower, upper, targets = self.enter(op, index)
        body = self.block(op.regions[0].blocks[0], targets)
        self.items[-1].append(sch.For(index, lower, upper, body))

    def enter(self, op: ir.Operation, index: str) -> tuple[sch.ScalarOperand, sch.ScalarOperand, list[sch.View]]:
        """Return the bounds of a loop whose index gets this name, and the places of the values that it carries: the
        same place before, in and after it."""
        lower, upper, step, *inits = op.operands
        if self.scalars[step] != 1:
            raise FlowErrors.LOOP_STEP(origin=origin_of(op), step=self.scalars[step])
        targets = [self.windows[init] for init in inits]
        number, *arguments = op.regions[0].blocks[0].arguments
        self.scalars[number] = index
        self.windows.update(zip([*arguments, *op.results], [*targets, *targets], strict=True))
        return self.scalars[lower], self.scalars[upper], targets

    def _if(self, op: ir.Operation) -> None:
        otherwise = op.regions[1].blocks[0]
        *work, terminator = [inner.operation for inner in otherwise.operations]
        if work:
            raise FlowErrors.TWO_BRANCHES(origin=origin_of(op))
        targets = [self.windows[value] for value in terminator.operands]
        body = self.block(op.regions[0].blocks[0], targets)
        self.items[-1].append(sch.If(self.scalars[op.operands[0]], body))
        for result, target in zip(op.results, targets, strict=True):
            self.windows[result] = target

    def block(self, block: ir.Block, targets: list[sch.View]) -> tuple[sch.Item, ...]:
        """Emit a nested block, as `walk` does."""
        self.finish()
        self.items.append([])
        self.walk(block, targets)
        self.finish()
        return tuple(self.items.pop())

    def walk(self, block: ir.Block, targets: list[sch.View]) -> None:
        """Emit a block whose yielded values must end up in `targets`."""
        *body, terminator = [inner.operation for inner in block.operations]
        for inner in body:
            self.operation(inner)
        self.settle(terminator, list(zip(terminator.operands, targets, strict=True)))

    def settle(self, terminator: ir.Operation, pairs: list[tuple[ir.Value, sch.View]]) -> None:
        """Copy each value to its target, unless it is there already."""
        moves = [(value, target) for value, target in pairs if self.windows[value] != target]
        overwritten: set[str] = set()
        for value, target in moves:
            source = self.windows[value]
            if source.tensor in overwritten:
                origin, second = origin_of(terminator), target.tensor
                raise FlowErrors.SWAPPED(origin=origin, first=source.tensor, second=second)
            overwritten.add(target.tensor)
            self.copy(source, target, value.type)


def _nest(op: ir.Operation) -> Iterator[ir.Operation]:
    """Return `op` and the operations around it, up to the function."""
    while op.name != "func.func":
        yield op
        op = op.parent.operation


def _readers(op: ir.Operation, value: ir.Value) -> Iterator[ir.Operation]:
    """Return the operations that read `value`, which `op` updates, or an overlapping part of the tensor that `value` is
    a slice of. An insertion into that tensor is its next version, not a reader."""
    part, root = op, value
    source = producer(root)
    while source is not None and is_view(source) and source.name != "tensor.insert_slice":
        part, root = source, source.operands[0]
        source = producer(root)
    pending = [root]
    while pending:
        alias = pending.pop()
        for user in (use.owner.operation for use in alias.uses):
            inserts = user.name == "tensor.insert_slice"
            if not is_view(user) or (inserts and alias in (value, user.operands[0])):
                yield user
                if inserts and alias == user.operands[0]:  # an alias from here on
                    pending.append(user.results[0])
            elif not inserts and not _is_beside(user, part):
                pending.append(user.results[0])


def _is_beside(one: ir.Operation, other: ir.Operation) -> bool:
    """Return True if two slices of one tensor, at constant offsets, have no element in common."""
    boxes = _box(one), _box(other)
    if None in boxes or _sliced(one) != _sliced(other):
        return False
    pairs = zip(*boxes, strict=True)  # type: ignore[arg-type]  # neither is None
    return any(a + (n - 1) * s < b or b + (m - 1) * t < a for (a, n, s), (b, m, t) in pairs)


def _sliced(op: ir.Operation) -> ir.Value:
    """Return the tensor that a slice is extracted from, or inserted into."""
    return op.operands[1 if op.name == "tensor.insert_slice" else 0]


def _box(op: ir.Operation) -> list[tuple[int, int, int]] | None:
    """Return offset, size and step per axis of a slice; None for other operations, and for dynamic offsets."""
    if op.name not in SLICES or len(op.operands) > 1 + (op.name == "tensor.insert_slice"):
        return None
    return list(zip(*(op.attributes[f"static_{name}"] for name in ("offsets", "sizes", "strides")), strict=True))


_HANDLERS: dict[str, Callable[[Flow, ir.Operation], None]] = {
    **dict.fromkeys(RESHAPES, Flow._reshape),
    "tensor.extract": Flow._lookup,
    "tensor.extract_slice": Flow._extract,
    "tensor.insert_slice": Flow._insert,
    "scf.for": Flow._for,
    "scf.if": Flow._if,
}
