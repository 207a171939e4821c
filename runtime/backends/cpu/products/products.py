"""Products with packed weights: out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

The bits of out[m, n] depend only on the row a[m, :], the weights b[n, :] and the kind of kernel (`kind_of`).
"""

from __future__ import annotations

from functools import partial

from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import LINE, STREAMED_ROWS
from sscc.runtime.backends.cpu.codegen.mlir import I16, I32, I64, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.codegen.transposition import store_columns
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.product_blocks import (
    SIZE,
    STORED,
    Blocks,
    PackedProduct,
    RowPlaces,
    Tile,
    check_operands,
    even_rows,
    row_count,
)
from sscc.runtime.backends.cpu.products.product_kernels import (
    Kind,
    block_rows,
    kernel,
    kind_of,
    tile_for,
    tile_rows,
    unit_bytes,
)


def packed_product(a: Operand, out: Operand, panels: Panels, features: Features, rows: int = 0) -> PackedProduct:
    """Return the product with weights that are packed as `panels`, in blocks of `rows` rows (0: a suitable number).

    Raises:
        InternalError: the operands have unsupported shapes, dtypes or strides.
    """
    check_operands(a, panels.n, panels.k, out)
    kind, blocks = kind_of(a.dtype, panels, features), _blocks(a, panels, features, rows)
    make, pack = partial(_kernel, kind), partial(pack_block, a.dtype, kind)
    tiles = tuple((rows, LINE) for rows in tile_rows(blocks.tile.rows)) if kind == "matrix" else ()
    form, name = f"{a.dtype} {kind}", f"product_{kind}"
    return PackedProduct(a, out, panels.panel_bytes, panels.units, blocks, name, make, pack, form, (panels.k,), tiles)


def listed_rows(a: Operand, panels: Panels, features: Features) -> list[int]:
    """Return the block sizes for products of listed rows. A product of n rows uses the largest size that is at most n.

    While a product is bound by memory, each number of rows has a block size of its own: a second block would read the
    panel from cache again while memory is idle.
    """
    most = block_rows(kind_of(a.dtype, panels, features), features)
    return [*range(1, min(STREAMED_ROWS + 1, most)), most]


def _blocks(a: Operand, panels: Panels, features: Features, block: int) -> Blocks:
    m, kind = row_count(a), kind_of(a.dtype, panels, features)
    rows = block or even_rows(m, block_rows(kind, features))
    same = a.dtype == ("bf16" if kind in ("matrix", "dot") else "f32")
    in_place = not block and m == 1 and same and (kind == "single" or panels.k % 2 == 0)
    block_bytes = rows * panels.units * unit_bytes(kind)
    return Blocks(m, tile_for(rows, kind, panels.units, features), block_bytes, in_place)


def _kernel(kind: Kind, module: Module, tile: Tile, dtype: str) -> Function:
    return kernel(module, kind, tile, dtype)


def pack_block(dtype: str, kind: Kind, module: Module, rows: int, places: RowPlaces) -> Function:
    """Return the private function that packs rows first .. first + rows - 1 in the form that kernels read."""
    name = f"product_pack_{dtype}_{kind}_{rows}{places.name}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("a", PTR), *places.params, ("first", I64), ("k", I64), ("out", PTR)])
    if kind == "matrix":
        _pack_lines(f, rows, places)
        f.returns()
        return f
    sources = [places.address(f, f["a"], f["first"] + r) for r in range(rows)]
    step = 2 * LANES if kind == "dot" else LANES
    whole = f["k"] - f["k"] % step
    with f.loop(0, whole, step) as at:
        lines = [_load_units(f, source, at.index, dtype, kind, None) for source in sources]
        store_columns(f, lines, f["out"] + at.index * (rows * (2 if kind == "dot" else 4)))
    with f.when(whole < f["k"]):
        mask = f.first_lanes(f["k"] - whole, step)
        lines = [_load_units(f, source, whole, dtype, kind, mask) for source in sources]
        store_columns(f, lines, f["out"] + whole * (rows * (2 if kind == "dot" else 4)))
    f.returns()
    return f


def _pack_lines(f: Function, rows: int, places: RowPlaces) -> None:
    """Emit the packing of lines of 16 units, with the lines of a block's rows side by side."""
    with f.loop(0, rows) as row:
        source = places.address(f, f["a"], f["first"] + row.index)
        with f.loop(0, f["k"], 2 * LANES) as at:
            line = f.load(source + at.index * 2, vector(I16, 2 * LANES))
            f.store(line, f["out"] + (at.index * (rows * 2) + row.index * LINE))


def _load_units(f: Function, source: Value, first: Value, dtype: str, kind: Kind, mask: Value | None) -> Value:
    """Return 16 lanes of 4 bytes of a row from element `first` on, with zeros outside the mask."""
    type = vector(STORED[dtype], 2 * LANES if kind == "dot" else LANES)
    pointer = source + first * SIZE[dtype]
    values = f.load(pointer, type) if mask is None else f.load_masked(pointer, mask, type)
    return f.bitcast(values if kind == "dot" else f.widen(values), vector(I32, LANES))
