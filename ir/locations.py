"""Where an operation comes from, in words: the module of the model, and the line of a file."""

from __future__ import annotations

from typing import Protocol

from torch_mlir import ir

TEXT = "-"
"""What MLIR calls the file of text that it parses."""


class Located(Protocol):
    """An operation, a diagnostic, or what remembers where one was."""

    @property
    def location(self) -> ir.Location: ...


def typed(location: ir.Location) -> ir.Location:
    """A location as the class of its kind: the bindings give that of an operation so, but not that of a diagnostic."""
    for kind in (ir.NameLoc, ir.FileLineColLoc, ir.CallSiteLoc, ir.FusedLoc):
        try:
            return kind(location)
        except ValueError:
            continue
    return location


def module_path(location: ir.Location) -> str:
    """The model's module path in a location ("" when it has none), looking through call sites and fusions."""
    location = typed(location)
    if isinstance(location, ir.NameLoc):
        return str(location.name_str)
    if isinstance(location, ir.CallSiteLoc):
        return module_path(location.callee)
    if isinstance(location, ir.FusedLoc):
        return next((path for path in map(module_path, location.locations) if path), "")
    return ""


def file_line(location: ir.Location) -> tuple[str, int, int] | None:
    """The file, line and column that a location leads to, looking through names and call sites; None where it leads to
    none. The file is TEXT where text of IR had no locations: then its own lines are meant."""
    location = typed(location)
    while isinstance(location, (ir.NameLoc, ir.CallSiteLoc)):
        location = location.child_loc if isinstance(location, ir.NameLoc) else location.callee
    if isinstance(location, ir.FileLineColLoc):
        return str(location.filename), int(location.start_line), int(location.start_col)
    return None


def text_place(location: ir.Location) -> tuple[int, int] | None:
    """Line and column of the text of IR itself, where it has no other location."""
    file = file_line(location) if isinstance(typed(location), ir.FileLineColLoc) else None
    return file[1:] if file is not None and file[0] == TEXT else None


def describe_location(location: ir.Location) -> str:
    """`module.path file.py:line` of an operation, as far as known."""
    path, file = module_path(location), file_line(location)
    return f"{path} {file[0]}:{file[1]}".strip() if file else path


def origin_of(op: Located) -> str:
    """How an error begins that is about an operation, or about whatever else has a location: `module.path
    (file.py:line): `, as far as known, else ""."""
    path, file = module_path(op.location), file_line(op.location)
    if file is None:
        return f"{path}: " if path else ""
    line = f"line {file[1]} of the IR" if file[0] == TEXT else f"{file[0]}:{file[1]}"
    return f"{path} ({line}): " if path else f"{line}: "
