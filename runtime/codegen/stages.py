"""The stages of a pipeline as native code runs them: what each port points at, loads that only copy left out.

On the machine that a schedule describes, a load stage brings tiles on chip, and the stages after it read the buffer. A
CPU has caches for that: here the stages read memory where the load would have, as long as nothing can have written it
in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sscc.runtime.codegen.nests import Strides, dense, is_dense
from sscc.runtime.schedule import Body, Buffer, Kernel, Pipeline, Port, Stage, Vector, View


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
    """The stages of a pipeline in order, without the loads that need no copy.

    Args:
        aliased: parameters of the kernel that a launch lets overlap with one that the kernel writes.
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

    def run(self) -> list[ResolvedStage]:
        copies = {}
        for number, stage in enumerate(self.stages):
            target = self._copied(number, stage)
            if target is not None:
                copies[target] = number
        left_out = {copies[b] for b in copies}
        return [
            ResolvedStage(stage, self.bodies[stage.body], tuple(self._port(port, copies) for port in stage.ports))
            for number, stage in enumerate(self.stages)
            if number not in left_out
        ]

    def _port(self, port: Port, copies: Mapping[str, int]) -> ResolvedPort:
        if port.per == 0:
            return MemoryPort(port.view.tensor, port.view)
        name = port.view.tensor
        if name in copies:
            source = self.stages[copies[name]].ports[0].view
            view = compose(port.view, self.buffers[name].shape, source)
            assert view is not None  # that is what made it a copy to leave out
            return MemoryPort(source.tensor, view)
        return BufferPort(name, port.view, port.per, port.lag)

    # -- loads

    def _copied(self, number: int, stage: Stage) -> str | None:
        """The buffer that a stage fills, if its readers may as well read what it copies."""
        body = self.bodies[stage.body]
        if not _is_copy(body) or stage.ports[0].per != 0 or stage.ports[1].per == 0 or stage.when == "last":
            return None
        source, target = stage.ports
        buffer = self.buffers[target.view.tensor]
        whole = target.view.shape == buffer.shape and is_dense(buffer.shape, target.view.strides)
        if not whole or target.lag or target.view.offset or target.view.terms or target.per != 1:
            return None
        users = [(n, p) for n, s in enumerate(self.stages) for p in s.ports if p.per and p.view.tensor == buffer.name]
        readers = [(n, p) for n, p in users if n != number]
        fits = all(self._reads_in_place(self.stages[n], p, stage, buffer) for n, p in readers)
        last = max((n for n, _ in readers), default=number)
        return buffer.name if fits and not self._overwritten(number, last, stage, source.view.tensor) else None

    def _reads_in_place(self, reader: Stage, port: Port, load: Stage, buffer: Buffer) -> bool:
        body = self.bodies[reader.body]
        place = reader.ports.index(port)
        param = body.params[place]
        if param.access != "read" or port.lag:
            return False
        whole_iteration = load.trips == 1 and (load.when == "first" or port.per == reader.trips)
        together = load.grid == reader.grid and port.per == 1 and load.when == reader.when
        view = compose(port.view, buffer.shape, load.ports[0].view)
        if view is None or not (whole_iteration or together):
            return False
        windowed = any(window.view.tensor == param.name for window in body.windows)
        return not windowed or is_dense(view.shape, view.strides)

    def _overwritten(self, load: int, last: int, stage: Stage, param: str) -> bool:
        """Whether memory may change between the load and its last reader."""
        if param in self.aliased:
            return True
        if param not in self.written:
            return False
        span = self.stages if stage.when == "first" else self.stages[load : last + 1]
        return any(
            p.per == 0 and p.view.tensor == param and self.bodies[s.body].params[i].access != "read"
            for s in span
            for i, p in enumerate(s.ports)
        )


def _is_copy(body: Body) -> bool:
    """Whether a body copies its first parameter to its second one and does nothing else."""
    if len(body.params) != 2 or len(body.steps) != 1 or body.locals or body.windows:
        return False
    (step,) = body.steps
    source, target = body.params
    return (
        isinstance(step, Vector)
        and step.result == "in0"
        and not step.body
        and (step.inputs[0].param, step.output.param) == (source.name, target.name)
        and step.inputs[0].map == step.output.map == _identity(len(step.dims))
        and source.shape == target.shape == step.dims
        and source.dtype == target.dtype
    )


def _identity(rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i == j) for j in range(rank)) + (0,) for i in range(rank))


def compose(view: View, shape: tuple[int, ...], base: View) -> View | None:
    """A window of a window: `view` of a dense region of `shape` that is laid over `base`; None where one affine view
    cannot say it."""
    if is_dense(shape, base.strides):
        return View(base.tensor, view.shape, view.strides, base.offset + view.offset, (*base.terms, *view.terms))
    strides = _over(view, shape, base.strides)
    offset = spread_offset(view.offset, shape, base.strides)
    if strides is None:
        return None
    terms = []
    for name, coefficient in view.terms:
        moved = _move(coefficient, 2, shape, base.strides)
        if moved is None:
            return None
        terms.append((name, moved))
    return View(base.tensor, view.shape, strides, base.offset + offset, (*base.terms, *terms))


def spread_offset(offset: int, shape: tuple[int, ...], strides: Strides) -> int:
    """Where element number `offset` of a dense region lies when the region has other strides."""
    moved = 0
    for step, stride in zip(dense(shape), strides, strict=True):
        moved += offset // step * stride
        offset %= step
    return moved


def _over(view: View, shape: tuple[int, ...], strides: Strides) -> Strides | None:
    moved = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        step = 0 if extent == 1 else _move(stride, extent, shape, strides)
        if step is None:
            return None
        moved.append(step)
    return tuple(moved)


def _move(stride: int, extent: int, shape: Sequence[int], strides: Strides) -> int | None:
    """What a stride of a dense region becomes when the region has others, for steps that stay in one dimension."""
    if stride == 0:
        return 0
    steps = dense(tuple(shape))
    for size, step, other in zip(shape, steps, strides, strict=True):
        if size > 1 and step <= stride:
            times, rest = divmod(stride, step)
            return times * other if rest == 0 and times * (extent - 1) < size else None
    return None
