"""Helpers that several passes share: searching operations, and cloning them with a map of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith

from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.levels import walk
from sscc.ir.locations import origin_of


class RewritingErrors(ErrorKind):
    """Rewrites that leave an operation without its operands."""

    VALUE_LEFT_BEHIND = InternalError, "{origin}'{op}' reads a value that the rewrite did not move"


ValueMap = dict[ir.Value, ir.Value]

_REMATERIALISED = frozenset({"arith.constant", "tensor.empty"})
_RESHAPES = frozenset({"tensor.expand_shape", "tensor.collapse_shape"})


def is_rematerialised(op: ir.Operation) -> bool:
    """Return True if `op` is free to repeat (a constant, an uninitialised tensor, a filled one).

    Such operations are cloned to their uses instead of being passed across a function boundary.
    """
    name = op.name
    if name in _REMATERIALISED:
        return True
    if name not in _RESHAPES and fill_value(op) is None:
        return False
    return all(
        isinstance(value.owner, ir.Operation | ir.OpView) and is_rematerialised(value.owner.operation)
        for value in op.operands
    )


def fill_value(op: ir.Operation) -> ir.Value | None:
    """Return the constant with which `op` fills a tensor (linalg.fill, or an equivalent form); None for other
    operations."""
    name = op.name
    if name == "linalg.fill":
        return op.operands[0]
    if name != "linalg.generic" or any(isinstance(v.type, ir.RankedTensorType) for v in op.operands[:-1]):
        return None
    block = op.regions[0].blocks[0]
    first = block.operations[0].operation
    if first.name != "linalg.yield":
        return None
    value = first.operands[0]
    filler = dict(zip(block.arguments, op.operands, strict=True)).get(value, value)
    source = producer(filler)
    return filler if source is not None and source.name == "arith.constant" else None


def is_zeros(value: ir.Value) -> bool:
    """Return True if a tensor was filled with zeros."""
    op = producer(value)
    filler = fill_value(op) if op is not None else None
    constant = producer(filler) if filler is not None else None
    return constant is not None and constant.name == "arith.constant" and constant.attributes["value"].value == 0


def outer_values(op: ir.Operation) -> list[ir.Value]:
    """Return the values that `op` or an operation nested in it reads and that are defined outside of it, in order."""
    own = dict.fromkeys(op.operands)
    return list(own | dict.fromkeys(_captured(op)) if op.regions else own)


def _captured(op: ir.Operation) -> list[ir.Value]:
    """Return the values that operations nested in `op` read and that are defined outside of it, in order."""
    nested = list(walk(op))
    inside = {result for inner in nested for result in inner.results}
    inside |= {argument for inner in (op, *nested) for region in inner.regions for block in region.blocks
               for argument in block.arguments}  # fmt: skip
    return [operand for inner in nested for operand in inner.operands if operand not in inside]


def producer(value: ir.Value) -> ir.Operation | None:
    """Return the operation that defines `value`; None for a block argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def clone_with(op: ir.Operation, values: ValueMap) -> ir.Operation:
    """Clone `op` at the current insertion point with operands replaced according to `values`. Rematerialised operands
    that are not in `values` are cloned first. Results are added to `values`."""
    captured = _captured(op) if op.regions else []
    for operand in dict.fromkeys([*op.operands, *captured]):
        if operand not in values and stand_in(operand, values) is None:
            raise RewritingErrors.VALUE_LEFT_BEHIND(origin=origin_of(op), op=op.name)
    clone: ir.Operation = op.clone().operation
    for inner in (clone, *walk(clone)) if captured else (clone,):
        for index, operand in enumerate(inner.operands):
            if operand in values:
                inner.operands[index] = values[operand]
    for old, new in zip(op.results, clone.results, strict=True):
        values[old] = new
    return clone


def stand_in(operand: ir.Value, values: ValueMap) -> ir.Value | None:
    """Return the value that replaces `operand`; None if `values` has none. A rematerialised operand is cloned first."""
    if operand not in values:
        source = producer(operand)
        if source is None or not is_rematerialised(source):
            return None
        clone_with(source, values)
    return values[operand]


def is_splat(op: ir.Operation) -> bool:
    """Return True for a constant tensor whose elements are all equal."""
    value = op.attributes["value"] if op.name == "arith.constant" else None
    return isinstance(value, ir.DenseElementsAttr) and value.is_splat


def resized(source: ir.Operation, shape: Sequence[int]) -> ir.Value:
    """Return a new tensor made in the same way as `source`, in another shape."""
    if is_splat(source):
        type_ = ir.RankedTensorType.get(list(shape), source.results[0].type.element_type)
        element = source.attributes["value"].get_splat_value()
        splat: ir.Value = arith.ConstantOp(type_, ir.DenseElementsAttr.get_splat(type_, element)).result
        return splat
    values: dict[ir.Value, ir.Value] = {}
    if source.name != "tensor.empty":
        for operand in source.operands:
            inner = producer(operand)
            if isinstance(operand.type, ir.RankedTensorType) and inner is not None:
                values[operand] = resized(inner, shape)
    copy = clone_with(source, values)
    result: ir.Value = copy.results[0]
    result.set_type(ir.RankedTensorType.get(list(shape), result.type.element_type))
    return result


def clone_all(ops: Iterable[ir.Operation], values: ValueMap) -> None:
    """Clone `ops` in order with `clone_with`, skipping rematerialised ones, which are cloned with their users."""
    for op in ops:
        if not is_rematerialised(op):
            clone_with(op, values)


def functions(module: ir.Module) -> Iterator[ir.OpView]:
    """Return the module's functions in order."""
    for op in list(module.body.operations):
        if op.operation.name == "func.func":
            yield op
