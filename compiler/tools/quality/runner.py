"""Execution of an evaluation: examples, cells, existing results, and the remaining runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from sscc.compiler.driver.sessions import open_session
from sscc.compiler.options.outputs import write_text
from sscc.compiler.options.progress import bar
from sscc.compiler.tools.quality.cells import QUERY, Cell
from sscc.compiler.tools.quality.drafted_prompts import DraftedPrompts
from sscc.compiler.tools.quality.equal_bytes import snapstream_that_holds
from sscc.compiler.tools.quality.eval_options import EvalOptions
from sscc.compiler.tools.quality.evaluation_plan import cells_for, make_examples, most_new_tokens
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.journal import Journal, Record
from sscc.compiler.tools.quality.means import CellSummary, summarise
from sscc.compiler.tools.quality.model_files import ModelFiles
from sscc.compiler.tools.quality.scoring import ExampleResult, run_example
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.session.excerpt import PromptTokens
from sscc.runtime.session.session import Session

JOURNAL = "records.jsonl"
EXAMPLES = "examples.jsonl"
WORK = "work"


class EvaluationErrors(ErrorKind):
    REPEATED_EXAMPLE = (
        UsageError,
        "{times} examples have the name {example}: give the tasks of different files different names (the field task)",
    )


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation."""

    digest: str
    examples: list[Example]
    cells: list[CellSummary]


def evaluate(options: EvalOptions, folder: Path) -> Evaluation:
    """Run every example in every cell, except those in the journal of `folder`.

    Also write the examples to `folder`, for other programs, and the compiled programs to `folder`/work.

    Raises:
        UsageError: the options do not fit the model, each other, or the journal.
        SsccError: an error of a compilation or a session.
    """
    files = ModelFiles(options.model, folder / WORK, options.numbers)
    tokenizer = files.tokenizer
    examples = list(make_examples(options, tokenizer, files.chat_template if options.chat else None))
    _check_names(examples)
    cells = cells_for(options, examples)
    made_of = {"model": files.digest, **options.described(), "new_tokens": most_new_tokens(examples)}
    if options.equal_bytes:
        cells = _with_equal_bytes(cells, files)
    with Journal(folder / JOURNAL, made_of) as journal:
        write_text(folder / EXAMPLES, "".join(f"{json.dumps(example.to_dict())}\n" for example in examples))
        summaries: list[CellSummary] = []
        missing = {cell.name: [each for each in examples if not journal.has(cell.name, each)] for cell in cells}
        with ExitStack() as stack:
            seen = stack.enter_context(_progress(sum(map(len, missing.values()))))
            drafts = stack.enter_context(DraftedPrompts(options, tokenizer))
            for cell in cells:
                artifact = files.artifact(cell.geometry, cell.layer_topk, cell.rule)
                if missing[cell.name]:
                    session = open_session(artifact, interpreter=options.interpreter, threads=options.threads)
                    run_cell(session, cell, missing[cell.name], tokenizer, journal, seen, drafts.left)
                records = [journal.records[cell.name, example.name] for example in examples]
                summaries.append(
                    summarise(cell, artifact.signature, examples, records, summaries[0] if summaries else None)
                )
    return Evaluation(files.digest, examples, summaries)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """Show a progress bar over `total` examples of all cells. Yield a function that reports the current example and
    the number of examples finished since its last call."""
    done = 0
    with bar("compiling") as (advance, update):

        def seen(text: str, count: int) -> None:
            nonlocal done
            done += count
            update(text)
            advance(done, total)

        advance(0, total)
        yield seen


def _with_equal_bytes(cells: list[Cell], files: ModelFiles) -> list[Cell]:
    """Return the cells, followed by SnapStream's cells with as many bytes as those that select by query."""
    programs = (files.artifact(cell.geometry).signature for cell in cells if cell.method == QUERY)
    equal = (snapstream_that_holds(program.held_bytes, program) for program in programs)
    return list({cell.name: cell for cell in [*cells, *filter(None, equal)]}.values())


def run_cell(
    session: Session,
    cell: Cell,
    examples: Sequence[Example],
    tokenizer: Tokenizer | None,
    journal: Journal,
    seen: Callable[[str, int], None] = lambda text, count: None,
    left: Callable[[Example, float, Signature], PromptTokens] | None = None,
) -> None:
    """Run examples one after another, and record each when it is finished.

    Args:
        session: session of the cell's program.
        cell: the cell.
        examples: examples without a result.
        tokenizer: tokenizer of the model; None without one.
        journal: journal of the results.
        seen: callback with the current example, and the number of examples finished since the last call.
        left: function that shortens a prompt with a draft to a fraction, for cells with `keep`.
    """
    for example in examples:
        seen(f"{cell.name}, {example.group}", 0)
        shortened = () if cell.keep is None or left is None else (left(example, cell.keep, session.signature),)
        journal.add(_record(cell, example, run_example(session, example, tokenizer, *shortened)))
        seen(f"{cell.name}, {example.group}", 1)


def _record(cell: Cell, example: Example, outcome: ExampleResult) -> Record:
    return Record(
        cell=cell.name,
        example=example.name,
        task=example.task,
        length=example.length,
        index=example.index,
        depth=example.depth,
        prompt_tokens=len(example.prompt),
        prompt_sha256=example.prompt_sha256,
        score=outcome.score,
        said=outcome.said,
        tokens=list(outcome.tokens),
        kept_rows=outcome.kept_rows,
        seconds=round(outcome.seconds, 4),
    )


def _check_names(examples: Sequence[Example]) -> None:
    """Raise UsageError for examples with the same name. Two files can have tasks of the same name, whose records would
    be ambiguous."""
    name, times = Counter(example.name for example in examples).most_common(1)[0]
    if times > 1:
        raise EvaluationErrors.REPEATED_EXAMPLE(example=name, times=times)
