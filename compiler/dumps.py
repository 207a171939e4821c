"""Reading a dump that a person hands in."""

from __future__ import annotations

from pathlib import Path

from torch_mlir import ir

from sscc.compiler.printing import EXCERPT
from sscc.ir.context import parse_by_line, parse_module, pointed_at
from sscc.ir.errors import InputError, InternalError
from sscc.ir.files import read_text, shown_name
from sscc.ir.levels import IllegalIR, check_legal, get_level
from sscc.ir.locations import describe_location, text_place


def read_dump(path: Path) -> ir.Module:
    """The module in a dump ("-": on stdin), legal at the level that it says it has. To be called inside `mlir()`.

    Raises:
        InputError: it cannot be read, is not IR, is an excerpt or no dump of sscc, or is not legal at its level.
    """
    text, name = read_text(path), shown_name(path)
    if text.startswith(EXCERPT):
        what = text.partition("\n")[0].removeprefix(EXCERPT)
        raise InputError(f"{name} is no whole module ({what}): dump it without --ir-function and --no-ir-locations")
    module = parse_module(text, name)
    try:
        level = get_level(module)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    try:
        check_legal(module, level)
    except IllegalIR as error:  # here the user's file is at fault, and no pass
        raise _with_its_line(text, name, level, error) from None
    except InternalError as error:
        raise InputError(f"{name} is not a dump of level {level}: {error}") from None
    return module


def _with_its_line(text: str, name: str, level: str, error: IllegalIR) -> InputError:
    """The error with its place in the text, where operations have locations of their own."""
    by_line = error
    if text_place(error.location) is None:
        try:
            check_legal(parse_by_line(text), level)
        except IllegalIR as same:
            by_line = same
    place = text_place(by_line.location)
    if place is None:
        return InputError(f"{name} is not a dump of level {level}: {error}")
    origin = "" if by_line is error else describe_location(error.location)
    message = f"{name} is not a dump of level {level}: {name}:{place[0]}:{place[1]}: {error.reason}"
    return InputError(f"{message} (of {origin})" if origin else message, excerpt=pointed_at(text, *place))
