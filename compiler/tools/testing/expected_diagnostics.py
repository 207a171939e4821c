"""Expected diagnostics in comments of IR, in the syntax of `mlir-opt --verify-diagnostics`::

    // expected-error@+1 {{part of the message}}
    // expected-error-re@below {{a regular {{expression}}}}
    // expected-error@unknown {{a message without a line}}

The default location is the line of the comment. `@+N` and `@-N` are relative to it, as are `@above` and `@below`; `@N`
is a line of the file, and `@unknown` stands for a message without a line. Regular expressions are in inner double
braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_EXPECTED = re.compile(
    r"//\s*expected-(?P<severity>error|warning|remark|note)(?P<re>-re)?(?:@(?P<place>[+-]?\d+|above|below|unknown))?"
    r"\s*(?P<count>\d+)?\s*\{\{(?P<text>.*)\}\}"
)
_INNER = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic of a text.

    Attributes:
        severity: "error", "warning", "remark" or "note".
        line: line of the text, from 1; None if unknown.
    """

    severity: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


@dataclass(frozen=True)
class Expected:
    """An expected diagnostic.

    Attributes:
        severity, line: as in `Diagnostic`.
        pattern: pattern that matches a part of the message.
        text: the pattern as written in the comment.
        at: line of the comment.
    """

    severity: str
    line: int | None
    pattern: re.Pattern[str]
    text: str
    at: int

    def fits(self, diagnostic: Diagnostic) -> bool:
        """Return True if a diagnostic is the expected one."""
        same = (diagnostic.severity, diagnostic.line) == (self.severity, self.line)
        return same and self.pattern.search(diagnostic.message) is not None


def read_expected(text: str) -> list[Expected]:
    """Return the diagnostics that a text expects, in their order."""
    return [item for number, line in enumerate(text.split("\n"), 1) for item in _in_line(number, line)]


def _in_line(number: int, line: str) -> Iterator[Expected]:
    match = _EXPECTED.search(line)
    if match is None:
        return
    pattern = _pattern(match["text"]) if match["re"] else re.compile(re.escape(match["text"]))
    for _ in range(int(match["count"] or 1)):
        yield Expected(match["severity"], _line(match["place"], number), pattern, match["text"], number)


def _line(place: str | None, number: int) -> int | None:
    if place == "unknown":
        return None
    if place in (None, "above", "below"):
        return number + {None: 0, "above": -1, "below": 1}[place]
    assert place is not None
    return number + int(place) if place[0] in "+-" else int(place)


def _pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression of a text in which only parts in double braces are regular expressions."""
    parts = _INNER.split(text)
    return re.compile("".join(part if index % 2 else re.escape(part) for index, part in enumerate(parts)))


def differences(expected: Sequence[Expected], found: Sequence[Diagnostic], name: str) -> list[str]:
    """Return a line for each expected diagnostic without an actual one, and for each unexpected one.

    Args:
        expected: diagnostics that the comments expect.
        found: actual diagnostics.
        name: name of the file.
    """
    left = list(found)
    missing = []
    for item in expected:
        fitting = next((diagnostic for diagnostic in left if item.fits(diagnostic)), None)
        if fitting is None:
            missing.append(f"{name}:{item.at}: expected {item.severity} was not found: {item.text}")
        else:
            left.remove(fitting)
    places = [name if each.line is None else f"{name}:{each.line}" for each in left]
    return [*missing, *(f"{place}: unexpected {each}" for place, each in zip(places, left, strict=True))]
