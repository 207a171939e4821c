"""Kernels: control flow around pipelines, the proofs of each pipeline, and the contents of parameters afterwards."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from sscc.ir import schedule as sch
from sscc.ir.sizes import dense_strides
from sscc.ir.target import Target
from sscc.runtime.validator.bodies import BodyFacts, prove_body
from sscc.runtime.validator.failure import Bytes, Limits, ProofKind, check_numbers
from sscc.runtime.validator.firing_counts import check_tokens
from sscc.runtime.validator.hazards import check_hazards
from sscc.runtime.validator.linear import Linear, Range, Scope
from sscc.runtime.validator.pipelines import (
    Bound,
    PipelineView,
    PortFacts,
    StageFacts,
    linear_offset,
    open_bounds,
)
from sscc.runtime.validator.regions import FAR, Region, covered, overlap
from sscc.runtime.validator.streams import check_covers, check_rates, check_waits


class KernelProofErrors(ProofKind):
    """Kernels with invalid control flow, parameters or capacities. Those of control flow also apply to entries."""

    PARAMETER_TWICE = "two parameters have the name {name!r}"
    EMPTY_SHAPE = "every size of parameter {name!r} must be at least 1, got [{shape}]"
    LAUNCH_INSIDE = "it launches {kernel!r}, but only entries may contain launches"
    PIPELINE_TWICE = "two pipelines have the name {pipeline!r}"
    BUFFERS_OVERLAP = "buffers {one!r} at {low} .. {high} and {other!r} at {address} overlap in SRAM"
    NEGATIVE_ADDRESS = "buffer {buffer!r} is at address {address}"
    TOO_MANY_PCUS = "required {required} PCUs, but the machine has {available:.0f}: largest stages {largest}"
    TOO_LARGE = "required {required} of {memory}, capacity {capacity}: largest buffers {largest}"
    WINDOW_NOT_DENSE = "it is a window of {name!r}, which is not dense and row-major in a launch"
    READ_BEFORE_WRITTEN = "it reads parameter {name!r}, which is declared write, before it is written"
    NOT_WRITTEN_WHOLE = (
        "parameter {name!r} is declared write, but not all of its {elements} elements are written"
    )
    TOO_DEEP = "loops and branches are nested deeper than {levels} levels"
    NEVER_TAKEN = "a branch on {condition!r} is never taken"
    NO_ITERATION = "it has no iteration"
    TOO_MANY_ITERATIONS = (
        "it has up to {iterations:.0f} iterations, but there are only {most:.0f} layers or chunks"
    )
    LOOP_REWRITES = "it writes elements of {tensor!r} again when {loop!r} advances by {factor} elements"


@dataclass(frozen=True)
class Caller:
    """Facts about the launches of a kernel.

    Attributes:
        scalars: range of each scalar parameter, over all launches.
        aliases: for each way in which parameters share a view, parameter -> representative.
        strided: parameters that are not dense and row-major in some launch.
    """

    scalars: Mapping[str, Range]
    aliases: Sequence[Mapping[str, str]]
    strided: AbstractSet[str] = frozenset()


@dataclass
class PipelineFacts:
    """A proved pipeline. `open` has the bounds that could not be proved for all values, with their stages."""

    view: PipelineView
    open: list[tuple[StageFacts, Bound]]


@dataclass
class KernelFacts:
    """A proved kernel: its pipelines by name, the number of bounds proved for all values, and accesses that depend on
    data."""

    kernel: sch.Kernel
    pipelines: dict[str, PipelineFacts] = field(default_factory=dict)
    proved: int = 0
    data: set[str] = field(default_factory=set)

    @property
    def spilled(self) -> list[tuple[str, sch.Buffer]]:
        return [
            (facts.view.where, buffer)
            for facts in self.pipelines.values()
            for buffer in facts.view.pipeline.buffers
            if not buffer.on_chip
        ]


def prove_kernel(
    kernel: sch.Kernel,
    bodies: Mapping[str, BodyFacts],
    caller: Caller,
    target: Target | None,
    limits: Limits,
    longest: float,
    proved: set[Hashable] | None = None,
) -> KernelFacts:
    """Prove a kernel. Raises InputError naming kernel, pipeline, stage and numbers of the fault. `proved` is that of
    `check_tokens`."""
    return _KernelProof(kernel, bodies, caller, target, limits, longest, set() if proved is None else proved).prove()


@dataclass
class _KernelProof:
    _kernel: sch.Kernel
    _bodies: Mapping[str, BodyFacts]
    _caller: Caller
    _target: Target | None
    _limits: Limits
    _longest: float
    _proved: set[Hashable]

    def __post_init__(self) -> None:
        kernel = self._kernel
        self._where = f"kernel {kernel.name!r}" + (f" ({kernel.location})" if kernel.location else "")
        self._facts = KernelFacts(kernel)
        self._names: set[str] = set()
        self._written: set[str] = set()
        self._regions: dict[str, list[Region]] = {}
        self._inexact: set[str] = set()

    def prove(self) -> KernelFacts:
        names = [*(param.name for param in self._kernel.params), *self._kernel.scalars]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise KernelProofErrors.PARAMETER_TWICE(where=self._where, name=twice[0])
        for param in self._kernel.params:
            if any(size < 1 for size in param.shape):
                raise KernelProofErrors.EMPTY_SHAPE(where=self._where, name=param.name, shape=param.shape)
            check_numbers(self._where, f"parameter {param.name!r}", (prod(param.shape),))
        scope = Scope(self._where)
        for name in self._kernel.scalars:
            scope.variable(name, self._caller.scalars[name])
        self._items(self._kernel.body, scope, 0)
        self._check_written()
        return self._facts

    # -- control

    def _items(self, items: Sequence[sch.Item], scope: Scope, depth: int) -> None:
        for item in items:
            if isinstance(item, sch.Scalar):
                scope.define(item)
            elif isinstance(item, sch.For | sch.If):
                self._items(item.body, enter(item, scope, self._longest, depth), depth + 1)
            elif isinstance(item, sch.Pipeline):
                self._pipeline(item, scope)
            else:
                raise KernelProofErrors.LAUNCH_INSIDE(where=self._where, kernel=item.kernel)

    def _pipeline(self, pipeline: sch.Pipeline, scope: Scope) -> None:
        if pipeline.name in self._names:
            raise KernelProofErrors.PIPELINE_TWICE(where=self._where, pipeline=pipeline.name)
        self._names.add(pipeline.name)
        view = PipelineView(self._kernel, pipeline, self._bodies, scope)
        _check_count(view.where, view.most_iterations, self._longest)
        self._check_capacity(view)
        self._check_windows(view)
        bounds = open_bounds(view)
        self._facts.proved += sum(len(s.ports) + len(s.body.needs) for s in view.stages) - len(bounds)
        check_rates(view)
        check_covers(view, self._limits)
        check_tokens(view, self._limits, self._proved)
        check_waits(view)
        self._check_read_before(view)
        self._note_data(view)
        for aliases in self._caller.aliases or [{}]:
            check_hazards(view, aliases, self._limits)
        for facts in view.stages:
            for port in facts.ports:
                if port.memory and port.writes:
                    check_loops(port.where, port.port.view, view.everywhere(facts.stage))
        self._note_written(view)
        self._facts.pipelines[pipeline.name] = PipelineFacts(view, bounds)

    # -- capacities

    def _check_capacity(self, view: PipelineView) -> None:
        placed = sorted((b.address, b.address + b.nbytes, b.name) for b in view.pipeline.buffers if b.on_chip)
        for (low, high, one), (begin, _, other) in pairwise(placed):
            if begin < high:
                raise KernelProofErrors.BUFFERS_OVERLAP(
                    where=view.where, one=one, low=low, high=high - 1, other=other, address=begin
                )
        if placed and placed[0][0] < 0:
            raise KernelProofErrors.NEGATIVE_ADDRESS(where=view.where, buffer=placed[0][2], address=placed[0][0])
        target = self._target
        if target is None:
            return
        pcus = sum(facts.stage.pcus for facts in view.stages)
        if pcus > target.units.pcus.value:
            most = sorted(view.stages, key=lambda facts: -facts.stage.pcus)[:3]
            raise KernelProofErrors.TOO_MANY_PCUS(
                where=view.where, required=pcus, available=target.units.pcus.value,
                largest=[f"{facts.stage.name} {facts.stage.pcus}" for facts in most],
            )  # fmt: skip
        needed = max((high for _, high, _ in placed), default=0)
        room, label = target.nearest.capacity.value, target.nearest.label
        if needed > room:
            sizes = sorted(((b.nbytes, b.name) for b in view.pipeline.buffers if b.on_chip), reverse=True)
            raise KernelProofErrors.TOO_LARGE(
                where=view.where, required=Bytes(needed), memory=label, capacity=Bytes(room),
                largest=[f"{name} {Bytes(nbytes)}" for nbytes, name in sizes[:3]],
            )  # fmt: skip

    # -- parameters

    def _check_windows(self, view: PipelineView) -> None:
        """Check that windows show dense regions, of which offsets and strides count elements; other regions can only be
        used whole."""
        for port in _memory_ports(view):
            shape = view.params[port.name].shape
            whole = port.port.view == sch.View(port.name, shape, dense_strides(shape))
            if port.name in self._caller.strided and not whole:
                raise KernelProofErrors.WINDOW_NOT_DENSE(where=port.where, name=port.name)

    def _note_data(self, view: PipelineView) -> None:
        """Record accesses at places that depend on tensors' contents, and not only on scalars of the stage."""
        for facts in view.stages:
            data = facts.body.data
            if data and facts.body.body.scalars:
                scope = view.everywhere(facts.stage)
                values = [scope.range_of(scope.get(operand, facts.where)) for operand in facts.stage.scalars]
                ranges = dict(zip(facts.body.body.scalars, values, strict=True))
                data = prove_body(facts.body.body, self._limits, ranges, facts.body.grid).data
            self._facts.data.update(f"{facts.where}, {line}" for line in data)

    def _check_read_before(self, view: PipelineView) -> None:
        """Check that a parameter that begins undefined is written before it is read, here or by an earlier pipeline."""
        written = self._written | {port.name for port in _memory_ports(view) if port.writes}
        for port in _memory_ports(view):
            if port.reads and view.params[port.name].access == "write" and port.name not in written:
                raise KernelProofErrors.READ_BEFORE_WRITTEN(where=port.where, name=port.name)
        self._written = written

    def _note_written(self, view: PipelineView) -> None:
        for facts in view.stages:
            for port in facts.ports:
                if port.memory and port.writes and view.params[port.name].access == "write":
                    self._note_port(view, facts, port)

    def _note_port(self, view: PipelineView, facts: StageFacts, port: PortFacts) -> None:
        scope = view.everywhere(facts.stage)
        value = linear_offset(port.port.view.offset, port.port.view.terms, scope, port.where)
        known = all(name in scope.exact for name, _ in value.terms)
        if not scope.certain or not known or not port.use.complete or port.param.access != "write":
            self._inexact.add(port.name)
            return
        pairs, offset = list(port.pairs), value.const
        for name, factor in value.terms:
            low, high = scope.bounds[name]
            offset += factor * int(low)
            pairs.append((factor, int(high - low) + 1))
        self._regions.setdefault(port.name, []).append(Region.of(offset, pairs))

    def _check_written(self) -> None:
        """Check that a parameter declared write is written completely, if control flow and bodies determine its
        elements."""
        for param in self._kernel.params:
            if param.access != "write" or param.name in self._inexact:
                continue
            total = prod(param.shape)
            regions = self._regions.get(param.name, [])
            if covered(regions, Region.of(0, [(1, total)]), self._limits.painted) is not True:
                raise KernelProofErrors.NOT_WRITTEN_WHOLE(where=self._where, name=param.name, elements=total)


def _memory_ports(view: PipelineView) -> list[PortFacts]:
    return [port for facts in view.stages for port in facts.ports if port.memory]


_DEPTH = 16
"""Maximum nesting depth of loops and branches."""


def enter(item: sch.For | sch.If, scope: Scope, longest: float, depth: int) -> Scope:
    """Return the scope of a loop's or branch's body.

    Refuses bodies that are never entered, a loop of more than `longest` iterations, and more than `_DEPTH` levels.
    """
    if depth >= _DEPTH:
        raise KernelProofErrors.TOO_DEEP(where=scope.where, levels=_DEPTH)
    inner = scope.child()
    if isinstance(item, sch.If):
        condition = scope.get(item.condition, "a branch")
        low, high = scope.range_of(condition)
        if low == high == 0:
            raise KernelProofErrors.NEVER_TAKEN(where=scope.where, condition=item.condition)
        inner.certain = scope.certain and (low > 0 or high < 0)
        inner.assume(condition)
        return inner
    lower, upper = scope.get(item.lower, "a loop"), scope.get(item.upper, "a loop")
    _check_count(f"{scope.where}, loop {item.index!r}", scope.range_of(upper.plus(lower, -1))[1], longest)
    low, high = scope.range_of(lower)[0], scope.range_of(upper)[1] - 1
    inner.variable(item.index, (low, high))
    inner.loops = (*scope.loops, item.index)
    inner.shared = scope.shared if scope.loops else frozenset(scope.bounds)
    if lower.terms or upper.terms:
        inner.certain = False
    else:
        inner.exact.add(item.index)
    inner.narrow(Linear(0, ((item.index, 1),)).plus(upper, -1), -1)
    return inner


def _check_count(where: str, most: float, longest: float) -> None:
    """Check that a loop has an iteration for some values of the scalars, and a bound for all of them."""
    if most <= 0:
        raise KernelProofErrors.NO_ITERATION(where=where)
    if most > longest:
        raise KernelProofErrors.TOO_MANY_ITERATIONS(where=where, iterations=most, most=longest)


def check_loops(where: str, view: sch.View, scope: Scope) -> None:
    """Check that a written view that moves with a loop shows other elements in each iteration, so that layers' data
    stay separate."""
    value = linear_offset(view.offset, view.terms, scope, where)
    moves = dict(value.terms)
    for loop in scope.loops:
        factor = moves.get(loop, 0)
        low, high = scope.bounds[loop]
        if not factor or high <= low:
            continue
        region = Region.of(0, list(zip(view.strides, view.shape, strict=True)))
        # Indices of outer loops may differ too; all other variables are equal in both iterations.
        shift = Linear(factor)
        shifts = [(factor, int(min(high - low, FAR)))]
        for name, other in moves.items():
            low, high = scope.bounds[name]
            if name != loop and name not in scope.shared:
                reach = int(min(high - low, FAR))
                shift = shift.plus(Linear(-other * reach))
                shifts.append((other, 2 * reach + 1))
        moved = Region.of(shift.const, [*region.dims, *shifts])
        if overlap(region.dims, moved.dims, moved.offset) is not False:
            raise KernelProofErrors.LOOP_REWRITES(where=where, tensor=view.tensor, loop=loop, factor=factor)
