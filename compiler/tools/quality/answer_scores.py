"""How an answer is scored, from 0 to 1. Only the standard library: other programs' scripts score with it too."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Metric = Callable[[str, Sequence[str]], float]
"""Scores what a model said against the answers, of which there is at least one."""

FIELD = re.compile(r'"([^"\n]+)"\s*:\s*(?:"([^"\n]*)"|(-?\d[\d.]*))')
"""A member of a JSON object: its name, and its value as a string or as a number."""


def string_match_all(said: str, answers: Sequence[str]) -> float:
    """The share of the answers that occur in what was said, ignoring case (RULER)."""
    return sum(answer.lower() in said.lower() for answer in answers) / len(answers)


def string_match_part(said: str, answers: Sequence[str]) -> float:
    """1 where any of the answers occurs, ignoring case (RULER's question answering)."""
    return float(any(answer.lower() in said.lower() for answer in answers))


def exact_match(said: str, answers: Sequence[str]) -> float:
    """1 where the first line says exactly one of the answers, after `normalised`."""
    line = normalised(_first_line(said))
    return float(any(line == normalised(answer) for answer in answers))


def f1(said: str, answers: Sequence[str]) -> float:
    """The best F1 of words against an answer (SQuAD, LongBench's question answering), after `normalised`."""
    return max(_f1(normalised(said).split(), normalised(answer).split()) for answer in answers)


def f1_first_line(said: str, answers: Sequence[str]) -> float:
    """`f1` of the first line (LongBench's triviaqa)."""
    return f1(_first_line(said), answers)


def numbers(said: str, answers: Sequence[str]) -> float:
    """The share of the numbers said that are the first one in an answer (LongBench's counting and paragraph search)."""
    correct = {match.group() for answer in answers if (match := re.search(r"\d+", answer))}
    numbers = re.findall(r"\d+", said)
    return sum(number in correct for number in numbers) / len(numbers) if numbers else 0.0


def json_fields(said: str, answers: Sequence[str]) -> float:
    """The share of fields, each written as `"name": "value"`, to which what was said gives that value, ignoring case.

    What was said need be no whole JSON object. Where it names a field again, the first value counts, and values may be
    numbers.
    """
    values: dict[str, str] = {}
    for name, value in _fields(said):
        values.setdefault(name, value)
    return sum((name, value) in values.items() for name, value in _fields(", ".join(answers))) / len(answers)


def _fields(text: str) -> list[tuple[str, str]]:
    return [(name.lower(), (string or number).strip().lower()) for name, string, number in FIELD.findall(text)]


def normalised(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(word for word in bare.split() if word not in ("a", "an", "the"))


def _first_line(text: str) -> str:
    return text.lstrip().split("\n", 1)[0]


def _f1(said: Sequence[str], answer: Sequence[str]) -> float:
    same = sum((Counter(said) & Counter(answer)).values())
    return 2 * same / (len(said) + len(answer)) if same else 0.0


METRICS: dict[str, Metric] = {
    "string_match_all": string_match_all,
    "string_match_part": string_match_part,
    "exact_match": exact_match,
    "f1": f1,
    "f1_first_line": f1_first_line,
    "numbers": numbers,
    "json_fields": json_fields,
}
