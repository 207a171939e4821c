"""Collectives as native code: a copy into this rank's window and, after a meeting of all ranks, a read of all windows.

Every rank has a window of memory that all ranks can read. Two sets of windows alternate, so that one meeting per step
is enough: before a rank writes a window again, it has met the other ranks after they read it. All firings of a stage
share a meeting, so a window has a part for each firing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from sscc.ir.schedule import (
    DTYPE_BYTES,
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Body,
    Instr,
    Kernel,
    ReduceScatter,
    pipelines,
)
from sscc.ir.sharding import peers
from sscc.ir.sizes import align, dense_strides
from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest, Regions
from sscc.runtime.backends.cpu.codegen.refusal import NoNativeCode


class NativeExchangeErrors(NoNativeCode):
    PART_OF_LOCAL = "body {body!r}: it slices {tensor!r} by rank, but only a parameter can be sliced"


@dataclass(frozen=True)
class Windows:
    """Windows of a program's ranks, contiguous and in order of rank.

    Attributes:
        grid: number of ranks along each axis (`Program.grid`).
        nbytes: size of a window in bytes.
    """

    grid: tuple[int, ...]
    nbytes: int

    @property
    def ranks(self) -> int:
        return prod(self.grid)

    def offsets(self, axes: Sequence[int]) -> list[int]:
        """Return the offsets in bytes of the windows of a group's ranks from the window of its first rank, in order."""
        return [rank * self.nbytes for rank in peers(self.grid, axes, 0)]


Exchange = AllReduce | ReduceScatter | AllGather | AllToAll


def exchanges_of(body: Body) -> list[Exchange]:
    """Return the steps of a body in which ranks meet, in order."""
    return [step for step in body.steps if isinstance(step, Exchange)]


@dataclass(frozen=True)
class Box:
    """Pointer that a body with collectives takes after its other arguments.

    It points to a parameter, to the window of the first rank of this rank's group or, without axes, to this rank's own
    window. If each rank takes its own part, the pointer is advanced by `piece` times the rank's index in the group.

    Attributes:
        axes: axes of the grid that form the group.
        nbytes: number of bytes that may be accessed from the pointer on.
        piece: size of a rank's part in bytes; 0 if all ranks use the same pointer.
        parameter: name of the parameter; empty for a window.
    """

    axes: tuple[int, ...]
    nbytes: int
    piece: int = 0
    parameter: str = ""


def box_of(step: Exchange | AllSlice, body: Body, regions: Regions) -> Box:
    """Return the pointer from which a step reads. Raises InputError (`NoNativeCode`) for a slice of a local tensor."""
    if isinstance(step, AllReduce | AllGather):
        return Box(step.axes, part_bytes(body))
    if isinstance(step, AllToAll):
        whole, shape = regions.resolve(step.part), list(regions.resolve(step.part).shape)
        shape[step.split], strides = regions.resolve(step.joined).shape[step.split], dense_strides(whole.shape)
        axis, first, parameter = step.split, 0, ""
    elif isinstance(step, ReduceScatter):
        whole, shape = regions.resolve(step.part), list(regions.resolve(step.piece).shape)
        axis, strides, first, parameter = step.axis, dense_strides(whole.shape), 0, ""
    else:
        whole, shape = regions.resolve(step.whole), list(regions.resolve(step.part).shape)
        axis, strides, first, parameter = step.axis, whole.strides, whole.constant, whole.region
        if parameter not in {param.name for param in body.params}:
            raise NativeExchangeErrors.PART_OF_LOCAL(body=body.name, tensor=step.whole)
    last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    element = DTYPE_BYTES[regions.dtypes[whole.region]]
    return Box(step.axes, (last + 1) * element, shape[axis] * strides[axis] * element, parameter)


def boxes_of(body: Body, regions: Regions) -> list[Box]:
    """Return the pointers that a body takes for its collectives, in order."""
    own = [Box((), part_bytes(body))] if exchanges_of(body) else []
    steps = [step for step in body.steps if isinstance(step, Exchange | AllSlice)]
    return list(dict.fromkeys([*own, *(box_of(step, body, regions) for step in steps)]))


def part_bytes(body: Body) -> int:
    """Return the size in bytes of the part of a window that a firing of a body needs, which is its largest message."""
    named: dict[str, tuple[tuple[int, ...], str]] = {param.name: (param.shape, param.dtype) for param in body.params}
    named |= {local.name: (local.shape, local.dtype) for local in body.locals}
    named |= {window.name: (window.view.shape, named[window.view.tensor][1]) for window in body.windows}
    parts = [named[step.part] for step in exchanges_of(body)]
    return max((align(prod(shape) * DTYPE_BYTES[dtype]) for shape, dtype in parts), default=0)


def windows_of(grid: tuple[int, ...], kernels: Iterable[Kernel], bodies: Iterable[Body]) -> Windows | None:
    """Return the windows that a program needs; None if its ranks exchange nothing."""
    needed = {body.name: part_bytes(body) for body in bodies}
    stages = [stage for kernel in kernels for pipeline in pipelines(kernel.body) for stage in pipeline.stages]
    nbytes = max((needed[stage.body] * stage.trips for stage in stages), default=0)
    return Windows(grid, nbytes) if nbytes else None


def slice_nest(step: AllSlice, regions: Regions, own: str) -> Nest:
    """Return the copy of this rank's part.

    Args:
        own: name of the region that begins with the part.
    """
    whole, part = regions.resolve(step.whole), regions.resolve(step.part)
    source = LinearAccess(own, whole.constant, whole.strides)
    return _vector(part.shape, [source], LinearAccess(part.region, part.constant, part.strides))


def exchange_nests(step: Exchange, regions: Regions, windows: Windows, outbox: str, inbox: str) -> tuple[Nest, Nest]:
    """Return the two nests of a step: the write to this rank's window, and the read of the windows of its group.

    Args:
        outbox: name of the region of this rank's window.
        inbox: name of the region that begins with the window of the group's first rank, or with this rank's part of it.
    """
    part = regions.resolve(step.part)
    dtype = regions.dtypes[part.region]
    dense = dense_strides(part.shape)
    put = _vector(part.shape, [LinearAccess(part.region, part.constant, part.strides)],
                  LinearAccess(outbox, 0, dense))  # fmt: skip
    offsets = [offset // DTYPE_BYTES[dtype] for offset in windows.offsets(step.axes)]
    if isinstance(step, AllReduce):
        total = regions.resolve(step.total)
        inputs = [LinearAccess(inbox, offset, dense) for offset in offsets]
        return put, _vector(part.shape, inputs, LinearAccess(total.region, total.constant, total.strides), dtype)
    if isinstance(step, ReduceScatter):
        piece = regions.resolve(step.piece)
        inputs = [LinearAccess(inbox, offset, dense) for offset in offsets]
        return put, _vector(piece.shape, inputs, LinearAccess(piece.region, piece.constant, piece.strides), dtype)
    # The ranks of a group are leading dimensions, one for each of the step's axes, with the last axis innermost.
    whole = regions.resolve(step.whole if isinstance(step, AllGather) else step.joined)
    counts = tuple(windows.grid[axis] for axis in step.axes)
    shape = list(part.shape)
    if isinstance(step, AllToAll):
        shape[step.split] = whole.shape[step.split]
    strides = dense_strides(windows.grid)
    window_elements = windows.nbytes // DTYPE_BYTES[dtype]
    next_piece = shape[step.axis] * whole.strides[step.axis]
    source = LinearAccess(inbox, 0, (*(strides[axis] * window_elements for axis in step.axes), *dense))
    pieces = (n * next_piece for n in dense_strides(counts))
    target = LinearAccess(whole.region, whole.constant, (*pieces, *whole.strides))
    return put, _vector((*counts, *shape), [source], target)


def _vector(dims: tuple[int, ...], inputs: Sequence[LinearAccess], output: LinearAccess, dtype: str = "") -> Nest:
    """Return the nest that sums inputs of `dtype` in order in f32, and rounds once. A single input is copied."""
    body = []
    result = "in0"
    if len(inputs) > 1:
        names = [f"in{i}" for i in range(len(inputs))]
        if dtype != "f32":
            body += [Instr(f"wide{i}", "extf", (name,), "f32") for i, name in enumerate(names)]
            names = [f"wide{i}" for i in range(len(inputs))]
        result = names[0]
        for i, name in enumerate(names[1:], 1):
            body.append(Instr(f"sum{i}", "addf", (result, name), "f32"))
            result = f"sum{i}"
        if dtype != "f32":
            body.append(Instr("rounded", "truncf", (result,), dtype))
            result = "rounded"
    kept = [d for d, extent in enumerate(dims) if extent != 1] or [*range(len(dims))][:1]

    def squeezed(access: LinearAccess) -> LinearAccess:
        return LinearAccess(access.region, access.constant, tuple(access.coefficients[d] for d in kept) or (0,))

    extents = tuple(dims[d] for d in kept) or (1,)
    return Nest(
        dims=extents,
        original=tuple((d, 1, extent) for d, extent in enumerate(extents)),
        reduce=frozenset(),
        inputs=tuple(map(squeezed, inputs)),
        output=squeezed(output),
        body=tuple(body),
        result=result,
        loads={},
    )
