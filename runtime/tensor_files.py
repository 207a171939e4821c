"""Tensors in safetensors files: written one part at a time, read memory-mapped, damage reported by name.

The format (8 bytes of header length, a JSON header, then the bytes of each tensor without gaps) is that of
the safetensors library, which reads the files; its writer wants every tensor in memory at once, ours does not.
A tensor that is the stack of others is written part after part, which gives the same bytes as stacking first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from sscc.ir.errors import InputError
from sscc.runtime.schedule import DTYPE_BYTES, Program, Role

ALIGNMENT = 64
SHARD_BYTES = 4 * 2**30
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "i1": torch.bool}
_FILE_DTYPES = {"f32": "F32", "bf16": "BF16", "i64": "I64", "i1": "BOOL"}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


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


@dataclass(frozen=True)
class Stack:
    """A stored tensor and what it is made of: one source of the same shape, or N that are stacked to [N, ..]."""

    spec: TensorSpec
    sources: tuple[str, ...]

    @property
    def part(self) -> TensorSpec:
        """Shape and dtype of each source."""
        return self.spec if len(self.sources) == 1 else TensorSpec(self.spec.shape[1:], self.spec.dtype)


Layout = Mapping[str, Stack]
"""The tensors of a file, or of a set of files, by the name they are stored under."""

Reader = Callable[[str, TensorSpec], torch.Tensor]
"""Gives one source by name, of exactly this shape and dtype."""


class Sink(Protocol):
    """Where bytes go: an open file, or something that watches what goes into one."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def layout_of(program: Program, role: Role) -> dict[str, Stack]:
    """What a program wants as its tensors of a role ("weight" or "constant"), by `Tensor.name`.

    Raises InputError where a tensor names no source, or a number of them that its shape does not have.
    """
    layout = {}
    for tensor in program.tensors:
        if tensor.role != role:
            continue
        if not tensor.sources or (len(tensor.sources) > 1 and tensor.shape[:1] != (len(tensor.sources),)):
            raise InputError(
                f"the schedule is malformed: {role} {tensor.name!r} is {tensor.dtype} {list(tensor.shape)} and names "
                f"{len(tensor.sources)} sources"
            )
        layout[tensor.name] = Stack(TensorSpec(tensor.shape, tensor.dtype), tensor.sources)
    return layout


def specs_of(layout: Layout) -> dict[str, TensorSpec]:
    """Shape and dtype of every stored tensor."""
    return {name: stack.spec for name, stack in layout.items()}


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


def write_tensors(file: Sink, layout: Layout, read: Reader) -> dict[str, str]:
    """Writes the tensors of `layout`, holding one source in memory at a time. Equal tensors give equal bytes.

    Wide dtypes come first, then names in order, and data starts at a multiple of 64 bytes, so that every
    tensor is aligned to its elements. Returns the sha256 of each tensor's bytes. Raises InputError where
    `read` gives another shape or dtype than it was asked for; errors of `read` and `file` pass through.
    """
    specs = specs_of(layout)
    order = sorted(specs, key=lambda name: (-DTYPE_BYTES[specs[name].dtype], name))
    file.write(_header(order, specs))
    return {name: _stream(layout[name], read, file.write) for name in order}


def _stream(stack: Stack, read: Reader, write: Callable[[memoryview], object] | None = None) -> str:
    """Passes on the bytes of each source in order. Returns their sha256."""
    digest = hashlib.sha256()
    for source in stack.sources:
        data = _part(source, stack.part, read)
        if write is not None:
            write(data)
        digest.update(data)
        del data  # before the next one is read
    return digest.hexdigest()


def _part(source: str, spec: TensorSpec, read: Reader) -> memoryview:
    tensor = read(source, spec)
    if TensorSpec.of(tensor) != spec:
        raise InputError(f"tensor {source!r} is {TensorSpec.of(tensor)}, expected {spec}")
    return tensor_bytes(tensor)


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


def reading(tensors: Mapping[str, torch.Tensor], where: str) -> Reader:
    """A reader of named tensors that converts floating dtypes, and raises InputError for anything else.

    Args:
        where: what to call the place that they come from.
    """

    def read(source: str, spec: TensorSpec) -> torch.Tensor:
        tensor = tensors.get(source)
        if tensor is None:
            raise InputError(f"{where} has no tensor {source!r}, the program wants it as {spec}")
        dtype = TORCH_DTYPES[spec.dtype]
        convertible = tensor.dtype is dtype or (tensor.is_floating_point() and dtype.is_floating_point)
        if tuple(tensor.shape) != spec.shape or not convertible:
            held = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            raise InputError(f"{where}: tensor {source!r} is {held}, the program wants {spec}")
        return tensor.to(dtype)

    return read


def stack_tensors(layout: Layout, read: Reader) -> dict[str, torch.Tensor]:
    """The tensors of `layout` in memory, by the name they are stored under.

    A tensor of one source is what `read` gives; a stack is new memory, filled one source at a time.
    """
    return {name: _stacked(stack, read) for name, stack in layout.items()}


def _stacked(stack: Stack, read: Reader) -> torch.Tensor:
    if len(stack.sources) == 1:
        return read(stack.sources[0], stack.part)
    tensor = torch.empty(stack.spec.shape, dtype=TORCH_DTYPES[stack.spec.dtype])
    for row, source in zip(tensor, stack.sources, strict=True):
        row.copy_(read(source, stack.part))
    return tensor


def weights_digest(tensors: Mapping[str, str], layout: Layout) -> str:
    """One sha256 for a set of tensors, from the sha256 of each; it does not depend on files or order."""
    lines = "".join(f"{name}\t{layout[name].spec}\t{tensors[name]}\n" for name in sorted(layout))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_of(layout: Layout, read: Reader) -> str:
    """The `weights_digest` of what `write_tensors` would write, without writing it."""
    return weights_digest({name: _stream(stack, read) for name, stack in layout.items()}, layout)
