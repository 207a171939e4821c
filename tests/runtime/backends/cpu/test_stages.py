"""Loads that the plan omits, loads that it keeps, and windows of windows."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Instr,
    Kernel,
    Param,
    Pipeline,
    Port,
    Scalar,
    Stage,
    Vector,
    View,
    Window,
)
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.plan.stages import BufferPort, MemoryPort, ResolvedStage, compose, resolve_stages
from tests.runtime.schedules import copy_body, identity, read, view_of, write

ROWS, WIDTH, TILES = 8, 4, 4
TILE = (ROWS // TILES, WIDTH)
BY_TILE = (("t0", TILE[0] * WIDTH),)


def tiles(name: str, *terms: tuple[str, int]) -> View:
    return view_of(name, TILE, 0, *(terms or BY_TILE))


def whole(name: str) -> View:
    return view_of(name, (ROWS, WIDTH))


LOAD = Stage("load", "copy", (TILES,), (Port(tiles("x")), Port(view_of("b", TILE), 1)), (), ("b",))
"""Tiles of x, one per slot."""
USE = Stage("use", "double", (TILES,), (Port(view_of("b", TILE), 1), Port(tiles("y"))), (), ("b",))
LOAD_ALL = Stage("load", "copy_all", (), (Port(whole("x")), Port(whole("b"), 1)), (), ("b",))
"""All of x in one slot."""
USE_TILES = Stage("use", "double", (TILES,), (Port(tiles("b"), TILES), Port(tiles("y"))), (), ("b",))


def double(name: str, shape: tuple[int, ...]) -> Body:
    step = Vector(
        shape,
        (Access("x", identity(2)),),
        Access("y", identity(2)),
        (Instr("r", "addf", ("in0", "in0"), "f32"),),
        "r",
    )
    return Body(name, (read("x", shape), write("y", shape)), (), (), (), (step,))


BODIES = (
    copy_body("copy", TILE),
    copy_body("copy_all", (ROWS, WIDTH)),
    double("double", TILE),
    double("double_all", (ROWS, WIDTH)),
)


def resolve(
    *stages: Stage,
    slot: tuple[int, ...] = TILE,
    bodies: tuple[Body, ...] = BODIES,
    x: Any = "read",
    aliased: frozenset[str] = frozenset(),
    scalars: tuple[Scalar, ...] = (),
) -> list[ResolvedStage]:
    """The stages of a pipeline over parameters x and y with one buffer `b`."""
    params = (Param("x", (ROWS, WIDTH), "f32", x), write("y", (ROWS, WIDTH)))
    buffers = (Buffer("b", slot, "f32", "sram", 0, 2),)
    pipeline = Pipeline("p", "i", 0, 3, scalars, buffers, stages)
    kernel = Kernel("k", params, (), (pipeline,))
    return resolve_stages(kernel, pipeline, {b.name: b for b in bodies}, aliased)


def names(stages: list[ResolvedStage]) -> list[str]:
    return [s.stage.name for s in stages]


def port(stage: Stage, place: int, view: Callable[[View], View] | None = None, **fields: Any) -> Stage:
    """The stage with another port."""
    ports = list(stage.ports)
    ports[place] = dataclasses.replace(ports[place], **fields)
    if view is not None:
        ports[place] = dataclasses.replace(ports[place], view=view(ports[place].view))
    return dataclasses.replace(stage, ports=tuple(ports))


def having(**fields: Any) -> Callable[[View], View]:
    return lambda view: dataclasses.replace(view, **fields)


# ----------------------------------------------------------------------------------------------------- left out


def test_a_load_of_tiles_is_left_out_and_its_reader_reads_memory() -> None:
    (use,) = resolve(LOAD, USE)
    assert use.stage.name == "use"
    assert use.ports == (MemoryPort("x", tiles("x")), MemoryPort("y", tiles("y")))


def test_a_load_of_everything_is_left_out_and_read_in_tiles() -> None:
    (use,) = resolve(LOAD_ALL, USE_TILES, slot=(ROWS, WIDTH))
    assert use.ports[0] == MemoryPort("x", tiles("x"))


def test_a_prologue_is_left_out() -> None:
    first = dataclasses.replace(LOAD_ALL, when="first")
    use = port(USE_TILES, 0, per=3 * TILES)
    assert names(resolve(first, use, slot=(ROWS, WIDTH))) == ["use"]


def test_a_load_by_iteration_is_left_out() -> None:
    """The window that it has in an iteration is the one that the reader has in the same one."""
    load = port(LOAD, 0, having(terms=(("i", 8), *BY_TILE)))
    (use,) = resolve(load, USE)
    assert use.ports[0] == MemoryPort("x", tiles("x", ("i", 8), *BY_TILE))


# ----------------------------------------------------------------------------------------------------- kept


STORE = Stage("store", "double", (TILES,), (Port(tiles("y")), Port(tiles("x"))), (), ())
"""Writes x."""


def test_memory_that_is_overwritten_before_its_last_reader_is_copied() -> None:
    assert names(resolve(LOAD, STORE, USE, x="update")) == ["load", "store", "use"]
    assert names(resolve(LOAD, USE, STORE, x="update")) == ["use", "store"]
    assert names(resolve(STORE, LOAD, USE, x="update")) == ["store", "use"]


def test_memory_that_is_written_is_copied_where_stages_are_not_listed_in_the_order_they_run_in() -> None:
    assert names(resolve(USE, LOAD, STORE, x="update")) == ["use", "load", "store"]
    assert names(resolve(USE, LOAD)) == ["use"]


def test_memory_that_another_iteration_overwrites_is_copied_by_a_prologue() -> None:
    first = dataclasses.replace(LOAD_ALL, when="first")
    use = port(USE_TILES, 0, per=3 * TILES)
    assert names(resolve(first, use, STORE, slot=(ROWS, WIDTH), x="update")) == ["load", "use", "store"]


def test_memory_under_two_names_is_copied() -> None:
    assert names(resolve(LOAD, USE, aliased=frozenset({"x"}))) == ["load", "use"]
    assert names(resolve(LOAD, USE, aliased=frozenset({"y"}))) == ["use"]


LAGGING = {
    "the load": (port(LOAD, 1, lag=1), USE),
    "the reader": (LOAD, port(USE, 0, lag=1)),
}


@pytest.mark.parametrize("case", LAGGING)
def test_values_that_are_carried_to_the_next_iteration_are_copied(case: str) -> None:
    assert len(resolve(*LAGGING[case])) == 2


def test_other_grids_keep_the_load() -> None:
    """Slot by slot, but the reader goes through them in another grid."""
    two = dataclasses.replace(USE, grid=(2, 2))
    stages = resolve(LOAD, two)
    assert names(stages) == ["load", "use"]
    assert stages[1].ports[0] == BufferPort("b", view_of("b", TILE), 1, 0)


def test_an_epilogue_keeps_the_load() -> None:
    """It reads the slot of an iteration that is over."""
    last = dataclasses.replace(USE_TILES, when="last")
    assert names(resolve(LOAD_ALL, last, slot=(ROWS, WIDTH))) == ["load", "use"]


@pytest.mark.parametrize("term", ["i", "s"])
def test_a_prologue_that_depends_on_its_iteration_is_kept(term: str) -> None:
    """Later iterations would look elsewhere."""
    first = dataclasses.replace(port(LOAD_ALL, 0, having(terms=((term, WIDTH),))), when="first")
    use = port(USE_TILES, 0, per=3 * TILES)
    scalars = (Scalar("s", "add", ("i", 1)),)
    assert names(resolve(first, use, slot=(ROWS, WIDTH), scalars=scalars)) == ["load", "use"]


def test_a_term_of_the_load_s_own_grid_is_not_the_reader_s() -> None:
    """t0 is always 0 in a grid of one firing."""
    load = dataclasses.replace(port(LOAD_ALL, 0, having(terms=(("t0", WIDTH),))), grid=(1,))
    assert names(resolve(load, USE_TILES, slot=(ROWS, WIDTH))) == ["load", "use"]


def test_a_reader_that_also_writes_keeps_the_load() -> None:
    bodies = (*BODIES, dataclasses.replace(BODIES[2], name="both", params=(*BODIES[2].params, read("z", TILE))))
    update = dataclasses.replace(USE, body="both", ports=(USE.ports[0], USE.ports[0], USE.ports[0]))
    assert names(resolve(LOAD, update, bodies=bodies)) == ["load", "use"]


def test_only_copies_are_left_out() -> None:
    shifted = Vector((4, 4), (Access("x", ((0, 1, 0), (1, 0, 0))),), Access("y", identity(2)), (), "in0")
    transposed = Body("copy", (read("x", (4, 4)), write("y", (4, 4))), (), (), (), (shifted,))
    body = dataclasses.replace(BODIES[2], name="copy")
    assert names(resolve(LOAD, USE, bodies=(body, BODIES[2]))) == ["load", "use"]
    assert names(resolve(LOAD, USE, bodies=(transposed, BODIES[2]))) == ["load", "use"]


def test_a_part_of_a_slot_is_copied() -> None:
    load = dataclasses.replace(LOAD, ports=(LOAD.ports[0], Port(tiles("b"), TILES)))
    assert names(resolve(load, USE_TILES, slot=(ROWS, WIDTH))) == ["load", "use"]


def test_windows_need_memory_that_is_dense() -> None:
    """A body's windows count elements of a dense parameter: rows that are apart have to be copied."""
    windowed = dataclasses.replace(BODIES[2], windows=(Window("w", view_of("x", (8,))),))
    bodies = (BODIES[0], windowed)
    apart = port(LOAD, 0, having(strides=(2 * WIDTH, 1), terms=(("t0", WIDTH),)))
    assert names(resolve(apart, USE, bodies=bodies)) == ["load", "use"]
    assert names(resolve(apart, USE)) == ["use"]
    assert names(resolve(LOAD, USE, bodies=bodies)) == ["use"]


# ----------------------------------------------------------------------------------------------- windows of windows


def offsets(view: View, scalars: dict[str, int]) -> np.ndarray:
    """Return the elements of a view's region, by the view's indices."""
    offsets = np.full(view.shape, view.offset + sum(scalars[name] * c for name, c in view.terms))
    for axis, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        shape = [extent if a == axis else 1 for a in range(len(view.shape))]
        offsets = offsets + (np.arange(extent) * stride).reshape(shape)
    return offsets


def random_view(draw: random.Random, shape: tuple[int, ...]) -> tuple[View, dict[str, int]]:
    """A window that stays in a region of `shape`, with a term, and how many values that takes."""
    total = int(np.prod(shape))
    steps = [*dense_strides(shape), 1, 2, draw.randint(1, total)]
    room, strides, extents = total - 1, [], []
    offset = draw.choice([0, 0, draw.randrange(total)])
    room -= offset
    for _ in range(draw.randint(1, 3)):
        stride = draw.choice(steps)
        extent = draw.randint(1, min(6, room // stride + 1))
        room -= stride * (extent - 1)
        strides.append(stride)
        extents.append(extent)
    coefficient = draw.choice(steps)
    count = draw.randint(1, min(5, room // coefficient + 1))
    return View("b", tuple(extents), tuple(strides), offset, (("t0", coefficient),)), {"t0": count}


@pytest.mark.parametrize("seed", range(20))
def test_a_composed_window_sees_the_same_elements(seed: int) -> None:
    """Against numpy: the region is laid out with other strides, and the window looks at it there."""
    draw = random.Random(seed)
    composed = 0
    for _ in range(200):
        shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(1, 3)))
        padded = tuple(size + draw.choice([0, 0, 1]) for size in shape)
        base = View(
            "x", shape, tuple(s * draw.choice([1, 1, 2]) for s in dense_strides(padded)), draw.randrange(9), (("i", 7),)
        )
        view, counts = random_view(draw, shape)
        window = compose(view, shape, base, counts)
        if window is None:
            continue
        composed += 1
        assert (window.tensor, window.shape) == ("x", view.shape)
        for t0, i in itertools.product(range(counts["t0"]), range(2)):
            laid_out = offsets(base, {"i": i}).reshape(-1)
            assert (offsets(window, {"t0": t0, "i": i}) == laid_out[offsets(view, {"t0": t0})]).all()
    assert composed > 50


ROWS_APART = View("x", (4, 8), (100, 1), 5)


@pytest.mark.parametrize(
    "view",
    [
        View("b", (4,), (1,), 6),  # two elements of a row, and two of the next
        View("b", (2, 6), (4, 1)),  # each dimension stays in a row, both together do not
        View("b", (3,), (5,)),
        View("b", (2,), (1,), 0, (("t0", 4),)),  # t0 = 2 is the next row
        View("b", (2,), (1,), 0, (("anything", 2),)),
        View("b", (2,), (-1,), 3),
    ],
)
def test_windows_that_cross_rows_are_not_composed(view: View) -> None:
    assert compose(view, (4, 8), ROWS_APART, {"t0": 3}) is None


def test_terms() -> None:
    """A scalar that may take any value moves by whole rows; one of known range moves within a row."""
    rows = View("b", (2, 8), (8, 1), 8, (("slot", 8), ("t0", 4)))
    narrow = dataclasses.replace(rows, shape=(2, 4))
    expected = View("x", (2, 4), (100, 1), 105, (("slot", 100), ("t0", 4)))
    assert compose(narrow, (4, 8), ROWS_APART, {"t0": 2}) == expected
    assert compose(rows, (4, 8), ROWS_APART, {"t0": 2}) is None


def test_dense_regions_take_any_window() -> None:
    view = View("b", (3,), (5,), 2, (("anything", 3),))
    base = View("x", (4, 1, 8), (8, 99, 1), 50, (("i", 7),))
    assert compose(view, (4, 1, 8), base) == View("x", (3,), (5,), 52, (("i", 7), ("anything", 3)))
