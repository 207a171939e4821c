"""Weights in panels: what lies where, and back."""

import numpy as np
import pytest

from sscc.runtime.backends.cpu.products.packing import Panels, WeightPanelErrors
from tests.errors import raises

DTYPES = {"f32": np.float32, "bf16": np.uint16}


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """1, 2, 3, .. so that no two elements are the same and none is a zero of the padding."""
    return np.arange(1, np.prod(shape) + 1).reshape(shape).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("n", "k"), [(16, 4), (1, 1), (37, 13), (48, 7), (15, 6), (200, 33)])
@pytest.mark.parametrize("outputs_first", [True, False])
def test_every_element_is_where_the_definition_says(dtype: str, n: int, k: int, outputs_first: bool) -> None:
    b = numbers((n, k), dtype)
    panels = Panels(n, k, dtype, k, 1) if outputs_first else Panels(n, k, dtype, 1, n)
    packed = panels.pack(b if outputs_first else np.ascontiguousarray(b.T))
    depth = 2 if dtype == "bf16" else 1
    expected = np.zeros((-(-n // 16) * 16, -(-k // depth) * depth), b.dtype)
    expected[:n, :k] = b
    assert packed.shape == panels.packed_shape
    assert packed.nbytes == panels.packed_bytes
    for p, u, j, s in np.ndindex(packed.shape):
        assert packed[p, u, j, s] == expected[16 * p + j, depth * u + s]
    assert (panels.unpack(packed) == b).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_stacked_weights_are_packed_one_by_one(dtype: str) -> None:
    weights = numbers((3, 20, 9), dtype)
    panels = Panels(20, 9, dtype, 9, 1)
    packed = panels.pack(weights, stack=1)
    assert packed.shape == (3, *panels.packed_shape)
    for layer in range(3):
        assert (packed[layer] == panels.pack(weights[layer])).all()
    assert (panels.unpack(packed) == weights).all()


def test_a_slice_has_strides_of_its_own() -> None:
    """Every second row of the first 5 columns of a wider weight."""
    whole = numbers((40, 8), "bf16")
    panels = Panels(20, 5, "bf16", 16, 1)
    assert (panels.unpack(panels.pack(whole)) == whole[::2, :5]).all()


def test_more_than_one_chunk() -> None:
    whole = numbers((80, 40000), "f32")
    panels = Panels(80, 40000, "f32", 40000, 1)
    assert (panels.unpack(panels.pack(whole)) == whole).all()


def test_what_does_not_fit_is_refused() -> None:
    panels = Panels(20, 9, "bf16", 9, 1)
    with raises(WeightPanelErrors.TOO_FEW_ELEMENTS, n=20, k=9, wanted_dtype="bf16", n_stride=9):
        panels.pack(numbers((20, 8), "bf16"))
    with raises(WeightPanelErrors.TOO_FEW_ELEMENTS, dtype="float32"):
        panels.pack(numbers((20, 9), "f32"))
    with raises(WeightPanelErrors.DTYPE, dtype="i64"):
        Panels(20, 9, "i64", 9, 1)
    with raises(WeightPanelErrors.SIZES):
        Panels(20, 0, "f32", 9, 1)
