"""Formats of reasoning and tool calls in the text of answers. A format parses them from a stream of text, and has a
grammar for answers that must call a tool.
"""

from sscc.runtime.text.chat_formats.answer import AnswerReader, Call, Part, Text, Thought
from sscc.runtime.text.chat_formats.formats import (
    CALL_FORMATS,
    THOUGHT_FORMATS,
    ChatFormats,
    call_format,
    thought_format,
)
from sscc.runtime.text.chat_formats.tools import Tool

__all__ = [
    "CALL_FORMATS",
    "THOUGHT_FORMATS",
    "AnswerReader",
    "Call",
    "ChatFormats",
    "Part",
    "Text",
    "Thought",
    "Tool",
    "call_format",
    "thought_format",
]
