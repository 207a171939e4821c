"""Tiny programs for tests, run on both interpreters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import (
    Body,
    Entry,
    Kernel,
    Launch,
    Local,
    Param,
    Program,
    Window,
)
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import NativeCode, make_code
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from tests.errors import raises
from tests.runtime.schedules import lay_out, one_stage, whole

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: "f32",
    torch.float64: "f32",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int8: "i8",
    torch.bool: "i1",
}


def run_kernel(
    kernel: Kernel,
    bodies: Sequence[Body],
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int] | None = None,
    precision: str = "f32",
    checked: bool = True,
    arena: int = 0,
    native: bool = True,
    refusal: ErrorKind | None = None,
) -> dict[str, torch.Tensor]:
    """Launches a kernel on `inputs` and `writes` (states with these first contents), and gives the latter back.

    `arena`: bytes behind the tensors, for spilled buffers. `native`: whether the native interpreter must agree; it need
    not where the program is not a valid one. `refusal`: instead of agreeing it must refuse the program with an error of
    this kind.
    """
    scalars = scalars or {}
    memory = {**inputs, **writes}
    tensors, end = lay_out(
        *((name, tuple(t.shape), DTYPES[t.dtype], "state" if name in writes else "input") for name, t in memory.items())
    )
    arguments = {t.name: whole(t) for t in tensors}
    launch = Launch(kernel.name, tuple(arguments[p.name] for p in kernel.params), tuple(scalars))
    entry = Entry("main", tuple(inputs), (), tuple(scalars), (), (launch,))
    program = Program.from_json(Program(tensors, tuple(bodies), (kernel,), (entry,), end + arena).to_json())
    interpreter = ReferenceInterpreter(program, {}, precision=precision, checked=checked)
    for name, value in writes.items():
        interpreter.tensor(name).copy_(value)
    interpreter.run("main", inputs, scalars)
    results = {name: interpreter.tensor(name).clone() for name in writes}
    if native and precision == "f32" and refusal:
        with raises(refusal):
            make_code(program, optimise=0)
    elif native and precision == "f32":
        check_native(program, inputs, writes, scalars, results)
    return results


def check_native(
    program: Program,
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int],
    expected: Mapping[str, torch.Tensor],
) -> None:
    """Runs the program on the native interpreter too, on two threads: it must agree, but for rounding."""
    native = NativeInterpreter(program, {}, code=_code(program.to_json()), threads=2)
    for name, value in writes.items():
        native.tensor(name)[...] = to_array(value)
    native.run("main", {name: to_array(value) for name, value in inputs.items()}, scalars)
    for name, reference in expected.items():
        native_value = to_tensors({name: native.tensor(name)})[name]
        if reference.is_floating_point():
            close = 2e-2 if reference.dtype is torch.bfloat16 else 2e-5
            torch.testing.assert_close(native_value, reference, rtol=close, atol=close, equal_nan=True)
        else:
            assert torch.equal(native_value, reference), f"native: {name}"


@lru_cache(maxsize=64)
def _code(program: str) -> NativeCode:
    """A program's code; tests that change only data and scalars ask for the same one again and again."""
    return make_code(Program.from_json(program), optimise=0)


def run_steps(
    steps: tuple[Any, ...],
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int] | None = None,
    access: str = "update",
    precision: str = "f32",
    locals_: tuple[Local, ...] = (),
    windows: tuple[Window, ...] = (),
) -> dict[str, torch.Tensor]:
    """Runs the steps of one body over parameters `inputs` (read) and `writes` (with these first contents)."""
    params = tuple(
        Param(name, tuple(t.shape), DTYPES[t.dtype], access if name in writes else "read")  # type: ignore[arg-type]
        for name, t in {**inputs, **writes}.items()
    )
    body = Body("k", params, tuple(scalars or {}), locals_, windows, steps)
    return run_kernel(one_stage(body), (body,), inputs, writes, scalars, precision)
