"""Helpers that build the records of a schedule by hand."""

from __future__ import annotations

from typing import Any

from sscc.ir.schedule import Access, Body, Instr, Kernel, Param, Pipeline, Port, Stage, Tensor, Vector, View
from sscc.ir.sizes import dense_strides


def view_of(name: str, shape: tuple[int, ...], offset: int = 0, *terms: tuple[str, int]) -> View:
    """A dense view of `shape`."""
    return View(name, shape, dense_strides(shape), offset, terms)


def whole(tensor: Tensor | Param) -> View:
    """A view of all of it."""
    return view_of(tensor.name, tensor.shape)


def lay_out(*tensors: tuple[str, tuple[int, ...], Any, Any]) -> tuple[tuple[Tensor, ...], int]:
    """Tensors (name, shape, dtype, role) at increasing addresses, and the arena that holds them."""
    placed, address = [], 0
    for name, shape, dtype, role in tensors:
        is_stored = role in ("weight", "constant")
        tensor = Tensor(name, shape, dtype, role, "ddr", address, (name,) if is_stored else ())
        placed.append(tensor)
        address += 0 if is_stored else -(-tensor.nbytes // 64) * 64
    return tuple(placed), address


def one_stage(body: Body) -> Kernel:
    """A kernel of the body's name that fires it once, on its own parameters as they are."""
    stage = Stage("only", body.name, (), tuple(Port(whole(param)) for param in body.params), body.scalars, ())
    return Kernel(body.name, body.params, body.scalars, (Pipeline("p", "i", 0, 1, (), (), (stage,)),), body.location)


def read(name: str, shape: tuple[int, ...], dtype: Any = "f32") -> Param:
    return Param(name, shape, dtype, "read")


def update(name: str, shape: tuple[int, ...], dtype: Any = "f32") -> Param:
    return Param(name, shape, dtype, "update")


def write(name: str, shape: tuple[int, ...], dtype: Any = "f32") -> Param:
    return Param(name, shape, dtype, "write")


def identity(rank: int) -> tuple[tuple[int, ...], ...]:
    """The rows of an access that takes each index of the step as it is."""
    return tuple((*tuple(int(row == column) for column in range(rank)), 0) for row in range(rank))


def whole_access(name: str, rank: int) -> Access:
    """Element [i, j, ..] of an operand at step (i, j, ..)."""
    return Access(name, identity(rank))


def copy_body(name: str, shape: tuple[int, ...], dtype: Any = "f32") -> Body:
    """A body that copies parameter `x` to parameter `y`."""
    x, y = (whole_access(operand, len(shape)) for operand in "xy")
    step = Vector(shape, (x,), y, (), "in0")
    return Body(name, (read("x", shape, dtype), write("y", shape, dtype)), (), (), (), (step,))


def add_body(name: str, shape: tuple[int, ...], amount: float) -> Body:
    """A body that writes ``x + amount`` to ``y``."""
    x, y = (whole_access(operand, len(shape)) for operand in "xy")
    step = Vector(shape, (x,), y, (Instr("r", "addf", ("in0", amount), "f32"),), "r")
    return Body(name, (read("x", shape), write("y", shape)), (), (), (), (step,))


def sum_body(name: str, shape: tuple[int, ...]) -> Body:
    """A body that writes ``a + b`` to ``y``."""
    a, b, y = (whole_access(operand, len(shape)) for operand in "aby")
    step = Vector(shape, (a, b), y, (Instr("r", "addf", ("in0", "in1"), "f32"),), "r")
    return Body(name, (read("a", shape), read("b", shape), write("y", shape)), (), (), (), (step,))
