"""Tensors in safetensors files: written one at a time, read memory-mapped, damage reported by name.

The format (8 bytes of header length, a JSON header, then the bytes of each tensor without gaps) is that of
the safetensors library, which reads the files; its writer wants every tensor in memory at once, ours does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError, safe_open

from sscc.ir.errors import InputError
from sscc.runtime.schedule import DTYPE_BYTES

ALIGNMENT = 64
SHARD_BYTES = 4 * 2**30
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "i1": torch.bool}
_FILE_DTYPES = {"f32": "F32", "bf16": "BF16", "i64": "I64", "i1": "BOOL"}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

Reader = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype ("f32", "bf16", "i64", "i1") of a named tensor."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """Raises InputError for a dtype that a schedule cannot hold."""
        if tensor.dtype not in _NAMES:
            raise InputError(f"a tensor of {tensor.dtype} cannot be stored, it must be one of {list(_FILE_DTYPES)}")
        return cls(tuple(tensor.shape), _NAMES[tensor.dtype])

    @property
    def nbytes(self) -> int:
        count = DTYPE_BYTES[self.dtype]
        for size in self.shape:
            count *= size
        return count

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Specs = Mapping[str, TensorSpec]


def plan_shards(specs: Specs, limit: int = SHARD_BYTES) -> list[list[str]]:
    """Splits names into shards of at most `limit` bytes (more where one tensor is larger), sorted by name."""
    shards: list[list[str]] = [[]]
    used = 0
    for name in sorted(specs):
        if shards[-1] and used + specs[name].nbytes > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += specs[name].nbytes
    return shards


def write_tensors(file: IO[bytes], specs: Specs, read: Reader) -> dict[str, str]:
    """Writes the tensors that `read` gives, one at a time. Equal tensors give equal bytes.

    Wide dtypes come first, then names in order, and data starts at a multiple of 64 bytes, so that every
    tensor is aligned to its elements. Returns the sha256 of each tensor's bytes. Raises InputError where
    `read` gives another shape or dtype than `specs` says; errors of `file` pass through.
    """
    order = sorted(specs, key=lambda name: (-DTYPE_BYTES[specs[name].dtype], name))
    file.write(_header(order, specs))
    digests = {}
    for name in order:
        tensor = read(name)
        if TensorSpec.of(tensor) != specs[name]:
            raise InputError(f"tensor {name!r} is {TensorSpec.of(tensor)}, expected {specs[name]}")
        data = tensor_bytes(tensor)
        file.write(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    return digests


def _header(order: Iterable[str], specs: Specs) -> bytes:
    entries, offset = {}, 0
    for name in order:
        end = offset + specs[name].nbytes
        entries[name] = {
            "dtype": _FILE_DTYPES[specs[name].dtype],
            "shape": list(specs[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in row-major order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def read_specs(path: Path) -> dict[str, TensorSpec]:
    """Names, shapes and dtypes of a file, from its header alone.

    Raises InputError where the file is missing, truncated, damaged or holds a dtype that no schedule has.
    """
    specs = {}
    names = {file_name: name for name, file_name in _FILE_DTYPES.items()}
    with _open(path) as file:
        for name in sorted(file.keys()):
            window = file.get_slice(name)
            if window.get_dtype() not in names:
                raise InputError(f"{path}: tensor {name!r} is {window.get_dtype()}, not one of {sorted(names)}")
            specs[name] = TensorSpec(tuple(window.get_shape()), names[window.get_dtype()])
    return specs


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, memory-mapped: bytes are read when they are used."""
    with _open(path) as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is missing or damaged: {error}") from None


def weights_digest(tensors: Mapping[str, str], specs: Specs) -> str:
    """One sha256 for a set of tensors, from the sha256 of each; it does not depend on files or order."""
    lines = "".join(f"{name}\t{specs[name]}\t{tensors[name]}\n" for name in sorted(specs))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_of(specs: Specs, read: Reader) -> str:
    """The `weights_digest` of the tensors that `read` gives, asked for one at a time."""
    return weights_digest({name: hashlib.sha256(tensor_bytes(read(name))).hexdigest() for name in specs}, specs)
