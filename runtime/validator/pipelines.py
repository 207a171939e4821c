"""A pipeline in the form for proofs: stages with the facts of their bodies, ports, and offsets as linear forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from sscc.ir import schedule as sch
from sscc.ir.errors import SsccError
from sscc.ir.sizes import dense_strides
from sscc.runtime.validator.bodies import BodyFacts, ParamUse, view_pairs, well_formed
from sscc.runtime.validator.failure import ProofKind, check_numbers
from sscc.runtime.validator.linear import ANY, Linear, Scope
from sscc.runtime.validator.regions import Region, overlap


class PipelineProofErrors(ProofKind):
    """Pipelines with invalid names, stages or ports, and violated bounds."""

    VIEW_FORM = "the view of {tensor!r} has shape [{shape}] and strides [{strides}]"
    VIEW_OUT_OF_RANGE = "the view of {tensor!r} reaches elements {low} .. {high}, but there are {elements}"
    SCALAR_OUT_OF_RANGE = "{scalar} must be within {least} .. {most}, got {low} .. {high}"
    REGION_TWICE = "two buffers or parameters have the name {name!r}"
    STAGE_TWICE = "two stages have the name {name!r}"
    UNKNOWN_BODY = "body {body!r} does not exist"
    STAGE_FORM = "it has grid [{grid}] and {pcus} PCUs"
    PORT_COUNT = (
        "it has {ports} ports and {scalars} scalars, but body {body!r} has {params} tensor and {body_scalars} scalar "
        "parameters"
    )
    WAITS = "it waits for {waits!r}, but the buffers are {buffers!r}"
    IDLE_AXIS = "it fires {size} times for t{axis}, on which none of its ports depends"
    UNKNOWN_REGION = "it names {name!r}, which is neither a parameter of the kernel nor a buffer"
    PORT_TYPE = "the body's parameter is {dtype} [{shape}], but the view of {tensor!r} is {actual} [{actual_shape}]"
    MEMORY_PORT = "{name!r} is memory, for which per and lag must be 0, but the port has per {per} and lag {lag}"
    BUFFER_PORT = "{name!r} is a buffer, but the port has per {per} and lag {lag}"
    WRITES_READ_ONLY = "it writes parameter {name!r} of the kernel, which is declared read"
    UPDATES_BUFFER = "it updates buffer {name!r} in place, but a slot is written by one stage and read by others"
    WINDOW_NOT_DENSE = "a window needs a dense {name!r}, but its strides are [{strides}]"


@dataclass(frozen=True)
class Bound:
    """``low <= const + sum(factor * scalar) <= high`` for every value of the scalars.

    For a view this is its offset, which with the elements that it spans must stay inside `total` elements.

    Attributes:
        name: tensor of the view, or the scalar.
    """

    where: str
    name: str
    const: int
    terms: tuple[tuple[str, int], ...]
    low: int
    high: int
    total: int | None = None

    @classmethod
    def of_view(cls, where: str, view: sch.View, total: int) -> Bound:
        last = total - 1 - Region.of(0, view_pairs(view)).span
        return cls(where, view.tensor, view.offset, view.terms, 0, last, total)

    @property
    def subject(self) -> str:
        """Name of the bounded quantity, for a message."""
        return self.name if self.total is None else f"view of {self.name!r}"

    def error(self, low: float, high: float) -> SsccError:
        """Return the error of a value that reaches from `low` to `high`."""
        if self.total is None:
            return PipelineProofErrors.SCALAR_OUT_OF_RANGE(
                where=self.where, scalar=self.name, low=low, high=high, least=self.low, most=self.high
            )
        return PipelineProofErrors.VIEW_OUT_OF_RANGE(
            where=self.where, tensor=self.name, low=low, high=self.last(high), elements=self.total
        )

    def last(self, high: float) -> float:
        """Return the last element of a view whose offset is up to `high`."""
        assert self.total is not None
        return high + self.total - 1 - self.high


def check_view(view: sch.View, where: str) -> None:
    """Check the form of a view: one stride per dimension, none negative, no dimension empty."""
    if not well_formed(view):
        raise PipelineProofErrors.VIEW_FORM(
            where=where, tensor=view.tensor, shape=view.shape, strides=view.strides
        )
    factors = (factor for _, factor in view.terms)
    check_numbers(where, f"view of {view.tensor!r}", (view.offset, *view.shape, *view.strides, *factors))


def linear_offset(const: int, terms: Sequence[tuple[str, int]], scope: Scope, user: str) -> Linear:
    value = Linear(const)
    for name, factor in terms:
        value = value.plus(scope.get(name, user), factor)
    return value


def proved(bound: Bound, scope: Scope) -> bool:
    """Return True if a bound holds for all values. Raises InputError if it is certainly violated."""
    value = linear_offset(bound.const, bound.terms, scope, bound.where)
    low, high = scope.range_of(value)
    if low >= bound.low and high <= bound.high:
        return True
    if scope.certain and all(name in scope.exact for name, _ in value.terms):
        raise bound.error(low, high)
    return False


def may_meet(one: Region, other: Region, shift: Linear, scope: Scope) -> bool:
    """Return True if two regions may have a common element; `shift` is the distance from the first to the second.

    Unknown parts of `shift` count as any value of their range.
    """
    place, dims = other.offset + shift.const, list(other.dims)
    for name, factor in shift.terms:
        low, high = scope.bounds.get(name, ANY)
        if abs(low) == inf or abs(high) == inf:
            return True
        place += factor * int(low)
        dims.append((factor, max(int(high - low), 0) + 1))
    moved = Region.of(place, dims)
    return overlap(one.dims, moved.dims, moved.offset - one.offset) is not False


@dataclass(frozen=True)
class PortFacts:
    """A port with the body's parameter that it feeds.

    Attributes:
        memory: True for a window of a kernel's parameter, False for a buffer.
        pairs: (stride, size) per dimension of the view.
    """

    param: sch.Param
    port: sch.Port
    use: ParamUse
    memory: bool
    where: str

    @property
    def name(self) -> str:
        return self.port.view.tensor

    @property
    def reads(self) -> bool:
        return self.param.access != "write"

    @property
    def writes(self) -> bool:
        return self.param.access != "read"

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return view_pairs(self.port.view)


@dataclass(frozen=True)
class StageFacts:
    stage: sch.Stage
    body: BodyFacts
    ports: tuple[PortFacts, ...]
    where: str

    @property
    def trips(self) -> int:
        return self.stage.trips


class PipelineView:
    """A pipeline with its names resolved and the form of its ports checked.

    Args:
        kernel: the kernel around it.
        pipeline: the pipeline.
        bodies: facts by name.
        scope: scalars around it.
    """

    def __init__(
        self, kernel: sch.Kernel, pipeline: sch.Pipeline, bodies: Mapping[str, BodyFacts], scope: Scope
    ) -> None:
        self.kernel, self.pipeline = kernel, pipeline
        self.where = f"kernel {kernel.name!r}, pipeline {pipeline.name!r}"
        self.scope = scope.child(self.where)
        self.lower = scope.get(pipeline.lower, f"pipeline {pipeline.name!r}")
        self.upper = scope.get(pipeline.upper, f"pipeline {pipeline.name!r}")
        self.params = {param.name: param for param in kernel.params}
        self.buffers = {buffer.name: buffer for buffer in pipeline.buffers}
        self._check_names()
        self.stages = tuple(self._stage(stage, bodies) for stage in pipeline.stages)
        self._scopes: dict[Linear, Scope] = {}

    @property
    def iterations(self) -> int | None:
        """Number of iterations if it is constant; None otherwise."""
        count = self.upper.plus(self.lower, -1)
        return None if count.terms else max(count.const, 0)

    @property
    def most_iterations(self) -> float:
        return max(self.scope.range_of(self.upper.plus(self.lower, -1))[1], 0)

    def at(self, index: Linear) -> Scope:
        """Return the scalars of the iteration at `index`."""
        if index not in self._scopes:
            scope = self.scope.child()
            scope.bind(self.pipeline.index, index)
            for scalar in self.pipeline.scalars:
                scope.define(scalar)
            self._scopes[index] = scope
        return self._scopes[index]

    def everywhere(self, stage: sch.Stage) -> Scope:
        """Return the scalars of every firing of a stage, with the index and ``t0``, ``t1``, .. as variables."""
        low, high = self.scope.range_of(self.lower)[0], self.scope.range_of(self.upper)[1] - 1
        scope = self.scope.child()
        scope.certain = scope.certain and (self.iterations or 0) > 0
        if stage.when == "each":
            scope.variable(self.pipeline.index, (low, high))
            if self.iterations and not self.lower.terms:
                scope.exact.add(self.pipeline.index)
        else:
            scope.bind(self.pipeline.index, self.lower if stage.when == "first" else self.upper.plus(Linear(-1)))
        for scalar in self.pipeline.scalars:
            scope.define(scalar)
        return grid_scope(scope, stage)

    # -- form

    def _check_names(self) -> None:
        for kind, names in (
            (PipelineProofErrors.REGION_TWICE, [*(b.name for b in self.pipeline.buffers), *self.params]),
            (PipelineProofErrors.STAGE_TWICE, [stage.name for stage in self.pipeline.stages]),
        ):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise kind(where=self.where, name=twice[0])

    def _stage(self, stage: sch.Stage, bodies: Mapping[str, BodyFacts]) -> StageFacts:
        where = f"{self.where}, stage {stage.name!r}"
        if stage.body not in bodies:
            raise PipelineProofErrors.UNKNOWN_BODY(where=where, body=stage.body)
        facts = bodies[stage.body]
        if any(size < 1 for size in stage.grid) or stage.pcus < 0:
            raise PipelineProofErrors.STAGE_FORM(where=where, grid=stage.grid, pcus=stage.pcus)
        check_numbers(where, "its grid", (prod(stage.grid),))
        if len(stage.ports) != len(facts.body.params) or len(stage.scalars) != len(facts.body.scalars):
            raise PipelineProofErrors.PORT_COUNT(
                where=where, ports=len(stage.ports), scalars=len(stage.scalars), body=stage.body,
                params=len(facts.body.params), body_scalars=len(facts.body.scalars),
            )  # fmt: skip
        unknown = [name for name in stage.waits if name not in self.buffers]
        if unknown or len(set(stage.waits)) != len(stage.waits):
            raise PipelineProofErrors.WAITS(where=where, waits=stage.waits, buffers=list(self.buffers))
        moved = {name for port in stage.ports for name, factor in port.view.terms if factor} | {*stage.scalars}
        slots = any(0 < port.per < stage.trips for port in stage.ports)
        for axis, size in enumerate(stage.grid):
            if size > 1 and f"t{axis}" not in moved and not slots:
                raise PipelineProofErrors.IDLE_AXIS(where=where, size=size, axis=axis)
        pairs = zip(facts.body.params, stage.ports, strict=True)
        return StageFacts(stage, facts, tuple(self._port(p, port, facts, where) for p, port in pairs), where)

    def _port(self, param: sch.Param, port: sch.Port, facts: BodyFacts, where: str) -> PortFacts:
        where = f"{where}, port {param.name!r}"
        view = port.view
        check_view(view, where)
        memory = view.tensor in self.params
        if not memory and view.tensor not in self.buffers:
            raise PipelineProofErrors.UNKNOWN_REGION(where=where, name=view.tensor)
        region = self.params[view.tensor] if memory else self.buffers[view.tensor]
        if view.shape != param.shape or region.dtype != param.dtype:
            raise PipelineProofErrors.PORT_TYPE(
                where=where, dtype=param.dtype, shape=param.shape, tensor=view.tensor, actual=region.dtype,
                actual_shape=view.shape,
            )  # fmt: skip
        if memory != (port.per == 0) or port.per < 0 or port.lag < 0 or (memory and port.lag):
            kind = PipelineProofErrors.MEMORY_PORT if memory else PipelineProofErrors.BUFFER_PORT
            raise kind(where=where, name=view.tensor, per=port.per, lag=port.lag)
        check_numbers(where, f"the port on {view.tensor!r}", (port.per, port.lag))
        self._check_access(param, port, where)
        if param.name in facts.dense and not is_dense(view):
            raise PipelineProofErrors.WINDOW_NOT_DENSE(where=where, name=param.name, strides=view.strides)
        return PortFacts(param, port, facts.uses[param.name], memory, where)

    def _check_access(self, param: sch.Param, port: sch.Port, where: str) -> None:
        name = port.view.tensor
        declared = self.params[name].access if name in self.params else None
        if param.access != "read" and declared == "read":
            raise PipelineProofErrors.WRITES_READ_ONLY(where=where, name=name)
        if declared is None and param.access == "update":
            raise PipelineProofErrors.UPDATES_BUFFER(where=where, name=name)


def is_dense(view: sch.View) -> bool:
    """Return True if a view shows its elements in row-major order, ignoring strides along dimensions of one element."""
    pairs = zip(view.strides, dense_strides(view.shape), view.shape, strict=True)
    return all(stride == dense_stride or size == 1 for stride, dense_stride, size in pairs)


def grid_scope(scope: Scope, stage: sch.Stage) -> Scope:
    """Return `scope` with the indices of a stage's grid as variables."""
    inner = scope.child()
    for axis, size in enumerate(stage.grid):
        inner.variable(f"t{axis}", (0, size - 1))
        inner.exact.add(f"t{axis}")
    return inner


def grid_terms(value: Linear, stage: sch.Stage) -> tuple[Linear, list[int]]:
    """Return an offset of a stage's port as a part independent of the grid, and a factor per axis of the grid."""
    factors = dict(value.terms)
    axes = [factors.pop(f"t{axis}", 0) for axis in range(len(stage.grid))]
    return Linear(value.const, tuple(sorted(factors.items()))), axes


def region_elements(view: PipelineView, port: PortFacts) -> int:
    region = view.params[port.name] if port.memory else view.buffers[port.name]
    return prod(region.shape)


def open_bounds(view: PipelineView) -> list[tuple[StageFacts, Bound]]:
    """Yield every bound of every stage that is not proved for all values: ports inside their regions, scalars in range.
    """
    open_bounds = []
    for facts in view.stages:
        scope = view.everywhere(facts.stage)
        for bound in _bounds(view, facts, scope):
            if not proved(bound, scope):
                open_bounds.append((facts, bound))
    return open_bounds


def _bounds(view: PipelineView, facts: StageFacts, scope: Scope) -> list[Bound]:
    bounds = [Bound.of_view(port.where, port.port.view, region_elements(view, port)) for port in facts.ports]
    operands = dict(zip(facts.body.body.scalars, facts.stage.scalars, strict=True))
    for operand in facts.stage.scalars:
        scope.get(operand, facts.where)
    for name, low, high, what in facts.body.needs:
        operand = operands[name]
        const, terms = (operand, ()) if isinstance(operand, int) else (0, ((operand, 1),))
        bounds.append(Bound(facts.where, what, const, terms, low, high))
    return bounds
