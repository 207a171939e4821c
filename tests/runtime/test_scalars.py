"""Scalar operations as both interpreters have them; those that take two numbers are compared with the native core's in
`tests/runtime/backends/cpu/native/test_core.py`."""

from __future__ import annotations

import pytest

from sscc.ir.schedule import Scalar
from sscc.runtime.backends.reference.control import compile_scalar
from sscc.runtime.support.scalars import ScalarArithmeticErrors, evaluate, scalar_function
from tests.errors import raises


def compiled(scalar: Scalar, **environment: int) -> int:
    """Return the reference interpreter's value of a scalar."""
    compile_scalar(scalar)(environment)
    return environment[scalar.name]


@pytest.mark.parametrize(("index", "found"), [(0, 7), (1, -3), (2, 7)])
def test_a_number_is_looked_up_in_a_table(index: int, found: int) -> None:
    scalar = Scalar("s", "lookup", ("i", 7, -3, "n"))
    assert evaluate(scalar, {"i": index, "n": 7}) == found
    assert compiled(scalar, i=index, n=7) == found


def test_a_table_may_have_one_number() -> None:
    assert evaluate(Scalar("s", "lookup", (0, 7)), {}) == 7


@pytest.mark.parametrize("index", [-1, 3, 1 << 62, -(1 << 63)])
def test_what_the_table_does_not_have_is_refused(index: int) -> None:
    scalar = Scalar("s", "lookup", ("i", 7, -3, 5))
    for look in (lambda: evaluate(scalar, {"i": index}), lambda: compiled(scalar, i=index)):
        with raises(ScalarArithmeticErrors.LOOKUP_OUT_OF_RANGE, entries=3, index=index):
            look()


@pytest.mark.parametrize(
    ("op", "arguments"),
    [("add", 1), ("add", 3), ("select", 2), ("lookup", 0), ("lookup", 1), ("pow", 2), ("pow", 0), ("", 0)],
)
def test_what_is_no_operation_of_so_many_arguments_is_refused(op: str, arguments: int) -> None:
    with raises(ScalarArithmeticErrors.OPERATION, op=op, arguments=arguments):
        scalar_function(op, arguments)
    scalar = Scalar("s", op, (1,) * arguments)
    with raises(ScalarArithmeticErrors.OPERATION, op=op, arguments=arguments):
        evaluate(scalar, {})


def test_an_operand_that_is_not_known_is_refused() -> None:
    with raises(ScalarArithmeticErrors.NOT_SET, scalar="i"):
        evaluate(Scalar("s", "lookup", ("i", 7)), {})
