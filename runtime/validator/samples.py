"""Sample runs: the control of entries and kernels with given scalars, exactly; no data is touched.

They decide the bounds that hold for all values but could not be proved to, and count what control enters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sscc.runtime import schedule as sch
from sscc.runtime.validator.entries import EntryFacts, LaunchFacts, Pair
from sscc.runtime.validator.failure import Limits, refuse
from sscc.runtime.validator.kernels import KernelFacts, PipelineFacts, traffic
from sscc.runtime.validator.linear import evaluate, value_of
from sscc.runtime.validator.pipeline import Bound
from sscc.runtime.validator.regions import Region, overlap
from sscc.runtime.validator.report import Run


@dataclass(frozen=True)
class _Cost:
    """What one execution of a kernel fires and moves; bytes per parameter, or per tier for spilled buffers."""

    firings: int
    loads: Mapping[str, int]
    stores: Mapping[str, int]


class Sampler:
    """Runs samples. `seen` gathers the bounds and pairs that a run has evaluated."""

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
        self._costs: dict[tuple[str, tuple[int, ...]], _Cost] = {}
        self.seen: set[Bound | Pair] = set()

    def run(self, entry: sch.Entry, scalars: Mapping[str, int]) -> Run:
        where = f"entry {entry.name!r} with {dict(scalars)}"
        if set(scalars) != set(entry.scalar_inputs):
            refuse(where, f"a sample must give {sorted(entry.scalar_inputs)}")
        for name, value in scalars.items():
            low, high = self._ranges.get(name, (value, value))
            if not low <= value <= high:
                refuse(where, f"the sample's {name!r} is not within its range {low} .. {high}")
        loads: Counter[str] = Counter()
        stores: Counter[str] = Counter()
        launches = firings = 0
        for item, known in self._walk(entry.body, dict(scalars), where):
            assert isinstance(item, sch.Launch)  # pipelines in entries are refused before
            cost = self._launch(self._launches[id(item)], known, where)
            launches, firings = launches + 1, firings + cost.firings
            tiers = self._tiers(item)
            for moved, total in ((cost.loads, loads), (cost.stores, stores)):
                for name, nbytes in moved.items():
                    total[tiers.get(name, name)] += nbytes
        return Run(dict(scalars), launches, firings, dict(loads), dict(stores))

    def _tiers(self, launch: sch.Launch) -> dict[str, str]:
        params = self._kernels[launch.kernel].kernel.params
        pairs = zip(params, launch.args, strict=True)
        return {f"={param.name}": self._tensors[view.tensor].tier for param, view in pairs}

    def _walk(
        self, items: Sequence[sch.Item], known: dict[str, int], where: str
    ) -> Iterator[tuple[sch.Launch | sch.Pipeline, dict[str, int]]]:
        """Every launch or pipeline that control enters, with the scalars at that place."""
        steps = [self._limits.steps]
        yield from self._block(items, known, where, steps)

    def _block(
        self, items: Sequence[sch.Item], known: dict[str, int], where: str, steps: list[int]
    ) -> Iterator[tuple[sch.Launch | sch.Pipeline, dict[str, int]]]:
        for item in items:
            steps[0] -= 1
            if steps[0] < 0:
                refuse(where, f"the sample takes more than {self._limits.steps} steps")
            if isinstance(item, sch.Scalar):
                known[item.name] = evaluate(item, known, where)
            elif isinstance(item, sch.If):
                if value_of(item.condition, known):
                    yield from self._block(item.body, dict(known), where, steps)
            elif isinstance(item, sch.For):
                for index in range(value_of(item.lower, known), value_of(item.upper, known)):
                    yield from self._block(item.body, {**known, item.index: index}, where, steps)
            else:
                yield item, known

    # -- one launch

    def _launch(self, facts: LaunchFacts, known: Mapping[str, int], where: str) -> _Cost:
        for bound in facts.open:
            self._check(bound, known, (), where)
        for pair in facts.pairs:
            self._check_pair(pair, known, where)
        values = tuple(value_of(operand, known) for operand in facts.launch.scalars)
        key = (facts.kernel.name, values)
        if key not in self._costs:
            scalars = dict(zip(facts.kernel.scalars, values, strict=True))
            self._costs[key] = self._kernel(self._kernels[facts.kernel.name], scalars, f"{where}: {facts.where}")
        return self._costs[key]

    def _kernel(self, facts: KernelFacts, scalars: dict[str, int], where: str) -> _Cost:
        firings = 0
        loads: Counter[str] = Counter()
        stores: Counter[str] = Counter()
        for item, known in self._walk(facts.kernel.body, scalars, where):
            assert isinstance(item, sch.Pipeline)  # launches in kernels are refused before
            pipeline = facts.pipelines[item.name]
            count = value_of(item.upper, known) - value_of(item.lower, known)
            if count <= 0:
                continue
            self._pipeline(pipeline, known, where)
            firings += sum(s.trips * (count if s.when == "each" else 1) for s in item.stages)
            names = {param.name: f"={param.name}" for param in facts.kernel.params}
            for once in (False, True):
                for moved, total in zip(traffic(pipeline.view, names, once=once), (loads, stores), strict=True):
                    for name, nbytes in moved.items():
                        total[name] += nbytes * (1 if once else count)
        return _Cost(firings, loads, stores)

    def _pipeline(self, facts: PipelineFacts, known: Mapping[str, int], where: str) -> None:
        """Evaluates the open bounds of every stage in the iterations in which it fires."""
        if not facts.open:
            return
        pipeline = facts.view.pipeline
        lower, upper = value_of(pipeline.lower, known), value_of(pipeline.upper, known)
        for index in range(lower, upper):
            inner = {**known, pipeline.index: index}
            for scalar in pipeline.scalars:
                inner[scalar.name] = evaluate(scalar, inner, where)
            for stage, bound in facts.open:
                fires = {"each": True, "first": index == lower, "last": index == upper - 1}[stage.stage.when]
                if fires:
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
            refuse(bound.where, f"{bound.says(low, high)}, in {where}")

    def _check_pair(self, pair: Pair, known: Mapping[str, int], where: str) -> None:
        self.seen.add(pair)
        one, other = (
            Region.of(
                view.offset + sum(factor * known[name] for name, factor in view.terms),
                list(zip(view.strides, view.shape, strict=True)),
            )
            for view in (pair.one, pair.other)
        )
        if overlap(one.dims, other.dims, other.offset - one.offset) is not False:
            refuse(pair.where, f"{pair.what} shares elements of {pair.one.tensor!r}, one of them written, in {where}")
