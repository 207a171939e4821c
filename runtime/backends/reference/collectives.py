"""What ranks do together: a sum of what each has a part of, and what each has a piece of put together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sscc.ir.schedule import AllGather, AllReduce
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Scalars, Views


def summed(values: Sequence[Tensor], wide: torch.dtype) -> Tensor:
    """The sum over ranks, in their order, accumulated in `wide` and rounded once to the dtype of the values."""
    return functools.reduce(torch.add, [value.to(wide) for value in values]).to(values[0].dtype)


def compile_all_reduce(step: AllReduce, interface: Interface) -> Bind:
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        part, total = views[step.part], views[step.total]

        def fire(_: Scalars) -> None:
            total.copy_(summed(interface.ranks.exchange(part.clone(), step.axes), wide))

        return fire

    return bind


def compile_all_gather(step: AllGather, interface: Interface) -> Bind:
    def bind(views: Views) -> Fire:
        part, whole = views[step.part], views[step.whole]

        def fire(_: Scalars) -> None:
            whole.copy_(torch.cat(interface.ranks.exchange(part.clone(), step.axes), step.axis))

        return fire

    return bind
