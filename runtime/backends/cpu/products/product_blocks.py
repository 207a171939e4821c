"""Products with packed weights, whatever the kernel: blocks of packed rows against panels of 16 columns.

The rows of the left operand are packed in blocks. Some blocks at a time, so that they stay in cache, meet each group of
panels of weights, which is read once for all of these blocks. The rows are packed before all of this, where there is
room for them, else some blocks at a time too.
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
"""The type in which a dtype is loaded and stored: bf16 as its bits, which every CPU can move."""
SPILL = 32 * LINE


class PackedProductErrors(ErrorKind):
    SHAPES = InternalError, "[{left}] times {n} x {k} weights does not give [{result}]"
    STRIDES = InternalError, "the left operand of a packed product has the strides {strides}; the last must be 1"
    DTYPES = InternalError, "no packed product takes {left} and gives {result}"
    ROWS = InternalError, "a packed product takes rows of up to two dimensions, not [{rows}]"


@dataclass(frozen=True)
class Tile:
    """What a kernel computes at once: `rows` by `panels` panels of 16 outputs, `unroll` units in a loop's iteration;
    `prefetch`: it asks for weights ahead of time."""

    rows: int
    panels: int
    unroll: int = 1
    prefetch: bool = False


@dataclass(frozen=True)
class Blocks:
    """How the rows of a product are cut up: block number b begins at row min(b * rows, m - rows), so that the last one
    may compute rows again, to the same bits.

    Attributes:
        m: rows of the product.
        tile: of a kernel; `tile.rows` is the rows of a block.
        block_bytes: bytes of a packed block.
        in_place: the one row of the left operand is in the packed form as it lies.
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
        """The number of blocks with which the weights are gone through at once."""
        return min(self.count, max(1, L2_BYTES // self.block_bytes))

    @property
    def kept(self) -> bool:
        """True if all blocks may be packed before the first product with them."""
        return not self.in_place and self.count * self.block_bytes <= PACKED_ROWS_BYTES

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed blocks that there are at a time, in whole lines, and of what packing may write after
        them."""
        blocks = self.count if self.kept else self.held
        return 0 if self.in_place else -(-blocks * self.block_bytes // LINE) * LINE + SPILL

    def scratch_bytes(self, dtype: str) -> int:
        """Bytes of the packed blocks and of one tile of results of this dtype."""
        return self.packed_bytes + self.tile.rows * self.tile.panels * LANES * SIZE[dtype]


def even_rows(m: int, most: int) -> int:
    """Rows of a block, at most `most`, so that m rows make few blocks of like size."""
    blocks = -(-m // most)
    return -(-m // blocks)


def check_operands(a: Operand, n: int, k: int, out: Operand) -> None:
    """Raises InternalError where the shapes are not those of a product with weights [n, k], or k is not dense."""
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
    """A product with packed weights, and the functions that it is made of.

    Attributes:
        a: [*rows, K], one or two dimensions of rows, f32 or bf16, k of unit stride.
        out: [*rows, N] f32 or bf16, any strides; sums are rounded once. It may not overlap `a`.
        panel_bytes, units: of a panel of the weights, units as the kernel counts them.
        blocks: of the rows.
        name: of the kernels, without tile and dtype.
        make: the kernel of a tile that writes a dtype, a private function with the parameters packed rows, first panel,
            bytes of a panel, units of a panel, out (columns dense), bytes from a row of it to the next.
        pack: for blocks of so many rows, what writes one; its parameters are the pointer of the left operand, those of
            `RowPlaces`, the first row, then `depths`, then where the block goes. It may write up to `SPILL` bytes more.
        form: of packed rows, a name; rows of one form with equal `depths` and blocks are packed alike.
        depths: what `pack` has to know about the summed dimension.
        registers: rows and bytes of a row of the tile registers that kernels use, in their order; none where they use
            no such.
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
        """Of memory that only one call writes; the operands' pointers are not looked at."""
        return align(self.blocks.scratch_bytes(self.out.dtype)) + (LINE if self.registers else 0)

    @property
    def packed_form(self) -> tuple[object, ...]:
        """Equal for products whose equal rows are packed to equal bytes."""
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
        """out[.., n] for begin <= n < end, as calls of private functions; columns outside of it keep their bytes.

        Args:
            f: the function to emit into.
            weights: pointer to the packed weights.
            begin, end: begin is a multiple of 16, end one too or N.
            scratch: pointer to `scratch_bytes` of memory, 64-byte aligned.
            live: how many rows, from the first on, have to be written; None means all of them.
            listed: the rows, where they are not those of the operands' shapes.
            packed: `emit_packing` has written the rows to `scratch` (`Blocks.kept`).
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
    """One f32 or a vector of them, converted to the form in which they are stored."""
    return value if dtype == "f32" else f.bitcast(f.narrow(value, BF16), with_element(value.type, I16))


@dataclass(frozen=True)
class RowPlaces:
    """How a generated function is told where the rows of an operand begin.

    Attributes:
        name: a suffix for the names of functions.
        params: what it is given, besides the operand.
    """

    name: str
    params: tuple[tuple[str, str], ...]

    def address(self, f: Function, pointer: Value, row: Value) -> Value:
        """Where a row begins."""
        if self is LISTED:
            return pointer + f.load(f["rows"] + row * 8, I64)
        return pointer + (row // f["count"] * f["outer"] + row % f["count"] * f["inner"])


STRIDED = RowPlaces("", (("count", I64), ("inner", I64), ("outer", I64)))
"""Row r begins r // count * outer + r % count * inner bytes further."""
LISTED = RowPlaces("_listed", (("rows", PTR),))
"""Row r begins as many bytes further as number r of i64 says."""


@dataclass(frozen=True)
class Listed:
    """Rows of a product that lie anywhere, known when the program runs.

    Attributes:
        count: how many, an i64: at least the rows of a block, at most the product's.
        a, out: pointers to what `LISTED` takes, of the left operand and of the result.
    """

    count: Value
    a: Value
    out: Value


def _rows(operand: Operand) -> tuple[int, int, int]:
    """What `STRIDED` takes: count, inner, outer."""
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
    """Whether tiles are written where they belong: rows have one stride, columns are dense."""
    count, inner, outer = _rows(out)
    return out.strides[-1] == 1 and outer == count * inner


def _multiply(module: Module, product: PackedProduct, places: RowPlaces, direct: bool) -> Function:
    """Packed blocks first .. last - 1 times the panels of columns begin .. end - 1, as a private function. `direct`:
    tiles are written where they belong.

    Groups of panels outside, blocks inside, so that weights come from memory once.
    """
    tile, dtype = product.blocks.tile, product.out.dtype
    how = places.name or ("" if direct else "_strided")
    name = f"{product.name}_{tile.rows}x{tile.panels}x{tile.unroll}_{dtype}_rows{how}"
    if module.has(name):
        return module.get(name)
    alone = replace(tile, panels=1)
    makers = {part: product.make(module, part, dtype) for part in (tile, alone)}
    params = [("packed", PTR), ("block_bytes", I64), ("first", I64), ("last", I64), ("m", I64)]
    params += [("weights", PTR), ("panel_bytes", I64), ("units", I64)]
    params += [("out", PTR), *places.params, ("column", I64)]
    f = module.function(name, [*params, ("begin", I64), ("end", I64), ("tile", PTR)])
    columns = f["end"] - f["begin"]
    groups = f["begin"] + columns // (tile.panels * LANES) * (tile.panels * LANES)
    panels = f["begin"] + columns // LANES * LANES
    parts = [(f["begin"], groups, tile, direct), (groups, panels, alone, direct), (panels, f["end"], alone, False)]
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
    """Copies a computed tile to the rows from `row` on and the columns begin .. begin + count - 1 of an output, which
    may have any strides."""
    with f.loop(0, tile.rows) as r:
        target = places.address(f, f["out"], row + r.index)
        with f.loop(0, count) as c:
            at = (r.index * (tile.panels * LANES) + c.index) * SIZE[dtype]
            f.store(f.load(f["tile"] + at, STORED[dtype]), target + (begin + c.index) * f["column"])
