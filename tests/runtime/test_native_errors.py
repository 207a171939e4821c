"""Kinds that C++ names: all are declared with the same fields, and all that are declared are raised somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sscc.ir.errors import RankError
from sscc.runtime.support import _native
from sscc.runtime.support.native_errors import NativeErrors, native_error
from sscc.runtime.support.scalars import ScalarArithmeticErrors
from tests.errors import check, raises

SOURCES = Path(__file__).parents[2] / "runtime" / "backends" / "cpu" / "native"
CALL = re.compile(r'\bfail\(\s*"([A-Z_]+)"(.*?)\);', re.DOTALL)
FIELD = re.compile(r'\{"(\w+)", ')


def raised() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return file name, kind and fields of every `fail` in the sources."""
    found = []
    for path in sorted(SOURCES.glob("*.[hc]pp")):
        for kind, rest in CALL.findall(path.read_text()):
            found.append((path.name, kind, tuple(FIELD.findall(rest))))
    return found


def test_every_kind_that_cpp_raises_is_declared_with_its_fields() -> None:
    kinds = {**NativeErrors.__members__, **ScalarArithmeticErrors.__members__}
    calls = raised()
    assert len(calls) > 40
    for file, name, fields in calls:
        assert name in kinds, f"{file} raises {name}, which is not declared"
        assert set(fields) == set(kinds[name].field_names), f"{file}: {name}"


def test_every_declared_kind_is_raised() -> None:
    names = {name for _, name, _ in raised()}
    assert set(NativeErrors.__members__) - names == set()


def test_no_other_exception_of_ours_is_thrown() -> None:
    for path in SOURCES.glob("*.[hc]pp"):
        for thrown in re.findall(r"\bthrow (\w[\w:]*)", path.read_text()):
            assert thrown.startswith(("std::", "nb::")) or (path.name, thrown) == ("errors.hpp", "Error"), path.name


def test_errors_arrive_with_kind_and_fields() -> None:
    with raises(NativeErrors.THREADS, threads=0, most=1024):
        _native.Team(0)
    with raises(NativeErrors.SAMPLER_SLOTS, slots=-3):
        _native.BatchSampler(-3, 5)
    with raises(NativeErrors.RANK, rank=2, ranks=2):
        _native.Meeting(0, 2, 2)


def test_an_error_of_a_name_that_is_no_text_is_one_line() -> None:
    error = native_error("NO_REGION", {"region": "a\nb"})
    check(error, NativeErrors.NO_REGION, region="a\nb")
    assert "\n" not in str(error)
    with pytest.raises(RankError):
        raise native_error("RANK_ENDED", {"rank": 3})
