"""quantize-weights: weights of products become codes of 8 or 4 bits with a scale per group.

What: a weight whose only readers are products, which read it as their second operand (transposed or not), is replaced
by what sscc.runtime.quantization makes of it: values, scales, and with `zero-point` zeros, each a stored argument of
its own. In front of every reader stands what turns them into numbers of the weight's dtype. With 4 bits a byte of the
values holds elements 2k (low half) and 2k + 1.

With `keep` every weight gets the format in which the checkpoint stores it, which the module says (`sscc.stored`), and
one that is stored as numbers stays as it is. Then nothing is rounded: what is stored is the checkpoint's own codes.

Why: decoding reads every weight once per token and does little with it. In 8 or 4 bits that is a half or a quarter of
the bytes of bf16.

Before::

    func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"},
        %w: tensor<9x64xf32> {sscc.weight = "proj.weight"}) -> (tensor<2x9xf32> {sscc.output = "hidden"}) {
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<64x9xf32>
      %t = linalg.transpose ins(%w : tensor<9x64xf32>) outs(%e : tensor<64x9xf32>) permutation = [1, 0]
      %s = tensor.empty() : tensor<2x9xf32>
      %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
      %y = linalg.matmul ins(%h, %t : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
      return %y : tensor<2x9xf32>
    }

After::

    func.func private @decode.layer.0(%h: .. "hidden"}, %values: tensor<9x64xi8> {sscc.encoding = "int8:32/values", ..
      ..
      %codes = tensor.expand_shape %values .. : tensor<9x64xi8> into tensor<9x2x32xi8>
      %e = tensor.empty() : tensor<9x2x32xf32>
      %d = linalg.generic .. ins(%codes, %scales : tensor<9x2x32xi8>, tensor<9x2xbf16>) outs(%e : tensor<9x2x32xf32>) {
      ^bb0(%code: i8, %scale: bf16, %out: f32):
        %c = arith.sitofp %code : i8 to f32
        %s = arith.extf %scale : bf16 to f32
        %p = arith.mulf %c, %s : f32
        linalg.yield %p : f32
      } -> tensor<9x2x32xf32>
      %w = tensor.collapse_shape %d .. : tensor<9x2x32xf32> into tensor<9x64xf32>
      ..
      %t = linalg.transpose ins(%w : ..
      ..
      %y = linalg.matmul ins(%h, %t : ..

With `minimum` the last operations are `mulf` of code and scale and `addf` of the group's minimum. Scales are bf16, or
of the dtype that `scales` names. With `floating` codes are e4m3, and widened.

After, with `bits=4`::

    func.func private @decode.layer.0(%h: .. "hidden"}, %values: tensor<9x32xi8> {sscc.encoding = "int4:32/values", ..
      ..
      %codes = tensor.expand_shape %values .. : tensor<9x32xi8> into tensor<9x2x16xi8>
      %e = tensor.empty() : tensor<9x2x16x2xf32>
      %d = linalg.generic .. ins(%codes, %scales : tensor<9x2x16xi8>, tensor<9x2xbf16>) outs(%e : ..
      ^bb0(%byte: i8, %scale: bf16, %out: f32):
        %i = linalg.index 3 : index
        %half = arith.index_cast %i : index to i8
        %four = arith.constant 4 : i8
        %bits = arith.muli %half, %four : i8
        %shifted = arith.shrsi %byte, %bits : i8
        %mask = arith.constant 15 : i8
        %code = arith.andi %shifted, %mask : i8
        %c = arith.sitofp %code : i8 to f32
        %eight = arith.constant 8.000000e+00 : f32
        %o = arith.subf %c, %eight : f32
        %s = arith.extf %scale : bf16 to f32
        %p = arith.mulf %o, %s : f32
        linalg.yield %p : f32
      } -> tensor<9x2x16x2xf32>
      %w = tensor.collapse_shape %d .. : tensor<9x2x16x2xf32> into tensor<9x64xf32>

When it does not apply: a weight that something else reads too (an embedding, whose rows are looked up), that is neither
a matrix nor a matrix per expert, or along whose summed axis the groups do not fit (of a weight that is cut there over
ranks, those of a rank), stays as it is. So does a router,
whose products are chosen from (a `topk` reads them with no other product between): it is small, and a choice turns a
small error into another expert. What `keep` finds in codes it keeps, of routers too. What reads a weight
in another function does not matter here: a head that is tied to the embedding gets a quantised copy. A module with
entries is refused, as their arguments would no longer fit.

Preserves: the order of all other arguments; what is new follows them. Locations.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from sscc.ir.builders import Argument, arguments_of, elementwise, tensor_type
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.levels import get_stored_formats, walk
from sscc.ir.rewriting import functions
from sscc.ir.sharding import Cut
from sscc.ir.views import permutation_of
from sscc.ir.weight_format import FLOAT8_DTYPE, KEEP, RANKS, Encoding, WeightFormat, Weights
from sscc.passes.base import Pass, count
from sscc.passes.tiling import dims_of, is_contraction

ELEMENTS = {
    "i8": lambda: ir.IntegerType.get_signless(8),
    "bf16": ir.BF16Type.get,
    "f16": ir.F16Type.get,
    "f32": ir.F32Type.get,
    FLOAT8_DTYPE: ir.Float8E4M3FNType.get,
}
NIBBLE_BITS = 4


class QuantizeWeightsErrors(ErrorKind):
    AFTER_ENTRIES = UsageError, "the pass quantize-weights changes arguments of functions: run it before build-entries"


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    name: ClassVar[str] = "quantize-weights"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("thread-cache",)
    level: ClassVar[str] = "graph"

    bits: int = 8
    group: int = 32
    zero_point: bool = False
    minimum: bool = False
    scales: str = "bf16"
    floating: bool = False
    keep: bool = False

    @classmethod
    def of(cls, weights: Weights) -> QuantizeWeights:
        if weights == KEEP:
            return cls(keep=True)
        return cls(weights.bits, weights.group, weights.zero_point, weights.minimum, weights.scales, weights.floating)

    @property
    def weights(self) -> Weights:
        if self.keep:
            return KEEP
        return WeightFormat(self.bits, self.group, self.zero_point, self.minimum, self.scales, self.floating)

    def run(self, module: ir.Module) -> None:
        weights = self.weights
        if any(op.name == "func.call" for op in walk(module)):
            raise QuantizeWeightsErrors.AFTER_ENTRIES()
        stored = get_stored_formats(module)
        for function in functions(module):
            _quantize_function(function, weights, stored)


def _quantize_function(function: Any, weights: Weights, stored: Mapping[str, Encoding]) -> None:
    block = function.entry_block
    arguments = arguments_of(function)
    attributes = list(function.attributes["arg_attrs"]) if arguments else []
    new_arguments: list[Argument] = []
    removed_indices: list[int] = []
    for index, (argument, value) in enumerate(list(zip(arguments, block.arguments, strict=True))):
        axis = _summed_axis(value) if argument.role == "weight" else None
        if axis is None or value.type.rank not in RANKS:
            continue
        if weights == KEEP:
            kept = stored.get(argument.name)
            if kept is None or kept.transposed != (axis != value.type.rank - 1):
                continue
            weight_format = kept.format
        elif _feeds_choice(value):
            count("weights of routers")
            continue
        else:
            weight_format = weights
        if any(size % weight_format.group for size in _summed_sizes(argument, axis)):
            count("weights that groups do not fit")
            continue
        count("weights quantised")
        parts = list(_parts(argument, axis, weight_format))
        added = [block.add_argument(part.type, value.owner.owner.location) for part in parts]
        for use in list(value.uses):
            reader, position = use.owner.operation, use.operand_number
            with ir.InsertionPoint(reader), reader.location:
                reader.operands[position] = _dequantized(added, value.type, axis, weight_format)
        new_arguments += parts
        removed_indices.append(index)
    for index in reversed(removed_indices):
        block.erase_argument(index)
        del arguments[index], attributes[index]
    if removed_indices:
        types = [argument.type for argument in (*arguments, *new_arguments)]
        type_ = ir.FunctionType.get(types, list(function.type.results))
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
        described = [*attributes, *(argument.attributes() for argument in new_arguments)]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(described)


def _parts(weight: Argument, axis: int, weight_format: WeightFormat) -> Iterator[Argument]:
    """The stored arguments that a weight becomes."""
    *outer, columns = _summed_last(weight.type.shape, axis)
    for part in weight_format.parts:
        encoding = Encoding(weight_format, part, transposed=axis != weight.type.rank - 1)
        type_ = tensor_type(weight_format.stored(part, *outer, columns), ELEMENTS[encoding.dtype]())
        cut = str(encoding.cut_of_part(Cut.parse(weight.cut), weight.type.rank)) if weight.cut else ""
        yield Argument(weight.role, f"{weight.name}.{part}", type_, weight.made_of, str(encoding), cut)


def _summed_sizes(weight: Argument, axis: int) -> list[int]:
    """The sizes of the blocks of its summed axis that a rank has side by side."""
    cut = Cut.parse(weight.cut) if weight.cut else None
    if cut is None or cut.axis != axis:
        return [weight.type.shape[axis]]
    return [segment.local for segment in cut.segments]


def _summed_last(shape: Sequence[int], axis: int) -> list[int]:
    """The shape of a weight with the summed axis, one of the last two, as the last one."""
    return [*shape[:-2], shape[-1], shape[-2]] if axis == len(shape) - 2 else list(shape)


# ----------------------------------------------------------------------------------------------------------- readers


def _summed_axis(weight: ir.Value) -> int | None:
    """The axis of a weight that all of its readers, products, sum over; None where anything else reads it."""
    axes = {_axis_of(use) for use in weight.uses}
    return axes.pop() if len(axes) == 1 else None


def _feeds_choice(weight: ir.Value) -> bool:
    """Whether what its products give is chosen from, with no other product between."""
    pending, seen = [weight], set[ir.Operation]()
    while pending:
        for use in pending.pop().uses:
            op = use.owner.operation
            if op.name == "kv.topk":
                return True
            ends = (is_contraction(op) or op.name.startswith("kv.")) and use.operand_number != 1
            if op not in seen and not ends:
                seen.add(op)
                pending += op.results
    return False


def _axis_of(use: Any) -> int | None:
    op = use.owner.operation
    permutation = permutation_of(op)
    if permutation is None:
        return _product_axis(op, use.operand_number)
    axes = {_product_axis(inner.owner.operation, inner.operand_number) for inner in op.results[0].uses}
    axis = axes.pop() if len(axes) == 1 else None
    return None if axis is None or use.operand_number else permutation[axis]


def _product_axis(op: ir.Operation, operand: int) -> int | None:
    """The axis of its second operand that a product sums over; None for another operand, operation, or form of sum."""
    if operand == 1 and op.name == "kv.expert_product":
        return 2
    if operand != 1 or not is_contraction(op):
        return None
    summed = list(linalg.infer_contraction_dimensions(op).k)
    read = dims_of(linalg.get_indexing_maps(op)[1])
    axes = [axis for axis, dim in enumerate(read) if dim in summed]
    return axes[0] if len(axes) == 1 else None


# ---------------------------------------------------------------------------------------------------- dequantisation


def _dequantized(parts: list[ir.Value], type_: Any, axis: int, weight_format: WeightFormat) -> ir.Value:
    """The weight that values, scales and perhaps zeros or minimums stand for, built at the current insertion point."""
    values, *per_group = parts
    *outer, columns = dense_shape = _summed_last(type_.shape, axis)
    packed = [*outer, columns // weight_format.group, weight_format.group * weight_format.bits // 8]
    shape = packed if weight_format.bits == 8 else [*packed, 2]
    kept = [[d] for d in range(len(outer))]
    codes = tensor.ExpandShapeOp(
        tensor_type(packed, values.type.element_type), values, [*kept, [len(outer), len(outer) + 1]], [], packed
    ).result
    number = functools.partial(_number, weight_format=weight_format, dtype=type_.element_type, last=len(shape) - 1)
    numbers = elementwise([codes, *per_group], tensor_type(shape, type_.element_type), number)
    groups = [*kept, list(range(len(outer), len(shape)))]
    dense = tensor.CollapseShapeOp(tensor_type(dense_shape, type_.element_type), numbers, groups).result
    return dense if axis == len(dense_shape) - 1 else _transposed(dense)


def _number(
    value: ir.Value, scale: ir.Value, base: ir.Value | None = None, *, weight_format: WeightFormat, dtype: ir.Type,
    last: int
) -> ir.Value:
    """One element: (code - zero) * scale, or code * scale + minimum, in f32, rounded to `dtype`."""
    f32 = ir.F32Type.get()
    code = value if weight_format.bits == 8 else _nibble(value, last)
    number = _widened(code) if weight_format.floating else arith.SIToFPOp(f32, code).result
    if weight_format.zero_point:
        number = arith.SubFOp(number, arith.SIToFPOp(f32, base).result).result
    elif weight_format.offset and not weight_format.minimum:
        number = arith.SubFOp(number, arith.ConstantOp(f32, float(weight_format.offset)).result).result
    number = arith.MulFOp(number, _widened(scale)).result
    if weight_format.minimum:
        number = arith.AddFOp(number, _widened(base)).result
    return number if dtype == f32 else arith.TruncFOp(dtype, number).result


def _widened(value: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    return value if value.type == f32 else arith.ExtFOp(f32, value).result


def _nibble(byte: ir.Value, last: int) -> ir.Value:
    """The code in the low or the high half of a byte: the iteration dimension `last` says which."""
    i8 = byte.type
    half = arith.IndexCastOp(i8, linalg.IndexOp(last).result).result
    bits = arith.MulIOp(half, arith.ConstantOp(i8, NIBBLE_BITS).result).result
    shifted = arith.ShRSIOp(byte, bits).result
    code: ir.Value = arith.AndIOp(shifted, arith.ConstantOp(i8, (1 << NIBBLE_BITS) - 1).result).result
    return code


def _transposed(value: ir.Value) -> ir.Value:
    *outer, rows, columns = value.type.shape
    empty = tensor.EmptyOp([*outer, columns, rows], value.type.element_type).result
    permutation = [*range(len(outer)), len(outer) + 1, len(outer)]
    transposition = linalg.TransposeOp(
        result=[empty.type], input=value, init=empty, permutation=ir.DenseI64ArrayAttr.get(permutation)
    )
    linalg.fill_builtin_region(transposition.operation)
    result: ir.Value = transposition.operation.results[0]
    return result
