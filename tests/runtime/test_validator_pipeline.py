"""Proofs of one pipeline: its form, the scalars of its stages, bounds, and places that may meet."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.operations import CausalAttention
from sscc.ir.schedule import Body, Buffer, Kernel, Pipeline, Port, Scalar, Stage, View, Window
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.failure import Limits, NumberProofErrors
from sscc.runtime.validator.linear import Linear, Range, ScalarProofErrors, Scope
from sscc.runtime.validator.pipelines import (
    Bound,
    PipelineProofErrors,
    PipelineView,
    check_view,
    grid_terms,
    is_dense,
    linear_offset,
    may_meet,
    open_bounds,
    proved,
)
from sscc.runtime.validator.regions import Region
from tests.errors import raises
from tests.runtime.broken.build import port, sram
from tests.runtime.schedules import copy_body, read, update, write

# ------------------------------------------------------------------------------------------------------------ places


def listed(region: Region) -> set[int]:
    points = {region.offset}
    for stride, size in region.dims:
        points = {point + k * stride for point in points for k in range(size)}
    return points


def test_places_may_meet_where_some_values_of_the_scalars_bring_them_together() -> None:
    """Against all values of all scalars, whose ranges may be one value, and whose factors may be negative."""
    choose, meetings = random.Random(3), []
    for _ in range(2000):
        one, other = (
            Region.of(choose.randint(-4, 4), [(choose.choice((-3, 1, 2, 5)), choose.randint(1, 3)) for _ in range(2)])
            for _ in range(2)
        )
        scope, terms = Scope("test"), []
        for name in "ab"[: choose.randint(0, 2)]:
            low = choose.randint(-3, 3)
            scope.variable(name, (low, low + choose.choice((0, 0, 1, 3))))
            terms.append((name, choose.choice((-7, -2, 1, 3, 4))))
        shift = Linear(choose.randint(-20, 20), tuple(terms))
        ranges = [range(int(scope.bounds[name][0]), int(scope.bounds[name][1]) + 1) for name, _ in terms]
        shifts = {shift.const + sum(f * v for (_, f), v in zip(terms, values, strict=True))
                  for values in product(*ranges)}  # fmt: skip
        meets = any(place + moved in listed(one) for place in listed(other) for moved in shifts)
        assert may_meet(one, other, shift, scope) is meets, (one, other, shift, scope.bounds)
        meetings.append(meets)
    assert 0.2 < sum(meetings) / len(meetings) < 0.8


@pytest.mark.parametrize("bounds", [(-inf, 0), (0, inf), (-inf, inf), None])
def test_places_may_meet_where_a_scalar_has_no_bounds(bounds: Range | None) -> None:
    scope, point = Scope("test"), Region.of(0, [])
    if bounds is not None:
        scope.variable("n", bounds)
    assert may_meet(point, point, Linear(1000, (("n", 1),)), scope) is True


# ------------------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (3, 1), True), ((2, 3), (4, 1), False), ((2, 3), (3, 2), False), ((1, 3), (9, 1), True),
        ((2, 1), (1, 9), True), ((2, 2), (9, 1), False), ((2, 2), (2, 9), False), ((), (), True),
        ((2, 3), (1, 2), False),
    ],
)  # fmt: skip
def test_a_dense_view_shows_row_after_row(shape: tuple[int, ...], strides: tuple[int, ...], dense: bool) -> None:
    assert is_dense(View("x", shape, strides)) is dense


@pytest.mark.parametrize(
    ("view", "kind", "fields"),
    [
        (View("x", (2, 3), (0, 1)), None, {}),
        (View("x", (), ()), None, {}),
        (View("x", (1,), (1,), -5, (("n", -3),)), None, {}),
        (
            View("x", (2, 3), (1,)), PipelineProofErrors.VIEW_FORM,
            {"where": "here", "tensor": "x", "shape": [2, 3], "strides": [1]},
        ),
        (View("x", (2, 3), (3, -1)), PipelineProofErrors.VIEW_FORM, {"where": "here", "tensor": "x"}),
        (View("x", (2, 0), (3, 1)), PipelineProofErrors.VIEW_FORM, {"where": "here", "tensor": "x"}),
        (
            View("x", (2,), (1,), 1 << 48), NumberProofErrors.TOO_LARGE,
            {"where": "here", "subject": "view of 'x'", "number": 281474976710656},
        ),
        (
            View("x", (2,), (1,), 0, (("n", 1 << 48),)), NumberProofErrors.TOO_LARGE,
            {"where": "here", "subject": "view of 'x'", "number": 281474976710656},
        ),
        (
            View("x", (2,), (1 << 48,)), NumberProofErrors.TOO_LARGE,
            {"where": "here", "subject": "view of 'x'", "number": 281474976710656},
        ),
    ],
)
def test_the_form_of_a_view(view: View, kind: ErrorKind | None, fields: dict[str, Any]) -> None:
    if not kind:
        check_view(view, "here")
        return
    with raises(kind, **fields):
        check_view(view, "here")


# ------------------------------------------------------------------------------------------------------------ bounds


def test_a_bound_holds_or_is_left_open_or_surely_does_not_hold() -> None:
    """It is wrong only where control surely comes and every scalar in it surely takes both ends of its range."""
    for low, high, exact, certain in product((-1, 0, 1), (8, 9, 10), (True, False), (True, False)):
        scope = Scope("test")
        scope.variable("n", (low, high))
        scope.certain, scope.exact = certain, {"n"} if exact else set()
        bound = Bound("here", "the number", 1, (("n", 2),), 1, 19)
        if low >= 0 and high <= 9:
            assert proved(bound, scope) is True
        elif not exact or not certain:
            assert proved(bound, scope) is False
        else:
            reached = {"low": 1 + 2 * low, "high": 1 + 2 * high, "least": 1, "most": 19}
            with raises(PipelineProofErrors.SCALAR_OUT_OF_RANGE, where="here", scalar="the number", **reached):
                proved(bound, scope)


def test_the_bound_of_a_view_keeps_all_of_it_inside() -> None:
    scope = Scope("test")
    scope.variable("n", (0, 3))
    scope.exact.add("n")
    view = View("x", (2, 3), (10, 2), 1, (("n", 4),))  # elements 1 .. 27
    assert proved(Bound.of_view("here", view, 28), scope)
    with raises(PipelineProofErrors.VIEW_OUT_OF_RANGE, where="here", tensor="x", low=1, high=27, elements=27):
        proved(Bound.of_view("here", view, 27), scope)
    with raises(PipelineProofErrors.VIEW_OUT_OF_RANGE, low=-1, high=25, elements=28):
        proved(Bound.of_view("here", replace(view, offset=-1), 28), scope)


# --------------------------------------------------------------------------------------------------------- pipelines

BODIES = (copy_body("copy", (2,)), Body("number", (write("y", (2,)),), ("n",), (), (), ()))
STAGE = Stage("s", "copy", (4,), (port("x", (2,), terms=(("t0", 2),)), port("b", (2,), 1)), (), ("b",))
OTHER = Stage("t", "copy", (4,), (port("b", (2,), 1), port("y", (2,), terms=(("t0", 2),))), (), ("b",))


def view(
    *stages: Stage, lower: Any = 0, upper: Any = 1, buffers: tuple[Buffer, ...] | None = None, **ranges: Range
) -> PipelineView:
    """A pipeline from x through a buffer b to y, z being read only."""
    scope = Scope("kernel")
    for name, bounds in ranges.items():
        scope.variable(name, bounds)
    buffers = sram(("b", (2,), 2)) if buffers is None else buffers
    pipeline = Pipeline("p", "i", lower, upper, (Scalar("next", "add", ("i", 1)),), buffers, stages or (STAGE, OTHER))
    params = (read("x", (8,)), update("y", (8,)), read("z", (2,)), read("w", (2,), "i64"))
    kernel = Kernel("k", params, (), (pipeline,))
    return PipelineView(kernel, pipeline, {body.name: prove_body(body, Limits()) for body in BODIES}, scope)


def test_a_pipeline_of_right_form_is_accepted() -> None:
    first, second = view().stages
    assert (first.trips, second.trips) == (4, 4)
    assert [(port.name, port.memory, port.reads, port.writes) for port in first.ports] == [
        ("x", True, True, False), ("b", False, False, True),
    ]  # fmt: skip
    assert first.ports[0].pairs == [(1, 2)]


def _ports(*ports: Port, **fields: Any) -> Stage:
    return replace(STAGE, ports=ports, **fields)


TILE, SLOT = STAGE.ports
STILL = port("x", (2,))


@pytest.mark.parametrize(
    ("stage", "kind", "fields"),
    [
        (
            replace(STAGE, body="lost"), PipelineProofErrors.UNKNOWN_BODY,
            {"where": "kernel 'k', pipeline 'p', stage 's'", "body": "lost"},
        ),
        (replace(STAGE, grid=(4, 0)), PipelineProofErrors.STAGE_FORM, {"grid": [4, 0], "pcus": 0}),
        (replace(STAGE, pcus=-1), PipelineProofErrors.STAGE_FORM, {"grid": [4], "pcus": -1}),
        (replace(STAGE, pcus=0), None, {}),
        (replace(STAGE, grid=(4, 1)), None, {}),
        (replace(STAGE, grid=()), ScalarProofErrors.UNDEFINED, {"scalar": "t0"}),
        (
            replace(STAGE, grid=(4, 1 << 46)), NumberProofErrors.TOO_LARGE,
            {"subject": "its grid", "number": 281474976710656},
        ),
        (
            replace(STAGE, ports=(TILE,)), PipelineProofErrors.PORT_COUNT,
            {"ports": 1, "scalars": 0, "body": "copy", "params": 2, "body_scalars": 0},
        ),
        (
            replace(STAGE, scalars=(1,)), PipelineProofErrors.PORT_COUNT,
            {"ports": 2, "scalars": 1, "body": "copy", "params": 2, "body_scalars": 0},
        ),
        (replace(STAGE, waits=("lost",)), PipelineProofErrors.WAITS, {"waits": ["lost"], "buffers": ["b"]}),
        (replace(STAGE, waits=("b", "b")), PipelineProofErrors.WAITS, {"waits": ["b", "b"], "buffers": ["b"]}),
        (replace(STAGE, waits=()), None, {}),
        # Firings with which nothing moves: all but those that fill or read the slots of a buffer one after another.
        (_ports(STILL, port("y", (2,))), PipelineProofErrors.IDLE_AXIS, {"size": 4}),
        (_ports(port("x", (2,), terms=(("t0", 0),)), port("y", (2,))), PipelineProofErrors.IDLE_AXIS, {"size": 4}),
        (_ports(STILL, port("y", (2,)), grid=(1,)), None, {}),
        (_ports(STILL, port("y", (2,)), grid=(2,)), PipelineProofErrors.IDLE_AXIS, {"size": 2}),
        (_ports(STILL, port("y", (2,), terms=(("t0", 1),))), None, {}),
        (_ports(STILL, SLOT), None, {}),
        (_ports(STILL, port("b", (2,), 3)), None, {}),
        (_ports(STILL, port("b", (2,), 4)), PipelineProofErrors.IDLE_AXIS, {"size": 4}),
        (_ports(TILE, SLOT, grid=(4, 2)), None, {}),
        (_ports(TILE, port("y", (2,)), grid=(4, 2)), PipelineProofErrors.IDLE_AXIS, {"size": 2}),
        (Stage("s", "number", (4,), (port("y", (2,)),), ("t0",), ()), None, {}),
        (Stage("s", "number", (4,), (port("y", (2,)),), ("next",), ()), PipelineProofErrors.IDLE_AXIS, {"size": 4}),
        (Stage("s", "number", (), (port("y", (2,)),), ("lost",), ()), ScalarProofErrors.UNDEFINED, {"scalar": "lost"}),
        # Ports.
        (_ports(port("lost", (2,)), SLOT), PipelineProofErrors.UNKNOWN_REGION, {"name": "lost"}),
        (
            _ports(port("x", (1,)), SLOT), PipelineProofErrors.PORT_TYPE,
            {"dtype": "f32", "shape": [2], "tensor": "x", "actual": "f32", "actual_shape": [1]},
        ),
        (
            _ports(port("w", (2,)), SLOT), PipelineProofErrors.PORT_TYPE,
            {"dtype": "f32", "shape": [2], "tensor": "w", "actual": "i64", "actual_shape": [2]},
        ),
        (_ports(port("x", (2,), 1), SLOT), PipelineProofErrors.MEMORY_PORT, {"name": "x", "per": 1, "lag": 0}),
        (_ports(port("x", (2,), 0, 1), SLOT), PipelineProofErrors.MEMORY_PORT, {"name": "x", "per": 0, "lag": 1}),
        (_ports(port("x", (2,), -1), SLOT), PipelineProofErrors.MEMORY_PORT, {"name": "x", "per": -1, "lag": 0}),
        (_ports(TILE, port("b", (2,), 0)), PipelineProofErrors.BUFFER_PORT, {"name": "b", "per": 0, "lag": 0}),
        (_ports(TILE, port("b", (2,), -1)), PipelineProofErrors.BUFFER_PORT, {"name": "b", "per": -1, "lag": 0}),
        (_ports(TILE, port("b", (2,), 1, -1)), PipelineProofErrors.BUFFER_PORT, {"name": "b", "per": 1, "lag": -1}),
        (_ports(TILE, port("b", (2,), 1, 1)), None, {}),
        (
            _ports(TILE, port("b", (2,), 1 << 48)), NumberProofErrors.TOO_LARGE,
            {"subject": "the port on 'b'", "number": 281474976710656},
        ),
        (
            _ports(TILE, port("b", (2,), 1, 1 << 48)), NumberProofErrors.TOO_LARGE,
            {"subject": "the port on 'b'", "number": 281474976710656},
        ),
        (
            _ports(Port(View("x", (2,), (-1,))), SLOT), PipelineProofErrors.VIEW_FORM,
            {"tensor": "x", "shape": [2], "strides": [-1]},
        ),
        (_ports(TILE, port("z", (2,))), PipelineProofErrors.WRITES_READ_ONLY, {"name": "z"}),
    ],
)  # fmt: skip
def test_the_form_of_a_stage(stage: Stage, kind: ErrorKind | None, fields: dict[str, Any]) -> None:
    if not kind:
        open_bounds(view(stage, OTHER))
        return
    with raises(kind, **fields):
        open_bounds(view(stage, OTHER))


def test_names_are_given_once() -> None:
    with raises(PipelineProofErrors.REGION_TWICE, name="x"):
        view(buffers=sram(("b", (2,), 2), ("x", (2,), 2)))
    with raises(PipelineProofErrors.STAGE_TWICE, name="s"):
        view(STAGE, replace(OTHER, name="s"))


def _single(body: Body, *ports: Port) -> PipelineView:
    """A stage of this body, with ports on x, on y and on a buffer b."""
    stage = Stage("s", "body", (), ports, (), ())
    pipeline = Pipeline("p", "i", 0, 1, (), sram(("b", (2,), 2)), (stage,))
    kernel = Kernel("k", (read("x", (8,)), update("y", (8,))), (), (pipeline,))
    return PipelineView(kernel, pipeline, {"body": prove_body(body, Limits())}, Scope("kernel"))


def test_memory_is_updated_in_place_and_a_buffer_is_not() -> None:
    body = Body("body", (update("y", (2,)),), (), (), (), ())
    _single(body, port("y", (2,)))
    with raises(PipelineProofErrors.UPDATES_BUFFER, where="kernel 'k', pipeline 'p', stage 's', port 'y'", name="b"):
        _single(body, port("b", (2,), 1))
    with raises(PipelineProofErrors.WRITES_READ_ONLY, where="kernel 'k', pipeline 'p', stage 's', port 'y'", name="x"):
        _single(body, port("x", (2,)))


def test_a_window_needs_the_elements_side_by_side() -> None:
    plain = Body("body", (read("x", (2,)), read("z", (2,))), (), (), (), ())
    windowed = replace(plain, windows=(Window("w", View("x", (1,), (1,))),))
    side_by_side, apart = port("x", (2,)), Port(View("x", (2,), (3,)))
    for body, first, second in ((plain, apart, apart), (windowed, side_by_side, apart)):
        _single(body, first, second)
    with raises(
        PipelineProofErrors.WINDOW_NOT_DENSE, where="kernel 'k', pipeline 'p', stage 's', port 'x'", name="x",
        strides=[3],
    ):
        _single(windowed, apart, side_by_side)


# -------------------------------------------------------------------------------------------------------- iterations


@pytest.mark.parametrize(
    ("lower", "upper", "count", "most"),
    [
        (0, 5, 5, 5), (2, 5, 3, 3), (5, 5, 0, 0), (6, 5, 0, 0), (0, "n", None, 4), ("n", 4, None, 2), ("n", "n", 0, 0),
        ("n", 2, None, 0), (0, "u", None, inf), ("u", 0, None, 0),
    ],
)  # fmt: skip
def test_how_often_a_pipeline_runs(lower: Any, upper: Any, count: int | None, most: float) -> None:
    pipeline = view(lower=lower, upper=upper, n=(2, 4), u=(1, inf))
    assert (pipeline.iterations, pipeline.most_iterations) == (count, most)


@pytest.mark.parametrize(
    ("lower", "upper", "bounds", "exact", "certain"),
    [
        (0, 5, (0, 4), True, True), (2, 5, (2, 4), True, True), (5, 5, (5, 4), False, False),
        (0, "n", (0, 3), False, False), ("n", 9, (2, 8), False, False), ("n", "m", (2, 4), False, True),
    ],
)  # fmt: skip
def test_the_index_of_a_stage_that_fires_in_each_iteration(
    lower: Any, upper: Any, bounds: Range, exact: bool, certain: bool
) -> None:
    around = Scope("kernel")
    around.variable("n", (2, 4))
    pipeline = view(lower=lower, upper=upper, n=(2, 4)) if upper != "m" else _shifted()
    scope = pipeline.everywhere(STAGE)
    assert (scope.bounds["i"], scope.values["next"]) == (bounds, Linear(1, (("i", 1),)))
    assert ("i" in scope.exact, scope.certain) == (exact, certain)
    assert (scope.bounds["t0"], "t0" in scope.exact) == ((0, 3), True)
    assert "i" not in pipeline.scope.values


def _shifted() -> PipelineView:
    """Return a pipeline whose loop runs from n to n + 1: once, which the bounds alone do not show."""
    scope = Scope("kernel")
    scope.variable("n", (2, 4))
    scope.define(Scalar("m", "add", ("n", 1)))
    pipeline = Pipeline("p", "i", "n", "m", (Scalar("next", "add", ("i", 1)),), sram(("b", (2,), 2)), (STAGE, OTHER))
    kernel = Kernel("k", (read("x", (8,)), update("y", (8,))), (), (pipeline,))
    return PipelineView(kernel, pipeline, {body.name: prove_body(body, Limits()) for body in BODIES}, scope)


def test_the_index_of_a_stage_that_fires_once() -> None:
    pipeline = view(lower=1, upper="n", n=(2, 4))
    first, last = (pipeline.everywhere(replace(STAGE, when=when)) for when in ("first", "last"))
    assert (first.values["i"], last.values["i"]) == (Linear(1), Linear(-1, (("n", 1),)))
    assert (first.values["next"], last.values["next"]) == (Linear(2), Linear(0, (("n", 1),)))
    assert "i" not in first.exact | last.exact


def test_control_that_may_not_come_to_a_pipeline_may_not_come_to_its_stages() -> None:
    pipeline = view(upper=5)
    assert pipeline.everywhere(STAGE).certain
    pipeline.scope.certain = False
    assert not pipeline.everywhere(STAGE).certain


def test_the_scalars_of_one_iteration() -> None:
    pipeline = view(upper=5)
    at = pipeline.at(Linear(3))
    assert (at.values["i"], at.values["next"]) == (Linear(3), Linear(4))
    assert pipeline.at(Linear(3)) is at
    assert pipeline.at(Linear(2)).values["next"] == Linear(3)


def test_an_offset_is_split_into_the_axes_of_the_grid_and_the_rest() -> None:
    scope = view().everywhere(replace(STAGE, grid=(4, 2)))
    value = linear_offset(3, (("t1", 5), ("next", 2), ("i", 1)), scope, "here")
    assert value == Linear(5, (("i", 3), ("t1", 5)))
    assert grid_terms(value, replace(STAGE, grid=(4, 2))) == (Linear(5, (("i", 3),)), [0, 5])
    with raises(ScalarProofErrors.UNDEFINED, user="here", scalar="lost"):
        linear_offset(3, (("lost", 5),), scope, "here")


def test_what_is_open_are_bounds_that_depend_on_what_is_not_known() -> None:
    """Element n of x, where n may be out of range; a slot of a buffer is checked like memory."""
    moving = _ports(replace(TILE, view=replace(TILE.view, terms=(("t0", 1), ("n", 1)))), SLOT)
    assert open_bounds(view(moving, OTHER, n=(0, 3))) == []
    ((facts, bound),) = open_bounds(view(moving, OTHER, n=(0, 4)))
    assert (facts.stage.name, bound.subject, bound.total, bound.high) == ("s", "view of 'x'", 8, 6)
    beyond = _ports(TILE, Port(View("b", (2,), (1,), 1), 1))
    with raises(PipelineProofErrors.VIEW_OUT_OF_RANGE, tensor="b", low=1, high=2, elements=2):
        open_bounds(view(beyond, OTHER))


def test_a_scalar_that_decides_rows_is_within_its_range() -> None:
    """The first of two rows of eight, given as a number or by a scalar."""
    step = CausalAttention("q", "k", "v", "o", "start", "n", 0.5)
    params = (read("q", (1, 1, 2, 1)), read("k", (1, 1, 8, 1)), read("v", (1, 1, 8, 1)), write("o", (1, 1, 2, 1)))
    attend = Body("attend", params, ("start", "n"), (), (), (step,))

    def bounds(start: Any, high: int = 6) -> list[Bound]:
        scope = Scope("kernel")
        scope.variable("n", (0, high))
        stage = Stage("s", "attend", (), tuple(port(param.name, param.shape) for param in params), (start, 8), ())
        pipeline = Pipeline("p", "i", 0, 1, (), (), (stage,))
        kernel = Kernel("k", params, (), (pipeline,))
        view = PipelineView(kernel, pipeline, {"attend": prove_body(attend, Limits())}, scope)
        return [bound for _, bound in open_bounds(view)]

    assert [bounds(start) for start in (0, 6, "n")] == [[], [], []]
    what = "causal_attention start"
    assert bounds("n", 7) == [Bound("kernel 'k', pipeline 'p', stage 's'", what, 0, (("n", 1),), 0, 6)]
    for start in (-1, 7):
        with raises(PipelineProofErrors.SCALAR_OUT_OF_RANGE, scalar=what, least=0, most=6, low=start, high=start):
            bounds(start)
    with raises(ScalarProofErrors.UNDEFINED, scalar="lost"):
        bounds("lost")
