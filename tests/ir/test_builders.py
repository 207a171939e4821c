"""Functions with named arguments, and the small builders that passes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir
from torch_mlir.dialects import func, tensor

from sscc.ir.builders import (
    Argument,
    FunctionErrors,
    _unit_groups,
    arguments_of,
    extract_slice,
    insert_slice,
    make_function,
    positions_tensor,
    reshape,
    results_of,
    tensor_type,
)
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from tests.compiler.backend.programs import emit, run
from tests.errors import raises

SETTINGS = settings(max_examples=60)


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


@SETTINGS
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_groups_of_unit_dimensions(longer: list[int], data: st.DataObject) -> None:
    """Every dimension of the shorter shape is the product of its group; the groups cover the longer one in order."""
    shorter = [size for size in longer if size != 1 or data.draw(st.booleans())] or [1]
    groups = _unit_groups(longer, shorter)
    assert [axis for group in groups for axis in group] == list(range(len(longer)))
    for size, group in zip(shorter, groups, strict=True):
        product = 1
        for axis in group:
            product *= longer[axis]
        assert product == size


@SETTINGS
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_reshapes_are_valid_operations(shape: list[int], data: st.DataObject) -> None:
    other = list(shape)
    if data.draw(st.booleans()):
        other.insert(data.draw(st.integers(0, len(other))), 1)
    elif len(other) > 1 and 1 in other:
        other.remove(1)
    module = ir.Module.create()
    with mlir(), ir.InsertionPoint(module.body):
        source = tensor.EmptyOp(shape, ir.F32Type.get()).result
        assert list(reshape(source, other).type.shape) == other
    assert module.operation.verify()


@pytest.mark.parametrize(
    ("longer", "shorter", "groups"),
    [
        ([2, 1], [2], [[0, 1]]),
        ([1, 9], [9], [[0, 1]]),
        ([2, 1, 9], [2, 9], [[0, 1], [2]]),
        ([2, 1, 1, 3], [2, 1, 3], [[0], [1, 2], [3]]),
        ([1, 1, 9], [1, 9], [[0, 1], [2]]),
        ([1, 1], [1], [[0, 1]]),
    ],
)
def test_groups(longer: list[int], shorter: list[int], groups: list[list[int]]) -> None:
    assert _unit_groups(longer, shorter) == groups


@pytest.mark.parametrize(("longer", "shorter"), [([2, 3], [6]), ([2, 3], [2]), ([1, 2], [3]), ([2, 2], [2, 1])])
def test_other_reshapes_are_refused(longer: list[int], shorter: list[int]) -> None:
    with raises(FunctionErrors.UNIT_DIMENSIONS):
        _unit_groups(longer, shorter)


def test_arguments_and_results_keep_their_names() -> None:
    module = ir.Module.create()
    f32 = ir.F32Type.get()
    arguments = [Argument("weight", "layers.0.w", tensor_type([2], f32)), Argument("input", "n", ir.IndexType.get())]
    results = [Argument("state", "k_cache", tensor_type([2], f32))]
    attributes = {"sscc.kernel": ir.UnitAttr.get()}
    function = make_function(module, "f", arguments, results, ir.Location.name("layers.0"), attributes)
    with ir.InsertionPoint(function.entry_block):
        func.ReturnOp([function.arguments[0]])
    again = parse_module(str(module), "printed")
    for each in (function, again.body.operations[0]):
        assert arguments_of(each) == arguments
        assert results_of(each) == results
        assert "sscc.kernel" in each.attributes
        assert each.visibility.value == "private"


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("func.func private @f(f32)", FunctionErrors.ARGUMENT_ROLE, {"index": 0, "function": "f"}),
        (
            'func.func private @f(f32 {sscc.input = "a"}, f32)', FunctionErrors.ARGUMENT_ROLE,
            {"index": 1, "function": "f"},
        ),
        ('func.func private @f(f32 {sscc.inputs = "a"})', FunctionErrors.ARGUMENT_ROLE, {"index": 0, "function": "f"}),
    ],
)
def test_arguments_without_a_role_are_refused(text: str, kind: ErrorKind, fields: dict[str, Any]) -> None:
    module = parse_module(text, "x")
    with raises(kind, **fields):
        arguments_of(module.body.operations[0])


def test_results_without_a_role_are_refused() -> None:
    module = parse_module("func.func private @f() -> f32", "x")
    with raises(FunctionErrors.RESULT_ROLE, index=0, function="f"):
        results_of(module.body.operations[0])


def test_slices() -> None:
    module = parse_module("func.func @f(%t: tensor<3x2x4xf32>, %i: index) {\n  return\n}", "x")
    block = module.body.operations[0].entry_block
    t, i = block.arguments
    with ir.InsertionPoint(block.operations[0]):
        part = extract_slice(t, [i, 0, 1], [1, 2, 2], drop=1)
        assert list(part.type.shape) == [2, 2]
        whole = insert_slice(part, t, [i, 0, 1])
    assert whole.type == t.type
    assert module.operation.verify()
    assert "tensor.extract_slice %arg0[%arg1, 0, 1] [1, 2, 2] [1, 1, 1]" in str(module)
    assert "into %arg0[%arg1, 0, 1] [1, 2, 2] [1, 1, 1]" in str(module)


@pytest.mark.parametrize(("start", "limit"), [(0, 9), (3, 9), (3, 4), (7, 2)])
def test_positions_stop_at_the_limit(start: int, limit: int) -> None:
    """min(start + i, limit) along the last dimension, executed."""
    text = (
        'func.func public @main(%start: index {sscc.input = "start"}, %limit: index {sscc.input = "limit"})'
        ' -> (tensor<2x4xi64> {sscc.output = "out"}) {\n  %e = tensor.empty() : tensor<2x4xi64>\n'
        "  return %e : tensor<2x4xi64>\n}"
    )
    module = parse_module(text, "x")
    function = module.body.operations[0]
    last = function.entry_block.operations[1]
    with ir.InsertionPoint(last):
        last.operation.operands[0] = positions_tensor([2, 4], *function.arguments)
    positions = run(emit(str(function)), {"start": start, "limit": limit})
    assert positions.tolist() == [[min(start + i, limit) for i in range(4)]] * 2
