"""Codecs of cache rows: rows stored as numbers of the program's dtype, or as codes and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sscc.ir.geometry import PLAIN, Geometry
from sscc.ir.kv_rows import FORMATS, RowFormat
from sscc.ir.schedule import DTYPE_BYTES

Array = np.ndarray[Any, np.dtype[Any]]


class RowCodec(Protocol):
    """Storage form of a row of numbers."""

    @property
    def name(self) -> str:
        """Value of ``--kv-dtype`` for this codec."""

    @property
    def rounds(self) -> bool:
        """True if storing a row rounds its numbers."""

    def partial_bits(self, width: int) -> int:
        """Return the bits of a code if the codes of a row of `width` numbers do not fill whole bytes, else 0."""

    def stored(self, width: int, dtype: str) -> tuple[str, int]:
        """Return dtype and elements of a stored row of `width` numbers of a program's `dtype`."""

    def nbytes(self, width: int, dtype: str) -> int:
        """Return the bytes of a stored row of `width` numbers of a program's `dtype`."""

    def numbers(self, elements: int) -> int:
        """Return the number of numbers in a row that is stored as `elements` elements."""

    def encode(self, rows: Array) -> Array:
        """Return rows [.., width] as they are stored."""

    def decode(self, rows: Array) -> Array:
        """Return the numbers of stored rows, [.., width]."""

    def in_name(self) -> str:
        """Return the suffix for a program's short name, or ""."""

    def in_words(self) -> str:
        """Return a description that follows the sizes of a cache, or ""."""


class PlainRows:
    """Rows of the program's own dtype."""

    name = PLAIN
    rounds = False

    def partial_bits(self, width: int) -> int:
        return 0

    def stored(self, width: int, dtype: str) -> tuple[str, int]:
        return dtype, width

    def nbytes(self, width: int, dtype: str) -> int:
        return width * DTYPE_BYTES[dtype]

    def numbers(self, elements: int) -> int:
        return elements

    def encode(self, rows: Array) -> Array:
        return rows

    def decode(self, rows: Array) -> Array:
        return rows

    def in_name(self) -> str:
        return ""

    def in_words(self) -> str:
        return ""


@dataclass(frozen=True)
class CodedRows:
    """Rows of codes and scales (`sscc.ir.kv_rows`)."""

    format: RowFormat
    rounds = True

    @property
    def name(self) -> str:
        return self.format.name

    def partial_bits(self, width: int) -> int:
        return self.format.bits if width * self.format.bits % 8 else 0

    def stored(self, width: int, dtype: str) -> tuple[str, int]:
        return "i8", self.format.width(width)

    def nbytes(self, width: int, dtype: str) -> int:
        return self.format.width(width)

    def numbers(self, elements: int) -> int:
        return self.format.numbers(elements)

    def encode(self, rows: Array) -> Array:
        return self.format.encode(rows)

    def decode(self, rows: Array) -> Array:
        return self.format.decode(rows)

    def in_name(self) -> str:
        return f" {self.name}"

    def in_words(self) -> str:
        return f"; rows of {self.name} codes and {'a scale' if self.format.bits == 8 else 'scales'}"


PLAIN_ROWS = PlainRows()


def codec_of(geometry: Geometry) -> RowCodec:
    """Return the codec of the cache rows of a geometry."""
    return CodedRows(FORMATS[geometry.dtype]) if geometry.encoded else PLAIN_ROWS
