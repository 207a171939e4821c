"""Options for budgets per layer: lists, files and pyramids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sscc.compiler.options.layer_topk import LayerTopk, LayerTopkErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("64", LayerTopk((64,))),
        ("64,32,0", LayerTopk((64, 32, 0))),
        (" 64, 32 16 ", LayerTopk((64, 32, 16))),
        ("pyramid:64,16", LayerTopk((64, 16), True)),
        ("pyramid:0, 16", LayerTopk((0, 16), True)),
    ],
)
def test_what_is_asked_for(text: str, wanted: LayerTopk) -> None:
    assert LayerTopk.parse(text) == wanted
    assert LayerTopk.parse(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["64,32,0", "64\n32\n0\n", "  64 ,32\t\n0"])
def test_a_file_has_numbers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "budgets"
    path.write_text(text)
    assert LayerTopk.parse(str(path)) == LayerTopk((64, 32, 0))


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("", LayerTopkErrors.NOT_NUMBERS, {}),
        (",", LayerTopkErrors.NOT_NUMBERS, {}),
        ("64,-1", LayerTopkErrors.NOT_NUMBERS, {"source": "64,-1"}),
        ("9" * 16, LayerTopkErrors.NOT_NUMBERS, {}),
        ("pyramid:64", LayerTopkErrors.NOT_A_PYRAMID, {}),
        ("pyramid:64,32,16", LayerTopkErrors.NOT_A_PYRAMID, {}),
        ("pyramid:", LayerTopkErrors.NOT_NUMBERS, {}),
        ("pyramid:a,b", LayerTopkErrors.NOT_NUMBERS, {}),
        ("64.5", LayerTopkErrors.UNREADABLE, {}),
        ("no such file", LayerTopkErrors.UNREADABLE, {}),
        ("a\0b", FileErrors.NOT_A_FILE_NAME, {"letters": 3}),
    ],
)
def test_what_is_no_budget_is_refused(text: str, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        LayerTopk.parse(text)


@pytest.mark.parametrize(
    ("content", "kind", "fields"),
    [
        (b"", LayerTopkErrors.NOT_NUMBERS, {}),
        (b"64 half", LayerTopkErrors.NOT_NUMBERS, {}),
        (b"64\xff", LayerTopkErrors.UNREADABLE, {}),
        (b"1 " * 40000, LayerTopkErrors.FILE_TOO_LONG, {"most": 65536}),
    ],
)
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, content: bytes, kind: ErrorKind, fields: dict[str, int]
) -> None:
    path = tmp_path / "budgets"
    path.write_bytes(content)
    with raises(kind, **fields):
        LayerTopk.parse(str(path))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with raises(LayerTopkErrors.UNREADABLE):
        LayerTopk.parse(str(tmp_path))


def test_a_list_is_for_as_many_layers() -> None:
    budgets = LayerTopk((3, 1, 2))
    assert (budgets.of(3), budgets.most, budgets.mean) == ((3, 1, 2), 3, 2)
    for layers in (2, 4):
        with raises(LayerTopkErrors.OTHER_LAYERS, numbers=3, layers=layers):
            budgets.of(layers)


@pytest.mark.parametrize(
    ("first", "last", "layers", "wanted"),
    [
        (64, 16, 1, (64,)),
        (64, 16, 2, (64, 16)),
        (64, 16, 4, (64, 48, 32, 16)),
        (0, 3, 3, (0, 2, 3)),
        (3, 0, 3, (3, 2, 0)),
        (10, 0, 4, (10, 7, 3, 0)),
        (5, 5, 3, (5, 5, 5)),
    ],
)
def test_a_pyramid_changes_linearly(first: int, last: int, layers: int, wanted: tuple[int, ...]) -> None:
    assert LayerTopk((first, last), True).of(layers) == wanted


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1), st.integers(2, 200))
def test_a_pyramid_ends_where_it_should(first: int, last: int, layers: int) -> None:
    """Each number is the nearest whole one, and there are no others than between the two."""
    found = LayerTopk((first, last), True).of(layers)
    assert (found[0], found[-1], len(found)) == (first, last, layers)
    assert sorted(found, reverse=first > last) == list(found)
    for layer, number in enumerate(found):
        assert abs(number * (layers - 1) - (first * (layers - 1 - layer) + last * layer)) * 2 <= layers - 1


@pytest.mark.parametrize("budgets", [LayerTopk((64, 16), True), LayerTopk((64, 16))])
def test_a_model_without_a_layer_to_govern_is_refused(budgets: LayerTopk) -> None:
    with raises(LayerTopkErrors.NO_LAYER):
        budgets.of(0)


def test_the_mean_is_to_the_nearest() -> None:
    assert LayerTopk((64, 16), True).mean == 40
    assert LayerTopk((1, 1, 0)).mean == 1
    assert LayerTopk((1, 0, 0)).mean == 0
