"""Calls that form a run, and runs that would make a file of IR too long to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from torch_mlir import ir

from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.levels import get_looping, set_target
from sscc.ir.looping import Looping
from sscc.passes.base import run_passes
from sscc.passes.kernel_looping import KernelLooping
from sscc.passes.runs import find_runs
from sscc.passes.stacked_weights import stack_name
from tests.targets import with_chip

KERNEL = """
  func.func private @{name}(%h: tensor<2x8xf32> {{sscc.input = "hidden"}}, %w: tensor<2x8xf32> {{sscc.weight = "w"}})
      -> (tensor<2x8xf32> {{sscc.output = "hidden"}}) attributes {{sscc.kernel}} {{
    %y = arith.{verb} %h, %w : tensor<2x8xf32>
    return %y : tensor<2x8xf32>
  }}
"""
VERBS = {"a": "addf", "b": "mulf", "c": "subf"}


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


def stack(kernels: Sequence[str]) -> ir.Module:
    """Return an entry that calls `kernels` one after another, each with its own weight."""
    weights = "".join(
        f', %w{layer}: tensor<2x8xf32> {{sscc.weight = "layers.{layer}.w"}}' for layer in range(len(kernels))
    )
    lines = [KERNEL.format(name=name, verb=VERBS[name]) for name in sorted(set(kernels))]
    lines.append(f'  func.func public @decode(%h: tensor<2x8xf32> {{sscc.input = "h"}}{weights})')
    lines.append('      -> (tensor<2x8xf32> {sscc.output = "logits"}) {')
    value = "%h"
    for layer, name in enumerate(kernels):
        types = "(tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>"
        lines.append(f"    %{layer} = func.call @{name}({value}, %w{layer}) : {types}")
        value = f"%{layer}"
    lines += [f"    return {value} : tensor<2x8xf32>", "  }"]
    return parse_module('module attributes {sscc.level = "kernels"} {\n' + "\n".join(lines) + "\n}", "the test")


def calls_of(module: ir.Module) -> list[ir.Operation]:
    entry = next(f for f in module.body.operations if f.operation.attributes["sym_name"].value == "decode")
    return [op.operation for op in entry.entry_block.operations if op.operation.name == "func.call"]


def callees(module: ir.Module) -> list[str]:
    return [call.attributes["callee"].value for call in calls_of(module)]


@pytest.mark.parametrize(
    ("kernels", "runs"),
    [
        ("", []),
        ("a", []),
        ("ab", []),
        ("aa", [("a", 2)]),
        ("aabbb", [("a", 2), ("b", 3)]),
        ("abab", [("ab", 2)]),
        ("caaac", [("a", 3)]),
        ("ababa", [("ab", 2)]),  # the last call is left over
        ("aaaa", [("a", 4)]),  # and not twice aa
        ("aabaab", [("aab", 2)]),  # longer than aa alone
        ("aabaa", [("a", 2), ("a", 2)]),
        ("cababc", [("ab", 2)]),
    ],
)
def test_runs(kernels: str, runs: list[tuple[str, int]]) -> None:
    found_runs = find_runs(calls_of(stack(kernels))) if kernels else find_runs([])
    names = ["".join(call.attributes["callee"].value for call in run.period) for run in found_runs]
    assert list(zip(names, [run.count for run in found_runs], strict=True)) == runs


def test_a_column_is_one_call_of_every_repetition() -> None:
    calls = calls_of(stack("cabab"))
    (run,) = find_runs(calls)
    assert [run.column(0), run.column(1)] == [[calls[1], calls[3]], [calls[2], calls[4]]]


def test_dense_layers_before_others() -> None:
    """3 x A then 20 x B: two runs, two looped kernels, one call each."""
    module = stack("a" * 3 + "b" * 20)
    run_passes(module, [KernelLooping()])
    assert callees(module) == ["a.x3", "b.x20"]
    assert get_looping(module) == (Looping("decode", "a", 3, ""), Looping("decode", "b", 20, ""))
    text = print_module(module)
    assert '"layers.0-2.w"' in text
    assert '"layers.3-22.w"' in text
    assert "tensor<20x2x8xf32>" in text


def test_two_runs_of_the_same_kernel_and_length_are_two_kernels() -> None:
    module = stack("aabaa")
    run_passes(module, [KernelLooping()])
    assert callees(module) == ["a.x2", "b", "a.x2.1"]


def test_what_does_not_repeat_is_called_as_before() -> None:
    module = stack("caaac")
    run_passes(module, [KernelLooping()])
    assert callees(module) == ["c", "a.x3", "c"]
    assert get_looping(module) == (Looping("decode", "a", 3, ""),)


def test_a_looped_kernel_does_not_grow_with_the_layers() -> None:
    def lines(layers: int) -> int:
        module = stack("a" * layers)
        run_passes(module, [KernelLooping()])
        return module.operation.get_asm().count("\n")

    assert lines(2) == lines(30)


def test_a_second_run_changes_nothing() -> None:
    module = stack("aabab")
    run_passes(module, [KernelLooping()])
    body = module.operation.get_asm().partition("\n")[2]
    run_passes(module, [KernelLooping()])
    assert module.operation.get_asm().partition("\n")[2] == body


@pytest.mark.parametrize(
    ("nbytes", "reason"),
    [(128, ""), (127, "carried values, double-buffered, need 128 bytes of SRAM, the machine has 127")],
)
def test_carried_values_that_do_not_fit_are_refused(nbytes: int, reason: str) -> None:
    """2 x 8 floats, twice, are 128 bytes."""
    module = stack("aa")
    set_target(module, with_chip(nbytes))
    run_passes(module, [KernelLooping()])
    assert get_looping(module) == (Looping("decode", "a", 2, reason),)
    assert callees(module) == (["a", "a"] if reason else ["a.x2"])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["m.layers.0.w", "m.layers.1.w"], "m.layers.0-1.w"),
        (["m.layers.1.w", "m.layers.3.w", "m.layers.5.w"], "m.layers.1-5:2.w"),
        (["m.layers.0.w", "m.layers.1.w", "m.layers.3.w"], "m.layers.0,1,3.w"),
        (["m.layers.1.w", "m.layers.0.w"], "m.layers.1,0.w"),
        (["m.layers.4.w", "m.layers.4.w"], "m.layers.4.w"),
        (["m.layers.1.w", "m.layers.1.w", "m.layers.2.w"], "m.layers.1,1,2.w"),
        (["m.first.w", "m.last.w"], "m.first,last.w"),
        (["m.0.first.w", "m.1.last.w"], "m.0-1.first,last.w"),
    ],
)
def test_names_of_stacks(names: list[str], expected: str) -> None:
    assert stack_name(names) == expected
