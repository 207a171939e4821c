"""Streams as counts, against playing every firing one by one, by a few lines that know nothing of the validator."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from sscc.ir.errors import InputError
from sscc.ir.schedule import Access, Body, Instr, Kernel, Pipeline, Stage, Vector
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.firing_counts import FiringProofErrors, check_tokens
from sscc.runtime.validator.linear import Scope
from sscc.runtime.validator.pipelines import PipelineView
from sscc.runtime.validator.streams import check_rates
from tests.errors import check, raises, refusal
from tests.runtime.broken.build import port, sram
from tests.runtime.schedules import read, write

WHOLE, SHORT = Limits(firings=1 << 30), Limits(firings=0)
RATES = ((1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 3), (3, 2))  # slots, iterations


class Net:
    """Stages in their order, (trips, when), their ends of buffers, (buffer, kind, per, lag), and buffers' depths."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, Any]] = {}
        self.ends: dict[str, list[tuple[str, str, int, int]]] = {}
        self.depths: dict[str, int] = {}
        self.careless: tuple[str, str] | None = None  # a stage, and the buffer that it does not wait for

    def stage(self, name: str, trips: int, when: Any = "each") -> None:
        self.stages[name], self.ends[name] = (trips, when), []

    def view(self, iterations: int | str, **ranges: tuple[int, int]) -> PipelineView:
        """As the validator sees it. What fills a slot is not its matter: every firing shows other elements."""
        stages, facts = [], {}
        for name, (trips, when) in self.stages.items():
            ends = self.ends[name]
            params = tuple((read if kind == "read" else write)(f"p{n}", (2,)) for n, (_, kind, *_) in enumerate(ends))
            steps = tuple(_fill(param.name) for param in params if param.access == "write")
            facts[name] = prove_body(Body(name, params, (), (), (), steps), Limits())
            ports = tuple(port(buffer, (2,), per, lag, (("t0", 2),)) for buffer, _, per, lag in ends)
            waits = tuple(dict.fromkeys(buffer for buffer, *_ in ends if (name, buffer) != self.careless))
            stages.append(Stage(name, name, (trips,), ports, (), waits, when))
        buffers = sram(*((name, (64,), depth) for name, depth in self.depths.items()))
        scope = Scope("test")
        for name, bounds in ranges.items():
            scope.variable(name, bounds)
        pipeline = Pipeline("p", "i", 0, iterations, (), buffers, tuple(stages))
        return PipelineView(Kernel("k", (), tuple(ranges), (pipeline,)), pipeline, facts, scope)

    def runs(self, iterations: int) -> bool:
        """Return True if every firing happens when each happens as soon as it may."""
        return self._played(iterations) is True

    def first_too_early(self, iterations: int) -> tuple[str, ...] | None:
        """The first firing that came too early: stage, firing, iteration, what it does, slot."""
        result = self._played(iterations)
        return None if isinstance(result, bool) else result

    def _played(self, iterations: int) -> bool | tuple[str, ...]:
        total = {name: trips * (iterations if when == "each" else 1) for name, (trips, when) in self.stages.items()}
        fired = dict.fromkeys(total, 0)

        def through(stage: str, per: int, lag: int, slot: int) -> bool:
            """Return True if a stage has finished with a slot, or never uses it."""
            return not lag <= slot < lag + total[stage] // per or fired[stage] >= (slot - lag + 1) * per

        def free(stage: str, buffer: str, kind: str, per: int, lag: int) -> bool:
            """Return True if the next slot of an end is complete, or its place is free."""
            slot = fired[stage] // per + lag - (self.depths[buffer] if kind == "write" else 0)
            for other, ends in self.ends.items():
                for end in ends:
                    waits = end[0] == buffer and (kind == "write" or end[1] == "write")
                    itself = (other, end) == (stage, (buffer, kind, per, lag))
                    if waits and not itself and not through(other, *end[2:], slot):
                        return False
            return True

        moved = True
        while moved:
            moved = False
            for stage, (trips, _) in self.stages.items():
                ends = self.ends[stage]
                waited = [end for end in ends if (stage, end[0]) != self.careless]
                while fired[stage] < total[stage] and all(free(stage, *end) for end in waited):
                    for buffer, kind, per, lag in ends:
                        if not free(stage, buffer, kind, per, lag):
                            does = "overwrites" if kind == "write" else "reads"
                            now = fired[stage]
                            return stage, str(now), str(now // trips), does, str(now // per + lag)
                    fired[stage] += 1
                    moved = True
        return fired == total


def _fill(name: str) -> Vector:
    return Vector((2,), (), Access(name, ((1, 0),)), (Instr("one", "const", (1.0,), "f32"),), "one")


def random_net(seed: int, iterations: int | None) -> Net:
    """Stages of several firings, buffers of many rates and depths, carries with prologue and epilogue, constants.

    Without a number of iterations it has no carries: where they end depends on it. No slot of a carry takes as many
    iterations as there are: streams that are cut short take it for one that is kept.
    """
    choose, net = random.Random(seed), Net()
    names = [f"s{n}" for n in range(choose.randint(2, 4))]
    for name in choose.sample(names, len(names)):
        net.stage(name, choose.choice((1, 1, 2, 3, 6)))
    for number in range(choose.randint(1, 5)):
        source, target, buffer = choose.choice(names), choose.choice(names), f"b{number}"
        trips = net.stages[source][0], net.stages[target][0]
        fitting = [rate for rate in RATES if all(t * rate[1] % rate[0] == 0 for t in trips)]
        slots, period = choose.choice(fitting)
        carried = iterations is not None and iterations * slots % period == 0
        lag = choose.choice((0, 0, 1, 2, 3)) if carried else 0
        if source == target and not lag:
            continue
        net.depths[buffer] = choose.choice((1, 1, 2, 3, 4))
        net.ends[source].append((buffer, "write", trips[0] * period // slots, lag))
        net.ends[target].append((buffer, "read", trips[1] * period // slots, 0))
        if choose.random() < 0.2:  # another port on a part of the same slot
            net.ends[target].append(net.ends[target][-1])
        if iterations is not None and carried and choose.random() < 0.3:
            slot = choose.choice((0, 1, 2, 3, 4)) % (iterations * slots // period)
            slot = slot if choose.random() < 0.2 else iterations * slots // period + lag - 1 - slot
            net.stage(f"after_{buffer}", 1, "last")
            net.ends[f"after_{buffer}"].append((buffer, "read", 1, slot))
        if lag and iterations is not None:
            per = choose.choice((1, 2))
            net.stage(f"first_{buffer}", lag * per, "first")
            net.ends[f"first_{buffer}"].append((buffer, "write", per, 0))
            net.stage(f"last_{buffer}", lag * per, "last")
            net.ends[f"last_{buffer}"].append((buffer, "read", per, iterations * slots // period))
    if iterations is not None and choose.random() < 0.5:
        reader = choose.choice(names)
        net.depths["kept"] = 1
        net.stage("first_kept", 2, "first")
        net.ends["first_kept"].append(("kept", "write", 2, 0))
        net.ends[reader].append(("kept", "read", net.stages[reader][0] * iterations, 0))
        if choose.random() < 0.3:
            net.stage("last_kept", 1, "last")
            net.ends["last_kept"].append(("kept", "read", 1, 0))
    net.stages = {name: stage for name, stage in net.stages.items() if net.ends[name]}
    net.ends = {name: net.ends[name] for name in net.stages}
    return net


def verdict(view: PipelineView, limits: Limits) -> str:
    try:
        check_tokens(view, limits)
    except InputError as refusal:
        return VERDICTS[refusal.kind]
    return "runs"


DOES = {
    FiringProofErrors.OVERWRITES: "overwrites",
    FiringProofErrors.READS_INCOMPLETE: "reads",
    FiringProofErrors.READS_UNFILLED: "reads",
}
VERDICTS = {
    FiringProofErrors.DEADLOCK: "deadlock",
    FiringProofErrors.TOO_MANY_ROUNDS: "cannot be proved",
    FiringProofErrors.NO_REPETITION: "do not repeat",
}


def _rates_agree(view: PipelineView) -> bool:
    try:
        check_rates(view)
    except InputError:
        return False
    return True


def test_streams_run_or_stop_as_when_they_are_played_one_by_one() -> None:
    """To the end, and until their state repeats."""
    seen = []
    for seed in range(600):
        iterations = random.Random(seed).choice((1, 6, 12, 18, 24))
        net = random_net(seed, iterations)
        view = net.view(iterations)
        if not net.depths or not _rates_agree(view):
            continue
        expected = "runs" if net.runs(iterations) else "deadlock"
        assert verdict(view, WHOLE) == expected, seed
        assert verdict(view, SHORT) == expected, seed
        seen.append(expected)
    assert min(seen.count("runs"), seen.count("deadlock")) > 30, (seen.count("runs"), seen.count("deadlock"))


def test_streams_of_any_number_of_iterations_run_or_stop_for_one_of_them() -> None:
    seen = []
    for seed in range(300):
        net = random_net(seed, None)
        view = net.view("n", n=(1, 24))
        if not net.depths or not _rates_agree(view):
            continue
        expected = "runs" if all(net.runs(iterations) for iterations in range(1, 25)) else "deadlock"
        assert verdict(view, WHOLE) == expected, seed
        seen.append(expected)
    assert min(seen.count("runs"), seen.count("deadlock")) > 5, (seen.count("runs"), seen.count("deadlock"))


def _chain() -> Net:
    """Three stages, in the order in which a round gets through one of them only."""
    net = Net()
    for name in ("c", "b", "a"):
        net.stage(name, 1)
    net.depths = {"x": 1, "y": 1}
    net.ends = {
        "a": [("x", "write", 1, 0)],
        "b": [("x", "read", 1, 0), ("y", "write", 1, 0)],
        "c": [("y", "read", 1, 0)],
    }
    return net


def test_as_many_rounds_are_played_as_may_be() -> None:
    """One iteration takes three rounds, and another look to see that all is done."""
    assert verdict(_chain().view(1), Limits(rounds=4)) == "runs"
    assert verdict(_chain().view(1), Limits(rounds=3)) == "cannot be proved"
    assert verdict(_chain().view(50), Limits(firings=0, rounds=3)) == "do not repeat"


def test_a_deadlock_names_every_stage_that_waits_and_no_other() -> None:
    net = _chain()
    net.stage("d", 1)
    net.depths["z"] = 1
    net.ends["d"] = [("z", "read", 1, 0)]
    net.ends["a"].append(("z", "read", 1, 0))
    net.ends["c"].append(("z", "write", 1, 0))
    waits = [
        f"{stage!r} waits for slot 0 of buffer {buffer!r} to be complete ({other!r} has fired 0 of 1 times)"
        for stage, buffer, other in (("c", "y", "b"), ("b", "x", "a"), ("a", "z", "c"), ("d", "z", "c"))
    ]
    where = "kernel 'k', pipeline 'p'"
    with raises(FiringProofErrors.DEADLOCK, where=where, iteration=0, stages=["c", "b", "a", "d"], waits=waits):
        check_tokens(net.view(2), WHOLE)


def test_a_deadlock_names_the_buffer_that_stops_a_stage_now() -> None:
    """Not one that would stop it later: slot 0 of x is there, slot 1 would not be."""
    net = Net()
    for name in ("a", "b", "c"):
        net.stage(name, 1)
    net.depths = {"x": 1, "y": 1, "z": 1}
    net.ends = {"a": [("x", "write", 1, 0)], "b": [("x", "read", 1, 0), ("y", "read", 1, 0), ("z", "write", 1, 0)]}
    net.ends["c"] = [("z", "read", 1, 0), ("y", "write", 1, 0)]
    with raises(FiringProofErrors.DEADLOCK) as caught:
        check_tokens(net.view(3), WHOLE)
    wait = "'b' waits for slot 0 of buffer 'y' to be complete ('c' has fired 0 of 1 times)"
    assert wait in caught.value.fields["waits"]


def test_as_many_firings_are_played_one_by_one_as_may_be() -> None:
    """Three stages of 50 iterations take more than three rounds that way; cut short they do not repeat in three."""
    assert verdict(_chain().view(50), Limits(firings=150, rounds=3)) == "cannot be proved"
    assert verdict(_chain().view(50), Limits(firings=149, rounds=3)) == "do not repeat"


def test_rounds_do_not_grow_with_the_iterations() -> None:
    """A value that one stage keeps and another gathers in every iteration, a carry, and slots of three iterations."""

    def rounds(iterations: int) -> int:
        net = Net()
        for name, trips, when in (("before", 6, "first"), ("a", 2, "each"), ("b", 3, "each"), ("after", 6, "last")):
            net.stage(name, trips, when)
        net.depths = {"kept": 1, "carried": 4, "apart": 2, "whole": 1}
        net.ends = {
            "before": [("kept", "write", 6, 0), ("carried", "write", 2, 0)],
            "a": [("kept", "read", 2 * iterations, 0), ("carried", "read", 2, 0), ("apart", "write", 6, 0)],
            "b": [("carried", "write", 3, 3), ("apart", "read", 9, 0), ("whole", "write", 3 * iterations, 0)],
            "after": [("carried", "read", 2, iterations), ("whole", "read", 6, 0)],
        }
        return next(n for n in range(100) if verdict(net.view(iterations), Limits(firings=0, rounds=n)) == "runs")

    assert rounds(999_999) == rounds(24) < 30


def test_firings_that_do_not_wait_are_refused_where_they_come_too_early() -> None:
    """One wait is dropped: the first firing that the rule forbids, and that happens all the same, is named."""
    seen = Counter[str]()
    for seed in range(400):
        choose = random.Random(seed)
        iterations = choose.choice((1, 2, 6, 12))
        net = random_net(seed, iterations)
        if not net.depths or not _rates_agree(net.view(iterations)):
            continue
        name = choose.choice(list(net.stages))
        net.careless = (name, choose.choice(net.ends[name])[0])
        expected, error = net.first_too_early(iterations), refusal(check_tokens, net.view(iterations), WHOLE)
        does = DOES.get(error.kind) if error else "runs"
        seen[does or VERDICTS[error.kind]] += 1
        if does not in DOES.values():
            assert expected is None, (seed, error)
            continue
        stage, firing, iteration, expected_does, slot = expected
        assert does == expected_does, (seed, error)
        where = f"kernel 'k', pipeline 'p', stage {stage!r}"
        check(error, error.kind, where=where, firing=int(firing), iteration=int(iteration), slot=int(slot))
    assert min(seen[what] for what in ("overwrites", "reads", "runs", "deadlock")) > 5, seen
