"""Writing text files."""

from __future__ import annotations

from pathlib import Path

from sscc.ir.files import replacing


def write_text(path: Path, text: str) -> None:
    """Writes a file in UTF-8, complete or not at all. Raises OutputError, see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode())
