"""Products that read bf16 operands as stored, instead of copies that were widened for them.

PyTorch decomposes a linear layer with a bias so that its operands are widened from bf16 to f32, because product and
bias are to be rounded once. A product of bf16 operands into f32 computes the same bits: it widens each element itself,
and sums in f32. It reads half the bytes, and as the direct reader of the weight it allows quantization.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import linalg

from sscc.ir.levels import walk
from sscc.ir.rewriting import producer
from sscc.passes.tiling import is_cast

BUILDERS = {"linalg.matmul": linalg.matmul, "linalg.batch_matmul": linalg.batch_matmul}
MAPS = "indexing_maps"
"""Attribute of contractions. Operands may be read transposed; builders omit the attribute if it has its default."""


def narrow_operands(module: ir.Module) -> int:
    """Let products of two widened operands of one dtype read the operands before widening. Return the number of such
    products."""
    narrowed = 0
    for op in [op for op in walk(module) if op.name in BUILDERS]:
        left, right, init = op.operands
        sources = [source for source in map(_unwidened, (left, right)) if source is not None]
        if len(sources) != 2 or sources[0].type.element_type != sources[1].type.element_type:
            continue
        with ir.InsertionPoint(op), op.location:
            result = BUILDERS[op.name](*sources, outs=[init])
        if MAPS in op.attributes:
            result.owner.attributes[MAPS] = op.attributes[MAPS]
        op.results[0].replace_all_uses_with(result)
        op.erase()
        narrowed += 1
    return narrowed


def _unwidened(value: ir.Value) -> ir.Value | None:
    """Return the narrower tensor that `value` is a widened copy of; None for another value."""
    op = producer(value)
    if op is None or not is_cast(op) or op.regions[0].blocks[0].operations[0].operation.name != "arith.extf":
        return None
    maps = [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]
    source: ir.Value = op.operands[0]
    return source if maps[0] == maps[1] and source.type.shape == value.type.shape else None
