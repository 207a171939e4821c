"""Assumptions section: every figure of the machine with its origin, and the rules of the timing model."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.choices import DECODE
from sscc.ir.sizes import format_bytes, format_seconds
from sscc.ir.target import Figure

PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


@dataclass(frozen=True)
class Assumptions:
    """The assumptions of the modelled times.

    Attributes:
        figures: name, formatted value, and record of each figure.
        used: names of the figures on which the times of the page depend.
        rules: rules of the model, one sentence each.
    """

    machine: str
    note: str
    figures: tuple[tuple[str, str, Figure], ...]
    used: frozenset[str]
    rules: tuple[str, ...]


def assumptions(sources: Sources) -> Assumptions:
    machine = sources.machine
    sentences = sources.timings[DECODE].assumptions
    named = {sentence.partition(" ")[0] for sentence in sentences}
    rules = tuple(sentence for sentence in sentences if sentence.partition(" ")[0] not in machine.figures)
    figures = tuple((name, _in_words(figure), figure) for name, figure in machine.figures.items())
    return Assumptions(machine.name, machine.note, figures, frozenset(named), rules)


def _in_words(figure: Figure) -> str:
    """Format the value and unit of a figure, with a prefix for large and small values."""
    unit, space, rest = figure.unit.partition(" ")
    if unit == "bytes":
        return f"{format_bytes(int(figure.value))}{space}{rest}"
    if unit == "s":
        return f"{format_seconds(figure.value)}{space}{rest}"
    prefix, size = next((pair for pair in PREFIXES if figure.value >= pair[1]), ("", 1.0))
    spelled = "B/s" if unit == "bytes/s" else unit
    if spelled not in ("B/s", "FLOP/s", "Hz"):
        return f"{figure.value:g} {figure.unit}"
    return f"{figure.value / size:g} {prefix}{spelled}{space}{rest}"
