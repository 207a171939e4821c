"""What a proof found: what calls return and write, and which bounds hold for all values or for samples only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One call of an entry with given scalars.

    Attributes:
        written: outputs of which every element is surely written. touched: tensors of which anything is written.
        results: the scalar outputs.
    """

    scalars: Mapping[str, int]
    written: frozenset[str]
    touched: frozenset[str]
    results: tuple[int, ...]


@dataclass(frozen=True)
class EntryReport:
    """One entry and the calls of it that were played."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Report:
    """A valid schedule.

    Attributes:
        proved: bounds (views, ports, scalars) that hold for all values within the declared ranges.
        sampled: bounds that were only evaluated, in the sample runs: one line each.
        data: accesses whose place tensors' contents decide; the interpreters check those when they run.
    """

    entries: tuple[EntryReport, ...]
    proved: int
    sampled: tuple[str, ...]
    data: tuple[str, ...]

    def entry(self, name: str) -> EntryReport:
        return next(entry for entry in self.entries if entry.name == name)
