"""Quantized weights: the steps that compute numbers from stored parts.

The formula is computed in f32, whatever dtype the interpreter accumulates in.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import executes
from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.backends.reference.operands import Members
from sscc.runtime.support.quantization import dequantize as numbers_of


class LookUpErrors(ErrorKind):
    INDEX = InputError, "a look-up needs row {row} of a table, but the table has {rows} rows"


@executes(operations.Dequantize)
def dequantize(parts: Members, out: Tensor, format: str) -> None:
    """Execute the step `Dequantize` (see it for shapes)."""
    out.copy_(_numbers([part["bytes"] for part in parts], format))


@executes(operations.LookUp)
def look_up(index: Tensor, tables: Members, out: Tensor, format: str) -> None:
    """Execute the step `LookUp` (see it for shapes)."""
    rows = tables[0]["bytes"].shape[0]
    wrong = (index < 0) | (index >= rows)
    if bool(wrong.any()):
        raise LookUpErrors.INDEX(row=int(index[wrong][0]), rows=rows)
    out.copy_(_numbers([table["bytes"][index] for table in tables], format))


def _numbers(parts: list[Tensor], name: str) -> Tensor:
    """Return the numbers of parts [.., E] in their order, f32 [.., I]."""
    weight_format = format_named(name)
    arrays = {
        part.name: np.ascontiguousarray(stored.numpy()) for part, stored in zip(weight_format.parts, parts, strict=True)
    }
    return torch.from_numpy(numbers_of(arrays, weight_format))
