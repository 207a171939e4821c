"""The core does what its plan says: control, scalars, shares, pointers, and the same bits on any number of threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from sscc.ir.errors import InputError
from sscc.ir.schedule import Scalar
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import F32, I64, PTR, Module, vector
from sscc.runtime.backends.cpu.plan.plan import (
    OPS,
    Barrier,
    Branch,
    Compute,
    Execute,
    Item,
    Mode,
    PlanArgument,
    PlanLoop,
    PlanRegion,
)
from sscc.runtime.support import scalars
from sscc.runtime.support._native import Core
from sscc.runtime.support.native_errors import NativeErrors
from sscc.runtime.support.scalars import ScalarArithmeticErrors
from tests.errors import raises, refusal
from tests.runtime.backends.cpu.native.plans import RecordedCall, Recorder, core, plan, run, words

LEAST, MOST = -(2**63), 2**63 - 1
X = PlanRegion("x", "arena", 64)


def computed(op: str, *values: int) -> int:
    """Return the core's result for one scalar operation."""
    count = len(values)
    of = plan(Compute(op, count, tuple(range(count))), inputs=range(count), outputs=[count])
    (result,) = core(of).run("main", list(values))
    return result


@pytest.mark.parametrize("op", [op for op in OPS if op != "lookup"])
def test_scalars_are_those_of_the_reference(op: str) -> None:
    arity = scalars.SCALAR_OPS[op][0]
    of = plan(Compute(op, arity, tuple(range(arity))), inputs=range(arity), outputs=[arity])
    the_core = core(of)
    draw = random.Random(op)
    ranges = [8, 100, 1 << 31]
    for _ in range(300):
        values = [draw.randint(-r, r) for r in draw.choices(ranges, k=arity)]
        scalar = Scalar("s", op, tuple(values))
        refused = refusal(scalars.evaluate, scalar, {})
        if refused is None:
            assert the_core.run("main", values) == [scalars.evaluate(scalar, {})], values
        else:
            with pytest.raises(InputError) as caught:
                the_core.run("main", values)
            assert caught.value.kind is refused.kind, values


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_number_is_looked_up_in_a_row_of_registers(size: int) -> None:
    """As the reference does; beyond the table are registers too, and other numbers."""
    table = [7, LEAST, -3, MOST, 0, 7, 1][:size]
    constants = [*((3 + place, number) for place, number in enumerate(table)), (2, 98), (3 + size, 99)]
    of = plan(Compute("lookup", 1, (0, 3, size)), constants=constants, inputs=[0], outputs=[1, 2], registers=12)
    made = core(of)
    for index in range(size):
        assert made.run("main", [index]) == [scalars.evaluate(Scalar("s", "lookup", ("i", *table)), {"i": index}), 98]
    for index in (-1, size, LEAST, MOST, 1 << 32, -(1 << 32)):
        with raises(ScalarArithmeticErrors.LOOKUP_OUT_OF_RANGE):
            made.run("main", [index])


def test_what_is_looked_up_may_have_changed() -> None:
    """A table consists of registers, which operations may change; its result may be the index of another look-up."""
    again, table = Compute("lookup", 0, (0, 3, 3)), [(3, 2), (4, 0), (5, 1)]
    of = plan(again, again, Compute("add", 4, (4, 5)), again, constants=table, inputs=[0], outputs=[0])
    assert core(of).run("main", [1]) == [scalars.evaluate(Scalar("s", "lookup", (1, 2, 1, 1)), {})]


@pytest.mark.parametrize("op", ["floordiv", "ceildiv", "mod"])
def test_divisions_by_zero_are_refused(op: str) -> None:
    with raises(ScalarArithmeticErrors.DIVISION_BY_ZERO):
        computed(op, 5, 0)


@pytest.mark.parametrize(
    ("op", "values"),
    [
        ("add", (MOST, 1)),
        ("sub", (LEAST, 1)),
        ("mul", (1 << 62, -3)),
        ("floordiv", (LEAST, -1)),
        ("ceildiv", (LEAST, -1)),
    ],
)
def test_results_beyond_64_bits_are_refused(op: str, values: tuple[int, int]) -> None:
    with raises(ScalarArithmeticErrors.SCALAR_OVERFLOW):
        computed(op, *values)


def test_extreme_scalars() -> None:
    assert computed("mod", LEAST, -1) == 0
    assert computed("mod", LEAST, MOST) == LEAST % MOST
    assert computed("floordiv", LEAST, MOST) == LEAST // MOST
    assert computed("ceildiv", LEAST, 2) == -(2**62)
    assert computed("max", LEAST, MOST) == MOST


def test_loops_and_branches() -> None:
    # r7 = sum over i < n of (sum over i <= j < n of (j if j is odd))
    body = (
        PlanLoop(
            4, 3, 0, (Compute("mod", 5, (4, 2)), Branch(5, (Compute("add", 7, (7, 4)),)), Compute("add", 6, (6, 1)))
        ),
    )
    of = plan(PlanLoop(3, 8, 0, body), constants=[(1, 1), (2, 2)], inputs=[0], outputs=[7, 6, 3], registers=9)
    the_core = core(of, threads=2)
    for n in (0, 1, 7):
        expected = sum(j for i in range(n) for j in range(i, n) if j % 2)
        assert the_core.run("main", [n]) == [expected, n * (n + 1) // 2, max(0, n - 1)]


def test_a_loop_reads_its_bounds_once_and_owns_its_counter() -> None:
    body = (Compute("add", 1, (1, 3)), Compute("add", 2, (2, 3)), Compute("add", 4, (4, 3)))
    of = plan(PlanLoop(2, 0, 1, body), constants=[(1, 5), (3, 1)], outputs=[4])
    assert core(of).run("main") == [5]


def test_registers_begin_anew_with_every_entry() -> None:
    of = plan(Compute("add", 1, (1, 0)), constants=[(1, 10)], inputs=[0], outputs=[1, 2])
    the_core = core(of)
    assert the_core.run("main", [5]) == [15, 0]
    assert the_core.run("main", [6]) == [16, 0]
    assert the_core.registers() == [6, 16, 0, 0, 0, 0, 0, 0]


def test_callers_are_told_what_is_wrong() -> None:
    the_core = core(plan(inputs=[0]))
    with raises(NativeErrors.NO_ENTRY, entry="other"):
        the_core.run("other")
    with raises(NativeErrors.SCALAR_COUNT, inputs=1, scalars=2):
        the_core.run("main", [1, 2])
    with raises(NativeErrors.NO_REGION, region="x"):
        the_core.region("x")
    with raises(NativeErrors.NO_THREAD, thread=1, threads=1):
        the_core.region("x", 1)


# -- runs


def shares(calls: Sequence[RecordedCall], units: int) -> list[list[int]]:
    """For each thread, in the order of their first unit: the units of all firings that it computed, in order."""
    by_thread: dict[int, list[int]] = {}
    for call in calls:
        (firing,) = call.scalars
        by_thread.setdefault(call.thread, []).extend(firing * units + u for u in range(call.begin, call.end))
    return sorted(by_thread.values())


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(("units", "firings"), [(1, 1), (10, 1), (1, 10), (4, 5), (3, 2)])
def test_units_are_shared_out_evenly(threads: int, units: int, firings: int) -> None:
    kernel = Recorder(scalars=1)
    runs = [run(units=units, grid=[(1, firings)], scalars=[1])]
    the_core = core(plan(Execute(0), runs=runs), kernel, threads=threads)
    the_core.run("main")
    total = units * firings
    expected = [list(range(total * t // threads, total * (t + 1) // threads)) for t in range(threads)]
    assert shares(kernel.calls, units) == [share for share in expected if share]
    assert all(0 <= call.begin < call.end <= units for call in kernel.calls)
    assert len(kernel.calls) <= firings + threads - 1


def test_a_grid_is_walked_row_by_row() -> None:
    kernel = Recorder(scalars=3)
    of = plan(Execute(0), runs=[run(units=5, grid=[(1, 2), (2, 3)], scalars=[1, 2, 0])], inputs=[0], outputs=[1, 2])
    assert core(of, kernel).run("main", [9]) == [0, 0]
    assert [call.scalars for call in kernel.calls] == [(i, j, 9) for i in range(2) for j in range(3)]
    assert {(call.begin, call.end) for call in kernel.calls} == {(0, 5)}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("mode", "copies"), [("replicated", 3), ("serial", 1)])
def test_work_that_is_not_shared_out(mode: Mode, copies: int, threads: int) -> None:
    kernel = Recorder(scalars=1)
    of = plan(Execute(0), runs=[run(mode=mode, units=4, grid=[(1, 2)], scalars=[1])])
    core(of, kernel, threads=threads).run("main")
    own = [call for call in kernel.calls if call.thread == threading.get_ident()]
    assert [(call.scalars, call.begin, call.end) for call in own] == [((0,), 0, 4), ((1,), 0, 4)]
    assert shares(kernel.calls, 4) == [list(range(8))] * min(copies, threads)


@pytest.mark.parametrize(("units", "grid"), [(0, []), (0, [(1, 5)]), (5, [(1, 3), (2, 0)])])
def test_no_units_are_no_calls(units: int, grid: list[tuple[int, int]]) -> None:
    kernel = Recorder()
    of = plan(Execute(0), Execute(1), runs=[run(units=units, grid=grid), run(mode="serial", units=units, grid=grid)])
    core(of, kernel, threads=2).run("main")
    assert not kernel.calls


def test_grid_registers_are_zero_after_a_run_on_all_threads() -> None:
    """Otherwise threads with other shares would take other ways, and wait for each other forever."""
    kernel = Recorder()
    body = (Execute(0), Branch(1, (Barrier(),)), Compute("add", 2, (2, 1)))
    of = plan(*body, runs=[run(grid=[(1, 2)])], constants=[(1, 1)], outputs=[1, 2])
    assert core(of, kernel, threads=3).run("main") == [0, 0]


def test_pointers_follow_registers() -> None:
    kernel = Recorder(arguments=3, scalars=1)
    regions = [PlanRegion("a", "arena", 100), PlanRegion("b", "arena", 1), PlanRegion("c", "arena", 4096)]
    arguments = [PlanArgument(0, 0, 100), PlanArgument(1, 0, 0), PlanArgument(2, 4000, 32, ((1, 16), (0, -1000)))]
    of = plan(Execute(0), runs=[run(grid=[(1, 3)], arguments=arguments, scalars=[0])], regions=regions, inputs=[0])
    the_core = core(of, kernel)
    a, b, c = (the_core.region(name)[0] for name in "abc")
    the_core.run("main", [4])
    assert [call.arguments for call in kernel.calls] == [(a, b, c + i * 16) for i in range(3)]
    assert {call.scalars for call in kernel.calls} == {(4,)}
    assert [address % 64 for address in (a, b, c)] == [0, 0, 0]
    assert [the_core.region(name)[1] for name in "abc"] == [100, 1, 4096]
    assert len({a // 64, b // 64, c // 64}) == 3


@pytest.mark.parametrize("value", [-1, 9, 1 << 58, MOST, LEAST])
def test_pointers_out_of_their_region_are_refused(value: int) -> None:
    kernel = Recorder(arguments=1)
    argument = PlanArgument(0, 0, 0, ((0, 8), (0, 0)))
    of = plan(Execute(0), runs=[run(arguments=[argument], label=2)], regions=[X], inputs=[0])
    the_core = core(of, kernel)
    with raises(NativeErrors.OUT_OF_REGION, stage="stage 2", argument=0, bytes=0, region="x", region_bytes=64):
        the_core.run("main", [value])
    assert not kernel.calls
    the_core.run("main", [8])
    assert len(kernel.calls) == 1


def test_private_memory_and_scratch_are_a_threads_own() -> None:
    kernel = Recorder(arguments=1)
    regions = [PlanRegion("mine", "private", 40), X]
    of = plan(
        Execute(0), runs=[run(mode="replicated", arguments=[PlanArgument(0, 0, 40)])], regions=regions, scratch_bytes=8
    )
    the_core = core(of, kernel, threads=3)
    the_core.run("main")
    assert {call.arguments[0] for call in kernel.calls} == {the_core.region("mine", t)[0] for t in range(3)}
    assert {the_core.region("x", t) for t in range(3)} == {the_core.region("x")}
    lines = [address // 64 for call in kernel.calls for address in (call.arguments[0], call.scratch)]
    assert len(set(lines)) == 6
    assert all(call.scratch % 64 == 0 for call in kernel.calls)


def test_external_memory_is_where_it_was() -> None:
    kernel = Recorder(arguments=1)
    data = np.arange(8)
    of = plan(Execute(0), runs=[run(arguments=[PlanArgument(0, 16, 8)])], regions=[PlanRegion("w", "external", 64)])
    the_core = Core(of.encode(), [kernel.address], [("w", data.ctypes.data, 64)], 2)
    the_core.run("main")
    assert the_core.region("w") == (data.ctypes.data, 64)
    assert kernel.calls[0].arguments == (data.ctypes.data + 16,)


def test_reset_zeroes_what_it_is_told() -> None:
    regions = [X, PlanRegion("y", "arena", 16), PlanRegion("mine", "private", 16), PlanRegion("w", "external", 8)]
    data = np.ones(1, np.int64)
    the_core = Core(plan(regions=regions).encode(), [1], [("w", data.ctypes.data, 8)], 2)
    views = [words(the_core, "x"), words(the_core, "y"), words(the_core, "mine", 0), words(the_core, "mine", 1)]
    assert not any(view.any() for view in views)
    for names, left in ((["y"], [1, 0, 1, 1]), (["x", "mine"], [0, 1, 0, 0]), ([], [1, 1, 1, 1]), (None, [0, 0, 0, 0])):
        for view in views:
            view[:] = 1
        the_core.reset(names)
        assert [int(view.max()) for view in views] == left
    assert data[0] == 1
    with raises(NativeErrors.REGION_IS_EXTERNAL, region="w"):
        the_core.reset(["w"])
    with raises(NativeErrors.NO_REGION, region="z"):
        the_core.reset(["z"])


def test_large_regions_are_there_and_zero() -> None:
    the_core = core(plan(regions=[X, PlanRegion("large", "arena", (64 << 20) + 8)]))
    view = words(the_core, "large")
    assert the_core.region("large")[0] % 64 == 0
    assert view[0] == view[-1] == view[:: 1 << 17].max() == 0
    view[-1] = 1


# -- threads


def failing_share(threads: int) -> Core:
    """An entry in which the last firing, of the last thread, leaves its region; then a barrier."""
    firing = run(grid=[(1, 8)], arguments=[PlanArgument(0, 0, 8, ((1, 8), (0, 8)))])
    of = plan(Execute(0), Barrier(), Execute(0), runs=[firing], regions=[X], inputs=[0])
    return core(of, Recorder(), threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_core_goes_on_after_errors_of_a_thread(threads: int) -> None:
    the_core = failing_share(threads)
    for _ in range(20):
        with raises(NativeErrors.OUT_OF_REGION, region="x"):
            the_core.run("main", [1])
        assert the_core.run("main", [0]) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_a_division_by_zero_ends_the_entry_on_all_threads(threads: int) -> None:
    body: tuple[Item, ...] = (Barrier(), Compute("floordiv", 2, (1, 0)), Barrier())
    the_core = core(plan(PlanLoop(3, 4, 1, body), constants=[(1, 7)], inputs=[0], outputs=[2]), threads=threads)
    for _ in range(20):
        with raises(ScalarArithmeticErrors.DIVISION_BY_ZERO):
            the_core.run("main", [0])
        assert the_core.run("main", [2]) == [3]


def test_one_entry_at_a_time() -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait(_: RecordedCall) -> None:
        inside.set()
        leave.wait(30)

    kernel = Recorder(does=wait)
    the_core = core(plan(Execute(0), runs=[run(mode="serial")]), kernel, threads=2)
    other = threading.Thread(target=the_core.run, args=("main",))
    other.start()
    assert inside.wait(30)
    for forbidden in (lambda: the_core.run("main"), the_core.reset, the_core.events, lambda: the_core.trace(True)):
        with raises(NativeErrors.CORE_BUSY):
            forbidden()
    leave.set()
    other.join()
    the_core.run("main")


def test_more_threads_than_cpus_finish() -> None:
    the_core = core(plan(PlanLoop(1, 2, 0, (Barrier(),)), inputs=[0]), threads=32)
    begin = time.monotonic()
    the_core.run("main", [200])
    assert time.monotonic() - begin < 20


def softened() -> tuple[Jit, int]:
    """y[u] = x[u] / (16 + sum of x[u ..] squared): each unit sums in an order of its own."""
    m = Module()
    f = m.function(
        "soften", [("args", PTR), ("scalars", PTR), ("begin", I64), ("end", I64), ("own", PTR)], exported=True
    )
    x, y = f.load(f["args"], PTR), f.load(f["args"] + 8, PTR)
    count = f.load(f["scalars"], I64)
    with f.loop(f["begin"], f["end"]) as unit:
        with f.loop(unit.index, count, 16, [f.splat(1.0)]) as loop:
            part = f.load(x + loop.index * 4, vector(F32, 16))
            loop.carry(f.fma(part, part, loop.state[0]))
        f.store(f.load(x + unit.index * 4, F32) / f.reduce("add", loop.results[0]), y + unit.index * 4)
    f.returns()
    jit = Jit(m)
    return jit, jit.addresses["soften"]


def test_any_number_of_threads_gives_the_same_bits() -> None:
    count, steps = 96, 5
    jit, address = softened()
    nbytes = (count + 16) * 4
    regions = [PlanRegion("a", "arena", nbytes), PlanRegion("b", "arena", nbytes)]
    ways = [[PlanArgument(s, 0, nbytes), PlanArgument(1 - s, 0, nbytes)] for s in (0, 1)]
    runs = [run(units=count, arguments=way, scalars=[0]) for way in ways]
    of = plan(
        PlanLoop(1, 2, 3, (Execute(0), Barrier(), Execute(1), Barrier())),
        runs=runs,
        regions=regions,
        constants=[(0, count), (3, steps)],
    )
    start = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 8):
        the_core = Core(of.encode(), [address], [], threads)
        words(the_core, "a").view(np.float32)[:count] = start
        the_core.run("main")
        results.append(words(the_core, "a").tobytes())
    assert len(set(results)) == 1
    assert np.isfinite(np.frombuffer(results[0], np.float32)).all()
    del jit
