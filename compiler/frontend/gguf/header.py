"""The header of a `.gguf` file: its metadata, and where its tensors are.

The layout is that of versions 2 and 3 (ggml's docs/gguf.md), little-endian:

    "GGUF"  version u32  number of tensors u64  number of entries u64
    entries:  key text, type u32, value
    tensors:  name text, number of dimensions u32, sizes u64 with the innermost first, type u32, offset u64
    padding to a multiple of the alignment
    data of tensors, at their offsets from here

A text is its length in bytes, u64, and UTF-8. Nothing in a file is trusted: before anything is allocated, counts
and lengths are compared with the size of the file and with limits (cursor.py). Tensors may have
gaps between them and may stand in any order, but do not overlap; bytes behind the last one are ignored.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from sscc.compiler.frontend.gguf.cursor import U32, U64, Budget, Cursor, Limit
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors, shown
from sscc.compiler.frontend.gguf.metadata import ALIGNMENT, read_metadata
from sscc.compiler.frontend.gguf.parts import check_part, check_tensors, part_paths
from sscc.ir.files import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ARCHITECTURE = "general.architecture"
MOST_ARCHITECTURE = 64
"""Maximum number of characters of an architecture's name."""
MOST_NAME_BYTES = 127
"""Maximum number of bytes of a tensor's name. ggml allows 63 by default, and programs may be built with more."""
MOST_DIMENSIONS = 4
MOST_BYTES = (1 << 63) - 1
"""Maximum size of a file."""

_TENSOR = tuple(Struct(f"<{dimensions}QIQ") for dimensions in range(MOST_DIMENSIONS + 1))


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of a tensor in a file.

    Attributes:
        shape: sizes, the outermost first. A size may be 0; a tensor without dimensions holds one number.
        type: the form in which the numbers are stored.
        path: the file.
        offset: offset of the first byte from the start of the file.
        nbytes: number of bytes; 0 if the size of the type's blocks is not known.
        rows: for a part of another tensor, its first row there and the number of rows of that tensor; else None.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    path: Path
    offset: int
    nbytes: int
    rows: tuple[int, int] | None = None

    def part(self, name: str, first: int, count: int) -> StoredTensor:
        """Return `count` rows of each matrix as a tensor; `count` numbers of a vector of a plain type."""
        block, size = GGML_QUANT_SIZES[self.type]
        if len(self.shape) == 1:
            return replace(self, name=name, shape=(count,), offset=self.offset + first * size, nbytes=count * size)
        *outer, rows, row = self.shape
        nbytes = prod(outer) * count * (row // block * size)
        return replace(self, name=name, shape=(*outer, count, row), nbytes=nbytes, rows=(first, rows))

    def stored(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes [.., bytes per row] u8 of the rows, mapped from the file.

        Raises:
            KeyError: the size of the type's blocks is not known.
        """
        block, size = GGML_QUANT_SIZES[self.type]
        *outer, row = self.shape or (1,)
        shape = (*outer, row // block * size)
        if not self.nbytes:
            return np.empty(shape, np.uint8)
        if self.rows is not None:
            first, rows = self.rows
            whole = np.memmap(self.path, np.uint8, "r", self.offset, (*shape[:-2], rows, shape[-1])).view(np.ndarray)
            return whole[..., first : first + shape[-2], :]
        return np.memmap(self.path, np.uint8, "r", self.offset, shape).view(np.ndarray)


class _Entry(NamedTuple):
    """The entry of a tensor: like `StoredTensor`, with an offset from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Contents of the header of a file, or of the headers of all parts of a model.

    Attributes:
        path: the file that was opened.
        metadata: int, float, bool and str by key; arrays of texts are lists of str, arrays of numbers and booleans are
            numpy arrays [count] of the stored type. For a model in parts: the metadata of the first part.
        tensors: by name, in the order of the file, or of the files.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """The name by which llama.cpp knows the model, the prefix of its metadata keys."""
        return str(self.metadata[ARCHITECTURE])


def read_header(path: Path) -> GgufHeader:
    """Return the header of a GGUF file, or the joined headers of all parts if the file is one of several.

    Any part may be given; the others are beside it.

    Raises:
        InputError: it is not a GGUF file, is truncated or damaged, or a part is missing.
        UnsupportedError: big-endian numbers, another version, nested arrays, or an unknown type of tensor.
        OSError: it cannot be mapped.
    """
    budget = Budget()
    header = _read_file(path, budget)
    paths = part_paths(path, header.metadata)
    if paths:
        header = _joined(header, paths, budget)
    architecture = header.metadata.get(ARCHITECTURE)
    if not isinstance(architecture, str) or not 1 <= len(architecture) <= MOST_ARCHITECTURE:
        raise GgufHeaderErrors.NO_ARCHITECTURE(
            path=path, key=ARCHITECTURE, value=shown(architecture), most=MOST_ARCHITECTURE
        )
    return header


def _joined(opened: GgufHeader, paths: Sequence[Path], budget: Budget) -> GgufHeader:
    """Return the header of a model in parts. The part that was opened is not read again."""
    metadata: Mapping[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    for part, path in enumerate(paths, 1):
        header = opened if path == opened.path else _read_file(path, budget)
        check_part(path, header.metadata, part, len(paths))
        metadata = header.metadata if part == 1 else metadata
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise GgufHeaderErrors.TWICE(path=path, what="tensor", name=name)
            tensors[name] = tensor
    check_tensors(paths[0], metadata, len(tensors), len(paths))
    return GgufHeader(opened.path, metadata, tensors)


def _read_file(path: Path, budget: Budget) -> GgufHeader:
    """Return the header of one file."""
    with open_regular(path) as file:
        start = file.read(len(MAGIC))
        if start != MAGIC:
            raise GgufHeaderErrors.NOT_GGUF(path=path, magic=start)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = Cursor(path, data, budget)
            cursor.at = len(MAGIC)
            return _read_mapped(cursor)


def _read_mapped(cursor: Cursor) -> GgufHeader:
    (version,) = cursor.unpack(U32)
    if version & 0xFFFF == 0 and version:  # llama.cpp's test: versions are small, and this one begins with zeros
        raise GgufHeaderErrors.BYTE_ORDER(path=cursor.path)
    if version not in VERSIONS:
        raise GgufHeaderErrors.VERSION(path=cursor.path, version=version, known=VERSIONS)
    (tensors,), (entries,) = cursor.unpack(U64), cursor.unpack(U64)
    cursor.budget.spend(cursor.path, Limit.TENSORS, tensors)
    metadata = read_metadata(cursor, entries)
    alignment = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    listed = [_read_tensor(cursor, number) for number in range(tensors)]
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(cursor.path, metadata, _placed(cursor, listed, start, alignment))


def _read_tensor(cursor: Cursor, number: int) -> _Entry:
    cursor.what = f"the entry of tensor {number}"
    name = cursor.text(MOST_NAME_BYTES)
    (dimensions,) = cursor.unpack(U32)
    if dimensions > MOST_DIMENSIONS:
        raise GgufHeaderErrors.DIMENSIONS(path=cursor.path, tensor=name, count=dimensions, most=MOST_DIMENSIONS)
    *sizes, code, offset = cursor.unpack(_TENSOR[dimensions])
    shape = tuple(reversed(sizes))
    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        raise GgufHeaderErrors.TENSOR_TYPE(path=cursor.path, tensor=name, type=code) from None
    block, size = GGML_QUANT_SIZES.get(kind, (1, 0))
    if (shape or (1,))[-1] % block:
        raise GgufHeaderErrors.ROWS(path=cursor.path, tensor=name, shape=str(list(shape)), block=block)
    numbers = prod(shape)
    # A tensor without numbers fits into any file, whatever its other sizes: they are bounded all the same.
    if (numbers or prod(extent or 1 for extent in shape)) // block * max(size, 1) > MOST_BYTES:
        raise GgufHeaderErrors.SIZES(path=cursor.path, tensor=name, shape=str(list(shape)))
    return _Entry(name, shape, kind, offset, numbers // block * size)


def _placed(cursor: Cursor, entries: Sequence[_Entry], start: int, alignment: int) -> dict[str, StoredTensor]:
    """Return tensors by name in a file whose data begins at byte `start`."""
    tensors: dict[str, StoredTensor] = {}
    for name, shape, kind, offset, nbytes in entries:
        if name in tensors:
            raise GgufHeaderErrors.TWICE(path=cursor.path, what="tensor", name=name)
        if offset % alignment:
            raise GgufHeaderErrors.OFFSET(path=cursor.path, tensor=name, offset=offset, alignment=alignment)
        end = start + offset + nbytes
        if end > cursor.size:
            raise GgufHeaderErrors.TRUNCATED(path=cursor.path, what=f"tensor {name!r}", end=end, size=cursor.size)
        tensors[name] = StoredTensor(name, shape, kind, cursor.path, start + offset, nbytes)
    occupied = sorted((tensor for tensor in tensors.values() if tensor.nbytes), key=lambda tensor: tensor.offset)
    for before, after in itertools.pairwise(occupied):
        if before.offset + before.nbytes > after.offset:
            raise GgufHeaderErrors.OVERLAP(path=cursor.path, tensor=before.name, other=after.name)
    return tensors
