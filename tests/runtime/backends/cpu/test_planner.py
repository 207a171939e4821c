"""Plans: where barriers stand, which stages every thread computes, what is refused; and any number of threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Entry,
    For,
    If,
    Instr,
    Kernel,
    Launch,
    Local,
    Pipeline,
    Port,
    Program,
    Scalar,
    Stage,
    Vector,
    View,
)
from sscc.runtime.backends.cpu.codegen.features import GENERIC
from sscc.runtime.backends.cpu.codegen.refusal import NoNativeCode
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.barriers import Pending
from sscc.runtime.backends.cpu.plan.buffer_slots import NativeSlotErrors
from sscc.runtime.backends.cpu.plan.draft import PlanDraftErrors
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.cpu.plan.pipelines import NativePipelineErrors
from sscc.runtime.backends.cpu.plan.plan import Barrier, Branch, Compute, Execute, Item, NativePlan, PlanLoop
from sscc.runtime.backends.cpu.plan.planner import NativePlannerErrors, plan_program
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from tests.errors import raises
from tests.runtime.broken import bases
from tests.runtime.broken.build import change, setting
from tests.runtime.schedules import (
    add_body,
    copy_body,
    identity,
    lay_out,
    one_stage,
    read,
    sum_body,
    view_of,
    whole,
    write,
)

LARGE = (32, 1024)
"""More than a thread computes for itself."""
SMALL = (4, 20)


def adds(shape: tuple[int, ...]) -> Body:
    return add_body(f"add{shape[0]}", shape, 1.0)


def sums(shape: tuple[int, ...]) -> Body:
    return sum_body(f"sum{shape[0]}", shape)


def memory(name: str, shape: tuple[int, ...]) -> Port:
    return Port(view_of(name, shape))


def slot(name: str, shape: tuple[int, ...], per: int = 1, lag: int = 0) -> Port:
    return Port(view_of(name, shape), per, lag)


def stage(name: str, body: Body, *ports: Port, **fields: Any) -> Stage:
    return Stage(name, body.name, fields.pop("grid", ()), ports, (), (), **fields)


def program_of(
    bodies: Sequence[Body],
    buffers: Sequence[tuple[str, tuple[int, ...]]],
    *stages: Stage,
    tensors: Sequence[str] = ("x", "y"),
    shape: tuple[int, ...] = LARGE,
    upper: int | str = 1,
    scalars: tuple[Scalar, ...] = (),
) -> Program:
    """A kernel of one pipeline over states of one shape."""
    placed, end = lay_out(*((name, shape, "f32", "state") for name in tensors))
    params = tuple(dataclasses.replace(read(name, shape), access="update") for name in tensors)
    slots = tuple(Buffer(name, dims, "f32", "sram", 0, 2) for name, dims in buffers)
    pipeline = Pipeline("p", "i", 0, upper, scalars, slots, stages)
    inputs = (upper,) if isinstance(upper, str) else ()
    kernel = Kernel("k", params, inputs, (pipeline,))
    entry = Entry("main", (), (), inputs, (), (Launch("k", tuple(whole(t) for t in placed), inputs),))
    return Program.from_json(Program(placed, tuple(bodies), (kernel,), (entry,), end).to_json())


def events(plan: NativePlan, items: Sequence[Item] | None = None) -> list[Any]:
    """Return the actions of an entry: names of stages, "|" for a barrier, lists for loops and branches."""
    sequence: list[Any] = []
    for item in plan.entries[0].body if items is None else items:
        match item:
            case Execute():
                sequence.append(plan.labels[plan.runs[item.run].label].split(".")[-1])
            case Barrier():
                sequence.append("|")
            case PlanLoop() | Branch():
                sequence.append(events(plan, item.body))
    return sequence


def plan_of(program: Program) -> NativePlan:
    return plan_program(program, GENERIC).plan


def modes(plan: NativePlan) -> dict[str, str]:
    return {plan.labels[run.label].split(".")[-1]: run.mode for run in plan.runs}


def run_alike(program: Program, scalars: dict[str, int] | None = None, tolerance: float = 1e-5) -> None:
    """Two calls of each entry compute what the reference does, and the same bits on 1 to 4 threads."""
    torch.manual_seed(1)
    values = {t.name: _values(t.name, t.shape, t.dtype) for t in program.tensors if t.role != "output"}
    weights = {t.name: values[t.name] for t in program.tensors if t.role == "weight"}
    entry = program.entries[0]
    inputs = {name: values[name] for name in entry.inputs}
    kept = [t.name for t in program.tensors if t.role == "state"]
    reference = ReferenceInterpreter(program, weights)
    code = make_code(program, optimise=0)
    arrays = {name: to_array(value) for name, value in weights.items()}
    natives = [NativeInterpreter(program, arrays, code=code, threads=n) for n in (1, 2, 3, 4)]
    for name in kept:
        reference.tensor(name).copy_(values[name])
        for native in natives:
            native.tensor(name)[...] = to_array(values[name])
    for _ in range(2):
        expected, _ = reference.run(entry.name, inputs, scalars)
        results = [
            native.run(entry.name, {n: to_array(v) for n, v in inputs.items()}, scalars)[0] for native in natives
        ]
        outputs = [
            {**out, **{n: native.tensor(n).copy() for n in kept}} for out, native in zip(results, natives, strict=True)
        ]
        for name, value in {**expected, **{n: reference.tensor(n) for n in kept}}.items():
            assert all(np.array_equal(outputs[0][name], other[name], equal_nan=True) for other in outputs[1:]), name
            torch.testing.assert_close(to_tensors(outputs[0])[name], value, rtol=tolerance, atol=tolerance)


def _values(name: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    if dtype == "i64":
        return torch.randint(0, 3, shape)
    return torch.ones(shape, dtype=torch.bool) if dtype == "i1" else torch.randn(shape) * 0.3


# ------------------------------------------------------------------------------------------------------ barriers


def test_a_stage_waits_for_what_it_reads() -> None:
    body = adds(LARGE)
    first = stage("first", body, memory("x", LARGE), slot("b", LARGE))
    second = stage("second", body, slot("b", LARGE), memory("y", LARGE))
    program = program_of([body], [("b", LARGE)], first, second)
    assert events(plan_of(program)) == ["first", "|", "second", "|"]
    run_alike(program)


def test_stages_that_share_nothing_do_not_wait() -> None:
    body = adds(LARGE)
    stages = [stage(f"s{n}", body, memory(f"x{n}", LARGE), memory(f"y{n}", LARGE)) for n in range(3)]
    tensors = [f"{kind}{n}" for n in range(3) for kind in "xy"]
    program = program_of([body], [], *stages, tensors=tensors)
    assert events(plan_of(program)) == ["s0", "s1", "s2", "|"]


def test_readers_of_one_buffer_wait_once() -> None:
    body = adds(LARGE)
    first = stage("first", body, memory("x", LARGE), slot("b", LARGE))
    readers = [stage(f"r{n}", body, slot("b", LARGE), memory(f"y{n}", LARGE)) for n in range(3)]
    program = program_of([body], [("b", LARGE)], first, *readers, tensors=("x", "y0", "y1", "y2"))
    assert events(plan_of(program)) == ["first", "|", "r0", "r1", "r2", "|"]


def test_a_stage_waits_for_readers_of_what_it_overwrites() -> None:
    body = adds(LARGE)
    first = stage("first", body, memory("x", LARGE), memory("y", LARGE))
    second = stage("second", body, memory("z", LARGE), memory("x", LARGE))
    program = program_of([body], [], first, second, tensors=("x", "y", "z"))
    assert events(plan_of(program)) == ["first", "|", "second", "|"]
    run_alike(program)


def test_a_stage_waits_for_another_writer_of_what_it_writes() -> None:
    body = adds(LARGE)
    first = stage("first", body, memory("x", LARGE), memory("y", LARGE))
    second = stage("second", body, memory("z", LARGE), memory("y", LARGE))
    program = program_of([body], [], first, second, tensors=("x", "y", "z"))
    assert events(plan_of(program)) == ["first", "|", "second", "|"]


def test_a_load_that_is_left_out_leaves_no_barrier() -> None:
    copied, body = copy_body("copy", LARGE), adds(LARGE)
    load = stage("load", copied, memory("x", LARGE), slot("b", LARGE))
    use = stage("use", body, slot("b", LARGE), memory("y", LARGE))
    assert events(plan_of(program_of([copied, body], [("b", LARGE)], load, use))) == ["use", "|"]


def test_small_stages_are_computed_by_every_thread_and_nobody_waits() -> None:
    body = adds(SMALL)
    first = stage("first", body, memory("x", SMALL), slot("b", SMALL))
    second = stage("second", body, slot("b", SMALL), slot("c", SMALL))
    third = stage("third", body, slot("c", SMALL), memory("y", SMALL))
    program = program_of([body], [("b", SMALL), ("c", SMALL)], first, second, third, shape=SMALL)
    plan = plan_of(program)
    assert modes(plan) == {"first": "replicated", "second": "replicated", "third": modes(plan)["third"]}
    assert modes(plan)["third"] != "replicated"
    assert events(plan) == ["first", "second", "third", "|"]
    run_alike(program)


def test_a_small_stage_still_waits_for_memory_that_others_write() -> None:
    body = adds(SMALL)
    first = stage("first", body, memory("x", SMALL), memory("y", SMALL))
    second = stage("second", body, memory("y", SMALL), slot("b", SMALL))
    third = stage("third", body, slot("b", SMALL), memory("y", SMALL))
    program = program_of([body], [("b", SMALL)], first, second, third, shape=SMALL)
    assert events(plan_of(program)) == ["first", "|", "second", "|", "third", "|"]
    run_alike(program)


def test_a_buffer_with_two_writers_is_shared() -> None:
    """No thread has all elements that a prologue and the iterations write."""
    plan = plan_of(carried(3, SMALL))
    assert set(modes(plan)) == {"enter", "step", "leave"}
    assert "replicated" not in modes(plan).values()


def test_every_firing_has_scratch_of_its_own() -> None:
    """Rows are turned round through a local that units share; a grid of two dimensions fires at the same time."""
    tile, rank = (4, 20), identity(2)
    add = (Instr("r", "addf", ("in0", 1.0), "f32"),)
    index = (Instr("i", "index", (0,), "index"), Instr("j", "index", (1,), "index"))
    turned = (*index, Instr("k", "subi", (3, "i"), "index"), Instr("r", "load", ("h", "k", "j"), "f32"))
    steps = (
        Vector(tile, (Access("x", rank),), Access("h", rank), add, "r"),
        Vector(tile, (), Access("y", rank), turned, "r"),
    )
    body = Body("turn", (read("x", tile), write("y", tile)), (), (Local("h", tile, "f32"),), (), steps)
    views = [Port(view_of(name, tile, 0, ("t0", 240), ("t1", 80))) for name in "xy"]
    slots = [Port(view_of("b", tile), 1)] * 2
    program = program_of([body], [], stage("turn", body, *views, grid=(2, 3)), shape=(24, 20))
    plan = plan_of(program)
    assert events(plan) == ["turn", "|", "turn", "|"]
    assert all(run.units > 1 for run in plan.runs)
    run_alike(program)
    streamed = (
        stage("there", body, views[0], slots[0], grid=(2, 3)),
        stage("back", body, slots[1], views[1], grid=(2, 3)),
    )
    waiting = [dataclasses.replace(s, waits=("b",)) for s in streamed]
    run_alike(program_of([body], [("b", tile)], *waiting, shape=(24, 20)))


# ------------------------------------------------------------------------------------------------------ control


def carried(upper: int | str, shape: tuple[int, ...] = LARGE) -> Program:
    """h = x at first, h = h + y in each iteration, z = h at last."""
    copied, body = adds(shape), sums(shape)
    enter = stage("enter", copied, memory("x", shape), slot("h", shape), when="first")
    step = stage("step", body, slot("h", shape), memory("y", shape), slot("h", shape, 1, 1))
    lag = upper if isinstance(upper, int) else 0
    leave = stage("leave", copied, slot("h", shape, 1, lag), memory("z", shape), when="last")
    stages = (enter, step, leave) if isinstance(upper, int) else (enter, step)
    return program_of([copied, body], [("h", shape)], *stages, tensors=("x", "y", "z"), shape=shape, upper=upper)


def test_iterations_wait_for_each_other() -> None:
    program = carried(3)
    assert events(plan_of(program)) == [["enter", "|", ["step", "|"], "leave"], "|"]
    run_alike(program)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_values_carried_on(iterations: int) -> None:
    run_alike(carried(iterations, SMALL))


def test_a_loop_of_unknown_length() -> None:
    """The loop may have no iterations."""
    body = sums(LARGE)
    step = stage("step", body, memory("y", LARGE), memory("x", LARGE), memory("y", LARGE))
    program = program_of([body], [], step, upper="n")
    assert events(plan_of(program)) == [[["step", "|"]]]
    for n in (0, 1, 3):
        run_alike(program, {"n": n})


def test_branches_and_loops_around_launches() -> None:
    """A barrier after a branch is needed whether or not the branch is taken."""
    body = adds(LARGE)
    tensors, end = lay_out(*((name, LARGE, "f32", "state") for name in "xy"))
    there, back = (Launch(body.name, (whole(tensors[a]), whole(tensors[b]))) for a, b in ((0, 1), (1, 0)))
    items = (Scalar("odd", "mod", ("n", 2)), If("odd", (there,)), back, For("i", 0, "n", (there, back)))
    program = Program(tensors, (body,), (one_stage(body),), (Entry("main", (), (), ("n",), ("odd",), items),), end)
    assert events(plan_of(program)) == [["only", "|"], "only", "|", ["only", "|", "only", "|"]]
    for n in (0, 1, 2):
        run_alike(program, {"n": n})


def looking_up(*table: int | str) -> Program:
    """Copies element `table[i]` of x to element i of y, and tells the last of them."""
    body = copy_body("copy", (1,))
    tensors, end = lay_out(("x", (8,), "f32", "state"), ("y", (8,), "f32", "state"))
    views = (View("x", (1,), (1,), 0, (("from", 1),)), View("y", (1,), (1,), 0, (("i", 1),)))
    items = (
        For("i", 0, 3, (Scalar("from", "lookup", ("i", *table)), Launch(body.name, views))),
        Scalar("last", "lookup", ("n", *table)),
    )
    return Program(tensors, (body,), (one_stage(body),), (Entry("main", (), (), ("n",), ("last",), items),), end)


@pytest.mark.parametrize("table", [(4, 0, 7), (0, 0, 6), (1, 2, 3)])
def test_what_is_looked_up_is_an_offset_and_a_result(table: tuple[int, ...]) -> None:
    for n in range(3):
        run_alike(looking_up(*table), {"n": n})
    made = plan_of(looking_up(*table))
    values = dict(made.constants)
    (loop, _), last = made.entries[0].body, made.entries[0].body[-1]
    assert isinstance(last, Compute)
    assert isinstance(loop, PlanLoop)
    _, first, count = last.arguments
    assert [values[first + place] for place in range(count)] == list(table)
    assert isinstance(loop.body[0], Compute)
    assert loop.body[0].arguments[1:] == (first, count), "one table serves both"


def test_a_table_that_is_not_constant_has_no_plan() -> None:
    refuse(looking_up(1, "n", 3), PlanDraftErrors.TABLE_NOT_CONSTANT)


VALID: dict[str, tuple[Callable[[], Program], dict[str, int] | None]] = {
    "streamed_product": (bases.streamed_product, None),
    "looped_layers": (bases.looped_layers, None),
    "chained_launches": (bases.chained_launches, None),
    "short prompt": (bases.chunked_prefill, {"length": 3, "slot": 1}),
    "long prompt": (bases.chunked_prefill, {"length": 13, "slot": 0}),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_schedules_on_any_number_of_threads(name: str) -> None:
    make, scalars = VALID[name]
    run_alike(make(), scalars, tolerance=1e-4)


def test_a_plan_is_the_same_each_time() -> None:
    for make in (bases.looped_layers, bases.chunked_prefill):
        once, again = plan_program(make(), GENERIC), plan_program(make(), GENERIC)
        assert once.plan.encode() == again.plan.encode()
        assert once.module.text() == again.module.text()


# ------------------------------------------------------------------------------------------------------ refusals


def refuse(program: Program, kind: ErrorKind, **fields: Any) -> None:
    with raises(kind, **fields) as refused:
        plan_of(program)
    assert ("--interpreter reference" in str(refused.value)) == isinstance(kind, NoNativeCode)


def test_stages_that_wait_for_each_other() -> None:
    body = sums(SMALL)
    a = stage("a", body, memory("x", SMALL), slot("q", SMALL), slot("p", SMALL))
    b = stage("b", body, memory("x", SMALL), slot("p", SMALL), slot("q", SMALL))
    program = program_of([body], [("p", SMALL), ("q", SMALL)], a, b, shape=SMALL)
    refuse(program, NativePipelineErrors.WAITS_FOR_LATER, stage="a", pipeline="k.p")


def test_lags_are_whole_iterations() -> None:
    body = adds((2, 20))
    tile = Port(view_of("x", (2, 20), 0, ("t0", 40)))
    first = stage("first", body, tile, Port(view_of("b", (2, 20)), 1, 1), grid=(2,))
    second = stage("second", body, slot("b", (2, 20)), Port(view_of("y", (2, 20), 0, ("t0", 40))), grid=(2,))
    program = program_of([body], [("b", (2, 20))], first, second, shape=SMALL, upper=3)
    refuse(program, NativeSlotErrors.LAG, pipeline="k.p", lag=1)


def test_slots_that_take_some_firings() -> None:
    body = adds((1, 20))
    tile = Port(view_of("x", (1, 20), 0, ("t0", 20)))
    half = Port(View("b", (1, 20), (20, 1), 0), 2)
    first = stage("first", body, tile, half, grid=(4,))
    program = program_of([body], [("b", (2, 20))], first, shape=SMALL)
    refuse(program, NativeSlotErrors.PART_OF_ITERATION, stage="first", firings=2, trips=4)


def test_slots_that_serve_some_iterations() -> None:
    body = sums(SMALL)
    first = stage("first", body, memory("x", SMALL), memory("x", SMALL), slot("b", SMALL, 2))
    program = program_of([body], [("b", SMALL)], first, shape=SMALL, upper=4)
    refuse(program, NativeSlotErrors.PART_OF_RUN, stage="first", firings=2)


def test_an_epilogue_reads_what_is_still_there() -> None:
    """If the length of the loop is unknown, the slots that still hold their data are unknown, too."""
    program = carried(4, SMALL)
    late = change(program, Stage, "leave", lambda s: dataclasses.replace(s, ports=(slot("h", SMALL, 1, 1), s.ports[1])))
    refuse(late, NativeSlotErrors.OVERWRITTEN, stage="leave", pipeline="k.p")
    unknown = dataclasses.replace(carried("n", SMALL), version=program.version)
    leave = next(s for s in program.kernels[0].body[0].stages if s.name == "leave")  # type: ignore[union-attr]
    unknown = change(unknown, Pipeline, "p", lambda p: dataclasses.replace(p, stages=(*p.stages, leave)))
    refuse(unknown, NativeSlotErrors.UNKNOWN_LENGTH, stage="leave")


def test_windows_that_cannot_be_followed() -> None:
    """A launch passes rows that are apart, a stage wants elements across them."""
    across = (5, 16)
    body = adds(across)
    tensors, end = lay_out(("x", (8, 40), "f32", "state"), ("y", across, "f32", "state"))
    only = stage("only", body, Port(view_of("x", across)), memory("y", across))
    params = (read("x", (8, 10)), write("y", across))
    kernel = Kernel("k", params, (), (Pipeline("p", "i", 0, 1, (), (), (only,)),))
    launch = Launch("k", (View("x", (8, 10), (40, 1)), whole(tensors[1])))
    program = Program(tensors, (body,), (kernel,), (Entry("main", (), (), (), (), (launch,)),), end)
    refuse(program, NativePipelineErrors.WINDOW, stage="only", pipeline="k.p", tensor="x")


def test_a_pipeline_in_an_entry() -> None:
    program = carried(1, SMALL)
    entry = dataclasses.replace(program.entries[0], body=program.kernels[0].body)
    refuse(dataclasses.replace(program, entries=(entry,)), NativePlannerErrors.PIPELINE_OUTSIDE, pipeline="p")


def test_a_launch_in_a_kernel() -> None:
    program = carried(1, SMALL)
    (kernel,) = program.kernels
    inside = dataclasses.replace(kernel, body=(*kernel.body, program.entries[0].body[-1]))
    refuse(dataclasses.replace(program, kernels=(inside,)), NativePlannerErrors.LAUNCH_IN_KERNEL, kernel="k")


def test_scalars_that_are_not_set() -> None:
    entry = setting(scalar_outputs=("lost",))
    refuse(change(carried(1), Entry, "main", entry), PlanDraftErrors.SCALAR_NOT_SET, scalar="lost")


# ------------------------------------------------------------------------------------------------------- hazards


def test_what_has_to_wait() -> None:
    pending = Pending()
    assert not pending
    low, high, across = ("m", 0, 8), ("m", 8, 16), ("m", 4, 12)
    pending.add({low}, {high})
    assert pending
    assert not pending.conflicts({low}, set())
    assert pending.conflicts({across}, set())
    assert pending.conflicts(set(), {low})
    assert pending.conflicts(set(), {across})
    assert not pending.conflicts({("other", 8, 16)}, {("other", 0, 8)})
    assert not pending.conflicts({("m", 16, 20)}, {("m", 16, 20)})


def test_either_of_two_pasts() -> None:
    taken, skipped = Pending({("m", 0, 8)}, set()), Pending(set(), {("m", 8, 16)})
    both = taken.joined(skipped)
    assert both.conflicts(set(), {("m", 0, 1)})
    assert both.conflicts({("m", 8, 9)}, set())
    assert not both.conflicts({("m", 0, 8)}, set())
