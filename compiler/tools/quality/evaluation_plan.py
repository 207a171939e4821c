"""The plan of an evaluation: options, checked as far as possible without the model, and their examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from sscc.compiler.options.layer_topk import LayerTopk
from sscc.compiler.options.policy import Rule
from sscc.compiler.options.versions import own_version
from sscc.compiler.tools.quality import defaults
from sscc.compiler.tools.quality.cells import METHODS, POOLING, QUERY, Cell, Selection, make_cells
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.model_files import Numbers
from sscc.compiler.tools.quality.own_tasks import own_examples
from sscc.compiler.tools.quality.perplexity import TASK as PERPLEXITY
from sscc.compiler.tools.quality.perplexity import perplexity_examples
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.ruler import PREFIX, ruler_examples
from sscc.compiler.tools.quality.tasks import TASKS, make_example
from sscc.ir.choices import LANDMARK_BITS
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import file_digest, read_text, shown_name
from sscc.ir.geometry import PLAIN
from sscc.ir.suggestions import check_choice, did_you_mean
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend_names
from sscc.runtime.session.artifact import Artifact

if TYPE_CHECKING:
    from sscc.runtime.text.chat_template import ChatTemplate


class EvaluationOptionErrors(ErrorKind):
    TOO_SMALL = UsageError, "{option} has {value}, but the minimum is {least}"
    REPEATED_VALUE = UsageError, "{option} has the same value twice: give each once"
    NOTHING_TO_EVALUATE = UsageError, "there is nothing to evaluate: give --tasks or --examples-file"
    NO_LENGTH = UsageError, "the tasks have no length of prompts: give --lengths"
    NO_EXAMPLES = UsageError, "the tasks have no number of examples: give --examples"
    UNKNOWN_TASK = UsageError, "--tasks has {task!r}, it must be one of {tasks}{similar_hint}"
    TEXT_WITHOUT_PERPLEXITY = (
        UsageError,
        "--text is only for the task perplexity: give --tasks perplexity, or leave --text out",
    )
    PERPLEXITY_WITHOUT_TEXT = UsageError, "the task perplexity needs a text: give --text FILE"
    PERPLEXITY_OF_CHAT = (
        UsageError,
        "the task perplexity measures plain text, which --chat excludes: leave one of them out",
    )
    RULE_NAMED_AS_METHOD = UsageError, "--policy has a rule with the name of the method {rule}: rename the rule"
    POOLS_WITHOUT_POOLING = UsageError, "--kv-pool compares the methods {methods}: add one of them to --methods"
    EQUAL_BYTES_WITHOUT_QUERY = UsageError, "--equal-bytes compares the method {method}: add it to --methods"
    FETCH_WITHOUT_QUERY = UsageError, "--kv-fetch limits the method {method}: add it to --methods"
    NO_LANDMARKS = UsageError, "the method {method} needs landmarks: give --kv-landmark-bits"
    UNKNOWN_LANDMARK_BITS = UsageError, "--kv-landmark-bits has {bits}, it must be one of {choices}"
    NO_CHAT_TEMPLATE = UsageError, "{model} has no chat template, which --chat needs: leave --chat out"
    NO_TOKENIZER = (
        UsageError,
        "{model} has no tokenizer, which the task {task} needs: give --examples-file with tokens",
    )


@dataclass(frozen=True)
class EvalOptions:
    """Models, tasks and methods of an evaluation.

    Attributes:
        model: anything that `sscc compile` accepts.
        tasks: names of TASKS, "perplexity" (of `text`), or "ruler:" and a task of RULER.
        files: JSON lines with the user's examples.
        lengths: lengths of prompts in tokens.
        budgets, methods, kv_dtypes, selection, layer_topks, landmark_bits, pools, fetches, rules: the cells
            (`make_cells`).
        draft: program that selects the part of prompts to read.
        keeps: fractions of prompts to read, each of which adds a cell to every other one.
        delimiter: text in place of omitted parts, for a draft with another tokenizer; None for the default.
        equal_bytes: True to add cells of SnapStream that hold as many bytes as those that select by query.
        examples: number per task and length; for `files` the first ones of each task, None for all.
        seed: random seed of the examples.
        text: text for perplexity ("-": stdin).
        scored: predicted tokens per window.
        longest: maximum prompt length for `files`; longer prompts lose their middle; None for no limit.
        chat: True to turn prompts of text into turns of the checkpoint's chat template.
        numbers: dtypes of the programs.
        interpreter, threads: interpreter of the programs.

    Raises:
        UsageError: options that contradict each other or name something unknown.
    """

    model: Path
    tasks: tuple[str, ...] = defaults.TASKS
    files: tuple[Path, ...] = ()
    lengths: tuple[int, ...] = defaults.LENGTHS
    budgets: tuple[int, ...] = defaults.BUDGETS
    methods: tuple[str, ...] = defaults.METHODS
    kv_dtypes: tuple[str, ...] = (PLAIN,)
    selection: Selection = field(default_factory=Selection)
    layer_topks: tuple[LayerTopk, ...] = ()
    landmark_bits: tuple[int, ...] = defaults.LANDMARK_BITS
    pools: tuple[int, ...] = ()
    fetches: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()
    draft: Path | None = None
    keeps: tuple[float, ...] = ()
    delimiter: str | None = None
    equal_bytes: bool = False
    examples: int | None = defaults.EXAMPLES
    seed: int = 0
    text: Path | None = None
    scored: int = defaults.SCORED
    longest: int | None = None
    chat: bool = False
    numbers: Numbers = field(default_factory=Numbers)
    interpreter: str = DEFAULT_BACKEND
    threads: int | None = None

    def __post_init__(self) -> None:
        self._check_tasks()
        for name, low, values in (
            ("--lengths", 1, self.lengths),
            ("--budgets", 1, self.budgets),
            ("--examples", 1, [self.examples]),
            ("--score-tokens", 1, [self.scored]),
            ("--max-prompt", 2, [self.longest]),
            ("--threads", 1, [self.threads]),
        ):
            for value in values:
                if value is not None and value < low:
                    raise EvaluationOptionErrors.TOO_SMALL(option=name, value=value, least=low)
        check_choice("--interpreter", self.interpreter, backend_names())
        self._check_cells()
        for name, items in (
            ("--tasks", self.tasks),
            ("--lengths", self.lengths),
            ("--budgets", self.budgets),
            ("--kv-landmark-bits", self.landmark_bits),
            ("--kv-pool", self.pools),
            ("--kv-fetch", self.fetches),
            ("--policy", [rule.name for rule in self.rules]),
            ("--keep", self.keeps),
        ):
            if len(set(items)) < len(items):
                raise EvaluationOptionErrors.REPEATED_VALUE(option=name)

    @cached_property
    def text_content(self) -> str:
        """Return the contents of `text`, "" if there is none. It is read once, because it may be stdin. Raises
        InputError."""
        return "" if self.text is None else read_text(self.text)

    @cached_property
    def drafted_by(self) -> Artifact | None:
        """Return the draft. Raises as `Artifact.load`."""
        return None if self.draft is None else Artifact.load(self.draft)

    def _check_tasks(self) -> None:
        if not self.tasks and not self.files:
            raise EvaluationOptionErrors.NOTHING_TO_EVALUATE()
        if self.tasks and not self.lengths:
            raise EvaluationOptionErrors.NO_LENGTH()
        if self.tasks and self.examples is None:
            raise EvaluationOptionErrors.NO_EXAMPLES()
        for task in self.tasks:
            if task not in TASKS and task != PERPLEXITY and not task.startswith(PREFIX):
                known = [*TASKS, PERPLEXITY, f"{PREFIX}NAME"]
                likely = did_you_mean(task, known[:-1])
                raise EvaluationOptionErrors.UNKNOWN_TASK(task=task, tasks=known, similar_hint=likely)
        if PERPLEXITY in self.tasks and self.text is None:
            raise EvaluationOptionErrors.PERPLEXITY_WITHOUT_TEXT()
        if PERPLEXITY not in self.tasks and self.text is not None:
            raise EvaluationOptionErrors.TEXT_WITHOUT_PERPLEXITY()
        if PERPLEXITY in self.tasks and self.chat:
            raise EvaluationOptionErrors.PERPLEXITY_OF_CHAT()

    def _check_cells(self) -> None:
        for rule in self.rules:
            if rule.name.lower() in METHODS:
                raise EvaluationOptionErrors.RULE_NAMED_AS_METHOD(rule=rule.name)
        if self.pools and not {*POOLING} & {*self.methods}:
            raise EvaluationOptionErrors.POOLS_WITHOUT_POOLING(methods=POOLING)
        if QUERY not in self.methods:
            if self.equal_bytes:
                raise EvaluationOptionErrors.EQUAL_BYTES_WITHOUT_QUERY(method=QUERY)
            if self.fetches:
                raise EvaluationOptionErrors.FETCH_WITHOUT_QUERY(method=QUERY)
            return
        if not self.landmark_bits:
            raise EvaluationOptionErrors.NO_LANDMARKS(method=QUERY)
        for bits in self.landmark_bits:
            if bits not in LANDMARK_BITS:
                raise EvaluationOptionErrors.UNKNOWN_LANDMARK_BITS(bits=bits, choices=LANDMARK_BITS)

    def described(self) -> dict[str, Any]:
        """Return everything that determines the meaning of a result, for JSON; not the number or the speed of examples.
        """
        numbers = self.numbers
        return {
            "version": own_version(),
            "tasks": list(self.tasks),
            "files": {path.name: file_digest(path) for path in self.files},
            "text": None if self.text is None else hashlib.sha256(self.text_content.encode()).hexdigest(),
            "lengths": list(self.lengths),
            "budgets": list(self.budgets),
            "methods": list(self.methods),
            "kv_dtypes": list(self.kv_dtypes),
            "selection": dict(vars(self.selection)),
            "landmark_bits": list(self.landmark_bits) if QUERY in self.methods else None,
            **self._described_draft(),
            "equal_bytes": self.equal_bytes or None,
            "pools": list(self.pools) or None,
            "fetches": list(self.fetches) or None,
            "rules": {rule.name: rule.digest for rule in self.rules} or None,
            "layer_topks": [str(each) for each in self.layer_topks] or None,  # absent in earlier journals too
            "seed": self.seed,
            "score_tokens": self.scored,
            "max_prompt": self.longest,
            "chat": self.chat or None,  # journals of earlier versions lack this name, which is read as None
            "dtype": numbers.dtype,
            "weights": None if numbers.weight_format is None else str(numbers.weight_format),
            "prefill_chunk": numbers.prefill_chunk,
            "interpreter": self.interpreter,
        }

    def _described_draft(self) -> dict[str, Any]:
        if self.drafted_by is None:
            return {}
        return {"draft": asdict(self.drafted_by.identity), "keeps": list(self.keeps), "delimiter": self.delimiter}


def make_examples(
    options: EvalOptions, tokenizer: Tokenizer | None, template: ChatTemplate | None = None
) -> Iterator[Example]:
    """Return the examples in the order of tasks, lengths and numbers.

    Args:
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
        yield from own_examples(path, options.examples, prompts, options.longest)


def _of_task(task: str, options: EvalOptions, prompts: PromptFormat) -> Iterator[Example]:
    count = options.examples or 0
    if task == PERPLEXITY and options.text is not None:
        yield from perplexity_examples(
            options.text_content, shown_name(options.text), options.lengths, options.scored, count, prompts.tokenizer
        )
        return
    for length in options.lengths:
        if task.startswith(PREFIX):
            yield from ruler_examples(task.removeprefix(PREFIX), length, count, options.seed, prompts)
        else:
            for index in range(count):
                yield make_example(task, length, index, options.seed, prompts)


def cells_for(options: EvalOptions, examples: list[Example]) -> list[Cell]:
    """Return the cells for these examples, all with room for the longest one. Raises UsageError."""
    cells = make_cells(
        options.methods,
        options.budgets,
        options.kv_dtypes,
        options.selection,
        options.layer_topks,
        options.landmark_bits,
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
