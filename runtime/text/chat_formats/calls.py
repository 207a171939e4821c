"""Formats of tool calls, from the chat templates and examples of the models' publishers.

A format consists of the markers around calls, a parser of the text between them, and a grammar of calls of given tools.
Text that cannot be parsed is not a call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sscc.runtime.text.chat_formats import lark
from sscc.runtime.text.chat_formats.answer import Call
from sscc.runtime.text.chat_formats.tools import Tool
from sscc.runtime.text.grammar import Grammar

Tools = Sequence[Tool]
Reader = Callable[[str, Tools], list[Call]]


@dataclass(frozen=True)
class Block:
    """Markers around calls. Without an end marker, a block ends with the answer."""

    start: str
    end: str | None = None


@dataclass(frozen=True)
class CallFormat:
    """Format of the tool calls of a family of models.

    Attributes:
        name: name of the format, for `--tool-parser`.
        blocks: markers around calls.
        opening: an answer that begins with this text consists of calls; None for no such text.
        read: returns the calls of a block with its markers; none if the block is invalid.
        grammar: returns the grammar of a block, from the tools and a flag for several calls.
    """

    name: str
    blocks: tuple[Block, ...]
    read: Reader
    grammar: Callable[[Tools, bool, lark.Spelling], Grammar]
    opening: str | None = None

    def parse(self, text: str, tools: Tools) -> list[Call]:
        """Return the calls of a block; none if the block contains anything else."""
        try:
            return self.read(text, tools)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, SyntaxError, RecursionError, MemoryError):
            return []

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of the format, which may be special tokens of a tokenizer."""
        ends = [block.end for block in self.blocks if block.end is not None]
        return (*(block.start for block in self.blocks), *ends, *_INNER_MARKERS.get(self.name, ()))


def _call(name: Any, arguments: Any) -> Call:
    """Return a call. Raises TypeError or ValueError for an invalid one."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not (isinstance(name, str) and name and isinstance(arguments, Mapping)):
        raise TypeError("a call has a name and an object of arguments")
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _json_call(value: Any) -> Call:
    """Return the call that a JSON object describes."""
    function = value.get("function", value)
    if isinstance(function, str):  # some models use this key for the name
        function = {**value, "name": function}
    arguments = function.get("arguments", function.get("parameters"))
    return _call(function["name"], {} if arguments is None else arguments)


def _inner(text: str, start: str, end: str | None) -> str:
    """Return the text between markers. The end marker may be missing at the end of the answer."""
    text = text.removeprefix(start)
    return text if end is None else text.removesuffix(end)


def _tool_of(name: str, tools: Tools) -> Tool:
    return next((tool for tool in tools if tool.name == name), Tool(name))


def _whole(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield matches that are separated only by white space. Raises ValueError for anything else."""
    at = 0
    for match in pattern.finditer(text):
        if text[at : match.start()].strip():
            raise ValueError("there is text between calls")
        at = match.end()
        yield match
    if text[at:].strip() or at == 0:
        raise ValueError("there is text after the calls")


# ------------------------------------------------------------------------------------------------------------- JSON


def _read_hermes(text: str, tools: Tools) -> list[Call]:
    value = json.loads(_inner(text, "<tool_call>", "</tool_call>"))
    return [_json_call(each) for each in (value if isinstance(value, list) else [value])]


def _read_llama(text: str, tools: Tools) -> list[Call]:
    """Return Llama 3's calls: `{"name": .., "parameters": {..}}`, separated by semicolons. No marker identifies a call,
    so only calls of existing tools count."""
    text = text.strip().removeprefix("<|python_tag|>").strip()
    decoder, calls = json.JSONDecoder(), []
    while text:
        value, end = decoder.raw_decode(text)
        calls.append(_json_call(value))
        text = text[end:].strip().removeprefix(";").strip()
    if not {call.name for call in calls} <= {tool.name for tool in tools}:
        raise ValueError("no such tool")
    return calls


_MISTRAL_NAMED = re.compile(r"\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")


def _read_mistral(text: str, tools: Tools) -> list[Call]:
    """Return Mistral's calls: `[TOOL_CALLS] [{"name": .., "arguments": {..}}, ..]` or, since the 11th tokenizer,
    `[TOOL_CALLS]name[ARGS]{..}` for each call."""
    decoder, calls = json.JSONDecoder(), []
    if not _MISTRAL_NAMED.match(text):
        value, _ = decoder.raw_decode(_inner(text, "[TOOL_CALLS]", None).strip())
        return [_json_call(each) for each in (value if isinstance(value, list) else [value])]
    while text.strip():
        match = _MISTRAL_NAMED.match(text.lstrip())
        if match is None:
            raise ValueError("there is text between calls")
        rest = text.lstrip()[match.end() :]
        value, end = decoder.raw_decode(rest)
        calls.append(_call(match["name"], value))
        text = rest[end:]
    return calls


_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(?P<head>[^<]*)<｜tool▁sep｜>(?P<body>.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCED = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```\s*", re.DOTALL)


def _read_deepseek(text: str, tools: Tools) -> list[Call]:
    """Return DeepSeek's calls. V3 and R1 write `function<sep>name`, and the arguments in a fence; V3.1 writes
    `name<sep>arguments`."""
    calls = []
    for match in _whole(_DEEPSEEK, _inner(text, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")):
        fenced = _FENCED.fullmatch(match["body"])
        if fenced is not None:
            calls.append(_call(fenced["name"].strip(), json.loads(fenced["arguments"])))
        else:
            calls.append(_call(match["head"].strip(), json.loads(match["body"])))
    return calls


_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?P<id>[^<\s]+)\s*<\|tool_call_argument_begin\|>(?P<arguments>.*?)<\|tool_call_end\|>",
    re.DOTALL,
)


def _read_kimi(text: str, tools: Tools) -> list[Call]:
    """Return Kimi's calls: `functions.name:0`, then the arguments."""
    inner = _inner(text, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    return [
        _call(match["id"].removeprefix("functions.").rpartition(":")[0], json.loads(match["arguments"]))
        for match in _whole(_KIMI, inner)
    ]


# -------------------------------------------------------------------------------------------------------------- XML


_QWEN_FUNCTION = re.compile(r"<function=(?P<name>[^>]+)>(?P<body>.*?)(?:</function>|\Z)", re.DOTALL)
_QWEN_PARAMETER = re.compile(r"<parameter=(?P<name>[^>]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(?P<name>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)
_INVOKE = re.compile(r'<(?:｜DSML｜)?invoke name="(?P<name>[^"]+)">(?P<body>.*?)</(?:｜DSML｜)?invoke>', re.DOTALL)
_INVOKE_PARAMETER = re.compile(
    r'<(?:｜DSML｜)?parameter name="(?P<name>[^"]+)"(?: string="(?P<string>true|false)")?>(?P<value>.*?)'
    r"</(?:｜DSML｜)?parameter>",
    re.DOTALL,
)


def _read_qwen_coder(text: str, tools: Tools) -> list[Call]:
    return [
        _typed_call(match["name"].strip(), match["body"], _QWEN_PARAMETER, tools)
        for match in _whole(_QWEN_FUNCTION, _inner(text, "<tool_call>", "</tool_call>"))
    ]


def _typed_call(name: str, body: str, pattern: re.Pattern[str], tools: Tools) -> Call:
    tool = _tool_of(name, tools)
    found = list(_whole(pattern, body)) if body.strip() else []
    return _call(name, {match["name"].strip(): tool.argument(match["name"].strip(), match["value"]) for match in found})


def _read_glm(text: str, tools: Tools) -> list[Call]:
    inner = _inner(text, "<tool_call>", "</tool_call>").strip()
    name, mark, rest = inner.partition("<arg_key>")
    return [_typed_call(name.strip(), mark + rest, _GLM_ARGUMENT, tools)]


def _read_invokes(text: str, tools: Tools) -> list[Call]:
    """Return calls in `<invoke>` elements. DeepSeek V3.2 marks parameters that are strings; MiniMax does not."""
    for name in ("｜DSML｜function_calls", "｜DSML｜tool_calls", "minimax:tool_call"):
        text = _inner(text.strip(), f"<{name}>", f"</{name}>")
    calls = []
    for match in _whole(_INVOKE, text):
        tool, arguments = _tool_of(match["name"], tools), {}
        for one in _whole(_INVOKE_PARAMETER, match["body"]) if match["body"].strip() else ():
            if one["string"] is None:
                arguments[one["name"]] = tool.argument(one["name"], one["value"])
            else:
                arguments[one["name"]] = one["value"] if one["string"] == "true" else json.loads(one["value"])
        calls.append(_call(match["name"], arguments))
    return calls


# ------------------------------------------------------------------------------------------------ Gemma's, and Python's


class _GemmaArguments:
    """Parser of `{key:value, ..}` with bare keys and quoted strings."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self._at = text, quote, 0

    def whole(self) -> Any:
        """Return the object that is the whole text. Raises ValueError."""
        value = self._value()
        if not isinstance(value, dict) or self._text[self._at :].strip():
            raise ValueError("it is not one object")
        return value

    def _value(self) -> Any:
        if self._taken(self._quote):
            return self._quoted()
        if self._taken("{"):
            pairs = {}
            while not self._taken("}"):
                name = self._quoted() if self._taken(self._quote) else self._until(":").strip()
                self._need(":")
                pairs[name] = self._value()
                self._comma("}")
            return pairs
        if self._taken("["):
            values = []
            while not self._taken("]"):
                values.append(self._value())
                self._comma("]")
            return values
        return json.loads(self._until(",}]").strip())

    def _taken(self, word: str) -> bool:
        self._at += len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def _need(self, word: str) -> None:
        if not self._taken(word):
            raise ValueError(f"no {word}")

    def _comma(self, end: str) -> None:
        if not self._taken(",") and not self._text[self._at :].lstrip().startswith(end):
            raise ValueError("no comma")

    def _quoted(self) -> str:
        at = self._text.index(self._quote, self._at)
        value, self._at = self._text[self._at : at], at + len(self._quote)
        return value

    def _until(self, ends: str) -> str:
        match = re.compile(f"[{re.escape(ends)}]").search(self._text, self._at)
        if match is None:
            raise ValueError("it does not end")
        value, self._at = self._text[self._at : match.start()], match.start()
        return value


def _gemma_reader(start: str, end: str, quote: str) -> Reader:
    def read(text: str, tools: Tools) -> list[Call]:
        name, brace, rest = _inner(text, start, end).strip().removeprefix("call:").partition("{")
        return [_call(name.strip(), _GemmaArguments(brace + rest, quote).whole())]

    return read


def _read_python(text: str, tools: Tools) -> list[Call]:
    """Return calls in Python's syntax: `[name(key=value, ..), ..]`, with literals only."""
    text = text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>").strip()
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.List):
        raise ValueError("it is no list")
    calls = []
    for each in tree.elts:
        if not isinstance(each, ast.Call) or each.args:
            raise ValueError("it is no call with named arguments")
        arguments = {word.arg: ast.literal_eval(word.value) for word in each.keywords if word.arg is not None}
        if len(arguments) != len(each.keywords):
            raise ValueError("it is no call with named arguments")
        calls.append(_call(ast.unparse(each.func), arguments))
    if not {call.name for call in calls} <= {tool.name for tool in tools}:
        raise ValueError("no such tool")
    return calls


# --------------------------------------------------------------------------------------------------------- the table


_INNER_MARKERS = {
    "mistral": ("[ARGS]", "[CALL_ID]"),
    "deepseek_v3": ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "gemma4": ('<|"|>',),
    "functiongemma": ("<escape>",),
    "glm45": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
}
"""Markers within blocks that are special tokens of some tokenizers."""

_TOOL_CALL = Block("<tool_call>", "</tool_call>")
_DEEPSEEK_CALLS = Block("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def _gemma(name: str, start: str, end: str, quote: str) -> CallFormat:
    return CallFormat(name, (Block(start, end),), _gemma_reader(start, end, quote), lark.gemma(start, end, quote))


FORMATS = (
    CallFormat("hermes", (_TOOL_CALL,), _read_hermes, lark.hermes),
    CallFormat("qwen3_coder", (_TOOL_CALL, Block("<function=", "</function>")), _read_qwen_coder, lark.qwen_coder),
    CallFormat("llama3_json", (Block("<|python_tag|>"),), _read_llama, lark.llama, opening="{"),
    CallFormat("mistral", (Block("[TOOL_CALLS]"),), _read_mistral, lark.mistral),
    CallFormat("deepseek_v3", (_DEEPSEEK_CALLS,), _read_deepseek, lark.deepseek_fenced),
    CallFormat("deepseek_v31", (_DEEPSEEK_CALLS,), _read_deepseek, lark.deepseek),
    CallFormat(
        "deepseek_v32",
        (
            Block("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
            Block("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
        ),
        _read_invokes,
        lark.dsml,
    ),
    CallFormat("minimax_m2", (Block("<minimax:tool_call>", "</minimax:tool_call>"),), _read_invokes, lark.minimax),
    CallFormat("glm45", (_TOOL_CALL,), _read_glm, lark.glm),
    CallFormat(
        "kimi_k2", (Block("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),), _read_kimi, lark.kimi
    ),
    _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    _gemma("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    CallFormat("pythonic", (Block("<|python_start|>", "<|python_end|>"),), _read_python, lark.python, opening="["),
)
"""Formats by vLLM's names."""
