"""Results of a proof: values that calls return and tensors that they write, and bounds that hold for all values or for
samples only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One call of an entry with given scalars.

    Attributes:
        written: outputs of which every element is written.
        touched: tensors of which any element is written.
        results: scalar outputs.
    """

    scalars: Mapping[str, int]
    written: frozenset[str]
    touched: frozenset[str]
    results: tuple[int, ...]


@dataclass(frozen=True)
class EntryReport:
    """One entry and its simulated calls."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Report:
    """The proof of a valid schedule.

    Attributes:
        proved: number of bounds (views, ports, scalars) that hold for all values within the declared ranges.
        sampled: bounds that were only evaluated in the sample runs, one line each.
        data: accesses at places that depend on tensors' contents; the interpreters check those at run time.
    """

    entries: tuple[EntryReport, ...]
    proved: int
    sampled: tuple[str, ...]
    data: tuple[str, ...]

    def entry(self, name: str) -> EntryReport:
        return next(entry for entry in self.entries if entry.name == name)
