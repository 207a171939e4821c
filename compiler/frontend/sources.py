"""Where tensors come from: one class per file format, all of them lazy.

A source knows every tensor's name, shape and dtype from headers alone, and reads one tensor when it is asked for,
memory-mapped where the format permits. It refuses damaged files; what the tensors mean is not its business.
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
from sscc.ir.errors import InputError, InternalError, UnsupportedError
from sscc.ir.weight_format import Encoding, WeightFormat
from sscc.runtime.quantization import Quantized

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
    "sscc reads weights only and never runs code from a file: save torch.save({'config': model.config.to_dict(), "
    "'state_dict': model.state_dict()}, path), or model.save_pretrained(folder)"
)


@dataclass(frozen=True)
class StoredForm:
    """How a weight is stored that is no tensor of numbers.

    Attributes:
        text: its format in words, for a report.
        format: the format of the program that holds exactly the same; None where there is none.
        transposed: whether the weight is [.., K, N], K being the axis along which groups share a scale.
    """

    text: str
    format: WeightFormat | None = None
    transposed: bool = False

    def gives(self, encoding: Encoding) -> bool:
        """Whether what is stored is what `encoding` would make of the numbers, without rounding them again."""
        return (self.format, self.transposed) == (encoding.format, encoding.transposed)


class TensorSource(ABC):
    """Named tensors of one checkpoint."""

    @abstractmethod
    def names(self) -> dict[str, TensorInfo]:
        """Shape and dtype of every tensor, without reading any."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, in its own dtype; `name` is one of `names()`."""

    def stored_form(self, name: str) -> StoredForm | None:
        """How the weight is stored whose numbers `tensor` computes; None for one that is stored as they are."""
        return None

    def codes(self, name: str) -> Quantized:
        """The parts of a weight whose stored form has a format, of shape [.., N, K] (sscc.runtime.quantization)."""
        raise InternalError(f"{name!r} is not stored as codes")

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feeds names, dtypes, shapes and bytes, in the order of names, one tensor in memory at a time."""
        for name, (shape, dtype) in sorted(self.names().items()):
            digest.update(f"{name} {dtype} {shape}\n".encode())
            digest.update(raw_bytes(self.tensor(name)))


class SafetensorsSource(TensorSource):
    """One or more safetensors files; several when a checkpoint is sharded.

    Raises:
        InputError: a truncated or corrupted file, or a shard that lacks a tensor the index gives it.
    """

    def __init__(self, files: Mapping[Path, Iterable[str] | None]) -> None:
        """`files`: path -> the names the index gives it, or None for all it holds."""
        self._files: dict[str, Any] = {}  # tensor name -> open handle
        self._names: dict[str, TensorInfo] = {}
        for path, names in files.items():
            self._add(path, names)

    def _add(self, path: Path, names: Iterable[str] | None) -> None:
        try:
            handle: Any = safe_open(str(path), framework="pt", device="cpu")
            held = set(handle.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(f"{path} is truncated or corrupted: {error}") from error
        for name in held if names is None else names:
            if name not in held:
                raise InputError(f"{path} lacks tensor {name!r}, which the index of the checkpoint places there")
            view = handle.get_slice(name)
            stored = view.get_dtype()
            if stored not in SAFETENSORS_DTYPES:
                raise UnsupportedError(f"{path}: tensor {name!r} has dtype {stored}; f16, bf16, f32 and f64 are read")
            self._names[name] = (tuple(view.get_shape()), SAFETENSORS_DTYPES[stored])
            self._files[name] = handle

    def names(self) -> dict[str, TensorInfo]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._files[name].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise InputError(f"tensor {name!r} cannot be read: {error}") from error
        return tensor


class DictSource(TensorSource):
    """Tensors that are already there: a state dict, memory-mapped by `torch.load`, or of an exported program."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> dict[str, TensorInfo]:
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach()


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor, row-major, without a copy where it is contiguous."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


# -------------------------------------------------------------------------------------------- Hugging Face folders


def open_folder_weights(folder: Path) -> TensorSource | None:
    """The weights in a Hugging Face folder, in transformers' own order of preference; None if it has none."""
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
    """Shard -> tensor names, checked to lie beside the index."""
    # Names must be unique: of a tensor in two shards nobody could tell which one counts.
    weight_map = read_json(index, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map: it must map every tensor to its shard")
    shards: dict[Path, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or os.path.basename(file) != file or not file.isprintable():
            raise InputError(f"{index} places {name!r} in {file!r}: a shard must lie beside the index")
        shards.setdefault(index.parent / file, []).append(name)
    missing = sorted(path.name for path in shards if not path.is_file())
    if missing:
        raise InputError(f"{index.parent} lacks {len(missing)} of {len(shards)} shards: {', '.join(missing[:8])}")
    return shards


def _pickled_shards(index: Path) -> DictSource:
    tensors: dict[str, torch.Tensor] = {}
    for path, names in _shards(index).items():
        held = state_dict(load_weights_only(path), str(path))
        for name in names:
            if name not in held:
                raise InputError(f"{path} lacks tensor {name!r}, which the index of the checkpoint places there")
            tensors[name] = held[name]
    return DictSource(tensors)


# ------------------------------------------------------------------------------------------------- PyTorch files


def load_weights_only(path: Path) -> Any:
    """What a `torch.save` file holds, memory-mapped, without running anything it names.

    Raises:
        InputError: not a PyTorch file, truncated or damaged.
        UnsupportedError: it needs code to be unpickled (a module, TorchScript).
    """
    archive = zipfile.is_zipfile(path)
    if not archive and _starts_with(path, b"PK"):
        raise InputError(f"{path} is a truncated or damaged archive")
    try:
        with warnings.catch_warnings():  # the error that is raised here says the same
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        raise _unpickling_refused(path, str(error)) from error
    except Exception as error:  # torch raises RuntimeError, EOFError, KeyError, struct.error... for damaged files
        if "TorchScript" in str(error):
            raise UnsupportedError(f"{path} is a TorchScript archive, which is code: {PICKLE_HOWTO}") from error
        raise InputError(f"{path} is not a PyTorch file, or truncated: {_short(error)}") from error


def state_dict(values: Any, origin: str) -> dict[str, torch.Tensor]:
    """Checks that `values` is a state dict: names to dense tensors."""
    if not isinstance(values, Mapping):
        raise InputError(f"{origin} holds a {type(values).__name__}, it must hold a state dict (name -> tensor)")
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"{origin}: entry {name!r} is a {type(tensor).__name__}, a state dict maps names to tensors only"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise InputError(f"{origin}: tensor {name!r} is not dense on the CPU: save it dense, with its values")
    if not values:
        raise InputError(f"{origin} holds an empty state dict")
    return dict(values)


def _unpickling_refused(path: Path, message: str) -> InputError | UnsupportedError:
    """Tells a file that needs code from a damaged one, by torch's message."""
    named = re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported class ([\w.]+)|instance of type <class '([\w.]+)'>", message)
    if named is None and "global" not in message.lower():
        return InputError(f"{path} is not a PyTorch file, or damaged: {' '.join(message.split())[:160]}")
    what = next((group for group in named.groups() if group), "an object") if named else "an object"
    return UnsupportedError(f"{path} holds a pickled {what}, which needs its code to be run: {PICKLE_HOWTO}")


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _short(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__).split(". This is an internal")[0][:200]
