"""Thoughts and calls of tools: published examples of every format, however they are cut; grammars against readers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from sscc.ir.errors import UsageError
from sscc.runtime.text.chat_formats import (
    CALL_FORMATS,
    AnswerReader,
    Call,
    ChatFormats,
    Part,
    Text,
    Thought,
    Tool,
    call_format,
    thought_format,
)
from sscc.runtime.text.chat_formats.marked_calls import MarkedCalls

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"},
            "hourly": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
ADD = Tool("add", {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}})
NOW = Tool("now")
TOOLS = (WEATHER, ADD, NOW)


def parts_of(reader: AnswerReader, pieces: Sequence[str]) -> list[Part]:
    """The parts of an answer, with neighbours of one kind joined."""
    joined: list[Part] = []
    for part in [part for piece in pieces for part in reader.push(piece)] + reader.finish():
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Thought) and isinstance(last, Thought):
            joined[-1] = Thought(last.text + part.text)
        else:
            joined.append(part)
    return joined


def cuts(text: str) -> list[list[str]]:
    """The text whole, by letters, and cut at random."""
    chance = random.Random(len(text))
    places = sorted(chance.sample(range(1, len(text)), min(5, len(text) - 1)))
    return [[text], list(text), [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]]


def read(formats: ChatFormats, text: str, prompt: str = "", tools: Sequence[Tool] = TOOLS) -> list[Part]:
    each = [parts_of(formats.reader(prompt, tools), pieces) for pieces in cuts(text)]
    assert each[0] == each[1] == each[2]
    return each[0]


def call(name: str, **arguments: Any) -> Call:
    return Call(name, json.dumps(arguments, ensure_ascii=False))


CITY = call("get_weather", city="San Francisco")
EXAMPLES: dict[str, list[tuple[str, list[Part]]]] = {
    "hermes": [
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "San Francisco"}}\n</tool_call>', [CITY]),
        (
            "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2.5}}\n</tool_call>\n"
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            [Text("Let me see."), call("add", a=1, b=2.5), call("now")],
        ),
        ('<tool_call>{"name": "now", "arguments": {"x": "</tool"}}', [call("now", x="</tool")]),
        ("<tool_call>\n{broken\n</tool_call> after", [Text("<tool_call>\n{broken\n</tool_call> after")]),
        ("a < b, <tool and <tool_", [Text("a < b, <tool and <tool_")]),
    ],
    "qwen3_coder": [
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nSan Francisco\n</parameter>\n</function>\n</tool_call>",
            [CITY],
        ),
        (
            "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n"
            "</parameter>\n<parameter=places>\n[\"a\", \"b\"]\n</parameter>\n<parameter=hourly>\ntrue\n</parameter>\n"
            "</function>\n</tool_call>",
            [Text("I look."), call("get_weather", city="12", days=3, places=["a", "b"], hourly=True)],
        ),
        ("<function=now>\n</function>", [call("now")]),
        ("<tool_call>\n<function=add>\nnonsense\n</function>\n</tool_call>", [
            Text("<tool_call>\n<function=add>\nnonsense\n</function>\n</tool_call>")
        ]),
    ],
    "llama3_json": [
        ('{"name": "get_weather", "parameters": {"city": "San Francisco"}}', [CITY]),
        ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "San Francisco"}}', [CITY]),
        (
            '{"name": "now", "parameters": {}}; {"name": "add", "parameters": {"a": 1}}',
            [call("now"), call("add", a=1)],
        ),
        ('{"name": "John", "age": 3}', [Text('{"name": "John", "age": 3}')]),
        ("It is {\"name\": \"now\"}", [Text('It is {"name": "now"}')]),
    ],
    "mistral": [
        ('[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "San Francisco"}}]', [CITY]),
        (
            'Hello[TOOL_CALLS] [{"name": "add", "arguments": {"a": 3.5, "b": 4}}, {"name": "now", "arguments": {}}]',
            [Text("Hello"), call("add", a=3.5, b=4), call("now")],
        ),
        ('[TOOL_CALLS]get_weather{"city": "San Francisco"}', [CITY]),
        ('[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}[TOOL_CALLS]now[ARGS]{}', [call("add", a=3.5, b=4), call("now")]),
        ('[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}', [call("now")]),
        ("[TOOL_CALLS] not json", [Text("[TOOL_CALLS] not json")]),
    ],
    "deepseek_v3": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "San Francisco"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [CITY],
        ),
        (
            "One moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1}\n```"
            "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>",
            [Text("One moment."), call("add", a=1), call("now")],
        ),
    ],
    "deepseek_v31": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"San Francisco\"}"
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [CITY, call("now")],
        ),
    ],
    "deepseek_v32": [
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
            'San Francisco</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            [call("get_weather", city="San Francisco", days=2)],
        ),
        (
            'So:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n<｜DSML｜invoke name="add">\n'
            '<｜DSML｜parameter name="a" string="false">1.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
            [Text("So:"), call("now"), call("add", a=1.5)],
        ),
    ],
    "minimax_m2": [
        (
            '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">San Francisco</parameter>\n</invoke>\n'
            "</minimax:tool_call>",
            [CITY],
        ),
    ],
    "glm45": [
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>San Francisco</arg_value>\n</tool_call>",
            [CITY],
        ),
        (
            "Yes.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>true</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now</tool_call>",
            [Text("Yes."), call("get_weather", city="true", days=3), call("now")],
        ),
    ],
    "kimi_k2": [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\n<|tool_call_argument_begin|>"
            '{"city": "San Francisco"}<|tool_call_end|><|tool_calls_section_end|>',
            [CITY],
        ),
    ],
    "gemma4": [
        ('<|tool_call>call:get_weather{city:<|"|>San Francisco<|"|>}<tool_call|>', [CITY]),
        (
            '<|tool_call>call:get_weather{city:<|"|>a{b},c<|"|>,days:42,hourly:true,places:[<|"|>x<|"|>,<|"|>y<|"|>],'
            'other:{inner:<|"|>v<|"|>,n:null}}<tool_call|>',
            [call("get_weather", city="a{b},c", days=42, hourly=True, places=["x", "y"], other={"inner": "v", "n": None})],
        ),
        ("<|tool_call>call:now{}<tool_call|>", [call("now")]),
        ("<|tool_call>call:now{a:<tool_call|>", [Text("<|tool_call>call:now{a:<tool_call|>")]),
    ],
    "functiongemma": [
        (
            "<start_function_call>call:get_weather{city:<escape>San Francisco<escape>}<end_function_call>",
            [CITY],
        ),
    ],
    "pythonic": [
        ('[get_weather(city="San Francisco")]', [CITY]),
        (
            "[get_weather(city='a', places=['x', 'y'], hourly=True), now()]",
            [call("get_weather", city="a", places=["x", "y"], hourly=True), call("now")],
        ),
        ("[1, 2, 3]", [Text("[1, 2, 3]")]),
        ("[x for x in y]", [Text("[x for x in y]")]),
        ("[__import__('os').system('x')]", [Text("[__import__('os').system('x')]")]),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "parts"), [(n, *each) for n, all_ in EXAMPLES.items() for each in all_])
def test_published_examples(name: str, text: str, parts: list[Part]) -> None:
    assert read(ChatFormats(call=CALL_FORMATS[name]), text) == parts


def test_every_format_has_examples() -> None:
    assert set(EXAMPLES) == set(CALL_FORMATS)


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_text_without_calls_stays_as_it_is(name: str) -> None:
    text = " \n# A title\n\n| a | b |\n\n```json\n{\"a\": [1]}\n```\n<b>x</b> [1] <|x|> \n\n"
    formats = ChatFormats(call=CALL_FORMATS[name])
    assert read(formats, text) == [Text(text)]
    for example, _ in EXAMPLES[name]:
        assert read(formats, example, tools=()) == [Text(example)], "nobody asked for calls"


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_only_so_many_calls_are_told(name: str) -> None:
    for text, parts in EXAMPLES[name]:
        calls = [part for part in parts if isinstance(part, Call)]
        reader = MarkedCalls(CALL_FORMATS[name], TOOLS, most=1)
        assert [part for part in parts_of(reader, [text]) if isinstance(part, Call)] == calls[:1]


# ---------------------------------------------------------------------------------------------------------- thoughts


THINK = ChatFormats(thought=thought_format("think"), call=call_format("hermes"))


@pytest.mark.parametrize(
    ("prompt", "text", "parts"),
    [
        ("<|assistant|>", "<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", [Thought("Hm.\n\nSo."), Text("Yes.\n")]),
        ("<|assistant|><think>\n", "Hm.\n</think>\n\nYes.", [Thought("Hm."), Text("Yes.")]),
        ("<|assistant|><think>\n", "Hm, <think> and </thin", [Thought("Hm, <think> and </thin")]),
        ("<think>\n\n</think>\n\n", "\nYes.", [Text("\nYes.")]),
        ("", "Yes <think>no</think>", [Text("Yes <think>no</think>")]),
        ("", "  <think></think>Yes", [Text("Yes")]),
        (
            "<think>\n", '<tool_call>x</tool_call></think><tool_call>{"name": "now", "arguments": {}}</tool_call>',
            [Thought("<tool_call>x</tool_call>"), call("now")],
        ),
        ("", "", []),
    ],
)  # fmt: skip
def test_thoughts(prompt: str, text: str, parts: list[Part]) -> None:
    assert parts_of(THINK.reader(prompt, TOOLS), [text]) == parts
    assert parts_of(THINK.reader(prompt, TOOLS), list(text)) == parts


# ----------------------------------------------------------------------------------------------------------- harmony


HARMONY: list[tuple[str, str, list[Part]]] = [
    (
        "<|start|>assistant",
        "<|channel|>analysis<|message|>User asks.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.",
        [Thought("User asks."), Text("2 + 2 = 4.")],
    ),
    (
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"San Francisco"}',
        [Thought("Need the weather."), CITY],
    ),
    (
        "<|start|>assistant",
        '<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now<|channel|>commentary '
        "<|constrain|>json<|message|>{}<|call|>",
        [Text("I look."), call("now")],
    ),
    ("<|start|>assistant", "<|channel|>commentary to=functions.now<|message|>{", [Text("{")]),
    ("<|start|>assistant<|channel|>final<|message|>", "Yes.", [Text("Yes.")]),
    ("<|start|>assistant", "no markers", [Text("no markers")]),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "text", "parts"), HARMONY)
def test_harmony(prompt: str, text: str, parts: list[Part]) -> None:
    assert read(ChatFormats(is_harmony=True), text, prompt) == parts


# ---------------------------------------------------------------------------------------------------------- grammars


def matches(formats: ChatFormats, tools: Sequence[Tool], text: str, *, several: bool = True) -> bool:
    """Return True if the grammar of calls matches a text, whose markers are text too."""
    llguidance = pytest.importorskip("llguidance")
    letters = [bytes([byte]) for byte in range(256)]

    class Bytes(llguidance.TokenizerWrapper):  # type: ignore[misc]
        def __init__(self) -> None:
            self.tokens, self.special_token_ids = [*letters, b"<end>"], [256]
            self.eos_token_id, self.bos_token_id, self.is_tokenizer_wrapper = 256, None, True

        def __call__(self, text: str) -> list[int]:
            return list(text.encode())

    grammar = formats.call_grammar(tools, several, lambda marker: json.dumps(marker, ensure_ascii=False))
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer(Bytes()), grammar.source)
    assert not matcher.is_error(), matcher.get_error()
    taken = matcher.try_consume_tokens(list(text.encode()))
    return bool(taken == len(text.encode()) and matcher.is_accepting())


FIXED = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"$ref": "#/$defs/Unit"},
            "days": {"type": "integer"},
            "hourly": {"type": "boolean"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"Unit": {"enum": ["celsius", "fahrenheit"]}},
    },
)
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius", "days": 2}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=unit>\ncelsius\n"
    "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Rome", "unit": "celsius", "days": 2}}',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius", "days": 2}}]',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Rome", "unit": "celsius", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome", "unit": "celsius", '
    '"days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
    'string="true">Rome</｜DSML｜parameter>\n<｜DSML｜parameter name="unit" string="true">celsius</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n<parameter '
    'name="unit">celsius</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "glm45": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>unit</arg_key>\n"
    "<arg_value>celsius</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Rome", "unit": "celsius", "days": 2}<|tool_call_end|><|tool_calls_section_end|>',
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,unit:<|"|>celsius<|"|>,days:2}<tool_call|>',
    "functiongemma": "<start_function_call>call:get_weather{city:<escape>Rome<escape>,unit:<escape>celsius<escape>,days:2}"
    "<end_function_call>",
    "pythonic": '[get_weather(city="Rome", unit="celsius", days=2)]',
}  # fmt: skip


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_grammars_are_of_what_readers_read(name: str) -> None:
    formats, text = ChatFormats(call=CALL_FORMATS[name]), WRITTEN[name]
    (told,) = read(formats, text, tools=(FIXED,))
    assert isinstance(told, Call)
    assert (told.name, json.loads(told.arguments)) == ("get_weather", {"city": "Rome", "unit": "celsius", "days": 2})
    jsonschema.validate(json.loads(told.arguments), dict(FIXED.parameters))
    assert matches(formats, (FIXED, NOW), text)
    for wrong in (text.replace("get_weather", "got_weather"), text.replace("celsius", "kelvin"), text[:-1], "x" + text):
        assert not matches(formats, (FIXED, NOW), wrong), wrong
    assert not matches(formats, (FIXED,), text.replace("2", "two"))
    assert not matches(formats, (NOW,), text)


def test_the_grammar_of_harmony() -> None:
    formats = ChatFormats(is_harmony=True)
    text = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Rome","days":2}'
    assert matches(formats, (FIXED,), text)
    assert not matches(formats, (FIXED,), text.replace("2", "x"))
    (told,) = read(formats, text, "<|start|>assistant", (FIXED,))
    assert told == call("get_weather", city="Rome", days=2)


# --------------------------------------------------------------------------------------------------------- detection


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError):
        call_format("nonsense")
    assert call_format("none") is None
    assert ChatFormats.from_template("<think>").with_names("none", "mistral") == ChatFormats(call=CALL_FORMATS["mistral"])
    assert ChatFormats().with_names(None, "openai").is_harmony
