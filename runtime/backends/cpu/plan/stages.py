"""The stages of a pipeline as native code runs them: what each port points at, loads that only copy left out.

On the machine that a schedule describes, a load stage brings tiles on chip, and the stages after it read the buffer. A
CPU has caches for that: here the stages read memory where the load would have, as long as nothing can have written it
in between.
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
        self.changing = {pipeline.index, *(scalar.name for scalar in pipeline.scalars)}
        """The scalars whose values differ between iterations."""

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
        """The buffer that a stage fills, if its readers may as well read what it copies."""
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
        """Whether a port of a stage may read what a load copies to a buffer."""
        body, port = self.bodies[reader.body], reader.ports[place]
        param = body.params[place]
        if param.access != "read" or port.lag:
            return False
        names = {name for name, _ in load.ports[0].view.terms}
        once = load.when == "first" and not names & self.changing
        whole_iteration = once or (load.when == reader.when and port.per == reader.trips)
        alone = load.trips == 1 and not names & firings(load).keys()
        together = load.grid == reader.grid and port.per == 1 and load.when == reader.when
        view = compose(port.view, buffer.shape, load.ports[0].view, firings(reader))
        if view is None or not (together or (alone and whole_iteration)):
            return False
        windowed = any(window.view.tensor == param.name for window in body.windows)
        return not windowed or is_dense(view.shape, view.strides)

    def _overwritten(self, load: int, last: int, stage: Stage, param: str) -> bool:
        """Whether memory may change between the load and its last reader."""
        if param in self.aliased:
            return True
        if param not in self.written:
            return False
        if not self._listed_in_order():  # they run in another order than this list, so nothing is known of "between"
            return True
        span = self.stages if stage.when == "first" else self.stages[load : last + 1]
        return any(
            p.per == 0 and p.view.tensor == param and self.bodies[s.body].params[i].access != "read"
            for s in span
            for i, p in enumerate(s.ports)
        )

    def _listed_in_order(self) -> bool:
        """Whether no stage reads what a stage after it in the list writes in the same iteration."""
        return not any(
            feeds(writer, reader, self.bodies)
            for n, reader in enumerate(self.stages)
            for writer in self.stages[n + 1 :]
        )


def feeds(writer: Stage, reader: Stage, bodies: Mapping[str, Body]) -> bool:
    """Whether a stage reads what another one writes in the same iteration."""
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
    """Whether a body copies its first parameter to its second one and does nothing else."""
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
    """A window of a window: `view` of a dense region of `shape` that is laid over `base`.

    Args:
        counts: how many values a scalar takes, 0 up to that; one that is not here may take any, as long as the view
            stays in the region.

    Returns None where one affine view cannot say it, or where it cannot be told.
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
    """Steps through a dense region that is laid out with other strides.

    Attributes:
        lost: whether a step could leave the dimension that it walks, so that no stride stands for it.
    """

    def __init__(self, shape: tuple[int, ...], strides: Strides) -> None:
        self.lost = False
        self._dims = [d for d in zip(shape, dense_strides(shape), strides, strict=True) if d[0] > 1]
        self._room = [size - 1 for size, _, _ in self._dims]

    def start(self, offset: int) -> int:
        """Where element number `offset` lies."""
        moved = 0
        for d, (_, step, stride) in enumerate(self._dims):
            self._take(d, offset // step)
            moved += offset // step * stride
            offset %= step
        self.lost |= offset != 0
        return moved

    def along(self, stride: int, extent: int | None) -> int:
        """What a stride becomes; `extent` is None where only the region bounds it."""
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
    """How many values the indices of a stage's grid take."""
    return {f"t{d}": extent for d, extent in enumerate(stage.grid)}
