"""Addresses: inside the arena, aligned, and shared only by tensors with disjoint lifetimes; capacities of tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from sscc.ir import schedule as sch
from sscc.ir.sharding import MOST_RANKS, Cut
from sscc.ir.target import Target
from sscc.ir.weight_formats.registry import Encoding
from sscc.ir.weight_formats.weight_format import RANKS
from sscc.runtime.validator.entries import EntryFacts
from sscc.runtime.validator.failure import Bytes, ProofKind, check_numbers
from sscc.runtime.validator.kernels import KernelFacts


class PlacementProofErrors(ProofKind):
    """Tensors and buffers with invalid addresses, sizes or sources."""

    GRID = "the axes of its grid must have at least 2 ranks, and the grid at most {most}, got [{grid}]"
    NEGATIVE_SHAPE = "it has shape [{shape}], but sizes must not be negative"
    SOURCES = "a {role} of shape [{shape}] has {count} sources"
    CUT = "a {role} of shape [{shape}] on each of {ranks} ranks is cut as {cut!r}, which does not fit"
    ENCODING = "a {role} of {dtype} [{shape}] cannot be {encoding!r}"
    ARENA = "the arena has {arena} bytes, but its contents end at {end}"
    ON_CHIP = "an on-chip buffer ends at {end}, beyond the limit of {room}"
    TOO_LARGE = "{name!r} takes {size}, but the limit for memory besides tensors is {room}"
    UNALIGNED = "it is at address {address}, which is not a multiple of {alignment}"
    OUTSIDE_ARENA = "it takes addresses {low} .. {high}, but the arena has {arena} bytes"
    INSIDE_ARENA = "address {address} is inside the arena of {arena} bytes"
    BUFFERS_OVERLAP = "spilled buffers {one!r} and {other!r} overlap at address {address}"
    KEPT_OVERLAP = "they share addresses, but not both are temporary"
    ALIVE_TOGETHER = (
        "they share addresses, but are both live in entry {entry!r}: launches {first} .. {last} and {other_first} .. "
        "{other_last}"
    )
    CAPACITY = "required {required} of {tier}, capacity {capacity}: largest tensors {largest}"


ALIGNMENT = 64
_STORED = ("weight", "constant")


@dataclass(frozen=True)
class _AddressRange:
    """A range of addresses; `lives` is, per entry, the first and the last launch that need it, None for all of them."""

    name: str
    begin: int
    end: int
    lives: Mapping[str, tuple[int, int]] | None


def check_tensors(program: sch.Program) -> None:
    """Check ranks, shapes and sources, and that every address is aligned and in its region."""
    if any(size < 2 for size in program.grid) or program.ranks > MOST_RANKS:
        raise PlacementProofErrors.GRID(where="program", grid=program.grid, most=MOST_RANKS)
    for tensor in program.tensors:
        where = f"tensor {tensor.name!r}"
        if any(size < 0 for size in tensor.shape):
            raise PlacementProofErrors.NEGATIVE_SHAPE(where=where, shape=tensor.shape)
        check_numbers(where, "it", (*tensor.shape, tensor.address + tensor.nbytes))
        count = len(tensor.sources)
        if (tensor.role in _STORED) != (count > 0) or (count > 1 and tensor.shape[:1] != (count,)):
            raise PlacementProofErrors.SOURCES(where=where, role=tensor.role, shape=tensor.shape, count=count)
        if tensor.encoding:
            _check_encoding(where, tensor)
        if tensor.cut:
            _check_cut(where, tensor, program.ranks)
        _check_address(where, tensor.address, tensor.nbytes, None if tensor.role in _STORED else program.arena_bytes)


def _check_cut(where: str, tensor: sch.Tensor, ranks: int) -> None:
    """Check that a rank's part of a tensor has the shape that the cut implies."""
    cut = Cut.parse(tensor.cut)
    check_numbers(where, "its cut", [segment.size for segment in cut.segments])
    stored = tensor.role in _STORED and 0 <= cut.axis < len(tensor.shape)
    if not stored or cut.local != tensor.shape[cut.axis] or any(ranks % segment.parts for segment in cut.segments):
        raise PlacementProofErrors.CUT(
            where=where, role=tensor.role, shape=tensor.shape, ranks=ranks, cut=tensor.cut
        )


def check_sizes(program: sch.Program) -> None:
    """Check that the arena ends with its contents, and that memory besides tensors is bounded by a multiple of theirs.

    So memory grows with the tensors in the manifest, and not with a single number of the schedule.
    """
    kept = [b for kernel in program.kernels for p in sch.pipelines(kernel.body) for b in p.buffers]
    ends = [t.address + t.nbytes for t in program.tensors if t.role not in _STORED]
    spilled = [buffer for buffer in kept if not buffer.on_chip]
    ends += [buffer.address + buffer.nbytes for buffer in spilled]
    if program.arena_bytes > -(-max(ends, default=0) // ALIGNMENT) * ALIGNMENT:
        raise PlacementProofErrors.ARENA(where="memory", arena=program.arena_bytes, end=max(ends, default=0))
    room = max(_ROOM, _TIMES * sum(tensor.nbytes for tensor in program.tensors))
    for body in program.bodies:
        sizes = [(prod(local.shape) * sch.DTYPE_BYTES[local.dtype], local.name) for local in body.locals]
        _check_room(f"body {body.name!r}", sizes, room)
    for kernel in program.kernels:
        for pipeline in sch.pipelines(kernel.body):
            where = f"kernel {kernel.name!r}, pipeline {pipeline.name!r}"
            _check_room(where, [(buffer.nbytes, buffer.name) for buffer in pipeline.buffers], room)
            ends = [buffer.address + buffer.nbytes for buffer in pipeline.buffers if buffer.on_chip]
            if max(ends, default=0) > room:
                raise PlacementProofErrors.ON_CHIP(where=where, end=max(ends), room=Bytes(room))


_ROOM, _TIMES = 1 << 30, 4


def _check_room(where: str, sizes: Sequence[tuple[int, str]], room: int) -> None:
    if sum(size for size, _ in sizes) > room:
        size, name = max(sizes)
        raise PlacementProofErrors.TOO_LARGE(where=where, name=name, size=Bytes(size), room=Bytes(room))


def _check_encoding(where: str, tensor: sch.Tensor) -> None:
    """Check that an encoded tensor holds the bytes of a part of a matrix, or of one matrix per expert."""
    Encoding.parse(tensor.encoding)
    rank = len(tensor.shape) - (len(tensor.sources) > 1)
    if tensor.role != "weight" or tensor.dtype != "i8" or rank not in RANKS:
        raise PlacementProofErrors.ENCODING(
            where=where, role=tensor.role, dtype=tensor.dtype, shape=tensor.shape, encoding=tensor.encoding
        )


def _check_address(where: str, address: int, nbytes: int, limit: int | None) -> None:
    if address < 0 or address % ALIGNMENT:
        raise PlacementProofErrors.UNALIGNED(where=where, address=address, alignment=ALIGNMENT)
    if limit is not None and address + nbytes > limit:
        raise PlacementProofErrors.OUTSIDE_ARENA(where=where, low=address, high=address + nbytes - 1, arena=limit)


def check_overlaps(
    program: sch.Program,
    entries: Sequence[EntryFacts],
    lives: Mapping[str, Mapping[str, tuple[int, int]]],
    kernels: Mapping[str, KernelFacts],
) -> None:
    """Refuse addresses that are shared at the same time. `lives` is entry -> temporary -> first and last launch."""
    blocks = [_tensor_block(tensor, program.arena_bytes, lives) for tensor in program.tensors if tensor.nbytes]
    for facts in kernels.values():  # including kernels that are never launched
        for where, buffer in facts.spilled:
            _check_address(f"{where}, buffer {buffer.name!r}", buffer.address, buffer.nbytes, program.arena_bytes)
    blocks += _spilled_blocks(entries, kernels)
    active: list[_AddressRange] = []
    for block in sorted(blocks, key=lambda b: (b.begin, b.end)):
        active = [other for other in active if other.end > block.begin]
        for other in active:
            _check_pair(other, block)
        active.append(block)


def _tensor_block(tensor: sch.Tensor, arena: int, lives: Mapping[str, Mapping[str, tuple[int, int]]]) -> _AddressRange:
    end = tensor.address + tensor.nbytes
    if tensor.role in _STORED and tensor.address < arena:
        raise PlacementProofErrors.INSIDE_ARENA(
            where=f"{tensor.role} {tensor.name!r}", address=tensor.address, arena=arena
        )
    if tensor.role != "temporary":
        return _AddressRange(f"{tensor.role} {tensor.name!r}", tensor.address, end, None)
    ranges = {entry: lifetime[tensor.name] for entry, lifetime in lives.items() if tensor.name in lifetime}
    return _AddressRange(f"temporary {tensor.name!r}", tensor.address, end, ranges)


def _spilled_blocks(entries: Sequence[EntryFacts], kernels: Mapping[str, KernelFacts]) -> list[_AddressRange]:
    """Return spilled buffers, which are live while their kernel runs. Pipelines of a kernel may share addresses."""
    blocks = []
    for entry in entries:
        for launch in entry.launches:
            pipelines: dict[str, list[sch.Buffer]] = {}
            for where, buffer in kernels[launch.kernel.name].spilled:
                pipelines.setdefault(where, []).append(buffer)
            for where, buffers in pipelines.items():
                _check_apart(where, buffers)
            span = {entry.entry.name: (launch.position, launch.position)}
            for low, high, names in _merged([b for group in pipelines.values() for b in group]):
                blocks.append(_AddressRange(f"buffers {names} of kernel {launch.kernel.name!r}", low, high, span))
    return blocks


def _check_apart(where: str, buffers: Sequence[sch.Buffer]) -> None:
    ordered = sorted(buffers, key=lambda b: b.address)
    for one, other in pairwise(ordered):
        if other.address < one.address + one.nbytes:
            raise PlacementProofErrors.BUFFERS_OVERLAP(
                where=where, one=one.name, other=other.name, address=other.address
            )


def _merged(buffers: Sequence[sch.Buffer]) -> list[tuple[int, int, str]]:
    merged: list[tuple[int, int, str]] = []
    for buffer in sorted(buffers, key=lambda b: b.address):
        low, high = buffer.address, buffer.address + buffer.nbytes
        if merged and low < merged[-1][1]:
            before = merged.pop()
            merged.append((before[0], max(before[1], high), f"{before[2]}, {buffer.name!r}"))
        else:
            merged.append((low, high, repr(buffer.name)))
    return merged


def _check_pair(one: _AddressRange, other: _AddressRange) -> None:
    where = f"{one.name} at {one.begin} .. {one.end - 1} and {other.name} at {other.begin} .. {other.end - 1}"
    if one.lives is None or other.lives is None:
        raise PlacementProofErrors.KEPT_OVERLAP(where=where)
    for entry in one.lives.keys() & other.lives.keys():
        (first_a, last_a), (first_b, last_b) = one.lives[entry], other.lives[entry]
        if first_a <= last_b and first_b <= last_a:
            raise PlacementProofErrors.ALIVE_TOGETHER(
                where=where, entry=entry, first=first_a, last=last_a, other_first=first_b, other_last=last_b
            )


def tier_bytes(program: sch.Program, kernels: Mapping[str, KernelFacts]) -> dict[str, int]:
    """Return the bytes of each tier that are used at least once."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for tensor in program.tensors:
        spans.setdefault(tensor.tier, []).append((tensor.address, tensor.address + tensor.nbytes))
    for facts in kernels.values():
        for _, buffer in facts.spilled:
            spans.setdefault(buffer.tier, []).append((buffer.address, buffer.address + buffer.nbytes))
    return {tier: _union(ranges) for tier, ranges in sorted(spans.items())}


def _union(spans: Sequence[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for low, high in sorted(spans):
        total += max(0, high - max(low, reached))
        reached = max(reached, high)
    return total


def check_capacity(program: sch.Program, kernels: Mapping[str, KernelFacts], target: Target) -> None:
    """Refuse a tier that holds more than the capacity of all sockets."""
    for tier, nbytes in tier_bytes(program, kernels).items():
        capacity = target.capacity(tier)
        if nbytes <= capacity:
            continue
        largest = sorted(((t.nbytes, t.name) for t in program.tensors if t.tier == tier), reverse=True)[:3]
        raise PlacementProofErrors.CAPACITY(
            where="memory", required=Bytes(nbytes), tier=tier.upper(), capacity=Bytes(capacity),
            largest=[f"{name} {Bytes(size)}" for size, name in largest],
        )  # fmt: skip
