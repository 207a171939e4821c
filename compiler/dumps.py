"""Reading a dump that a person hands in."""

from __future__ import annotations

from pathlib import Path

from torch_mlir import ir

from sscc.compiler.printing import EXCERPT
from sscc.ir.context import parse_module
from sscc.ir.errors import InputError, InternalError
from sscc.ir.files import read_text, shown_name
from sscc.ir.levels import check_legal, get_level


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
    level = get_level(module)
    try:
        check_legal(module, level)
    except InternalError as error:  # here the user's file is at fault, and no pass
        raise InputError(f"{name} is not a dump of level {level}: {error}") from None
    return module
