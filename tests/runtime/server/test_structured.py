"""Structured answers: every kind of request, with other requests, streamed and sampled; refusals; hostile grammars."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import openai
import pydantic
import pytest

from sscc.runtime.text.grammar import MOST_LETTERS
from tests.runtime.server.fake import NAME, TOKENIZER, Running, reply, running

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": -5, "maximum": 40},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "maxItems": 3},
    },
    "required": ["name", "size", "kind", "tags"],
    "additionalProperties": False,
}
ROOM = 900
"""Tokens of an answer, each of which is a byte."""


@pytest.fixture(scope="module")
def roomy() -> Iterator[Running]:
    with running(context=1024) as server:
        yield server


def ask(server: Running, **parameters: Any) -> Any:
    body = {"prompt": "hello", "max_tokens": ROOM, "temperature": 0} | parameters
    answer = httpx2.post(f"{server.v1}/completions", json=body, timeout=60)
    return answer.json() | {"status": answer.status_code}


def text_of(server: Running, **parameters: Any) -> str:
    answer = ask(server, **parameters)
    assert answer["status"] == 200, answer
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"])


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def fits(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


WAYS: dict[str, tuple[dict[str, Any], Any]] = {
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        fits,
    ),
    "llama.cpp's format": ({"response_format": {"type": "json_object", "schema": SCHEMA}}, fits),
    "guided_json": ({"guided_json": SCHEMA}, fits),
    "guided_json as text": ({"guided_json": json.dumps(SCHEMA)}, fits),
    "structured_outputs": ({"structured_outputs": {"json": SCHEMA}}, fits),
    "json_schema": ({"json_schema": SCHEMA}, fits),
    "guided_regex": ({"guided_regex": r"[a-f]{3}-\d+/x"}, re.compile(r"[a-f]{3}-\d+/x").fullmatch),
    "a regex": ({"structured_outputs": {"regex": "(ab|cd)+!"}}, re.compile("(ab|cd)+!").fullmatch),
    "guided_choice": ({"guided_choice": ["yes", 'n"o\n', "é"]}, ["yes", 'n"o\n', "é"].__contains__),
    "a choice": ({"structured_outputs": {"choice": ["a/b", "\\"]}}, ["a/b", "\\"].__contains__),
    "guided_grammar": ({"guided_grammar": 'start: "x" /[0-9]+/ "y"'}, re.compile("x[0-9]+y").fullmatch),
    "GBNF": ({"grammar": 'root ::= item ("," item)* ";"\nitem ::= [a-c]+'}, re.compile("[a-c]+(,[a-c]+)*;").fullmatch),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_way_gives_what_it_says(way: str, temperature: float, roomy: Running) -> None:
    parameters, matches = WAYS[way]
    answer = ask(roomy, temperature=temperature, seed=3, n=3, presence_penalty=0.3, **parameters)
    assert answer["status"] == 200, answer
    for choice in answer["choices"]:
        if choice["finish_reason"] == "stop":
            assert matches(choice["text"]), choice
        else:
            assert choice["finish_reason"] == "length"
    assert any(choice["finish_reason"] == "stop" for choice in answer["choices"]) or "json" not in way


def test_json_objects(roomy: Running) -> None:
    biased = {str(TOKENIZER.encode("}").ids[0]): 60}
    assert is_object(text_of(roomy, response_format={"type": "json_object"}, logit_bias=biased))
    assert is_object(text_of(roomy, structured_outputs={"json_object": True}, logit_bias=biased))


def test_text_is_no_constraint(roomy: Running) -> None:
    assert text_of(roomy, response_format={"type": "text"}) == reply("hello")


def test_an_answer_is_the_likeliest_that_matches(roomy: Running) -> None:
    """The model's letters wherever the grammar leaves a choice, and then its end."""
    assert text_of(roomy, guided_regex="x?[a-z]{26}") == reply("hello")
    first, second = reply("hello", 2)
    assert text_of(roomy, guided_regex=f"[^{first}]?[{first}]?{second}") == first + second


def test_company_and_slots_change_nothing(roomy: Running) -> None:
    alone = text_of(roomy, guided_json=SCHEMA, temperature=1.0, seed=7)
    requests = [{"guided_json": SCHEMA, "temperature": 1.0, "seed": 7}, {}, {"guided_regex": "[a-z]+;"}] * 3
    with openai.OpenAI(base_url=roomy.v1, api_key="any", max_retries=0) as client:
        streams = [
            client.completions.create(
                model=NAME, prompt="hello", max_tokens=ROOM, stream=True,
                **({"temperature": 0.0} | {k: v for k, v in each.items() if k in ("temperature", "seed")}),
                extra_body={k: v for k, v in each.items() if k.startswith("guided")},
            )
            for each in requests
        ]  # fmt: skip
        texts = ["".join(chunk.choices[0].text for chunk in stream) for stream in streams]
    assert texts[::3] == [alone] * 3
    assert texts[1::3] == [reply("hello")] * 3


def test_logprobs_are_the_models_own(roomy: Running) -> None:
    free = ask(roomy, max_tokens=1, logprobs=3)["choices"][0]["logprobs"]
    bound = ask(roomy, max_tokens=1, logprobs=3, guided_choice=["{"])["choices"][0]["logprobs"]
    assert bound["tokens"] == ["{"]
    likeliest = {k: v for k, v in bound["top_logprobs"][0].items() if k != "{"}
    assert likeliest == free["top_logprobs"][0]


def test_a_stop_string_ends_only_what_is_whole(roomy: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "}, b"}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    assert json.loads(text_of(roomy, guided_json=schema, stop=["}", ",", "a"])) == {"a": "}, b"}
    word = reply("hello", 6)
    assert text_of(roomy, guided_regex="[a-z]{2,6}", stop=[word[4], word[1:4]]) == word[:4]


def test_an_answer_without_an_ending_token_ends_where_nothing_may_follow(roomy: Running) -> None:
    assert text_of(roomy, guided_choice=["yes"], ignore_eos=True) == "yes"


def test_min_tokens_gives_way_to_a_grammar(roomy: Running) -> None:
    assert text_of(roomy, guided_choice=["yes"], min_tokens=50) == "yes"
    assert len(text_of(roomy, guided_regex="[a-z]+", min_tokens=40)) == 39 + 14  # and 26 letters after 27 tokens


def test_an_answer_that_is_cut_says_so(roomy: Running) -> None:
    (choice,) = ask(roomy, guided_json=SCHEMA, max_tokens=5)["choices"]
    assert (choice["finish_reason"], len(choice["text"])) == ("length", 5)


def test_openais_client_parses_answers(roomy: Running) -> None:
    class Pet(pydantic.BaseModel):
        age: int = pydantic.Field(ge=0, le=99)
        kinds: list[bool] = pydantic.Field(max_length=2)

    with openai.OpenAI(base_url=roomy.v1, api_key="any", max_retries=0) as client:
        done = client.chat.completions.parse(
            model=NAME, messages=[{"role": "user", "content": "x"}], response_format=Pet, max_tokens=ROOM, temperature=1
        )
        assert isinstance(done.choices[0].message.parsed, Pet)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "two ways": ({"guided_regex": "a", "guided_choice": ["b"]}, "api-parameter.two-grammars", "guided_regex"),
    "no schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "api-parameter.no-schema",
        "response_format",
    ),
    "a schema that is no JSON": ({"guided_json": "{"}, "api-parameter.schema-not-json", "guided_json"),
    "false": ({"guided_json": False}, "grammar.nothing-matches", "false"),
    "no choice": ({"guided_choice": []}, "grammar.no-choices", "at least one"),
    "an empty choice": ({"guided_choice": ["a", ""]}, "grammar.no-choices", "empty"),
    "a wrong regex": ({"guided_regex": "(a"}, "constraint.refused", "regex"),
    "a wrong grammar": ({"guided_grammar": "start: ((("}, "constraint.refused", "Expected"),
    "wrong GBNF": ({"guided_grammar": "root ::= ((("}, "grammar.not-a-grammar", "Expected"),
    "a keyword": ({"guided_json": {"not": {"type": "string"}}}, "constraint.refused", "not"),
    "a type": ({"guided_json": {"type": "text"}}, "constraint.refused", "type"),
    "options of the library": ({"guided_json": {"x-guidance": {"lenient": True}}}, "grammar.own-options", "x-guidance"),
    "a kind of format": ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    "a structural tag": ({"structured_outputs": {"structural_tag": "x"}}, "unknown_parameter", "structural_tag"),
    "a large grammar": ({"guided_regex": "a" * (MOST_LETTERS + 1)}, "grammar.too-large", str(MOST_LETTERS)),
    "another token": ({"allowed_token_ids": [9999]}, "submission.no-such-allowed-token", "9999"),
    "no token": ({"allowed_token_ids": []}, "request.no-tokens-allowed", "empty"),
    "more than the most": ({"min_tokens": 7, "max_tokens": 6}, "request.least-above-most", "6"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, roomy: Running) -> None:
    parameters, code, word = REFUSED[case]
    answer = ask(roomy, **parameters)
    assert (answer["status"], answer["error"]["code"]) == (400, code), answer
    assert word in answer["error"]["message"]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"guided_json": nested(300)},
    "itself": {"guided_json": {"$ref": "#"}},
    "branches": {"guided_json": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"$ref": "#"}]}},
    "names": {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(4000)}}},
    "values": {"guided_json": {"enum": [f"v{i * 7919 % 100003}" for i in range(10000)]}},
    "products": {
        "guided_json": {"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(4)]} for i in range(12)]}
    },
    "lengths": {"guided_json": {"type": "string", "minLength": 10**5, "maxLength": 10**6}},
    "counts": {"guided_json": {"type": "array", "items": {"type": "array", "minItems": 999}, "minItems": 999}},
    "factors": {"guided_json": {"type": "integer", "multipleOf": 99991}},
    "a bomb": {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
    "memory": {"guided_regex": "(?:.{0,200}a.{0,200}){5}"},
    "far back": {"guided_regex": ".*a.{30}"},
    "letters": {"guided_regex": r"(\p{L}{1,100}\s){1,100}"},
    "nothing": {"guided_grammar": 'start: a\na: a a a | "x" | ""'},
    "rules": {
        "guided_grammar": "start: " + " | ".join(f"r{i}" for i in range(3000)) + "\n"
        + "\n".join(f'r{i}: "x"+ "{i}"' for i in range(3000))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_grammars_are_refused_or_end(case: str, roomy: Running) -> None:
    """Other requests do not wait for them, and the answer is complete or cut off."""
    start = time.monotonic()
    answer = ask(roomy, max_tokens=100, **HOSTILE[case])
    assert time.monotonic() - start < 30
    if answer["status"] == 400:
        assert answer["error"]["code"] in ("constraint.refused", "grammar.too-large", "api-parameter.schema-not-json")
    else:
        assert answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
    assert text_of(roomy) == reply("hello")
