"""Certainty and time: what is surely written before it is read, and what lives while something else has its place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sscc.ir.schedule import Entry, For, If, Kernel, Launch, Pipeline, Program, Scalar, Stage, Tensor
from sscc.runtime.validator import validate
from sscc.runtime.validator.entries import EntryProofErrors
from sscc.runtime.validator.kernels import KernelProofErrors
from sscc.runtime.validator.pipelines import PipelineProofErrors
from sscc.runtime.validator.placement import PlacementProofErrors
from sscc.runtime.validator.samples import SampleProofErrors
from sscc.runtime.validator.validate import ProgramProofErrors
from tests.errors import raises
from tests.runtime.broken.build import launch_of, port
from tests.runtime.schedules import copy_body, read, update, write

SIZE, LINE = 32, 128


def program(*body: Any, places: dict[str, int] | None = None, scalars: tuple[str, ...] = ()) -> Program:
    """An entry whose launches copy between x, y and temporaries, which lie one after another, or at lines `places`."""
    at = {"a": 2, "b": 3, "c": 4, **(places or {})}
    tensors = (
        Tensor("x", (SIZE,), "f32", "input", "hbm", 0),
        Tensor("y", (SIZE,), "f32", "output", "hbm", LINE),
        *(Tensor(name, (SIZE,), "f32", "temporary", "hbm", line * LINE) for name, line in at.items()),
    )
    stage = Stage("s", "line", (), (port("x", (SIZE,)), port("y", (SIZE,))), (), ())
    pipeline = Pipeline("p", "i", 0, 1, (), (), (stage,))
    kernel = Kernel("copy", (read("x", (SIZE,)), write("y", (SIZE,))), (), (pipeline,))
    entries = (Entry("main", ("x",), ("y",), scalars, (), _launched(tensors, body)),)
    return Program(tensors, (copy_body("line", (SIZE,)),), (kernel,), entries, (max(at.values()) + 1) * LINE)


def _launched(tensors: tuple[Tensor, ...], items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Words like "x>a" as launches, also in loops and branches."""
    launches: list[Any] = []
    for item in items:
        if isinstance(item, str):
            launches.append(launch_of(tensors, "copy", *item.split(">")))
        elif isinstance(item, For | If):
            launches.append(dataclasses.replace(item, body=_launched(tensors, item.body)))
        else:
            launches.append(item)
    return tuple(launches)


def loop(*body: Any, lower: Any = 0, upper: Any = 3, index: str = "n") -> For:
    return For(index, lower, upper, body)


def check(candidate: Program, **ranges: tuple[int, int]) -> None:
    samples = {"main": [{name: high for name, (_, high) in ranges.items()}]} if ranges else {}
    validate(candidate, ranges=ranges, samples=samples)


# -------------------------------------------------------------------------------------- surely written before read


@pytest.mark.parametrize(
    ("body", "sure"),
    [
        (("x>a", "a>y"), True),
        (("a>y", "x>a"), False),
        ((loop("x>a"), "a>y"), True),
        ((loop("x>a", "a>b", "b>y"),), True),
        ((loop("a>y", "x>a"),), False),
        ((loop(loop("x>a", index="m")), "a>y"), True),
        ((loop("x>a", upper="few"), "a>y"), True),
        ((loop("x>a", upper="some"), "a>y"), False),
        ((loop(loop("x>a", index="m"), upper="some"), "a>y"), False),
        ((loop(loop("x>a", index="m", upper="some")), "a>y"), False),
        ((loop("x>a", "a>y", upper="some"),), True),
        ((loop("x>a", loop("a>y", index="m"), upper="some"),), True),
        ((If("few", ("x>a",)), "a>y"), True),
        ((If("less", ("x>a",)), "a>y"), True),
        ((If("some", ("x>a",)), "a>y"), False),
        ((If("both", ("x>a",)), "a>y"), False),
        ((If("under", ("x>a",)), "a>y"), False),
        ((If("some", ("x>a", "a>y")),), True),
        ((If("some", (loop("x>a"),)), If("some", ("a>y",))), False),
        ((If("few", (If("some", ("x>a",)),)), "a>y"), False),
        ((loop("x>y"), "y>a"), True),
        ((If("some", ("x>y",)), "y>a"), False),
    ],
)
def test_what_is_read_has_surely_been_written(body: tuple[Any, ...], sure: bool) -> None:
    """`few` is 1 or 2, `less` -2 or -1, `some` 0 to 2, `both` -1 to 1, `under` -2 to 0."""
    ranges = {"few": (1, 2), "less": (-2, -1), "some": (0, 2), "both": (-1, 1), "under": (-2, 0)}
    candidate = program(*body, scalars=tuple(ranges))
    if sure:
        check(candidate, **ranges)
        return
    with raises(EntryProofErrors.NEVER_WRITTEN):
        check(candidate, **ranges)


def test_what_is_read_has_been_written_at_these_elements() -> None:
    """Two written halves make a whole; one half does not, and views that move prove nothing."""
    half = SIZE // 2

    def halves(*offsets: int) -> Program:
        candidate = program("x>a", "a>y")
        stage = Stage("s", "half", (), (port("x", (half,)), port("y", (half,))), (), ())
        pipeline = Pipeline("p", "i", 0, 1, (), (), (stage,))
        kernel = Kernel("part", (read("x", (half,)), write("y", (half,))), (), (pipeline,))
        (entry,) = candidate.entries
        copies = [
            Launch("part", (_half(entry.body[0].args[0], offset), _half(entry.body[0].args[1], offset)))
            for offset in offsets
        ]
        entry = dataclasses.replace(entry, body=(*copies, *entry.body[1:]))
        bodies = (*candidate.bodies, copy_body("half", (half,)))
        return dataclasses.replace(candidate, kernels=(*candidate.kernels, kernel), bodies=bodies, entries=(entry,))

    def _half(view: Any, offset: int) -> Any:
        return dataclasses.replace(view, shape=(half,), offset=offset)

    check(halves(0, half))
    moving = halves(0)
    (entry,) = moving.entries
    views = [dataclasses.replace(view, terms=(("n", half),)) for view in entry.body[0].args]
    turns = For("n", 0, 2, (dataclasses.replace(entry.body[0], args=tuple(views)),))
    check(dataclasses.replace(moving, entries=(dataclasses.replace(entry, body=(turns, *entry.body[1:])),)))
    for offsets in ((0,), (half,), (0, 0), (0, half - 1)):
        with raises(EntryProofErrors.WRITTEN_IN_PART, role="temporary", tensor="a"):
            check(halves(*offsets))


# ------------------------------------------------------------------------------------------------------- lifetimes


@pytest.mark.parametrize(
    ("body", "apart"),
    [
        # a lives in launches 0 .. 1, where b is written in the second of them.
        (("x>a", "a>b", "b>y"), False),
        (("x>a", "a>y", "x>b", "b>y"), True),
        (("x>a", "x>b", "a>y", "b>y"), False),
        (("x>b", "b>y", "x>a", "a>y"), True),
        # Written afresh and read in each iteration: it lives within one.
        ((loop("x>a", "a>y", "x>b", "b>y"),), True),
        ((loop("x>a", "a>y"), loop("x>b", "b>y", index="m")), True),
        # A tensor written before a loop and read in it lives to the loop's end, even if the last launch does not read
        # it.
        (("x>a", loop("a>y", "x>b", "b>y")), False),
        (("x>a", loop(loop("a>y", index="m"), "x>b", "b>y")), False),
        (("x>b", "b>y", "x>a", loop("a>y")), True),
        # A tensor read after a loop is written again in it, so it lives from that write on.
        ((loop("x>b", "b>y", "x>a"), "a>y"), True),
        ((loop("x>a", "x>b", "b>y"), "a>y"), False),
        # Written in a branch, read in another one of the next iteration: it lives through the whole loop.
        ((loop("x>b", "b>y", "x>a", If("some", ("a>y",))),), True),
        ((If("some", ("x>a", "a>y")), "x>b", "b>y"), True),
    ],
)  # fmt: skip
def test_two_temporaries_have_one_place_where_they_never_live_together(body: tuple[Any, ...], apart: bool) -> None:
    check(program(*body, scalars=("some",)), some=(0, 1))
    shared = program(*body, places={"b": 2}, scalars=("some",))
    if apart:
        check(shared, some=(0, 1))
        return
    with raises(PlacementProofErrors.ALIVE_TOGETHER, entry="main"):
        check(shared, some=(0, 1))


def test_temporaries_of_two_entries_have_one_place() -> None:
    """Each lives in one entry only."""
    candidate = program("x>a", "a>y", places={"b": 2})
    (main,) = candidate.entries
    other = dataclasses.replace(main, name="other", body=program("x>b", "b>y", places={"b": 2}).entries[0].body)
    validate(dataclasses.replace(candidate, entries=(main, other)))


# --------------------------------------------------------------------------------------------- parameters, written


def kernel_program(*items: Any, access: str = "write", scalars: tuple[str, ...] = ()) -> Program:
    """A kernel that writes tiles of y out of x; words (offset, factor of t0, tiles) are pipelines, in loops as well."""
    tensors = (
        Tensor("x", (SIZE,), "f32", "input", "hbm", 0),
        Tensor("y", (SIZE,), "f32", "output" if access == "write" else "state", "hbm", LINE),
    )
    count = [0]

    def pipeline(words: Any) -> Any:
        if isinstance(words, For | If):
            return dataclasses.replace(words, body=tuple(map(pipeline, words.body)))
        if not isinstance(words, tuple):
            return words
        offset, terms, tiles = words
        count[0] += 1
        out = port("y", (4,), terms=terms)
        out = dataclasses.replace(out, view=dataclasses.replace(out.view, offset=offset))
        stage = Stage("s", "tile", (tiles,), (port("x", (4,), terms=(("t0", 4),)), out), (), ())
        return Pipeline(f"p{count[0]}", "i", 0, 1, (), (), (stage,))

    params = (read("x", (SIZE,)), (write if access == "write" else update)("y", (SIZE,)))
    kernel = Kernel("k", params, scalars, tuple(map(pipeline, items)))
    launch = launch_of(tensors, "k", "x", "y", scalars=scalars)
    entry = Entry("main", ("x",), ("y",) if access == "write" else (), scalars, (), (launch,))
    return Program(tensors, (copy_body("tile", (4,)),), (kernel,), (entry,), 2 * LINE)


TILES = (("t0", 4),)


@pytest.mark.parametrize(
    "items",
    [
        ((0, TILES, 8),),
        ((0, TILES, 3), (12, TILES, 5)),
        (loop((0, (("t0", 4), ("n", 16)), 4), upper=2),),
        (loop((-16, (("t0", 4), ("n", 16)), 4), lower=1, upper=3),),
        (loop(loop((0, (("t0", 4), ("n", 16), ("m", 8)), 2), upper=2, index="m"), upper=2),),
        (If("few", ((0, TILES, 8),)),),
        ((0, TILES, 8), If("some", ((0, TILES, 2),))),
    ],
)
def test_a_parameter_is_written_whole(items: tuple[Any, ...]) -> None:
    check(kernel_program(*items, scalars=("few", "some")), few=(1, 2), some=(0, 2))


@pytest.mark.parametrize(
    "items",
    [
        ((0, TILES, 7),),
        ((4, TILES, 7),),
        ((0, TILES, 3), (16, TILES, 4)),
        (loop((0, (("t0", 4), ("n", 16)), 4), upper=1),),
        (loop((0, (("t0", 4), ("n", 16)), 3), upper=2),),
        (loop((-16, (("t0", 4), ("n", 16)), 4), lower=1, upper=2),),
        (loop(loop((0, (("t0", 4), ("n", 16), ("m", 8)), 1), upper=2, index="m"), upper=2),),
        (If("few", ((0, TILES, 7),)),),
    ],
)
def test_a_parameter_with_a_gap_is_refused(items: tuple[Any, ...]) -> None:
    candidate = kernel_program(*items, scalars=("few", "some"))
    with raises(KernelProofErrors.NOT_WRITTEN_WHOLE, name="y", elements=32):
        check(candidate, few=(1, 2), some=(0, 2))


def test_a_parameter_with_a_gap_is_refused_where_it_is_read_too() -> None:
    """Reading it says nothing about what is written."""
    candidate = kernel_program((0, TILES, 7))
    (kernel,) = candidate.kernels
    half = SIZE // 2
    params = (read("x", (half,)), write("y", (half,)))
    stage = Stage("r", "half", (), (port("y", (half,)), port("z", (half,))), (), ())
    reading = Pipeline("again", "i", 0, 1, (), (), (stage,))
    tensors = (*candidate.tensors, Tensor("z", (half,), "f32", "temporary", "hbm", 2 * LINE))
    kernel = dataclasses.replace(kernel, params=(*kernel.params, write("z", (half,))), body=(*kernel.body, reading))
    (entry,) = candidate.entries
    entry = dataclasses.replace(entry, body=(launch_of(tensors, "k", "x", "y", "z"),))
    body = dataclasses.replace(copy_body("half", (half,)), params=params)
    bodies = (*candidate.bodies, body)
    candidate = dataclasses.replace(
        candidate, tensors=tensors, kernels=(kernel,), entries=(entry,), bodies=bodies, arena_bytes=5 * 64
    )
    with raises(KernelProofErrors.NOT_WRITTEN_WHOLE, name="y", elements=32):
        check(candidate)


@pytest.mark.parametrize(
    ("items", "again"),
    [
        ((loop((0, (("t0", 4), ("n", 16)), 1), upper=2),), False),
        ((loop((0, (("t0", 4), ("n", 4)), 1), upper=8),), False),
        ((loop((0, (("t0", 4), ("n", 3)), 1), upper=8),), True),
        ((loop((0, (("t0", 4), ("n", 4)), 2), upper=7),), True),
        ((loop((28, (("t0", 4), ("n", -3)), 1), upper=8),), True),
        ((loop(loop((0, (("n", 8), ("m", 4)), 1), upper=2, index="m"), upper=4),), False),
        ((loop(loop((0, (("n", 4), ("m", 4)), 1), upper=2, index="m"), upper=4),), True),
        ((loop(loop((0, (("n", 4), ("m", 16)), 1), upper=2, index="m"), upper=4),), False),
        ((loop(loop((0, (("n", 4), ("m", 12)), 1), upper=2, index="m"), upper=4),), True),
        ((loop((0, (("n", 4),), 1), upper=1),), False),
    ],
)
def test_iterations_of_a_loop_write_elements_of_their_own(items: tuple[Any, ...], again: bool) -> None:
    candidate = kernel_program(*items, access="update")
    if not again:
        check(candidate)
        return
    with raises(KernelProofErrors.LOOP_REWRITES, tensor="y"):
        check(candidate)


def test_a_branch_that_may_not_be_entered_proves_and_refutes_nothing() -> None:
    """A view beyond its tensor is wrong where control surely comes, and left to the samples elsewhere."""
    beyond = (8, TILES, 7)
    with raises(PipelineProofErrors.VIEW_OUT_OF_RANGE, tensor="y", low=8, high=35, elements=32):
        check(kernel_program((0, TILES, 8), If("few", (beyond,)), scalars=("few",)), few=(1, 2))
    candidate = kernel_program((0, TILES, 8), If("some", (beyond,)), scalars=("some",))
    with raises(SampleProofErrors.VIEW_OUT_OF_RANGE, tensor="y", low=8, high=35, elements=32):
        check(candidate, some=(0, 1))
    more = Scalar("more", "gt", ("some", 1))
    with raises(ProgramProofErrors.NOT_PROVED):
        validate(
            kernel_program((0, TILES, 8), more, If("more", (beyond,)), scalars=("some",)),
            ranges={"some": (0, 2)},
            samples={"main": [{"some": 1}]},
        )


def test_views_that_are_proved_are_counted() -> None:
    """Each launch has two views, and the kernel's stage has two."""
    assert validate(program("x>a", "a>y")).proved == 2 * 2 + 2
