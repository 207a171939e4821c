"""Log lines that may contain text of clients: they are made printable, so that no client can control an operator's
terminal."""

from __future__ import annotations

import logging
import traceback

from sscc.ir.errors import printable

LONGEST_WORD = 200
"""Maximum number of characters of a client's text in a log line."""


def logged(text: object) -> str:
    """Return a client's text for a line of the log: printable, and with at most `LONGEST_WORD` characters."""
    line = printable(str(text)[: LONGEST_WORD + 1])
    return line if len(line) <= LONGEST_WORD else f"{line[:LONGEST_WORD]}.."


def log_exception(log: logging.Logger, words: str, error: BaseException) -> None:
    """Log a failure at level ERROR, followed by the traceback of `error`.

    Args:
        words: the first line.
    """
    lines = "".join(traceback.format_exception(error)).splitlines()
    log.error("%s", "\n".join(map(printable, [words, *lines])))
