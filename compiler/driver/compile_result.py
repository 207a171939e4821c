"""The result of a compilation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sscc.ir.errors import SsccError


@dataclass(frozen=True)
class CompileResult:
    """An artifact, or a module of a lower level, with a report.

    Attributes:
        path: folder of the artifact, or .mlir file of a lower level.
        level: reached level, "schedule" for an artifact.
        report: lines about the result (geometry, sizes, counts of kernels and launches).
        warnings: warnings, each with a `kind` and `fields`; they have already been shown on stderr
            (`sscc.compiler.options.warning`).
    """

    path: Path
    level: str
    report: tuple[str, ...] = field(default=(), repr=False)
    warnings: tuple[SsccError, ...] = field(default=(), repr=False)

    def __fspath__(self) -> str:
        """Return `path`, so that `sscc.load` and `sscc.LLM` accept the result of `sscc.compile`."""
        return str(self.path)

    def __str__(self) -> str:
        """Return the report, and the path that was written."""
        return "\n".join((*self.report, f"wrote {self.path}"))
