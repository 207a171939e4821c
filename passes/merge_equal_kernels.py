"""merge-equal-kernels: equal kernels are merged into one.

What: two kernels are equal if their types and bodies print the same without names and locations. The first one is kept;
calls of the others call it.

Why: N layers of the same shape need one kernel, not N; everything after this pass works on distinct kernels and
does not grow with the number of layers.

Before::

    func.func private @tanh.0(%x: tensor<2x8xf32> {sscc.input = "x0"}) -> (tensor<2x8xf32> {sscc.output = "y0"})
        attributes {sscc.kernel} {
      %y = math.tanh %x : tensor<2x8xf32>
      return %y : tensor<2x8xf32>
    }
    func.func private @tanh.7(%x: tensor<2x8xf32> {sscc.input = "x0"}) -> (tensor<2x8xf32> {sscc.output = "y0"})
        attributes {sscc.kernel} {
      %y = math.tanh %x : tensor<2x8xf32>
      return %y : tensor<2x8xf32>
    }
    func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "hidden"})
        -> (tensor<2x8xf32> {sscc.output = "logits"}) {
      %1 = func.call @tanh.0(%h) : (tensor<2x8xf32>) -> tensor<2x8xf32>
      %2 = func.call @tanh.7(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
      return %2 : tensor<2x8xf32>
    }

After::

    func.func private @tanh.0(%x: ..
      %y = math.tanh %x : ..
      return %y : ..
    }
    func.func public @decode(%h: ..
      %1 = call @tanh.0(%h) : ..
      %2 = call @tanh.0(%1) : ..
      return %2 : ..
    }

When it does not apply: bodies that compute the same in another order are not merged.

Preserves: every call and its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from sscc.ir.levels import walk
from sscc.ir.rewriting import functions
from sscc.ir.structure import structure
from sscc.passes.base import Pass, count
from sscc.passes.outline_kernels import KERNEL


@dataclass(frozen=True)
class MergeEqualKernels(Pass):
    name: ClassVar[str] = "merge-equal-kernels"
    takes: ClassVar[tuple[str, ...]] = ("kernels",)
    follows: ClassVar[tuple[str, ...]] = ("outline-kernels",)
    level: ClassVar[str] = "kernels"

    def run(self, module: ir.Module) -> None:
        kernels = [function for function in functions(module) if KERNEL in function.attributes]
        first: dict[str, str] = {}
        kept: dict[str, str] = {}
        for kernel in kernels:
            kept[kernel.name.value] = first.setdefault(structure(kernel), kernel.name.value)
        for op in walk(module):
            if op.name == "func.call":
                op.attributes["callee"] = ir.FlatSymbolRefAttr.get(kept[op.attributes["callee"].value])
        for kernel in kernels:
            if kept[kernel.name.value] != kernel.name.value:
                count("kernels merged into another")
                kernel.operation.erase()
