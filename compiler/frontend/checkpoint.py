"""Opens what people bring: Hugging Face folders, `.gguf`, `.pt`, `.pt2`, or a bare config.

One `Checkpoint` class hides the format: a config, named tensors read one at a time, the tokenizer's files, a digest.
No hub is ever asked and no code from a file is ever run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from transformers import PreTrainedConfig

from sscc.compiler.frontend.model_config import (
    config_bytes,
    config_from_dict,
    file_form,
    model_parts,
    quantization_of,
    read_config,
    refuse_artifact,
    text_decoder,
)
from sscc.compiler.frontend.naming import RenamedSource
from sscc.compiler.frontend.quantised_source import QuantisedSource, quantised_weights
from sscc.compiler.frontend.sources import (
    DictSource,
    StoredForm,
    TensorInfo,
    TensorSource,
    load_weights_only,
    open_folder_weights,
    state_dict,
)
from sscc.compiler.frontend.tokenizer_files import folder_tokenizer, packed_tokenizer
from sscc.compiler.frontend.tokens import stated_ends
from sscc.ir.errors import InputError, UnsupportedError, UsageError
from sscc.ir.files import file_digest, output_errors, replacing
from sscc.ir.suggestions import similar_file
from sscc.ir.weight_format import Encoding
from sscc.runtime.quantization import Array

logger = logging.getLogger("sscc")

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHOWN = 5  # names listed in one message


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model somebody brought.

    Attributes:
        path: the file or folder it came from.
        config: transformers' config, of a composite model that of its text decoder; None for a `.pt2`.
        program: the exported program; None unless a `.pt2`.
        source: where the weights are read; None without weights.
        load_tokenizer: called once, gives the tokenizer's files.
        whole: the config that the file has: of a composite model, where `config` is that of its text decoder.
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
        """File name -> bytes, those of tokenizer_files.TOKENIZER_FILES that there are. Takes seconds for a `.gguf`."""
        return self.load_tokenizer()

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) over config, names and weight bytes; reads every weight once.

        A folder, its shards and its packed `.pt` share a digest. Quantized weights are digested as they are stored.
        """
        if self.program is not None:
            return file_digest(self.path)
        digest = hashlib.sha256()
        if self.config is not None:
            digest.update(config_bytes(self.config))
        if self.source is not None:
            self.source.update_digest(digest)
        return digest.hexdigest()

    @cached_property
    def default_dtype(self) -> torch.dtype:
        """The activation dtype that fits the weights: bf16 if most of them are bf16, else f32. Where they are
        quantized the config says it, and where it does not, as GPT-OSS's, those that are stored plainly."""
        declared = getattr(self.config, "dtype", None)
        quantized = self.config is not None and bool(quantization_of(self.config))
        if self.source is None or (quantized and declared is not None):
            return torch.bfloat16 if declared == torch.bfloat16 else torch.float32
        elements = {True: 0, False: 0}
        for name, (shape, dtype) in self.source.names().items():
            if not quantized or self.source.stored_form(name) is None:
                elements[dtype == torch.bfloat16] += torch.Size(shape).numel()
        return torch.bfloat16 if elements[True] > elements[False] else torch.float32

    @cached_property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """Tokens that end an answer, by where they are stated (`stated_ends`). The config of a `.gguf` has that of its
        tokenizer, whose conversion takes seconds."""
        return stated_ends(self.config, self.whole, {} if self.path.suffix == ".gguf" else self.tokenizer)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: the union of those that config, generation_config.json and tokenizer state."""
        return tuple(dict.fromkeys(token for tokens in self.ends.values() for token in tokens))

    def names(self) -> dict[str, TensorInfo]:
        """name -> (shape, dtype as stored; f32 where it is quantized); empty without weights."""
        return {} if self.source is None else self.source.names()

    def tensor(self, name: str) -> torch.Tensor:
        """One weight on the CPU, in the checkpoint's dtype, read now.

        Raises:
            InputError: there is no such tensor, or its bytes cannot be read.
            UnsupportedError: it is not a floating-point tensor of 16 bits or more.
        """
        if self.source is None:
            raise UsageError(f"{self.path} was opened without weights, tensor {name!r} cannot be read")
        held = self.names()
        if name not in held:
            raise InputError(f"{self.path} has no tensor {name!r}")
        _check_dtype(self.path, name, held[name][1])
        return self.source.tensor(name)

    def stored_form(self, name: str) -> StoredForm | None:
        """How a weight is stored whose numbers are computed; None for one stored as they are, or not at all."""
        return self.source.stored_form(name) if self.source is not None and name in self.names() else None

    def stores(self, name: str, encoding: Encoding) -> bool:
        """Whether a weight is stored as the codes that `encoding` would make of its numbers."""
        form = self.stored_form(name)
        return form is not None and form.gives(encoding)

    def kept(self, name: str, encoding: Encoding) -> Array | None:
        """The part that `encoding` asks for of a weight that is stored in its very format; None of any other.

        Raises InputError where it cannot be read.
        """
        if self.source is None or not self.stores(name, encoding):
            return None
        part: Array = getattr(self.source.codes(name), encoding.part)
        return part


# ------------------------------------------------------------------------------------------------------- opening


def open_checkpoint(path: Path, *, config: Path | None = None, weights: bool = True) -> Checkpoint:
    """Opens a checkpoint of any known form; reads headers only.

    Args:
        path: a Hugging Face folder, a `.gguf`, `.pt`/`.pth` or `.pt2` file, or with `weights=False` a `config.json`.
        config: a `config.json` for weights that bring none.
        weights: False leaves the weights alone; a folder may then lack them.

    Raises:
        InputError: missing, truncated or damaged. UsageError: options that do not fit the form of `path`.
        UnsupportedError: pickled code, weights quantized in a way that is not read, an architecture that is not known
            or not decoder-only.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist{similar_file(path)}")
    refuse_artifact(path)
    if path.is_dir():
        return _open_folder(path, config, weights)
    openers: dict[str, Callable[[Path, Path | None, bool], Checkpoint]] = {
        ".gguf": _open_gguf,
        ".pt": _open_torch,
        ".pth": _open_torch,
        ".pt2": _open_exported,
        ".json": _open_config,
    }
    opener = openers.get(path.suffix.lower())
    if path.suffix.lower() == ".mlir":
        raise UsageError(f"{path} is a dump: compile it on with --compile-from LEVEL, which it has as sscc.level")
    if opener is None:
        raise UsageError(
            f"{path} is not a form that is known: give a Hugging Face folder or a .gguf, .pt, .pth, .pt2 file"
            + (" (give the folder that holds this file)" if path.suffix in (".safetensors", ".bin") else "")
        )
    try:
        return opener(path, config, weights)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _open_folder(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    own = path / "config.json"
    if own.is_file() and config is not None:
        raise UsageError(f"{path} has its own config.json: leave out the other config, {config}")
    if not own.is_file() and config is None:
        raise InputError(f"{path} has no config.json: it is not a Hugging Face folder, or give the config separately")
    whole = read_config(config or own)
    parsed = decoder_of(path, whole)
    source = None
    if weights:
        try:
            source = open_folder_weights(path)
        except OSError as error:
            raise InputError(f"{path}: {error.filename or 'a file'} cannot be read: {error.strerror}") from error
        if source is None:
            raise InputError(
                f"{path} holds no weights: looked for model.safetensors, pytorch_model.bin and their index files"
            )
        source = model_weights(path, source, whole, parsed)
    return Checkpoint(path, parsed, None, source, lambda: folder_tokenizer(path), whole)


def decoder_of(path: Path, config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of what is compiled: of a composite model its text decoder."""
    text = text_decoder(config)
    if text is not config:
        logger.warning(
            "sscc: %s holds %s, which is composed of several models (%s): of these the text decoder is compiled, %s",
            path,
            config.model_type,
            ", ".join(model_parts(config)),
            text.model_type,
        )
    return text


def model_weights(
    path: Path, source: TensorSource, whole: PreTrainedConfig, decoder: PreTrainedConfig
) -> TensorSource:
    """The tensors of a file under the decoder's names, those that are stored in parts put together."""
    quantization = quantization_of(whole)
    if quantization:
        source = QuantisedSource(source, quantised_weights(source, quantization, str(path)))
    _check_weight_dtypes(path, source)
    return RenamedSource(source, decoder, None if decoder is whole else whole)


def _open_gguf(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    from sscc.compiler.frontend.gguf_file import GgufFile, GgufSource  # gguf is slow to import

    _refuse_config(path, config)
    file = GgufFile(path)
    source = GgufSource(file) if weights else None
    return Checkpoint(path, file.config, None, source, file.tokenizer)


def _open_exported(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    from sscc.compiler.frontend.exported import load_program

    _refuse_config(path, config)
    program = load_program(path)
    source = DictSource(program.state_dict) if weights else None
    if source is not None:
        _check_weight_dtypes(path, source)
    return Checkpoint(path, None, program, source, dict)


def _open_config(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    _refuse_config(path, config)
    if weights:
        raise UsageError(f"{path} is a config without weights: give the checkpoint, or compile without weights")
    parsed = decoder_of(path, read_config(path))
    return Checkpoint(path, parsed, None, None, lambda: folder_tokenizer(path.parent))


def _open_torch(path: Path, config: Path | None, weights: bool) -> Checkpoint:
    values = load_weights_only(path)
    if not isinstance(values, Mapping):
        raise InputError(f"{path} holds a {type(values).__name__}, it must hold a dict with config and state_dict")
    packed = isinstance(values.get("state_dict"), Mapping)
    whole = _torch_config(path, values.get("config") if packed else None, config)
    parsed = decoder_of(path, whole)
    source: TensorSource | None = None
    if weights:
        source = DictSource(state_dict(values["state_dict"] if packed else values, str(path)))
        source = model_weights(path, source, whole, parsed)
    files = packed_tokenizer(path, values.get("tokenizer") if packed else None)
    if not files and config is not None:
        return Checkpoint(path, parsed, None, source, lambda: folder_tokenizer(config.parent), whole)
    return Checkpoint(path, parsed, None, source, lambda: files, whole)


def _torch_config(path: Path, own: Any, config: Path | None) -> PreTrainedConfig:
    """The config inside a `.pt`, or else the one that was given."""
    if own is not None and not isinstance(own, Mapping):
        raise InputError(f"{path}: config is a {type(own).__name__}, it must be a Hugging Face config as a dict")
    if own is not None:
        _refuse_config(path, config)
        return config_from_dict(own, f"the config in {path}")
    if config is None:
        raise UsageError(
            f"{path} holds a state dict without its config: give the model's config.json with --config, or save "
            f"{{'config': model.config.to_dict(), 'state_dict': model.state_dict()}}"
        )
    return read_config(config)


def _refuse_config(path: Path, config: Path | None) -> None:
    if config is not None:
        raise UsageError(f"{path} brings its own config: leave out the other config, {config}")


# ------------------------------------------------------------------------------------------------------- checking


def check_names(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Verifies that every parameter the program needs is there with its shape and a floating-point dtype.

    Args:
        shapes: of the parameters by name. A tied head is not among them, because it has no tensor of its own.

    Raises:
        InputError: listing the first missing and the first mismatched parameters, with the numbers.
        UnsupportedError: a wanted parameter is int8, float8 or the like.
    """
    held = checkpoint.names()
    missing = [name for name in shapes if name not in held]
    wrong = [name for name, shape in shapes.items() if name in held and held[name][0] != tuple(shape)]
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(shapes)} parameters are missing: {_listed(missing)}")
    if wrong:
        shown = [f"{name} is {list(held[name][0])}, the config asks for {list(shapes[name])}" for name in wrong]
        parts.append(f"{len(wrong)} of {len(shapes)} parameters have another shape: {_listed(shown)}")
    if parts:
        unused = [name for name in held if name not in shapes]
        hint = f" (the checkpoint holds {_listed(unused[:3])})" if missing and unused else ""
        raise InputError(f"{checkpoint.path} does not fit its config: {'; '.join(parts)}{hint}")
    for name in shapes:
        _check_dtype(checkpoint.path, name, held[name][1])


def _listed(items: list[str]) -> str:
    rest = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _check_weight_dtypes(path: Path, source: TensorSource) -> None:
    """Refuses quantized weights at once; masks and other integer buffers of old checkpoints may pass."""
    for name, (_, dtype) in source.names().items():
        if name.endswith(".weight"):
            _check_dtype(path, name, dtype)


def _check_dtype(path: Path, name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOAT_DTYPES:
        raise UnsupportedError(
            f"{path}: tensor {name!r} is {str(dtype).removeprefix('torch.')}, weights must be f16, bf16, f32 or f64: "
            f"dequantize the checkpoint first"
        )


# -------------------------------------------------------------------------------------------------------- packing


def pack(checkpoint: Checkpoint, out: Path) -> None:
    """Writes the `.pt` form: {"config": dict, "state_dict": name -> tensor, "tokenizer": file name -> bytes}.

    The file appears under its name only when complete; equal checkpoints give equal bytes.

    Raises:
        UsageError: a `.pt2`, or a checkpoint without weights.
        OutputError: `out` cannot be written.
    """
    if checkpoint.config is None:
        raise UsageError(f"{checkpoint.path} is an exported program, which is packed already: compile it as it is")
    if checkpoint.source is None:
        raise UsageError(f"{checkpoint.path} has no weights to pack")
    out = Path(out)
    if out.suffix not in (".pt", ".pth"):
        raise UsageError(f"{out}: the packed file must be named .pt or .pth")
    source = checkpoint.source
    values = {
        "config": file_form(checkpoint.config),
        "state_dict": {name: source.tensor(name) for name in sorted(source.names())},
        # An empty `bytes` is pickled as a call, which nobody may unpickle.
        "tokenizer": {name: data or "" for name, data in sorted(checkpoint.tokenizer.items())},
    }
    with replacing(out) as file, output_errors(out):
        torch.save(values, file)
