"""The driver: from the user's model to an artifact, level by level.

open -> admit -> capture -> import -> passes -> emit -> artifact
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch_mlir import ir

from sscc.compiler.driver.compile_result import CompileResult
from sscc.compiler.driver.dumps import read_dump
from sscc.compiler.driver.packaging import packing_weights, write_artifact
from sscc.compiler.driver.preflight import check_golden_prompt, check_outputs, chosen_weights, golden_prompt
from sscc.compiler.driver.printing import Excerpt, IrPrinter, Showing
from sscc.compiler.driver.referred_checkpoints import check_referable
from sscc.compiler.emit.emit import emit_program
from sscc.compiler.frontend.admission import (
    attending_layers,
    attention_softcaps,
    check_config,
    check_modules,
    layer_window,
    longest_context,
    module_suspicions,
    stateless_layers,
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
    chosen_layers,
    config_constants,
    count_governed,
    count_layers,
    governed_attentions,
    layer_count,
    program_constants,
    vocabulary,
)
from sscc.compiler.frontend.checkpoint import Checkpoint, check_names, open_checkpoint
from sscc.compiler.frontend.construction import build_model, canonical_names, logits_width
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
from sscc.compiler.frontend.special_tokens import check_vocabulary
from sscc.compiler.frontend.tokenizer_files import check_chat_template
from sscc.compiler.interpret.signatures import program_signature, query_heads
from sscc.compiler.options.compile_options import CompileOptions, ProgramShape
from sscc.compiler.options.outputs import write_text
from sscc.compiler.options.warning import SsccWarning, collecting, warn
from sscc.ir.context import mlir, print_module
from sscc.ir.errors import (
    ErrorKind,
    InputError,
    InternalError,
    OutputError,
    SsccError,
    UnsupportedError,
    UsageError,
    quoted,
)
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.codecs import codec_of
from sscc.ir.layer_state.row_streams import STORES
from sscc.ir.layer_state.rows import selector_of, store_of
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
    set_tile_rows,
)
from sscc.ir.option import flag_of, records_of
from sscc.ir.schedule import Program
from sscc.ir.sizes import format_bytes
from sscc.ir.stopwatch import Stopwatch, recorded, timed
from sscc.ir.target import Target, load_target
from sscc.ir.weight_formats.registry import DENSE, Encoding, Weights
from sscc.passes.base import Observer, run_passes
from sscc.passes.pass_pipeline import load, passes_between, takes_weights
from sscc.passes.shard import Shard
from sscc.passes.split_layers import LayersDiffer
from sscc.runtime.artifact.contract import prove
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import layout_of
from sscc.runtime.backends.reference.arrays import TORCH_DTYPES
from sscc.runtime.backends.registry import backend_class
from sscc.runtime.support.user_cache import NATIVE, check_cache_folder

logger = logging.getLogger("sscc")

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class CompilationErrors(ErrorKind):
    LAYERS_MISSING = InputError, "{path}: {cause}, so it lacks layers: compile from the model"
    DUMP_FAILED = (
        InputError,
        "compilation of {path} cannot continue from level {level}: {cause}. If the dump was not edited, please report "
        "this with the output of --traceback",
    )
    FUNCTION_NOT_SHOWN = UsageError, "--ir-function {name}: none of the printed levels has a function of this name"
    DUMP_NOT_VALID = InputError, "{path} results in an invalid schedule: {cause}"
    SCHEDULE_NOT_VALID = InternalError, "the compiler produced an invalid schedule: {cause}"
    DTYPE_OF_PROGRAM = (
        UsageError,
        "{path} was exported in {dtype}, which --dtype {option} cannot change: export it again in {option}",
    )
    NOTHING_TO_SELECT = UsageError, "the rule {rule} has nothing to select, because topk is 0: leave --kv-policy out"
    NO_LAYER_TO_SELECT_IN = (
        UsageError,
        "the rule {rule} has nothing to select, because all layers attend within a sliding window: leave --kv-policy "
        "out",
    )
    NOT_CAPTURED = UnsupportedError, "{model} cannot be compiled: {cause}"
    NOT_CAPTURED_BECAUSE = UnsupportedError, "{model} cannot be compiled: {reasons}; {cause}"
    ALIBI_ROWS = (
        UnsupportedError,
        "{model} cannot be compiled with {option}: it has ALiBi position biases, so its rows of K contain "
        "positions, which must not be rounded",
    )
    OTHER_LEVEL = UsageError, "{path} is a dump of level {level}, not {option}: give --compile-from {level}"
    NO_CONSTANTS = (
        UsageError,
        "{path} comes from an exported program, whose constants are not in the dump: give the program with "
        "--checkpoint",
    )
    DUMPS_HOLD_INPUT = (
        UsageError,
        "--dump-ir-dir {folder} contains {path}, which would be replaced: give another folder",
    )
    STALE_DUMP = OutputError, "{folder}: an earlier dump cannot be removed: {reason}"
    DUMP_FOLDER = OutputError, "{folder} cannot be created: {reason}"


class CompilationWarnings(ErrorKind):
    SPILLED = SsccWarning, "{size} do not fit into {capacity} of {memory} and are placed in {far}"
    INDEXED = (
        SsccWarning,
        "ignored in the {count} layers whose rows the model's own index selects: {options}",
    )
    STRETCHED = (
        SsccWarning,
        "all positions get the rotary frequencies ({type}) of a text of {context} tokens, even in shorter texts; the "
        "model itself uses different ones for texts of up to {length} tokens",
    )
    OTHER_CHECKPOINT = (
        SsccWarning,
        "{path} was dumped from a checkpoint other than {checkpoint}: only names and shapes are checked",
    )


@dataclass(frozen=True)
class Source:
    """Starting point of a compilation: a module with the facts of its program, its weights and constants.

    Attributes:
        checkpoint: checkpoint of the weights; None for a dump compiled without weights.
        constants: returns constants by name; called if the schedule uses any.
        golden_prompt: tokens of the recorded prompt; None for the default prompt.
        weights: requested storage of weights; None for no change.
    """

    module: ir.Module
    checkpoint: Checkpoint | None
    constants: Callable[[], dict[str, torch.Tensor]]
    golden_prompt: Sequence[int] | None = None
    weights: Weights | None = None


@dataclass(frozen=True)
class Opened:
    """A model whose config, headers and tokenizer have been checked against the options, before it is captured.

    Attributes:
        geometry: cache geometry; None for an exported program, whose layers are counted after capture.
        weights: storage of weights.
        formats: formats of weights that are kept as stored, by name.
        golden_prompt: see `Source`.
    """

    checkpoint: Checkpoint
    shape: ProgramShape
    geometry: Geometry | None
    weights: Weights | None
    formats: Mapping[str, Encoding]
    golden_prompt: Sequence[int] | None


def compile_model(
    options: CompileOptions, checkpoint: Checkpoint | None = None, *, pack: bool = False
) -> CompileResult:
    """Compile according to `options`, and write the artifact, or the module of a lower level.

    Args:
        checkpoint: the model, if it is already open; None opens `options.model`.
        pack: prepare for an immediate run: concurrently pack the weights that the artifact refers to into the user's
            cache, and verify the module only after the last pass.

    Raises:
        SsccError: its subclass tells whether the input, the model, an option or the output is at fault.
    """
    with recorded(Stopwatch()) as stopwatch, collecting() as warnings:
        result = replace(_compile_model(options, checkpoint, pack), warnings=tuple(warnings))
        if options.timing:
            for line in stopwatch.lines():
                logger.info(line)
        return result


def _compile_model(options: CompileOptions, checkpoint: Checkpoint | None, pack: bool) -> CompileResult:
    brought = options.checkpoint if options.compile_from else options.model
    if options.weights == "reference" and brought is not None:
        check_referable(brought)
    if options.native_code and options.compile_to == "schedule":
        check_cache_folder(NATIVE)
    check_outputs(options)
    if options.compile_from:
        try:
            return _compile(options, _from_dump(options))
        except LayersDiffer as difference:
            raise CompilationErrors.LAYERS_MISSING(path=options.model, cause=quoted(difference)) from None
        except Exception as error:
            if isinstance(error, SsccError) and not isinstance(error, InternalError):
                raise
            # The cause is usually the user's edit of the dump, not a pass.
            raise CompilationErrors.DUMP_FAILED(
                path=options.model, level=options.compile_from, cause=one_line(error)
            ) from error
    opened = _opened(options, checkpoint)
    try:
        return _compile(options, _from_model(options, opened), pack)
    except LayersDiffer as difference:
        logger.info("%s: capturing every layer", difference)
        return _compile(options, _from_model(options, opened, every_layer=True), pack)


def _shard(options: CompileOptions) -> Shard | None:
    """Return the pass that shards the program over ranks; None without `--tp`."""
    return None if options.tp is None else Shard(options.tp, options.tp_sums)


def _compile(options: CompileOptions, source: Source, pack: bool = False) -> CompileResult:
    excerpt = Excerpt(options.ir_function, options.ir_locations)
    with mlir():
        dumps = _Dumps(source.module, excerpt, options.dump_ir_dir, options.model)
        dumps.write("import" if options.compile_from is None else f"from-{options.compile_from}")
        passes = passes_between(
            passes_done(source.module), options.compile_to, options.opt_level, source.weights, _shard(options),
            loaded=load(options.load_pass), from_level=get_level(source.module) if options.as_is else None,
        )  # fmt: skip
        printer = IrPrinter(source.module, options.print_ir_before, options.print_ir_after, sys.stderr, excerpt)
        observers: list[Observer] = [dumps] if options.dump_ir_dir else []
        with timed("verification of passes"):
            seen = [*observers, printer] if printer.is_needed else observers
            times = run_passes(source.module, passes, seen, verify_each=not pack)
        for item in times:
            if options.pass_statistics:
                for what, number in item.statistics.items():
                    logger.info("%9d  %s: %s", number, item.name, what)
        if options.compile_to != "schedule":
            write_text(options.output_path, excerpt.of_result(source.module))
            return CompileResult(options.output_path, options.compile_to)
        if options.ir_function is not None and not (dumps.seen or printer.seen):
            raise CompilationErrors.FUNCTION_NOT_SHOWN(name=options.ir_function)
        groups, heads = get_groups(source.module), query_heads(source.module)
        looping = get_looping(source.module)
        with timed("emission of the schedule"):
            program = emit_program(source.module)
        target, (facts, geometry) = get_target(source.module), get_facts(source.module)
    shapes = {tensor.name: tensor.shape for tensor in program.tensors}
    signature = program_signature(facts, geometry, groups, heads, shapes)
    if source.checkpoint is not None:
        layout = layout_of(program, "weight")
        source.checkpoint.check_ties({name for stack in layout.values() for name in stack.sources})
    packs = source.checkpoint if pack else None
    with nullcontext() if packs is None or not packs.has_weights else packing_weights(program, packs) as packed:
        with timed("validation"):
            _prove(program, signature, target, options)
        dumps.write_schedule(program)
        with timed("goldens"):
            golden = _golden(options, source, program, signature)
        with timed("writing"):
            constants = source.constants() if layout_of(program, "constant") else {}
            report = write_artifact(
                options, program, facts, signature, source.checkpoint, constants, golden, looping, packed
            )
    return CompileResult(options.output_path, "schedule", tuple(report))


def _prove(program: Program, signature: Signature, target: Target, options: CompileOptions) -> None:
    """Prove the schedule valid with the validator, which is independent of the compiler."""
    try:
        report = prove(program, signature, target)
    except InputError as error:
        if options.compile_from:
            raise CompilationErrors.DUMP_NOT_VALID(path=options.model, cause=error) from None
        raise CompilationErrors.SCHEDULE_NOT_VALID(cause=error) from None
    logger.debug("validated: %d bounds proved", report.proved)
    for level in target.far:
        far = [tensor for tensor in program.tensors if tensor.tier == level.name]
        # Stores of rows are placed there by design, even if they would fit into main memory.
        groups = [group for group in signature.plan if store_of(group.geometry).lies_far]
        stores = {group.state(name) for group in groups for name in STORES}
        spilled = sum(tensor.nbytes for tensor in far if tensor.name not in stores)
        if spilled:
            warn(
                CompilationWarnings.SPILLED(
                    size=format_bytes(spilled),
                    capacity=format_bytes(target.capacity(target.main.name)),
                    memory=target.main.label,
                    far=level.label,
                )
            )


# ------------------------------------------------------------------------------------------------ starting points


def _opened(options: CompileOptions, checkpoint: Checkpoint | None) -> Opened:
    """Open the model, and refuse everything that options, config, headers and tokenizer rule out. Nothing is captured.
    """
    with_weights = options.weights != "none"
    with timed("opening of the model"):
        checkpoint = checkpoint or open_checkpoint(
            options.model, config=options.config, weights=with_weights, trust_pt2=options.trust_pt2
        )
        checkpoint = _adapted(checkpoint, options)
    config = checkpoint.config
    context = longest = None
    if config is not None:
        context, longest = model_context(config), longest_context(config)
        check_config(config, options.max_context or context)
    shape = options.resolve(context, DTYPE_NAMES[checkpoint.default_dtype], longest)
    context, geometry = shape.geometry.max_context, None
    if config is not None:
        windows = [layer_window(config, layer, context) for layer in attending_layers(config, layer_count(config))]
        geometry = shape.geometry_of(sum(not window for window in windows))
        _check_rule(shape, all(windows))
        for kind, length in stretched(config, context).items():
            warn(CompilationWarnings.STRETCHED(type=kind, context=context, length=length))
    dtype = DTYPE_NAMES[checkpoint.default_dtype]
    if checkpoint.program is not None and options.dtype is not None and shape.dtype != dtype:
        raise CompilationErrors.DTYPE_OF_PROGRAM(path=options.model, dtype=dtype, option=options.dtype)
    weights, formats = chosen_weights(options, checkpoint)
    if options.compile_to == "schedule":
        check_chat_template(checkpoint.path, checkpoint.tokenizer)
    return Opened(checkpoint, shape, geometry, weights, formats, golden_prompt(options, checkpoint, shape.geometry))


def _adapted(checkpoint: Checkpoint, options: CompileOptions) -> Checkpoint:
    """Return the checkpoint with the adapter of `--lora`, if there is one."""
    if options.lora is None:
        return checkpoint
    from sscc.compiler.frontend.adapters import with_adapter  # imports much of transformers

    return with_adapter(checkpoint, options.lora)


def _check_rule(shape: ProgramShape, is_windowed: bool) -> None:
    """Check that a user's rule has rows to select.

    Args:
        is_windowed: True if all layers have windowed attention.
    """
    if shape.rule is not None and is_windowed:
        raise CompilationErrors.NO_LAYER_TO_SELECT_IN(rule=shape.rule.name)
    if shape.rule is not None and not selector_of(shape.geometry).observes:
        raise CompilationErrors.NOTHING_TO_SELECT(rule=shape.rule.name)


def _check_tokens(options: CompileOptions, opened: Opened, size: int) -> None:
    """Check the tokenizer, the end tokens and the golden prompt against a vocabulary of `size` tokens."""
    checkpoint = opened.checkpoint
    files = checkpoint.tokenizer if options.compile_to == "schedule" else {}
    check_vocabulary(checkpoint.path, checkpoint.ends, files, size)
    check_golden_prompt(options, checkpoint, opened.golden_prompt, size)


def _from_model(options: CompileOptions, opened: Opened, *, every_layer: bool = False) -> Source:
    with_weights = options.weights != "none"
    checkpoint, shape, geometry = opened.checkpoint, opened.shape, opened.geometry
    config, context, dtype = checkpoint.config, shape.geometry.max_context, TORCH_DTYPES[shape.dtype]
    logger.info("capturing %s", options.model)
    with timed("capture"):
        captured = _captured(options, opened, every_layer)
    layers = count_layers(captured, config)
    if geometry is None:
        check_attention(captured.prefill, layers)
        governed = count_governed(captured.prefill, context)
        geometry = shape.geometry_of(governed)
        _check_rule(shape, not governed)
    deciding = [name for name, record in records_of(CompileOptions).items() if record.rows]
    given = [flag_of(name) for name in deciding if getattr(options, name) is not None]
    chosen = chosen_layers(captured)
    if chosen and given:
        warn(CompilationWarnings.INDEXED(count=len(chosen), options=given))
    check_positions(captured)
    check_tables(captured.prefill, geometry.max_context)
    tokens = vocabulary(captured.prefill)
    _check_tokens(options, opened, tokens)
    if with_weights:
        check_names(checkpoint, captured.weight_shapes)
        with timed("comparison with the untouched model"):
            probe(checkpoint, dtype, geometry, tokens, captured.kinds)
    facts = ProgramFacts(
        batch=shape.batch,
        chunk=shape.chunk,
        dtype=shape.dtype,
        layers=layers,
        vocab_size=tokens,
        config=json.dumps({} if config is None else config_to_dict(config), sort_keys=True),
        digest=checkpoint.digest if with_weights and options.shows_modules else "",
        eos=checkpoint.eos_token_ids,
    )
    with timed("import into MLIR"):
        module = import_capture(captured, facts, geometry, _rules(captured.prefill, shape, facts, geometry))
    with mlir():
        set_target(module, load_target(options.target))
        set_tile_rows(module, backend_class(options.pack_for).tile_rows)
        set_stored_formats(module, opened.formats)
    return Source(module, checkpoint, lambda: captured.constants, opened.golden_prompt, opened.weights)


def _rules(prefill: Captured, shape: ProgramShape, facts: ProgramFacts, geometry: Geometry) -> list[CapturedRule]:
    """Return the programs of a user's rule: one for each kind of layer in which it scores prompts."""
    if shape.rule is None:
        return []
    kinds = governed_attentions(prefill, geometry.max_context)
    _check_rule(shape, not kinds)
    rows = facts.scratch_rows(geometry)
    return [capture_rule(shape.rule, sizes, geometry, rows) for sizes in kinds]


def _captured(options: CompileOptions, opened: Opened, every_layer: bool) -> Capture:
    """Capture the entries of a model. Raises UnsupportedError, whose message begins with suspicious properties of the
    model's class, usually the cause."""
    checkpoint, shape = opened.checkpoint, opened.shape
    config, context = checkpoint.config, shape.geometry.max_context
    if config is None:
        assert checkpoint.program is not None
        return capture(
            checkpoint.program, batch=shape.batch, chunk=shape.chunk, max_context=context,
            drafted=shape.geometry.spare,
        )  # fmt: skip
    model = build_model(config, TORCH_DTYPES[shape.dtype])
    check_modules(config, model)
    logits = logits_width(model)
    if logits is not None:
        _check_tokens(options, opened, logits)
    if options.weights != "none":
        parameters = dict(model.named_parameters(remove_duplicate=False))
        shapes = {source: tuple(parameters[name].shape) for name, source in canonical_names(model).items()}
        saved, held = model.state_dict(), checkpoint.names()
        buffers = {name for name, _ in model.named_buffers() if name in saved and name in held}  # router biases
        check_names(checkpoint, shapes | {name: tuple(saved[name].shape) for name in buffers})
    _check_rows(config.model_type, position_biases(model), shape.geometry)
    kinds = None if every_layer else find_kinds(model, layer_count(config), listed_layer_types(config))

    def check(prefill: Captured) -> None:
        check_attention(prefill, layer_count(config), kinds, stateless_layers(config))
        check_windows(prefill, lambda layer: (layer_window(config, layer, context), window_field(config, layer)))
        check_softcaps(prefill, attention_softcaps(config))
        check_experts(prefill, [*expert_modules(model), *stacked_experts(model)])

    try:
        return capture(
            model, batch=shape.batch, chunk=shape.chunk, max_context=context, kinds=kinds, check=check,
            drafted=shape.geometry.spare,
        )  # fmt: skip
    except UnsupportedError as error:
        reasons = [*suspicions(config), *module_suspicions(config, model), *lost_scores(model)]
        if reasons:
            raise CompilationErrors.NOT_CAPTURED_BECAUSE(
                model=config.model_type, reasons=reasons, cause=error
            ) from error
        raise CompilationErrors.NOT_CAPTURED(model=config.model_type, cause=error) from error


def _check_rows(model_type: str, biased: bool, geometry: Geometry) -> None:
    """Refuse quantized rows of K for a model with ALiBi: they contain positions, which must not be rounded."""
    coarse = {
        "--kv-dtype int8 or int4": codec_of(geometry).rounds,
        "quantized keys of fewer than 16 bits (--kv-key-bits)": selector_of(geometry).rounds_keys,
    }
    for option, asked in coarse.items():
        if biased and asked:
            raise CompilationErrors.ALIBI_ROWS(model=model_type, option=option)


def _from_dump(options: CompileOptions, module: ir.Module | None = None) -> Source:
    """Return a dump as the starting point of a compilation.

    Args:
        module: module of the dump, if it has already been read.
    """
    with mlir():
        with timed("reading of the dump"):
            module = read_dump(options.model) if module is None else module
        level = get_level(module)
        if level != options.compile_from:
            raise CompilationErrors.OTHER_LEVEL(path=options.model, level=level, option=options.compile_from)
        facts, geometry = get_facts(module)
    checkpoint, weights = None, None if options.weight_format == DENSE else options.weight_format
    if options.weights != "none" and options.checkpoint is not None:
        with timed("opening of the model"):
            checkpoint = open_checkpoint(options.checkpoint, trust_pt2=options.trust_pt2)
            checkpoint = _adapted(checkpoint, options)
        if checkpoint.digest != facts.digest:
            warn(CompilationWarnings.OTHER_CHECKPOINT(path=options.model, checkpoint=options.checkpoint))
        check_vocabulary(checkpoint.path, {"the dump": facts.eos}, checkpoint.tokenizer, facts.vocab_size)
        weights, formats = chosen_weights(options, checkpoint)
        with mlir():
            set_stored_formats(module, formats)
            if options.weight_format is None and not takes_weights(passes_done(module)):
                weights = None  # as in the dump
    prompt = golden_prompt(options, checkpoint, geometry)
    if checkpoint is not None:
        check_golden_prompt(options, checkpoint, prompt, facts.vocab_size)

    def constants() -> dict[str, torch.Tensor]:
        return _dump_constants(options.model, facts, geometry.max_context, checkpoint)

    return Source(module, checkpoint, constants, prompt, weights)


def _dump_constants(
    path: Path, facts: ProgramFacts, context: int, checkpoint: Checkpoint | None
) -> dict[str, torch.Tensor]:
    """Return the constants of a program, which dumps do not contain: they are recomputed from the config, or read from
    the exported program."""
    if checkpoint is not None and checkpoint.program is not None:
        return program_constants(checkpoint.program)
    config = json.loads(facts.config)
    if not config:
        raise CompilationErrors.NO_CONSTANTS(path=path)
    model = build_model(config_from_dict(config, "the dump's config"), TORCH_DTYPES[facts.dtype])
    return config_constants(model, context)


def _golden(options: CompileOptions, source: Source, program: Program, signature: Signature) -> Golden | None:
    if not options.save_golden:
        return None
    assert source.checkpoint is not None  # checked by `golden_prompt`
    logger.info("recording eager PyTorch's outputs")
    golden = golden_for(
        source.checkpoint,
        TORCH_DTYPES[signature.dtype],
        signature.geometry,
        signature.vocab_size,
        layout_of(program, "weight"),
        source.golden_prompt,
        options.golden_tokens,
        frozenset(layer for group in signature.plan if group.latent for layer in group.layers),
        signature.plan.sources,
        options.rule,
    )
    return golden.of_logits if program.grid else golden


# ------------------------------------------------------------------------------------------------------- dumps


class _Dumps(Showing):
    """Writer of numbered dumps: one for the level at which a compilation starts, and one per pass that changed the
    module.

    Dumps of an earlier compilation in the same folder are removed, so that a series always belongs to one run.
    """

    def __init__(self, module: ir.Module, excerpt: Excerpt, folder: Path | None, start: Path) -> None:
        super().__init__(module, excerpt)
        self.folder = folder
        self.count = 0
        if folder is None:
            return
        stale = [path for path in folder.glob("[0-9][0-9]-*") if path.suffix in (".mlir", ".json")]
        if any(path.samefile(start) for path in stale):
            raise CompilationErrors.DUMPS_HOLD_INPUT(folder=folder, path=start)
        try:
            for path in stale:
                path.unlink()
        except OSError as error:
            raise CompilationErrors.STALE_DUMP(folder=folder, reason=error.strerror) from None

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
            raise CompilationErrors.DUMP_FOLDER(folder=self.folder, reason=error.strerror) from None
        write_text(self.folder / f"{self.count:02d}-{name}", text)
        self.count += 1
