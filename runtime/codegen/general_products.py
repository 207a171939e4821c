"""Products of operands that lie anywhere: any dimensions, any strides, nothing packed. For small ones.

Lanes are 16 neighbouring outputs where an operand and the output are dense along a dimension; else 16 neighbouring
terms of a sum where both operands are dense along a summed dimension; else there is one lane. Sums are f32 chains of
fused multiply-adds in row-major order of the summed dimensions (per lane, in the second case; lanes are added last).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from sscc.ir.errors import InternalError
from sscc.runtime.codegen.features import LANES
from sscc.runtime.codegen.mlir import F32, Function, Value, lanes_of, vector
from sscc.runtime.codegen.phases import Operand
from sscc.runtime.codegen.product_blocks import SIZE, STORED, rounded
from sscc.runtime.schedule import Access


@dataclass(frozen=True)
class Strided:
    """An operand seen from the iteration space: point (i0, i1, ..) is element ``offset + sum(i * stride)``."""

    pointer: Value
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, access: Access, operand: Operand) -> Strided:
        """What an access map of a product step makes of an operand."""
        columns = zip(*access.map, strict=True) if access.map else ()
        totals = [sum(c * s for c, s in zip(column, operand.strides, strict=True)) for column in columns]
        *strides, offset = totals or [0]
        return cls(operand.pointer, operand.dtype, tuple(strides), offset)

    @property
    def size(self) -> int:
        return SIZE[self.dtype]


@dataclass(frozen=True)
class GeneralProduct:
    """out = sum over the dimensions in `reduce` of a * b; operands as in a `Product` step.

    Raises:
        InternalError: where an operand is neither f32 nor bf16, or the output moves along a summed dimension.
    """

    dims: tuple[int, ...]
    reduce: tuple[int, ...]
    a: Strided
    b: Strided
    out: Strided

    def __post_init__(self) -> None:
        for operand in (self.a, self.b, self.out):
            if operand.dtype not in SIZE:
                raise InternalError(f"a product takes no {operand.dtype}")
            if len(operand.strides) not in (0, len(self.dims)):
                raise InternalError(f"strides {operand.strides} are not of {len(self.dims)} dimensions")
        if any(self._stride(self.out, d) for d in self.reduce):
            raise InternalError("the output of a product moves along a summed dimension")

    @property
    def units(self) -> int:
        """Independent pieces of work: outputs, or blocks of 16 of them."""
        return prod(size for _, size in self._free())

    def emit(self, f: Function, begin: Value, end: Value) -> None:
        """The units begin .. end - 1."""
        with f.loop(begin, end) as unit:
            at: dict[int, Value] = {}
            inner = 1
            for dim, size in reversed(self._free()):
                index = unit.index // inner % size if inner > 1 or size < self.units else unit.index
                at[dim] = index * LANES if dim == self._outputs else index
                inner *= size
            a, b, out = (self._address(f, operand, at) for operand in (self.a, self.b, self.out))
            if self._outputs is not None:
                self._emit_outputs(f, a, b, out, at[self._outputs])
            elif self._terms is not None:
                self._emit_terms(f, a, b, out, self._terms)
            else:
                sums = self._nest(f, self.reduce, [a, b], f.constant(0.0, F32), self._multiply_scalars(f))
                f.store(rounded(f, sums, self.out.dtype), out)

    # -- which dimension is in the lanes

    @property
    def _outputs(self) -> int | None:
        for dim, size in enumerate(self.dims):
            steps = [self._stride(operand, dim) for operand in (self.a, self.b)]
            if dim not in self.reduce and size > 1 and self._stride(self.out, dim) == 1 and sorted(steps) in _DENSE:
                return dim
        return None

    @property
    def _terms(self) -> int | None:
        for dim in self.reduce:
            if self.dims[dim] > 1 and self._stride(self.a, dim) == self._stride(self.b, dim) == 1:
                return dim
        return None

    def _free(self) -> list[tuple[int, int]]:
        """Free dimensions and their sizes, in blocks of 16 where outputs are in lanes."""
        free = [(d, n) for d, n in enumerate(self.dims) if d not in self.reduce]
        return [(d, -(-n // LANES) if d == self._outputs else n) for d, n in free]

    # -- code

    def _stride(self, operand: Strided, dim: int) -> int:
        return operand.strides[dim] if operand.strides else 0

    def _address(self, f: Function, operand: Strided, at: dict[int, Value]) -> Value:
        pointer = operand.pointer + operand.offset * operand.size
        for dim, index in at.items():
            if stride := self._stride(operand, dim):
                pointer = pointer + index * (stride * operand.size)
        return pointer

    def _nest(
        self,
        f: Function,
        dims: Sequence[int],
        pointers: list[Value],
        sums: Value,
        body: Callable[[Value, Value, Value], Value],
    ) -> Value:
        """`body(a, b, sums)` at every point of these dimensions, in row-major order."""
        if not dims:
            a, b = pointers
            return body(a, b, sums)
        dim = dims[0]
        with f.loop(0, self.dims[dim], 1, [sums]) as loop:
            steps = [self._stride(operand, dim) * operand.size for operand in (self.a, self.b)]
            moved = [p + loop.index * step if step else p for p, step in zip(pointers, steps, strict=True)]
            loop.carry(self._nest(f, dims[1:], moved, loop.state[0], body))
        return loop.results[0]

    def _multiply_scalars(self, f: Function) -> Callable[[Value, Value, Value], Value]:
        return lambda a, b, sums: f.fma(_load(f, self.a, a), _load(f, self.b, b), sums)

    def _emit_outputs(self, f: Function, a: Value, b: Value, out: Value, first: Value) -> None:
        dim = self._outputs
        assert dim is not None
        mask = None if self.dims[dim] % LANES == 0 else f.first_lanes(self.dims[dim] - first)

        def body(left: Value, right: Value, sums: Value) -> Value:
            values = [
                _load_lanes(f, operand, at, mask) if self._stride(operand, dim) else _load(f, operand, at)
                for operand, at in ((self.a, left), (self.b, right))
            ]
            x, y = (v if lanes_of(v.type) else f.broadcast(v, LANES) for v in values)
            return f.fma(x, y, sums)

        sums = self._nest(f, self.reduce, [a, b], f.splat(0.0), body)
        result = rounded(f, sums, self.out.dtype)
        if mask is None:
            f.store(result, out)
        else:
            f.store_masked(result, out, mask)

    def _emit_terms(self, f: Function, a: Value, b: Value, out: Value, dim: int) -> None:
        whole = self.dims[dim] // LANES * LANES

        def body(left: Value, right: Value, sums: Value) -> Value:
            with f.loop(0, whole, LANES, [sums]) as loop:
                values = [
                    _load_lanes(f, operand, at + loop.index * operand.size, None)
                    for operand, at in ((self.a, left), (self.b, right))
                ]
                loop.carry(f.fma(values[0], values[1], loop.state[0]))
            sums = loop.results[0]
            if whole < self.dims[dim]:
                mask = f.first_lanes(self.dims[dim] - whole)
                values = [
                    _load_lanes(f, operand, at + whole * operand.size, mask)
                    for operand, at in ((self.a, left), (self.b, right))
                ]
                sums = f.fma(values[0], values[1], sums)
            return sums

        others = [d for d in self.reduce if d != dim]
        total = f.reduce("add", self._nest(f, others, [a, b], f.splat(0.0), body))
        f.store(rounded(f, total, self.out.dtype), out)


_DENSE = ([0, 1], [1, 1])


def _load(f: Function, operand: Strided, at: Value) -> Value:
    """One element, widened to f32."""
    return f.widen(f.load(at, STORED[operand.dtype]))


def _load_lanes(f: Function, operand: Strided, at: Value, mask: Value | None) -> Value:
    """16 neighbouring elements, those of the mask, widened to f32."""
    type = vector(STORED[operand.dtype], LANES)
    return f.widen(f.load(at, type) if mask is None else f.load_masked(at, mask, type))
