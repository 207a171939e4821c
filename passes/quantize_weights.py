"""quantize-weights: weights are stored as codes and scales, and dequantized where they are read.

What: a weight whose only readers are products, as their second operand (transposed or not), is replaced by the parts of
a weight format: `int8:32` has values and scales, `int4:32:zero-point` zeros too, a block format of GGUF one part, its
blocks. Each part is a stored argument. A `kv.dequantize` in front of every reader computes the numbers in the weight's
dtype, by the formula of the format.

With `keep` every weight gets the format in which the checkpoint stores it, as recorded in the module (`sscc.stored`);
unquantized weights are unchanged. Nothing is rounded: the checkpoint's own codes are stored. A table whose rows are
looked up (an embedding) is kept in its format too, and read by `kv.look_up`. If the columns of a weight's groups are
not adjacent (GPTQ's `desc_act`), the columns are stored group by group, with their order as a further argument: each
product reads its other operand in that order.

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
      %v = tensor.expand_shape %values .. : tensor<9x64xi8> into tensor<1x9x64xi8>
      %s = tensor.expand_shape %scales .. : tensor<9x4xi8> into tensor<1x9x4xi8>
      %d = "kv.dequantize"(%v, %s) {format = "int8:32", ..} : (tensor<1x9x64xi8>, tensor<1x9x4xi8>) -> ..
      %w = tensor.collapse_shape %d .. : tensor<1x9x64xf32> into tensor<9x64xf32>
      ..
      %t = linalg.transpose ins(%w : ..
      ..
      %y = linalg.matmul ins(%h, %t : ..

After, with `weights=int4`::

    func.func private @decode.layer.0(%h: .. "hidden"}, %values: tensor<9x32xi8> {sscc.encoding = "int4:32/values", ..
      ..
      %d = "kv.dequantize"(%v, %s) {format = "int4:32", ..} : (tensor<1x9x32xi8>, tensor<1x9x4xi8>) -> ..
      ..

When it does not apply: a weight is unchanged if it has other readers, is neither a matrix nor a matrix per expert, or
if blocks do not fit its summed axis (or each rank's part of it). Without `keep`, embeddings, whose rows are looked up,
are unchanged too, and so are routers, whose products a `topk` reads without another product between: they are small,
and a small error can select another expert. Readers in other functions do not count: a head that is tied to the
embedding gets a quantized copy. A module with entries is refused, because calls would no longer match.

Preserves: the order of all other arguments, which new ones follow; locations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from sscc.ir.builders import Argument, arguments_of, elementwise, tensor_type, with_axis_split, with_first_axes_joined
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.levels import get_stored_formats, walk
from sscc.ir.operations import Dequantize, LookUp
from sscc.ir.rewriting import functions
from sscc.ir.sharding import Cut
from sscc.ir.views import permutation_of
from sscc.ir.weight_formats.groups import GroupFormat
from sscc.ir.weight_formats.registry import DENSE, KEEP, ORDER, Encoding, Weights, order_of, parse_format
from sscc.ir.weight_formats.weight_format import RANKS, WeightFormat
from sscc.passes.base import Pass, count
from sscc.passes.tiling import dims_of, is_contraction


class QuantizeWeightsErrors(ErrorKind):
    DENSE = UsageError, "the pass quantize-weights cannot produce dense weights: leave it out"
    AFTER_ENTRIES = UsageError, "the pass quantize-weights changes arguments of functions: run it before build-entries"


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    name: ClassVar[str] = "quantize-weights"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("thread-cache",)
    level: ClassVar[str] = "graph"

    weights: str = str(GroupFormat(8))

    @classmethod
    def of(cls, weights: Weights) -> QuantizeWeights:
        return cls(str(weights))

    @property
    def chosen(self) -> Weights:
        """Formats of weights. Raises UsageError for an unknown one."""
        weights = parse_format(self.weights)
        if weights == DENSE:
            raise QuantizeWeightsErrors.DENSE()
        return weights

    def run(self, module: ir.Module) -> None:
        weights = self.chosen
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
        reading = _reading(value) if argument.role == "weight" and value.type.rank in RANKS else None
        chosen = None if reading is None else _format_of(argument, value, reading, weights, stored)
        if reading is None or chosen is None:
            continue
        if any(size % chosen.block for size in _summed_sizes(argument, reading.axis)):
            count("weights that groups do not fit")
            continue
        ordered = weights == KEEP and stored[argument.name].ordered
        if ordered and not _can_reorder(argument, reading):
            count("weights whose columns are needed in their own order")
            continue
        count("weights quantized")
        parts = list(_parts(argument, reading.axis, chosen, ordered))
        added = [block.add_argument(part.type, value.owner.owner.location) for part in parts]
        if ordered:
            parts.append(_order(argument, reading.axis))
            order = block.add_argument(parts[-1].type, value.owner.owner.location)
            for product in _products(value):
                _reorder(product, order)
        for use in list(value.uses):
            reading.replace(use, added, value.type, chosen)
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


def _format_of(
    argument: Argument, value: ir.Value, reading: _Reading, weights: Weights, stored: Mapping[str, Encoding]
) -> WeightFormat | None:
    """Return the format for a weight; None for one that stays as it is."""
    if isinstance(weights, WeightFormat):
        if isinstance(reading, _LookedUp):
            return None
        if _feeds_choice(value):
            count("weights of routers")
            return None
        return weights
    kept = stored.get(argument.name)
    if kept is None:
        return None
    turned = reading.axis != value.type.rank - 1
    # A format of floats without scales is the same along either axis.
    return kept.format if kept.transposed == turned or not kept.format.scales else None


def _parts(weight: Argument, axis: int, weight_format: WeightFormat, ordered: bool) -> Iterator[Argument]:
    """Return the stored arguments that replace a weight."""
    *outer, columns = _summed_last(weight.type.shape, axis)
    for part in weight_format.parts:
        encoding = Encoding(weight_format, part.name, axis != weight.type.rank - 1, ordered)
        shape = weight_format.stored(part.name, *outer, columns)
        type_ = tensor_type(shape, ir.IntegerType.get_signless(8))
        cut = str(encoding.cut_of_part(Cut.parse(weight.cut), weight.type.rank)) if weight.cut else ""
        yield Argument(weight.role, f"{weight.name}.{part.name}", type_, weight.made_of, str(encoding), cut)


def _order(weight: Argument, axis: int) -> Argument:
    """Return the stored argument with the order of a weight's columns."""
    type_ = tensor_type([weight.type.shape[axis]], ir.IntegerType.get_signless(64))
    return Argument(weight.role, f"{weight.name}.{ORDER}", type_, tuple(map(order_of, weight.made_of)))


def _can_reorder(weight: Argument, reading: _Reading) -> bool:
    """Return True for a matrix that products sum over whole: a rank's part of a row has some columns of each group."""
    cut = bool(weight.cut) and Cut.parse(weight.cut).axis == reading.axis
    return not cut and not isinstance(reading, _LookedUp) and weight.type.rank == min(RANKS)


def _summed_sizes(weight: Argument, axis: int) -> list[int]:
    """Return the sizes of the contiguous blocks of its summed axis that a rank has."""
    cut = Cut.parse(weight.cut) if weight.cut else None
    if cut is None or cut.axis != axis:
        return [weight.type.shape[axis]]
    return [segment.local for segment in cut.segments]


def _summed_last(shape: Sequence[int], axis: int) -> list[int]:
    """Return the shape of a weight with its summed axis, one of the last two, moved to the end."""
    return [*shape[:-2], shape[-1], shape[-2]] if axis == len(shape) - 2 else list(shape)


# ----------------------------------------------------------------------------------------------------------- readers


@dataclass(frozen=True)
class _Reading:
    """Products that read a weight, summing over its `axis`."""

    axis: int

    def replace(self, use: Any, parts: list[ir.Value], type_: Any, weight_format: WeightFormat) -> None:
        """Make a reader of the weight, of `type_`, read its parts instead."""
        reader, position = use.owner.operation, use.operand_number
        with ir.InsertionPoint(reader), reader.location:
            reader.operands[position] = _dequantized(parts, type_, self.axis, weight_format)


@dataclass(frozen=True)
class _LookedUp(_Reading):
    """Look-ups that read rows of a table [rows, numbers]."""

    def replace(self, use: Any, parts: list[ir.Value], type_: Any, weight_format: WeightFormat) -> None:
        generic = _outermost(use.owner.operation)
        with ir.InsertionPoint(generic), generic.location:
            rows = _looked_up(generic, parts, weight_format)
        generic.results[0].replace_all_uses_with(rows)
        generic.erase()


def _reading(weight: ir.Value) -> _Reading | None:
    """Return the one way in which all readers read a weight; None where they differ or it is another."""
    axes = {_axis_of(use) for use in weight.uses}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is not None:
        return _Reading(axis)
    uses = list(weight.uses)
    return _LookedUp(1) if uses and weight.type.rank == 2 and all(map(_is_look_up, uses)) else None


def _products(weight: ir.Value) -> list[ir.Operation]:
    """Return the products that read a weight, transposed or not."""
    readers = [use.owner.operation for use in weight.uses]
    turned = [use.owner.operation for op in readers if permutation_of(op) is not None for use in op.results[0].uses]
    return [op for op in readers if permutation_of(op) is None] + turned


def _reorder(product: ir.Operation, order: ir.Value) -> None:
    """Make a product read its first operand, along the axis that it sums over, in an order, i64 [K]."""
    rows = product.operands[0]
    first, *_ = linalg.get_indexing_maps(product)
    (summed,) = linalg.infer_contraction_dimensions(product).k
    axis = dims_of(first).index(summed)

    def element(number: ir.Value) -> ir.Value:
        column = arith.index_cast(ir.IndexType.get(), number)
        places = [column if dim == axis else linalg.IndexOp(dim).result for dim in range(rows.type.rank)]
        return tensor.ExtractOp(rows, places).result

    with ir.InsertionPoint(product), product.location:
        product.operands[0] = elementwise([order], rows.type, element, [[axis]])


def _outermost(op: ir.Operation) -> ir.Operation:
    """Return the operation of a function's block in which another one stands."""
    while op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _is_look_up(use: Any) -> bool:
    """Return True if a table is read row by row: out[.., k] = table[index[..], k], with the indices an i64 input."""
    extract = use.owner.operation
    generic = _outermost(extract)
    if extract.name != "tensor.extract" or generic.name != "linalg.generic" or len(generic.operands) != 2:
        return False
    body = [op.operation for op in generic.regions[0].blocks[0].operations]
    if [op.name for op in body] != ["arith.index_cast", "linalg.index", "tensor.extract", "linalg.yield"]:
        return False
    cast, index, _, last = body
    rank = generic.results[0].type.rank
    maps = [ir.AffineMapAttr(attribute).value for attribute in generic.attributes["indexing_maps"]]
    identity = ir.AffineMap.get_identity(rank)
    rows = ir.AffineMap.get(rank, 0, list(identity.results)[:-1])
    inside = generic.regions[0].blocks[0].arguments[0]
    return (
        maps == [rows, identity]
        and cast.operands[0] == inside
        and index.attributes["dim"].value == rank - 1
        and list(extract.operands)[1:] == [cast.results[0], index.results[0]]
        and last.operands[0] == extract.results[0]
    )


def _looked_up(generic: ir.Operation, parts: list[ir.Value], weight_format: WeightFormat) -> ir.Value:
    """Return the rows of a table that a generic operation looks up."""
    index, result = generic.operands[0], generic.results[0].type
    *outer, columns = result.shape
    rows = prod(outer)
    dims = [list(range(len(outer)))]
    if len(outer) != 1:
        index = tensor.CollapseShapeOp(tensor_type([rows], index.type.element_type), index, dims).result
    found = kv.LookUp(
        index, *kv.members(LookUp, *({"bytes": part} for part in parts)), _text(weight_format),
        tensor_type([rows, columns], result.element_type),
    ).out  # fmt: skip
    if len(outer) == 1:
        return found
    shown: ir.Value = tensor.ExpandShapeOp(result, found, [*dims, [len(outer)]], [], list(result.shape)).result
    return shown


def _feeds_choice(weight: ir.Value) -> bool:
    """Return True if a choice reads the products of a weight with no other product in between."""
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
    """Return the axis of its second operand that a product sums over; None for other operands, operations or forms of
    sum."""
    if operand == 1 and op.name == "kv.expert_product":
        return 2
    if operand != 1 or not is_contraction(op):
        return None
    summed = list(linalg.infer_contraction_dimensions(op).k)
    read = dims_of(linalg.get_indexing_maps(op)[1])
    axes = [axis for axis, dim in enumerate(read) if dim in summed]
    return axes[0] if len(axes) == 1 else None


# ---------------------------------------------------------------------------------------------------- dequantization


def _dequantized(parts: list[ir.Value], type_: Any, axis: int, weight_format: WeightFormat) -> ir.Value:
    """Return the weight of stored parts, built at the current insertion point."""
    matrices = [_as_matrices(part) for part in parts]
    shape = _summed_last(type_.shape, axis)
    numbers = kv.Dequantize(
        *kv.members(Dequantize, *({"bytes": part} for part in matrices)), _text(weight_format),
        tensor_type(shape if len(shape) == 3 else [1, *shape], type_.element_type),
    ).out  # fmt: skip
    if len(shape) == 2:
        numbers = with_first_axes_joined(numbers)
    return numbers if axis == len(shape) - 1 else _transposed(numbers)


def _as_matrices(part: ir.Value) -> ir.Value:
    """Return a part [N, bytes] as [1, N, bytes]."""
    return part if part.type.rank == 3 else with_axis_split(part, 0, 1)


def _text(weight_format: WeightFormat) -> ir.StringAttr:
    return ir.StringAttr.get(str(weight_format))


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
