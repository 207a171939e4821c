"""Checks of a compilation before capture: its outputs, and the requirements of its options on the checkpoint.

Capturing a large model takes minutes, so that as much as possible is refused before it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sscc.compiler.driver.printing import check_pass_names
from sscc.compiler.frontend.checkpoint import Checkpoint
from sscc.compiler.frontend.special_tokens import tokenizer_of
from sscc.compiler.options.compile_options import DEFAULT_GOLDEN_TOKENS, CompileOptions
from sscc.ir.errors import ErrorKind, OutputError, UsageError
from sscc.ir.files import STANDARD
from sscc.ir.geometry import Geometry
from sscc.ir.weight_formats.registry import DENSE, KEEP, Encoding, Weights
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.artifact.writer import ArtifactWriter
from sscc.runtime.text.tokenizer import encode, read_prompt


class PreflightErrors(ErrorKind):
    NO_FOLDER = OutputError, "{path} cannot be written: the folder {folder} does not exist"
    NOT_A_FOLDER = OutputError, "{path} cannot be written: {folder} is not a folder"
    NO_PERMISSION = OutputError, "{path} cannot be written: the folder {folder} is not writable"
    IS_A_FOLDER = OutputError, "{path} cannot be written: it is a folder"
    NOTHING_TO_KEEP = (
        UsageError,
        "--weights keep: programs cannot execute the weights of {path} as stored{hint}. Use --weights int8 or int4 to "
        "quantize them, or leave --weights out",
    )
    NO_ROOM_FOR_GOLDEN = UsageError, "--golden-tokens {tokens} leaves no room for a prompt in {context} tokens"
    GOLDEN_TOO_LONG = (
        UsageError,
        "the golden prompt has {prompt} tokens and {tokens} are to be generated, which exceeds {context}: shorten "
        "{path}, or raise --max-context",
    )
    NO_TOKENIZER = UsageError, "{path} has no tokenizer to encode the prompt {prompt}"
    UNKNOWN_TOKEN = (
        UsageError,
        "the prompt {prompt} has the token {token} ({text!r}), but the model's vocabulary is 0 .. {last}",
    )
    GOLDEN_WITHOUT_WEIGHTS = UsageError, "--save-golden runs the model: give its weights with --checkpoint"
    GOLDEN_OF_QUANTIZED_PROGRAM = (
        UsageError,
        "--save-golden cannot quantize the weights of the exported program {path}: leave one of the two out",
    )


def check_outputs(options: CompileOptions) -> None:
    """Check that the outputs of a compilation can be created, without creating them, and that printed passes exist.

    Raises:
        OutputError: a folder is missing or not writable, or the path of the output is in use by something else.
        UsageError: a pass to print the IR around does not exist.
    """
    check_pass_names(options.print_ir_before, options.print_ir_after)
    path = options.output_path
    if path != STANDARD:
        target = path.resolve() if path.is_symlink() else path
        _check_folder(target.parent, path)
        if options.compile_to == "schedule":
            ArtifactWriter(path).check_replaceable()
        elif target.is_dir():
            raise PreflightErrors.IS_A_FOLDER(path=path)
    if options.dump_ir_dir is not None:
        existing = options.dump_ir_dir
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        _check_folder(existing, options.dump_ir_dir)


def _check_folder(folder: Path, path: Path) -> None:
    """Check that files can be created in `folder`, for the output `path`."""
    if not folder.exists():
        raise PreflightErrors.NO_FOLDER(path=path, folder=folder)
    if not folder.is_dir():
        raise PreflightErrors.NOT_A_FOLDER(path=path, folder=folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PreflightErrors.NO_PERMISSION(path=path, folder=folder)


def stored_formats(checkpoint: Checkpoint) -> dict[str, Encoding]:
    """Return the formats of the quantized weights in a checkpoint, by name."""
    stored = {name: checkpoint.stored_form(name) for name in checkpoint.names()}
    return {
        name: Encoding(form.format, form.format.parts[0].name, form.transposed, form.ordered)
        for name, form in stored.items()
        if form is not None and form.format is not None
    }


def chosen_weights(options: CompileOptions, checkpoint: Checkpoint) -> tuple[Weights | None, dict[str, Encoding]]:
    """Return the storage of weights (None for dense weights in the program's dtype), and if weights are kept as stored,
    their formats by name. Without an option they are kept if the checkpoint is quantized.

    Raises:
        UsageError: `--weights keep` for a checkpoint with nothing to keep.
    """
    if isinstance(options.weight_format, WeightFormat):
        return options.weight_format, {}
    if options.weight_format == DENSE or options.weights == "none":
        return None, {}
    formats = stored_formats(checkpoint)
    if not formats and options.weight_format == KEEP:
        stored = {name: checkpoint.stored_form(name) for name in checkpoint.names()}
        texts = sorted({form.text for form in stored.values() if form is not None})
        hint = f" (they are {', '.join(texts)})" if texts else " (they are not quantized)"
        raise PreflightErrors.NOTHING_TO_KEEP(path=checkpoint.path, hint=hint)
    return KEEP if formats else None, formats


def golden_prompt(
    options: CompileOptions, checkpoint: Checkpoint | None, geometry: Geometry
) -> list[int] | None:
    """Return the tokens of `--golden-prompt-file`, None without that option, and check that they can be recorded.

    Raises:
        InputError: the file cannot be read.
        UsageError: the prompt is too long, or there are no weights or no tokenizer.
    """
    if not options.save_golden:
        return None
    if checkpoint is None:
        raise PreflightErrors.GOLDEN_WITHOUT_WEIGHTS()
    if checkpoint.program is not None and options.weight_format not in (None, DENSE):
        raise PreflightErrors.GOLDEN_OF_QUANTIZED_PROGRAM(path=checkpoint.path)
    context = geometry.max_context
    tokens = DEFAULT_GOLDEN_TOKENS if options.golden_tokens is None else options.golden_tokens
    if tokens >= context:
        raise PreflightErrors.NO_ROOM_FOR_GOLDEN(tokens=tokens, context=context)
    if options.golden_prompt_file is None:
        return None
    tokenizer = tokenizer_of(checkpoint.tokenizer, f"the tokenizer.json of {checkpoint.path}")
    if tokenizer is None:
        raise PreflightErrors.NO_TOKENIZER(path=checkpoint.path, prompt=options.golden_prompt_file)
    prompt = encode(tokenizer, read_prompt(options.golden_prompt_file))
    if len(prompt) + tokens > context:
        raise PreflightErrors.GOLDEN_TOO_LONG(
            prompt=len(prompt), tokens=tokens, context=context, path=options.golden_prompt_file
        )
    return prompt


def check_golden_prompt(
    options: CompileOptions, checkpoint: Checkpoint, prompt: Sequence[int] | None, vocabulary: int
) -> None:
    """Check that the model knows every token of a golden prompt. Raises UsageError."""
    unknown = [token for token in prompt or () if token >= vocabulary]
    if unknown:
        tokenizer = tokenizer_of(checkpoint.tokenizer)
        raise PreflightErrors.UNKNOWN_TOKEN(
            prompt=options.golden_prompt_file,
            token=unknown[0],
            text=None if tokenizer is None else tokenizer.id_to_token(unknown[0]),
            last=vocabulary - 1,
        )
