"""Tensors in safetensors files: written one part at a time, read memory-mapped, damage reported by name.

`sscc.runtime.artifact.safetensors_file` has the format. The writer of the safetensors library wants every tensor in
memory at once, ours does not. A tensor that is the stack of others is written part after part, which gives the same
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
        "the schedule is malformed: {role} {tensor!r} is cut between its sources, as {cut!r}"
    )
    DTYPE_NOT_STORED = InputError, "a tensor of {dtype} cannot be stored, the dtype must be one of {dtypes}"
    FOREIGN_DTYPE = InputError, "{path}: tensor {tensor!r} is {dtype}, the dtype must be one of {dtypes}"
    MISSING = InputError, "{where} has no tensor {tensor!r}, which the program needs as {expected}"
    NOT_ENCODED = InputError, "tensor {tensor!r}: {cause}"
    OTHER_SPEC = InputError, "tensor {tensor!r} is {spec}, the program needs {expected}"
    OTHER_TENSOR = InputError, "{where}: tensor {tensor!r} is {dtype} [{shape}], the program needs {expected}"
    SOURCES_DIFFER = InputError, (
        "the schedule is malformed: {role} {tensor!r} is {spec} and names {sources} sources, which do not make that "
        "shape"
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
        """Raises InputError for a dtype that a schedule cannot hold."""
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
    """What a rank has of an axis that is `size` long in all: these spans [begin, end), one after another."""

    axis: int
    size: int
    spans: tuple[tuple[int, int], ...]

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the whole, where that of the part is `shape`."""
        return (*shape[: self.axis], self.size, *shape[self.axis + 1 :])

    def of(self, whole: Array) -> Array:
        """The part: a view, or a copy where it is of several spans."""
        before = (slice(None),) * self.axis
        pieces = [whole[(*before, slice(begin, end))] for begin, end in self.spans]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, self.axis)

    def inside(self) -> Spans:
        """The same of each tensor of a stack."""
        return Spans(self.axis - 1, self.size, self.spans)

    def of_source(self, encoding: Encoding, rank: int) -> Spans:
        """What the part is made from, of a source of `rank` dimensions that is encoded."""
        axis, times, divisor = self.axis, 1, 1
        if axis == rank - 1:  # the one along which numbers share a byte or a scale
            times, divisor = encoding.format.block, encoding.format.bytes_of[encoding.part]
        if encoding.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        spans = tuple((begin * times // divisor, end * times // divisor) for begin, end in self.spans)
        return Spans(axis, self.size * times // divisor, spans)


@dataclass(frozen=True)
class Stack:
    """A stored tensor and what it is made of: one source, or N that are stacked to [N, ..].

    Attributes:
        spec: shape and dtype of what is held.
        encoding: how each source becomes its part of the tensor, as in sscc.ir.schedule.Tensor.
        spans: what a rank holds of the whole; None for all of it.
    """

    spec: TensorSpec
    sources: tuple[str, ...]
    encoding: str = ""
    spans: Spans | None = None

    @property
    def part(self) -> TensorSpec:
        """Shape and dtype of what each source becomes."""
        return self.spec if len(self.sources) == 1 else TensorSpec(self.spec.shape[1:], self.spec.dtype)

    @property
    def source(self) -> TensorSpec:
        """Shape and dtype of each source. What is to be encoded is wanted in f32, which holds all of it."""
        whole = self.whole.part
        if not self.encoding:
            return whole
        return TensorSpec(Encoding.parse(self.encoding).source_shape(whole.shape), "f32")

    @property
    def whole(self) -> Stack:
        """The tensor of which this is a rank's part."""
        if self.spans is None:
            return self
        return Stack(TensorSpec(self.spans.whole(self.spec.shape), self.spec.dtype), self.sources, self.encoding)

    @property
    def _spans_inside(self) -> Spans | None:
        """What is held of what each source becomes."""
        return self.spans if self.spans is None or len(self.sources) == 1 else self.spans.inside()

    def of(self, whole: Array) -> Array:
        """What is held of the whole tensor."""
        return whole if self.spans is None else self.spans.of(whole)

    def read(self, source: str, read: Reader) -> Array:
        """What a source becomes, of which a rank's part is held alone. Raises InputError where it is not what it should
        be; errors of `read` pass through."""
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
        """What is made of a source's numbers; the source itself where it is not what it should be."""
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
"""The tensors of a file, or of a set of files, by the name they are stored under."""


class Packing(Protocol):
    """How a tensor is packed on its way into a file; what packs it is a backend's own."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which a tensor of this shape is stored."""

    def companions(self, name: str) -> tuple[str, ...]:
        """The names of what is packed together with a tensor."""

    def pack(self, array: Array, *others: Array) -> Array:
        """A tensor as it is stored, with its companions."""

    def pieces(self, array: Array, *others: Array) -> Iterator[Array]:
        """Yield the result of `pack` in pieces, in the order of memory."""

    def unpack(self, stored: Array, shape: tuple[int, ...]) -> Array:
        """What `pack` was given, in its shape."""


Packings = Mapping[str, Packing]
"""How tensors are packed, by the name they are stored under; those that it does not name are stored as they are."""


class Unpacked(Mapping[str, Array]):
    """Tensors, of which some are packed, as the schedule has them: each is unpacked when it is asked for.

    Args:
        stored: the tensors.
        packings: how those that are packed were.
        shapes: in the schedule, of at least those.
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
"""Gives one source by name, of exactly this shape and dtype."""


@dataclass(frozen=True)
class KeepingReader:
    """A reader of sources of which some are stored in a format that a tensor may have.

    Attributes:
        numbers: reads a source as numbers, whatever it is stored as.
        kept: the part that an encoding asks for, where a source is stored in its very format; None where it is not.
    """

    numbers: Reader
    kept: Callable[[str, Encoding], Array | None]

    def __call__(self, source: str, spec: TensorSpec) -> Array:
        return self.numbers(source, spec)


class Sink(Protocol):
    """Where bytes go: an open file, or something that watches what goes into one."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def layout_of(program: Program, role: Role, rank: int | None = None) -> dict[str, Stack]:
    """What a program wants as its tensors of a role ("weight" or "constant"), by `Tensor.name`.

    Args:
        rank: whose part of those that are cut over ranks; None: all of them, as files hold them.

    Raises InputError where a tensor names no source, or a number of them that its shape does not have, or is cut
    between its sources.
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


def stored_specs(layout: Layout, packings: Packings) -> dict[str, TensorSpec]:
    """Shape and dtype of every tensor as files hold it."""
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
    """Write the tensors of `layout`. One source at a time is in memory, with a few packed pieces of it: one piece is
    packed while the one before it is written. Equal tensors give equal bytes.

    Args:
        packings: how some of them are packed on the way.
        names: of those to write; all if None.

    Data starts at a multiple of 64 bytes. Tensors whose size is a multiple of 64 come first, and of both kinds wide
    dtypes, then names in order: so the former are aligned to 64 bytes in the file, the others to their elements.

    Returns:
        the sha256 of each tensor's bytes, as they are before packing.

    Raises:
        InputError: `read` gives another shape or dtype than it was asked for. Errors of `read` and `file` pass through.
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
    """The names in the order in which a file has their data: aligned to 64 bytes where sizes permit, else to their
    elements."""
    return sorted(specs, key=lambda name: (specs[name].nbytes % ALIGNMENT != 0, -DTYPE_BYTES[specs[name].dtype], name))


def tensors_header(order: Iterable[str], specs: Specs, metadata: Mapping[str, str] | None = None) -> bytes:
    """What a safetensors file begins with, up to the data of the first tensor: a multiple of 64 bytes."""
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
    """The bytes of an array in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def read_specs(path: Path, file: BinaryIO | None = None) -> dict[str, TensorSpec]:
    """Return names, shapes and dtypes of a file, from its header alone.

    Args:
        file: the file, where it is open already; `path` is then its name in messages. None opens `path`.

    Raises InputError where the file is missing, no regular file, truncated, damaged, or holds a dtype that no schedule
    has.
    """
    with _opened(path, file) as opened:
        return {name: spec for name, (spec, _) in _described(path, opened).items()}


def read_tensors(path: Path, file: BinaryIO | None = None) -> dict[str, Array]:
    """Return the tensors of a file, memory-mapped and read-only: bytes are read when they are used.

    The mapping lasts as long as one of the arrays. Arguments and errors are those of `read_specs`.
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
    """A reader of named tensors that converts floating dtypes, and raises InputError for anything else.

    A tensor that has the wanted dtype already is given as it is, not copied.

    Args:
        where: what to call the place that they come from.
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
    return dtype.kind == "f" or dtype == BFLOAT16  # numpy takes the latter for a kind of its own


def stack_tensors(layout: Layout, read: Reader) -> dict[str, Array]:
    """The tensors of `layout` in memory, by the name they are stored under.

    A tensor of one source that is not encoded is what `read` gives; a stack is new memory, filled one source at a time.
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
    """What a layout holds of whole tensors: where they are mapped, only that is read."""
    return {name: layout[name].of(array) if name in layout else array for name, array in whole.items()}


def weights_digest(tensors: Mapping[str, str], layout: Layout) -> str:
    """One sha256 for a set of tensors, from the sha256 of each; it does not depend on files or order."""
    lines = "".join(f"{name}\t{layout[name].spec}\t{tensors[name]}\n" for name in sorted(layout))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_of(layout: Layout, read: Reader) -> str:
    """The `weights_digest` of what `write_tensors` would write, without writing it."""
    return weights_digest({name: _digest(stack, read) for name, stack in layout.items()}, layout)
