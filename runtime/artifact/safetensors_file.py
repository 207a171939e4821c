"""Headers of safetensors files: read in linear time and bounded memory, and checked before any data is read.

The format: 8 bytes with the length of the header (little endian), the header, a JSON object that maps each name to
`{"dtype", "shape", "data_offsets": [begin, end]}` and may hold `__metadata__`, then the data of all tensors without
gaps. The safetensors library makes the same checks, but opens a file by its path, which may lead to another file by
then; here the file is open already and has been checked.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sscc.ir.errors import ErrorKind, InputError, quoted

HEADER_BYTES = 64 * 2**20
HEADER_VALUES = 2**22
"""Maximum number of JSON values in a header, which take up to about 60 bytes each when parsed: those of 400,000
tensors."""
DIMENSIONS = 64
METADATA = "__metadata__"
_LENGTH_BYTES = 8
_ENTRY = {"dtype", "shape", "data_offsets"}

BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of an element, by dtype of the format."""


class SafetensorsErrors(ErrorKind):
    CANNOT_READ = InputError, "{path} cannot be read: {reason}"
    DATA_DIFFERS = InputError, (
        "{path} is truncated or damaged: its header describes {expected} bytes of data, but the file has {nbytes}"
    )
    GAP = InputError, (
        "{path} is damaged: the data of tensor {tensor!r} begins at byte {begin}, but the data before it ends at {end}"
    )
    HEADER_TRUNCATED = (
        InputError,
        "{path} is truncated: its header has {expected} bytes, of which only {nbytes} are present",
    )
    NO_HEADER = InputError, "{path} is truncated: it has {nbytes} bytes, but a safetensors file has at least 8"
    NOT_AN_ENTRY = InputError, (
        "{path} is damaged: its header must describe tensor {tensor!r} by a dtype, a shape of at most {dimensions} "
        "sizes and two offsets"
    )
    NOT_AN_OBJECT = InputError, "{path} is damaged: its header is not a JSON object"
    NOT_JSON = InputError, "{path} is damaged: its header is not JSON: {reason}"
    SIZE_DIFFERS = InputError, (
        "{path} is damaged: the size of tensor {tensor!r} of {dtype} [{shape}] is not the {nbytes} bytes between its "
        "offsets"
    )
    TOO_LARGE = InputError, "{path} has a header of {nbytes} bytes, more than the limit of {most}"
    TOO_MANY_VALUES = InputError, "{path} has a header of {values} values, more than the limit of {most}"
    TWICE = InputError, "{path} is damaged: its header has the name {name!r} twice"
    UNKNOWN_DTYPE = InputError, "{path}: tensor {tensor!r} has the unknown dtype {dtype!r}"


class TensorEntry(NamedTuple):
    """A tensor of a file: its dtype in the format's spelling, and the bytes [begin, begin + nbytes) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class _Described(NamedTuple):
    """A tensor's entry in the header, unchecked."""

    dtype: Any
    shape: Any
    offsets: Any


def read_header(file: BinaryIO, path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name, in the order of their data.

    Args:
        file: open for reading, at any position.
        path: the file's name in messages.

    Raises InputError if the file is truncated or damaged, or exceeds a limit.
    """
    nbytes, text = _header_text(file, path)
    start = _LENGTH_BYTES + len(text)
    entries = _parsed(text, path)
    entries.pop(METADATA, None)
    tensors = [(name, _entry(value, name, path)) for name, value in entries.items()]
    del entries, text
    tensors.sort(key=lambda item: (item[1].begin, item[1].nbytes))
    end, in_order = 0, {}
    for name, (dtype, shape, begin, size) in tensors:
        if begin != end:
            raise SafetensorsErrors.GAP(path=path, tensor=name, begin=begin, end=end)
        end += size
        in_order[name] = TensorEntry(dtype, shape, start + begin, size)
    if start + end != nbytes:
        raise SafetensorsErrors.DATA_DIFFERS(path=path, expected=end, nbytes=nbytes - start)
    return in_order


def _header_text(file: BinaryIO, path: Path) -> tuple[int, bytes]:
    """Return the size of the file and the bytes of its header."""
    try:
        nbytes = os.fstat(file.fileno()).st_size
        file.seek(0)
        start = file.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if len(start) < _LENGTH_BYTES:
            raise SafetensorsErrors.NO_HEADER(path=path, nbytes=len(start))
        if length > nbytes - _LENGTH_BYTES:
            raise SafetensorsErrors.HEADER_TRUNCATED(path=path, expected=length, nbytes=nbytes - _LENGTH_BYTES)
        if length > HEADER_BYTES:
            raise SafetensorsErrors.TOO_LARGE(path=path, nbytes=length, most=HEADER_BYTES)
        text = file.read(length)
    except OSError as error:
        raise SafetensorsErrors.CANNOT_READ(path=path, reason=error.strerror or quoted(error)) from None
    if len(text) < length:  # the file was truncated in the meantime
        raise SafetensorsErrors.HEADER_TRUNCATED(path=path, expected=length, nbytes=len(text))
    values = sum(map(text.count, (b",", b"[", b"{")))
    if values > HEADER_VALUES:
        raise SafetensorsErrors.TOO_MANY_VALUES(path=path, values=values, most=HEADER_VALUES)
    return nbytes, text


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    def made(pairs: list[tuple[str, Any]]) -> Any:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise SafetensorsErrors.TWICE(path=path, name=_first_double(pairs))
        if values.keys() == _ENTRY:  # avoids many small dictionaries, which would take several times the memory
            return _Described(values["dtype"], values["shape"], values["data_offsets"])
        return values

    try:
        entries = json.loads(text.decode(), object_pairs_hook=made)
    except (ValueError, RecursionError) as error:  # also for invalid UTF-8 and numbers with too many digits
        raise SafetensorsErrors.NOT_JSON(path=path, reason=quoted(error)) from None
    if not isinstance(entries, dict):
        raise SafetensorsErrors.NOT_AN_OBJECT(path=path)
    return entries


def _first_double(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _entry(value: Any, name: str, path: Path) -> TensorEntry:
    """Return a tensor as the header describes it, with the place of its bytes among the data."""
    if not isinstance(value, _Described):
        raise SafetensorsErrors.NOT_AN_ENTRY(path=path, tensor=name, dimensions=DIMENSIONS)
    dtype, shape, offsets = value
    if type(dtype) is not str or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise SafetensorsErrors.NOT_AN_ENTRY(path=path, tensor=name, dimensions=DIMENSIONS)
    if dtype not in BITS:
        raise SafetensorsErrors.UNKNOWN_DTYPE(path=path, tensor=name, dtype=dtype)
    begin, end = offsets
    if BITS[dtype] * math.prod(shape) != 8 * (end - begin):
        raise SafetensorsErrors.SIZE_DIFFERS(path=path, tensor=name, dtype=dtype, shape=shape, nbytes=end - begin)
    return TensorEntry(dtype, tuple(shape), begin, end - begin)


def _are_sizes(value: Any) -> bool:
    if type(value) is not list or len(value) > DIMENSIONS:
        return False
    return all(type(size) is int and 0 <= size < 2**63 for size in value)
