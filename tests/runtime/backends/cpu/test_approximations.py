"""Polynomials against double precision, over the whole range and at its edges."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from sscc.runtime.backends.cpu.codegen import approximations
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import F32, I64, PTR, Function, Module, Value, vector

Floats = npt.NDArray[np.float32]
TINY = float(np.finfo(np.float32).tiny)

FUNCTIONS: dict[str, tuple[Callable[[Function, Value], Value], Callable[[float], float], float]] = {
    "exp2": (approximations.exp2, lambda x: 2.0**x, 2e-7),
    "exp": (approximations.exp, lambda x: math.exp(x) if x < 700 else math.inf, 2e-7),
    "tanh": (approximations.tanh, math.tanh, 3e-7),
    "erf": (approximations.erf, math.erf, 2e-7),
}

ONE_SIDED: dict[str, tuple[Callable[[Function, Value], Value], Callable[[float], float], int]] = {
    "decay": (approximations.decay, math.exp, -1),
    "exp2_not_positive": (approximations.exp2_not_positive, lambda x: 2.0**x, -1),
    "log": (approximations.log, math.log, 1),
}
"""Approximation, exact, sign of the numbers that it takes besides 0."""


def evaluate(approximation: Callable[[Function, Value], Value], x: Floats) -> Floats:
    module = Module()
    f = module.function("apply", [("x", PTR), ("y", PTR), ("n", I64)], exported=True)
    with f.loop(0, f["n"], 16) as loop:
        f.store(approximation(f, f.load(f["x"] + loop.index * 4, vector(F32, 16))), f["y"] + loop.index * 4)
    f.returns()
    code = Jit(module)
    padded = np.zeros(-(-len(x) // 16) * 16, np.float32)
    padded[: len(x)] = x
    y = np.zeros_like(padded)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.addresses["apply"])
    call(padded.ctypes.data, y.ctypes.data, len(padded))
    return y[: len(x)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name: str) -> None:
    approximation, exact, tolerance = FUNCTIONS[name]
    sizes = np.geomspace(1e-6, 100, 20_000)
    x = np.concatenate([sizes, -sizes, np.linspace(-12, 12, 20_001)]).astype(np.float32)
    y = evaluate(approximation, x)
    truth = np.array([exact(float(v)) for v in x])
    normal = (np.abs(truth) > TINY) & (np.abs(truth) < np.finfo(np.float32).max)
    error = np.abs(y[normal] - truth[normal]) / np.abs(truth[normal])
    assert error.max() < tolerance, f"at {x[normal][error.argmax()]}"
    assert np.abs(y[np.abs(truth) <= TINY]).max(initial=0.0) <= TINY


@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges(name: str) -> None:
    approximation, exact, _ = FUNCTIONS[name]
    edges = np.array([np.inf, -np.inf, 0.0, np.nan], np.float32)
    y = evaluate(approximation, edges)
    assert [float(v) for v in y[:2]] == [exact(math.inf), exact(-math.inf)]
    assert float(y[2]) == exact(0.0)
    assert math.isnan(y[3])


@pytest.mark.parametrize("name", ONE_SIDED)
def test_one_sided(name: str) -> None:
    approximation, exact, sign = ONE_SIDED[name]
    x = sign * np.concatenate([np.geomspace(1e-30, 86, 20_000), np.linspace(0.5, 2, 20_001)]).astype(np.float32)
    y = evaluate(approximation, x)
    truth = np.array([exact(float(v)) for v in x])
    assert (np.abs(y - truth) <= 2e-7 * np.abs(truth)).all()
    far, zero, nan = evaluate(approximation, np.array([sign * np.inf, 0.0, np.nan], np.float32)).tolist()
    assert (far, zero) == ((math.inf, -math.inf) if name == "log" else (0.0, 1.0))
    assert math.isnan(nan)
