"""Torch dtypes for MLIR types, in native and in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch_mlir import ir

from sscc.ir.choices import PRECISIONS
from sscc.ir.errors import ErrorKind, UnsupportedError, UsageError


class EvaluatedTypeErrors(ErrorKind):
    UNKNOWN_PRECISION = UsageError, "--precision must be one of {known}, got {precision!r}"
    NO_VALUES = UnsupportedError, "values of the type {type} cannot be evaluated"
    DYNAMIC = UnsupportedError, "values of the type {type} cannot be evaluated, because its size is not static"

_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "index": torch.int64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "i1": torch.bool,
}


@dataclass(frozen=True)
class Types:
    """Conversion of MLIR types with a precision. "f32": every type is itself. "f64": every float is stored and computed
    as float64.

    Raises UsageError for another precision.
    """

    precision: str = "f32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise EvaluatedTypeErrors.UNKNOWN_PRECISION(precision=self.precision, known=PRECISIONS)

    @property
    def accumulate(self) -> torch.dtype:
        """Dtype of sums, softmax and products of floats."""
        return torch.float64 if self.precision == "f64" else torch.float32

    def dtype(self, type_: ir.Type) -> torch.dtype:
        """Return the dtype of a scalar or of a tensor's elements. Raises UnsupportedError for a type without values."""
        element = type_.element_type if isinstance(type_, ir.RankedTensorType) else type_
        dtype = _DTYPES.get(str(element))
        if dtype is None:
            raise EvaluatedTypeErrors.NO_VALUES(type=str(type_))
        return torch.float64 if dtype.is_floating_point and self.precision == "f64" else dtype

    def sums(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which values of `dtype` are summed: `accumulate`, f64 for f64, integers unchanged."""
        return torch.promote_types(dtype, self.accumulate) if dtype.is_floating_point else dtype


def shape_of(type_: ir.Type) -> tuple[int, ...]:
    """Return the static shape of a tensor type; () for a scalar. Raises UnsupportedError for a dynamic size."""
    if not isinstance(type_, ir.RankedTensorType):
        return ()
    if not type_.has_static_shape:
        raise EvaluatedTypeErrors.DYNAMIC(type=str(type_))
    return tuple(type_.shape)
