"""Errors that sscc raises on purpose: their classes, exit codes, kinds and messages.

An error has a class, which decides the exit code of a command, and a **kind**, which is stable and never reworded. A
module that raises errors declares its kinds in one enum, with the message of each:

    class RowErrors(ErrorKind):
        TOO_FEW = UsageError, "layer {layer} keeps {rows} rows, which is below the minimum of {least}"

    raise RowErrors.TOO_FEW(layer=3, rows=2, least=8)

The fields are data: programs and tests read `error.kind` and `error.fields`, and the message is made of them here.
docs/reference/errors.md lists every kind. A traceback on a user's input is a bug, so the command line turns exactly
these classes into one line on stderr.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from string import Formatter
from typing import Any

LONGEST_QUOTE = 300
"""Characters of a library's message about a file that a message of ours repeats."""
LONGEST_FIELD = 2000
"""Characters of one text in a message. A field of that length comes from a hostile input; `fields` holds it whole."""
MOST_ITEMS = 500
"""Items of one list in a message."""


def printable(text: str) -> str:
    """Return `text` as one line that is safe on a terminal: runs of whitespace become a space, and characters that do
    not print (escape sequences, direction marks, halves of surrogate pairs) their escapes."""
    if text.isprintable():
        return text
    line = re.sub(r"\s*[\n\r\t\v\f\x85\u2028\u2029]\s*", " ", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)


def quoted(text: object) -> str:
    """Return somebody else's text, such as a library's message about a file, as one short line that prints."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}.."


class SsccError(Exception):
    """Base class: an error meant for the person who ran the command. Its message is one line.

    `Kind.MEMBER(field=..)` makes an error of a kind.

    Attributes:
        kind: what went wrong, stable across versions.
        fields: the values that the message states, by name, as JSON has them.
        excerpt: the line of a text that is at fault, and a caret in the next one, to be shown below the message; "" for
            none.
    """

    exit_code = 1

    def __init__(
        self,
        message: object = "",
        *,
        kind: ErrorKind | None = None,
        fields: Mapping[str, Any] | None = None,
        excerpt: str = "",
    ) -> None:
        super().__init__(message)
        self.kind, self.fields, self.excerpt = kind, dict(fields or {}), excerpt

    def as_json(self) -> dict[str, Any]:
        """Return the error as JSON has it: `kind` (its code), `message`, `fields`."""
        return {"kind": self.kind.code if self.kind else None, "message": str(self), "fields": self.fields}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), str(self), self.kind, self.fields, self.excerpt)


def _rebuilt(
    error: type[SsccError], message: str, kind: ErrorKind | None, fields: Mapping[str, Any], excerpt: str
) -> SsccError:
    return error(message, kind=kind, fields=fields, excerpt=excerpt)


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
    """One of the ranks of a program failed or does not answer, which ends the other ranks too."""

    exit_code = 7


class InternalError(SsccError):
    """A broken invariant of sscc itself: please report it."""

    exit_code = 70


class ErrorKind(Enum):
    """Base of the enums of kinds, one for each module that raises errors. A member is `error class, message`.

    The message is a format string over the fields. A field is a text, a number, or a list of them, which is joined by
    commas (`{names!r}` gives each item's `repr`, `{sizes:d}` formats each item), or an error, which gives its message.
    A field that ends in `hint` may be empty. Texts are made printable and bounded, so a hostile name reaches a terminal
    as text.

    A subclass without members may fix the class of the error and a prefix of every message:

        class ProofKind(ErrorKind):
            def __init__(self, message: str) -> None:
                super().__init__(InputError, "the schedule is invalid: {where}: " + message)

    Attributes:
        error: the class of the error.
        template: the message as a format string.
    """

    error: type[SsccError]
    template: str

    def __init__(self, error: type[SsccError], message: str) -> None:
        self.error, self.template = error, message

    @property
    def code(self) -> str:
        """The stable name: the enum's without "Errors" (or "Warnings"), a dot, the member's: "row.too-few"."""
        words = type(self).__name__.removesuffix("Errors").removesuffix("Warnings")
        area = re.sub(r"(?<!^)(?=[A-Z][a-z])", "-", words).lower()
        return f"{area}.{self.name.lower().replace('_', '-')}"

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields, in the order of the message."""
        names = [name for _, name, _, _ in Formatter().parse(self.template) if name is not None]
        return tuple(dict.fromkeys(names))

    def __call__(self, *, excerpt: str = "", **fields: Any) -> SsccError:
        """Return an error of this kind, to be raised.

        Raises:
            TypeError: the fields are not those of the message.
        """
        if fields.keys() != set(self.field_names):
            raise TypeError(f"{self.code} has the fields {self.field_names}, not {tuple(fields)}")
        message = _MESSAGES.vformat(self.template, (), fields)
        return self.error(
            message, kind=self, fields={name: plain(value) for name, value in fields.items()}, excerpt=excerpt
        )


def plain(value: Any) -> Any:
    """Return a field's value as JSON has it. Other objects than texts, numbers, lists and dictionaries become text."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity and no NaN
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, SsccError):
        return value.as_json()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(item) for item in _ordered(value)]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a scalar of numpy or torch
        return plain(value.item())
    return str(value)


def _ordered(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=str) if isinstance(items, set | frozenset) else list(items)


class _Messages(Formatter):
    """Fields as a message shows them."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion is None:
            return value
        if isinstance(value, list | tuple | set | frozenset | range):
            return [super(_Messages, self).convert_field(item, conversion) for item in _ordered(value)]
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list | tuple | set | frozenset | range | dict):
            items = _ordered(value)
            shown = [self.format_field(item, format_spec) for item in items[:MOST_ITEMS]]
            return ", ".join(shown) + (f" and {len(items) - MOST_ITEMS} more" if len(items) > MOST_ITEMS else "")
        if isinstance(value, bool | int | float):
            return format(value, format_spec) if format_spec else str(value)
        text = printable(str(value))
        return text if len(text) <= LONGEST_FIELD else f"{text[:LONGEST_FIELD]}.."


_MESSAGES = _Messages()
