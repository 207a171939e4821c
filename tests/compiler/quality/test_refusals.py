"""Refusals of evaluations, by kind and fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.quality.eval_options import EvalOptions, EvaluationOptionErrors
from sscc.compiler.tools.quality.haystack import HaystackErrors, fit
from sscc.compiler.tools.quality.journal import EvaluationJournalErrors, Journal
from sscc.compiler.tools.quality.own_tasks import ExampleFileErrors, own_examples
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.ir.errors import ErrorKind
from sscc.ir.option import OptionRangeErrors
from tests.errors import raises

MODEL = Path("model")


@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ({"tasks": ()}, EvaluationOptionErrors.NOTHING_TO_EVALUATE, {}),
        ({"lengths": ()}, EvaluationOptionErrors.NO_LENGTH, {}),
        ({"examples": None}, EvaluationOptionErrors.NO_EXAMPLES, {}),
        ({"tasks": ("paskey",)}, EvaluationOptionErrors.UNKNOWN_TASK, {"task": "paskey"}),
        ({"tasks": ("perplexity",)}, EvaluationOptionErrors.PERPLEXITY_WITHOUT_TEXT, {}),
        ({"text": Path("t")}, EvaluationOptionErrors.TEXT_WITHOUT_PERPLEXITY, {}),
        ({"threads": 0}, OptionRangeErrors.OUT_OF_RANGE, {"option": "--threads", "value": 0, "least": 1}),
        ({"max_prompt": 1}, OptionRangeErrors.TOO_SMALL, {"option": "--max-prompt", "value": 1, "least": 2}),
        ({"budgets": (24, 24)}, EvaluationOptionErrors.REPEATED_VALUE, {"option": "--budgets"}),
        ({"methods": ("full",), "fetches": (2,)}, EvaluationOptionErrors.FETCH_WITHOUT_QUERY, {"method": "query"}),
        ({"methods": ("full",), "pools": (3,)}, EvaluationOptionErrors.POOLS_WITHOUT_POOLING, {}),
        (
            {"methods": ("query",), "key_bits": (3,)},
            EvaluationOptionErrors.UNKNOWN_KEY_BITS,
            {"bits": 3, "choices": [1, 2, 4, 16]},
        ),
    ],
)
def test_options(options: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        EvalOptions(MODEL, **options)


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        ("{", ExampleFileErrors.NOT_JSON, {}),
        ("[" * 100_000, ExampleFileErrors.NOT_JSON, {}),
        ("3", ExampleFileErrors.NOT_AN_OBJECT, {}),
        ('{"prompt": "a"}', ExampleFileErrors.NO_ANSWERS, {}),
        ('{"answers": ["a"]}', ExampleFileErrors.NO_PROMPT, {}),
        ('{"tokens": [1], "answer_tokens": []}', ExampleFileErrors.NO_TOKENS, {"field": "answer_tokens"}),
        ('{"prompt": "a", "answers": ["a"], "metric": ["f1"]}', ExampleFileErrors.UNKNOWN_METRIC, {"metric": ["f1"]}),
        ('{"prompt": "a", "answers": ["a"], "metric": "f2"}', ExampleFileErrors.UNKNOWN_METRIC, {"metric": "f2"}),
        ('{"prompt": "a", "max_new_tokens": true}', ExampleFileErrors.BAD_NEW_TOKENS, {"value": True}),
        ('{"prompt": "a", "dataset": "lcc"}', ExampleFileErrors.NO_SUCH_METRIC_HERE, {"dataset": "lcc"}),
        ('{"input": "a", "dataset": "passage_count"}', ExampleFileErrors.QUESTION_IN_PROMPT, {}),
        (
            '{"prompt": "a", "answers": ["a"], "metric": "json_fields"}',
            ExampleFileErrors.ANSWERS_ARE_NOT_FIELDS,
            {"metric": "json_fields"},
        ),
    ],
)
def test_lines_of_examples(
    line: str, kind: ErrorKind, fields: dict[str, Any], plain: PromptFormat, tmp_path: Path
) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(f'{{"prompt": "\u2028a", "answers": ["a"]}}\n{line}\n')
    with raises(kind, where=f"{path}:2", **fields):
        list(own_examples(path, None, plain))


def test_a_file_without_examples(plain: PromptFormat, tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text("\n\n")
    with raises(ExampleFileErrors.EMPTY, path=path):
        list(own_examples(path, None, plain))


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("{}\n", EvaluationJournalErrors.OTHER_FORMAT, {"format": 1}),
        ("[" * 100_000 + "\n", EvaluationJournalErrors.NOT_AN_OBJECT, {"line": 1}),
        (
            json.dumps({"format": 1, "options": {"seed": 1}}) + "\n",
            EvaluationJournalErrors.OTHER_OPTIONS,
            {"option": "seed", "recorded": "1", "value": "0"},
        ),
        (
            json.dumps({"format": 1, "options": {"seed": 0}}) + "\n{}\n",
            EvaluationJournalErrors.NO_RECORD,
            {"line": 2},
        ),
    ],
)
def test_journals(text: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    with raises(kind, path=path, **fields):
        Journal(path, {"seed": 0})


def test_a_prompt_that_fits_no_length() -> None:
    with raises(HaystackErrors.PROMPT_TOO_LONG, text="the task x", length=2, smallest=3):
        fit(lambda size: "a b c", 2, lambda text: len(text.split()), "the task x")
