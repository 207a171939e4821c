"""Reader of IR dumps from users."""

from __future__ import annotations

from pathlib import Path

from torch_mlir import ir

from sscc.compiler.driver.printing import EXCERPT
from sscc.ir.context import parse_by_line, parse_module, pointed_at
from sscc.ir.errors import ErrorKind, InputError, InternalError, SsccError
from sscc.ir.files import read_text, shown_name
from sscc.ir.levels import IllegalIR, check_legal, get_level
from sscc.ir.locations import describe_location, text_place


class DumpErrors(ErrorKind):
    EXCERPT = InputError, (
        "{file} is an excerpt of a module ({what}): dump it without --ir-function and --no-ir-locations"
    )
    NO_LEVEL = InputError, "{file}: {cause}"
    ILLEGAL = InputError, "{file} is not a dump of level {level}: {cause}"
    ILLEGAL_LINE = InputError, "{file} is not a dump of level {level}: {file}:{line}:{column}: {reason}{origin_hint}"


def read_dump(path: Path) -> ir.Module:
    """Read the module of a dump ("-" for stdin) that is legal at its level. Must be called inside `mlir()`.

    Raises:
        InputError: the dump cannot be read, is not IR, is an excerpt, was not written by sscc, or is not legal at its
            level.
    """
    return parse_dump(read_text(path), shown_name(path))


def parse_dump(text: str, name: str) -> ir.Module:
    """Parse the text of a dump whose module is legal at its level. Must be called inside `mlir()`.

    Args:
        name: name of the file, for messages.

    Raises:
        InputError: as `read_dump`.
    """
    if text.startswith(EXCERPT):
        what = text.partition("\n")[0].removeprefix(EXCERPT)
        raise DumpErrors.EXCERPT(file=name, what=what)
    module = parse_module(text, name)
    try:
        level = get_level(module)
    except InputError as error:
        raise DumpErrors.NO_LEVEL(file=name, cause=error) from None
    try:
        check_legal(module, level)
    except IllegalIR as error:  # the fault is in the user's file, not in a pass
        raise _with_its_line(text, name, level, error) from None
    except InternalError as error:
        raise DumpErrors.ILLEGAL(file=name, level=level, cause=error) from None
    return module


def _with_its_line(text: str, name: str, level: str, error: IllegalIR) -> SsccError:
    """Return the error with its position in the text. Locations of operations may point to the model instead."""
    by_line = error
    try:
        check_legal(parse_by_line(text), level)  # locations in the text may refer to the source of the dump
    except IllegalIR as same:
        by_line = same
    place = text_place(by_line.location)
    if place is None:
        return DumpErrors.ILLEGAL(file=name, level=level, cause=error)
    origin = describe_location(error.location) if text_place(error.location) is None else ""
    return DumpErrors.ILLEGAL_LINE(
        file=name,
        level=level,
        line=place[0],
        column=place[1],
        reason=error.reason,
        origin_hint=f" (of {origin})" if origin else "",
        excerpt=pointed_at(text, *place),
    )
