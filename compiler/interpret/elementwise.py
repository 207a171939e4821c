"""The arith and math dialects, on scalars and on tensors element by element: a scalar is a tensor of rank 0.

Inside a linalg operation the operands are tensors over its iteration space, which broadcast against each other. Every
operation rounds its result to its own type, as torch's operators do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import (
    Builder,
    Compute,
    Handler,
    NotEvaluatedKind,
    UndefinedKind,
    refuse,
    single,
    undefined,
)
from sscc.compiler.interpret.types import shape_of


class ElementwiseNotEvaluatedErrors(NotEvaluatedKind):
    LITERAL = "holds {value}, which cannot be evaluated"
    ON_I1 = "on i1 cannot be evaluated"
    ORDERS_I1 = "with an order of values of i1 cannot be evaluated"
    UNSIGNED_64 = "of 64 unsigned bits cannot be evaluated"


class ElementwiseUndefinedErrors(UndefinedKind):
    DIVIDES_BY_ZERO = "divides by zero"

_Binary = Callable[[Tensor, Tensor], Tensor]


# -------------------------------------------------------------------------------------------------- constants


def _constant(op: ir.Operation, b: Builder) -> Compute:
    attribute, type_ = op.attributes["value"], op.results[0].type
    dtype = b.types.dtype(type_)
    if isinstance(attribute, ir.DenseElementsAttr):
        value = _dense(op, attribute, dtype, shape_of(type_))
    else:
        value = torch.tensor(_literal(op, attribute), dtype=dtype)
    return lambda: value


def _dense(op: ir.Operation, attribute: ir.DenseElementsAttr, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if attribute.is_splat:
        return torch.tensor(_literal(op, attribute.get_splat_value()), dtype=dtype).expand(shape)
    if not isinstance(attribute, (ir.DenseFPElementsAttr, ir.DenseIntElementsAttr)) or dtype.itemsize == 2:
        refuse(op, ElementwiseNotEvaluatedErrors.LITERAL, value=str(attribute))  # MLIR's bindings read no 16-bit floats
    return torch.tensor([attribute[i] for i in range(len(attribute))], dtype=dtype).reshape(shape)


def _literal(op: ir.Operation, attribute: ir.Attribute) -> bool | int | float:
    if not isinstance(attribute, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr)):
        refuse(op, ElementwiseNotEvaluatedErrors.LITERAL, value=str(attribute))
    value: bool | int | float = attribute.value
    return value


# ---------------------------------------------------------------------------------------- plain operators


def _plain(function: Compute) -> Handler:
    """Return the handler of an operation that is one operator of torch on operands of its own type."""
    return single(lambda op, b: function)


def _integers(function: _Binary) -> Handler:
    """Return a handler like `_plain`, for integers of more than one bit (torch's booleans do not wrap)."""

    def prepare(op: ir.Operation, b: Builder) -> Compute:
        if b.types.dtype(op.results[0].type) is torch.bool:
            refuse(op, ElementwiseNotEvaluatedErrors.ON_I1)
        return function

    return single(prepare)


def _division(function: _Binary) -> Handler:
    def divide(x: Tensor, y: Tensor) -> Tensor:
        if bool((y == 0).any()):
            undefined(ElementwiseUndefinedErrors.DIVIDES_BY_ZERO)
        return function(x, y)

    return _integers(divide)


def _ceildiv(x: Tensor, y: Tensor) -> Tensor:
    return -torch.div(-x, y, rounding_mode="floor")


def _divided(mode: str) -> _Binary:
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Return x * y + z, rounded once; in f64 the product is rounded too."""
    return (x.double() * y.double() + z.double()).to(x.dtype)


# ----------------------------------------------------------------------------------------- comparisons

# The order is that of MLIR's predicates: eq, ne, lt, le, gt, ge of signed numbers, then the last four of unsigned ones.
_COMPARE: tuple[_Binary, ...] = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
_EQUALITIES = 2


def _cmpi(op: ir.Operation, b: Builder) -> Compute:
    predicate, dtype = int(op.attributes["predicate"].value), b.types.dtype(op.operands[0].type)
    if predicate < _EQUALITIES or (predicate < len(_COMPARE) and dtype is not torch.bool):
        return _COMPARE[predicate]
    if dtype is torch.bool:
        refuse(op, ElementwiseNotEvaluatedErrors.ORDERS_I1)
    compare = _COMPARE[predicate - len(_COMPARE) + _EQUALITIES]
    lowest = torch.iinfo(dtype).min  # flipping the sign bit puts unsigned numbers in signed order
    return lambda x, y: compare(x ^ lowest, y ^ lowest)


def _never(x: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(torch.eq(x, y))


def _always(x: Tensor, y: Tensor) -> Tensor:
    return torch.ones_like(torch.eq(x, y))


_FLOAT_COMPARE = (torch.eq, torch.gt, torch.ge, torch.lt, torch.le, torch.ne)
# The order is that of MLIR's predicates: false, the six ordered comparisons and ord, none of which holds for NaN; then
# the six unordered comparisons, uno and true, all of which do.
_FLOAT_PREDICATES: tuple[_Binary, ...] = (_never, *_FLOAT_COMPARE, _always, *_FLOAT_COMPARE, _never, _always)
_FIRST_UNORDERED = 8


def _cmpf(op: ir.Operation, b: Builder) -> Compute:
    predicate = int(op.attributes["predicate"].value)
    function, unordered = _FLOAT_PREDICATES[predicate], predicate >= _FIRST_UNORDERED

    def compare(x: Tensor, y: Tensor) -> Tensor:
        holds, nan = function(x, y), x.isnan() | y.isnan()
        return holds.logical_or(nan) if unordered else holds.logical_and(~nan)

    return compare


# ------------------------------------------------------------------------------------------ conversions


def _convert(op: ir.Operation, b: Builder) -> Compute:
    dtype = b.types.dtype(op.results[0].type)
    return lambda x: x.to(dtype)


def _from_signed(op: ir.Operation, b: Builder) -> Compute:
    """Return integers as signed numbers; an i1 is -1 or 0."""
    dtype, bit = b.types.dtype(op.results[0].type), b.types.dtype(op.operands[0].type) is torch.bool
    return (lambda x: -(x.to(dtype))) if bit else (lambda x: x.to(dtype))


def _from_unsigned(op: ir.Operation, b: Builder) -> Compute:
    source, dtype = b.types.dtype(op.operands[0].type), b.types.dtype(op.results[0].type)
    if source is torch.bool or source is dtype:
        return lambda x: x.to(dtype)
    if source is torch.int64:
        refuse(op, ElementwiseNotEvaluatedErrors.UNSIGNED_64)
    width = torch.iinfo(source).bits
    return lambda x: (x.to(torch.int64) & (2**width - 1)).to(dtype)


def _truncate(op: ir.Operation, b: Builder) -> Compute:
    dtype = b.types.dtype(op.results[0].type)
    if dtype is torch.bool:
        return lambda x: (x & 1).to(torch.bool)
    return lambda x: x.to(dtype)


def _select(op: ir.Operation, b: Builder) -> Compute:
    return torch.where


_AS_TORCH = "ceil floor trunc sin cos tan tanh erf exp exp2 expm1 log log2 log10 log1p sqrt rsqrt"
"""Operations of `math` on floats that have the same name in torch."""

HANDLERS: dict[str, Handler] = {
    "arith.constant": single(_constant),
    "arith.select": single(_select),
    "arith.cmpi": single(_cmpi),
    "arith.cmpf": single(_cmpf),
    # floats
    "arith.addf": _plain(torch.add),
    "arith.subf": _plain(torch.sub),
    "arith.mulf": _plain(torch.mul),
    "arith.divf": _plain(torch.div),
    "arith.remf": _plain(torch.fmod),
    "arith.negf": _plain(torch.neg),
    "arith.maximumf": _plain(torch.maximum),
    "arith.minimumf": _plain(torch.minimum),
    "arith.maxnumf": _plain(torch.fmax),
    "arith.minnumf": _plain(torch.fmin),
    # integers
    "arith.addi": _integers(torch.add),
    "arith.subi": _integers(torch.sub),
    "arith.muli": _integers(torch.mul),
    "arith.divsi": _division(_divided("trunc")),
    "arith.floordivsi": _division(_divided("floor")),
    "arith.ceildivsi": _division(_ceildiv),
    "arith.remsi": _division(torch.fmod),
    "arith.minsi": _integers(torch.minimum),
    "arith.maxsi": _integers(torch.maximum),
    "arith.shrsi": _integers(torch.bitwise_right_shift),
    "arith.andi": _plain(torch.bitwise_and),
    "arith.ori": _plain(torch.bitwise_or),
    "arith.xori": _plain(torch.bitwise_xor),
    # conversions
    "arith.extf": single(_convert),
    "arith.truncf": single(_convert),
    "arith.fptosi": single(_convert),  # towards zero
    "arith.sitofp": single(_from_signed),
    "arith.extsi": single(_from_signed),
    "arith.index_cast": single(_from_signed),
    "arith.uitofp": single(_from_unsigned),
    "arith.extui": single(_from_unsigned),
    "arith.index_castui": single(_from_unsigned),
    "arith.trunci": single(_truncate),
    # math
    **{f"math.{name}": _plain(getattr(torch, name)) for name in _AS_TORCH.split()},
    "math.absf": _plain(torch.abs),
    "math.absi": _plain(torch.abs),
    "math.round": _plain(lambda x: torch.where(x < 0, -(torch.floor(x.abs() + 0.5)), torch.floor(x.abs() + 0.5))),
    "math.roundeven": _plain(torch.round),
    "math.powf": _plain(torch.pow),
    "math.fpowi": _plain(torch.pow),
    "math.fma": _plain(_fma),
}
