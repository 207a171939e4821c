"""A rank's part of a weight: quantizing a part of the source gives the same as taking a part of the quantized
source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sscc.ir.schedule import Dtype, Program, Tensor
from sscc.ir.weight_formats.registry import Encoding
from sscc.runtime.artifact.tensor_files import (
    Array,
    KeepingReader,
    Layout,
    TensorErrors,
    TensorSpec,
    layout_of,
    reading,
    stack_tensors,
    taken,
)
from tests.errors import raises

RANKS = 4
ROWS, COLUMNS = 24, 256
SOURCES = {name: np.random.default_rng(i).standard_normal((ROWS, COLUMNS), np.float32) for i, name in enumerate("ab")}


def layouts(tensor: Tensor) -> tuple[Layout, list[Layout]]:
    """Of the whole, and of each rank."""
    program = Program((tensor,), (), (), (), 0, grid=(RANKS,))
    return layout_of(program, "weight"), [layout_of(program, "weight", rank) for rank in range(RANKS)]


def weight(
    shape: tuple[int, ...], cut: str, sources: tuple[str, ...], encoding: str = "", dtype: Dtype = "f32"
) -> Tensor:
    return Tensor("w", shape, dtype, "weight", "hbm", 0, sources, encoding, cut)


def test_a_rank_has_spans_of_an_axis() -> None:
    """Segments of joined matrices: one divided over all ranks, one over half of them, one whole."""
    whole, parts = layouts(weight((9, COLUMNS), "0:12/4,8/2,2/1", ("a",)))
    source = SOURCES["a"][:22]
    read = reading({"a": source}, "here")
    assert whole["w"].spec == TensorSpec((22, COLUMNS), "f32")
    rows = [[*range(3 * r, 3 * r + 3), *range(12 + 4 * (r // 2), 16 + 4 * (r // 2)), 20, 21] for r in range(RANKS)]
    for rank, part in enumerate(parts):
        assert part["w"].whole == whole["w"]
        for tensors in (stack_tensors(part, read), taken(part, stack_tensors(whole, read))):
            assert np.array_equal(tensors["w"], source[rows[rank]])


ENCODINGS = ["int8:32/values", "int8:32/scales", "int4:32:zero-point/values", "int4:32:zero-point/zeros",
             "int4:32:minimum/minimums", "int4:64/values/transposed", "int4:64/scales/transposed"]  # fmt: skip


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_of_a_quantized_weight_codes_and_scales_are_cut_alike(encoding: str, axis: int) -> None:
    parsed = Encoding.parse(encoding)
    sources = {name: source.T.copy() if parsed.transposed else source for name, source in SOURCES.items()}
    shape = (2, *parsed.format.stored(parsed.part, ROWS, COLUMNS))
    local = tuple(size // RANKS if d == axis else size for d, size in enumerate(shape))
    cut = f"{axis}:{shape[axis]}/{RANKS}"
    whole, parts = layouts(weight(local, cut, ("a", "b"), encoding, "i8"))
    read = reading(sources, "here")
    everything = stack_tensors(whole, read)["w"]
    assert everything.shape == shape
    asked: list[TensorSpec] = []
    codes = {name: stack_tensors({"w": replace(whole["w"], spec=whole["w"].part, sources=(name,))}, read)["w"]
             for name in sources}  # fmt: skip

    def refuse(source: str, spec: TensorSpec) -> Array:
        asked.append(spec)
        raise AssertionError

    for rank, part in enumerate(parts):
        begin = rank * local[axis]
        expected = np.take(everything, range(begin, begin + local[axis]), axis)
        assert np.array_equal(stack_tensors(part, read)["w"], expected), "made of the part of the source"
        kept = KeepingReader(refuse, lambda source, _: codes[source])
        assert np.array_equal(stack_tensors(part, kept)["w"], expected), "codes that a checkpoint has"
    assert not asked


def test_a_source_of_another_shape_is_refused() -> None:
    _, parts = layouts(weight((6, COLUMNS), "0:24/4", ("a",)))
    with raises(TensorErrors.OTHER_TENSOR, tensor="a", dtype="float32", shape=[20, 256], expected="f32 [24, 256]"):
        stack_tensors(parts[1], reading({"a": SOURCES["a"][:20]}, "here"))


def test_a_stack_is_not_cut_between_its_sources() -> None:
    with raises(TensorErrors.CUT_BETWEEN_SOURCES, role="weight", tensor="w", cut="0:8/4"):
        layouts(weight((2, ROWS, COLUMNS), "0:8/4", ("a", "b")))
