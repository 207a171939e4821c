"""Products with packed weights: out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

    nbytes = scratch_bytes(a, panels, out, features)          # of memory that only this call writes
    emit_product(f, a, weights, panels, out, begin, end, scratch, features)

The bits of out[m, n] depend on the row a[m, :], the weights b[n, :] and the kind of kernel (`kind_of`) alone.
"""

from __future__ import annotations

from functools import partial

from sscc.runtime.codegen.features import Features
from sscc.runtime.codegen.mlir import I16, I32, I64, PTR, Function, Module, Value
from sscc.runtime.codegen.packing import Panels
from sscc.runtime.codegen.phases import Operand
from sscc.runtime.codegen.product_blocks import (
    Blocks,
    Kernels,
    Tile,
    Weights,
    check_operands,
    emit_blocks,
    even_rows,
    row_address,
    row_count,
)
from sscc.runtime.codegen.product_kernels import Kind, block_rows, kernel, kind_of, tile_for, unit_bytes

_RUN = 64
"""Elements of one row that are packed before the next row's, so that few lines are open at once."""


def scratch_bytes(a: Operand, panels: Panels, out: Operand, features: Features) -> int:
    """Bytes of scratch that `emit_product` wants; the operands' pointers are not looked at."""
    return _blocks(a, panels, features).scratch_bytes(out.dtype)


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
    check_operands(a, panels.n, panels.k, out)
    kind = kind_of(a.dtype, panels.dtype, features)
    blocks = _blocks(a, panels, features)
    kernels = Kernels(f"product_{kind}", partial(_kernel, kind), partial(_pack_block, a.dtype, kind), (panels.k,))
    packed = Weights(weights, panels.panel_bytes, panels.units)
    emit_blocks(f, a, packed, out, (begin, end), scratch, blocks, kernels)


def _blocks(a: Operand, panels: Panels, features: Features) -> Blocks:
    m, kind = row_count(a), kind_of(a.dtype, panels.dtype, features)
    rows = even_rows(m, block_rows(kind, features))
    same = a.dtype == ("bf16" if kind == "dot" else "f32")
    in_place = m == 1 and same and (kind == "single" or panels.k % 2 == 0)
    block_bytes = rows * panels.units * unit_bytes(kind)
    return Blocks(m, tile_for(rows, kind, panels.units, features), block_bytes, in_place)


def _kernel(kind: Kind, module: Module, tile: Tile, dtype: str) -> Function:
    return kernel(module, kind, tile, dtype)


def _pack_block(dtype: str, kind: Kind, module: Module) -> Function:
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
        source = row_address(f["a"], f["first"] + row.index, f["count"], f["inner"], f["outer"])
        with f.loop(run.index, f.min(run.index + _RUN, elements)) as at:
            value = f.load(source + at.index * size, I16 if widened else I32)
            if widened:
                value = f.cast("arith.extui", value, I32) << 16
            f.store(value, f["out"] + (at.index * f["rows"] + row.index) * 4)
    if kind != "single":
        with f.when((f["k"] % 2).eq(1)), f.loop(0, f["rows"]) as row:
            value = f.constant(0, I32)
            if pairs:
                source = row_address(f["a"], f["first"] + row.index, f["count"], f["inner"], f["outer"])
                value = f.cast("arith.extui", f.load(source + (f["k"] - 1) * 2, I16), I32)
            f.store(value, f["out"] + (elements * f["rows"] + row.index) * 4)
    f.returns()
    return f
