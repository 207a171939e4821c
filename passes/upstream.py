"""Passes of MLIR's own that may be run on a dump by hand: no compilation runs them.

They stay within every level, and what a module has been through (`sscc.passes`) does not name them: they change how
something is computed and not what, so that it is compiled on as if they had not run. (Before `split-layers`, `cse` may
make one value of what two layers compute alike; then layers cannot be told apart any more, which that pass refuses.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from sscc.passes.base import Pass, run_upstream


@dataclass(frozen=True)
class Upstream(Pass):
    """A pass of MLIR's own, over the whole module."""

    takes = ()
    level = ""
    tidied = False

    def run(self, module: ir.Module) -> None:
        run_upstream(module, f"builtin.module({self.name})", self.name)


class Canonicalize(Upstream):
    """folds constants, and rewrites operations into the forms that MLIR prefers"""

    name = "canonicalize"


class Cse(Upstream):
    """removes operations that nobody uses, and all but one of several equal ones"""

    name = "cse"


class LoopInvariantCodeMotion(Upstream):
    """moves what does not change in a loop before it"""

    name = "loop-invariant-code-motion"


class Sccp(Upstream):
    """propagates constants through branches and calls"""

    name = "sccp"


UPSTREAM: dict[str, type[Upstream]] = {
    kind.name: kind for kind in (Canonicalize, Cse, LoopInvariantCodeMotion, Sccp)
}
"""By the name that MLIR and pass pipelines use."""
