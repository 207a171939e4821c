"""GGUF models in several files: the metadata that each file has about the others.

Every part has its own header, in which `split.no` counts from 0; the first part has the model's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sscc.compiler.frontend.gguf.header_errors import shown
from sscc.compiler.options.split_files import MOST_PARTS, PartName, named_parts
from sscc.ir.errors import ErrorKind, InputError

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
MOST_TENSORS = (1 << 31) - 1  # llama.cpp's type of the count


class GgufPartErrors(ErrorKind):
    """Models in several files that are incomplete or do not belong together."""

    NOT_A_NUMBER = InputError, "{path}: metadata {key} must be a whole number of at most {most}, got {value!r}"
    NAME = InputError, "{path} is part {part} of {count}, but its name does not end with {expected}"
    MISSING = InputError, "{path} is one of {count} files, of which {missing} is missing"
    DIFFERS = InputError, "{path} is part {part} of {count}, but its metadata states part {said} of {said_count}"
    TENSORS = InputError, "{path}: its {count} files have {tensors} tensors together, but its metadata states {said}"


def part_paths(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Return the paths of all parts of the model that the file `path` belongs to, or [] if it is the whole model.

    Raises:
        InputError: its name is not that of a part, or another part is missing.
    """
    count = _whole_number(path, metadata, COUNT) if COUNT in metadata else 0
    if count < 2:
        return []
    number = _whole_number(path, metadata, NUMBER)
    name = PartName.of(path)
    if name is None or (name.part, name.count) != (number + 1, count):
        expected = f"-{number + 1:05}-of-{count:05}.gguf"
        raise GgufPartErrors.NAME(path=path, part=number + 1, count=count, expected=expected)
    paths = named_parts(path)
    missing = next((part.name for part in paths if not part.is_file()), None)
    if missing is not None:
        raise GgufPartErrors.MISSING(path=path, count=count, missing=missing)
    return paths


def check_part(path: Path, metadata: Mapping[str, Any], part: int, count: int) -> None:
    """Check that the file `path` says of itself that it is part `part`, counted from 1, of `count`."""
    said, said_count = _whole_number(path, metadata, NUMBER) + 1, _whole_number(path, metadata, COUNT)
    if (said, said_count) != (part, count):
        raise GgufPartErrors.DIFFERS(path=path, part=part, count=count, said=said, said_count=said_count)


def check_tensors(path: Path, metadata: Mapping[str, Any], tensors: int, count: int) -> None:
    """Check that `count` parts have the number of tensors together that the metadata of the first one may state."""
    said = _whole_number(path, metadata, TENSORS, MOST_TENSORS) if TENSORS in metadata else tensors
    if said != tensors:
        raise GgufPartErrors.TENSORS(path=path, count=count, tensors=tensors, said=said)


def _whole_number(path: Path, metadata: Mapping[str, Any], key: str, most: int = MOST_PARTS) -> int:
    value = metadata.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise GgufPartErrors.NOT_A_NUMBER(path=path, key=key, value=shown(value), most=most)
    return value
