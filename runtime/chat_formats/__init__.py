"""What models write around their answers: thoughts, and calls of tools. A format reads them from text as it comes, and
says what a call must look like where one is asked for.
"""

from sscc.runtime.chat_formats.answer import AnswerReader, Call, Part, Text, Thought
from sscc.runtime.chat_formats.formats import CALL_FORMATS, THOUGHT_FORMATS, ChatFormats, call_format, thought_format
from sscc.runtime.chat_formats.tools import Tool

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
