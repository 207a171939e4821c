"""Results of all cases so far, in a JSON file that is replaced atomically: a run can be stopped at any time."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.harness import SeedResult

_SAVE_EVERY = 5.0


class FindingsJournal:
    """The counts of one target.

    Cases are counted in the order of their seeds; those that ended before an earlier one are run again after a stop.

    Attributes:
        next: the first seed that is not counted yet.
        cases, outcomes, findings: of all runs.
    """

    def __init__(self, path: Path | None, target: str, first: int | None = None) -> None:
        self.path, self.target = path, target
        record = self._records().get(target, {})
        self.next: int = record.get("next", 0) if first is None else first
        self.cases: int = record.get("cases", 0)
        self.outcomes = Counter[str](record.get("outcomes", {}))
        self.findings: list[dict[str, object]] = record.get("findings", [])
        self._ahead: dict[int, SeedResult] = {}
        self._saved = time.monotonic()

    def add(self, case: SeedResult) -> None:
        self._ahead[case.seed] = case
        while self.next in self._ahead:
            self._count(self._ahead.pop(self.next))
            self.next += 1
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        if self.path is None:
            return
        record = {"next": self.next, "cases": self.cases, "outcomes": dict(self.outcomes), "findings": self.findings}
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps({**self._records(), self.target: record}, indent=1, sort_keys=True) + "\n")
        os.replace(beside, self.path)
        self._saved = time.monotonic()

    def _count(self, case: SeedResult) -> None:
        self.cases += 1
        self.outcomes[case.outcome] += 1
        if case.finding:
            self.findings.append({"seed": case.seed, "outcome": case.outcome, "message": case.finding})

    def _records(self) -> dict[str, dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return {}
        records: dict[str, dict[str, Any]] = json.loads(self.path.read_text())
        return records
