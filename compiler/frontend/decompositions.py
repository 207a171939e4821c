"""How captured operators are taken apart: torch-mlir's table, and rules of ours where its own go wrong for us."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_mlir.extras.fx_decomp_util import get_decomposition_table


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Operator -> decomposition, for `ExportedProgram.run_decompositions`."""
    ours: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.native_layer_norm.default: native_layer_norm,
        torch.ops.aten.gelu.default: gelu,
    }
    # aten.full is not decomposed: its decomposition fills uninitialised memory in place, which is no tensor value.
    theirs = {op: rule for op, rule in get_decomposition_table().items() if op != torch.ops.aten.full.default}
    return {**theirs, **ours}


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU (arXiv 1606.08415), exact or by tanh, computed in f32 and rounded once to x's dtype, as eager does.

    torch-mlir's own lowering of the tanh form has 0.797724 for sqrt(2 / pi) = 0.797885 (2e-4 off).
    """
    wide = x.to(torch.float32)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm over the last `len(shape)` dimensions, computed in f32.

    torch-mlir's own lowering takes the variance in f64, which no accelerator of this kind has; eager PyTorch
    accumulates in f32. Returns the normalised tensor of x's dtype, the mean, and the reciprocal deviation.
    """
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = x.to(torch.float32)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    scale = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    out = centred * scale
    if weight is not None:
        out = out * weight.to(torch.float32)
    if bias is not None:
        out = out + bias.to(torch.float32)
    return out.to(x.dtype), mean, scale
