"""Pipelines on the reference interpreter: streams, carried values, rates, and every way to break them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sscc.ir.errors import ErrorKind, SsccError, plain
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
    Param,
    Pipeline,
    Port,
    Product,
    Program,
    Scalar,
    Stage,
    Vector,
    View,
    Window,
)
from sscc.runtime.backends.cpu.plan.buffer_slots import NativeSlotErrors
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.bodies import BodyCode, ReferenceBodyErrors
from sscc.runtime.backends.reference.control import ReferenceControlErrors
from sscc.runtime.backends.reference.memory import ReferenceMemoryErrors
from sscc.runtime.backends.reference.pipelines import ReferencePipelineErrors, ReferenceStuckErrors
from sscc.runtime.backends.reference.stages import BoundStage, ReferenceStageErrors
from sscc.runtime.backends.reference.streams import ReferenceStreamErrors
from sscc.runtime.backends.reference.views import ReferenceViewErrors
from tests.errors import raises
from tests.runtime.programs import run_kernel, run_steps
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

TILE = (4, 8)
N = 6
LOAD, INC, SUM = copy_body("load", TILE), add_body("inc", TILE, 1.0), sum_body("sum", TILE)
X = torch.arange(float(N * 32)).view(N, *TILE)


def tile(name: str, *terms: tuple[str, int], offset: int = 0) -> Port:
    """One [4, 8] tile of a kernel's parameter."""
    return Port(view_of(name, TILE, offset, *terms))


def slot(name: str, per: int = 1, lag: int = 0, shape: tuple[int, ...] = TILE, *terms: tuple[str, int]) -> Port:
    return Port(view_of(name, shape, 0, *terms), per, lag)


def buffer(name: str, depth: int = 2, address: int = 0, tier: Any = "sram", shape: tuple[int, ...] = TILE) -> Buffer:
    return Buffer(name, shape, "f32", tier, address, depth)


def stage(name: str, body: Body, ports: tuple[Port, ...], waits: tuple[str, ...] = (), **more: Any) -> Stage:
    return Stage(name, body.name, more.pop("grid", ()), ports, more.pop("scalars", ()), waits, **more)


def pipeline(stages: tuple[Stage, ...], buffers: tuple[Buffer, ...], upper: Any = N, **more: Any) -> Pipeline:
    return Pipeline(
        more.get("name", "p"),
        more.get("index", "i"),
        more.get("lower", 0),
        upper,
        more.get("scalars", ()),
        buffers,
        stages,
    )


def kernel(*items: Any, scalars: tuple[str, ...] = ()) -> Kernel:
    return Kernel("k", (read("x", (N, *TILE)), Param("y", (N, *TILE), "f32", "update")), scalars, items)


def run(the_kernel: Kernel, scalars: dict[str, int] | None = None, **more: Any) -> torch.Tensor:
    """Return y after the kernel has run with x = 0, 1, 2, ..; before, y is -1."""
    bodies = (LOAD, INC, SUM)
    writes = {"y": torch.full((N, *TILE), -1.0)}
    return run_kernel(the_kernel, bodies, {"x": X}, writes, scalars, **more)["y"]


LOADS = stage("load", LOAD, (tile("x", ("i", 32)), slot("a")), ("a",))
STORES = stage("store", INC, (slot("a"), tile("y", ("i", 32))), ("a",))


# -------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, N + 1])
@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_load_product_store(depth: int, precision: str, checked: bool) -> None:
    """y[i] = x[i] @ w, with every tile through two buffers, and with the iterations as a grid too."""
    x, w = torch.randn(N, 4, 8), torch.randn(8, 5)
    access = [Access(n, tuple((*(int(d == dim) for d in range(3)), 0) for dim in dims)) for n, dims in
              (("a", (0, 2)), ("b", (2, 1)), ("o", (0, 1)))]  # fmt: skip
    multiply = Body(
        "multiply",
        (read("a", TILE), read("b", (8, 5)), write("o", (4, 5))),
        (),
        (),
        (),
        (Product((4, 5, 8), (2,), *access),),
    )
    store = copy_body("store", (4, 5))
    buffers = (buffer("a", depth), Buffer("o", (4, 5), "f32", "sram", 128 * depth, depth))

    def stages(index: str, **grid: Any) -> tuple[Stage, ...]:
        return (
            stage("load", LOAD, (tile("x", (index, 32)), slot("a")), ("a",), **grid),
            stage(
                "multiply",
                multiply,
                (slot("a"), Port(view_of("w", (8, 5))), slot("o", shape=(4, 5))),
                ("a", "o"),
                **grid,
            ),
            stage(
                "store", store, (slot("o", shape=(4, 5)), Port(view_of("y", (4, 5), 0, (index, 20)))), ("o",), **grid
            ),
        )

    params = (read("x", (N, *TILE)), read("w", (8, 5)), write("y", (N, 4, 5)))
    want = torch.stack([tile @ w for tile in (x.double() if precision == "f64" else x)]) if precision == "f32" else (
        x.double() @ w.double()
    )  # fmt: skip
    for loop in (pipeline(stages("i"), buffers), pipeline(stages("t0", grid=(N,)), buffers, 1)):
        got = run_kernel(
            Kernel("k", params, (), (loop,)), (LOAD, multiply, store), {"x": x, "w": w}, {"y": torch.zeros(N, 4, 5)},
            None, precision, checked,
        )["y"]  # fmt: skip
        assert torch.equal(got, want) if precision == "f32" else torch.allclose(got, want, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("depth", [2, 3])
def test_a_value_carried_through_the_iterations(depth: int, checked: bool) -> None:
    """A prologue loads a value, each iteration adds its x to it, and an epilogue stores it to y[3]."""
    stages = (
        stage("start", INC, (tile("x"), slot("c")), ("c",), when="first"),
        stage("add", SUM, (slot("c"), tile("x", ("i", 32)), slot("c", lag=1)), ("c",)),
        stage("end", LOAD, (slot("c", lag=N), tile("y", ("i", 32))), ("c",), when="last"),
    )
    got = run(kernel(pipeline(stages, (buffer("c", depth),))), checked=checked)
    want = torch.full((N, *TILE), -1.0)
    want[N - 1] = X[0] + 1 + X.sum(0)
    assert torch.equal(got, want), "the epilogue has the index of the last iteration"


def test_the_order_of_stages_does_not_change_what_they_compute() -> None:
    for stages in ((LOADS, STORES), (STORES, LOADS)):
        assert torch.equal(run(kernel(pipeline(stages, (buffer("a", 1),)))), X + 1)


def test_two_consumers_of_different_rates() -> None:
    """One takes a slot whole and waits for the other, which takes it row by row, over two slots."""
    rows = add_body("rows", (8,), 2.0)
    z = Port(view_of("z", (8,), 0, ("i", 32), ("t0", 8)))
    stages = (
        LOADS,
        stage("by_row", rows, (slot("a", 4, 0, (8,), ("t0", 8)), z), ("a",), grid=(4,)),
        STORES,
    )
    the_kernel = Kernel("k", (*kernel().params, write("z", (N, *TILE))), (), (pipeline(stages, (buffer("a", 2),)),))
    writes = {"y": torch.zeros(N, *TILE), "z": torch.zeros(N, *TILE)}
    got = run_kernel(the_kernel, (LOAD, INC, rows), {"x": X}, writes)
    assert torch.equal(got["y"], X + 1)
    assert torch.equal(got["z"], X + 2)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slot_that_many_firings_fill(depth: int) -> None:
    """Eight firings over two iterations fill a slot, then a consumer that fires once in two iterations' time."""
    half = copy_body("half", (8,))
    fill = stage(
        "fill",
        half,
        (Port(view_of("x", (8,), 0, ("i", 32), ("t0", 8))), slot("b", 4, 0, (8,), ("t0", 8))),
        ("b",),
        grid=(4,),
    )
    drain = stage("drain", INC, (slot("b"), tile("y", ("i", 32))), ("b",))
    the_kernel = kernel(pipeline((drain, fill), (buffer("b", depth),)))
    writes = {"y": torch.zeros(N, *TILE)}
    assert torch.equal(run_kernel(the_kernel, (half, INC), {"x": X}, writes)["y"], X + 1)


def test_a_slot_that_is_filled_over_several_iterations() -> None:
    """Two iterations fill each slot; the consumer reads slot f // 2 in iteration f, from the second half of it."""
    half = copy_body("half", (2, 8))
    fill = stage("fill", half, (Port(view_of("x", (2, 8), 0, ("i", 16))), slot("b", 2, 0, (2, 8), ("odd", 16))), ("b",))
    drain = stage(
        "drain", half, (slot("b", 2, 0, (2, 8), ("odd", 16)), Port(view_of("y", (2, 8), 0, ("i", 16)))), ("b",)
    )
    the_kernel = kernel(pipeline((fill, drain), (buffer("b"),), 2 * N, scalars=(Scalar("odd", "mod", ("i", 2)),)))
    refusal = NativeSlotErrors.PART_OF_RUN
    assert torch.equal(run_kernel(the_kernel, (half,), {"x": X}, {"y": torch.zeros(N, *TILE)}, refusal=refusal)["y"], X)


def test_a_value_that_is_loaded_once_and_read_by_all() -> None:
    stages = (
        stage("bias", LOAD, (tile("x", offset=32), slot("b")), ("b",), when="first"),
        stage("add", SUM, (tile("x", ("i", 32)), slot("b", N), tile("y", ("i", 32))), ("b",)),
    )
    assert torch.equal(run(kernel(pipeline(stages, (buffer("b", 1),)))), X + X[1])


@pytest.mark.parametrize(
    ("depth", "want"), [(1, "LS" * N), (2, "LLSS" * 3), (4, "LLLLSSSS" + "LLSS"), (9, "LLLLLLSSSSSS")]
)
def test_stages_run_ahead_by_the_depth_of_the_buffer(depth: int, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        firing_order((LOADS, STORES), depth, monkeypatch) == want.replace("L", "load ").replace("S", "store ").split()
    )


def test_the_order_of_firing_is_that_of_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert firing_order((STORES, LOADS), 2, monkeypatch)[:6] == ["load", "load", "store", "store", "load", "load"]


def firing_order(stages: tuple[Stage, ...], depth: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    order: list[str] = []
    fire = BoundStage.fire

    def recorded(self: BoundStage, begin: int, end: int) -> None:
        order.extend([self.name] * (end - begin))
        fire(self, begin, end)

    monkeypatch.setattr(BoundStage, "fire", recorded)
    run(kernel(pipeline(stages, (buffer("a", depth),))))
    return order


# ------------------------------------------------------------------------------------------- control and scalars


def test_control_around_pipelines_and_scalars_of_every_level() -> None:
    """For every row r below n, where r is odd: y[r] = x[r] + r * 10 + t0, a row of a tile in each firing."""
    row = Body(
        "row", (read("x", (8,)), write("y", (8,))), ("amount", "lane"), (), (),
        (Vector((8,), (Access("x", identity(1)),), Access("y", identity(1)),
                (Instr("s", "addi", ("amount", "lane"), "i64"), Instr("f", "sitofp", ("s",), "f32"),
                 Instr("r", "addf", ("in0", "f"), "f32")), "r"),),
    )  # fmt: skip
    ports = tuple(Port(view_of(name, (8,), 0, ("base", 1), ("t0", 8))) for name in "xy")
    inner = pipeline(
        (stage("rows", row, ports, grid=(4,), scalars=("tens", "t0")),), (), "stop", name="rows", lower="r",
        scalars=(Scalar("base", "mul", ("i", 32)), Scalar("tens", "mul", ("i", 10))),
    )  # fmt: skip
    items = (
        For("r", 0, "n", (
            Scalar("odd", "mod", ("r", 2)),
            Scalar("stop", "add", ("r", "odd")),
            If("odd", (inner,)),
        )),
    )  # fmt: skip
    the_kernel = Kernel("k", kernel().params, ("n",), items)
    got = run_kernel(the_kernel, (row,), {"x": X}, {"y": torch.zeros(N, *TILE)}, {"n": 4})["y"]
    want = torch.zeros(N, *TILE)
    for r in (1, 3):
        want[r] = X[r] + 10 * r + torch.arange(4.0)[:, None]
    assert torch.equal(got, want)


@pytest.mark.parametrize("count", [0, -2, 1, 4, N])
def test_the_number_of_iterations_may_depend_on_a_scalar(count: int) -> None:
    got = run(kernel(pipeline((LOADS, STORES), (buffer("a"),), "n"), scalars=("n",)), {"n": count})
    want = torch.full((N, *TILE), -1.0)
    want[: max(count, 0)] = X[: max(count, 0)] + 1
    assert torch.equal(got, want)


def test_pipelines_that_run_one_after_another_share_addresses() -> None:
    again = (
        stage("load", LOAD, (tile("y", ("i", 32)), slot("b")), ("b",)),
        stage("store", INC, (slot("b"), tile("y", ("i", 32))), ("b",)),
    )
    the_kernel = kernel(pipeline((LOADS, STORES), (buffer("a"),)), pipeline(again, (buffer("b"),), name="q"))
    assert torch.equal(run(the_kernel), X + 2)


@pytest.mark.parametrize(("operands", "want"), [(("a", "b"), -4), (("b", "a"), 4), (("a", 3), 2), (("i", "b"), -9)])
def test_scalars_of_a_body_that_have_other_names_outside(operands: Any, want: int) -> None:
    """The body gives its a - b; outside, a is 5, b is 9 and i, the index, is 0."""
    step = Vector((4,), (), Access("y", identity(1)), (Instr("r", "subi", ("a", "b"), "i64"),), "r")
    body = Body("k", (write("y", (4,), "i64"),), ("a", "b"), (), (), (step,))
    only = stage("only", body, (Port(view_of("y", (4,))),), scalars=operands)
    the_kernel = Kernel("k", body.params, ("a", "b"), (pipeline((only,), (), 1),))
    got = run_kernel(the_kernel, (body,), {}, {"y": torch.zeros(4, dtype=torch.int64)}, {"a": 5, "b": 9})["y"]
    assert got.tolist() == [want] * 4


# ------------------------------------------------------------------------------------------------------- memory


def test_buffers_at_overlapping_addresses_really_overlap() -> None:
    """Slot 1 of `a` lies where `b` does: the second tile is lost, and so is what the first consumer left."""
    middle = stage("middle", INC, (slot("a"), slot("b")), ("a", "b"))
    ends = stage("store", INC, (slot("b"), tile("y", ("i", 32))), ("b",))
    apart = (buffer("a", 2), buffer("b", 1, 2 * 128))
    assert torch.equal(run(kernel(pipeline((LOADS, middle, ends), apart))), X + 2)
    over = kernel(pipeline((LOADS, middle, ends), (buffer("a", 2), buffer("b", 1, 128))))
    got = run(over, checked=False, native=False)
    assert torch.equal(got[0], X[0] + 2)
    assert torch.equal(got[1], X[0] + 3), "the result of the first tile took the place of the second"


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_a_spilled_buffer_lies_in_the_arena(precision: str) -> None:
    behind = 2 * N * 128
    the_kernel = kernel(pipeline((LOADS, STORES), (buffer("a", 2, behind, "hbm"),)))
    assert torch.equal(
        run(the_kernel, arena=256, precision=precision), (X + 1).to(torch.float64 if precision == "f64" else None)
    )
    with raises(ReferenceMemoryErrors.BUFFER_MISPLACED, buffer="a", depth=2, nbytes=256, address=behind):
        run(the_kernel, arena=192)


def spilling_program(address: int) -> Program:
    """Launches k, whose buffer is spilled to `address`, between a write and a read of temporary t at address 0."""
    tensors, arena = lay_out(
        ("t", TILE, "f32", "temporary"), ("x", (N, *TILE), "f32", "input"), ("y", (N, *TILE), "f32", "output"),
        ("z", TILE, "f32", "output"),
    )  # fmt: skip
    t, x, y, z = tensors
    the_kernel = Kernel("k", (read("x", (N, *TILE)), write("y", (N, *TILE))), (), (
        pipeline((LOADS, STORES), (buffer("a", 1, arena if address else 0, "hbm"),)),))  # fmt: skip
    launches = (
        Launch("load", (view_of("x", TILE), whole(t))),
        Launch("k", (whole(x), whole(y))),
        Launch("load", (whole(t), whole(z))),
    )
    entry = Entry("main", ("x",), ("y", "z"), (), (), launches)
    return Program(tensors, (LOAD, INC), (the_kernel, one_stage(LOAD)), (entry,), arena + 128)


def test_a_temporary_under_a_spilled_buffer_is_lost() -> None:
    outputs, _ = ReferenceInterpreter(spilling_program(1), {}, checked=True).run("main", {"x": X})
    assert torch.equal(outputs["z"], X[0])
    assert torch.equal(ReferenceInterpreter(spilling_program(0), {}).run("main", {"x": X})[0]["z"], X[N - 1])
    with raises(ReferenceMemoryErrors.NOT_WRITTEN, role="temporary", tensor="t"):
        ReferenceInterpreter(spilling_program(0), {}, checked=True).run("main", {"x": X})


@pytest.mark.parametrize("checked", [False, True])
def test_what_a_producer_leaves_out_of_its_slot_is_poison(checked: bool) -> None:
    """Rows 0 and 1 of even slots are filled, and rows 2 and 3 of odd ones. Other rows are NaN with checks, else
    stale."""
    half = copy_body("half", (2, 8))
    source = Port(view_of("x", (2, 8), 0, ("i", 32), ("odd", 16)))
    fill = stage("load", half, (source, slot("a", 1, 0, (2, 8), ("odd", 16))), ("a",))
    the_kernel = kernel(pipeline((fill, STORES), (buffer("a", 1),), scalars=(Scalar("odd", "mod", ("i", 2)),)))
    writes = {"y": torch.zeros(N, *TILE)}
    got = run_kernel(the_kernel, (half, INC), {"x": X}, writes, checked=checked, native=False)["y"]
    for i in range(1, N):
        filled, left = (slice(2), slice(2, 4)) if i % 2 == 0 else (slice(2, 4), slice(2))
        assert torch.equal(got[i, filled], X[i, filled] + 1)
        assert bool(got[i, left].isnan().all()) if checked else torch.equal(got[i, left], X[i - 1, left] + 1)


# ------------------------------------------------------------------------------------- bodies: locals, windows


def test_locals_and_windows_of_a_body() -> None:
    """y = transpose(x) doubled, through a local; the last step sees x's second row and a column of the local."""
    turned, column = Access("turned", identity(2)), Access("column", identity(1))
    twice = (Instr("r", "addf", ("in0", "in0"), "f32"),)
    product = (Instr("r", "mulf", ("in0", "in1"), "f32"),)
    double = Vector((8, 4), (turned,), Access("hold", identity(2)), twice, "r")
    keep = Vector((8, 4), (Access("hold", identity(2)),), Access("y", identity(2)), (), "in0")
    mix = Vector((8,), (Access("second", identity(1)), column), Access("z", identity(1)), product, "r")
    x = torch.randn(4, 8)
    got = run_steps(
        (double, keep, mix), {"x": x}, {"y": torch.zeros(8, 4), "z": torch.zeros(8)}, access="write",
        locals_=(Local("hold", (8, 4), "f32"),),
        windows=(
            Window("turned", View("x", (8, 4), (1, 8))),
            Window("second", View("x", (8,), (1,), 8)),
            Window("column", View("hold", (8,), (4,), 3)),
        ),
    )  # fmt: skip
    assert torch.equal(got["y"], 2 * x.T)
    assert torch.equal(got["z"], x[1] * 2 * x[3])


def test_a_window_of_a_written_parameter_is_written() -> None:
    step = Vector((4,), (Access("x", identity(1)),), Access("middle", identity(1)), (), "in0")
    windows = (Window("middle", View("y", (4,), (2,), 1)),)
    got = run_steps((step,), {"x": torch.ones(4)}, {"y": torch.zeros(8)}, access="write", windows=windows)["y"]
    assert got.tolist() == [0.0, 1.0] * 4


def test_an_element_that_is_read_where_another_is_written_is_read_first() -> None:
    """y[1:] = y[:7] by windows that overlap: all reads of a step happen before its writes."""
    step = Vector((7,), (Access("low", identity(1)),), Access("high", identity(1)), (), "in0")
    windows = (Window("low", View("y", (7,), (1,))), Window("high", View("y", (7,), (1,), 1)))
    got = run_steps((step,), {}, {"y": torch.arange(8.0)}, windows=windows)["y"]
    assert got.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("checked", [False, True])
def test_a_local_is_poison_at_the_start_of_every_firing(checked: bool) -> None:
    """The body stores its local before it sets it: firing i stores what firing i - 1 left, or NaN if checked."""
    out = Vector(TILE, (Access("l", identity(2)),), Access("y", identity(2)), (), "in0")
    keep = Vector(TILE, (Access("x", identity(2)),), Access("l", identity(2)), (), "in0")
    body = Body("b", (read("x", TILE), write("y", TILE)), (), (Local("l", TILE, "f32"),), (), (out, keep))
    the_kernel = kernel(pipeline((stage("s", body, (tile("x", ("i", 32)), tile("y", ("i", 32)))),), ()))
    writes = {"y": torch.zeros(N, *TILE)}
    got = run_kernel(the_kernel, (body,), {"x": X}, writes, checked=checked, native=False)["y"]
    assert bool(got[1:].isnan().all()) == checked
    assert checked or torch.equal(got[1:], X[:-1])


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        (
            {"windows": (Window("w", View("x", TILE, (8, 1), 1)),)}, ReferenceViewErrors.OUT_OF_BOUNDS,
            {"where": "body 'load': window 'w'", "tensor": "x", "first": 1, "last": 32, "elements": 32},
        ),
        (
            {"windows": (Window("w", View("y", TILE, (1, 1))),)}, ReferenceViewErrors.WRITES_TWICE,
            {"where": "body 'load': window 'w'", "tensor": "y"},
        ),
    ],
)  # fmt: skip
def test_malformed_bodies_are_refused(change: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        ReferenceInterpreter(Program((), (replace(LOAD, **change),), (), (), 0), {})


# ----------------------------------------------------------------------------------------- arguments of a launch


def strided_program(the_kernel: Kernel, bodies: tuple[Body, ...]) -> Program:
    """Launches a kernel of x [4, 8] (read) and y [4, 8] (write) on the transpose of input x [8, 4]."""
    (x, y), arena = lay_out(("x", (8, 4), "f32", "input"), ("y", TILE, "f32", "output"))
    entry = Entry("main", ("x",), ("y",), (), (), (Launch(the_kernel.name, (View("x", TILE, (1, 4)), whole(y))),))
    return Program((x, y), bodies, (the_kernel,), (entry,), arena)


def test_a_port_that_is_the_whole_parameter_passes_a_strided_argument_on() -> None:
    x = torch.randn(8, 4)
    outputs, _ = ReferenceInterpreter(strided_program(one_stage(LOAD), (LOAD,)), {}).run("main", {"x": x})
    assert torch.equal(outputs["y"], x.T)


def test_a_window_of_an_argument_that_is_not_dense_is_refused() -> None:
    row = copy_body("row", (8,))
    ports = tuple(Port(view_of(name, (8,), 0, ("t0", 8))) for name in "xy")
    the_kernel = Kernel("k", LOAD.params, (), (pipeline((stage("s", row, ports, grid=(4,)),), (), 1),))
    with raises(ReferenceStageErrors.NOT_DENSE, where="kernel 'k', pipeline 'p': stage 's': port of 'x'", tensor="x"):
        ReferenceInterpreter(strided_program(the_kernel, (row,)), {})
    windowed = replace(LOAD, windows=(Window("w", View("x", TILE, (8, 1))),))
    with raises(ReferenceBodyErrors.NOT_DENSE, where="body 'load'", window="w", param="x"):
        ReferenceInterpreter(strided_program(one_stage(windowed), (windowed,)), {})


def test_a_body_is_bound_once_for_equal_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call meets the places and offsets of the first; a launch on other tensors does not get its results."""
    roles = {"x": "input", "u": "input", "y": "output", "z": "output"}
    (x, u, y, z), arena = lay_out(*((name, (N, *TILE), "f32", role) for name, role in roles.items()))
    the_kernel = Kernel(
        "k", (read("x", (N, *TILE)), write("y", (N, *TILE))), (), (pipeline((LOADS, STORES), (buffer("a"),)),)
    )
    launches = (Launch("k", (whole(x), whole(y))), Launch("k", (whole(u), whole(z))))
    entry = Entry("main", ("x", "u"), ("y", "z"), (), (), launches)
    interpreter = ReferenceInterpreter(Program((x, u, y, z), (LOAD, INC), (the_kernel,), (entry,), arena), {})
    bound: list[str] = []
    bind = BodyCode.bind

    def counted(self: BodyCode, arguments: Any) -> Any:
        bound.append(self.body.name)
        return bind(self, arguments)

    monkeypatch.setattr(BodyCode, "bind", counted)
    for factor in (1.0, 2.0):
        outputs, _ = interpreter.run("main", {"x": factor * X, "u": -factor * X})
        assert torch.equal(outputs["y"], factor * X + 1)
        assert torch.equal(outputs["z"], -factor * X + 1)
    assert bound.count("load") == bound.count("inc") == 2 * N


def test_a_launch_whose_views_move_sees_where_they_are() -> None:
    """More positions than are kept bound, forwards and backwards."""
    rows = 40
    (x, y), arena = lay_out(("x", (rows, 8), "f32", "input"), ("y", (rows, 8), "f32", "output"))
    launch = Launch("row", (view_of("x", (8,), 0, ("i", 8)), view_of("y", (8,), 8 * (rows - 1), ("i", -8))))
    entry = Entry("main", ("x",), ("y",), (), (), (For("i", 0, rows, (launch,)),))
    row = copy_body("row", (8,))
    interpreter = ReferenceInterpreter(Program((x, y), (row,), (one_stage(row),), (entry,), arena), {})
    for _ in range(2):
        source = torch.randn(rows, 8)
        assert torch.equal(interpreter.run("main", {"x": source})[0]["y"], source.flip(0))


# --------------------------------------------------------------------------------------------- broken schedules


def waits(stage: str, obstacle: SsccError, firing: int = 0) -> SsccError:
    """Return what a deadlock says of a stage that waits in one of N firings."""
    return ReferenceStuckErrors.WAITS(stage=stage, firing=firing, iteration=firing, firings=N, obstacles=[obstacle])


def test_reading_a_slot_that_is_not_complete_is_refused() -> None:
    early = replace(STORES, waits=())
    obstacle = ReferenceStreamErrors.NOT_FILLED(slot=0, buffer="a", place=0, stage="load", filled=0, needed=1)
    with raises(
        ReferencePipelineErrors.READS_TOO_EARLY, where="kernel 'k', pipeline 'p'", stage="store", firing=0, iteration=0,
        buffer="a", obstacle=obstacle,
    ):
        run(kernel(pipeline((early, LOADS), (buffer("a"),))))


def test_reading_a_slot_that_is_filled_in_part_is_refused() -> None:
    half = copy_body("half", (8,))
    fill = stage("fill", half, (Port(view_of("x", (8,), 0, ("i", 8))), slot("a", 4, 0, (8,), ("i", 8))), ("a",))
    early = stage("drain", INC, (slot("a", 4), tile("y")), ())
    the_kernel = kernel(pipeline((fill, early), (buffer("a", 1),), 3))
    obstacle = ReferenceStreamErrors.NOT_FILLED(slot=0, buffer="a", place=0, stage="fill", filled=3, needed=4)
    with raises(ReferencePipelineErrors.READS_TOO_EARLY, stage="drain", firing=0, iteration=0, obstacle=obstacle):
        run_kernel(the_kernel, (half, INC), {"x": X}, {"y": torch.zeros(N, *TILE)})


def test_reading_a_slot_that_nobody_fills_is_refused() -> None:
    early = stage("store", INC, (slot("a", lag=1), tile("y", ("i", 32))), ())
    obstacle = ReferenceStreamErrors.NEVER_FILLED(slot=6, buffer="a", place=0)
    with raises(ReferencePipelineErrors.READS_TOO_EARLY, stage="store", firing=5, iteration=5, obstacle=obstacle):
        run(kernel(pipeline((LOADS, early), (buffer("a", N),))))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_overwriting_a_slot_that_is_still_to_be_read_is_refused(depth: int) -> None:
    hasty = replace(LOADS, waits=())
    obstacle = ReferenceStreamErrors.STILL_USED(slot=depth, buffer="a", place=0, held=0, stage="store")
    with raises(
        ReferencePipelineErrors.FILLS_TOO_EARLY, stage="load", firing=depth, iteration=depth, buffer="a",
        obstacle=obstacle,
    ):
        run(kernel(pipeline((hasty, STORES), (buffer("a", depth),))))


def test_a_slot_is_kept_for_the_slowest_of_its_readers() -> None:
    """An epilogue holds slot 1 until another has seen the last slot, which cannot be made before."""
    stages = (
        LOADS,
        STORES,
        stage("late", SUM, (slot("a", lag=1), slot("b"), tile("y")), ("a", "b"), when="last"),
        stage("ends", LOAD, (slot("a", lag=N - 1), slot("b")), ("a", "b"), when="last"),
    )
    wide = (buffer("a", N - 1), buffer("b", 1, N * 128))
    refusal = NativeSlotErrors.OVERWRITTEN
    assert torch.equal(run(kernel(pipeline(stages, wide)), refusal=refusal)[0], X[1] + X[N - 1])
    held = ReferenceStreamErrors.STILL_USED(slot=3, buffer="a", place=1, held=1, stage="late")
    with raises(ReferencePipelineErrors.DEADLOCK) as caught:
        run(kernel(pipeline(stages, (buffer("a", 2), buffer("b", 1, 256)))))
    assert plain(waits("load", held, firing=3)) in caught.value.fields["stuck"]


def test_a_deadlock_names_the_stages_that_are_stuck() -> None:
    """Each of two stages waits for the other's first slot."""
    ring = (
        stage("ping", SUM, (slot("b"), tile("x", ("i", 32)), slot("a")), ("a", "b")),
        stage("pong", LOAD, (slot("a"), slot("b")), ("a", "b")),
    )
    buffers = (buffer("a", 1), buffer("b", 1, 128))
    stuck = [
        waits("ping", ReferenceStreamErrors.NOT_FILLED(slot=0, buffer="b", place=0, stage="pong", filled=0, needed=1)),
        waits("pong", ReferenceStreamErrors.NOT_FILLED(slot=0, buffer="a", place=0, stage="ping", filled=0, needed=1)),
    ]
    with raises(ReferencePipelineErrors.DEADLOCK, where="kernel 'k', pipeline 'p'", stuck=stuck):
        run(kernel(pipeline(ring, buffers)))


def test_a_carried_value_in_a_single_slot_is_a_deadlock() -> None:
    """The stage would overwrite what it reads."""
    stages = (
        stage("start", INC, (tile("x"), slot("c")), ("c",), when="first"),
        stage("add", SUM, (slot("c"), tile("x", ("i", 32)), slot("c", lag=1)), ("c",)),
    )
    held = ReferenceStreamErrors.STILL_USED(slot=1, buffer="c", place=0, held=0, stage="add")
    with raises(ReferencePipelineErrors.DEADLOCK, stuck=[waits("add", held)]):
        run(kernel(pipeline(stages, (buffer("c", 1),))))


def test_an_epilogue_for_another_number_of_iterations_is_a_deadlock() -> None:
    end = stage("end", LOAD, (slot("a", lag=4), tile("y", ("i", 32))), ("a",), when="last")
    the_kernel = kernel(pipeline((LOADS, STORES, end), (buffer("a"),), "n"), scalars=("n",))
    refusal = NativeSlotErrors.UNKNOWN_LENGTH
    assert torch.equal(run(the_kernel, {"n": 5}, refusal=refusal)[4], X[4])
    lost = ReferenceStreamErrors.NEVER_FILLED(slot=4, buffer="a", place=0)
    stuck = ReferenceStuckErrors.WAITS(stage="end", firing=0, iteration=3, firings=1, obstacles=[lost])
    with raises(ReferencePipelineErrors.DEADLOCK, stuck=[stuck]):
        run(the_kernel, {"n": 4})


@pytest.mark.parametrize("lag", [0, 3])
def test_a_slot_with_two_producers_is_refused(lag: int) -> None:
    other = stage("other", INC, (tile("x"), slot("a", lag=lag)), ("a",), when="first")
    with raises(
        ReferencePipelineErrors.FILLED_TWICE, where="kernel 'k', pipeline 'p'", buffer="a", stage="load",
        other="other", slot=lag,
    ):
        run(kernel(pipeline((LOADS, other, STORES), (buffer("a", N),))))


def test_a_reader_that_is_refused_only_where_it_would_fire() -> None:
    """A stage that still waits for one buffer does not touch the other, which it does not wait for."""
    both = stage("both", SUM, (slot("a"), slot("b"), tile("y", ("i", 32))), ("b",))
    second = stage("second", INC, (slot("a"), slot("b")), ("a", "b"))
    assert torch.equal(run(kernel(pipeline((both, LOADS, second), (buffer("a"), buffer("b", 2, 256))))), 2 * X + 1)


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        (
            {"ports": (tile("x", offset=32 * N - 31), slot("a"))}, ReferenceViewErrors.OUT_OF_BOUNDS,
            {
                "where": "kernel 'k', pipeline 'p': stage 'load': port of 'x'", "tensor": "x", "first": 161,
                "last": 192, "elements": 192,
            },
        ),
        (
            {"ports": (tile("x"), Port(View("a", TILE, (0, 1)), 1))}, ReferenceViewErrors.WRITES_TWICE,
            {"where": "kernel 'k', pipeline 'p': stage 'load': port of 'y'", "tensor": "a"},
        ),
    ],
)  # fmt: skip
def test_malformed_stages_are_refused_at_construction(change: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    the_kernel = kernel(pipeline((replace(LOADS, **change), STORES), (buffer("a"), buffer("b", 1, 256))))
    with raises(kind, **fields):
        ReferenceInterpreter(Program((), (LOAD, INC), (the_kernel,), (), 0), {})


@pytest.mark.parametrize(
    ("items", "kind", "fields"),
    [
        (
            (pipeline((LOADS, STORES), (buffer("a", 0),)),), ReferenceMemoryErrors.BUFFER_MISPLACED,
            {"buffer": "a", "depth": 0, "nbytes": 0, "address": 0, "limit": 0},
        ),
        (
            (pipeline((LOADS, STORES), (buffer("a", 1, 2),)),), ReferenceMemoryErrors.BUFFER_MISPLACED,
            {"buffer": "a", "unit": 4},
        ),
        (
            (pipeline((LOADS, STORES), (buffer("a", 1, 0, "ddr"),)),), ReferenceMemoryErrors.BUFFER_MISPLACED,
            {"buffer": "a", "tier": "ddr"},
        ),
    ],
)  # fmt: skip
def test_malformed_kernels_are_refused_at_construction(items: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        ReferenceInterpreter(Program((), (LOAD, INC), (kernel(*items),), (), 0), {})


def test_a_scalar_of_a_kernel_that_a_path_never_sets_is_refused() -> None:
    items = (If("n", (Scalar("upper", "add", ("n", 0)),)), pipeline((LOADS, STORES), (buffer("a"),), "upper"))
    the_kernel = kernel(*items, scalars=("n",))
    assert torch.equal(run(the_kernel, {"n": 2}, native=False)[:2], X[:2] + 1)
    with raises(ReferenceControlErrors.UNSET_SCALAR, where="kernel 'k'", scalar="upper"):
        run(the_kernel, {"n": 0})
