"""GPT-OSS's answers in OpenAI's harmony format: messages, each in a channel.

A message is `<|channel|>HEADER<|message|>BODY`, up to `<|end|>`, `<|call|>`, `<|return|>` or the end of the answer. The
channel "analysis" is the reasoning and "final" is for the user. So is "commentary", unless its header has
`to=functions.NAME`, which calls that tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from sscc.runtime.text.chat_formats import lark
from sscc.runtime.text.chat_formats.answer import AnswerReader, Call, Part, Text, Thought, begun, found
from sscc.runtime.text.chat_formats.tools import Tool
from sscc.runtime.text.grammar import Grammar, literal

NAME = "openai"
CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
MARKERS = (CHANNEL, MESSAGE, *_ENDS, "<|constrain|>")

THOUGHT_MARKS = (
    f"{CHANNEL}analysis{MESSAGE}",
    "<|end|>",
    f"<|end|><|start|>assistant{CHANNEL}final{MESSAGE}",
)
"""Texts that begin and end the reasoning, and the text that continues with the answer."""

_RECIPIENT = re.compile(r"to=(?:functions\.)?(?P<name>[\w.-]+)")


class HarmonyReader(AnswerReader):
    """Reader of an answer whose prompt ends with `<|start|>assistant`, or within a header or a message.

    Args:
        prompt_end: end of the prompt, after its last `<|start|>`.
        most: maximum number of calls to return; None for all.
        calls: True to return calls; False to treat them as text.
    """

    def __init__(self, prompt_end: str = "", most: int | None = None, *, calls: bool = True) -> None:
        self._most, self._parses_calls = most, calls
        self._header, self._in_body, self._held = "", False, ""
        self._body = ""  # body of a call
        self._prompt = prompt_end
        self._said = False  # text for the user was returned, so that the next message begins a new line
        self.push(prompt_end)

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Process the text up to the next marker. Return False if more text is needed."""
        markers = _ENDS if self._in_body else (MESSAGE,)
        place = found(self._held, markers)
        if place is None:
            stays = begun(self._held, markers)
            free, self._held = self._held[: len(self._held) - stays], self._held[len(self._held) - stays :]
            parts += self._take(free)
            return False
        at, marker = place
        parts += self._take(self._held[:at])
        self._held = self._held[at + len(marker) :]
        if self._in_body:
            parts += self._close()
            self._header, self._in_body = "", False
        else:
            self._in_body = True
            if self._kind() == "text" and self._said:
                parts.append(Text("\n\n"))
        return True

    def _take(self, text: str) -> list[Part]:
        if not text:
            return []
        if not self._in_body:
            self._header += text
            return []
        kind = self._kind()
        if kind == "call":
            self._body += text
            return []
        self._said = self._said or kind == "text"
        return [Thought(text) if kind == "thought" else Text(text)]

    def _kind(self) -> str:
        if self._parses_calls and _RECIPIENT.search(self._header):
            return "call"
        return "thought" if "analysis" in self._header else "text"

    def _close(self) -> list[Part]:
        """Return the call that has ended, if the message is a call."""
        recipient = _RECIPIENT.search(self._header)
        body, self._body = self._body, ""
        if recipient is None or self._kind() != "call":
            return []
        try:
            call = _call(recipient["name"], body)
        except (ValueError, TypeError, RecursionError):
            return [Text(body)] if body else []
        if self._most is not None:
            if self._most == 0:
                return []
            self._most -= 1
        return [call]

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if not self._in_body:
            # An answer without any marker is text.
            left = (self._header + held).removeprefix(self._prompt)
            return [] if CHANNEL in left or not left or self._said else [Text(left)]
        return [*self._take(held), *self._close()]


def _call(name: str, body: str) -> Call:
    value = json.loads(body.strip() or "{}")
    if not isinstance(value, dict):
        raise TypeError("arguments are an object")
    return Call(name, json.dumps(value, ensure_ascii=False))


def answer_grammar(grammar: Grammar, spell: lark.Spelling) -> Grammar:
    """Return the grammar of optional reasoning, and a final message that matches another grammar."""
    rules = lark.Rules()
    rules.parts["answer"] = grammar
    final = f"{spell(CHANNEL)} {literal('final')} {spell(MESSAGE)} @answer"
    return rules.grammar(f"{_thought(rules, spell)}? {final}")


def _thought(rules: lark.Rules, spell: lark.Spelling) -> str:
    start = f"{spell('<|start|>')} {literal('assistant')}"
    return rules.rule(f"{spell(CHANNEL)} {literal('analysis')} {spell(MESSAGE)} /(?s:.*)/ {spell('<|end|>')} {start}")


def call_grammar(tools: Sequence[Tool], several: bool, spell: lark.Spelling) -> Grammar:
    """Return the grammar of optional reasoning and one call. In this format, several calls are several answers."""
    rules = lark.Rules()
    calls = [
        f"{literal(f'functions.{tool.name} ')} {spell('<|constrain|>')} {literal('json')} {spell(MESSAGE)} "
        f"{rules.schema(lark.arguments_schema(tool))}"
        for tool in tools
    ]
    return rules.grammar(
        f"{_thought(rules, spell)}? {spell(CHANNEL)} {literal('commentary to=')} {lark.either(calls)}"
    )
