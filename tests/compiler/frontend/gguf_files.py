"""GGUF files packed by hand, field by field, so that each may be wrong; and `gguf.GGUFReader` as a judge of headers.

The layout and the numbers of types are those of ggml's docs/gguf.md, written down here once more on purpose: nothing of
`sscc.compiler.frontend.gguf` makes or reads the files that it is tested with.
"""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from sscc.compiler.frontend.gguf.header import GgufHeader, read_header

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {
    **{U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", U64: "<Q", I64: "<q"},
    **{F32: "<f", F64: "<d", BOOL: "<B"},
}
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q8_0, TYPE_Q6_K, TYPE_I8 = 0, 1, 2, 8, 14, 24


@dataclass(frozen=True)
class Piece:
    """One field of a file.

    Attributes:
        role: "number" (a value), "text", or what a number is for: "count", "length", "type", "size", "offset", ..
    """

    role: str
    data: bytes


Pieces = list[Piece]


def number(role: str, value: int | float, code: str = "<Q") -> Piece:
    return Piece(role, struct.pack(code, value))


def text(value: str | bytes) -> Pieces:
    data = value.encode() if isinstance(value, str) else value
    return [number("length", len(data)), Piece("text", data)]


def entry(key: str | bytes, kind: int, value: Any, item: int = U32) -> Pieces:
    """Return the pieces of an entry of metadata. `item` is the type of an array's items."""
    head = [*text(key), number("type", kind, "<I")]
    if kind != ARRAY:
        return [*head, *_value(kind, value)]
    items = [piece for each in value for piece in _value(item, each)]
    return [*head, number("type", item, "<I"), number("count", len(value)), *items]


def _value(kind: int, value: Any) -> Pieces:
    return text(value) if kind == STRING else [number("number", value, FORMATS.get(kind, "<B"))]


def tensor(name: str | bytes, sizes: Sequence[int], kind: int = TYPE_F32, offset: int = 0) -> Pieces:
    """Pieces of a tensor's entry, whose innermost size comes first."""
    head = [*text(name), number("dimensions", len(sizes), "<I"), *(number("size", size) for size in sizes)]
    return [*head, number("type", kind, "<I"), number("offset", offset)]


def unfinished_text(length: int) -> Pieces:
    """Pieces of a text that says that it has `length` bytes, and has three."""
    return [number("length", length), Piece("text", b"abc")]


def unfinished_entry(key: str, kind: int, *rest: Piece) -> Pieces:
    """Pieces of an entry whose value is `rest`."""
    return [*text(key), number("type", kind, "<I"), *rest]


def unfinished_array(kind: int, count: int, *rest: Piece) -> Pieces:
    """Pieces of an entry "array" that says that it has `count` items, which are `rest`."""
    return unfinished_entry("array", ARRAY, number("type", kind, "<I"), number("count", count), *rest)


@dataclass
class GgufBytes:
    """A file.

    Attributes:
        tensor_count, entry_count: as the file says; None for what is true.
    """

    entries: list[Pieces] = field(default_factory=list)
    tensors: list[Pieces] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    alignment: int = 32
    tensor_count: int | None = None
    entry_count: int | None = None

    def pieces(self) -> Pieces:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entries = len(self.entries) if self.entry_count is None else self.entry_count
        pieces = [
            Piece("magic", b"GGUF"),
            number("version", self.version, "<I"),
            number("count", tensors),
            number("count", entries),
            *(piece for group in (*self.entries, *self.tensors) for piece in group),
        ]
        size = sum(len(piece.data) for piece in pieces)
        return [*pieces, Piece("padding", bytes(-size % self.alignment)), Piece("data", self.data)]

    def packed(self) -> bytes:
        return joined(self.pieces())

    def changed(self, **changes: Any) -> GgufBytes:
        return replace(self, **changes)


def joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


SLACK = 256 << 10
"""Bytes that reading a small header may allocate: what a first use imports, and the error with its message."""
ARCHITECTURE = entry("general.architecture", STRING, "llama")


def small() -> GgufBytes:
    """Return a file with values of several types, and three tensors of 32, 64 and 34 bytes."""
    return GgufBytes(
        [
            ARCHITECTURE,
            entry("llama.block_count", U32, 2),
            entry("llama.use", BOOL, 1),
            entry("tokens", ARRAY, ["a", "bé", ""], STRING),
            entry("scores", ARRAY, [0.5, -1.0], F32),
        ],
        [
            tensor("token_embd.weight", [4, 2], TYPE_F32, 0),
            tensor("blk.0.attn_norm.weight", [32], TYPE_F16, 32),
            tensor("output.weight", [32, 1], TYPE_Q8_0, 96),
        ],
        bytes(range(130)),
    )


def with_entries(*entries: Pieces) -> GgufBytes:
    """Return the small file with other metadata beside its architecture."""
    return small().changed(entries=[ARCHITECTURE, *entries])


def with_tensors(*tensors: Pieces) -> GgufBytes:
    """Return the small file with other tensors."""
    return small().changed(tensors=list(tensors))


# ------------------------------------------------------------------------------------------------------- on the disk


def written(path: Path, data: bytes | GgufBytes) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.packed())
    return path


def judged(path: Path) -> GgufHeader:
    """Return the header of a file after comparing it with GGUFReader's."""
    header = read_header(path)
    assert differences(header, [path]) == []
    return header


def peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what a call returns, and the bytes that it allocated at most at once."""
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --------------------------------------------------------------------------------------------------------- the judge


def differences(header: GgufHeader, paths: Sequence[Path]) -> list[str]:
    """Compare a header with `gguf.GGUFReader`'s, of each file that it was read from; metadata with the first one's.

    Raises:
        Exception: GGUFReader does not read a file.
    """
    readers = [gguf.GGUFReader(path) for path in paths]
    fields = {name: item for name, item in readers[0].fields.items() if not name.startswith("GGUF.")}
    differ = [] if [*header.metadata] == [*fields] else [f"keys {[*header.metadata]}, not {[*fields]}"]
    for name in header.metadata.keys() & fields.keys():
        ours, theirs = plain_value(header.metadata[name]), fields[name].contents()
        if not _same(ours, theirs):
            differ.append(f"metadata {name!r} is {ours!r:.80}, not {theirs!r:.80}")
    tensors = [(path, item) for path, reader in zip(paths, readers, strict=True) for item in reader.tensors]
    if [*header.tensors] != [item.name for _, item in tensors]:
        return [*differ, f"tensors {[*header.tensors]}, not {[item.name for _, item in tensors]}"]
    for path, item in tensors:
        stored = header.tensors[item.name]
        ours = (stored.path, stored.shape, stored.type, stored.offset, stored.nbytes)
        theirs = (path, tuple(item.shape[::-1].tolist()), item.tensor_type, item.data_offset, item.n_bytes)
        if ours != theirs:
            differ.append(f"tensor {item.name!r} is {ours}, not {theirs}")
        elif stored.stored().tobytes() != item.data.tobytes():
            differ.append(f"tensor {item.name!r} has other bytes")
    return differ


def plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and math.isnan(ours):
        return isinstance(theirs, float) and math.isnan(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)
