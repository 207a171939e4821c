"""The kv dialect: dequantization of weights by the definition of their formats."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, UndefinedKind, undefined
from sscc.ir import operations
from sscc.ir.opspec import executes
from sscc.ir.weight_formats.registry import format_named
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.support.quantization import dequantize


class LookUpUndefinedErrors(UndefinedKind):
    NO_ROW = "reads the rows {rows}, but there are only {count}"


@executes(operations.Dequantize)
def _dequantize(op: ir.Operation, b: Builder) -> Compute:
    weight_format, dtype = _format(op), b.types.dtype(op.results[0].type)
    return lambda *parts: _numbers(parts, weight_format).to(dtype)


@executes(operations.LookUp)
def _look_up(op: ir.Operation, b: Builder) -> Compute:
    weight_format, dtype = _format(op), b.types.dtype(op.results[0].type)

    def compute(index: Tensor, *tables: Tensor) -> Tensor:
        wrong = (index < 0) | (index >= len(tables[0]))
        if bool(wrong.any()):
            undefined(LookUpUndefinedErrors.NO_ROW, rows=index[wrong].tolist(), count=len(tables[0]))
        return _numbers([table[index] for table in tables], weight_format).to(dtype)

    return compute


def _format(op: ir.Operation) -> WeightFormat:
    return format_named(str(op.attributes["format"].value))


def _numbers(parts: tuple[Tensor, ...] | list[Tensor], weight_format: WeightFormat) -> Tensor:
    """Return the numbers of stored parts [.., E], f32 [.., I]."""
    arrays = {
        part.name: np.ascontiguousarray(stored.numpy()) for part, stored in zip(weight_format.parts, parts, strict=True)
    }
    return torch.from_numpy(dequantize(arrays, weight_format))
