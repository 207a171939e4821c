"""Tools of a request: their names, and the types of their parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = Mapping[str, Any]

_DEFINITIONS = ("$defs", "definitions")
_MOST_DEEP = 8  # maximum nesting depth of schemas that are searched for types


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: name of the function.
        parameters: JSON Schema of its arguments, an object.
    """

    name: str
    parameters: Schema = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, Schema]:
        """Schemas of the parameters by name."""
        found = self.parameters.get("properties")
        return {name: self._resolved(value) for name, value in found.items()} if isinstance(found, Mapping) else {}

    def _resolved(self, value: Any) -> Schema:
        """Return the schema of a parameter with the definitions to which it may refer."""
        schema = _schema(value)
        definitions = {key: self.parameters[key] for key in _DEFINITIONS if key in self.parameters}
        for _ in range(_MOST_DEEP):
            place, _, name = str(schema.get("$ref", "")).rpartition("/")
            held = definitions.get(place.removeprefix("#/"))
            if not isinstance(held, Mapping) or name not in held:
                break
            schema = _schema(held[name])
        return {**schema, **definitions}

    @property
    def required(self) -> frozenset[str]:
        """Names of the required parameters."""
        found = self.parameters.get("required")
        return frozenset(map(str, found)) if isinstance(found, list) else frozenset()

    def argument(self, name: str, text: str) -> Any:
        """Return the value of an argument that is written without quotes: a string if the parameter is one, or if the
        text is not JSON of the parameter's type."""
        types = types_of(self.properties.get(name, {}))
        if types <= {"string"}:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return _LITERALS.get(text.strip(), text)
        return value if "string" not in types or _type_of(value) in types else text


_LITERALS = {"True": True, "False": False, "None": None}
"""Python's literals, which models write in place of JSON's."""


def types_of(schema: Schema, depth: int = 0) -> frozenset[str]:
    """Return the names of the types that a schema allows; empty if the schema does not restrict them."""
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(map(str, named)) if isinstance(named, list) else set()
    for keyword in ("anyOf", "oneOf", "allOf"):
        each = schema.get(keyword)
        if isinstance(each, list) and depth < _MOST_DEEP:
            types.update(*(types_of(_schema(one), depth + 1) for one in each))
    values = schema.get("enum")
    if not types and isinstance(values, list):
        types = {_type_of(value) for value in values}
    return frozenset(types)


def _type_of(value: Any) -> str:
    """Return JSON Schema's name of the type of a value."""
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)]


def _schema(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}
