"""Records as dictionary attributes of a module: the metadata of a dump, type-checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_mlir import ir

from sscc.ir.errors import ErrorKind, InputError


class AttributeErrors(ErrorKind):
    """Dictionary attributes that lack a field of their record, or have an unknown or ill-typed one."""

    NOT_A_DICTIONARY = InputError, "the attribute is {value}, expected a dictionary"
    UNKNOWN = InputError, "unknown field {name} (known fields: {fields})"
    MISSING = InputError, "{name} is missing"
    WRONG_TYPE = InputError, "{name} is {value}, expected {expected}"


_KINDS: dict[type, tuple[type, str]] = {
    int: (ir.IntegerAttr, "an integer"),
    str: (ir.StringAttr, "a string"),
    list: (ir.DenseI64ArrayAttr, "an array of i64"),
}


def write_record(values: Mapping[str, int | str | list[int]]) -> ir.DictAttr:
    """Return `values` as a dictionary of i64, string and i64 array attributes."""
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
    """Return the values of a dictionary attribute.

    Args:
        fields: type of each field by name: int, str or list (of integers). No other fields are allowed.
        defaults: values of the fields that may be missing.

    Raises:
        InputError: a field is missing, unknown or of another type; the message names the first such field.
    """
    if not isinstance(attribute, ir.DictAttr):
        raise AttributeErrors.NOT_A_DICTIONARY(value=attribute)
    attributes_by_name = {entry.name: entry.attr for entry in attribute}
    values = dict(defaults or {})
    for name in attributes_by_name.keys() - fields.keys():
        raise AttributeErrors.UNKNOWN(name=name, fields=list(fields))
    for name, type_ in fields.items():
        if name not in attributes_by_name and name in values:
            continue
        if name not in attributes_by_name:
            raise AttributeErrors.MISSING(name=name)
        kind, expected = _KINDS[type_]
        if not isinstance(attributes_by_name[name], kind):
            raise AttributeErrors.WRONG_TYPE(name=name, value=attributes_by_name[name], expected=expected)
        values[name] = list(attributes_by_name[name]) if type_ is list else attributes_by_name[name].value
    return {name: values[name] for name in fields}
