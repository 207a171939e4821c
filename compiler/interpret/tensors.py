"""The tensor dialect: slices, reshapes, elements. A slice or element outside of its tensor is an error, never a
wrap-around."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


class TensorNotEvaluatedErrors(NotEvaluatedKind):
    DYNAMIC = "with a size or a stride that is not static cannot be evaluated"


class TensorUndefinedErrors(UndefinedKind):
    NO_DIMENSION = "reads the size of dimension {axis} of a tensor of rank {rank}"
    SLICE_OUT_OF_BOUNDS = "slices {size} rows from {start} on, stride {stride}, of dimension {axis} of [{shape}]"
    ELEMENT_OUT_OF_BOUNDS = "reads element {index} of dimension {axis}, whose size is {size}"

Box = tuple[slice, ...]


def uninitialised(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the contents of a tensor that has not been written: NaN, the lowest integer, or False."""
    if dtype.is_floating_point:
        filler = torch.tensor(float("nan"), dtype=dtype)
    elif dtype is torch.bool:
        filler = torch.tensor(False)
    else:
        filler = torch.tensor(torch.iinfo(dtype).min, dtype=dtype)
    return filler.expand(list(shape))


def _empty(op: ir.Operation, b: Builder) -> Compute:
    value = uninitialised(shape_of(op.results[0].type), b.types.dtype(op.results[0].type))
    return lambda *sizes: value


def _splat(op: ir.Operation, b: Builder) -> Compute:
    shape = shape_of(op.results[0].type)
    return lambda value, *sizes: value.expand(shape)


def _dim(op: ir.Operation, b: Builder) -> Compute:
    def dim(value: Tensor, axis: Tensor) -> Tensor:
        if not 0 <= int(axis) < value.dim():
            undefined(TensorUndefinedErrors.NO_DIMENSION, axis=int(axis), rank=value.dim())
        return torch.tensor(value.shape[int(axis)])

    return dim


# ------------------------------------------------------------------------------------------------------- slices


def _box(op: ir.Operation, first: int, shape: Sequence[int]) -> Callable[[Sequence[Tensor]], Box]:
    """Return a function that returns the slices of an operation from its dynamic operands: offsets, sizes and strides.

    Args:
        first: operand segment with the dynamic offsets.
        shape: shape of the sliced tensor.
    """
    counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[first : first + 3]
    dynamic = ir.ShapedType.get_dynamic_size()
    offsets, sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
    )
    if counts[1] or counts[2]:
        refuse(op, TensorNotEvaluatedErrors.DYNAMIC)

    def box(operands: Sequence[Tensor]) -> Box:
        values = iter(operands)
        starts = [int(next(values)) if offset == dynamic else offset for offset in offsets]
        for axis, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
            last = start + max(size - 1, 0) * stride
            if min(start, last) < 0 or max(start, last) >= max(shape[axis], 1) or stride < 1:
                kind = TensorUndefinedErrors.SLICE_OUT_OF_BOUNDS
                undefined(kind, size=size, start=start, stride=stride, axis=axis, shape=list(shape))
        return tuple(
            slice(start, start + size * stride, stride)
            for start, size, stride in zip(starts, sizes, strides, strict=True)
        )

    return box


def _extract_slice(op: ir.Operation, b: Builder) -> Compute:
    box, shape = _box(op, 1, shape_of(op.operands[0].type)), shape_of(op.results[0].type)
    return lambda source, *offsets: source[box(offsets)].reshape(shape)  # unit dimensions may be dropped


def _insert_slice(op: ir.Operation, b: Builder) -> Compute:
    box = _box(op, 2, shape_of(op.operands[1].type))

    def insert(source: Tensor, dest: Tensor, *offsets: Tensor) -> Tensor:
        result = dest.clone()
        window = result[box(offsets)]
        window.copy_(source.reshape(window.shape))
        return result

    return insert


def _reshape(op: ir.Operation, b: Builder) -> Compute:
    shape = shape_of(op.results[0].type)
    return lambda source, *sizes: source.reshape(shape)


def _concat(op: ir.Operation, b: Builder) -> Compute:
    axis = op.attributes["dim"].value
    return lambda *parts: torch.cat(parts, axis)


# ----------------------------------------------------------------------------------------------------- elements


def _check_indices(shape: Sequence[int], indices: Sequence[Tensor]) -> None:
    for axis, (size, index) in enumerate(zip(shape, indices, strict=True)):
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
            wrong = int(index.min()) if int(index.min()) < 0 else int(index.max())
            undefined(TensorUndefinedErrors.ELEMENT_OUT_OF_BOUNDS, index=wrong, axis=axis, size=size)


def _extract(op: ir.Operation, b: Builder) -> Compute:
    def extract(source: Tensor, *indices: Tensor) -> Tensor:
        _check_indices(source.shape, indices)
        return source[indices]

    return extract


def _insert(op: ir.Operation, b: Builder) -> Compute:
    def insert(value: Tensor, dest: Tensor, *indices: Tensor) -> Tensor:
        _check_indices(dest.shape, indices)
        result = dest.clone()
        result[indices] = value
        return result

    return insert


def _from_elements(op: ir.Operation, b: Builder) -> Compute:
    shape = shape_of(op.results[0].type)
    return lambda *elements: torch.stack(elements).reshape(shape)


def _cast(op: ir.Operation, b: Builder) -> Compute:
    shape_of(op.results[0].type)  # raises for a dynamic shape
    return lambda value: value


HANDLERS: dict[str, Handler] = {
    "tensor.cast": single(_cast),
    "tensor.collapse_shape": single(_reshape),
    "tensor.concat": single(_concat),
    "tensor.dim": single(_dim),
    "tensor.empty": single(_empty),
    "tensor.expand_shape": single(_reshape),
    "tensor.extract": single(_extract),
    "tensor.extract_slice": single(_extract_slice),
    "tensor.from_elements": single(_from_elements),
    "tensor.insert": single(_insert),
    "tensor.insert_slice": single(_insert_slice),
    "tensor.splat": single(_splat),
}
