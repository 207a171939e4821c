"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from sscc.ir.errors import ErrorKind, UsageError


class ChoiceErrors(ErrorKind):
    """Options with an invalid value."""

    UNKNOWN = UsageError, "{option} must be one of {choices}, got {value!r}{similar_hint}"


LONGEST_WORD = 100
"""Length in characters above which no suggestion is made: comparing takes quadratic time."""
MOST_NEIGHBOURS = 1000
"""Maximum number of names of a folder that are compared, in the order in which the system lists them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the suffix of a message about an unknown `word`: "; did you mean 'query'?", or "" if no known word is
    similar."""
    if len(word) > LONGEST_WORD:
        return ""
    by_case = {name.lower(): name for name in known if len(name) <= LONGEST_WORD}
    likely = difflib.get_close_matches(word.lower(), by_case, 1)
    return f"; did you mean {by_case[likely[0]]!r}?" if likely else ""


def similar_file(path: Path) -> str:
    """Return the suggestion of `did_you_mean` for a missing file or folder, among those beside it."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, MOST_NEIGHBOURS)]
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, (name for name in names if not name.startswith(".")))


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise UsageError if an option's value is not one of its choices."""
    if value is not None and value not in choices:
        raise ChoiceErrors.UNKNOWN(
            option=option, value=value, choices=choices, similar_hint=did_you_mean(value, choices)
        )
