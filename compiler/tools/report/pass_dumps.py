"""Reader of the dumps of a compilation as text, of which only the headers of functions are parsed.

For line-by-line comparison, locations are removed and aliases of affine maps are inlined.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError, quoted

LARGEST = 64 << 20
"""Maximum size of a dump in bytes."""

_FILE = re.compile(r"(\d\d)-([\w.-]+)\.mlir")
_FUNCTION = re.compile(r"  func\.func (?:private |public )?@(\"[^\"]*\"|[\w.$+-]+)")
_LOCATION = re.compile(r" loc\((?:[^()\"]|\"[^\"]*\"|\((?:[^()\"]|\"[^\"]*\")*\))*\)")
_MAP = re.compile(r"(#map\d*) = (.*)")
_RECORD = re.compile(r"^#passes = \[$.*?^\]$\n?", re.MULTILINE | re.DOTALL)
"""Attribute with the history of passes of a module, which every pass extends."""
_MAP_USE = re.compile(r"#map\d*\b")
HEAD = "module"
"""Name of the text before the first function."""


class DumpFolderErrors(ErrorKind):
    UNREADABLE = InputError, "the dumps in {folder} cannot be read: {reason}"
    NO_DUMPS = (
        InputError,
        "{folder} has no dumps of a whole compilation: `sscc compile MODEL --dump-ir-dir DIR` writes them",
    )
    OTHER_COMPILATION = (
        InputError,
        "the dumps in {folder} are from another compilation: their schedule differs from this artifact's",
    )
    TOO_LARGE = InputError, "{path} has {size} bytes, but a report reads dumps of at most {most}"


@dataclass(frozen=True)
class Dump:
    """The IR after a pass: the text of each function by name, without locations, and that of the module's head."""

    name: str
    lines: int
    nbytes: int
    functions: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Dumps:
    """The dumps of a compilation.

    Attributes:
        dumps: dump of the level at which the compilation began, then one for each pass that changed the module.
    """

    folder: str
    dumps: tuple[Dump, ...]


def read_dumps(folder: Path, schedule: str) -> Dumps:
    """Return the dumps of the compilation that produced the schedule with this sha256.

    Raises:
        InputError: there are none, they cannot be read, or they are from another compilation.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
        emitted = [name for name in names if re.fullmatch(r"\d\d-schedule\.json", name)]
        digests = {hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in emitted}
        paths = [folder / name for name in names if _FILE.fullmatch(name)]
        texts = {path: _read(path) for path in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise DumpFolderErrors.UNREADABLE(folder=folder, reason=quoted(error)) from None
    if not paths or not emitted:
        raise DumpFolderErrors.NO_DUMPS(folder=folder)
    if schedule not in digests:
        raise DumpFolderErrors.OTHER_COMPILATION(folder=folder)
    return Dumps(folder.name, tuple(_dump(path.name, text) for path, text in texts.items()))


def _read(path: Path) -> str:
    size = path.stat().st_size
    if size > LARGEST:
        raise DumpFolderErrors.TOO_LARGE(path=path, size=size, most=LARGEST)
    return path.read_text(encoding="utf-8")


def _dump(file: str, text: str) -> Dump:
    lines = _RECORD.sub("", text).splitlines()
    maps = {match[1]: match[2] for line in lines if (match := _MAP.fullmatch(_LOCATION.sub("", line)))}
    functions: dict[str, list[str]] = {}
    current = HEAD
    for line in lines:
        if line.startswith("#loc") or (line.startswith("#map") and " = " in line):
            continue
        function = _FUNCTION.match(line)
        current = function[1].strip('"') if function else current
        plain = _LOCATION.sub("", line).rstrip()
        plain = _MAP_USE.sub(lambda match: maps.get(match[0], match[0]), plain)
        if plain and not line.startswith("}"):
            functions.setdefault(current, []).append(plain)
    match = _FILE.fullmatch(file)
    assert match is not None
    return Dump(match[2], text.count("\n"), len(text.encode()), {name: tuple(body) for name, body in functions.items()})
