"""merge-equal-kernels: kernels that do the same become one.

What: two kernels are equal when their types and bodies print the same, names and locations left out. The first
one stays; calls of the others call it.

Why: N layers of the same shape need one kernel, not N; everything after this pass works on distinct kernels and
does not grow with the number of layers.

Before::

    %1 = call @matmul.0(%x, %w0)
    %2 = call @matmul.7(%1, %w1)

After::

    %1 = call @matmul.0(%x, %w0)
    %2 = call @matmul.0(%1, %w1)

When it does not apply: bodies that compute the same in another order stay apart.

Preserves: every call and its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.levels import walk
from sscc.ir.rewriting import functions
from sscc.passes.base import Pass
from sscc.passes.outline_kernels import KERNEL


@dataclass(frozen=True)
class MergeEqualKernels(Pass):
    name: ClassVar[str] = "merge-equal-kernels"
    level: ClassVar[str] = "kernels"

    def run(self, module: ir.Module) -> None:
        kernels = [function for function in functions(module) if KERNEL in function.attributes]
        first: dict[str, str] = {}
        kept: dict[str, str] = {}
        for kernel in kernels:
            kept[kernel.name.value] = first.setdefault(_structure(kernel), kernel.name.value)
        for op in walk(module):
            if op.name == "func.call":
                op.attributes["callee"] = ir.FlatSymbolRefAttr.get(kept[op.attributes["callee"].value])
        for kernel in kernels:
            if kept[kernel.name.value] != kernel.name.value:
                kernel.operation.erase()


def _structure(kernel: Any) -> str:
    """The kernel's types and body as text, with values numbered by their order inside the kernel."""
    numbers: dict[ir.Value, int] = {}
    lines = [str(kernel.type)]
    _describe(kernel.operation, numbers, lines)
    return "\n".join(lines)


def _describe(op: ir.Operation, numbers: dict[ir.Value, int], lines: list[str]) -> None:
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                numbers[argument] = len(numbers)
            for inner in block.operations:
                operation = inner.operation
                operands = [numbers[value] for value in operation.operands]
                attributes = sorted(f"{name}={operation.attributes[name]}" for name in operation.attributes)
                types = [str(result.type) for result in operation.results]
                lines.append(f"{operation.name} {operands} {attributes} {types}")
                for result in operation.results:
                    numbers[result] = len(numbers)
                _describe(operation, numbers, lines)
