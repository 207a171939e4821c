"""What a compilation gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CompileResult:
    """Attributes:
    path: what was written: the artifact's folder, or the .mlir file of a lower level.
    level: the level that was reached, "schedule" for an artifact.
    report: lines for the person who asked (geometry, sizes, counts of kernels and launches).
    """

    path: Path
    level: str
    report: tuple[str, ...] = field(default=(), repr=False)

    def __fspath__(self) -> str:
        """`path`, so that `sscc.load` and `sscc.LLM` take what `sscc.compile` gave."""
        return str(self.path)

    def __str__(self) -> str:
        """The report, and what was written."""
        return "\n".join((*self.report, f"wrote {self.path}"))
