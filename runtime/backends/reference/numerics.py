"""Which torch dtype stands for which dtype of the schedule, in the native and in the double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sscc.ir.choices import PRECISIONS
from sscc.ir.errors import ErrorKind, UsageError


class ReferenceNumericsErrors(ErrorKind):
    UNKNOWN_PRECISION = UsageError, "precision is {precision!r}, it must be one of: {known}"

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
    """`precision` "f32": every dtype is itself. "f64": every floating dtype is stored and computed as float64.

    Raises UsageError for another precision.
    """

    precision: str = "f32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ReferenceNumericsErrors.UNKNOWN_PRECISION(precision=self.precision, known=PRECISIONS)

    @property
    def accumulate(self) -> torch.dtype:
        """The dtype of sums, softmax and products."""
        return torch.float64 if self.precision == "f64" else torch.float32

    @property
    def address_scale(self) -> int:
        """Factor on arena addresses that keeps disjoint tensors disjoint after their elements grew."""
        return _LARGEST_GROWTH if self.precision == "f64" else 1

    def dtype(self, name: str) -> torch.dtype:
        """The torch dtype that holds values of schedule dtype `name`."""
        if name in FLOATS:
            return torch.float64 if self.precision == "f64" else FLOATS[name]
        return torch.bool if name == BOOLEAN else INTEGERS[name]
