"""The MLIR context of the process, with torch's and our own dialects loaded.

A dialect declared in Python binds to one context, so there is exactly one; everything that parses, builds or
prints IR does it inside ``with mlir():``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from torch_mlir import ir
from torch_mlir.dialects import _ods_common
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager

from sscc.ir.dialects.df import Df
from sscc.ir.dialects.kv import Kv
from sscc.ir.dump_text import readable, without_locations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.locations import describe_location, origin_of, text_place


class IrTextErrors(ErrorKind):
    """Text that is not IR."""

    INVALID = InputError, "{name} is not valid IR: {diagnostic}{origin_hint}"
    TOO_DEEP = InputError, "{name}:{line} is not valid IR: it is nested deeper than {levels} levels"


EXCERPT_COLUMNS = 100  # of a line that an error shows
MAX_DEPTH = 100  # brackets within brackets: dumps have below twenty
_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|[<>]=|//[^\n]*|[()\[\]{}<>]')  # text and comments have none


@cache
def context() -> ir.Context:
    """The process's context. The `torch_c` dialect loads with the first torch conversion pass."""
    # The bindings look for a dialect's module under this prefix. Without it they would find none for our dialects, and
    # would search again for every single operation.
    _ods_common._cext.globals.append_dialect_search_prefix("sscc.ir.dialects")
    created = ir.Context()
    torch_dialect.register_dialect(created)
    with created, ir.Location.unknown():
        Kv.load()
        Df.load()
        PassManager.parse("builtin.module(func.func(convert-torch-to-arith))").run(
            ir.Module.parse("module {}").operation
        )
    return created


@contextmanager
def mlir() -> Iterator[ir.Context]:
    """Enters the context with an unknown default location."""
    with context() as entered, ir.Location.unknown():
        yield entered


def parse_module(text: str, name: str) -> ir.Module:
    """Parses and verifies IR text.

    Raises:
        InputError: with the parser's or verifier's first message, and its line and column in the text, also where
            operations have locations of their own; `name` says whose text it is.
    """
    _check_depth(text, name)
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as error:
        found, origin = _in_the_text(error, text)
        raise IrTextErrors.INVALID(
            name=name, diagnostic=first_diagnostic(found, name), origin_hint=f" (of {origin})" if origin else "",
            excerpt=_pointed_at(found, text),
        ) from None  # fmt: skip


def parse_by_line(text: str) -> ir.Module:
    """What `parse_module` has parsed, with the lines and columns of the text as locations."""
    return ir.Module.parse(without_locations(text))


def _in_the_text(error: ir.MLIRError, text: str) -> tuple[ir.MLIRError, str]:
    """The error with places in the text, and where in the model it is where only that is said: a verifier knows no
    other place of an operation than its location."""
    if _place(error) is not None:
        return error, ""
    try:
        parse_by_line(text)
    except ir.MLIRError as same:
        if _place(same) is not None and error.error_diagnostics:
            return same, describe_location(error.error_diagnostics[0].location)
    return error, ""


def _check_depth(text: str, name: str) -> None:
    """Refuses text that the parser, which calls itself for every bracket, could only read on a deeper stack."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        bracket = match.group()
        if bracket in "([{<":
            depth += 1
        elif bracket in ")]}>":
            depth -= 1
        if depth > MAX_DEPTH:
            line = text.count("\n", 0, match.start()) + 1
            raise IrTextErrors.TOO_DEEP(name=name, line=line, levels=MAX_DEPTH)


def first_diagnostic(error: ir.MLIRError, name: str = "") -> str:
    """The first error of an MLIRError after its place; one in the text itself is `name:line:column`."""
    if not error.error_diagnostics:
        return str(error)
    diagnostic, place = error.error_diagnostics[0], _place(error)
    if name and place is not None:
        return f"{name}:{place[0]}:{place[1]}: {diagnostic.message}"
    return f"{origin_of(diagnostic)}{diagnostic.message}"


def _place(error: ir.MLIRError) -> tuple[int, int] | None:
    """Line and column in the text that was parsed, of the first error; None where it names none."""
    return next((text_place(diagnostic.location) for diagnostic in error.error_diagnostics), None)


def _pointed_at(error: ir.MLIRError, text: str) -> str:
    place = _place(error)
    return "" if place is None else pointed_at(text, *place)


def pointed_at(text: str, line: int, column: int) -> str:
    """A line of the text and a caret below a column of it, both counted from 1; "" where there is no such line. Of a
    long line, the part around the place."""
    lines = text.split("\n")
    if line > len(lines):
        return ""
    shown, column = lines[line - 1], column - 1
    first = max(0, min(column - EXCERPT_COLUMNS // 2, len(shown) - EXCERPT_COLUMNS))
    part = "".join(c if c.isprintable() else " " for c in shown[first : first + EXCERPT_COLUMNS])
    return f"  {part}\n  {' ' * (column - first)}^"


def print_module(module: ir.Module) -> str:
    """The text form that dumps use, with locations: what `parse_module` reads back."""
    return readable(module.operation.get_asm(enable_debug_info=True), module)
