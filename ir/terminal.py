"""Safe output of untrusted text on a terminal: it is shown, but cannot control the terminal.

A model may generate escape sequences, and names in an artifact or a checkpoint may contain them. Unfiltered, they move
the cursor, change earlier output, set the title, or write to the clipboard. `sscc.ir.errors.printable` makes one line
safe; this module is for whole texts and tables.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import TextIO

from sscc.ir.errors import printable

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tab and newline, marks that reverse the direction of text, halves of surrogate pairs.
Joiners, wide spaces and private characters are kept: some languages and fonts use them."""


def terminal_text(text: str) -> str:
    """Return `text` with each control character as its escape. Newlines and tabs are kept.

    The function has no state, so a text may be passed in pieces of any size.
    """
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def shown_text(text: str, stream: TextIO) -> str:
    """Return generated text as `stream` gets it: a terminal as `terminal_text`, a file or a pipe unchanged."""
    return terminal_text(text) if stream.isatty() else text


class _LogFormatter(logging.Formatter):
    """Log messages whose lines are safe on a terminal. A message that begins with "sscc: ", as warnings do, gets no
    second prefix."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return listing(text.removeprefix("sscc: ").split("\n") if text.startswith("sscc: sscc: ") else text.split("\n"))


def send_log_to_stderr(level: int, message_format: str = "%(message)s") -> None:
    """Send log messages of `level` and above to stderr, as `logging.basicConfig` does, and safe on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogFormatter(message_format))
    logging.basicConfig(level=level, handlers=[handler])


def listing(lines: Iterable[str]) -> str:
    """Join the lines of a table or a list of facts; control characters in names are made printable."""
    return "\n".join(printable(line) for line in lines)
