"""Windows, compared with torch: the same slices, transposes and reshapes of the same elements."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sscc.compiler.emit.windows import dropped, is_whole, reshaped, sliced, transposed, whole
from sscc.ir.schedule import View
from sscc.ir.sizes import dense_strides

SETTINGS = settings(max_examples=150)

Shape = tuple[int, ...]


def seen(view: View, scalars: dict[str, int] | None = None) -> torch.Tensor:
    """Return the elements of a window into a tensor that holds 0, 1, 2, .. in row-major order."""
    offset = view.offset + sum((scalars or {})[name] * coefficient for name, coefficient in view.terms)
    return torch.arange(4096).as_strided(view.shape, view.strides, offset)


@st.composite
def windows(draw: st.DrawFn) -> tuple[View, torch.Tensor]:
    """A window after a few operations, and torch's tensor after the same."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    view, tensor = whole("t", shape), torch.arange(math.prod(shape)).reshape(shape)
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            order = draw(st.permutations(range(len(view.shape))))
            view, tensor = transposed(view, order), tensor.permute(order)
        else:
            box = [draw(ranges(size)) for size in view.shape]
            view = sliced(view, [r.start for r in box], [len(r) for r in box], [r.step for r in box])
            tensor = tensor[tuple(slice(r.start, r.stop, r.step) for r in box)]
    return view, tensor


@st.composite
def ranges(draw: st.DrawFn, size: int) -> range:
    start = draw(st.integers(0, size - 1))
    return range(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 2)))


@st.composite
def shapes_of(draw: st.DrawFn, elements: int) -> Shape:
    """A shape with that many elements, unit dimensions here and there."""
    shape: list[int] = []
    while elements > 1:
        size = draw(st.sampled_from([d for d in range(1, elements + 1) if elements % d == 0]))
        shape.append(size)
        elements //= size
        if len(shape) == 6:
            break
    return tuple(shape) if elements == 1 else (*shape, elements)


@SETTINGS
@given(st.lists(st.integers(1, 5), max_size=4))
def test_strides_are_row_major(shape: list[int]) -> None:
    assert dense_strides(shape) == torch.empty(shape).stride()


@SETTINGS
@given(windows())
def test_slices_and_transposes(case: tuple[View, torch.Tensor]) -> None:
    view, tensor = case
    assert view.shape == tuple(tensor.shape)
    assert torch.equal(seen(view), tensor)


@SETTINGS
@given(st.data(), windows())
def test_a_reshape_is_torchs_view_or_none(data: st.DataObject, case: tuple[View, torch.Tensor]) -> None:
    view, tensor = case
    shape = data.draw(shapes_of(tensor.numel()))
    try:
        expected = tensor.view(shape)
    except RuntimeError:  # "view size is not compatible with input tensor's size and stride"
        assert reshaped(view, shape) is None
        return
    window = reshaped(view, shape)
    assert window is not None
    assert window.shape == shape
    assert torch.equal(seen(window), expected)


@SETTINGS
@given(st.data(), windows())
def test_unit_dimensions_come_and_go(data: st.DataObject, case: tuple[View, torch.Tensor]) -> None:
    view, tensor = case
    shape = tuple(size for size in view.shape if size != 1 or data.draw(st.booleans()))
    assert torch.equal(seen(dropped(view, shape)), tensor.reshape(shape))
    grown = reshaped(view, (1, *view.shape, 1))
    assert grown is not None
    assert torch.equal(seen(grown), tensor[None, ..., None])


@SETTINGS
@given(st.data())
def test_dynamic_offsets_add_up(data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    tensor = torch.arange(8 * 6 * 5).reshape(8, 6, 5)
    outer = sliced(whole("t", (8, 6, 5)), ["a", 1, "b"], (4, 4, 2), (1, 1, 1))
    inner = sliced(outer, [1, "a", 0], (2, 1, 2), (1, 1, 1))
    assert inner.terms == (("a", 30 + 5), ("b", 1))
    expected = tensor[a + 1 : a + 3, 1 + a : 2 + a, b : b + 2]
    assert torch.equal(seen(inner, {"a": a, "b": b}), expected)
    assert torch.equal(seen(transposed(dropped(inner, (2, 2)), (1, 0)), {"a": a, "b": b}), expected[:, 0].T)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((4, 6), (6, 1)), ((1, 4, 1, 6), (24, 6, 6, 1)), ((2, 12), (12, 1)), ((24,), (1,)), ((3, 2, 4), (8, 4, 1))],
)
def test_a_reshape_of_a_whole_tensor_is_whole(shape: Shape, strides: Shape) -> None:
    assert reshaped(whole("t", (4, 6)), shape) == View("t", shape, strides)


def test_one_element() -> None:
    point = sliced(whole("t", (4, 6)), [2, 3], (1, 1), (1, 1))
    assert reshaped(point, ()) == View("t", (), (), 15)
    assert reshaped(point, (1, 1, 1)) == View("t", (1, 1, 1), (1, 1, 1), 15)


def test_what_shows_a_whole_region_as_it_lies() -> None:
    view = whole("t", (4, 6))
    assert is_whole(view, (4, 6))
    assert not is_whole(view, (6, 4))
    assert not is_whole(transposed(view, (1, 0)), (6, 4))
    assert not is_whole(sliced(view, [1, 0], (3, 6), (1, 1)), (4, 6))
    assert not is_whole(sliced(view, ["i", 0], (4, 6), (1, 1)), (4, 6))
