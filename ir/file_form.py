"""Records as JSON and back: every field must be there, of its type, and nothing else.

A field that is None is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from sscc.ir.errors import ErrorKind, InputError


class RecordErrors(ErrorKind):
    """JSON that does not have the form of its record."""

    WRONG_VALUE = InputError, "{what} is malformed: {place} is {value!r}, expected {expected}"
    LACKS = InputError, "{what} is malformed: {place} lacks the fields {missing}"
    UNKNOWN = InputError, "{what} is malformed: {place} has unknown fields for {record}: {unknown}"



def encode(value: Any) -> Any:
    """Return a record as dictionaries and lists. A record with a `kind` is encoded with it."""
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    record: type = type(value)
    names = _names(record)
    if names is None:
        return value
    kind = getattr(value, "kind", None)
    encoded: dict[str, Any] = {} if kind is None else {"kind": kind}
    for name in names:
        item = getattr(value, name)
        if item is not None:
            encoded[name] = encode(item)
    return encoded


@functools.cache
def _names(record: type) -> tuple[str, ...] | None:
    """Return the names of a record's fields; None for a type that is not a record."""
    return tuple(f.name for f in dataclasses.fields(record)) if dataclasses.is_dataclass(record) else None


def decode(data: Any, hint: Any, where: str, what: str = "the schedule") -> Any:
    """Return the value of type `hint` that `encode` encoded as `data`.

    Args:
        where: name of the value, with which places in messages begin.
        what: name of the file in messages.

    Raises InputError naming the place of the first mismatch.
    """
    try:
        return _decoder(hint)(data)
    except _Misfit as misfit:
        place = where + "".join(reversed(misfit.path))
        raise misfit.kind(what=what, place=place, **misfit.fields) from None


_Decoder = Callable[[Any], Any]


class _Misfit(Exception):
    """Mismatch between data and type. Its path is collected as the exception propagates, so that valid data costs
    nothing."""

    def __init__(self, kind: RecordErrors, **fields: Any) -> None:
        super().__init__()
        self.kind, self.fields = kind, fields
        self.path: list[str] = []

    @classmethod
    def of(cls, data: Any, expected: str) -> _Misfit:
        return cls(RecordErrors.WRONG_VALUE, value=shown(data), expected=expected)


def shown(data: Any) -> Any:
    """Return a value of a file as an error shows it: a list or dictionary as a text of a few items."""
    return reprlib.repr(data) if isinstance(data, list | tuple | dict) else data


@functools.cache
def _decoder(hint: Any) -> _Decoder:
    """Return the decoder of a type. Decoders are cached, because a schedule holds tens of thousands of records."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return functools.partial(_decode_literal, args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return functools.partial(_decode_many, _decoder(args[0]))
    if origin is tuple:
        return functools.partial(_decode_tuple, tuple(map(_decoder, args)))
    if origin in (Union, types.UnionType):
        return functools.partial(_decode_union, _alternatives(args))
    if dataclasses.is_dataclass(hint):
        return functools.partial(_decode_record, typing.cast(type, hint))
    return functools.partial(_decode_plain, hint)


def _fits(data: Any) -> bool:
    """Return False for an integer that does not fit in 64 bits."""
    return type(data) is not int or -(1 << 63) <= data < 1 << 63


def _decode_plain(kind: type, data: Any) -> Any:
    if kind is float and type(data) is int:
        if not _fits(data):
            raise _Misfit.of(data, "a number of 64 bits")
        return float(data)
    if type(data) is not kind or not _fits(data):
        raise _Misfit.of(data, kind.__name__)
    return data


def _decode_literal(values: tuple[Any, ...], data: Any) -> Any:
    if data not in values:
        raise _Misfit.of(data, f"one of {values}")
    return data


def _decode_many(decoder: _Decoder, data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _Misfit.of(data, "a list")
    items: list[Any] = []
    try:
        for item in data:
            items.append(decoder(item))
    except _Misfit as misfit:
        misfit.path.append(f"[{len(items)}]")
        raise
    return tuple(items)


def _decode_tuple(decoders: tuple[_Decoder, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _Misfit.of(data, "a list")
    if len(data) != len(decoders):
        raise _Misfit.of(data, f"{len(decoders)} items")
    items: list[Any] = []
    try:
        for item, decoder in zip(data, decoders, strict=True):
            items.append(decoder(item))
    except _Misfit as misfit:
        misfit.path.append(f"[{len(items)}]")
        raise
    return tuple(items)


def _alternatives(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of a union, where a record whose `kind` is "" stands for the records derived from it that have
    one."""
    derived: list[Any] = []
    for arg in args:
        derived += [arg] if getattr(arg, "kind", None) != "" else [item for item in arg.__subclasses__() if item.kind]
    return tuple(derived)


def _decode_union(args: tuple[type, ...], data: Any) -> Any:
    if isinstance(data, dict):
        kind = data.get("kind")
        for arg in args:
            if dataclasses.is_dataclass(arg) and kind == getattr(arg, "kind", None):
                return _decode_record(typing.cast(type, arg), data)
    elif type(data) in args and _fits(data):
        return data
    raise _Misfit.of(data, " or ".join(getattr(arg, "__name__", str(arg)) for arg in args))


@functools.cache
def _fields(record: type) -> dict[str, _Decoder]:
    """Return the decoder of each field, by name."""
    hints = typing.get_type_hints(record)
    return {f.name: _decoder(_present(hints[f.name])) for f in dataclasses.fields(record)}


@functools.cache
def _optional(record: type) -> frozenset[str]:
    """Return the fields that may be None, and are omitted then."""
    hints = typing.get_type_hints(record)
    return frozenset(name for name in _fields(record) if _present(hints[name]) is not hints[name])


def _present(hint: Any) -> Any:
    """Return the type of a field without None."""
    args = get_args(hint)
    return Union[tuple(arg for arg in args if arg is not type(None))] if type(None) in args else hint


def _decode_record(record: type, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _Misfit.of(data, record.__name__)
    fields = _fields(record)
    values = {key: value for key, value in data.items() if key != "kind"}
    if values.keys() != fields.keys():
        lacking = sorted(fields.keys() - values.keys() - _optional(record))
        if lacking:
            raise _Misfit(RecordErrors.LACKS, missing=lacking)
        unknown = [str(key) for key in values if key not in fields]
        if unknown:
            raise _Misfit(RecordErrors.UNKNOWN, record=record.__name__, unknown=unknown[:3])
    name = ""
    try:
        for name, value in values.items():
            values[name] = fields[name](value)
    except _Misfit as misfit:
        misfit.path.append(f".{name}")
        raise
    return record(**values)
