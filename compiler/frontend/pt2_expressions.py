"""Symbolic sizes of a `.pt2`, by a grammar of ours: torch would give their text to `eval`.

An archive writes a size such as 64 * s18 as sympy's constructor calls. The grammar has only these:

    size    := Symbol('s<digits>', integer=True, positive=True, ..) | Integer(<digits>) | FUNCTION(size, size, ..)

The result is built here, call by call; torch uses it unchanged. Texts, nesting, numbers and powers are bounded, so that
building it is fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy import functions

LONGEST = 4000
MOST_CALLS = 64
DEEPEST = 16
LARGEST = 2**63
MOST_POWER = 8

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z_0-9]*)|('s[0-9]{1,9}')|(-?[0-9]{1,19})|([(),=]))")
_SYMBOL_FACTS = ("integer", "positive", "nonnegative")


class NotASize(ValueError):
    """A text that does not follow the grammar; the message has the reason."""


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(base, sympy.Symbol) or not 0 <= exponent <= MOST_POWER:
        raise NotASize(f"only a symbol to a power of at most {MOST_POWER} is read")
    return sympy.Pow(base, exponent)


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "Add": (2, MOST_CALLS, sympy.Add),
    "Mul": (2, MOST_CALLS, sympy.Mul),
    "Pow": (2, 2, _power),
    "Max": (2, 4, functions.Max),
    "Min": (2, 4, functions.Min),
    "FloorDiv": (2, 2, functions.FloorDiv),
    "CleanDiv": (2, 2, functions.CleanDiv),
    "CeilDiv": (2, 2, functions.CeilDiv),
    "Mod": (2, 2, functions.Mod),
    "PythonMod": (2, 2, functions.PythonMod),
    "ModularIndexing": (3, 3, functions.ModularIndexing),
}
"""Minimum and maximum number of operands, and constructor, by name."""

COMPARISONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "Equality": (2, 2, sympy.Eq),
    "Unequality": (2, 2, sympy.Ne),
    "GreaterThan": (2, 2, sympy.Ge),
    "LessThan": (2, 2, sympy.Le),
    "StrictGreaterThan": (2, 2, sympy.Gt),
    "StrictLessThan": (2, 2, sympy.Lt),
}


def parse_size(text: str, *, truth: bool = False) -> sympy.Basic:
    """Return the expression that a text denotes: a size, or with `truth` a comparison of two.

    Raises:
        NotASize: the text does not follow the grammar above, or exceeds its bounds.
    """
    if len(text) > LONGEST:
        raise NotASize(f"it has more than {LONGEST} characters")
    parser = _Parser(_tokens(text))
    try:
        value = parser.call(COMPARISONS, 0) if truth else parser.size(0)
    except NotASize:
        raise
    except Exception as error:  # sympy's objections to operands, such as a division by 0
        raise NotASize(f"sympy refuses it ({type(error).__name__})") from None
    if parser.rest:
        raise NotASize("it continues behind its end")
    if not truth and not value.free_symbols and not isinstance(value, sympy.Integer):
        raise NotASize("it is not a whole number")
    return value


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotASize(f"character {place} does not belong to a size")
        tokens.append(match.group().strip())
        place = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.rest = tokens[::-1]
        self.calls = 0

    def next(self, *expected: str) -> str:
        token = self.rest.pop() if self.rest else ""
        if expected and token not in expected:
            raise NotASize(f"{token or 'its end'!r} stands where {' or '.join(map(repr, expected))} is expected")
        return token

    def size(self, depth: int) -> sympy.Basic:
        if self.rest and self.rest[-1] == "Symbol":
            return self.symbol()
        if self.rest and self.rest[-1] == "Integer":
            return self.integer()
        return self.call(FUNCTIONS, depth)

    def integer(self) -> sympy.Basic:
        self.next(), self.next("(")
        text = self.next()
        if not text.removeprefix("-").isdigit() or not -LARGEST <= int(text) < LARGEST:
            raise NotASize(f"Integer({text}) is not an integer of 64 bits")
        self.next(")")
        return sympy.Integer(int(text))

    def symbol(self) -> sympy.Basic:
        self.next(), self.next("(")
        name = self.next()
        if not name.startswith("'"):
            raise NotASize("a symbol is not named s and a number")
        facts: dict[str, bool] = {}
        while self.next(",", ")") == ",":
            fact = self.next(*_SYMBOL_FACTS)
            self.next("="), self.next("True")
            facts[fact] = True
        if "integer" not in facts:
            raise NotASize("a symbol is not an integer")
        return sympy.Symbol(name.strip("'"), **facts)

    def call(self, known: dict[str, tuple[int, int, Callable[..., Any]]], depth: int) -> sympy.Basic:
        name = self.next()
        self.calls += 1
        if name not in known:
            raise NotASize(f"there is no function {name[:40]!r} of sizes")
        if depth >= DEEPEST or self.calls > MOST_CALLS:
            raise NotASize(f"it has more than {MOST_CALLS} calls, or {DEEPEST} inside one another")
        self.next("(")
        operands = [self.size(depth + 1)]
        while self.next(",", ")") == ",":
            operands.append(self.size(depth + 1))
        least, most, build = known[name]
        if not least <= len(operands) <= most:
            raise NotASize(f"{name} has {len(operands)} operands")
        value: sympy.Basic = build(*operands)
        return value
