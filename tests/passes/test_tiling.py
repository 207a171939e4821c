"""Propagation of a cut from a result back through operations, and operations that stop it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sscc.ir.context import mlir, parse_module
from sscc.passes.tiling import WHOLE, NotTileable, Tiling, is_contraction, is_reduction, tile_back

ARGUMENTS = "%a: tensor<4x6xf32>, %b: tensor<6x8xf32>, %c: tensor<4x8xf32>, %d: tensor<8xf32>, %e: tensor<2x4x6xf32>"
GEOMETRY = (
    "{sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, "
    'pool_mode = "avg", max_context = 8 : i64}'
)
PRODUCT = """
  %p = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
      affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<4x6xf32>, tensor<6x8xf32>) outs(%c : tensor<4x8xf32>) {
    ^bb0(%x: f32, %y: f32, %z: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %z, %m : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
"""
BIAS = """
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%p, %d : tensor<4x8xf32>, tensor<8xf32>) outs(%c : tensor<4x8xf32>) {
    ^bb0(%u: f32, %v: f32, %o: f32):
    %m = arith.addf %u, %v : f32
    linalg.yield %m : f32
  } -> tensor<4x8xf32>
"""


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


class TilingExample:
    """A function's operations, and its arguments by name; they live as long as this does."""

    def __init__(self, body: str, arguments: str = ARGUMENTS) -> None:
        text = f"func.func @f({arguments}) {{\n{body}\n  return\n}}"
        self.module = parse_module(f"module attributes {{kv.geometry = {GEOMETRY}}} {{\n{text}\n}}", "the test")
        function = self.module.body.operations[0]
        self.ops = [op.operation for op in function.entry_block.operations][:-1]
        names = [part.partition(":")[0].strip(" %") for part in arguments.split(", %")]
        self.arguments = dict(zip(names, function.arguments, strict=True))

    def axes(self, axis: int, *arguments: str) -> list[int | None]:
        """Along which axis each argument is cut when the first result of the last operation is cut along `axis`."""
        tiling = tile_back(self.ops, [(self.ops[-1].results[0], axis)])
        return [tiling.axes.get(self.arguments[name]) for name in arguments]


def test_a_product() -> None:
    example = TilingExample(PRODUCT)
    assert example.axes(0, "a", "b", "c") == [0, WHOLE, 0]
    assert example.axes(1, "a", "b", "c") == [WHOLE, 1, 1]


def test_a_product_and_its_bias() -> None:
    example = TilingExample(PRODUCT + BIAS)
    assert example.axes(1, "a", "b", "d") == [WHOLE, 1, 0]
    assert example.axes(0, "a", "b", "d") == [0, WHOLE, WHOLE]


def test_the_lengths_of_all_cut_axes() -> None:
    example = TilingExample(PRODUCT + BIAS)
    tiling = tile_back(example.ops, [(example.ops[-1].results[0], 0)])
    assert set(tiling.lengths()) == {4}


@pytest.mark.parametrize(
    ("body", "axis", "argument", "expected"),
    [
        pytest.param(
            "%t0 = tensor.empty() : tensor<6x4xf32>\n"
            "%t = linalg.transpose ins(%a : tensor<4x6xf32>) outs(%t0 : tensor<6x4xf32>) permutation = [1, 0]",
            0, "a", 1, id="transposition",
        ),
        pytest.param(
            "%x = tensor.collapse_shape %e [[0], [1, 2]] : tensor<2x4x6xf32> into tensor<2x24xf32>",
            1, "e", 1, id="the outer of two joined axes",
        ),
        pytest.param(
            "%x = tensor.expand_shape %b [[0], [1, 2]] output_shape [6, 2, 4] : tensor<6x8xf32> into tensor<6x2x4xf32>",
            1, "b", 1, id="the outer of two parts",
        ),
        pytest.param(
            "%x = tensor.expand_shape %b [[0], [1, 2]] output_shape [6, 1, 8] : tensor<6x8xf32> into tensor<6x1x8xf32>",
            2, "b", 1, id="behind a unit axis",
        ),
        pytest.param(
            "%x = tensor.extract_slice %e[1, 0, 0] [1, 4, 6] [1, 1, 1] : tensor<2x4x6xf32> to tensor<4x6xf32>",
            1, "e", 2, id="a slice along another axis",
        ),
        pytest.param(
            "%x = tensor.extract_slice %a[0, 2] [4, 3] [1, 1] : tensor<4x6xf32> to tensor<4x3xf32>",
            0, "a", 0, id="a slice that takes all of it",
        ),
        pytest.param(
            "%x = tensor.concat dim(1) %a, %a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x12xf32>",
            0, "a", 0, id="side by side along another axis",
        ),
    ],
)  # fmt: skip
def test_views(body: str, axis: int, argument: str, expected: int) -> None:
    assert TilingExample(body).axes(axis, argument) == [expected]


REDUCTION = """
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%p : tensor<4x8xf32>) outs(%sum : tensor<4xf32>) {
    ^bb0(%x: f32, %o: f32):
    %m = arith.addf %o, %x : f32
    linalg.yield %m : f32
  } -> tensor<4xf32>
"""
NORM = """
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%p, %r : tensor<4x8xf32>, tensor<4xf32>) outs(%c : tensor<4x8xf32>) {
    ^bb0(%u: f32, %v: f32, %o: f32):
    %m = arith.divf %u, %v : f32
    linalg.yield %m : f32
  } -> tensor<4x8xf32>
"""
SUM = ARGUMENTS + ", %sum: tensor<4xf32>"


def test_a_norm_of_a_product_has_tiles_of_rows_only() -> None:
    example = TilingExample(PRODUCT + REDUCTION + NORM, SUM)
    assert example.axes(0, "a", "b") == [0, WHOLE]
    with pytest.raises(NotTileable, match=r"'linalg.generic' would be repeated for every tile|in two ways"):
        example.axes(1, "a")


@pytest.mark.parametrize(
    ("body", "axis", "message"),
    [
        pytest.param(
            "%x = tensor.collapse_shape %e [[0], [1, 2]] : tensor<2x4x6xf32> into tensor<2x24xf32>\n"
            "%y = tensor.expand_shape %x [[0], [1, 2]] output_shape [2, 4, 6] "
            ": tensor<2x24xf32> into tensor<2x4x6xf32>",
            2, "the cut axis is an inner one of a collapsed axis", id="the inner of two joined axes",
        ),
        pytest.param(
            "%x = tensor.extract_slice %a[0, 2] [4, 3] [1, 1] : tensor<4x6xf32> to tensor<4x3xf32>",
            1, "the cut axis is sliced", id="a slice of the axis",
        ),
        pytest.param(
            "%x = tensor.concat dim(1) %a, %a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x12xf32>",
            1, "'tensor.concat' has no tiles", id="side by side along the axis",
        ),
        pytest.param(
            "%x = tensor.insert_slice %a into %e[0, 0, 0] [1, 4, 6] [1, 1, 1] : tensor<4x6xf32> into tensor<2x4x6xf32>",
            0, "'tensor.insert_slice' has no tiles", id="an insertion",
        ),
        pytest.param(
            "%x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = "
            '["parallel", "parallel"]} outs(%a : tensor<4x6xf32>) {\n^bb0(%o: f32):\n%i = linalg.index 1 : index\n'
            "%k = arith.index_cast %i : index to i32\n%f = arith.sitofp %k : i32 to f32\nlinalg.yield %f : f32\n} "
            "-> tensor<4x6xf32>",
            1, "the body reads the index along the cut axis", id="the index along the axis",
        ),
        pytest.param(
            "%x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i + j)>, affine_map<(i, j) -> (i, j)>], "
            'iterator_types = ["parallel", "parallel"]} ins(%d : tensor<8xf32>) outs(%w : tensor<2x7xf32>) {\n'
            "^bb0(%u: f32, %o: f32):\nlinalg.yield %u : f32\n} -> tensor<2x7xf32>",
            0, "the cut axis is read at an offset", id="a window",
        ),
        pytest.param(
            "%x = linalg.generic {indexing_maps = [affine_map<(i) -> (i, i)>, affine_map<(i) -> (i)>], "
            'iterator_types = ["parallel"]} ins(%q : tensor<4x4xf32>) outs(%sum : tensor<4xf32>) {\n'
            "^bb0(%u: f32, %o: f32):\nlinalg.yield %u : f32\n} -> tensor<4xf32>",
            0, "the cut axis is read along a diagonal", id="a diagonal",
        ),
    ],
)  # fmt: skip
def test_what_has_no_tiles(body: str, axis: int, message: str) -> None:
    example = TilingExample(body, f"{SUM}, %w: tensor<2x7xf32>, %q: tensor<4x4xf32>")
    with pytest.raises(NotTileable, match=f"^{message}$"):
        example.axes(axis, "a")


def test_the_index_along_another_axis_does_not_matter() -> None:
    body = (
        "%x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = "
        '["parallel", "parallel"]} outs(%a : tensor<4x6xf32>) {\n^bb0(%o: f32):\n%i = linalg.index 1 : index\n'
        "%k = arith.index_cast %i : index to i32\n%f = arith.sitofp %k : i32 to f32\nlinalg.yield %f : f32\n} "
        "-> tensor<4x6xf32>"
    )
    assert TilingExample(body).axes(0, "a") == [0]


def test_a_value_cannot_be_needed_in_two_ways() -> None:
    example, tiling = TilingExample(""), Tiling()
    value = example.arguments["a"]
    tiling.require(value, 0)
    tiling.require(value, 0)
    for axis in (1, WHOLE):
        with pytest.raises(NotTileable, match="is needed along two axes"):
            tiling.require(value, axis)


ATTENTION = """
  %r:3 = "kv.decode_attention"(%q, %kn, %vn, %k, %v, %k, %v, %p, %t, %m, %c) {scale = 0.5 : f64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>} : (tensor<2x4x1x8xf32>,
    tensor<2x2x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>,
    tensor<2x2x4x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
    -> (tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>)
"""
CACHES = (
    "%q: tensor<2x4x1x8xf32>, %k: tensor<2x2x4x8xf32>, %v: tensor<2x2x4x8xf32>, %kn: tensor<2x2x1x8xf32>, "
    "%vn: tensor<2x2x1x8xf32>, %p: tensor<2xi64>, %t: tensor<2xi64>, %m: tensor<2xi1>, %c: index"
)


@pytest.mark.parametrize(
    ("axis", "expected"),
    [(0, [0] * 8), (1, [1, 1, 1, 1, 1, WHOLE, WHOLE, WHOLE])],
    ids=["slots", "KV heads"],
)
def test_attention(axis: int, expected: list[int]) -> None:
    example = TilingExample(ATTENTION, CACHES)
    tiling = tile_back(example.ops, [(result, axis) for result in example.ops[0].results])
    *tensors, number = example.arguments.values()
    assert [tiling.axes[value] for value in tensors] == expected
    assert number not in tiling.axes


@pytest.mark.parametrize(("axis", "expected"), [(0, WHOLE), (1, 0)], ids=["slots", "KV heads"])
def test_learned_sinks_are_cut_with_the_heads(axis: int, expected: int) -> None:
    text = ATTENTION.replace("%c)", "%c, %s)").replace("1, 0, 0, 0, 0>", "1, 1, 0, 0, 0>")
    text = text.replace("index)", "index, tensor<4xf32>)")
    example = TilingExample(text, CACHES + ", %s: tensor<4xf32>")
    tiling = tile_back(example.ops, [(result, axis) for result in example.ops[0].results])
    assert tiling.axes[example.arguments["s"]] == expected


def test_attention_has_no_tiles_of_rows() -> None:
    example = TilingExample(ATTENTION, CACHES)
    for axis in (2, 3):
        with pytest.raises(NotTileable, match="attention has tiles of slots or of KV heads"):
            tile_back(example.ops, [(result, axis) for result in example.ops[0].results])


def test_kinds_of_operations() -> None:
    example = TilingExample(PRODUCT + REDUCTION + NORM, SUM)
    assert [is_contraction(op) for op in example.ops] == [True, False, False]
    assert [is_reduction(op) for op in example.ops] == [True, True, False]
