"""Lines of logs that may hold text of clients: each is printable, so no client writes to an operator's terminal."""

from __future__ import annotations

import logging
import traceback

from sscc.ir.errors import printable

LONGEST_WORD = 200
"""Characters of one text of a client in a line of a log."""


def logged(text: object) -> str:
    """Return a text of a client as a line of a log shows it: printable, and of at most `LONGEST_WORD` characters."""
    line = printable(str(text)[: LONGEST_WORD + 1])
    return line if len(line) <= LONGEST_WORD else f"{line[:LONGEST_WORD]}.."


def log_exception(log: logging.Logger, words: str, error: BaseException) -> None:
    """Log at level ERROR what failed, and the traceback of `error` below it.

    Args:
        words: the first line.
    """
    lines = "".join(traceback.format_exception(error)).splitlines()
    log.error("%s", "\n".join(map(printable, [words, *lines])))
