"""Random weights for a program whose own weights are not available."""

from __future__ import annotations

import zlib

import torch

from sscc.runtime.artifact.tensor_files import Layout, TensorSpec
from sscc.runtime.backends.reference.arrays import TORCH_DTYPES

SEED = 0


def random_tensors(layout: Layout, seed: int = SEED) -> dict[str, torch.Tensor]:
    """Return a tensor for every source of `layout`, scaled so that activations keep their size through the layers.

    Matrices are normal with variance 1 / (size of the last axis), so that a product of rows of unit size is of unit
    size. Vectors scatter by 0.1 around 1 if they scale (norms), or around 0 if they are added (named bias). A tensor
    depends only on its name, its shape and the seed.
    """
    parts = {source: stack.source for stack in layout.values() for source in stack.sources}
    return {name: _random(name, spec, seed) for name, spec in parts.items()}


def _random(name: str, spec: TensorSpec, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
    values = torch.randn(spec.shape, generator=generator)
    if len(spec.shape) > 1:
        values /= spec.shape[-1] ** 0.5
    else:
        values = values * 0.1 + (0.0 if name.endswith("bias") else 1.0)
    return values.to(TORCH_DTYPES[spec.dtype])
