"""The native interpreter as its caller sees it: names, shapes and dtypes, states, outputs, memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import Entry, Launch, Program
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter, NativeInterpreterErrors
from sscc.runtime.backends.cpu.plan.library import NativeCode, make_code
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises
from tests.runtime.backends.cpu.test_weights import linear, program_of
from tests.runtime.schedules import lay_out, one_stage, sum_body, whole

SHAPE = (3, 20)


def counting() -> Program:
    """Return a program: y = x + state; state = state + w. `count` returns its scalar; `clear` has no inputs."""
    body = sum_body("sum", SHAPE)
    tensors, end = lay_out(
        ("x", SHAPE, "f32", "input"),
        ("w", SHAPE, "f32", "weight"),
        ("state", SHAPE, "f32", "state"),
        ("y", SHAPE, "f32", "output"),
        ("other", (5,), "bf16", "input"),
    )
    views = {t.name: whole(t) for t in tensors}
    launches = (
        Launch("sum", (views["x"], views["state"], views["y"])),
        Launch("sum", (views["state"], views["w"], views["state"])),
    )
    entries = (
        Entry("main", ("x",), ("y",), ("n",), ("n", 7), launches),
        Entry("step", (), (), (), (), launches[1:]),
        Entry("take", ("other",), (), (), (), ()),
    )
    return Program(tensors, (body,), (one_stage(body),), entries, end)


PROGRAM = counting()
WEIGHT = np.full(SHAPE, 2.0, np.float32)
X = np.arange(60, dtype=np.float32).reshape(SHAPE)


@pytest.fixture(scope="module")
def code() -> NativeCode:
    return make_code(PROGRAM, optimise=0)


@pytest.fixture
def native(code: NativeCode) -> NativeInterpreter:
    return NativeInterpreter(PROGRAM, {"w": WEIGHT}, code=code, threads=2)


def test_a_call(native: NativeInterpreter) -> None:
    outputs, scalars = native.run("main", {"x": X}, {"n": 5})
    assert outputs.keys() == {"y"}
    assert (outputs["y"] == X).all()
    assert scalars == (5, 7)
    assert (native.tensor("state") == 2).all()


def test_it_says_what_it_runs_by_which_threads_in_what_memory(native: NativeInterpreter, code: NativeCode) -> None:
    program, memory = "1 kernel, entries main, step, take", "240 bytes of weights, 240 bytes of states, "
    assert repr(native).startswith(f"NativeInterpreter({program}; 2 threads; {memory}")
    assert repr(native).endswith(" of working memory)")
    assert "; 1 thread; " in repr(NativeInterpreter(PROGRAM, {"w": WEIGHT}, code=code, threads=1))


def test_outputs_are_copies(native: NativeInterpreter) -> None:
    first, _ = native.run("main", {"x": X}, {"n": 0})
    kept = first["y"].copy()
    second, _ = native.run("main", {"x": X}, {"n": 0})
    assert (first["y"] == kept).all()
    assert (second["y"] == X + 2).all()
    first["y"][...] = 0
    assert (native.tensor("y") == second["y"]).all()


def test_outputs_without_a_copy_are_live(native: NativeInterpreter) -> None:
    first, scalars = native.run("main", {"x": X}, {"n": 5}, copy=False)
    assert scalars == (5, 7)
    assert np.shares_memory(first["y"], native.tensor("y"))
    before = first["y"].copy()
    native.run("main", {"x": X}, {"n": 5})
    assert not np.array_equal(first["y"], before)


def test_tensors_are_live(native: NativeInterpreter) -> None:
    state = native.tensor("state")
    state[...] = 10
    assert (native.run("main", {"x": X}, {"n": 0})[0]["y"] == X + 10).all()
    assert (state == 12).all()


def test_reset_zeroes_states_and_nothing_else(native: NativeInterpreter) -> None:
    native.run("main", {"x": X}, {"n": 0})
    native.reset()
    assert (native.tensor("state") == 0).all()
    assert (native.tensor("y") == X).all()
    assert (native.run("main", {"x": X}, {"n": 0})[0]["y"] == X).all()


def test_an_entry_without_inputs(native: NativeInterpreter) -> None:
    assert native.run("step", {}) == ({}, ())
    assert (native.tensor("state") == 2).all()


def test_bf16_is_bf16(native: NativeInterpreter) -> None:
    values = np.arange(5).astype(ml_dtypes.bfloat16)
    native.run("take", {"other": values})
    assert native.tensor("other").dtype == ml_dtypes.bfloat16
    assert (native.tensor("other") == values).all()


def test_two_interpreters_share_code_and_nothing_else(code: NativeCode) -> None:
    a, b = (NativeInterpreter(PROGRAM, {"w": WEIGHT}, code=code, threads=n) for n in (1, 3))
    a.run("main", {"x": X}, {"n": 0})
    assert (b.tensor("state") == 0).all()


def test_inputs_need_not_be_dense(native: NativeInterpreter) -> None:
    wide = np.repeat(X, 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous
    assert (native.run("main", {"x": wide}, {"n": 0})[0]["y"] == X).all()


# ----------------------------------------------------------------------------------------------------- refusals

CALLS: dict[str, tuple[str, dict[str, Any], dict[str, int], ErrorKind, dict[str, Any]]] = {
    "entry": ("lost", {}, {}, NativeInterpreterErrors.NO_ENTRY, {"entry": "lost", "entries": ["main", "step", "take"]}),
    "input missing": (
        "main", {}, {"n": 1}, NativeInterpreterErrors.INPUT_NAMES,
        {"entry": "main", "inputs": ["x"], "names": []},
    ),
    "input too many": (
        "main", {"x": X, "z": X}, {"n": 1}, NativeInterpreterErrors.INPUT_NAMES,
        {"entry": "main", "inputs": ["x"], "names": ["x", "z"]},
    ),
    "a state is no input": (
        "main", {"state": X}, {"n": 1}, NativeInterpreterErrors.INPUT_NAMES,
        {"entry": "main", "inputs": ["x"], "names": ["state"]},
    ),
    "scalar missing": (
        "main", {"x": X}, {}, NativeInterpreterErrors.SCALAR_NAMES,
        {"entry": "main", "inputs": ["n"], "names": []},
    ),
    "scalar too many": (
        "step", {}, {"n": 1}, NativeInterpreterErrors.SCALAR_NAMES,
        {"entry": "step", "inputs": [], "names": ["n"]},
    ),
    "shape": (
        "main", {"x": X[:2]}, {"n": 1}, NativeInterpreterErrors.INPUT_DIFFERS,
        {"input": "x", "dtype": "float32", "shape": [2, 20], "wanted_dtype": "float32", "wanted_shape": [3, 20]},
    ),
    "rank": (
        "main", {"x": X[None]}, {"n": 1}, NativeInterpreterErrors.INPUT_DIFFERS,
        {"input": "x", "dtype": "float32", "shape": [1, 3, 20], "wanted_dtype": "float32", "wanted_shape": [3, 20]},
    ),
    "dtype": (
        "main", {"x": X.astype(np.float64)}, {"n": 1}, NativeInterpreterErrors.INPUT_DIFFERS,
        {"input": "x", "dtype": "float64", "shape": [3, 20], "wanted_dtype": "float32", "wanted_shape": [3, 20]},
    ),
    "bits of bf16": (
        "take", {"other": np.zeros(5, np.uint16)}, {}, NativeInterpreterErrors.INPUT_DIFFERS,
        {"input": "other", "dtype": "uint16", "shape": [5], "wanted_dtype": "bfloat16", "wanted_shape": [5]},
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_do_not_fit(call: str, native: NativeInterpreter) -> None:
    entry, inputs, scalars, kind, fields = CALLS[call]
    with raises(kind, **fields):
        native.run(entry, inputs, scalars)
    assert (native.tensor("state") == 0).all(), "nothing was computed"


def test_tensors_that_are_not_in_memory(native: NativeInterpreter) -> None:
    for name in ("lost", "w"):
        with raises(NativeInterpreterErrors.NO_TENSOR, tensor=name):
            native.tensor(name)


@pytest.mark.parametrize(
    ("weights", "kind", "fields"),
    [
        ({}, NativeInterpreterErrors.NO_WEIGHT, {"role": "weight", "tensor": "w"}),
        (
            {"w": WEIGHT[:2]}, NativeInterpreterErrors.WEIGHT_DIFFERS,
            {
                "role": "weight", "tensor": "w", "dtype": "float32", "shape": [2, 20], "wanted_dtype": "f32",
                "wanted_shape": [3, 20],
            },
        ),
        (
            {"w": WEIGHT.astype(np.float64)}, NativeInterpreterErrors.WEIGHT_DIFFERS,
            {"role": "weight", "tensor": "w", "dtype": "float64"},
        ),
    ],
)
def test_weights_that_do_not_fit(
    weights: dict[str, Any], kind: ErrorKind, fields: dict[str, Any], code: NativeCode
) -> None:
    with raises(kind, **fields):
        NativeInterpreter(PROGRAM, weights, code=code)


@pytest.mark.parametrize("data", [b"", b"12345678", None])
def test_plans_that_are_damaged(data: bytes | None, code: NativeCode) -> None:
    damaged = code.plan[:-8] if data is None else data
    with raises(NativeErrors.PLAN_MALFORMED):
        NativeInterpreter(PROGRAM, {"w": WEIGHT}, code=NativeCode(damaged, code.addresses, code.owner), threads=1)


# ------------------------------------------------------------------------------------------------------- memory


def test_weights_that_are_not_packed_are_used_where_they_lie(code: NativeCode) -> None:
    weight = WEIGHT.copy()
    native = NativeInterpreter(PROGRAM, {"w": weight}, code=code, threads=1)
    weight[...] = 30
    native.run("step", {})
    assert (native.tensor("state") == 30).all()


def test_memory_by_purpose(native: NativeInterpreter) -> None:
    memory = native.memory()
    assert memory.weights == 240
    assert memory.states == 240
    assert 2 * 240 + 10 <= memory.working < 1 << 20


def test_packed_weights_are_counted_as_they_are_stored() -> None:
    program = program_of((40, 24), linear(0, 40))
    native = NativeInterpreter(
        program, {"w": np.zeros((40, 24), np.float32)}, code=make_code(program, optimise=0), threads=1
    )
    assert native.memory().weights == 3 * 16 * 24 * 4
