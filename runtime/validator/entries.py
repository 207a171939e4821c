"""Entries: control flow around launches, the views that launches pass, and the lifetimes of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf

from sscc.ir import schedule as sch
from sscc.runtime.validator.failure import Limits, ProofKind
from sscc.runtime.validator.kernels import Caller, check_loops, enter
from sscc.runtime.validator.linear import ANY, Linear, Range, Scope
from sscc.runtime.validator.pipelines import Bound, check_view, is_dense, linear_offset, may_meet, proved
from sscc.runtime.validator.regions import Region, covered, injective


class EntryProofErrors(ProofKind):
    """Entries with invalid inputs, outputs or launches."""

    ROLE = "{role} {tensor!r} is a tensor of role {actual}"
    NAMED_TWICE = "its {role}s have a duplicate tensor: {names!r}"
    UNKNOWN_TENSOR = "it names tensor {tensor!r}, which does not exist"
    PIPELINE_OUTSIDE = "pipeline {pipeline!r} is in an entry, but only kernels may contain pipelines"
    UNKNOWN_KERNEL = "the kernel does not exist"
    ARGUMENT_COUNT = (
        "it passes {tensors} tensors and {scalars} scalars, but the kernel has {params} tensor and {kernel_scalars} "
        "scalar parameters"
    )
    ARGUMENT_TYPE = (
        "the parameter of the kernel is {dtype} [{shape}], but the view of {tensor!r} is {actual} [{actual_shape}]"
    )
    NOT_OF_ENTRY = "{role} {tensor!r} is not one of this entry's"
    WRITES_FIXED = "it writes {role} {tensor!r}"
    SHOWN_TWICE = "the view of {tensor!r} is written, but shows an element more than once"
    ARGUMENTS_OVERLAP = (
        "parameters {one!r} and {other!r} share elements of tensor {tensor!r}, and one of them is written"
    )
    NEVER_WRITTEN = "it reads {role} {tensor!r}, which no launch of the entry has written before"
    WRITTEN_IN_PART = "it reads elements of {role} {tensor!r} that no launch has written before"


_FIXED = ("weight", "constant", "input")


@dataclass(frozen=True)
class Pair:
    """Two arguments of a launch that must not share elements, which could not be proved for all values."""

    where: str
    params: tuple[str, str]
    one: sch.View
    other: sch.View

    @property
    def subject(self) -> str:
        """Name of the open condition, for a message."""
        return f"pair of parameters {self.params[0]!r} and {self.params[1]!r}"


@dataclass
class LaunchFacts:
    """A launch in an entry.

    Attributes:
        position: number among the entry's launches, with loops entered once.
        path: loops and branches around it, by number.
        offsets: offset of each argument.
        aliases: parameter -> the first parameter with the same view.
        open: bounds, and pairs of arguments, that could not be proved for all values.
    """

    launch: sch.Launch
    kernel: sch.Kernel
    where: str
    position: int
    path: tuple[int, ...]
    offsets: tuple[Linear, ...]
    scalars: dict[str, Range]
    aliases: dict[str, str]
    open: list[Bound] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)


@dataclass(frozen=True)
class Touch:
    """A launch's access to a tensor; `region` is None if its place is not constant."""

    position: int
    path: tuple[int, ...]
    access: str
    region: Region | None
    where: str


@dataclass
class EntryFacts:
    """An entry: its launches in order, and the range of positions [begin, end) of each loop.

    Attributes:
        sure: numbers of the loops and branches that are always entered when reached.
    """

    entry: sch.Entry
    launches: list[LaunchFacts] = field(default_factory=list)
    loops: dict[int, tuple[int, int]] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)
    proved: int = 0

    def touches(self) -> dict[str, list[Touch]]:
        touches: dict[str, list[Touch]] = {}
        for facts in self.launches:
            for param, view, offset in zip(facts.kernel.params, facts.launch.args, facts.offsets, strict=True):
                pairs = list(zip(view.strides, view.shape, strict=True))
                region = None if offset.terms else Region.of(offset.const, pairs)
                touch = Touch(facts.position, facts.path, param.access, region, facts.where)
                touches.setdefault(view.tensor, []).append(touch)
        return touches


def prove_entry(
    entry: sch.Entry,
    tensors: Mapping[str, sch.Tensor],
    kernels: Mapping[str, sch.Kernel],
    ranges: Mapping[str, tuple[int, int]],
    longest: float,
) -> EntryFacts:
    """Prove an entry. Raises InputError naming the invalid launch and argument."""
    return _EntryProof(entry, tensors, kernels, ranges, longest).prove()


@dataclass
class _EntryProof:
    _entry: sch.Entry
    _tensors: Mapping[str, sch.Tensor]
    _kernels: Mapping[str, sch.Kernel]
    _ranges: Mapping[str, tuple[int, int]]
    _longest: float

    def __post_init__(self) -> None:
        self._where = f"entry {self._entry.name!r}"
        self._facts = EntryFacts(self._entry)
        self._blocks = 0

    def prove(self) -> EntryFacts:
        for names, role in ((self._entry.inputs, "input"), (self._entry.outputs, "output")):
            for name in names:
                if self._tensor(name).role != role:
                    raise EntryProofErrors.ROLE(
                        where=self._where, role=role, tensor=name, actual=self._tensor(name).role
                    )
            if len(set(names)) != len(names):
                raise EntryProofErrors.NAMED_TWICE(where=self._where, role=role, names=names)
        scope = Scope(self._where)
        for name in self._entry.scalar_inputs:
            scope.variable(name, self._ranges.get(name, ANY))
        self._items(self._entry.body, scope, ())
        for operand in self._entry.scalar_outputs:
            scope.get(operand, "a scalar output")
        return self._facts

    def _tensor(self, name: str) -> sch.Tensor:
        if name not in self._tensors:
            raise EntryProofErrors.UNKNOWN_TENSOR(where=self._where, tensor=name)
        return self._tensors[name]

    # -- control

    def _items(self, items: Sequence[sch.Item], scope: Scope, path: tuple[int, ...]) -> None:
        for item in items:
            if isinstance(item, sch.Scalar):
                scope.define(item)
            elif isinstance(item, sch.For | sch.If):
                self._block(item, scope, path)
            elif isinstance(item, sch.Launch):
                self._launch(item, scope, path)
            else:
                raise EntryProofErrors.PIPELINE_OUTSIDE(where=self._where, pipeline=item.name)

    def _block(self, item: sch.For | sch.If, scope: Scope, path: tuple[int, ...]) -> None:
        inner = enter(item, scope, self._longest, len(path))
        number, begin = self._blocks, len(self._facts.launches)
        self._blocks += 1
        if _surely_entered(item, scope):
            self._facts.sure.add(number)
        self._items(item.body, inner, (*path, number))
        if isinstance(item, sch.For):
            self._facts.loops[number] = (begin, len(self._facts.launches))

    # -- launches

    def _launch(self, launch: sch.Launch, scope: Scope, path: tuple[int, ...]) -> None:
        position = len(self._facts.launches)
        where = f"{self._where}, launch {position} of kernel {launch.kernel!r}"
        if launch.kernel not in self._kernels:
            raise EntryProofErrors.UNKNOWN_KERNEL(where=where)
        kernel = self._kernels[launch.kernel]
        if len(launch.args) != len(kernel.params) or len(launch.scalars) != len(kernel.scalars):
            raise EntryProofErrors.ARGUMENT_COUNT(
                where=where, tensors=len(launch.args), scalars=len(launch.scalars), params=len(kernel.params),
                kernel_scalars=len(kernel.scalars),
            )  # fmt: skip
        values = [scope.get(operand, where) for operand in launch.scalars]
        scalars = {name: scope.range_of(value) for name, value in zip(kernel.scalars, values, strict=True)}
        pairs = list(zip(kernel.params, launch.args, strict=True))
        offsets = tuple(self._argument(param, view, scope, where) for param, view in pairs)
        facts = LaunchFacts(launch, kernel, where, position, path, offsets, scalars, {})
        self._facts.launches.append(facts)
        for param, view in pairs:
            bound = Bound.of_view(f"{where}, parameter {param.name!r}", view, self._tensor(view.tensor).elements)
            if param.access != "read":
                check_loops(bound.where, view, scope)
            if proved(bound, scope):
                self._facts.proved += 1
            else:
                facts.open.append(bound)
        self._aliases(facts, scope)

    def _argument(self, param: sch.Param, view: sch.View, scope: Scope, where: str) -> Linear:
        where = f"{where}, parameter {param.name!r}"
        check_view(view, where)
        tensor = self._tensor(view.tensor)
        if view.shape != param.shape or tensor.dtype != param.dtype:
            raise EntryProofErrors.ARGUMENT_TYPE(
                where=where, dtype=param.dtype, shape=param.shape, tensor=view.tensor, actual=tensor.dtype,
                actual_shape=view.shape,
            )  # fmt: skip
        if tensor.role in ("input", "output") and view.tensor not in (*self._entry.inputs, *self._entry.outputs):
            raise EntryProofErrors.NOT_OF_ENTRY(where=where, role=tensor.role, tensor=view.tensor)
        if param.access != "read" and tensor.role in _FIXED:
            raise EntryProofErrors.WRITES_FIXED(where=where, role=tensor.role, tensor=view.tensor)
        if param.access != "read" and not injective(list(zip(view.strides, view.shape, strict=True))):
            raise EntryProofErrors.SHOWN_TWICE(where=where, tensor=view.tensor)
        return linear_offset(view.offset, view.terms, scope, where)

    def _aliases(self, facts: LaunchFacts, scope: Scope) -> None:
        """Check that arguments with the same view are one region; others do not overlap if one of them is written."""
        bound = list(zip(facts.kernel.params, facts.launch.args, facts.offsets, strict=True))
        for number, (param, view, offset) in enumerate(bound):
            facts.aliases.setdefault(param.name, param.name)
            for other, other_view, other_offset in bound[number + 1 :]:
                if other_view.tensor != view.tensor:
                    continue
                if (view.strides, view.shape, offset) == (other_view.strides, other_view.shape, other_offset):
                    facts.aliases[other.name] = facts.aliases[param.name]
                elif param.access != "read" or other.access != "read":
                    shift = other_offset.plus(offset, -1)
                    self._apart(facts, (param.name, view), (other.name, other_view), shift, scope)

    def _apart(
        self, facts: LaunchFacts, one: tuple[str, sch.View], other: tuple[str, sch.View], shift: Linear, scope: Scope
    ) -> None:
        regions = [Region.of(0, list(zip(v.strides, v.shape, strict=True))) for v in (one[1], other[1])]
        if not may_meet(regions[0], regions[1], shift, scope):
            return
        if not shift.terms:
            raise EntryProofErrors.ARGUMENTS_OVERLAP(
                where=facts.where, one=one[0], other=other[0], tensor=one[1].tensor
            )
        facts.pairs.append(Pair(facts.where, (one[0], other[0]), one[1], other[1]))


def callers(entries: Sequence[EntryFacts], kernels: Mapping[str, sch.Kernel]) -> dict[str, Caller]:
    """Return facts about each kernel from its launches. A kernel that is never launched has scalars of any value."""
    sites: dict[str, list[LaunchFacts]] = {name: [] for name in kernels}
    for entry in entries:
        for facts in entry.launches:
            sites[facts.kernel.name].append(facts)
    return {name: _caller(kernels[name], launches) for name, launches in sites.items()}


def _caller(kernel: sch.Kernel, sites: Sequence[LaunchFacts]) -> Caller:
    scalars = {
        name: (
            min((site.scalars[name][0] for site in sites), default=-inf),
            max((site.scalars[name][1] for site in sites), default=inf),
        )
        for name in kernel.scalars
    }
    aliases = list({tuple(sorted(site.aliases.items())): site.aliases for site in sites}.values())
    strided = {
        param.name
        for site in sites
        for param, view in zip(kernel.params, site.launch.args, strict=True)
        if not is_dense(view)
    }
    return Caller(scalars, aliases, strided)


# ------------------------------------------------------------------------------------------------- lifetimes


def lifetimes(facts: EntryFacts, tensors: Mapping[str, sch.Tensor], limits: Limits) -> dict[str, tuple[int, int]]:
    """Return the first and last launch, inclusive, between which each temporary holds data.

    A temporary that enters or leaves a loop, or is not written at the beginning of each iteration, lives as long as the
    loop. Raises InputError if a temporary or an output is read before it is written.
    """
    ranges = {}
    for name, touches in facts.touches().items():
        if tensors[name].role in ("temporary", "output"):
            _check_defined(name, tensors[name], touches, facts.sure, limits)
        if tensors[name].role == "temporary":
            ranges[name] = _lifetime(tensors[name], touches, facts.loops, limits)
    return ranges


def _check_defined(
    name: str, tensor: sch.Tensor, touches: Sequence[Touch], sure: AbstractSet[int], limits: Limits
) -> None:
    """Check that everything a launch reads was written by earlier launches of this call, on every path."""
    for touch in touches:
        if touch.access == "write":
            continue
        before = [
            other
            for other in touches
            if other.access != "read"
            and other.position < touch.position
            and all(block in touch.path or block in sure for block in other.path)
        ]
        if not before:
            raise EntryProofErrors.NEVER_WRITTEN(where=touch.where, role=tensor.role, tensor=name)
        regions = [other.region for other in before if other.region is not None]
        if len(regions) < len(before) or touch.region is None:
            continue
        if covered(regions, touch.region, limits.painted) is False:
            raise EntryProofErrors.WRITTEN_IN_PART(where=touch.where, role=tensor.role, tensor=name)


def _surely_entered(item: sch.For | sch.If, scope: Scope) -> bool:
    if isinstance(item, sch.If):
        low, high = scope.range_of(scope.get(item.condition, "a branch"))
        return low > 0 or high < 0
    return scope.range_of(scope.get(item.upper, "a loop").plus(scope.get(item.lower, "a loop"), -1))[0] > 0


def _lifetime(
    tensor: sch.Tensor, touches: Sequence[Touch], loops: Mapping[int, tuple[int, int]], limits: Limits
) -> tuple[int, int]:
    first, last = touches[0].position, touches[-1].position
    for number, (begin, end) in loops.items():
        inside = [touch for touch in touches if number in touch.path]
        if not inside:
            continue
        entered = first < begin
        if entered or not _fresh(tensor, inside, number, limits):
            first, last = min(first, begin), max(last, end - 1)
    return first, last


def _fresh(tensor: sch.Tensor, inside: Sequence[Touch], loop: int, limits: Limits) -> bool:
    """Return True if each iteration of a loop writes all of a tensor before it reads any."""
    reads = [number for number, touch in enumerate(inside) if touch.access != "write"]
    before = inside[: reads[0]] if reads else inside
    reader = inside[reads[0]].path if reads else before[0].path[: before[0].path.index(loop) + 1]
    regions = [t.region for t in before if t.region is not None and t.path == reader[: len(t.path)]]
    return covered(regions, Region.of(0, [(1, tensor.elements)]), limits.painted) is True
