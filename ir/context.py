"""The MLIR context of the process, with the torch dialects and our own loaded.

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
    """Text that is not valid IR."""

    INVALID = InputError, "{name} is not valid IR: {diagnostic}{origin_hint}"
    TOO_DEEP = InputError, "{name}:{line} is not valid IR: it is nested deeper than {levels} levels"


EXCERPT_COLUMNS = 100  # longest part of a source line in an error
MAX_DEPTH = 100  # nested brackets; dumps nest fewer than twenty
_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|[<>]=|//[^\n]*|[()\[\]{}<>]')  # strings and comments are skipped


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
    """Enter the context, with an unknown default location."""
    with context() as entered, ir.Location.unknown():
        yield entered


def parse_module(text: str, name: str) -> ir.Module:
    """Parse and verify IR text.

    Args:
        name: name of the text in messages.

    Raises:
        InputError: the text is not valid IR. The message is the first one of the parser or verifier, with its line and
            column in the text, even if operations have locations of their own.
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
    """Return the module that `parse_module` would return, with positions in the text as locations."""
    return ir.Module.parse(without_locations(text))


def _in_the_text(error: ir.MLIRError, text: str) -> tuple[ir.MLIRError, str]:
    """Return the error with positions in the text, and the origin in the model if the original error named only that.

    A verifier reports the location of an operation and knows no position in the text, so the text is parsed again
    with its locations blanked.
    """
    if _place(error) is not None:
        return error, ""
    try:
        parse_by_line(text)
    except ir.MLIRError as same:
        if _place(same) is not None and error.error_diagnostics:
            return same, describe_location(error.error_diagnostics[0].location)
    return error, ""


def _check_depth(text: str, name: str) -> None:
    """Refuse deeply nested text: MLIR's parser recurses for every bracket and would overflow the stack."""
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
    """Return the first error of an MLIRError with its place; a place in the text is written `name:line:column`."""
    if not error.error_diagnostics:
        return str(error)
    diagnostic, place = error.error_diagnostics[0], _place(error)
    if name and place is not None:
        return f"{name}:{place[0]}:{place[1]}: {diagnostic.message}"
    return f"{origin_of(diagnostic)}{diagnostic.message}"


def _place(error: ir.MLIRError) -> tuple[int, int] | None:
    """Return line and column in the parsed text of the first error; None if it names none."""
    return next((text_place(diagnostic.location) for diagnostic in error.error_diagnostics), None)


def _pointed_at(error: ir.MLIRError, text: str) -> str:
    place = _place(error)
    return "" if place is None else pointed_at(text, *place)


def pointed_at(text: str, line: int, column: int) -> str:
    """Return a line of the text and a caret below a column of it, both counted from 1; "" if there is no such line. A
    long line is shortened to the part around the column."""
    lines = text.split("\n")
    if line > len(lines):
        return ""
    shown, column = lines[line - 1], column - 1
    first = max(0, min(column - EXCERPT_COLUMNS // 2, len(shown) - EXCERPT_COLUMNS))
    part = "".join(c if c.isprintable() else " " for c in shown[first : first + EXCERPT_COLUMNS])
    return f"  {part}\n  {' ' * (column - first)}^"


def print_module(module: ir.Module) -> str:
    """Return the text form that dumps use, with locations; `parse_module` reads it back."""
    return readable(module.operation.get_asm(enable_debug_info=True), module)
