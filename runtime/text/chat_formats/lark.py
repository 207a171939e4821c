"""Grammars of tool calls in llguidance's Lark, for answers that must call a tool.

A grammar describes one block that the format's reader accepts. Arguments in JSON match the tools' schemas; values in a
syntax of the format's own match the types in the schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sscc.runtime.text.chat_formats.tools import Tool, types_of
from sscc.runtime.text.grammar import Grammar
from sscc.runtime.text.grammar import literal as text

Spelling = Callable[[str], str]
"""Returns Lark for a marker: its token if it is a special one, otherwise its text."""

Tools = Sequence[Tool]


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: always an object, even if the tool declares something else."""
    schema = dict(tool.parameters)
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


class Rules:
    """Rules of a grammar under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parts: dict[str, Grammar] = {}

    def schema(self, schema: Mapping[str, Any] | bool) -> str:
        """Return a reference to the grammar of a JSON Schema."""
        name = f"part{len(self.parts)}"
        self.parts[name] = Grammar.json_schema(schema)
        return f"@{name}"

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule and return its name."""
        name = f"rule{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def ended(self, end: str) -> str:
        """Return the name of a rule for any text that ends with `end`."""
        return self.rule("/(?s:.*)/", f"[suffix={text(end)}]")

    def grammar(self, start: str) -> Grammar:
        return Grammar.joined("\n".join([f"start: {start}", *self.lines]), self.parts)


def either(bodies: Sequence[str]) -> str:
    return f"({' | '.join(bodies)})"


def after_thought(grammar: Grammar, start: str, end: str, spell: Spelling, *, inside: bool) -> Grammar:
    """Return the grammar of reasoning, followed by a match of another grammar.

    Args:
        start, end: the markers of the reasoning.
        inside: True if the reasoning has begun already; otherwise it is optional.
    """
    rules = Rules()
    rules.parts["answer"] = grammar
    mark = spell(end)
    free = f"/(?s:.*)/ {mark}" if mark.startswith("<") else rules.ended(end)
    blank = r"/[ \n]{0,4}/"
    return rules.grammar(f"{free} {blank} @answer" if inside else f"({spell(start)} {free} {blank})? @answer")


def _repeated(one: str, several: bool, between: str = "") -> str:
    return f"{one} ({between} {one})*" if several else one


def _json_calls(rules: Rules, tools: Tools, arguments: str) -> str:
    """Return Lark for a JSON object with the name and the arguments of a call."""
    bodies = [
        f"{text(json.dumps({'name': tool.name}, ensure_ascii=False)[:-1] + f', {json.dumps(arguments)}: ')} "
        f"{rules.schema(arguments_schema(tool))}"
        for tool in tools
    ]
    return f"{either(bodies)} {text('}')}"


def hermes(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    rules = Rules()
    call = _json_calls(rules, tools, "arguments")
    one = rules.rule(f'{spell("<tool_call>")} "\\n" {call} "\\n" {spell("</tool_call>")}')
    return rules.grammar(_repeated(one, several, '"\\n"'))


def llama(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    rules = Rules()
    one = rules.rule(_json_calls(rules, tools, "parameters"))
    return rules.grammar(_repeated(one, several, '"; "'))


def mistral(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    """Return the grammar of Mistral's calls: the newer form if the tokenizer has a token for it."""
    rules = Rules()
    start, mark = spell("[TOOL_CALLS]"), spell("[ARGS]")
    if mark.startswith("<"):
        bodies = [f"{text(tool.name)} {mark} {rules.schema(arguments_schema(tool))}" for tool in tools]
        one = rules.rule(f"{start} {either(bodies)}")
        return rules.grammar(_repeated(one, several))
    one = rules.rule(_json_calls(rules, tools, "arguments"))
    return rules.grammar(f'{start} " "? "[" {_repeated(one, several, text(", "))} "]"')


def deepseek(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    """Return the grammar of V3.1's calls."""
    return _deepseek(tools, several, spell, fenced=False)


def deepseek_fenced(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    """Return the grammar of V3's and R1's calls."""
    return _deepseek(tools, several, spell, fenced=True)


def _deepseek(tools: Tools, several: bool, spell: Spelling, *, fenced: bool) -> Grammar:
    rules, mark = Rules(), spell("<｜tool▁sep｜>")
    before, after = ("\n```json\n", "\n```") if fenced else ("", "")
    bodies = []
    for tool in tools:
        head = f"{text('function')} {mark} {text(tool.name + before)}" if fenced else f"{text(tool.name)} {mark}"
        bodies.append(f"{head} {rules.schema(arguments_schema(tool))}" + (f" {text(after)}" if after else ""))
    one = rules.rule(f"{spell('<｜tool▁call▁begin｜>')} {either(bodies)} {spell('<｜tool▁call▁end｜>')}")
    begin, end = spell("<｜tool▁calls▁begin｜>"), spell("<｜tool▁calls▁end｜>")
    calls = _repeated(one, several, text(chr(10)) if fenced else "")
    return rules.grammar(f"{begin} {calls} {end}")


def kimi(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    rules = Rules()
    mark = spell("<|tool_call_argument_begin|>")
    bodies = [
        f"{text(f'functions.{tool.name}:')} /[0-9]{{1,3}}/ {mark} {rules.schema(arguments_schema(tool))}"
        for tool in tools
    ]
    one = rules.rule(f"{spell('<|tool_call_begin|>')} {either(bodies)} {spell('<|tool_call_end|>')}")
    begin, end = spell("<|tool_calls_section_begin|>"), spell("<|tool_calls_section_end|>")
    return rules.grammar(f"{begin} {_repeated(one, several)} {end}")


# -------------------------------------------------------------------------------------------------------------- XML


def _is_text(schema: Mapping[str, Any]) -> bool:
    return types_of(schema) <= {"string"} and "enum" not in schema and "const" not in schema


def _bare(rules: Rules, schema: Mapping[str, Any], end: str) -> str:
    """Return Lark for a value without quotes, and the text that ends it."""
    if _is_text(schema):
        return rules.ended(end)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        spelt = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
        return f"{either([text(value) for value in spelt])} {text(end)}"
    return f"{rules.schema(schema)} {text(end)}"


def _parameters(tool: Tool, one: Callable[[str, Mapping[str, Any]], str]) -> str:
    """Return Lark for the parameters of a call, in order; optional parameters may be omitted."""
    bodies = [
        f"({one(name, schema)})" + ("" if name in tool.required else "?") for name, schema in tool.properties.items()
    ]
    return " ".join(bodies)


def qwen_coder(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    rules = Rules()

    def parameter(name: str, schema: Mapping[str, Any]) -> str:
        return f"{text(f'<parameter={name}>' + chr(10))} {_bare(rules, schema, chr(10) + '</parameter>' + chr(10))}"

    bodies = [
        rules.rule(f"{text(f'<function={tool.name}>' + chr(10))} {_parameters(tool, parameter)} {text('</function>')}")
        for tool in tools
    ]
    one = rules.rule(f'{spell("<tool_call>")} "\\n" {either(bodies)} "\\n" {spell("</tool_call>")}')
    return rules.grammar(_repeated(one, several, '"\\n"'))


def glm(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    rules = Rules()

    def parameter(name: str, schema: Mapping[str, Any]) -> str:
        key = f"{spell('<arg_key>')} {text(name)} {spell('</arg_key>')} {text(chr(10))} {spell('<arg_value>')}"
        return f"{key} {_bare(rules, schema, '</arg_value>')} {text(chr(10))}"

    bodies = [rules.rule(f"{text(tool.name + chr(10))} {_parameters(tool, parameter)}") for tool in tools]
    one = rules.rule(f"{spell('<tool_call>')} {either(bodies)} {spell('</tool_call>')}")
    return rules.grammar(_repeated(one, several, '"\\n"'))


def _invokes(
    tools: Tools, several: bool, start: str, end: str, prefix: str, words: Callable[[Mapping[str, Any]], str]
) -> Grammar:
    """Return the grammar of `<invoke name=..>` elements.

    Args:
        start, end: Lark for the text before and after the elements.
        prefix: prefix of the names of elements.
        words: returns the attributes of a parameter besides its name.
    """
    rules = Rules()

    def parameter(name: str, schema: Mapping[str, Any]) -> str:
        head = f'<{prefix}parameter name="{name}"{words(schema)}>'
        return f"{text(head)} {_bare(rules, schema, f'</{prefix}parameter>')} {text(chr(10))}"

    bodies = []
    for tool in tools:
        head = f'<{prefix}invoke name="{tool.name}">\n'
        bodies.append(rules.rule(f"{text(head)} {_parameters(tool, parameter)} {text(f'</{prefix}invoke>')}"))
    return rules.grammar(f'{start} "\\n" {_repeated(either(bodies), several, text(chr(10)))} "\\n" {end}')


def dsml(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    def words(schema: Mapping[str, Any]) -> str:
        return f' string="{"true" if types_of(schema) <= {"string"} else "false"}"'

    start, end = text("<｜DSML｜function_calls>"), text("</｜DSML｜function_calls>")
    return _invokes(tools, several, start, end, "｜DSML｜", words)


def minimax(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    start, end = spell("<minimax:tool_call>"), spell("</minimax:tool_call>")
    return _invokes(tools, several, start, end, "", lambda schema: "")


# ----------------------------------------------------------------------------------------------- Gemma's, and Python's


_NUMBER = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?/"
_WHOLE_NUMBER = r"/-?(0|[1-9][0-9]{0,15})/"


@dataclass(frozen=True)
class _Syntax:
    """Syntax of values that are not JSON.

    Attributes:
        quoted: returns Lark for a quoted string; for any string if the argument is None.
        key: Lark for a key of an object.
        words: spellings of true, false and null.
        comma, colon: separators of values, and after keys of objects.
    """

    quoted: Callable[[str | None], str]
    key: str
    words: Mapping[str, str]
    comma: str
    colon: str

    def any_value(self, rules: Rules) -> str:
        """Return the name of a rule for a value of any type."""
        value = f"rule{len(rules.lines)}"
        pair = f"{self.key} {text(self.colon)} {value}"
        words = " | ".join(text(word) for word in self.words.values())
        return rules.rule(
            f"{self.quoted(None)} | {_NUMBER} | {words} "
            f"| {text('[')} ({value} ({text(self.comma)} {value})*)? {text(']')} "
            f"| {text('{')} ({pair} ({text(self.comma)} {pair})*)? {text('}')}"
        )

    def value(self, schema: Mapping[str, Any], other: str) -> str:
        """Return Lark for a value of the types of a schema; `other` is Lark for a value of any type."""
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return either([self.quoted(value) for value in values])
        types = types_of(schema)
        simple = {
            "string": self.quoted(None),
            "integer": _WHOLE_NUMBER,
            "number": _NUMBER,
            "boolean": f"({text(self.words['true'])} | {text(self.words['false'])})",
            "null": text(self.words["null"]),
        }
        return either([simple[kind] for kind in sorted(types)]) if types and types <= set(simple) else other

    def arguments(self, rules: Rules, tool: Tool, between: str, other: str) -> str:
        """Return Lark for the names and values of a call, in the order of the tool's parameters. Optional parameters
        may be omitted.

        Args:
            between: text between a name and its value.
        """
        tail, any_required = "", False
        for name, schema in reversed(list(tool.properties.items())):
            pair = f"{text(name + between)} {self.value(schema, other)}"
            rest = f" ({text(self.comma)} {tail})" + ("" if any_required else "?") if tail else ""
            required = name in tool.required
            tail = rules.rule(pair + rest if required or not tail else f"{pair}{rest} | {tail}")
            any_required = any_required or required
        return "" if not tail else tail + ("" if any_required else "?")


def gemma(start: str, end: str, quote: str) -> Callable[[Tools, bool, Spelling], Grammar]:
    """Return the grammar of Gemma's calls, with these markers."""

    def grammar(tools: Tools, several: bool, spell: Spelling) -> Grammar:
        rules, mark = Rules(), spell(quote)
        rest = f"/(?s:.*)/ {mark}" if mark.startswith("<") else rules.ended(quote)
        anything = rules.rule(f"{mark} {rest}")
        syntax = _Syntax(
            quoted=lambda word: anything if word is None else f"{mark} {text(word)} {mark}",
            key="/[A-Za-z_][A-Za-z0-9_]*/",
            words={"true": "true", "false": "false", "null": "null"},
            comma=",",
            colon=":",
        )
        value = syntax.any_value(rules)
        bodies = [
            f"{text(f'call:{tool.name}' + '{')} {syntax.arguments(rules, tool, ':', value)} {text('}')}"
            for tool in tools
        ]
        one = rules.rule(f"{spell(start)} {either(bodies)} {spell(end)}")
        return rules.grammar(_repeated(one, several))

    return grammar


def python(tools: Tools, several: bool, spell: Spelling) -> Grammar:
    rules = Rules()
    letters = r"""/"([^"\\\n]|\\["\\n])*"/"""
    syntax = _Syntax(
        quoted=lambda word: letters if word is None else text(json.dumps(word, ensure_ascii=False)),
        key=letters,
        words={"true": "True", "false": "False", "null": "None"},
        comma=", ",
        colon=": ",
    )
    value = syntax.any_value(rules)
    bodies = [
        f"{text(tool.name + '(')} {syntax.arguments(rules, tool, '=', value)} {text(')')}" for tool in tools
    ]
    one = rules.rule(either(bodies))
    return rules.grammar(f"{text('[')} {_repeated(one, several, text(', '))} {text(']')}")
