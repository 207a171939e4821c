"""Checkpoints: Hugging Face folders, `.gguf`, `.pt` and `.pt2` files, or a bare config.

One `Checkpoint` class hides the format: a config, named tensors read one at a time, the tokenizer's files, a digest.
Nothing is downloaded, and no code from a file is run, except that of a `.pt2` with `trust_pt2`.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from transformers import PreTrainedConfig

from sscc.compiler.frontend.model_config import (
    causal_class,
    config_bytes,
    config_from_dict,
    file_form,
    model_parts,
    quantization_of,
    read_config,
    read_json,
    refuse_artifact,
    text_decoder,
)
from sscc.compiler.frontend.naming import RenamedSource
from sscc.compiler.frontend.quantized_source import QuantizedSource, quantized_weights
from sscc.compiler.frontend.sources import (
    DictSource,
    StoredForm,
    TensorInfo,
    TensorSource,
    load_weights_only,
    open_folder_weights,
    refuse_pointer,
    state_dict,
)
from sscc.compiler.frontend.special_tokens import stated_ends
from sscc.compiler.frontend.tokenizer_files import TOKENIZER_FILES, folder_tokenizer, packed_tokenizer
from sscc.compiler.frontend.tying import check_ties, possible_ties, untied, untied_as_stored
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError, quoted
from sscc.ir.files import file_digest, output_errors, replacing
from sscc.ir.suggestions import similar_file
from sscc.ir.weight_formats.registry import ORDER, Encoding
from sscc.runtime.support.quantization import Array

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHOWN = 5  # names listed in one message

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""Form of a model's name on a hub. A path of this form takes precedence if it exists."""

HARMLESS = re.compile(
    r"(^|\.)(inv_freq|position_ids|masked_bias|(self_attn|attn|attention|self_attention)\.(bias|masked_bias)"
    r"|(cos|sin)_cached|num_batches_tracked|[kvq]_scale|input_scale|input_global_scale|output_scale|[a-z_]*quant_state[a-z_0-9.]*)$"
)
"""Tensors of checkpoints that are not parameters: computed tables and masks, scales of another cache."""


class CheckpointWarnings(ErrorKind):
    ADAPTER_BESIDE = SsccWarning, (
        "{path} holds an adapter beside the model (adapter_config.json), which is not applied: give it with "
        "--lora"
    )
    COMPOSITE = SsccWarning, (
        "{path} holds a composite model, {model_type} of {parts}: only its text decoder, {text_type}, is compiled"
    )
    UNUSED = SsccWarning, "{path} holds {count} tensors that the model does not use: {names}"


class CheckpointErrors(ErrorKind):
    MISSING = InputError, "{path} does not exist{similar_hint}"
    NOT_DOWNLOADED = InputError, (
        "{name} is not a folder here, and nothing is downloaded: fetch the model first, for example with "
        "`hf download {name} --local-dir {folder}`, and give that folder"
    )
    NOT_A_FILE = InputError, "{path} is neither a regular file nor a folder"
    UNREADABLE = InputError, "{path} cannot be read: {cause}"
    DUMP = UsageError, "{path} is a dump: compile it with --compile-from LEVEL, where LEVEL is its attribute sscc.level"
    PART_OF_A_FOLDER = UsageError, "{path} is a file of a checkpoint: give the folder that holds it and config.json"
    UNKNOWN_FORM = (
        UsageError,
        "{path} is not a model in a known form: give a Hugging Face folder or a .gguf, .pt, .pth or .pt2 file",
    )
    TWO_CONFIGS = UsageError, "{path} brings its own config: leave out --config {config}"
    NO_CONFIG = (
        InputError,
        "there is no config.json in {path}, so it is not a Hugging Face model folder. If the config is elsewhere, "
        "give --config",
    )
    NO_WEIGHTS = InputError, (
        "{path} holds no weights: it needs model.safetensors, pytorch_model.bin or one of their index files"
    )
    ADAPTER = UnsupportedError, (
        "{path} holds an adapter of {base} but no model: give the model, and the adapter with --lora"
    )
    MLX = UnsupportedError, (
        "{path} is quantized by MLX ({bits} bits, groups of {group_size}), which is not read: give the checkpoint that "
        "it was converted from"
    )
    CONFIG_ALONE = UsageError, "{path} is a config without weights: give the checkpoint, or compile with --no-weights"
    NOT_A_DICT = InputError, "{path} holds a {form}, expected a dict with config and state_dict"
    CONFIG_FORM = InputError, "{path}: config is a {form}, expected a Hugging Face config as a dict"
    BARE_STATE_DICT = UsageError, (
        "{path} holds a state dict without its config: give the model's config.json with --config, or save "
        "{{'config': model.config.to_dict(), 'state_dict': model.state_dict()}}"
    )
    OPENED_WITHOUT_WEIGHTS = UsageError, "{path} was opened without weights, tensor {tensor!r} cannot be read"
    NO_TENSOR = InputError, "{path} has no tensor {tensor!r}"
    PARAMETERS_MISSING = InputError, (
        "{path} does not fit its config: {count} of {parameters} parameters are missing, first {names}{held_hint}"
    )
    SHAPES_DIFFER = InputError, (
        "{path} does not fit its config: {count} of {parameters} parameters have another shape, first {tensor!r}, "
        "which is {shape} and not {expected}"
    )
    DTYPE = UnsupportedError, (
        "{path}: tensor {tensor!r} is {dtype}, weights must be f16, bf16, f32 or f64: dequantize the checkpoint first"
    )
    PACKED_ALREADY = UsageError, "{path} is an exported program, which needs no packing: compile it directly"
    NOTHING_TO_PACK = UsageError, "{path} has no weights to pack"
    PACKED_NAME = UsageError, "{path}: the packed file must be named .pt or .pth"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model in one of the known formats.

    Attributes:
        path: file or folder it came from.
        config: transformers' config; for a composite model, that of its text decoder; None for a `.pt2`.
        program: exported program; None unless a `.pt2`.
        source: reader of the weights; None without weights.
        load_tokenizer: returns the tokenizer's files; called once.
        whole: config in the file, which for a composite model is not that of its text decoder.
    """

    path: Path
    config: PreTrainedConfig | None
    program: ExportedProgram | None
    source: TensorSource | None
    load_tokenizer: Callable[[], dict[str, bytes]]
    whole: PreTrainedConfig | None = None

    @property
    def has_weights(self) -> bool:
        return self.source is not None

    @cached_property
    def tokenizer(self) -> dict[str, bytes]:
        """Contents of the existing files of `tokenizer_files.TOKENIZER_FILES`, by name."""
        return self.load_tokenizer()

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) over config, names and weight bytes; reads every weight once.

        A folder, its shards and its packed `.pt` have the same digest. Quantized weights are digested as stored.
        """
        if self.config is None:  # a .pt2, whose program may not have been loaded
            return file_digest(self.path)
        digest = hashlib.sha256()
        if self.config is not None:
            digest.update(config_bytes(self.config))
        if self.source is not None:
            self.source.update_digest(digest)
        return digest.hexdigest()

    @property
    def is_quantized(self) -> bool:
        """True if most weights are stored as codes."""
        source = self.source is not None and self.source.is_quantized
        return source or (self.config is not None and bool(quantization_of(self.config)))

    @cached_property
    def default_dtype(self) -> torch.dtype:
        """Activation dtype that fits the weights: bf16 if most of them are bf16, else f32. For quantized weights it is
        the dtype that the config states, or if it states none (as in GPT-OSS), that of the unquantized weights."""
        declared = getattr(self.config, "dtype", None)
        quantized = self.config is not None and self.is_quantized
        if self.source is None or (quantized and declared is not None):
            return torch.bfloat16 if declared == torch.bfloat16 else torch.float32
        elements = {True: 0, False: 0}
        for name, (shape, dtype) in self.source.names().items():
            if not quantized or self.source.stored_form(name) is None:
                elements[dtype == torch.bfloat16] += torch.Size(shape).numel()
        return torch.bfloat16 if elements[True] > elements[False] else torch.float32

    @cached_property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """Tokens that end an answer, by the place that states them (`stated_ends`)."""
        return stated_ends(self.config, self.whole, self.tokenizer)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: the union of those in config, generation_config.json and tokenizer."""
        return tuple(dict.fromkeys(token for tokens in self.ends.values() for token in tokens))

    def names(self) -> dict[str, TensorInfo]:
        """Return (shape, stored dtype) of every tensor by name, with f32 for quantized ones; empty without weights."""
        return {} if self.source is None else self.source.names()

    def tensor(self, name: str) -> torch.Tensor:
        """Return one weight on the CPU, in the checkpoint's dtype, read now.

        Raises:
            InputError: there is no such tensor, or its bytes cannot be read.
            UnsupportedError: it is not a floating-point tensor of 16 bits or more.
        """
        if self.source is None:
            raise CheckpointErrors.OPENED_WITHOUT_WEIGHTS(path=self.path, tensor=name)
        held = self.names()
        if name not in held:
            raise CheckpointErrors.NO_TENSOR(path=self.path, tensor=name)
        _check_dtype(self.path, name, held[name][1])
        return self.source.tensor(name)

    def stored_form(self, name: str) -> StoredForm | None:
        """Return the stored form of a weight whose numbers are computed; None for one stored as numbers, or not at all.
        """
        return self.source.stored_form(name) if self.source is not None and name in self.names() else None

    def stores(self, name: str, encoding: Encoding) -> bool:
        """Return True if a weight is stored as the codes that `encoding` would make from its numbers."""
        form = self.stored_form(name)
        return form is not None and form.gives(encoding)

    def check_ties(self, wanted: Container[str]) -> None:
        """Check that a program with the tensors `wanted` loses no head of this checkpoint (`tying.check_ties`)."""
        if self.source is not None:
            check_ties(self.path, self.source, self.config, wanted)

    def kept(self, name: str, encoding: Encoding) -> Array | None:
        """Return the part of a weight that `encoding` names, if the weight is stored in that format; otherwise None.

        Raises InputError if it cannot be read.
        """
        if self.source is None or not self.stores(name, encoding):
            return None
        return self.source.parts(name)[encoding.part]

    def order(self, name: str) -> Array | None:
        """Return the order in which the columns of a weight are stored, i64 [K]; None for their natural order."""
        form = self.stored_form(name)
        if self.source is None or form is None or form.format is None or not form.ordered:
            return None
        return self.source.parts(name)[ORDER]


# ------------------------------------------------------------------------------------------------------- opening


def open_checkpoint(
    path: Path, *, config: Path | None = None, weights: bool = True, program: bool = True, trust_pt2: bool = False
) -> Checkpoint:
    """Open a checkpoint of any known form. Only headers are read.

    Args:
        path: a Hugging Face folder, a `.gguf`, `.pt`/`.pth` or `.pt2` file, or with `weights=False` a `config.json`.
        config: a `config.json` for weights that come without one.
        weights: False ignores the weights; a folder may then lack them.
        program: False ignores the program of a `.pt2` and reads only its weights.
        trust_pt2: load a `.pt2` with torch's own reader, which executes code that it contains.

    Raises:
        InputError: missing, truncated or damaged files.
        UsageError: options that do not fit the form of `path`.
        UnsupportedError: pickled code, weights quantized in an unsupported way, or an architecture that is unknown or
            not decoder-only.
    """
    path = Path(path)
    if config is not None:
        _check_regular(config)
        refuse_pointer(config)
    is_folder = _is_folder(path)
    refuse_artifact(path)
    if is_folder:
        return _open_folder(path, config, weights)
    openers: dict[str, Callable[[Path, Path | None, bool], Checkpoint]] = {
        ".gguf": _open_gguf,
        ".pt": _open_torch,
        ".pth": _open_torch,
        ".json": _open_config,
    }
    suffix = path.suffix.lower()
    if suffix == ".mlir":
        raise CheckpointErrors.DUMP(path=path)
    if suffix in (".safetensors", ".bin"):
        raise CheckpointErrors.PART_OF_A_FOLDER(path=path)
    if suffix != ".pt2" and suffix not in openers:
        raise CheckpointErrors.UNKNOWN_FORM(path=path)
    _check_regular(path)
    refuse_pointer(path)
    try:
        if suffix == ".pt2":
            return _open_exported(path, config, weights, program, trust_pt2)
        return openers[suffix](path, config, weights)
    except OSError as error:
        raise CheckpointErrors.UNREADABLE(path=path, cause=quoted(error.strerror or error)) from error


def _is_folder(path: Path) -> bool:
    """Return True for a folder. Raises InputError where there is nothing."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        hint = similar_file(path)
        if not hint and HUB_NAME.fullmatch(str(path)) and path.suffix[1:] not in _SUFFIXES:
            raise CheckpointErrors.NOT_DOWNLOADED(name=str(path), folder=path.name) from error
        raise CheckpointErrors.MISSING(path=path, similar_hint=hint) from error
    except OSError as error:
        raise CheckpointErrors.UNREADABLE(path=path, cause=quoted(error.strerror or error)) from error
    return stat.S_ISDIR(mode)


_SUFFIXES = ("gguf", "pt", "pth", "pt2", "json", "mlir", "safetensors", "bin")


def _check_regular(path: Path) -> None:
    """Refuse a pipe or a device, which could block forever. A missing file is left to its reader."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        raise CheckpointErrors.NOT_A_FILE(path=path)


def _open_folder(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    own = path / "config.json"
    adapter = _adapter_base(path)
    if own.is_file() and config is not None:
        raise CheckpointErrors.TWO_CONFIGS(path=path, config=config)
    if not own.is_file() and config is None:
        if adapter is not None:
            raise CheckpointErrors.ADAPTER(path=path, base=adapter)
        raise CheckpointErrors.NO_CONFIG(path=path)
    refuse_pointer(config or own)
    _refuse_mlx(path, read_json(config or own))
    whole = read_config(config or own)
    parsed = decoder_of(path, whole)
    source = None
    if weights:
        try:
            source = open_folder_weights(path)
        except OSError as error:
            where = error.filename or path
            raise CheckpointErrors.UNREADABLE(path=where, cause=quoted(error.strerror or error)) from error
        if source is None:
            if adapter is not None:
                raise CheckpointErrors.ADAPTER(path=path, base=adapter)
            raise CheckpointErrors.NO_WEIGHTS(path=path)
        source, whole, parsed = model_weights(path, source, whole, parsed)
    if adapter is not None:
        warn(CheckpointWarnings.ADAPTER_BESIDE(path=path))
    return Checkpoint(path, parsed, None, source, lambda: _folder_tokenizer(path), whole)


def _folder_tokenizer(path: Path) -> dict[str, bytes]:
    for name in TOKENIZER_FILES:
        refuse_pointer(path / name)
    return folder_tokenizer(path)


def _adapter_base(path: Path) -> str | None:
    """Return the model that an adapter in a folder belongs to; None where there is no adapter."""
    config = path / "adapter_config.json"
    if not config.is_file():
        return None
    try:
        base = read_json(config).get("base_model_name_or_path")
    except InputError:
        base = None
    return base if isinstance(base, str) and base else "a model"


def _refuse_mlx(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse MLX's quantization, which is recorded under its own name, or under the usual one without a method."""
    for name in ("quantization", "quantization_config"):
        values = config.get(name)
        if isinstance(values, Mapping) and {"bits", "group_size"} <= values.keys() and "quant_method" not in values:
            raise CheckpointErrors.MLX(path=path, bits=values["bits"], group_size=values["group_size"])


def decoder_of(path: Path, config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config of the compiled model: for a composite model, that of its text decoder."""
    text = text_decoder(config)
    if text is not config:
        warn(
            CheckpointWarnings.COMPOSITE(
                path=path,
                model_type=config.model_type,
                parts=", ".join(model_parts(config)),
                text_type=text.model_type,
            )
        )
    return text


def model_weights(
    path: Path, source: TensorSource, whole: PreTrainedConfig, decoder: PreTrainedConfig
) -> tuple[TensorSource, PreTrainedConfig, PreTrainedConfig]:
    """Return the tensors of a file under the decoder's names, with tensors stored in parts joined, and both configs.
    The configs no longer tie the head to the embedding if the file stores different values for the two."""
    quantization = quantization_of(whole)
    if quantization:
        source = QuantizedSource(source, quantized_weights(source, quantization, str(path)))
    _check_weight_dtypes(path, source)
    is_whole = decoder is whole
    renamed = RenamedSource(source, decoder, None if is_whole else whole)
    if untied_as_stored(path, renamed, decoder):
        decoder = untied(decoder)
        whole = decoder if is_whole else untied(whole)
    return renamed, whole, decoder


def _open_gguf(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    from sscc.compiler.frontend.gguf.config import config_of, family_of  # gguf is slow to import
    from sscc.compiler.frontend.gguf.header import read_header
    from sscc.compiler.frontend.gguf.tokenizer import tokenizer_files
    from sscc.compiler.frontend.gguf.unfused import unfused
    from sscc.compiler.frontend.gguf.weights import GgufSource

    _refuse_config(path, config)
    header = read_header(path)
    family = family_of(header)
    header = unfused(header, family)
    parsed = config_of(header, family)
    source = GgufSource(header, family, parsed) if weights else None
    return Checkpoint(path, parsed, None, source, lambda: tokenizer_files(header))


def _open_exported(path: Path, config: Path | None, weights: bool, program: bool, trusted: bool) -> Checkpoint:
    _refuse_config(path, config)
    opened = None
    if program or not weights:
        from sscc.compiler.frontend.exported import load_program

        opened = load_program(path, trusted=trusted)
        tensors: Mapping[str, torch.Tensor] = opened.state_dict
    else:
        from sscc.compiler.frontend.pt2_archive import load_weights

        tensors = load_weights(path)
    source = DictSource(tensors) if weights else None
    if source is not None:
        _check_weight_dtypes(path, source)
    return Checkpoint(path, None, opened, source, dict)


def _open_config(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    _refuse_config(path, config)
    if weights:
        raise CheckpointErrors.CONFIG_ALONE(path=path)
    parsed = decoder_of(path, read_config(path))
    return Checkpoint(path, parsed, None, None, lambda: _folder_tokenizer(path.parent))


def _open_torch(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    values = load_weights_only(path)
    if not isinstance(values, Mapping):
        raise CheckpointErrors.NOT_A_DICT(path=path, form=type(values).__name__)
    packed = isinstance(values.get("state_dict"), Mapping)
    whole = _torch_config(path, values.get("config") if packed else None, config)
    parsed = decoder_of(path, whole)
    source: TensorSource | None = None
    if weights:
        source = DictSource(state_dict(values["state_dict"] if packed else values, str(path)))
        source, whole, parsed = model_weights(path, source, whole, parsed)
    files = packed_tokenizer(path, values.get("tokenizer") if packed else None)
    if not files and config is not None:
        return Checkpoint(path, parsed, None, source, lambda: _folder_tokenizer(config.parent), whole)
    return Checkpoint(path, parsed, None, source, lambda: files, whole)


def _torch_config(path: Path, own: Any, config: Path | None) -> PreTrainedConfig:
    """Return the config inside a `.pt`, or else the one that was given."""
    if own is not None and not isinstance(own, Mapping):
        raise CheckpointErrors.CONFIG_FORM(path=path, form=type(own).__name__)
    if own is not None:
        _refuse_config(path, config)
        return config_from_dict(own, f"the config in {path}")
    if config is None:
        raise CheckpointErrors.BARE_STATE_DICT(path=path)
    return read_config(config)


def _refuse_config(path: Path, config: Path | None) -> None:
    if config is not None:
        raise CheckpointErrors.TWO_CONFIGS(path=path, config=config)


# ------------------------------------------------------------------------------------------------------- checking


def check_names(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that every parameter of the program is present with its shape and a floating-point dtype, and warn of
    tensors that no parameter uses.

    Args:
        shapes: shapes of the parameters by name, without a tied head, which has no tensor of its own.

    Raises:
        InputError: parameters are missing or have another shape; the message has their number and the first ones.
        UnsupportedError: a parameter is stored as int8, float8 or the like.
    """
    held = checkpoint.names()
    missing = [name for name in shapes if name not in held]
    if missing:
        unused = [name for name in held if name not in shapes]
        hint = f" (the checkpoint holds {_listed(unused[:3])})" if unused else ""
        raise CheckpointErrors.PARAMETERS_MISSING(
            path=checkpoint.path, count=len(missing), parameters=len(shapes), names=missing[:SHOWN], held_hint=hint
        )
    wrong = [name for name, shape in shapes.items() if held[name][0] != tuple(shape)]
    if wrong:
        shown = wrong[0]
        raise CheckpointErrors.SHAPES_DIFFER(
            path=checkpoint.path,
            count=len(wrong),
            parameters=len(shapes),
            tensor=shown,
            shape=str(list(held[shown][0])),
            expected=str(list(shapes[shown])),
        )
    for name in shapes:
        _check_dtype(checkpoint.path, name, held[name][1])
    if checkpoint.config is not None:  # the program of a .pt2 uses all of its tensors
        warn_of_unused(checkpoint, shapes)


def warn_of_unused(checkpoint: Checkpoint, wanted: Container[str]) -> None:
    """Warn of the tensors of a checkpoint that no parameter uses: the program lacks their effect.

    Args:
        wanted: names of the tensors from which the program's weights are made.
    """
    if checkpoint.whole is not checkpoint.config:
        return  # the other tensors of a composite model belong to its other parts
    config = checkpoint.config
    own = () if config is None else getattr(causal_class(config), "_keys_to_ignore_on_load_unexpected", None) or ()
    heads = possible_ties(config) if getattr(config, "tie_word_embeddings", False) else {}
    unused = [
        name
        for name, (_, dtype) in checkpoint.names().items()
        if name not in wanted
        and not HARMLESS.search(name)
        and not any(re.search(pattern, name) for pattern in own)
        and name not in heads
    ]
    if unused:
        warn(CheckpointWarnings.UNUSED(path=checkpoint.path, count=len(unused), names=_listed(sorted(unused))))


def _listed(items: list[str]) -> str:
    rest = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _check_weight_dtypes(path: Path, source: TensorSource) -> None:
    """Refuse quantized weights immediately; masks and other integer buffers of old checkpoints pass."""
    for name, (_, dtype) in source.names().items():
        if name.endswith(".weight"):
            _check_dtype(path, name, dtype)


def _check_dtype(path: Path, name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOAT_DTYPES:
        raise CheckpointErrors.DTYPE(path=path, tensor=name, dtype=str(dtype).removeprefix("torch."))


# -------------------------------------------------------------------------------------------------------- packing


def pack(checkpoint: Checkpoint, out: Path) -> None:
    """Write the `.pt` form: {"config": dict, "state_dict": name -> tensor, "tokenizer": file name -> bytes}.

    The file appears under its name only when it is complete; equal checkpoints give equal bytes.

    Raises:
        UsageError: a `.pt2`, or a checkpoint without weights.
        OutputError: `out` cannot be written.
    """
    if checkpoint.config is None:
        raise CheckpointErrors.PACKED_ALREADY(path=checkpoint.path)
    if checkpoint.source is None:
        raise CheckpointErrors.NOTHING_TO_PACK(path=checkpoint.path)
    out = Path(out)
    if out.suffix not in (".pt", ".pth"):
        raise CheckpointErrors.PACKED_NAME(path=out)
    source = checkpoint.source
    values = {
        "config": file_form(checkpoint.config),
        "state_dict": {name: source.tensor(name) for name in sorted(source.names())},
        # An empty `bytes` is pickled as a call, which safe readers refuse to unpickle.
        "tokenizer": {name: data or "" for name, data in sorted(checkpoint.tokenizer.items())},
    }
    with replacing(out) as file, output_errors(out):
        torch.save(values, file)
