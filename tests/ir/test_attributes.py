"""Records as dictionary attributes: what is written is read again, and what does not fit is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_mlir import ir

from sscc.ir.attributes import AttributeErrors, read_record, write_record
from sscc.ir.context import mlir
from tests.errors import raises

FIELDS = {"rows": int, "mode": str, "layers": list}


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


@pytest.mark.parametrize("layers", [[], [3], [3, 0, -(1 << 63), (1 << 63) - 1]])
def test_records_survive_printing(layers: list[int]) -> None:
    values = {"rows": 7, "mode": 'a "b"', "layers": layers}
    again = ir.Attribute.parse(str(write_record(values)))
    assert read_record(again, FIELDS) == values


def test_a_list_is_an_array_of_i64() -> None:
    assert str(write_record({"layers": [3, 1]})) == "{layers = array<i64: 3, 1>}"


def test_a_list_that_is_left_out_has_its_default() -> None:
    attribute = ir.Attribute.parse('{rows = 7 : i64, mode = "a"}')
    assert read_record(attribute, FIELDS, {"layers": ()}) == {"rows": 7, "mode": "a", "layers": ()}


@pytest.mark.parametrize(
    "value", ["3 : i64", '"3"', "array<i32: 3>", "array<f64: 3.0>", "[3 : i64]", "dense<3> : tensor<1xi64>", "unit"]
)
def test_what_is_no_list_is_refused(value: str) -> None:
    attribute = ir.Attribute.parse(f'{{rows = 7 : i64, mode = "a", layers = {value}}}')
    with raises(AttributeErrors.WRONG_TYPE, name="layers", expected="an array of i64"):
        read_record(attribute, FIELDS)


def test_a_list_is_no_number() -> None:
    attribute = ir.Attribute.parse('{rows = array<i64: 7>, mode = "a", layers = array<i64>}')
    with raises(AttributeErrors.WRONG_TYPE, name="rows", expected="an integer"):
        read_record(attribute, FIELDS)
