"""Generated tasks by name. Equal arguments give equal examples on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from sscc.compiler.tools.quality import example_drafts as drafts
from sscc.compiler.tools.quality import long_answers
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.example_drafts import Maker
from sscc.compiler.tools.quality.haystack import fit

if TYPE_CHECKING:
    from sscc.compiler.tools.quality.prompts import PromptFormat

GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio conjugate. The first n multiples modulo 1 are spread evenly over [0, 1) for every n."""


@dataclass(frozen=True)
class Task:
    """A kind of example.

    Attributes:
        summary: description in one line.
        make: function that makes a draft of an example.
        max_new_tokens: maximum length of an answer, sufficient for tokenizers with one token per digit.
        metric: a name of `METRICS`.
        placed: True if the depth is the position of the answer.
    """

    summary: str
    make: Maker
    max_new_tokens: int
    metric: str = "string_match_all"
    placed: bool = True


PERPLEXITY, RULER_PREFIX = "perplexity", "ruler:"
"""Name of the task with a text, and prefix of the names of RULER's tasks."""
TASKS = {
    "passkey": Task("a key in noise that repeats", drafts.passkey, 12),
    "niah_single": Task("one number in prose", drafts.single_needle, 16),
    "niah_multikey": Task("one number in prose, three others beside it", drafts.multi_key, 16),
    "niah_multivalue": Task("four numbers of one key in prose", drafts.multi_value, 48, placed=False),
    "niah_multiquery": Task("the numbers of four keys in prose", drafts.multi_query, 64, placed=False),
    "kv_retrieval": Task("one value of a JSON object with similar pairs", drafts.key_value, 16),
    "variable_tracking": Task("a chain of five assignments in noise", drafts.variable_tracking, 48, placed=False),
    "common_words": Task("the ten most frequent of many words", drafts.common_words, 64, placed=False),
    "list_copy": Task("a list of twenty items in prose, all repeated", long_answers.list_copy, 192, placed=False),
    "answer_recall": Task(
        "a number at the beginning of a long answer, repeated at its end", long_answers.answer_recall, 16, placed=False
    ),
    "extraction": Task(
        "twelve details in prose as fields of a JSON object", long_answers.extraction, 256, "json_fields", placed=False
    ),
}


def make_example(name: str, length: int, index: int, seed: int, prompts: PromptFormat) -> Example:
    """Return example `index` of a task. Its prompt, including the first part of the answer, has at most `length`
    tokens, with as much filler as fits.

    Raises UsageError if the task does not fit into `length`.
    """
    task = TASKS[name]
    depth = (index + 1) * GOLDEN % 1.0
    draft = task.make(Random(f"{seed}/{name}/{length}/{index}"), depth, length)

    def build(size: int) -> str:
        return prompts.text(draft.question(size), draft.answer_prefix)

    spoken: list[int] = []
    if draft.spoken is not None:
        answer = fit(draft.spoken, length // 2, prompts.count_answer, f"the answer of the task {name}")
        spoken = prompts.encode_answer(answer)
    text = fit(build, length - len(spoken), prompts.count, f"the task {name}", draft.largest)
    return Example(
        task=name,
        length=length,
        index=index,
        prompt=tuple(prompts.encode(text)),
        answers=draft.answers,
        metric=task.metric,
        max_new_tokens=task.max_new_tokens,
        depth=text.index(draft.answers[0]) / len(text) if task.placed else None,
        text=text,
        spoken=tuple(spoken),
    )
