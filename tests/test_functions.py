"""Kept native code: a function is returned if it and all functions that it calls are equal."""

from __future__ import annotations

import ctypes

from sscc.runtime.backends.cpu.codegen.mlir import I64, Module
from tests.functions import Functions, SharedJit


def adding(amounts: dict[str, int], called: int = 0) -> Module:
    """Return exported functions that each add an amount and the result of a function that they call."""
    module = Module()
    inner = module.function("inner", [("x", I64)], [I64])
    inner.returns(inner["x"] + called)
    for name, amount in amounts.items():
        f = module.function(name, [("x", I64)], [I64], exported=True)
        (value,) = f.call(inner, f["x"])
        f.returns(value + amount)
    return module


def results(functions: Functions, module: Module) -> dict[str, tuple[int, int]]:
    """Return the address of each function and its result for 100, by name."""
    jit = functions(module, optimise=0)
    assert isinstance(jit, SharedJit)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    return {name: (address, call(address)(100)) for name, address in jit.addresses.items()}


def test_an_equal_function_is_compiled_once_whatever_its_name() -> None:
    functions = Functions()
    first = results(functions, adding({"a": 1, "b": 2}))
    assert [value for _, value in first.values()] == [101, 102]
    second = results(functions, adding({"c": 2, "a": 3}))
    assert second["c"] == first["b"]
    assert second["a"][1] == 103
    assert second["a"][0] not in {address for address, _ in first.values()}


def test_what_calls_another_function_is_another_one() -> None:
    functions = Functions()
    first, second = (results(functions, adding({"a": 1}, called)) for called in (0, 10))
    assert (first["a"][1], second["a"][1]) == (101, 111)
