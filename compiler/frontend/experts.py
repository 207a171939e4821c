"""The operators through which captured models call and select their experts.

transformers runs every class of experts through an interface (`use_experts_implementation`), as it does attention. A
model built with ``experts_implementation="sscc"`` calls `torch.ops.sscc.expert_product` for each matrix of its experts;
the operations between the products (gate, activation, biases, norm, routing weights) are the module's own code, and so
is its router.

Importing this module registers the operators and the experts implementation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from sscc.compiler.frontend.operator import IMPLEMENTATION
from sscc.ir.errors import ErrorKind, UnsupportedError

# -------------------------------------------------------------------------------------------------- the operators


class ExpertErrors(ErrorKind):
    PARALLEL = UnsupportedError, "{type} divides its experts among devices: load the model without expert parallelism"
    SHAPES = UnsupportedError, "{type} gets tensors of {shapes}, expected tokens [T, H], experts and weights [T, k]"
    DTYPES = UnsupportedError, "{type} multiplies {dtype} by {weight} of {weight_dtype}, expected one dtype"


@torch.library.custom_op("sscc::expert_product", mutates_args=())
def expert_product(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Each token's rows times the matrices of its experts.

    Args:
        x: [T, k, I], or [T, 1, I] if all experts of a token get the same row.
        weight: [X, O, I], one matrix per expert, of x's dtype.
        expert: [T, k] integers of 0 .. X - 1.

    Returns:
        [T, k, O] of x's dtype: ``weight[expert[t, j]] @ x[t, j]``.
    """
    x = x.expand(*expert.shape, -1)
    out = x.new_empty(*expert.shape, weight.shape[1])
    for number in expert.unique().tolist():
        rows = expert == number
        out[rows] = x[rows] @ weight[number].T
    return out


@expert_product.register_fake
def _(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    return x.new_empty(*expert.shape, weight.shape[1])


@torch.library.custom_op("sscc::topk", mutates_args=())
def topk(source: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest numbers of each row of `source` [S, N], descending, and their indices, both [S, k]; ties to the
    lower index."""
    values, indices = source.sort(dim=1, descending=True, stable=True)
    return values[:, :k].clone(), indices[:, :k].clone()


@topk.register_fake
def _(source: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return source.new_empty(source.shape[0], k), source.new_empty(source.shape[0], k, dtype=torch.int64)


# ------------------------------------------------------------------------------- registration with transformers


def expert_modules(model: torch.nn.Module) -> list[str]:
    """Return the paths of the modules of experts that transformers runs through its interface."""
    return [name for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel")]


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The transformers experts implementation named "sscc": the computation of transformers'
    `batched_mm_experts_forward`, with a call of `sscc::expert_product` per matrix.

    Args:
        self: module of experts. Its weights are [X, O, I], or [X, I, O] with `is_transposed`.
        hidden_states: [T, H].
        top_k_index: [T, k], the experts of each token.
        top_k_weights: [T, k].

    Returns:
        [T, H] of the dtype of `hidden_states`: the weighted sum over each token's experts.

    Raises:
        UnsupportedError: operands of other shapes, or experts that are divided among devices.
    """
    name = type(self).__name__
    if self._is_expert_parallel:
        raise ExpertErrors.PARALLEL(type=name)
    if hidden_states.dim() != 2 or top_k_index.dim() != 2 or top_k_weights.shape != top_k_index.shape:
        shapes = [list(tensor.shape) for tensor in (hidden_states, top_k_index, top_k_weights)]
        raise ExpertErrors.SHAPES(type=name, shapes=[str(shape) for shape in shapes])
    x = _linear(self, "gate_up_proj" if self.has_gate else "up_proj", hidden_states[:, None], top_k_index)
    x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
    x = _linear(self, "down_proj", x, top_k_index)
    if self.has_post_expert_norm:
        x = self.post_expert_norm(x)
    return (x * top_k_weights[..., None]).sum(dim=1).to(hidden_states.dtype)


def _linear(module: Any, name: str, x: Tensor, expert: Tensor) -> Tensor:
    """Return rows [T, k or 1, I] times the matrices `name` of a module of experts, plus its biases: [T, k, O]."""
    weight: Tensor = getattr(module, name)
    if module.is_transposed:
        weight = weight.transpose(1, 2)
    if weight.dtype != x.dtype:
        raise ExpertErrors.DTYPES(type=type(module).__name__, dtype=x.dtype, weight=name, weight_dtype=weight.dtype)
    out: Tensor = torch.ops.sscc.expert_product(x, weight, expert)
    return out + getattr(module, f"{name}_bias")[expert] if module.has_bias else out


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
