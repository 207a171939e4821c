"""Grammars that answers must match: JSON, JSON schemas, regular expressions, choices, context-free grammars.

A `Grammar` is the source of a grammar of llguidance, which compiles it and computes the tokens that may come next
(`sscc.runtime.serving.engine.constraints`). `Grammar.joined` makes one grammar of several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sscc.ir.errors import ErrorKind, UsageError, quoted
from sscc.ir.extras import SERVE, require

MOST_LETTERS = 1 << 17
"""Maximum number of letters of a grammar's source. Compiling the worst of this size takes a second or two."""

_WHITESPACE = r"[ \t\n\r]{1,64}"
"""White space between two parts of JSON. It is bounded, because a model may otherwise write nothing else."""

_OPTIONS = "x-guidance"
"""The key of a schema under which llguidance finds options of its own."""
_REFERENCE = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\\n]|\\.)+/|@(?P<name>\w+)')
"""A text or a regular expression in Lark, or a reference to another grammar."""


class GrammarErrors(ErrorKind):
    TOO_LARGE = UsageError, "the grammar has {letters} letters, at most {most} are possible"
    NO_CHOICES = UsageError, "a choice needs at least one text, and none of them may be empty"
    NOT_A_GRAMMAR = UsageError, "the grammar cannot be read: {cause}"
    NOTHING_MATCHES = UsageError, "the schema is false, which no value matches"
    OWN_OPTIONS = UsageError, "the schema has {name!r}, which is not part of JSON Schema"


@dataclass(frozen=True)
class Grammar:
    """A grammar that an answer must match.

    Attributes:
        source: llguidance's JSON: a list of grammars, of which the first is matched and refers to others by name.

    Raises UsageError if the source is longer than `MOST_LETTERS`.
    """

    source: str

    def __post_init__(self) -> None:
        if len(self.source) > MOST_LETTERS:
            raise GrammarErrors.TOO_LARGE(letters=len(self.source), most=MOST_LETTERS)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """Return the grammar of JSON texts that a JSON Schema describes, with at most 64 white spaces between parts.

        Keywords that are not supported are refused when the grammar is compiled.
        """
        return cls._of(json_schema=_with_whitespace(schema))

    @classmethod
    def json_object(cls) -> Grammar:
        """Return the grammar of JSON objects."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Return the grammar of texts that a regular expression (of Rust's `regex` crate) matches as a whole;
        `\\d` stands for 0 to 9."""
        require(SERVE, "a grammar")
        import llguidance

        return cls._of(lark_grammar=f"start: /{llguidance.regex_to_lark(pattern, 'd')}/")

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """Return the grammar of some texts. Raises UsageError if there is none, or one is empty."""
        if not texts or not all(texts):
            raise GrammarErrors.NO_CHOICES()
        return cls._of(lark_grammar="start: " + " | ".join(literal(text) for text in dict.fromkeys(texts)))

    @classmethod
    def context_free(cls, text: str) -> Grammar:
        """Return a context-free grammar in llguidance's Lark, or in llama.cpp's GBNF, whose rules have `::=`.

        Raises UsageError for GBNF that cannot be read. Lark is read when the grammar is compiled.
        """
        if "::=" not in text:
            return cls._of(lark_grammar=text)
        require(SERVE, "a grammar")
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

        if len(text) > MOST_LETTERS:
            raise GrammarErrors.TOO_LARGE(letters=len(text), most=MOST_LETTERS)
        try:
            return cls._of(lark_grammar=any_to_lark(text))
        except (GbnfToLarkError, ValueError, RecursionError) as error:
            raise GrammarErrors.NOT_A_GRAMMAR(cause=quoted(error)) from None

    @classmethod
    def joined(cls, lark: str, parts: Mapping[str, Grammar]) -> Grammar:
        """Return a grammar in Lark that refers to others as `@name`."""
        grammars: list[dict[str, Any]] = [{"lark_grammar": lark}]
        for name, part in parts.items():
            main, *others = json.loads(part.source)["grammars"]
            names = {other["name"]: f"{name}_{other['name']}" for other in others}
            for own, each in ((name, main), *((names[other["name"]], other) for other in others)):
                text = {} if "lark_grammar" not in each else {"lark_grammar": _renamed(each["lark_grammar"], names)}
                grammars.append({**each, **text, "name": own})
        return cls(json.dumps({"grammars": grammars}, ensure_ascii=False))

    @classmethod
    def _of(cls, **grammar: Any) -> Grammar:
        return cls(json.dumps({"grammars": [grammar]}, ensure_ascii=False))


def _with_whitespace(schema: Mapping[str, Any] | bool) -> Mapping[str, Any]:
    if schema is False:
        raise GrammarErrors.NOTHING_MATCHES()
    if schema is not True and _OPTIONS in schema:
        raise GrammarErrors.OWN_OPTIONS(name=_OPTIONS)
    return {**({} if schema is True else schema), _OPTIONS: {"whitespace_pattern": _WHITESPACE}}


def _renamed(lark: str, names: Mapping[str, str]) -> str:
    """Return a grammar with other names for those that it refers to."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        return match[0] if name is None else f"@{names.get(name, name)}"

    return _REFERENCE.sub(replaced, lark) if names else lark


def literal(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
