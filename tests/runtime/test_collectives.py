"""Collectives of a schedule: their meaning (the reference interpreter), refusals, and the model's counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Body,
    Collective,
    Entry,
    Launch,
    Param,
    Program,
    ReduceScatter,
    Tensor,
    View,
    Window,
)
from sscc.ir.sharding import CutErrors, peers, ranks_along
from sscc.runtime.backends.collectives.group import Group, GroupErrors, run_ranks, thread_groups
from sscc.runtime.backends.reference.interpreter import ReferenceInterpreter
from sscc.runtime.timing.work import measure
from sscc.runtime.validator import Limits, validate
from sscc.runtime.validator.bodies import BodyProofErrors, prove_body
from sscc.runtime.validator.placement import PlacementProofErrors
from tests.errors import raises
from tests.runtime.schedules import lay_out, one_stage, read, whole, write

GRID = (2, 3)


def program(step: Collective, *params: Param, windows: tuple[Window, ...] = ()) -> Program:
    """A program of GRID that does one thing together, from input x to output y."""
    body = Body("body", params, (), (), windows, (step,))
    tensors, end = lay_out(*((param.name, param.shape, param.dtype, role)
                             for param, role in zip(params, ("input", "output"), strict=True)))  # fmt: skip
    launch = Launch("body", tuple(whole(tensor) for tensor in tensors))
    entry = Entry("main", ("x",), ("y",), (), (), (launch,))
    return Program(tensors, (body,), (one_stage(body),), (entry,), end, grid=GRID)


def run(candidate: Program, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the inputs and the outputs of each rank."""
    validate(candidate)
    shape = candidate.tensors[0].shape
    values = [torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(6)]

    def one(group: Group) -> torch.Tensor:
        interpreter = ReferenceInterpreter(candidate, {}, checked=True, group=group)
        return interpreter.run("main", {"x": values[group.rank]})[0]["y"]

    return values, run_ranks(thread_groups(6), one)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_sums_are_over_the_ranks_along_the_axes_in_their_order(axes: tuple[int, ...]) -> None:
    candidate = program(AllReduce("x", "y", axes), read("x", (4, 5), dtype="bf16"), write("y", (4, 5), dtype="bf16"))
    values, sums = run(candidate, torch.bfloat16)
    for rank, total in enumerate(sums):
        expected = torch.zeros(4, 5)
        for other in peers(GRID, axes, rank):
            expected += values[other].float()
        assert torch.equal(total, expected.to(torch.bfloat16))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_each_has_its_part_of_a_sum(axes: tuple[int, ...]) -> None:
    """Each part has the bits of the corresponding part of the whole sum."""
    size = ranks_along(GRID, axes)
    assert size is not None
    x = read("x", (2, 6), dtype="bf16")
    values, pieces = run(program(ReduceScatter("x", "y", 1, axes), x, write("y", (2, 6 // size), dtype="bf16")),
                         torch.bfloat16)  # fmt: skip
    _, totals = run(program(AllReduce("x", "y", axes), x, write("y", (2, 6), dtype="bf16")), torch.bfloat16)
    for rank, piece in enumerate(pieces):
        others = peers(GRID, axes, rank)
        assert torch.equal(piece, totals[rank].chunk(size, 1)[others.index(rank)])
    assert len({value.sum().item() for value in values}) == len(values)


def test_pieces_are_joined_along_any_axis_through_windows() -> None:
    step = AllGather("across", "y", 0, (1,))
    across = Window("across", View("x", (5, 4), (1, 5)))
    values, wholes = run(program(step, read("x", (4, 5)), write("y", (15, 4)), windows=(across,)))
    for rank, joined in enumerate(wholes):
        assert torch.equal(joined, torch.cat([values[other].T for other in peers(GRID, (1,), rank)]))


def test_each_has_its_part_of_what_all_have() -> None:
    values, parts = run(program(AllSlice("x", "y", 1, (1,)), read("x", (2, 6)), write("y", (2, 2))))
    assert all(torch.equal(part, values[rank][:, rank % 3 * 2 :][:, :2]) for rank, part in enumerate(parts))
    values, joined = run(program(AllToAll("x", "y", 0, 1, (0,)), read("x", (4, 3)), write("y", (2, 6))))
    for rank, result in enumerate(joined):
        others, first = peers(GRID, (0,), rank), rank // 3 * 2
        assert torch.equal(result, torch.cat([values[other][first : first + 2] for other in others], 1))


def test_the_ranks_of_a_grid() -> None:
    assert [peers(GRID, (1,), rank) for rank in (0, 4)] == [[0, 1, 2], [3, 4, 5]]
    assert [peers(GRID, (0,), rank) for rank in (0, 4)] == [[0, 3], [1, 4]]
    assert peers(GRID, (0, 1), 3) == list(range(6))
    assert [ranks_along(GRID, axes) for axes in ((0,), (1,), (0, 1))] == [2, 3, 6]
    assert [ranks_along(GRID, axes) for axes in ((), (1, 0), (2,), (0, 0), (-1,))] == [None] * 5


def test_a_program_runs_on_as_many_ranks_as_it_is_for() -> None:
    candidate = program(AllReduce("x", "y", (0,)), read("x", (2,)), write("y", (2,)))
    with raises(GroupErrors.OTHER_RANKS, expected=6, ranks=1):
        ReferenceInterpreter(candidate, {})


SUM, JOIN = AllReduce("x", "y", (1,)), AllGather("x", "y", 0, (1,))
SCATTER = ReduceScatter("x", "y", 1, (1,))
X = read("x", (2, 3))


@pytest.mark.parametrize(
    ("step", "params", "kind", "fields"),
    [
        (replace(SUM, axes=()), (X, write("y", (2, 3))), BodyProofErrors.RANK_AXES, {"axes": [], "grid": [2, 3]}),
        (replace(SUM, axes=(2,)), (X, write("y", (2, 3))), BodyProofErrors.RANK_AXES, {"axes": [2], "grid": [2, 3]}),
        (
            replace(SUM, axes=(1, 0)), (X, write("y", (2, 3))), BodyProofErrors.RANK_AXES,
            {"axes": [1, 0], "grid": [2, 3]},
        ),
        (
            SUM, (X, write("y", (3, 2))), BodyProofErrors.PARTS_DIFFER,
            {"parts": 3, "dtype": "f32", "shape": [2, 3], "actual": "f32", "actual_shape": [3, 2]},
        ),
        (
            SUM, (X, write("y", (2, 3), dtype="bf16")), BodyProofErrors.PARTS_DIFFER,
            {"parts": 3, "dtype": "f32", "shape": [2, 3], "actual": "bf16", "actual_shape": [2, 3]},
        ),
        (
            SUM, (read("x", (2,), dtype="i64"), write("y", (2,), dtype="i64")), BodyProofErrors.SUM_DTYPE,
            {"name": "x", "dtype": "i64"},
        ),
        (SUM, (X, read("y", (2, 3))), BodyProofErrors.WRITES_READ_ONLY, {"name": "y"}),
        (SUM, (write("x", (2, 3)), write("y", (2, 3))), BodyProofErrors.READ_BEFORE_WRITTEN, {"name": "x"}),
        (replace(SUM, total="x"), (X, write("y", (2, 3))), BodyProofErrors.SOURCE_OVERLAPS, {"name": "x"}),
        (replace(SUM, part="z"), (X, write("y", (2, 3))), BodyProofErrors.UNKNOWN_NAME, {"name": "z"}),
        (
            SCATTER, (X, write("y", (2, 3))), BodyProofErrors.PARTS_DIFFER,
            {"parts": 3, "dtype": "f32", "shape": [2, 3], "actual": "f32", "actual_shape": [2, 3]},
        ),
        (
            replace(SCATTER, axis=0), (X, write("y", (1, 3))), BodyProofErrors.SPLIT_PARTS,
            {"name": "x", "shape": [2, 3], "axis": 0, "parts": 3},
        ),
        (
            replace(SCATTER, axis=2), (X, write("y", (2, 1))), BodyProofErrors.SPLIT_AXIS,
            {"name": "x", "shape": [2, 3], "axis": 2},
        ),
        (
            SCATTER, (read("x", (2, 3), dtype="i64"), write("y", (2, 1), dtype="i64")), BodyProofErrors.SUM_DTYPE,
            {"name": "x", "dtype": "i64"},
        ),
        (
            JOIN, (X, write("y", (4, 3))), BodyProofErrors.PARTS_DIFFER,
            {"parts": 3, "dtype": "f32", "shape": [2, 3], "actual": "f32", "actual_shape": [4, 3]},
        ),
        (
            replace(JOIN, axis=2), (X, write("y", (6, 3))), BodyProofErrors.JOIN_AXIS,
            {"name": "x", "shape": [2, 3], "axis": 2},
        ),
        (
            AllSlice("x", "y", 0, (1,)), (X, write("y", (1, 3))), BodyProofErrors.SPLIT_PARTS,
            {"name": "x", "shape": [2, 3], "axis": 0, "parts": 3},
        ),
        (
            AllSlice("x", "y", 1, (1,)), (X, write("y", (2, 3))), BodyProofErrors.PARTS_DIFFER,
            {"parts": 3, "dtype": "f32", "shape": [2, 3], "actual": "f32", "actual_shape": [2, 3]},
        ),
        (
            AllToAll("x", "y", 1, 1, (1,)), (X, write("y", (2, 3))), BodyProofErrors.SPLIT_PARTS,
            {"name": "x", "shape": [2, 3], "axis": 1, "parts": 3},
        ),
        (
            AllToAll("x", "y", 1, 2, (1,)), (X, write("y", (2, 1))), BodyProofErrors.JOIN_AXIS,
            {"name": "x", "shape": [2, 3], "axis": 2},
        ),
        (
            replace(JOIN, axis=-1), (X, write("y", (6, 3))), BodyProofErrors.JOIN_AXIS,
            {"name": "x", "shape": [2, 3], "axis": -1},
        ),
    ],
)
def test_what_ranks_cannot_do_together_is_refused(
    step: Any, params: tuple[Param, ...], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        prove_body(Body("body", params, (), (), (), (step,)), Limits(), grid=GRID)


def test_a_program_of_one_rank_has_nothing_to_do_together() -> None:
    with raises(BodyProofErrors.RANK_AXES, axes=[1], grid=[]):
        prove_body(Body("body", (X, write("y", (2, 3))), (), (), (), (SUM,)), Limits())


WEIGHT = Tensor("w", (4, 3), "f32", "weight", "hbm", 0, ("w",), cut="0:12/3")


@pytest.mark.parametrize(
    ("changes", "kind", "fields"),
    [
        ({"cut": "0:12/4"}, PlacementProofErrors.CUT, {"role": "weight", "shape": [4, 3], "ranks": 6, "cut": "0:12/4"}),
        ({"cut": "2:12/3"}, PlacementProofErrors.CUT, {"role": "weight", "cut": "2:12/3"}),
        ({"cut": "1:9/3"}, None, {}),
        ({"cut": "1:15/5"}, PlacementProofErrors.CUT, {"role": "weight", "cut": "1:15/5"}),
        ({"cut": "0:x"}, CutErrors.UNKNOWN, {"cut": "0:x"}),
        ({"role": "state", "sources": ()}, PlacementProofErrors.CUT, {"role": "state", "shape": [4, 3]}),
    ],
)
def test_a_weight_is_the_part_that_its_cut_says(
    changes: dict[str, Any], kind: ErrorKind | None, fields: dict[str, Any]
) -> None:
    candidate = Program((replace(WEIGHT, **changes),), (), (), (), 64, grid=GRID)
    if kind is None:
        validate(replace(candidate, arena_bytes=0))
        return
    with raises(kind, **fields):
        validate(candidate)


@pytest.mark.parametrize("grid", [(1,), (0,), (-2,), (2, 1), (2048,), (64, 64)])
def test_a_grid_has_a_number_of_ranks(grid: tuple[int, ...]) -> None:
    with raises(PlacementProofErrors.GRID, grid=grid):
        validate(Program((), (), (), (), 0, grid=grid))


def test_what_a_sum_and_a_joining_send() -> None:
    body = Body("body", (read("x", (6, 5)), write("y", (6, 5))), (), (), (), (replace(SUM, axes=(0, 1)),))
    work = measure(body, {}, grid=GRID)
    assert (work.sent, work.hops, work.read, work.written) == (2 * 5 * 5 * 4, 2, {"x": 120}, {"y": 120})
    assert work.vectors == ((5, 5),)
    body = Body("body", (read("x", (2, 3)), write("y", (6, 3))), (), (), (), (JOIN,))
    work = measure(body, {}, grid=GRID)
    assert (work.sent, work.hops, work.read, work.written) == (2 * 24, 1, {"x": 24}, {"y": 72})
    body = Body("body", (read("x", (2, 3)), write("y", (2, 1))), (), (), (), (SCATTER,))
    work = measure(body, {}, grid=GRID)
    assert (work.sent, work.hops, work.read, work.written) == (2 * 8, 1, {"x": 24}, {"y": 8})
    assert work.vectors == ((2, 2),)
