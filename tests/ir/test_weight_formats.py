"""Formats of weights and encodings of stored tensors: their text, and refusals."""

from __future__ import annotations

import pytest

from sscc.ir.weight_formats.groups import GroupFormat, GroupFormatErrors
from sscc.ir.weight_formats.registry import CHECKPOINT_FORMATS, Encoding, EncodingErrors, format_named
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
    ("text", "stored", "source"),
    [
        ("int8:32/values", (9, 64), (9, 64)),
        ("int8:32/scales", (9, 4), (9, 64)),
        ("int4:32/values", (9, 32), (9, 64)),
        ("int4:16:zero-point/zeros", (9, 4), (9, 64)),
        ("int4:32:minimum:f32/minimums", (9, 8), (9, 64)),
        ("int4:32/values/transposed", (9, 32), (64, 9)),
        ("int8:64/scales/transposed", (9, 2), (64, 9)),
        ("int4:32/values/ordered", (9, 32), (9, 64)),
        ("Q4_K/blocks", (9, 288), (9, 512)),
        ("mxfp4/scales/transposed", (9, 2), (64, 9)),
    ],
)
def test_encodings(text: str, stored: tuple[int, int], source: tuple[int, int]) -> None:
    encoding = Encoding.parse(text)
    assert str(encoding) == text
    assert encoding.source_shape(stored) == source
    rows, columns = reversed(source) if encoding.transposed else source
    assert encoding.format.stored(encoding.part, rows, columns) == stored


@pytest.mark.parametrize("name", list(CHECKPOINT_FORMATS))
def test_every_bit_of_a_block_belongs_to_one_number(name: str) -> None:
    """The runs of a format's fields cover all bits of its parts once."""
    weight_format = format_named(name)
    bits: dict[tuple[str, int], list[int]] = {}
    for field in weight_format.fields:
        for number, pieces in enumerate(field.pieces() if not field.is_float else []):
            for byte, level, width, _, base in pieces:
                taken = [level] if base == 3 else list(range(level, level + width))
                bits.setdefault((field.part, byte), []).extend(taken)
            assert number < field.count
        if field.is_float:
            first = field.runs[0][0].at
            bits |= {(field.part, first + byte): list(range(8)) for byte in range(field.bits // 8 * field.count)}
    assert all(len(taken) == len(set(taken)) for taken in bits.values())
    covered = {part: sum(key[0] == part for key in bits) for part in weight_format.bytes_of}
    assert covered == weight_format.bytes_of
    if not weight_format.codes.is_ternary:
        assert all(sorted(taken) == list(range(8)) for taken in bits.values())


@pytest.mark.parametrize(
    "text", ["int8", "int8:32", "int8/values", "int8:32/zeros", "int8:32/codes", "int8:32/values/turned"]
)
def test_unknown_encodings(text: str) -> None:
    with raises(EncodingErrors.UNKNOWN, text=text):
        Encoding.parse(text)


@pytest.mark.parametrize("text", ["", "f8:32/values"])
def test_encodings_of_unknown_formats(text: str) -> None:
    with raises(EncodingErrors.FORMAT, text=text):
        Encoding.parse(text)


def test_only_matrices_are_encoded() -> None:
    with raises(EncodingErrors.STORED_SHAPE, shape=[9], part="values", format="int8:32"):
        Encoding.parse("int8:32/values").source_shape((9,))
