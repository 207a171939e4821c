"""Writing files so that nothing half-written is ever seen."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sscc.ir.errors import OutputError


def write_text(path: Path, text: str) -> None:
    """Writes a file under a temporary name and renames it. Raises OutputError; leaves nothing half-written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
