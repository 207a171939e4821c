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
from sscc.ir.dump_text import readable
from sscc.ir.errors import InputError

EXCERPT_COLUMNS = 100  # of a line that an error shows
MAX_DEPTH = 100  # brackets within brackets: dumps have below twenty
_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|[<>]=|//[^\n]*|[()\[\]{}<>]')  # text and comments have none
_TEXT_PLACE = re.compile(r'^loc\("-":(\d+):(\d+)\)$')


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
        InputError: with the parser's or verifier's first message; `name` says whose text it is.
    """
    _check_depth(text, name)
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as error:
        message = f"{name} is not valid IR: {first_diagnostic(error, name)}"
        raise InputError(message, excerpt=_pointed_at(error, text)) from None


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
            raise InputError(f"{name}:{line} is not valid IR: it is nested deeper than {MAX_DEPTH} levels")


def first_diagnostic(error: ir.MLIRError, name: str = "") -> str:
    """The first error of an MLIRError as `location: message`; a place in the text itself as `name:line:column`."""
    for diagnostic in error.error_diagnostics:
        place = _TEXT_PLACE.sub(rf"{name}:\1:\2", str(diagnostic.location)) if name else str(diagnostic.location)
        return f"{place}: {diagnostic.message}"
    return str(error)


def _pointed_at(error: ir.MLIRError, text: str) -> str:
    """The line of the text that the first error is about, and a caret below its column; "" where it names no place in
    the text. Of a long line, the part around the place."""
    place = next((_TEXT_PLACE.match(str(diagnostic.location)) for diagnostic in error.error_diagnostics), None)
    lines = text.split("\n")
    if place is None or int(place[1]) > len(lines):
        return ""
    line, column = lines[int(place[1]) - 1], int(place[2]) - 1
    first = max(0, min(column - EXCERPT_COLUMNS // 2, len(line) - EXCERPT_COLUMNS))
    shown = "".join(c if c.isprintable() else " " for c in line[first : first + EXCERPT_COLUMNS])
    return f"  {shown}\n  {' ' * (column - first)}^"


def print_module(module: ir.Module) -> str:
    """The text form that dumps use, with locations: what `parse_module` reads back."""
    return readable(module.operation.get_asm(enable_debug_info=True), module)
