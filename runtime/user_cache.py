"""The folder of the user's in which sscc keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`; it need not exist."""
    given = os.environ.get("SSCC_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sscc"
