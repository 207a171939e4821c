"""Affine steps of a body as loop nests over linear memory.

A `Nest` is a Vector, Reduction or Product step after its access maps, windows and strides have been multiplied out:
each access is a region (a parameter or a local), a constant and one coefficient per dimension, in elements. Dimensions
of extent 1 are removed, and neighbours that always move together can be merged, so that equal computations on different
shapes of a schedule ([1, 512, 4, 64] here, [512, 256] there) have equal nests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.opspec import Op, spec_of_step
from sscc.ir.schedule import (
    Access,
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Body,
    Collective,
    Instr,
    Product,
    ReduceScatter,
    Reduction,
    Vector,
)
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.codegen.refusal import NoNativeCode

Strides = tuple[int, ...]


class NativeWindowErrors(ErrorKind):
    DYNAMIC = InternalError, "body {body!r}: window {window!r} has dynamic terms"


class NativeStrideErrors(NoNativeCode):
    WINDOW_NOT_DENSE = (
        "body {body!r}: window {window!r} shows {tensor!r}, whose strides in a launch are not dense and row-major"
    )


@dataclass(frozen=True)
class LinearAccess:
    """The position of a point of the iteration space in a region: ``constant + sum(coefficient * index)`` elements."""

    region: str
    constant: int
    coefficients: tuple[int, ...]


@dataclass(frozen=True)
class Gathered:
    """The region that a `load` of a vector program reads, with its shape and strides in elements."""

    region: str
    constant: int
    shape: tuple[int, ...]
    strides: Strides


@dataclass(frozen=True)
class IndirectAxis:
    """The axis of a product's second operand that is indexed by its third input.

    Attributes:
        stride: elements from one index to the next.
        size: number of indices.
    """

    stride: int
    size: int


@dataclass(frozen=True)
class Nest:
    """One affine step.

    Attributes:
        dims: extents of the iteration space.
        original: for each dimension of the original step, the (dimension, divisor, extent) that give its index here:
            ``index = (here // divisor) % extent``; extent 1 is index 0.
        reduce: dimensions that are combined.
        inputs, output: accesses. The inputs of a product are its operands, then the index of the indirect axis, if any.
        body, result: scalar program on ``in0``, ``in1``, ..; ``in0 * in1`` for a product.
        loads: regions that the program's loads read, by the names that they use.
        combine: "" (vector), addf, mulf, maximumf or minimumf.
        product: True for a product, which is accumulated by fused multiply-add.
        indirect: indirect axis of a product's second operand, if it has one.
    """

    dims: tuple[int, ...]
    original: tuple[tuple[int, int, int], ...]
    reduce: frozenset[int]
    inputs: tuple[LinearAccess, ...]
    output: LinearAccess
    body: tuple[Instr, ...]
    result: str
    loads: Mapping[str, Gathered]
    combine: str = ""
    init: float = 0.0
    product: bool = False
    indirect: IndirectAxis | None = None

    @property
    def accesses(self) -> tuple[LinearAccess, ...]:
        return (*self.inputs, self.output)


class Regions:
    """The memory of a body: strides of its parameters (as its stage passes them) and locals, with windows resolved.

    If a load stage is left out, the body sees memory with the strides of a launch. A window of a parameter that is not
    dense then cannot be resolved and is refused.

    Args:
        body: body of the regions.
        strides: strides of each parameter, in elements, by name.
    """

    def __init__(self, body: Body, strides: Mapping[str, Strides]) -> None:
        self.shapes = {p.name: p.shape for p in body.params} | {x.name: x.shape for x in body.locals}
        self.dtypes: dict[str, str] = {p.name: p.dtype for p in body.params}
        self.dtypes.update({x.name: x.dtype for x in body.locals})
        self.strides = {**strides, **{x.name: dense_strides(x.shape) for x in body.locals}}
        self._body = body.name
        self._windows = {w.name: w.view for w in body.windows}

    def names_in(self, step: Op | Collective) -> list[str]:
        """Return the parameters, locals and windows that a non-affine step names."""
        if isinstance(step, AllReduce):
            return [step.part, step.total]
        if isinstance(step, ReduceScatter):
            return [step.part, step.piece]
        if isinstance(step, AllGather | AllSlice):
            return [step.part, step.whole]
        if isinstance(step, AllToAll):
            return [step.part, step.joined]
        return list(dict.fromkeys(spec_of_step(step).regions(step).values()))

    def add(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Add a local."""
        self.shapes[name], self.strides[name], self.dtypes[name] = shape, dense_strides(shape), dtype

    def resolve(self, name: str) -> Gathered:
        """Resolve a parameter, local or window to a strided piece of its region."""
        view = self._windows.get(name)
        if view is None:
            return Gathered(name, 0, self.shapes[name], self.strides[name])
        if view.terms:
            raise NativeWindowErrors.DYNAMIC(body=self._body, window=name)
        if not is_dense(self.shapes[view.tensor], self.strides[view.tensor]):
            raise NativeStrideErrors.WINDOW_NOT_DENSE(body=self._body, window=name, tensor=view.tensor)
        return Gathered(view.tensor, view.offset, view.shape, view.strides)

    def dtype(self, name: str) -> str:
        return self.dtypes[self.resolve(name).region]


def is_dense(shape: tuple[int, ...], strides: Strides) -> bool:
    """Return True if these are row-major strides, ignoring dimensions of extent 1."""
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, dense_strides(shape), strict=True))


def nest_of(step: Vector | Reduction | Product, regions: Regions) -> Nest:
    """Multiply a step out and remove dimensions of extent 1."""
    dims = step.dims or (1,)  # () for a tensor without axes
    reduce = frozenset() if isinstance(step, Vector) else frozenset(step.reduce)
    combine, init, indirect = "", 0.0, None
    inputs: tuple[LinearAccess, ...]
    body: tuple[Instr, ...]
    if isinstance(step, Product):
        inputs = (_linear(step.a, regions, dims), _linear(step.b, regions, dims))
        body, result, combine = (Instr("v0", "mulf", ("in0", "in1"), "f32"),), "v0", "addf"
        if step.b.indirect is not None:
            piece, axis = regions.resolve(step.b.param), step.b.indirect.axis
            indirect = IndirectAxis(piece.strides[axis], piece.shape[axis])
            inputs = (*inputs, _linear(step.b.indirect.index, regions, dims))
    else:
        inputs, body, result = tuple(_linear(a, regions, dims) for a in step.inputs), step.body, step.result
        if isinstance(step, Reduction):
            combine, init = step.combine, step.init
    loads = {str(i.args[0]): regions.resolve(str(i.args[0])) for i in body if i.op == "load"}
    original = tuple((d, 1, e) for d, e in enumerate(dims))
    nest = Nest(
        dims, original, reduce, inputs, _linear(step.output, regions, dims), tuple(body), result, loads, combine, init,
        isinstance(step, Product), indirect,
    )  # fmt: skip
    return _squeeze(nest)


def _linear(access: Access, regions: Regions, dims: tuple[int, ...]) -> LinearAccess:
    piece = regions.resolve(access.param)
    constant, coefficients = piece.constant, [0] * len(dims)
    for row, stride in zip(access.map, piece.strides, strict=True):
        constant += row[-1] * stride
        for d, coefficient in enumerate(row[:-1]):
            coefficients[d] += coefficient * stride
    return LinearAccess(piece.region, constant, tuple(coefficients))


def _squeeze(nest: Nest) -> Nest:
    """Remove the dimensions of extent 1."""
    kept = [d for d, extent in enumerate(nest.dims) if extent != 1] or [0]
    return _pick(nest, kept)


def _pick(nest: Nest, kept: list[int]) -> Nest:
    place = {d: i for i, d in enumerate(kept)}

    def pick(access: LinearAccess) -> LinearAccess:
        return replace(access, coefficients=tuple(access.coefficients[d] for d in kept))

    original = tuple((place.get(d, 0), v, e) if d in place else (0, 1, 1) for d, v, e in nest.original)
    return replace(
        nest,
        dims=tuple(nest.dims[d] for d in kept),
        original=original,
        reduce=frozenset(place[d] for d in nest.reduce if d in place),
        inputs=tuple(pick(a) for a in nest.inputs),
        output=pick(nest.output),
    )


def is_tangled(nest: Nest) -> bool:
    """Return True if a step reads other elements of the region that it writes."""
    read = [a for a in nest.inputs if a.region == nest.output.region]
    whole = bool(nest.combine) and bool(read)
    gathered = any(g.region == nest.output.region for g in nest.loads.values())
    return whole or gathered or any(a != nest.output for a in read)


def untangle(nest: Nest, temporary: str) -> tuple[Nest, Nest]:
    """Split a step into two: the first writes a dense temporary, the second copies it to the output."""
    kept = [d for d in range(len(nest.dims)) if d not in nest.reduce]
    shape = tuple(nest.dims[d] for d in kept)
    steps = dict(zip(kept, dense_strides(shape), strict=True))
    there = LinearAccess(temporary, 0, tuple(steps.get(d, 0) for d in range(len(nest.dims))))
    target = replace(nest.output, coefficients=tuple(nest.output.coefficients[d] for d in kept))
    copy = Nest(
        dims=shape or (1,),
        original=(),
        reduce=frozenset(),
        inputs=(LinearAccess(temporary, 0, dense_strides(shape) or (0,)),),
        output=target if shape else replace(target, coefficients=(0,)),
        body=(),
        result="in0",
        loads={},
    )
    return replace(nest, output=there), copy


def merged(nest: Nest) -> Nest:
    """Merge neighbouring dimensions that every access visits as one."""
    return merged_around(nest, -1)[0]


def merged_around(nest: Nest, dim: int) -> tuple[Nest, int, int]:
    """Merge neighbouring dimensions that every access visits as one, unless that would hide the steps of `dim`.

    Returns the nest, the new number of `dim`, and how many of its indices form one index of `dim`.
    """
    factor, d = 1, 0
    while d + 1 < len(nest.dims):
        if d + 1 != dim and _together(nest, d):
            if d == dim:
                factor *= nest.dims[d + 1]
            elif d + 1 < dim:
                dim -= 1
            nest = _merge_at(nest, d)
        else:
            d += 1
    return nest, dim, factor


def _together(nest: Nest, d: int) -> bool:
    extent = nest.dims[d + 1]
    contiguous = all(a.coefficients[d] == a.coefficients[d + 1] * extent for a in nest.accesses)
    return contiguous and (d in nest.reduce) == (d + 1 in nest.reduce)


def _merge_at(nest: Nest, d: int) -> Nest:
    inner = nest.dims[d + 1]

    def drop(access: LinearAccess) -> LinearAccess:
        c = access.coefficients
        return replace(access, coefficients=c[:d] + c[d + 1 :])

    original = []
    for dim, divisor, extent in nest.original:
        if dim == d and extent != 1:
            original.append((d, divisor * inner, extent))
        else:
            original.append((dim if dim <= d else dim - 1, divisor, extent))
    return replace(
        nest,
        dims=(*nest.dims[:d], nest.dims[d] * inner, *nest.dims[d + 2 :]),
        original=tuple(original),
        reduce=frozenset(r if r <= d else r - 1 for r in nest.reduce),
        inputs=tuple(drop(a) for a in nest.inputs),
        output=drop(nest.output),
    )
