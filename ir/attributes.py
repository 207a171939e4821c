"""Records as dictionary attributes of a module: what a dump says about itself, read back with care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_mlir import ir

_KINDS: dict[type, tuple[type, str]] = {
    int: (ir.IntegerAttr, "an integer"),
    str: (ir.StringAttr, "a string"),
    list: (ir.DenseI64ArrayAttr, "an array of i64"),
}


class MalformedRecord(Exception):
    """A dictionary attribute that lacks a field, or has one that nobody knows or of another type."""


def write_record(values: Mapping[str, int | str | list[int]]) -> ir.DictAttr:
    """`values` as a dictionary of i64, string and i64 array attributes."""
    return ir.DictAttr.get({name: _attribute(value) for name, value in values.items()})


def _attribute(value: int | str | list[int]) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, list):
        return ir.DenseI64ArrayAttr.get(value)
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def read_record(
    attribute: ir.Attribute, fields: Mapping[str, type], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of a dictionary attribute.

    Args:
        fields: name -> int, str or list (of integers), of exactly the fields there must be.
        defaults: the values of those that may be missing.

    Raises:
        MalformedRecord: naming the first field that does not fit.
    """
    if not isinstance(attribute, ir.DictAttr):
        raise MalformedRecord(f"it is {attribute}, expected a dictionary")
    attributes_by_name = {entry.name: entry.attr for entry in attribute}
    values = dict(defaults or {})
    for name in attributes_by_name.keys() - fields.keys():
        raise MalformedRecord(f"{name} is not one of its fields, which are {', '.join(fields)}")
    for name, type_ in fields.items():
        if name not in attributes_by_name and name in values:
            continue
        if name not in attributes_by_name:
            raise MalformedRecord(f"{name} is missing")
        kind, expected = _KINDS[type_]
        if not isinstance(attributes_by_name[name], kind):
            raise MalformedRecord(f"{name} is {attributes_by_name[name]}, expected {expected}")
        values[name] = list(attributes_by_name[name]) if type_ is list else attributes_by_name[name].value
    return {name: values[name] for name in fields}
