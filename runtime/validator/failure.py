"""How a proof fails, how numbers are shown, and how much work a proof may take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from sscc.ir.errors import InputError


@dataclass(frozen=True)
class Limits:
    """How much work a proof may take before it is given up (and the schedule refused, saying so).

    Attributes:
        firings: firings of one pipeline that are simulated one iteration after another; beyond, until the state of
            the streams repeats.
        rounds: rounds of one simulation.
        painted: elements (after dividing by their common factor) that a cover is painted on, where no formula holds.
        pairs: pairs of firings compared for one hazard.
        steps: control items of one sample run, and iterations of its loops and pipelines.
    """

    firings: int = 20_000
    rounds: int = 100_000
    painted: int = 1 << 24
    pairs: int = 1 << 20
    steps: int = 200_000


def refuse(where: str, reason: str) -> NoReturn:
    """Raises InputError: the schedule is invalid."""
    raise InputError(f"the schedule is invalid: {where}: {reason}")


LARGEST = 1 << 48
"""No number of elements or bytes, and no factor of one, is as large: so that no sum of products leaves 64 bits."""


def check_numbers(where: str, what: str, numbers: Iterable[int]) -> None:
    """Refuses numbers of elements or bytes that no memory has."""
    for number in numbers:
        if not -LARGEST < number < LARGEST:
            refuse(where, f"{what} has the number {number}, the largest is {LARGEST - 1}")


def megabytes(nbytes: float) -> str:
    """Bytes in units of 2**20, or as they are below that: "612 MB", "4096 bytes"."""
    return f"{nbytes / 2**20:.6g} MB" if nbytes >= 2**20 else f"{nbytes:.0f} bytes"
