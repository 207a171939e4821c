"""Memory section: the tensors or buffers of each level, and the KV cache compared with an uncompressed one."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.choices import DECODE
from sscc.ir.schedule import Buffer, Program, Tensor, pipelines
from sscc.ir.target import MemoryLevel

LISTED = 12
"""Maximum number of tensors or buffers listed per level: the largest ones."""
PIECES = 400
"""Resolution of a map: pieces narrower than 1 / `PIECES` of its width are merged with their neighbours."""

PLAIN = {"weight": "weights", "constant": "constants", "input": "inputs", "output": "outputs", "state": "other states",
         "temporary": "temporaries"}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A piece of a map.

    Attributes:
        begin, size: fractions of the map's width.
    """

    begin: float
    size: float
    kind: str
    hint: str


@dataclass(frozen=True)
class Region:
    """A tensor or a buffer."""

    name: str
    kind: str
    element: str
    address: int
    nbytes: int


@dataclass(frozen=True)
class Level:
    """A level of memory of one rank.

    Attributes:
        nbytes: bytes in use.
        capacity: bytes of all sockets of a rank.
        roles: bytes by kind, largest first.
        pieces: a map of the used memory, by address.
        begin, end: first address of the map, and the address after the last one.
        heading: title of the map.
        listed: the largest regions.
        rest: number of other regions.
    """

    label: str
    nbytes: int
    capacity: int
    roles: tuple[tuple[str, int], ...]
    pieces: tuple[Piece, ...]
    begin: int
    end: int
    heading: str
    listed: tuple[Region, ...]
    rest: int


@dataclass(frozen=True)
class CacheBar:
    """A bar of the cache comparison.

    Attributes:
        share: length relative to the largest bar.
    """

    label: str
    nbytes: int
    share: float
    kind: str


@dataclass(frozen=True)
class Memory:
    levels: tuple[Level, ...]
    caches: tuple[CacheBar, ...]
    groups: tuple[str, ...]


def memory(sources: Sources) -> Memory:
    i, program, machine = sources.inspection, sources.artifact.program, sources.machine
    levels = [_on_chip(sources, machine.nearest)]
    for level in machine.memories:
        tensors = [tensor for tensor in program.tensors if tensor.tier == level.name]
        if tensors or level.name == machine.main.name:
            report = i.levels[level.name]
            kept = i.signature.state_parts
            levels.append(_far(level, tensors, report.nbytes, report.capacity_bytes, kept))
    return Memory(tuple(levels), tuple(_caches(sources)), tuple(i.signature.groups_in_words()))


def _caches(sources: Sources) -> Iterator[CacheBar]:
    i = sources.inspection
    tokens = i.signature.geometry.max_context
    bars = [(f"uncompressed, {tokens} tokens", i.full_kv_bytes, "full"), ("allocated", i.held_kv_bytes, "held"),
            ("read per decode step", i.kv_bytes, "read")]  # fmt: skip
    longest = max(nbytes for _, nbytes, _ in bars) or 1
    yield from (CacheBar(label, nbytes, nbytes / longest, kind) for label, nbytes, kind in bars)


def _far(
    level: MemoryLevel, tensors: list[Tensor], taken: int, capacity: int, kept: Container[str]
) -> Level:
    regions = [
        Region(tensor.name, kind_of(tensor, kept), _element(tensor), tensor.address, tensor.nbytes)
        for tensor in tensors
    ]
    roles = {kind: _covered(r for r in regions if r.kind == kind) for kind in {region.kind for region in regions}}
    heading = "by address (off-chip memories share one address space; temporaries overlap)"
    return _level(level.label, taken, capacity, regions, roles, heading)


def _on_chip(sources: Sources, level: MemoryLevel) -> Level:
    """Return the on-chip level: the buffers of the slowest kernel of decode."""
    program, report = sources.artifact.program, sources.inspection.levels[level.name]
    owner = next((kernel.name for kernel in sources.timings[DECODE].kernels()), "")
    regions = [
        Region(b.name, kind, f"{b.dtype}[{', '.join(map(str, b.shape))}] x{b.depth}", b.address, b.nbytes)
        for kind, b in _buffers(program, owner)
    ]
    roles = {kind: _covered(r for r in regions if r.kind == kind) for kind in {region.kind for region in regions}}
    heading = f"of {owner}, the longest decode kernel (the total above is the maximum over kernels)"
    return _level(level.label, report.nbytes, report.capacity_bytes, regions, roles, heading)


def _buffers(program: Program, kernel: str) -> Iterator[tuple[str, Buffer]]:
    """Yield the on-chip buffers of a kernel, each with its kind: "loads" if loads fill it, else "streams"."""
    bodies = {body.name: body for body in program.bodies}
    params = {param.name for k in program.kernels if k.name == kernel for param in k.params}
    for pipeline in (p for k in program.kernels if k.name == kernel for p in pipelines(k.body)):
        loaded: set[str] = set()
        for stage in pipeline.stages:
            accesses = [param.access for param in bodies[stage.body].params]
            pairs = list(zip(accesses, stage.ports, strict=True))
            if len(pairs) == 2 and any(access == "read" and port.view.tensor in params for access, port in pairs):
                loaded |= {port.view.tensor for access, port in pairs if access == "write"}
        for buffer in pipeline.buffers:
            if buffer.on_chip:
                yield "loads" if buffer.name in loaded else "streams", buffer


def kind_of(tensor: Tensor, kept: Container[str]) -> str:
    """Return the use of a tensor.

    Args:
        kept: names of the tensors in which layers keep state between steps.
    """
    return "KV cache" if tensor.name in kept else PLAIN[tensor.role]


def _element(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _covered(regions: Iterable[Region]) -> int:
    """Return the number of bytes in the union of regions."""
    covered, end = 0, 0
    for begin, size in sorted((region.address, region.nbytes) for region in regions):
        covered += max(0, begin + size - max(begin, end))
        end = max(end, begin + size)
    return covered


def _level(
    label: str, taken: int, capacity: int, regions: list[Region], roles: dict[str, int], heading: str
) -> Level:
    listed = sorted(regions, key=lambda region: (-region.nbytes, region.name))[:LISTED]
    most = sorted(((kind, nbytes) for kind, nbytes in roles.items() if nbytes), key=lambda pair: -pair[1])
    begin = min((region.address for region in regions), default=0)
    end = max((region.address + region.nbytes for region in regions), default=0)
    pieces = tuple(_pieces(regions, begin, end - begin))
    rest = len(regions) - len(listed)
    return Level(label, taken, capacity, tuple(most), pieces, begin, end, heading, tuple(listed), rest)


def _pieces(regions: list[Region], start: int, width: int) -> Iterator[Piece]:
    """Yield the pieces of a map by address. Neighbours of one kind are merged if one of them is too small to see."""
    runs: list[list[Region]] = []
    for region in sorted(regions, key=lambda r: (r.address, -r.nbytes)):
        if not region.nbytes:
            continue
        last = runs[-1] if runs else []
        small = min(region.nbytes, last[-1].nbytes if last else 0) * PIECES < width
        if last and last[0].kind == region.kind and small:
            last.append(region)
        else:
            runs.append([region])
    for run in runs:
        begin, end = run[0].address, max(region.address + region.nbytes for region in run)
        name = run[0].name if len(run) == 1 else f"{run[0].name} .. {run[-1].name} ({len(run)})"
        hint = f"{name}: {run[0].kind}, {end - begin:,} bytes at 0x{begin:x}"
        yield Piece((begin - start) / width, (end - begin) / width, run[0].kind, hint)
