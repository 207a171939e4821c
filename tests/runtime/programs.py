"""Tiny programs for tests: one kernel, one launch, inputs and outputs laid out one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sscc.runtime.reference import ReferenceInterpreter
from sscc.runtime.schedule import (
    Access,
    Entry,
    Instr,
    Kernel,
    Launch,
    Param,
    Program,
    Tensor,
    Vector,
    View,
)

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: "f32",
    torch.float64: "f32",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.bool: "i1",
}


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def whole(tensor: Tensor) -> View:
    return View(tensor.name, tensor.shape, dense(tensor.shape))


def lay_out(*tensors: tuple[str, tuple[int, ...], Any, Any]) -> tuple[tuple[Tensor, ...], int]:
    """Tensors (name, shape, dtype, role) at increasing addresses, and the arena that holds them."""
    placed, address = [], 0
    for name, shape, dtype, role in tensors:
        tensor = Tensor(name, shape, dtype, role, "ddr", address, name if role in ("weight", "constant") else "")
        placed.append(tensor)
        address += 0 if role in ("weight", "constant") else -(-tensor.nbytes // 64) * 64
    return tuple(placed), address


def run_stages(
    stages: tuple[Any, ...],
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int] | None = None,
    access: str = "update",
    precision: str = "f32",
) -> dict[str, torch.Tensor]:
    """Runs stages over parameters `inputs` (read) and `writes` (states with these first contents)."""
    scalars = scalars or {}
    given = {**inputs, **writes}
    tensors, arena = lay_out(
        *((name, tuple(t.shape), DTYPES[t.dtype], "state" if name in writes else "input") for name, t in given.items())
    )
    params = tuple(
        Param(t.name, t.shape, t.dtype, access if t.name in writes else "read")  # type: ignore[arg-type]
        for t in tensors
    )
    kernel = Kernel("k", params, tuple(scalars), stages)
    launch = Launch("k", tuple(whole(t) for t in tensors), tuple(scalars))
    entry = Entry("main", tuple(inputs), (), tuple(scalars), (), (launch,))
    program = Program.from_json(Program(tensors, (kernel,), (entry,), arena).to_json())
    interpreter = ReferenceInterpreter(program, {}, precision=precision, checked=True)
    for name, value in writes.items():
        interpreter.tensor(name).copy_(value)
    interpreter.run("main", inputs, scalars)
    return {name: interpreter.tensor(name).clone() for name in writes}


def identity(rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple((*tuple(int(row == column) for column in range(rank)), 0) for row in range(rank))


def copy_kernel(name: str, shape: tuple[int, ...], dtype: Any = "f32") -> Kernel:
    """A kernel that copies parameter `x` to parameter `y`."""
    rank = len(shape)
    stage = Vector(shape, (Access("x", identity(rank)),), Access("y", identity(rank)), (), "in0")
    return Kernel(name, (Param("x", shape, dtype, "read"), Param("y", shape, dtype, "write")), (), (stage,))


def add_kernel(name: str, shape: tuple[int, ...], amount: float) -> Kernel:
    """A kernel that writes ``x + amount`` to ``y``."""
    rank = len(shape)
    body = (Instr("r", "addf", ("in0", amount), "f32"),)
    stage = Vector(shape, (Access("x", identity(rank)),), Access("y", identity(rank)), body, "r")
    return Kernel(name, (Param("x", shape, "f32", "read"), Param("y", shape, "f32", "write")), (), (stage,))
