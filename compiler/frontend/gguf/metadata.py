"""The metadata in the header of a `.gguf` file: keys with numbers, booleans, texts and arrays of them."""

from __future__ import annotations

import re
from struct import Struct
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType

from sscc.compiler.frontend.gguf.cursor import U32, U64, Cursor, Limit
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors, shown

ALIGNMENT = "general.alignment"
MOST_KEY_BYTES = 65535  # of ggml's docs/gguf.md
MOST_TEXT_BYTES = 8 << 20
"""Limit of a text outside arrays; chat templates have some kilobytes."""

_UINT32, _BOOL, _STRING, _ARRAY = map(
    int, (GGUFValueType.UINT32, GGUFValueType.BOOL, GGUFValueType.STRING, GGUFValueType.ARRAY)
)
_CODES = {
    GGUFValueType.UINT8: ("<B", "u1"),
    GGUFValueType.INT8: ("<b", "i1"),
    GGUFValueType.UINT16: ("<H", "<u2"),
    GGUFValueType.INT16: ("<h", "<i2"),
    GGUFValueType.UINT32: ("<I", "<u4"),
    GGUFValueType.INT32: ("<i", "<i4"),
    GGUFValueType.FLOAT32: ("<f", "<f4"),
    GGUFValueType.UINT64: ("<Q", "<u8"),
    GGUFValueType.INT64: ("<q", "<i8"),
    GGUFValueType.FLOAT64: ("<d", "<f8"),
}
"""Value types of numbers in the terms of `struct` and of numpy."""
_SCALARS = {int(kind): Struct(code) for kind, (code, _) in _CODES.items()}
_DTYPES = {_BOOL: np.dtype(np.bool_)} | {int(kind): np.dtype(code) for kind, (_, code) in _CODES.items()}
_NO_BOOLEAN = re.compile(rb"[^\0\1]")
_ARRAY_HEADER = Struct("<IQ")
_ENTRY_BYTES = U64.size + 1 + U32.size + 1  # minimum size of an entry: a key's length and text, a type, a value


def read_metadata(cursor: Cursor, entries: int) -> dict[str, Any]:
    """Read `entries` entries. Numbers are int or float, booleans bool, texts str; arrays of texts are lists, those of
    numbers and booleans are numpy arrays."""
    cursor.what = "its metadata"
    cursor.budget.spend(cursor.path, Limit.ENTRIES, entries)
    cursor.begin_metadata()
    cursor.require(_ENTRY_BYTES * entries)
    metadata: dict[str, Any] = {}
    for entry in range(entries):
        cursor.what = "a key of its metadata"
        key = cursor.text(MOST_KEY_BYTES)
        if not key:
            raise GgufHeaderErrors.EMPTY_KEY(path=cursor.path, entry=entry)
        if key in metadata:
            raise GgufHeaderErrors.TWICE(path=cursor.path, what="metadata", name=key)
        cursor.what = f"metadata {key}"
        (kind,) = cursor.unpack(U32)
        scalar = _SCALARS.get(kind)
        metadata[key] = cursor.unpack(scalar)[0] if scalar else _value(cursor, kind, key)
        if key == ALIGNMENT:
            _check_alignment(cursor, kind, metadata[key])
    cursor.end_metadata()
    return metadata


def _check_alignment(cursor: Cursor, kind: int, alignment: Any) -> None:
    if kind != _UINT32 or alignment.bit_count() != 1:
        raise GgufHeaderErrors.BAD_ALIGNMENT(
            path=cursor.path, alignment=shown(alignment), type=GGUFValueType(kind).name
        )


def _value(cursor: Cursor, kind: int, key: str) -> Any:
    """Read a value that is not a number."""
    if kind == _STRING:
        return cursor.text(MOST_TEXT_BYTES)
    if kind == _BOOL:
        data = cursor.raw(1)
        _check_booleans(cursor, data, key)
        return data == b"\1"
    if kind == _ARRAY:
        return _array(cursor, key)
    raise GgufHeaderErrors.VALUE_TYPE(path=cursor.path, key=key, type=kind)


def _array(cursor: Cursor, key: str) -> Any:
    kind, count = cursor.unpack(_ARRAY_HEADER)
    if kind == _STRING:
        return cursor.texts(count)
    if kind == _ARRAY:
        raise GgufHeaderErrors.NESTED(path=cursor.path, key=key)
    if kind not in _DTYPES:
        raise GgufHeaderErrors.VALUE_TYPE(path=cursor.path, key=key, type=kind)
    data = cursor.raw(_DTYPES[kind].itemsize * count)
    if kind == _BOOL:
        _check_booleans(cursor, data, key)
    return np.frombuffer(data, _DTYPES[kind])


def _check_booleans(cursor: Cursor, data: bytes, key: str) -> None:
    other = _NO_BOOLEAN.search(data)
    if other:
        raise GgufHeaderErrors.BOOLEAN(path=cursor.path, key=key, value=other[0][0])
