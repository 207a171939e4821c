"""Options of an evaluation, with all checks that do not need the model. Imports no library, so that `sscc eval --help`
is fast."""

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
from sscc.ir.choices import KEY_BITS
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import file_digest, read_text
from sscc.ir.geometry import DEFAULT_KEY_BITS, DEFAULT_POOL, KV_DTYPES, PLAIN
from sscc.ir.option import check_options, flag_of, option, option_like, records_of
from sscc.ir.suggestions import did_you_mean
from sscc.ir.weight_formats.registry import WeightChoice

if TYPE_CHECKING:
    from sscc.runtime.session.artifact import Artifact

TASK, CELLS = "tasks", "caches to compare"
"""Headings of these options in `--help`."""
SLOW = ("niah_multiquery", "list_copy", "answer_recall", "extraction")
DEFAULT_TASKS = tuple(name for name in TASKS if name not in SLOW)
DEFAULT_EXAMPLES = 20


class EvaluationOptionErrors(ErrorKind):
    REPEATED_VALUE = UsageError, "{option} has the same value twice"
    NOTHING_TO_EVALUATE = UsageError, "there is nothing to evaluate: give --tasks or --examples-file"
    NO_LENGTH = UsageError, "the tasks need a prompt length: give --lengths"
    NO_EXAMPLES = UsageError, "the tasks need a number of examples: give --examples"
    UNKNOWN_TASK = UsageError, "--tasks must be among {tasks}, got {task!r}{similar_hint}"
    TEXT_WITHOUT_PERPLEXITY = UsageError, "--text applies to the task perplexity: add that to --tasks, or omit --text"
    PERPLEXITY_WITHOUT_TEXT = UsageError, "the task perplexity needs a text: give --text FILE"
    PERPLEXITY_OF_CHAT = (
        UsageError,
        "the task perplexity predicts plain text, but --chat makes conversations: leave one of them out",
    )
    RULE_NAMED_AS_METHOD = UsageError, "--kv-policy has a rule with the same name as the method {rule}: rename the rule"
    POOLS_WITHOUT_POOLING = UsageError, "--kv-pool applies to the methods {methods}: add one of them to --methods"
    EQUAL_BYTES_WITHOUT_QUERY = UsageError, "--equal-bytes applies to the method {method}: add it to --methods"
    FETCH_WITHOUT_QUERY = UsageError, "--kv-fetch applies to the method {method}: add it to --methods"
    NO_KEY_BITS = UsageError, "the method {method} needs quantized keys: give --kv-key-bits"
    UNKNOWN_KEY_BITS = UsageError, "--kv-key-bits must be among {choices}, got {bits}"
    NO_CHAT_TEMPLATE = UsageError, "{model} has no chat template: leave --chat out"
    NO_TOKENIZER = (
        UsageError,
        "the task {task} needs a tokenizer, but {model} has none: give --examples-file with tokens",
    )


@dataclass(frozen=True)
class Numbers:
    """Numeric formats of programs; None for the checkpoint's default."""

    dtype: str | None = None
    weight_format: WeightChoice | None = None
    prefill_chunk: int | None = None


@dataclass(frozen=True)
class EvalOptions(InterpreterOptions):
    """Options of an evaluation.

    Attributes:
        selection: options of prompt scoring and of unselected rows, for all cells.
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
    lengths: tuple[int, ...] = option((1024,), "prompt lengths in tokens", "N", group=TASK, words=True, least=1)
    examples: int | None = option(
        DEFAULT_EXAMPLES, "examples per task and length", "N", group=TASK,
        default=f"{DEFAULT_EXAMPLES}; all of an --examples-file", least=1, identity=False,
    )  # fmt: skip
    seed: int = option(0, "seed of the examples", "N", group=TASK)
    text: Path | None = option(None, f"long text for the task {PERPLEXITY}, - for stdin", "FILE", group=TASK)
    score_tokens: int = option(128, f"scored tokens per window of {PERPLEXITY}", "N", group=TASK, least=1)
    files: tuple[Path, ...] = option(
        (), "JSON lines with prompt and answers, or files of LongBench or RULER", "FILE", group=TASK, words=True,
        flags=("--examples-file",),
    )  # fmt: skip
    max_prompt: int | None = option(
        None, "maximum tokens of a prompt from a file; longer prompts lose their middle", "N", group=TASK, least=2
    )
    chat: bool = option(
        False, "put prompts into a user turn of the checkpoint's chat template (whose tokens count in --lengths); "
        "otherwise they are plain text", group=TASK,
    )  # fmt: skip
    methods: tuple[str, ...] = option(
        tuple(name for name in METHODS if name != QUERY),  # its budget limits the rows that are read, not held
        f"methods to compare: {', '.join(METHODS)}; query keeps every row", "METHOD", group=CELLS,
        words=True,
    )  # fmt: skip
    rules: tuple[Rule, ...] = option(
        (), "user-defined rules to compare, FILE.py or FILE.py:CLASS; the files are executed", "FILE", group=CELLS,
        flags=("--kv-policy",), words=True,
    )  # fmt: skip
    budgets: tuple[int, ...] = option(
        (256, 512), "cache rows of each method", "ROWS", group=CELLS, words=True, least=1
    )
    layer_topks: tuple[LayerTopk, ...] = option_like(
        CompileOptions, "kv_topk_per_layer", (),
        help="per-layer budgets for snapstream, as in `sscc compile`; each is compared with its total spread evenly",
        group=CELLS, words=True, default="",
    )  # fmt: skip
    key_bits: tuple[int, ...] = option_like(
        CompileOptions, "kv_key_bits", (DEFAULT_KEY_BITS,), group=CELLS, words=True, default="",
        help="bits per value of the quantized keys by which query selects: 1, 2, 4 or 16 (the keys themselves)",
    )  # fmt: skip
    fetches: tuple[int, ...] = option_like(
        CompileOptions, "kv_fetch", (),
        help="limit on rows that a step fetches per KV head with query; each is compared with no limit", group=CELLS,
        words=True, default="",
    )  # fmt: skip
    equal_bytes: bool = option(
        False, "compare query in encoded rows with snapstream of the same bytes in plain rows, too", group=CELLS
    )
    kv_dtypes: tuple[str, ...] = option_like(
        CompileOptions, "kv_dtype", (PLAIN,), group=CELLS, words=True, default="", choices=KV_DTYPES
    )
    pools: tuple[int, ...] = option_like(
        CompileOptions, "kv_pool", (), help="widths of score pooling to compare, odd numbers",
        default=str(DEFAULT_POOL), group=CELLS, words=True,
    )  # fmt: skip
    draft: Path | None = option_like(DraftOptions, "draft", None, identity=False)
    keeps: tuple[float, ...] = option_like(
        DraftOptions, "keep", (),
        help="fractions of a prompt's 32-token chunks to prefill, each compared with whole prompts", words=True,
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
        """Contents of `text`, "" if there is none, read once because it may be stdin. Raises InputError."""
        return "" if self.text is None else read_text(self.text)

    @cached_property
    def drafted_by(self) -> Artifact | None:
        """The draft's artifact; None without a draft. Raises the errors of `Artifact.load`."""
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
        if not self.key_bits:
            raise EvaluationOptionErrors.NO_KEY_BITS(method=QUERY)
        for bits in self.key_bits:
            if bits not in KEY_BITS:
                raise EvaluationOptionErrors.UNKNOWN_KEY_BITS(bits=bits, choices=KEY_BITS)

    def described(self) -> dict[str, Any]:
        """Return the options that determine a result, as JSON values, without the number of examples and options of
        speed."""
        own = {name: _recorded(getattr(self, name)) for name, each in records_of(EvalOptions).items() if each.identity}
        return {
            "version": own_version(),
            **own,
            "tasks": list(self.tasks),
            "budgets": list(self.budgets),
            "files": {path.name: file_digest(path) for path in self.files},
            "text": None if self.text is None else hashlib.sha256(self.text_content.encode()).hexdigest(),
            "selection": dict(vars(self.selection)),
            "key_bits": list(self.key_bits) if QUERY in self.methods else None,
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
    """Return the JSON value of an option in a journal: None for an option that is off, so that journals from before the
    option existed stay valid."""
    if isinstance(value, tuple):
        return [each if isinstance(each, int | float | str) else str(each) for each in value] or None
    return value or None if isinstance(value, bool) else value
