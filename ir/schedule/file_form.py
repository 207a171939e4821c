"""Records as JSON and back: every field must be there, of its type, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

from sscc.ir.errors import InputError


def encode(value: Any) -> Any:
    """A record as dictionaries and lists; one with a `kind` says it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        encoded = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        kind = getattr(value, "kind", None)
        return encoded if kind is None else {"kind": kind, **encoded}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(data: Any, hint: Any, where: str) -> Any:
    """What `encode` made of a value of type `hint`. Raises InputError naming the first thing that does not fit."""
    origin = get_origin(hint)
    if origin is Literal:
        return _expect(data in get_args(hint), data, where, f"one of {get_args(hint)}")
    if origin is tuple:
        return _decode_tuple(data, get_args(hint), where)
    if origin in (Union, types.UnionType):
        return _decode_union(data, get_args(hint), where)
    if dataclasses.is_dataclass(hint):
        return _decode_record(data, typing.cast(type, hint), where)
    if hint is float and type(data) is int:
        return float(_expect(_fits(data), data, where, "a number of 64 bits"))
    return _expect(type(data) is hint and _fits(data), data, where, hint.__name__)


def _fits(data: Any) -> bool:
    """Whether a number, if it is an integer, is one of 64 bits."""
    return type(data) is not int or -(1 << 63) <= data < 1 << 63


def _expect(holds: bool, data: Any, where: str, expected: str) -> Any:
    if not holds:
        raise InputError(f"the schedule is malformed: {where} is {str(data)[:60]!r}, expected {expected}")
    return data


def _decode_tuple(data: Any, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, list), data, where, "a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(decode(item, args[0], f"{where}[{i}]") for i, item in enumerate(data))
    _expect(len(data) == len(args), data, where, f"{len(args)} items")
    return tuple(decode(item, arg, f"{where}[{i}]") for i, (item, arg) in enumerate(zip(data, args, strict=True)))


def _decode_union(data: Any, args: tuple[Any, ...], where: str) -> Any:
    if isinstance(data, dict):
        for arg in args:
            if dataclasses.is_dataclass(arg) and data.get("kind") == getattr(arg, "kind", None):
                return _decode_record(data, typing.cast(type, arg), where)
    elif type(data) in args and _fits(data):
        return data
    return _expect(False, data, where, " or ".join(getattr(arg, "__name__", str(arg)) for arg in args))


@functools.cache
def _fields(record: type) -> dict[str, Any]:
    """The type of each field; computed once, because a schedule holds tens of thousands of records."""
    hints = typing.get_type_hints(record)
    return {f.name: hints[f.name] for f in dataclasses.fields(record)}


def _decode_record(data: Any, record: type, where: str) -> Any:
    _expect(isinstance(data, dict), data, where, record.__name__)
    values = {key: value for key, value in data.items() if key != "kind"}
    hints = _fields(record)
    _expect(
        values.keys() == hints.keys(), sorted(values.keys() ^ hints.keys()), where, f"the fields of {record.__name__}"
    )
    return record(**{name: decode(value, hints[name], f"{where}.{name}") for name, value in values.items()})
