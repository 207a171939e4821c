"""The reducers, with predicates whose smallest failing case is known; and a whole schedule with a finding."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from sscc.ir.schedule import Program
from tests.fuzz import schedules
from tests.fuzz.harness import Finding, outcome_apart
from tests.fuzz.reduce import reduce, reduce_tree


def test_only_the_items_that_fail_together_are_left() -> None:
    rng = random.Random(0)
    for _ in range(50):
        items = list(range(rng.randrange(1, 60)))
        culprits = set(rng.sample(items, rng.randrange(1, min(5, len(items) + 1))))
        assert reduce(items, lambda some, culprits=culprits: culprits <= set(some)) == sorted(culprits)  # type: ignore[misc]


def test_no_single_item_can_be_left_out_where_failing_is_not_monotonic() -> None:
    def fails(some: list[int]) -> bool:
        return len(some) >= 3 and len(some) % 3 == 0

    assert len(reduce(list(range(30)), fails)) == 3


def test_a_tree_loses_items_and_keeps_fields() -> None:
    data = {"a": [{"x": [5, 6, 7], "name": "long"}, {"x": [8], "name": "other"}], "b": [1.5, 2.5], "on": True}

    def fails(tree: Any) -> bool:
        return any(7 in item["x"] for item in tree["a"]) and tree["on"]

    assert reduce_tree(data, fails) == {"a": [{"x": [7], "name": ""}], "b": [], "on": True}


def test_a_case_apart_may_end_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> str:
        raise Finding("wrong")

    def endless() -> str:
        while True:
            pass

    def crash() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    monkeypatch.setattr("tests.fuzz.harness.HANG", 0.5)
    assert outcome_apart(lambda: "agrees") == "agrees"
    assert outcome_apart(wrong) == "finding: Finding: wrong"
    assert outcome_apart(endless) == "hang"
    assert outcome_apart(crash) == "crash"


def test_a_schedule_is_reduced_to_what_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an admission that forgets everything there are such cases; a hand-written base keeps them cheap."""
    monkeypatch.setattr(schedules, "admit", lambda program, situation: None)
    target = schedules.Schedules(tmp_path)

    def finds(seed: int) -> bool:
        base, program, _, _ = target.case(seed)
        small = base.name == "chained_launches" and program is not None
        return small and "alone refuses" in outcome_apart(lambda: target.run(seed))

    seed = next(filter(finds, range(1000)))
    base, _, changes, _ = target.case(seed)
    heading, *lines, text = target.reduced(seed, 60).splitlines()
    assert heading.startswith("chained_launches: finding: Finding: accepted, but")
    assert 1 <= len(lines) <= len(changes)
    assert len(text) < len(base.program.to_json()) / 2
    assert "alone refuses" in outcome_apart(lambda: target.judged(Program.from_json(text), base.situation))
