"""Formats of quantized weights: one descriptor each, from which everything else is derived.

Readers of checkpoints, the bytes of a schedule's tensors, the validator, the reference interpreter, native packing and
products, `--weights` and the documents all read this record. Formats of checkpoints whose codes have a scale per group
are in `groups`, those of GGUF in `ggml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from sscc.ir.weight_formats.fields import Field

MOST_PARTS = 3
"""Maximum number of parts of a format."""
RANKS = (2, 3)
"""Ranks of quantized weights: a matrix, or one matrix per expert."""


@dataclass(frozen=True)
class Part:
    """A stored tensor of a weight, i8 [.., rows, columns // block * bytes].

    Attributes:
        name: last word of the tensor's name.
        bytes: bytes of each block.
    """

    name: str
    bytes: int


@dataclass(frozen=True)
class WeightFormat:
    """Storage of a matrix of weights [rows, columns], and the formula of its numbers.

    A row is cut into blocks of `block` weights. The value of a weight is, in f32, each operation rounded::

        (code - zero) * (scale * scale ..)               without minimums
        code * (scale * scale ..) + minimum * ..         with minimums, or - if `subtracts`

    where `code` is an integer less its bias, an entry of a table, or a small float. Products of scales and of minimums
    are computed first, from the first to the last.

    Attributes:
        name: name in schedules and options.
        block: weights of a block.
        parts: stored tensors.
        codes: field of the codes, one per weight.
        scales: fields of scales, from the coarsest to the finest.
        minimums: fields of minimums, likewise; empty for formats without them.
        zeros: zero point of each group of weights, in units of codes.
        subtracts: True if minimums are subtracted.
    """

    name: str
    block: int
    parts: tuple[Part, ...]
    codes: Field
    scales: tuple[Field, ...]
    minimums: tuple[Field, ...] = ()
    zeros: Field | None = None
    subtracts: bool = False

    def __str__(self) -> str:
        return self.name

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """All fields, codes first."""
        return (self.codes, *self.scales, *self.minimums, *(() if self.zeros is None else (self.zeros,)))

    @cached_property
    def group(self) -> int:
        """Number of weights that share scale, minimum and zero point."""
        group = self.block
        for field in self.fields[1:]:
            group = gcd(group, field.per)
        return group

    @cached_property
    def bytes_of(self) -> dict[str, int]:
        """Bytes of a block in each part, by name."""
        return {part.name: part.bytes for part in self.parts}

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block

    @cached_property
    def operations(self) -> int:
        """Operations per weight for computing its value from its bits."""
        pieces = len(self.codes.runs[0])
        whole = self.codes.bits == 8 or self.codes.is_float
        unpacking = 0 if whole else 3 * pieces - 1  # shift and mask of each piece, and joins
        based = self.zeros is not None or bool(self.codes.bias)
        return unpacking + 1 + based + bool(self.scales) + bool(self.minimums)

    def stored(self, part: str, *shape: int) -> tuple[int, ...]:
        """Return the shape of a part of a weight [.., rows, columns], `columns` a multiple of the block."""
        *rows, columns = shape
        return *rows, columns // self.block * self.bytes_of[part]

    def columns(self, part: str, stored: int) -> int:
        """Return the columns of a weight from the bytes in a row of one of its parts."""
        return stored // self.bytes_of[part] * self.block

    def has_widths(self, widths: Sequence[int], columns: int) -> bool:
        """Return True if a weight with these columns has rows of these bytes, one number for each part."""
        wanted = [self.stored(part.name, columns)[-1] for part in self.parts]
        return columns % self.block == 0 and list(widths) == wanted
