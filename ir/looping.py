"""What became of runs of equal layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Looping:
    """One run of calls of the same kernels in an entry, which the compiler looped or refused to.

    Attributes:
        entry: "prefill" or "decode".
        kernel: the kernel that is called, or several joined by "+" where they take turns.
        layers: how many calls.
        reason: why they were not looped; "" if they were.
    """

    entry: str
    kernel: str
    layers: int
    reason: str = ""

    @property
    def looped(self) -> bool:
        return not self.reason
