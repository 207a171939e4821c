"""Every exception that sscc raises on purpose, with the exit code a command ends with.

A message names what was wrong, the number or name that did not fit, and what to change. A traceback on a
user's input is a bug, so the command line turns exactly these classes into one line on stderr.
"""


LONGEST_QUOTE = 300
"""A message repeats at most so many characters of somebody else's text."""


def quoted(text: object) -> str:
    """Somebody else's text, such as a library's message about a file, as one short line of characters that print."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split()))
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}.."


class SsccError(Exception):
    """Base class: an error meant for the person who ran the command. Its message is one line.

    Attributes:
        excerpt: the line of a text that is at fault, and a caret in the next one, to be shown below the message; "" for
            none.
    """

    exit_code = 1

    def __init__(self, *args: object, excerpt: str = "") -> None:
        super().__init__(*args)
        self.excerpt = excerpt


class UsageError(SsccError):
    """An option, a geometry or a prompt that cannot be honoured."""

    exit_code = 2


class UnsupportedError(SsccError):
    """A model feature that the compiler refuses rather than compiles wrongly."""

    exit_code = 3


class CheckError(SsccError):
    """A replayed golden tensor differs from the recorded one."""

    exit_code = 4


class InputError(SsccError):
    """A checkpoint, dump or artifact that is missing, truncated, damaged or of another format."""

    exit_code = 5


class OutputError(SsccError):
    """An output that could not be written; nothing half-written is left behind."""

    exit_code = 6


class RankError(SsccError):
    """One of several ranks that run a program together has ended, or does not answer, and so ends the others."""

    exit_code = 7


class InternalError(SsccError):
    """A broken invariant of sscc itself: please report it."""

    exit_code = 70
