"""Resuming a broken stream with the stream of a repeated request.

The tokens of a request depend only on its prompt, its sampling parameters and its seed (docs/serving.md). So a request
with a fixed seed can be sent again to another replica, which generates the same tokens. The alternative, to prefill the
prompt and the tokens so far, would give different results, because a compressed cache selects its rows at the end of
the prompt. The part of the second stream that the client already has is compared with the first stream and left out. If
they differ, for example between machines with different arithmetic, the stream is not resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

END = b"\n\n"
DATA = b"data: "
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":'

Json = dict[str, Any]


class Diverged(Exception):
    """The second stream does not repeat the first one."""


def events_of(data: bytes) -> Iterator[bytes]:
    """Yield the events of a part of a stream, each with its terminator."""
    for event in data.split(END):
        if event:
            yield event + END


@dataclass
class _Choice:
    """One answer: while the first stream is read, what was sent; then what is expected from the second stream.

    Attributes:
        texts: text and thought of the answer, by the names of their fields.
        calls: deltas of tool calls, without their ids, which are random.
        logprobs: one entry per token.
        opened: True if the first chunk, with the role, has been sent.
        finish: finish reason, if it has been sent.
    """

    texts: dict[str, str] = field(default_factory=dict)
    calls: list[Json] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    opened: bool = False
    finish: str | None = None

    @property
    def awaits(self) -> bool:
        """True while a part that was sent has not been repeated."""
        return any(self.texts.values()) or bool(self.calls or self.logprobs)

    def add(self, choice: Json) -> None:
        for name, text in _texts(choice).items():
            self.texts[name] = self.texts.get(name, "") + text
        self.calls += _calls(choice)
        self.logprobs += _entries(choice)
        self.opened = self.opened or _opens(choice)
        self.finish = choice["finish_reason"] or self.finish

    def rest(self, choice: Json) -> Json | None:
        """Return the new part of a chunk's choice, or None, and remove the repeated part from the expected text.

        Raises Diverged.
        """
        old = {name: self._known(name, text) for name, text in _texts(choice).items()}
        old_calls, self.calls = _common(_calls(choice), self.calls)
        old_entries, self.logprobs = _common(_entries(choice), self.logprobs)
        rest = _trimmed(choice, old, old_calls, old_entries)
        is_new = bool(any(_texts(rest).values()) or _calls(rest) or _entries(rest))
        finish = choice["finish_reason"]
        if finish is not None and (self.awaits or self.finish not in (None, finish)):
            raise Diverged  # the second answer ends earlier or for another reason
        if self.finish is not None and is_new:
            raise Diverged  # the second answer continues after the end of the first one
        opens, finished = _opens(choice) and not self.opened, finish is not None and self.finish is None
        self.opened = self.opened or opens
        return rest if opens or finished or is_new else None

    def _known(self, name: str, text: str) -> int:
        """Return the number of repeated characters of a text, and remove them from the expected text. Raises
        Diverged."""
        expected = self.texts.get(name, "")
        count = min(len(text), len(expected))
        if text[:count] != expected[:count]:
            raise Diverged
        self.texts[name] = expected[count:]
        return count


def _common(items: list[Any], expected: list[Any]) -> tuple[int, list[Any]]:
    """Return the number of repeated items, and the remaining expected items. Raises Diverged."""
    count = min(len(items), len(expected))
    if items[:count] != expected[:count]:
        raise Diverged
    return count, expected[count:]


class Replay:
    """Extracts the new part of a repeated stream.

    Args:
        sent: the first stream as far as it was sent, in whole events.
    """

    def __init__(self, sent: bytes) -> None:
        self._choices: dict[int, _Choice] = {}
        self._head: Json | None = None
        self._usage = False
        for event in events_of(sent):
            chunk = _chunk(event)
            if chunk is None:
                continue
            if self._head is None:
                self._head = {"id": chunk["id"], "created": chunk["created"]}
            self._usage = self._usage or not chunk["choices"]
            for choice in chunk["choices"]:
                self._choices.setdefault(choice["index"], _Choice()).add(choice)

    def rest(self, part: bytes) -> bytes:
        """Return the new events in a part of the second stream, with the id and creation time of the first one.

        Raises Diverged if the stream does not repeat the first one.
        """
        return b"".join(self._new(event) for event in events_of(part))

    def _new(self, event: bytes) -> bytes:
        chunk = _chunk(event)
        if chunk is None:
            return event
        if not chunk["choices"]:
            if any(choice.awaits for choice in self._choices.values()):
                raise Diverged
            return b"" if self._usage else self._event(chunk)
        choices = [(choice, self._choices.setdefault(choice["index"], _Choice())) for choice in chunk["choices"]]
        new = [rest for choice, known in choices if (rest := known.rest(choice)) is not None]
        return self._event(chunk | {"choices": new}) if new else b""

    def _event(self, chunk: Json) -> bytes:
        whole = chunk | (self._head or {})
        return DATA + json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode() + END


def _chunk(event: bytes) -> Json | None:
    """Return the chunk in an event; None for comments, the end marker and errors."""
    if not event.startswith(DATA) or event == DONE or event.startswith(ERROR):
        return None
    chunk: Json = json.loads(event[len(DATA) :])
    return chunk


def _texts(choice: Json) -> dict[str, str]:
    """Return the texts of a chunk's choice by the names of their fields."""
    if "delta" not in choice:
        return {"text": choice["text"]}
    return {name: choice["delta"].get(name) or "" for name in ("content", "reasoning_content")}


def _calls(choice: Json) -> list[Json]:
    """Return the deltas of tool calls without their ids."""
    deltas = choice.get("delta", {}).get("tool_calls") or []
    return [{name: value for name, value in delta.items() if name != "id"} for delta in deltas]


def _opens(choice: Json) -> bool:
    return "role" in choice.get("delta", {})


def _entries(choice: Json) -> list[Any]:
    """Return the logprobs of a choice with one entry per token, for either protocol."""
    logprobs = choice["logprobs"]
    if logprobs is None:
        return []
    return logprobs["content"] if "content" in logprobs else list(zip(*_columns(logprobs), strict=True))


def _columns(logprobs: Json) -> list[list[Any]]:
    return [value for value in logprobs.values() if isinstance(value, list)]


def _trimmed(choice: Json, letters: Mapping[str, int], calls: int, entries: int) -> Json:
    """Return a choice without the given numbers of leading characters, calls and logprob entries."""
    logprobs = choice["logprobs"]
    if logprobs is not None:
        logprobs = {key: value[entries:] if isinstance(value, list) else value for key, value in logprobs.items()}
    changed: Json = {"logprobs": logprobs}
    if "delta" not in choice:
        return choice | changed | {"text": choice["text"][letters["text"] :]}
    delta = dict(choice["delta"])
    for name, count in letters.items():
        if delta.get(name) is not None:
            delta[name] = delta[name][count:]
    if calls:
        delta["tool_calls"] = delta["tool_calls"][calls:]
    return choice | changed | {"delta": delta}
