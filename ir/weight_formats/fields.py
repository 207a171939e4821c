"""Bit fields of the blocks in which quantized weights are stored.

A block holds `block` consecutive weights of a row. Its bytes hold several fields: the codes of the weights, scales,
minimums, zero points. A field is one number per weight, per group of weights or per block. This module describes the
bits of the block that hold each number, and their conversion to a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sscc.ir.errors import ErrorKind, InternalError

Kind = Literal["unsigned", "signed", "exponent", "e4m3", "f16", "bf16", "f32"]
"""The type of a stored number: an unsigned or a two's complement integer, an exponent of 2 (e8m0), or a float."""

FLOAT_BYTES: dict[str, int] = {"e4m3": 1, "f16": 2, "bf16": 2, "f32": 4}
"""Bytes of the floats that have whole bytes of their own, little endian."""

DIGITS = 5
"""Ternary digits of a byte."""


class FieldErrors(ErrorKind):
    OVERLAP = InternalError, "runs of {field!r} hold {count} numbers, but describe {runs}"


@dataclass(frozen=True)
class Run:
    """Bits of consecutive numbers of a field.

    The bits of `side` numbers lie in `side` neighboring bytes; the next `side` numbers follow in higher bits of these
    bytes, until the bytes are full, and then in the next bytes::

        byte at + 0     number 0 (low bits), number side,     number 2 * side, ..
        byte at + 1     number 1,            number side + 1, ..

    Attributes:
        at: first byte, counted from the start of the block.
        count: number of numbers.
        bits: bits of each number that lie in this run.
        side: numbers that lie in neighboring bytes.
        low: lowest bit of a byte that the run uses.
        shift: place of these bits in the number.
        base: 2, or 3 if a byte holds five ternary digits: digit d of byte b is (b * 3^d mod 256) * 3 // 256.
    """

    at: int
    count: int
    bits: int
    side: int = 1
    low: int = 0
    shift: int = 0
    base: Literal[2, 3] = 2

    def place(self, number: int) -> tuple[int, int]:
        """Return the byte that holds a number of the run, and the lowest of its bits (its digit where base is 3)."""
        row, column = divmod(number, self.side)
        per_byte = DIGITS if self.base == 3 else (8 - self.low) // self.bits
        level = row % per_byte
        byte = self.at + row // per_byte * self.side + column
        return byte, level if self.base == 3 else self.low + self.bits * level


@dataclass(frozen=True)
class Field:
    """Numbers of a block: codes, scales, minimums or zero points.

    Attributes:
        name: name in messages and documents.
        part: the stored tensor that holds them.
        per: weights that share a number: 1 for codes.
        count: numbers of a block.
        runs: consecutive groups of runs; a group has the runs that hold the bits of the same numbers, low bits first. A
            float has one run with its first byte.
        kind: conversion of bits to a number.
        bias: subtracted from an integer, or from the exponent.
        table: integer for each code; empty if it is the code less `bias`.
    """

    name: str
    part: str
    per: int
    count: int
    runs: tuple[tuple[Run, ...], ...]
    kind: Kind = "unsigned"
    bias: int = 0
    table: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        described = sum(group[0].count for group in self.runs)
        if described != self.count:
            raise FieldErrors.OVERLAP(field=self.name, count=self.count, runs=described)

    @cached_property
    def bits(self) -> int:
        """Bits of a number; 2 for a ternary digit."""
        if self.kind in FLOAT_BYTES:
            return 8 * FLOAT_BYTES[self.kind]
        return max(run.shift + run.bits for run in self.runs[0])

    @property
    def is_float(self) -> bool:
        """True for numbers that are floats, each in bytes of its own."""
        return self.kind in FLOAT_BYTES

    @property
    def is_ternary(self) -> bool:
        return self.runs[0][0].base == 3

    @property
    def largest(self) -> int:
        """The largest unsigned integer of the field's bits."""
        return 2 if self.is_ternary else (1 << self.bits) - 1

    @property
    def offset(self) -> int:
        """Code of 0, without table and zero point."""
        return self.bias

    def pieces(self) -> list[list[tuple[int, int, int, int, int]]]:
        """Return for each number its pieces (byte, bit or digit, bits, shift, base), low bits first."""
        return [
            [(*run.place(number), run.bits, run.shift, run.base) for run in group]
            for group in self.runs
            for number in range(group[0].count)
        ]


def bits_field(name: str, part: str, per: int, *runs: Run, kind: Kind = "unsigned", bias: int = 0,
               table: tuple[int, ...] = ()) -> Field:  # fmt: skip
    """Return a field whose runs all hold bits of the same numbers."""
    return Field(name, part, per, runs[0].count, (runs,), kind, bias, table)


def float_field(name: str, part: str, per: int, at: int, kind: Kind, *, count: int = 1) -> Field:
    """Return a field of floats that lie one after another from byte `at` on."""
    return Field(name, part, per, count, ((Run(at, count, 8 * FLOAT_BYTES[kind]),),), kind)
