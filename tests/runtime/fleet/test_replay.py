"""A stream that continues on another replica has every part once: reasoning, text, tool calls, logprobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sscc.runtime.serving.engine import Piece
from sscc.runtime.serving.fleet.resumed_stream import Diverged, Replay, events_of
from sscc.runtime.serving.server.answers import ChatFormat, Counts
from sscc.runtime.text.chat_formats import CALL_FORMATS, ChatFormats, thought_format
from sscc.runtime.text.token_text import TokenBytes
from tests.runtime.chat_formats.test_formats import TOOLS
from tests.runtime.server.fake import TOKENIZER

FORMATS = ChatFormats(thought_format("think"), CALL_FORMATS["hermes"])
CALLS = (
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
)
TEXTS = {
    "text": "Hello, you.",
    "a thought": "<think>Hm, yes.</think>\n\nHello.",
    "calls": f"<think>Hm.</think>I look. {CALLS}",
    "calls alone": CALLS,
}


def stream(text: str, size: int) -> list[bytes]:
    """Return the events of an answer that comes in pieces of `size` letters. Each call has ids of its own."""
    form = ChatFormat("m", TokenBytes(TOKENIZER), [FORMATS.reader("", TOOLS)])
    pieces = [Piece((1,), text[begin : begin + size]) for begin in range(0, len(text), size)]
    pieces.append(Piece((2,), "", (), "eos"))
    counts = Counts(1, 1, 0)
    return [event for piece in pieces for event in form.events(0, piece, counts)] + form.closing(counts)


def message(events: list[bytes]) -> dict[str, Any]:
    """Return the message that a client makes of the events."""
    told: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "opened": 0, "finish": []}
    for event in events:
        if event.startswith(b"data: [DONE]"):
            continue
        (choice,) = json.loads(event[6:])["choices"]
        told["content"] += choice["delta"].get("content") or ""
        told["reasoning_content"] += choice["delta"].get("reasoning_content") or ""
        told["calls"] += [(call["index"], call["function"]) for call in choice["delta"].get("tool_calls") or []]
        told["opened"] += "role" in choice["delta"]
        told["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return told


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (7, 2), (200, 1)])
def test_a_stream_goes_on_wherever_it_broke(name: str, sizes: tuple[int, int]) -> None:
    first, second = stream(TEXTS[name], sizes[0]), stream(TEXTS[name], sizes[1])
    whole = message(first)
    assert whole["opened"] == 1
    for sent in range(1, len(first)):
        replay = Replay(b"".join(first[:sent]))
        rest = b"".join(replay.rest(event) for event in second)
        assert message([*first[:sent], *events_of(rest)]) == whole, sent


def test_another_stream_is_noticed() -> None:
    first = stream(TEXTS["calls"], 4)
    for text in (TEXTS["calls"].replace("now", "then"), TEXTS["calls"].replace("Hm", "Oh")):
        replay = Replay(b"".join(first[:-2]))
        with pytest.raises(Diverged):
            replay.rest(b"".join(stream(text, 4)))
