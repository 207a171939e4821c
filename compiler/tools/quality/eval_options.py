"""Options of an evaluation, checked as far as that goes without the model. No library is imported, for the help of
`sscc eval`."""

from __future__ import annotations

import hashlib
from dataclasses import MISSING, asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.execution_options import DraftOptions, InterpreterOptions
from sscc.compiler.options.layer_topk import LayerTopk
from sscc.compiler.options.policy import Rule
from sscc.compiler.options.versions import own_version
from sscc.compiler.tools.quality.cells import METHODS, POOLING, QUERY, Selection
from sscc.compiler.tools.quality.tasks import PERPLEXITY, RULER_PREFIX, TASKS
from sscc.ir.choices import LANDMARK_BITS
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import file_digest, read_text
from sscc.ir.geometry import DEFAULT_LANDMARK_BITS, DEFAULT_POOL, KV_DTYPES, PLAIN
from sscc.ir.option import check_options, flag_of, option, option_like, records_of
from sscc.ir.suggestions import did_you_mean
from sscc.ir.weight_formats.registry import WeightChoice

if TYPE_CHECKING:
    from sscc.runtime.session.artifact import Artifact

TASK, CELLS = "tasks", "caches to compare"
"""Headings of help."""
SLOW = ("niah_multiquery", "list_copy", "answer_recall", "extraction")
DEFAULT_TASKS = tuple(name for name in TASKS if name not in SLOW)
DEFAULT_EXAMPLES = 20


class EvaluationOptionErrors(ErrorKind):
    REPEATED_VALUE = UsageError, "{option} has the same value twice: give each once"
    NOTHING_TO_EVALUATE = UsageError, "there is nothing to evaluate: give --tasks or --examples-file"
    NO_LENGTH = UsageError, "the tasks have no length of prompts: give --lengths"
    NO_EXAMPLES = UsageError, "the tasks have no number of examples: give --examples"
    UNKNOWN_TASK = UsageError, "--tasks has {task!r}, which is none of {tasks}{similar_hint}"
    TEXT_WITHOUT_PERPLEXITY = UsageError, "--text is for the task perplexity: give --tasks perplexity, or no --text"
    PERPLEXITY_WITHOUT_TEXT = UsageError, "the task perplexity needs a text: give --text FILE"
    PERPLEXITY_OF_CHAT = (
        UsageError,
        "the task perplexity measures plain text, and --chat makes none: leave one of them out",
    )
    RULE_NAMED_AS_METHOD = UsageError, "--kv-policy has a rule with the name of the method {rule}: rename the rule"
    POOLS_WITHOUT_POOLING = UsageError, "--kv-pool compares the methods {methods}: add one of them to --methods"
    EQUAL_BYTES_WITHOUT_QUERY = UsageError, "--equal-bytes compares the method {method}: add it to --methods"
    FETCH_WITHOUT_QUERY = UsageError, "--kv-fetch limits the method {method}: add it to --methods"
    NO_LANDMARKS = UsageError, "the method {method} needs landmarks: give --kv-landmark-bits"
    UNKNOWN_LANDMARK_BITS = UsageError, "--kv-landmark-bits has {bits}, which is none of {choices}"
    NO_CHAT_TEMPLATE = UsageError, "{model} has no chat template, which --chat needs: leave --chat out"
    NO_TOKENIZER = (
        UsageError,
        "{model} has no tokenizer, which the task {task} needs: give --examples-file with tokens",
    )


@dataclass(frozen=True)
class Numbers:
    """Numeric formats of programs; None is the one that fits the checkpoint."""

    dtype: str | None = None
    weight_format: WeightChoice | None = None
    prefill_chunk: int | None = None


@dataclass(frozen=True)
class EvalOptions(InterpreterOptions):
    """Options of an evaluation.

    Attributes:
        selection: scores of prompts and the rows that stay, for all cells.
        numbers: numeric formats of programs.

    Raises:
        UsageError: options that contradict each other or name something unknown.
    """

    model: Path = option(
        MISSING, "Hugging Face folder, .gguf, .pt, .pth or .pt2 file", "MODEL", positional=True, identity=False
    )
    tasks: tuple[str, ...] = option(
        DEFAULT_TASKS, f"tasks: {', '.join(TASKS)}; {PERPLEXITY} with --text; {RULER_PREFIX}NAME, of RULER itself (the "
        "extra `ruler`)", "TASK", group=TASK, words=True,
        default=f"all but {', '.join(SLOW)}, unless --examples-file is given",
    )  # fmt: skip
    lengths: tuple[int, ...] = option((1024,), "tokens of prompts", "N", group=TASK, words=True, least=1)
    examples: int | None = option(
        DEFAULT_EXAMPLES, "examples per task and length", "N", group=TASK,
        default=f"{DEFAULT_EXAMPLES}; all of an --examples-file", least=1, identity=False,
    )  # fmt: skip
    seed: int = option(0, "seed of the examples", "N", group=TASK)
    text: Path | None = option(None, f"long text for the task {PERPLEXITY}, - for stdin", "FILE", group=TASK)
    score_tokens: int = option(128, f"scored tokens per window of {PERPLEXITY}", "N", group=TASK, least=1)
    files: tuple[Path, ...] = option(
        (), "JSON lines with prompt and answers, or as LongBench and RULER write them", "FILE", group=TASK, words=True,
        flags=("--examples-file",),
    )  # fmt: skip
    max_prompt: int | None = option(
        None, "longest prompt of a file, in tokens; longer ones lose their middle", "N", group=TASK, least=2
    )
    chat: bool = option(
        False, "ask in a user's turn of the checkpoint's chat template, whose tokens count in --lengths, instead of "
        "plain text to be continued", group=TASK,
    )  # fmt: skip
    methods: tuple[str, ...] = option(
        tuple(name for name in METHODS if name != QUERY),  # whose budgets are read, not held
        f"methods to compare: {', '.join(METHODS)}, the last of which holds every row", "METHOD", group=CELLS,
        words=True,
    )  # fmt: skip
    rules: tuple[Rule, ...] = option(
        (), "rules of yours to compare, FILE.py or FILE.py:CLASS, whose files are executed", "FILE", group=CELLS,
        flags=("--kv-policy",), words=True,
    )  # fmt: skip
    budgets: tuple[int, ...] = option(
        (256, 512), "rows of each method's cache", "ROWS", group=CELLS, words=True, least=1
    )
    layer_topks: tuple[LayerTopk, ...] = option_like(
        CompileOptions, "kv_topk_per_layer", (),
        help="per-layer budgets for snapstream, as in `sscc compile`; each is compared with the total spread evenly",
        group=CELLS, words=True, default="",
    )  # fmt: skip
    landmark_bits: tuple[int, ...] = option_like(
        CompileOptions, "kv_landmark_bits", (DEFAULT_LANDMARK_BITS,), group=CELLS, words=True, default="",
        help="bits per number of the key copies by which query selects, 1, 2, 4 or 16",
    )  # fmt: skip
    fetches: tuple[int, ...] = option_like(
        CompileOptions, "kv_fetch", (),
        help="most rows that a step of query fetches per KV head; each is compared with no limit", group=CELLS,
        words=True, default="",
    )  # fmt: skip
    equal_bytes: bool = option(
        False, "compare query in encoded rows also with snapstream that holds the same bytes in plain ones", group=CELLS
    )
    kv_dtypes: tuple[str, ...] = option_like(
        CompileOptions, "kv_dtype", (PLAIN,), group=CELLS, words=True, default="", choices=KV_DTYPES
    )
    pools: tuple[int, ...] = option_like(
        CompileOptions, "kv_pool", (), help="widths of the pooling over scores to compare, odd numbers",
        default=str(DEFAULT_POOL), group=CELLS, words=True,
    )  # fmt: skip
    draft: Path | None = option_like(DraftOptions, "draft", None, identity=False)
    keeps: tuple[float, ...] = option_like(
        DraftOptions, "keep", (),
        help="shares of a prompt's chunks of 32 tokens to read, each compared with whole prompts", words=True,
        identity=False,
    )  # fmt: skip
    delimiter: str | None = option_like(DraftOptions, "keep_delimiter", None, identity=False)
    selection: Selection = field(default_factory=Selection)
    numbers: Numbers = field(default_factory=Numbers)

    def __post_init__(self) -> None:
        self._check_tasks()
        check_options(self)
        DraftOptions(draft=self.draft, keep=max(self.keeps, default=None), keep_delimiter=self.delimiter)
        self._check_cells()
        for name, record in records_of(EvalOptions).items():
            values = [rule.name for rule in self.rules] if name == "rules" else getattr(self, name)
            if record.words and len(set(values)) < len(values):
                raise EvaluationOptionErrors.REPEATED_VALUE(option=flag_of(name, record))

    @cached_property
    def text_content(self) -> str:
        """Return the contents of `text`, "" if there is none. It is read once, because it may be stdin. Raises
        InputError."""
        return "" if self.text is None else read_text(self.text)

    @cached_property
    def drafted_by(self) -> Artifact | None:
        """Return the draft. Raises as `Artifact.load`."""
        from sscc.runtime.session.artifact import Artifact

        return None if self.draft is None else Artifact.load(self.draft)

    def _check_tasks(self) -> None:
        if not self.tasks and not self.files:
            raise EvaluationOptionErrors.NOTHING_TO_EVALUATE()
        if self.tasks and not self.lengths:
            raise EvaluationOptionErrors.NO_LENGTH()
        if self.tasks and self.examples is None:
            raise EvaluationOptionErrors.NO_EXAMPLES()
        for task in self.tasks:
            if task not in TASKS and task != PERPLEXITY and not task.startswith(RULER_PREFIX):
                known = [*TASKS, PERPLEXITY, f"{RULER_PREFIX}NAME"]
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
        own = {name: _recorded(getattr(self, name)) for name, each in records_of(EvalOptions).items() if each.identity}
        return {
            "version": own_version(),
            **own,
            "tasks": list(self.tasks),
            "budgets": list(self.budgets),
            "files": {path.name: file_digest(path) for path in self.files},
            "text": None if self.text is None else hashlib.sha256(self.text_content.encode()).hexdigest(),
            "selection": dict(vars(self.selection)),
            "landmark_bits": list(self.landmark_bits) if QUERY in self.methods else None,
            "rules": {rule.name: rule.digest for rule in self.rules} or None,
            **self._described_draft(),
            "dtype": self.numbers.dtype,
            "weights": None if self.numbers.weight_format is None else str(self.numbers.weight_format),
            "prefill_chunk": self.numbers.prefill_chunk,
        }

    def _described_draft(self) -> dict[str, Any]:
        if self.drafted_by is None:
            return {}
        return {"draft": asdict(self.drafted_by.identity), "keeps": list(self.keeps), "delimiter": self.delimiter}


def _recorded(value: Any) -> Any:
    """Return the value of an option as a journal has it: None for an option that is off, which earlier journals do not
    name."""
    if isinstance(value, tuple):
        return [each if isinstance(each, int | float | str) else str(each) for each in value] or None
    return value or None if isinstance(value, bool) else value
