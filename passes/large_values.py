"""Tiled computation of values that are too large for the chip, from which positions of a prompt are selected.

A user's rule scores the positions of a prompt by any operations, and its intermediate values may have a number for
every position, query and head. The operations that compute such a value are duplicated in front of each operation that
reduces it to a smaller one. Together they form one stage, which tile-stages cuts into tiles, so that only one tile of
the large value exists at a time. If the smaller value is a sum (or a maximum, ..) over the cut axis, it becomes one per
part and one over the parts, so a softmax over all positions takes a pass for its maximum and one for its sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import gcd
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from sscc.ir.builders import index_constant, positions_tensor, with_axis_split
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.levels import walk
from sscc.ir.locations import origin_of
from sscc.ir.rewriting import ValueMap, clone_with, fill_value, is_rematerialised, outer_values, producer
from sscc.ir.views import bytes_of, computes, is_view
from sscc.passes.tiling import NotTileable, is_reduction, mentions, tile_back

PARTS = 16
"""A value is large if it exceeds this fraction of on-chip memory; a stage holds no more than that between its
operations. Scores of 32 heads and 131072 positions, 16 MiB, are not large on an RDU (520 MiB)."""
CHOOSING = ("kv.select", "kv.pool")
_NEUTRAL = {"arith.addf": 0, "arith.addi": 0, "arith.ori": 0, "arith.mulf": 1, "arith.muli": 1}
_IDEMPOTENT = frozenset(
    f"arith.{name}"
    for name in ("maximumf", "minimumf", "maxnumf", "minnumf", "maxsi", "minsi", "maxui", "minui", "andi")
)


def is_large(value: ir.Value, room: int) -> bool:
    """Return True if `value` is large.

    Args:
        room: bytes of on-chip memory.
    """
    return isinstance(value.type, ir.RankedTensorType) and bytes_of(value) * PARTS > room


def parts_of(nbytes: int, room: int) -> int:
    """Return the minimum number of parts into which `nbytes` must be cut so that none is large."""
    return max(1, -(-nbytes * PARTS // room))


def held(ops: Sequence[ir.Operation], returned: Sequence[ir.Value]) -> int:
    """Return the bytes of intermediate values of `ops`."""
    made = [result for op in ops if computes(op) for result in op.results if result not in returned]
    return sum(map(bytes_of, made))


class LargeValueErrors(ErrorKind):
    DYNAMIC_SHAPE = UnsupportedError, "{origin}'{op}' computes a tensor whose shape is not static"
    TOO_LARGE = (
        UnsupportedError,
        "{origin}'{op}' reads a value of {required:,} bytes, but the chip has room for {capacity:,} and the value "
        "cannot be computed in parts: a smaller obs or --max-context needs less, and -O0 keeps the value in memory",
    )


def recompute(block: ir.Block, room: int) -> list[list[ir.Operation]]:
    """Rewrite the inputs of a block's selections. Return, for each new stage that reduces large values to a small one,
    its operations in program order, including views between them."""
    scoring = _read_by_choices(block)
    for op in scoring:
        if any(result.type.has_rank and not result.type.has_static_shape for result in op.results):
            raise LargeValueErrors.DYNAMIC_SHAPE(origin=origin_of(op), op=op.name)
    large = {op for op in scoring if computes(op) and any(is_large(r, room) for r in op.results if any(r.uses))}
    if not large:
        return []
    stages = []
    for op in [op.operation for op in block.operations if op.operation in scoring and op.operation not in large]:
        if computes(op) and not op.name.startswith("kv.") and not large.isdisjoint(_sources(op)):
            stage = _Chain(op, large, room).stage()
            if stage is not None:
                stages.append(stage)
                continue
            most = max(bytes_of(result) for source in _sources(op) for result in source.results)
            if most > room:
                raise LargeValueErrors.TOO_LARGE(origin=origin_of(op), op=op.name, required=most, capacity=room)
    for op in reversed([op.operation for op in block.operations]):
        pure = op.name.partition(".")[0] in ("linalg", "tensor")
        if pure and not any(any(result.uses) for result in op.results):
            op.erase()
    return stages


def _read_by_choices(block: ir.Block) -> set[ir.Operation]:
    """Return the operations of a block that compute the scores of a selection, without the selection and the pooling.
    """
    reached: set[ir.Operation] = set()
    pending = [op.operation.operands[0] for op in block.operations if op.operation.name in CHOOSING]
    while pending:
        op = producer(pending.pop())
        if op is None or op.block != block or op in reached or is_rematerialised(op):
            continue
        if not (is_view(op) or computes(op)) or op.name in CHOOSING:
            continue
        reached.add(op)
        pending += list(op.operands)
    return reached


def _sources(op: ir.Operation) -> list[ir.Operation]:
    """Return the operations that compute the operands of `op`, looking through views."""
    found = []
    for operand in op.operands:
        source = producer(operand)
        while source is not None and is_view(source) and source.name != "tensor.insert_slice":
            source = producer(source.operands[0])
        if source is not None and not is_rematerialised(source):
            found.append(source)
    return found


@dataclass
class _Chain:
    """An operation that computes a small value, and the large ones before it.

    Attributes:
        root: the operation.
        room: bytes of on-chip memory.
    """

    root: ir.Operation
    large: set[ir.Operation]
    room: int

    def stage(self) -> list[ir.Operation] | None:
        """Return copies of the operations as a stage that can be cut; None if no axis cuts them."""
        before = list(self.root.operands)
        copies = self._copied()
        *ops, root = [_plain(op) for op in (*copies, self.root)]
        needed = parts_of(held(ops, []), self.room)
        parts = max((min(n, needed) for n in _parts_of_result(ops, root)), default=1)
        dims = {dim: _parts_of_sum(ops, root, dim, needed) for dim in _reduced(root)}
        dim = max(dims, key=lambda dim: min(dims[dim], needed), default=None)
        if dim is not None and min(dims[dim], needed) > parts:
            made = _split(root, dim, dims[dim])
            if made is not None:
                return [*ops, *made]
        if parts > 1:
            return [*ops, root]
        for index, operand in enumerate(before[: len(before) - len(self.root.results)]):
            root.operands[index] = operand
        return None

    def _copied(self) -> list[ir.Operation]:
        """Return copies of the large operations and of the views between them, in front of the root, which reads them.
        """
        wanted: list[ir.Operation] = []

        def visit(op: ir.Operation | None) -> bool:
            """Return True if a value comes from a large operation, through views."""
            if op is None or is_rematerialised(op) or not (op in self.large or is_view(op)):
                return False
            if op in wanted:
                return True
            comes = [visit(producer(operand)) for operand in op.operands]
            if op not in self.large and not any(comes):
                return False
            wanted.append(op)
            return True

        for operand in self.root.operands:
            visit(producer(operand))
        values: ValueMap = {}
        copies = []
        with ir.InsertionPoint(self.root):
            for op in wanted:
                for operand in outer_values(op):
                    source = producer(operand)
                    if operand not in values and (source is None or not is_rematerialised(source)):
                        values[operand] = operand
                with op.location:
                    copies.append(clone_with(op, values))
        for index, operand in enumerate(self.root.operands):
            if operand in values:
                self.root.operands[index] = values[operand]
        return copies


def _parts_of_result(ops: Sequence[ir.Operation], root: ir.Operation) -> Iterator[int]:
    """Return the number of parts into which each axis of the root's result cuts it and its inputs."""
    value = root.results[0]
    for axis in range(value.type.rank if len(root.results) == 1 else 0):
        with suppress(NotTileable):
            yield gcd(*tile_back([*ops, root], [(value, axis)]).lengths())


def _parts_of_sum(ops: Sequence[ir.Operation], root: ir.Operation, dim: int, needed: int) -> int:
    """Return the number of parts, `needed` or the next possible one, into which a reduced dimension cuts the root's
    inputs."""
    pairs = zip(root.operands, _maps(root), strict=True)
    cut = [(value, axis) for value, affine in pairs for axis in _axes_of(affine, dim)]
    made = [(value, axis) for value, axis in cut if (op := producer(value)) is not None and op in ops]
    try:
        lengths = tile_back(ops, made).lengths()
    except NotTileable:
        return 1
    most = gcd(*(value.type.shape[axis] for value, axis in cut), *lengths)
    return next((n for n in range(needed, most + 1) if most % n == 0), most)


def _maps(op: ir.Operation) -> list[Any]:
    return [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]


def _axes_of(affine: Any, dim: int) -> list[int]:
    """Return the axes of an operand that are exactly one dimension."""
    exact = [e for e in enumerate(affine.results) if isinstance(e[1], ir.AffineDimExpr)]
    return [axis for axis, expression in exact if ir.AffineDimExpr(expression).position == dim]


def _reduced(op: ir.Operation) -> list[int]:
    """Return the dimensions over which an operation reduces."""
    if not is_reduction(op):
        return []
    return [dim for dim, kind in enumerate(op.attributes["iterator_types"]) if "reduction" in str(kind)]


def _plain(op: ir.Operation) -> ir.Operation:
    """Replace `op` by an equivalent operation with only the used result, and with a tensor in place of an index along a
    dimension, so that it can be tiled. An operation without these is returned unchanged."""
    if op.name != "linalg.generic":
        return op
    used = [number for number, result in enumerate(op.results) if any(result.uses)]
    indices = [inner for inner in walk(op) if inner.name == "linalg.index"]
    if len(used) != 1 or (not indices and len(op.results) == 1):
        return op
    (number,), maps, block = used, _maps(op), op.regions[0].blocks[0]
    count = len(op.operands) - len(op.results)
    dims = sorted({inner.attributes["dim"].value for inner in indices})
    sizes = _sizes(op)
    with ir.InsertionPoint(op), op.location:
        counted = [positions_tensor([sizes[d]], index_constant(0), index_constant(sizes[d])) for d in dims]
        along = [ir.AffineMap.get(len(sizes), 0, [ir.AffineDimExpr.get(d)]) for d in dims]

        def element(*arguments: ir.Value) -> ir.Value:
            values: ValueMap = dict(zip(list(block.arguments)[:count], arguments, strict=False))
            values[block.arguments[count + number]] = arguments[-1]
            for inner in indices:
                place = arguments[count + dims.index(inner.attributes["dim"].value)]
                values[inner.results[0]] = arith.IndexCastOp(ir.IndexType.get(), place).result
            return _scalar(list(block.operations)[-1].operation.operands[number], block, values)

        inputs, of_inputs = [*list(op.operands)[:count], *counted], [*maps[:count], *along]
        init, affine = op.operands[count + number], maps[count + number]
        new = _generic(inputs, of_inputs, init, affine, list(op.attributes["iterator_types"]), element)
    op.results[number].replace_all_uses_with(new.results[0])
    return new


def _sizes(op: ir.Operation) -> list[int]:
    """Return the extent of each dimension."""
    sizes: dict[int, int] = {}
    for value, affine in zip(op.operands, _maps(op), strict=True):
        for dim in range(affine.n_dims):
            for axis in _axes_of(affine, dim):
                sizes[dim] = value.type.shape[axis]
    return [sizes[dim] for dim in range(len(op.attributes["iterator_types"]))]


def _scalar(value: ir.Value, block: ir.Block, values: ValueMap) -> ir.Value:
    """Return a number of an operation's body, recomputed from `values`. Raises KeyError if it needs others."""
    if value in values:
        return values[value]
    op = producer(value)
    if op is None and value.owner == block:
        raise KeyError(value)
    if op is None or op.block != block:
        return value  # defined outside: a constant, or a scalar of the kernel
    for operand in op.operands:
        _scalar(operand, block, values)
    clone = op.clone().operation
    for index, operand in enumerate(op.operands):
        clone.operands[index] = _scalar(operand, block, values)
    values.update(zip(op.results, clone.results, strict=True))
    return values[value]


def _generic(
    inputs: Sequence[ir.Value],
    maps: Sequence[Any],
    init: ir.Value,
    affine: Any,
    iterators: Sequence[ir.Attribute],
    element: Callable[..., ir.Value],
) -> ir.Operation:
    """Return a linalg.generic with one result, computed by `element` from the elements of its inputs and its
    accumulator."""
    generic = linalg.GenericOp(
        [init.type],
        list(inputs),
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(each) for each in (*maps, affine)]),
        ir.ArrayAttr.get(list(iterators)),
    )
    types = [value.type.element_type for value in (*inputs, init)]
    block = generic.regions[0].blocks.append(*types, arg_locs=[generic.operation.location] * len(types))
    with ir.InsertionPoint(block):
        linalg.YieldOp([element(*block.arguments)])
    operation: ir.Operation = generic.operation
    return operation


def _split(root: ir.Operation, dim: int, parts: int) -> list[ir.Operation] | None:
    """Replace a reduction over `dim` by one per part of it, and one over the parts in place of `root`.

    Returns the views and the operation that compute the parts; None if the parts could not be combined.
    """
    block, maps, kinds = root.regions[0].blocks[0], _maps(root), list(root.attributes["iterator_types"])
    *inputs, init = list(root.operands)
    accumulator = list(block.arguments)[-1]
    combine = producer(list(block.operations)[-1].operation.operands[0])
    start = producer(fill) if (op := producer(init)) is not None and (fill := fill_value(op)) is not None else None
    if combine is None or start is None or list(combine.operands).count(accumulator) != 1:
        return None
    neutral = _NEUTRAL.get(combine.name)
    if combine.name not in _IDEMPOTENT and (neutral is None or start.attributes["value"].value != neutral):
        return None
    if any(dim in _dims(affine) and not _axes_of(affine, dim) for affine in maps):
        return None
    outer, rank = len(kinds), len(kinds) + 1
    made: list[ir.Operation] = []
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    with ir.InsertionPoint(root), root.location:
        shown, new_maps = [], []
        for value, affine in zip(inputs, maps, strict=False):
            axes, results = _axes_of(affine, dim), list(affine.results)
            if axes:
                value = with_axis_split(value, axes[0], parts)
                made.append(value.owner.operation)
                results.insert(axes[0], ir.AffineDimExpr.get(outer))
            shown.append(value)
            new_maps.append(ir.AffineMap.get(rank, 0, results))
        shape, type_ = [parts, *init.type.shape], init.type.element_type
        each = linalg.fill(clone_with(start, {}).results[0], outs=[tensor.EmptyOp(shape, type_).result])
        written = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(outer), *maps[-1].results])

        def element(*arguments: ir.Value) -> ir.Value:
            values: ValueMap = dict(zip(block.arguments, arguments, strict=True))
            return _scalar(list(block.operations)[-1].operation.operands[0], block, values)

        part = _generic(shown, new_maps, each, written, [*kinds, parallel], element)
        made.append(part)
        kept = [ir.AffineDimExpr.get(axis + 1) for axis in range(len(shape) - 1)]
        whole = ir.AffineMap.get_identity(len(shape))

        def joined(number: ir.Value, so_far: ir.Value) -> ir.Value:
            clone = combine.clone().operation
            clone.operands[0], clone.operands[1] = so_far, number
            return clone.results[0]

        first = ir.Attribute.parse("#linalg.iterator_type<reduction>")
        result = ir.AffineMap.get(len(shape), 0, kept)
        total = _generic(part.results, [whole], init, result, [first, *[parallel] * (len(shape) - 1)], joined)
    root.results[0].replace_all_uses_with(total.results[0])
    return made


def _dims(affine: Any) -> set[int]:
    """Return the dimensions that a map mentions."""
    return {dim for dim in range(affine.n_dims) for e in affine.results if mentions(e, dim)}
