"""Base of the kinds of failed proofs, numbers in their messages, and limits of a proof's work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, InputError


class ProofKind(ErrorKind):
    """Base of the kinds of failed proofs. Every message begins with the place in the schedule."""

    def __init__(self, message: str) -> None:
        super().__init__(InputError, "the schedule is invalid: {where}: " + message)


class NumberProofErrors(ProofKind):
    """Numbers of elements and bytes that exceed any memory."""

    TOO_LARGE = "{subject} has the number {number}, whose magnitude must be at most {largest}"


@dataclass(frozen=True)
class Limits:
    """Limits of a proof's work, beyond which the schedule is refused with this reason.

    Attributes:
        firings: firings of one pipeline that are simulated iteration by iteration; longer pipelines are simulated until
            the state of the streams repeats.
        rounds: rounds of one simulation.
        painted: elements (after dividing by their common factor) of a region that is checked element by element, if no
            formula applies.
        pairs: pairs of firings compared for one hazard.
        steps: control items of one sample run, and iterations of its loops and pipelines.
    """

    firings: int = 20_000
    rounds: int = 100_000
    painted: int = 1 << 24
    pairs: int = 1 << 20
    steps: int = 200_000


LARGEST = 1 << 48
"""Bound on numbers of elements or bytes and their factors, so that sums of products stay within 64 bits."""


def check_numbers(where: str, subject: str, numbers: Iterable[int]) -> None:
    """Check that no number of elements or bytes is larger than any memory."""
    for number in numbers:
        if not -LARGEST < number < LARGEST:
            raise NumberProofErrors.TOO_LARGE(where=where, subject=subject, number=number, largest=LARGEST - 1)


class Bytes(int):
    """A number of bytes, shown in messages by `megabytes`."""

    def __str__(self) -> str:
        return megabytes(self)


def megabytes(nbytes: float) -> str:
    """Return bytes in units of 2**20, or as they are below that: "612 MB", "4096 bytes"."""
    return f"{nbytes / 2**20:.6g} MB" if nbytes >= 2**20 else f"{nbytes:.0f} bytes"
