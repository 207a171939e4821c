"""File names of a GGUF model in several parts, as written by llama.cpp's gguf-split: `NAME-00002-of-00003.gguf`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOST_PARTS = 1024
_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class PartName:
    """The name of a part.

    Attributes:
        stem: common prefix of the names of all parts.
        part: number of the part, from 1.
        count: number of parts, at most `MOST_PARTS`.
    """

    stem: str
    part: int
    count: int

    @classmethod
    def of(cls, path: Path) -> PartName | None:
        """Parse the name of a file; None if it is not the name of a part."""
        match = _NAME.fullmatch(path.name)
        name = cls(match[1], int(match[2]), int(match[3])) if match else None
        return name if name is not None and 1 <= name.part <= name.count <= MOST_PARTS else None


def named_parts(path: Path) -> list[Path]:
    """Return the paths of all parts of a model if `path` has the name of a part; otherwise `path` alone."""
    name = PartName.of(path)
    if name is None:
        return [path]
    return [path.parent / f"{name.stem}-{part:05}-of-{name.count:05}.gguf" for part in range(1, name.count + 1)]
