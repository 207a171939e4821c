"""Indices that tensors hold and that lie outside: native code ends the run with an error where the reference does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sscc.ir.errors import InputError
from sscc.ir.operations import DecodeAttention, GatherRows, UpdateRows
from sscc.ir.schedule import Access, Body, Entry, Instr, Launch, Param, Program, Vector
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises
from tests.runtime.programs import DTYPES
from tests.runtime.schedules import identity, lay_out, one_stage, whole

FAR = 1 << 40


def _lookup() -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor], str]:
    """Rows of a table, as tokens look them up."""
    program = (Instr("j", "index", (1,), "index"), Instr("r", "load", ("table", "in0", "j"), "f32"))
    row = Access("rows", ((1, 0, 0),))
    step = Vector((5, 20), (row,), Access("y", identity(2)), program, "r")
    inputs = {"table": torch.randn(7, 20), "rows": torch.tensor([0, 6, 3, 1, 2])}
    return step, inputs, {"y": torch.zeros(5, 20)}, "rows"


def _update() -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor], str]:
    inputs = {"new": torch.randn(2, 1, 1, 4), "rows": torch.tensor([0, 6]), "active": torch.tensor([True, True])}
    return UpdateRows("cache", "new", "rows", "active"), inputs, {"cache": torch.zeros(2, 1, 7, 4)}, "rows"


def _gather() -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor], str]:
    inputs = {"source": torch.randn(1, 2, 7, 4), "rows": torch.tensor([[5, 5], [5, 6]])}
    return GatherRows("source", "rows", "y"), inputs, {"y": torch.zeros(1, 2, 2, 4)}, "rows"


def _decode() -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor], str]:
    names = ("q", "k", "v", "k_cache", "v_cache", "k_cache", "v_cache", "rows", "base", "active", "topk", "out")
    inputs = {name: torch.randn(2, 1, 1, 16) for name in "qkv"}
    inputs |= {"rows": torch.tensor([3, 4]), "base": torch.tensor([2, 2]), "active": torch.tensor([True, True])}
    writes = {"k_cache": torch.zeros(2, 1, 6, 16), "v_cache": torch.zeros(2, 1, 6, 16), "out": torch.zeros(2, 1, 1, 16)}
    return DecodeAttention(*names, 0.25, 2, 4), inputs, writes, "rows"


CASES = [
    (_lookup, (-1, 7, FAR, -FAR)),
    (_update, (-1, 7, FAR, -FAR)),
    (_gather, (7, FAR)),
    (_decode, (-1, -FAR)),
]


@pytest.mark.parametrize(("case", "outside"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_an_index_outside_ends_the_run_as_in_the_reference(case: Any, outside: tuple[int, ...]) -> None:
    step, inputs, writes, name = case()
    both = {**inputs, **writes}
    params = tuple(
        Param(n, tuple(t.shape), DTYPES[t.dtype], "update" if n in writes else "read")  # type: ignore[arg-type]
        for n, t in both.items()
    )
    scalars = {"topk": 0} if isinstance(step, DecodeAttention) else {}
    body = Body("k", params, tuple(scalars), (), (), (step,))
    kernel = one_stage(body)
    tensors, end = lay_out(
        *((n, tuple(t.shape), DTYPES[t.dtype], "state" if n in writes else "input") for n, t in both.items())
    )
    arguments = {t.name: whole(t) for t in tensors}
    launch = Launch(kernel.name, tuple(arguments[p.name] for p in kernel.params), tuple(scalars))
    entry = Entry("main", tuple(inputs), (), tuple(scalars), (), (launch,))
    program = Program(tensors, (body,), (kernel,), (entry,), end)
    reference = ReferenceInterpreter(program, {})
    native = NativeInterpreter(program, {}, code=make_code(program, optimise=0), threads=2)
    for index in outside:
        bad_inputs = {**inputs, name: inputs[name].clone()}
        bad_inputs[name][-1] = index
        with pytest.raises(InputError):
            reference.run("main", bad_inputs, scalars)
        with raises(NativeErrors.INDEX_OUT_OF_RANGE):
            native.run("main", {n: to_array(t) for n, t in bad_inputs.items()}, scalars)
        native.run("main", {n: to_array(t) for n, t in inputs.items()}, scalars)  # the next call is one like any other
