"""The torch dtype of each dtype of schedules, in native and in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sscc.ir.choices import PRECISIONS
from sscc.ir.errors import ErrorKind, UsageError


class ReferenceNumericsErrors(ErrorKind):
    UNKNOWN_PRECISION = UsageError, "precision must be one of {known}, got {precision!r}"

FLOATS = {
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
INTEGERS = {"i8": torch.int8, "i32": torch.int32, "i64": torch.int64, "index": torch.int64}
BOOLEAN = "i1"
_LARGEST_GROWTH = 4  # bf16 (2 bytes) becomes f64 (8 bytes)


@dataclass(frozen=True)
class Numerics:
    """With `precision` "f32", every dtype is itself; with "f64", every float dtype is stored and computed as float64.

    Raises UsageError for another precision.
    """

    precision: str = "f32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ReferenceNumericsErrors.UNKNOWN_PRECISION(precision=self.precision, known=PRECISIONS)

    @property
    def accumulate(self) -> torch.dtype:
        """Return the dtype of sums, softmax and products."""
        return torch.float64 if self.precision == "f64" else torch.float32

    @property
    def address_scale(self) -> int:
        """Return a factor on arena addresses that keeps disjoint tensors disjoint although their elements are wider."""
        return _LARGEST_GROWTH if self.precision == "f64" else 1

    def dtype(self, name: str) -> torch.dtype:
        """Return the torch dtype for values of the schedule's dtype `name`."""
        if name in FLOATS:
            return torch.float64 if self.precision == "f64" else FLOATS[name]
        return torch.bool if name == BOOLEAN else INTEGERS[name]
