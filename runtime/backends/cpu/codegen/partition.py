"""Independent parts of a body: the units that are divided among threads, and the phases between barriers.

The elements of a region fall into units: element o belongs to unit ``(o % span) // stride``. Steps can run one after
another without a barrier, unit by unit, if each of them computes unit u of its output only from unit u of the outputs
of earlier steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import ENOUGH
from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest, merged, merged_around


@dataclass(frozen=True)
class Split:
    """Units of a region: element o belongs to unit ``(o % span) // stride``."""

    stride: int
    span: int

    @property
    def units(self) -> int:
        return -(-self.span // self.stride)


@dataclass(frozen=True)
class Member:
    """A step of a group: unit u is the indices [u * granule, (u + 1) * granule) of `dim`, limited to its extent."""

    nest: Nest
    dim: int
    granule: int


@dataclass(frozen=True)
class StepGroup:
    """Steps that run unit by unit without a barrier.

    Attributes:
        units: number of units.
        members: steps, by number.
        splits: units of each region that the group writes; empty for a single unit.
    """

    units: int
    members: dict[int, Member]
    splits: dict[str, Split]


Step = tuple[int, tuple[Nest, Nest]]
"""A step's number, with its nest before and after merging."""


def group_steps(nests: Sequence[tuple[int, Nest]]) -> list[StepGroup]:
    """Group consecutive steps (number, nest) into few groups: each group grows as long as all its steps have units in
    common.

    The nests of the members are merged as far as their units allow.
    """
    groups: list[StepGroup] = []
    pending: list[Step] = []
    best: StepGroup | None = None
    for number, nest in nests:
        item = (number, (nest, merged(nest)))
        wider = _best([*pending, item])
        own_group = wider if not pending else _best([item])
        if best is None or wider.units >= min(ENOUGH, best.units, own_group.units):
            pending.append(item)
            best = wider
        else:
            groups.append(best)
            pending, best = [item], own_group
    if best is not None:
        groups.append(best)
    return [replace(g, members={n: _simplified(m) for n, m in g.members.items()}) for g in groups]


def _simplified(member: Member) -> Member:
    nest, dim, factor = merged_around(member.nest, member.dim)
    return Member(nest, dim, member.granule * factor)


def _best(steps: list[Step]) -> StepGroup:
    """Return the group of the steps with the most units that all of them have in common; one unit if there are none."""
    best: StepGroup | None = None
    for forms in (steps[-1][1], *(forms for _, forms in steps if forms[0].product)):
        for nest in forms:
            for dim in range(len(nest.dims)):
                if dim in nest.reduce or nest.output.coefficients[dim] == 0:
                    continue
                group = _try(steps, nest, dim, _granule(nest, dim))
                if group is not None and (best is None or group.units > best.units):
                    best = group
    return best or StepGroup(1, {number: Member(forms[1], -1, 0) for number, forms in steps}, {})


def _granule(nest: Nest, dim: int) -> int:
    """Return the indices per unit; if elements are consecutive, units are whole vectors."""
    return LANES if nest.output.coefficients[dim] == 1 and nest.dims[dim] >= LANES else 1


def _try(steps: list[Step], seed: Nest, dim: int, granule: int) -> StepGroup | None:
    stride = seed.output.coefficients[dim]
    if stride < 0 or granule > seed.dims[dim]:
        return None
    splits = {seed.output.region: Split(stride * granule, stride * seed.dims[dim])}
    units = splits[seed.output.region].units
    written = {forms[0].output.region for _, forms in steps}
    members: dict[int, Member] = {}
    for number, forms in reversed(steps):
        member = next((m for nest in forms if (m := _join(nest, splits, units, written)) is not None), None)
        if member is None:
            return None
        members[number] = member
    return StepGroup(units, dict(sorted(members.items())), splits)


def _join(nest: Nest, splits: dict[str, Split], units: int, written: set[str]) -> Member | None:
    """Return the step as a member of a group if it has the group's units; adds the splits of its inputs to `splits`."""
    split = splits.get(nest.output.region)
    if split is None:  # no later step reads the output of this one, so any division into the same number of units works
        split = _independent(nest, units)
    member = None if split is None else _member(nest, split)
    if split is None or member is None:
        return None
    new_splits = {nest.output.region: split}
    for access in (*nest.inputs, *_gathers(nest)):
        if access.region not in written:
            continue
        read = _split_read(access, member)
        if read is None or splits.get(access.region, read) != read or new_splits.get(access.region, read) != read:
            return None
        new_splits[access.region] = read
    splits.update(new_splits)
    return member


def _independent(nest: Nest, units: int) -> Split | None:
    for dim, coefficient in enumerate(nest.output.coefficients):
        if dim in nest.reduce or coefficient <= 0 or nest.dims[dim] % units:
            continue
        granule = nest.dims[dim] // units
        if not nest.product or _whole_panels(nest, dim, granule):
            return Split(coefficient * granule, coefficient * nest.dims[dim])
    return None


def _gathers(nest: Nest) -> list[LinearAccess]:
    """Return the loads of a nest, and its operand with an indirect axis, as accesses that stay in no unit, because they
    may read any element."""
    regions = [g.region for g in nest.loads.values()]
    if nest.indirect is not None:
        regions.append(nest.inputs[1].region)
    return [LinearAccess(region, 0, (0,) * len(nest.dims)) for region in regions]


def _member(nest: Nest, split: Split) -> Member | None:
    """Return the step, split along the dimension that runs over the units of its output."""
    for dim, (coefficient, extent) in enumerate(zip(nest.output.coefficients, nest.dims, strict=True)):
        if dim in nest.reduce or coefficient <= 0 or coefficient * extent != split.span or split.stride % coefficient:
            continue
        granule = split.stride // coefficient
        if _stays(nest.output, nest, dim) and not (nest.product and not _whole_panels(nest, dim, granule)):
            return Member(nest, dim, granule)
    return None


def _split_read(access: LinearAccess, member: Member) -> Split | None:
    """Return units of a region such that unit u of the step accesses only unit u; None if there are none."""
    coefficient = access.coefficients[member.dim]
    if coefficient <= 0 or not _stays(access, member.nest, member.dim):
        return None
    return Split(coefficient * member.granule, coefficient * member.nest.dims[member.dim])


def _stays(access: LinearAccess, nest: Nest, dim: int) -> bool:
    """Return True if the other dimensions never move an access to another index of `dim`."""
    stride, span = access.coefficients[dim], access.coefficients[dim] * nest.dims[dim]
    inner = access.constant % span
    for d, (coefficient, extent) in enumerate(zip(access.coefficients, nest.dims, strict=True)):
        if d == dim or coefficient % span == 0:
            continue
        if coefficient < 0:
            return False
        inner += coefficient * (extent - 1)
    return inner < stride


def _whole_panels(nest: Nest, dim: int, granule: int) -> bool:
    """Return True if a unit of a product is a whole number of panels of its second operand's rows."""
    b = nest.inputs[1].coefficients
    columns = [d for d in range(len(nest.dims)) if d not in nest.reduce and b[d]]
    if dim not in columns:
        return False
    row = min(b[d] for d in columns)
    return granule * b[dim] % (LANES * row) == 0
