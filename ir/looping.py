"""Outcomes of looping runs of equal layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Looping:
    """A run of calls of the same kernels in an entry, which the compiler looped or did not loop.

    Attributes:
        entry: "prefill" or "decode".
        kernel: the called kernel, or several joined by "+" if they alternate.
        layers: number of calls.
        reason: why they were not looped; "" if they were.
    """

    entry: str
    kernel: str
    layers: int
    reason: str = ""

    @property
    def looped(self) -> bool:
        return not self.reason
