"""Product nests whose second operand is a packed weight, lowered to calls of the product kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.codegen.elementwise import Range, RegionPointers
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.indices import cut_index
from sscc.runtime.backends.cpu.codegen.mlir import I64, Function, Value
from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest, merged
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.products import products, quantized_products, small_float_products
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.product_blocks import SIZE, Listed, PackedProduct
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels


@dataclass(frozen=True)
class Shape:
    """The dimensions of a product: out[rows, columns] = sum over `depth` of a[rows, depth] * b[columns, depth].

    `columns` are in the order of b's rows, the last one with the smallest stride. With an indirect axis, each index of
    `groups` is a product of its own, with the slice of b that a tensor of indices names.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, nest: Nest) -> Shape | None:
        """Return the shape of a matrix product. Return None if the nest is not one, if k is not dense in `a`, or if the
        rows have more than two dimensions."""
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
    """Return the packed layout of the rows of b; None if they cannot be packed.

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
    panels: Panels | QuantizedPanels
    features: Features

    def _product(self, a: Operand, out: Operand, rows: int = 0) -> PackedProduct:
        """Return the product of one run of columns, in blocks of `rows` rows (0: a suitable number)."""
        panels = replace(self.panels, n=self.nest.dims[self.shape.columns[-1]])
        if isinstance(panels, Panels):
            return products.packed_product(a, out, panels, self.features, rows)
        if panels.floating:
            return small_float_products.small_float_product(a, out, panels, self.features, rows)
        return quantized_products.quantized_product(a, out, panels, self.features, rows)

    @property
    def _row(self) -> int:
        """Elements between consecutive rows of b, as the nest counts them."""
        return self.panels.n_stride if isinstance(self.panels, Panels) else self.panels.k

    @property
    def sorts_rows(self) -> bool:
        """True if each group is one row. Rows that name the same slice of b are then multiplied by it together, so that
        the slice is read once."""
        return bool(self.shape.groups) and not self.shape.rows and len(self.shape.columns) == 1

    @property
    def _most_rows(self) -> int:
        """Groups."""
        return prod(self.nest.dims[d] for d in self.shape.groups)

    def private_bytes(self, dtypes: Mapping[str, str]) -> int:
        """Return the bytes of scratch memory that the product needs."""
        a, out = self._operand(self.nest.inputs[0], dtypes, None), self._operand(self.nest.output, dtypes, None)
        if self.sorts_rows:
            blocks = max(product.scratch_bytes for product in self._listed(dtypes, None, None))
            return self._sorted(None).nbytes + blocks
        return self._product(a, out).scratch_bytes

    def packed_rows(self, dtypes: Mapping[str, str]) -> tuple[object, ...] | None:
        """Return a key that is equal for products whose left operands are packed to the same bytes; None if not all
        rows are packed before the first product that reads them."""
        if self.shape.groups:
            return None
        access = self.nest.inputs[0]
        product = self._product(self._operand(access, dtypes, None), self._operand(self.nest.output, dtypes, None))
        if not product.blocks.kept:
            return None
        rows = tuple((self.nest.dims[d], access.coefficients[d]) for d in self.shape.rows)
        return (access.region, access.constant, rows, *product.packed_form)

    def emit_packing(
        self,
        f: Function,
        places: RegionPointers,
        dtypes: Mapping[str, str],
        scratch: Value,
        live: Value | None,
        note: Value,
    ) -> None:
        """Emit the packing of the left operand for calls of `emit` with `packed`.

        Args:
            note: pointer to a word that holds the address of the operand packed in `scratch`; 0 if there is none.
        """
        access = self.nest.inputs[0]
        left = self._operand(access, dtypes, places[access.region].at(f, f.constant(access.constant)))
        address = f.address_of(left.pointer)
        with f.when(f.load(note, I64).ne(address)):
            self._product(left, self._operand(self.nest.output, dtypes, None)).emit_packing(f, scratch, live)
            f.store(address, note)

    def emit(
        self,
        f: Function,
        places: RegionPointers,
        split: tuple[int, Range] | None,
        scratch: Value,
        live: Value | None = None,
        *,
        packed: bool = False,
    ) -> None:
        """Emit the product for all groups and columns, or for a range of one column dimension.

        Only the first `live` rows must be written; None means all rows. Sorted rows are counted along the first group
        dimension. With `packed`, `emit_packing` has already written the rows to `scratch`.
        """
        if self.sorts_rows:
            self._slices(f, places, split, scratch, live)
            return
        self._columns(f, places, split, (scratch, live, packed), (*self.shape.groups, *self.shape.columns[:-1]), {})

    def _columns(
        self,
        f: Function,
        places: RegionPointers,
        split: tuple[int, Range] | None,
        how: tuple[Value, Value | None, bool],
        outer: tuple[int, ...],
        index: dict[int, Value],
    ) -> None:
        if outer:
            lower, upper = _bounds(self.nest, outer[0], split)
            with f.loop(lower, upper) as loop:
                self._columns(f, places, split, how, outer[1:], {**index, outer[0]: loop.index})
            return
        scratch, live, packed = how
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
        self._product(a, target).emit(f, pointer, lower, upper, scratch, live, packed=packed)

    def _slice(self, f: Function, places: RegionPointers, index: Mapping[int, Value]) -> Value:
        """Return a pointer to the panels of the slice that an indirect axis names; without such an axis there is one
        slice."""
        weights, axis = places[self.nest.inputs[1].region].pointer, self.nest.indirect
        if axis is None:
            return weights
        access = self.nest.inputs[2]
        at = _at(f, access, {d: index[d] for d in self.shape.groups})
        number = cut_index(f, f.load(places[access.region].at(f, at), I64), axis.size)
        slices = axis.stride // (self.panels.n * self.panels.k)
        return weights + number * (slices * self.panels.packed_bytes)

    def _slices(
        self, f: Function, places: RegionPointers, split: tuple[int, Range] | None, scratch: Value, live: Value | None
    ) -> None:
        """Emit the products slice by slice, each with the rows that name it. The result of a row does not depend on its
        block."""
        axis, b = self.nest.indirect, self.nest.inputs[1]
        assert axis is not None
        rows = self._sorted(scratch)
        self._sort(f, places, rows, live)
        dtypes = {name: place.dtype for name, place in places.items()}
        a, out = (places[access.region].at(f, f.constant(0)) for access in (self.nest.inputs[0], self.nest.output))
        lower, upper = _bounds(self.nest, self.shape.columns[-1], split)
        slice_bytes = axis.stride // (self.panels.n * self.panels.k) * self.panels.packed_bytes
        products = self._listed(dtypes, a, out)
        sizes = [product.blocks.tile.rows for product in products]
        with f.loop(0, axis.size) as number:
            first = f.load(rows.starts + number.index * 8, I64)
            count = f.load(rows.starts + (number.index + 1) * 8, I64) - first
            weights = places[b.region].pointer + number.index * slice_bytes
            listed = Listed(count, rows.a + first * 8, rows.out + first * 8)
            for product, size, more in zip(products, sizes, [*sizes[1:], 0], strict=True):
                suits = count >= size
                with f.when(suits & (count < more) if more else suits):
                    product.emit(f, weights, lower, upper, scratch + rows.nbytes, listed=listed)

    def _sort(self, f: Function, places: RegionPointers, rows: _SortedRows, live: Value | None) -> None:
        """Write the addresses of the rows, sorted by slice; rows of one slice keep their order."""
        axis, index = self.nest.indirect, self.nest.inputs[2]
        assert axis is not None
        a, out = self.nest.inputs[0], self.nest.output
        sizes = {access.region: SIZE[places[access.region].dtype] for access in (a, out)}

        def visit(visited: Callable[[Value, dict[int, Value]], None]) -> None:
            """Call `visited` for every row, with the number of its slice."""

            def enter(dims: tuple[int, ...], at: dict[int, Value]) -> None:
                if dims:
                    every = live if live is not None and dims == self.shape.groups else self.nest.dims[dims[0]]
                    with f.loop(0, every) as loop:
                        enter(dims[1:], {**at, dims[0]: loop.index})
                    return
                place = places[index.region].at(f, _at(f, index, at))
                visited(cut_index(f, f.load(place, I64), axis.size), at)

            enter(self.shape.groups, {})

        def counted(number: Value, at: dict[int, Value]) -> None:
            there = rows.starts + (number + 2) * 8
            f.store(f.load(there, I64) + 1, there)

        def placed(number: Value, at: dict[int, Value]) -> None:
            # The entry is the place of the slice's next row; at the end it is the beginning of the following slice.
            there = rows.starts + (number + 1) * 8
            place = f.load(there, I64)
            f.store(_at(f, a, at) * sizes[a.region], rows.a + place * 8)
            f.store(_at(f, out, at) * sizes[out.region], rows.out + place * 8)
            f.store(place + 1, there)

        with f.loop(0, axis.size + 2) as entry:
            f.store(f.constant(0), rows.starts + entry.index * 8)
        visit(counted)
        with f.loop(0, axis.size, 1, [f.constant(0)]) as entry:
            there = rows.starts + (entry.index + 2) * 8
            total = entry.state[0] + f.load(there, I64)
            f.store(total, there)
            entry.carry(total)
        visit(placed)

    def _sorted(self, scratch: Value | None) -> _SortedRows:
        assert self.nest.indirect is not None
        counts, rows = align((self.nest.indirect.size + 2) * 8), align(self._most_rows * 8)
        if scratch is None:
            return _SortedRows(None, None, None, counts + 2 * rows)  # type: ignore[arg-type]
        return _SortedRows(scratch, scratch + counts, scratch + (counts + rows), counts + 2 * rows)

    def _listed(self, dtypes: Mapping[str, str], a: Value | None, out: Value | None) -> list[PackedProduct]:
        """Return the products of one slice, for few rows and for many."""
        (column,), panels, m = self.shape.columns, self.panels, self._most_rows
        a_access, out_access = self.nest.inputs[0], self.nest.output
        left = Operand(a, (m, panels.k), (0, 1), dtypes[a_access.region])  # type: ignore[arg-type]
        columns, stride = self.nest.dims[column], out_access.coefficients[column]
        right = Operand(out, (m, columns), (0, stride), dtypes[out_access.region])  # type: ignore[arg-type]
        if isinstance(panels, Panels):
            sizes = products.listed_rows(left, panels, self.features)
        elif panels.floating:
            sizes = small_float_products.listed_rows(self.features)
        else:
            sizes = quantized_products.listed_rows(panels, self.features)
        return [self._product(left, right, rows) for rows in sizes if rows <= m]

    def _operand(self, access: LinearAccess, dtypes: Mapping[str, str], pointer: Value | None) -> Operand:
        last = self.shape.depth if access is self.nest.inputs[0] else self.shape.columns[-1]
        dims = (*self.shape.rows, last)
        shape, strides = tuple(self.nest.dims[d] for d in dims), tuple(access.coefficients[d] for d in dims)
        return Operand(pointer, shape, strides, dtypes[access.region])  # type: ignore[arg-type]


@dataclass(frozen=True)
class _SortedRows:
    """Scratch memory for the rows of a product, sorted by the slices that they name.

    Attributes:
        starts: number of the first row of each slice, and the number of all rows at the end.
        a, out: byte offset of each row in the left operand and in the result.
        nbytes: total size in bytes.
    """

    starts: Value
    a: Value
    out: Value
    nbytes: int


def _at(f: Function, access: LinearAccess, index: Mapping[int, Value]) -> Value:
    """Return the index of the element that an access reaches, with missing dimensions at 0."""
    at = f.constant(access.constant)
    for d, value in index.items():
        at = at + value * access.coefficients[d]
    return at


def matmul_of(nest: Nest, packed: Mapping[str, Panels | QuantizedPanels], features: Features) -> Matmul | None:
    """Return the nest as a product of kernels; None if its second operand is not packed."""
    shape, panels = Shape.of(nest), packed.get(nest.inputs[1].region)
    return None if shape is None or panels is None else Matmul(nest, shape, panels, features)


def packed_element(panels: Panels, f: Function, row: Value, column: Value) -> Value:
    """Return the offset of element [row, column] of a packed weight, in elements."""
    unit = row // LANES * panels.units + column // panels.depth
    return (unit * LANES + row % LANES) * panels.depth + column % panels.depth


def _bounds(nest: Nest, dim: int, split: tuple[int, Range] | None) -> tuple[Value | int, Value | int]:
    if split is not None and split[0] == dim:
        return split[1].lower, split[1].upper
    return 0, nest.dims[dim]


__all__ = ["Matmul", "matmul_of", "packed_element", "panels_for"]
