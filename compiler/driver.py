"""The driver: from what a person brings to an artifact, level by level.

    open -> admit -> capture -> import -> passes -> emit -> artifact
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch_mlir import ir

from sscc.compiler.backend.emit import emit_program
from sscc.compiler.dumps import read_dump
from sscc.compiler.files import write_text
from sscc.compiler.frontend.admission import (
    attention_softcaps,
    check_config,
    check_modules,
    layer_window,
    longest_context,
    module_suspicions,
    shared_layers,
    suspicions,
    window_field,
)
from sscc.compiler.frontend.capture import (
    Capture,
    Captured,
    capture,
    check_attention,
    check_experts,
    check_positions,
    check_softcaps,
    check_tables,
    check_windows,
    config_constants,
    count_governed,
    count_layers,
    governed_attentions,
    layer_count,
    program_constants,
    vocabulary,
)
from sscc.compiler.frontend.checkpoint import Checkpoint, check_names, open_checkpoint
from sscc.compiler.frontend.construction import build_model
from sscc.compiler.frontend.distinct import find_kinds
from sscc.compiler.frontend.experts import expert_modules
from sscc.compiler.frontend.frequencies import stretched
from sscc.compiler.frontend.importer import import_capture
from sscc.compiler.frontend.model_config import (
    config_from_dict,
    config_to_dict,
    listed_layer_types,
    model_context,
)
from sscc.compiler.frontend.probe import golden_for, probe
from sscc.compiler.frontend.quiet import one_line
from sscc.compiler.frontend.recognition import lost_scores, position_biases
from sscc.compiler.frontend.rules import CapturedRule, capture_rule
from sscc.compiler.frontend.sparse_experts import stacked_experts
from sscc.compiler.frontend.tokenizer_files import check_chat_template
from sscc.compiler.options import CompileOptions, ProgramShape
from sscc.compiler.packaging import write_artifact
from sscc.compiler.printing import Excerpt, IrPrinter, Showing
from sscc.compiler.referred_checkpoints import check_referable
from sscc.compiler.result import CompileResult
from sscc.compiler.signatures import program_signature, query_heads
from sscc.ir.cache_plan import STORES
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.context import mlir, print_module
from sscc.ir.errors import InputError, InternalError, OutputError, SsccError, UnsupportedError, UsageError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import (
    ProgramFacts,
    get_facts,
    get_groups,
    get_level,
    get_looping,
    get_target,
    passes_done,
    set_stored_formats,
    set_target,
)
from sscc.ir.schedule import Program
from sscc.ir.sizes import format_bytes
from sscc.ir.stages import Stages, recorded, stage
from sscc.ir.target import Target, load_target
from sscc.ir.weight_format import KEEP, Encoding
from sscc.passes.base import Observer, run_passes
from sscc.passes.pipeline import passes_between
from sscc.passes.shard import Shard
from sscc.passes.split_layers import LayersDiffer
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import layout_of
from sscc.runtime.backends.reference.arrays import TORCH_DTYPES
from sscc.runtime.contract import prove
from sscc.runtime.user_cache import NATIVE, check_cache_folder

logger = logging.getLogger("sscc")

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Source:
    """Where a compilation starts: a module, the weights that belong to it, and its constants.

    Attributes:
        checkpoint: None when there is none (a dump compiled without weights).
        constants: computes values by name; called where the schedule uses any.
    """

    module: ir.Module
    facts: ProgramFacts
    geometry: Geometry
    checkpoint: Checkpoint | None
    constants: Callable[[], dict[str, torch.Tensor]]


def compile_model(options: CompileOptions, checkpoint: Checkpoint | None = None) -> CompileResult:
    """Compiles as `options` say and writes the artifact, or the module of a lower level.

    Args:
        checkpoint: the model, where it is open already; None opens `options.model`.

    Raises:
        SsccError: the subclass says whether the input, the model, an option or the output is at fault.
    """
    with recorded(Stages()) as stages:
        result = _compile_model(options, checkpoint)
        if options.timing:
            for line in stages.lines():
                logger.info(line)
        return result


def _compile_model(options: CompileOptions, checkpoint: Checkpoint | None) -> CompileResult:
    brought = options.checkpoint if options.compile_from else options.model
    if options.weights == "reference" and brought is not None:
        check_referable(brought)
    if options.native_code and options.compile_to == "schedule":
        check_cache_folder(NATIVE)  # an unsafe folder is refused now, and not after a minute of work
    if options.compile_from:
        try:
            return _compile(options, _from_dump(options))
        except LayersDiffer as difference:
            raise InputError(f"{options.model}: {difference}, so it lacks layers: compile from the model") from None
        except Exception as error:
            if isinstance(error, SsccError) and not isinstance(error, InternalError):
                raise
            # Most often it is the person's text that a pass stumbles upon, and no fault of the pass.
            raise InputError(
                f"{options.model} cannot be compiled on from {options.compile_from}: {one_line(error)}; if sscc wrote "
                "this dump as it is, please report it with what --traceback prints"
            ) from error
    try:
        return _compile(options, _from_model(options, checkpoint))
    except LayersDiffer as difference:
        logger.info("%s: capturing every layer", difference)
        return _compile(options, _from_model(options, checkpoint, every_layer=True))


def _shard(options: CompileOptions) -> Shard | None:
    """How to cut the program over ranks; None where no option says it."""
    return None if options.tp is None else Shard(options.tp, options.tp_sums)


def _compile(options: CompileOptions, source: Source) -> CompileResult:
    excerpt = Excerpt(options.ir_function, options.ir_locations)
    with mlir():
        dumps = _Dumps(source.module, excerpt, options.dump_ir_dir, options.model)
        dumps.write("import" if options.compile_from is None else f"from-{options.compile_from}")
        done = passes_done(source.module)
        passes = passes_between(done, options.compile_to, options.opt_level, options.weight_format, _shard(options))
        printer = IrPrinter(source.module, options.print_ir_before, options.print_ir_after, sys.stderr, excerpt)
        observers: list[Observer] = [dumps] if options.dump_ir_dir else []
        with stage("verification of passes"):
            times = run_passes(source.module, passes, [*observers, printer] if printer.is_needed else observers)
        for item in times:
            logger.debug("%9.4f s  %s%s", item.seconds, item.name, "" if item.changed else "  (no change)")
            if options.pass_statistics:
                for what, number in item.statistics.items():
                    logger.info("%9d  %s: %s", number, item.name, what)
        if options.compile_to != "schedule":
            write_text(options.output_path, excerpt.of_result(source.module))
            return CompileResult(options.output_path, options.compile_to)
        if options.ir_function is not None and not (dumps.seen or printer.seen):
            raise UsageError(f"--ir-function {options.ir_function}: at no level that is shown is a function called so")
        groups, heads = get_groups(source.module), query_heads(source.module)
        looping = get_looping(source.module)
        with stage("emission of the schedule"):
            program = emit_program(source.module)
        target = get_target(source.module)
    shapes = {tensor.name: tensor.shape for tensor in program.tensors}
    signature = program_signature(source.facts, source.geometry, groups, heads, shapes)
    with stage("validation"):
        _prove(program, signature, target, options)
    dumps.write_schedule(program)
    with stage("goldens"):
        golden = _golden(options, source, program, signature)
    with stage("writing"):
        constants = source.constants() if layout_of(program, "constant") else {}
        report = write_artifact(
            options, program, source.facts, signature, source.checkpoint, constants, golden, looping
        )
    return CompileResult(options.output_path, "schedule", tuple(report))


def _prove(program: Program, signature: Signature, target: Target, options: CompileOptions) -> None:
    """Has the schedule proved by the validator, which knows nothing of how it was made."""
    try:
        report = prove(program, signature, target)
    except InputError as error:
        if options.compile_from:
            raise InputError(f"{options.model} gives a schedule that does not validate: {error}") from None
        raise InternalError(f"the schedule that was made does not validate: {error}") from None
    logger.debug("validated: %d bounds proved", report.proved)
    for level in target.far:
        far = [tensor for tensor in program.tensors if tensor.tier == level.name]
        # The store that queries choose from lies there whatever room there is.
        stores = STORES if signature.geometry.by_query else ()
        spilled = sum(tensor.nbytes for tensor in far if tensor.name.partition(".")[0] not in stores)
        if spilled:
            logger.warning(
                "sscc: %s do not fit into %s of %s and lie in %s",
                format_bytes(spilled),
                format_bytes(target.capacity(target.main.name)),
                target.main.label,
                level.label,
            )


# ------------------------------------------------------------------------------------------------ where it starts


def _from_model(options: CompileOptions, opened: Checkpoint | None = None, *, every_layer: bool = False) -> Source:
    with_weights = options.weights != "none"
    with stage("opening of the model"):
        checkpoint = opened or open_checkpoint(
            options.model, config=options.config, weights=with_weights, trust_pt2=options.trust_pt2
        )
    config = checkpoint.config
    context = longest = None
    if config is not None:
        context, longest = model_context(config), longest_context(config)
        check_config(config, options.max_context or context)
    shape = options.resolve(context, DTYPE_NAMES[checkpoint.default_dtype], longest)
    context = shape.geometry.max_context
    if config is not None:  # refused before the capture, which takes its time
        keeping = range(layer_count(config) - shared_layers(config))
        windows = [layer_window(config, layer, context) for layer in keeping]
        geometry = shape.geometry_of(sum(not window for window in windows))
    dtype = TORCH_DTYPES[shape.dtype]
    if checkpoint.program is not None and options.dtype is not None and dtype != checkpoint.default_dtype:
        raise UsageError(
            f"{options.model} is a program of {DTYPE_NAMES[checkpoint.default_dtype]}, --dtype {options.dtype} "
            "cannot change it: export it again in that dtype"
        )
    if options.compile_to == "schedule":
        check_chat_template(checkpoint.path, checkpoint.tokenizer)
    if config is not None and stretched(config, context):
        logger.warning("sscc: %s", stretched(config, context))
    logger.info("capturing %s", options.model)
    with stage("capture"):
        captured = _captured(checkpoint, shape, every_layer)
    layers = count_layers(captured, config)
    if config is None:
        check_attention(captured.prefill, layers)
        geometry = shape.geometry_of(count_governed(captured.prefill, context))
    check_positions(captured)
    check_tables(captured.prefill, geometry.max_context)
    tokens = vocabulary(captured.prefill)
    if with_weights:
        check_names(checkpoint, captured.weight_shapes)
        with stage("comparison with the untouched model"):
            probe(checkpoint, dtype, geometry, tokens)
    facts = ProgramFacts(
        batch=shape.batch,
        chunk=shape.chunk,
        dtype=shape.dtype,
        layers=layers,
        vocab_size=tokens,
        config=json.dumps({} if config is None else config_to_dict(config), sort_keys=True),
        digest=checkpoint.digest if with_weights else "",
        eos=checkpoint.eos_token_ids,
    )
    with stage("import into MLIR"):
        module = import_capture(captured, facts, geometry, _rules(captured.prefill, shape, facts, geometry))
    with mlir():
        set_target(module, load_target(options.target))
        _note_stored_formats(module, options, checkpoint)
    return Source(module, facts, geometry, checkpoint, lambda: captured.constants)


def _rules(prefill: Captured, shape: ProgramShape, facts: ProgramFacts, geometry: Geometry) -> list[CapturedRule]:
    """The programs of a rule of one's own: one for each kind of layers whose prompts it scores. Raises UsageError where
    it would score none."""
    if shape.rule is None:
        return []
    kinds = governed_attentions(prefill, geometry.max_context)
    if not kinds or not geometry.selects:
        reason = "topk is 0" if kinds else "all layers attend within a sliding window"
        raise UsageError(f"the rule {shape.rule.name} has nothing to select, {reason}: leave --kv-policy out")
    rows = facts.scratch_rows(geometry)
    return [capture_rule(shape.rule, sizes, geometry, rows) for sizes in kinds]


def _captured(checkpoint: Checkpoint, shape: ProgramShape, every_layer: bool) -> Capture:
    """Both entries of a model. A refusal begins with what the model's class says of itself: most often the reason."""
    config, context = checkpoint.config, shape.geometry.max_context
    if config is None:
        assert checkpoint.program is not None
        return capture(checkpoint.program, batch=shape.batch, chunk=shape.chunk, max_context=context)
    model = build_model(config, TORCH_DTYPES[shape.dtype])
    check_modules(config, model)
    _check_rows(config.model_type, position_biases(model), shape.geometry)
    kinds = None if every_layer else find_kinds(model, layer_count(config), listed_layer_types(config))

    def check(prefill: Captured) -> None:
        check_attention(prefill, layer_count(config), kinds)
        check_windows(prefill, lambda layer: (layer_window(config, layer, context), window_field(config, layer)))
        check_softcaps(prefill, attention_softcaps(config))
        check_experts(prefill, [*expert_modules(model), *stacked_experts(model)])

    try:
        return capture(model, batch=shape.batch, chunk=shape.chunk, max_context=context, kinds=kinds, check=check)
    except UnsupportedError as error:
        suspected = (*suspicions(config), *module_suspicions(config, model), *lost_scores(model))
        reasons = "".join(f"{reason}; " for reason in suspected)
        raise UnsupportedError(f"{config.model_type} cannot be compiled: {reasons}{error}") from error


def _check_rows(model_type: str, biased: bool, geometry: Geometry) -> None:
    """Refuses to round the rows of K of a model with ALiBi, which hold positions, to the few bits of a code."""
    coarse = {
        "--kv-dtype int8 or int4": geometry.encoded,
        "landmarks of fewer than 16 bits (--kv-landmark-bits)": 0 < geometry.landmark_bits < PLAIN_BITS,
    }
    for option, asked in coarse.items():
        if biased and asked:
            raise UnsupportedError(
                f"{model_type} cannot be compiled with {option}: it has ALiBi position biases, so its rows of K hold "
                "positions, of which every bit counts"
            )


def _from_dump(options: CompileOptions, module: ir.Module | None = None) -> Source:
    """Args:
    module: what is in the dump, for whoever has read it already.
    """
    with mlir():
        with stage("reading of the dump"):
            module = read_dump(options.model) if module is None else module
        level = get_level(module)
        if level != options.compile_from:
            raise UsageError(f"{options.model} is a dump of level {level}, not {options.compile_from}")
        facts, geometry = get_facts(module)
    checkpoint = None
    if options.weights != "none" and options.checkpoint is not None:
        with stage("opening of the model"):
            checkpoint = open_checkpoint(options.checkpoint, trust_pt2=options.trust_pt2)
        if checkpoint.digest != facts.digest:
            logger.warning("sscc: the dump was made from another checkpoint; only shapes and names are checked")
        with mlir():
            _note_stored_formats(module, options, checkpoint)
    return Source(module, facts, geometry, checkpoint, lambda: _dump_constants(facts, geometry.max_context, checkpoint))


def _note_stored_formats(module: ir.Module, options: CompileOptions, checkpoint: Checkpoint) -> None:
    """Writes into the module what weights are to be kept as. Raises UsageError where there is nothing to keep."""
    if options.weight_format != KEEP:
        return
    stored = {name: checkpoint.stored_form(name) for name in checkpoint.names()}
    formats = {
        name: Encoding(form.format, "values", form.transposed)
        for name, form in stored.items()
        if form is not None and form.format is not None
    }
    if not formats:
        texts = sorted({form.text for form in stored.values() if form is not None})
        held = f"its weights are stored as {', '.join(texts)}" if texts else "its weights are stored as numbers"
        raise UsageError(f"--weights keep: {checkpoint.path} has no weights of codes that a program holds: {held}")
    set_stored_formats(module, formats)


def _dump_constants(facts: ProgramFacts, context: int, checkpoint: Checkpoint | None) -> dict[str, torch.Tensor]:
    """A dump holds no constants: they are computed again from the config, or read from the exported program."""
    if checkpoint is not None and checkpoint.program is not None:
        return program_constants(checkpoint.program)
    config = json.loads(facts.config)
    if not config:
        raise UsageError("this dump comes from an exported program: give it with --checkpoint for its constants")
    model = build_model(config_from_dict(config, "the dump's config"), TORCH_DTYPES[facts.dtype])
    return config_constants(model, context)


def _golden(options: CompileOptions, source: Source, program: Program, signature: Signature) -> Golden | None:
    if not options.save_golden:
        return None
    if source.checkpoint is None:
        raise UsageError("--save-golden runs the model: give its weights with --checkpoint")
    logger.info("recording eager PyTorch's outputs")
    golden = golden_for(
        source.checkpoint,
        TORCH_DTYPES[source.facts.dtype],
        source.geometry,
        source.facts,
        layout_of(program, "weight"),
        options.golden_prompt_file,
        options.golden_tokens,
        frozenset(layer for group in signature.plan if group.latent for layer in group.layers),
        signature.plan.sources,
        options.rule,
    )
    return golden.of_logits if program.grid else golden


# ------------------------------------------------------------------------------------------------------- dumps


class _Dumps(Showing):
    """Numbered files: one for the level a compilation starts from, one per pass that changed something.

    Dumps of an earlier compilation in the same folder are removed, so that a series is always of one run.
    """

    def __init__(self, module: ir.Module, excerpt: Excerpt, folder: Path | None, start: Path) -> None:
        super().__init__(module, excerpt)
        self.folder = folder
        self.count = 0
        if folder is None:
            return
        stale = [path for path in folder.glob("[0-9][0-9]-*") if path.suffix in (".mlir", ".json")]
        if any(path.samefile(start) for path in stale):
            raise UsageError(f"--dump-ir-dir {folder} holds {start}, which it would replace: give another folder")
        try:
            for path in stale:
                path.unlink()
        except OSError as error:
            raise OutputError(f"{folder}: an earlier dump cannot be removed: {error.strerror}") from None

    def write(self, name: str) -> None:
        if self.folder is not None:
            self._module_text(name, self.shown(print_module(self._module)))

    def after(self, name: str, text: str, changed: bool) -> None:
        shown, changed = self.shown_after(text, changed)
        if changed:
            self._module_text(name, shown)

    def write_schedule(self, program: Program) -> None:
        if self.folder is not None:
            self._text("schedule.json", program.to_json())

    def _module_text(self, name: str, text: str) -> None:
        if text:
            self._text(f"{name}.mlir", text)

    def _text(self, name: str, text: str) -> None:
        assert self.folder is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.folder} cannot be made: {error.strerror}") from None
        write_text(self.folder / f"{self.count:02d}-{name}", text)
        self.count += 1
