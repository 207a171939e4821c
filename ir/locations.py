"""Origin of an operation, for messages: the module of the model, and the line of a file."""

from __future__ import annotations

from typing import Protocol

from torch_mlir import ir

TEXT = "-"
"""MLIR's name for text that is parsed without a file."""


class Located(Protocol):
    """An operation, a diagnostic, or any other object with a location."""

    @property
    def location(self) -> ir.Location: ...


def typed(location: ir.Location) -> ir.Location:
    """Return a location as an instance of its kind's class, as the bindings do for operations but not for diagnostics.
    """
    for kind in (ir.NameLoc, ir.FileLineColLoc, ir.CallSiteLoc, ir.FusedLoc):
        try:
            return kind(location)
        except ValueError:
            continue
    return location


def module_path(location: ir.Location) -> str:
    """Return the model's module path in a location, looking through call sites and fusions; "" if it has none."""
    location = typed(location)
    if isinstance(location, ir.NameLoc):
        return str(location.name_str)
    if isinstance(location, ir.CallSiteLoc):
        return module_path(location.callee)
    if isinstance(location, ir.FusedLoc):
        return next((path for path in map(module_path, location.locations) if path), "")
    return ""


def file_line(location: ir.Location) -> tuple[str, int, int] | None:
    """Return the file, line and column of a location, looking through names and call sites; None if it has none.

    The file is TEXT for IR text without locations: the line is that of the text itself.
    """
    location = typed(location)
    while isinstance(location, (ir.NameLoc, ir.CallSiteLoc)):
        location = location.child_loc if isinstance(location, ir.NameLoc) else location.callee
    if isinstance(location, ir.FileLineColLoc):
        return str(location.filename), int(location.start_line), int(location.start_col)
    return None


def text_place(location: ir.Location) -> tuple[int, int] | None:
    """Return line and column in the IR text of a location without a file."""
    file = file_line(location) if isinstance(typed(location), ir.FileLineColLoc) else None
    return file[1:] if file is not None and file[0] == TEXT else None


def describe_location(location: ir.Location) -> str:
    """Return `module.path file.py:line` of an operation, as far as known."""
    path, file = module_path(location), file_line(location)
    return f"{path} {file[0]}:{file[1]}".strip() if file else path


def origin_of(op: Located) -> str:
    """Return the prefix of an error about an operation or another located object: `module.path (file.py:line): `, as
    far as known, else ""."""
    path, file = module_path(op.location), file_line(op.location)
    if file is None:
        return f"{path}: " if path else ""
    line = f"line {file[1]} of the IR" if file[0] == TEXT else f"{file[0]}:{file[1]}"
    return f"{path} ({line}): " if path else f"{line}: "
