"""The linalg dialect: a body evaluated at every point of an iteration space at once.

An operand is viewed over the iteration space through its affine map: a tensor with one axis per dimension, of size 1
for dimensions that the map does not use. The body's operations broadcast these, as if they ran at each point.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import (
    Builder,
    Compute,
    Fire,
    Frame,
    Handler,
    NotEvaluatedKind,
    RunnableBlock,
    refuse,
    single,
)
from sscc.compiler.interpret.types import shape_of


class StructuredNotEvaluatedErrors(NotEvaluatedKind):
    READS_AT = "reads at {expression}, which cannot be evaluated"
    WRITES_THROUGH = "writes through {map}, which cannot be evaluated"

Align = Callable[[Tensor], Tensor]
Write = Callable[[Tensor, Tensor], Tensor]  # (value over the iteration space, previous output) -> result


# ------------------------------------------------------------------------------------- operands and affine maps


@dataclass(frozen=True)
class _Space:
    """The iteration space of a linalg operation.

    Attributes:
        maps: affine map of each operand (inputs, then outputs).
        sizes: size of each dimension.
        reduced: the reduction dimensions.
        inputs: number of inputs.
    """

    maps: tuple[ir.AffineMap, ...]
    sizes: tuple[int, ...]
    reduced: tuple[int, ...]
    inputs: int

    @property
    def kept(self) -> list[int]:
        return [d for d in range(len(self.sizes)) if d not in self.reduced]

    def axis(self, dimension: int) -> Tensor:
        """Return the index of `dimension` at each point."""
        shape = [-1 if d == dimension else 1 for d in range(len(self.sizes))]
        return torch.arange(self.sizes[dimension]).reshape(shape)


def _space(op: ir.Operation, maps: Sequence[ir.AffineMap], reduced: Sequence[int] | None) -> _Space:
    """Return the iteration space of `op`. If `reduced` is None, dimensions that no output uses are reduced. MLIR's
    verifier guarantees that the maps name every dimension."""
    sizes: dict[int, int] = {}
    for affine, operand in zip(maps, op.operands, strict=True):
        for expression, size in zip(affine.results, shape_of(operand.type), strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    inputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]
    if reduced is None:
        used = {e.position for m in maps[inputs:] for e in m.results if isinstance(e, ir.AffineDimExpr)}
        reduced = [d for d in sizes if d not in used]
    return _Space(tuple(maps), tuple(sizes[d] for d in range(len(sizes))), tuple(sorted(reduced)), inputs)


def _positions(affine: ir.AffineMap) -> list[int | None] | None:
    """Return, for each result of a map, its dimension, or None for the constant 0. Return None for a map with any other
    result, or with a dimension twice."""
    positions: list[int | None] = []
    for expression in affine.results:
        if isinstance(expression, ir.AffineDimExpr) and expression.position not in positions:
            positions.append(expression.position)
        elif isinstance(expression, ir.AffineConstantExpr) and expression.value == 0:
            positions.append(None)
        else:
            return None
    return positions


def _align(op: ir.Operation, affine: ir.AffineMap, space: _Space) -> Align:
    """Return a function that views an operand over the iteration space, with size 1 for unused dimensions."""
    positions = _positions(affine)
    if positions is None:
        indices = tuple(_index(op, expression, space) for expression in affine.results)
        return lambda value: value[indices]
    used = sorted(p for p in positions if p is not None)
    order = [[p for p in positions if p is not None].index(p) for p in used]
    first = tuple(slice(None) if p is not None else 0 for p in positions)
    spread = tuple(slice(None) if d in used else None for d in range(len(space.sizes)))
    return lambda value: value[first].permute(order)[spread]


def _index(op: ir.Operation, expression: ir.AffineExpr, space: _Space) -> Tensor:
    """Return a function that computes an affine expression at each point."""
    if isinstance(expression, ir.AffineConstantExpr):
        return torch.full([1] * len(space.sizes), expression.value)
    if isinstance(expression, ir.AffineDimExpr):
        return space.axis(expression.position)
    if not isinstance(expression, ir.AffineBinaryExpr):
        refuse(op, StructuredNotEvaluatedErrors.READS_AT, expression=str(expression))
    left, right = (_index(op, side, space) for side in (expression.lhs, expression.rhs))
    if isinstance(expression, ir.AffineAddExpr):
        return left + right
    if isinstance(expression, ir.AffineMulExpr):
        return left * right
    if isinstance(expression, ir.AffineModExpr):
        return left.remainder(right)
    if isinstance(expression, ir.AffineFloorDivExpr):
        return left.div(right, rounding_mode="floor")
    return -(-left).div(right, rounding_mode="floor")


def _writer(op: ir.Operation, affine: ir.AffineMap, space: _Space, shape: Sequence[int]) -> Write:
    """Return a function that turns values over the iteration space, of size 1 along reduced dimensions, into a result.
    """
    positions = _positions(affine)
    if positions is None or sorted(p for p in positions if p is not None) != space.kept:
        refuse(op, StructuredNotEvaluatedErrors.WRITES_THROUGH, map=str(affine))
    full = [1 if d in space.reduced else size for d, size in enumerate(space.sizes)]
    order = [p for p in positions if p is not None]
    rows = tuple(0 if p is None else slice(None) for p in positions)
    units = tuple(None if p is None else slice(None) for p in positions)
    covers = all(size == 1 for p, size in zip(positions, shape, strict=True) if p is None)

    def write(value: Tensor, before: Tensor) -> Tensor:
        dense = value.broadcast_to(full).permute([*order, *space.reduced]).reshape([space.sizes[d] for d in order])
        if covers:
            return dense[units]
        result = before.clone()
        result[rows] = dense
        return result

    return write


# -------------------------------------------------------------------------------------------------- reductions


@dataclass(frozen=True)
class _Combination:
    """A reduction whose body combines its accumulator with a value once, in any order.

    Attributes:
        operation: operation that combines.
        value: value combined with the accumulator, independent of it.
    """

    operation: ir.Operation
    value: ir.Value


_SUMS = frozenset({"arith.addf", "arith.addi"})
_PAIR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arith.addf": torch.add,
    "arith.addi": torch.add,
    "arith.mulf": torch.mul,
    "arith.muli": torch.mul,
    "arith.maximumf": torch.maximum,
    "arith.maxsi": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.minsi": torch.minimum,
}


def _total(name: str, values: Tensor, dims: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return `values` combined along `dims`, which are kept with size 1, in `dtype`."""
    values = values.to(dtype)
    if name in _SUMS:
        return values.sum(dims, keepdim=True, dtype=dtype)
    if name in ("arith.mulf", "arith.muli"):
        for dim in dims:
            values = values.prod(dim, keepdim=True, dtype=dtype)
        return values
    return values.amax(dims, keepdim=True) if "max" in name else values.amin(dims, keepdim=True)


def _combinations(block: ir.Block, inputs: int) -> list[_Combination] | None:
    """Return one combination per result; None if an accumulator has any other use."""
    *_, terminator = [op.operation for op in block.operations]
    combinations = []
    for accumulator, result in zip(list(block.arguments)[inputs:], terminator.operands, strict=True):
        operation = None if isinstance(result.owner, ir.Block) else result.owner.operation
        if operation is None or operation.name not in _PAIR or len(list(result.uses)) != 1:
            return None
        others = [value for value in operation.operands if value != accumulator]
        if len(others) != 1 or len(list(accumulator.uses)) != 1:
            return None
        combinations.append(_Combination(operation, others[0]))
    return combinations


def _factors(block: ir.Block, combination: _Combination, space: _Space) -> tuple[int, int] | None:
    """Return the two inputs whose product is summed, if the body does nothing else (except widening them).

    None for any other body, or if a reduced dimension is in neither map.
    """
    *body, _ = [op.operation for op in block.operations]
    product = combination.value.owner
    if combination.operation.name not in _SUMS or isinstance(product, ir.Block):
        return None
    product = product.operation
    if product.name not in ("arith.mulf", "arith.muli") or product.operands[0] == product.operands[1]:
        return None
    widened = {op.results[0]: op.operands[0] for op in body if op.name in ("arith.extf", "arith.extsi")}
    factors = [widened.get(value, value) for value in product.operands]
    arguments = list(block.arguments)[: space.inputs]
    if len(body) != 2 + len(widened) or any(factor not in arguments for factor in factors):
        return None
    a, b = (arguments.index(factor) for factor in factors)
    seen = {p for index in (a, b) for p in _positions(space.maps[index]) or ()}
    return (a, b) if set(space.reduced) <= seen else None


def _contract(a: Tensor, b: Tensor, space: _Space, dtype: torch.dtype) -> Tensor:
    """Return the sum of products over the reduced dimensions, which are kept with size 1."""
    letters = string.ascii_letters[: len(space.sizes)]
    kept = "".join(letters[d] for d in space.kept)
    total = torch.einsum(f"{letters},{letters}->{kept}", a.to(dtype), b.to(dtype))
    return total[tuple(slice(None) if d in space.kept else None for d in range(len(space.sizes)))]


# -------------------------------------------------------------------------------------------- the operations


class _Linalg:
    """One linalg operation with a body, ready to run. It holds no references to the IR, which may change."""

    def __init__(self, op: ir.Operation, b: Builder, space: _Space) -> None:
        self.types, self.space = b.types, space
        block = op.regions[0].blocks[0]
        self.operands, self.arguments = b.slots(op.operands), b.slots(block.arguments)
        self.results = b.slots(op.results)
        self.indices = tuple(b.fresh() for _ in space.sizes)
        self.axes = [space.axis(d) for d in range(len(space.sizes))]
        self.aligned = [_align(op, affine, space) for affine in space.maps]
        self.writers = [
            _writer(op, affine, space, shape_of(result.type))
            for affine, result in zip(space.maps[space.inputs :], op.results, strict=True)
        ]
        around, b.loops = b.loops, self.indices
        self.fire = self._choose(block, b)
        b.loops = around

    def _choose(self, block: ir.Block, b: Builder) -> Fire:
        """Return the cheapest evaluation that is exact up to the order of a sum."""
        combinations = _combinations(block, self.space.inputs) if self.space.reduced else []
        if not combinations:
            body = b.block(block)
            return self._sequential(body) if self.space.reduced else self._parallel(body)
        factors = _factors(block, combinations[0], self.space) if len(combinations) == 1 else None
        if factors is not None:
            return self._product(*factors)
        values, operations = [c.value for c in combinations], [c.operation for c in combinations]
        names = [str(operation.name) for operation in operations]
        return self._combined(b.block(block, returned=values, without=operations), names)

    def _enter(self, frame: Frame) -> list[Tensor]:
        """Bind the loop indices and the body's arguments. Return the outputs' values over the iteration space."""
        for slot, axis in zip(self.indices, self.axes, strict=True):
            frame[slot] = axis
        seen = [align(frame[slot]) for align, slot in zip(self.aligned, self.operands, strict=True)]
        for slot, value in zip(self.arguments, seen, strict=True):
            frame[slot] = value
        return seen[self.space.inputs :]

    def _leave(self, frame: Frame, values: Sequence[Tensor]) -> None:
        for slot in (*self.indices, *self.arguments):
            frame[slot] = None
        outputs = self.operands[self.space.inputs :]
        for write, value, output, result in zip(self.writers, values, outputs, self.results, strict=True):
            frame[result] = write(value, frame[output])

    def _parallel(self, body: RunnableBlock) -> Fire:
        def fire(frame: Frame) -> None:
            self._enter(frame)
            self._leave(frame, body(frame))

        return fire

    def _combined(self, body: RunnableBlock, names: Sequence[str]) -> Fire:
        def fire(frame: Frame) -> None:
            starts = self._enter(frame)
            values = [value.broadcast_to(self.space.sizes) for value in body(frame)]
            self._leave(frame, [self._combine(*item) for item in zip(names, starts, values, strict=True)])

        return fire

    def _combine(self, name: str, start: Tensor, values: Tensor) -> Tensor:
        dtype = self.types.sums(start.dtype)
        return _PAIR[name](start.to(dtype), _total(name, values, self.space.reduced, dtype)).to(start.dtype)

    def _product(self, first: int, second: int) -> Fire:
        def fire(frame: Frame) -> None:
            a, b, start = (self.aligned[i](frame[self.operands[i]]) for i in (first, second, self.space.inputs))
            dtype = self.types.sums(start.dtype)
            total = start.to(dtype) + _contract(a, b, self.space, dtype)
            self._leave(frame, [total.to(start.dtype)])

        return fire

    def _sequential(self, body: RunnableBlock) -> Fire:
        """Return the definition: points of the reduced dimensions are processed sequentially, in order."""

        def fire(frame: Frame) -> None:
            accumulators = self._enter(frame)
            inputs = [frame[slot] for slot in self.arguments[: self.space.inputs]]
            slots = (*self.indices, *self.arguments)
            for point in itertools.product(*(range(self.space.sizes[d]) for d in self.space.reduced)):
                for slot, value in zip(slots, (*self.axes, *inputs, *accumulators), strict=True):
                    frame[slot] = self._at(point, value)
                accumulators = body(frame)
            self._leave(frame, accumulators)

        return fire

    def _at(self, point: tuple[int, ...], value: Tensor) -> Tensor:
        """Return `value` over the iteration space, restricted to one point of the reduced dimensions."""
        for dimension, index in zip(self.space.reduced, point, strict=True):
            if value.shape[dimension] > 1:
                value = value.narrow(dimension, index, 1)
        return value


def _maps_of(op: ir.Operation) -> list[ir.AffineMap]:
    return [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]


def _generic(op: ir.Operation, b: Builder) -> Fire:
    kinds = [str(kind) for kind in op.attributes["iterator_types"]]
    reduced = [d for d, kind in enumerate(kinds) if "reduction" in kind]
    return _Linalg(op, b, _space(op, _maps_of(op), reduced)).fire


def _contraction(op: ir.Operation, b: Builder) -> Fire:
    """Return the handler of a named contraction, whose maps define the products and sums."""
    if "indexing_maps" in op.attributes:
        return _Linalg(op, b, _space(op, _maps_of(op), None)).fire
    texts = _CONTRACTIONS[str(op.name)]
    maps = [ir.AffineMapAttr(ir.Attribute.parse(f"affine_map<{text}>")).value for text in texts]
    return _Linalg(op, b, _space(op, maps, None)).fire


_CONTRACTIONS = {
    "linalg.matmul": ("(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"),
    "linalg.batch_matmul": ("(b, m, n, k) -> (b, m, k)", "(b, m, n, k) -> (b, k, n)", "(b, m, n, k) -> (b, m, n)"),
    "linalg.dot": ("(k) -> (k)", "(k) -> (k)", "(k) -> ()"),
    "linalg.matvec": ("(m, k) -> (m, k)", "(m, k) -> (k)", "(m, k) -> (m)"),
    "linalg.vecmat": ("(n, k) -> (k)", "(n, k) -> (k, n)", "(n, k) -> (n)"),
    "linalg.batch_matvec": ("(b, m, k) -> (b, m, k)", "(b, m, k) -> (b, k)", "(b, m, k) -> (b, m)"),
    "linalg.batch_vecmat": ("(b, n, k) -> (b, k)", "(b, n, k) -> (b, k, n)", "(b, n, k) -> (b, n)"),
}


def _pointwise(op: ir.Operation, b: Builder) -> Fire:
    """Return the handler of a named element-wise operation, whose operands all have the result's shape."""
    rank = len(shape_of(op.results[0].type))
    identity, scalar = ir.AffineMap.get_identity(rank), ir.AffineMap.get(rank, 0, [])
    maps = [identity if isinstance(value.type, ir.RankedTensorType) else scalar for value in op.operands]
    return _Linalg(op, b, _space(op, maps, [])).fire


def _loop_index(op: ir.Operation, b: Builder) -> Fire:
    source, result = b.loops[op.attributes["dim"].value], b.slot(op.results[0])

    def fire(frame: Frame) -> None:
        frame[result] = frame[source]

    return fire


def _fill(op: ir.Operation, b: Builder) -> Compute:
    shape, dtype = shape_of(op.results[0].type), b.types.dtype(op.results[0].type)
    return lambda value, out: value.to(dtype).expand(shape)


def _transpose(op: ir.Operation, b: Builder) -> Compute:
    order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    return lambda source, out: source.permute(order)


def _broadcast(op: ir.Operation, b: Builder) -> Compute:
    shape = shape_of(op.results[0].type)
    added = set(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    spread = tuple(None if axis in added else slice(None) for axis in range(len(shape)))
    return lambda source, out: source[spread].expand(shape)


_POINTWISE = (
    "abs add ceil copy div erf exp floor log max min mul negf powf reciprocal round rsqrt select sqrt square sub tanh"
)

HANDLERS: dict[str, Handler] = {
    "linalg.generic": _generic,
    "linalg.index": _loop_index,
    "linalg.fill": single(_fill),
    "linalg.transpose": single(_transpose),
    "linalg.broadcast": single(_broadcast),
    **dict.fromkeys(("linalg.contract", *_CONTRACTIONS), _contraction),
    **{f"linalg.{name}": _pointwise for name in _POINTWISE.split()},
}
