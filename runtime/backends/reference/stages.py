"""Stages: the tensors that a body sees in each firing.

Firings with equal offsets (in parameters, in slots, and of places) use the same bound body, so bindings are memoised
by offset: a loop over layers meets the same offsets for every token.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from sscc.ir.schedule import Buffer, Param, Port, ScalarOperand, Stage, View
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.reference.bodies import BodyCode
from sscc.runtime.backends.reference.control import Environment, Memo, Offset, getter
from sscc.runtime.backends.reference.interface import Fire, Scalars, Views
from sscc.runtime.backends.reference.memory import poison
from sscc.runtime.backends.reference.streams import BufferUse
from sscc.runtime.backends.reference.views import MalformedKind, StridedView
from sscc.runtime.backends.reference.watching import Watch


class ReferenceStageErrors(MalformedKind):
    NOT_DENSE = "it shows a window of {tensor!r}, whose argument is not dense row-major"

BINDINGS = 4096
"""Number of bound bodies that are kept for a stage of a launch."""


@dataclass(frozen=True)
class Place:
    """The context of a stage: the names that it can use.

    Attributes:
        where: kernel and pipeline, for messages.
        params: tensor parameters of the kernel.
        buffers: buffers of the pipeline.
        slots: slots of each buffer.
        checked: fill a slot with NaN when its producer begins it.
        kernel, pipeline: their names.
        loops: indices of the surrounding loops, by name.
        watch: watcher of stages.
    """

    where: str
    params: Mapping[str, Param]
    buffers: Mapping[str, Buffer]
    slots: Mapping[str, Sequence[torch.Tensor]]
    checked: bool
    kernel: str
    pipeline: str
    loops: tuple[str, ...]
    watch: Watch


class StageCode:
    """A stage, compiled once per kernel.

    Args:
        stage: stage to compile.
        number: index of the stage in the pipeline.
        body: body that it fires.
        place: context of the stage.

    Raises:
        InputError: the view of a port leaves the tensor that it shows.
    """

    def __init__(self, stage: Stage, number: int, body: BodyCode, place: Place) -> None:
        self.stage, self.body, self.place = stage, body, place
        params, scalars = body.body.params, body.body.scalars
        self.axes = {f"t{axis}": axis for axis in range(len(stage.grid))}
        self.points = list(itertools.product(*map(range, stage.grid)))
        self.ports = [PortCode(port, param, self) for port, param in zip(stage.ports, params, strict=True)]
        self._scalars(dict(zip(scalars, stage.scalars, strict=True)))
        self.uses = [self._use(port, number) for port in self.ports if port.buffer is not None]

    @property
    def static(self) -> bool:
        """Return True if every firing sees the same tensors, and scalars that do not depend on the tile."""
        fixed = all(port.offset.static and port.buffer is None for port in self.ports)
        return fixed and len(self.points) == 1 and not self.tiled

    @property
    def where(self) -> str:
        """Return the location of the stage, for messages."""
        return f"{self.place.where}: stage {self.stage.name!r}"

    def bind(self, views: Views) -> BoundStage:
        """Fix the kernel's arguments. Raises InputError if a port shows a window of one that is not dense."""
        return BoundStage(self, [port.regions(views) for port in self.ports])

    def _scalars(self, scalars: Mapping[str, ScalarOperand]) -> None:
        """Split the body's scalars into those of an iteration and those of a tile."""
        inner = {name: self.axes[v] for name, v in scalars.items() if isinstance(v, str) and v in self.axes}
        self.steady = {name: getter(v) for name, v in scalars.items() if name not in inner}
        self.tiled = [{name: point[axis] for name, axis in inner.items()} for point in self.points] if inner else []

    def _use(self, port: PortCode, number: int) -> BufferUse:
        assert port.buffer is not None
        name, depth = port.buffer.name, port.buffer.depth
        return BufferUse(number, name, depth, port.writes, port.port.per, port.port.lag, name in self.stage.waits)


class PortCode:
    """One port of a stage, with the body's parameter that it is bound to."""

    def __init__(self, port: Port, param: Param, stage: StageCode) -> None:
        self._stage = stage
        self._where = f"{stage.where}: port of {param.name!r}"
        self.port, self.writes = port, param.access != "read"
        view, place = port.view, stage.place
        self.buffer = place.buffers.get(view.tensor)
        target = self.buffer or place.params[view.tensor]
        self.strided = StridedView(view, prod(target.shape), param.access, self._where)
        dense = view.shape == target.shape and view.strides == dense_strides(target.shape)
        self.identity = dense and view.offset == 0 and not view.terms
        self._place_terms(view)

    def regions(self, views: Views) -> Sequence[torch.Tensor]:
        """Return the tensors that the port shows: the slots of a buffer, or the argument of a parameter."""
        if self.buffer is not None:
            return self._stage.place.slots[self.buffer.name]
        argument = views[self.port.view.tensor]
        if not self.identity and not argument.is_contiguous():
            raise ReferenceStageErrors.NOT_DENSE(where=self._where, tensor=self.port.view.tensor)
        return (argument,)

    def slot(self, firing: int) -> int:
        return firing // self.port.per + self.port.lag

    def view(self, regions: Sequence[torch.Tensor], firing: int, offset: int) -> torch.Tensor:
        """Return the tensor that the body sees in a firing, given the total offset of its iteration."""
        if self.identity and self.buffer is None:
            return regions[0]
        region = regions[self.slot(firing) % len(regions)] if self.buffer else regions[0]
        return self.strided.at(region, offset + self.tiles[firing % len(self.tiles)])

    def _place_terms(self, view: View) -> None:
        """Split the offset into the terms of a tile and the terms of the surrounding scalars."""
        axes = self._stage.axes
        inner = [(axes[name], factor) for name, factor in view.terms if name in axes]
        outer = tuple((name, factor) for name, factor in view.terms if name not in axes)
        self.tiles = [sum(point[axis] * factor for axis, factor in inner) for point in self._stage.points]
        self.offset = Offset(replace(view, terms=outer))


class BoundStage:
    """A stage with the arguments of one launch."""

    def __init__(self, code: StageCode, regions: Sequence[Sequence[torch.Tensor]]) -> None:
        self.name = code.stage.name
        self._code = code
        self._regions = regions
        self._trips = len(code.points)
        self._moving = sorted(
            {(p.port.per, p.port.lag, p.buffer.depth) for p in code.ports if p.buffer and p.buffer.depth > 1}
        )
        self._dynamic = any(not port.offset.static for port in code.ports)
        self._memo: Memo[tuple[tuple[int, ...], int], list[Fire]] = Memo(BINDINGS)
        self._offsets = tuple([] if self._dynamic else [port.offset.at({}) for port in code.ports])
        filled = [(port, r) for port, r in zip(code.ports, regions, strict=True) if port.buffer and port.writes]
        self._begun = filled if code.place.checked else []
        self._filled = filled
        self.full_name = (code.place.kernel, code.place.pipeline, code.stage.name)
        self._steady: Scalars = {}
        self._environments: Sequence[Environment] = ()
        self._iteration = -1

    def bind(self, firing: int) -> list[Fire]:
        """Bind the body to the tensors of a firing of the current iteration."""
        ports = zip(self._code.ports, self._regions, self._offsets, strict=True)
        return self._code.body.bind([port.view(regions, firing, offset) for port, regions, offset in ports])

    def start(self, environments: Sequence[Environment]) -> None:
        """Begin a run of the pipeline, given the scalars of each iteration; some stages use only one iteration."""
        self._environments = environments
        self._iteration = -1

    def fire(self, begin: int, end: int) -> None:
        """Execute firings begin .. end - 1."""
        trips, memo, moving, tiled = self._trips, self._memo, self._moving, self._code.tiled
        for firing in range(begin, end):
            iteration, tile = divmod(firing, trips)
            if iteration != self._iteration:
                self._enter(iteration)
            code = tile
            for per, lag, depth in moving:
                code = code * depth + (firing // per + lag) % depth
            key = (self._offsets, code)
            fires = memo.get(key)
            if fires is None:
                fires = self.bind(firing)
                memo.keep(key, fires)
            if self._begun:
                self._poison(firing)
            scalars = {**self._steady, **tiled[tile]} if tiled else self._steady
            for fire in fires:
                fire(scalars)
            if tile == trips - 1 and self._code.place.watch.watches(self.full_name):
                self.show(iteration, self._environments[iteration])

    def show(self, iteration: int, environment: Environment) -> None:
        """Show the watcher the slots that the stage has filled in an iteration."""
        place, trips = self._code.place, self._trips
        loops = [environment[name] for name in place.loops[: None if self._code.stage.when == "each" else -1]]
        buffers = {}
        for port, regions in self._filled:
            assert port.buffer is not None
            firings = range(iteration * trips, (iteration + 1) * trips, max(port.port.per, 1))
            buffers[port.buffer.name] = [regions[port.slot(firing) % len(regions)] for firing in firings]
        place.watch.see(self.full_name, loops, buffers)

    def _enter(self, iteration: int) -> None:
        environment = self._environments[iteration]
        self._iteration = iteration
        self._steady = {name: get(environment) for name, get in self._code.steady.items()}
        if self._dynamic:
            self._offsets = tuple([port.offset.at(environment) for port in self._code.ports])

    def _poison(self, firing: int) -> None:
        for port, regions in self._begun:
            if firing % port.port.per == 0:
                poison(regions[port.slot(firing) % len(regions)])
