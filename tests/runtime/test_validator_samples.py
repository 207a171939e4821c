"""Results of sample runs, compared with a simple walk through the same control flow, firing by firing."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Entry, For, If, Kernel, Launch, Pipeline, Program, Scalar, Stage, Tensor
from sscc.runtime.validator import Limits, validate
from sscc.runtime.validator.findings import Run
from sscc.runtime.validator.hazards import HazardProofErrors
from sscc.runtime.validator.kernels import KernelProofErrors
from sscc.runtime.validator.pipelines import PipelineProofErrors
from sscc.runtime.validator.samples import SampleProofErrors
from sscc.runtime.validator.validate import ProgramProofErrors
from tests.errors import check, raises
from tests.runtime.broken.build import launch_of, port
from tests.runtime.schedules import copy_body, read, update, view_of, write
from tests.runtime.test_validator_memory import LINE, SIZE, loop, program

TILE = 4


def outcome(candidate: Program, scalars: dict[str, int], limits: Limits | None = None) -> Run | InputError:
    """Return the run of a sample, or the error; no range is declared."""
    try:
        (entry,) = validate(candidate, samples={"main": [scalars]}, limits=limits).entries
    except InputError as error:
        return error
    return entry.runs[0]


STATIC = (
    KernelProofErrors.NO_ITERATION,
    KernelProofErrors.NEVER_TAKEN,
    KernelProofErrors.LOOP_REWRITES,
    ProgramProofErrors.NOT_PROVED,
    HazardProofErrors.ITERATIONS_OVERLAP,
    HazardProofErrors.ITERATIONS_NOT_ORDERED,
    PipelineProofErrors.VIEW_OUT_OF_RANGE,
    SampleProofErrors.VIEW_OUT_OF_RANGE,
)
"""Kinds of errors that every sample has, or that have come because the sample does not come to a view."""


def executed(items: Any, known: dict[str, int]) -> Any:
    """Yield each launch or pipeline that control flow reaches, with its scalars, in order."""

    def value(operand: Any) -> int:
        return operand if isinstance(operand, int) else known[operand]

    for item in items:
        if isinstance(item, Scalar):
            known[item.name] = value(item.args[0]) + value(item.args[1])
        elif isinstance(item, If):
            if value(item.condition):
                yield from executed(item.body, dict(known))
        elif isinstance(item, For):
            for index in range(value(item.lower), value(item.upper)):
                yield from executed(item.body, {**known, item.index: index})
        else:
            yield item, dict(known)


def _random_control(choose: random.Random, leaf: Any, depth: int = 0) -> list[Any]:
    """Launches or pipelines between loops and branches on `some` and `less`, and sums of them."""
    items: list[Any] = []
    for _ in range(choose.randint(1, 2)):
        kind = choose.choice(("leaf", "leaf", "for", "if", "sum")) if depth < 2 else "leaf"
        name = f"v{choose.randrange(1 << 30)}"
        if kind == "leaf":
            items.append(leaf(choose))
        elif kind == "sum":
            items += [Scalar(name, "add", ("some", choose.choice((-1, 0, 1)))), If(name, (leaf(choose),))]
        elif kind == "if":
            items.append(If(choose.choice(("some", "less")), tuple(_random_control(choose, leaf, depth + 1))))
        else:
            upper = choose.choice((1, 2, 3, "some"))
            lower, body = choose.choice((0, 0, 1, "less")), _random_control(choose, leaf, depth + 1)
            items.append(For(name, lower, upper, tuple(body)))
    return items


def test_what_is_written_is_what_the_launches_write_that_control_comes_to() -> None:
    choose, seen = random.Random(1), Counter[Any]()
    for _ in range(400):
        body = _random_control(choose, lambda c: c.choice(("x>a", "x>b", "x>y")))
        candidate = program(*body, scalars=("some", "less"))
        scalars = {"some": choose.randint(0, 3), "less": choose.choice((-1, 0, 1))}
        targets = [launch.args[1].tensor for launch, _ in executed(candidate.entries[0].body, dict(scalars))]
        run = outcome(candidate, scalars)
        if isinstance(run, InputError):
            assert run.kind in STATIC, run
            continue
        assert (set(run.touched), set(run.written)) == (set(targets), {"y"} & set(targets))
        seen[min(len(targets), 3), "y" in targets] += 1
    assert min(seen.values()) > 5, seen
    assert len(seen) == 7, seen


def streamed(items: Any, role: Any) -> Program:
    """A kernel of pipelines that copy tiles of x to tiles of y: words (lower, upper, grid, when, offset, factors)."""
    tensors = (
        Tensor("x", (SIZE,), "f32", "input", "hbm", 0),
        Tensor("y", (SIZE,), "f32", role, "hbm", LINE),
    )
    count = [0]

    def pipeline(item: Any) -> Any:
        if isinstance(item, For | If):
            return dataclasses.replace(item, body=tuple(map(pipeline, item.body)))
        if isinstance(item, Scalar):
            return item
        lower, upper, grid, when, offset, factors = item
        count[0] += 1
        out = port("y", (TILE,), terms=tuple(zip(("t0", "i"), factors, strict=True)))
        out = dataclasses.replace(out, view=dataclasses.replace(out.view, offset=offset))
        stage = Stage("s", "tile", (grid,), (port("x", (TILE,)), out), (), (), when)
        return Pipeline(f"p{count[0]}", "i", lower, upper, (), (), (stage,))

    params = (read("x", (SIZE,)), (write if role == "output" else update)("y", (SIZE,)))
    kernel = Kernel("k", params, ("some", "less"), tuple(map(pipeline, items)))
    outputs = ("y",) if role == "output" else ()
    launch = launch_of(tensors, "k", "x", "y", scalars=("some", "less"))
    entry = Entry("main", ("x",), outputs, ("some", "less"), (), (launch,))
    return Program(tensors, (copy_body("tile", (TILE,)),), (kernel,), (entry,), 2 * LINE)


def _words(choose: random.Random) -> Any:
    grid = choose.choice((1, 2, 4, 8))
    upper = choose.choice((1, 2, 2, "some"))
    factors = (TILE, choose.choice((0, 0, TILE * grid, -TILE * grid)))
    offset = choose.choice((0, 0, TILE, SIZE // 2, SIZE - TILE, SIZE // 2 - TILE))
    return choose.choice((0, 0, 0, 1, "less")), upper, grid, choose.choice(("each", "first", "last")), offset, factors


def test_what_is_written_is_what_the_listed_firings_write() -> None:
    """Pipelines lie in loops and branches, and their stages fire in each iteration, in the first or after the last."""
    choose, seen = random.Random(2), Counter[Any]()
    for _ in range(500):
        role = choose.choice(("output", "output", "state"))
        candidate = streamed([If("some", tuple(_random_control(choose, _words)))], role)
        scalars = {"some": choose.randint(0, 3), "less": choose.choice((-1, 0, 1))}
        begins = []
        for item, known in executed(candidate.kernels[0].body, dict(scalars)):
            (stage,) = item.stages
            lower, upper = (v if isinstance(v, int) else known[v] for v in (item.lower, item.upper))
            turns = list(range(lower, upper))
            for i in {"first": turns[:1], "last": turns[-1:], "each": turns}[stage.when]:
                view = stage.ports[1].view
                begins += [view.offset + view.terms[0][1] * t + view.terms[1][1] * i for t in range(stage.grid[0])]
        held = {begin + n for begin in begins for n in range(TILE)}
        run = outcome(candidate, scalars)
        if isinstance(run, InputError):
            assert run.kind in STATIC, run
            seen["refused"] += 1
            continue
        assert held <= set(range(SIZE))
        assert run.touched == ({"y"} if begins else set())
        whole_ = candidate.tensors[1].role == "output" and held == set(range(SIZE))
        assert run.written == ({"y"} if whole_ else set()), (held, run)
        seen[bool(begins), whole_] += 1
    assert min(seen.values()) > 15, seen
    assert len(seen) == 4, seen


def test_a_sample_takes_as_many_steps_as_it_may() -> None:
    """A step for each item, launch or pipeline, and for each iteration of a loop."""
    body: Any = ("x>b", "x>b")
    candidate = program(loop("x>a", If("some", body)), "x>y", scalars=("some",))
    for some, needed in ((0, 1 + 3 * 3 + 1 + 2), (1, 1 + 3 * 5 + 1 + 2)):  # the kernel holds a pipeline, seen once
        assert isinstance(outcome(candidate, {"some": some}, Limits(steps=needed)), Run)
        error = outcome(candidate, {"some": some}, Limits(steps=needed - 1))
        assert isinstance(error, InputError)
        check(error, SampleProofErrors.TOO_MANY_STEPS, steps=needed - 1)
        assert f"entry 'main' with {{'some': {some}}}" in error.fields["where"]


@pytest.mark.parametrize(
    ("scalars", "kind", "fields"),
    [
        ({}, SampleProofErrors.SCALARS, {"names": ["less", "some"]}),
        ({"some": 1}, SampleProofErrors.SCALARS, {"names": ["less", "some"]}),
        ({"some": 1, "less": 1, "more": 1}, SampleProofErrors.SCALARS, {"names": ["less", "some"]}),
        ({"some": 3, "less": 1}, SampleProofErrors.OUT_OF_RANGE, {"name": "some", "low": 0, "high": 2}),
        ({"some": -1, "less": 1}, SampleProofErrors.OUT_OF_RANGE, {"name": "some", "low": 0, "high": 2}),
        ({"some": 0, "less": 99}, None, {}),
        ({"some": 2, "less": -99}, None, {}),
    ],
)
def test_a_sample_gives_every_scalar_within_its_range(
    scalars: dict[str, int], kind: ErrorKind | None, fields: dict[str, Any]
) -> None:
    candidate = program("x>y", scalars=("some", "less"))
    if not kind:
        validate(candidate, ranges={"some": (0, 2)}, samples={"main": [scalars]})
        return
    with raises(kind, **fields):
        validate(candidate, ranges={"some": (0, 2)}, samples={"main": [scalars]})


def test_scalar_outputs_are_those_of_the_run() -> None:
    candidate = program("x>y", Scalar("sum", "add", ("some", 5)), scalars=("some",))
    (entry,) = candidate.entries
    entry = dataclasses.replace(entry, scalar_outputs=("sum", "some", 7))
    run = outcome(dataclasses.replace(candidate, entries=(entry,)), {"some": 4})
    assert isinstance(run, Run)
    assert run.results == (9, 4, 7)


def test_iterations_of_a_pipeline_take_steps_where_an_output_is_written() -> None:
    """Writes of states do not matter here."""
    for role, steps in (("output", 2 + 8), ("state", 2)):
        candidate = streamed([(0, 8, 1, "each", 0, (0, TILE))], role)
        candidate = dataclasses.replace(candidate, entries=(_kernel_scalars(candidate, 1, 0),))
        assert isinstance(outcome(candidate, {}, Limits(steps=steps)), Run)
        assert isinstance(outcome(candidate, {}, Limits(steps=steps - 1)), InputError)


def _kernel_scalars(candidate: Program, *scalars: int) -> Entry:
    (entry,) = candidate.entries
    (launch,) = entry.body
    return dataclasses.replace(entry, scalar_inputs=(), body=(dataclasses.replace(launch, scalars=scalars),))


def test_arguments_that_move_are_apart_in_the_samples() -> None:
    """Two halves of a state, one copied to the other: which is which, a scalar tells."""
    half = SIZE // 2
    tensors = (Tensor("s", (SIZE,), "f32", "state", "hbm", 0),)
    stage = Stage("s", "half", (), (port("x", (half,)), port("y", (half,))), (), ())
    kernel = Kernel("k", (read("x", (half,)), update("y", (half,))), (), (Pipeline("p", "i", 0, 1, (), (), (stage,)),))
    views = (view_of("s", (half,), 0, ("n", half)), view_of("s", (half,), half, ("m", -half)))
    entry = Entry("main", (), (), ("n", "m"), (), (Launch("k", views),))
    candidate = Program(tensors, (copy_body("half", (half,)),), (kernel,), (entry,), LINE)
    ranges = {"n": (0, 1), "m": (0, 1)}
    for n in (0, 1):
        report = validate(candidate, ranges=ranges, samples={"main": [{"n": n, "m": n}]})
        pair = "entry 'main', launch 0 of kernel 'k': pair of parameters 'x' and 'y'"
        assert report.sampled == (pair,)
        sample = f"entry 'main' with {{'n': {n}, 'm': {1 - n}}}"
        with raises(SampleProofErrors.ARGUMENTS_OVERLAP, one="x", other="y", tensor="s", sample=sample):
            validate(candidate, ranges=ranges, samples={"main": [{"n": n, "m": n}, {"n": n, "m": 1 - n}]})
    with raises(ProgramProofErrors.NOT_PROVED, subject="pair of parameters 'x' and 'y'"):
        validate(candidate, ranges=ranges)
    fixed = {"n": (0, 0), "m": (0, 0)}
    assert validate(candidate, ranges=fixed, samples={"main": [{"n": 0, "m": 0}]}).sampled == ()


@pytest.mark.parametrize(("when", "reaches"), [("each", {0, 1, 2, 3}), ("first", {0}), ("last", {3})])
def test_open_bounds_are_looked_at_in_the_iterations_in_which_a_stage_fires(when: Any, reaches: set[int]) -> None:
    """The window moves by a scalar of the iteration, which its range does not determine."""
    for beyond in range(4):
        candidate = streamed([(0, 4, 2, when, 0, (TILE, 0))], "state")
        (kernel,) = candidate.kernels
        (pipeline,) = kernel.body
        (stage,) = pipeline.stages
        far = Scalar("far", "eq", ("i", beyond)), Scalar("there", "mul", ("far", "some"))
        out = stage.ports[1]
        view = dataclasses.replace(out.view, terms=(("there", TILE), ("t0", TILE)))
        stage = dataclasses.replace(stage, ports=(stage.ports[0], dataclasses.replace(out, view=view)))
        pipeline = dataclasses.replace(pipeline, scalars=far, stages=(stage,))
        candidate = dataclasses.replace(candidate, kernels=(dataclasses.replace(kernel, body=(pipeline,)),))
        tiles = SIZE // TILE
        assert isinstance(outcome(candidate, {"some": tiles - 2, "less": 0}), Run), (when, beyond)
        result = outcome(candidate, {"some": tiles - 1, "less": 0})
        assert isinstance(result, InputError) == (beyond in reaches), (when, beyond)
        if isinstance(result, InputError):
            reached = {"tensor": "y", "low": SIZE - TILE, "high": SIZE + TILE - 1, "elements": SIZE}
            check(result, SampleProofErrors.VIEW_OUT_OF_RANGE, **reached)
