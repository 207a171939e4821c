"""Chat templates of well-known checkpoints, rendered as transformers renders them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.text import chat_template
from sscc.runtime.text.chat_formats import CALL_FORMATS, THOUGHT_FORMATS, ChatFormats
from sscc.runtime.text.chat_template import ChatTemplate, ChatTemplateErrors, special_token_texts
from sscc.runtime.text.tokenizer import load_tokenizer
from tests.errors import raises
from tests.models.tiny_llama import byte_tokenizer

ROOT = Path(__file__).parents[2]

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + "
    "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PHI3 = """\
{% for message in messages %}
    {% if message['role'] == 'system' %}
{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}
{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}
    {% generation %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endgeneration %}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""
LOOPS = (
    "{%- for message in messages -%}{%- if loop.index > 2 -%}{%- break -%}{%- endif -%}"
    "{%- if message.name is defined -%}{{ message.name }}={% endif -%}"
    "{{ dict(role=message.role, text=message.content) | tojson(indent=1) }}{%- endfor -%}{{ pad_token }}{{ unk_token }}"
)
TEMPLATES = {
    "chatml": CHATML,
    "llama-2": LLAMA2,
    "llama-3": LLAMA3,
    "qwen-3": QWEN3,
    "gemma": GEMMA,
    "phi-3": PHI3,
    "loops": LOOPS,
}
USER, ANSWER, MORE = (
    {"role": "user", "content": '  What is 1 < 2 & "é" ?\n'},
    {"role": "assistant", "content": "<think>hm</think>\n\nTrue "},
    {"role": "user", "content": "And then?", "name": "me"},
)
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "three": [USER, ANSWER, MORE],
    "system": [{"role": "system", "content": "Be brief."}, USER, ANSWER, MORE],
    "nulls": [{**USER, "name": None, "tool_calls": None}],
}


@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "no-prompt"])
@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_transformers_renders_the_same(
    template: str, conversation: list[dict[str, Any]], prompt: bool, tmp_path: Path
) -> None:
    """From the files that transformers saves, text and tokens; and where it raises, so do we."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<|begin|>", eos_token="<|end|>", pad_token=AddedToken("<|pad|>")
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    try:
        expected = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=prompt)
    except Exception:
        with raises(ChatTemplateErrors.REFUSES):
            loaded.render(conversation, add_generation_prompt=prompt)
        return
    assert loaded.render(conversation, add_generation_prompt=prompt) == expected
    if prompt:
        ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
        assert loaded.encode(tokenizer.backend_tokenizer, conversation) == ids


def write(folder: Path, config: Any = None, jinja: str | None = None, special: Any = None) -> Path:
    files = {"tokenizer_config.json": config, "special_tokens_map.json": special}
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    return folder


def rendered(folder: Path) -> str:
    template = ChatTemplate.load(folder)
    assert template is not None
    return template.render([])


def test_the_date_is_the_clocks(tmp_path: Path) -> None:
    template = ChatTemplate.load(write(tmp_path, jinja=LLAMA3), lambda: datetime(1999, 12, 31))
    assert template is not None
    assert "Today Date: 31 Dec 1999\n" in template.render([USER])
    assert datetime.now().strftime("%Y") in ChatTemplate("{{ strftime_now('%Y') }}").render([USER])


class TestFiles:
    def test_a_string_in_the_config(self, tmp_path: Path) -> None:
        assert rendered(write(tmp_path, {"chat_template": "a{{ bos_token }}", "bos_token": "<s>"})) == "a<s>"

    def test_a_file_of_its_own_goes_first(self, tmp_path: Path) -> None:
        config = {"chat_template": "config", "bos_token": {"content": "<s>", "lstrip": False}}
        assert rendered(write(tmp_path, config, "file{{ bos_token }}")) == "file<s>"

    @pytest.mark.parametrize(
        "named",
        [
            [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
            [{"name": "rag", "template": "d"}],
            {"default": "d", "tool_use": "t"},
        ],
    )
    def test_named_ones(self, named: Any, tmp_path: Path) -> None:
        assert rendered(write(tmp_path, {"chat_template": named})) == "d"

    def test_special_tokens_of_both_files(self, tmp_path: Path) -> None:
        write(tmp_path, {"bos_token": "<b>", "eos_token": None}, "{{ bos_token }}{{ eos_token }}{{ image_token }}")
        write(tmp_path, special={"bos_token": "<old>", "eos_token": {"content": "<e>"}})
        assert rendered(tmp_path) == "<old><e>"
        write(tmp_path, {"bos_token": "<b>", "extra_special_tokens": {"image_token": "<i>"}})
        assert rendered(tmp_path) == "<old><e><i>"
        write(tmp_path, {"bos_token": "<b>", "added_tokens_decoder": {}})
        assert rendered(tmp_path) == "<b>"

    def test_none(self, tmp_path: Path) -> None:
        assert ChatTemplate.load(tmp_path) is None
        assert ChatTemplate.load(write(tmp_path, {"bos_token": "<s>"})) is None

    @pytest.mark.parametrize(
        ("config", "kind", "fields"),
        [
            ({"chat_template": "{% for %}"}, ChatTemplateErrors.UNREADABLE, {}),
            ({"chat_template": 5}, ChatTemplateErrors.NOT_A_LIST, {}),
            ({"chat_template": [{"name": "a"}]}, ChatTemplateErrors.NOT_A_LIST, {}),
            (
                {"chat_template": {"a": "x", "b": "y"}}, ChatTemplateErrors.NO_DEFAULT,
                {"names": ["a", "b"], "default": "default"},
            ),
            ({"chat_template": {"default": 5}}, ChatTemplateErrors.NOT_TEXT, {"type": "int"}),
            ([], ChatTemplateErrors.NOT_AN_OBJECT, {}),
        ],
    )
    def test_damaged(self, config: Any, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
        with raises(kind, **fields):
            ChatTemplate.load(write(tmp_path, config))

    @pytest.mark.parametrize("text", ["{", "[" * 10**5], ids=["cut", "deep"])
    def test_no_json(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text(text)
        with raises(ChatTemplateErrors.NOT_JSON):
            ChatTemplate.load(tmp_path)

    def test_special_token_texts(self) -> None:
        assert special_token_texts({"eos_token": 5, "pad_token": {"content": "p"}, "other_token": "x"}) == {
            "pad_token": "p"
        }


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.mro() }}",
        "{{ strftime_now.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    """The result is an error, or empty because Jinja hides the attribute."""
    template = ChatTemplate(source)
    try:
        text = template.render([])
    except UsageError:
        return
    assert text == ""


def test_what_the_expressions_raise_is_a_refusal() -> None:
    with raises(ChatTemplateErrors.CANNOT_RENDER):
        ChatTemplate("{{ messages[0].content + 1 }}").render([USER])
    with raises(ChatTemplateErrors.CANNOT_RENDER):
        ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "half a pair: \ud800"}])
    with raises(ChatTemplateErrors.REFUSES, cause="'nothing' is undefined"):
        ChatTemplate("{{ nothing.at.all }}").render([USER])


@pytest.mark.slow
def test_the_demos_model(tmp_path: Path) -> None:
    """SmolLM2's own template and tokenizer, out of its GGUF file."""
    fetch = [sys.executable, str(ROOT / "examples" / "fetch_demo_model.py"), str(ROOT / ".demo")]
    model = Path(subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    for name, data in open_checkpoint(model).tokenizer.items():
        (tmp_path / name).write_bytes(data)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), ChatTemplate.load(tmp_path)
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert ours is not None
    for conversation in CONVERSATIONS.values():
        assert ours.render(conversation) == theirs.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        ids = theirs.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
        assert ours.encode(tokenizer, conversation) == ids
        assert ids[0] == tokenizer.token_to_id("<|im_start|>")


AGENTS = {
    "hermes": (
        "{%- if tools %}<|im_start|>system\n# Tools\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
        "</tools>\n<|im_end|>\n{%- endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{%- if m.reasoning_content is string %}<think>\n{{ m.reasoning_content.strip() }}\n</think>\n\n{%- endif %}"
        "{%- if m.content %}{{ m.content }}{%- endif %}{%- for call in m.tool_calls or [] %}\n<tool_call>\n"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
        "{%- endfor %}<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n"
        "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{%- endif %}"
        "{%- endif %}"
    ),
    "thinking": (
        "{% for m in messages %}[{{ m.role }}]{% if 'thinking' in m %}({{ m.thinking }}){% endif %}"
        "{% if m['content'] is none %}NONE{% else %}{{ m['content'] }}{% endif %}"
        "{% for call in m.tool_calls %}<{{ call['function']['name'] }}"
        "{% for k, v in call['function']['arguments'] | dictsort %} {{ k }}={{ v | tojson }}{% endfor %}>{% endfor %}"
        "{% endfor %}{% for d in documents or [] %}{{ d.title }}{% endfor %}{{ effort | default('medium') }}"
    ),
}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": " Hm. ",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"é": "<a>", "n": [1, None]}}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sun"},
    {"role": "assistant", "content": "It is sunny "},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("messages", [HISTORY, HISTORY[:3], [{**HISTORY[0]}]], ids=["whole", "called", "begun"])
@pytest.mark.parametrize(
    "given",
    [
        {"add_generation_prompt": True},
        {"tools": TOOLS, "add_generation_prompt": True},
        {"tools": TOOLS, "variables": {"enable_thinking": False, "effort": "high"}},
        {"documents": [{"title": "t", "text": "x"}], "add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
    ids=["plain", "tools", "variables", "documents", "continued"],
)  # fmt: skip
def test_transformers_renders_agents_the_same(name: str, messages: list[dict[str, Any]], given: dict[str, Any]) -> None:
    words = {key: value for key, value in given.items() if key != "variables"} | given.get("variables", {})
    words.setdefault("add_generation_prompt", True)
    try:
        expected = render_jinja_template([messages], chat_template=AGENTS[name], **words)[0][0]
    except Exception:
        with pytest.raises(UsageError):
            ChatTemplate(AGENTS[name]).render(messages, **given)
        return
    assert ChatTemplate(AGENTS[name]).render(messages, **given) == expected


def test_formats_of_answers_are_told_by_templates() -> None:
    told = ChatFormats.from_template(AGENTS["hermes"])
    assert told.call is CALL_FORMATS["hermes"]
    assert told.thought is THOUGHT_FORMATS["think"]
    assert ChatFormats.from_template(AGENTS["thinking"]) == ChatFormats()
    for source, name in TOLD.items():
        form = ChatFormats.from_template(source).call
        assert form is not None, source
        assert form.name == name
    assert ChatFormats.from_template("{{ '<|channel|>analysis<|message|>' }}").is_harmony


TOLD = {
    "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>": "hermes",
    "<tool_call>\n<function=example>\n<parameter=a>\n": "qwen3_coder",
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>": "glm45",
    "[AVAILABLE_TOOLS][/AVAILABLE_TOOLS][TOOL_CALLS]": "mistral",
    '{"name": function name, "parameters": dictionary of argument name and its value}.': "llama3_json",
    "[func_name1(params_name1=params_value1, params_name2=params_value2...)]": "pythonic",
    "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>' + name + '\n```json": "deepseek_v3",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>": "deepseek_v31",
    "{%- set dsml_token = '｜DSML｜' -%}": "deepseek_v32",
    "<|tool_calls_section_begin|>": "kimi_k2",
    "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}": "minimax_m2",
    "{{- '<|tool_call>call:' + name }}": "gemma4",
    "<start_function_call>call:": "functiongemma",
}


class TestBounds:
    """Templates come with models: none hangs, and none ends in Python's own errors."""

    @pytest.fixture(autouse=True)
    def _few_rounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chat_template, "_MOST_STEPS", 1000)

    @pytest.mark.parametrize(
        "source",
        [
            "{% for i in range(30) %}{% for j in range(100) %}{% endfor %}{% endfor %}",
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
            "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% endfor %}{% endfor %}{% endfor %}",
        ],
        ids=["ranges", "macros", "messages"],
    )
    def test_loops_end(self, source: str) -> None:
        with raises(ChatTemplateErrors.REFUSES, cause="its loops have more than 1000 iterations"):
            ChatTemplate(source).render([{"role": "user", "content": "x"}] * 30)

    def test_rounds_are_counted_for_each_rendering(self) -> None:
        template = ChatTemplate("{% for i in range(6) %}{% for j in range(100) %}{% endfor %}{% endfor %}x")
        assert [template.render([]), template.render([])] == ["x", "x"]

    @pytest.mark.parametrize("product", ["'a' * 200000000", "200000000 * 'a'", "[1] * 200000000", "9 ** 90000000"])
    def test_products_are_bounded(self, product: str) -> None:
        with raises(ChatTemplateErrors.REFUSES):
            ChatTemplate("{{ (" + product + ") is none }}").render([])

    @pytest.mark.parametrize(
        "expression",
        [
            "'a' | center(10 ** 8)",
            "'a'.center(10 ** 8)",
            "'a'.ljust(width) if false else 'a'.ljust(5000)",
            "'a'.rjust(10 ** 8)",
            "'7'.zfill(10 ** 8)",
            "'\\t'.expandtabs(10 ** 8)",
            "('\\t' * 9000).expandtabs(4000)",
            "'a' | indent(10 ** 8, true)",
            "('a\\n' * 9000) | indent(4000)",
            "[] | batch(10 ** 8, 'x') | list",
            "[1] | slice(10 ** 8) | list",
            "'%1000000000d' | format(1)",
            "'%1000000000d' % 1",
            "'%(x)-100000s' % {'x': 1}",
            "'%*d' % (1000000000, 1)",
            "'%.1000000000f' % 1",
            "'{:1000000000}'.format(1)",
            "'{:{w}}'.format(1, w=10 ** 9)",
            "'{x:>99999}'.format_map({'x': 1})",
            "('a' * 9000) | replace('a', 'b' * 9000)",
            "('a' * 9000).replace('a', 'b' * 9000)",
            "[1] | tojson(indent=10 ** 8)",
            "lipsum(10 ** 8)",
        ],
    )
    def test_one_expression_makes_no_huge_text(self, expression: str) -> None:
        with raises(ChatTemplateErrors.REFUSES) as caught:
            ChatTemplate("{{ (" + expression + ") is none }}").render([])
        assert re.search("wide|than 16777216 letters|'lipsum' is undefined", caught.value.fields["cause"])

    @pytest.mark.parametrize(
        "step",
        [
            "ns.x ~ ns.x",
            "ns.x + ns.x",
            "'%s%s' % (ns.x, ns.x)",
            "'%s%s' | format(ns.x, ns.x)",
            "'{0}{0}'.format(ns.x)",
            "[ns.x, ns.x] | join",
            "''.join([ns.x, ns.x])",
            "ns.x.replace('ab', 'abab')",
            "ns.x | replace('ab', 'abab')",
            "'%(x)s%(x)s' % {'x': ns.x}",
        ],
    )
    def test_doubling_ends(self, step: str) -> None:
        source = "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = " + step + " %}{% endfor %}"
        with raises(ChatTemplateErrors.REFUSES) as caught:
            ChatTemplate(source + "{{ ns.x }}").render([])
        assert "more than 16777216 letters" in caught.value.fields["cause"]

    @pytest.mark.parametrize(
        "step",
        [
            "[ns.x, ns.x]",
            "(ns.x, ns.x)",
            "{'a': ns.x, 'b': [ns.x]}",
            "dict(a=ns.x, b=ns.x)",
            "[ns.x] * 2",
            "[ns.x] + [ns.x]",
            "[[ns.x], [ns.x]] | sum(start=[])",
        ],
    )
    @pytest.mark.parametrize("end", ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == [ns.x] }}", "{{ ns.x ~ 1 }}"])
    def test_nesting_ends(self, step: str, end: str) -> None:
        source = "{% set ns = namespace(x=['ab']) %}{% for i in range(60) %}{% set ns.x = " + step + " %}{% endfor %}"
        with raises(ChatTemplateErrors.REFUSES, cause="a list in it has more than 16777216 letters or digits"):
            ChatTemplate(source + end).render([])

    @pytest.mark.parametrize(
        ("source", "kind", "cause"),
        [
            (
                "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}"
                "{% endmacro %}{{ f(60, 1) }}",
                ChatTemplateErrors.REFUSES,
                "a list in it has more than 16777216 letters or digits",
            ),
            (
                "{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = ns.x + range(900) | list %}"
                "{% endfor %}",
                ChatTemplateErrors.REFUSES,
                "it makes lists of more than 8388608 items",
            ),
            (
                "{% set ns = namespace(x=[]) %}{% for i in range(950) %}{% set ns.x = [[ns.x]] %}{% endfor %}",
                ChatTemplateErrors.CANNOT_RENDER,
                "RecursionError",
            ),
        ],
        ids=["arguments", "sums", "depth"],
    )
    def test_what_lists_hold_is_bounded(self, source: str, kind: ErrorKind, cause: str) -> None:
        with raises(kind) as caught:
            ChatTemplate(source).render([])
        assert caught.value.fields["cause"].split(":")[0] == cause

    def test_lists_that_fit(self) -> None:
        source = (
            "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}"
            "{% set a, b = (1, [m0.role]) %}{{ ns.all | length }}{{ a }}{{ b }}{{ [ns] }}{{ {'k': b, 'l': ()} }}"
        ).replace("m0", "messages[0]")
        text = ChatTemplate(source).render([{"role": "user", "content": "x" * 5000}] * 900)
        assert text == "9001['user'][<namespace>]{'k': ['user'], 'l': ()}"

    @pytest.mark.parametrize("inside", ["{{ x }}", "y" * 100_000])
    @pytest.mark.parametrize("form", ["@", "{% set z %}@{% endset %}", "{% macro m() %}@{% endmacro %}{{ m() }}"])
    def test_what_is_written_is_bounded(self, inside: str, form: str) -> None:
        loop = "{% for i in range(900) %}" + inside + "{% endfor %}"
        with raises(ChatTemplateErrors.REFUSES, cause="it writes more than 16777216 letters"):
            ChatTemplate("{% set x = 'x' * 100000 %}" + form.replace("@", loop)).render([])

    def test_expressions_that_fit(self) -> None:
        source = (
            "{{ 'a' | center(3) }}|{{ 'a'.rjust(3) }}|{{ '%05d-%s' | format(7, 'x') }}|{{ '%3d' % 4 }}|{{ 7 % 4 }}|"
            "{{ '{:>4}{}'.format('a', 1) }}|{{ 'a\nb' | indent(2) }}|{{ 'aXb'.replace('X', '--') }}|"
            "{{ 1 ~ 'b' ~ none }}|"
            "{{ [1] + [2] }}|{{ '100000%' + '' }}|{{ '%d%% of 100000' % 5 }}|{{ {'a': 1} | tojson(indent=1) }}|"
            "{{ 1 + 2.5 }}"
        )
        assert ChatTemplate(source).render([]) == (
            ' a |  a|00007-x|  4|3|   a1|a\n  b|a--b|1bNone|[1, 2]|100000%|5% of 100000|{\n "a": 1\n}|3.5'
        )

    def test_products_that_fit(self) -> None:
        template = ChatTemplate("{{ 'ab' * 2 }} {{ 3 * 4 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.5 * 2 }}")
        assert template.render([]) == "abab 12 1024 0.5 3.0"

    @pytest.mark.parametrize("depth", [150, 3000])
    @pytest.mark.parametrize(
        ("opening", "closing"),
        [("{% if true %}", "{% endif %}"), ("{% for i in [1] %}", "{% endfor %}")],
        ids=["if", "for"],
    )
    def test_nesting_is_refused_in_words(self, depth: int, opening: str, closing: str) -> None:
        with raises(ChatTemplateErrors.TOO_DEEP):
            ChatTemplate(opening * depth + closing * depth)

    def test_parentheses_are_refused_in_words(self) -> None:
        with raises(ChatTemplateErrors.TOO_DEEP):
            ChatTemplate("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}")
