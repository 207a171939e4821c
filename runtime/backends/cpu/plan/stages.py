"""Stages of a pipeline as native code runs them, with resolved ports and without loads that only copy.

On the machine that a schedule describes, a load stage copies tiles to the chip, and later stages read the buffer. A CPU
has caches for that. Here the later stages read the source of the load directly, unless it may have been written in
between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sscc.ir.schedule import Body, Buffer, Kernel, Pipeline, Port, Stage, Vector, View
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.codegen.nests import Strides, is_dense


@dataclass(frozen=True)
class MemoryPort:
    """A window of a kernel's parameter. Offsets, strides and coefficients count elements of the dense parameter."""

    param: str
    view: View


@dataclass(frozen=True)
class BufferPort:
    """A window of a slot of a buffer, see `Port`."""

    buffer: str
    view: View
    per: int
    lag: int


ResolvedPort = MemoryPort | BufferPort


@dataclass(frozen=True)
class ResolvedStage:
    """A stage that native code runs."""

    stage: Stage
    body: Body
    ports: tuple[ResolvedPort, ...]


def resolve_stages(
    kernel: Kernel, pipeline: Pipeline, bodies: Mapping[str, Body], aliased: frozenset[str]
) -> list[ResolvedStage]:
    """Return the stages of a pipeline in order, without the loads whose readers can read the source directly.

    Args:
        aliased: parameters of the kernel that overlap, in some launch, with a parameter that the kernel writes.
    """
    return _Resolver(kernel, pipeline, bodies, aliased).run()


class _Resolver:
    def __init__(
        self, kernel: Kernel, pipeline: Pipeline, bodies: Mapping[str, Body], aliased: frozenset[str]
    ) -> None:
        self.written = {p.name for p in kernel.params if p.access != "read"}
        self.stages = pipeline.stages
        self.bodies = bodies
        self.aliased = aliased
        self.buffers = {b.name: b for b in pipeline.buffers}
        self.changing = {pipeline.index, *(scalar.name for scalar in pipeline.scalars)}
        """Scalars whose values differ between iterations."""

    def run(self) -> list[ResolvedStage]:
        copies = {}
        for number, stage in enumerate(self.stages):
            target = self._copied(number, stage)
            if target is not None:
                copies[target] = number
        left_out = {copies[b] for b in copies}
        return [
            ResolvedStage(stage, self.bodies[stage.body], tuple(self._port(stage, p, copies) for p in stage.ports))
            for number, stage in enumerate(self.stages)
            if number not in left_out
        ]

    def _port(self, stage: Stage, port: Port, copies: Mapping[str, int]) -> ResolvedPort:
        if port.per == 0:
            return MemoryPort(port.view.tensor, port.view)
        name = port.view.tensor
        if name in copies:
            source = self.stages[copies[name]].ports[0].view
            view = compose(port.view, self.buffers[name].shape, source, firings(stage))
            assert view is not None  # a load is left out only where its readers' views can be composed
            return MemoryPort(source.tensor, view)
        return BufferPort(name, port.view, port.per, port.lag)

    # -- loads

    def _copied(self, number: int, stage: Stage) -> str | None:
        """Return the buffer that a stage fills, if the stage is a load that can be left out; None otherwise."""
        body = self.bodies[stage.body]
        if not _is_copy(body) or stage.ports[0].per != 0 or stage.ports[1].per == 0 or stage.when == "last":
            return None
        source, target = stage.ports
        buffer = self.buffers[target.view.tensor]
        whole = target.view.shape == buffer.shape and is_dense(buffer.shape, target.view.strides)
        if not whole or target.lag or target.view.offset or target.view.terms or target.per != 1:
            return None
        readers = [
            (n, place)
            for n, reader in enumerate(self.stages)
            for place, port in enumerate(reader.ports)
            if n != number and port.per and port.view.tensor == buffer.name
        ]
        fits = all(self._reads_in_place(self.stages[n], place, stage, buffer) for n, place in readers)
        last = max((n for n, _ in readers), default=number)
        return buffer.name if fits and not self._overwritten(number, last, stage, source.view.tensor) else None

    def _reads_in_place(self, reader: Stage, place: int, load: Stage, buffer: Buffer) -> bool:
        """Return True if a port can read the source of a load instead of the buffer that the load fills."""
        body, port = self.bodies[reader.body], reader.ports[place]
        param = body.params[place]
        if param.access != "read" or port.lag:
            return False
        names = {name for name, _ in load.ports[0].view.terms}
        once = load.when == "first" and not names & self.changing
        whole_iteration = once or (load.when == reader.when and port.per == reader.trips)
        single_firing = load.trips == 1 and not names & firings(load).keys()
        same_firings = load.grid == reader.grid and port.per == 1 and load.when == reader.when
        view = compose(port.view, buffer.shape, load.ports[0].view, firings(reader))
        if view is None or not (same_firings or (single_firing and whole_iteration)):
            return False
        windowed = any(window.view.tensor == param.name for window in body.windows)
        return not windowed or is_dense(view.shape, view.strides)

    def _overwritten(self, load: int, last: int, stage: Stage, param: str) -> bool:
        """Return True if the source may be written between the load and its last reader."""
        if param in self.aliased:
            return True
        if param not in self.written:
            return False
        if not self._listed_in_order():  # the stages run in another order, so the slice below would be wrong
            return True
        span = self.stages if stage.when == "first" else self.stages[load : last + 1]
        return any(
            p.per == 0 and p.view.tensor == param and self.bodies[s.body].params[i].access != "read"
            for s in span
            for i, p in enumerate(s.ports)
        )

    def _listed_in_order(self) -> bool:
        """Return True if no stage reads data that a later stage of the list writes in the same iteration."""
        return not any(
            feeds(writer, reader, self.bodies)
            for n, reader in enumerate(self.stages)
            for writer in self.stages[n + 1 :]
        )


def feeds(writer: Stage, reader: Stage, bodies: Mapping[str, Body]) -> bool:
    """Return True if `reader` reads data that `writer` writes in the same iteration."""
    filled = [
        port
        for port, param in zip(writer.ports, bodies[writer.body].params, strict=True)
        if port.per and param.access != "read"
    ]
    read = [
        port
        for port, param in zip(reader.ports, bodies[reader.body].params, strict=True)
        if port.per and param.access == "read"
    ]
    pairs = [(r, w) for r in read for w in filled if r.view.tensor == w.view.tensor]
    return any(writer.when != reader.when or r.lag >= w.lag for r, w in pairs)


def _is_copy(body: Body) -> bool:
    """Return True if a body only copies its first parameter to its second one."""
    if len(body.params) != 2 or len(body.steps) != 1 or body.locals or body.windows:
        return False
    (step,) = body.steps
    source, target = body.params
    return (
        isinstance(step, Vector)
        and step.result == "in0"
        and not step.body
        and len(step.inputs) == 1
        and (step.inputs[0].param, step.output.param) == (source.name, target.name)
        and step.inputs[0].map == step.output.map == _identity(len(step.dims))
        and source.shape == target.shape == step.dims
        and source.dtype == target.dtype
    )


def _identity(rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i == j) for j in range(rank)) + (0,) for i in range(rank))


def compose(view: View, shape: tuple[int, ...], base: View, counts: Mapping[str, int] | None = None) -> View | None:
    """Return a view of a view: `view`, which refers to a dense region of `shape`, applied to `base`.

    Args:
        counts: number of values of a scalar, which are 0 .. count - 1. A scalar that is missing may have any value
            for which the view stays in the region.

    Returns None if the result is not a single affine view, or cannot be shown to be one.
    """
    if is_dense(shape, base.strides):
        return View(base.tensor, view.shape, view.strides, base.offset + view.offset, (*base.terms, *view.terms))
    moves = _Moves(shape, base.strides)
    offset = moves.start(view.offset)
    strides = tuple(moves.along(stride, extent) for stride, extent in zip(view.strides, view.shape, strict=True))
    terms = tuple((name, moves.along(c, (counts or {}).get(name))) for name, c in view.terms)
    if moves.lost:
        return None
    return View(base.tensor, view.shape, strides, base.offset + offset, (*base.terms, *terms))


class _Moves:
    """Translation of offsets and strides of a dense region to a region with other strides.

    Attributes:
        lost: True if a step may leave the dimension along which it moves, so that no stride describes it.
    """

    def __init__(self, shape: tuple[int, ...], strides: Strides) -> None:
        self.lost = False
        self._dims = [d for d in zip(shape, dense_strides(shape), strides, strict=True) if d[0] > 1]
        self._room = [size - 1 for size, _, _ in self._dims]

    def start(self, offset: int) -> int:
        """Return the translated offset."""
        moved = 0
        for d, (_, step, stride) in enumerate(self._dims):
            self._take(d, offset // step)
            moved += offset // step * stride
            offset %= step
        self.lost |= offset != 0
        return moved

    def along(self, stride: int, extent: int | None) -> int:
        """Return the translated stride. If `extent` is None, only the region limits the number of steps."""
        if stride == 0 or extent == 1:
            return 0
        for d, (_, step, other) in enumerate(self._dims):
            if step <= stride:
                times, rest = divmod(stride, step)
                if extent is not None:
                    self._take(d, times * (extent - 1))
                self.lost |= rest != 0 or (extent is None and d != 0)
                return times * other
        self.lost = True
        return 0

    def _take(self, dim: int, steps: int) -> None:
        self._room[dim] -= steps
        self.lost |= self._room[dim] < 0 or steps < 0


def firings(stage: Stage) -> dict[str, int]:
    """Return the number of values of each index of a stage's grid."""
    return {f"t{d}": extent for d, extent in enumerate(stage.grid)}
