"""A stream that breaks off in the middle, taken up again from the same request's second stream.

A request's tokens depend on its prompt, its sampling and its seed, and on nothing else (docs/serving.md). So a request
whose seed is settled may be sent again to another replica, from its beginning: what that one makes is what the first
one made. To prefill the prompt and the tokens so far would be another thing, since the rows that a compressed cache
keeps are chosen at the prompt's end. What a client has already is left out of the second stream, and compared: where
the two differ, as between machines with other arithmetic, the stream is not taken up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

END = b"\n\n"
DATA = b"data: "
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":'

Json = dict[str, Any]


class Diverged(Exception):
    """The second stream is not the first one again."""


def events_of(data: bytes) -> Iterator[bytes]:
    """The events of a part of a stream, each with its end."""
    for event in data.split(END):
        if event:
            yield event + END


@dataclass
class _Choice:
    """What was sent of one answer, or is still to come of that.

    Attributes:
        logprobs: an entry per token.
        opened: whether the chunk was there that says whose answer it is.
    """

    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    opened: bool = False
    finish: str | None = None

    def add(self, choice: Json) -> None:
        self.text += _text(choice)
        self.logprobs += _entries(choice)
        self.opened = self.opened or _opens(choice)
        self.finish = choice["finish_reason"] or self.finish

    def rest(self, choice: Json) -> Json | None:
        """What of a chunk's choice is new, and None where nothing is; what is not, is taken off what is expected.

        Raises Diverged.
        """
        text, entries, finish = _text(choice), _entries(choice), choice["finish_reason"]
        old_text, old_entries = min(len(text), len(self.text)), min(len(entries), len(self.logprobs))
        if text[:old_text] != self.text[:old_text] or entries[:old_entries] != self.logprobs[:old_entries]:
            raise Diverged
        self.text, self.logprobs = self.text[old_text:], self.logprobs[old_entries:]
        if finish is not None and (self.text or self.logprobs or self.finish not in (None, finish)):
            raise Diverged  # it ends before the first one did, or otherwise
        if self.finish is not None and (text[old_text:] or entries[old_entries:]):
            raise Diverged  # the first one had ended here
        opens, finished = _opens(choice) and not self.opened, finish is not None and self.finish is None
        self.opened = self.opened or opens
        if not (opens or finished or text[old_text:] or entries[old_entries:]):
            return None
        return _trimmed(choice, old_text, old_entries)


class Replay:
    """What a second stream adds to a first one.

    Args:
        sent: the first stream, as far as it went: whole events.
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
        """What of the next part of the second stream has not been sent, as chunks of the first one's answer.

        Raises Diverged where it is not what was sent.
        """
        return b"".join(self._new(event) for event in events_of(part))

    def _new(self, event: bytes) -> bytes:
        chunk = _chunk(event)
        if chunk is None:
            return event
        if not chunk["choices"]:
            if any(choice.text or choice.logprobs for choice in self._choices.values()):
                raise Diverged
            return b"" if self._usage else self._event(chunk)
        choices = [(choice, self._choices.setdefault(choice["index"], _Choice())) for choice in chunk["choices"]]
        new = [rest for choice, known in choices if (rest := known.rest(choice)) is not None]
        return self._event(chunk | {"choices": new}) if new else b""

    def _event(self, chunk: Json) -> bytes:
        whole = chunk | (self._head or {})
        return DATA + json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode() + END


def _chunk(event: bytes) -> Json | None:
    """What an event says; None of comments, of the end, and of errors."""
    if not event.startswith(DATA) or event == DONE or event.startswith(ERROR):
        return None
    chunk: Json = json.loads(event[len(DATA) :])
    return chunk


def _text(choice: Json) -> str:
    text: str = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
    return text


def _opens(choice: Json) -> bool:
    return "role" in choice.get("delta", {})


def _entries(choice: Json) -> list[Any]:
    """Of the logprobs one entry per token, whichever protocol's."""
    logprobs = choice["logprobs"]
    if logprobs is None:
        return []
    return logprobs["content"] if "content" in logprobs else list(zip(*_columns(logprobs), strict=True))


def _columns(logprobs: Json) -> list[list[Any]]:
    return [value for value in logprobs.values() if isinstance(value, list)]


def _trimmed(choice: Json, characters: int, entries: int) -> Json:
    """A choice without so much of its beginning."""
    logprobs = choice["logprobs"]
    if logprobs is not None:
        logprobs = {key: value[entries:] if isinstance(value, list) else value for key, value in logprobs.items()}
    changed: Json = {"logprobs": logprobs}
    if "delta" not in choice:
        changed["text"] = choice["text"][characters:]
    elif "content" in choice["delta"]:
        changed["delta"] = choice["delta"] | {"content": choice["delta"]["content"][characters:]}
    return choice | changed
