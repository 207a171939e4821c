"""Passes of MLIR itself that may be run on a dump by hand: no compilation runs them.

They stay within every level, and what a module has been through (`sscc.passes`) does not name them: they change how
something is computed and not what, so that it is compiled on as if they had not run. (Before `split-layers`, `cse` may
make one value of what two layers compute alike; then layers cannot be told apart any more, which that pass refuses.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from sscc.passes.base import HIDDEN, Pass, run_upstream


@dataclass(frozen=True)
class Upstream(Pass):
    """A pass of MLIR itself, over the whole module."""

    takes = ()
    level = ""
    tidied = False

    def run(self, module: ir.Module) -> None:
        run_upstream(module, f"builtin.module({self.name})", self.name)


_SUMMARIES = {
    "canonicalize": "folds constants, and rewrites operations into the forms that MLIR prefers",
    "cse": "removes operations that nobody uses, and all but one of several equal ones",
    "inline": "replaces calls of functions by their bodies",
    "loop-invariant-code-motion": "moves operations whose operands do not change in a loop before it",
    "sccp": "propagates constants through branches and calls",
    "symbol-dce": "removes private functions that nobody calls",
}

UPSTREAM: dict[str, type[Upstream]] = {
    name: type(name, (Upstream,), {"name": name, "__doc__": text}) for name, text in _SUMMARIES.items()
}
"""By the name that MLIR and pass pipelines use."""

ANCHORS = ("func.func",)
"""Operations on which passes of MLIR may be nested."""
NESTABLE = tuple(name for name in UPSTREAM if name not in ("inline", "symbol-dce"))
"""Passes that may be nested: the others work on modules."""


@dataclass(frozen=True)
class Nested(Upstream):
    """A pipeline of MLIR's passes on each operation of a kind, such as `func.func(canonicalize,cse)`."""

    pipeline: str = field(default="", metadata={HIDDEN: True})

    @property
    def name(self) -> str:  # type: ignore[override]  # a class has one where others have a constant
        """The pipeline."""
        return self.pipeline
