"""Examples from files of JSON lines, also those of LongBench and RULER.

A line has a prompt and the expected answer:

    {"prompt": .., "answers": [..]}
    {"context": .., "input": .., "answers": [..], "dataset": ..}       LongBench (arXiv 2308.14508)
    {"input": .., "outputs": [..]}                                     RULER
    {"tokens": [..], "answer_tokens": [..]}                            for a model without a tokenizer

Optional fields are "task" (default: the dataset, else the file's name), "metric" and "max_new_tokens".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sscc.compiler.tools.quality.answer_scores import FIELD, METRICS, json_fields
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.scoring import TOKENS
from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.files import read_text

DEFAULT_METRIC = "string_match_all"
DEFAULT_NEW_TOKENS = 64

LONGBENCH = {
    "narrativeqa": ("f1", 128),
    "qasper": ("f1", 128),
    "multifieldqa_en": ("f1", 64),
    "hotpotqa": ("f1", 32),
    "2wikimqa": ("f1", 32),
    "musique": ("f1", 32),
    "triviaqa": ("f1_first_line", 32),
    "passage_count": ("numbers", 32),
    "passage_retrieval_en": ("numbers", 32),
}
"""Supported LongBench datasets, with metric and maximum number of new tokens."""

OWN_PROMPT = ("passage_count", "passage_retrieval_en")
"""Datasets whose question is in LongBench's prompt template, not in the file."""

REFUSED = {
    "gov_report": "ROUGE",
    "qmsum": "ROUGE",
    "multi_news": "ROUGE",
    "vcsum": "ROUGE",
    "samsum": "ROUGE",
    "trec": "a match among given classes",
    "lsht": "a match among given classes",
    "multifieldqa_zh": "F1 of Chinese words",
    "dureader": "ROUGE of Chinese words",
    "passage_retrieval_zh": "a match of Chinese paragraph names",
    "lcc": "edit similarity",
    "repobench-p": "edit similarity",
}
"""Unsupported LongBench datasets, with the metric that sscc does not implement."""


class ExampleFileErrors(ErrorKind):
    EMPTY = InputError, "{path} has no examples"
    NOT_JSON = InputError, "{where} is not JSON: {cause}"
    NOT_AN_OBJECT = InputError, "{where} is not a JSON object"
    NO_TOKENIZER = (
        UsageError,
        "{where} is text, but the model has no tokenizer: give the fields tokens and answer_tokens",
    )
    ANSWERS_ARE_NOT_FIELDS = (
        InputError,
        "{where} has the metric {metric}, which needs answers of the form '\"name\": \"value\"'",
    )
    TEMPLATE_FILLS_PROMPT = (
        UsageError,
        "--max-prompt is {longest}, but the chat template alone has {template_tokens} tokens: give at least {least}",
    )
    NO_SUCH_METRIC_HERE = UsageError, "{where}: LongBench scores {dataset} by {metric}, which sscc does not implement"
    QUESTION_IN_PROMPT = (
        UsageError,
        "{where}: the question of {dataset} is in LongBench's prompt template: give the whole text as the field prompt",
    )
    UNKNOWN_METRIC = UsageError, "the metric of {where} must be one of {metrics}, got {metric!r}"
    BAD_NEW_TOKENS = UsageError, "{where} has max_new_tokens {value!r}, which is not a number of at least 1"
    NO_PROMPT = InputError, "{where} has neither a prompt nor an input"
    NO_ANSWERS = InputError, "{where} has no list of answers"
    NO_TOKENS = InputError, "{where} has no list of token numbers in the field {field!r}"


def own_examples(
    path: Path, count: int | None, prompts: PromptFormat | None, longest: int | None = None
) -> Iterator[Example]:
    """Return the first `count` examples (None for all) of each task in a file.

    Args:
        path: file of JSON lines.
        count: number of examples per task.
        prompts: format of text prompts, in a user turn if it has a template; None if the model has no tokenizer. Lines
            of tokens are used unchanged.
        longest: maximum tokens of a prompt. Longer prompts lose their middle, as in LongBench. None for no limit.

    Raises:
        InputError: a line is not an example.
        UsageError: a dataset is not supported, a text prompt has no tokenizer, or `longest` leaves no room for text.
    """
    seen: Counter[str] = Counter()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        fields = _object(line, where)
        task = str(fields.get("task") or fields.get("dataset") or path.stem)
        if count is None or seen[task] < count:
            yield _example(fields, task, seen[task], where, prompts, longest)
            seen[task] += 1
    if not seen:
        raise ExampleFileErrors.EMPTY(path=path)


def cut_middle(tokens: list[int], longest: int) -> list[int]:
    """Return at most `longest` tokens: half of them from the beginning, half from the end."""
    if len(tokens) <= longest:
        return tokens
    return [*tokens[: longest // 2], *tokens[len(tokens) - (longest - longest // 2) :]]


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ExampleFileErrors.NOT_JSON(where=where, cause=quoted(error)) from None
    if not isinstance(fields, dict):
        raise ExampleFileErrors.NOT_AN_OBJECT(where=where)
    return fields


def _example(
    fields: dict[str, Any], task: str, index: int, where: str, prompts: PromptFormat | None, longest: int | None
) -> Example:
    metric, new_tokens = _scoring(fields, where)
    if "tokens" in fields:
        answer = _token_list(fields, "answer_tokens", where)
        prompt = _token_list(fields, "tokens", where)
        return Example(task, 0, index, prompt, (), TOKENS, len(answer), answer_tokens=answer)
    question = _prompt(fields, where)
    if prompts is None:
        raise ExampleFileErrors.NO_TOKENIZER(where=where)
    text = prompts.text(question)
    tokens = prompts.encode(text)
    kept = tokens if longest is None else cut_middle(tokens, longest)
    if len(kept) < len(tokens):
        _check_the_template_is_whole(prompts, len(kept))
    answers = _answers(fields, where)
    if METRICS[metric] is json_fields and not all(FIELD.fullmatch(answer) for answer in answers):
        raise ExampleFileErrors.ANSWERS_ARE_NOT_FIELDS(where=where, metric=metric)
    return Example(task, 0, index, tuple(kept), answers, metric, new_tokens, text=text)


def _check_the_template_is_whole(prompts: PromptFormat, longest: int) -> None:
    """Raise UsageError if cutting a prompt to `longest` tokens would cut the template, which is at both ends."""
    own = 0 if prompts.template is None else prompts.added("x")
    if longest // 2 < own:
        raise ExampleFileErrors.TEMPLATE_FILLS_PROMPT(longest=longest, template_tokens=own, least=2 * own)


def _scoring(fields: dict[str, Any], where: str) -> tuple[str, int]:
    dataset = str(fields.get("dataset") or "").removesuffix("_e")
    if "metric" not in fields and dataset in REFUSED:
        raise ExampleFileErrors.NO_SUCH_METRIC_HERE(where=where, dataset=dataset, metric=REFUSED[dataset])
    if "prompt" not in fields and dataset in OWN_PROMPT:
        raise ExampleFileErrors.QUESTION_IN_PROMPT(where=where, dataset=dataset)
    metric, new_tokens = LONGBENCH.get(dataset, (DEFAULT_METRIC, DEFAULT_NEW_TOKENS))
    metric, new_tokens = fields.get("metric", metric), fields.get("max_new_tokens", new_tokens)
    if not isinstance(metric, str) or metric not in METRICS:
        raise ExampleFileErrors.UNKNOWN_METRIC(where=where, metric=metric, metrics=list(METRICS))
    if type(new_tokens) is not int or new_tokens < 1:
        raise ExampleFileErrors.BAD_NEW_TOKENS(where=where, value=new_tokens)
    return metric, new_tokens


def _prompt(fields: dict[str, Any], where: str) -> str:
    """Return the prompt of a line, or its context followed by its question."""
    if isinstance(fields.get("prompt"), str):
        return str(fields["prompt"])
    question, context = fields.get("input"), fields.get("context")
    if not isinstance(question, str) or not isinstance(context, str | None):
        raise ExampleFileErrors.NO_PROMPT(where=where)
    return question if context is None else f"{context}\n\nQuestion: {question}\nAnswer:"


def _answers(fields: dict[str, Any], where: str) -> tuple[str, ...]:
    answers = fields.get("answers", fields.get("outputs"))
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ExampleFileErrors.NO_ANSWERS(where=where)
    return tuple(answers)


def _token_list(fields: dict[str, Any], name: str, where: str) -> tuple[int, ...]:
    tokens = fields.get(name)
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise ExampleFileErrors.NO_TOKENS(where=where, field=name)
    return tuple(tokens)
