"""Builders of functions and tensor operations. Arguments of a function are typed and found by role and name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_mlir import ir
from torch_mlir.dialects import arith, func, linalg, tensor

from sscc.ir.errors import ErrorKind, InputError, InternalError


class FunctionErrors(ErrorKind):
    """Function signatures that sscc cannot read."""

    ARGUMENT_ROLE = InputError, "argument {index} of @{function} has none of the attributes {roles}"
    RESULT_ROLE = InputError, "result {index} of @{function} has none of the attributes {roles}"
    UNIT_DIMENSIONS = InternalError, "[{longer}] is not [{shorter}] with unit dimensions added"


ROLES = ("weight", "constant", "input", "state", "output")
STORED = ("weight", "constant")
"""Roles of arguments whose bytes are part of the artifact."""
SOURCES = "sscc.sources"
"""Attribute of a stored argument: names of its source tensors; absent if the only source has the argument's own name.
"""
ENCODING = "sscc.encoding"
"""Attribute of a stored argument: the encoding that makes it from its sources (`Encoding`); absent for a copy."""
CUT = "sscc.cut"
"""Attribute of a stored argument: the sharding of each source over ranks (`sscc.ir.sharding.Cut`), if a rank stores
only a part."""


@dataclass(frozen=True)
class Argument:
    """A function argument: its `role`, its name within that role, and its type.

    Attributes:
        sources: names of the source tensors of a stored argument (`SOURCES`); () for the tensor of the same name.
        encoding: encoding of a stored argument (`ENCODING`); "" for a copy.
        cut: sharding of a stored argument (`CUT`); "" if every rank stores all of it.
    """

    role: str
    name: str
    type: ir.Type
    sources: tuple[str, ...] = ()
    encoding: str = ""
    cut: str = ""

    def attributes(self) -> ir.DictAttr:
        values: dict[str, ir.Attribute] = {f"sscc.{self.role}": ir.StringAttr.get(self.name)}
        if self.sources:
            values[SOURCES] = ir.ArrayAttr.get([ir.StringAttr.get(source) for source in self.sources])
        if self.encoding:
            values[ENCODING] = ir.StringAttr.get(self.encoding)
        if self.cut:
            values[CUT] = ir.StringAttr.get(self.cut)
        return ir.DictAttr.get(values)

    @property
    def made_of(self) -> tuple[str, ...]:
        """Names of the tensors from which a stored argument is made."""
        return self.sources or (self.name,)


def arguments_of(function: Any) -> list[Argument]:
    """Return the arguments of a function made by `make_function` or by the importer.

    Raises:
        InputError: an argument has no role, so the function is not from a dump of this compiler.
    """
    return _named(function, "arg_attrs", function.type.inputs)


def make_function(
    module: ir.Module,
    name: str,
    arguments: Sequence[Argument],
    results: Sequence[Argument],
    location: ir.Location,
    attributes: dict[str, ir.Attribute] | None = None,
) -> Any:
    """Append an empty private function with an entry block to `module` and return it. Results have names, like
    arguments."""
    with ir.InsertionPoint(module.body), location:
        type_ = ir.FunctionType.get([a.type for a in arguments], [r.type for r in results])
        function = func.FuncOp(name, type_, visibility="private")
        function.add_entry_block([location] * len(arguments))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([a.attributes() for a in arguments])
    function.attributes["res_attrs"] = ir.ArrayAttr.get([r.attributes() for r in results])
    for key, value in (attributes or {}).items():
        function.attributes[key] = value
    return function


def results_of(function: Any) -> list[Argument]:
    """Return the results of a function made by `make_function`. Raises InputError as `arguments_of` does."""
    return _named(function, "res_attrs", function.type.results)


def short_name(name: str) -> str:
    """Return the end of a tensor's name, without the prefix of its layer: `self_attn.q_proj.weight`."""
    return ".".join(part for part in name.split(".")[-3:] if not part[:1].isdigit())


def _named(function: Any, key: str, types: Sequence[ir.Type]) -> list[Argument]:
    present = function.operation.attributes
    described = list(present[key]) if key in present else [ir.DictAttr.get({})] * len(types)
    arguments = []
    for index, (attributes, type_) in enumerate(zip(described, types, strict=True)):
        role = next((role for role in ROLES if f"sscc.{role}" in attributes), None)
        if role is None:
            kind = FunctionErrors.ARGUMENT_ROLE if key == "arg_attrs" else FunctionErrors.RESULT_ROLE
            raise kind(index=index, function=function.name.value, roles=[f"sscc.{role}" for role in ROLES])
        sources = tuple(ir.StringAttr(name).value for name in attributes[SOURCES]) if SOURCES in attributes else ()
        encoding, cut = (ir.StringAttr(attributes[key]).value if key in attributes else "" for key in (ENCODING, CUT))
        arguments.append(Argument(role, attributes[f"sscc.{role}"].value, type_, sources, encoding, cut))
    return arguments


def i64_attr(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def tensor_type(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), element)


Offset: TypeAlias = "int | ir.Value"  # a static offset in elements, or an index value


def _mixed(offsets: Sequence[Offset]) -> tuple[list[ir.Value], list[int]]:
    dynamic = [offset for offset in offsets if not isinstance(offset, int)]
    static = [offset if isinstance(offset, int) else ir.ShapedType.get_dynamic_size() for offset in offsets]
    return dynamic, static


def extract_slice(source: ir.Value, offsets: Sequence[Offset], sizes: Sequence[int], drop: int = 0) -> ir.Value:
    """Return the slice of `source` at `offsets` of the given `sizes` with unit strides, without its first `drop` (unit)
    dimensions."""
    dynamic, static = _mixed(offsets)
    type_ = tensor_type(list(sizes)[drop:], source.type.element_type)
    ones = [1] * len(static)
    value: ir.Value = tensor.ExtractSliceOp(type_, source, dynamic, [], [], static, list(sizes), ones).result
    return value


def insert_slice(source: ir.Value, dest: ir.Value, offsets: Sequence[Offset]) -> ir.Value:
    """Return `dest` with `source` written at `offsets`, with unit strides. `source` may lack leading unit dimensions.
    """
    dynamic, static = _mixed(offsets)
    shape = list(source.type.shape)
    sizes = [1] * (len(static) - len(shape)) + shape
    value: ir.Value = tensor.InsertSliceOp(source, dest, dynamic, [], [], static, sizes, [1] * len(static)).result
    return value


def reshape(source: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Return `source` with unit dimensions added or removed, by one expand or collapse."""
    old, new = list(source.type.shape), list(shape)
    type_ = tensor_type(new, source.type.element_type)
    longer, shorter = (new, old) if len(new) > len(old) else (old, new)
    groups = _unit_groups(longer, shorter)
    if len(new) > len(old):
        expanded: ir.Value = tensor.ExpandShapeOp(type_, source, groups, [], new).result
        return expanded
    collapsed: ir.Value = tensor.CollapseShapeOp(type_, source, groups).result
    return collapsed


def with_axis_split(source: ir.Value, axis: int, parts: int) -> ir.Value:
    """Return `source` with an axis split in two, the first of which counts parts."""
    shape = list(source.type.shape)
    groups = [[i] if i < axis else [i, i + 1] if i == axis else [i + 1] for i in range(len(shape))]
    shape[axis : axis + 1] = [parts, shape[axis] // parts]
    type_ = tensor_type(shape, source.type.element_type)
    split: ir.Value = tensor.ExpandShapeOp(type_, source, groups, [], shape).result
    return split


def with_first_axes_joined(source: ir.Value) -> ir.Value:
    """Return `source` [m, n, ..] as [m * n, ..]."""
    first, second, *rest = source.type.shape
    groups = [[0, 1], *([axis] for axis in range(2, len(rest) + 2))]
    type_ = tensor_type([first * second, *rest], source.type.element_type)
    joined: ir.Value = tensor.CollapseShapeOp(type_, source, groups).result
    return joined


def _unit_groups(longer: list[int], shorter: list[int]) -> list[list[int]]:
    """Return, for each dimension of `shorter`, the dimensions of `longer` that it expands to: itself and added unit
    ones."""
    groups: list[list[int]] = [[]]
    matched = 0
    for axis, size in enumerate(longer):
        if matched < len(shorter) and size == shorter[matched]:
            groups += [[]] if matched else []
            matched += 1
        elif size != 1:
            break
        groups[-1].append(axis)
    if matched != len(shorter) or groups[-1][-1:] != [len(longer) - 1]:
        raise FunctionErrors.UNIT_DIMENSIONS(longer=longer, shorter=shorter)
    return groups


def index_constant(value: int) -> ir.Value:
    constant: ir.Value = arith.ConstantOp(ir.IndexType.get(), value).result
    return constant


def index_of(value: ir.Value) -> int | None:
    """Return the value of a constant of type index; None for any other value."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "arith.constant" or not isinstance(value.type, ir.IndexType):
        return None
    return int(op.attributes["value"].value)


def table_entry(numbers: Sequence[int], index: ir.Value) -> ir.Value:
    """Return the entry of a table of constants at an index value."""
    type_ = ir.RankedTensorType.get([len(numbers)], ir.IndexType.get())
    literal = ir.DenseElementsAttr.get([ir.IntegerAttr.get(ir.IndexType.get(), number) for number in numbers], type_)
    value: ir.Value = tensor.ExtractOp(arith.ConstantOp(type_, literal).result, [index]).result
    return value


def positions_tensor(shape: Sequence[int], start: ir.Value, limit: ir.Value) -> ir.Value:
    """Return an i64 tensor with min(start + i, limit) at position i of its last dimension. `start` and `limit` are
    index values."""
    i64 = ir.IntegerType.get_signless(64)
    type_ = tensor_type(shape, i64)

    def element() -> ir.Value:
        position = arith.AddIOp(start, linalg.IndexOp(len(list(shape)) - 1).result).result
        return arith.IndexCastOp(i64, arith.MinSIOp(position, limit).result).result

    return elementwise([], type_, element)


def not_negative(numbers: ir.Value) -> ir.Value:
    """Return an i1 tensor: True where an element of an i64 tensor is at least 0."""

    def element(number: ir.Value) -> ir.Value:
        zero = arith.ConstantOp(number.type, 0).result
        return arith.CmpIOp(arith.CmpIPredicate.sge, number, zero).result

    return elementwise([numbers], tensor_type(numbers.type.shape, ir.IntegerType.get_signless(1)), element)


def elementwise(
    inputs: Sequence[ir.Value],
    type_: Any,
    element: Callable[..., ir.Value],
    axes: Sequence[Sequence[int]] | None = None,
) -> ir.Value:
    """Return the tensor of `type_` that `element` computes from the corresponding elements of `inputs`.

    Args:
        axes: for each input, the result dimension of each of its dimensions; None for the leading ones.
    """
    empty = tensor.EmptyOp(list(type_.shape), type_.element_type).result
    dims = [ir.AffineDimExpr.get(dim) for dim in range(type_.rank)]
    along = axes or [range(value.type.rank) for value in inputs]
    maps = [ir.AffineMap.get(type_.rank, 0, [dims[axis] for axis in each]) for each in (*along, range(type_.rank))]
    generic = linalg.GenericOp(
        [type_],
        list(inputs),
        [empty],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * type_.rank),
    )
    types = [value.type.element_type for value in (*inputs, empty)]
    block = generic.regions[0].blocks.append(*types, arg_locs=[generic.operation.location] * len(types))
    with ir.InsertionPoint(block):
        linalg.YieldOp([element(*list(block.arguments)[:-1])])
    value: ir.Value = generic.results[0]
    return value
