"""Formats of weights and encodings of stored tensors: how they are written, and what they refuse."""

from __future__ import annotations

import pytest

from sscc.ir.weight_formats.groups import GroupFormat, GroupFormatErrors
from sscc.ir.weight_formats.registry import Encoding
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "weight_format", "written"),
    [
        ("int8", GroupFormat(8), "int8:32"),
        ("int4:64", GroupFormat(4, 64), "int4:64"),
        ("int8:zero-point", GroupFormat(8, 32, True), "int8:32:zero-point"),
        ("int4:16:zero-point", GroupFormat(4, 16, True), "int4:16:zero-point"),
    ],
)
def test_formats(text: str, weight_format: GroupFormat, written: str) -> None:
    assert GroupFormat.parse(text) == weight_format
    assert str(weight_format) == written
    assert GroupFormat.parse(written) == weight_format


@pytest.mark.parametrize("text", ["int", "int3", "8", "int8:x", "int4:-2", "int4:32:32", "int4:zero-point:32", "int8:"])
def test_unknown_formats(text: str) -> None:
    with raises(GroupFormatErrors.UNKNOWN, text=text):
        GroupFormat.parse(text)


@pytest.mark.parametrize("group", [0, 1, 33])
def test_groups_are_even(group: int) -> None:
    with raises(GroupFormatErrors.GROUP, group=group):
        GroupFormat(4, group)


@pytest.mark.parametrize(
    ("text", "stored", "source", "dtype"),
    [
        ("int8:32/values", (9, 64), (9, 64), "i8"),
        ("int8:32/scales", (9, 2), (9, 64), "bf16"),
        ("int4:32/values", (9, 32), (9, 64), "i8"),
        ("int4:16:zero-point/zeros", (9, 4), (9, 64), "i8"),
        ("int4:32/values/transposed", (9, 32), (64, 9), "i8"),
        ("int8:64/scales/transposed", (9, 1), (64, 9), "bf16"),
    ],
)
def test_encodings(text: str, stored: tuple[int, int], source: tuple[int, int], dtype: str) -> None:
    encoding = Encoding.parse(text)
    assert str(encoding) == text
    assert encoding.source_shape(stored) == source
    assert encoding.dtype == dtype
    rows, columns = reversed(source) if encoding.transposed else source
    assert encoding.format.stored(encoding.part, rows, columns) == stored


@pytest.mark.parametrize(
    "text", ["int8", "int8:32", "int8/values", "int8:32/zeros", "int8:32/codes", "int8:32/values/turned"]
)
def test_unknown_encodings(text: str) -> None:
    with raises(GroupFormatErrors.ENCODING, text=text):
        Encoding.parse(text)


@pytest.mark.parametrize("text", ["", "f8:32/values"])
def test_encodings_of_unknown_formats(text: str) -> None:
    with raises(GroupFormatErrors.ENCODING_FORMAT, text=text):
        Encoding.parse(text)


def test_only_matrices_are_encoded() -> None:
    with raises(GroupFormatErrors.STORED_SHAPE, shape=[9], part="values", format="int8:32"):
        Encoding.parse("int8:32/values").source_shape((9,))
