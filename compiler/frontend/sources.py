"""Sources of tensors: one class per file format, all of them lazy.

A source knows every tensor's name, shape and dtype from headers alone, and reads one tensor on demand, memory-mapped if
the format permits it. It refuses damaged files; it does not interpret the tensors.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sscc.compiler.frontend.model_config import read_json
from sscc.compiler.frontend.quiet import one_line
from sscc.ir.errors import ErrorKind, InputError, InternalError, UnsupportedError, quoted
from sscc.ir.weight_formats.ggml import FORMATS
from sscc.ir.weight_formats.registry import Encoding
from sscc.ir.weight_formats.weight_format import RANKS, WeightFormat
from sscc.runtime.support.quantization import Parts, as_bytes

TensorInfo = tuple[tuple[int, ...], torch.dtype]  # shape, dtype

SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}

PICKLE_HOWTO = (
    "sscc reads weights only and never runs code from a file: save torch.save({{'config': model.config.to_dict(), "
    "'state_dict': model.state_dict()}}, path), or model.save_pretrained(folder)"
)

POINTER = b"version https://git-lfs.github.com/spec/"
"""The first bytes of a Git LFS pointer, the small text file in place of a large file that was not fetched."""

F16 = FORMATS["F16"]
MOST_TENSORS = 1_000_000
"""Maximum number of tensors of one checkpoint; published ones have up to 100,000."""


class SourceErrors(ErrorKind):
    POINTER = InputError, (
        "{path} is a Git LFS pointer, not the file itself: fetch the files with `git lfs pull`, or download them again"
    )
    UNREADABLE = InputError, "{path} cannot be read: {cause}"
    DAMAGED = InputError, "{path} is truncated or corrupted: {cause}"
    TOO_MANY = InputError, "{path} has {tensors} tensors, more than the limit of {limit}"
    NOT_IN_SHARD = InputError, "{path} lacks tensor {tensor!r}, which the index of the checkpoint places in this file"
    DTYPE = UnsupportedError, "{path}: tensor {tensor!r} must be f16, bf16, f32 or f64, got {dtype}"
    TENSOR_UNREADABLE = InputError, "{path}: tensor {tensor!r} cannot be read: {cause}"
    NO_CODES = InternalError, "{tensor!r} is not stored as codes"
    NO_WEIGHT_MAP = InputError, "{path} has no weight_map: it must map every tensor to its shard"
    SHARD_ELSEWHERE = (
        InputError,
        "{path} places {tensor!r} in {shard!r}, but a shard must be in the folder of the index",
    )
    SHARDS_MISSING = InputError, "{path} lacks {missing} of {shards} shards: {names}"
    TRUNCATED_ARCHIVE = InputError, "{path} is a truncated or damaged archive"
    NOT_PYTORCH = InputError, "{path} is not a PyTorch file, or truncated or damaged: {cause}"
    TORCHSCRIPT = UnsupportedError, "{path} is a TorchScript archive, which is code: " + PICKLE_HOWTO
    PICKLED = UnsupportedError, "{path} holds a pickled {what}, which is loaded by running its code: " + PICKLE_HOWTO
    NO_STATE_DICT = InputError, "{path} holds a {form}, expected a state dict (name -> tensor)"
    NOT_A_TENSOR = InputError, "{path}: entry {name!r} is a {form}, a state dict maps names to tensors only"
    NOT_DENSE = InputError, "{path}: tensor {tensor!r} is not dense on the CPU: save it dense, with its values"
    EMPTY = InputError, "{path} holds an empty state dict"


@dataclass(frozen=True)
class StoredForm:
    """Stored form of a weight that is not a plain tensor of numbers.

    Attributes:
        text: name of the format, for a report.
        format: format of programs with exactly the same codes; None if there is none.
        transposed: True for a weight [.., K, N], where K is the axis along which groups share a scale.
        is_exact: False if the numbers differ from those of the stored codes.
        ordered: True if the columns of a group are not adjacent. Codes are returned in an order in which they are, and
            `TensorSource.parts` includes that `ORDER`.
    """

    text: str
    format: WeightFormat | None = None
    transposed: bool = False
    is_exact: bool = True
    ordered: bool = False

    def gives(self, encoding: Encoding) -> bool:
        """Return True if the stored codes are those that `encoding` would make from the numbers."""
        own = self.format, self.transposed, self.ordered
        return self.is_exact and own == (encoding.format, encoding.transposed, encoding.ordered)


class TensorSource(ABC):
    """Named tensors of one checkpoint."""

    @abstractmethod
    def names(self) -> dict[str, TensorInfo]:
        """Return shape and dtype of every tensor, without reading any."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU, in its own dtype; `name` is one of `names()`."""

    @property
    def is_quantized(self) -> bool:
        """True if most weights are stored as blocks of codes that no `quantization_config` describes."""
        return False

    def stored_form(self, name: str) -> StoredForm | None:
        """Return the stored form of a weight that a program may hold in a format; None for a weight that it holds as
        numbers. 16-bit floats other than bf16 have the format F16."""
        shape, dtype = self.names()[name]
        return StoredForm("f16", F16) if dtype == torch.float16 and len(shape) in RANKS else None

    def parts(self, name: str) -> Parts:
        """Return the stored parts of a weight [.., N, K] whose stored form has a format."""
        if TensorSource.stored_form(self, name) is None:
            raise SourceErrors.NO_CODES(tensor=name)
        return {F16.parts[0].name: as_bytes(self.tensor(name).numpy())}

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feed names, dtypes, shapes and bytes, in the order of names, with one tensor in memory at a time."""
        for name, (shape, dtype) in sorted(self.names().items()):
            digest.update(f"{name} {dtype} {shape}\n".encode())
            digest.update(raw_bytes(self.tensor(name)))


class SafetensorsSource(TensorSource):
    """One or more safetensors files; several when a checkpoint is sharded.

    Raises:
        InputError: a truncated or corrupted file, or a shard that lacks a tensor the index gives it.
    """

    def __init__(self, files: Mapping[Path, Iterable[str] | None]) -> None:
        """Open `files`: names that the index assigns to each path, or None for all of its tensors."""
        self._files: dict[str, tuple[Path, Any]] = {}  # tensor name -> file and its open handle
        self._names: dict[str, TensorInfo] = {}
        for path, names in files.items():
            self._add(path, names)

    def _add(self, path: Path, names: Iterable[str] | None) -> None:
        refuse_pointer(path)
        try:
            handle: Any = safe_open(str(path), framework="pt", device="cpu")
            held = set(handle.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise SourceErrors.DAMAGED(path=path, cause=quoted(error)) from error
        if len(held) + len(self._names) > MOST_TENSORS:
            raise SourceErrors.TOO_MANY(path=path, tensors=len(held) + len(self._names), limit=MOST_TENSORS)
        for name in held if names is None else names:
            if name not in held:
                raise SourceErrors.NOT_IN_SHARD(path=path, tensor=name)
            view = handle.get_slice(name)
            stored = view.get_dtype()
            if stored not in SAFETENSORS_DTYPES:
                raise SourceErrors.DTYPE(path=path, tensor=name, dtype=stored)
            self._names[name] = (tuple(view.get_shape()), SAFETENSORS_DTYPES[stored])
            self._files[name] = path, handle

    def names(self) -> dict[str, TensorInfo]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        path, handle = self._files[name]
        try:
            tensor: torch.Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise SourceErrors.TENSOR_UNREADABLE(path=path, tensor=name, cause=quoted(error)) from error
        return tensor


class DictSource(TensorSource):
    """Tensors in memory: a state dict, memory-mapped by `torch.load`, or that of an exported program."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> dict[str, TensorInfo]:
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach()


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a CPU tensor, row-major, without a copy if it is contiguous."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


# -------------------------------------------------------------------------------------------- Hugging Face folders


def open_folder_weights(folder: Path) -> TensorSource | None:
    """Return the weights in a Hugging Face folder, in transformers' own order of preference; None if it has none."""
    single = folder / "model.safetensors"
    if single.is_file():
        return SafetensorsSource({single: None})
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return SafetensorsSource(_shards(index))
    pickled = folder / "pytorch_model.bin"
    if pickled.is_file():
        return DictSource(state_dict(load_weights_only(pickled), str(pickled)))
    index = folder / "pytorch_model.bin.index.json"
    return _pickled_shards(index) if index.is_file() else None


def _shards(index: Path) -> dict[Path, list[str]]:
    """Return the names of tensors by shard. Shards must be in the folder of the index."""
    refuse_pointer(index)
    # Names must be unique: a tensor in two shards would be ambiguous.
    weight_map = read_json(index, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceErrors.NO_WEIGHT_MAP(path=index)
    shards: dict[Path, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or os.path.basename(file) != file or not file.isprintable():
            raise SourceErrors.SHARD_ELSEWHERE(path=index, tensor=name, shard=file)
        shards.setdefault(index.parent / file, []).append(name)
    missing = sorted(path.name for path in shards if not path.is_file())
    if missing:
        raise SourceErrors.SHARDS_MISSING(
            path=index.parent, missing=len(missing), shards=len(shards), names=missing[:8]
        )
    return shards


def _pickled_shards(index: Path) -> DictSource:
    tensors: dict[str, torch.Tensor] = {}
    for path, names in _shards(index).items():
        held = state_dict(load_weights_only(path), str(path))
        for name in names:
            if name not in held:
                raise SourceErrors.NOT_IN_SHARD(path=path, tensor=name)
            tensors[name] = held[name]
    return DictSource(tensors)


# ------------------------------------------------------------------------------------------------- PyTorch files


def load_weights_only(path: Path) -> Any:
    """Return the contents of a `torch.save` file, memory-mapped, without running code that it names.

    Raises:
        InputError: not a PyTorch file, truncated or damaged.
        UnsupportedError: it can be unpickled only by running code (a module, TorchScript).
    """
    refuse_pointer(path)
    archive = zipfile.is_zipfile(path)
    if not archive and _first_bytes(path, 2) == b"PK":
        raise SourceErrors.TRUNCATED_ARCHIVE(path=path)
    try:
        with warnings.catch_warnings():  # the error that is raised here has the same information
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        raise _unpickling_refused(path, str(error)) from error
    except Exception as error:  # torch raises RuntimeError, EOFError, KeyError, struct.error... for damaged files
        if "TorchScript" in str(error):
            raise SourceErrors.TORCHSCRIPT(path=path) from error
        raise SourceErrors.NOT_PYTORCH(path=path, cause=quoted(one_line(error))) from error


def state_dict(values: Any, origin: str) -> dict[str, torch.Tensor]:
    """Return `values` as a state dict: names to dense tensors. Raises InputError if it is none."""
    if not isinstance(values, Mapping):
        raise SourceErrors.NO_STATE_DICT(path=origin, form=type(values).__name__)
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise SourceErrors.NOT_A_TENSOR(path=origin, name=name, form=type(tensor).__name__)
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise SourceErrors.NOT_DENSE(path=origin, tensor=name)
    if not values:
        raise SourceErrors.EMPTY(path=origin)
    return dict(values)


def _unpickling_refused(path: Path, message: str) -> Exception:
    """Return the error for a file that needs code, or for a damaged one, depending on torch's message."""
    named = re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported class ([\w.]+)|instance of type <class '([\w.]+)'>", message)
    if named is None and "global" not in message.lower():
        return SourceErrors.NOT_PYTORCH(path=path, cause=quoted(message))
    what = next((group for group in named.groups() if group), "an object") if named else "an object"
    return SourceErrors.PICKLED(path=path, what=what)


def refuse_pointer(path: Path) -> None:
    """Refuse a Git LFS pointer in place of a file. A missing file is left to its reader. Raises InputError."""
    if path.is_file() and _first_bytes(path, len(POINTER)) == POINTER:
        raise SourceErrors.POINTER(path=path)


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise SourceErrors.UNREADABLE(path=path, cause=quoted(error.strerror or error)) from error
