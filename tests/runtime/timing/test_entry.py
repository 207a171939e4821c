"""Times of whole entries, against times worked out by hand. `ns` are nanoseconds on `programs.MACHINE`."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from sscc.ir.operations import ChunkAttention
from sscc.ir.schedule import Body, Buffer, For, If, Launch, Param, Port, Program, Scalar, ScheduleErrors, Stage, View
from sscc.ir.target import Figure, TargetErrors, load_target
from sscc.runtime.timing import Timing, time_entry
from sscc.runtime.timing.entry import TimingErrors
from sscc.runtime.timing.replay import ReplayErrors
from tests.errors import raises
from tests.runtime.schedules import view_of
from tests.runtime.timing.decoder import decoder
from tests.runtime.timing.programs import (
    COPY,
    MACHINE,
    NS,
    TILE,
    consume,
    kernel,
    load,
    product,
    program,
    streamed,
    tiles,
)
from tests.targets import changed

ON_CHIP = {"y": "sram"}


def timed(*args: Any, **keywords: Any) -> Timing:
    """Times `streamed`, with its result on chip."""
    options = {name: keywords.pop(name) for name in ("prefetch", "record") if name in keywords}
    return time_entry(program(*streamed(*args, **keywords), tiers=ON_CHIP), "main", MACHINE, **options)


def ns(timing: Timing) -> float:
    return timing.execution_seconds / NS


def test_one_load_and_one_product_follow_each_other() -> None:
    assert ns(timed(1, 50)) == pytest.approx(200 + 50)


def test_a_second_place_hides_the_smaller_of_load_and_product() -> None:
    assert ns(timed(10, 50)) == pytest.approx(10 * 200 + 50)
    assert ns(timed(10, 400)) == pytest.approx(200 + 10 * 400)


def test_one_place_hides_nothing() -> None:
    assert ns(timed(10, 50, depth=1)) == pytest.approx(10 * (200 + 50))


def test_stages_are_busy_as_long_as_they_work_and_not_while_they_wait() -> None:
    load_stage, multiply = timed(10, 50).launches[0].kernel.pipelines[0].stages
    assert load_stage.busy_seconds / NS == pytest.approx(2000)
    assert multiply.busy_seconds / NS == pytest.approx(500)
    load_stage, multiply = timed(10, 400).launches[0].kernel.pipelines[0].stages
    assert (load_stage.bound, multiply.bound) == ("memory", "compute")


def test_every_firing_costs_something_beside_its_transfers() -> None:
    def with_cost(nanoseconds: float) -> Timing:
        target = changed({"firing_seconds": nanoseconds * NS}, MACHINE)
        return time_entry(program(*streamed(10, 50), tiers=ON_CHIP), "main", target)

    assert ns(with_cost(30)) == pytest.approx(10 * 200 + 30 + 50)
    assert ns(with_cost(300)) == pytest.approx(300 + 10 * (300 + 50))
    stages = with_cost(300).launches[0].kernel.pipelines[0].stages
    assert [stage.bound for stage in stages] == ["firings", "firings"]


def test_a_firing_takes_at_least_the_latency_of_the_memory_that_it_reaches() -> None:
    def with_latency(nanoseconds: float, depth: int) -> Timing:
        latency = Figure(nanoseconds * NS, "s", "assumed", "a test")
        levels = [dataclasses.replace(level, latency=latency) for level in MACHINE.memories]
        target = dataclasses.replace(MACHINE, levels=(MACHINE.nearest, *levels))
        return time_entry(program(*streamed(10, 50, depth=depth), tiers=ON_CHIP), "main", target)

    assert ns(with_latency(200, 2)) == ns(timed(10, 50))
    slow = with_latency(300, 2)
    assert ns(slow) == pytest.approx(10 * 300 + 50)
    assert slow.launches[0].kernel.pipelines[0].stages[0].bound == "memory"
    assert ns(with_latency(300, 1)) == pytest.approx(10 * (300 + 50))
    assert "hbm.latency 3e-07 s: assumed, a test" in slow.assumptions


def test_a_tier_that_the_target_has_not() -> None:
    target = dataclasses.replace(MACHINE, levels=MACHINE.levels[:2])
    given = program(*streamed(4, 100), tiers={**ON_CHIP, "w": "ddr"})
    with raises(TargetErrors.NO_TIER, target="sn40l", tier="DDR"):
        time_entry(given, "main", target)


def test_launches_and_boundaries_add() -> None:
    kernels, bodies = streamed(4, 100)
    launch = Launch("k", (view_of("w", (4, TILE)), view_of("y", (1,))))
    timing = time_entry(program(kernels, bodies, (launch,) * 3, tiers=ON_CHIP), "main", MACHINE)
    assert timing.seconds / NS == pytest.approx(3 * (1000 + 500 + 4 * 200 + 100))
    assert [launch.begin / NS for launch in timing.launches] == pytest.approx([0, 2400, 4800])
    assert timing.kernels()[0].launches == 3
    assert timing.kernels()[0].seconds == pytest.approx(timing.seconds)


def test_stages_over_all_launches() -> None:
    kernels, bodies = streamed(4, 100)
    launch = Launch("k", (view_of("w", (4, TILE)), view_of("y", (1,))))
    timing = time_entry(program(kernels, bodies, (launch,) * 3, tiers=ON_CHIP), "main", MACHINE)
    load, multiply = timing.stages()
    assert [(s.kernel, s.stage, s.firings, s.operations) for s in (load, multiply)] == [
        ("k", "load", 12, 0),
        ("k", "multiply", 12, 12 * 100),
    ]
    assert load.nbytes["hbm"] == 12 * TILE * 2
    assert [s.busy_seconds / NS for s in (load, multiply)] == pytest.approx([12 * 200, 12 * 100])
    assert (load.bound, multiply.bound) == ("memory", "compute")


def test_a_pipeline_bound_by_memory_reaches_the_roofline() -> None:
    timing = timed(8, 150, iterations=100)
    assert timing.nbytes["hbm"] == 100 * 8 * 200
    assert timing.nbytes["hbm"] / 1e9 / timing.execution_seconds == pytest.approx(1, abs=1e-3)
    assert timing.roofline_fraction == pytest.approx(160000 / (160000 + 150 + 1500))
    assert timing.bandwidth("hbm") == pytest.approx(1e9 * timing.roofline_fraction)


def test_without_prefetch_the_loads_of_an_iteration_wait_for_the_one_before() -> None:
    assert ns(timed(1, 100, iterations=10)) == pytest.approx(10 * 200 + 100)
    held = timed(1, 100, iterations=10, prefetch=False)
    assert ns(held) == pytest.approx(10 * (200 + 100))
    assert any("no prefetch" in line for line in held.assumptions)
    assert ns(timed(4, 100, iterations=1, prefetch=False)) == pytest.approx(ns(timed(4, 100, iterations=1)))


def test_the_cost_of_a_replay_does_not_grow_with_a_steady_loop() -> None:
    timing = timed(4, 100, iterations=10**9)
    assert timing.execution_seconds == pytest.approx((4 * 10**9 * 200 + 100) * NS, rel=1e-12)
    assert timing.nbytes["hbm"] == 4 * 10**9 * 200
    assert timing.launches[0].kernel.pipelines[0].stages[1].firings == 4 * 10**9


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize(("count", "flops", "depth"), [(3, 100, 2), (5, 334, 3), (2, 200, 1), (7, 1200, 5)])
def test_skipping_gives_the_full_replay(count: int, flops: int, depth: int, prefetch: bool) -> None:
    settings: dict[str, Any] = {"depth": depth, "iterations": 40, "prefetch": prefetch}
    quick = timed(count, flops, **settings)
    full = timed(count, flops, **settings, record=True)
    (replayed,) = full.launches[0].kernel.pipelines
    assert quick.launches[0].kernel.pipelines == (dataclasses.replace(replayed, recording=None),)


def test_concurrent_loads_share_the_bandwidth() -> None:
    body = product(50)
    params = tuple(Param(name, (1, TILE), "bf16", "read") for name in "vw") + (Param("y", (1,), "bf16", "write"),)
    stages = (
        load("left", "v", "a", 1),
        load("right", "w", "b", 1),
        consume("first", body, "a", "y", 1, pcus=5),
        consume("second", body, "b", "y", 1, pcus=5),
    )
    buffers = (tiles("a", 1), tiles("b", 1, 200))
    timing = time_entry(program((kernel(stages, buffers, params),), (COPY, body), tiers=ON_CHIP), "main", MACHINE)
    assert ns(timing) == pytest.approx(2 * 200 + 2 * 50)  # both end at 400 ns; half the units take twice as long
    left = timing.launches[0].kernel.pipelines[0].stages[0]
    assert left.busy_seconds / NS == pytest.approx(200)


def test_weights_in_ddr_pay_its_bandwidth() -> None:
    slow = time_entry(program(*streamed(4, 100), tiers={**ON_CHIP, "w": "ddr"}), "main", MACHINE)
    assert ns(slow) == pytest.approx(4 * 2000 + 100)
    assert slow.nbytes["ddr"] == 800
    assert "hbm" not in slow.nbytes
    assert slow.tensor_bytes["w"] == 800


def test_a_spilled_buffer_moves_through_hbm() -> None:
    (base,), bodies = streamed(1, 200)
    pipeline: Any = base.body[0]
    spilled = dataclasses.replace(pipeline, buffers=(Buffer("b", (TILE,), "bf16", "hbm", 0, 2),))
    timing = time_entry(program((dataclasses.replace(base, body=(spilled,)),), bodies, tiers=ON_CHIP), "main", MACHINE)
    assert ns(timing) == pytest.approx(
        200 + 200 + 200
    )  # in and out by the load; in by the product, which takes as long
    assert timing.on_chip_bytes == 0


def test_sockets_multiply_every_rate() -> None:
    one = time_entry(program(*streamed(4, 400), tiers=ON_CHIP), "main", MACHINE)
    four = time_entry(program(*streamed(4, 400), tiers=ON_CHIP), "main", MACHINE.with_sockets(4))
    assert four.execution_seconds == pytest.approx(one.execution_seconds / 4)
    assert four.roofline_fraction < one.roofline_fraction  # launches take as long as before
    assert any("4 sockets" in line and "no tensor parallelism" in line for line in four.assumptions)


def test_an_unfused_kernel_reads_computes_and_writes_in_turn() -> None:
    body = product(1000, outputs=5)
    params = (Param("w", (TILE,), "bf16", "read"), Param("y", (5,), "bf16", "write"))
    stage = Stage("s", body.name, (), (Port(view_of("w", (TILE,))), Port(view_of("y", (5,)))), (), ())
    timing = time_entry(program((kernel((stage,), (), params),), (body,)), "main", MACHINE)
    assert ns(timing) == pytest.approx(200 + 1000 + 10)
    assert timing.pcus == 10


def test_a_broadcast_view_moves_its_elements_once() -> None:
    params = (Param("w", (TILE,), "bf16", "read"), Param("y", (TILE,), "bf16", "write"))
    stage = Stage("s", "copy", (), (Port(view_of("w", (TILE,))), Port(view_of("y", (TILE,)))), (), ())
    launch = Launch("k", (View("w", (TILE,), (0,)), view_of("y", (TILE,))))
    timing = time_entry(program((kernel((stage,), (), params),), (COPY,), (launch,), tiers=ON_CHIP), "main", MACHINE)
    assert timing.tensor_bytes["w"] == 2


def test_units_and_the_high_water_mark() -> None:
    timing = timed(4, 100, depth=7)
    found = timing.launches[0].kernel
    assert (found.pcus, found.pmus, found.on_chip_bytes) == (10, 2, 1400)
    assert timing.on_chip_bytes == 1400
    assert found.slowest is not None
    assert found.slowest.name == "load"


# ------------------------------------------------------------------------------------------------------ control


def controlled() -> Program:
    """for i in 0 .. (n + 1) // 2: if i >= 1: launch k(n), whose loop has n iterations."""
    kernels, bodies = streamed(2, 100, iterations=8)
    base: Any = kernels[0].body[0]
    bounded = dataclasses.replace(kernels[0], scalars=("m", "s"), body=(dataclasses.replace(base, upper="m"),))
    launch = Launch("k", (view_of("w", (16, TILE)), view_of("y", (1,))), ("n", "i"))
    body = (
        Scalar("t", "add", ("n", 1)),
        Scalar("half", "floordiv", ("t", 2)),
        For("i", 0, "half", (Scalar("late", "ge", ("i", 1)), If("late", (launch,)))),
    )
    return program((bounded,), bodies, body, tiers=ON_CHIP, inputs=("n",))


def test_control_runs_on_the_scalars_that_are_given() -> None:
    timing = time_entry(controlled(), "main", MACHINE, {"n": 6})
    assert len(timing.launches) == 2
    assert ns(timing) == pytest.approx(2 * (6 * 2 * 200 + 100))
    assert time_entry(controlled(), "main", MACHINE, {"n": 0}).seconds == 0


def test_a_scalar_that_only_moves_addresses_does_not_cost_another_replay() -> None:
    first, second = time_entry(controlled(), "main", MACHINE, {"n": 6}).launches
    assert first.kernel is second.kernel  # `s` differs between them


def test_a_pipeline_is_replayed_once_for_the_same_work() -> None:
    kernels, bodies = streamed(2, 100, iterations=8)
    base: Any = kernels[0].body[0]
    branch = If("s", (dataclasses.replace(base, name="q"),))
    both = dataclasses.replace(kernels[0], scalars=("s",), body=(base, branch))
    launches = tuple(Launch("k", (view_of("w", (16, TILE)), view_of("y", (1,))), (choice,)) for choice in (0, 1))
    first, second = time_entry(program((both,), bodies, launches, tiers=ON_CHIP), "main", MACHINE).launches
    assert first.kernel.pipelines[0] is second.kernel.pipelines[0]
    assert second.kernel.seconds == pytest.approx(2 * first.kernel.seconds)


def chunked(chunks: int) -> Program:
    """One pipeline over the chunks of a prompt: `start` is chunk * 4, and attention reads start + 4 rows."""
    shape = (1, 1, 4, 8)
    scratch = (1, 1, 4 * chunks, 8)
    body = Body(
        "attend",
        tuple(Param(name, shape, "bf16", "read") for name in ("q", "k", "v"))
        + tuple(Param(name, scratch, "bf16", "update") for name in ("ks", "vs"))
        + (Param("y", shape, "bf16", "write"),),
        ("start", "length"),
        (),
        (),
        (ChunkAttention("q", "k", "v", "ks", "vs", "y", "start", "length", 1.0),),
    )
    ports = tuple(Port(view_of(p.name, p.shape)) for p in body.params)
    stage = Stage("attend", "attend", (), ports, ("start", "n"), ())
    params = tuple(Param(p.name, p.shape, p.dtype, p.access) for p in body.params)
    single = kernel(
        (stage,), (), params, upper=chunks, scalars=("n",), computed=(Scalar("start", "mul", ("i", 4)),), name="chunks"
    )
    return program((single,), (body,), inputs=("n",))


def test_work_that_grows_from_iteration_to_iteration_is_replayed_in_full() -> None:
    timing = time_entry(chunked(3), "main", MACHINE, {"n": 12})
    row = 8 * 2
    in_and_out = 3 * (3 * 4 + 4 + 2 * 4) * row  # q, k, v in; the result and the new rows of K and V out
    cached = 2 * (4 + 8 + 12) * row
    assert timing.nbytes["hbm"] == in_and_out + cached
    flops = 2 * (4 * 0 + 10 + 4 * 4 + 10 + 4 * 8 + 10) * 16
    assert ns(timing) == pytest.approx(timing.nbytes["hbm"] + flops, rel=1e-3)


# ------------------------------------------------------------------------------------------------------ refusals


def test_wrong_scalars_and_entries() -> None:
    with raises(TimingErrors.SCALARS, expected=["n"]):
        time_entry(controlled(), "main", MACHINE)
    with raises(ScheduleErrors.NO_ENTRY, entry="decode"):
        time_entry(controlled(), "decode", MACHINE)
    with raises(TimingErrors.VALID_ROWS, rows=-1):
        time_entry(controlled(), "main", MACHINE, {"n": 1}, valid_rows=-1)


def test_a_deadlock_names_the_stage() -> None:
    body = product(50)
    params = (Param("w", (1, TILE), "bf16", "read"), Param("y", (1,), "bf16", "write"))
    stages = (load("load", "w", "b", 1), consume("multiply", body, "b", "y", 2))
    broken = program((kernel(stages, (tiles("b", 2),), params),), (COPY, body))
    with raises(ReplayErrors.WAITS_FOR_SLOT, where="kernel 'k', pipeline 'p'", stage="multiply", slot=1, buffer="b"):
        time_entry(broken, "main", MACHINE)


# ----------------------------------------------------------------------------------------------- published results


def looping_speedup(sockets: int, boundary: float | None = None) -> tuple[float, float]:
    """Return the speedup of a looped decoder over one launch per layer, and its roofline fraction."""
    target = changed({} if boundary is None else {"boundary_seconds": boundary}).with_sockets(sockets)
    single, looped = (time_entry(decoder(choice), "main", target) for choice in (False, True))
    assert single.nbytes["hbm"] == pytest.approx(looped.nbytes["hbm"], rel=1e-4)
    return single.seconds / looped.seconds, looped.roofline_fraction


def test_the_boundary_explains_what_looping_was_published_to_gain() -> None:
    assert [looping_speedup(n, 1e-12)[0] for n in (1, 8, 16)] == pytest.approx([1.01, 1.12, 1.23], abs=0.03)
    gain, fraction = looping_speedup(16)
    assert 2.0 <= gain <= 2.2
    assert fraction > 0.9
    assert looping_speedup(8)[1] > 0.9


def test_every_figure_that_is_no_published_one_is_named() -> None:
    lines = time_entry(decoder(True), "main", load_target("rdu")).assumptions
    for name in (
        "boundary_seconds",
        "launch_seconds",
        "firing_seconds",
        "clock",
        "f32_flops",
        "simd_lanes",
        "simd_stages",
    ):
        (line,) = [line for line in lines if line.startswith(name)]
        assert "assumed" in line or "fitted" in line


def test_the_model_needs_no_torch() -> None:
    code = "import sys, sscc.runtime.timing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
