"""Kinds of errors: codes, fields, messages that are safe on a terminal."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from sscc.ir.errors import LONGEST_FIELD, MOST_ITEMS, ErrorKind, InputError, UsageError, printable
from tests.errors import check, raises


class SampleRowErrors(ErrorKind):
    TOO_FEW = UsageError, "layer {layer} keeps {rows:d} rows of {names}{hint}"
    NOT_FOUND = InputError, "{path} has no {name!r}, it has {names!r}"
    CAUSED = InputError, "{path} is damaged: {cause}"


class PlacedKind(ErrorKind):
    def __init__(self, message: str) -> None:
        super().__init__(InputError, "at {where}: " + message)


class PlacedErrors(PlacedKind):
    GAP = "slot {slot} is empty"


def test_an_error_has_a_kind_fields_and_a_message() -> None:
    error = SampleRowErrors.TOO_FEW(layer=3, rows=2, names=["a", "b"], hint="")
    assert isinstance(error, UsageError)
    assert error.kind is SampleRowErrors.TOO_FEW
    assert error.fields == {"layer": 3, "rows": 2, "names": ["a", "b"], "hint": ""}
    assert str(error) == "layer 3 keeps 2 rows of a, b"
    assert SampleRowErrors.TOO_FEW.code == "sample-row.too-few"


def test_fields_are_what_json_has() -> None:
    error = SampleRowErrors.NOT_FOUND(path=Path("a"), name="x", names=("y", "z"))
    assert str(error) == "a has no 'x', it has 'y', 'z'"
    outer = SampleRowErrors.CAUSED(path=Path("b"), cause=error)
    assert str(outer) == "b is damaged: a has no 'x', it has 'y', 'z'"
    assert json.loads(json.dumps(outer.as_json()))["fields"]["cause"]["kind"] == "sample-row.not-found"
    assert SampleRowErrors.CAUSED(path="p", cause=float("nan")).fields["cause"] == "nan"


def test_a_subclass_puts_a_place_before_every_message() -> None:
    with raises(PlacedErrors.GAP, slot=2) as caught:
        raise PlacedErrors.GAP(where="stage a", slot=2)
    assert str(caught.value) == "at stage a: slot 2 is empty"


def test_an_error_is_pickled_whole() -> None:
    error = SampleRowErrors.CAUSED(path="p", cause="c", excerpt="line\n^")
    again = pickle.loads(pickle.dumps(error))
    check(again, SampleRowErrors.CAUSED, path="p", cause="c")
    assert (str(again), again.excerpt) == (str(error), error.excerpt)


def test_fields_that_the_message_does_not_have_are_a_bug() -> None:
    with pytest.raises(TypeError):
        SampleRowErrors.CAUSED(path="p")
    with pytest.raises(TypeError):
        SampleRowErrors.CAUSED(path="p", cause="c", more=1)


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07", "\x9b31m", "a\r\nb", "\u202egnp.exe", "\ud800", "\x00"])
def test_a_hostile_text_is_safe_on_a_terminal(hostile: str) -> None:
    for error in (
        SampleRowErrors.CAUSED(path=hostile, cause=hostile),
        SampleRowErrors.NOT_FOUND(path=Path(hostile.replace("\x00", "")), name=hostile, names=[hostile]),
    ):
        assert str(error).isprintable()
        str(error).encode()
    assert error.fields["names"] == [hostile]


def test_a_message_is_bounded_and_its_fields_are_whole() -> None:
    error = SampleRowErrors.NOT_FOUND(path="p" * 100_000, name="n", names=[str(i) for i in range(10_000)])
    assert len(str(error)) < 2 * LONGEST_FIELD + 10 * MOST_ITEMS
    assert len(error.fields["path"]) == 100_000
    assert len(error.fields["names"]) == 10_000


def test_whitespace_that_breaks_lines_becomes_a_space() -> None:
    assert printable("a\n   b\tc") == "a b c"
