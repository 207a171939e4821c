"""Metrics against cases computed by hand."""

from __future__ import annotations

import pytest

from sscc.compiler.tools.quality.answer_scores import METRICS, normalised


@pytest.mark.parametrize(
    ("metric", "said", "answers", "score"),
    [
        ("string_match_all", " 123, 456 and 9", ["123", "456", "789"], 2 / 3),
        ("string_match_all", "the ANSWER is Paris", ["paris"], 1.0),
        ("string_match_all", "", ["paris"], 0.0),
        ("string_match_part", "Rome or Paris", ["paris", "london"], 1.0),
        ("json_fields", '{\n  "a": "Red-Fox",\n  "b": 12,', ['"a": "red-fox"', '"b": "12"', '"c": "1"'], 2 / 3),
        ("json_fields", '"a": "1", "a": "2", "b": "a", "c"', ['"a": "2"', '"b": "a"'], 1 / 2),
        ("json_fields", "a: 1", ['"a": "1"'], 0.0),
        ("string_match_part", "Rome", ["paris", "london"], 0.0),
        ("exact_match", " The Eiffel Tower!\nQuestion: ..", ["eiffel tower"], 1.0),
        ("exact_match", "the Eiffel Tower in Paris", ["eiffel tower"], 0.0),
        # said: cat sat on mat (4), wanted: cat on hat (3), common 2: precision 1/2, recall 2/3
        ("f1", "the cat sat on the mat", ["a cat on a hat"], 4 / 7),
        ("f1", "dogs", ["cats", "dogs"], 1.0),
        ("f1", "the", ["a"], 0.0),
        ("f1", "no no no", ["no"], 1 / 2),
        ("f1_first_line", "Paris\nIt is in France", ["Paris"], 1.0),
        ("numbers", "Paragraph 12", ["Paragraph 12"], 1.0),
        ("numbers", "Paragraph 12 or 13", ["Paragraph 12"], 1 / 2),
        ("numbers", "none", ["7"], 0.0),
    ],
)
def test_scores(metric: str, said: str, answers: list[str], score: float) -> None:
    assert METRICS[metric](said, answers) == pytest.approx(score)


def test_normalised() -> None:
    assert normalised("  An Apple, and the  Pear's ") == "apple and pears"
