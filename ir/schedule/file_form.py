"""Records as JSON and back: every field must be there, of its type, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from sscc.ir.errors import InputError

Decoder = Callable[[Any, str], Any]
"""Makes a value of data, or raises InputError for the place that is named."""


def encode(value: Any) -> Any:
    """A record as dictionaries and lists; one with a `kind` says it."""
    names = _names(type(value))  # type: ignore[arg-type]  # a class can be hashed
    if names is not None:
        encoded = {name: encode(getattr(value, name)) for name in names}
        kind = getattr(value, "kind", None)
        return encoded if kind is None else {"kind": kind, **encoded}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(data: Any, hint: Any, where: str) -> Any:
    """What `encode` made of a value of type `hint`. Raises InputError naming the first thing that does not fit."""
    return _decoder(hint)(data, where)


@functools.cache
def _names(record: type) -> tuple[str, ...] | None:
    """The fields of a record; None for another type. Looked up once: a schedule holds tens of thousands of records."""
    return tuple(field.name for field in dataclasses.fields(record)) if dataclasses.is_dataclass(record) else None


def _decoder(hint: Any) -> Decoder:
    """What a type asks of data, looked up once for all data of that type."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        return lambda data, where: data if data in choices else _refuse(data, where, f"one of {choices}")
    if origin is tuple:
        return _tuple_decoder(get_args(hint))
    if origin in (Union, types.UnionType):
        return _union_decoder(get_args(hint))
    if dataclasses.is_dataclass(hint):
        record = typing.cast(type, hint)
        return lambda data, where: _decode_record(data, record, where)

    def plain(data: Any, where: str) -> Any:
        if type(data) is hint and _fits(data):
            return data
        if hint is float and type(data) is int:
            return float(data) if _fits(data) else _refuse(data, where, "a number of 64 bits")
        return _refuse(data, where, hint.__name__)

    return plain


def _fits(data: Any) -> bool:
    """Whether a number, if it is an integer, is one of 64 bits."""
    return type(data) is not int or -(1 << 63) <= data < 1 << 63


def _refuse(data: Any, where: str, expected: str) -> NoReturn:
    raise InputError(f"the schedule is malformed: {where} is {str(data)[:60]!r}, expected {expected}")


def _tuple_decoder(args: tuple[Any, ...]) -> Decoder:
    if len(args) == 2 and args[1] is Ellipsis:
        item_decoder = _decoder(args[0])

        def several(data: Any, where: str) -> tuple[Any, ...]:
            if not isinstance(data, list):
                _refuse(data, where, "a list")
            return tuple([item_decoder(item, f"{where}[{i}]") for i, item in enumerate(data)])

        return several
    decoders = [_decoder(arg) for arg in args]

    def some(data: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(data, list):
            _refuse(data, where, "a list")
        if len(data) != len(decoders):
            _refuse(data, where, f"{len(decoders)} items")
        pairs = enumerate(zip(data, decoders, strict=True))
        return tuple([decoder(item, f"{where}[{i}]") for i, (item, decoder) in pairs])

    return some


def _union_decoder(args: tuple[Any, ...]) -> Decoder:
    records = [(getattr(arg, "kind", None), typing.cast(type, arg)) for arg in args if dataclasses.is_dataclass(arg)]

    def decoder(data: Any, where: str) -> Any:
        if isinstance(data, dict):
            kind = data.get("kind")
            for name, record in records:
                if kind == name:
                    return _decode_record(data, record, where)
        elif type(data) in args and _fits(data):
            return data
        return _refuse(data, where, " or ".join(getattr(arg, "__name__", str(arg)) for arg in args))

    return decoder


@functools.cache
def _decoders(record: type) -> dict[str, Decoder]:
    """What decodes each field; found once, because a schedule holds tens of thousands of records."""
    hints = typing.get_type_hints(record)
    return {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(record)}


def _decode_record(data: Any, record: type, where: str) -> Any:
    if not isinstance(data, dict):
        _refuse(data, where, record.__name__)
    decoders = _decoders(record)
    names = data.keys() - {"kind"}
    if names != decoders.keys():
        _refuse(sorted(names ^ decoders.keys()), where, f"the fields of {record.__name__}")
    return record(**{name: decoders[name](value, f"{where}.{name}") for name, value in data.items() if name != "kind"})
