"""Products with packed weights: out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

The rows of `a` are packed (product_kernels.py says how) in blocks, a few blocks at a time so that they stay in cache;
then each group of panels of weights is read once for all of these blocks. One row is read as it lies where it can be.

    nbytes = scratch_bytes(a, panels, out, features)          # of memory that only this call writes
    emit_product(f, a, weights, panels, out, begin, end, scratch, features)

The bits of out[m, n] depend on the row a[m, :], the weights b[n, :] and the kind of kernel (`kind_of`) alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from sscc.ir.errors import InternalError
from sscc.runtime.codegen.features import LANES, Features
from sscc.runtime.codegen.mlir import BF16, F32, I16, I32, I64, PTR, Function, Module, Value
from sscc.runtime.codegen.packing import LINE, Panels
from sscc.runtime.codegen.phases import Operand
from sscc.runtime.codegen.product_kernels import Kind, Tile, block_rows, kernel, kind_of, tile_for, unit_bytes

_SIZE = {"f32": 4, "bf16": 2}
_PACKED_BYTES = 1 << 20
"""Bytes of packed rows that are multiplied at once: about an L2 cache."""
_RUN = 64
"""Elements of one row that are packed before the next row's, so that few lines are open at once."""


@dataclass(frozen=True)
class Blocking:
    """How the rows of a product are cut up: block number b begins at row min(b * rows, m - rows), so that the last one
    may compute rows again, to the same bits.

    Attributes:
        kind: of the kernels.
        tile: of a block; `tile.rows` is the rows of a block.
        blocks: number of blocks.
        block_bytes: bytes of a packed block.
        held: blocks that are packed at once.
        in_place: the one row of `a` is in the packed form as it lies.
    """

    kind: Kind
    tile: Tile
    blocks: int
    block_bytes: int
    held: int
    in_place: bool

    @classmethod
    def of(cls, m: int, dtype: str, panels: Panels, features: Features) -> Blocking:
        """For m rows of this dtype."""
        kind = kind_of(dtype, panels.dtype, features)
        blocks = -(-m // block_rows(kind, features))
        rows = -(-m // blocks)
        block_bytes = rows * panels.units * unit_bytes(kind)
        held = min(blocks, max(1, _PACKED_BYTES // block_bytes))
        same = dtype == ("bf16" if kind == "dot" else "f32")
        in_place = m == 1 and same and (kind == "single" or panels.k % 2 == 0)
        return cls(kind, tile_for(rows, kind, panels.units, features), blocks, block_bytes, held, in_place)

    @property
    def packed_bytes(self) -> int:
        """Of the blocks that are packed at once, in whole lines."""
        return 0 if self.in_place else -(-self.held * self.block_bytes // LINE) * LINE


def scratch_bytes(a: Operand, panels: Panels, out: Operand, features: Features) -> int:
    """Bytes of scratch that `emit_product` wants; the operands' pointers are not looked at."""
    blocking = Blocking.of(prod(a.shape[:-1]), a.dtype, panels, features)
    return blocking.packed_bytes + blocking.tile.rows * blocking.tile.panels * LANES * _SIZE[out.dtype]


def emit_product(
    f: Function,
    a: Operand,
    weights: Value,
    panels: Panels,
    out: Operand,
    begin: Value | int,
    end: Value | int,
    scratch: Value,
    features: Features,
) -> None:
    """out[.., n] for begin <= n < end; columns outside of it keep their bytes.

    Args:
        f: the function to emit into.
        a: [*rows, K], one or two dimensions of rows, f32 or bf16, k of unit stride.
        weights: pointer to the packed weights.
        panels: how they are packed.
        out: [*rows, N] f32 or bf16, any strides; sums are rounded once. It may not overlap `a`.
        begin, end: begin is a multiple of 16, end one too or N.
        scratch: pointer to `scratch_bytes` of memory, 64-byte aligned.
        features: of the CPU.

    Raises:
        InternalError: for operands of other shapes, dtypes or strides.
    """
    rows_of_a, rows_of_out = _rows(a), _rows(out)
    _check(a, panels, out)
    m = prod(a.shape[:-1])
    blocking = Blocking.of(m, a.dtype, panels, features)
    multiply = _multiply(f.module, blocking, out.dtype, _is_direct(out))
    packed = a.pointer if blocking.in_place else scratch
    tile = scratch + blocking.packed_bytes
    with f.loop(0, blocking.blocks, blocking.held) as outer:
        last = f.min(outer.index + blocking.held, blocking.blocks)
        if not blocking.in_place:
            pack = _pack_block(f.module, a.dtype, blocking.kind)
            with f.loop(outer.index, last) as block:
                first = f.min(block.index * blocking.tile.rows, m - blocking.tile.rows)
                target = scratch + (block.index - outer.index) * blocking.block_bytes
                f.call(pack, a.pointer, *rows_of_a, first, blocking.tile.rows, panels.k, target)
        shape = (panels.panel_bytes, panels.units, m)
        place = (*rows_of_out, out.strides[-1] * _SIZE[out.dtype])
        columns = (f.integer(begin), f.integer(end))
        f.call(multiply, packed, outer.index, last, weights, *shape, out.pointer, *place, *columns, tile)


def _check(a: Operand, panels: Panels, out: Operand) -> None:
    if a.shape[:-1] != out.shape[:-1] or (a.shape[-1], out.shape[-1]) != (panels.k, panels.n):
        raise InternalError(f"{a.shape} times {panels.n} x {panels.k} weights is not {out.shape}")
    if a.strides[-1] != 1 and panels.k > 1:
        raise InternalError(f"the left operand of a packed product has strides {a.strides}, k must be dense")
    if out.dtype not in _SIZE:
        raise InternalError(f"a product gives no {out.dtype}")


def _rows(operand: Operand) -> tuple[int, int, int]:
    """Where row r lies: r // count * outer + r % count * inner bytes; returns (count, inner, outer)."""
    size = _SIZE.get(operand.dtype, 0)
    dims = [(n, s) for n, s in zip(operand.shape[:-1], operand.strides[:-1], strict=True) if n > 1]
    if len(dims) == 2 and dims[0][1] == dims[1][0] * dims[1][1]:
        dims = [(dims[0][0] * dims[1][0], dims[1][1])]
    if len(dims) > 2:
        raise InternalError(f"a packed product takes two dimensions of rows, not {operand.shape[:-1]}")
    if not dims:
        return (1, 0, 0)
    count, inner = dims[-1]
    return (count, inner * size, dims[0][1] * size if len(dims) == 2 else count * inner * size)


def _is_direct(out: Operand) -> bool:
    """Whether tiles are written where they belong: rows have one stride, columns are dense."""
    count, inner, outer = _rows(out)
    return out.strides[-1] == 1 and outer == count * inner


def _row_address(pointer: Value, row: Value, count: Value, inner: Value, outer: Value) -> Value:
    return pointer + (row // count * outer + row % count * inner)


# ---------------------------------------------------------------------------------------------- packing of rows


def _pack_block(module: Module, dtype: str, kind: Kind) -> Function:
    """Rows first .. first + rows - 1 in the form that kernels read, as a private function."""
    name = f"product_pack_{dtype}_{kind}"
    if module.has(name):
        return module.get(name)
    params = [("a", PTR), ("count", I64), ("inner", I64), ("outer", I64), ("first", I64), ("rows", I64), ("k", I64)]
    f = module.function(name, [*params, ("out", PTR)])
    pairs, widened = kind == "dot", kind != "dot" and dtype == "bf16"
    elements = f["k"] // 2 if pairs else f["k"]
    size = 2 if widened else 4
    with f.loop(0, elements, _RUN) as run, f.loop(0, f["rows"]) as row:
        source = _row_address(f["a"], f["first"] + row.index, f["count"], f["inner"], f["outer"])
        with f.loop(run.index, f.min(run.index + _RUN, elements)) as at:
            value = f.load(source + at.index * size, I16 if widened else I32)
            if widened:
                value = f.cast("arith.extui", value, I32) << 16
            f.store(value, f["out"] + (at.index * f["rows"] + row.index) * 4)
    if kind != "single":
        with f.when((f["k"] % 2).eq(1)), f.loop(0, f["rows"]) as row:
            value = f.constant(0, I32)
            if pairs:
                source = _row_address(f["a"], f["first"] + row.index, f["count"], f["inner"], f["outer"])
                value = f.cast("arith.extui", f.load(source + (f["k"] - 1) * 2, I16), I32)
            f.store(value, f["out"] + (elements * f["rows"] + row.index) * 4)
    f.returns()
    return f


# ------------------------------------------------------------------------------------------------ packed blocks


def _multiply(module: Module, blocking: Blocking, dtype: str, direct: bool) -> Function:
    """Packed blocks first .. last - 1 times the panels of columns begin .. end - 1, as a private function.

    Groups of panels outside, blocks inside, so that weights come from memory once.
    """
    tile, kind = blocking.tile, blocking.kind
    name = f"product_{kind}_{tile.rows}x{tile.panels}x{tile.unroll}_{dtype}_rows{'' if direct else '_strided'}"
    if module.has(name):
        return module.get(name)
    params = [("packed", PTR), ("first", I64), ("last", I64), ("weights", PTR), ("panel_bytes", I64), ("units", I64)]
    params += [("m", I64), ("out", PTR), ("count", I64), ("inner", I64), ("outer", I64), ("column", I64)]
    alone = replace(tile, panels=1)
    makers = {part: kernel(module, kind, part, dtype) for part in (tile, alone)}
    f = module.function(name, [*params, ("begin", I64), ("end", I64), ("tile", PTR)])
    columns = f["end"] - f["begin"]
    groups = f["begin"] + columns // (tile.panels * LANES) * (tile.panels * LANES)
    panels = f["begin"] + columns // LANES * LANES
    parts = [(f["begin"], groups, tile, direct), (groups, panels, alone, direct), (panels, f["end"], alone, False)]
    for lower, upper, part, in_place in parts:
        step = part.panels * LANES
        with f.loop(lower, upper, step) as column, f.loop(f["first"], f["last"]) as block:
            row = f.min(block.index * tile.rows, f["m"] - tile.rows)
            a = f["packed"] + (block.index - f["first"]) * (f["units"] * (tile.rows * unit_bytes(kind)))
            operands = (a, f["weights"] + column.index // LANES * f["panel_bytes"], f["panel_bytes"], f["units"])
            if in_place:
                out = f["out"] + row * f["inner"] + column.index * _SIZE[dtype]
                f.call(makers[part], *operands, out, f["inner"])
            else:
                f.call(makers[part], *operands, f["tile"], step * _SIZE[dtype])
                _scatter(f, row, part, column.index, f.min(f["end"] - column.index, step), dtype)
    f.returns()
    return f


def _scatter(f: Function, row: Value, tile: Tile, begin: Value, count: Value, dtype: str) -> None:
    """A computed tile to rows row .. and columns begin .. begin + count - 1 of an output of any strides."""
    element, size = (F32, 4) if dtype == "f32" else (BF16, 2)
    with f.loop(0, tile.rows) as r:
        target = _row_address(f["out"], row + r.index, f["count"], f["inner"], f["outer"])
        with f.loop(0, count) as c:
            value = f.load(f["tile"] + (r.index * (tile.panels * LANES) + c.index) * size, element)
            f.store(value, target + (begin + c.index) * f["column"])
