"""Numbers for people."""

from __future__ import annotations


def format_bytes(nbytes: int) -> str:
    """Four digits and a binary unit: "1.5 KiB", "32 MiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} bytes"
