"""Estimated times of the stages of a kernel before compute units are assigned, for placing stages and for choosing the
number of tiles of an exchange."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, prod

from torch_mlir import ir

from sscc.ir.collectives import EXCHANGES
from sscc.ir.dialects import kv
from sscc.ir.target import Units
from sscc.ir.views import computes
from sscc.ir.weight_formats.registry import format_named
from sscc.passes.tiling import is_contraction, is_dequantization


def work_of(ops: Iterable[ir.Operation], units: Units) -> float:
    """Return the seconds that the operations of a stage's body take on one compute unit."""
    return sum(_seconds(op, units) for op in ops if computes(op))


def exchanges(ops: Iterable[ir.Operation]) -> bool:
    """Return True if operations send values to other ranks."""
    return any(op.name in EXCHANGES for op in ops)


def _seconds(op: ir.Operation, units: Units) -> float:
    """Return the seconds that an operation takes on one compute unit: of its products at peak rate, or of its
    element-wise operations."""
    if is_contraction(op) or op.name in _OF_PRODUCTS:
        factors = [value.type.element_type for value in op.operands if isinstance(value.type, ir.RankedTensorType)][:2]
        peak = units.bf16_flops if all(str(type_) == "bf16" for type_ in factors) else units.f32_flops
        return points_of(op) * (2 if is_contraction(op) else 1) * units.pcus.value / peak.value
    body = [inner for region in op.regions for block in region.blocks for inner in block.operations]
    operations = len(body) - 1  # without the yield
    if is_dequantization(op):
        operations = format_named(str(op.attributes["format"].value)).operations
    passes = ceil(operations / units.simd_stages.value)
    return points_of(op) * max(passes, 1) / (units.simd_lanes.value * units.clock.value)


_RECURRENT = frozenset({"kv.recurrent_step", "kv.recurrent_chunk"})
_OF_PRODUCTS = frozenset(
    {*kv.DECODING, "kv.chunk_attention", "kv.latent_chunk_attention", "kv.expert_product", *_RECURRENT,
     "kv.choose_by_index", "kv.attend_chosen"}
)
"""Operations for which `points_of` counts the arithmetic of products."""


def points_of(op: ir.Operation) -> int:
    """Return the points of an operation's iteration space. For attention, operations of its scores (by quantized keys
    too) and of the weighted sum of values; a chunk of a prompt sees half of the rows on average. For a recurrence,
    operations of products with the state."""
    if op.name in _RECURRENT:
        _, *state = kv.operand_of(op, "state").type.shape
        tokens = prod(kv.operand_of(op, "query").type.shape[:2])
        return 2 * int(prod(state) * tokens) * (3 if "beta" in kv.operands_of(op) else 2)
    if op.name == "kv.choose_by_index":
        return 2 * int(prod(kv.operand_of(op, "query").type.shape) * kv.operand_of(op, "keys").type.shape[2])
    if op.name == "kv.attend_chosen":
        return 4 * int(prod(kv.operand_of(op, "query").type.shape) * kv.operand_of(op, "chosen").type.shape[3])
    if op.name == "kv.latent_chunk_attention":  # attention, and the products that compute keys and values
        _, heads, queries, width = kv.operand_of(op, "query").type.shape
        rows, up = (kv.operand_of(op, name).type for name in ("latent_scratch", "k_up"))
        return 2 * int(rows.shape[2] * heads * (queries * width + up.shape[1] * up.shape[2]))
    if op.name in (*kv.DECODING, "kv.chunk_attention"):
        slots, heads, queries, width = kv.operand_of(op, "query").type.shape
        near = kv.operand_of(op, "key" if op.name in kv.DECODING else "k_scratch").type.shape[2]
        rows = near + sum(member.get("index", member["key"]).type.shape[2] for member in kv.members_of(op))
        rows = rows // 2 if op.name == "kv.chunk_attention" else rows
        points = 4 * int(slots * heads * queries * width * rows)
        if op.name == "kv.query_attention":  # byte products, four at a time: one product and one sum for each four
            points += int(slots * heads * width * kv.operand_of(op, "codes").type.shape[2]) // 2
        return points
    if op.name == "kv.expert_product":
        return 2 * int(prod(op.results[0].type.shape) * op.operands[0].type.shape[2])
    tensors = [v.type for v in [*op.operands, *op.results] if isinstance(v.type, ir.RankedTensorType)]
    shapes = [prod(type_.shape) for type_ in tensors]
    if is_contraction(op):
        a, b, out = shapes[:3]
        return int((a * b * out) ** 0.5)
    return max(shapes, default=0)
