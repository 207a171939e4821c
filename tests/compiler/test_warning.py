"""Warnings are shown once and collected."""

import pytest

from sscc.compiler.options.warning import SsccWarning, collecting, warn
from sscc.ir.errors import ErrorKind
from tests.errors import check


class TensorWarnings(ErrorKind):
    UNUSED = SsccWarning, "{path}: {count} tensors have no place in the model"


def test_a_warning_is_one_line_and_is_collected_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as outer, collecting() as inner:
        warn(TensorWarnings.UNUSED(path="a\nb", count=3))
    assert inner is outer
    [warning] = outer
    check(warning, TensorWarnings.UNUSED, count=3)
    assert caplog.messages == ["sscc: warning: a b: 3 tensors have no place in the model"]


def test_a_repeated_warning_of_one_compilation_is_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as warnings:
        for count in (1, 2, 1):
            warn(TensorWarnings.UNUSED(path="a", count=count))
    assert [warning.fields["count"] for warning in warnings] == [1, 2]
    assert len(caplog.messages) == 2
    warn(TensorWarnings.UNUSED(path="a", count=1))  # outside, nothing is remembered
    assert len(caplog.messages) == 3
