"""func, scf and df: calls, loops, branches, stages."""

from __future__ import annotations

import pytest
import torch

from sscc.compiler.interpret.control import ControlUndefinedErrors
from tests.compiler.interpret.functions import evaluate
from tests.errors import raises

LOOP = """func.func private @square(%x: index) -> index {
  %r = arith.muli %x, %x : index
  return %r : index
}
func.func @f(%lower: index, %upper: index, %step: index) -> (index, index) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %r:2 = scf.for %i = %lower to %upper step %step iter_args(%sum = %zero, %count = %zero) -> (index, index) {
    %s = func.call @square(%i) : (index) -> index
    %next = arith.addi %sum, %s : index
    %more = arith.addi %count, %one : index
    scf.yield %next, %more : index, index
  }
  return %r#0, %r#1 : index, index
}"""


@pytest.mark.parametrize(("lower", "upper", "step"), [(0, 5, 1), (2, 9, 3), (4, 4, 1), (5, 2, 1)])
def test_a_loop_carries_values_and_calls(lower: int, upper: int, step: int) -> None:
    total, count = evaluate(LOOP, lower, upper, step)
    assert total.item() == sum(i * i for i in range(lower, upper, step))
    assert count.item() == len(range(lower, upper, step))


def test_a_loop_without_progress_is_refused() -> None:
    with raises(ControlUndefinedErrors.BAD_STEP, op="scf.for", step=0):
        evaluate(LOOP, 0, 3, 0)


def test_a_carried_value_may_be_swapped_with_another() -> None:
    text = """func.func @f(%n: index, %a: f32, %b: f32) -> (f32, f32) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %r:2 = scf.for %i = %zero to %n step %one iter_args(%x = %a, %y = %b) -> (f32, f32) {
        scf.yield %y, %x : f32, f32
      }
      return %r#0, %r#1 : f32, f32
    }"""
    assert [value.item() for value in evaluate(text, 3, 1.0, 2.0)] == [2.0, 1.0]


BRANCH = """func.func @f(%c: i1, %a: f32, %b: f32) -> (f32, f32) {
  %r = scf.if %c -> f32 {
    %s = arith.addf %a, %b : f32
    scf.yield %s : f32
  } else {
    scf.yield %a : f32
  }
  return %r, %b : f32, f32
}"""


@pytest.mark.parametrize(("condition", "expected"), [(True, 3.0), (False, 1.0)])
def test_a_branch(*, condition: bool, expected: float) -> None:
    result, after = evaluate(BRANCH, condition, 1.0, 2.0)
    assert (result.item(), after.item()) == (expected, 2.0)


def test_a_branch_per_point_of_a_linalg_body_is_refused() -> None:
    text = """func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {
      %zero = arith.constant 0.0 : f32
      %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
          outs(%x : tensor<3xf32>) {
        ^bb0(%in: f32):
          %c = arith.cmpf ogt, %in, %zero : f32
          %y = scf.if %c -> f32 {
            scf.yield %in : f32
          } else {
            scf.yield %zero : f32
          }
          linalg.yield %y : f32
      } -> tensor<3xf32>
      return %r : tensor<3xf32>
    }"""
    with raises(ControlUndefinedErrors.CONDITION_VARIES, op="scf.if"):
        evaluate(text, torch.tensor([1.0, -1.0, 2.0]))


def test_stages_are_calls_and_loops_over_tiles() -> None:
    text = """func.func private @scale(%x: tensor<2xf32>, %by: tensor<f32>) -> tensor<2xf32> attributes {df.body} {
      %v = tensor.extract %by[] : tensor<f32>
      %s = tensor.splat %v : tensor<2xf32>
      %y = arith.mulf %x, %s : tensor<2xf32>
      return %y : tensor<2xf32>
    }
    func.func @f(%x: tensor<6xf32>, %by: tensor<f32>) -> tensor<6xf32> {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %two = arith.constant 2 : index
      %three = arith.constant 3 : index
      %whole = "df.load"(%by) {df.stage = "by"} : (tensor<f32>) -> tensor<f32>
      %empty = tensor.empty() : tensor<6xf32>
      %r = scf.for %t = %zero to %three step %one iter_args(%into = %empty) -> (tensor<6xf32>) {
        %o = arith.muli %t, %two : index
        %cut = tensor.extract_slice %x[%o] [2] [1] : tensor<6xf32> to tensor<2xf32>
        %tile = "df.load"(%cut) {df.stage = "x"} : (tensor<2xf32>) -> tensor<2xf32>
        %y = func.call @scale(%tile, %whole) {df.stage = "scale"} : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
        %next = tensor.insert_slice %y into %into[%o] [2] [1] : tensor<2xf32> into tensor<6xf32>
        scf.yield %next : tensor<6xf32>
      } {df.tiles}
      return %r : tensor<6xf32>
    }"""
    (result,) = evaluate(text, torch.arange(6.0), 2.0)
    assert result.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
