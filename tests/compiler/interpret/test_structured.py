"""linalg: maps, bodies, reductions of every kind, named operations."""

from __future__ import annotations

import pytest
import torch

from tests.compiler.interpret.functions import evaluate

A = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
B = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
V = torch.randn(3, generator=torch.Generator().manual_seed(2))


def generic(
    maps: list[str], kinds: str, operands: list[str], out: str, scalar_body: str, *, init: str = "", ins: str = "f32"
) -> str:
    """@f of the input tensors and the initial output: one linalg.generic. `kinds` has a letter p or r per loop."""
    names = [f"%a{i}" for i in range(len(operands))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip([*names, "%init"], [*operands, out], strict=True))
    listed = ", ".join(f'"{"reduction" if kind == "r" else "parallel"}"' for kind in kinds)
    inputs = f"ins({', '.join(names)} : {', '.join(operands)})" if operands else ""
    element = out[out.rindex("x") + 1 : -1] if "x" in out else out[7:-1]
    scalars = ", ".join([f"%in{i}: {ins}" for i in range(len(operands))] + [f"%acc: {element}"])
    return f"""func.func @f({arguments}) -> {out} {{
      {init}
      %r = linalg.generic {{indexing_maps = [{", ".join(f"affine_map<{m}>" for m in maps)}],
          iterator_types = [{listed}]}} {inputs} outs(%init : {out}) {{
        ^bb0({scalars}):
          {scalar_body}
      }} -> {out}
      return %r : {out}
    }}"""


def test_operands_are_permuted_and_broadcast_by_their_maps() -> None:
    maps = ["(i, j, k) -> (k, i)", "(i, j, k) -> (j)", "(i, j, k) -> (0, k)", "(i, j, k) -> (j, i, k)"]
    text = generic(
        maps,
        "ppp",
        ["tensor<4x2xf32>", "tensor<3xf32>", "tensor<1x4xf32>"],
        "tensor<3x2x4xf32>",
        """%p = arith.mulf %in0, %in1 : f32
          %s = arith.subf %p, %in2 : f32
          linalg.yield %s : f32""",
    )
    x, y, z = torch.randn(4, 2), torch.randn(3), torch.randn(1, 4)
    (result,) = evaluate(text, x, y, z, torch.zeros(3, 2, 4))
    expected = x.T[None, :, :] * y[:, None, None] - z[0]
    assert torch.equal(result, expected)


def test_the_output_is_an_operand_of_the_body() -> None:
    text = generic(
        ["(i) -> (i)", "(i) -> (i)"], "p", ["tensor<3xf32>"], "tensor<3xf32>",
        "%s = arith.addf %in0, %acc : f32\n linalg.yield %s : f32",
    )  # fmt: skip
    (result,) = evaluate(text, V, torch.ones(3))
    assert torch.equal(result, V + 1)


def test_an_affine_map_reads_a_sliding_window() -> None:
    text = generic(
        ["(i, k) -> (i * 2 + k)", "(i, k) -> (k)", "(i, k) -> (i)"],
        "pr",
        ["tensor<9xf32>", "tensor<3xf32>"],
        "tensor<4xf32>",
        """%p = arith.mulf %in0, %in1 : f32
          %s = arith.addf %acc, %p : f32
          linalg.yield %s : f32""",
    )
    x = torch.randn(9)
    (result,) = evaluate(text, x, V, torch.zeros(4))
    torch.testing.assert_close(result, torch.stack([x[2 * i : 2 * i + 3] @ V for i in range(4)]))


def test_floordiv_and_mod_in_a_map() -> None:
    text = generic(
        ["(i) -> (i floordiv 3, i mod 3)", "(i) -> (i)"], "p", ["tensor<2x3xf32>"], "tensor<6xf32>",
        "linalg.yield %in0 : f32",
    )  # fmt: skip
    (result,) = evaluate(text, A, torch.zeros(6))
    assert torch.equal(result, A.flatten())


@pytest.mark.parametrize(
    ("combine", "start", "expected"),
    [
        ("addf", 10.0, 10 + A.sum(1)),
        ("mulf", 2.0, 2 * A.prod(1)),
        ("maximumf", 0.5, A.amax(1).clamp(min=0.5)),
        ("minimumf", 0.5, A.amin(1).clamp(max=0.5)),
    ],
)
def test_reductions_start_from_what_the_output_holds(combine: str, start: float, expected: torch.Tensor) -> None:
    text = generic(
        ["(i, j) -> (i, j)", "(i, j) -> (i, 0)"], "pr", ["tensor<2x3xf32>"], "tensor<2x1xf32>",
        f"%s = arith.{combine} %in0, %acc : f32\n linalg.yield %s : f32",
    )  # fmt: skip
    (result,) = evaluate(text, A, torch.full((2, 1), start))
    torch.testing.assert_close(result[:, 0], expected)


def test_what_the_maps_do_not_use_still_counts_in_a_sum() -> None:
    text = generic(
        ["(i, j) -> (i)", "(i, j) -> (j)", "(i, j) -> (i)"],
        "pr",
        ["tensor<2xf32>", "tensor<5xi64>"],
        "tensor<2xf32>",
        "%s = arith.addf %acc, %in0 : f32\n linalg.yield %s : f32",
    ).replace("%in1: f32", "%in1: i64")
    (result,) = evaluate(text, torch.tensor([1.0, 2.0]), torch.zeros(5, dtype=torch.int64), torch.zeros(2))
    assert result.tolist() == [5.0, 10.0]


def test_a_reduction_in_order_runs_point_after_point() -> None:
    """acc = acc / 2 + x * j depends on the order, and on the index of the reduced loop."""
    text = generic(
        ["(i, j) -> (i, j)", "(i, j) -> (i)"],
        "pr",
        ["tensor<2x3xf32>"],
        "tensor<2xf32>",
        """%j = linalg.index 1 : index
          %ji = arith.index_cast %j : index to i64
          %jf = arith.sitofp %ji : i64 to f32
          %x = arith.mulf %in0, %jf : f32
          %h = arith.mulf %acc, %half : f32
          %s = arith.addf %h, %x : f32
          linalg.yield %s : f32""",
        init="%half = arith.constant 0.5 : f32",
    )
    (result,) = evaluate(text, A, torch.ones(2))
    expected = torch.ones(2)
    for j in range(3):
        expected = expected * 0.5 + A[:, j] * j
    assert torch.equal(result, expected)


def test_two_results_of_one_operation_the_largest_and_its_index() -> None:
    text = """func.func @f(%x: tensor<2x3xf32>, %m: tensor<2xf32>, %i: tensor<2xi64>)
        -> (tensor<2xf32>, tensor<2xi64>) {
      %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
          affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
          ins(%x : tensor<2x3xf32>) outs(%m, %i : tensor<2xf32>, tensor<2xi64>) {
        ^bb0(%in: f32, %best: f32, %at: i64):
          %j = linalg.index 1 : index
          %ji = arith.index_cast %j : index to i64
          %more = arith.cmpf ogt, %in, %best : f32
          %v = arith.select %more, %in, %best : f32
          %p = arith.select %more, %ji, %at : i64
          linalg.yield %v, %p : f32, i64
      } -> (tensor<2xf32>, tensor<2xi64>)
      return %r#0, %r#1 : tensor<2xf32>, tensor<2xi64>
    }"""
    values, indices = evaluate(text, A, torch.full((2,), -torch.inf), torch.zeros(2, dtype=torch.int64))
    assert torch.equal(values, A.max(1).values)
    assert torch.equal(indices, A.max(1).indices)


PRODUCT = ["(i, j, k) -> (i, k)", "(i, j, k) -> (k, j)", "(i, j, k) -> (i, j)"]


def test_a_sum_of_products_agrees_with_the_named_operation() -> None:
    text = generic(
        PRODUCT, "ppr", ["tensor<2x3xf32>", "tensor<3x4xf32>"], "tensor<2x4xf32>",
        "%p = arith.mulf %in1, %in0 : f32\n %s = arith.addf %p, %acc : f32\n linalg.yield %s : f32",
    )  # fmt: skip
    named = """func.func @f(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>, %c: tensor<2x4xf32>) -> tensor<2x4xf32> {
      %r = linalg.matmul ins(%a, %b : tensor<2x3xf32>, tensor<3x4xf32>) outs(%c : tensor<2x4xf32>) -> tensor<2x4xf32>
      return %r : tensor<2x4xf32>
    }"""
    start = torch.randn(2, 4)
    (one,), (other,) = evaluate(text, A, B, start), evaluate(named, A, B, start)
    torch.testing.assert_close(one, start + A @ B)
    assert torch.equal(one, other)


@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_products_of_bf16_are_summed_in_f32_and_rounded_once(out: str) -> None:
    a, b = torch.randn(2, 300).bfloat16(), torch.randn(300, 4).bfloat16()
    text = f"""func.func @f(%a: tensor<2x300xbf16>, %b: tensor<300x4xbf16>, %c: tensor<2x4x{out}>)
        -> tensor<2x4x{out}> {{
      %r = linalg.matmul ins(%a, %b : tensor<2x300xbf16>, tensor<300x4xbf16>)
          outs(%c : tensor<2x4x{out}>) -> tensor<2x4x{out}>
      return %r : tensor<2x4x{out}>
    }}"""
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[out]
    (result,) = evaluate(text, a, b, torch.zeros(2, 4, dtype=dtype))
    assert result.dtype is dtype
    torch.testing.assert_close(result, (a.float() @ b.float()).to(dtype))


def test_the_square_of_one_operand_is_summed() -> None:
    text = generic(
        ["(i, j) -> (i, j)", "(i, j) -> (i)"], "pr", ["tensor<2x3xf32>"], "tensor<2xf32>",
        "%p = arith.mulf %in0, %in0 : f32\n %s = arith.addf %p, %acc : f32\n linalg.yield %s : f32",
    )  # fmt: skip
    (result,) = evaluate(text, A, torch.zeros(2))
    torch.testing.assert_close(result, A.square().sum(1))


def test_a_gather_reads_elements_by_index() -> None:
    text = """func.func @f(%table: tensor<5x3xf32>, %ids: tensor<2xi64>, %init: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]} ins(%ids : tensor<2xi64>) outs(%init : tensor<2x3xf32>) {
        ^bb0(%in: i64, %out: f32):
          %row = arith.index_cast %in : i64 to index
          %column = linalg.index 1 : index
          %x = tensor.extract %table[%row, %column] : tensor<5x3xf32>
          linalg.yield %x : f32
      } -> tensor<2x3xf32>
      return %r : tensor<2x3xf32>
    }"""
    table = torch.randn(5, 3)
    (result,) = evaluate(text, table, torch.tensor([4, 1]), torch.zeros(2, 3))
    assert torch.equal(result, table[[4, 1]])


def test_fill_transpose_and_broadcast() -> None:
    text = """func.func @f(%x: tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<3x2xf32>, tensor<2x4x3xf32>) {
      %c = arith.constant 2.5 : f32
      %e0 = tensor.empty() : tensor<2x2xf32>
      %e1 = tensor.empty() : tensor<3x2xf32>
      %e2 = tensor.empty() : tensor<2x4x3xf32>
      %f = linalg.fill ins(%c : f32) outs(%e0 : tensor<2x2xf32>) -> tensor<2x2xf32>
      %t = linalg.transpose ins(%x : tensor<2x3xf32>) outs(%e1 : tensor<3x2xf32>) permutation = [1, 0]
      %b = linalg.broadcast ins(%x : tensor<2x3xf32>) outs(%e2 : tensor<2x4x3xf32>) dimensions = [1]
      return %f, %t, %b : tensor<2x2xf32>, tensor<3x2xf32>, tensor<2x4x3xf32>
    }"""
    filled, transposed, broadcast = evaluate(text, A)
    assert torch.equal(filled, torch.full((2, 2), 2.5))
    assert torch.equal(transposed, A.T)
    assert torch.equal(broadcast, A[:, None].expand(2, 4, 3))


@pytest.mark.parametrize(
    ("operation", "shapes", "formula"),
    [
        ("matvec", ("2x3", "3", "2"), "ik,k->i"),
        ("vecmat", ("3", "3x4", "4"), "k,kj->j"),
        ("dot", ("3", "3", ""), "k,k->"),
        ("batch_matmul", ("2x2x3", "2x3x4", "2x2x4"), "bik,bkj->bij"),
    ],
)
def test_named_contractions(operation: str, shapes: tuple[str, str, str], formula: str) -> None:
    types = [f"tensor<{shape}xf32>" if shape else "tensor<f32>" for shape in shapes]
    text = f"""func.func @f(%a: {types[0]}, %b: {types[1]}, %c: {types[2]}) -> {types[2]} {{
      %r = linalg.{operation} ins(%a, %b : {types[0]}, {types[1]}) outs(%c : {types[2]}) -> {types[2]}
      return %r : {types[2]}
    }}"""
    a, b, c = (torch.randn([int(size) for size in shape.split("x") if size]) for shape in shapes)
    (result,) = evaluate(text, a, b, c)
    torch.testing.assert_close(result, c + torch.einsum(formula, a, b))


@pytest.mark.parametrize(("operation", "function"), [("add", torch.add), ("sub", torch.sub), ("max", torch.maximum)])
def test_named_pairs(operation: str, function: object) -> None:
    text = f"""func.func @f(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>, %c: tensor<2x3xf32>) -> tensor<2x3xf32> {{
      %r = linalg.{operation} ins(%a, %b : tensor<2x3xf32>, tensor<2x3xf32>)
          outs(%c : tensor<2x3xf32>) -> tensor<2x3xf32>
      return %r : tensor<2x3xf32>
    }}"""
    other = torch.randn(2, 3)
    (result,) = evaluate(text, A, other, torch.zeros(2, 3))
    assert callable(function)
    assert torch.equal(result, function(A, other))
