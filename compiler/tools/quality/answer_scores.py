"""Metrics of answers, from 0 to 1. Imports only the standard library, so that scripts of other programs can use it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Metric = Callable[[str, Sequence[str]], float]
"""Function from a model's answer and a nonempty list of expected answers to a score from 0 to 1."""

FIELD = re.compile(r'"([^"\n]+)"\s*:\s*(?:"([^"\n]*)"|(-?\d[\d.]*))')
"""Pattern of a member of a JSON object: its name, and its value as a string or a number."""


def string_match_all(prediction: str, answers: Sequence[str]) -> float:
    """Return the fraction of the answers that occur in the text, ignoring case (RULER)."""
    return sum(answer.lower() in prediction.lower() for answer in answers) / len(answers)


def string_match_part(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if any of the answers occurs in the text, ignoring case (RULER's question answering)."""
    return float(any(answer.lower() in prediction.lower() for answer in answers))


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the first line is exactly one of the answers, after `normalised`."""
    line = normalised(_first_line(prediction))
    return float(any(line == normalised(answer) for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the maximum over the answers of the F1 score of words (SQuAD, LongBench's question answering), after
    `normalised`."""
    return max(_f1(normalised(prediction).split(), normalised(answer).split()) for answer in answers)


def f1_first_line(prediction: str, answers: Sequence[str]) -> float:
    """Return `f1` of the first line (LongBench's triviaqa)."""
    return f1(_first_line(prediction), answers)


def numbers(prediction: str, answers: Sequence[str]) -> float:
    """Return the fraction of the numbers in the text that equal the first number of an answer (LongBench's counting and
    paragraph search)."""
    correct = {match.group() for answer in answers if (match := re.search(r"\d+", answer))}
    numbers = re.findall(r"\d+", prediction)
    return sum(number in correct for number in numbers) / len(numbers) if numbers else 0.0


def json_fields(prediction: str, answers: Sequence[str]) -> float:
    """Return the fraction of the fields, each given as `"name": "value"`, that have this value in the text, ignoring
    case.

    The text need not be a whole JSON object. If it names a field several times, the first value counts, and values may
    be numbers.
    """
    values: dict[str, str] = {}
    for name, value in _fields(prediction):
        values.setdefault(name, value)
    return sum((name, value) in values.items() for name, value in _fields(", ".join(answers))) / len(answers)


def _fields(text: str) -> list[tuple[str, str]]:
    return [(name.lower(), (string or number).strip().lower()) for name, string, number in FIELD.findall(text)]


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation and articles, with single spaces."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(word for word in bare.split() if word not in ("a", "an", "the"))


def _first_line(text: str) -> str:
    return text.lstrip().split("\n", 1)[0]


def _f1(prediction: Sequence[str], answer: Sequence[str]) -> float:
    same = sum((Counter(prediction) & Counter(answer)).values())
    return 2 * same / (len(prediction) + len(answer)) if same else 0.0


METRICS: dict[str, Metric] = {
    "string_match_all": string_match_all,
    "string_match_part": string_match_part,
    "exact_match": exact_match,
    "f1": f1,
    "f1_first_line": f1_first_line,
    "numbers": numbers,
    "json_fields": json_fields,
}
