"""What a person may have meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from sscc.ir.errors import ErrorKind, UsageError


class ChoiceErrors(ErrorKind):
    """Options whose value is none of their choices."""

    UNKNOWN = UsageError, "{option} is {value!r}, it must be one of {choices}{similar_hint}"


LONGEST_WORD = 100
"""Characters beyond which nothing is compared: comparing takes time that grows with their square."""
MOST_NEIGHBOURS = 1000
"""Names of a folder that are looked at, in whatever order the system lists them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about `word`, which is none of the `known` ones: "; did you mean 'query'?", or "" where none
    of them is like it."""
    if len(word) > LONGEST_WORD:
        return ""
    by_case = {name.lower(): name for name in known if len(name) <= LONGEST_WORD}
    likely = difflib.get_close_matches(word.lower(), by_case, 1)
    return f"; did you mean {by_case[likely[0]]!r}?" if likely else ""


def similar_file(path: Path) -> str:
    """As `did_you_mean`, of a file or folder that does not exist, among those beside it."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, MOST_NEIGHBOURS)]
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, (name for name in names if not name.startswith(".")))


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Raises UsageError where the value that an option was given is none of its choices."""
    if value is not None and value not in choices:
        raise ChoiceErrors.UNKNOWN(
            option=option, value=value, choices=choices, similar_hint=did_you_mean(value, choices)
        )
