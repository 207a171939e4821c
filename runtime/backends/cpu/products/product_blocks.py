"""Products with packed weights, independent of the kernel: blocks of packed rows times panels of 16 columns.

The rows of the left operand are packed in blocks. Each group of weight panels is read once for a set of blocks that
stays in cache. All rows are packed before the first product if there is room for them; otherwise each set of blocks is
packed in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import L2_BYTES, LINE, PACKED_ROWS_BYTES
from sscc.runtime.backends.cpu.codegen.mlir import BF16, F32, I16, I64, PTR, Function, Module, Value, with_element
from sscc.runtime.backends.cpu.codegen.phases import Operand

SIZE = {"f32": 4, "bf16": 2}
STORED = {"f32": F32, "bf16": I16}
"""Element type of loads and stores of a dtype. A bf16 is moved as its bits, which every CPU supports."""
SPILL = 32 * LINE


class PackedProductErrors(ErrorKind):
    SHAPES = InternalError, "[{left}] times {n} x {k} weights does not give [{result}]"
    STRIDES = InternalError, "the left operand of a packed product has the strides {strides}; the last must be 1"
    DTYPES = InternalError, "no packed product supports operands of {left} and results of {result}"
    ROWS = InternalError, "a packed product takes rows of up to two dimensions, not [{rows}]"


@dataclass(frozen=True)
class Tile:
    """Tile that a kernel computes at once: `rows` x `panels` panels of 16 outputs. A loop iteration covers `unroll`
    units. With `prefetch`, the kernel prefetches weights."""

    rows: int
    panels: int
    unroll: int = 1
    prefetch: bool = False


@dataclass(frozen=True)
class Blocks:
    """Division of a product's rows into blocks. Block b begins at row min(b * rows, m - rows), so the last block may
    compute some rows twice, with equal results.

    Attributes:
        m: rows of the product.
        tile: tile of a kernel; `tile.rows` is the number of rows of a block.
        block_bytes: bytes of a packed block.
        in_place: True if the only row of the left operand is already in packed form.
    """

    m: int
    tile: Tile
    block_bytes: int
    in_place: bool = False

    @property
    def count(self) -> int:
        return -(-self.m // self.tile.rows)

    @property
    def held(self) -> int:
        """Number of blocks that share one pass over the weights."""
        return min(self.count, max(1, L2_BYTES // self.block_bytes))

    @property
    def kept(self) -> bool:
        """True if all blocks may be packed before the first product with them."""
        return not self.in_place and self.count * self.block_bytes <= PACKED_ROWS_BYTES

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed blocks that exist at a time, in whole lines, including the bytes that packing may write
        behind them."""
        blocks = self.count if self.kept else self.held
        return 0 if self.in_place else -(-blocks * self.block_bytes // LINE) * LINE + SPILL

    def scratch_bytes(self, dtype: str) -> int:
        """Bytes of the packed blocks and of one tile of results of this dtype."""
        return self.packed_bytes + self.tile.rows * self.tile.panels * LANES * SIZE[dtype]


def even_rows(m: int, most: int) -> int:
    """Return the rows of a block, at most `most`, so that m rows form few blocks of similar size."""
    blocks = -(-m // most)
    return -(-m // blocks)


def check_operands(a: Operand, n: int, k: int, out: Operand) -> None:
    """Check the shapes of a product with weights [n, k], and that k is dense. Raises InternalError."""
    if a.shape[:-1] != out.shape[:-1] or (a.shape[-1], out.shape[-1]) != (k, n):
        raise PackedProductErrors.SHAPES(left=a.shape, n=n, k=k, result=out.shape)
    if a.strides[-1] != 1 and k > 1:
        raise PackedProductErrors.STRIDES(strides=a.strides)
    if out.dtype not in SIZE or a.dtype not in SIZE:
        raise PackedProductErrors.DTYPES(left=a.dtype, result=out.dtype)


def row_count(operand: Operand) -> int:
    return prod(operand.shape[:-1])


@dataclass(frozen=True)
class PackedProduct:
    """A product with packed weights, with the functions that implement it.

    Attributes:
        a: [*rows, K] f32 or bf16, with one or two dimensions of rows and unit stride along k.
        out: [*rows, N] f32 or bf16, with any strides; each sum is rounded once. It may not overlap `a`.
        panel_bytes, units: bytes and units of a panel of the weights, in the kernel's units.
        blocks: division of the rows into blocks.
        name: name of the kernels, without tile and dtype.
        make: returns the kernel for a tile and an output dtype: a private function with the parameters packed rows,
            first panel, bytes of a panel, units of a panel, out (columns dense), bytes between rows of it.
        pack: returns the function that packs a block of a number of rows. Its parameters are the pointer to the left
            operand, those of `RowPlaces`, the first row, `depths`, and the pointer to the block. It may write up to
            `SPILL` bytes behind the block.
        form: name of the form of packed rows; rows of one form with equal `depths` and blocks are packed to equal
            bytes.
        depths: sizes of the summed dimension, for `pack`.
        registers: rows and bytes per row of the tile registers that the kernels use, in order; empty without tile
            registers.
    """

    a: Operand
    out: Operand
    panel_bytes: int
    units: int
    blocks: Blocks
    name: str
    make: Callable[[Module, Tile, str], Function]
    pack: Callable[[Module, int, RowPlaces], Function]
    form: str
    depths: tuple[int, ...]
    registers: tuple[tuple[int, int], ...] = ()

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the scratch memory of one call; the operands' pointers are not read."""
        return align(self.blocks.scratch_bytes(self.out.dtype)) + (LINE if self.registers else 0)

    @property
    def packed_form(self) -> tuple[object, ...]:
        """Key of the packed form: products with equal keys pack equal rows to equal bytes."""
        return (self.form, self.depths, self.blocks.m, self.blocks.tile.rows, self.blocks.block_bytes)

    def emit_packing(self, f: Function, scratch: Value, live: Value | None = None) -> None:
        """Emit the packing of all rows, or of the first `live`, for calls of `emit` with `packed`."""
        count = f.integer(self.blocks.count)
        if live is not None:
            count = f.min(f.ceildiv(live, self.blocks.tile.rows), count)
        self._pack(f, STRIDED, _rows(self.a), f.integer(self.blocks.m), (f.constant(0), count), scratch)

    def _pack(
        self,
        f: Function,
        places: RowPlaces,
        rows: Sequence[Value | int],
        m: Value,
        blocks: tuple[Value, Value],
        target: Value,
    ) -> None:
        """Emit the packing of a range of blocks, one after another from `target` on."""
        size, first = self.blocks.tile.rows, blocks[0]
        pack = self.pack(f.module, size, places)
        with f.loop(*blocks) as block:
            row = f.min(block.index * size, m - size)
            where = target + (block.index - first) * self.blocks.block_bytes
            f.call(pack, self.a.pointer, *rows, row, *self.depths, where)

    def emit(
        self,
        f: Function,
        weights: Value,
        begin: Value | int,
        end: Value | int,
        scratch: Value,
        live: Value | None = None,
        listed: Listed | None = None,
        packed: bool = False,
    ) -> None:
        """Emit out[.., n] for begin <= n < end, as calls of private functions; other columns are not written.

        Args:
            f: function to emit into.
            weights: pointer to the packed weights.
            begin, end: begin is a multiple of 16; end is one too, or N.
            scratch: pointer to `scratch_bytes` of memory, 64-byte aligned.
            live: number of leading rows that must be written; None means all.
            listed: addresses of the rows; None for the rows of the operands' shapes.
            packed: True if `emit_packing` has already written the rows to `scratch` (`Blocks.kept`).
        """
        a, out, blocks = self.a, self.out, self.blocks
        rows_of_a: Sequence[Value | int] = _rows(a) if listed is None else (listed.a,)
        rows_of_out: Sequence[Value | int] = _rows(out) if listed is None else (listed.out,)
        places, m = (STRIDED, f.integer(blocks.m)) if listed is None else (LISTED, listed.count)
        multiply = _multiply(f.module, self, places, listed is None and _is_direct(out))
        rows = a.pointer if blocks.in_place else scratch
        columns = (out.strides[-1] * SIZE[out.dtype], f.integer(begin), f.integer(end))
        count = f.integer(blocks.count) if listed is None else f.ceildiv(listed.count, blocks.tile.rows)
        if live is not None:
            count = f.min(f.ceildiv(live, blocks.tile.rows), count)
        if self.registers:
            f.configure_tiles(self.registers, scratch + (self.scratch_bytes - LINE))
        with f.loop(0, count, blocks.held) as outer:
            last = f.min(outer.index + blocks.held, count)
            some = rows
            if packed:
                some = rows + outer.index * blocks.block_bytes
            elif not blocks.in_place:
                self._pack(f, places, rows_of_a, m, (outer.index, last), scratch)
            left = (some, f.integer(blocks.block_bytes), outer.index, last, m)
            right = (weights, f.integer(self.panel_bytes), f.integer(self.units))
            f.call(multiply, *left, *right, out.pointer, *rows_of_out, *columns, scratch + blocks.packed_bytes)
        if self.registers:
            f.release_tiles()


def rounded(f: Function, value: Value, dtype: str) -> Value:
    """Return an f32, or a vector of them, converted to the stored form of a dtype."""
    return value if dtype == "f32" else f.bitcast(f.narrow(value, BF16), with_element(value.type, I16))


@dataclass(frozen=True)
class RowPlaces:
    """Parameters with which a generated function addresses the rows of an operand.

    Attributes:
        name: suffix of the names of functions.
        params: parameters besides the operand's pointer.
    """

    name: str
    params: tuple[tuple[str, str], ...]

    def address(self, f: Function, pointer: Value, row: Value) -> Value:
        """Return the address of a row."""
        if self is LISTED:
            return pointer + f.load(f["rows"] + row * 8, I64)
        return pointer + (row // f["count"] * f["outer"] + row % f["count"] * f["inner"])


STRIDED = RowPlaces("", (("count", I64), ("inner", I64), ("outer", I64)))
"""Rows in two dimensions: row r begins at byte r // count * outer + r % count * inner."""
LISTED = RowPlaces("_listed", (("rows", PTR),))
"""Rows with a list of offsets: row r begins at the byte that element r of an i64 array gives."""


@dataclass(frozen=True)
class Listed:
    """Rows of a product with arbitrary addresses, known when the program runs.

    Attributes:
        count: number of rows, an i64, at least the rows of a block and at most the product's.
        a, out: pointers to the row offsets (`LISTED`) in the left operand and in the result.
    """

    count: Value
    a: Value
    out: Value


def _rows(operand: Operand) -> tuple[int, int, int]:
    """Return the parameters of `STRIDED`: count, inner, outer."""
    size = SIZE[operand.dtype]
    dims = [(n, s) for n, s in zip(operand.shape[:-1], operand.strides[:-1], strict=True) if n > 1]
    if len(dims) == 2 and dims[0][1] == dims[1][0] * dims[1][1]:
        dims = [(dims[0][0] * dims[1][0], dims[1][1])]
    if len(dims) > 2:
        raise PackedProductErrors.ROWS(rows=operand.shape[:-1])
    if not dims:
        return (1, 0, 0)
    count, inner = dims[-1]
    return (count, inner * size, dims[0][1] * size if len(dims) == 2 else count * inner * size)


def _is_direct(out: Operand) -> bool:
    """Return True if kernels write their tiles to the result directly: rows have one stride, and columns are dense."""
    count, inner, outer = _rows(out)
    return out.strides[-1] == 1 and outer == count * inner


def _multiply(module: Module, product: PackedProduct, places: RowPlaces, direct: bool) -> Function:
    """Return the private function that multiplies packed blocks first .. last - 1 by the panels of columns begin .. end
    - 1. With `direct`, kernels write their tiles to the result.

    The outer loop is over groups of panels and the inner one over blocks, so that weights are read from memory once.
    """
    tile, dtype = product.blocks.tile, product.out.dtype
    how = places.name or ("" if direct else "_strided")
    name = f"{product.name}_{tile.rows}x{tile.panels}x{tile.unroll}_{dtype}_rows{how}"
    if module.has(name):
        return module.get(name)
    one_panel = replace(tile, panels=1)
    makers = {part: product.make(module, part, dtype) for part in (tile, one_panel)}
    params = [("packed", PTR), ("block_bytes", I64), ("first", I64), ("last", I64), ("m", I64)]
    params += [("weights", PTR), ("panel_bytes", I64), ("units", I64)]
    params += [("out", PTR), *places.params, ("column", I64)]
    f = module.function(name, [*params, ("begin", I64), ("end", I64), ("tile", PTR)])
    columns = f["end"] - f["begin"]
    groups = f["begin"] + columns // (tile.panels * LANES) * (tile.panels * LANES)
    panels = f["begin"] + columns // LANES * LANES
    parts = [
        (f["begin"], groups, tile, direct),
        (groups, panels, one_panel, direct),
        (panels, f["end"], one_panel, False),
    ]
    for lower, upper, part, in_place in parts:
        step = part.panels * LANES
        with f.loop(lower, upper, step) as column, f.loop(f["first"], f["last"]) as block:
            row = f.min(block.index * tile.rows, f["m"] - tile.rows)
            a = f["packed"] + (block.index - f["first"]) * f["block_bytes"]
            operands = (a, f["weights"] + column.index // LANES * f["panel_bytes"], f["panel_bytes"], f["units"])
            if in_place:
                out = f["out"] + row * f["inner"] + column.index * SIZE[dtype]
                f.call(makers[part], *operands, out, f["inner"])
            else:
                f.call(makers[part], *operands, f["tile"], step * SIZE[dtype])
                _scatter(f, places, row, part, column.index, f.min(f["end"] - column.index, step), dtype)
    f.returns()
    return f


def _scatter(
    f: Function, places: RowPlaces, row: Value, tile: Tile, begin: Value, count: Value, dtype: str
) -> None:
    """Emit the copy of a computed tile to the rows from `row` on and the columns begin .. begin + count - 1 of a result
    with any strides."""
    with f.loop(0, tile.rows) as r:
        target = places.address(f, f["out"], row + r.index)
        with f.loop(0, count) as c:
            at = (r.index * (tile.panels * LANES) + c.index) * SIZE[dtype]
            f.store(f.load(f["tile"] + at, STORED[dtype]), target + (begin + c.index) * f["column"])
