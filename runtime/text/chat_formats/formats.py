"""Formats of a model's answers, chosen by its chat template or by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.text.chat_formats import calls, harmony, lark
from sscc.runtime.text.chat_formats.answer import AnswerReader, MarkedThoughts, PlainText
from sscc.runtime.text.chat_formats.calls import CallFormat
from sscc.runtime.text.chat_formats.lark import Spelling
from sscc.runtime.text.chat_formats.marked_calls import MarkedCalls
from sscc.runtime.text.chat_formats.tools import Tool
from sscc.runtime.text.grammar import Grammar

Form = TypeVar("Form")

NONE = "none"
"""Name for the absence of a format."""


class ChatFormatErrors(ErrorKind):
    UNKNOWN = UsageError, "there is no {kind} {name!r}, only {known}"


@dataclass(frozen=True)
class ThoughtFormat:
    """Markers around reasoning."""

    name: str
    start: str
    end: str


THOUGHTS = (
    ThoughtFormat("think", "<think>", "</think>"),
    ThoughtFormat("mistral", "[THINK]", "[/THINK]"),
    ThoughtFormat("gemma4", "<|channel>thought\n", "<channel|>"),
    ThoughtFormat("seed_oss", "<seed:think>", "</seed:think>"),
    ThoughtFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
)
CALL_FORMATS = {form.name: form for form in calls.FORMATS}
THOUGHT_FORMATS = {form.name: form for form in THOUGHTS}

_TOLD: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("deepseek_v32", lambda source: "｜DSML｜" in source),
    ("deepseek_v3", lambda source: "tool▁calls▁begin" in source and "```json" in source),
    ("deepseek_v31", lambda source: "tool▁calls▁begin" in source),
    ("kimi_k2", lambda source: "<|tool_calls_section_begin|>" in source),
    ("minimax_m2", lambda source: "<minimax:tool_call>" in source),
    ("gemma4", lambda source: "<|tool_call>" in source),
    ("functiongemma", lambda source: "<start_function_call>" in source),
    ("mistral", lambda source: "[TOOL_CALLS]" in source),
    ("glm45", lambda source: "<arg_key>" in source),
    ("qwen3_coder", lambda source: "<function=" in source and "<parameter=" in source),
    ("hermes", lambda source: "<tool_call>" in source),
    ("pythonic", lambda source: "<|python_start|>" in source or "[func_name1(" in source),
    ("llama3_json", lambda source: '"parameters": dictionary of argument name' in source or "<|python_tag|>" in source),
)
"""Formats of calls, and the condition on a chat template for each; the first match is used."""


@dataclass(frozen=True)
class ChatFormats:
    """Formats of a model's answers.

    Attributes:
        thought: format of reasoning; None if the model writes none, or it is not split off.
        call: format of tool calls; None if the model makes none.
        is_harmony: True if both are OpenAI's harmony.
    """

    thought: ThoughtFormat | None = None
    call: CallFormat | None = None
    is_harmony: bool = False

    @classmethod
    def from_template(cls, template: str) -> ChatFormats:
        """Return the formats that a chat template indicates."""
        if harmony.CHANNEL in template and harmony.MESSAGE in template:
            return cls(is_harmony=True)
        call = next((name for name, tells in _TOLD if tells(template)), None)
        thought = next((form for form in THOUGHTS if form.start.strip() in template or form.end in template), None)
        return cls(thought, None if call is None else CALL_FORMATS[call])

    def with_names(self, thought: str | None, call: str | None) -> ChatFormats:
        """Return these formats with one or both replaced, by name; None keeps a format.

        Raises UsageError for a name that no format has.
        """
        if harmony.NAME in (thought, call):
            return ChatFormats(is_harmony=True)
        if thought is None and call is None:
            return self
        return ChatFormats(
            self.thought if thought is None else thought_format(thought),
            self.call if call is None else call_format(call),
        )

    @property
    def calls(self) -> bool:
        """True if the model can call tools."""
        return self.is_harmony or self.call is not None

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that must be in the text of an answer even if they are special tokens."""
        if self.is_harmony:
            return harmony.MARKERS
        thought = () if self.thought is None else (self.thought.start.strip(), self.thought.end)
        return (*thought, *(() if self.call is None else self.call.markers))

    def reader(self, prompt: str, tools: Sequence[Tool], most_calls: int | None = None) -> AnswerReader:
        """Return a reader of the answer to a prompt.

        Args:
            tools: tools that the model may call; empty to treat calls as text.
            most_calls: maximum number of calls to return; None for all.
        """
        if self.is_harmony:
            end = prompt.rpartition("<|start|>")[2] if "<|start|>" in prompt else ""
            return harmony.HarmonyReader(end, most_calls, calls=bool(tools))
        reads_calls = self.call is not None and bool(tools)
        rest = MarkedCalls(self.call, tools, most_calls) if self.call is not None and reads_calls else PlainText()
        if self.thought is None:
            return rest
        return MarkedThoughts(self.thought.start, self.thought.end, inside=self.thinks(prompt), rest=rest)

    def thinks(self, prompt: str) -> bool:
        """Return True if a prompt ends within reasoning."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought.start.rstrip())

    def answer_grammar(self, answer: Grammar, calls: Grammar | None, prompt: str, spell: Spelling) -> Grammar:
        """Return the grammar of an answer that matches another grammar or calls tools, with the reasoning before it.

        Args:
            calls: grammar of calls (`call_grammar`); None if no tools may be called.
            prompt: prompt, whose end determines if the answer begins within reasoning.
        """
        if self.is_harmony:
            answer = harmony.answer_grammar(answer, spell)
        if calls is not None:
            answer = Grammar.joined("start: @answer | @calls", {"answer": answer, "calls": calls})
        return self.after_thought(answer, prompt, spell)

    def after_thought(self, grammar: Grammar, prompt: str, spell: Spelling) -> Grammar:
        """Return the grammar of optional reasoning, followed by a match of another grammar."""
        if self.thought is None:
            return grammar
        inside = self.thinks(prompt)
        return lark.after_thought(grammar, self.thought.start, self.thought.end, spell, inside=inside)

    def thought_marks(self) -> tuple[str, str, str] | None:
        """Return the markers that begin and end reasoning, and the text that forces its end; None if the model does not
        think."""
        if self.is_harmony:
            return harmony.THOUGHT_MARKS
        return None if self.thought is None else (self.thought.start, self.thought.end, self.thought.end)

    def call_grammar(self, tools: Sequence[Tool], several: bool, spell: Spelling) -> Grammar:
        """Return the grammar of calls of these tools. A model with an unknown format of calls uses that of Hermes."""
        if self.is_harmony:
            return harmony.call_grammar(tools, several, spell)
        form = self.call or CALL_FORMATS["hermes"]
        return form.grammar(tools, several, spell)


def call_format(name: str) -> CallFormat | None:
    """Return a format of calls by its name; None for "none". Raises UsageError."""
    return _named("tool parser", name, CALL_FORMATS)


def thought_format(name: str) -> ThoughtFormat | None:
    """Return a format of reasoning by its name; None for "none". Raises UsageError."""
    return _named("reasoning parser", name, THOUGHT_FORMATS)


def _named(kind: str, name: str, forms: Mapping[str, Form]) -> Form | None:
    if name == NONE:
        return None
    if name not in forms:
        raise ChatFormatErrors.UNKNOWN(kind=kind, name=name, known=[*forms, harmony.NAME, NONE])
    return forms[name]
