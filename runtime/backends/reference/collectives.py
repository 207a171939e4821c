"""Collective operations of ranks: the sum of their parts, and the concatenation of their pieces."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sscc.ir.opspec import executes
from sscc.ir.schedule import AllGather, AllReduce, AllSlice, AllToAll, ReduceScatter
from sscc.runtime.backends.collectives.group import Ranks
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Scalars, Views


def summed(values: Sequence[Tensor], wide: torch.dtype) -> Tensor:
    """Return the sum over ranks in their order, accumulated in `wide` and rounded once to the dtype of the values."""
    return functools.reduce(torch.add, [value.to(wide) for value in values]).to(values[0].dtype)


def part_of(value: Tensor, axis: int, ranks: Ranks, axes: Sequence[int]) -> Tensor:
    """Split a value along `axis` into equal parts, one for each rank of the group along `axes`, and return this rank's.
    """
    place, count = ranks.place(axes)
    size = value.shape[axis] // count
    return value.narrow(axis, place * size, size)


@executes(AllReduce)
def compile_all_reduce(step: AllReduce, interface: Interface) -> Bind:
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        part, total = views[step.part], views[step.total]

        def fire(_: Scalars) -> None:
            total.copy_(summed(interface.ranks.exchange(part.clone(), step.axes), wide))

        return fire

    return bind


@executes(ReduceScatter)
def compile_reduce_scatter(step: ReduceScatter, interface: Interface) -> Bind:
    wide, ranks = interface.numerics.accumulate, interface.ranks

    def bind(views: Views) -> Fire:
        part, piece = views[step.part], views[step.piece]

        def fire(_: Scalars) -> None:
            values = ranks.exchange(part.clone(), step.axes)
            piece.copy_(summed([part_of(value, step.axis, ranks, step.axes) for value in values], wide))

        return fire

    return bind


@executes(AllGather)
def compile_all_gather(step: AllGather, interface: Interface) -> Bind:
    def bind(views: Views) -> Fire:
        part, whole = views[step.part], views[step.whole]

        def fire(_: Scalars) -> None:
            whole.copy_(torch.cat(interface.ranks.exchange(part.clone(), step.axes), step.axis))

        return fire

    return bind


@executes(AllSlice)
def compile_all_slice(step: AllSlice, interface: Interface) -> Bind:
    def bind(views: Views) -> Fire:
        whole, part = views[step.whole], views[step.part]

        def fire(_: Scalars) -> None:
            part.copy_(part_of(whole, step.axis, interface.ranks, step.axes))

        return fire

    return bind


@executes(AllToAll)
def compile_all_to_all(step: AllToAll, interface: Interface) -> Bind:
    ranks = interface.ranks

    def bind(views: Views) -> Fire:
        part, joined = views[step.part], views[step.joined]

        def fire(_: Scalars) -> None:
            values = ranks.exchange(part.clone(), step.axes)
            joined.copy_(torch.cat([part_of(value, step.split, ranks, step.axes) for value in values], step.axis))

        return fire

    return bind
