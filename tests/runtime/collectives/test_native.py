"""Collectives in native code: what the reference computes, bit for bit, on ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sscc.ir.errors import InputError, RankError
from sscc.ir.schedule import (
    Access,
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Body,
    Entry,
    Instr,
    Kernel,
    Launch,
    Local,
    Param,
    Pipeline,
    Port,
    Program,
    ReduceScatter,
    Stage,
    Vector,
    View,
    Window,
)
from sscc.runtime.backends.collectives.group import ThreadGroup, run_ranks, thread_groups
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import NativeCode, make_code
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises
from tests.runtime.programs import DTYPES
from tests.runtime.schedules import identity, lay_out, view_of

ITERATIONS, ROWS, COLUMNS = 3, 4, 21
TORCH = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items() if torch_dtype is not torch.float64}
Result = dict[str, torch.Tensor]


def mixing(grid: tuple[int, ...], steps: tuple[Any, ...], locals_: tuple[Local, ...], dtype: Any,
           windows: tuple[Window, ...] = ()) -> Program:  # fmt: skip
    """Iterations of ``y = half(last local's first rows) + x`` between which ranks do `steps` on ``a = x * y``; in two
    firings, one for each half of the rows."""
    half = (ROWS // 2, COLUMNS)
    x, y = Access("x", identity(2)), Access("y", identity(2))
    before = Vector(half, (x, y), Access("a", identity(2)), (Instr("r", "mulf", ("in0", "in1"), dtype),), "r")
    last = Access(locals_[-1].name, identity(2))
    instructions = Instr("h", "mulf", ("in0", 0.25), dtype), Instr("r", "addf", ("h", "in1"), dtype)
    after = Vector(half, (last, x), y, instructions, "r")
    params = Param("x", half, dtype, "read"), Param("y", half, dtype, "update")
    body = Body("b", params, (), (Local("a", half, dtype), *locals_), windows, (before, *steps, after))
    step = half[0] * COLUMNS
    ports = tuple(Port(View(name, half, (COLUMNS, 1), 0, (("t0", step),))) for name in "xy")
    stage = Stage("only", "b", (2,), ports, (), ())
    kernel = Kernel("k", (Param("x", (ROWS, COLUMNS), dtype, "read"), Param("y", (ROWS, COLUMNS), dtype, "update")), (),
                    (Pipeline("p", "i", 0, ITERATIONS, (), (), (stage,)),))  # fmt: skip
    tensors, end = lay_out(("x", (ROWS, COLUMNS), dtype, "input"), ("y", (ROWS, COLUMNS), dtype, "state"))
    launch = Launch("k", (view_of("x", (ROWS, COLUMNS)), view_of("y", (ROWS, COLUMNS))), ())
    program = Program(tensors, (body,), (kernel,), (Entry("main", ("x",), (), (), (), (launch,)),), end, grid=grid)
    return Program.from_json(program.to_json())


def data(rank: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.randn(2, ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank))
    x, y = numbers.to(TORCH[dtype])
    return x, y


def on_reference(program: Program, group: ThreadGroup) -> torch.Tensor:
    x, y = data(group.rank, program.tensors[0].dtype)
    interpreter = ReferenceInterpreter(program, {}, checked=True, group=group)
    interpreter.tensor("y").copy_(y)
    interpreter.run("main", {"x": x}, {})
    return interpreter.tensor("y").clone()


def on_native(program: Program, code: NativeCode, threads: int) -> Callable[[ThreadGroup], torch.Tensor]:
    def run(group: ThreadGroup) -> torch.Tensor:
        x, y = data(group.rank, program.tensors[0].dtype)
        interpreter = NativeInterpreter(program, {}, code=code, threads=threads, group=group)
        interpreter.tensor("y")[...] = to_array(y)
        interpreter.run("main", {"x": to_array(x)}, {})
        return to_tensors({"y": interpreter.tensor("y")})["y"].clone()

    return run


def check(program: Program) -> None:
    expected = run_ranks(thread_groups(program.ranks), lambda group: on_reference(program, group))
    assert not torch.equal(expected[0], data(0, program.tensors[0].dtype)[1])
    for code, threads in ((make_code(program, optimise=0), 1), (make_code(program, checked=True), 2)):
        results = run_ranks(thread_groups(program.ranks), on_native(program, code, threads))
        assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("grid", [(3,), (2, 2)])
def test_sums(grid: tuple[int, ...], dtype: str) -> None:
    half = (ROWS // 2, COLUMNS)
    steps = AllReduce("a", "t", (0,)), AllReduce("t", "u", tuple(range(len(grid))))
    check(mixing(grid, steps, (Local("t", half, dtype), Local("u", half, dtype)), dtype))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("grid", "axes", "axis"), [((2, 3), (1,), 1), ((3, 2), (0,), 1), ((2,), (0,), 0)])
def test_parts_of_sums(grid: tuple[int, ...], axes: tuple[int, ...], axis: int, dtype: str) -> None:
    """Each rank adds up its part, and the parts are put together."""
    half = (ROWS // 2, COLUMNS)
    piece = tuple(size // grid[axes[0]] if number == axis else size for number, size in enumerate(half))
    steps = ReduceScatter("a", "s", axis, axes), AllGather("s", "t", axis, axes)
    check(mixing(grid, steps, (Local("s", piece, dtype), Local("t", half, dtype)), dtype))


@pytest.mark.parametrize(("grid", "axes"), [((2,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3), (0, 1))])
@pytest.mark.parametrize("axis", [0, 1])
def test_pieces(grid: tuple[int, ...], axes: tuple[int, ...], axis: int) -> None:
    """Pieces are concatenated along each axis, and a window of the result takes parts from several ranks."""
    count = 1
    for number in axes:
        count *= grid[number]
    half = (ROWS // 2, COLUMNS)
    shape = (half[0] * count, COLUMNS) if axis == 0 else (half[0], COLUMNS * count)
    offset = shape[1] - COLUMNS if axis else (shape[0] - half[0]) * COLUMNS - 5
    view = View("w", half, (shape[1], 1), offset)
    copy = Vector(half, (Access("v", identity(2)),), Access("z", identity(2)), (), "in0")
    steps = AllGather("a", "w", axis, axes), copy
    check(mixing(grid, steps, (Local("w", shape, "f32"), Local("z", half, "f32")), "f32", (Window("v", view),)))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("grid", "axes"), [((2, 3), (1,)), ((3, 2), (0,)), ((3,), (0,))])
def test_parts(grid: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    """A rank's part of what all have, in their order, seen as a window; and of a parameter, put together again."""
    half = (ROWS // 2, COLUMNS)
    shapes = {"w": (half[0] * 3, COLUMNS // 3), "s": (half[0], COLUMNS // 3), "g": half, "z": half}
    view, to_z = Window("v", View("w", half, (COLUMNS, 1))), Access("z", identity(2))
    added = Vector(half, (Access("v", identity(2)), Access("g", identity(2))), to_z,
                   (Instr("r", "addf", ("in0", "in1"), dtype),), "r")  # fmt: skip
    steps = AllToAll("a", "w", 1, 0, axes), AllSlice("x", "s", 1, axes), AllGather("s", "g", 1, axes), added
    check(mixing(grid, steps, tuple(Local(name, shape, dtype) for name, shape in shapes.items()), dtype, (view,)))


def test_a_rank_that_fails_ends_the_others() -> None:
    """One rank never reaches the barrier: the error of the waiting ranks names it."""
    half = (ROWS // 2, COLUMNS)
    program = mixing((3,), (AllReduce("a", "t", (0,)),), (Local("t", half, "f32"),), "f32")
    run = on_native(program, make_code(program, optimise=0), 1)
    errors = []

    def work(group: ThreadGroup) -> None:
        if group.rank == 1:
            group.windows(128 * 2)
            raise InputError("out of cheese")
        try:
            run(group)
        except RankError as error:
            errors.append(str(error))
            raise

    with pytest.raises(InputError, match="out of cheese"):
        run_ranks(thread_groups(3), work)
    assert errors == ["rank 1 has failed"] * 2


def test_a_rank_that_does_not_answer() -> None:
    half = (ROWS // 2, COLUMNS)
    program = mixing((2,), (AllReduce("a", "t", (0,)),), (Local("t", half, "f32"),), "f32")
    run = on_native(program, make_code(program, optimise=0), 2)
    groups = thread_groups(2, timeout=0.2)
    with raises(NativeErrors.RANK_STALLED, rank=1):
        run_ranks(groups, lambda group: run(group) if group.rank == 0 else group.windows(512))
