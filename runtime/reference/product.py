"""Products: out[..] = sum over the reduced dimensions of a[..] * b[..], as one batched matrix product.

Both operands are widened to the accumulation dtype first, so the only rounding is that of the write. The
iteration dimensions fall into five groups by who uses them: batch (a and b), rows (a), columns (b), summed
(both) and lone ones (in no operand, or reduced in one only).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from sscc.runtime.reference.access import AccessMap
from sscc.runtime.reference.interface import Bind, Fire, Interface, Scalars, Views
from sscc.runtime.reference.numerics import FLOATS
from sscc.runtime.reference.vector import check_output, check_reduced
from sscc.runtime.schedule import Product


def compile_product(stage: Product, kernel: Interface) -> Bind:
    """Any contraction of two floating parameters into a third. Shapes follow from the access maps."""
    a, b, output = (AccessMap(access, stage.dims, kernel) for access in (stage.a, stage.b, stage.output))
    free = [dim for dim in range(len(stage.dims)) if dim not in stage.reduce]
    check_output(output, kernel, free)
    check_reduced(stage.reduce, stage.dims, output, kernel)
    if any(access.param.dtype not in FLOATS for access in (a, b, output)):
        kernel.refuse(f"a product takes floats, not {a.param.dtype} times {b.param.dtype}")
    batch = [dim for dim in free if a.uses(dim) and b.uses(dim)]
    rows = [dim for dim in free if a.uses(dim) and not b.uses(dim)]
    columns = [dim for dim in free if b.uses(dim) and not a.uses(dim)]
    summed = [dim for dim in stage.reduce if a.uses(dim) and b.uses(dim)]
    only_a = [dim for dim in stage.reduce if a.uses(dim) and not b.uses(dim)]
    only_b = [dim for dim in stage.reduce if b.uses(dim) and not a.uses(dim)]
    repeats = prod(stage.dims[dim] for dim in stage.reduce if not a.uses(dim) and not b.uses(dim))
    lone = [dim for dim in free if not a.uses(dim) and not b.uses(dim)]
    written = [*batch, *rows, *columns, *lone]
    written_sizes = [stage.dims[dim] for dim in [*batch, *rows, *columns]] + [1] * len(lone)
    sizes = [prod(stage.dims[dim] for dim in group) for group in (batch, rows, summed, columns)]
    wide = kernel.numerics.accumulate

    def bind(views: Views) -> Fire:
        left = a.view(views[a.param.name], [*batch, *rows, *summed, *only_a])
        right = b.view(views[b.param.name], [*batch, *summed, *columns, *only_b])
        target = output.view(views[output.param.name], written)

        def fire(_: Scalars) -> None:
            result = _multiply(_widen(left, len(only_a), wide), _widen(right, len(only_b), wide), sizes)
            result = result * repeats if repeats > 1 else result
            target.copy_(result.view(written_sizes))

        return fire

    return bind


def _widen(operand: Tensor, trailing: int, wide: torch.dtype) -> Tensor:
    """The operand in the accumulation dtype, summed over its `trailing` last dimensions."""
    operand = operand.to(wide)
    return operand.sum(list(range(-trailing, 0))) if trailing else operand


def _multiply(left: Tensor, right: Tensor, sizes: list[int]) -> Tensor:
    """[batch, rows, summed] @ [batch, summed, columns], without a batch axis where there is no batch."""
    batch, rows, summed, columns = sizes
    if batch == 1:
        return torch.mm(left.reshape(rows, summed), right.reshape(summed, columns))
    return torch.bmm(left.reshape(batch, rows, summed), right.reshape(batch, summed, columns))
