"""Numbers for people."""

from sscc.ir.sizes import format_bytes

__all__ = ["format_bytes"]
