"""tensor: slices at static and dynamic offsets, reshapes, elements, and what lies outside."""

from __future__ import annotations

import pytest
import torch

from sscc.compiler.interpret.tensors import TensorNotEvaluatedErrors, TensorUndefinedErrors
from tests.compiler.interpret.functions import evaluate
from tests.errors import raises

X = torch.arange(24.0).reshape(2, 3, 4)

EXTRACT = """func.func @f(%x: tensor<2x3x4xf32>, %i: index) -> tensor<2x2xf32> {
  %r = tensor.extract_slice %x[1, %i, 0] [1, 2, 2] [1, 1, 2] : tensor<2x3x4xf32> to tensor<2x2xf32>
  return %r : tensor<2x2xf32>
}"""
INSERT = """func.func @f(%s: tensor<2x4xf32>, %x: tensor<2x3x4xf32>, %i: index) -> tensor<2x3x4xf32> {
  %r = tensor.insert_slice %s into %x[%i, 1, 0] [1, 2, 4] [1, 1, 1] : tensor<2x4xf32> into tensor<2x3x4xf32>
  return %r : tensor<2x3x4xf32>
}"""
ELEMENT = """func.func @f(%x: tensor<2x3x4xf32>, %i: index, %j: index) -> f32 {
  %r = tensor.extract %x[%i, %j, %j] : tensor<2x3x4xf32>
  return %r : f32
}"""


@pytest.mark.parametrize("start", [0, 1])
def test_a_slice_at_a_dynamic_offset_with_a_stride_and_a_dropped_dimension(start: int) -> None:
    (result,) = evaluate(EXTRACT, X, start)
    assert torch.equal(result, X[1, start : start + 2, 0:4:2])


@pytest.mark.parametrize("start", [-1, 2])
def test_a_slice_outside_of_its_tensor_is_refused(start: int) -> None:
    fields = {"size": 2, "start": start, "stride": 1, "axis": 1, "shape": [2, 3, 4]}
    with raises(TensorUndefinedErrors.SLICE_OUT_OF_BOUNDS, op="tensor.extract_slice", **fields):
        evaluate(EXTRACT, X, start)


def test_an_insertion_makes_a_new_tensor() -> None:
    rows, before = -torch.ones(2, 4), X.clone()
    (result,) = evaluate(INSERT, rows, X, 1)
    expected = X.clone()
    expected[1, 1:3] = rows
    assert torch.equal(result, expected)
    assert torch.equal(X, before)


def test_an_insertion_outside_of_its_tensor_is_refused() -> None:
    with raises(TensorUndefinedErrors.SLICE_OUT_OF_BOUNDS, op="tensor.insert_slice", size=1, start=2, stride=1):
        evaluate(INSERT, torch.ones(2, 4), X, 2)


def test_an_element() -> None:
    (element,) = evaluate(ELEMENT, X, 1, 2)
    assert element.item() == X[1, 2, 2]


@pytest.mark.parametrize(("i", "axis", "size"), [(-1, 0, 2), (2, 0, 2)])
def test_an_element_outside_of_its_tensor_is_refused(i: int, axis: int, size: int) -> None:
    with raises(TensorUndefinedErrors.ELEMENT_OUT_OF_BOUNDS, axis=axis, size=size, index=i):
        evaluate(ELEMENT, X, i, 0)


def test_reshapes_concatenation_and_new_elements() -> None:
    text = """func.func @f(%x: tensor<2x3x4xf32>, %v: f32) -> (tensor<6x4xf32>, tensor<2x3x2x2xf32>, tensor<2x3x8xf32>,
        tensor<3xf32>, tensor<2xf32>) {
      %c = tensor.collapse_shape %x [[0, 1], [2]] : tensor<2x3x4xf32> into tensor<6x4xf32>
      %e = tensor.expand_shape %x [[0], [1], [2, 3]] output_shape [2, 3, 2, 2]
          : tensor<2x3x4xf32> into tensor<2x3x2x2xf32>
      %j = tensor.concat dim(2) %x, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x8xf32>
      %n = tensor.from_elements %v, %v, %v : tensor<3xf32>
      %s = tensor.splat %v : tensor<2xf32>
      %one = arith.constant 1 : index
      %w = arith.constant 9.0 : f32
      %m = tensor.insert %w into %n[%one] : tensor<3xf32>
      return %c, %e, %j, %m, %s : tensor<6x4xf32>, tensor<2x3x2x2xf32>, tensor<2x3x8xf32>, tensor<3xf32>, tensor<2xf32>
    }"""
    collapsed, expanded, joined, elements, splat = evaluate(text, X, 7.0)
    assert torch.equal(collapsed, X.reshape(6, 4))
    assert torch.equal(expanded, X.reshape(2, 3, 2, 2))
    assert torch.equal(joined, torch.cat([X, X], 2))
    assert elements.tolist() == [7.0, 9.0, 7.0]
    assert splat.tolist() == [7.0, 7.0]


def test_what_nobody_wrote_is_not_a_number() -> None:
    text = """func.func @f() -> (tensor<2xf32>, tensor<2xi64>) {
      %a = tensor.empty() : tensor<2xf32>
      %b = tensor.empty() : tensor<2xi64>
      return %a, %b : tensor<2xf32>, tensor<2xi64>
    }"""
    floats, integers = evaluate(text)
    assert floats.isnan().all()
    assert integers.tolist() == [torch.iinfo(torch.int64).min] * 2


def test_sizes_that_are_not_static_are_refused() -> None:
    text = """func.func @f(%x: tensor<4xf32>, %n: index) -> tensor<4xf32> {
      %s = tensor.extract_slice %x[0] [%n] [1] : tensor<4xf32> to tensor<?xf32>
      %r = tensor.cast %s : tensor<?xf32> to tensor<4xf32>
      return %r : tensor<4xf32>
    }"""
    with raises(TensorNotEvaluatedErrors.DYNAMIC, op="tensor.extract_slice"):
        evaluate(text, torch.zeros(4), 4)
