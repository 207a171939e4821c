"""Every second element of a row, read and written: rotary embeddings whose pairs lie side by side."""

from __future__ import annotations

import pytest
import torch

from sscc.ir.schedule import Access, Body, Instr, Param, Vector, View, Window
from sscc.runtime.backends.cpu.codegen.nests import NativeStrideErrors, Regions
from tests.errors import raises
from tests.runtime.programs import run_steps
from tests.runtime.schedules import identity

ROWS = 3


def _pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (2 i, 2 i + 1) of `x` [rows, width] turned by the angles [rows, width / 2]."""
    even, odd = x[:, 0::2], x[:, 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(1)


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[-1]))


def _turned(first: str, second: str, sign: str) -> tuple[Instr, ...]:
    return (
        Instr("a", "mulf", (first, "in2"), "f32"),
        Instr("b", "mulf", (second, "in3"), "f32"),
        Instr("r", sign, ("a", "b"), "f32"),
    )


@pytest.mark.parametrize("width", [2, 6, 8, 32, 38, 64])
@pytest.mark.parametrize("by", ["windows", "accesses"])
def test_pairs_that_lie_side_by_side_are_turned(width: int, by: str) -> None:
    half, whole = width // 2, identity(2)
    x, cos, sin = _numbers(ROWS, width), _numbers(ROWS, half), _numbers(ROWS, half)
    views = {name: View(name[0], (ROWS, half), (width, 2), odd) for odd in (0, 1) for name in (f"x{odd}", f"y{odd}")}
    windows = tuple(Window(name, view) for name, view in views.items()) if by == "windows" else ()

    def at(name: str, odd: int) -> Access:
        return Access(f"{name}{odd}", whole) if by == "windows" else Access(name, ((1, 0, 0), (0, 2, odd)))

    angles = (Access("cos", whole), Access("sin", whole))
    steps = tuple(
        Vector((ROWS, half), (at("x", 0), at("x", 1), *angles), at("y", odd), program, "r")
        for odd, program in enumerate((_turned("in0", "in1", "subf"), _turned("in1", "in0", "addf")))
    )
    left = run_steps(steps, {"x": x, "cos": cos, "sin": sin}, {"y": torch.zeros(ROWS, width)}, windows=windows)
    torch.testing.assert_close(left["y"], _pairs(x, cos, sin))


@pytest.mark.parametrize(("offset", "step"), [(0, 3), (2, 3), (1, 5)])
def test_a_part_of_a_row_is_written_and_the_rest_stays(offset: int, step: int) -> None:
    width = 31
    count = len(range(offset, width, step))
    x, before = _numbers(ROWS, count), _numbers(ROWS, width)
    put = Vector((ROWS, count), (Access("x", identity(2)),), Access("y", ((1, 0, 0), (0, step, offset))), (), "in0")
    expected = before.clone()
    expected[:, offset::step] = x
    assert torch.equal(run_steps((put,), {"x": x}, {"y": before})["y"], expected)


def test_a_window_of_what_a_launch_shows_otherwise_is_refused_by_name() -> None:
    window = Window("w", View("x", (6,), (1,)))
    body = Body("b", (Param("x", (3, 2), "f32", "read"),), (), (), (window,), ())
    assert Regions(body, {"x": (2, 1)}).resolve("w").strides == (1,)
    with raises(NativeStrideErrors.WINDOW_NOT_DENSE, body="b", window="w", tensor="x"):
        Regions(body, {"x": (0, 1)}).resolve("w")
