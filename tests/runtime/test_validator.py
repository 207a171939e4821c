"""The validator: accepts every valid schedule of the library, refuses every broken one, and counts what it proves."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch

from sscc.ir.errors import InputError, SsccError
from sscc.ir.operations import CachedAttention, GatherRows, QuantizeRows, Segment, UpdateRows
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
    Param,
    Pipeline,
    Program,
    Scalar,
    Stage,
    Tensor,
    Vector,
)
from sscc.ir.target import load_target
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.validator import Limits, Report, validate
from sscc.runtime.validator.bodies import BodyProofErrors, prove_body
from sscc.runtime.validator.firing_counts import FiringProofErrors
from sscc.runtime.validator.hazards import HazardProofErrors
from sscc.runtime.validator.linear import ScalarProofErrors
from sscc.runtime.validator.placement import PlacementProofErrors
from sscc.runtime.validator.samples import SampleProofErrors
from sscc.runtime.validator.validate import ProgramProofErrors
from tests.errors import raises, refusal
from tests.runtime.broken import bases
from tests.runtime.broken.build import (
    arg_setting,
    change,
    launch_of,
    most_moved,
    place,
    port,
    port_setting,
    setting,
    sram,
)
from tests.runtime.broken.mutations import BROKEN, Broken
from tests.runtime.schedules import copy_body, read, update, write

MACHINE = load_target("rdu")
BASES: tuple[Callable[[], Program], ...] = (
    bases.streamed_product,
    bases.looped_layers,
    bases.encoded_layers,
    bases.chunked_prefill,
    bases.chained_launches,
)


def check(program: Program, **options: Any) -> Report:
    """Validates on the machine; prefill's scalars with their ranges and samples."""
    if program.entries[0].scalar_inputs:
        options = {"ranges": bases.RANGES, "samples": bases.SAMPLES, **options}
    return validate(program, MACHINE, **options)


# ---------------------------------------------------------------------------------------------- the library


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_a_valid_schedule_is_accepted(base: Callable[[], Program]) -> None:
    assert check(base()).proved > 0
    assert check(Program.from_json(base().to_json())) == check(base())


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_a_valid_schedule_executes(base: Callable[[], Program]) -> None:
    program, random_numbers = base(), torch.Generator().manual_seed(0)
    dtypes = {"f32": torch.float32, "i64": torch.int64, "i1": torch.bool}
    tensors = {tensor.name: tensor for tensor in program.tensors}
    weights = {t.name: torch.randn(t.shape, generator=random_numbers) for t in program.tensors if t.role == "weight"}
    interpreter = ReferenceInterpreter(program, weights, checked=True)
    entry = program.entries[0]
    inputs = {
        name: torch.randn(tensors[name].shape, generator=random_numbers)
        if tensors[name].dtype == "f32"
        else torch.ones(tensors[name].shape, dtype=dtypes[tensors[name].dtype])
        for name in entry.inputs
    }
    scalars = {"length": 9, "slot": 1} if entry.scalar_inputs else {}
    outputs, _ = interpreter.run(entry.name, inputs, scalars)
    assert all(bool(value.isfinite().all()) for value in outputs.values())
    if base is bases.streamed_product:
        torch.testing.assert_close(outputs["y"], inputs["x"] @ weights["w"].T)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name.replace(" ", "-"))
def test_a_broken_schedule_is_refused(broken: Broken) -> None:
    with raises(broken.kind, **broken.fields):
        check(broken.program())


def test_a_parameter_that_is_not_dense_is_seen_whole() -> None:
    """As the broken schedule "window of a parameter that is not dense", but no stage takes a window of `x`."""
    check(change(bases.streamed_product(), Launch, "linear", arg_setting(0, strides=(bases.K - 1, 1))))


def test_the_library_is_large_and_names_each_schedule_once() -> None:
    assert len({broken.name for broken in BROKEN}) == len(BROKEN) >= 60


# ------------------------------------------------------------------------------------------ mechanical sweeps


def _stages(program: Program) -> list[Stage]:
    pipelines = [item for kernel in program.kernels for item in _pipelines(kernel.body)]
    return [stage for pipeline in pipelines for stage in pipeline.stages]


def _pipelines(items: Any) -> list[Pipeline]:
    pipelines = []
    for item in items:
        if isinstance(item, Pipeline):
            pipelines.append(item)
        elif isinstance(item, For | If):
            pipelines += _pipelines(item.body)
    return pipelines


def three_layers() -> Program:
    return bases.looped_layers(3)


SWEPT = [
    (base, stage)
    for base in (bases.streamed_product, three_layers, bases.chunked_prefill, bases.chained_launches)
    for stage in _stages(base())
]


@pytest.mark.parametrize(
    ("base", "stage"), SWEPT, ids=lambda value: getattr(value, "name", value.__name__ if callable(value) else "")
)
def test_every_number_of_a_stream_matters(base: Callable[[], Program], stage: Stage) -> None:
    """Each wait dropped, each `per` and `lag` one larger, each offset one further: all refused."""
    for name in stage.waits:
        kept = tuple(wait for wait in stage.waits if wait != name)
        assert _names(refusal(check, change(base(), Stage, stage.name, setting(waits=kept))), name)
    for number, stage_port in enumerate(stage.ports):
        moved = port_setting(number, {"offset": stage_port.view.offset + prod(stage_port.view.shape)})
        assert _names(refusal(check, change(base(), Stage, stage.name, moved)), stage_port.view.tensor)
        for field in ("per", "lag"):
            edit = port_setting(number, **{field: getattr(stage_port, field) + 1})
            error = refusal(check, change(base(), Stage, stage.name, edit))
            assert _names(error, stage_port.view.tensor) or _names(error, stage.name)


def _names(error: SsccError | None, name: str) -> bool:
    """Return True if a field of the error is a name, or has it in quotes."""
    assert error is not None
    return any(value == name or f"{name!r}" in str(value) for value in error.fields.values())


def test_waits_are_checked_by_playing_the_firings_too() -> None:
    """A wait that is missing is seen as the overwriting that it allows, not only as a missing name."""
    unguarded = change(bases.looped_layers(6), Stage, "load_w", setting(waits=()))
    with raises(FiringProofErrors.OVERWRITES, firing=4, iteration=2, slot=2, buffer="w_buffer"):
        check(unguarded)


# --------------------------------------------------------------------------------------------------- encoded rows


def _moved(step: Any, *params: Param, scalars: tuple[str, ...] = ()) -> dict[str, tuple[int, int]]:
    """Elements read and written of each parameter, in one firing of a body of this step, which is proved."""
    prove_body(Body("b", params, scalars, (), (), (step,)), Limits())
    return most_moved(step, params)


def test_an_update_of_encoded_rows_moves_their_bytes() -> None:
    slots = (read("row", (2,), dtype="i64"), read("active", (2,), dtype="i1"))
    step = UpdateRows("cache", "new", "row", "active")
    moved = _moved(step, update("cache", (2, 3, 6, 12), dtype="i8"), read("new", (2, 3, 1, 12), dtype="i8"), *slots)
    assert (moved["cache"], moved["new"]) == ((0, 2 * 3 * 12), (2 * 3 * 12, 0))
    with raises(BodyProofErrors.MIXED_ROWS, encoded=["cache"], floats=["new"]):
        _moved(step, update("cache", (2, 3, 6, 12), dtype="i8"), read("new", (2, 3, 1, 12)), *slots)
    with raises(BodyProofErrors.OPERAND, operand="new", name="new", dtype="i8", shape=[2, 3, 1, 8]):
        _moved(step, update("cache", (2, 3, 6, 12), dtype="i8"), read("new", (2, 3, 1, 8), dtype="i8"), *slots)


def test_rows_are_encoded_into_four_more_bytes() -> None:
    step = QuantizeRows("x", "y")
    assert _moved(step, read("x", (2, 3, 5, 8), dtype="bf16"), write("y", (2, 3, 5, 12), dtype="i8")) == {
        "x": (2 * 3 * 5 * 8, 0),
        "y": (0, 2 * 3 * 5 * 12),
    }
    for out in (write("y", (2, 3, 5, 8), dtype="i8"), write("y", (2, 3, 5, 12)), write("y", (2, 3, 5, 8))):
        with raises(BodyProofErrors.OPERAND, operand="out", pattern="i8 [B, Hkv, J, D + 4]"):
            _moved(step, read("x", (2, 3, 5, 8)), out)
    with raises(BodyProofErrors.OPERAND, operand="source"):
        _moved(step, read("x", (2, 3, 5, 8), dtype="i8"), write("y", (2, 3, 5, 12), dtype="i8"))


def test_attention_over_encoded_rows_reads_their_bytes() -> None:
    step = CachedAttention("q", (Segment("k", "v", "valid"),), "out", 0.5)
    small = (read("q", (2, 4, 1, 8)), read("valid", (2, 6), dtype="i1"), write("out", (2, 4, 1, 5)))
    moved = _moved(step, *small, read("k", (2, 2, 6, 12), dtype="i8"), read("v", (2, 2, 6, 9), dtype="i8"))
    assert (moved["k"], moved["v"]) == ((2 * 2 * 6 * 12, 0), (2 * 2 * 6 * 9, 0))
    with raises(BodyProofErrors.OPERAND, operand="segments[0].value"):
        _moved(step, *small, read("k", (2, 2, 6, 12), dtype="i8"), read("v", (2, 2, 6, 5), dtype="i8"))


def test_a_gather_into_encoded_rows_writes_their_bytes() -> None:
    params = read("x", (1, 2, 16, 8)), read("i", (2, 3), dtype="i64"), write("y", (1, 2, 3, 12), dtype="i8")
    moved = _moved(GatherRows("x", "i", "y"), *params)
    assert (moved["x"], moved["y"]) == ((2 * 3 * 8, 0), (0, 2 * 3 * 12))


def test_encoded_rows_are_gathered_into_encoded_rows() -> None:
    with raises(BodyProofErrors.MIXED_ROWS, encoded=["x"], floats=["y"]):
        _moved(
            GatherRows("x", "i", "y"),
            read("x", (1, 2, 6, 12), dtype="i8"),
            read("i", (2, 3), dtype="i64"),
            write("y", (1, 2, 3, 8)),
        )


# -------------------------------------------------------------------------------- ranges, samples and what is left


def test_ranges_prove_all_views_without_samples() -> None:
    report = validate(bases.chunked_prefill(), ranges=bases.RANGES)
    assert report.sampled == ()
    assert report.entry("prefill").runs == ()


def test_what_ranges_do_not_prove_is_sampled_and_listed() -> None:
    report = validate(bases.chunked_prefill(), samples=bases.SAMPLES)
    assert any("stage 'load_chunk', port 'x': view of 'hidden'" in line for line in report.sampled)
    assert any("stage 'compress_stage': observation_scores length" in line for line in report.sampled)


def test_without_ranges_and_samples_it_is_refused() -> None:
    with raises(ProgramProofErrors.NOT_PROVED, subject="view of 'hidden'"):
        validate(bases.chunked_prefill())


def test_a_branch_that_no_sample_enters_is_refused() -> None:
    """The row of the last token is only bounded by a length that is not declared."""
    never = change(bases.chunked_prefill(), If, "if", setting(condition="long"))
    never = change(
        never,
        Kernel,
        "prefill_layers",
        lambda k: dataclasses.replace(k, body=(Scalar("long", "gt", ("length", 99)), *k.body)),
    )
    with raises(
        ProgramProofErrors.NOT_PROVED,
        where="kernel 'prefill_layers', pipeline 'last_token', stage 'pick_last', port 'x'",
        subject="view of 'hidden'",
    ):
        validate(never, samples=bases.SAMPLES)


def test_a_range_that_is_too_wide_is_refused_by_a_sample_beyond() -> None:
    wide = {"length": (1, bases.LONGEST), "slot": (0, bases.SLOTS)}
    beyond = {"prefill": [{"length": 3, "slot": bases.SLOTS}]}
    with raises(
        SampleProofErrors.VIEW_OUT_OF_RANGE,
        where="kernel 'prefill_layers', pipeline 'compress_once', stage 'compress_stage', port 'k_rows'",
        tensor="k_cache",
    ):
        validate(bases.chunked_prefill(), ranges=wide, samples=beyond)


def test_a_sample_outside_the_ranges_is_refused() -> None:
    with raises(
        SampleProofErrors.OUT_OF_RANGE, where="entry 'prefill' with {'length': 3, 'slot': 2}", name="slot", low=0,
        high=1,
    ):
        validate(bases.chunked_prefill(), ranges=bases.RANGES, samples={"prefill": [{"length": 3, "slot": 2}]})


def test_a_branch_narrows_what_is_known() -> None:
    """``if slot < 2`` proves the slot that the ranges leave open."""
    program = change(
        bases.chunked_prefill(),
        Kernel,
        "prefill_layers",
        lambda k: dataclasses.replace(
            k,
            body=(
                *k.body[:2],
                Scalar("low", "ge", ("slot", 0)),
                Scalar("high", "lt", ("slot", bases.SLOTS)),
                Scalar("there", "and", ("low", "high")),
                If("there", k.body[2:]),
            ),
        ),
    )
    assert validate(program, ranges={"length": (1, bases.LONGEST)}).sampled == ()


def test_a_division_by_zero_is_refused_by_a_sample() -> None:
    program = change(bases.chunked_prefill(), Scalar, "row", setting(op="mod", args=("length", "slot")))
    with raises(ScalarProofErrors.DIVIDES_BY_ZERO, scalar="row", op="mod"):
        validate(program, samples={"prefill": [{"length": 1, "slot": 0}]})
    with raises(ScalarProofErrors.MAY_DIVIDE_BY_ZERO, scalar="row", op="mod", divisor="1*slot"):
        validate(program, ranges=bases.RANGES)


def test_rows_that_data_decide_are_listed() -> None:
    assert check(bases.looped_layers()).data == ()
    shapes: dict[str, tuple[tuple[int, ...], Any, Any]] = {
        "cache": ((2, 1, 6, 4), "f32", "state"),
        "new": ((2, 1, 1, 4), "f32", "input"),
        "row": ((2,), "i64", "input"),
        "active": ((2,), "i1", "input"),
    }
    tensors, arena = place(*((name, *rest) for name, rest in shapes.items()))
    params = (
        update("cache", (2, 1, 6, 4)),
        read("new", (2, 1, 1, 4)),
        read("row", (2,), dtype="i64"),
        read("active", (2,), dtype="i1"),
    )
    body = Body("rows", params, (), (), (), (UpdateRows("cache", "new", "row", "active"),))
    ports = tuple(port(param.name, param.shape) for param in params)
    kernel = Kernel("k", params, (), (Pipeline("p", "i", 0, 1, (), (), (Stage("s", "rows", (), ports, (), ()),)),))
    entry = Entry("main", ("new", "row", "active"), (), (), (), (launch_of(tensors, "k", *shapes),))
    report = check(Program(tensors, (body,), (kernel,), (entry,), arena))
    assert report.data == ("kernel 'k', pipeline 'p', stage 's', body 'rows', step 0 (update_rows): rows of 'cache'",)


# ------------------------------------------------------------------------------------------------- many iterations


def test_cost_does_not_grow_with_the_number_of_layers() -> None:
    def seconds(layers: int) -> float:
        program = bases.looped_layers(layers)
        begin = time.perf_counter()
        check(program, limits=Limits(firings=100))
        return time.perf_counter() - begin

    seconds(4)
    assert seconds(1_000_000) < 20 * min(seconds(40) for _ in range(3))


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8])
def test_a_carry_works_for_any_number_of_layers(layers: int) -> None:
    check(bases.looped_layers(layers))
    with raises(FiringProofErrors.DEADLOCK):
        check(change(bases.looped_layers(layers), Buffer, "h", setting(depth=1)))


def _random_streams(seed: int, iterations: int) -> Program:
    """Stages in a random graph of buffers with random depths and lags; some graphs can run and some cannot."""
    choose = random.Random(seed)
    names = [f"s{n}" for n in range(choose.randint(2, 5))]
    ends: dict[str, list[tuple[str, str, int]]] = {name: [] for name in names}
    depths: dict[str, int] = {}
    carried: list[tuple[str, int]] = []
    for number in range(choose.randint(1, 6)):
        source, target, buffer = choose.choice(names), choose.choice(names), f"b{number}"
        lag = choose.choice((0, 0, 1, 2)) if source != target else choose.choice((1, 2))
        depths[buffer] = choose.randint(1, 3)
        ends[source].append((buffer, "y", lag))
        ends[target].append((buffer, "x", 0))
        carried += [(buffer, lag)] * (lag > 0)
    stages = [_once("first", "fill", buffer, lag, 0) for buffer, lag in carried]
    bodies = [
        Body("fill", (write("y", (2,)),), (), (), (), (_fill("y", (2,)),)),
        Body("take", (read("x", (2,)),), (), (), (), ()),
    ]
    for name in names:
        ports = tuple(port(buffer, (2,), 1, lag) for buffer, _, lag in ends[name])
        params = [(read if kind == "x" else write)(f"p{n}", (2,)) for n, (_, kind, _) in enumerate(ends[name])]
        steps = tuple(_fill(param.name, (2,)) for param in params if param.access == "write")
        bodies.append(Body(name, tuple(params), (), (), (), steps))
        waits = tuple(dict.fromkeys(buffer for buffer, _, _ in ends[name]))
        stages.insert(choose.randint(0, len(stages)), Stage(name, name, (), ports, (), waits))
    stages += [_once("last", "take", buffer, lag, iterations) for buffer, lag in carried]
    buffers = sram(*((buffer, (2,), depth) for buffer, depth in depths.items()))
    kernel = Kernel("k", (), (), (Pipeline("p", "i", 0, iterations, (), buffers, tuple(stages)),))
    return Program((), tuple(bodies), (kernel,), (Entry("main", (), (), (), (), (Launch("k", ()),)),), 0)


def _once(when: Any, body: str, buffer: str, slots: int, first: int) -> Stage:
    """Fills or empties the slots of a carry that the iterations do not."""
    return Stage(f"{when}_{buffer}", body, (slots,), (port(buffer, (2,), 1, first),), (), (buffer,), when)


def _fill(name: str, shape: tuple[int, ...]) -> Any:
    return Vector(shape, (), Access(name, ((1, 0),)), (Instr("one", "const", (1.0,), "f32"),), "one")


def test_a_shortened_simulation_agrees_with_a_full_one() -> None:
    """Random graphs of streams, played to the end and played until their state repeats: the same verdict."""
    verdicts = []
    for seed in range(150):
        program = _random_streams(seed, iterations=60)
        verdicts.append(tuple(_verdict(program, Limits(firings=firings)) for firings in (1 << 30, 0)))
    assert all(full == short for full, short in verdicts), verdicts
    assert {"valid", "deadlock", "fills a place again"} == {full for full, _ in verdicts}


def _verdict(program: Program, limits: Limits) -> str:
    try:
        validate(program, limits=limits)
    except InputError as refusal:
        return next(reason for reason in ("deadlock", "fills a place again") if reason in str(refusal))
    return "valid"


# ------------------------------------------------------------------------------------------------ hazards in detail


def _two_stage_memory(link: bool, size: int = 8, tile: int = 2) -> Program:
    """Stage `make` writes tiles of a state, stage `use` reads them back; ordered by a stream of tokens, or not."""
    tiles, shape = size // tile, (size,)
    tensors = (
        Tensor("x", shape, "f32", "input", "hbm", 0),
        Tensor("y", shape, "f32", "output", "hbm", 64),
        Tensor("middle", shape, "f32", "state", "hbm", 128),
    )
    at = (("t0", tile),)
    make_ports = [port("x", (tile,), terms=at), port("middle", (tile,), terms=at)]
    use_ports = [port("middle", (tile,), terms=at), port("y", (tile,), terms=at)]
    make, use = copy_body("make_body", (tile,)), copy_body("use_body", (tile,))
    if link:
        make = dataclasses.replace(
            make, params=(*make.params, write("done", (1,))), steps=(*make.steps, _fill("done", (1,)))
        )
        use = dataclasses.replace(use, params=(*use.params, read("ready", (1,))))
        make_ports.append(port("token", (1,), 1))
        use_ports.append(port("token", (1,), 1))
    waits = ("token",) if link else ()
    stages = (
        Stage("make", "make_body", (tiles,), tuple(make_ports), (), waits),
        Stage("use", "use_body", (tiles,), tuple(use_ports), (), waits),
    )
    buffers = sram(("token", (1,), 2)) if link else ()
    kernel = Kernel(
        "k",
        (read("x", shape), write("y", shape), update("middle", shape)),
        (),
        (Pipeline("p", "i", 0, 1, (), buffers, stages),),
    )
    entry = Entry("main", ("x",), ("y",), (), (), (launch_of(tensors, "k", "x", "y", "middle"),))
    return Program(tensors, (make, use), (kernel,), (entry,), 192)


def test_a_stream_orders_what_passes_through_memory_tile_by_tile() -> None:
    check(_two_stage_memory(link=True))
    with raises(
        HazardProofErrors.ITERATIONS_NOT_ORDERED, stage="make", iteration=0, tensor="middle", other="use",
        does="reads", other_iteration=0,
    ):
        check(_two_stage_memory(link=False))


def test_a_tile_that_is_read_before_the_stream_says_so_is_refused() -> None:
    """The reader's tiles are one ahead of the tokens that it takes."""
    ahead = change(_two_stage_memory(link=True), Stage, "use", port_setting(0, {"offset": 6, "terms": (("t0", -2),)}))
    with raises(HazardProofErrors.ITERATIONS_NOT_ORDERED):
        check(ahead)


def test_a_spilled_buffer_of_a_kernel_that_no_entry_launches_lies_in_the_arena() -> None:
    program = bases.chained_launches()
    (pipeline,) = program.kernels[0].body
    far = tuple(dataclasses.replace(buffer, tier="hbm", address=1 << 20) for buffer in pipeline.buffers)
    idle = dataclasses.replace(program.kernels[0], name="idle", body=(dataclasses.replace(pipeline, buffers=far),))
    with raises(
        PlacementProofErrors.OUTSIDE_ARENA, where="kernel 'idle', pipeline 'both', buffer 'through'", low=1048576
    ):
        validate(dataclasses.replace(program, kernels=(*program.kernels, idle)))
