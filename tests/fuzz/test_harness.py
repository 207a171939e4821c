"""The harness itself, on targets that do what a case must not."""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path

import pytest

from tests.fuzz.harness import Finding, SeedResult, Target, TargetFailure, run_cases
from tests.fuzz.journal import FindingsJournal


class Hostile(Target):
    """A target with one seed per outcome."""

    name = "hostile"

    def __init__(self, folder: Path) -> None:
        assert not list(folder.iterdir())

    def run(self, seed: int) -> str:
        if seed == 1:
            raise Finding("one and one are three")
        if seed == 2:
            ctypes.string_at(0)
        if seed == 3:
            bytearray(1 << 40)
        if seed == 4:
            raise KeyError("nothing catches this")
        if seed == 5:
            while True:
                pass
        return "even" if seed % 2 == 0 else "odd"


class Unprepared(Target):
    name = "unprepared"

    def __init__(self, folder: Path) -> None:
        raise ValueError("there are no bases")

    def run(self, seed: int) -> str:
        raise AssertionError("never called")


def test_every_bad_end_is_a_finding_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.harness.HANG", 0.7)
    cases = {case.seed: case for case in run_cases(f"{__name__}:Hostile", 0, 8, jobs=2)}
    outcomes = [cases[seed].outcome for seed in range(8)]
    assert outcomes == ["even", "finding", "crash", "memory", "exception", "hang", "even", "odd"]
    assert cases[1].finding == "one and one are three"
    assert "SIGSEGV" in cases[2].finding
    assert "in run" in cases[2].finding
    assert "KeyError" in cases[4].finding
    assert "in run" in cases[5].finding
    assert not any(cases[seed].finding for seed in (0, 6, 7))


def test_a_target_without_bases_is_no_finding() -> None:
    with pytest.raises(TargetFailure, match="there are no bases"):
        list(run_cases(f"{__name__}:Unprepared", 0, 2))


def test_a_journal_counts_over_runs_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    journal = FindingsJournal(path, "t")
    for seed, finding in ((0, ""), (2, ""), (1, "wrong"), (5, "")):
        journal.add(SeedResult(seed, "finding" if finding else "fine", finding))
    journal.save()
    other = FindingsJournal(path, "other")
    other.add(SeedResult(0, "fine"))
    other.save()
    again = FindingsJournal(path, "t")
    assert (again.next, again.cases, dict(again.outcomes)) == (3, 3, {"fine": 2, "finding": 1})
    assert again.findings == [{"seed": 1, "outcome": "finding", "message": "wrong"}]
    again.add(SeedResult(3, "fine"))
    again.save()
    assert json.loads(path.read_text())["t"]["cases"] == 4
    assert FindingsJournal(path, "t", first=100).next == 100


def test_a_supervisor_that_stops_early_leaves_no_process() -> None:
    cases = run_cases(f"{__name__}:Hostile", 6, 1000)
    next(cases)
    began = time.monotonic()
    cases.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 10
