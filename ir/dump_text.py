"""The text of dumps: arguments by name, one per line, and large attributes out of line.

MLIR prints `%arg17`; the argument's name stands in its attributes (`sscc.weight`, `sscc.state`, ..). MLIR can print
names from locations, but our locations are modules of the model, so that it would name every operation and every
parameter of a loop body after them. The text is rewritten instead. It is the same module: it parses back, and prints as
the same text.

`without_locations` does the reverse for any text: without them, the parser locates each operation by its line and
column in the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch_mlir import ir

from sscc.ir.builders import ROLES, SOURCES, STORED, short_name

LARGE = 100
"""Length in characters above which an attribute is written out of line."""

_STRING = r'"(?:[^"\\]|\\.)*"'
_ARGUMENT = re.compile(rf"{_STRING}|%arg(\d+)(?![\w$.-])")
_FUNCTION = re.compile(r"^(?=  func\.func )", re.MULTILINE)
_NAMED = re.compile(r"%([A-Za-z$._-][\w$.-]*)")
_NO_IDENTIFIER = re.compile(r"[^\w$.-]", re.ASCII)
_LOCATION = re.compile(rf"{_STRING}|//[^\n]*|\bloc\(")
_STRING_OR_BRACKET = re.compile(rf"{_STRING}|[()]")
_ALIAS = re.compile(r"^#loc\d* =[ ]*$", re.MULTILINE)
_LIST = re.compile(rf"{re.escape(SOURCES)} = (\[{_STRING}(?:, {_STRING})*\])")


def readable(text: str, module: ir.Module) -> str:
    """Return the printed `text` of `module`, rewritten. Text in MLIR's generic form is returned unchanged."""
    head, *functions = _FUNCTION.split(text)
    present = [op for op in module.body.operations if op.operation.name == "func.func"]
    if len(present) != len(functions):
        return text
    large: dict[str, str] = {}
    head = _module_attributes(head, module, large)
    bodies = [_function(item, op, large) for item, op in zip(functions, present, strict=True)]
    aliases = "".join(f"#{alias} = {_broken(value)}\n" for value, alias in large.items())
    place = head.rfind("module ") if head.startswith("module ") else head.rfind("\nmodule ") + 1
    return head[:place] + aliases + head[place:] + "".join(bodies)


def without_locations(text: str) -> str:
    """Return `text` with its locations blanked, so that each operation, once parsed, has its line and column in `text`.
    """
    parts, end, at = [], 0, 0
    while (match := _LOCATION.search(text, at)) is not None:
        at = match.end()
        if match.group() != "loc(":
            continue
        at = _closed(text, at)
        blank = re.sub(r"[^\n]", " ", text[match.start() : at])
        parts += [text[end : match.start()], blank]
        end = at
    return _ALIAS.sub("", "".join([*parts, text[end:]]))


def _closed(text: str, at: int) -> int:
    """Return the index behind the bracket that closes one opened before `at`; the end of the text if none does."""
    depth = 1
    for match in _STRING_OR_BRACKET.finditer(text, at):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if not depth:
            return match.end()
    return len(text)


def _module_attributes(head: str, module: ir.Module, large: dict[str, str]) -> str:
    for named in list(module.operation.attributes):
        value = str(module.operation.attributes[named])
        if len(value) > LARGE and f"{named} = {value}" in head:
            large.setdefault(value, named.partition(".")[2])
            head = head.replace(f"{named} = {value}", f"{named} = #{large[value]}", 1)
    return head


def _function(text: str, op: Any, large: dict[str, str]) -> str:
    names = list(_argument_names(text, op))
    header, newline, body = text.partition("\n")
    header = _LIST.sub(lambda match: _out_of_line(match, large), header)
    header = header.replace(", %arg", ",\n      %arg") if len(header) > 120 else header

    def name(match: re.Match[str]) -> str:
        number = match.group(1)
        return match.group() if number is None or int(number) >= len(names) else f"%{names[int(number)]}"

    return _ARGUMENT.sub(name, header + newline + body)


def _out_of_line(match: re.Match[str], large: dict[str, str]) -> str:
    value = match.group(1)
    if len(value) <= LARGE:
        return match.group()
    count = sum(alias.startswith("sources") for alias in large.values())
    return f"{SOURCES} = #{large.setdefault(value, f'sources{count}')}"


def _broken(value: str) -> str:
    """Return a list of strings with one string per line."""
    if not value.startswith('["'):
        return value
    return "[\n  " + ",\n  ".join(re.findall(_STRING, value)) + "\n]"


def _argument_names(text: str, op: Any) -> Iterator[str]:
    """Yield the name of each argument of a function. Names differ from each other and from all other names in `text`.
    """
    known = [_role_and_name(ir.DictAttr(attributes)) for attributes in op.attributes.get("arg_attrs", [])]
    short = Counter(short_name(name) for role, name in known if role in STORED)
    taken = set(_NAMED.findall(text))
    for index, (role, full_name) in enumerate(known):
        name = short_name(full_name) if role in STORED and short[short_name(full_name)] == 1 else full_name
        name = _NO_IDENTIFIER.sub("_", name) or f"arg{index}"
        base = name = f"_{name}" if name[:1].isdigit() else name
        number = 0
        while name in taken and name != f"arg{index}":
            name = f"{base}_{number}"
            number += 1
        taken.add(name)
        yield name


def _role_and_name(attributes: ir.DictAttr) -> tuple[str, str]:
    for role in ROLES:
        if f"sscc.{role}" in attributes and isinstance(attributes[f"sscc.{role}"], ir.StringAttr):
            return role, ir.StringAttr(attributes[f"sscc.{role}"]).value
    return "", ""
