"""lower-torch: the torch dialect becomes linalg on tensors, by torch-mlir's own passes.

What: torch-mlir's published lowering, spelled out, with two differences. Its last verification is left out,
because it rejects every foreign dialect, `kv` among them. Common subexpression elimination is left out, because
it would merge equal computations of two layers and blur the boundary between them.

An assignment to a part of a tensor (`x[..., 1::2] = y`) becomes a computation of the whole tensor: an insertion at
later levels is an update in place, but the model may still read the old value.

Products whose operands were widened from bf16 to f32 read the bf16 operands instead (`narrow_operands`).

Checks that a token is inside the vocabulary become a check at entry (the program's `vocab_size`), so the
assertions inside loops are dropped here.

Why: later passes work on a handful of operations with exact semantics, independent of torch's operators.

Before::

    func.func @decode(%x: !torch.vtensor<[2,3],f32> {sscc.input = "x"}) -> !torch.vtensor<[2,3],f32> {
      %0 = torch.aten.tanh %x : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
      return %0 : !torch.vtensor<[2,3],f32>
    }

After::

    func.func @decode(%x: tensor<2x3xf32> {sscc.input = "x"}) -> tensor<2x3xf32> {
      %empty = tensor.empty() : tensor<2x3xf32>
      %1 = linalg.generic .. ins(%x : tensor<2x3xf32>) outs(%empty : tensor<2x3xf32>) {
      ^bb0(%in: f32, %out: f32):
        %2 = math.tanh %in : f32
        linalg.yield %2 : f32
      } -> tensor<2x3xf32>
      return %1 : tensor<2x3xf32>
    }

When it does not apply: an operator without a lowering is refused by name, with its source line.

Preserves: locations (module path and source line), argument attributes, function names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from sscc.ir.context import first_diagnostic
from sscc.ir.errors import ErrorKind, SsccError, UnsupportedError
from sscc.ir.levels import walk
from sscc.ir.locations import origin_of
from sscc.passes.base import Pass, count, run_upstream
from sscc.passes.insertions import compute_insertions
from sscc.passes.narrow_operands import narrow_operands

_CANONICALIZE = "func.func(canonicalize)"
_TO_BACKEND_CONTRACT = "builtin.module(torchdynamo-export-to-torch-backend-pipeline)"
_TO_LINALG = (
    "builtin.module("
    "func.func(torch-restructure-non-constant-axes),"
    "func.func(convert-torch-to-tmtensor),"
    f"{_CANONICALIZE},"
    "func.func(convert-torch-to-linalg),"
    f"{_CANONICALIZE},"
    "func.func(convert-torch-to-scf),"
    "func.func(convert-torch-to-arith),"
    "func.func(convert-torch-to-tensor),"
    f"{_CANONICALIZE},"
    "func.func(resolve-shaped-type-result-dims),"
    "torch-func-backend-type-conversion,"
    f"{_CANONICALIZE},"
    "func.func(torch-finalizing-backend-type-conversion)"
    ")"
)


class LowerTorchErrors(ErrorKind):
    NO_SUCH_OPERATION = UnsupportedError, "{origin}an operator is lowered to {op}, which sscc does not support"
    NO_LOWERING = UnsupportedError, "{origin}the operator {operator} cannot be lowered to linalg"
    FAILED = UnsupportedError, "the model cannot be lowered to linalg: {diagnostic}"


@dataclass(frozen=True)
class LowerTorch(Pass):
    name: ClassVar[str] = "lower-torch"
    takes: ClassVar[tuple[str, ...]] = ("import",)
    follows: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "graph"
    # Equal computations of two layers must stay separate until each layer is a function.
    tidied: ClassVar[bool] = False

    def run(self, module: ir.Module) -> None:
        for pipeline in (_TO_BACKEND_CONTRACT, _TO_LINALG):
            try:
                PassManager.parse(pipeline).run(module.operation)
            except ir.MLIRError as error:
                raise _unlowered(error) from None
        for op in list(walk(module)):
            if op.name == "cf.assert":
                op.erase()
            elif op.name.startswith("tm_tensor."):  # sequential operations of a dialect that comes with torch-mlir
                raise LowerTorchErrors.NO_SUCH_OPERATION(origin=origin_of(op), op=op.name)
        count("products of narrow operands", narrow_operands(module))
        run_upstream(module, f"builtin.module({_CANONICALIZE})", "canonicalize")
        count("insertions computed", compute_insertions(module))


def _unlowered(error: ir.MLIRError) -> SsccError:
    for diagnostic in error.error_diagnostics:
        # An operator that torch-mlir does not know is a torch.operator with a name.
        unknown = re.search(r"torch\.operator.*name = \"([^\"]+)\"", diagnostic.message)
        match = unknown or re.search(r"operation '([^']+)'", diagnostic.message)
        if match:
            return LowerTorchErrors.NO_LOWERING(origin=origin_of(diagnostic), operator=match.group(1))
    return LowerTorchErrors.FAILED(diagnostic=first_diagnostic(error))
