"""Readers that split the text of an answer into parts: reasoning, text for the user, tool calls.

The parts do not depend on the division of the text into pieces. A reader returns a call when the call is complete; a
call that cannot be parsed is text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Text that the model writes before its answer."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
        name: name of the tool.
        arguments: arguments, a JSON object as text.
    """

    name: str
    arguments: str


Part = Text | Thought | Call


class AnswerReader(ABC):
    """Incremental parser of one answer."""

    @abstractmethod
    def push(self, text: str) -> list[Part]:
        """Append to the text, and return the parts that are complete now."""

    @abstractmethod
    def finish(self) -> list[Part]:
        """Return the remaining parts, at the end of the text."""


def begun(text: str, markers: Sequence[str]) -> int:
    """Return the number of characters at the end of a text that may be the beginning of an incomplete marker."""
    most = min(max(map(len, markers), default=1) - 1, len(text))
    return next((size for size in range(most, 0, -1) if any(m.startswith(text[-size:]) for m in markers)), 0)


def found(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Return the index of the first marker in a text, and the marker; of two at the same index the longer one."""
    places = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker)) >= 0]
    return (min(places)[0], min(places)[2]) if places else None


class MarkedThoughts(AnswerReader):
    """Reader that splits off the reasoning between two markers at the beginning of an answer.

    Args:
        start, end: the markers.
        inside: True if the prompt ended with `start`, so that the answer begins within reasoning.
        rest: reader of the text after the reasoning.
    """

    def __init__(self, start: str, end: str, *, inside: bool, rest: AnswerReader) -> None:
        self._start, self._end = start, end
        self._state = "thought" if inside else "before"
        self._rest = rest
        self._held = ""
        self._bare = True  # only white space was returned from this reasoning, or from the text after it

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        if self._state == "before":
            white = len(self._held) - len(self._held.lstrip())
            if self._held[white:].startswith(self._start):
                self._held, self._state = self._held[white + len(self._start) :], "thought"
            elif not self._start.startswith(self._held[white:]):
                self._state = "after"
                self._bare = False  # there was no reasoning, so the text is returned unchanged
        if self._state == "thought":
            at = self._held.find(self._end)
            parts += self._thought(self._held if at < 0 else self._held[:at], last=at >= 0)
            if at >= 0:
                self._held, self._state, self._bare = self._held[at + len(self._end) :], "after", True
        if self._state == "after":
            given, self._held = self._held, ""
            if self._bare:  # the empty lines between reasoning and text belong to neither
                given = given.lstrip()
                self._bare = not given
            parts += self._rest.push(given) if given else []
        return parts

    def _thought(self, text: str, *, last: bool) -> list[Part]:
        """Return the part of the reasoning that is complete, without the white space around it."""
        stays = 0 if last else begun(text, [self._end])
        free = text[: len(text) - stays]
        kept = free.rstrip()
        if not last:
            self._held = free[len(kept) :] + text[len(free) :]
        if self._bare:
            kept = kept.lstrip()
        self._bare = self._bare and not kept
        return [Thought(kept)] if kept else []

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._state == "thought":
            left = held.rstrip()
            return [Thought(left)] if left else []
        return [*(self._rest.push(held) if held else []), *self._rest.finish()]


class PlainText(AnswerReader):
    """Text alone."""

    def push(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self) -> list[Part]:
        return []
