"""Messages between ranks as bytes: a JSON header that describes the values, followed by the bytes of arrays.

    magic  length of the header  length of the payload | header | payload
    4      4                     8                     | JSON   | arrays, each at a multiple of 64 bytes

A message contains numbers, texts, containers, arrays, and dataclasses of a closed list. Reading it calls only the
constructors on that list, and allocates no more than the sender has announced in a header of limited size.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from sscc.ir.errors import ErrorKind, InternalError, RankError, quoted
from sscc.ir.sizes import ALIGNMENT, align


class MessageErrors(ErrorKind):
    NOT_A_MESSAGE = RankError, "rank {rank} sent something that is not a message"
    TOO_LARGE = (
        RankError,
        "rank {rank} announced a message of {header} + {payload} bytes, which is more than can be received",
    )
    MALFORMED = RankError, "rank {rank} sent a malformed message: {cause}"
    HEADER_TOO_LONG = InternalError, "a message between ranks has a header of {header} bytes, but the limit is {most}"
    NOT_SENT = InternalError, "a value of type {type} cannot be sent between ranks"


Vocabulary = Mapping[str, type]
"""Dataclasses that a message may contain, by name."""

Buffer = bytes | bytearray | memoryview

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"srm1"
LONGEST_HEADER = 4 << 20
"""Limit in bytes. A parsed header takes at most 30 times as much memory."""
LARGEST_PAYLOAD = 1 << 40
_DEEPEST = 32
_MOST_DIMENSIONS = 16

_DTYPES: dict[str, np.dtype[Any]] = {
    str(dtype): dtype
    for dtype in map(
        np.dtype,
        ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
    )
}  # fmt: skip
_TORCH_DTYPES = {
    "torch.bool": "bool", "torch.int8": "int8", "torch.int16": "int16", "torch.int32": "int32", "torch.int64": "int64",
    "torch.uint8": "uint8", "torch.float16": "float16", "torch.float32": "float32", "torch.float64": "float64",
    "torch.bfloat16": "bfloat16", "torch.float8_e4m3fn": "float8_e4m3fn",
}  # fmt: skip


def encode(value: Any, vocabulary: Vocabulary) -> list[Buffer]:
    """Return the bytes of a message, in parts.

    Raises:
        InternalError: `value` contains a type that messages do not allow, or its header is too long.
    """
    writer = _Writer(vocabulary)
    header = json.dumps(writer.tree(value), separators=(",", ":"), allow_nan=False).encode()
    if len(header) > LONGEST_HEADER:
        raise MessageErrors.HEADER_TOO_LONG(header=len(header), most=LONGEST_HEADER)
    return [PREFIX.pack(MAGIC, len(header), writer.used), header, *writer.parts]


def lengths(prefix: Buffer, rank: int) -> tuple[int, int]:
    """Return the lengths of header and payload that the first bytes of a message announce.

    Raises:
        RankError: the bytes do not begin a message, or announce one that is too large to receive.
    """
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise MessageErrors.NOT_A_MESSAGE(rank=rank)
    if header > LONGEST_HEADER or payload > LARGEST_PAYLOAD:
        raise MessageErrors.TOO_LARGE(rank=rank, header=header, payload=payload)
    return header, payload


class Header:
    """A header that has been read. Its payload can be received afterwards: the header agrees with its announced size.

    Args:
        data: bytes of the header.
        payload: number of announced bytes that follow.
        rank: rank that sent the message.

    Raises:
        RankError: the header is malformed, or its arrays do not add up to the payload.
    """

    def __init__(self, data: Buffer, payload: int, vocabulary: Vocabulary, rank: int) -> None:
        self._vocabulary, self._rank = vocabulary, rank
        self._places: list[int] = []
        try:
            self._tree = json.loads(bytes(data), parse_constant=_no_constant)
            self._measured(self._tree, payload)
        except (ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
            raise self._malformed(error) from None

    def value(self, payload: Buffer) -> Any:
        """Return the value. Its arrays are views of `payload`. Raises RankError: it is malformed."""
        memory = np.frombuffer(payload, np.uint8)
        try:
            return self._value(self._tree, memory, iter(self._places), 0)
        except RankError:
            raise
        except Exception as error:  # raised by a constructor of the vocabulary
            raise self._malformed(error) from None

    def _malformed(self, error: Exception) -> Exception:
        cause = quoted(error) or type(error).__name__
        return MessageErrors.MALFORMED(rank=self._rank, cause=cause)

    def _measured(self, tree: Any, payload: int) -> None:
        """Find the position of every array, in the order in which `_value` visits them."""
        used = 0
        for node in _arrays(tree, 0):
            place = align(used)
            used = place + _nbytes(node)
            if used > payload:
                break
            self._places.append(place)
        if used != payload:
            raise ValueError(f"its arrays take {used} bytes, but {payload} bytes follow")

    def _value(self, tree: Any, memory: np.ndarray[Any, Any], places: Any, depth: int) -> Any:
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        tag, *rest = tree
        if tag in _ARRAYS:
            place = next(places)
            return _array(tree, memory[place : place + _nbytes(tree)])
        match tag, rest:
            case "float", [str(text)] if text in ("nan", "inf", "-inf"):
                return float(text)
            case "range", [int(start), int(stop), int(step)]:
                return range(start, stop, step)
            case "list", _:
                return [self._value(item, memory, places, depth + 1) for item in rest]
            case "tuple", _:
                return tuple(self._value(item, memory, places, depth + 1) for item in rest)
            case "dict", _:
                pairs = [(key, self._value(item, memory, places, depth + 1)) for key, item in rest]
                if not all(isinstance(key, int | str) for key, _ in pairs):
                    raise ValueError("a key is neither a text nor a number")
                return dict(pairs)
            case "object", [str(name), dict(fields)] if name in self._vocabulary:
                kind = self._vocabulary[name]
                values = {key: self._value(item, memory, places, depth + 1) for key, item in fields.items()}
                return kind(**values)
        raise ValueError(f"{quoted(tag)} is not a kind of value")


_ARRAYS = ("bytes", "array", "tensor")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _arrays(tree: Any, depth: int) -> Any:
    """Yield every array of a tree. Raises ValueError for anything that is not a node."""
    if tree is None or isinstance(tree, bool | int | float | str):
        return
    if not isinstance(tree, list) or not tree or not isinstance(tree[0], str):
        raise ValueError("a node has no kind")
    if depth > _DEEPEST:
        raise ValueError(f"its values are nested deeper than {_DEEPEST}")
    match tree:
        case ["bytes" | "array" | "tensor", *_]:
            yield tree
        case ["list" | "tuple", *items]:
            for item in items:
                yield from _arrays(item, depth + 1)
        case ["dict", *pairs]:
            for _, item in pairs:
                yield from _arrays(item, depth + 1)
        case ["object", str(), dict(fields)]:
            for item in fields.values():
                yield from _arrays(item, depth + 1)


def _nbytes(node: list[Any]) -> int:
    match node:
        case ["bytes", int(count)] if count >= 0 and not isinstance(count, bool):
            return count
        case ["array" | "tensor", str(dtype), list(shape)] if dtype in _DTYPES and len(shape) <= _MOST_DIMENSIONS:
            if all(type(size) is int and 0 <= size <= LARGEST_PAYLOAD for size in shape):
                return math.prod(shape) * _DTYPES[dtype].itemsize
    raise ValueError("an array has no shape or an unknown dtype")


def _array(node: list[Any], memory: np.ndarray[Any, Any]) -> Any:
    if node[0] == "bytes":
        return memory.tobytes()
    array = memory.view(_DTYPES[node[1]]).reshape(node[2])
    if node[0] == "array":
        return array
    import torch

    dtype = next(name for name, known in _TORCH_DTYPES.items() if known == node[1]).removeprefix("torch.")
    flat = torch.from_numpy(memory.copy()).view(getattr(torch, dtype)) if memory.size else torch.empty(0)
    return flat.to(getattr(torch, dtype)).reshape(node[2])


class _Writer:
    """The tree of the header, and the parts of the payload with their total size `used`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._names = {kind: name for name, kind in vocabulary.items()}
        self.parts: list[Buffer] = []
        self.used = 0

    def tree(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.bool_ | np.integer | np.floating):
            return self.tree(value.item())
        if isinstance(value, float):
            return value if math.isfinite(value) else ["float", str(value)]
        if isinstance(value, bytes | bytearray):
            self._add(np.frombuffer(value, np.uint8))
            return ["bytes", len(value)]
        if isinstance(value, np.ndarray) and str(value.dtype) in _DTYPES:
            self._add(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
            return ["array", str(value.dtype), list(value.shape)]
        if isinstance(value, range):
            return ["range", value.start, value.stop, value.step]
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(self.tree, value)]
        if isinstance(value, Mapping):
            return ["dict", *([self._key(key), self.tree(item)] for key, item in value.items())]
        if type(value) in self._names:
            fields = {field.name: self.tree(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return ["object", self._names[type(value)], fields]
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and str(value.dtype) in _TORCH_DTYPES:
            self._add(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy() if value.numel() else _NOTHING)
            return ["tensor", _TORCH_DTYPES[str(value.dtype)], list(value.shape)]
        raise MessageErrors.NOT_SENT(type=f"{type(value).__module__}.{type(value).__qualname__}")

    def _key(self, key: Any) -> int | str:
        if isinstance(key, int | str):
            return key
        raise MessageErrors.NOT_SENT(type=f"key of {type(key).__qualname__}")

    def _add(self, data: np.ndarray[Any, Any]) -> None:
        if padding := align(self.used) - self.used:
            self.parts.append(bytes(padding))
        self.parts.append(data.data)
        self.used = align(self.used) + data.nbytes


_NOTHING = np.zeros(0, np.uint8)


def aligned_bytes(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return memory of `count` bytes at a multiple of 64. Its contents mean nothing yet. Raises MemoryError."""
    memory = np.empty(count + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + count]
