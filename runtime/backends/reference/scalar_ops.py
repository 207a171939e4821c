"""The scalar operations of vector programs: MLIR's arith and math dialects, each as one torch function.

Semantics are MLIR's: integer division truncates unless its name says otherwise; on NaN, ordered float comparisons are
false and unordered ones true; maximumf returns NaN for NaN while maxnumf ignores it; i1 is -1 when signed. Cases that
MLIR leaves undefined are defined here: integer division by 0 is division by 1, and a float that is not an integer of
the type becomes the nearest one, with NaN as 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[..., Tensor]

_SIGN_BIT = {torch.int64: -(2**63), torch.int32: -(2**31), torch.int8: -(2**7)}


def _round_half_away(x: Tensor) -> Tensor:
    whole = torch.trunc(x)
    return whole + torch.sign(x) * ((x - whole).abs() >= 0.5).to(x.dtype)


def _divided(rounding: str) -> Function:
    """Return division that always has a result: the smallest number divided by -1 wraps, and a divisor of 0 counts as
    1."""

    def divide(a: Tensor, b: Tensor) -> Tensor:
        whole = torch.div(a, torch.where((b == 0) | (b == -1), 1, b), rounding_mode=rounding)
        return torch.where(b == -1, a.neg(), whole)

    return divide


def _ceil_divide(a: Tensor, b: Tensor) -> Tensor:
    return _divided("floor")(a.neg(), b).neg()


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((b == 0) | (b == -1), 0, torch.fmod(a, torch.where((b == 0) | (b == -1), 1, b)))


def _signed(x: Tensor) -> Tensor:
    return x.to(torch.int8).neg() if x.dtype is torch.bool else x


def _unsigned(x: Tensor) -> Tensor:
    """Map integers so that signed comparison of the results is unsigned comparison of the arguments."""
    return x if x.dtype is torch.bool else torch.bitwise_xor(x, _SIGN_BIT[x.dtype])


_AS_TORCH = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt tanh sin cos tan atan atan2 sinh cosh erf erfc floor ceil trunc "
    "copysign"
)
"""Operations on floats that have the same name in torch."""

_ORDERS: dict[str, Function] = {"lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}


def _compared(compare: Function, seen: Function) -> Function:
    return lambda a, b: compare(seen(a), seen(b))


FLOAT: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _AS_TORCH.split()},
    "addf": torch.add,
    "subf": torch.sub,
    "mulf": torch.mul,
    "divf": torch.div,
    "remf": torch.fmod,
    "negf": torch.neg,
    "maximumf": torch.maximum,
    "minimumf": torch.minimum,
    "maxnumf": torch.fmax,
    "minnumf": torch.fmin,
    "absf": torch.abs,
    "powf": torch.pow,
    "round": _round_half_away,
    "roundeven": torch.round,
    "fma": lambda a, b, c: a * b + c,
}
"""Operations whose arguments and result have the same float dtype."""

INTEGER: dict[str, Function] = {
    "addi": torch.add,
    "subi": torch.sub,
    "muli": torch.mul,
    "divsi": _divided("trunc"),
    "floordivsi": _divided("floor"),
    "ceildivsi": _ceil_divide,
    "remsi": _remainder,
    "maxsi": torch.maximum,
    "minsi": torch.minimum,
    "absi": torch.abs,
    "shli": torch.bitwise_left_shift,
    "shrsi": torch.bitwise_right_shift,
}
"""Operations whose arguments and result have the same integer dtype wider than i1."""

BITWISE: dict[str, Function] = {"andi": torch.bitwise_and, "ori": torch.bitwise_or, "xori": torch.bitwise_xor}
"""Integer operations that also accept i1."""

COMPARE_FLOAT: dict[str, Function] = {
    "cmpf_oeq": torch.eq,
    "cmpf_ogt": torch.gt,
    "cmpf_oge": torch.ge,
    "cmpf_olt": torch.lt,
    "cmpf_ole": torch.le,
    "cmpf_one": lambda a, b: (a < b) | (a > b),
    "cmpf_ord": lambda a, b: (a == a) & (b == b),
    "cmpf_ueq": lambda a, b: ~((a < b) | (a > b)),
    "cmpf_ugt": lambda a, b: ~(a <= b),
    "cmpf_uge": lambda a, b: ~(a < b),
    "cmpf_ult": lambda a, b: ~(a >= b),
    "cmpf_ule": lambda a, b: ~(a > b),
    "cmpf_une": torch.ne,
    "cmpf_uno": lambda a, b: (a != a) | (b != b),
    "cmpf_false": lambda a, b: torch.zeros_like(a == b),
    "cmpf_true": lambda a, b: torch.ones_like(a == b),
}
"""Comparisons of two arguments of the same float dtype; the result is i1."""

COMPARE_INTEGER: dict[str, Function] = {
    "cmpi_eq": torch.eq,
    "cmpi_ne": torch.ne,
    **{f"cmpi_s{name}": _compared(compare, _signed) for name, compare in _ORDERS.items()},
    **{f"cmpi_u{name}": _compared(compare, _unsigned) for name, compare in _ORDERS.items()},
}
"""Comparisons of two arguments of the same integer dtype, including i1; the result is i1."""


def _float_to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def _to_integer(x: Tensor, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """Round towards zero, limited to low .. high - 1, in the bits of a signed `dtype`."""
    half = -float(_SIGN_BIT[dtype])
    whole = x.to(torch.float64).trunc()
    inside = torch.where((whole >= low) & (whole < high), whole, 0.0)
    wrapped = torch.where(inside >= half, inside - 2 * half, inside).to(dtype)
    last = -1 if high > half else torch.iinfo(dtype).max
    return torch.where(whole >= high, last, torch.where(whole < low, int(low), wrapped)).to(dtype)


def _float_to_signed(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _to_integer(x, dtype, float(_SIGN_BIT[dtype]), -float(_SIGN_BIT[dtype]))


def _float_to_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _to_integer(x, dtype, 0.0, -2 * float(_SIGN_BIT[dtype]))


def _signed_to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _signed(x).to(dtype)


def _unsigned_to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype is torch.bool:
        return x.to(dtype)
    wide = x.to(torch.float64)
    return torch.where(x < 0, wide + 2.0 * -float(_SIGN_BIT[x.dtype]), wide).to(dtype)


def _signed_extend(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).neg() if x.dtype is torch.bool else x.to(dtype)


def _unsigned_extend(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype is torch.bool:
        return x.to(dtype)
    return torch.bitwise_and(x.to(dtype), 2 * -_SIGN_BIT[x.dtype] - 1) if x.dtype is not dtype else x


def _truncate(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.bitwise_and(x, 1).to(dtype) if dtype is torch.bool else x.to(dtype)


CONVERT: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "truncf": _float_to_float,
    "extf": _float_to_float,
    "sitofp": _signed_to_float,
    "uitofp": _unsigned_to_float,
    "fptosi": _float_to_signed,
    "fptoui": _float_to_unsigned,
    "extsi": _signed_extend,
    "extui": _unsigned_extend,
    "trunci": _truncate,
    "index_cast": _signed_extend,
    "index_castui": _unsigned_extend,
}
"""Functions of the argument and of the result's dtype."""
