"""How captured operators are taken apart: torch-mlir's table, and rules of ours where its own go wrong for us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_mlir.extras.fx_decomp_util import get_decomposition_table


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Operator -> decomposition, for `ExportedProgram.run_decompositions`."""
    return {**get_decomposition_table(), torch.ops.aten.native_layer_norm.default: native_layer_norm}


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
