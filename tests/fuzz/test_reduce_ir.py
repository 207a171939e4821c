"""The reducer of modules leaves what a failure needs, and nothing else."""

from __future__ import annotations

import pytest

from tests.fuzz.graphs import program
from tests.fuzz.harness import Finding
from tests.fuzz.reduce_ir import _count, reduced, reduced_finding, without


def test_one_operation_is_left() -> None:
    text = next(module for module in map(program, range(100)) if "math.tanh" in module and _count(module) > 6)
    smallest = reduced(text, lambda module: "math.tanh" in module)
    assert "math.tanh" in smallest
    assert _count(smallest) <= 3  # the operation, its instruction, and perhaps the source of its shape


def test_a_finding_is_reduced_in_a_number_of_tries() -> None:
    text = next(module for module in map(program, range(100)) if "math.tanh" in module and _count(module) > 6)

    def judge(module: str) -> None:
        if "math.tanh" in module:
            raise Finding("there is a tanh")

    assert _count(reduced_finding(text, judge, 1000)) < _count(reduced_finding(text, judge, 4)) <= _count(text)
    with pytest.raises(ValueError, match="no finding"):
        reduced_finding(text, lambda module: None, 10)


def test_what_nothing_can_replace_stays() -> None:
    text = program(3)
    assert without(text, set(range(_count(text)))) is not None
    assert without(text, set()) is not None
