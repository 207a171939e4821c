"""Tensors in safetensors files: written one part at a time, read memory-mapped, with errors that name damaged tensors.

`sscc.runtime.artifact.safetensors_file` has the format. The writer of the safetensors library needs every tensor in
memory at once; this one does not. A tensor that is the stack of others is written part after part, which gives the same
bytes as stacking first.

Tensors are numpy arrays; those of bf16 have the dtype `ml_dtypes.bfloat16`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import ml_dtypes
import numpy as np

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.files import open_regular
from sscc.ir.layer_state.protocol import DeviceTensor
from sscc.ir.schedule import DTYPE_BYTES, Program, Role
from sscc.ir.sharding import Cut
from sscc.ir.sizes import ALIGNMENT
from sscc.ir.weight_formats.registry import Encoding
from sscc.runtime.artifact.safetensors_file import TensorEntry, read_header
from sscc.runtime.support.quantization import encode

SHARD_BYTES = 4 * 2**30
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": BFLOAT16,
    "i64": np.dtype(np.int64),
    "i8": np.dtype(np.int8),
    "i1": np.dtype(np.bool_),
}
_FILE_DTYPES = {
    "f32": "F32",
    "bf16": "BF16",
    "i64": "I64",
    "i8": "I8",
    "i1": "BOOL",
}
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
_DTYPE_OF_FILE = {in_file: name for name, in_file in _FILE_DTYPES.items()}


class TensorErrors(ErrorKind):
    CANNOT_MAP = InputError, "{path} cannot be mapped: {reason}"
    CUT_BETWEEN_SOURCES = InputError, (
        "the schedule is malformed: {role} {tensor!r} is sharded along the axis of its sources, as {cut!r}"
    )
    DTYPE_NOT_STORED = InputError, "a tensor of {dtype} cannot be stored; the dtype must be one of {dtypes}"
    FOREIGN_DTYPE = InputError, "{path}: tensor {tensor!r} must have one of the dtypes {dtypes}, got {dtype}"
    MISSING = InputError, "{where} has no tensor {tensor!r}, which the program needs as {expected}"
    NOT_ENCODED = InputError, "tensor {tensor!r}: {cause}"
    OTHER_SPEC = InputError, "tensor {tensor!r} must be {expected}, got {spec}"
    OTHER_TENSOR = InputError, "{where}: tensor {tensor!r} must be {expected}, got {dtype} [{shape}]"
    SOURCES_DIFFER = InputError, (
        "the schedule is malformed: {role} {tensor!r} is {spec}, which is not the shape of a stack of its {sources} "
        "sources"
    )

Array = np.ndarray[Any, np.dtype[Any]]
"""An array of any shape and dtype."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype (one of NUMPY_DTYPES) of a named tensor."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array | DeviceTensor) -> TensorSpec:
        """Return the spec of an array. Raises InputError for a dtype that a schedule cannot hold."""
        if array.dtype not in _NAMES:
            raise TensorErrors.DTYPE_NOT_STORED(dtype=str(array.dtype), dtypes=list(_FILE_DTYPES))
        return cls(array.shape, _NAMES[array.dtype])

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
class Spans:
    """A rank's part of an axis of `size` elements: these spans [begin, end), concatenated."""

    axis: int
    size: int
    spans: tuple[tuple[int, int], ...]

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the whole tensor, if that of the part is `shape`."""
        return (*shape[: self.axis], self.size, *shape[self.axis + 1 :])

    def of(self, whole: Array) -> Array:
        """Return the part of a whole tensor: a view, or a copy for several spans."""
        before = (slice(None),) * self.axis
        pieces = [whole[(*before, slice(begin, end))] for begin, end in self.spans]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, self.axis)

    def inside(self) -> Spans:
        """Return the same spans for each tensor of a stack."""
        return Spans(self.axis - 1, self.size, self.spans)

    def of_source(self, encoding: Encoding, rank: int) -> Spans:
        """Return the spans of an encoded source of `rank` dimensions from which the part is made."""
        axis, times, divisor = self.axis, 1, 1
        if axis == rank - 1:  # the axis along which numbers share a byte or a scale
            times, divisor = encoding.format.block, encoding.format.bytes_of[encoding.part]
        if encoding.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        spans = tuple((begin * times // divisor, end * times // divisor) for begin, end in self.spans)
        return Spans(axis, self.size * times // divisor, spans)


@dataclass(frozen=True)
class Stack:
    """A stored tensor and its sources: one, or N that are stacked to [N, ..].

    Attributes:
        spec: shape and dtype of the stored tensor.
        encoding: conversion of each source to its part of the tensor, as in sscc.ir.schedule.Tensor.
        spans: a rank's part of the whole; None for all of it.
    """

    spec: TensorSpec
    sources: tuple[str, ...]
    encoding: str = ""
    spans: Spans | None = None

    @property
    def part(self) -> TensorSpec:
        """Shape and dtype of the part from one source."""
        return self.spec if len(self.sources) == 1 else TensorSpec(self.spec.shape[1:], self.spec.dtype)

    @property
    def source(self) -> TensorSpec:
        """Shape and dtype of each source. A source to be encoded is read in f32, which holds every dtype exactly."""
        whole = self.whole.part
        if not self.encoding:
            return whole
        return TensorSpec(Encoding.parse(self.encoding).source_shape(whole.shape), "f32")

    @property
    def whole(self) -> Stack:
        """Whole tensor of which this is a rank's part."""
        if self.spans is None:
            return self
        return Stack(TensorSpec(self.spans.whole(self.spec.shape), self.spec.dtype), self.sources, self.encoding)

    @property
    def _spans_inside(self) -> Spans | None:
        """Spans of the part from one source."""
        return self.spans if self.spans is None or len(self.sources) == 1 else self.spans.inside()

    def of(self, whole: Array) -> Array:
        """Return the stored part of the whole tensor."""
        return whole if self.spans is None else self.spans.of(whole)

    def read(self, source: str, read: Reader) -> Array:
        """Return the part from one source, restricted to a rank's share. Raises InputError if the source has a wrong
        shape or dtype; errors of `read` are propagated."""
        spans = self._spans_inside
        encoding = Encoding.parse(self.encoding) if self.encoding else None
        kept = read.kept(source, encoding) if encoding is not None and isinstance(read, KeepingReader) else None
        if encoding is not None and kept is None:
            array = self._encoded(source, read, encoding)
        else:
            array = read(source, self.source) if kept is None else kept
            array = array if spans is None or array.shape != self.whole.part.shape else spans.of(array)
        if TensorSpec.of(array) != self.part:
            raise TensorErrors.OTHER_SPEC(tensor=source, spec=TensorSpec.of(array), expected=self.source)
        return array

    def _encoded(self, source: str, read: Reader, encoding: Encoding) -> Array:
        """Return the encoded numbers of a source; the source itself if it has a wrong shape."""
        array = read(source, self.source)
        if TensorSpec.of(array) != self.source:
            return array
        if (spans := self._spans_inside) is not None:
            array = spans.of_source(encoding, array.ndim).of(array)
        try:
            return encode(array, encoding)
        except InputError as error:
            raise TensorErrors.NOT_ENCODED(tensor=source, cause=error) from None


Layout = Mapping[str, Stack]
"""Tensors of a file, or of a set of files, by the name under which they are stored."""


class Packing(Protocol):
    """Packing of a tensor on its way into a file. Implementations belong to backends."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the stored shape of a tensor of this shape."""

    def companions(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors that are packed together with a tensor."""

    def pack(self, array: Array, *others: Array) -> Array:
        """Return a tensor in its stored form, packed with its companions."""

    def pieces(self, array: Array, *others: Array) -> Iterator[Array]:
        """Yield the result of `pack` in pieces, in the order of memory."""

    def unpack(self, stored: Array, shape: tuple[int, ...]) -> Array:
        """Return the array that `pack` was given, in its shape."""


Packings = Mapping[str, Packing]
"""Packings by the name under which tensors are stored; all others are stored unpacked."""


class Unpacked(Mapping[str, Array]):
    """Tensors in the schedule's form, some of which are stored packed: each is unpacked on access.

    Args:
        stored: the stored tensors.
        packings: packings of those that are packed.
        shapes: shapes in the schedule, at least of the packed ones.
    """

    def __init__(
        self, stored: Mapping[str, Array], packings: Packings, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._stored = stored
        self._packings = packings
        self._shapes = shapes

    def __getitem__(self, name: str) -> Array:
        array, packing = self._stored[name], self._packings.get(name)
        if packing is None or array.shape != packing.stored_shape(self._shapes[name]):
            return array
        return packing.unpack(array, self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


Reader = Callable[[str, TensorSpec], Array]
"""Returns one source by name, of exactly this shape and dtype."""


@dataclass(frozen=True)
class KeepingReader:
    """A reader of sources, some of which are stored in a format that tensors may have.

    Attributes:
        numbers: reads a source as numbers, whatever its stored form.
        kept: returns the part that an encoding names, if the source is stored in its format; otherwise None.
    """

    numbers: Reader
    kept: Callable[[str, Encoding], Array | None]

    def __call__(self, source: str, spec: TensorSpec) -> Array:
        return self.numbers(source, spec)


class Sink(Protocol):
    """A destination of bytes: an open file, or an observer of the bytes written to one."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def layout_of(program: Program, role: Role, rank: int | None = None) -> dict[str, Stack]:
    """Return the tensors of a program with a role ("weight" or "constant"), by `Tensor.name`.

    Args:
        rank: rank whose part of sharded tensors is meant; None for all of them, as in files.

    Raises InputError if a tensor names no source, or a number of sources that its shape does not have, or is sharded
    along the axis of its sources.
    """
    layout = {}
    for tensor in program.tensors:
        if tensor.role != role:
            continue
        if not tensor.sources or (len(tensor.sources) > 1 and tensor.shape[:1] != (len(tensor.sources),)):
            spec = TensorSpec(tensor.shape, tensor.dtype)
            raise TensorErrors.SOURCES_DIFFER(role=role, tensor=tensor.name, spec=spec, sources=len(tensor.sources))
        stack = Stack(TensorSpec(tensor.shape, tensor.dtype), tensor.sources, tensor.encoding)
        if tensor.cut:
            cut = Cut.parse(tensor.cut)
            if cut.axis == 0 and len(tensor.sources) > 1:
                raise TensorErrors.CUT_BETWEEN_SOURCES(role=role, tensor=tensor.name, cut=tensor.cut)
            spans = Spans(cut.axis, cut.size, tuple(cut.spans(rank or 0, program.ranks)))
            stack = replace(stack, spans=spans)
        layout[tensor.name] = stack.whole if rank is None else stack
    return layout


def specs_of(layout: Layout) -> dict[str, TensorSpec]:
    """Return shape and dtype of every stored tensor."""
    return {name: stack.spec for name, stack in layout.items()}


def plan_shards(specs: Specs, limit: int = SHARD_BYTES) -> list[list[str]]:
    """Return names, sorted, in shards of at most `limit` bytes (more for a single larger tensor)."""
    shards: list[list[str]] = [[]]
    used = 0
    for name in sorted(specs):
        if shards[-1] and used + specs[name].nbytes > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += specs[name].nbytes
    return shards


def stored_specs(layout: Layout, packings: Packings) -> dict[str, TensorSpec]:
    """Return shape and dtype of every tensor as stored in files."""
    return {name: _stored(stack.spec, packings.get(name)) for name, stack in layout.items()}


def _stored(spec: TensorSpec, packing: Packing | None) -> TensorSpec:
    return spec if packing is None else TensorSpec(packing.stored_shape(spec.shape), spec.dtype)


def write_tensors(
    file: Sink,
    layout: Layout,
    read: Reader,
    packings: Packings | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, str]:
    """Write the tensors of `layout`. One source at a time is in memory, with a few packed pieces of it: each piece is
    packed while the previous one is written. Equal tensors give equal bytes.

    Args:
        packings: packings applied to some of them.
        names: names of those to write; all if None.

    Data begins at a multiple of 64 bytes. Tensors whose size is a multiple of 64 come first, within each group wide
    dtypes, then names in order: so the former are aligned to 64 bytes in the file, the others to their elements.

    Returns:
        the sha256 of each tensor's bytes before packing.

    Raises:
        InputError: `read` returns a wrong shape or dtype. Errors of `read` and `file` are propagated.
    """
    packing_of: Packings = {} if packings is None else packings
    specs = {name: _stored(layout[name].spec, packing_of.get(name)) for name in (layout if names is None else names)}
    order = file_order(specs)
    file.write(tensors_header(order, specs))
    digests = {name: hashlib.sha256() for name in order}

    def pieces() -> Iterator[memoryview]:
        """Yield the bytes of all sources as files hold them, and add their plain ones to the digests."""
        for name in order:
            for source in layout[name].sources:
                array = layout[name].read(source, read)
                data = tensor_bytes(array)
                digests[name].update(data)
                packing = packing_of.get(name)
                if packing is None:
                    yield data
                    continue
                others = [layout[part].read(source, read) for part in packing.companions(name)]
                yield from map(tensor_bytes, packing.pieces(array, *others))

    remaining, context = pieces(), copy_context()

    def following() -> memoryview | None:
        return context.run(lambda: next(remaining, None))

    with ThreadPoolExecutor(1) as worker:
        ahead = worker.submit(following)
        while (piece := ahead.result()) is not None:
            ahead = worker.submit(following)
            file.write(piece)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _digest(stack: Stack, read: Reader) -> str:
    digest = hashlib.sha256()
    for source in stack.sources:
        digest.update(tensor_bytes(stack.read(source, read)))
    return digest.hexdigest()


def file_order(specs: Specs) -> list[str]:
    """Return the names in the order of their data in a file: aligned to 64 bytes if sizes permit, else to their
    elements."""
    return sorted(specs, key=lambda name: (specs[name].nbytes % ALIGNMENT != 0, -DTYPE_BYTES[specs[name].dtype], name))


def tensors_header(order: Iterable[str], specs: Specs, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the beginning of a safetensors file, up to the data of the first tensor: a multiple of 64 bytes."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
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


def tensor_bytes(array: Array) -> memoryview:
    """Return the bytes of an array in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def read_specs(path: Path, file: BinaryIO | None = None) -> dict[str, TensorSpec]:
    """Return names, shapes and dtypes of a file, from its header alone.

    Args:
        file: the file, if it is open already; `path` is then its name in messages. None opens `path`.

    Raises InputError if the file is missing, not a regular file, truncated, damaged, or has a dtype that no schedule
    has.
    """
    with _opened(path, file) as opened:
        return {name: spec for name, (spec, _) in _described(path, opened).items()}


def read_tensors(path: Path, file: BinaryIO | None = None) -> dict[str, Array]:
    """Return the tensors of a file, memory-mapped and read-only: bytes are read when they are used.

    The mapping lives as long as one of the arrays. Arguments and errors are those of `read_specs`.
    """
    with _opened(path, file) as opened:
        described = _described(path, opened)
        try:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise TensorErrors.CANNOT_MAP(path=path, reason=quoted(error)) from None
    return {
        name: np.ndarray(spec.shape, NUMPY_DTYPES[spec.dtype], buffer=data, offset=entry.begin)
        for name, (spec, entry) in described.items()
    }


def _opened(path: Path, file: BinaryIO | None) -> AbstractContextManager[BinaryIO]:
    return open_regular(path) if file is None else nullcontext(file)


def _described(path: Path, file: BinaryIO) -> dict[str, tuple[TensorSpec, TensorEntry]]:
    described = {}
    for name, entry in sorted(read_header(file, path).items()):
        if entry.dtype not in _DTYPE_OF_FILE:
            raise TensorErrors.FOREIGN_DTYPE(
                path=path, tensor=name, dtype=entry.dtype, dtypes=sorted(_DTYPE_OF_FILE)
            )
        described[name] = TensorSpec(entry.shape, _DTYPE_OF_FILE[entry.dtype]), entry
    return described


def reading(tensors: Mapping[str, Array], where: str) -> Reader:
    """Return a reader of named tensors that converts floating dtypes, and raises InputError for any other mismatch.

    A tensor that already has the requested dtype is returned without a copy.

    Args:
        where: name of the tensors' source in messages.
    """

    def read(source: str, spec: TensorSpec) -> Array:
        array = tensors.get(source)
        if array is None:
            raise TensorErrors.MISSING(where=where, tensor=source, expected=spec)
        dtype = NUMPY_DTYPES[spec.dtype]
        convertible = array.dtype == dtype or (_is_float(array.dtype) and _is_float(dtype))
        if array.shape != spec.shape or not convertible:
            raise TensorErrors.OTHER_TENSOR(
                where=where, tensor=source, dtype=str(array.dtype), shape=list(array.shape), expected=spec
            )
        return array.astype(dtype, copy=False)

    return read


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == BFLOAT16  # numpy has a separate kind for bfloat16


def stack_tensors(layout: Layout, read: Reader) -> dict[str, Array]:
    """Return the tensors of `layout` in memory, by the name under which they are stored.

    A tensor of one unencoded source is the array that `read` returns; a stack is new memory, filled one source at a
    time.
    """
    return {name: _stacked(stack, read) for name, stack in layout.items()}


def _stacked(stack: Stack, read: Reader) -> Array:
    if len(stack.sources) == 1:
        return stack.read(stack.sources[0], read)
    array = np.empty(stack.spec.shape, NUMPY_DTYPES[stack.spec.dtype])
    for row, source in enumerate(stack.sources):
        array[row] = stack.read(source, read)
    return array


def taken(layout: Layout, whole: Mapping[str, Array]) -> dict[str, Array]:
    """Return the parts of whole tensors in a layout. Of mapped tensors only these are read."""
    return {name: layout[name].of(array) if name in layout else array for name, array in whole.items()}


def weights_digest(tensors: Mapping[str, str], layout: Layout) -> str:
    """Return one sha256 for a set of tensors, from the sha256 of each; it does not depend on files or order."""
    lines = "".join(f"{name}\t{layout[name].spec}\t{tensors[name]}\n" for name in sorted(layout))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_of(layout: Layout, read: Reader) -> str:
    """Return the `weights_digest` of the tensors that `write_tensors` would write, without writing them."""
    return weights_digest({name: _digest(stack, read) for name, stack in layout.items()}, layout)
