"""Tool calls between markers, parsed from a stream of text."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.runtime.text.chat_formats.answer import AnswerReader, Part, Text, begun, found
from sscc.runtime.text.chat_formats.calls import CallFormat
from sscc.runtime.text.chat_formats.tools import Tool


class MarkedCalls(AnswerReader):
    """Reader of tool calls between markers, or in an answer that begins like a call.

    Args:
        form: format of the calls.
        tools: tools that may be called.
        most: maximum number of calls to return; None for all. Further calls are dropped.
    """

    def __init__(self, form: CallFormat, tools: Sequence[Tool], most: int | None = None) -> None:
        self._form, self._tools, self._most = form, tools, most
        self._starts = [block.start for block in form.blocks]
        self._held = ""
        self._end: str | None = None  # end marker of the current block
        self._inside = False
        self._searched = 0  # characters of the held text in which no end marker begins
        self._beginning = True  # at the beginning of the answer: only white space so far
        self._white = ""  # white space at the end of the text so far; dropped before a call
        self._calls = 0

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while True:
            if not self._inside and not self._enter(parts):
                return parts
            at = -1 if self._end is None else self._held.find(self._end, self._searched)
            if at < 0:
                self._searched = max(len(self._held) - len(self._end or ""), self._searched)
                return parts
            assert self._end is not None
            whole, self._held = self._held[: at + len(self._end)], self._held[at + len(self._end) :]
            self._inside = False
            parts += self._block(whole)

    def _enter(self, parts: list[Part]) -> bool:
        """Append text before a block of calls to `parts`. Return True if a block has begun, which is then held."""
        if self._beginning and self._form.opening is not None:
            stripped = self._held.lstrip()
            if not stripped:
                return False
            if self._form.opening.startswith(stripped[: len(self._form.opening)]):
                if len(stripped) < len(self._form.opening):
                    return False
                self._inside, self._end = True, None
                return True
        place = found(self._held, self._starts)
        if place is not None:
            at, start = place
            parts += self._text(self._held[:at])
            self._held = self._held[at:]
            self._end = next(block.end for block in self._form.blocks if block.start == start)
            self._inside, self._searched = True, len(start)
            return True
        stays = begun(self._held, self._starts) if self._starts else 0
        free = self._held[: len(self._held) - stays]
        self._held = self._held[len(free) :]
        parts += self._text(free)
        return False

    def _text(self, text: str) -> list[Part]:
        """Return the text that is certainly not part of a call. White space at its end is held until more text
        follows."""
        if text.strip():
            self._beginning = False
        text = self._white + text
        kept = text.rstrip()
        self._white = text[len(kept) :]
        return [Text(kept)] if kept else []

    def _block(self, whole: str) -> list[Part]:
        """Return the calls of a block, or its text if it has none."""
        calls = self._form.parse(whole, self._tools)
        if not calls:
            return self._text(whole)
        self._beginning, self._white = False, ""
        left = len(calls) if self._most is None else max(self._most - self._calls, 0)
        self._calls += len(calls)
        return list(calls[:left])

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        parts = self._block(held) if self._inside else self._text(held)
        self._inside = False
        if self._white and not self._calls:
            parts.append(Text(self._white))
        self._white = ""
        return parts
