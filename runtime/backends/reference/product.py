"""Products: out[..] = sum over the reduced dimensions of a[..] * b[..], as one batched matrix product.

Both operands are first widened to the accumulation dtype, so the only rounding is in the final write. The iteration
dimensions fall into five groups by the operands that use them: batch (a and b), rows (a), columns (b), summed (both)
and lone ones (used by no operand, or reduced and used by one).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from sscc.ir.opspec import executes
from sscc.ir.schedule import Product
from sscc.runtime.backends.reference.access import AccessMap
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Scalars, Views
from sscc.runtime.backends.reference.vector import check_output
from sscc.runtime.backends.reference.views import overlap


@executes(Product)
def compile_product(step: Product, interface: Interface) -> Bind:
    """Compile any contraction of two float parameters into a third one. Shapes follow from the access maps."""
    a, b, output = (AccessMap(access, step.dims, interface) for access in (step.a, step.b, step.output))
    free = [dim for dim in range(len(step.dims)) if dim not in step.reduce]
    check_output(output, interface, free)
    batch = [dim for dim in free if a.uses(dim) and b.uses(dim)]
    rows = [dim for dim in free if a.uses(dim) and not b.uses(dim)]
    columns = [dim for dim in free if b.uses(dim) and not a.uses(dim)]
    summed = [dim for dim in step.reduce if a.uses(dim) and b.uses(dim)]
    only_a = [dim for dim in step.reduce if a.uses(dim) and not b.uses(dim)]
    only_b = [dim for dim in step.reduce if b.uses(dim) and not a.uses(dim)]
    repeats = prod(step.dims[dim] for dim in step.reduce if not a.uses(dim) and not b.uses(dim))
    lone = [dim for dim in free if not a.uses(dim) and not b.uses(dim)]
    written = [*batch, *rows, *columns, *lone]
    written_sizes = [step.dims[dim] for dim in [*batch, *rows, *columns]] + [1] * len(lone)
    sizes = [prod(step.dims[dim] for dim in group) for group in (batch, rows, summed, columns)]
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        left = a.view(views[a.param.name], [*batch, *rows, *summed, *only_a])
        right = b.bind(views, [*batch, *summed, *columns, *only_b])
        target = output.view(views[output.param.name], written)
        plain = not only_a and not only_b and repeats == 1 and step.b.indirect is None
        plain = plain and {x.dtype for x in (left, target, views[b.param.name])} == {wide}
        direct = _in_place(left, right(), target, sizes) if plain else None
        if direct is not None:
            return direct

        def fire(_: Scalars) -> None:
            result = _multiply(_widen(left, len(only_a), wide), _widen(right(), len(only_b), wide), sizes)
            result = result * repeats if repeats > 1 else result
            target.copy_(result.view(written_sizes))

        return fire

    return bind


def _in_place(left: Tensor, right: Tensor, target: Tensor, sizes: list[int]) -> Fire | None:
    """Return the product as one call that writes directly to the output, if the layout of operands needs no copy."""
    batch, rows, summed, columns = sizes
    if batch != 1 or not target.is_contiguous() or overlap(left, target) or overlap(right, target):
        return None
    if target.numel() != rows * columns:
        return None
    try:
        a, b, out = left.view(rows, summed), right.view(summed, columns), target.view(rows, columns)
    except RuntimeError:  # the strides allow no view with two dimensions
        return None

    def fire(_: Scalars) -> None:
        torch.mm(a, b, out=out)

    return fire


def _widen(operand: Tensor, trailing: int, wide: torch.dtype) -> Tensor:
    """Return the operand in the accumulation dtype, summed over its last `trailing` dimensions."""
    operand = operand.to(wide)
    return operand.sum(list(range(-trailing, 0))) if trailing else operand


def _multiply(left: Tensor, right: Tensor, sizes: list[int]) -> Tensor:
    """Return [batch, rows, summed] @ [batch, summed, columns], without a batch axis if there is no batch."""
    batch, rows, summed, columns = sizes
    if batch == 1:
        return torch.mm(left.reshape(rows, summed), right.reshape(summed, columns))
    return torch.bmm(left.reshape(batch, rows, summed), right.reshape(batch, summed, columns))
