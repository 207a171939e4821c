"""Transposition of rows of 16 lanes to columns, in registers."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.mlir import Function, Value, lanes_of


def store_columns(f: Function, rows: Sequence[Value], out: Value) -> None:
    """Store the columns of 1 .. 16 rows of 16 lanes of 4 bytes: lane i of row r at out + 4 * (i * rows + r).

    Whole vectors are stored in ascending order, so up to 15 elements after the last column are overwritten.
    """
    if len(rows) & (len(rows) - 1) == 0:
        for number, dense in enumerate(interleave(f, rows)):
            f.store(dense, out + 4 * LANES * number)
        return
    for lane, column in enumerate(transpose(f, rows)):
        f.store(column, out + 4 * lane * len(rows))


def interleave(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Return 1, 2, 4, 8 or 16 rows as their columns one after another: the same number of vectors of as many lanes."""
    if len(rows) == 1:
        return list(rows)
    count, vectors = lanes_of(rows[0].type), []
    lanes = [lane // 2 + count * (lane % 2) for lane in range(2 * count)]
    for even, odd in zip(interleave(f, rows[::2]), interleave(f, rows[1::2]), strict=True):
        vectors += [f.shuffle(even, odd, lanes[:count]), f.shuffle(even, odd, lanes[count:])]
    return vectors


def transpose(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Return column i of 1 .. 16 rows as lanes, for i = 0 .. 15; lanes of missing rows are unspecified."""
    held = [*rows, *[rows[-1]] * (LANES - len(rows))]
    for distance in (8, 4, 2, 1):
        low = [lane if not lane & distance else LANES + lane - distance for lane in range(LANES)]
        high = [lane + distance if not lane & distance else LANES + lane for lane in range(LANES)]
        swapped = list(held)
        for i in range(LANES):
            if not i & distance:
                swapped[i] = f.shuffle(held[i], held[i + distance], low)
                swapped[i + distance] = f.shuffle(held[i], held[i + distance], high)
        held = swapped
    return held
