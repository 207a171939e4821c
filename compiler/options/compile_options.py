"""Options of a compilation, and the checks that need no model.

An option that was not given is None until `CompileOptions.resolve` computes a default that fits the model. This module
does not import torch, so that the command line can describe its options fast.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from sscc.compiler.options.layer_topk import LayerTopk
from sscc.compiler.options.outputs import StdoutErrors, refuse_stdout
from sscc.compiler.options.policy import WHOLE_PROMPT, Policy, Rule, policy_of
from sscc.ir.choices import DTYPES, LEVELS, OPT_LEVELS, SUMS
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import STANDARD
from sscc.ir.geometry import (
    DEFAULT_KEY_BITS,
    DEFAULT_OBS,
    DEFAULT_POOL,
    DEFAULT_RECENT,
    DEFAULT_SINK,
    INDEXED,
    KV_DTYPES,
    KV_POLICIES,
    KV_ROWS,
    POOL_MODES,
    QUERY,
    Geometry,
    default_recent,
)
from sscc.ir.option import check_options, flag_of, option, records_of
from sscc.ir.sharding import MOST_RANKS
from sscc.ir.suggestions import check_choice, did_you_mean
from sscc.ir.target import load_target
from sscc.ir.weight_formats.groups import FLOAT8
from sscc.ir.weight_formats.registry import CHECKPOINT_FORMATS, DENSE, KEEP, WeightChoice, parse_format
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend_names

WEIGHTS = ("embed", "reference", "none")

DEFAULT_BATCH = 1
DEFAULT_CHUNK = 256
DEFAULT_DRAFTED = 3
"""Drafted tokens that a step of a model verifies if it is run with `--speculate`."""
DEFAULT_BUDGET = 1024
DEFAULT_GOLDEN_TOKENS = 16
MIN_CHUNK = 2

_MODEL_SUFFIXES = (".pt", ".pth", ".pt2", ".gguf", ".mlir", ".json")


class OptionErrors(ErrorKind):
    TOO_MANY_RANKS = UsageError, "--tp is {ranks}, but a program has at most {most} ranks"
    SUMS_WITHOUT_RANKS = UsageError, "--tp-sums {sums} applies to sums between ranks: give --tp, too"
    KEEP_WITHOUT_WEIGHTS = (
        UsageError,
        "--weights keep needs the weights of a checkpoint: leave --no-weights out",
    )
    LORA_NOT_EMBEDDED = (
        UsageError,
        "--lora changes weights, which the artifact must then contain: leave --weights {weights} out",
    )
    LORA_WITHOUT_CHECKPOINT = UsageError, "--lora changes the weights of a checkpoint: give --checkpoint, too"
    NOTHING_SHOWN = (
        UsageError,
        "{option} needs --dump-ir-dir, --print-ir-before, --print-ir-after, or --compile-to with a lower level",
    )
    NO_OPT_LEVEL = UsageError, "-O{level} does not exist; the levels are {known}"
    EVEN_POOL = UsageError, "--kv-pool must be odd, got {pool}"
    ONLY_BY_QUERY = UsageError, "{option} needs --kv-policy query"
    BUDGET_PER_LAYER = (
        UsageError,
        "{option} sets the same value for all layers and cannot be combined with --kv-topk-per-layer",
    )
    BUDGETS_OF_RULE = (
        UsageError,
        "the rule {rule} sets the budget of each layer (its method topk): leave --kv-topk-per-layer out",
    )
    RULE_OVER_RANKS = (
        UsageError,
        "the rule {rule} scores with all heads, but --tp divides them between ranks: leave --tp out",
    )
    BUDGET_DIFFERS = (
        UsageError,
        "--kv-budget {budget} is not sink + recent + topk = {sink} + {recent} + {topk} = {rows}: leave one of them out",
    )
    NO_GOLDEN = UsageError, "{option} needs --save-golden"
    GOLDEN_WITHOUT_WEIGHTS = (
        UsageError,
        "--save-golden runs the model, which needs weights: leave --save-golden or --no-weights out",
    )
    GOLDEN_WITHOUT_ARTIFACT = UsageError, "--save-golden needs an artifact, but --compile-to {level} does not write one"
    ONLY_FOR_DUMPS = UsageError, "{option} needs --compile-from: without it, the checkpoint is MODEL"
    LEVEL_NOT_BELOW = UsageError, "--compile-from {start} is not below --compile-to {end}"
    RECORDED = UsageError, "{option} is recorded in the dump and cannot be combined with --compile-from"
    DUMP_WITHOUT_WEIGHTS = (
        UsageError,
        "a dump holds no weights: give them with --checkpoint, or compile with --no-weights",
    )
    MODEL_FROM_STDIN = UsageError, "only a dump can be read from stdin: give a file, or --compile-from LEVEL for a dump"
    NO_OUTPUT_NAME = UsageError, "the input is stdin, so the output has no default name: give one with -o"
    NO_CONTEXT = UsageError, "the context length of the model is unknown: give --max-context"
    CONTEXT_TOO_LONG = (
        UsageError,
        "--max-context {context} exceeds the model's longest context: lower it to at most {longest}",
    )
    UNKNOWN = UsageError, "sscc.compile has no option {option!r}{hint}"
    WEIGHTS_TWICE = UsageError, "--weights {text} contains both {first} and {second}: give one of them"
    UNKNOWN_WEIGHTS = UsageError, "--weights must be one of {known}, got {word!r}"
    BUDGET_TOO_SMALL = (
        UsageError,
        "a KV budget of {budget} rows leaves {left} for {part} after {others}, at least {least} is needed: raise "
        "--kv-budget or lower --kv-topk",
    )


@dataclass(frozen=True)
class ProgramShape:
    """Geometry and sizes of the two static graphs, the result of `CompileOptions.resolve`.

    Attributes:
        geometry: geometry of the cache.
        batch: number of decode slots B.
        chunk: tokens C of one prefill chunk, at least 2.
        dtype: dtype of activations, "f32" or "bf16".
        layer_topk: budgets of the layers, if they differ; the geometry has the largest of them.
        rule: user's rule that scores prompts and may set the budgets of the layers; the geometry has its name.
    """

    geometry: Geometry
    batch: int
    chunk: int
    dtype: str
    layer_topk: LayerTopk | None = None
    rule: Rule | None = None

    def geometry_of(self, layers: int) -> Geometry:
        """Return the geometry for `layers` layers with full attention. Raises UsageError if the budgets per layer are
        invalid or have another count."""
        if self.rule is not None and self.rule.has_budgets and layers:
            return self.geometry.with_layers(self.rule.budgets(layers, self.geometry.topk))
        return self.geometry if self.layer_topk is None else self.geometry.with_layers(self.layer_topk.of(layers))


CACHE, GRAPH, CONTENT, IR = (
    "cache (rows are tokens, per layer and KV head)", "static graphs", "contents of the artifact",
    "intermediate representation",
)  # fmt: skip
"""Headings of option groups in help."""


@dataclass(frozen=True)
class CompileOptions:
    """Options of a compilation. None stands for the default that fits the model.

    The record of each field describes it. `kv_policy` may also be a `sscc.Policy` or a subclass of it; the field then
    holds the `Rule`.

    Raises:
        UsageError: options that contradict each other or that this version cannot honour.
    """

    model: Path = option(
        MISSING, "Hugging Face folder, .gguf, .pt, .pth or .pt2 file; a config.json with --no-weights; a dumped .mlir, "
        "or - for a dump on stdin", "MODEL", positional=True, identity=False,
    )  # fmt: skip
    output: Path | None = option(
        None, "artifact to write, or .mlir file of a lower level (- for stdout)", "OUT", flags=("-o", "--output"),
        default="MODEL's stem + .rdu, in the current folder", identity=False,
    )  # fmt: skip
    target: str = option("rdu", "machine to compile for, rdu, rdu:NAME or rdu:FILE: see `sscc targets`")
    config: Path | None = option(None, "config.json for a .pt with a bare state_dict", "FILE", in_dump=True)
    trust_pt2: bool = option(False, "load a .pt2 with torch's own reader, which executes code from the file")
    lora: Path | None = option(
        None, "LoRA adapter to merge into the weights, as PEFT saves it", "FOLDER", group=CONTENT, of_models=True
    )
    kv_sink: int | None = option(
        None, "attention sinks: first tokens, which are always kept", "ROWS", group=CACHE, default=str(DEFAULT_SINK),
        least=0, rows=True, in_dump=True,
    )  # fmt: skip
    kv_recent: int | None = option(
        None, "recent window: newest tokens, which are always kept", "ROWS", group=CACHE,
        default=f"up to {DEFAULT_RECENT}", least=1, rows=True, in_dump=True,
    )  # fmt: skip
    kv_topk: int | None = option(
        None, "tokens selected from the prompt, 0 for StreamingLLM", "ROWS", group=CACHE,
        default="the rest of the budget", least=0, rows=True, in_dump=True,
    )  # fmt: skip
    kv_topk_per_layer: str | None = option(
        None, "selected rows per layer, in place of --kv-topk: numbers, pyramid:FIRST,LAST or a file", "ROWS",
        group=CACHE, default="the same in all layers", rows=True, in_dump=True,
    )  # fmt: skip
    kv_budget: int | None = option(
        None, "total cache rows; rows not used by sinks and recent window hold selected tokens", "ROWS", group=CACHE,
        default=f"{DEFAULT_BUDGET}, or a 16th of the context if that is more", model_default="from the context",
        least=1, of_models=True, rows=True, in_dump=True,
    )  # fmt: skip
    kv_obs: int | None = option(
        None, "last queries of the prompt that score its tokens", "N", group=CACHE, default=str(DEFAULT_OBS), least=1,
        rows=True, in_dump=True,
    )  # fmt: skip
    kv_pool: int | None = option(
        None, "odd width of the pooling of scores", "N", group=CACHE, default=str(DEFAULT_POOL), least=1,
        rows=True, in_dump=True,
    )  # fmt: skip
    kv_pool_mode: str | None = option(
        None, f"kind of the pooling: {' or '.join(POOL_MODES)}", "MODE", group=CACHE, default=POOL_MODES[0],
        choices=POOL_MODES, rows=True, in_dump=True,
    )  # fmt: skip
    kv_policy: str | os.PathLike[str] | Policy | type[Policy] | Rule | None = option(
        None, f"selection of rows. {KV_POLICIES[0]}: once, by the last queries of the prompt; {KV_POLICIES[1]}: at "
        "every step, from all rows, which are kept; FILE.py or FILE.py:CLASS: once, by your own rule (the file is "
        "executed)", "NAME", group=CACHE, default=KV_POLICIES[0], model_choices=KV_POLICIES,
        model_help=f"selection of rows: {' or '.join(KV_POLICIES)}", of_models=True, rows=True, in_dump=True,
    )  # fmt: skip
    kv_key_bits: int | None = option(
        None, "bits per value of the quantized keys used for selection: 1, 2, 4, or 16 (the keys themselves); needs "
        "--kv-policy query", "BITS", group=CACHE, default=str(DEFAULT_KEY_BITS), rows=True, in_dump=True,
    )  # fmt: skip
    kv_fetch: int | None = option(
        None, "maximum number of rows that a step fetches from the store per KV head, at most --kv-topk, besides rows "
        "kept from the previous step; needs --kv-policy query", "ROWS", group=CACHE, default="no limit", rows=True,
        in_dump=True,
    )  # fmt: skip
    kv_rows: str | None = option(
        None, f"location of selected rows: {KV_ROWS[0]}, copies in the cache, or {KV_ROWS[1]}, the prompt's K and V",
        "WHERE", group=CACHE, default=f"{KV_ROWS[0]}, or {KV_ROWS[1]} with --kv-policy query", choices=KV_ROWS,
        rows=True, in_dump=True,
    )  # fmt: skip
    kv_dtype: str | None = option(
        None, f"format of cache rows: {KV_DTYPES[0]}, the program's dtype; {KV_DTYPES[1]}, 8-bit values with a scale "
        f"per row; {KV_DTYPES[2]}, 4-bit values with a scale per 32 values", "TYPE", group=CACHE,
        default=KV_DTYPES[0], choices=KV_DTYPES, of_models=True, in_dump=True,
    )  # fmt: skip
    max_context: int | None = option(
        None, "maximum tokens of a sequence, prompt and answer together", "TOKENS", group=GRAPH, default="the model's",
        model_default="the model's, if its states fit into memory", least=1, of_models=True, in_dump=True,
    )  # fmt: skip
    batch: int | None = option(
        None, "sequences decoded together", "SLOTS", group=GRAPH, default=str(DEFAULT_BATCH), least=1,
        of_models=True, in_dump=True,
    )  # fmt: skip
    verify: int | None = option(
        None, "drafted tokens of a slot that one step can verify; 0 for a program without such steps", "TOKENS",
        group=GRAPH, default="0", model_default=f"{DEFAULT_DRAFTED} with --speculate, else 0", least=0, of_models=True,
        in_dump=True,
    )  # fmt: skip
    prefill_chunk: int | None = option(
        None, "prompt tokens per prefill chunk", "TOKENS", group=GRAPH, default=f"up to {DEFAULT_CHUNK}",
        least=MIN_CHUNK, in_dump=True,
    )  # fmt: skip
    dtype: str | None = option(
        None, f"dtype of activations and of plain cache rows: {' or '.join(DTYPES)}", "TYPE", group=GRAPH,
        default="the dtype that fits the weights", choices=DTYPES, of_models=True, in_dump=True,
    )  # fmt: skip
    tp: int | None = option(
        None, "tensor parallelism: ranks that divide heads, feed-forward, experts and vocabulary", "N", default="1",
        least=1,
    )  # fmt: skip
    tp_sums: str = option(
        SUMS[0], "dtype of partial sums that ranks exchange: f32, as accumulated, or model, rounded to the program's "
        "dtype (half the bytes in bf16)", choices=SUMS,
    )  # fmt: skip
    opt_level: int = option(
        2, "optimization level. 0: a kernel per operation; 1: a kernel per layer; 2: a kernel per run of equal layers",
        "LEVEL", flags=("-O",),
    )  # fmt: skip
    weights: str = option(
        WEIGHTS[0], "storage of weights, embed or reference (by digest), and after a comma their format in matmuls: "
        "int8 or int4, optionally with :GROUP (32) and :zero-point; keep: as stored in a quantized checkpoint; dense: "
        "not quantized", "HOW", group=CONTENT, default="embed, and keep for a quantized checkpoint", of_models=True,
        one_of="weights", model_default="keep for a quantized model",
        model_help="format of weights in matmuls: keep, dense, int8 or int4, optionally with :GROUP and :zero-point",
    )  # fmt: skip
    weight_format: WeightChoice | None = None
    save_golden: bool = option(
        False, "record eager PyTorch's outputs for `sscc run --check`", group=CONTENT, identity=False
    )
    golden_prompt_file: Path | None = option(
        None, "prompt to record, - for stdin", "FILE", group=CONTENT, default="a built-in text", identity=False
    )
    golden_tokens: int | None = option(
        None, "tokens to record", "N", group=CONTENT, default=str(DEFAULT_GOLDEN_TOKENS), least=1, identity=False
    )
    dump_ir_dir: Path | None = option(
        None, "write a file per level and per pass that acted", "DIR", group=IR, identity=False
    )
    compile_to: str = option(
        LEVELS[-1], f"stop after one of: {', '.join(LEVELS)}", "LEVEL", group=IR, choices=LEVELS, identity=False
    )
    compile_from: str | None = option(
        None, "level of MODEL, which is a dump", "LEVEL", group=IR, choices=LEVELS[:-1], identity=False
    )
    as_is: bool = option(
        False, "accept any module that is legal at its level, regardless of the passes that have run on it; needs "
        "--compile-from", group=IR, identity=False,
    )  # fmt: skip
    load_pass: tuple[str, ...] = option(
        (), "file with your own passes (it is executed), or the name of an installed package's passes; repeatable",
        "FILE.py", group=IR,
    )  # fmt: skip
    checkpoint: Path | None = option(None, "weights for --compile-from", "PATH", group=IR, identity=False)
    print_ir_before: tuple[str, ...] = option(
        (), "print the IR on stderr before this pass; all: before every pass", "PASS", group=IR, identity=False
    )
    print_ir_after: tuple[str, ...] = option(
        (), "print the IR on stderr after this pass; all: after every pass; change: after passes that change it",
        "PASS", group=IR, identity=False,
    )  # fmt: skip
    ir_function: str | None = option(
        None, "functions to show, a name or a pattern with * and ?", "NAME", group=IR, default="all", identity=False
    )
    ir_locations: bool = option(
        True, "omit locations", group=IR, flags=("--no-ir-locations",), inverted=True, identity=False
    )
    timing: bool = option(False, "report the time of each phase and pass", group=IR, identity=False)
    pass_statistics: bool = option(False, "report the statistics of each pass", group=IR, identity=False)
    pack_for: str = option(
        DEFAULT_BACKEND, "pack weights in the layout of this backend; other backends unpack them", "BACKEND",
        group=CONTENT, choices=backend_names,
    )  # fmt: skip
    native_code: bool = option(
        lambda: os.environ.get("SSCC_NATIVE_CODE", "1") != "0", "skip the compilation of the schedule to native code "
        "for this CPU, which `sscc run` then does", group=CONTENT, flags=("--no-native-code",), inverted=True,
        identity=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_policy", policy_of(self.kv_policy))
        check_options(self)
        self._check_choices()
        self._check_sizes()
        self._check_golden()
        self._check_levels()
        self._check_stdin()

    def _check_choices(self) -> None:
        if self.tp is not None and self.tp > MOST_RANKS:
            raise OptionErrors.TOO_MANY_RANKS(ranks=self.tp, most=MOST_RANKS)
        if self.tp is None and self.tp_sums != "f32":
            raise OptionErrors.SUMS_WITHOUT_RANKS(sums=self.tp_sums)
        load_target(self.target).of_rank(self.tp or 1)
        if self.compile_to == "schedule":
            refuse_stdout(self.output, StdoutErrors.ARTIFACT)
        check_choice("--weights", self.weights, WEIGHTS)
        if self.weight_format == KEEP and self.weights == "none":
            raise OptionErrors.KEEP_WITHOUT_WEIGHTS()
        if self.lora is not None and self.weights != "embed":
            raise OptionErrors.LORA_NOT_EMBEDDED(weights=self.weights)
        self._check_shown()
        if self.opt_level not in OPT_LEVELS:
            raise OptionErrors.NO_OPT_LEVEL(level=self.opt_level, known=[f"-O{level}" for level in OPT_LEVELS])

    @property
    def shows_modules(self) -> bool:
        """True if a module of a lower level is written or printed."""
        shown = self.dump_ir_dir is not None or self.print_ir_before or self.print_ir_after
        return bool(shown) or self.compile_to != "schedule"

    def _check_shown(self) -> None:
        if not self.shows_modules:
            locations = None if self.ir_locations else True
            _absent(OptionErrors.NOTHING_SHOWN, ir_function=self.ir_function, no_ir_locations=locations)

    def _check_sizes(self) -> None:
        if self.kv_pool is not None and self.kv_pool % 2 == 0:
            raise OptionErrors.EVEN_POOL(pool=self.kv_pool)
        if self.kv_policy != QUERY:
            _absent(OptionErrors.ONLY_BY_QUERY, kv_key_bits=self.kv_key_bits, kv_fetch=self.kv_fetch)
        if self.kv_topk_per_layer is not None:
            _absent(OptionErrors.BUDGET_PER_LAYER, kv_topk=self.kv_topk, kv_budget=self.kv_budget)
            if self.rule is not None and self.rule.has_budgets:
                raise OptionErrors.BUDGETS_OF_RULE(rule=self.rule.name)
        if self.rule is not None and (self.tp or 1) > 1:
            raise OptionErrors.RULE_OVER_RANKS(rule=self.rule.name)
        parts = [self.kv_sink, self.kv_recent, self.kv_topk]
        rows = sum(part for part in parts if part is not None)
        if self.kv_budget is not None and None not in parts and rows != self.kv_budget:
            raise OptionErrors.BUDGET_DIFFERS(
                budget=self.kv_budget, sink=self.kv_sink, recent=self.kv_recent, topk=self.kv_topk, rows=rows
            )

    def _check_golden(self) -> None:
        if not self.save_golden:
            _absent(
                OptionErrors.NO_GOLDEN, golden_prompt_file=self.golden_prompt_file, golden_tokens=self.golden_tokens
            )
            return
        if self.weights == "none":
            raise OptionErrors.GOLDEN_WITHOUT_WEIGHTS()
        if self.compile_to != "schedule":
            raise OptionErrors.GOLDEN_WITHOUT_ARTIFACT(level=self.compile_to)

    def _check_levels(self) -> None:
        if self.compile_from is None:
            _absent(OptionErrors.ONLY_FOR_DUMPS, checkpoint=self.checkpoint, as_is=self.as_is or None)
            return
        if LEVELS.index(self.compile_from) >= LEVELS.index(self.compile_to):
            raise OptionErrors.LEVEL_NOT_BELOW(start=self.compile_from, end=self.compile_to)
        _absent(
            OptionErrors.RECORDED,
            **{name: getattr(self, name) for name, record in records_of(CompileOptions).items() if record.in_dump},
        )
        if self.lora is not None and self.checkpoint is None:
            raise OptionErrors.LORA_WITHOUT_CHECKPOINT()
        if self.compile_to == "schedule" and self.weights != "none" and self.checkpoint is None:
            raise OptionErrors.DUMP_WITHOUT_WEIGHTS()

    def _check_stdin(self) -> None:
        if self.model == STANDARD and self.compile_from is None:
            raise OptionErrors.MODEL_FROM_STDIN()
        if self.model == STANDARD and self.output is None:
            raise OptionErrors.NO_OUTPUT_NAME()

    @property
    def rule(self) -> Rule | None:
        """The user's rule, or None for a built-in policy."""
        return self.kv_policy if isinstance(self.kv_policy, Rule) else None

    @property
    def output_path(self) -> Path:
        """The path of the result: `output`, or the model's stem + ".rdu" (or ".LEVEL.mlir") in the current folder."""
        if self.output is not None:
            return self.output
        name = self.model.absolute().name
        stem = self.model.stem if self.model.suffix.lower() in _MODEL_SUFFIXES else name
        return Path(stem + (".rdu" if self.compile_to == "schedule" else f".{self.compile_to}.mlir"))

    def resolve(
        self, model_context: int | None, model_dtype: str = "f32", longest: int | None = None
    ) -> ProgramShape:
        """Return the shape of the program, with defaults for all options that were not given.

        Args:
            model_context: context length of the model in tokens; None if it is unknown.
            model_dtype: activation dtype that fits the checkpoint, one of DTYPES.
            longest: context length to which the model can be extended; None for `model_context`.

        Raises:
            UsageError: an impossible geometry, or a context beyond the model's.
        """
        if self.max_context is None and model_context is None:
            raise OptionErrors.NO_CONTEXT()
        longest = longest or model_context
        if self.max_context is not None and longest is not None and self.max_context > longest:
            raise OptionErrors.CONTEXT_TOO_LONG(context=self.max_context, longest=longest)
        context = self.max_context or model_context or 1
        layer_topk = None if self.kv_topk_per_layer is None else LayerTopk.parse(self.kv_topk_per_layer)
        topk = self.kv_topk if layer_topk is None else layer_topk.most
        return ProgramShape(
            geometry=self._geometry(context, topk),
            layer_topk=layer_topk,
            rule=self.rule,
            batch=self.batch or DEFAULT_BATCH,
            chunk=self.prefill_chunk or max(MIN_CHUNK, min(DEFAULT_CHUNK, context)),
            dtype=self.dtype or model_dtype,
        )

    def _geometry(self, context: int, topk: int | None) -> Geometry:
        """Return the geometry of the cache. Given numbers are used unchanged; defaults are reduced to fit `context`."""
        obs, pool, mode = self._observation(context)
        dtype = self.kv_dtype or KV_DTYPES[0]
        policy = self.rule.text if self.rule else str(self.kv_policy or KV_POLICIES[0])
        by_query = policy == QUERY
        rows = self.kv_rows or (INDEXED if by_query else KV_ROWS[0])
        bits = (self.kv_key_bits or DEFAULT_KEY_BITS) if by_query else 0
        stored: dict[str, Any] = {
            "max_context": context,
            "obs": obs,
            "pool": pool,
            "pool_mode": mode,
            "rows": rows,
            "dtype": dtype,
            "policy": policy,
            "key_bits": bits,
            "fetch": self.kv_fetch,
            "spare": self.verify or 0,
        }
        room = max(0, context - (self.kv_recent or 1) - (topk or 0))
        sink = min(DEFAULT_SINK, room) if self.kv_sink is None else self.kv_sink
        if topk is not None:
            sink, recent = self._rows_around_topk(sink, topk, context)
            return Geometry(sink, recent, topk, **stored)
        of_rule = self.rule is not None and not self.kv_obs and self.rule.policy.obs == WHOLE_PROMPT
        least = 1 if of_rule else obs  # the ring need not hold a window that is the whole prompt
        if self.kv_budget is not None:
            recent = self.kv_recent or default_recent(self.kv_budget, least, pool)
            return Geometry.from_budget(self.kv_budget, sink=sink, recent=recent, **stored)
        budget = max(min(context, max(DEFAULT_BUDGET, context // 16)), sink + (self.kv_recent or 1))
        recent = self.kv_recent or max(1, min(default_recent(budget, least, pool), budget - sink))
        return Geometry(sink, recent, budget - sink - recent, **stored)

    def _observation(self, context: int) -> tuple[int, int, str]:
        """Return (obs, pool, pool mode): the number of last queries that score a prompt, and the pooling of scores."""
        if self.rule is None:
            return self.kv_obs or DEFAULT_OBS, self.kv_pool or DEFAULT_POOL, self.kv_pool_mode or POOL_MODES[0]
        of_rule = self.rule.policy
        obs = context if of_rule.obs == WHOLE_PROMPT else min(int(of_rule.obs or DEFAULT_OBS), context)
        return self.kv_obs or obs, self.kv_pool or of_rule.pool, self.kv_pool_mode or of_rule.pool_mode

    def _rows_around_topk(self, sink: int, topk: int, context: int) -> tuple[int, int]:
        """Return (sink, recent) for a given topk: the rest of the budget, or a default ring that fits the context."""
        if self.kv_budget is None:
            return sink, self.kv_recent or max(1, min(DEFAULT_RECENT, context - sink - topk))
        if self.kv_recent is not None:
            sink = self.kv_budget - self.kv_recent - topk
            _fits(self.kv_budget, "the sinks", sink, 0, recent=self.kv_recent, topk=topk)
            return sink, self.kv_recent
        recent = self.kv_budget - sink - topk
        _fits(self.kv_budget, "the ring", recent, 1, sink=sink, topk=topk)
        return sink, recent


class CompileArguments(TypedDict, total=False):
    """Keyword arguments of `sscc.compile`, for editors and type checkers: the fields of `CompileOptions` except
    `model`.

    Paths may be text, and `weights` has the form of the command line ("reference,int4:64").
    """

    output: str | os.PathLike[str] | None
    target: str
    config: str | os.PathLike[str] | None
    trust_pt2: bool
    lora: str | os.PathLike[str] | None
    kv_sink: int | None
    kv_recent: int | None
    kv_topk: int | None
    kv_topk_per_layer: str | None
    kv_budget: int | None
    kv_obs: int | None
    kv_pool: int | None
    kv_pool_mode: str | None
    kv_policy: str | os.PathLike[str] | Policy | type[Policy] | Rule | None
    kv_key_bits: int | None
    kv_fetch: int | None
    kv_rows: str | None
    kv_dtype: str | None
    max_context: int | None
    batch: int | None
    verify: int | None
    prefill_chunk: int | None
    dtype: str | None
    tp: int | None
    tp_sums: str
    opt_level: int
    weights: str
    weight_format: WeightChoice | None
    save_golden: bool
    golden_prompt_file: str | os.PathLike[str] | None
    golden_tokens: int | None
    dump_ir_dir: str | os.PathLike[str] | None
    compile_to: str
    compile_from: str | None
    as_is: bool
    load_pass: tuple[str, ...]
    checkpoint: str | os.PathLike[str] | None
    print_ir_before: tuple[str, ...]
    print_ir_after: tuple[str, ...]
    ir_function: str | None
    ir_locations: bool
    timing: bool
    pass_statistics: bool
    pack_for: str
    native_code: bool


RENAMED = {"kv_landmark_bits": "kv_key_bits"}
"""Names of options of earlier versions, and their present names."""


def compile_options_of(model: str | os.PathLike[str], arguments: CompileArguments) -> CompileOptions:
    """Return the options of a call of `sscc.compile`. Raises UsageError for an unknown option, and the errors of
    `CompileOptions`."""
    kinds = {item.name: item.type for item in fields(CompileOptions)}
    values: dict[str, Any] = dict(arguments)
    for name, value in values.items():
        if name not in kinds or name == "model":
            raise OptionErrors.UNKNOWN(option=name, hint=did_you_mean(RENAMED.get(name, name), kinds))
        if kinds[name] == "Path | None" and value is not None:
            values[name] = Path(value)
    if "weights" in values:
        values["weights"], weight_format = parse_weights(values["weights"])
        values.setdefault("weight_format", weight_format)
    return CompileOptions(Path(model), **values)


def cache_options(geometry: Geometry) -> dict[str, Any]:
    """Return the options of `CompileOptions` that give exactly this geometry."""
    values = geometry.to_dict()
    options = {"max_context": values.pop("max_context"), "verify": values.pop("spare", 0)}
    layer_topk = values.pop("layer_topk", [])
    if layer_topk:
        options["kv_topk_per_layer"] = ",".join(map(str, layer_topk))
        del values["topk"]
    return options | {f"kv_{name}": value for name, value in values.items()}


def parse_weights(text: str) -> tuple[str, WeightChoice | None]:
    """Return the two parts of ``--weights``: the place (one of WEIGHTS), and the format of matrix weights or None.

    Raises:
        UsageError: two places, two formats, or an unknown word.
    """
    places = [word for word in text.split(",") if word in WEIGHTS]
    formats = [word for word in text.split(",") if word not in WEIGHTS]
    for words in (places, formats):
        if len(words) > 1:
            raise OptionErrors.WEIGHTS_TWICE(text=text, first=words[0], second=words[1])
    named = (KEEP, DENSE, *CHECKPOINT_FORMATS)
    if formats and formats[0] not in named and not formats[0].startswith(("int", FLOAT8)):
        raise OptionErrors.UNKNOWN_WEIGHTS(word=formats[0], known=[*WEIGHTS, "int8", "int4", FLOAT8, *named])
    return places[0] if places else WEIGHTS[0], parse_format(formats[0]) if formats else None


def _absent(kind: ErrorKind, **options: object) -> None:
    """Raise an error of `kind`, whose field is `option`, for the first of the options that was given."""
    for name, value in options.items():
        if value is not None:
            raise kind(option=flag_of(name))


def _fits(budget: int, part: str, left: int, low: int, **taken: int | None) -> None:
    """Raise UsageError if a budget leaves fewer than `low` rows for one part of the cache after the other parts."""
    if left < low:
        others = [f"{name} {rows}" for name, rows in taken.items()]
        raise OptionErrors.BUDGET_TOO_SMALL(budget=budget, left=left, part=part, others=others, least=low)
