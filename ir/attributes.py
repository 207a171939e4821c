"""Records as dictionary attributes of a module: what a dump says about itself, read back with care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_mlir import ir

_KINDS: dict[type, tuple[type, str]] = {
    int: (ir.IntegerAttr, "an integer"),
    str: (ir.StringAttr, "a string"),
}


class MalformedRecord(Exception):
    """A dictionary attribute that lacks a field, or has one that nobody knows or of another type."""


def write_record(values: Mapping[str, int | str]) -> ir.DictAttr:
    """`values` as a dictionary of i64 and string attributes."""
    i64 = ir.IntegerType.get_signless(64)
    return ir.DictAttr.get(
        {
            name: ir.StringAttr.get(value) if isinstance(value, str) else ir.IntegerAttr.get(i64, value)
            for name, value in values.items()
        }
    )


def read_record(
    attribute: ir.Attribute, fields: Mapping[str, type], defaults: Mapping[str, int | str] | None = None
) -> dict[str, Any]:
    """The values of a dictionary attribute.

    Args:
        fields: name -> int or str, of exactly the fields there must be.
        defaults: the values of those that may be missing.

    Raises:
        MalformedRecord: naming the first field that does not fit.
    """
    if not isinstance(attribute, ir.DictAttr):
        raise MalformedRecord(f"it is {attribute}, expected a dictionary")
    given = {entry.name: entry.attr for entry in attribute}
    values = dict(defaults or {})
    for name in given.keys() - fields.keys():
        raise MalformedRecord(f"{name} is not one of its fields, which are {', '.join(fields)}")
    for name, type_ in fields.items():
        if name not in given and name in values:
            continue
        if name not in given:
            raise MalformedRecord(f"{name} is missing")
        kind, wanted = _KINDS[type_]
        if not isinstance(given[name], kind):
            raise MalformedRecord(f"{name} is {given[name]}, expected {wanted}")
        values[name] = given[name].value
    return {name: values[name] for name in fields}
