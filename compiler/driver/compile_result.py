"""The result of a compilation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sscc.ir.errors import SsccError


@dataclass(frozen=True)
class CompileResult:
    """An artifact, or a module of a lower level, and what to tell about it.

    Attributes:
        path: the artifact's folder, or the .mlir file of a lower level.
        level: the level that was reached, "schedule" for an artifact.
        report: lines about the result (geometry, sizes, counts of kernels and launches).
        warnings: each with a `kind` and `fields`; they were shown on stderr already (`sscc.compiler.options.warning`).
    """

    path: Path
    level: str
    report: tuple[str, ...] = field(default=(), repr=False)
    warnings: tuple[SsccError, ...] = field(default=(), repr=False)

    def __fspath__(self) -> str:
        """`path`, so that `sscc.load` and `sscc.LLM` take what `sscc.compile` gave."""
        return str(self.path)

    def __str__(self) -> str:
        """The report, and what was written."""
        return "\n".join((*self.report, f"wrote {self.path}"))
