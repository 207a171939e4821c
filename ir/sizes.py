"""Sizes in bytes (alignment, text forms), times as text, and strides of tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from sscc.ir.errors import ErrorKind, UsageError


class SizeErrors(ErrorKind):
    """Texts that are not sizes in bytes."""

    NOT_A_SIZE = UsageError, "{text!r} is not a size in bytes: write 4096, 64K, 4MiB, 1.5GiB or 2GB"
    NOT_WHOLE = UsageError, "{text!r} is not a whole number of bytes"


ALIGNMENT = 64
"""Alignment in bytes: a cache line, and the widest vector of the hosts that interpret a schedule."""


def align(size: int) -> int:
    """Return `size` rounded up to a multiple of `ALIGNMENT`, in bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def format_bytes(nbytes: int) -> str:
    """Return a size with four digits and a binary unit: "1.5 KiB", "32 MiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} bytes"


def format_seconds(seconds: float) -> str:
    """Return a time with four digits and a unit: "1.5 s", "20 ms", "43.68 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


class ByteCount(int):
    """A number of bytes, shown with its unit in messages (`format_bytes`) and as a number in JSON."""

    def __str__(self) -> str:
        return format_bytes(int(self))


_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(?:([kmgt])(i?b?)|b|bytes)?", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes of a size such as "4096", "64K", "1.5GiB" or "2 GB".

    K, M, G and T, with or without "iB", are powers of 1024; KB, MB, GB and TB are powers of 1000. Raises UsageError for
    other text, and for a fraction of a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SizeErrors.NOT_A_SIZE(text=text)
    number, prefix, unit = match[1], (match[2] or "").lower(), (match[3] or "").lower()
    power = " kmgt".index(prefix) if prefix else 0
    scaled = Fraction(number) * (1000 if unit == "b" and prefix else 1024) ** power
    if scaled.denominator != 1:
        raise SizeErrors.NOT_WHOLE(text=text)
    return int(scaled)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)
