"""The kv dialect: operations of a mixture of experts, from their definitions in `sscc.ir.operations`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Several, UndefinedKind, undefined
from sscc.compiler.interpret.types import Types
from sscc.ir import operations
from sscc.ir.opspec import executes


class ExpertUndefinedErrors(UndefinedKind):
    NO_EXPERT = "names the experts {experts}, but there are only {count}"


def expert_product(x: Tensor, weight: Tensor, expert: Tensor, types: Types) -> Tensor:
    """Return each token's rows of `x` [S, Top or 1, I] times the matrices of its experts [S, Top], of `weight` [X, O,
    I]: [S, Top, O]."""
    if bool(((expert < 0) | (expert >= len(weight))).any()):
        undefined(ExpertUndefinedErrors.NO_EXPERT, experts=expert.tolist(), count=len(weight))
    x, dtype = x.expand(*expert.shape, -1), types.sums(x.dtype)
    out = x.new_empty(*expert.shape, weight.shape[1])
    for number in expert.unique().tolist():
        rows = expert == number
        out[rows] = (x[rows].to(dtype) @ weight[number].to(dtype).T).to(x.dtype)
    return out


def topk(source: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row of `source` [S, N] in descending order, ties to the lower index, and their
    indices."""
    values, indices = source.sort(dim=1, descending=True, stable=True)
    return values[:, :count], indices[:, :count]


@executes(operations.ExpertProduct)
def _expert_product(op: ir.Operation, b: Builder) -> Compute:
    types = b.types
    return lambda x, weight, expert: expert_product(x, weight, expert, types)


@executes(operations.TopK)
def _topk(op: ir.Operation, b: Builder) -> Several:
    count = op.results[0].type.shape[1]

    def compute(source: Tensor) -> Sequence[Tensor]:
        return topk(source, count)

    return compute
