"""MLIR's own passes that can be run on a dump by hand; no compilation runs them.

They do not change the level of a module, and the module's history (`sscc.passes`) does not record them: they change how
a value is computed and not its definition, so that compilation continues as if they had not run. (Before
`split-layers`, `cse` may merge equal computations of two layers. `split-layers` then refuses the module, because it
cannot tell the layers apart.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from sscc.passes.base import HIDDEN, Pass, run_upstream


@dataclass(frozen=True)
class Upstream(Pass):
    """A pass of MLIR on the whole module."""

    takes = ()
    level = ""
    tidied = False

    def run(self, module: ir.Module) -> None:
        run_upstream(module, f"builtin.module({self.name})", self.name)


_SUMMARIES = {
    "canonicalize": "folds constants and rewrites operations to MLIR's canonical forms",
    "cse": "removes unused and duplicate operations",
    "inline": "replaces calls of functions with their bodies",
    "loop-invariant-code-motion": "moves loop-invariant operations in front of their loop",
    "sccp": "propagates constants through branches and calls",
    "symbol-dce": "removes private functions that are never called",
}

UPSTREAM: dict[str, type[Upstream]] = {
    name: type(name, (Upstream,), {"name": name, "__doc__": text}) for name, text in _SUMMARIES.items()
}
"""Passes by the name that MLIR and pass pipelines use."""

ANCHORS = ("func.func",)
"""Operations on which passes of MLIR can be nested."""
NESTABLE = tuple(name for name in UPSTREAM if name not in ("inline", "symbol-dce"))
"""Passes that can be nested; the others work on modules."""


@dataclass(frozen=True)
class Nested(Upstream):
    """A pipeline of MLIR's passes on each operation of a kind, such as `func.func(canonicalize,cse)`."""

    pipeline: str = field(default="", metadata={HIDDEN: True})

    @property
    def name(self) -> str:  # type: ignore[override]  # a class has one where others have a constant
        """Text of the pipeline."""
        return self.pipeline
