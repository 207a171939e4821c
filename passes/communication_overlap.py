"""Stages that exchange values with other ranks tile by tile (used by the pass tile-stages).

If a sum over ranks waits for the whole product, and the next product for the whole sum, links are idle while units
work, and units while values are in transit. If a product's result goes to an exchange, through stages that need one
tile of it for one tile of theirs, all of these stages can work on tiles: one tile is sent while the next is computed.
`find` decides where that pays.

Times are estimated for the allocation of place-stages: a stage that takes W seconds on one unit gets units in
proportion to the square root of W. With k stages, the i-th of which takes t_i(n) for one of n tiles, the total is
sum(t_i) + (n - 1) max(t_i). An exchange of E seconds and a latency of L takes E / n + L per tile: every tile pays for
the latency, but overlaps with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod, sqrt

from torch_mlir import ir

from sscc.ir.collectives import EXCHANGES, grid_axes
from sscc.ir.dialects import df, kv
from sscc.ir.target import Target
from sscc.ir.views import RESHAPES, bytes_of
from sscc.passes.form_stages import StageBody
from sscc.passes.stage_work import exchanges, work_of
from sscc.passes.tiling import WHOLE, NotTileable, Tiling, is_contraction, tile_back

MOST = 32
"""Maximum number of tiles: each tile is one firing of every stage, and one message of its exchange."""
WORTH = 0.1
"""Minimum share of a chain's time that tiles must save. While a stage waits for other ranks, main memory continues to
stream for the stages behind it, so that their reads are partly hidden even without tiles."""


@dataclass(frozen=True)
class Link:
    """A stage of a chain.

    Attributes:
        tiling: the tile of each value of its body, for one tile of its result.
        axis: axis of its result that is cut.
        source: operand that the previous stage produces; -1 for the first.
        views: reshapes between the two, in order.
        cut: cut axes of these reshapes.
    """

    op: ir.Operation
    body: StageBody
    tiling: Tiling
    axis: int
    source: int
    views: tuple[ir.Operation, ...]
    cut: Tiling


@dataclass(frozen=True)
class Chain:
    """Stages that fire in turn, each on a tile of the previous one."""

    links: tuple[Link, ...]
    count: int

    @property
    def last(self) -> ir.Operation:
        return self.links[-1].op


def find(
    bodies: Mapping[ir.Operation, StageBody], target: Target, grid: Sequence[int], tile_rows: int
) -> list[Chain]:
    """Return disjoint chains of a block's stages, in the order of their first stages.

    Args:
        bodies: bodies of the stages, in program order.
        target: the machine of a rank.
        grid: grid of the ranks that run the module.
        tile_rows: see `get_tile_rows`.
    """
    if not any(exchanges(body.ops) for body in bodies.values()):
        return []
    return list(_Finder(bodies, target, grid, tile_rows).chains())


class _Finder:
    def __init__(
        self, bodies: Mapping[ir.Operation, StageBody], target: Target, grid: Sequence[int], tile_rows: int
    ) -> None:
        self._bodies, self._target, self._grid, self._tile_rows = bodies, target, grid, tile_rows
        self._place = {op: index for index, op in enumerate(bodies)}
        self._updating = [index for index, body in enumerate(bodies.values()) if body.tied]
        work = {op: work_of(body.ops, target.units) for op, body in bodies.items()}
        roots = sum(map(sqrt, work.values()))
        units = target.units.pcus.value
        self._seconds = {op: sqrt(each) * roots / units for op, each in work.items()}

    def chains(self) -> Iterator[Chain]:
        taken: set[ir.Operation] = set()
        for op in self._bodies:
            if op in taken or exchanges(self._bodies[op].ops):
                continue
            chain = self._best(op)
            if chain is not None and not taken & {link.op for link in chain.links}:
                taken |= {link.op for link in chain.links}
                yield chain

    def _best(self, first: ir.Operation) -> Chain | None:
        """Return the chain that saves the most time, of those that begin with a stage."""
        best, most = None, 0.0
        run = list(self._run(first))
        for end in range(1, len(run)):
            if not exchanges(self._bodies[run[end][0]].ops):
                continue
            for axis in range(run[end][0].results[0].type.rank):
                links = self._links(run[: end + 1], axis)
                if links is None:
                    continue
                count, gain = self._gain(links)
                if gain > most:
                    best, most = Chain(tuple(links), count), gain
        return best

    def _run(self, op: ir.Operation) -> Iterator[tuple[ir.Operation, int, tuple[ir.Operation, ...]]]:
        """Return a stage and its successors as long as each is the only reader of the previous one, with the operand
        that it reads and the reshapes between. The stages among them update nothing that they read."""
        source, views, first = -1, tuple[ir.Operation, ...](), self._place[op]
        while self._may_move(op, first):
            yield op, source, views
            value, between = op.results[0], list[ir.Operation]()
            user = _only_user(value)
            while user is not None and user.name in RESHAPES:
                between.append(user)
                value = user.results[0]
                user = _only_user(value)
            if user is None or user not in self._place:
                return
            op, source, views = user, list(user.operands).index(value), tuple(between)

    def _may_move(self, op: ir.Operation, first: int) -> bool:
        """Return True if a stage may be part of a chain.

        It must have one result, which is not an update in memory, and no stage from the chain's first one to it may
        update memory, because stages in front of it will fire behind them.
        """
        has_one_result = len(op.results) == 1 and df.BOUNDED not in self._bodies[op].function.attributes
        return has_one_result and not any(first <= place <= self._place[op] for place in self._updating)

    def _links(self, run: Sequence[tuple[ir.Operation, int, tuple[ir.Operation, ...]]], axis: int) -> list[Link] | None:
        """Return the links of a chain whose last result is cut along an axis; None if a stage would need more than one
        tile of the previous one."""
        links: list[Link] = []
        try:
            for op, source, views in reversed(run):
                body = self._bodies[op]
                (result,) = body.returned
                tiling = tile_back(body.ops, [(result, axis)], repeated=prod(result.type.shape) // MOST)
                if not all(_cuts_weight(product, tiling) for product in body.ops) or _cuts_rows(body, tiling):
                    return None
                cut = Tiling()
                if source >= 0:
                    needed = tiling.axes.get(body.function.arguments[source], WHOLE)
                    if needed == WHOLE:
                        return None
                    value = op.operands[source]
                    cut = tile_back(views, [(value, needed)])
                links.insert(0, Link(op, body, tiling, axis, source, views, cut))
                if source >= 0:
                    axis = cut.axes[views[0].operands[0] if views else value]
        except NotTileable:
            return None
        return links

    def _gain(self, links: Sequence[Link]) -> tuple[int, float]:
        """Return the number of tiles for which a chain takes the least time, and the time saved; 0 if it does not pay.
        """
        times = [self._times(link) for link in links]
        whole = sum(work + latency for work, latency in times)
        firing = self._target.costs.firing_seconds.value

        def cost(n: int) -> float:
            each = [work / n + latency + firing for work, latency in times]
            return sum(each) + (n - 1) * max(each)

        limit = gcd(*(length for link in links for length in (*link.tiling.lengths(), *link.cut.lengths())))
        rows = gcd(*(rows for link in links for rows in self._matrix_rows(link)))
        counts = [n for n in range(2, min(limit, MOST) + 1) if limit % n == 0]
        even = [n for n in counts if rows % (n * self._tile_rows) == 0]
        count = min(even or counts, key=cost, default=1)
        gain = whole - cost(count) if count > 1 else 0.0
        return count, gain if gain > WORTH * whole else 0.0

    def _times(self, link: Link) -> tuple[float, float]:
        """Return the seconds of a stage in proportion to the size of its tile, and the fixed seconds per tile."""
        fetched = sum(self._fetched_bytes(link))
        work = max(self._seconds[link.op], self._target.seconds({self._target.main.name: fetched}))
        latency = 0.0
        for op in link.body.ops:
            if op.name in EXCHANGES:
                sent, hops = self._sent(op)
                work = max(work, sent / self._target.link_bandwidth)
                latency += hops * self._target.link_latency
        return work, latency

    def _sent(self, op: ir.Operation) -> tuple[float, int]:
        """Return the bytes that a rank sends, and the number of messages in sequence (as in
        `sscc.runtime.timing.work`)."""
        ranks = prod(self._grid[axis] for axis in grid_axes(op))
        whole = max(bytes_of(op.operands[0]), bytes_of(op.results[0])) * (ranks - 1) / ranks
        return (2 * whole, 2) if op.name == "shard.all_reduce" else (whole, 1)

    def _fetched_bytes(self, link: Link) -> Iterator[int]:
        """Return the bytes that a stage fetches from memory by itself. For experts, the maximum number of them."""
        for op in link.body.ops:
            if op.name == "kv.expert_product":
                operands = kv.operands_of(op)
                named = prod(operands["expert"].type.shape)
                for index in link.body.fetched:
                    size = link.op.operands[index].type.shape[0]
                    yield bytes_of(link.op.operands[index]) * min(named, size) // size

    def _matrix_rows(self, link: Link) -> Iterator[int]:
        """Return the number of matrix rows that a stage's tiles cut."""
        for argument in link.body.function.arguments:
            axis = link.tiling.axes.get(argument, WHOLE)
            if axis != WHOLE and axis < argument.type.rank - 1:
                yield argument.type.shape[axis]


def _cuts_weight(op: ir.Operation, tiling: Tiling) -> bool:
    """Return True if an operation is not a product, or its weight is cut: an uncut one would be read again for every
    tile."""
    return not is_contraction(op) or tiling.axes.get(op.operands[1], WHOLE) != WHOLE


def _cuts_rows(body: StageBody, tiling: Tiling) -> bool:
    """Return True if tiles cut rows that a stage fetches from memory by itself, where they are contiguous."""
    fetched = [body.function.arguments[index] for index in body.fetched]
    return any(tiling.axes.get(value, WHOLE) == value.type.rank - 1 for value in fetched)


def _only_user(value: ir.Value) -> ir.Operation | None:
    users = [use.owner.operation for use in value.uses]
    return users[0] if len(users) == 1 else None
