"""What ranks do together, as native code: a copy into this rank's window, and after a meeting what is made of all.

Every rank has a window of memory that all of them see. Windows of two turns alternate, so that one meeting per step is
enough: who writes a window again has met the others since they read it. All firings of a stage meet at once, so a
window has a part for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from sscc.ir.schedule import DTYPE_BYTES, AllGather, AllReduce, Body, Collective, Instr, Kernel, pipelines
from sscc.ir.sharding import peers
from sscc.ir.sizes import align, dense_strides
from sscc.runtime.backends.cpu.nests import LinearAccess, Nest, Regions


@dataclass(frozen=True)
class Windows:
    """The windows of a program's ranks, which lie one after another.

    Attributes:
        grid: the ranks along each axis (`Program.grid`).
        nbytes: of a window.
    """

    grid: tuple[int, ...]
    nbytes: int

    @property
    def ranks(self) -> int:
        return prod(self.grid)

    def offsets(self, axes: Sequence[int]) -> list[int]:
        """How many bytes behind the window of a group's first rank those of its ranks begin, in order."""
        return [rank * self.nbytes for rank in peers(self.grid, axes, 0)]


def collectives_of(body: Body) -> list[Collective]:
    """The steps of a body that ranks do together, in order."""
    return [step for step in body.steps if isinstance(step, AllReduce | AllGather)]


def axes_of(body: Body) -> list[tuple[int, ...]]:
    """Along which axes the collectives of a body go, each once."""
    return list(dict.fromkeys(step.axes for step in collectives_of(body)))


def part_bytes(body: Body) -> int:
    """Bytes of a window that one firing of a body needs: those of its largest part."""
    named: dict[str, tuple[tuple[int, ...], str]] = {param.name: (param.shape, param.dtype) for param in body.params}
    named |= {local.name: (local.shape, local.dtype) for local in body.locals}
    named |= {window.name: (window.view.shape, named[window.view.tensor][1]) for window in body.windows}
    parts = [named[step.part] for step in collectives_of(body)]
    return max((align(prod(shape) * DTYPE_BYTES[dtype]) for shape, dtype in parts), default=0)


def windows_of(grid: tuple[int, ...], kernels: Iterable[Kernel], bodies: Iterable[Body]) -> Windows | None:
    """The windows that a program needs; None where its ranks exchange nothing."""
    needed = {body.name: part_bytes(body) for body in bodies}
    stages = [stage for kernel in kernels for pipeline in pipelines(kernel.body) for stage in pipeline.stages]
    nbytes = max((needed[stage.body] * stage.trips for stage in stages), default=0)
    return Windows(grid, nbytes) if nbytes else None


def exchange_nests(step: Collective, regions: Regions, windows: Windows, outbox: str, inbox: str) -> tuple[Nest, Nest]:
    """A step as two nests: what this rank puts into its window, and what it makes of those of its group.

    Args:
        outbox: the name of the region that is this rank's window.
        inbox: that of the region that begins with the window of the group's first rank.
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
    # The ranks of a group as dimensions in front, one for each axis of the grid, the last one the innermost.
    whole = regions.resolve(step.whole)
    counts = tuple(windows.grid[axis] for axis in step.axes)
    strides = dense_strides(windows.grid)
    apart = windows.nbytes // DTYPE_BYTES[dtype]
    piece = part.shape[step.axis] * whole.strides[step.axis]
    source = LinearAccess(inbox, 0, (*(strides[axis] * apart for axis in step.axes), *dense))
    target = LinearAccess(whole.region, whole.constant, (*(n * piece for n in dense_strides(counts)), *whole.strides))
    return put, _vector((*counts, *part.shape), [source], target)


def _vector(dims: tuple[int, ...], inputs: Sequence[LinearAccess], output: LinearAccess, dtype: str = "") -> Nest:
    """The inputs, of `dtype`, summed in order in f32 and rounded once."""
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
