"""The numpy face of the reference interpreter, and opening interpreters by name."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from sscc.ir.schedule import DTYPE_BYTES, Entry, Program, Tensor
from sscc.runtime.artifact.tensor_files import NUMPY_DTYPES, Array
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.reference.arrays import (
    TORCH_DTYPES,
    ArrayInterpreter,
    TorchArrayErrors,
    to_array,
    to_tensors,
)
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.backends.reference.interpreter import ReferenceErrors, ReferenceInterpreter
from sscc.runtime.backends.registry import DEFAULT_BACKEND, BackendErrors, backend_names
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests.errors import raises
from tests.runtime.test_artifact import WEIGHTS, write

STATES = tuple(
    Tensor(name, (2, 3), dtype, "state", "hbm", 64 * index)
    for index, (name, dtype) in enumerate([("f32", "f32"), ("bf16", "bf16"), ("i64", "i64"), ("i1", "i1")])
)
PROGRAM = Program(
    (*STATES, Tensor("x", (4,), "bf16", "input", "hbm", 256)),
    (),
    (),
    (Entry("main", ("x",), ("bf16",), ("n",), ("n",), ()),),
    320,
)


def test_it_says_what_it_runs_and_in_what_memory() -> None:
    plain = ReferenceInterpreter(PROGRAM, {})
    memory = "0 bytes of weights, 90 bytes of states, 230 bytes of working memory"
    assert repr(plain) == f"ReferenceInterpreter(0 kernels, entries main; precision f32; {memory})"
    assert repr(ArrayInterpreter(plain, PROGRAM)) == f"ArrayInterpreter({plain!r})"
    checked = ReferenceInterpreter(PROGRAM, {}, precision="f64", checked=True)
    assert "; precision f64, checked; " in repr(checked)
    ranks = replace(PROGRAM, grid=(3,))
    assert ranks.in_words() == "0 kernels, entries main, 3 ranks"


def test_every_dtype_of_the_schedule_has_a_counterpart() -> None:
    assert NUMPY_DTYPES.keys() == TORCH_DTYPES.keys() == DTYPE_BYTES.keys()
    for name, dtype in NUMPY_DTYPES.items():
        assert dtype.itemsize == TORCH_DTYPES[name].itemsize == DTYPE_BYTES[name]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES.values(), ids=NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_arrays_and_tensors_share_their_memory(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    array: Array = np.ones(shape, dtype)
    tensor = to_tensors({"x": array})["x"]
    assert tensor.shape == shape
    back = to_array(tensor)
    assert (back.shape, back.dtype) == (shape, dtype)
    assert np.array_equal(back, array)
    if tensor.numel():
        tensor.zero_()
        assert not array.any()
        assert not back.any()


def test_read_only_arrays_are_not_copied_and_nobody_is_warned() -> None:
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = to_tensors({"x": array})["x"]
    assert tensor.data_ptr() == array.ctypes.data


def test_strides_and_gradients_are_no_obstacle() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).bfloat16().T.requires_grad_()
    assert to_array(tensor).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_dtype_that_numpy_lacks_is_refused() -> None:
    with raises(TorchArrayErrors.NO_NUMPY_DTYPE, dtype="torch.float8_e5m2"):
        to_array(torch.zeros(2).to(torch.float8_e5m2))


def test_states_are_live_and_outputs_are_not() -> None:
    interpreter: ArrayInterpreter = Reference(PROGRAM).open({}, Conditions())
    for state in STATES:
        interpreter.tensor(state.name)[0, 1] = 1
        assert interpreter.tensor(state.name).tolist() == [[0, 1, 0], [0, 0, 0]]
    outputs, results = interpreter.run("main", {"x": np.ones(4, ml_dtypes.bfloat16)}, {"n": 3})
    assert results == (3,)
    assert interpreter.tensor("x").tolist() == [1, 1, 1, 1]
    interpreter.reset()
    assert not interpreter.tensor("bf16").any()
    assert outputs["bf16"].dtype == ml_dtypes.bfloat16
    assert outputs["bf16"].tolist() == [[0, 1, 0], [0, 0, 0]]
    again, _ = interpreter.run("main", {"x": np.ones(4, ml_dtypes.bfloat16)}, {"n": 3}, copy=False)
    assert np.array_equal(again["bf16"], interpreter.tensor("bf16"))
    with raises(ReferenceErrors.NO_TENSOR, tensor="y"):
        interpreter.tensor("y")


def test_interpreters_are_opened_by_name(tmp_path: Path) -> None:
    write(tmp_path / "m.rdu")
    artifact = Artifact.load(tmp_path / "m.rdu")
    assert DEFAULT_BACKEND in backend_names()
    interpreter = Session.from_artifact(artifact, interpreter="reference", threads=1, checked=True).interpreter
    assert torch.get_num_threads() == 1
    assert np.array_equal(interpreter.tensor("w"), WEIGHTS["w"])
    with raises(BackendErrors.UNKNOWN, name="hardware"):
        Session.from_artifact(artifact, interpreter="hardware")
