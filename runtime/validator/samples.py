"""Sample runs: the control flow of entries and kernels with given scalars, exactly; no data is accessed.

They decide the bounds that could not be proved for all values, and determine the tensors that a call writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sscc.ir import schedule as sch
from sscc.ir.errors import SsccError
from sscc.runtime.validator.entries import EntryFacts, LaunchFacts, Pair
from sscc.runtime.validator.failure import Limits, ProofKind
from sscc.runtime.validator.findings import Run
from sscc.runtime.validator.kernels import KernelFacts, PipelineFacts
from sscc.runtime.validator.linear import evaluate, value_of
from sscc.runtime.validator.pipelines import Bound, PortFacts
from sscc.runtime.validator.regions import Region, covered, overlap


class SampleProofErrors(ProofKind):
    """Sample runs that are not calls of the entry, or in which a bound does not hold."""

    SCALARS = "a sample must have the scalars {names!r}"
    OUT_OF_RANGE = "the sample's {name!r} is not within its range {low} .. {high}"
    TOO_MANY_STEPS = "the sample takes more than {steps} steps"
    VIEW_OUT_OF_RANGE = "the view of {tensor!r} reaches elements {low} .. {high}, but there are {elements}, in {sample}"
    SCALAR_OUT_OF_RANGE = "{scalar} must be within {least} .. {most}, got {low} .. {high} in {sample}"
    ARGUMENTS_OVERLAP = (
        "parameters {one!r} and {other!r} share elements of {tensor!r}, and one of them is written, in {sample}"
    )


@dataclass(frozen=True)
class _Effect:
    """The writes of one execution of a kernel.

    Attributes:
        touched: parameters of which it writes any element.
        whole: parameters for outputs of which it writes every element.
    """

    touched: frozenset[str]
    whole: frozenset[str]


class SampleRunner:
    """Runs samples. `seen` collects the bounds and pairs that runs have evaluated."""

    def __init__(
        self,
        program: sch.Program,
        entries: Sequence[EntryFacts],
        kernels: Mapping[str, KernelFacts],
        ranges: Mapping[str, tuple[int, int]],
        limits: Limits,
    ) -> None:
        self._ranges = ranges
        self._tensors = {tensor.name: tensor for tensor in program.tensors}
        self._kernels, self._limits = kernels, limits
        self._launches = {id(facts.launch): facts for entry in entries for facts in entry.launches}
        self._effects: dict[tuple[str, tuple[int, ...]], _Effect] = {}
        self._outputs = self._params_of_outputs(entries)
        self.seen: set[Bound | Pair] = set()
        self._steps = 0

    def run(self, entry: sch.Entry, scalars: Mapping[str, int]) -> Run:
        where = f"entry {entry.name!r} with {dict(scalars)}"
        if set(scalars) != set(entry.scalar_inputs):
            raise SampleProofErrors.SCALARS(where=where, names=sorted(entry.scalar_inputs))
        for name, value in scalars.items():
            low, high = self._ranges.get(name, (value, value))
            if not low <= value <= high:
                raise SampleProofErrors.OUT_OF_RANGE(where=where, name=name, low=low, high=high)
        self._steps = self._limits.steps
        written: dict[str, list[Region]] = {name: [] for name in entry.outputs}
        touched: set[str] = set()
        outer = dict(scalars)
        for item, known in self._walk(entry.body, outer, where):
            assert isinstance(item, sch.Launch)  # pipelines in entries are refused before
            effect = self._launch(self._launches[id(item)], known, where)
            for param, view in zip(self._kernels[item.kernel].kernel.params, item.args, strict=True):
                if param.name in effect.touched:
                    touched.add(view.tensor)
                if param.name in effect.whole and view.tensor in written:
                    written[view.tensor].append(_region(view, known))
        whole = frozenset(name for name, regions in written.items() if self._is_whole(name, regions))
        results = tuple(value_of(operand, outer) for operand in entry.scalar_outputs)
        return Run(dict(scalars), whole, frozenset(touched), results)

    # -- written tensors

    def _params_of_outputs(self, entries: Sequence[EntryFacts]) -> dict[str, set[str]]:
        """Return, for each kernel, the parameters through which launches write outputs."""
        params: dict[str, set[str]] = {name: set() for name in self._kernels}
        for entry in entries:
            for facts in entry.launches:
                for param, view in zip(facts.kernel.params, facts.launch.args, strict=True):
                    if param.access != "read" and self._tensors[view.tensor].role == "output":
                        params[facts.kernel.name].add(param.name)
        return params

    def _is_whole(self, tensor: str, regions: Sequence[Region]) -> bool:
        everything = Region.of(0, [(1, self._tensors[tensor].elements)])
        return covered(regions, everything, self._limits.painted) is True

    def _walk(
        self, items: Sequence[sch.Item], known: dict[str, int], where: str
    ) -> Iterator[tuple[sch.Launch | sch.Pipeline, dict[str, int]]]:
        """Yield every launch or pipeline that control flow executes, with the scalars at that place."""
        for item in items:
            self._step(where)
            if isinstance(item, sch.Scalar):
                known[item.name] = evaluate(item, known, where)
            elif isinstance(item, sch.If):
                if value_of(item.condition, known):
                    yield from self._walk(item.body, dict(known), where)
            elif isinstance(item, sch.For):
                for index in range(value_of(item.lower, known), value_of(item.upper, known)):
                    self._step(where)
                    yield from self._walk(item.body, {**known, item.index: index}, where)
            else:
                yield item, known

    def _step(self, where: str) -> None:
        """Count a step of a sample run: control items, launches, and iterations of loops and pipelines."""
        self._steps -= 1
        if self._steps < 0:
            raise SampleProofErrors.TOO_MANY_STEPS(where=where, steps=self._limits.steps)

    # -- one launch

    def _launch(self, facts: LaunchFacts, known: Mapping[str, int], where: str) -> _Effect:
        for bound in facts.open:
            self._check(bound, known, (), where)
        for pair in facts.pairs:
            self._check_pair(pair, known, where)
        values = tuple(value_of(operand, known) for operand in facts.launch.scalars)
        key = (facts.kernel.name, values)
        if key not in self._effects:
            scalars = dict(zip(facts.kernel.scalars, values, strict=True))
            self._effects[key] = self._kernel(self._kernels[facts.kernel.name], scalars, f"{where}: {facts.where}")
        return self._effects[key]

    def _kernel(self, facts: KernelFacts, scalars: dict[str, int], where: str) -> _Effect:
        touched: set[str] = set()
        written: dict[str, list[Region]] = {name: [] for name in self._outputs[facts.kernel.name]}
        for item, known in self._walk(facts.kernel.body, scalars, where):
            assert isinstance(item, sch.Pipeline)  # launches in kernels are refused before
            pipeline = facts.pipelines[item.name]
            if value_of(item.upper, known) <= value_of(item.lower, known):
                continue
            self._pipeline(pipeline, known, where)
            if written:
                self._note_ports(pipeline, known, where, written)
            ports = (port for stage in pipeline.view.stages for port in stage.ports)
            touched |= {port.name for port in ports if port.memory and port.use.stored}
        sizes = {param.name: prod(param.shape) for param in facts.kernel.params}
        whole = frozenset(
            name
            for name, regions in written.items()
            if covered(regions, Region.of(0, [(1, sizes[name])]), self._limits.painted) is True
        )
        return _Effect(frozenset(touched), whole)

    def _iterations(
        self, facts: PipelineFacts, stages: Iterable[sch.Stage], known: Mapping[str, int], where: str
    ) -> Iterator[tuple[dict[str, int], set[str]]]:
        """Yield the scalars of each iteration in which one of `stages` fires, with the stages that fire: "each",
        "first", "last"."""
        pipeline = facts.view.pipeline
        lower, upper = value_of(pipeline.lower, known), value_of(pipeline.upper, known)
        all_of_them = any(stage.when == "each" for stage in stages)
        for index in range(lower, upper) if all_of_them else sorted({lower, upper - 1}):
            self._step(where)
            inner = {**known, pipeline.index: index}
            for scalar in pipeline.scalars:
                inner[scalar.name] = evaluate(scalar, inner, where)
            edges = {"first": index == lower, "last": index == upper - 1}
            yield inner, {"each", *(when for when, here in edges.items() if here)}

    def _note_ports(
        self, facts: PipelineFacts, known: Mapping[str, int], where: str, written: dict[str, list[Region]]
    ) -> None:
        """Record the elements that the firings of a pipeline write, for the requested parameters."""
        ports = [
            (stage.stage, port)
            for stage in facts.view.stages
            for port in stage.ports
            if port.writes and port.use.complete and port.name in written
        ]
        if not ports:
            return
        for inner, when in self._iterations(facts, [stage for stage, _ in ports], known, where):
            for stage, port in ports:
                if stage.when in when:
                    written[port.name].append(_touched(stage, port, inner))

    def _pipeline(self, facts: PipelineFacts, known: Mapping[str, int], where: str) -> None:
        """Evaluate the open bounds of every stage in the iterations in which it fires."""
        if not facts.open:
            return
        for inner, when in self._iterations(facts, [stage.stage for stage, _ in facts.open], known, where):
            for stage, bound in facts.open:
                if stage.stage.when in when:
                    self._check(bound, inner, stage.stage.grid, where)

    # -- checks

    def _check(self, bound: Bound, known: Mapping[str, int], grid: Sequence[int], where: str) -> None:
        self.seen.add(bound)
        low = high = bound.const
        sizes = {f"t{axis}": size for axis, size in enumerate(grid)}
        for name, factor in bound.terms:
            reach = factor * (sizes[name] - 1) if name in sizes else 0
            value = 0 if name in sizes else factor * known[name]
            low, high = low + value + min(reach, 0), high + value + max(reach, 0)
        if low < bound.low or high > bound.high:
            raise _out_of_range(bound, low, high, where)

    def _check_pair(self, pair: Pair, known: Mapping[str, int], where: str) -> None:
        self.seen.add(pair)
        one, other = (_region(view, known) for view in (pair.one, pair.other))
        if overlap(one.dims, other.dims, other.offset - one.offset) is not False:
            raise SampleProofErrors.ARGUMENTS_OVERLAP(
                where=pair.where, one=pair.params[0], other=pair.params[1], tensor=pair.one.tensor, sample=where
            )


def _out_of_range(bound: Bound, low: int, high: int, sample: str) -> SsccError:
    """Return the error of a bound that does not hold in a sample."""
    if bound.total is None:
        return SampleProofErrors.SCALAR_OUT_OF_RANGE(
            where=bound.where, scalar=bound.name, low=low, high=high, least=bound.low, most=bound.high, sample=sample
        )
    return SampleProofErrors.VIEW_OUT_OF_RANGE(
        where=bound.where, tensor=bound.name, low=low, high=bound.last(high), elements=bound.total, sample=sample
    )


def _region(view: sch.View, known: Mapping[str, int]) -> Region:
    """Return the region of a view for known scalars."""
    offset = view.offset + sum(factor * known[name] for name, factor in view.terms)
    return Region.of(offset, list(zip(view.strides, view.shape, strict=True)))


def _touched(stage: sch.Stage, port: PortFacts, known: Mapping[str, int]) -> Region:
    """Return the region of its parameter that a port accesses in one iteration, in all firings of the grid."""
    sizes = {f"t{axis}": size for axis, size in enumerate(stage.grid)}
    view = port.port.view
    offset = view.offset + sum(factor * known[name] for name, factor in view.terms if name not in sizes)
    moves = [(factor, sizes[name]) for name, factor in view.terms if name in sizes]
    return Region.of(offset, [*port.pairs, *moves])
