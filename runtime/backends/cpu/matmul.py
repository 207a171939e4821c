"""Product nests whose second operand is a packed weight, as calls of the product kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sscc.runtime.backends.cpu.elementwise import Range, RegionPointers
from sscc.runtime.backends.cpu.features import LANES, Features
from sscc.runtime.backends.cpu.indices import cut_index
from sscc.runtime.backends.cpu.mlir import I64, Function, Value
from sscc.runtime.backends.cpu.nests import LinearAccess, Nest, merged
from sscc.runtime.backends.cpu.packing import Panels
from sscc.runtime.backends.cpu.phases import Operand
from sscc.runtime.backends.cpu.product_blocks import PackedProduct
from sscc.runtime.backends.cpu.products import packed_product
from sscc.runtime.backends.cpu.quantised_packing import QuantisedPanels
from sscc.runtime.backends.cpu.quantised_products import quantised_product


@dataclass(frozen=True)
class Shape:
    """The dimensions of a product: out[rows, columns] = sum over `depth` of a[rows, depth] * b[columns, depth].

    `columns` are in the order of b's rows, the last one with the smallest stride. With an indirect axis each index of
    `groups` is such a product by itself, of the slice of b that it finds in a tensor.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, nest: Nest) -> Shape | None:
        """None where the nest is no product of matrices with k dense in `a` and at most two dimensions of rows."""
        a, b, *index = (access.coefficients for access in nest.inputs)
        groups = [d for d in range(len(nest.dims)) if index and index[0][d]]
        free = [d for d in range(len(nest.dims)) if d not in nest.reduce and d not in groups]
        rows, columns = [d for d in free if b[d] == 0], [d for d in free if b[d]]
        columns.sort(key=lambda d: -b[d])
        if len(nest.reduce) != 1 or any(a[d] for d in columns) or len(rows) > 2 or not columns:
            return None
        (depth,) = nest.reduce
        if a[depth] != 1 or b[depth] == 0 or any(not a[d] for d in rows) or any(b[d] or d == depth for d in groups):
            return None
        return cls(tuple(rows), tuple(columns), depth, tuple(groups))


def panels_for(nest: Nest, dtype: str) -> Panels | None:
    """How the rows of b that a product reads would be packed; None where they cannot be.

    `n` counts the rows from the first to the last one.
    """
    nest = merged(nest)
    shape = Shape.of(nest)
    if shape is None or nest.inputs[1].constant:
        return None
    b = nest.inputs[1].coefficients
    row = b[shape.columns[-1]]
    n = 1
    for d in shape.columns:
        if b[d] % row or (d != shape.columns[-1] and b[d] // row % LANES):
            return None
        n += b[d] // row * (nest.dims[d] - 1)
    return Panels(n, nest.dims[shape.depth], dtype, row, b[shape.depth])


@dataclass(frozen=True)
class Matmul:
    """A product with packed weights, ready to be emitted."""

    nest: Nest
    shape: Shape
    panels: Panels | QuantisedPanels
    features: Features

    def _product(self, a: Operand, out: Operand) -> PackedProduct:
        """Of one run of columns."""
        panels = replace(self.panels, n=self.nest.dims[self.shape.columns[-1]])
        if isinstance(panels, Panels):
            return packed_product(a, out, panels, self.features)
        return quantised_product(a, out, panels, self.features)

    @property
    def _row(self) -> int:
        """Elements from one row of b to the next, as the nest counts them."""
        return self.panels.n_stride if isinstance(self.panels, Panels) else self.panels.k

    def private_bytes(self, dtypes: Mapping[str, str]) -> int:
        """Scratch that the product needs."""
        a, out = self._operand(self.nest.inputs[0], dtypes, None), self._operand(self.nest.output, dtypes, None)
        return self._product(a, out).scratch_bytes

    def emit(
        self,
        f: Function,
        places: RegionPointers,
        split: tuple[int, Range] | None,
        scratch: Value,
        live: Value | None = None,
    ) -> None:
        """Emits the product for all groups and columns, or those of a range of one of its column dimensions.

        Only the first `live` rows have to be written; None means all of them.
        """
        self._columns(f, places, split, (scratch, live), (*self.shape.groups, *self.shape.columns[:-1]), {})

    def _columns(
        self,
        f: Function,
        places: RegionPointers,
        split: tuple[int, Range] | None,
        how: tuple[Value, Value | None],
        outer: tuple[int, ...],
        index: dict[int, Value],
    ) -> None:
        if outer:
            lower, upper = _bounds(self.nest, outer[0], split)
            with f.loop(lower, upper) as loop:
                self._columns(f, places, split, how, outer[1:], {**index, outer[0]: loop.index})
            return
        scratch, live = how
        a_access, b_access, *_ = self.nest.inputs
        weights, rows = self._slice(f, places, index), f.constant(0)
        out = places[self.nest.output.region]
        start = f.constant(self.nest.output.constant)
        for d, at in index.items():
            rows = rows + at * (b_access.coefficients[d] // self._row)
            start = start + at * self.nest.output.coefficients[d]
        first: Value | int = a_access.constant
        for d in self.shape.groups:
            first = index[d] * a_access.coefficients[d] + first
        lower, upper = _bounds(self.nest, self.shape.columns[-1], split)
        dtypes = {name: place.dtype for name, place in places.items()}
        a = self._operand(a_access, dtypes, places[a_access.region].at(f, first))
        target = self._operand(self.nest.output, dtypes, out.at(f, start))
        pointer = weights + rows // LANES * self.panels.panel_bytes
        self._product(a, target).emit(f, pointer, lower, upper, scratch, live)

    def _slice(self, f: Function, places: RegionPointers, index: Mapping[int, Value]) -> Value:
        """Where the panels of the slice begin that an indirect axis names; without one there is one slice."""
        weights, axis = places[self.nest.inputs[1].region].pointer, self.nest.indirect
        if axis is None:
            return weights
        access = self.nest.inputs[2]
        at = f.constant(access.constant)
        for d in self.shape.groups:
            at = at + index[d] * access.coefficients[d]
        number = cut_index(f, f.load(places[access.region].at(f, at), I64), axis.size)
        slices = axis.stride // (self.panels.n * self.panels.k)
        return weights + number * (slices * self.panels.packed_bytes)

    def _operand(self, access: LinearAccess, dtypes: Mapping[str, str], pointer: Value | None) -> Operand:
        last = self.shape.depth if access is self.nest.inputs[0] else self.shape.columns[-1]
        dims = (*self.shape.rows, last)
        shape, strides = tuple(self.nest.dims[d] for d in dims), tuple(access.coefficients[d] for d in dims)
        return Operand(pointer, shape, strides, dtypes[access.region])  # type: ignore[arg-type]


def matmul_of(nest: Nest, packed: Mapping[str, Panels | QuantisedPanels], features: Features) -> Matmul | None:
    """The product as a call of kernels, where its second operand is packed."""
    shape, panels = Shape.of(nest), packed.get(nest.inputs[1].region)
    return None if shape is None or panels is None else Matmul(nest, shape, panels, features)


def packed_element(panels: Panels, f: Function, row: Value, column: Value) -> Value:
    """Where element [row, column] of a packed weight lies, in elements."""
    unit = row // LANES * panels.units + column // panels.depth
    return (unit * LANES + row % LANES) * panels.depth + column % panels.depth


def _bounds(nest: Nest, dim: int, split: tuple[int, Range] | None) -> tuple[Value | int, Value | int]:
    if split is not None and split[0] == dim:
        return split[1].lower, split[1].upper
    return 0, nest.dims[dim]


__all__ = ["Matmul", "matmul_of", "packed_element", "panels_for"]
