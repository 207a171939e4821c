"""The examples and cells of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from sscc.compiler.tools.quality.cells import Cell, make_cells
from sscc.compiler.tools.quality.eval_options import EvalOptions, EvaluationOptionErrors
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.own_tasks import own_examples
from sscc.compiler.tools.quality.perplexity import perplexity_examples
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.ruler import ruler_examples
from sscc.compiler.tools.quality.tasks import PERPLEXITY, RULER_PREFIX, make_example
from sscc.ir.files import shown_name

if TYPE_CHECKING:
    from sscc.runtime.text.chat_template import ChatTemplate


def make_examples(
    options: EvalOptions, tokenizer: Tokenizer | None, template: ChatTemplate | None = None
) -> Iterator[Example]:
    """Return the examples in the order of tasks, lengths and numbers.

    Args:
        options: options of the evaluation.
        tokenizer: tokenizer of the checkpoint; None without one.
        template: chat template of the checkpoint, for `options.chat`; None if it has none.

    Raises:
        UsageError: a task does not fit a length, or lacks a tokenizer, a template or a package.
        InputError: an invalid file.
    """
    if options.chat and template is None:
        raise EvaluationOptionErrors.NO_CHAT_TEMPLATE(model=options.model)
    prompts = None if tokenizer is None else PromptFormat(tokenizer, template if options.chat else None)
    for task in options.tasks:
        if prompts is None:
            raise EvaluationOptionErrors.NO_TOKENIZER(model=options.model, task=task)
        yield from _of_task(task, options, prompts)
    for path in options.files:
        yield from own_examples(path, options.examples, prompts, options.max_prompt)


def _of_task(task: str, options: EvalOptions, prompts: PromptFormat) -> Iterator[Example]:
    count = options.examples or 0
    if task == PERPLEXITY and options.text is not None:
        name, scored = shown_name(options.text), options.score_tokens
        yield from perplexity_examples(
            options.text_content, name, options.lengths, scored, count, prompts.tokenizer
        )
        return
    for length in options.lengths:
        if task.startswith(RULER_PREFIX):
            yield from ruler_examples(task.removeprefix(RULER_PREFIX), length, count, options.seed, prompts)
        else:
            for index in range(count):
                yield make_example(task, length, index, options.seed, prompts)


def cells_for(options: EvalOptions, examples: list[Example]) -> list[Cell]:
    """Return the cells, whose maximum context fits the longest example. Raises UsageError for an invalid cell."""
    cells = make_cells(
        options.methods,
        options.budgets,
        options.kv_dtypes,
        options.selection,
        options.layer_topks,
        options.key_bits,
        options.pools,
        options.fetches,
        options.rules,
        max_context=max(example.positions for example in examples),
        new_tokens=most_new_tokens(examples),
    )
    return [each for cell in cells for each in (cell, *(replace(cell, keep=keep) for keep in options.keeps))]


def most_new_tokens(examples: Iterable[Example]) -> int:
    """Return the maximum number of tokens that follow any prompt."""
    return max(example.steps for example in examples)
