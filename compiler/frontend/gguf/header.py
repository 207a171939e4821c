"""The header of a `.gguf` file: its metadata, and where its tensors are.

The layout is that of versions 2 and 3 (ggml's docs/gguf.md), little-endian: magic, version, number of tensors, number
of metadata entries; the entries; for each tensor its name, its sizes with the innermost one first, its type, and an
offset; padding; the tensors. Nothing that the file says is trusted: numbers of things are compared with the bytes that
are there before anything is allocated, and what a header may hold is bounded.
"""

from __future__ import annotations

import itertools
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, quoted

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_METADATA_BYTES = 64 << 20
MOST_STRINGS = 1 << 20
"""In all arrays of a file together. The largest published vocabularies have 650,000 tokens and merges."""
MOST_TENSORS = 1 << 16
MOST_NAME_BYTES = 127
MOST_DIMENSIONS = 4
MOST_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
ALIGNMENT = "general.alignment"
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
"""The name of one of several files."""

_NUMBERS = {
    GGUFValueType.UINT8: "u1",
    GGUFValueType.INT8: "i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


class GgufHeaderErrors(ErrorKind):
    """Files that are not GGUF, or whose header does not hold together."""

    NOT_GGUF = InputError, "{path} is not a GGUF file: it begins with {magic!r}"
    BYTE_ORDER = UnsupportedError, "{path} is a GGUF file with big-endian numbers, which is not read"
    VERSION = UnsupportedError, "{path} has GGUF version {version}, known are {known}"
    TRUNCATED = InputError, "{path} is truncated: {what} ends at byte {end}, the file has {size}"
    TOO_MANY = InputError, "{path}: {what} number {count}, there may be at most {most}"
    TOO_LONG = InputError, "{path}: {what} is {bytes} bytes long, it may have at most {most}"
    NOT_TEXT = InputError, "{path}: {what} is not UTF-8: {cause}"
    VALUE_TYPE = InputError, "{path}: metadata {key} has a value of type {type}, which GGUF does not have"
    NESTED = UnsupportedError, "{path}: metadata {key} is an array of arrays, which is not read"
    BOOLEAN = InputError, "{path}: metadata {key} is a boolean of value {value}"
    TWICE = InputError, "{path}: {what} {name!r} is there twice"
    BAD_ALIGNMENT = InputError, "{path}: its alignment is {alignment}, it must be a power of two, at most {most}"
    NO_ARCHITECTURE = InputError, "{path}: metadata {key} is {value!r}, it must be a text that names an architecture"
    DIMENSIONS = InputError, "{path}: tensor {tensor!r} has {count} dimensions, it may have 1 to {most}"
    SIZES = InputError, "{path}: tensor {tensor!r} has shape {shape}: every size must be at least 1"
    TENSOR_TYPE = UnsupportedError, "{path}: tensor {tensor!r} has ggml type {type}, which is not known"
    ROWS = InputError, "{path}: tensor {tensor!r} of shape {shape} has rows that are no whole blocks of {block} numbers"
    OFFSET = InputError, "{path}: tensor {tensor!r} begins at offset {offset}, which is not a multiple of {alignment}"
    OVERLAP = InputError, "{path}: the tensors {tensor!r} and {other!r} overlap"
    PART_NAME = InputError, "{path} is part {number} of {count}, but its name is not that of a part: {expected}"
    PART_MISSING = InputError, "{path} is one of {count} files, of which {missing} is not there"
    PART_DIFFERS = InputError, "{path}: {part} says that it is part {number} of {count}, expected part {expected}"
    TENSOR_COUNT = InputError, "{path}: its {files} files have {tensors} tensors in all, but say {expected}"


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is.

    Attributes:
        shape: of its numbers, outermost size first.
        type: how they are stored.
        path: the file.
        offset: in bytes from the start of the file; nbytes: how many there are.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    path: Path
    offset: int
    nbytes: int

    def stored(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes [.., row bytes] u8 of its rows, mapped from the file."""
        block, size = GGML_QUANT_SIZES[self.type]
        rows = (*self.shape[:-1], self.shape[-1] // block * size)
        return np.memmap(self.path, np.uint8, "r", self.offset, rows)


@dataclass(frozen=True)
class GgufHeader:
    """What the header of a file says, or the headers of its parts.

    Attributes:
        path: the file that was opened.
        metadata: numbers, booleans and texts; arrays of texts are lists, those of numbers are numpy arrays.
        tensors: by name, in the order of the file.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """The name by which llama.cpp knows the model, which begins the names of its metadata."""
        return str(self.metadata["general.architecture"])


PLAIN_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16, GGMLQuantizationType.F64)


def is_quantized(header: GgufHeader) -> bool:
    """Return True if most numbers of a file are stored as blocks of codes."""
    numbers = {True: 0, False: 0}
    for tensor in header.tensors.values():
        numbers[tensor.type not in PLAIN_TYPES] += prod(tensor.shape)
    return numbers[True] > numbers[False]


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file, and where it is one of several parts those of all of them.

    Raises:
        InputError: it is not one, is truncated or damaged, or lacks a part.
        UnsupportedError: big-endian numbers, a version, a type of tensor or nested arrays that are not read.
        OSError: it cannot be read.
    """
    first = _read_file(path)
    count = first.metadata.get(SPLIT_COUNT, 0)
    header = _joined(path, first, count) if type(count) is int and count > 1 else first
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise GgufHeaderErrors.NO_ARCHITECTURE(path=path, key="general.architecture", value=_shown(architecture))
    return header


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int | float) or value is None else type(value).__name__


def _joined(path: Path, opened: GgufHeader, count: int) -> GgufHeader:
    """Return the header of all parts: metadata are those of the first one."""
    number = opened.metadata.get(SPLIT_NUMBER)
    match = PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        form = f"NAME-{(number or 0) + 1:05}-of-{count:05}.gguf" if isinstance(number, int) else "NAME"
        raise GgufHeaderErrors.PART_NAME(path=path, number=_shown(number), count=count, expected=form)
    names = [f"{match[1]}-{part:05}-of-{match[3]}.gguf" for part in range(1, count + 1)]
    missing = next((name for name in names if not (path.parent / name).is_file()), None)
    if missing is not None:
        raise GgufHeaderErrors.PART_MISSING(path=path, count=count, missing=missing)
    tensors: dict[str, StoredTensor] = {}
    metadata: Mapping[str, Any] = {}
    for place, name in enumerate(names):
        part = opened if name == path.name else _read_file(path.parent / name)
        said = part.metadata.get(SPLIT_NUMBER), part.metadata.get(SPLIT_COUNT)
        if said != (place, count):
            raise GgufHeaderErrors.PART_DIFFERS(
                path=path, part=name, number=_shown(said[0]), count=_shown(said[1]), expected=place
            )
        metadata = metadata if place else part.metadata
        twice = next((tensor for tensor in part.tensors if tensor in tensors), None)
        if twice is not None:
            raise GgufHeaderErrors.TWICE(path=path, what="tensor", name=twice)
        tensors |= part.tensors
        if len(tensors) > MOST_TENSORS:
            raise GgufHeaderErrors.TOO_MANY(path=path, what="its tensors", count=len(tensors), most=MOST_TENSORS)
    total = metadata.get(SPLIT_TENSORS, len(tensors))
    if total != len(tensors):
        raise GgufHeaderErrors.TENSOR_COUNT(path=path, files=count, tensors=len(tensors), expected=_shown(total))
    return GgufHeader(path, metadata, tensors)


def _read_file(path: Path) -> GgufHeader:
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
        if start != MAGIC:
            raise GgufHeaderErrors.NOT_GGUF(path=path, magic=start)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()


class _Reader:
    """Reads a header from the front on.

    Attributes:
        at: the byte that is read next.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.at = len(MAGIC)
        self.strings = 0

    def header(self) -> GgufHeader:
        version = self._integer(4, "the version")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise GgufHeaderErrors.BYTE_ORDER(path=self.path)
        if version not in VERSIONS:
            raise GgufHeaderErrors.VERSION(path=self.path, version=version, known=VERSIONS)
        tensors, entries = self._integer(8, "the number of tensors"), self._integer(8, "the number of metadata entries")
        if tensors > MOST_TENSORS:
            raise GgufHeaderErrors.TOO_MANY(path=self.path, what="its tensors", count=tensors, most=MOST_TENSORS)
        metadata = self._metadata(entries)
        alignment = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
            raise GgufHeaderErrors.BAD_ALIGNMENT(path=self.path, alignment=_shown(alignment), most=MOST_ALIGNMENT)
        found = [self._tensor(number) for number in range(tensors)]
        start = -(-self.at // alignment) * alignment
        return GgufHeader(self.path, metadata, self._placed(found, start, alignment))

    def _take(self, count: int, what: str) -> int:
        """Return where `count` bytes begin that are read now."""
        begin = self.at
        if count > self.size - begin:
            raise GgufHeaderErrors.TRUNCATED(path=self.path, what=what, end=begin + count, size=self.size)
        self.at = begin + count
        return begin

    def _integer(self, width: int, what: str) -> int:
        begin = self._take(width, what)
        return int.from_bytes(self.data[begin : begin + width], "little")

    def _text(self, what: str, most: int) -> str:
        count = self._integer(8, what)
        if count > most:
            raise GgufHeaderErrors.TOO_LONG(path=self.path, what=what, bytes=count, most=most)
        begin = self._take(count, what)
        return self._decoded(self.data[begin : begin + count], what)

    def _decoded(self, data: bytes, what: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise GgufHeaderErrors.NOT_TEXT(path=self.path, what=what, cause=quoted(error)) from None

    # ------------------------------------------------------------------------------------------------- metadata

    def _metadata(self, entries: int) -> dict[str, Any]:
        """Return the metadata by key."""
        least = 8 + 4 + 1  # of an entry: a length, a type, and a value
        if entries > (self.size - self.at) // least:
            raise GgufHeaderErrors.TRUNCATED(
                path=self.path, what="its metadata", end=self.at + entries * least, size=self.size
            )
        start, metadata = self.at, dict[str, Any]()
        for _ in range(entries):
            key = self._text("a key of its metadata", 65535)
            if key in metadata:
                raise GgufHeaderErrors.TWICE(path=self.path, what="the metadata", name=key)
            metadata[key] = self._value(self._integer(4, f"metadata {key}"), key)
            if self.at - start > MOST_METADATA_BYTES:
                raise GgufHeaderErrors.TOO_LONG(
                    path=self.path, what="its metadata", bytes=self.at - start, most=MOST_METADATA_BYTES
                )
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        what = f"metadata {key}"
        if kind == GGUFValueType.STRING:
            return self._text(what, MOST_METADATA_BYTES)
        if kind == GGUFValueType.BOOL:
            return self._boolean(self._integer(1, what), key)
        if kind == GGUFValueType.ARRAY:
            return self._array(key)
        return self._numbers(kind, 1, key)[0].item()

    def _boolean(self, value: int, key: str) -> bool:
        if value > 1:
            raise GgufHeaderErrors.BOOLEAN(path=self.path, key=key, value=value)
        return bool(value)

    def _numbers(self, kind: int, count: int, key: str) -> np.ndarray[Any, np.dtype[Any]]:
        if kind not in _NUMBERS:
            raise GgufHeaderErrors.VALUE_TYPE(path=self.path, key=key, type=kind)
        dtype = np.dtype(_NUMBERS[GGUFValueType(kind)])
        if count * dtype.itemsize > MOST_METADATA_BYTES:
            raise GgufHeaderErrors.TOO_LONG(
                path=self.path, what=f"metadata {key}", bytes=count * dtype.itemsize, most=MOST_METADATA_BYTES
            )
        begin = self._take(count * dtype.itemsize, f"metadata {key}")
        return np.frombuffer(self.data[begin : self.at], dtype)

    def _array(self, key: str) -> Any:
        kind, count = self._integer(4, f"metadata {key}"), self._integer(8, f"metadata {key}")
        if kind == GGUFValueType.ARRAY:
            raise GgufHeaderErrors.NESTED(path=self.path, key=key)
        if kind == GGUFValueType.STRING:
            return self._texts(count, key)
        if kind == GGUFValueType.BOOL:
            values = self._numbers(GGUFValueType.UINT8, count, key)
            if count and values.max() > 1:
                raise GgufHeaderErrors.BOOLEAN(path=self.path, key=key, value=int(values.max()))
            return values.astype(bool)
        return self._numbers(kind, count, key)

    def _texts(self, count: int, key: str) -> list[str]:
        self.strings += count
        what = f"metadata {key}"
        if self.strings > MOST_STRINGS:
            raise GgufHeaderErrors.TOO_MANY(path=self.path, what="its texts", count=self.strings, most=MOST_STRINGS)
        self._take(8 * count, what)  # the least that they have; each is looked at below
        self.at -= 8 * count
        # One text after another, as fast as Python can: a vocabulary has hundreds of thousands.
        data, at, limit = self.data, self.at, min(self.size, self.at + MOST_METADATA_BYTES)
        unpack, texts = struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(count):
                if at + 8 > limit:
                    raise GgufHeaderErrors.TRUNCATED(path=self.path, what=what, end=at + 8, size=limit)
                end = at + 8 + unpack(data, at)[0]
                if end > limit:
                    raise GgufHeaderErrors.TRUNCATED(path=self.path, what=what, end=end, size=limit)
                texts.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError as error:
            raise GgufHeaderErrors.NOT_TEXT(path=self.path, what=what, cause=quoted(error)) from None
        self.at = at
        return texts

    # -------------------------------------------------------------------------------------------------- tensors

    def _tensor(self, number: int) -> StoredTensor:
        """Return a tensor whose offset still counts from where tensors begin."""
        what = f"what it says of tensor {number}"
        name = self._text(f"the name of tensor {number}", MOST_NAME_BYTES)
        dimensions = self._integer(4, what)
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise GgufHeaderErrors.DIMENSIONS(
                path=self.path, tensor=name, count=dimensions, most=MOST_DIMENSIONS
            )
        shape = tuple(self._integer(8, what) for _ in range(dimensions))[::-1]
        if not all(shape):
            raise GgufHeaderErrors.SIZES(path=self.path, tensor=name, shape=str(list(shape)))
        code, offset = self._integer(4, what), self._integer(8, what)
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise GgufHeaderErrors.TENSOR_TYPE(path=self.path, tensor=name, type=code) from None
        block, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise GgufHeaderErrors.ROWS(path=self.path, tensor=name, shape=str(list(shape)), block=block)
        return StoredTensor(name, shape, kind, self.path, offset, prod(shape) // block * size)

    def _placed(self, found: list[StoredTensor], start: int, alignment: int) -> dict[str, StoredTensor]:
        """Return tensors by name where they are in the file, in which they begin at `start`."""
        tensors: dict[str, StoredTensor] = {}
        for tensor in found:
            if tensor.name in tensors:
                raise GgufHeaderErrors.TWICE(path=self.path, what="tensor", name=tensor.name)
            if tensor.offset % alignment:
                raise GgufHeaderErrors.OFFSET(
                    path=self.path, tensor=tensor.name, offset=tensor.offset, alignment=alignment
                )
            end = start + tensor.offset + tensor.nbytes
            if end > self.size:
                raise GgufHeaderErrors.TRUNCATED(
                    path=self.path, what=f"tensor {tensor.name!r}", end=end, size=self.size
                )
            tensors[tensor.name] = StoredTensor(
                tensor.name, tensor.shape, tensor.type, self.path, start + tensor.offset, tensor.nbytes
            )
        for before, after in _neighbours(tensors):
            if before.offset + before.nbytes > after.offset:
                raise GgufHeaderErrors.OVERLAP(path=self.path, tensor=before.name, other=after.name)
        return tensors


def _neighbours(tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[StoredTensor, StoredTensor]]:
    """Yield tensors that follow one another in the file."""
    placed = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    return itertools.pairwise(placed)
