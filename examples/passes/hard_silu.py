"""hard-silu: replace the logistic function of gates by a piecewise linear one.

What: `1 / (1 + exp(-x))` becomes `min(max(x / 6 + 1/2, 0), 1)` (arXiv 1905.02244), in any operation.

Why: an example of a user-defined pass. It changes the model's outputs, which `sscc bisect` finds, and its operations,
which `sscc inspect` shows::

    sscc compile MODEL --load-pass examples/passes/hard_silu.py --pass-statistics -o hard.rdu
    sscc bisect MODEL --load-pass examples/passes/hard_silu.py

When it does not apply: the exponential has other users, or the other term of the sum is not 1.

Preserves: everything else. The module keeps its level, so the pass may run after any pass of level graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith

from sscc.ir.levels import walk
from sscc.passes.base import Pass, count


def _is(value: ir.Value, name: str) -> bool:
    return isinstance(value.owner, ir.Operation | ir.OpView) and value.owner.operation.name == name


def _is_one(value: ir.Value) -> bool:
    if not _is(value, "arith.constant"):
        return False
    attribute = value.owner.operation.attributes["value"]
    return isinstance(attribute, ir.FloatAttr) and attribute.value == 1.0


def _argument(division: ir.Operation) -> ir.Value | None:
    """Return x of `1 / (1 + exp(-x))`; None for another division."""
    one, total = division.operands
    if not (_is_one(one) and _is(total, "arith.addf")):
        return None
    terms = list(total.owner.operation.operands)
    powers = [term for term in terms if _is(term, "math.exp")]
    if len(powers) != 1 or not any(map(_is_one, terms)):
        return None
    (exponent,) = powers[0].owner.operation.operands
    return exponent.owner.operation.operands[0] if _is(exponent, "arith.negf") else None


@dataclass(frozen=True)
class HardSilu(Pass):
    name: ClassVar[str] = "hard-silu"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("build-entries",)
    level: ClassVar[str] = ""

    def run(self, module: ir.Module) -> None:
        for division in [op for op in walk(module) if op.name == "arith.divf"]:
            x = _argument(division)
            if x is None:
                continue
            with ir.InsertionPoint(division), division.location:
                sixth, half, zero, one = (arith.constant(x.type, value) for value in (1 / 6, 0.5, 0.0, 1.0))
                line = arith.addf(arith.mulf(x, sixth), half)
                hard = arith.minimumf(arith.maximumf(line, zero), one)
            division.results[0].replace_all_uses_with(hard)
            division.erase()
            count("gates")
